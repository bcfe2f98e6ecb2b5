//! The user's cache directory, opened by this process: the store, and the file of its counters.
//!
//! The directory may be removed while programs run. A process that notices this at a miss opens the path again, so that services
//! that run for months store what they compile from then on.
//!
//! Some descriptors stay open. Where the process has few left, the driver may need them, so the directory is not opened before there
//! are more.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

use once_cell::race::OnceBox;

use super::{RUN_VARIABLE, bake};
use crate::config::{Config, program_name};
use crate::descriptors;
use crate::store::recorder::Recorder;
use crate::store::stats::run_directory;
use crate::store::{Limits, Store};

/// How often a process tries to open the directory again. Each lost directory stays open, with some descriptors, since another
/// thread may be using it.
const MAX_REOPENS: usize = 16;

/// The directory as it was opened, and its successors if it was lost.
pub(super) struct CacheHandle {
    store: Option<Store>,
    recorder: Option<Recorder>,
    /// Not opened, since the process had few descriptors left.
    is_put_off: bool,
    // Without a lock: a child that is forked meanwhile would wait for it. If two threads open the directory, one result is dropped
    // unused.
    again: OnceBox<CacheHandle>,
    /// Attempts to open the directory again.
    tries: AtomicUsize,
}

impl CacheHandle {
    /// Opens the directory of the configuration, unless that is put off.
    pub fn new(config: &Config) -> CacheHandle {
        if !descriptors::has_room() {
            tracing::warn!(
                "the cache is off while the process has so few file descriptors left: raise the limit (`ulimit -n`)"
            );
            return CacheHandle {
                store: None,
                recorder: None,
                is_put_off: true,
                again: OnceBox::new(),
                tries: AtomicUsize::new(0),
            };
        }
        let store = match config.directory() {
            Ok(path) => open_store(config, &path),
            Err(why) => {
                tracing::warn!(why, "the cache is off");
                None
            }
        };
        // Counters for `oclcache run` are written for a read-only cache, too: the command owns their directory.
        let run = std::env::var_os(RUN_VARIABLE).and_then(|path| run_directory(Path::new(&path)));
        let written = store.as_ref().filter(|_| !config.readonly());
        let places = written.map(Store::counting_places);
        // A child that is forked after the run counts with all other processes.
        let counts = !bake::is_baker() && (run.is_some() || places.is_some());
        CacheHandle {
            recorder: counts.then(|| Recorder::new(program_name(), run, places)),
            store,
            is_put_off: false,
            again: OnceBox::new(),
            tries: AtomicUsize::new(0),
        }
    }

    /// This handle and its successors, in order.
    fn all(&self) -> impl Iterator<Item = &CacheHandle> {
        std::iter::successors(Some(self), |opened| opened.again.get())
    }

    fn last(&self) -> &CacheHandle {
        self.all().last().unwrap_or(self)
    }

    /// The store. None if the cache is off.
    pub fn store(&self) -> Option<&Store> {
        self.last().store.as_ref()
    }

    /// All stores that this process has opened.
    pub fn stores(&self) -> impl Iterator<Item = &Store> {
        self.all().filter_map(|opened| opened.store.as_ref())
    }

    /// The counters. None if nothing is counted.
    pub fn recorder(&self) -> Option<&Recorder> {
        self.last().recorder.as_ref()
    }

    /// Opens the directory if that was put off and there is room now. Returns whether it is put off no more.
    pub fn is_opened(&self, config: &Config) -> bool {
        let last = self.last();
        if !last.is_put_off {
            return true;
        }
        if !descriptors::has_room() {
            return false;
        }
        let opened = CacheHandle::new(config);
        if opened.is_put_off {
            return false;
        }
        // Fails if another thread was faster.
        let _ = last.again.set(Box::new(opened));
        true
    }

    /// Opens the directory again if it is lost, and creates it. Returns whether it did. A read-only cache is never created.
    pub fn open_again_if_lost(&self, config: &Config) -> bool {
        let last = self.last();
        let is_lost = !config.readonly() && last.store.as_ref().is_some_and(Store::is_lost);
        if !is_lost || self.tries.load(Ordering::Relaxed) >= MAX_REOPENS {
            return false;
        }
        let opened = CacheHandle::new(config);
        // The removal may be in progress, or the process may have no descriptor left. The next miss tries again.
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
