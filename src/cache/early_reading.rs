//! Reads a driver's files while the driver looks for its devices or creates a context, which takes some drivers longer than a build.
//!
//! rusticl 22.3 prepares its library of functions while it looks for devices, for 160 ms, of which one processor is idle in most programs.
//! Its first build takes 1 ms, and in an empty cache directory 60 ms of reading were waited for behind it. With NVIDIA 580 on an H200,
//! 1.5 s passed before the first build, less than [`DELAY`] of it in the search for devices; then 1.4 s of reading were waited for behind
//! the build. That a context takes that driver so long is inferred.
//!
//! Only where the cache directory is missing or unused when the drivers are loaded. Nothing is written: programs that only list devices
//! leave no trace. What was found is put into the cache directory when a first build begins, which finds it there as if an earlier
//! process had left it, and trusts it as little: digests and lists hold for the states of files from which they were made, names for the
//! contents of libraries.
//!
//! The thread ends with the call: the program may want to be alone afterwards (unshare(2)). Only where a disk or the dynamic linker keeps
//! it waiting, or where an exception leaves the call, it ends by itself.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Access, access};
use rustix::process::{Resource, getrlimit};

use super::{Cache, bake, first_build};
use crate::config::Config;
use crate::content_digest::ReadAlong;
use crate::descriptors;
use crate::driver::content_value;
use crate::driver::file_memory::FileMemory;
use crate::driver::left_names::LeftNames;
use crate::driver::{Driver, StartOfThreads, process_variables, reentrancy};
use crate::fork_safety::Mutex;
use crate::linker_lock;
use crate::one_call;
use crate::own_threads::{self, Promise};
use crate::reserve::has_room;
use crate::stop::Stop;
use crate::store::digests::Digests;
use crate::store::{Store, library_facts};

/// Most drivers know their devices after 3 ms, and have a context after 1. For them nothing is read.
const DELAY: Duration = Duration::from_millis(10);
/// Reading takes 0.1 to 0.3 s, where the files are in memory.
const LONGEST: Duration = Duration::from_secs(5);
/// How long the call waits for a thread that was stopped. Usually it takes 0.1 ms.
const PATIENCE: Duration = Duration::from_millis(20);

/// Whether there may be something to gain.
static IS_ALLOWED: AtomicBool = AtomicBool::new(false);
/// The drivers that have been called so, a bit each, by [`StartOfThreads`].
static CALLED: [AtomicU64; 2] = [const { AtomicU64::new(0) }; 2];
/// What was found, by the driver's number, once for each call that ended.
static FOUND: Mutex<Vec<(usize, Found)>> = Mutex::new(Vec::new());

/// What was found out about a driver's files.
struct Found {
    is_complete: bool,
    digests: Digests,
    facts: BTreeMap<[u8; 32], Vec<u8>>,
}

/// Reading that goes on beside a call of the driver.
pub struct EarlyReading {
    driver: usize,
    stop: Stop,
    found: Promise<Option<Found>>,
}

/// Keeps what is found, while it is complete.
struct EarlyMemory {
    digests: Digests,
    facts: RefCell<BTreeMap<[u8; 32], Vec<u8>>>,
    stop: Stop,
}

impl FileMemory for EarlyMemory {
    fn digest(&self, path: &Path) -> io::Result<[u8; 32]> {
        self.digests.digest(None, path)
    }

    fn identities(&self, paths: &[&Path], along: &dyn ReadAlong) -> Vec<io::Result<Vec<u8>>> {
        let digests = self.digests.digests(None, paths, along).into_iter();
        digests.map(|digest| Ok(content_value(&digest?))).collect()
    }

    fn knows_no_driver(&self) -> bool {
        true
    }

    fn facts(&self, _identity: &[u8; 32]) -> io::Result<Option<File>> {
        Ok(None)
    }

    /// What is found once the work was stopped may lack what was not read.
    fn remember_facts(&self, identity: &[u8; 32], facts: &[u8]) {
        if !self.stop.is_set() {
            self.facts.borrow_mut().insert(*identity, facts.to_vec());
        }
    }

    fn stop(&self) -> Stop {
        self.stop.clone()
    }
}

/// Notes whether files may be read early. Called when the drivers were loaded.
pub fn allow(config: &Config) {
    IS_ALLOWED.store(is_of_use(config), Ordering::Relaxed);
}

