//! The baker's door: the command opens one registered driver itself, with our hooks in its tables.

use std::path::{Path, PathBuf};

use super::vendors;
use crate::config::Config;
use crate::driver::{Application, Driver, Library};
use crate::hook;

/// The libraries that are registered as drivers, as their `.icd` files name them. None is opened.
pub fn registered(config: &Config) -> Vec<PathBuf> {
    vendors::named(config, &|name| std::env::var_os(name))
}

/// Opens a driver's library.
///
/// # Errors
/// Why it cannot be used, for people.
pub fn open(library: &Path) -> Result<Vec<Application>, String> {
    super::open().ok_or("this command runs with raised privileges")?;
    let library = Library::open(library).map_err(|error| error.to_string())?;
    Driver::hook(&library, hook::table);
    let opened = Application::all_of(&library);
    if opened.is_empty() {
        return Err("it has no platform that can be used".to_owned());
    }
    Ok(opened)
}
