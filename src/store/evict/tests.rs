use std::os::fd::BorrowedFd;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use super::*;
use crate::key::ingredients::Key;
use crate::store::disk::Disk;
use crate::store::entry::tests::{content, facts};
use crate::store::gc::Collector;
use crate::store::heads::EntryDriver;
use crate::store::tier::Tier;
use crate::store::{Lookup, Store};

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
    used_at(
        store,
        number,
        SystemTime::now() - Duration::from_secs(seconds),
    );
}

/// Says that an entry was used so many seconds from now, as by a clock that is ahead.
fn used_ahead(store: &Store, number: u16, seconds: u64) {
    used_at(
        store,
        number,
        SystemTime::now() + Duration::from_secs(seconds),
    );
}

fn used_at(store: &Store, number: u16, time: SystemTime) {
    let file = std::fs::File::open(store.path_of(&key(number))).expect("an entry");
    file.set_modified(time).expect("dated");
    let sizes = store.sizes().expect("sizes");
    store.count_again(sizes, usize::from(key(number).0[0]));
}

fn allocated(store: &Store) -> u64 {
    let entries = store.entries().expect("listed");
    entries.iter().map(|(_, file)| file.taken()).sum()
}

/// Collects, and says nothing.
struct Silent;

impl Collector for Silent {
    fn is_installed(&mut self, _: &EntryDriver) -> bool {
        true
    }

    fn progress(&mut self, _: &'static str, _: usize, _: usize) -> bool {
        true
    }
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

/// Something else fills the disk.
#[test]
fn where_all_entries_together_would_not_make_room_none_goes_and_nothing_is_stored() {
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
    assert!(has(&store, 1) && !has(&store, 2));
    let collected = store.collect(&greedy, &mut Silent).expect("collected");
    assert_eq!((collected.entries, collected.left), (0, 1));
    assert!(has(&store, 1));
}

/// A disk on which this many bytes are free, whatever is removed: it may be freed later, or taken by others.
#[derive(Debug)]
struct Filled(u64);

impl Disk for Filled {
    fn room(&self, _: BorrowedFd<'_>) -> rustix::io::Result<(u64, u64)> {
        Ok((self.0, 1 << 40))
    }
}

#[test]
fn eviction_ends_where_what_is_left_would_not_make_room() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let path = directory.path().join("cache");
    let limits = Limits {
        min_free: Some(10 * ENTRY),
        ..limits(0).no_size()
    };
    let on = |free| Store::open_on(Arc::new(Filled(free)), &path, limits).expect("a store");
    for number in 0..6 {
        put(&on(20 * ENTRY), number).expect("stored");
    }
    // Two too few are free, and one more is to be stored.
    let facts = facts();
    let content = content(&facts, &[&BINARY]);
    let not_stored = on(8 * ENTRY).publish(&key(6), &content);
    let not_stored = not_stored.expect_err("no room");
    assert!(not_stored.to_string().contains("OCLCACHE_MIN_FREE"));
    assert_eq!(not_stored.removed, 4);
    assert_eq!(on(0).entries().expect("listed").len(), 2);
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

/// The clock of a file server is ahead of ours, or ours was set back.
#[test]
fn what_is_dated_in_the_future_does_not_exceed_the_age() {
    const DAY: u64 = 86_400;
    let directory = tempfile::tempdir().expect("a temporary directory");
    let limits = Limits {
        max_age: Some(Duration::from_secs(3600)),
        ..limits(0).no_size()
    };
    let store = opened(directory.path(), limits);
    for number in 0..8 {
        put(&store, number).expect("stored");
    }
    for (number, seconds) in [(0, 120), (1, 3 * 3600), (2, 3 * DAY), (3, 3000 * DAY)] {
        used_ahead(&store, number, seconds);
    }
    used_ago(&store, 4, 4000);
    assert_eq!(put(&store, 8), Ok(1));
    used_ago(&store, 5, 4000);
    let collected = store.collect(&limits, &mut Silent).expect("collected");
    assert_eq!((collected.entries, collected.left), (1, 7));
    for (_, file) in store.entries().expect("listed") {
        assert!(store.unused_ms(&file) < 3_600_000, "{file:?}");
    }
    let left: Vec<u16> = (0..9).filter(|number| has(&store, *number)).collect();
    assert_eq!(left, [0, 1, 2, 3, 6, 7, 8]);
}

/// While the clock of a file server is ahead, what was just stored is dated so.
#[test]
fn what_a_clock_that_is_a_little_ahead_has_dated_is_not_evicted_first() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = opened(directory.path(), limits(4 * ENTRY));
    for number in 0..4 {
        put(&store, number).expect("stored");
        used_ago(&store, number, 1000 - u64::from(number));
    }
    used_ahead(&store, 2, 120);
    put(&store, 4).expect("stored");
    put(&store, 5).expect("stored");
    let left: Vec<u16> = (0..6).filter(|number| has(&store, *number)).collect();
    assert_eq!(left, [2, 3, 4, 5]);
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
