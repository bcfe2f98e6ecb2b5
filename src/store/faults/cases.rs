//! What the store does, with each fault at each of its operations: it is right or says that it failed, it finds the entry of
//! the key or none, and on a good disk the next build heals it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use rustix::io::Errno;

use super::{Damage, Fault, Faulty};
use crate::key::ingredients::Key;
use crate::store::collect::Collector;
use crate::store::directory::FileFacts;
use crate::store::entry::tests::facts;
use crate::store::entry::{EntryContent, Meta};
use crate::store::sentinel::Admission;
use crate::store::sizes::SHARDS;
use crate::store::{CACHEDIR_TAG, Limits, Lookup, Store, StoreError};

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
enum Found {
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

fn said<T>(result: Result<T, StoreError>) -> Said {
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
        source: None,
        binaries: vec![binary],
    }
}

fn publish(store: &Store, key: &Key, number: u8) -> Said {
    said(store.publish(key, &content_of(&facts(), &binary(key, number))))
}

/// Whatever is found is of this key.
#[track_caller]
fn find(store: &Store, key: &Key) -> (Found, Option<FileFacts>) {
    match store.look_up(key) {
        Lookup::Absent => (Found::Absent, None),
        Lookup::Unreadable(_) => (Found::Unreadable, None),
        Lookup::Bad(_) => (Found::Bad, None),
        Lookup::Found(entry, file) => {
            let binaries: Vec<&[u8]> = entry.binaries().collect();
            let number = binaries[0][32];
            assert_eq!(binaries, [binary(key, number)]);
            assert_eq!(entry.meta, facts());
            (Found::Entry(number), Some(file))
        }
    }
}

