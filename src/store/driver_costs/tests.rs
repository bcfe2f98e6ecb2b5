use super::super::Limits;
use super::*;

const MS: u64 = 1_000_000;
const DAY_MS: u64 = 86_400_000;

fn driver(name: u8) -> DriverCosts {
    DriverCosts::new("unknown", format!("/lib{name}.so"), Key([name; 32]))
}

fn store() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = Store::open(&directory.path().join("cache"), Limits::default());
    (directory, store.expect("a store"))
}

/// What builds of this length say, recorded in this time.
fn recorded(count: u32, compile_ms: u64, record_ms: u64) -> Option<CostVerdict> {
    let mut measured = driver(1);
    for _ in 0..count {
        let times = CostTimes::of(compile_ms * MS, record_ms * MS);
        measured.add(times, CostTimes::default(), 7);
    }
    measured.verdict(7)
}

fn loaded(count: u32, compile_ms: u64, load_ms: u64) -> Option<CostVerdict> {
    let mut measured = driver(1);
    for _ in 0..count {
        let times = CostTimes::of(compile_ms * MS, load_ms * MS);
        measured.add(CostTimes::default(), times, 7);
    }
    measured.verdict(7)
}

#[test]
fn what_takes_long_and_often_decides_and_noise_does_not() {
    for (verdict, count, compile, record) in [
        (Some(CostVerdict::Dear), 4, 1108, 3400),
        (None, 3, 1108, 3400),
        (None, 50, 625, 100),
        (Some(CostVerdict::Dear), 50, 625, 160),
        // However many: small builds are never worth a change.
        (None, 100_000, 0, 2),
        (None, 63, 2, 3),
        (Some(CostVerdict::Dear), 10, 0, 30),
    ] {
        assert_eq!(
            recorded(count, compile, record),
            verdict,
            "{count} {record}"
        );
    }
    for (verdict, count, compile, load) in [
        (Some(CostVerdict::NoGain), 8, 100, 90),
        (Some(CostVerdict::NoGain), 8, 100, 900),
        (None, 7, 100, 100),
        (None, 1000, 100, 80),
        (Some(CostVerdict::NoGain), 8, 1, 30),
        (None, 100_000, 1, 2),
    ] {
        assert_eq!(loaded(count, compile, load), verdict, "{count} {load}");
    }
}

#[test]
fn what_was_decided_is_tried_again_with_what_is_measured_then() {
    let mut measured = driver(1);
    let dear = CostTimes::of(100 * MS, 300 * MS);
    for day in 0..8 {
        measured.add(dear, CostTimes::default(), 1 + day * DAY_MS);
    }
    // From the fourth on.
    let decided = measured.decided_ms.expect("a verdict");
    assert_eq!(decided, 1 + 3 * DAY_MS);
    assert_eq!(
        measured.verdict(decided + 14 * DAY_MS),
        Some(CostVerdict::Dear)
    );
    let later = decided + 14 * DAY_MS + 1;
    assert_eq!(measured.verdict(later), None);
    measured.add(CostTimes::of(100 * MS, MS), CostTimes::default(), later);
    assert_eq!((measured.recorded.count, measured.decided_ms), (1, None));
}

#[test]
fn recent_programs_count_more_than_old_ones() {
    let mut measured = driver(1);
    for _ in 0..1000 {
        measured.add(CostTimes::of(100 * MS, 0), CostTimes::default(), 7);
    }
    assert_eq!(measured.verdict(7), None);
    for _ in 0..40 {
        measured.add(CostTimes::of(100 * MS, 300 * MS), CostTimes::default(), 7);
    }
    assert_eq!(measured.verdict(7), Some(CostVerdict::Dear));
    assert!(measured.recorded.count < MAX_COUNTED);
}

