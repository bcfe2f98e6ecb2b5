//! The load guard: the first load of an entry is watched, in case it kills the process.
//!
//! A checksum proves that an entry is as it was written, not that a driver survives it. On each driver, 40 binaries with one wrong
//! byte were tried; up to 17 of them killed the process. A process that dies in the driver leaves a file:
//!
//! ```text
//! v1/loading/<key>           a byte for each load that began and did not end; written with the lock of the key held
//! v1/loading/<key>-<host>    the same on a network file system, where only its own host sees a lock
//! <live>/<key>-<inode>       the same for an entry of a system directory, in the live directory, with a lock there
//! ```
//!
//! No load proves an entry of a system directory, so each process watches its own first load. Hence nothing of that goes to a disk.
//! Only where nothing is in memory it goes to `loading`: unwatched, an entry that kills would kill each process.
//!
//! A process that gets the lock and finds [`MAX_DEATHS`] bytes sets the entry aside. When the driver returns, with or without an
//! error, the file in `loading` is removed. If the driver accepted the entry, the entry is *proven*: the entry's own file is made
//! read-only for its owner, which each look-up sees at no cost, so the load of a proven entry costs no file and no lock. Copies are
//! proven, too, and so are entries of the baker, which loads each of them once.
//!
//! - No process waits. If another process loads the entry, or no lock works, or nothing can be written, the load is not watched. But
//!   while another process tries an entry that has killed before, the others compile: many programs start several processes at
//!   once, and all would die.
//! - The system gives the lock back when its holder ends, however it ends. It is a file lock, which blocks no
//!   thread of this process, so it may be held while the driver works. A child that is forked meanwhile does not have it.
//! - Whatever ends a process during a load counts as a death: a signal from outside, exit() in another thread, another entry that
//!   another thread loads. These cannot be told apart; it must happen twice, and it costs one compilation.
//! - If a signal handler forks during a load, the child may return from the driver, too, and remove the file. Then a death of the
//!   parent is not counted.
//! - A file may be left over because the entry was evicted, or proven by an unwatched load. Publishing an entry removes it.

use std::io;
use std::sync::Arc;

use super::directory::Directory;
use super::entry::Defect;
use super::lock::{LockAttempt, LockGuard, Locks, Purpose};
use super::tier::EntryOrigin;
use super::{LOADING, Store, StoreError, digests, file_name, shard_of};
use crate::key::ingredients::Key;

/// One death could be chance.
const MAX_DEATHS: u64 = 2;

/// Whether a driver may load an entry.
pub enum Admission {
    /// It may. The caller drops the load as soon as the driver has returned.
    Granted(Option<Loading>),
    /// The entry has killed a process before and another process tries it now, or it was set aside since it was read.
    Postponed,
    /// The caller sets the entry aside while it holds the lock.
    Refused(Defect, LockGuard),
}

/// A load that is watched.
pub struct Loading {
    directory: Arc<Directory>,
    name: String,
    // Given back after the file is removed.
    _lock: LockGuard,
}

/// How the loads of an entry are watched.
struct Watch<'a> {
    root: &'a Directory,
    locks: &'a Locks,
    /// The live directory, if the file is there.
    live: Option<&'a Arc<Directory>>,
    name: String,
}

impl Watch<'_> {
    fn loads_begun(&self) -> u64 {
        let file = match self.live {
            Some(live) => live.facts(&self.name),
            None => {
                let directory = self.root.open_below(LOADING).ok().flatten();
                directory.and_then(|directory| directory.facts(&self.name))
            }
        };
        file.map_or(0, |file| file.size)
    }

    /// Notes that a load begins. Returns how many had begun, and where that is noted.
    fn begin(&self) -> io::Result<(u64, Arc<Directory>)> {
        let directory = match self.live {
            Some(live) => live.clone(),
            None => Arc::new(self.root.create(LOADING).map_err(|error| error.error)?),
        };
        let begun = directory.append_below(&self.name, b"+", MAX_DEATHS)?;
        Ok((begun, directory))
    }
}

/// Whether a name is that of such a file.
pub(super) fn is_ours(name: &str) -> bool {
    let key = name.split('-').next();
    key.and_then(Key::from_hex).is_some()
}

/// Whether a file certainly is one of these, by its name and content.
pub(super) fn is_left(directory: &Directory, name: &str) -> bool {
    let start = is_ours(name).then(|| directory.read_start(name, MAX_DEATHS as usize + 1));
    let is_mark = |start: Vec<u8>| start.iter().all(|byte| matches!(byte, b'+' | 0));
    start.flatten().is_some_and(is_mark)
}

impl Drop for Loading {
    fn drop(&mut self) {
        let _ = self.directory.remove(&self.name);
    }
}