/// A driver loads what is found. Tells whether there was something that might be loaded.
fn load(store: &Store) -> bool {
    let (_, Some(file)) = find(store, &KEY) else {
        return false;
    };
    match store.admit(&KEY, &file, false) {
        Admission::Granted(_loading) => store.prove(&KEY, &file),
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
    before: Found,
    act: fn(&Store) -> Said,
    /// What a look-up finds when that is done.
    after: Found,
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
        before: Found::Absent,
        act: |store| {
            let (found, _) = find(store, &KEY);
            assert!(
                matches!(found, Found::Absent | Found::Unreadable),
                "{found:?}"
            );
            Said::Done
        },
        after: Found::Absent,
        spares_other: true,
        every: 1,
    },
    Case {
        name: "look-up of an entry",
        limits: LIMITS,
        prepare: published,
        before: Found::Entry(1),
        act: |store| {
            let (found, _) = find(store, &KEY);
            // A good entry is never said to be bad, which would set it aside.
            assert_ne!(found, Found::Bad);
            Said::Done
        },
        after: Found::Entry(1),
        spares_other: true,
        every: 1,
    },
    Case {
        name: "look-up of a bad entry",
        limits: LIMITS,
        prepare: damaged,
        before: Found::Bad,
        act: |store| {
            let (found, _) = find(store, &KEY);
            assert!(!matches!(found, Found::Entry(_)), "{found:?}");
            Said::Done
        },
        after: Found::Bad,
        spares_other: true,
        every: 1,
    },
    Case {
        name: "publication",
        limits: LIMITS,
        prepare: |_| (),
        before: Found::Absent,
        act: |store| publish(store, &KEY, 2),
        after: Found::Entry(2),
        spares_other: true,
        every: 1,
    },
    Case {
        name: "publication over an entry",
        limits: LIMITS,
        prepare: published,
        before: Found::Entry(1),
        act: |store| publish(store, &KEY, 2),
        after: Found::Entry(2),
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
        before: Found::Entry(1),
        act: |store| {
            let (_, Some(file)) = find(store, &KEY) else {
                return Said::Failed;
            };
            said(store.replace(&KEY, &content_of(&facts(), &binary(&KEY, 2)), &file))
        },
        after: Found::Entry(2),
        spares_other: true,
        every: 1,
    },
    Case {
        name: "setting aside",
        limits: LIMITS,
        prepare: damaged,
        before: Found::Bad,
        act: |store| match store.set_aside(&KEY) {
            Ok(()) => Said::Unknown,
            Err(_) => Said::Failed,
        },
        after: Found::Absent,
        spares_other: true,
        every: 1,
    },
    Case {
        name: "first load",
        limits: LIMITS,
        prepare: published,
        before: Found::Entry(1),
        act: |store| {
            load(store);
            Said::Done
        },
        after: Found::Entry(1),
        spares_other: true,
        every: 1,
    },
    Case {
        name: "removal",
        limits: LIMITS,
        prepare: published,
        before: Found::Entry(1),
        act: |store| match store.remove(&KEY) {
            Ok(true) => Said::Done,
            // Also where the system says that there is nothing.
            Ok(false) | Err(_) => Said::Failed,
        },
        after: Found::Absent,
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
        before: Found::Entry(1),
        act: |store| {
            load(store);
            Said::Unknown
        },
        after: Found::Absent,
        spares_other: true,
        every: 1,
    },
    Case {
        name: "collection",
        limits: LIMITS,
        prepare: published,
        before: Found::Entry(1),
        act: |store| {
            let limits = Limits {
                max_size: Some(4096),
                ..LIMITS
            };
            let _ = store.collect(&limits, &mut Quiet);
            Said::Unknown
        },
        after: Found::Absent,
        spares_other: false,
        // It looks for 256 shards, of which three are there. With each of them it takes minutes.
        every: 61,
    },
    Case {
        name: "eviction",
        limits: TIGHT,
        prepare: published,
        before: Found::Entry(1),
        act: |store| {
            publish(store, &NEW, 3);
            Said::Unknown
        },
        after: Found::Absent,
        spares_other: false,
        every: 1,
    },
    Case {
        name: "sweep",
        limits: LIMITS,
        prepare: |store| {
            published(store);
            for (directory, file) in [("tmp", "new-1-1"), ("loading", &KEY.hex())] {
                let directory = store.root().path().join(directory);
                fs::create_dir_all(&directory).expect("made");
                fs::write(directory.join(file), "+").expect("written");
                set_age(&directory.join(file), 100 * 86400);
            }
        },
        before: Found::Entry(1),
        act: |store| {
            let _ = store.sweep();
            Said::Done
        },
        after: Found::Entry(1),
        spares_other: true,
        every: 1,
    },
    Case {
        name: "clearing",
        limits: LIMITS,
        prepare: published,
        before: Found::Entry(1),
        act: |store| {
            let _ = store.clear();
            Said::Unknown
        },
        after: Found::Absent,
        spares_other: false,
        every: 1,
    },
];

/// All drivers are there.
struct Quiet;

impl Collector for Quiet {
    fn is_installed(&mut self, _: &Meta) -> bool {
        true
    }

