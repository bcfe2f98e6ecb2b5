//! Where one run keeps what it needs: a vendors directory, and a directory for its processes' counters.
//!
//! The vendors directory of a library stays: a process of the run may outlive it, and starts others. It is beside what
//! `oclcache install --user` writes, so that they find their drivers also when somebody has removed the cache meanwhile:
//!
//! ```text
//! $XDG_DATA_HOME/oclcache/vendors-<digest of the library's path>/oclcache.icd    the library's path
//! ```
//!
//! Where that cannot be made, because the home is read-only or another user's, it is in the cache directory.

use std::path::{Path, PathBuf};

use crate::cache::RUN_VARIABLE;
use crate::cli::failure::Failure;
use crate::cli::home::data_directory;
use crate::cli::open::tiers;
use crate::cli::vendors::{forget_vendors, is_made, vendors_directory};
use crate::cli::worker::root::{self, Root};
use crate::config::Config;
use crate::store::directory::Directory;
use crate::store::stats::{Run, Statistics, run_directory};
use crate::store::{Limits, STATISTICS, Store, StoreError};

/// Where one run keeps what it needs.
pub struct RunDirectory {
    pub vendors: PathBuf,
    pub run: Directory,
    /// The statistics that the run's are added to; a read-only cache has none.
    statistics: Option<Directory>,
    temporary: Option<Root>,
}

impl RunDirectory {
    pub fn open(config: &Config, library: &Path) -> Result<RunDirectory, String> {
        let words = |error: StoreError| error.to_string();
        if config.readonly() || config.disables_all() {
            return RunDirectory::temporary(library);
        }
        let opened = config.directory();
        let open = |path: PathBuf| Store::open(&path, Limits::of(config)).map_err(words);
        let store = match opened.and_then(open) {
            Ok(store) => store,
            // Entries of the system serve also who has no cache.
            Err(_) if tiers(config).stores().next().is_some() => {
                return RunDirectory::temporary(library);
            }
            Err(why) => return Err(why),
        };
        let vendors = match vendors_beside_installed(library) {
            Some(vendors) => vendors,
            None => vendors_directory(store.root(), library).map_err(words)?,
        };
        let statistics = store.root().create(STATISTICS).map_err(words)?;
        let run = Statistics::new(&statistics).begin_run().map_err(words)?;
        Ok(RunDirectory {
            vendors,
            run,
            statistics: Some(statistics),
            temporary: None,
        })
    }

    /// A place that goes with the run. What a run has left that was killed goes with the next one.
    fn temporary(library: &Path) -> Result<RunDirectory, String> {
        let words = |error: StoreError| error.to_string();
        root::clear_leftovers();
        let temporary = Root::new().map_err(|error| error.to_string())?;
        let root = Directory::create_all(temporary.path()).map_err(words)?;
        let vendors = vendors_directory(&root, library).map_err(words)?;
        let run = root.create("run").map_err(words)?;
        Ok(RunDirectory {
            vendors,
            run,
            statistics: None,
            temporary: Some(temporary),
        })
    }

    pub fn finish(self) -> Result<Run, Failure> {
        if self.run.is_lost() {
            let found_none = match self.vendors.exists() {
                true => "",
                false => ", and what it started afterwards found no OpenCL driver",
            };
            return Err(Failure::new(format_args!(
                "the cache directory was removed while the program ran: nobody knows what was compiled{found_none}"
            )));
        }
        let run = match &self.statistics {
            Some(statistics) => {
                // Inside another run, which counts these processes as its own.
                let outer =
                    std::env::var_os(RUN_VARIABLE).and_then(|path| run_directory(Path::new(&path)));
                Statistics::new(statistics).end_run(&self.run, outer.as_ref())?
            }
            None => Statistics::read_run(&self.run)?,
        };
        drop(self.temporary);
        Ok(run)
    }
}

/// The vendors directory for a library, beside what `oclcache install --user` writes. None: it cannot be made there.
fn vendors_beside_installed(library: &Path) -> Option<PathBuf> {
    let place = Directory::create_all(&data_directory()?).ok()?;
    if !is_made(&place, library) {
        // Seldom: once for each library.
        forget_vendors(&place);
    }
    vendors_directory(&place, library).ok()
}
