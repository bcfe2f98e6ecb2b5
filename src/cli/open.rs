//! Opens the cache that a verb works on.

use std::path::PathBuf;

use super::failure::Failure;
use crate::config::Config;
use crate::store::Store;
use crate::store::tiers::Tiers;

/// The configured directory of the cache.
///
/// # Errors
/// The cache is off.
pub fn directory(config: &Config) -> Result<PathBuf, Failure> {
    config
        .directory()
        .map_err(|why| Failure::new(format_args!("the cache is off: {why}")))
}

/// The store of the configured directory; None if there is none yet.
///
/// # Errors
/// The cache is off, or its directory cannot be opened.
pub fn store() -> Result<Option<Store>, Failure> {
    existing_store(&Config::read())
}

/// The store of the directory of this configuration; None if there is none yet.
///
/// # Errors
/// As for [`store`].
pub fn existing_store(config: &Config) -> Result<Option<Store>, Failure> {
    let store = Store::open_existing(&directory(config)?)?;
    Ok(store.map(|store| store.remembering(!config.readonly())))
}

/// The store of the configured directory, if there is one that can be opened.
pub fn usable_store(config: &Config) -> Option<Store> {
    Store::open_existing(&config.directory().ok()?).ok()?
}

/// The disk space of all entries, in bytes.
pub fn bytes_taken(store: &Store) -> u64 {
    store.totals().unwrap_or_default().taken
}

/// The system directories. They are only read.
pub fn tiers(config: &Config) -> Tiers {
    Tiers::new(config.system_dirs(), &config.trusted_owners())
}
