//! `oclcache remote trust` and `untrust`.

use std::process::ExitCode;

use clap::Args;
use oclcache::remote::settings::{RemoteSettings, Signer};

use super::{Done, print, set, stop_helper};
use crate::invitation::checked_name;
use crate::keys::{PublicKey, TrustedKeys};
use crate::local::Local;
use crate::object::SignerId;
use crate::signers;

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
        trust(&[(name.clone(), key.clone())], self.system)?;
        print(&format!(
            "what `{}` has signed is used now; its name is `{name}`",
            key.id
        ));
        Ok(ExitCode::SUCCESS)
    }
}

/// Adds signers to the settings.
pub fn trust(new: &[(String, PublicKey)], is_system: bool) -> Result<(), String> {
    let _lock = signers::lock(&RemoteSettings::read());
    let settings = RemoteSettings::read();
    if settings.is_trust_locked && !is_system {
        return Err(
            "the administrator of this machine says whom it trusts (`remote_trust_locked`)"
                .to_owned(),
        );
    }
    let mut revoked = signers::revoked(&settings)?;
    let mut known = known_keys(&settings);
    for (name, key) in new {
        known.add(name, key.clone())?;
    }
    let is_new = |signer: &&Signer| !new.iter().any(|(_, key)| key.text == signer.key);
    let old = settings
        .trust
        .iter()
        .filter(|signer| signer.is_of_system == is_system);
    let mut words: Vec<String> = old.filter(is_new).map(word).collect();
    words.extend(new.iter().map(|(name, key)| format!("{name}:{}", key.text)));
    stop_helper(&settings);
    set("remote_trust", &words.join(" "), is_system)?;
    let before = revoked.len();
    revoked.retain(|id| !new.iter().any(|(_, key)| key.id == *id));
    match revoked.len() < before {
        true => signers::write_revoked(&settings, &revoked),
        false => Ok(()),
    }
}

/// The own key and those in the settings, whether they are revoked or not.
fn known_keys(settings: &RemoteSettings) -> TrustedKeys {
    let mut known = TrustedKeys::default();
    // What is wrong with them is no matter here: `oclcache remote status` says it.
    if let Ok(Some(own)) = signers::secret_key(settings) {
        let _ = known.add("yourself", own.public());
    }
    for signer in &settings.trust {
        if let Ok(key) = PublicKey::parse(&signer.key) {
            let _ = known.add(signer.name.as_deref().unwrap_or("unnamed"), key);
        }
    }
    known
}

fn word(signer: &Signer) -> String {
    match &signer.name {
        Some(name) => format!("{name}:{}", signer.key),
        None => signer.key.clone(),
    }
}

/// Whom to trust no more.
enum Target {
    /// Who signs with this id.
    Id(SignerId),
    /// This key, which is not in use: another one has its id.
    Unused(PublicKey),
}

impl Target {
    fn of(key: PublicKey, known: &TrustedKeys) -> Target {
        match known.get(key.id) {
            Some(used) if used.public != key => Target::Unused(key),
            _ => Target::Id(key.id),
        }
    }

    fn is(&self, signer: &Signer) -> bool {
        PublicKey::parse(&signer.key).is_ok_and(|key| match self {
            Target::Id(id) => key.id == *id,
            Target::Unused(unused) => key == *unused,
        })
    }
}

impl UntrustArgs {
    pub fn run(self) -> Done {
        let lock = signers::lock(&RemoteSettings::read());
        let settings = RemoteSettings::read();
        let target = self.target(&settings)?;
        // First the list, so that nothing of this signer arrives while entries are deleted.
        if let Target::Id(id) = target {
            let mut revoked = signers::revoked(&settings)?;
            if revoked.insert(id) {
                signers::write_revoked(&settings, &revoked)?;
            }
        }
        stop_helper(&settings);
        let own = || settings.trust.iter().filter(|signer| !signer.is_of_system);
        if own().any(|signer| target.is(signer)) {
            let words: Vec<String> = own()
                .filter(|signer| !target.is(signer))
                .map(word)
                .collect();
            set("remote_trust", &words.join(" "), false)?;
        }
        drop(lock);
        let Target::Id(id) = target else {
            print(
                "this key was not in use, since another one has its id; the settings name it no more",
            );
            return Ok(ExitCode::SUCCESS);
        };
        let local = Local::open(&RemoteSettings::read())?;
        let removed = local.store().untrust(u64::from_le_bytes(id.0))?;
        print(&match removed {
            1 => format!("`{id}` is trusted no more; 1 entry was deleted"),
            _ => format!("`{id}` is trusted no more; {removed} entries were deleted"),
        });
        if settings
            .trust
            .iter()
            .any(|signer| signer.is_of_system && target.is(signer))
        {
            print(
                "the system's file trusts it: other users of this machine still use what it signs",
            );
        }
        Ok(ExitCode::SUCCESS)
    }

    fn target(&self, settings: &RemoteSettings) -> Result<Target, String> {
        if let Some(id) = SignerId::parse(&self.id) {
            return Ok(Target::Id(id));
        }
        let known = known_keys(settings);
        if let Ok(key) = PublicKey::parse(&self.id) {
            return Ok(Target::of(key, &known));
        }
        let named = settings
            .trust
            .iter()
            .find(|signer| signer.name.as_deref() == Some(&self.id));
        match named {
            Some(signer) => PublicKey::parse(&signer.key).map(|key| Target::of(key, &known)),
            None => Err(format!(
                "`{}` is neither the id nor the name of a trusted key; `oclcache remote status` lists them",
                self.id
            )),
        }
    }
}
