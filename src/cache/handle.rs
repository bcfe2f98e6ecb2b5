//! What this process has open of the user's cache directory: the store, and the file of its counters.
//!
//! People remove the whole directory while programs run. A process that notices at a miss opens it again by its path, so that
//! services that run for months store what they compile from then on.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use once_cell::race::OnceBox;

use super::{RUN_VARIABLE, bake, plan};
use crate::config::Config;
use crate::store::recorder::Recorder;
use crate::store::stats::run_directory;
use crate::store::{Limits, Store};

/// How often a process opens the directory again, or tries to. What was lost before stays open, some descriptors each time: another
/// thread may be using it.
const MAX_REOPENS: usize = 16;

/// The directory as it was opened once, and what was opened after that was lost.
pub(super) struct CacheHandle {
    store: Option<Store>,
    recorder: Option<Recorder>,
    // Without a lock, which a child that is forked meanwhile would wait for: of two that are opened at once one is dropped unused.
    again: OnceBox<CacheHandle>,
    /// How often the directory was opened again, or could not be.
    tries: AtomicUsize,
}

impl CacheHandle {
    /// Opens what the configuration says.
    pub fn new(config: &Config) -> CacheHandle {
        let store = match config.directory() {
            Ok(path) => open_store(config, &path),
            Err(why) => {
                tracing::warn!(why, "the cache is off");
                None
            }
        };
        // Counters for `oclcache run` are written also for a read-only cache: the directory is the command's, not the cache's.
        let run = std::env::var_os(RUN_VARIABLE).and_then(|path| run_directory(Path::new(&path)));
        let written = store.as_ref().filter(|_| !config.readonly());
        let statistics = written.and_then(|store| store.create_statistics().ok());
        // A child that is forked when the run is over counts with all others.
        let counts = !bake::is_baker() && (run.is_some() || statistics.is_some());
        CacheHandle {
            recorder: counts.then(|| Recorder::new(&plan::executable(), run, statistics)),
            store,
            again: OnceBox::new(),
            tries: AtomicUsize::new(0),
        }
    }

    /// All that was opened, in order.
    fn all(&self) -> impl Iterator<Item = &CacheHandle> {
        std::iter::successors(Some(self), |opened| opened.again.get())
    }

    fn last(&self) -> &CacheHandle {
        self.all().last().unwrap_or(self)
    }

    /// The store; None: the cache is off.
    pub fn store(&self) -> Option<&Store> {
        self.last().store.as_ref()
    }

    /// All stores that were opened.
    pub fn stores(&self) -> impl Iterator<Item = &Store> {
        self.all().filter_map(|opened| opened.store.as_ref())
    }

    /// The counters; None: nothing is counted.
    pub fn recorder(&self) -> Option<&Recorder> {
        self.last().recorder.as_ref()
    }

    /// Opens the directory again, and makes it, if it is lost; tells whether it was. Nothing is made for a cache that is only read.
    pub fn open_again_if_lost(&self, config: &Config) -> bool {
        let last = self.last();
        let is_lost = !config.readonly() && last.store.as_ref().is_some_and(Store::is_lost);
        if !is_lost || self.tries.load(Ordering::Relaxed) >= MAX_REOPENS {
            return false;
        }
        let opened = CacheHandle::new(config);
        // Who removes it may be at it, or the process may have no descriptor left: the next miss tries again.
        let is_there = opened.store.is_some();
        if is_there && last.again.set(Box::new(opened)).is_err() {
            return false; // another thread was faster
        }
        self.tries.fetch_add(1, Ordering::Relaxed);
        if is_there {
            tracing::info!("the cache directory was removed, and is opened again");
        }
        is_there
    }
}

fn open_store(config: &Config, path: &Path) -> Option<Store> {
    let opened = if config.readonly() {
        Store::open_existing(path)
    } else {
        Store::open(path, Limits::of(config)).map(Some)
    };
    match opened {
        Ok(Some(store)) => Some(store),
        Ok(None) => {
            tracing::warn!(directory = %crate::log::path(path), "the cache is off: there is no such directory to read");
            None
        }
        Err(error) => {
            tracing::warn!(%error, "the cache is off");
            None
        }
    }
}
