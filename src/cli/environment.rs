//! `oclcache environment`: what a process that cannot be started by `oclcache run` sets to use the cache, for itself and for the
//! programs that it starts. Python's `oclcache.enable()` asks for it.
//!
//! The programs may find the library removed, with the virtual environment that it was installed in. So the directory that
//! `OCL_ICD_VENDORS` names has the drivers as well, and is not part of the virtual environment.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;

use super::failure::Failure;
use super::home::data_directory;
use super::library::{library, own_path};
use super::open::directory_or_why;
use super::output::print;
use super::vendors::{beside_directory, directory_of_loader, vendors_directory};
use crate::config::Config;
use crate::front::vendors::{DEFAULT_DIRECTORY, is_bare_name, is_named_as_us, listed, named};
use crate::store::StoreError;
use crate::store::directory::Directory;

/// Internal.
#[derive(Args)]
#[command(hide = true)]
pub struct EnvironmentArgs {}

impl EnvironmentArgs {
    /// Prints `set NAME=VALUE` for each variable, `ours PATH` if the loader reads a registration of ours anyway, and `driver PATH` for
    /// each library that a loader with this environment may have opened. A NUL ends each, since values may have any other byte.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let config = Config::read();
        let library = library(&own_path()?)?;
        let given = directory_of_loader()?;
        let source = given.unwrap_or_else(|| DEFAULT_DIRECTORY.into());
        let registered = listed(&source).into_iter();
        let registered = registered.filter_map(|it| it.library.ok());
        let (ours, drivers): (Vec<PathBuf>, Vec<PathBuf>) =
            registered.partition(|library| is_named_as_us(library));
        let mut output = Vec::new();
        let mut line = |words: &[&OsStr]| {
            words.iter().for_each(|word| output.extend(word.as_bytes()));
            output.push(0);
        };
        // A registration whose library was removed counts for nothing.
        let is_usable = |library: &&PathBuf| is_bare_name(library) || library.exists();
        if let Some(ours) = ours.iter().find(is_usable) {
            line(&["ours ".as_ref(), ours.as_os_str()]);
        } else {
            let (vendors, names_drivers) = make_directory(&config, &library, &drivers)?;
            line(&["set OCL_ICD_VENDORS=".as_ref(), vendors.as_os_str()]);
            let is_told = std::env::var_os("OCLCACHE_VENDORS").is_some_and(|it| !it.is_empty());
            // A directory that names nothing but us would mean the default one.
            if !is_told && !names_drivers {
                line(&["set OCLCACHE_VENDORS=".as_ref(), source.as_os_str()]);
            }
        }
        for driver in named(&config, &|name| std::env::var_os(name)) {
            if !is_named_as_us(&driver) {
                line(&["driver ".as_ref(), driver.as_os_str()]);
            }
        }
        print(&output)
    }
}

/// The directory for `OCL_ICD_VENDORS`, and whether it names the drivers. As with `oclcache run` it is in the user's data directory,
/// so that programs find it even if the cache was removed; if the home is read-only, it is in the cache directory.
fn make_directory(
    config: &Config,
    library: &Path,
    drivers: &[PathBuf],
) -> Result<(PathBuf, bool), Failure> {
    let make = |place: &Path| -> Result<(PathBuf, bool), StoreError> {
        let place = Directory::create_all(place)?;
        let beside = match drivers {
            [] => None,
            drivers => beside_directory(&place, library, drivers)?,
        };
        match beside {
            Some(made) => Ok((made, true)),
            None => Ok((vendors_directory(&place, library)?, false)),
        }
    };
    if let Some(made) = data_directory().and_then(|place| make(&place).ok()) {
        return Ok(made);
    }
    let cache = directory_or_why(config).map_err(Failure::new)?;
    Ok(make(&cache)?)
}
