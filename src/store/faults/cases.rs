//! What the store does, that something may go wrong with.

mod runs;

use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

use crate::key::ingredients::Key;
use crate::store::entry::tests::facts;
use crate::store::entry::{EntryContent, Meta};
use crate::store::gc::Collector;
use crate::store::heads::EntryDriver;
use crate::store::load_guard::Admission;
use crate::store::sizes::SHARDS;
use crate::store::tag::CACHEDIR_TAG;
use crate::store::tier::{EntryOrigin, Tier};
use crate::store::{Limits, Lookup, Store};

/// The key that the store works on.
const KEY: Key = Key([1; 32]);
/// Another one, whose entry was used later and stays what it is.
const OTHER: Key = Key([2; 32]);
/// One without an entry.
const NEW: Key = Key([3; 32]);

/// The last two: the process has too many files open, or too little memory.
const ERRORS: [Errno; 10] = [
    Errno::NOSPC,
    Errno::IO,
    Errno::ROFS,
    Errno::DQUOT,
    Errno::STALE,
    Errno::INTR,
    Errno::ACCESS,
    Errno::NOENT,
    Errno::MFILE,
    Errno::NOMEM,
];

const LIMITS: Limits = Limits {
    max_size: None,
    min_free: Some(0),
    max_age: None,
};

/// For two entries.
const TIGHT: Limits = Limits {
    max_size: Some(2 * 4096),
    min_free: Some(0),
    max_age: None,
};

/// What a look-up of a key finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    /// An entry, by the number that was published with it.
    Entry(u8),
    Absent,
    Bad,
    Unreadable,
}

/// What the store's caller is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Said {
    Done,
    Failed,
    /// There was nothing to do, or it is done.
    Unknown,
}

fn said<T, E>(result: Result<T, E>) -> Said {
    match result {
        Ok(_) => Said::Done,
        Err(_) => Said::Failed,
    }
}

fn binary(key: &Key, number: u8) -> Vec<u8> {
    [key.0.as_slice(), &[number; 300]].concat()
}

fn content_of<'a>(meta: &'a Meta, binary: &'a [u8]) -> EntryContent<'a> {
    EntryContent {
        meta,
        recipe: None,
        binaries: vec![binary],
    }
}

fn publish(store: &Store, key: &Key, number: u8) -> Said {
    said(store.publish(key, &content_of(&facts(), &binary(key, number))))
}

/// Whatever is found is of this key.
#[track_caller]
fn find(store: &Store, key: &Key) -> (Outcome, Option<EntryOrigin>) {
    match store.look_up(key) {
        Lookup::Absent | Lookup::Pending(_) => (Outcome::Absent, None),
        Lookup::Unreadable(_) => (Outcome::Unreadable, None),
        Lookup::Bad(_) => (Outcome::Bad, None),
        Lookup::Found(entry, origin) => {
            let binaries: Vec<&[u8]> = entry.binaries().collect();
            let number = binaries[0][32];
            assert_eq!(binaries, [binary(key, number)]);
            assert_eq!(entry.meta, facts());
            (Outcome::Entry(number), Some(origin))
        }
    }
}

/// A driver loads what is found. Tells whether there was something that might be loaded.
fn load(store: &Store) -> bool {
    let (_, Some(origin)) = find(store, &KEY) else {
        return false;
    };
    match store.admit(&KEY, &origin, false) {
        Admission::Granted(_loading) => store.prove(&KEY, &origin),
        Admission::Postponed => return false,
        Admission::Refused(..) => {
            let _ = store.set_aside(&KEY);
            return false;
        }
    }
    true
}

/// Something that is done with a store.
struct Case {
    name: &'static str,
    limits: Limits,
    /// Makes what is there before.
    prepare: fn(&Store),
    /// What a look-up finds then.
    before: Outcome,
    act: fn(&Store) -> Said,
    /// What a look-up finds when that is done.
    after: Outcome,
    /// Whether nothing else is touched.
    spares_other: bool,
    /// Of so many operations one has a fault.
    every: usize,
}

