//! Whom this machine trusts: its own key and those of the settings, less those in a list of revoked keys.
//!
//! A helper runs for long, and the command that revokes a key stops only the helper of its own settings. So the lists are read again
//! before an entry is stored ([`trusted_now`]). If the list of revoked keys cannot be read, nobody is trusted.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

use oclcache::remote::settings::RemoteSettings;
use rustix::fs::{FlockOperation, flock};
use rustix::io::retry_on_intr;
use rustix::process::geteuid;

use crate::keys::{PublicKey, SecretKey, TrustedKeys, make_private_directory, write_private};
use crate::object::SignerId;

/// The variable that holds the secret key of a CI job.
pub const KEY_VARIABLE: &str = "OCLCACHE_REMOTE_KEY";
/// The ids of keys that the user trusts no more, beside the user's configuration file.
const REVOKED: &str = "remote.revoked";
/// Locked while somebody changes this list and the one in the settings. The file of settings has a lock of its own, for one change.
const LOCK: &str = "remote.lock";

/// The secret key of this user. None if there is none.
///
/// # Errors
/// For people: why the key that is there cannot be used.
pub fn secret_key(settings: &RemoteSettings) -> Result<Option<SecretKey>, String> {
    if let Some(text) = std::env::var_os(KEY_VARIABLE).filter(|text| !text.is_empty()) {
        let key = SecretKey::parse(&text.to_string_lossy());
        let key = key.map_err(|why| format!("`{KEY_VARIABLE}` cannot be used: {why}"))?;
        return Ok(Some(key));
    }
    match &settings.key_file {
        Some(path) if path.exists() => SecretKey::read(path).map(Some),
        _ => Ok(None),
    }
}

/// Whom this machine trusts, by these settings and the list of revoked keys. With what is wrong in the settings.
///
/// # Errors
/// For people: why the list of revoked keys cannot be read.
pub fn trusted_keys(
    settings: &RemoteSettings,
    own: Option<&SecretKey>,
) -> Result<(TrustedKeys, Vec<String>), String> {
    let mut trusted = TrustedKeys::default();
    let mut complaints = Vec::new();
    let mut add = |name: &str, public| {
        if let Err(why) = trusted.add(name, public) {
            complaints.push(format!("`remote_trust`: {why}"));
        }
    };
    if let Some(own) = own.filter(|_| !settings.is_trust_locked) {
        add("yourself", own.public());
    }
    let mut unreadable = Vec::new();
    for signer in &settings.trust {
        match PublicKey::parse(&signer.key) {
            Ok(public) => add(signer.name.as_deref().unwrap_or("unnamed"), public),
            Err(why) => unreadable.push(format!("`remote_trust`: {why}")),
        }
    }
    complaints.extend(unreadable);
    for id in revoked(settings)? {
        trusted.revoke(id);
    }
    Ok((trusted, complaints))
}

/// Whom this machine trusts now.
///
/// # Errors
/// For people: why that is not known.
pub fn trusted_now() -> Result<TrustedKeys, String> {
    let settings = RemoteSettings::read();
    let own = secret_key(&settings)?;
    Ok(trusted_keys(&settings, own.as_ref())?.0)
}

fn beside_user_file(settings: &RemoteSettings, name: &str) -> Option<PathBuf> {
    Some(settings.user_file.as_ref()?.parent()?.join(name))
}

/// The ids of revoked keys.
///
/// # Errors
/// For people: why the list cannot be read.
pub fn revoked(settings: &RemoteSettings) -> Result<BTreeSet<SignerId>, String> {
    let Some(path) = beside_user_file(settings, REVOKED) else {
        return Ok(BTreeSet::new());
    };
    let shown = path.display();
    let text = match fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(BTreeSet::new()),
        Err(error) => {
            return Err(format!(
                "the list of revoked keys, `{shown}`, cannot be read, so nobody is trusted: {error}"
            ));
        }
    };
    let id = |line: &str| {
        SignerId::parse(line.trim()).ok_or_else(|| {
            format!("the list of revoked keys, `{shown}`, has a line that is no id, so nobody is trusted: `{line}`")
        })
    };
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    lines.map(id).collect()
}

/// Writes the list of revoked keys.
///
/// # Errors
/// For people: why it is not written.
pub fn write_revoked(settings: &RemoteSettings, ids: &BTreeSet<SignerId>) -> Result<(), String> {
    let path = beside_user_file(settings, REVOKED)
        .ok_or("there is no place for the list of revoked keys: set HOME or XDG_CONFIG_HOME")?;
    let text: String = ids.iter().map(|id| format!("{id}\n")).collect();
    write_private(&path, text.as_bytes(), false)
        .map_err(|error| format!("cannot write `{}`: {error}", path.display()))
}

/// Waits until nobody else changes whom this user trusts, until the file is closed. None if no lock works there, as on some network
/// file systems, or the directory is another user's, as under sudo: root must leave no files there.
pub fn lock(settings: &RemoteSettings) -> Option<File> {
    let path = beside_user_file(settings, LOCK)?;
    let mut places = path.ancestors().skip(1);
    let place = places.find_map(|place| place.metadata().ok())?;
    if place.uid() != geteuid().as_raw() {
        return None;
    }
    make_private_directory(path.parent()?).ok()?;
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let file = options.open(path).ok()?;
    retry_on_intr(|| flock(&file, FlockOperation::LockExclusive)).ok()?;
    Some(file)
}
