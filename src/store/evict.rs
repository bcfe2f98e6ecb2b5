//! Keeps the entries within the limits: bounded work of the process that stores, under a lock that is only tried.
//!
//! An entry's time of modification is the time of its last use. We write it ourselves, so that mounts without access times do not
//! matter; hits only note it elsewhere (see `uses`). The least recently used entries go first. To find them without listing all
//! shards, `sizes` remembers the oldest time seen in each shard. If that entry was used since, the shard is only listed again, and
//! the next one is examined. So the order is nearly that of all entries.

use std::convert::Infallible;
use std::time::Duration;

use super::directory::FileFacts;
use super::heads;
use super::lock::{LockAttempt, Purpose};
use super::ownership::begins_as_ours;
use super::sizes::{SHARDS, Sizes};
use super::walk::walk;
use super::{ENTRIES, Store, file_name, shard_name};
use crate::config::Config;
use crate::key::ingredients::Key;

/// Keep 1/100 of the file system free if the user gave no size, but at most 1 GiB.
const FREE_SHARE: u64 = 100;
const MAX_FREE: u64 = 1 << 30;
/// The work that storing one entry may spend on eviction: 1 for each entry that is examined, and 64 for each shard that is listed.
const BUDGET: usize = 16_384;
const LISTING: usize = 64;
/// List at most 8 shards of unknown size when an entry is stored.
const MAX_COUNTED: usize = 8;
/// A collection lists 64 shards under one lock: a process that needs room meanwhile stores nothing.
const COUNTED_AT_ONCE: usize = 64;
/// Remove 1/64 of a large shard at once, so that the next stores need no listing.
const BATCH_SHARE: usize = 64;
/// A cache is nearly full if less than this share of it is free.
const FULL_SHARE: u64 = 8;
/// The clock was set back if a use is so far in the future.
const CLOCK_TOLERANCE_MS: u64 = 60_000;

/// The limits that the user has set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The maximum size of all entries on the disk, in bytes; None: no limit.
    pub max_size: Option<u64>,
    /// The space of the file system to keep free, in bytes; None: by its size.
    pub min_free: Option<u64>,
    /// How long an entry is kept that nobody uses; None: always.
    pub max_age: Option<Duration>,
}

impl Limits {
    /// The settings.
    pub fn of(config: &Config) -> Limits {
        Limits {
            max_size: config.max_size(),
            min_free: config.min_free(),
            max_age: config.max_age(),
        }
    }

    /// The space to keep free on a file system of this size.
    pub fn free_of(&self, all: u64) -> u64 {
        self.min_free.unwrap_or((all / FREE_SHARE).min(MAX_FREE))
    }

    pub(super) fn is_too_old(&self, used_ms: u64, now_ms: u64) -> bool {
        self.max_age
            .is_some_and(|age| u128::from(now_ms.saturating_sub(used_ms)) > age.as_millis())
    }
}

/// When an entry was last used; 0, which is unknown, if that is in the future, since the clock was set back.
pub(super) fn used_ms(facts: &FileFacts, now_ms: u64) -> u64 {
    if facts.modified_ms > now_ms + CLOCK_TOLERANCE_MS {
        0
    } else {
        facts.modified_ms
    }
}

/// Whether there is room for this many bytes beside all other entries.
pub(super) fn has_room_beside(
    store: &Store,
    limits: &Limits,
    sizes: Option<&Sizes>,
    incoming: u64,
) -> bool {
    let is_full = sizes.is_some_and(|sizes| store.lacks(limits, sizes, incoming));
    !is_full && store.has_room(limits, incoming).is_ok()
}

/// Why an entry is not stored, for people.
type Lacking = &'static str;

/// An entry of a shard that is examined.
struct Candidate {
    key: Key,
    used_ms: u64,
    bytes: u64,
    /// How many entries of the shard were used less recently.
    index: usize,
    /// The number of entries in the shard.
    of: usize,
    /// When the least recently used entry of the shard was used.
    first_used_ms: u64,
}

impl Store {
    /// The time since an entry was last used, in milliseconds.
    pub fn unused_ms(&self, facts: &FileFacts) -> u64 {
        let now = self.root.now_ms();
        now.saturating_sub(used_ms(facts, now))
    }

