//! Each case with each fault at each of its operations: the store is right or says that it failed, it finds the entry of the key
//! or none, and on a good disk the next build heals it.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use super::super::{Damage, Fault, Faulty};
use super::*;

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
    // A process that has used none of them.
    let store = Store::open(&temporary.path().join("cache"), case.limits).expect("a store");
    let sizes = store.sizes().expect("sizes");
    for shard in 0..SHARDS {
        store.count_again(sizes, shard);
    }
    temporary
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
    let expected: &[Outcome] = match (fault, said) {
        // An interrupted call is repeated.
        (Fault::None | Fault::Fails(_, Errno::INTR), _) => &[case.after],
        (Fault::PowerCut(_), _) => &[case.before, case.after, Outcome::Bad],
        (Fault::IsSaidToFail(..), Said::Failed) => &[case.before, case.after],
        (_, Said::Unknown) => &[case.before, case.after],
        (_, Said::Done) => &[case.after],
        (_, Said::Failed) => &[case.before],
    };
    assert!(expected.contains(&found), "{what}: {found:?}");
    if case.spares_other {
        assert_eq!(find(&good, &OTHER).0, Outcome::Entry(7), "{what}");
    }
    heals(&good, &what);
    done.len()
}

/// The next process finds the entry or builds it, and is served from then on. What was left over is swept.
fn heals(store: &Store, what: &str) {
    for key in [&OTHER, &NEW] {
        let (found, _) = find(store, key);
        assert_ne!(found, Outcome::Unreadable, "{what}");
    }
    let (found, _) = find(store, &KEY);
    if found == Outcome::Bad {
        assert!(store.set_aside(&KEY).is_ok(), "{what}");
    }
    if !matches!(found, Outcome::Entry(_)) {
        assert_eq!(publish(store, &KEY, 9), Said::Done, "{what}");
        assert_eq!(find(store, &KEY).0, Outcome::Entry(9), "{what}");
    }
    if !load(store) {
        // It has killed twice before.
        assert_eq!(publish(store, &KEY, 9), Said::Done, "{what}");
        assert!(load(store), "{what}");
    }
    let (_, origin) = find(store, &KEY);
    assert!(origin.is_some_and(|origin| origin.is_proven), "{what}");
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
    let tag = store.root().path().with_file_name("CACHEDIR.TAG");
    assert_eq!(fs::read(tag).expect("a tag"), CACHEDIR_TAG, "{what}");
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

/// The first store of all makes every directory and file that there is.
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
