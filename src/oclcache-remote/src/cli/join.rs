//! `oclcache remote join` and `invite`.

use std::io::{IsTerminal, Read};
use std::process::ExitCode;

use clap::Args;
use oclcache::remote::settings::{RemoteSettings, ValueSource};

use super::{Done, key, print, set, trust};
use crate::credentials;
use crate::invitation::Invitation;
use crate::keys::SecretKey;
use crate::session;
use crate::signers;

/// Longer invitations are not read, in bytes.
const MAX_BYTES: u64 = 64 << 10;

#[derive(Args)]
pub struct JoinArgs {
    /// `-`: the invitation comes from standard input
    from: String,
}

#[derive(Args)]
pub struct InviteArgs {
    /// For a colleague: without your key and without credentials
    #[arg(long)]
    public: bool,
    /// The name by which the other machine knows your key
    #[arg(long, default_value = "friend")]
    name: String,
}

#[derive(Args)]
pub struct CredentialArgs {}

#[derive(Args)]
pub struct SetUpArgs {}

impl CredentialArgs {
    pub fn run(self) -> Done {
        let mut text = String::new();
        let read = std::io::stdin()
            .lock()
            .take(MAX_BYTES)
            .read_to_string(&mut text);
        read.map_err(|error| format!("cannot read the URL: {error}"))?;
        let (address, user) = crate::engine::Address::parse(&text)?;
        let settings = RemoteSettings::read();
        if let Some(user) = user {
            let file = session::credentials_file(&settings).ok_or(
                "there is no place for the password: set HOME or XDG_CONFIG_HOME, and do not set `remote_credentials` to `aws`",
            )?;
            let credential = credentials::Credential {
                user: user.user,
                password: user.password,
            };
            credentials::write(file, &address, &credential)?;
        }
        print(address.url.as_str());
        Ok(ExitCode::SUCCESS)
    }
}

impl SetUpArgs {
    pub fn run(self) -> Done {
        let settings = RemoteSettings::read();
        // A variable is not what the user has set just now.
        if settings.url_source != ValueSource::Environment
            && let Ok(address) = session::address(&settings)
        {
            match crate::engine::make_directory(&address) {
                Ok(Some(made)) => print(&format!("new directory: `{}`", made.display())),
                Ok(None) => {}
                Err(why) => crate::say(&why),
            }
        }
        key::new_if_missing(&settings)
    }
}

impl InviteArgs {
    pub fn run(self) -> Done {
        let settings = RemoteSettings::read();
        let address = session::address(&settings)?;
        if !self.public && std::io::stdout().is_terminal() {
            return Err("an invitation carries your secret key and is not shown; send it to the other machine: `oclcache remote invite | ssh HOST oclcache remote join -`".to_owned());
        }
        let key = signers::secret_key(&settings)?
            .ok_or("there is no key; make one with `oclcache remote key new`")?;
        let mut trust = Vec::new();
        if self.public {
            trust.push((crate::invitation::checked_name(&self.name)?, key.public()));
        }
        for signer in settings.trust.iter().filter(|_| !self.public) {
            let name = signer.name.clone().unwrap_or_else(|| "unnamed".to_owned());
            trust.push((name, crate::keys::PublicKey::parse(&signer.key)?));
        }
        let credential = match (self.public, session::credentials_file(&settings)) {
            (false, Some(path)) => credentials::read(path, &address)?,
            _ => None,
        };
        let invitation = Invitation {
            url: address.url.to_string(),
            trust,
            credential,
            key: (!self.public).then_some(key),
        };
        print(invitation.encode()?.trim_end());
        Ok(ExitCode::SUCCESS)
    }
}

impl JoinArgs {
    pub fn run(self) -> Done {
        if self.from != "-" {
            return Err(
                "an invitation is read from standard input only: `oclcache remote join -`"
                    .to_owned(),
            );
        }
        let mut text = String::new();
        let read = std::io::stdin()
            .lock()
            .take(MAX_BYTES)
            .read_to_string(&mut text);
        read.map_err(|error| format!("cannot read the invitation: {error}"))?;
        let invitation = Invitation::parse(&text)?;
        let settings = RemoteSettings::read();
        if settings.url_source == ValueSource::Environment {
            return Err(
                "the variable OCLCACHE_REMOTE is set and would override the invitation; unset it"
                    .to_owned(),
            );
        }
        let path = settings
            .key_file
            .clone()
            .ok_or("there is no place for a key: set HOME or XDG_CONFIG_HOME")?;
        let present = match path.exists() {
            true => Some(SecretKey::read(&path)?),
            false => None,
        };
        match (&invitation.key, present) {
            (Some(new), Some(present)) if new.public() != present.public() => {
                return Err(format!(
                    "this machine has another key, `{}`; remove it if nobody uses it any more, and join again",
                    path.display()
                ));
            }
            (Some(new), None) => new.write(&path)?,
            (None, None) => SecretKey::generate()?.write(&path)?,
            (_, Some(_)) => {}
        }
        let (address, _) = crate::engine::Address::parse(&invitation.url)?;
        if let (Some(credential), Some(file)) =
            (&invitation.credential, session::credentials_file(&settings))
        {
            credentials::write(file, &address, credential)?;
        }
        set("remote", &invitation.url, false)?;
        if !invitation.trust.is_empty() {
            trust::trust(&invitation.trust, false)?;
        }
        print(&format!("this machine uses `{}` now", invitation.url));
        if invitation.key.is_none() {
            let own = SecretKey::read(&path)?.public().text;
            print(&format!(
                "others use what it builds once they type:  oclcache remote trust NAME {own}"
            ));
        }
        Ok(ExitCode::SUCCESS)
    }
}