    /// How long an unused entry stays in a nearly full cache; None if no entry will be evicted soon.
    pub fn kept_for(&self) -> Option<Duration> {
        let most = self.limits?.max_size?;
        let sizes = self.readable_sizes()?;
        if sizes.total() < most - most / FULL_SHARE {
            return None;
        }
        let (_, oldest) = sizes.oldest(None)?;
        Some(Duration::from_millis(
            self.root.now_ms().saturating_sub(oldest),
        ))
    }

    /// Makes room for an entry of this size. Returns how many entries were removed.
    ///
    /// # Errors
    /// There is no room: the entry must not be stored.
    pub(super) fn make_room(&self, limits: &Limits, incoming: u64) -> Result<u64, Lacking> {
        if limits.max_size.is_some_and(|most| incoming > most) {
            return Err("it alone is larger than OCLCACHE_MAX_SIZE");
        }
        let Some(sizes) = self.sizes() else {
            return self.has_room(limits, incoming).map(|()| 0);
        };
        self.note_absent_shards(sizes);
        for _ in 0..MAX_COUNTED {
            let Some(shard) = sizes.unknown() else {
                break;
            };
            self.count_again(sizes, shard);
        }
        let mut removed = 0;
        let mut budget = BUDGET;
        // A process that does not get the lock leaves eviction to the holder.
        while budget > 0 && self.lacks(limits, sizes, incoming) {
            let _lock = match self.locks().try_lock(Purpose::Evict) {
                LockAttempt::Got(lock) => Some(lock),
                // Storing is faster than eviction: each process may be one entry ahead.
                LockAttempt::Taken if excess_of(limits, sizes, 0) > 0 => {
                    return Err("the cache is full, and another process is making room");
                }
                LockAttempt::Taken => return self.has_room(limits, incoming).map(|()| removed),
                LockAttempt::Unavailable => None,
            };
            while budget > 0 && self.lacks(limits, sizes, incoming) {
                let oldest = || sizes.oldest(None).map(|(shard, _)| shard);
                let Some(shard) = sizes.unknown().or_else(oldest) else {
                    budget = 0;
                    break;
                };
                let (examined, gone) = self.evict_from(limits, sizes, shard, incoming, budget);
                budget = budget.saturating_sub(examined + LISTING);
                removed += gone;
            }
        }
        let too_many = excess_of(limits, sizes, incoming);
        if removed == 0 && too_many > 0 || too_many > incoming {
            return Err("the cache is full, and not enough could be removed");
        }
        self.has_room(limits, incoming).map(|()| removed)
    }

    /// Notes that shards without a directory are empty: most of them in a new cache.
    fn note_absent_shards(&self, sizes: &Sizes) {
        if sizes.unknown().is_none() {
            return;
        }
        let present = || {
            let entries = self.root.open_below(ENTRIES).ok()??;
            entries.names().ok()
        };
        let Some(before) = present() else {
            return;
        };
        let absent: Vec<usize> = (0..SHARDS)
            .filter(|shard| sizes.is_unknown(*shard) && !before.contains(&shard_name(*shard)))
            .collect();
        for shard in &absent {
            sizes.listed(*shard, sizes.of(*shard), 0, None);
        }
        // Another process may have created one meanwhile.
        let after = present().unwrap_or_default();
        for shard in absent {
            if after.contains(&shard_name(shard)) {
                self.count_again(sizes, shard);
            }
        }
    }

    /// Whether the file system has room.
    fn has_room(&self, limits: &Limits, incoming: u64) -> Result<(), Lacking> {
        match self.shortage(limits, incoming) {
            0 => Ok(()),
            _ => Err("less would be free than OCLCACHE_MIN_FREE"),
        }
    }

    /// How many bytes too few are free.
    pub(super) fn shortage(&self, limits: &Limits, incoming: u64) -> u64 {
        let short = |(free, all)| match limits.free_of(all) {
            0 => 0,
            wanted => wanted.saturating_add(incoming).saturating_sub(free),
        };
        self.root.room().map_or(0, short)
    }

    fn lacks(&self, limits: &Limits, sizes: &Sizes, incoming: u64) -> bool {
        let too_old = |(_, used)| limits.is_too_old(used, self.root.now_ms());
        excess_of(limits, sizes, incoming) > 0
            || self.shortage(limits, incoming) > 0
            || sizes.oldest(None).is_some_and(too_old)
    }

