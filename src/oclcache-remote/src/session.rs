//! From the settings to the store that machines share.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use oclcache::remote::settings::{Credentials, RemoteSettings};

use crate::credentials::{self, Credential};
use crate::engine::{self, Address, EngineSettings};
use crate::guarded::{Guarded, Reload};
use crate::local::{Local, LocalBreaker};
use crate::shared::SharedStore;
use crate::signers;

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
    let key = signers::secret_key(settings)?;
    let (trusted, _) = signers::trusted_keys(settings, key.as_ref())?;
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
