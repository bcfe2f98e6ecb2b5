//! A tier: one local storage of entries. The user's own is one, and each of the system's.
//!
//! No type of files crosses [`Tier`], so another kind of storage is one more implementation of it.

use std::io;

use super::entry::{Defect, Entry, EntryContent};
use super::{PublishError, StoreError};
use crate::key::ingredients::Key;

/// Where an entry came from: by this its tier tells it from a later entry of the same key. Only tiers look into it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryOrigin {
    /// Differs between entries of one key.
    pub(super) id: u64,
    /// When the entry was last used, in milliseconds since 1970.
    pub(super) used_ms: u64,
    /// A driver has taken the entry before.
    pub(super) is_proven: bool,
}

impl EntryOrigin {
    /// Whether two entries of a key in a tier are the same one.
    pub fn is_same(&self, other: &EntryOrigin) -> bool {
        self.id == other.id
    }
}

/// Why a tier does not give an entry.
pub enum ReadError {
    /// There may be an entry, but the system does not give it now.
    Unreadable(io::Error),
    /// There is something that is no whole, unchanged entry of this key.
    Bad(Defect),
}

/// What a look-up found.
pub enum Lookup {
    /// No entry.
    Absent,
    /// There may be an entry, but the system does not give it now.
    Unreadable(io::Error),
    /// Something that is no whole, unchanged entry of this key.
    Bad(Defect),
    /// A verified entry that has no binaries: its recipe has not been baked yet.
    Pending(Box<Entry>),
    /// A verified entry, and where it came from.
    Found(Box<Entry>, EntryOrigin),
}

/// A local storage of entries. One that is only read changes nothing when it is told of a use or a proof.
pub trait Tier: Send + Sync {
    /// Reads and verifies the entry of a key; None if there is none.
    ///
    /// # Errors
    /// It cannot be read, or is damaged, or is the entry of another key.
    fn read(&self, key: &Key) -> Result<Option<(Entry, EntryOrigin)>, ReadError>;

    /// Notes that an entry is used: those that were not used for longest are removed first.
    fn touch(&self, key: &Key, origin: &EntryOrigin);

    /// Notes that a driver has taken an entry: from now on its loads are not watched (see `load_guard`).
    fn prove(&self, key: &Key, origin: &EntryOrigin);

    /// Publishes an entry in place of one with the same binaries, which is as proven as that. Returns how many entries were removed
    /// to make room.
    ///
    /// # Errors
    /// Nothing has changed then.
    fn replace(
        &self,
        key: &Key,
        content: &EntryContent<'_>,
        origin: &EntryOrigin,
    ) -> Result<u64, PublishError>;

    /// The keys of all entries, ascending.
    ///
    /// # Errors
    /// They cannot be listed.
    fn keys(&self) -> Result<Vec<Key>, StoreError>;

    /// Where the entry of a key is, for people.
    fn location(&self, key: &Key) -> String;

    /// Reads and verifies the entry of a key, and notes that it is used.
    fn look_up(&self, key: &Key) -> Lookup {
        match self.read(key) {
            Ok(None) => Lookup::Absent,
            Ok(Some((entry, origin))) => {
                self.touch(key, &origin);
                match entry.is_pending() {
                    true => Lookup::Pending(Box::new(entry)),
                    false => Lookup::Found(Box::new(entry), origin),
                }
            }
            Err(ReadError::Unreadable(error)) => Lookup::Unreadable(error),
            Err(ReadError::Bad(defect)) => Lookup::Bad(defect),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::entry::tests::{content, facts};
    use super::*;
    use crate::fork_safety::Mutex;

    /// Storage of another kind than files.
    #[derive(Default)]
    struct MemoryTier(Mutex<BTreeMap<Key, (Vec<u8>, EntryOrigin)>>);

    impl MemoryTier {
        fn put(&self, key: &Key, content: &EntryContent<'_>, is_proven: bool) -> u64 {
            let mut entries = self.0.lock();
            let id = entries.len() as u64 + 1;
            let origin = EntryOrigin {
                id,
                used_ms: 0,
                is_proven,
            };
            let bytes = content.encode(key).expect("memory");
            entries.insert(*key, (bytes, origin));
            id
        }

        fn change(&self, key: &Key, origin: &EntryOrigin, change: impl Fn(&mut EntryOrigin)) {
            let mut entries = self.0.lock();
            let known = entries.get_mut(key).map(|(_, known)| known);
            known.filter(|known| known.id == origin.id).map(change);
        }
    }

    impl Tier for MemoryTier {
        fn read(&self, key: &Key) -> Result<Option<(Entry, EntryOrigin)>, ReadError> {
            let entries = self.0.lock();
            let Some((bytes, origin)) = entries.get(key) else {
                return Ok(None);
            };
            let entry = Entry::parse(bytes.clone(), Some(key)).map_err(ReadError::Bad)?;
            Ok(Some((entry, *origin)))
        }

        fn touch(&self, key: &Key, origin: &EntryOrigin) {
            self.change(key, origin, |known| known.used_ms += 1);
        }

        fn prove(&self, key: &Key, origin: &EntryOrigin) {
            self.change(key, origin, |known| known.is_proven = true);
        }

        fn replace(
            &self,
            key: &Key,
            content: &EntryContent<'_>,
            origin: &EntryOrigin,
        ) -> Result<u64, PublishError> {
            self.put(key, content, origin.is_proven);
            Ok(0)
        }

        fn keys(&self) -> Result<Vec<Key>, StoreError> {
            Ok(self.0.lock().keys().copied().collect())
        }

        fn location(&self, key: &Key) -> String {
            key.hex()
        }
    }

    #[test]
    fn what_is_no_directory_is_a_tier_as_well() {
        let tier = MemoryTier::default();
        let tier: &dyn Tier = {
            let meta = facts();
            tier.put(&Key([1; 32]), &content(&meta, &[b"binary"]), false);
            tier.put(&Key([2; 32]), &content(&meta, &[]), false);
            &tier
        };
        let found = |key| match tier.look_up(&key) {
            Lookup::Found(_, origin) => Some(origin),
            _ => None,
        };
        let first = found(Key([1; 32])).expect("an entry");
        tier.prove(&Key([1; 32]), &first);
        let again = found(Key([1; 32])).expect("an entry");
        assert!(again.is_proven && again.used_ms > first.used_ms);
        let meta = facts();
        let more = content(&meta, &[b"binary"]);
        tier.replace(&Key([1; 32]), &more, &again)
            .expect("replaced");
        let replaced = found(Key([1; 32])).expect("an entry");
        assert!(replaced.is_proven && replaced.id != again.id);
        assert!(matches!(tier.look_up(&Key([2; 32])), Lookup::Pending(_)));
        assert!(matches!(tier.look_up(&Key([3; 32])), Lookup::Absent));
        assert_eq!(tier.keys().expect("listed").len(), 2);
    }
}