    /// Evicts from the shard that seems to have the oldest entry. Returns how many entries it had, and how many were removed.
    fn evict_from(
        &self,
        limits: &Limits,
        sizes: &Sizes,
        shard: usize,
        incoming: u64,
        budget: usize,
    ) -> (usize, u64) {
        let next = sizes.oldest(Some(shard)).map_or(u64::MAX, |(_, used)| used);
        let now = self.root.now_ms();
        let wanted = excess_of(limits, sizes, incoming).max(self.shortage(limits, incoming));
        let (mut gone, mut freed) = (Vec::new(), 0);
        let examined = self.look_through(sizes, shard, &mut |entry| {
            let batch = (entry.of / BATCH_SHARE).max(1);
            let is_last_chance = entry.of + LISTING >= budget;
            let in_batch = entry.index < batch && (entry.first_used_ms <= next || is_last_chance);
            let in_turn = freed < wanted && entry.used_ms <= next || wanted > 0 && in_batch;
            let goes = in_turn || limits.is_too_old(entry.used_ms, now);
            if goes {
                gone.push(entry.key);
                freed += entry.bytes;
            }
            goes
        });
        self.note_evictions(&gone);
        (examined, gone.len() as u64)
    }

    /// Lists a shard to correct its counter, unless another process or thread lists shards: each would add what it has found.
    pub(super) fn count_again(&self, sizes: &Sizes, shard: usize) {
        let attempt = self.locks().try_lock(Purpose::Evict);
        if !matches!(attempt, LockAttempt::Taken) {
            self.look_through(sizes, shard, &mut |_| false);
        }
    }

    /// Lists all shards to correct their counters, and removes the remembered heads of those that have few entries left.
    pub(super) fn count_all_again(&self) {
        let Some(sizes) = self.sizes() else {
            return;
        };
        let all: Vec<usize> = (0..SHARDS).collect();
        for shards in all.chunks(COUNTED_AT_ONCE) {
            match self.locks().try_lock(Purpose::Evict) {
                // For a moment; another process counts some of them.
                LockAttempt::Taken => shards
                    .iter()
                    .for_each(|shard| self.count_again(sizes, *shard)),
                _lock => {
                    let count = |shard| self.look_through(sizes, shard, &mut |_| false);
                    let _: Result<(), Infallible> = walk(shards, count, |shard, entries| {
                        if entries < heads::MIN_ENTRIES {
                            heads::forget(&self.root, shard);
                        }
                        Ok(())
                    });
                }
            }
        }
    }

    /// Lists a shard, asks for each entry whether to remove it, the least recently used one first, and corrects the counter.
    /// Returns how many entries there were.
    fn look_through(
        &self,
        sizes: &Sizes,
        shard: usize,
        goes: &mut dyn FnMut(&Candidate) -> bool,
    ) -> usize {
        let known = sizes.of(shard);
        let now = self.root.now_ms();
        let listed = self.shard(shard).ok().flatten();
        let listed = listed
            .and_then(|directory| Some((self.entries_of(shard, &directory).ok()?, directory)));
        let Some((entries, directory)) = listed else {
            sizes.listed(shard, known, 0, None);
            return 0;
        };
        let mut entries: Vec<_> = entries
            .into_iter()
            .map(|(key, file)| (used_ms(&file, now), file.taken(), key))
            .collect();
        entries.sort_unstable();
        let (of, first_used_ms) = (entries.len(), entries.first().map_or(0, |first| first.0));
        let (mut kept, mut oldest) = (0, None);
        for (index, (used_ms, bytes, key)) in entries.into_iter().enumerate() {
            let candidate = Candidate {
                key,
                used_ms,
                bytes,
                index,
                of,
                first_used_ms,
            };
            let name = file_name(&key);
            let remove = || begins_as_ours(&directory, &name) && directory.remove(&name).is_ok();
            if !goes(&candidate) || !remove() {
                kept += bytes;
                oldest = oldest.or(Some(used_ms));
            }
        }
        sizes.listed(shard, known, kept, oldest);
        of
    }
}

