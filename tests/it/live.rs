//! What a hit writes is in memory: nothing in the cache directory changes, and what is noted in memory gets there later.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::counting::Turns;
use crate::support::{Driver, Sandbox, empty_memory, live_directories, tree};

/// All that the system shows of the files below a directory, with when each was last changed in any way.
pub fn state(directory: &Path) -> BTreeMap<PathBuf, (String, i64, i64)> {
    let changed = |path: &Path| {
        let facts = path.symlink_metadata().expect("what was listed");
        (facts.ctime(), facts.ctime_nsec())
    };
    let files = tree(directory).into_iter();
    let files = files.map(|(path, state)| {
        let (seconds, nanoseconds) = changed(&path);
        (path, (state, seconds, nanoseconds))
    });
    files.collect()
}

/// A cache with three entries that a driver has loaded before.
fn warm(driver: Driver) -> Option<Sandbox> {
    let sandbox = Sandbox::new(driver)?;
    for _ in 0..2 {
        let mut turns = Turns::begin(&sandbox);
        turns.turn("build 0 3", "built 3");
        assert!(turns.end(None).success(), "{driver:?}");
    }
    Some(sandbox)
}

#[test]
fn a_process_that_hits_changes_nothing_in_the_cache_directory() {
    for driver in Driver::ALL {
        let Some(sandbox) = warm(driver) else {
            continue;
        };
        let cache = sandbox.path("cache");
        let before = state(&cache);
        let mut turns = Turns::begin(&sandbox);
        turns.turn("build 0 3", "built 3");
        turns.turn("build 0 3", "built 3");
        assert_eq!(state(&cache), before, "{driver:?}");
        assert!(turns.end(Some("kill")).code().is_none(), "{driver:?}");
        assert_eq!(state(&cache), before, "{driver:?}");
        assert_eq!(sandbox.stat("hits"), 3 + 6, "{driver:?}");
    }
}

/// As it is without settings: on PoCL what a process misses is baked after it.
#[test]
fn the_first_process_that_hits_what_was_baked_changes_nothing_either() {
    for driver in [Driver::Pocl, Driver::Stub] {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        sandbox.set("OCLCACHE_RECORD", "bake");
        let mut turns = Turns::begin(&sandbox);
        turns.turn("build 0 2", "built 2");
        assert!(turns.end(None).success(), "{driver:?}");
        sandbox.oclcache(&["bake"]).ok();
        let cache = sandbox.path("cache");
        let before = state(&cache);
        let mut turns = Turns::begin(&sandbox);
        turns.turn("build 0 2", "built 2");
        assert_eq!(state(&cache), before, "{driver:?}");
        assert!(turns.end(Some("kill")).code().is_none(), "{driver:?}");
        assert_eq!(sandbox.stat("hits"), 2, "{driver:?}");
    }
}

#[test]
fn who_uninstalls_leaves_nothing_in_memory_once_no_program_counts_there() {
    let sandbox = warm(Driver::Stub).expect("the stub");
    let cache = sandbox.path("cache");
    let uninstall = || {
        let said = sandbox.oclcache(&["uninstall", "--user"]).ok().stderr;
        let left = live_directories(&cache).len();
        assert_eq!(said.contains("still counts in memory"), left > 0, "{said}");
        left
    };
    let mut turns = Turns::begin(&sandbox);
    turns.turn("build 0 3", "built 3");
    assert_eq!(uninstall(), 1);
    assert!(turns.end(None).success());
    assert_eq!(uninstall(), 0);
    assert_eq!(sandbox.stat("hits"), 3 + 3);
}

#[test]
fn a_live_directory_is_its_owners_only_and_one_for_each_cache() {
    let sandbox = warm(Driver::Stub).expect("the stub");
    let live = live_directories(&sandbox.path("cache"));
    assert_eq!(live.len(), 1, "{live:?}");
    let mode = |path: &Path| path.metadata().expect("there").permissions().mode() & 0o7777;
    assert_eq!(mode(&live[0]), 0o700);
    let readable = tree(&live[0])
        .into_keys()
        .filter(|path| mode(path) & 0o022 != 0);
    assert_eq!(readable.count(), 0);
}

#[test]
fn what_hits_have_noted_decides_what_gc_removes_and_outlives_the_memory() {
    let mut sandbox = warm(Driver::Stub).expect("the stub");
    let day = Duration::from_secs(86400);
    for entry in sandbox.entries() {
        sandbox.was_used(&entry, 10 * day);
    }
    let mut turns = Turns::begin(&sandbox);
    turns.turn("build 1 2", "built 1");
    assert!(turns.end(Some("kill")).code().is_none());
    // The sweep of this collection dates the one that was used.
    sandbox.oclcache(&["gc"]).ok();
    let age = |path: &PathBuf| {
        let modified = path.metadata().expect("there").modified().expect("a time");
        modified.elapsed().expect("past")
    };
    let ages: Vec<_> = sandbox.entries().iter().map(age).collect();
    assert_eq!(ages.iter().filter(|age| **age < day).count(), 1, "{ages:?}");
    // A restart of the system empties the memory.
    empty_memory(&sandbox.path("cache"));
    sandbox.set("OCLCACHE_MAX_AGE", "5d");
    sandbox.oclcache(&["gc"]).ok();
    assert_eq!(sandbox.entries().len(), 1);
}

#[test]
fn a_process_goes_on_where_its_live_directory_was_removed() {
    let sandbox = warm(Driver::Stub).expect("the stub");
    let mut turns = Turns::begin(&sandbox);
    turns.turn("build 0 1", "built 1");
    empty_memory(&sandbox.path("cache"));
    turns.turn("build 0 5", "built 5");
    turns.turn("fork 0 5", "child 0");
    assert!(turns.end(None).success());
    let mut later = Turns::begin(&sandbox);
    later.turn("build 0 5", "built 5");
    assert!(later.end(None).success());
}
