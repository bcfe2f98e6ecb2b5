//! What the store does, with each fault at each of its operations: it is right or says that it failed, it finds the entry of
//! the key or none, and on a good disk the next build heals it.

use std::fs;
use std::sync::Arc;

use rustix::io::Errno;

use super::{Damage, Fault, Faulty};
use crate::key::ingredients::Key;
use crate::store::directory::{FileFacts, TEMPORARY_PREFIX};
use crate::store::entry::tests::{content, facts};
use crate::store::sentinel::Admission;
use crate::store::{CACHEDIR_TAG, Limits, Lookup, Store, StoreError};

/// The key that the store works on.
const KEY: Key = Key([1; 32]);
/// Another one, whose entry stays what it is.
const OTHER: Key = Key([2; 32]);

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

fn publish(store: &Store, key: &Key, number: u8) -> Said {
    let meta = facts();
    said(store.publish(key, &content(&meta, &[&binary(key, number)])))
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
    /// Makes what is there before.
    prepare: fn(&Store),
    /// What a look-up finds then.
    before: Found,
    act: fn(&Store) -> Said,
    /// What a look-up finds when that is done.
    after: Found,
}

const CASES: &[Case] = &[
    Case {
        name: "look-up of nothing",
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
    },
    Case {
        name: "look-up of an entry",
        prepare: published,
        before: Found::Entry(1),
        act: |store| {
            let (found, _) = find(store, &KEY);
            // A good entry is never said to be bad, which would set it aside.
            assert_ne!(found, Found::Bad);
            Said::Done
        },
        after: Found::Entry(1),
    },
    Case {
        name: "look-up of a bad entry",
        prepare: damaged,
        before: Found::Bad,
        act: |store| {
            let (found, _) = find(store, &KEY);
            assert!(!matches!(found, Found::Entry(_)), "{found:?}");
            Said::Done
        },
        after: Found::Bad,
    },
    Case {
        name: "publication",
        prepare: |_| (),
        before: Found::Absent,
        act: |store| publish(store, &KEY, 2),
        after: Found::Entry(2),
    },
    Case {
        name: "publication over an entry",
        prepare: published,
        before: Found::Entry(1),
        act: |store| publish(store, &KEY, 2),
        after: Found::Entry(2),
    },
    Case {
        name: "replacement of a proven entry",
        prepare: |store| {
            published(store);
            assert!(load(store));
        },
        before: Found::Entry(1),
        act: |store| {
            let (_, Some(file)) = find(store, &KEY) else {
                return Said::Failed;
            };
            let meta = facts();
            said(store.replace(&KEY, &content(&meta, &[&binary(&KEY, 2)]), &file))
        },
        after: Found::Entry(2),
    },
    Case {
        name: "setting aside",
        prepare: damaged,
        before: Found::Bad,
        act: |store| match store.set_aside(&KEY) {
            Ok(()) => Said::Unknown,
            Err(_) => Said::Failed,
        },
        after: Found::Absent,
    },
    Case {
        name: "first load",
        prepare: published,
        before: Found::Entry(1),
        act: |store| {
            load(store);
            Said::Done
        },
        after: Found::Entry(1),
    },
    Case {
        name: "removal",
        prepare: published,
        before: Found::Entry(1),
        act: |store| match store.remove(&KEY) {
            Ok(true) => Said::Done,
            // Also where the system says that there is nothing.
            Ok(false) | Err(_) => Said::Failed,
        },
        after: Found::Absent,
    },
];

fn published(store: &Store) {
    assert_eq!(publish(store, &KEY, 1), Said::Done);
}

fn damaged(store: &Store) {
    published(store);
    let path = store.path_of(&KEY);
    let bytes = fs::read(&path).expect("read");
    fs::write(&path, &bytes[..bytes.len() - 1]).expect("written");
}

/// Runs a case with a fault. Gives the operations that were done.
fn run(case: &Case, fault: Fault, most: usize, damage: Damage) -> Vec<&'static str> {
    let name = case.name;
    let temporary = directory();
    let path = temporary.path().join("cache");
    let good = Store::open(&path, LIMITS).expect("a store");
    assert_eq!(publish(&good, &OTHER, 7), Said::Done);
    (case.prepare)(&good);
    assert_eq!(find(&good, &KEY).0, case.before, "{name}");
    drop(good);

    let disk = Arc::new(Faulty::new());
    let store = Store::open_on(disk.clone(), &path, LIMITS).expect("a store");
    disk.begin(fault, most);
    let said = (case.act)(&store);
    let done = disk.done();
    drop(store);
    if matches!(fault, Fault::PowerCut(_)) {
        disk.damage(&path, damage);
    }

    let what = format!("{name}, {fault:?}, {most} bytes at most, {damage:?}, {done:?}, {said:?}");
    let good = Store::open(&path, LIMITS).expect("a store");
    let (found, _) = find(&good, &KEY);
    let expected: &[Found] = match (fault, said) {
        (Fault::PowerCut(_), _) => &[case.before, case.after, Found::Bad],
        (Fault::IsSaidToFail(..), Said::Failed) => &[case.before, case.after],
        (Fault::None, _) => &[case.after],
        (_, Said::Unknown) => &[case.before, case.after],
        (_, Said::Done) => &[case.after],
        (_, Said::Failed) => &[case.before],
    };
    assert!(expected.contains(&found), "{what}: {found:?}");
    assert_eq!(find(&good, &OTHER).0, Found::Entry(7), "{what}");
    heals(&good, &what);
    done
}

