//! Keeps entries in memory that a driver has accepted, so that the next build of the same program reads no file.
//!
//! The sum of their bytes is bounded; the least recently used entry is dropped first. An entry is read from disk again after some
//! minutes, so that its time of last use on disk, which eviction sorts by, stays accurate.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fork_safety::Mutex;
use crate::key::ingredients::Key;
use crate::lru::Lru;
use crate::store::entry::{Answer, Entry, Facts};

/// The sum of all entries.
const MAX_BYTES: usize = 64 << 20;

/// Age at which an entry is read from disk again.
const READ_AGAIN: Duration = Duration::from_secs(120);
/// An entry is read again after this fraction of the time after which unused entries expire.
const SHARE: u32 = 8;

/// Entries in memory.
pub struct EntryMemory {
    entries: Mutex<Lru<Key, InMemory>>,
}

struct InMemory {
    entry: Arc<Entry>,
    read: Instant,
}

impl EntryMemory {
    /// An empty memory.
    pub fn new() -> EntryMemory {
        EntryMemory {
            entries: Mutex::new(Lru::new(MAX_BYTES, usize::MAX)),
        }
    }

    /// The entry of a key, if a driver has accepted it in this process and it was read recently. `kept_for`: the time after which
    /// the store removes unused entries.
    pub fn get(
        &self,
        key: &Key,
        kept_for: impl FnOnce() -> Option<Duration>,
    ) -> Option<Arc<Entry>> {
        if !self.entries.lock().has(key) {
            return None;
        }
        // Without the lock, since it reads a file.
        let most = kept_for().map_or(READ_AGAIN, |time| READ_AGAIN.min(time / SHARE));
        self.get_at(key, Instant::now(), most)
    }

    fn get_at(&self, key: &Key, now: Instant, most: Duration) -> Option<Arc<Entry>> {
        let mut entries = self.entries.lock();
        let known = entries.get(key)?;
        if now.saturating_duration_since(known.read) < most {
            return Some(known.entry.clone());
        }
        let old = entries.remove(key);
        drop(entries);
        drop(old);
        None
    }

    /// Keeps an entry that was just read and that a driver has accepted.
    pub fn put(&self, key: &Key, entry: &Arc<Entry>) {
        let known = InMemory {
            entry: entry.clone(),
            read: Instant::now(),
        };
        let gone = self.entries.lock().put(*key, known, weight(entry));
        drop(gone); // frees megabytes without the lock
    }

    /// Drops the entry of a key, which was replaced or must not be used any more.
    pub fn forget(&self, key: &Key) {
        let old = self.entries.lock().remove(key);
        drop(old);
    }
}

/// The approximate size of an entry in memory, in bytes.
fn weight(entry: &Entry) -> usize {
    entry.size() as usize + facts_weight(&entry.meta.facts)
}

fn facts_weight(facts: &Facts) -> usize {
    let of_kernels = facts.kernels.iter().flat_map(|kernel| {
        let arguments = kernel
            .arguments
            .iter()
            .chain([&kernel.behind_last_argument]);
        arguments.flatten()
    });
    let all = facts.program.iter().chain(facts.devices.iter().flatten());
    let answers = all.chain(of_kernels).map(|(_, answer)| match answer {
        Answer::Value(value) => value.len(),
        Answer::AroundOwnOptions(parts) => parts.iter().map(|part| part.len()).sum(),
        _ => 0,
    });
    // Each value is a separate allocation and has a place in a list.
    answers.map(|bytes| bytes + 64).sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::entry::{EntryContent, Meta};

    fn key(number: u8) -> Key {
        Key([number; 32])
    }

    fn entry(number: u8, size: usize) -> Arc<Entry> {
        let binary = vec![number; size];
        let content = EntryContent {
            meta: &Meta::default(),
            recipe: None,
            binaries: vec![&binary],
        };
        let bytes = content.encode(&key(number)).expect("memory");
        Arc::new(Entry::parse(bytes, Some(&key(number))).expect("valid"))
    }

    #[test]
    fn what_was_forgotten_or_read_long_ago_is_read_again() {
        let memory = EntryMemory::new();
        memory.put(&key(1), &entry(1, 10));
        memory.put(&key(2), &entry(2, 10));
        memory.forget(&key(1));
        assert!(memory.get(&key(1), || None).is_none());
        let later = Instant::now() + READ_AGAIN;
        let at = |now| memory.get_at(&key(2), now, READ_AGAIN);
        assert!(at(later - READ_AGAIN / 2).is_some());
        assert!(at(later).is_none());
        memory.put(&key(3), &entry(3, 10));
        let full = |seconds| memory.get(&key(3), || Some(Duration::from_secs(seconds)));
        assert!(full(1000).is_some());
        assert!(full(0).is_none(), "it would be removed by then");
    }
}