/// How many bytes too many there are.
fn excess_of(limits: &Limits, sizes: &Sizes, incoming: u64) -> u64 {
    let most = limits.max_size.unwrap_or(u64::MAX);
    sizes.total().saturating_add(incoming).saturating_sub(most)
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::path::Path;
    use std::sync::Arc;
    use std::time::SystemTime;

    use super::super::disk::Disk;
    use super::super::entry::tests::{content, facts};
    use super::super::tier::Tier;
    use super::super::{Lookup, Store};
    use super::*;
    use crate::key::ingredients::Key;

    static BINARY: [u8; 40_000] = [7; 40_000];
    /// What an entry with that binary takes on the disk, in bytes.
    const ENTRY: u64 = 40_960;

    fn limits(max_size: u64) -> Limits {
        Limits {
            max_size: Some(max_size),
            min_free: Some(0),
            max_age: None,
        }
    }

    fn key(number: u16) -> Key {
        Key(crate::key::ingredients::sha256(&number.to_le_bytes()))
    }

    fn put(store: &Store, number: u16) -> Result<u64, String> {
        let facts = facts();
        let content = content(&facts, &[&BINARY]);
        let stored = store.publish(&key(number), &content);
        stored.map_err(|error| error.to_string())
    }

    fn has(store: &Store, number: u16) -> bool {
        matches!(store.look_up(&key(number)), Lookup::Found(..))
    }

    /// Says that an entry was used so many seconds ago.
    fn used_ago(store: &Store, number: u16, seconds: u64) {
        let file = std::fs::File::open(store.path_of(&key(number))).expect("an entry");
        let time = SystemTime::now() - Duration::from_secs(seconds);
        file.set_modified(time).expect("dated");
        let sizes = store.sizes().expect("sizes");
        store.count_again(sizes, usize::from(key(number).0[0]));
    }

    fn allocated(store: &Store) -> u64 {
        let entries = store.entries().expect("listed");
        entries.iter().map(|(_, file)| file.taken()).sum()
    }

    fn opened(path: &Path, limits: Limits) -> Store {
        Store::open(&path.join("cache"), limits).expect("a store")
    }

    #[test]
    fn the_cache_stays_within_its_size_and_what_is_used_stays() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let most = 40 * ENTRY;
        let store = opened(directory.path(), limits(most));
        let mut removed = 0;
        for number in 0..200 {
            removed += put(&store, number).expect("stored");
            assert!(allocated(&store) <= most, "after {number}");
            // All become older, and three are used again.
            if number < 100 {
                used_ago(&store, number, 10_000 - u64::from(number));
            }
            if number >= 3 {
                for hot in 0..3 {
                    assert!(has(&store, hot), "{hot} after {number}");
                }
            }
        }
        let left = store.entries().expect("listed").len() as u64;
        assert_eq!(removed + left, 200);
        assert!((36..=40).contains(&left), "{left}");
        let sizes = store.sizes().expect("sizes");
        assert_eq!(sizes.total(), allocated(&store));
        for number in 190..200 {
            assert!(has(&store, number), "{number}");
        }
    }

    #[test]
    fn of_a_large_shard_some_go_at_once_so_that_the_next_stores_list_nothing() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = opened(directory.path(), limits(200 * 4096));
        let facts = facts();
        let put = |number: u8| {
            let key = Key([vec![7, 200, number], vec![0; 29]]
                .concat()
                .try_into()
                .expect("32"));
            store.publish(&key, &content(&facts, &[b"binary"]))
        };
        for number in 0..200 {
            assert_eq!(put(number).expect("stored"), 0, "{number}");
        }
        let removed = (200..206).map(|number| put(number).expect("stored"));
        assert_eq!(removed.collect::<Vec<_>>(), [3, 0, 0, 3, 0, 0]);
    }

    #[test]
    fn an_entry_that_is_larger_than_the_cache_is_not_stored_and_removes_nothing() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        put(&opened(directory.path(), limits(0).no_size()), 1).expect("stored");
        let store = opened(directory.path(), limits(30_000));
        let error = put(&store, 2).expect_err("too large");
        assert!(error.contains("OCLCACHE_MAX_SIZE"), "{error}");
        assert!(has(&store, 1));
    }

    impl Limits {
        fn no_size(mut self) -> Limits {
            self.max_size = None;
            self
        }
    }

    #[test]
    fn where_too_little_is_free_entries_go_and_nothing_is_stored() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let limits = limits(0).no_size();
        put(&opened(directory.path(), limits), 1).expect("stored");
        let greedy = Limits {
            min_free: Some(u64::MAX / 2),
            ..limits
        };
        let store = opened(directory.path(), greedy);
        let error = put(&store, 2).expect_err("no room");
        assert!(error.contains("OCLCACHE_MIN_FREE"), "{error}");
        assert!(!has(&store, 1) && !has(&store, 2));
    }

    /// FUSE answers so for file systems that do not tell.
    #[derive(Debug)]
    struct Unmeasured;

    impl Disk for Unmeasured {
        fn room(&self, _: BorrowedFd<'_>) -> rustix::io::Result<(u64, u64)> {
            Ok((0, 0))
        }
    }

    #[test]
    fn where_nobody_tells_what_is_free_it_is_stored() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("cache");
        let store = Store::open_on(Arc::new(Unmeasured), &path, Limits::default());
        let store = store.expect("a store");
        put(&store, 1).expect("stored");
        assert!(has(&store, 1));
    }

    #[test]
    fn what_nobody_used_for_longer_than_the_age_goes_with_the_next_store() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let limits = Limits {
            max_age: Some(Duration::from_secs(3600)),
            ..limits(0).no_size()
        };
        let store = opened(directory.path(), limits);
        for number in 0..10 {
            put(&store, number).expect("stored");
        }
        for number in 0..5 {
            used_ago(&store, number, 4000);
        }
        assert_eq!(put(&store, 10), Ok(5));
        let left: Vec<u16> = (0..11).filter(|number| has(&store, *number)).collect();
        assert_eq!(left, [5, 6, 7, 8, 9, 10]);
    }

    #[test]
    fn a_clock_that_is_set_back_empties_no_cache_and_leaves_none_that_is_never_emptied() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = opened(directory.path(), limits(10 * ENTRY));
        for number in 0..8 {
            put(&store, number).expect("stored");
            let file = std::fs::File::open(store.path_of(&key(number))).expect("an entry");
            let future = SystemTime::now() + Duration::from_secs(1_000_000);
            file.set_modified(future).expect("dated");
        }
        // Used now, which is later than all were stored: it gets a time that is true.
        std::thread::sleep(Duration::from_millis(2));
        assert!(has(&store, 3));
        for number in 100..109 {
            put(&store, number).expect("stored");
        }
        let left: Vec<u16> = (0..109).filter(|number| has(&store, *number)).collect();
        assert_eq!(left[0], 3, "{left:?}");
        assert!(left.len() >= 9, "{left:?}");
    }

    #[test]
    fn who_only_asks_how_long_entries_stay_makes_no_file() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = opened(directory.path(), limits(30 * ENTRY));
        put(&store, 1).expect("stored");
        drop(store);
        let sizes = directory.path().join("cache/v1/sizes");
        for damage in [None, Some("oclcsiz1 short")] {
            std::fs::remove_file(&sizes).expect("removed");
            if let Some(damage) = damage {
                std::fs::write(&sizes, damage).expect("written");
            }
            let store = opened(directory.path(), limits(30 * ENTRY));
            assert_eq!(store.kept_for(), None);
            assert_eq!(sizes.exists(), damage.is_some());
            std::fs::write(&sizes, "").expect("written");
        }
    }

    #[test]
    fn sizes_that_are_lost_or_wrong_are_found_again() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let most = 30 * ENTRY;
        let store = opened(directory.path(), limits(most));
        for number in 0..30 {
            put(&store, number).expect("stored");
        }
        drop(store);
        let sizes = directory.path().join("cache/v1/sizes");
        for damage in [Some(&b"oclcsiz1 short"[..]), Some(&[0; 4104]), None] {
            std::fs::remove_file(&sizes).expect("removed");
            if let Some(damage) = damage {
                std::fs::write(&sizes, damage).expect("written");
            }
            let store = opened(directory.path(), limits(most));
            for number in 30..70 {
                put(&store, number).expect("stored");
            }
            assert!(allocated(&store) <= most);
        }
    }

    #[test]
    fn who_counts_at_once_counts_each_entry_once() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        put(&opened(directory.path(), limits(0).no_size()), 1).expect("stored");
        let (file, shard) = (directory.path().join("cache/v1/sizes"), key(1).0[0]);
        for _ in 0..50 {
            std::fs::remove_file(&file).expect("removed");
            let store = opened(directory.path(), limits(0).no_size());
            let sizes = store.sizes().expect("sizes");
            let barrier = std::sync::Barrier::new(4);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        barrier.wait();
                        store.count_again(sizes, usize::from(shard));
                    });
                }
            });
            assert_eq!(sizes.total(), ENTRY);
        }
    }
}
