//! Keeps entries in memory that a driver has accepted, so that the next build of the same program reads no file.
//!
//! The sum of their bytes is bounded; the least recently used entry is dropped first. An entry is read from disk again after some
//! minutes, so that its time of last use on disk, which eviction sorts by, stays accurate.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::fork_safety::Mutex;
use crate::key::ingredients::Key;
use crate::store::entry::{Answer, Entry, Facts};

/// The sum of all entries.
const MAX_BYTES: usize = 64 << 20;

/// Age at which an entry is read from disk again.
const READ_AGAIN: Duration = Duration::from_secs(120);
/// An entry is read again after this fraction of the time after which unused entries expire.
const SHARE: u32 = 8;

/// Entries in memory.
pub struct EntryMemory {
    state: Mutex<State>,
    largest: usize,
}

#[derive(Default)]
struct State {
    entries: HashMap<Key, Kept>,
    bytes: usize,
    /// Incremented at each use.
    clock: u64,
}

struct Kept {
    entry: Arc<Entry>,
    bytes: usize,
    read: Instant,
    used: u64,
}

impl EntryMemory {
    /// An empty memory.
    pub fn new() -> EntryMemory {
        EntryMemory::of_size(MAX_BYTES)
    }

    fn of_size(largest: usize) -> EntryMemory {
        EntryMemory {
            state: Mutex::default(),
            largest,
        }
    }

    /// The entry of a key, if a driver has accepted it in this process and it was read recently. `kept_for`: the time after which
    /// the store removes unused entries.
    pub fn get(&self, key: &Key, kept_for: Option<Duration>) -> Option<Arc<Entry>> {
        let most = kept_for.map_or(READ_AGAIN, |time| READ_AGAIN.min(time / SHARE));
        self.get_at(key, Instant::now(), most)
    }

    fn get_at(&self, key: &Key, now: Instant, most: Duration) -> Option<Arc<Entry>> {
        let mut state = self.state.lock();
        state.clock += 1;
        let clock = state.clock;
        let kept = state.entries.get_mut(key)?;
        if now.saturating_duration_since(kept.read) < most {
            kept.used = clock;
            return Some(kept.entry.clone());
        }
        let old = state.remove(key);
        drop(state);
        drop(old);
        None
    }

    /// Keeps an entry that was just read and that a driver has accepted.
    pub fn put(&self, key: &Key, entry: &Arc<Entry>) {
        let bytes = weight(entry);
        if bytes > self.largest {
            return;
        }
        let mut gone = Vec::new();
        let mut state = self.state.lock();
        state.clock += 1;
        let kept = Kept {
            entry: entry.clone(),
            bytes,
            read: Instant::now(),
            used: state.clock,
        };
        gone.extend(state.remove(key));
        state.bytes += bytes;
        state.entries.insert(*key, kept);
        if state.bytes > self.largest {
            // Frees an eighth at once, since each time all entries are sorted.
            state.shrink_to(self.largest / 8 * 7, &mut gone);
        }
        drop(state);
        drop(gone); // frees megabytes without the lock
    }

    /// Drops the entry of a key, which was replaced or must not be used any more.
    pub fn forget(&self, key: &Key) {
        let old = self.state.lock().remove(key);
        drop(old);
    }
}

impl State {
    fn remove(&mut self, key: &Key) -> Option<Kept> {
        let kept = self.entries.remove(key)?;
        self.bytes -= kept.bytes;
        Some(kept)
    }

    fn shrink_to(&mut self, most: usize, gone: &mut Vec<Kept>) {
        let mut order: Vec<(u64, Key)> = self
            .entries
            .iter()
            .map(|(key, kept)| (kept.used, *key))
            .collect();
        order.sort_unstable_by_key(|(used, _)| *used);
        for (_, key) in order {
            if self.bytes <= most {
                return;
            }
            gone.extend(self.remove(&key));
        }
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
        Answer::AroundOwnOptions(parts) => parts.iter().map(Vec::len).sum(),
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
    fn what_was_not_used_for_longest_goes_first_and_the_bytes_stay_bounded() {
        let one = weight(&entry(0, 10_000));
        let memory = EntryMemory::of_size(8 * one);
        for number in 0..8 {
            memory.put(&key(number), &entry(number, 10_000));
        }
        assert!(memory.get(&key(0), None).is_some());
        for number in 8..11 {
            memory.put(&key(number), &entry(number, 10_000));
            assert!(memory.state.lock().bytes <= 8 * one);
        }
        for (number, is_there) in [(0, true), (1, false), (2, false), (3, false), (10, true)] {
            assert_eq!(
                memory.get(&key(number), None).is_some(),
                is_there,
                "{number}"
            );
        }
        memory.put(&key(20), &entry(20, 10 * one));
        assert!(memory.get(&key(20), None).is_none(), "larger than all room");
        assert!(memory.get(&key(0), None).is_some());
    }

    #[test]
    fn what_was_forgotten_or_read_long_ago_is_read_again() {
        let memory = EntryMemory::new();
        memory.put(&key(1), &entry(1, 10));
        memory.put(&key(2), &entry(2, 10));
        memory.forget(&key(1));
        assert!(memory.get(&key(1), None).is_none());
        let later = Instant::now() + READ_AGAIN;
        let at = |now| memory.get_at(&key(2), now, READ_AGAIN);
        assert!(at(later - READ_AGAIN / 2).is_some());
        assert!(at(later).is_none());
        assert_eq!(memory.state.lock().bytes, 0);
        memory.put(&key(3), &entry(3, 10));
        let full = |seconds| memory.get(&key(3), Some(Duration::from_secs(seconds)));
        assert!(full(1000).is_some());
        assert!(full(0).is_none(), "it would be removed by then");
    }
}
