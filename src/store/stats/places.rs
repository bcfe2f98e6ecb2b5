//! Where a process counts: in memory if it can, and on the disk.

use std::iter;
use std::sync::Arc;

use once_cell::race::OnceBox;

use super::merge::StatsMerge;
use super::{LockAttempt, Statistics, merge, try_live_lock};
use crate::store::directory::Directory;
use crate::store::live::Live;
use crate::store::lock::Locks;
use crate::store::{STATISTICS, Store};

/// The directories for the counters of processes. That on the disk is opened when something is counted or merged there: most hits
/// do neither.
pub struct CountingPlaces {
    live: Option<Live>,
    root: Arc<Directory>,
    locks: Locks,
    // Opened without a lock: if two threads open it at once, one of the two is dropped unused.
    statistics: OnceBox<Option<Statistics>>,
}

impl Store {
    /// Where the processes of this store count.
    pub fn counting_places(&self) -> CountingPlaces {
        CountingPlaces {
            live: self.live().cloned(),
            root: self.root.clone(),
            locks: self.locks().clone(),
            statistics: OnceBox::new(),
        }
    }
}

impl CountingPlaces {
    /// The statistics on the disk; None if their directory cannot be made.
    fn statistics(&self) -> Option<&Statistics> {
        let opened = self.statistics.get_or_init(|| {
            let directory = self.root.create(STATISTICS);
            let directory = directory.inspect_err(
                |error| tracing::debug!(%error, "the directory of the statistics cannot be used"),
            );
            Box::new(directory.ok().map(|directory| Statistics {
                directory,
                locks: self.locks.clone(),
                live: self.live.clone(),
            }))
        });
        opened.as_ref()
    }

    /// Whether there is a place in memory.
    pub fn has_memory(&self) -> bool {
        self.live.is_some()
    }

    /// The directories, that in memory first. That on the disk is opened when the iterator comes to it.
    pub fn directories(&self) -> impl Iterator<Item = &Directory> {
        let live = self.live.iter().map(|live| &*live.directory);
        let on_disk = iter::once_with(|| self.statistics()).flatten();
        live.chain(on_disk.map(|statistics| &statistics.directory))
    }

    /// [`Statistics::fold_some`].
    pub fn fold_some(&self, limit: usize) {
        if let Some(statistics) = self.statistics() {
            statistics.fold_some(limit);
        }
    }

    /// [`Statistics::fold_some`] for a process that must not write to a disk: it merges within the live directory.
    pub fn fold_some_in_memory(&self, limit: usize) {
        match (&self.live, try_live_lock(self.live.as_ref())) {
            (Some(live), LockAttempt::Got(lock)) => {
                merge(StatsMerge::begin_in_memory(&live.directory, lock, limit));
            }
            (Some(_), _) => {}
            (None, _) => self.fold_some(limit),
        }
    }
}