/// Whether nothing can be found with these settings, and something can be stored.
fn is_of_use(config: &Config) -> bool {
    let may_store = |path: &Path| {
        let existing = path.ancestors().find(|path| path.exists());
        existing.is_some_and(|path| path.is_dir() && access(path, Access::WRITE_OK).is_ok())
    };
    let Ok(directory) = config.directory() else {
        return false;
    };
    let may_find = || {
        config.remote().is_some()
            || config
                .system_dirs()
                .iter()
                .any(|directory| directory.exists())
    };
    Store::is_unused_at(&directory)
        && !(config.disable() || config.recache() || config.readonly() || may_find())
        && may_store(&directory)
}

/// Whether files may be read early, in most processes not.
#[inline]
pub fn is_allowed() -> bool {
    IS_ALLOWED.load(Ordering::Relaxed)
}

/// Begins to read a driver's files beside such a call, once for each driver and kind of call, until all was read.
pub fn begin(driver: &'static Driver, call: StartOfThreads) -> Option<EarlyReading> {
    let bit = 1 << driver.index();
    let is_first = CALLED[call as usize].fetch_or(bit, Ordering::Relaxed) & bit == 0;
    // A program may look for devices in a library's constructor, where the dynamic linker holds its lock: a thread would wait for it.
    let may_begin = || {
        reentrancy::is_outermost()
            && !bake::is_baker()
            && !driver.has_identity()
            && !is_complete(driver)
            && !has_limited_time()
            && is_of_use(&Config::read())
            && own_threads::may_start()
            && descriptors::has_room()
            && has_room(first_build::MEMORY)
            && !linker_lock::is_held()
    };
    if !is_first || !may_begin() {
        return None;
    }
    let variables = process_variables::current();
    let stop = Stop::within(LONGEST);
    let of_thread = stop.clone();
    let read = move || {
        if of_thread.is_set_within(DELAY) {
            return None;
        }
        // Before any file is opened, also those that tell how many processors there are.
        tracing::debug!(?call, "the driver takes long");
        let is_of_use = own_threads::useful(1) > 0;
        is_of_use.then(|| process_variables::as_at(&variables, || found(driver, call, of_thread)))
    };
    // Most calls are over before it begins.
    let found = Promise::of(first_build::STACK, read)?;
    Some(EarlyReading {
        driver: driver.index(),
        stop,
        found,
    })
}

/// Whether the process may spend so much processor time and no more: perhaps it builds nothing.
fn has_limited_time() -> bool {
    getrlimit(Resource::Cpu).current.is_some()
}

/// Whether all of the driver's files have been read.
fn is_complete(driver: &Driver) -> bool {
    let is_it = |(number, found): &(usize, Found)| *number == driver.index() && found.is_complete;
    FOUND.lock().iter().any(is_it)
}

/// What is found until the work is stopped.
fn found(driver: &Driver, call: StartOfThreads, stop: Stop) -> Found {
    let started = Instant::now();
    let memory = EarlyMemory {
        digests: Digests::until(stop.clone()),
        facts: RefCell::default(),
        stop: stop.clone(),
    };
    // What is wrong, the first build says. What is found while the dynamic linker answers nothing is kept by nobody.
    let read = || own_threads::unasked(|| driver.read_ahead(&memory));
    let read = linker_lock::complete(|| one_call::during(read));
    let is_complete = matches!(read, Some(Ok(()))) && !stop.is_set();
    let facts = match read {
        Some(_) => memory.facts.into_inner(),
        None => BTreeMap::new(),
    };
    let ms = started.elapsed().as_millis();
    tracing::debug!(
        ms,
        ?call,
        facts = facts.len(),
        is_complete,
        "the driver's files were read meanwhile"
    );
    Found {
        is_complete,
        digests: memory.digests,
        facts,
    }
}

impl EarlyReading {
    /// Ends the reading, wherever it is, and keeps what was found for a first build.
    pub fn end(self) {
        self.stop.set();
        let found = self.found.wait_for(PATIENCE);
        if let Some(found) = found.flatten() {
            FOUND.lock().push((self.driver, found));
        }
    }
}

impl Cache {
    /// Puts what was found early into the cache directory, before the driver is identified.
    pub(super) fn keep_what_was_read_early(&self, driver: &Driver) {
        if !is_allowed() || driver.has_identity() {
            return;
        }
        let is_of_it = |(number, _): &mut (usize, Found)| *number == driver.index();
        let all: Vec<_> = FOUND.lock().extract_if(.., is_of_it).collect();
        let Some(store) = self.written_store() else {
            return;
        };
        for (_, found) in all {
            self.digests.take_over(&found.digests, store);
            for (identity, facts) in &found.facts {
                library_facts::save(store, identity, facts);
                let is_kept = || matches!(self.facts(identity), Ok(Some(_)));
                if LeftNames::of(facts, self).is_some() && is_kept() {
                    self.lacks_names();
                }
            }
        }
    }
}
