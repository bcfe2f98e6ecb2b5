//! Values that take a bounded number of bytes in memory: those that were not used for longest go first.

use std::collections::HashMap;
use std::hash::Hash;

/// Values by key, of which the least recently used go when there are too many or they take too much.
pub struct Lru<K, V> {
    entries: HashMap<K, Slot<V>>,
    bytes: usize,
    /// Counts the uses.
    clock: u64,
    max_bytes: usize,
    max_count: usize,
}

struct Slot<V> {
    value: V,
    bytes: usize,
    used: u64,
}

impl<K: Copy + Eq + Hash, V> Lru<K, V> {
    /// Empty, for so many values that take so many bytes together.
    pub fn new(max_bytes: usize, max_count: usize) -> Lru<K, V> {
        Lru {
            entries: HashMap::new(),
            bytes: 0,
            clock: 0,
            max_bytes,
            max_count,
        }
    }

    /// The value of a key, which is used now.
    pub fn get(&mut self, key: &K) -> Option<&V> {
        self.clock += 1;
        let slot = self.entries.get_mut(key)?;
        slot.used = self.clock;
        Some(&slot.value)
    }

    /// Whether there is a value of a key. It is not used by that.
    pub fn has(&self, key: &K) -> bool {
        self.entries.contains_key(key)
    }

    /// Keeps a value that takes so many bytes, unless it alone takes too many. Returns the values that went: the caller drops them
    /// when it has given its lock back, since they can have megabytes.
    pub fn put(&mut self, key: K, value: V, bytes: usize) -> Vec<V> {
        if bytes > self.max_bytes {
            return vec![value];
        }
        let mut gone = Vec::new();
        gone.extend(self.remove(&key));
        self.clock += 1;
        let used = self.clock;
        self.bytes += bytes;
        self.entries.insert(key, Slot { value, bytes, used });
        if self.bytes > self.max_bytes || self.entries.len() > self.max_count {
            self.shrink(&mut gone);
        }
        gone
    }

    /// Takes a value out.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let slot = self.entries.remove(key)?;
        self.bytes -= slot.bytes;
        Some(slot.value)
    }

    /// Makes an eighth of the room free at once, because it sorts all values.
    fn shrink(&mut self, gone: &mut Vec<V>) {
        let (bytes, count) = (self.max_bytes / 8 * 7, self.max_count / 8 * 7);
        let slots = self.entries.iter();
        let mut order: Vec<(u64, K)> = slots.map(|(key, slot)| (slot.used, *key)).collect();
        order.sort_unstable_by_key(|(used, _)| *used);
        for (_, key) in order {
            if self.bytes <= bytes && self.entries.len() <= count {
                return;
            }
            gone.extend(self.remove(&key));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_recently_used_go_first_and_the_bytes_stay_bounded() {
        let mut lru = Lru::new(80, 100);
        for key in 0..8 {
            assert!(lru.put(key, key, 10).is_empty());
        }
        assert_eq!(lru.get(&0), Some(&0));
        assert_eq!(lru.put(8, 8, 10), [1, 2]);
        assert_eq!((lru.bytes, lru.get(&0)), (70, Some(&0)));
        assert_eq!(lru.put(9, 9, 81), [9], "it alone is too large");
        assert_eq!((lru.bytes, lru.get(&9)), (70, None));
    }

    #[test]
    fn the_number_stays_bounded() {
        let mut lru = Lru::new(usize::MAX, 8);
        for key in 0..100 {
            lru.put(key, (), 1);
            assert!(lru.entries.len() <= 8);
        }
        assert!(lru.get(&99).is_some());
    }

    #[test]
    fn what_is_replaced_or_removed_takes_no_room() {
        let mut lru = Lru::new(100, 8);
        assert_eq!(lru.put(1, "one", 60), [""; 0]);
        assert_eq!(lru.put(1, "other", 70), ["one"]);
        assert_eq!(lru.bytes, 70);
        assert_eq!(lru.remove(&1), Some("other"));
        assert_eq!((lru.bytes, lru.remove(&1)), (0, None));
    }
}