const CASES: &[Case] = &[
    Case {
        name: "look-up of nothing",
        limits: LIMITS,
        prepare: |_| (),
        before: Outcome::Absent,
        act: |store| {
            let (found, _) = find(store, &KEY);
            assert!(
                matches!(found, Outcome::Absent | Outcome::Unreadable),
                "{found:?}"
            );
            Said::Done
        },
        after: Outcome::Absent,
        spares_other: true,
        every: 1,
    },
    Case {
        name: "look-up of an entry",
        limits: LIMITS,
        prepare: published,
        before: Outcome::Entry(1),
        act: |store| {
            let (found, _) = find(store, &KEY);
            // A good entry is never said to be bad, which would set it aside.
            assert_ne!(found, Outcome::Bad);
            Said::Done
        },
        after: Outcome::Entry(1),
        spares_other: true,
        every: 1,
    },
    Case {
        name: "look-up of a bad entry",
        limits: LIMITS,
        prepare: damaged,
        before: Outcome::Bad,
        act: |store| {
            let (found, _) = find(store, &KEY);
            assert!(!matches!(found, Outcome::Entry(_)), "{found:?}");
            Said::Done
        },
        after: Outcome::Bad,
        spares_other: true,
        every: 1,
    },
    Case {
        name: "publication",
        limits: LIMITS,
        prepare: |_| (),
        before: Outcome::Absent,
        act: |store| publish(store, &KEY, 2),
        after: Outcome::Entry(2),
        spares_other: true,
        every: 1,
    },
    Case {
        name: "publication over an entry",
        limits: LIMITS,
        prepare: published,
        before: Outcome::Entry(1),
        act: |store| publish(store, &KEY, 2),
        after: Outcome::Entry(2),
        spares_other: true,
        every: 1,
    },
    Case {
        name: "replacement of a proven entry",
        limits: LIMITS,
        prepare: |store| {
            published(store);
            assert!(load(store));
        },
        before: Outcome::Entry(1),
        act: |store| {
            let (_, Some(origin)) = find(store, &KEY) else {
                return Said::Failed;
            };
            said(store.replace(&KEY, &content_of(&facts(), &binary(&KEY, 2)), &origin))
        },
        after: Outcome::Entry(2),
        spares_other: true,
        every: 1,
    },
    Case {
        name: "setting aside",
        limits: LIMITS,
        prepare: damaged,
        before: Outcome::Bad,
        act: |store| match store.set_aside(&KEY) {
            Ok(()) => Said::Unknown,
            Err(_) => Said::Failed,
        },
        after: Outcome::Absent,
        spares_other: true,
        every: 1,
    },
    Case {
        name: "first load",
        limits: LIMITS,
        prepare: published,
        before: Outcome::Entry(1),
        act: |store| {
            load(store);
            Said::Done
        },
        after: Outcome::Entry(1),
        spares_other: true,
        every: 1,
    },
    Case {
        name: "removal",
        limits: LIMITS,
        prepare: published,
        before: Outcome::Entry(1),
        act: |store| match store.remove(&KEY) {
            Ok(true) => Said::Done,
            // Also where the system says that there is nothing.
            Ok(false) | Err(_) => Said::Failed,
        },
        after: Outcome::Absent,
        spares_other: true,
        every: 1,
    },
    Case {
        name: "load of what has killed twice",
        limits: LIMITS,
        prepare: |store| {
            published(store);
            let loading = store.root().path().join("loading");
            fs::create_dir_all(&loading).expect("made");
            fs::write(loading.join(KEY.hex()), "++").expect("written");
        },
        before: Outcome::Entry(1),
        act: |store| {
            load(store);
            Said::Unknown
        },
        after: Outcome::Absent,
        spares_other: true,
        every: 1,
    },
    Case {
        name: "collection",
        limits: LIMITS,
        prepare: published,
        before: Outcome::Entry(1),
        act: |store| {
            let limits = Limits {
                max_size: Some(4096),
                ..LIMITS
            };
            let _ = store.collect(&limits, &mut Quiet);
            Said::Unknown
        },
        after: Outcome::Absent,
        spares_other: false,
        // It looks for 256 shards, of which three are there. With each of them it takes minutes.
        every: 61,
    },
    Case {
        name: "eviction",
        limits: TIGHT,
        prepare: published,
        before: Outcome::Entry(1),
        act: |store| {
            publish(store, &NEW, 3);
            Said::Unknown
        },
        after: Outcome::Absent,
        spares_other: false,
        every: 1,
    },
    Case {
        name: "sweep",
        limits: LIMITS,
        prepare: |store| {
            published(store);
            let hex = KEY.hex();
            for (directory, file, content) in
                [("tmp", "new-1-1", "oclcache"), ("loading", &hex, "+")]
            {
                let directory = store.root().path().join(directory);
                fs::create_dir_all(&directory).expect("made");
                fs::write(directory.join(file), content).expect("written");
                set_age(&directory.join(file), 100 * 86400);
            }
        },
        before: Outcome::Entry(1),
        act: |store| {
            let _ = store.sweep();
            Said::Done
        },
        after: Outcome::Entry(1),
        spares_other: true,
        every: 1,
    },
    Case {
        name: "clearing",
        limits: LIMITS,
        prepare: published,
        before: Outcome::Entry(1),
        act: |store| {
            let _ = store.clear();
            Said::Unknown
        },
        after: Outcome::Absent,
        spares_other: false,
        every: 1,
    },
];

/// All drivers are there.
struct Quiet;

impl Collector for Quiet {
    fn is_installed(&mut self, _: &EntryDriver) -> bool {
        true
    }

    fn progress(&mut self, _: &'static str, _: usize, _: usize) -> bool {
        true
    }
}

fn published(store: &Store) {
    assert_eq!(publish(store, &KEY, 1), Said::Done);
}

fn damaged(store: &Store) {
    published(store);
    let path = store.path_of(&KEY);
    let bytes = fs::read(&path).expect("read");
    fs::write(&path, &bytes[..bytes.len() - 1]).expect("written");
}

fn set_age(file: &Path, seconds: u64) {
    if let Ok(file) = fs::File::open(file) {
        let then = SystemTime::now() - Duration::from_secs(seconds);
        file.set_modified(then).expect("dated");
    }
}
