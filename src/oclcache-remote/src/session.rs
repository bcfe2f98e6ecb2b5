//! From the settings to the store that machines share.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use oclcache::remote::settings::{Credentials, RemoteSettings};

use crate::credentials::{self, Credential};
use crate::engine::{self, Address, EngineSettings};
use crate::guarded::{Guarded, Reload};
use crate::keys::{PublicKey, SecretKey, TrustedKeys};
use crate::local::{Local, LocalBreaker};
use crate::object::SignerId;
use crate::shared::SharedStore;

/// The variable that holds the secret key of a CI job.
pub const KEY_VARIABLE: &str = "OCLCACHE_REMOTE_KEY";
/// The ids of keys that the user trusts no more, beside the user's configuration file.
const REVOKED: &str = "remote.revoked";
/// An object that nobody reads is kept for so long if there is no limit.
const FOREVER: Duration = Duration::from_secs(10 * 365 * 86400);

/// The address in the settings.
///
/// # Errors
/// For people: there is none, or it cannot be read.
pub fn address(settings: &RemoteSettings) -> Result<Address, String> {
    let url = settings.url.as_deref().ok_or(
        "no store is set; type `oclcache config set remote URL`, such as `redis://HOST`, or `oclcache remote join -` with an invitation",
    )?;
    Ok(Address::parse(url)?.0)
}

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

/// Whom this machine trusts: the settings, the own key, less those that were revoked. With what is wrong in the settings.
pub fn trusted_keys(
    settings: &RemoteSettings,
    own: Option<&SecretKey>,
) -> (TrustedKeys, Vec<String>) {
    let mut trusted = TrustedKeys::default();
    let mut complaints = Vec::new();
    if let Some(own) = own.filter(|_| !settings.is_trust_locked) {
        trusted.add("yourself", own.public());
    }
    for signer in &settings.trust {
        match PublicKey::parse(&signer.key) {
            Ok(public) => trusted.add(signer.name.as_deref().unwrap_or("unnamed"), public),
            Err(why) => complaints.push(format!("`remote_trust`: {why}")),
        }
    }
    for id in revoked(settings) {
        trusted.revoke(id);
    }
    (trusted, complaints)
}

/// The file of revoked keys.
pub fn revoked_file(settings: &RemoteSettings) -> Option<PathBuf> {
    Some(settings.user_file.as_ref()?.parent()?.join(REVOKED))
}

/// The ids of revoked keys.
pub fn revoked(settings: &RemoteSettings) -> Vec<SignerId> {
    let text = revoked_file(settings).and_then(|path| fs::read_to_string(path).ok());
    let text = text.unwrap_or_default();
    text.lines()
        .filter_map(|line| SignerId::parse(line.trim()))
        .collect()
}

/// The file of credentials; None if they come from elsewhere.
pub fn credentials_file(settings: &RemoteSettings) -> Option<&Path> {
    match &settings.credentials {
        Credentials::File(path) => Some(path),
        Credentials::Aws | Credentials::Nowhere => None,
    }
}

/// Reads the file of credentials again, and makes another engine if they have changed.
fn reload(file: PathBuf, settings: EngineSettings) -> Reload {
    let used = Mutex::new(settings.credential.clone());
    Box::new(move || {
        let mut used = used.lock().unwrap_or_else(PoisonError::into_inner);
        let credential = credentials::read(&file, &settings.address).ok()?;
        if credential == *used {
            return None;
        }
        used.clone_from(&credential);
        engine::open(&EngineSettings {
            credential,
            ..settings.clone()
        })
        .ok()
    })
}

/// The store of the settings.
///
/// # Errors
/// For people: why it cannot be used.
pub fn open(settings: &RemoteSettings) -> Result<SharedStore, String> {
    let url = settings.url.as_deref();
    let address = address(settings)?;
    // A variable may carry a password, and has no file.
    let carried = url.and_then(|url| Address::parse(url).ok()?.1);
    let carried = carried.map(|info| Credential {
        user: info.user,
        password: info.password,
    });
    let file = credentials_file(settings)
        .filter(|_| carried.is_none())
        .map(Path::to_owned);
    let credential = match &file {
        Some(path) => credentials::read(path, &address)?,
        None => carried,
    };
    let authorities =
        match &settings.ca {
            None => None,
            Some(path) => Some(fs::read(path).map_err(|error| {
                format!("cannot read `remote_ca`, `{}`: {error}", path.display())
            })?),
        };
    let key = secret_key(settings)?;
    let (trusted, _) = trusted_keys(settings, key.as_ref());
    let prefix = address.prefix.clone();
    let settings_of_engine = EngineSettings {
        address,
        credential,
        uses_aws_credentials: settings.credentials == Credentials::Aws,
        authorities,
        lifetime: settings.ttl.unwrap_or(FOREVER),
        is_readonly: settings.is_readonly || key.is_none(),
    };
    let engine = engine::open(&settings_of_engine)?;
    let reload = file.map(|file| reload(file, settings_of_engine));
    let breaker = Box::new(LocalBreaker::open(settings)?);
    let guarded = Guarded::with_reload(engine, breaker, reload);
    let key = key.filter(|_| !settings.is_readonly);
    Ok(SharedStore::new(
        guarded,
        trusted,
        key,
        Local::versions(),
        &prefix,
    ))
}
