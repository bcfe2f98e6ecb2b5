//! Opens the cache that a verb works on.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::failure::Failure;
use super::output::{plural, say};
use super::refused_directory::Remedy;
use crate::config::Config;
use crate::log::path;
use crate::store::Store;
use crate::store::tiers::Tiers;

/// The configured directory of the cache.
///
/// # Errors
/// The cache is off.
pub fn directory(config: &Config) -> Result<PathBuf, Failure> {
    let words = |why| Failure::new(format_args!("the cache is off: {why}"));
    directory_or_why(config).map_err(words)
}

/// The configured directory of the cache.
///
/// # Errors
/// For people: why there is none, and what to do.
pub fn directory_or_why(config: &Config) -> Result<PathBuf, String> {
    config.directory().map_err(|why| {
        let foreign = config.foreign_directory();
        foreign.map_or(why, |foreign| {
            let remedy = Remedy::of(&foreign).unwrap_or(Remedy::Elsewhere);
            format!("`{}` belongs to another user; {remedy}", path(&foreign))
        })
    })
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

/// Fails if the cache is read-only. `undone` says what is not done, such as "nothing is baked".
///
/// # Errors
/// `readonly` is set.
pub fn refuse_readonly(config: &Config, undone: &str) -> Result<(), Failure> {
    match config.readonly() {
        true => Err(refused(undone, "readonly")),
        false => Ok(()),
    }
}

/// The failure of a verb that a setting forbids.
pub fn refused(undone: &str, setting: &str) -> Failure {
    Failure::new(format_args!(
        "{undone}: `{setting}` is set; run `oclcache config` to see where"
    ))
}

/// Says what is wrong with the configuration files: the library ignores them silently.
pub fn say_complaints(config: &Config) {
    for complaint in &config.complaints {
        say(&format!("oclcache: {complaint}"));
    }
}

/// The store of the configured directory, if there is one that can be opened.
pub fn usable_store(config: &Config) -> Option<Store> {
    Store::open_existing(&config.directory().ok()?).ok()?
}

/// The disk space of all entries, in bytes.
pub fn bytes_taken(store: &Store) -> u64 {
    store.totals().unwrap_or_default().taken
}

/// Writes a file without a name, which is removed when it is closed.
///
/// # Errors
/// It cannot be made, or there is no room for it.
pub fn write_something(directory: &Path) -> std::io::Result<()> {
    /// More than file systems keep in the inode.
    const BYTES: usize = 1 << 16;
    let mut file = tempfile::tempfile_in(directory)?;
    file.write_all(&vec![b'o'; BYTES])?;
    file.sync_data()
}

/// The system directories. They are only read.
pub fn tiers(config: &Config) -> Tiers {
    Tiers::new(config.system_dirs(), &config.trusted_owners())
}

/// The system directories that have entries, and how many; empty if there are none. They serve although the user's cache is empty.
pub fn entries_of_system(config: &Config) -> String {
    let directories = tiers(config);
    let directories = directories.all().iter().filter_map(|directory| {
        let keys = directory.tier.as_ref().ok()?.keys().ok()?;
        let entries = plural(keys.len() as u64, "entry", "entries");
        let shown = path(&directory.path);
        (!keys.is_empty()).then(|| format!("; the system directory `{shown}` has {entries}"))
    });
    directories.collect()
}