impl Store {
    /// Called before a driver loads an entry of this store or of the system.
    pub fn admit(&self, key: &Key, origin: &EntryOrigin, is_of_system: bool) -> Admission {
        if origin.is_proven {
            return Admission::Granted(None);
        }
        let watch = self.watch(key, origin, is_of_system);
        let lock = match watch.locks.try_lock(Purpose::Load(*key)) {
            LockAttempt::Got(lock) => lock,
            LockAttempt::Taken if watch.loads_begun() >= MAX_DEATHS => {
                return Admission::Postponed;
            }
            LockAttempt::Taken | LockAttempt::Unavailable => return Admission::Granted(None),
        };
        if !is_of_system && !self.has(key) {
            return Admission::Postponed;
        }
        match watch.begin() {
            Ok((MAX_DEATHS.., _)) => Admission::Refused(Defect::Deadly, lock),
            Ok((_, directory)) => Admission::Granted(Some(Loading {
                directory,
                name: watch.name,
                _lock: lock,
            })),
            Err(error) => {
                tracing::debug!(%error, "a load is not watched: an entry that kills the process would not be noticed");
                Admission::Granted(None)
            }
        }
    }

    fn watch(&self, key: &Key, origin: &EntryOrigin, is_of_system: bool) -> Watch<'_> {
        let root = &*self.root;
        let live = is_of_system.then(|| self.live()).flatten();
        match live {
            Some(live) => Watch {
                root,
                locks: &live.locks,
                live: Some(&live.directory),
                // Nobody forgets the deaths of an entry that is replaced there.
                name: format!("{}-{:x}", key.hex(), origin.id),
            },
            None => Watch {
                root,
                locks: self.locks(),
                live: None,
                name: self.loading_name(key),
            },
        }
    }

    /// The directories that have files of loads.
    ///
    /// # Errors
    /// One cannot be opened.
    pub(super) fn load_directories(&self) -> Result<Vec<Arc<Directory>>, StoreError> {
        let loading = self.root.open_below(LOADING)?.map(Arc::new);
        let live = self.live().map(|live| live.directory.clone());
        Ok(loading.into_iter().chain(live).collect())
    }

    fn loading_name(&self, key: &Key) -> String {
        match self.root.file_system().is_network() {
            true => format!("{}-{}", key.hex(), digests::host()),
            false => key.hex(),
        }
    }

    /// Whether there is an entry, as far as can be known.
    fn has(&self, key: &Key) -> bool {
        match self.shard(shard_of(key)) {
            Ok(Some(shard)) => shard.facts(&file_name(key)).is_some(),
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// Forgets loads of a former entry of this key.
    pub(super) fn forget_loads(&self, key: &Key) {
        let name = self.loading_name(key);
        if let Ok(Some(directory)) = self.root.open_below(LOADING)
            && is_left(&directory, &name)
        {
            let _ = directory.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::entry::EntryContent;
    use crate::store::entry::tests::{content, facts};
    use crate::store::tier::Tier;
    use crate::store::{Limits, Lookup};

    const KEY: Key = Key([1; 32]);

    fn origin_of(store: &Store) -> EntryOrigin {
        match store.look_up(&KEY) {
            Lookup::Found(_, origin) => origin,
            _ => panic!("not found"),
        }
    }

    fn filled(entry: &EntryContent) -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store =
            Store::open(&directory.path().join("cache"), Limits::default()).expect("a store");
        store.publish(&KEY, entry).expect("published");
        (directory, store)
    }

    #[test]
    fn what_replaces_an_entry_is_proven_if_that_was_and_what_is_published_is_not() {
        let meta = facts();
        let entry = content(&meta, &[b"binary"]);
        let (_directory, store) = filled(&entry);
        let unproven = origin_of(&store);
        assert!(!unproven.is_proven);
        store.replace(&KEY, &entry, &unproven).expect("replaced");
        assert!(!origin_of(&store).is_proven);
        store.prove(&KEY, &origin_of(&store));
        let proven = origin_of(&store);
        assert!(proven.is_proven);
        store.replace(&KEY, &entry, &proven).expect("replaced");
        assert!(origin_of(&store).is_proven);
        store.publish(&KEY, &entry).expect("published");
        assert!(!origin_of(&store).is_proven);
    }

    #[test]
    fn an_entry_that_has_come_meanwhile_is_not_proven_by_another() {
        let meta = facts();
        let entry = content(&meta, &[b"binary"]);
        let (_directory, store) = filled(&entry);
        let loaded = origin_of(&store);
        store.publish(&KEY, &entry).expect("published");
        store.prove(&KEY, &loaded);
        assert!(!origin_of(&store).is_proven);
    }

    #[test]
    fn what_was_set_aside_since_it_was_read_is_not_loaded() {
        let meta = facts();
        let (_directory, store) = filled(&content(&meta, &[b"binary"]));
        let origin = origin_of(&store);
        store.set_aside(&KEY).expect("set aside");
        assert!(matches!(
            store.admit(&KEY, &origin, false),
            Admission::Postponed
        ));
    }
}
