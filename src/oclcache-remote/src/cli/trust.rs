//! `oclcache remote trust` and `untrust`.

use std::process::ExitCode;

use clap::Args;
use oclcache::remote::settings::{RemoteSettings, Signer};

use super::{Done, print, set, stop_helper};
use crate::invitation::checked_name;
use crate::keys::{PublicKey, write_private};
use crate::local::Local;
use crate::object::SignerId;
use crate::session;

#[derive(Args)]
pub struct TrustArgs {
    /// A name for the key
    name: String,
    /// The public key, as `oclcache remote key` shows it on the other side
    key: String,
    /// For all users of the machine
    #[arg(long)]
    system: bool,
}

#[derive(Args)]
pub struct UntrustArgs {
    /// The id or the name of a key, as `oclcache remote status` shows it, or the public key
    id: String,
}

impl TrustArgs {
    pub fn run(self) -> Done {
        let name = checked_name(&self.name)?;
        let key = PublicKey::parse(&self.key)?;
        let settings = RemoteSettings::read();
        trust(&settings, &[(name.clone(), key.clone())], self.system)?;
        print(&format!(
            "what `{}` has signed is used now; its name is `{name}`",
            key.id
        ));
        Ok(ExitCode::SUCCESS)
    }
}

/// Adds signers to the settings.
pub fn trust(
    settings: &RemoteSettings,
    new: &[(String, PublicKey)],
    is_system: bool,
) -> Result<(), String> {
    if settings.is_trust_locked && !is_system {
        return Err(
            "the administrator of this machine says whom it trusts (`remote_trust_locked`)"
                .to_owned(),
        );
    }
    let is_new = |signer: &&Signer| !new.iter().any(|(_, key)| key.text == signer.key);
    let old = settings
        .trust
        .iter()
        .filter(|signer| signer.is_of_system == is_system);
    let mut words: Vec<String> = old.filter(is_new).map(word).collect();
    words.extend(new.iter().map(|(name, key)| format!("{name}:{}", key.text)));
    stop_helper(settings);
    set("remote_trust", &words.join(" "), is_system)?;
    let ids: Vec<SignerId> = new.iter().map(|(_, key)| key.id).collect();
    let left: Vec<SignerId> = session::revoked(settings)
        .into_iter()
        .filter(|id| !ids.contains(id))
        .collect();
    if left.len() < session::revoked(settings).len() {
        write_revoked(settings, &left)?;
    }
    Ok(())
}

fn word(signer: &Signer) -> String {
    match &signer.name {
        Some(name) => format!("{name}:{}", signer.key),
        None => signer.key.clone(),
    }
}

fn write_revoked(settings: &RemoteSettings, ids: &[SignerId]) -> Result<(), String> {
    let path = session::revoked_file(settings)
        .ok_or("there is no place for the list of revoked keys: set HOME or XDG_CONFIG_HOME")?;
    let text: String = ids.iter().map(|id| format!("{id}\n")).collect();
    write_private(&path, text.as_bytes(), false)
        .map_err(|error| format!("cannot write `{}`: {error}", path.display()))
}

impl UntrustArgs {
    pub fn run(self) -> Done {
        let settings = RemoteSettings::read();
        let id = self.id(&settings)?;
        // First the list, so that nothing of this signer arrives while entries are deleted.
        let mut revoked = session::revoked(&settings);
        if !revoked.contains(&id) {
            revoked.push(id);
            write_revoked(&settings, &revoked)?;
        }
        stop_helper(&settings);
        let of_this =
            |signer: &&Signer| PublicKey::parse(&signer.key).is_ok_and(|key| key.id == id);
        let own = || settings.trust.iter().filter(|signer| !signer.is_of_system);
        if own().any(|signer| of_this(&signer)) {
            let words: Vec<String> = own().filter(|signer| !of_this(signer)).map(word).collect();
            set("remote_trust", &words.join(" "), false)?;
        }
        let local = Local::open(&RemoteSettings::read())?;
        let removed = local.store().untrust(u64::from_le_bytes(id.0))?;
        print(&match removed {
            1 => format!("`{id}` is trusted no more; 1 entry was deleted"),
            _ => format!("`{id}` is trusted no more; {removed} entries were deleted"),
        });
        if settings
            .trust
            .iter()
            .any(|signer| signer.is_of_system && of_this(&signer))
        {
            print(
                "the system's file trusts it: other users of this machine still use what it signs",
            );
        }
        Ok(ExitCode::SUCCESS)
    }

    fn id(&self, settings: &RemoteSettings) -> Result<SignerId, String> {
        if let Some(id) = SignerId::parse(&self.id) {
            return Ok(id);
        }
        if let Ok(key) = PublicKey::parse(&self.id) {
            return Ok(key.id);
        }
        let named = settings
            .trust
            .iter()
            .find(|signer| signer.name.as_deref() == Some(&self.id));
        match named {
            Some(signer) => PublicKey::parse(&signer.key).map(|key| key.id),
            None => Err(format!(
                "`{}` is neither the id nor the name of a trusted key; `oclcache remote status` lists them",
                self.id
            )),
        }
    }
}
