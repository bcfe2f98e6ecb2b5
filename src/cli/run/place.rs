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

use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::cache::RUN_VARIABLE;
use crate::cli::failure::Failure;
use crate::cli::install;
use crate::cli::open::tiers;
use crate::cli::worker::root::{self, Root};
use crate::config::Config;
use crate::store::directory::{Directory, is_temporary};
use crate::store::stats::{RunCounts, Statistics, run_directory};
use crate::store::{Limits, Store, StoreError};

const REGISTERED: &str = "oclcache.icd";
const PREFIX: &str = "vendors-";
/// The path in a registration is no longer, in bytes (PATH_MAX of Linux, and the end of the line).
const MAX_BYTES: u64 = 4096 + 2;
/// What is younger may be another process's that is making it now.
const UNFINISHED: Duration = Duration::from_secs(3600);

/// Where one run keeps what it needs.
pub struct RunDirectory {
    pub vendors: PathBuf,
    pub run: Directory,
    /// The statistics that the run's are added to; a read-only cache has none.
    statistics: Option<Statistics>,
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
            Err(_) if tiers(config).used().next().is_some() => {
                return RunDirectory::temporary(library);
            }
            Err(why) => return Err(why),
        };
        let vendors = match vendors_beside_installed(library) {
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

    pub fn finish(self) -> Result<RunCounts, Failure> {
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
                statistics.end_run(&self.run, outer.as_ref())?
            }
            None => Statistics::read_run(&self.run)?,
        };
        drop(self.temporary);
        Ok(run)
    }
}

/// The vendors directory for a library, beside what `oclcache install --user` writes. None: it cannot be made there.
fn vendors_beside_installed(library: &Path) -> Option<PathBuf> {
    let place = Directory::create_all(&install::data_directory()?).ok()?;
    if !is_made(&place, library) {
        // Seldom: once for each library.
        forget_vendors(&place);
    }
    vendors_directory(&place, library).ok()
}

fn is_made(place: &Directory, library: &Path) -> bool {
    let directory = place.open_below(&name_of(library)).ok().flatten();
    directory.is_some_and(|directory| directory.begins_with(REGISTERED, &registration(library)))
}

/// The vendors directory for a library, in this directory.
///
/// # Errors
/// It cannot be made.
pub fn vendors_directory(place: &Directory, library: &Path) -> Result<PathBuf, StoreError> {
    let directory = place.create(&name_of(library))?;
    // The loader follows whatever stands there.
    directory.write_once(&directory, REGISTERED, &registration(library))?;
    Ok(directory.path().to_owned())
}

fn name_of(library: &Path) -> String {
    let digits = xxhash_rust::xxh3::xxh3_64(library.as_os_str().as_bytes());
    format!("{PREFIX}{digits:016x}")
}

fn registration(library: &Path) -> Vec<u8> {
    [library.as_os_str().as_bytes(), b"\n"].concat()
}

/// The vendors directories in a directory that are certainly ours: nothing is in one but the registration of the library whose
/// path its name is a digest of. With that path.
pub fn made_vendors(place: &Directory) -> Vec<(String, PathBuf)> {
    let names = place.names().unwrap_or_default();
    let candidates = names.into_iter().filter(|name| name.starts_with(PREFIX));
    let of_library = |name: &String| {
        let directory = place.open_below(name).ok()??;
        let is_ours = |file: &String| file == REGISTERED || is_temporary(file);
        let content = directory.read(REGISTERED, MAX_BYTES).ok()??;
        let library = Path::new(std::ffi::OsStr::from_bytes(content.strip_suffix(b"\n")?));
        let is_ours = directory.names().ok()?.iter().all(is_ours) && *name == name_of(library);
        is_ours.then(|| library.to_owned())
    };
    let made = candidates.filter_map(|name| of_library(&name).map(|library| (name, library)));
    made.collect()
}

/// Removes vendors directories whose library is gone, and what a run that was killed has left in the others.
pub fn forget_vendors(place: &Directory) {
    for (name, library) in made_vendors(place) {
        let Ok(Some(directory)) = place.open_below(&name) else {
            continue;
        };
        let registration = registration(&library);
        for file in directory.names().unwrap_or_default() {
            let age = directory.modified_ms(&file);
            let age = age.map_or(0, |then| place.now_ms().saturating_sub(then));
            let start = directory.read_start(&file, registration.len());
            if is_temporary(&file)
                && u128::from(age) > UNFINISHED.as_millis()
                && start.is_some_and(|start| registration.starts_with(&start))
            {
                let _ = directory.remove(&file);
            }
        }
        let is_gone = library
            .symlink_metadata()
            .is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if is_gone && directory.remove(REGISTERED).is_ok() {
            place.remove_directory(&name);
        }
    }
}