/// The next process finds the entry or builds it, and is served from then on.
fn heals(store: &Store, what: &str) {
    let (found, _) = find(store, &KEY);
    if found == Found::Bad {
        assert!(store.set_aside(&KEY).is_ok(), "{what}");
    }
    if !matches!(found, Found::Entry(_)) {
        assert_eq!(publish(store, &KEY, 9), Said::Done, "{what}");
        assert_eq!(find(store, &KEY).0, Found::Entry(9), "{what}");
    }
    assert!(load(store), "{what}");
    let (_, file) = find(store, &KEY);
    assert!(file.is_some_and(|file| !file.is_writable), "{what}");
    let tag = store.root().path().with_file_name("CACHEDIR.TAG");
    assert_eq!(fs::read(tag).expect("a tag"), CACHEDIR_TAG, "{what}");
    let unfinished = fs::read_dir(store.root().path().join("tmp")).expect("a directory");
    for file in unfinished.flatten() {
        let name = file.file_name().into_string().expect("UTF-8");
        assert!(name.starts_with(TEMPORARY_PREFIX), "{what}");
    }
}

/// On the fastest disk that there is.
fn directory() -> tempfile::TempDir {
    let memory = tempfile::tempdir_in("/dev/shm");
    memory.unwrap_or_else(|_| tempfile::tempdir().expect("a temporary directory"))
}

/// Runs all cases with a fault at each of their operations, and with calls that read and write so many bytes at most.
fn each_case_with(most: &[usize], faults: &dyn Fn(usize) -> Vec<Fault>, damages: &[Damage]) {
    for case in CASES {
        for most in most {
            let operations = run(case, Fault::None, *most, Damage::None).len();
            eprintln!(
                "{} {operations} {:?}",
                case.name,
                run(case, Fault::None, *most, Damage::None)
            );
            assert!(operations > 0, "{}", case.name);
            for fault in (0..operations).flat_map(faults) {
                for damage in damages {
                    run(case, fault, *most, *damage);
                }
            }
        }
    }
}

const WHOLE: &[usize] = &[usize::MAX];
const WHOLE_AND_IN_PARTS: &[usize] = &[usize::MAX, 200];

#[test]
fn an_operation_that_fails_does_no_harm() {
    let faults = |at| ERRORS.map(|error| Fault::Fails(at, error)).to_vec();
    each_case_with(WHOLE_AND_IN_PARTS, &faults, &[Damage::None]);
}

#[test]
fn a_disk_that_fails_from_some_operation_on_does_no_harm() {
    // But for EINTR: an interrupted call is repeated until it is not.
    let errors = [Errno::NOSPC, Errno::IO, Errno::ROFS, Errno::STALE];
    let faults = |at| errors.map(|error| Fault::FailsFrom(at, error)).to_vec();
    each_case_with(WHOLE, &faults, &[Damage::None]);
}

#[test]
fn an_operation_that_is_done_but_said_to_have_failed_does_no_harm() {
    let errors = [Errno::IO, Errno::STALE, Errno::INTR];
    let faults = |at| errors.map(|error| Fault::IsSaidToFail(at, error)).to_vec();
    each_case_with(WHOLE, &faults, &[Damage::None]);
}

#[test]
fn a_power_cut_before_any_operation_is_healed_without_a_sync() {
    let cut = |at| vec![Fault::PowerCut(at)];
    each_case_with(WHOLE_AND_IN_PARTS, &cut, &Damage::ALL);
}

#[test]
fn a_cache_directory_that_could_not_be_made_or_was_made_before_a_power_cut_is_usable_then() {
    let make = |fault, damage| {
        let temporary = directory();
        let path = temporary.path().join("home/cache");
        let disk = Arc::new(Faulty::new());
        disk.begin(fault, usize::MAX);
        let opened = Store::open_on(disk.clone(), &path, LIMITS).map(|_| ());
        if let Some(damage) = damage {
            disk.damage(temporary.path(), damage);
        }
        let what = format!("{fault:?}, {damage:?}, {:?}, {opened:?}", disk.done());
        let good = Store::open(&path, LIMITS).unwrap_or_else(|error| panic!("{what}: {error}"));
        heals(&good, &what);
        disk.done().len()
    };
    for at in 0..make(Fault::None, None) {
        for error in ERRORS {
            make(Fault::Fails(at, error), None);
            make(Fault::IsSaidToFail(at, error), None);
        }
        for damage in Damage::ALL {
            make(Fault::PowerCut(at), Some(damage));
        }
    }
}