    fn progress(&mut self, _: &'static str, _: usize, _: usize) {}
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

/// A cache in which a case can begin, to be copied.
fn template(case: &Case) -> tempfile::TempDir {
    let temporary = directory();
    let store = Store::open(&temporary.path().join("cache"), case.limits).expect("a store");
    assert_eq!(publish(&store, &OTHER, 7), Said::Done);
    (case.prepare)(&store);
    assert_eq!(find(&store, &KEY).0, case.before, "{}", case.name);
    // So that each run does the same: the use of each entry is to be noted, and all shards are counted.
    for (key, ago) in [(&OTHER, 100_000), (&KEY, 200_000)] {
        set_age(&store.path_of(key), ago);
    }
    let sizes = store.sizes().expect("sizes");
    for shard in 0..SHARDS {
        store.count_again(sizes, shard);
    }
    temporary
}

fn set_age(file: &Path, seconds: u64) {
    if let Ok(file) = fs::File::open(file) {
        let then = SystemTime::now() - Duration::from_secs(seconds);
        file.set_modified(then).expect("dated");
    }
}

/// With modes and times.
fn copy(from: &Path, to: &Path) {
    let facts = fs::metadata(from).expect("examined");
    if facts.is_dir() {
        fs::create_dir(to).expect("made");
        for entry in fs::read_dir(from).expect("listed").flatten() {
            copy(&entry.path(), &to.join(entry.file_name()));
        }
        return fs::set_permissions(to, facts.permissions()).expect("changed");
    }
    fs::copy(from, to).expect("copied");
    let copied = fs::File::open(to).expect("opened");
    copied
        .set_modified(facts.modified().expect("a time"))
        .expect("dated");
}

/// Runs a case with a fault. Gives the operations that were done.
fn run(
    case: &Case,
    template: &Path,
    disk: Faulty,
    fault: Fault,
    most: usize,
    damage: Damage,
) -> usize {
    let temporary = directory();
    let path = temporary.path().join("cache");
    copy(&template.join("cache"), &path);
    let disk = Arc::new(disk);
    let store = Store::open_on(disk.clone(), &path, case.limits).expect("a store");
    disk.begin(fault, most);
    let said = (case.act)(&store);
    let done = disk.done();
    drop(store);
    if matches!(fault, Fault::PowerCut(_)) {
        disk.damage(&path, damage);
    }

    let what = format!(
        "{}, {fault:?}, {most} bytes at most, {damage:?}, {done:?}, {said:?}",
        case.name
    );
    let good = Store::open(&path, case.limits).expect("a store");
    let (found, _) = find(&good, &KEY);
    let expected: &[Found] = match (fault, said) {
        // An interrupted call is repeated.
        (Fault::None | Fault::Fails(_, Errno::INTR), _) => &[case.after],
        (Fault::PowerCut(_), _) => &[case.before, case.after, Found::Bad],
        (Fault::IsSaidToFail(..), Said::Failed) => &[case.before, case.after],
        (_, Said::Unknown) => &[case.before, case.after],
        (_, Said::Done) => &[case.after],
        (_, Said::Failed) => &[case.before],
    };
    assert!(expected.contains(&found), "{what}: {found:?}");
    if case.spares_other {
        assert_eq!(find(&good, &OTHER).0, Found::Entry(7), "{what}");
    }
    heals(&good, &what);
    done.len()
}

/// The next process finds the entry or builds it, and is served from then on. What was left over is swept.
fn heals(store: &Store, what: &str) {
    for key in [&OTHER, &NEW] {
        let (found, _) = find(store, key);
        assert_ne!(found, Found::Unreadable, "{what}");
    }
    let (found, _) = find(store, &KEY);
    if found == Found::Bad {
        assert!(store.set_aside(&KEY).is_ok(), "{what}");
    }
    if !matches!(found, Found::Entry(_)) {
        assert_eq!(publish(store, &KEY, 9), Said::Done, "{what}");
        assert_eq!(find(store, &KEY).0, Found::Entry(9), "{what}");
    }
    if !load(store) {
        // It has killed twice before.
        assert_eq!(publish(store, &KEY, 9), Said::Done, "{what}");
        assert!(load(store), "{what}");
    }
    let (_, file) = find(store, &KEY);
    assert!(file.is_some_and(|file| !file.is_writable), "{what}");
    let tag = store.root().path().with_file_name("CACHEDIR.TAG");
    assert_eq!(fs::read(tag).expect("a tag"), CACHEDIR_TAG, "{what}");
    let leftovers = || -> Vec<PathBuf> {
        let directories = ["tmp", "loading"].map(|name| store.root().path().join(name));
        let files = directories
            .iter()
            .filter_map(|path| fs::read_dir(path).ok());
        files.flatten().flatten().map(|file| file.path()).collect()
    };
    for file in leftovers() {
        set_age(&file, 100 * 86400);
    }
    store.sweep().expect("swept");
    assert_eq!(leftovers(), [] as [PathBuf; 0], "{what}");
}

/// On the fastest disk that there is.
fn directory() -> tempfile::TempDir {
    let memory = tempfile::tempdir_in("/dev/shm");
    memory.unwrap_or_else(|_| tempfile::tempdir().expect("a temporary directory"))
}

/// Runs all cases with a fault at each of their operations, and with calls that read and write so many bytes at most.
fn each_case_with(most: usize, faults: &dyn Fn(usize) -> Vec<Fault>, damages: &[Damage]) {
    for case in CASES {
        let template = template(case);
        let run = |fault, damage| run(case, template.path(), Faulty::new(), fault, most, damage);
        let operations = run(Fault::None, Damage::None);
        assert!(operations > 0, "{}", case.name);
        for fault in (0..operations).step_by(case.every).flat_map(faults) {
            for damage in damages {
                run(fault, *damage);
            }
        }
    }
}

/// Less than an entry has.
const IN_PARTS: usize = 200;

#[test]
fn an_operation_that_fails_does_no_harm() {
    let faults = |at| ERRORS.map(|error| Fault::Fails(at, error)).to_vec();
    each_case_with(usize::MAX, &faults, &[Damage::None]);
    let errors = [Errno::NOSPC, Errno::INTR, Errno::STALE];
    let faults = |at| errors.map(|error| Fault::Fails(at, error)).to_vec();
    each_case_with(IN_PARTS, &faults, &[Damage::None]);
}

#[test]
fn a_disk_that_fails_from_some_operation_on_does_no_harm() {
    // But for EINTR: an interrupted call is repeated until it is not.
    let errors = [Errno::NOSPC, Errno::IO, Errno::ROFS, Errno::STALE];
    let faults = |at| errors.map(|error| Fault::FailsFrom(at, error)).to_vec();
    each_case_with(usize::MAX, &faults, &[Damage::None]);
}

#[test]
fn an_operation_that_is_done_but_said_to_have_failed_does_no_harm() {
    let errors = [Errno::IO, Errno::STALE, Errno::INTR];
    let faults = |at| errors.map(|error| Fault::IsSaidToFail(at, error)).to_vec();
    each_case_with(usize::MAX, &faults, &[Damage::None]);
}

#[test]
fn a_power_cut_before_any_operation_is_healed_without_a_sync() {
    let cut = |at| vec![Fault::PowerCut(at)];
    each_case_with(IN_PARTS, &cut, &Damage::ALL);
}

/// The first store of all makes every directory and file that there is, those that are mapped as well.
#[test]
fn a_first_store_that_fails_or_is_cut_off_leaves_what_the_next_can_use() {
    let store = |fault, damage| {
        let temporary = directory();
        let path = temporary.path().join("home/cache");
        let disk = Arc::new(Faulty::new());
        disk.begin(fault, usize::MAX);
        let opened = Store::open_on(disk.clone(), &path, LIMITS);
        let said = opened.map(|store| publish(&store, &KEY, 2));
        if let Some(damage) = damage {
            disk.damage(temporary.path(), damage);
        }
        let what = format!("{fault:?}, {damage:?}, {:?}, {said:?}", disk.done());
        let good = Store::open(&path, LIMITS).unwrap_or_else(|error| panic!("{what}: {error}"));
        heals(&good, &what);
        disk.done().len()
    };
    for at in 0..store(Fault::None, None) {
        for error in [Errno::NOSPC, Errno::NOENT, Errno::INTR] {
            store(Fault::Fails(at, error), None);
        }
        store(Fault::IsSaidToFail(at, Errno::IO), None);
        for damage in Damage::ALL {
            store(Fault::PowerCut(at), Some(damage));
        }
    }
}

#[test]
fn a_clock_that_was_set_back_changes_no_result() {
    for case in CASES {
        let template = template(case);
        let disk = Faulty::new();
        disk.set_clock_back(Duration::from_secs(10 * 365 * 86400));
        run(
            case,
            template.path(),
            disk,
            Fault::None,
            usize::MAX,
            Damage::None,
        );
    }
}
