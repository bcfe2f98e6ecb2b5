//! The directories of one run: a vendors directory, and one for the counters of its processes.
//!
//! The vendors directory is kept: processes may outlive the run and start others. Packages bring one beside their library, so that a
//! run leaves nothing in a home but the cache:
//!
//! ```text
//! /usr/lib/oclcache/vendors/oclcache.icd        of Debian packages and RPMs
//! PREFIX/lib/oclcache/vendors/oclcache.icd      of `icd/install`, and of an unpacked tarball
//! site-packages/oclcache/vendors/oclcache.icd   of the Python wheel
//! ```
//!
//! Without such a directory, as in a build of the sources, it is beside the files of `oclcache install --user`, so that drivers are
//! found even if the cache has been removed meanwhile:
//!
//! ```text
//! $XDG_DATA_HOME/oclcache/vendors-<digest of the library's path>/oclcache.icd    the library's path
//! ```
//!
//! If the home is read-only or belongs to another user, it is in the cache directory.

use std::path::{Path, PathBuf};

use crate::cache::RUN_VARIABLE;
use crate::cli::failure::Failure;
use crate::cli::home::data_directory;
use crate::cli::open::{directory_or_why, tiers};
use crate::cli::vendors::{forget_vendors, installed_vendors, is_made, vendors_directory};
use crate::cli::worker::private_directory::{self, PrivateDirectory};
use crate::config::Config;
use crate::store::directory::Directory;
use crate::store::stats::{RunCounts, Statistics, run_directory};
use crate::store::{Limits, Store, StoreError};

/// The directories of one run.
pub struct RunDirectory {
    pub vendors: PathBuf,
    pub run: Directory,
    /// The statistics to which the run's are added; None for a read-only cache.
    statistics: Option<Statistics>,
    temporary: Option<PrivateDirectory>,
}

impl RunDirectory {
    pub fn open(config: &Config, library: &Path) -> Result<RunDirectory, String> {
        let words = |error: StoreError| Failure::from(error).message;
        if config.readonly() || config.disables_all() {
            return RunDirectory::temporary(library);
        }
        let opened = directory_or_why(config);
        let open = |path: PathBuf| Store::open(&path, Limits::of(config)).map_err(words);
        let store = match opened.and_then(open) {
            Ok(store) => store,
            // Entries of system directories can still be used.
            Err(_) if tiers(config).used().next().is_some() => {
                return RunDirectory::temporary(library);
            }
            Err(why) => return Err(why),
        };
        let vendors = match installed_vendors(library).or_else(|| vendors_in_home(library)) {
            Some(vendors) => vendors,
            None => vendors_directory(store.root(), library).map_err(words)?,
        };
        let statistics = store.create_statistics().map_err(words)?;
        let run = statistics.begin_run().map_err(words)?;
        Ok(RunDirectory {
            vendors,
            run,
            statistics: Some(statistics),
            temporary: None,
        })
    }

    /// Directories that are removed after the run, or by a later command if it is killed.
    fn temporary(library: &Path) -> Result<RunDirectory, String> {
        let words = |error: StoreError| error.to_string();
        private_directory::clear_leftovers();
        let temporary = PrivateDirectory::new().map_err(|error| error.to_string())?;
        let root = Directory::create_all(temporary.path()).map_err(words)?;
        let vendors = match installed_vendors(library) {
            Some(vendors) => vendors,
            None => vendors_directory(&root, library).map_err(words)?,
        };
        let run = root.create("run").map_err(words)?;
        Ok(RunDirectory {
            vendors,
            run,
            statistics: None,
            temporary: Some(temporary),
        })
    }

    pub fn finish(self) -> Result<RunCounts, Failure> {
        if self.run.is_lost() {
            let found_none = match self.vendors.exists() {
                true => "",
                false => ", and programs started afterwards found no OpenCL driver",
            };
            return Err(Failure::new(format_args!(
                "the cache directory was removed while the program ran: what was compiled is unknown{found_none}"
            )));
        }
        let run = match &self.statistics {
            Some(statistics) => {
                // An outer run counts these processes, too.
                let outer =
                    std::env::var_os(RUN_VARIABLE).and_then(|path| run_directory(Path::new(&path)));
                let run = statistics.end_run(&self.run, outer.as_ref())?;
                statistics.keep();
                run
            }
            None => Statistics::read_run(&self.run)?,
        };
        drop(self.temporary);
        Ok(run)
    }
}

/// The vendors directory beside the files of `oclcache install --user`. None if it cannot be made there.
fn vendors_in_home(library: &Path) -> Option<PathBuf> {
    let place = Directory::create_all(&data_directory()?).ok()?;
    if !is_made(&place, library) {
        // Rarely: once for each library.
        forget_vendors(&place);
    }
    vendors_directory(&place, library).ok()
}
