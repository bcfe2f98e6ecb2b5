//! What this process has loaded before: entries that a driver has taken are kept in memory, so that the next build of the same
//! program reads no file.
//!
//! They take a bounded number of bytes; what was not used for longest goes first. One that was read some minutes ago is read
//! again, so that the time of its last use on disk, by which entries are evicted, stays true.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fork_safety::Mutex;
use crate::key::ingredients::Key;
use crate::lru::Lru;
use crate::store::entry::{Answer, Entry, Facts};

/// What the entries take together at most, in bytes.
const MAX_BYTES: usize = 64 << 20;

/// How long after it was read an entry is read again.
const READ_AGAIN: Duration = Duration::from_secs(120);
/// Which share of the time that an entry stays in the store unused.
const SHARE: u32 = 8;

/// Entries in memory.
pub struct Memory {
    entries: Mutex<Lru<Key, InMemory>>,
}

struct InMemory {
    entry: Arc<Entry>,
    read: Instant,
}

impl Memory {
    /// Nothing is kept yet.
    pub fn new() -> Memory {
        Memory {
            entries: Mutex::new(Lru::new(MAX_BYTES, usize::MAX)),
        }
    }

    /// The entry of a key, if a driver has taken it in this process, not too long ago: where the store removes what was not used
    /// for some time (`kept_for`), a share of that.
    pub fn get(&self, key: &Key, kept_for: Option<Duration>) -> Option<Arc<Entry>> {
        let most = kept_for.map_or(READ_AGAIN, |time| READ_AGAIN.min(time / SHARE));
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

    /// Keeps an entry that a driver has taken, which was just read.
    pub fn put(&self, key: &Key, entry: &Arc<Entry>) {
        let known = InMemory {
            entry: entry.clone(),
            read: Instant::now(),
        };
        let gone = self.entries.lock().put(*key, known, weight(entry));
        drop(gone); // megabytes are given back without the lock
    }

    /// The entry of a key was replaced, or is not to be used any more.
    pub fn forget(&self, key: &Key) {
        let old = self.entries.lock().remove(key);
        drop(old);
    }
}

/// What an entry takes in memory, in bytes, as far as it matters.
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
        Answer::AroundOwnOptions(parts) => parts.iter().map(Vec::len).sum(),
        _ => 0,
    });
    // Each value is an allocation of its own, beside its place in a list.
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
        let memory = Memory::new();
        memory.put(&key(1), &entry(1, 10));
        memory.put(&key(2), &entry(2, 10));
        memory.forget(&key(1));
        assert!(memory.get(&key(1), None).is_none());
        let later = Instant::now() + READ_AGAIN;
        let at = |now| memory.get_at(&key(2), now, READ_AGAIN);
        assert!(at(later - READ_AGAIN / 2).is_some());
        assert!(at(later).is_none());
        memory.put(&key(3), &entry(3, 10));
        let full = |seconds| memory.get(&key(3), Some(Duration::from_secs(seconds)));
        assert!(full(1000).is_some());
        assert!(full(0).is_none(), "it would be removed by then");
    }
}
