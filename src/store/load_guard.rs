//! The crash sentinel: an entry that no driver has ever loaded is watched while one does.
//!
//! A checksum proves that an entry is what was written, not that a driver survives it: of 40 binaries with a wrong byte up to
//! 17 killed the process, on each driver. A process that dies in the driver cannot say so, but it leaves a file:
//!
//! ```text
//! v1/loading/<key>           a byte for each load that has begun and has not ended; who adds to it holds a lock of the key
//! v1/loading/<key>-<host>    the same on a network file system, since locks are a host's own there
//! ```
//!
//! Whoever gets the lock and finds [`MAX_DEATHS`] bytes sets the entry aside. When the driver has come back, whatever it
//! said, the file is removed; when it has taken the entry, that is *proven*: its owner may not write the file any more, which
//! each look-up learns for nothing, so that a proven entry costs no file and no lock. Copies of the file are proven, too.
//!
//! - Nobody waits. Where another is loading the entry, or no lock works, or nothing can be written, it is loaded unwatched;
//!   but while another tries an entry that has killed before, the others compile. They start together in many a program.
//! - The lock is the system's and ends with its holder, whatever ended that; it is no lock of this process, so it may be held
//!   while the driver works. A child that is forked meanwhile does not have it, also if the driver keeps one running.
//! - Whatever ends a process in the middle counts as a death: a signal from outside, exit() in another thread, the failure of
//!   another entry that another thread loads. Nobody can tell, it must happen twice, and it costs one compilation.
//! - A child that is forked by a signal handler in the middle of a load may end that load, and removes the file. Then a death
//!   of its parent is not counted.
//! - A file that is left over, since the entry was evicted or proven by somebody unwatched, says nothing: whoever publishes an
//!   entry removes it.

use super::directory::{Directory, FileFacts};
use super::entry::Defect;
use super::lock::{Attempt, Guard, Purpose};
use super::{LOADING, Store, StoreError, digests, file_name, shard_of};
use crate::key::ingredients::Key;

/// One could be chance.
const MAX_DEATHS: u64 = 2;

/// Whether a driver may load an entry.
pub enum Admission {
    /// It may; what is in here is to be dropped as soon as the driver has come back.
    Granted(Option<Loading>),
    /// It has killed a process, and another tries it; or it was set aside since it was read.
    Postponed,
    /// It is to be set aside, with the lock held.
    Refused(Defect, Guard),
}

/// A load that is watched.
pub struct Loading {
    directory: Directory,
    name: String,
    // Given back after the file is removed.
    _lock: Guard,
}

/// Whether a name is one of these files'.
pub(super) fn is_ours(name: &str) -> bool {
    let key = name.split('-').next();
    key.and_then(Key::from_hex).is_some()
}

/// Whether a file is certainly one of these: by its name and what was written.
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
    /// To be asked before a driver loads an entry, whose file was found to be like this. It is this store's, or of the system.
    pub fn admit(&self, key: &Key, file: &FileFacts, is_of_system: bool) -> Admission {
        if !file.is_writable {
            return Admission::Granted(None);
        }
        let lock = match self.locks().try_lock(Purpose::Load(*key)) {
            Attempt::Got(lock) => lock,
            Attempt::Taken if self.loads_begun(key) >= MAX_DEATHS => return Admission::Postponed,
            Attempt::Taken | Attempt::Unavailable => return Admission::Granted(None),
        };
        if !is_of_system && !self.has(key) {
            return Admission::Postponed;
        }
        let name = self.loading_name(key);
        let begun = self.root.create(LOADING).map_err(|error| error.error);
        let begun = begun.and_then(|directory| {
            let begun = directory.append_below(&name, b"+", MAX_DEATHS)?;
            Ok((directory, begun))
        });
        match begun {
            Ok((_, MAX_DEATHS..)) => Admission::Refused(Defect::Deadly, lock),
            Ok((directory, _)) => Admission::Granted(Some(Loading {
                directory,
                name,
                _lock: lock,
            })),
            Err(error) => {
                tracing::debug!(%error, "a load is not watched");
                Admission::Granted(None)
            }
        }
    }

    fn loading_name(&self, key: &Key) -> String {
        match self.root.file_system().is_network() {
            true => format!("{}-{}", key.hex(), digests::host()),
            false => key.hex(),
        }
    }

    fn loads_begun(&self, key: &Key) -> u64 {
        let directory = self.root.open_below(LOADING).ok().flatten();
        let file = directory.and_then(|directory| directory.facts(&self.loading_name(key)));
        file.map_or(0, |file| file.size)
    }

    /// Whether there is an entry, as far as can be known.
    fn has(&self, key: &Key) -> bool {
        match self.shard(shard_of(key)) {
            Ok(Some(shard)) => shard.facts(&file_name(key)).is_some(),
            Ok(None) => false,
            Err(_) => true,
        }
    }

    /// Loads that were begun before say nothing of the entry that is there now.
    pub(super) fn forget_loads(&self, key: &Key) {
        if let Ok(Some(directory)) = self.root.open_below(LOADING) {
            let _ = directory.remove(&self.loading_name(key));
        }
    }

    /// A driver has taken the entry of this store.
    pub fn prove(&self, key: &Key, file: &FileFacts) {
        let prove = || -> Result<(), StoreError> {
            match self.shard(shard_of(key))? {
                Some(shard) => shard.protect(&file_name(key), file.inode),
                None => Ok(()),
            }
        };
        if file.is_writable
            && let Err(error) = prove()
        {
            tracing::debug!(%error, "the entry stays unproven");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::entry::EntryContent;
    use crate::store::entry::tests::{content, facts};
    use crate::store::{Limits, Lookup};

    const KEY: Key = Key([1; 32]);

    fn file_of(store: &Store) -> FileFacts {
        match store.look_up(&KEY) {
            Lookup::Found(_, file) => file,
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
        let unproven = file_of(&store);
        assert!(unproven.is_writable);
        store.replace(&KEY, &entry, &unproven).expect("replaced");
        assert!(file_of(&store).is_writable);
        store.prove(&KEY, &file_of(&store));
        let proven = file_of(&store);
        assert!(!proven.is_writable);
        store.replace(&KEY, &entry, &proven).expect("replaced");
        assert!(!file_of(&store).is_writable);
        store.publish(&KEY, &entry).expect("published");
        assert!(file_of(&store).is_writable);
    }

    #[test]
    fn an_entry_that_has_come_meanwhile_is_not_proven_by_another() {
        let meta = facts();
        let entry = content(&meta, &[b"binary"]);
        let (_directory, store) = filled(&entry);
        let loaded = file_of(&store);
        store.publish(&KEY, &entry).expect("published");
        store.prove(&KEY, &loaded);
        assert!(file_of(&store).is_writable);
    }

    #[test]
    fn what_was_set_aside_since_it_was_read_is_not_loaded() {
        let meta = facts();
        let (_directory, store) = filled(&content(&meta, &[b"binary"]));
        let file = file_of(&store);
        store.set_aside(&KEY).expect("set aside");
        assert!(matches!(
            store.admit(&KEY, &file, false),
            Admission::Postponed
        ));
    }
}