#[test]
fn processes_add_up_and_a_damaged_file_is_as_none() {
    let (_directory, store) = store();
    let dear = CostTimes::of(100 * MS, 300 * MS);
    for process in 1..=4 {
        let measures = CostMemory::default();
        measures.add(&store, 0, || Some(driver(1)), CostSample::Recorded, dear);
        measures.add(&store, 1, || Some(driver(2)), CostSample::Loaded, dear);
        let known = measures.of(&store, 0, || None).expect("known");
        assert_eq!((known.recorded.count, known.loaded.count), (process, 0));
    }
    let now_ms = store.root().now_ms();
    let of = |store: &Store| {
        let known = CostMemory::default().of(store, 5, || Some(driver(1)));
        known.expect("known").verdict(now_ms)
    };
    assert_eq!(of(&store), Some(CostVerdict::Dear));
    let file = store.root().path().join(NAME);
    let whole = std::fs::read(&file).expect("read");
    for at in 0..whole.len() {
        let mut damaged = whole.clone();
        damaged[at] ^= 0x10;
        std::fs::write(&file, damaged).expect("written");
        assert_eq!(list(&store), [], "byte {at}");
    }
    std::fs::write(&file, &whole[..whole.len() / 2]).expect("written");
    assert_eq!(of(&store), None);
    // It is whole again.
    assert_eq!(list(&store).len(), 1);
}

#[test]
fn the_file_is_bounded_and_forgets_what_is_no_longer_used() {
    let (_directory, store) = store();
    for name in 0..100 {
        CostMemory::default().of(&store, 0, || Some(driver(name)));
    }
    let drivers = list(&store);
    assert_eq!(drivers.len(), MAX_DRIVERS);
    assert_eq!(
        drivers[0],
        DriverCosts {
            used_ms: drivers[0].used_ms,
            ..driver(99)
        }
    );
}

#[test]
fn hits_write_nothing_and_the_end_of_a_process_only_until_enough_is_known() {
    let (_directory, store) = store();
    let quick = CostTimes::of(100 * MS, MS);
    let known = || list(&store).first().map_or(0, |known| known.loaded.count);
    let process_with = |hits| {
        let measures = CostMemory::default();
        let before = known();
        for _ in 0..hits {
            measures.add(&store, 0, || Some(driver(1)), CostSample::Loaded, quick);
        }
        assert_eq!(known(), before);
        measures.write_due(&store);
        known() - before
    };
    assert_eq!(process_with(10), 10);
    assert_eq!(process_with(10), 10);
    for _ in 0..4 {
        assert_eq!(process_with(10), 0);
    }
    assert_eq!(process_with(60), 0);
}

#[test]
fn what_was_measured_before_a_fork_is_counted_once() {
    let (_directory, store) = store();
    let times = CostTimes::of(100 * MS, 98 * MS);
    let measures = CostMemory::default();
    measures.add(&store, 0, || Some(driver(1)), CostSample::Loaded, times);
    // As in the child, which has the memory of its parent.
    measures.forked();
    measures.write_due(&store);
    assert_eq!(list(&store), []);
    measures.add(&store, 0, || Some(driver(1)), CostSample::Loaded, times);
    measures.write_due(&store);
    assert_eq!(list(&store)[0].loaded.count, 1);
}

/// A process that has read the file before the doctor writes it, and measures afterwards, loses nothing of it.
#[test]
fn what_the_doctor_measured_outlives_measurements_of_builds() {
    let (_directory, store) = store();
    let memory = CostMemory::default();
    let times = CostTimes::of(1000, 10);
    let record = |memory: &CostMemory| {
        memory.add(&store, 0, || Some(driver(1)), CostSample::Recorded, times);
    };
    record(&memory);
    let cache = |device: &str, load_ns| OwnCache {
        device: device.to_owned(),
        load_ns,
    };
    let note = |caches: &[OwnCache]| note_own_caches(&store, &driver(1), caches).expect("noted");
    note(&[cache("one", Some(7)), cache("two", None)]);
    record(&memory);
    note(&[cache("one", Some(8))]);
    record(&memory);
    let measured = |device: &str| {
        let [known] = &list(&store)[..] else {
            panic!("one driver");
        };
        let mut caches = known.own_caches.iter();
        let cache = caches.find(|cache| cache.device == device);
        cache.expect("measured").load_ns
    };
    assert_eq!(measured("one"), Some(7), "the least counts");
    note(&[cache("one", Some(5))]);
    assert_eq!(measured("one"), Some(5));
    note(&[cache("one", None)]);
    assert_eq!(measured("one"), None, "the driver's cache is off now");
    note(&[cache("one", Some(8))]);
    let [known] = &list(&store)[..] else {
        panic!("one driver");
    };
    assert_eq!(known.recorded.count, 3);
    assert_eq!(
        known.own_caches,
        [cache("two", None), cache("one", Some(8))]
    );
}
