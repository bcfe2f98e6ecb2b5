use super::super::disk::Disk;
use super::super::stats::{Counter, Labels, own_name};
use super::super::{Limits, recorder::Recorder};
use super::*;

/// The system's disk, with places in memory.
#[derive(Debug)]
struct WithPlaces(Vec<PathBuf>);

impl Disk for WithPlaces {
    fn places_in_memory(&self) -> Vec<PathBuf> {
        self.0.clone()
    }
}

fn memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").expect("a directory in memory")
}

fn store(at: &Path, places: &[&Path]) -> Store {
    let places = places.iter().map(|place| place.to_path_buf()).collect();
    let disk = Arc::new(WithPlaces(places));
    Store::open_on(disk, at, Limits::default()).expect("a store")
}

fn path_of_live(store: &Store) -> PathBuf {
    let live = store.live().expect("a live directory");
    live.directory.path().to_owned()
}

fn listed(place: &Path) -> Vec<PathBuf> {
    let listed = std::fs::read_dir(place).expect("listed");
    listed.map(|entry| entry.expect("read").path()).collect()
}

fn recorder(store: &Store) -> Recorder {
    Recorder::new(b"app", None, Some(store.counting_places()))
}

/// A name that the file of a process had which is gone.
fn dead_name(start: u32) -> String {
    let own = own_name();
    let (front, _) = own.rsplit_once('-').expect("a time");
    let (front, _) = front.rsplit_once('-').expect("a process");
    format!("{front}-4194999-{start}")
}

fn hits_and_misses(store: &Store) -> [u64; 2] {
    let statistics = store.create_statistics().expect("made");
    let total = statistics.counted().expect("read").rows.total();
    [Counter::Hits, Counter::Misses].map(|counter| total.get(counter))
}

#[test]
fn what_only_hits_have_counted_is_found_without_a_directory_on_the_disk() {
    let (disk, memory) = (tempfile::tempdir().expect("a directory"), memory());
    let store = store(disk.path(), &[memory.path()]);
    recorder(&store).record(Labels::default(), &[Counter::Hits.by(1)]);
    assert!(!disk.path().join("v1/stats").exists());
    let statistics = store.statistics().expect("opened").expect("some");
    let total = statistics.counted().expect("read").rows.total();
    assert_eq!(total.get(Counter::Hits), 1);
}

#[test]
fn misses_stay_when_the_memory_is_lost() {
    let (disk, memory) = (tempfile::tempdir().expect("a directory"), memory());
    let store = store(disk.path(), &[memory.path()]);
    let recorder = recorder(&store);
    for event in [Counter::Misses, Counter::Hits, Counter::Misses] {
        recorder.record(Labels::default(), &[event.by(1)]);
    }
    recorder.at_end();
    assert_eq!(hits_and_misses(&store), [1, 2]);
    let file = path_of_live(&store).join(own_name());
    std::fs::remove_file(file).expect("removed");
    assert_eq!(hits_and_misses(&store), [0, 2]);
}

#[test]
fn hits_write_to_no_disk_where_the_memory_is_full() {
    let (disk, memory) = (tempfile::tempdir().expect("a directory"), memory());
    let store = store(disk.path(), &[memory.path()]);
    store.create_statistics().expect("made");
    // No file can be made in its place, as where the memory is full.
    let place = path_of_live(&store).join(own_name());
    std::os::unix::fs::symlink("nowhere", place).expect("linked");
    let statistics = disk.path().join("v1/stats");
    let dead = statistics.join(dead_name(1));
    std::fs::write(&dead, "").expect("written");
    // One in some dozens of processes merges, depending on the time.
    for _ in 0..400 {
        recorder(&store).record(Labels::default(), &[Counter::Hits.by(1)]);
        std::thread::sleep(std::time::Duration::from_micros(500));
    }
    assert_eq!(listed(&statistics), [dead]);
    let recorder = recorder(&store);
    recorder.record(Labels::default(), &[Counter::Hits.by(1)]);
    recorder.at_end();
    assert_eq!(hits_and_misses(&store), [1, 0]);
}

#[test]
fn all_that_is_lost_with_the_memory_is_kept_and_not_all_files_on_the_disk_are_read_for_that() {
    const FILES: u32 = 200;
    let (disk, memory) = (tempfile::tempdir().expect("a directory"), memory());
    let store = store(disk.path(), &[memory.path()]);
    store.create_statistics().expect("made");
    recorder(&store).record(Labels::default(), &[Counter::Hits.by(1)]);
    let own = path_of_live(&store).join(own_name());
    for place in [path_of_live(&store), disk.path().join("v1/stats")] {
        for start in 1..=FILES {
            std::fs::copy(&own, place.join(dead_name(start))).expect("written");
        }
    }
    std::fs::remove_file(own).expect("removed");
    let files = |place: &Path| {
        let names = listed(place)
            .into_iter()
            .map(|path| path.display().to_string());
        names.filter(|name| name.contains("-4194999-")).count() as u32
    };
    store.create_statistics().expect("made").keep();
    assert_eq!(files(&path_of_live(&store)), 0);
    let left = files(&disk.path().join("v1/stats"));
    assert!(left >= FILES / 2, "{left}");
    assert_eq!(hits_and_misses(&store), [2 * u64::from(FILES), 0]);
}

#[test]
fn all_processes_of_a_cache_have_one_live_directory_and_other_caches_have_others() {
    let (disk, memory) = (tempfile::tempdir().expect("a directory"), memory());
    let path = |name: &str| disk.path().join(name);
    let live = |name| {
        let store = store(&path(name), &[memory.path()]);
        path_of_live(&store)
    };
    let (one, again, other) = (live("one"), live("one"), live("other"));
    assert_eq!(one, again);
    assert_ne!(one, other);
    std::fs::create_dir_all(path("copy/v1")).expect("made");
    std::fs::copy(path("one/v1/live"), path("copy/v1/live")).expect("copied");
    let copy = live("copy");
    assert!(copy != one && copy != other);
    assert_eq!(listed(memory.path()).len(), 3);
    let mode = std::fs::metadata(&one).expect("there").permissions();
    let mode = std::os::unix::fs::PermissionsExt::mode(&mode);
    assert_eq!(mode & 0o7777, 0o700);
}

#[test]
fn all_that_begin_a_cache_at_once_have_the_same_live_directory() {
    let (disk, memory) = (tempfile::tempdir().expect("a directory"), memory());
    for round in 0..50 {
        let path = disk.path().join(round.to_string());
        let barrier = std::sync::Barrier::new(8);
        let begun = || {
            let store = store(&path, &[memory.path()]);
            barrier.wait();
            path_of_live(&store)
        };
        let all: Vec<PathBuf> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8).map(|_| scope.spawn(begun)).collect();
            let ended = threads.into_iter().map(|thread| thread.join());
            ended.map(|path| path.expect("no panic")).collect()
        });
        let later = store(&path, &[memory.path()]);
        let later = later.live().expect("a live directory").directory.clone();
        assert!(all.iter().all(|one| one == later.path()), "{all:?}");
    }
}

#[test]
fn a_number_that_was_damaged_is_chosen_anew() {
    let (disk, memory) = (tempfile::tempdir().expect("a directory"), memory());
    let path = disk.path().join("cache");
    let live = || {
        let store = store(&path, &[memory.path()]);
        store.live().map(|live| live.directory.path().to_owned())
    };
    let first = live().expect("a live directory");
    for damaged in ["", "oclclive", "oclclive and too short"] {
        std::fs::write(path.join("v1/live"), damaged).expect("written");
        let next = live().expect("a live directory");
        assert_ne!(next, first, "{damaged:?}");
        assert_eq!(live(), Some(next), "{damaged:?}");
    }
}

#[test]
fn what_is_not_in_memory_or_not_ours_is_not_used() {
    let (disk, memory) = (tempfile::tempdir().expect("a directory"), memory());
    let missing = memory.path().join("missing");
    let cache = store(&disk.path().join("one"), &[&missing, memory.path()]);
    let live = cache
        .live()
        .expect("a live directory")
        .directory
        .path()
        .to_owned();
    assert_eq!(live.parent(), Some(memory.path()));
    let name = live.file_name().expect("a name").to_owned();
    // Somebody else's link, or a directory that others may read.
    std::fs::remove_dir_all(&live).expect("removed");
    let elsewhere = memory.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("made");
    std::os::unix::fs::symlink(&elsewhere, &live).expect("linked");
    let again = store(&disk.path().join("one"), &[memory.path()]);
    assert!(again.live().is_none());
    assert!(listed(&elsewhere).is_empty());
    std::fs::remove_file(memory.path().join(&name)).expect("removed");
    std::fs::create_dir(&live).expect("made");
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(&live, open).expect("opened");
    let again = store(&disk.path().join("one"), &[memory.path()]);
    assert!(again.live().is_none());
}

fn counted(store: &Store) -> u64 {
    let statistics = store.create_statistics().expect("made");
    let counted = statistics.counted().expect("read");
    counted.rows.total().get(Counter::Hits)
}

/// Counts a hit for a process that has ended.
fn dead_hit(store: &Store, number: u32) {
    Recorder::new(b"app", None, Some(store.counting_places()))
        .record(Labels::default(), &[Counter::Hits.by(1)]);
    let live = store.live().expect("a live directory").directory.path();
    let own = own_name();
    let (host, _) = own.rsplit_once('-').expect("a time");
    let (host, _) = host.rsplit_once('-').expect("a process");
    std::fs::rename(
        live.join(&own),
        live.join(format!("{host}-4194999-{number}")),
    )
    .expect("renamed");
}

#[test]
fn hits_are_merged_in_memory_and_into_the_total_and_count_once_whatever_is_left() {
    let (disk, memory) = (tempfile::tempdir().expect("a directory"), memory());
    let path = disk.path().join("cache");
    let store = store(&path, &[memory.path()]);
    store.create_statistics().expect("made");
    let live = store.live().expect("a live directory").directory.clone();
    let named = |what: &str| {
        let names = live.names().expect("listed").into_iter();
        names.filter(|name| name.contains(what)).collect::<Vec<_>>()
    };
    let fold = || {
        store.counting_places().fold_some_in_memory(usize::MAX);
    };
    dead_hit(&store, 1);
    dead_hit(&store, 2);
    let first = live.path().join(&named("4194999-1")[0]);
    let bytes = std::fs::read(&first).expect("read");
    let before = std::fs::metadata(path.join("v1/stats"))
        .expect("there")
        .modified();
    fold();
    assert_eq!((named("sum-").len(), named("4194999").len()), (1, 0));
    // Nothing was written to the disk.
    let after = std::fs::metadata(path.join("v1/stats"))
        .expect("there")
        .modified();
    assert_eq!(before.expect("a time"), after.expect("a time"));
    // As if a process had been killed before it removed what is in the sum.
    std::fs::write(&first, &bytes).expect("written");
    dead_hit(&store, 3);
    fold();
    fold();
    let sums = named("sum-");
    assert_eq!((sums.len(), named("4194999").len()), (1, 0));
    let sum = std::fs::read(live.path().join(&sums[0])).expect("read");
    assert_eq!(counted(&store), 3);
    assert_eq!(named("sum-").len(), 0);
    std::fs::write(live.path().join(&sums[0]), &sum).expect("written");
    for _ in 0..3 {
        assert_eq!(counted(&store), 3);
    }
    assert_eq!(named("sum-").len(), 0);
    dead_hit(&store, 4);
    assert_eq!(counted(&store), 4);
    store
        .create_statistics()
        .expect("made")
        .zero()
        .expect("zeroed");
    assert_eq!(counted(&store), 0);
    dead_hit(&store, 5);
    fold();
    assert_eq!(counted(&store), 1);
}

#[test]
fn a_full_memory_leaves_the_counters_to_the_disk() {
    let (disk, memory) = (tempfile::tempdir().expect("a directory"), memory());
    let store = store(&disk.path().join("cache"), &[memory.path()]);
    let live = store.live().expect("a live directory").directory.path();
    // As far as a process can tell, nothing can be made there.
    let closed = std::os::unix::fs::PermissionsExt::from_mode(0o500);
    std::fs::set_permissions(live, closed).expect("closed");
    std::os::unix::fs::symlink("/nonexistent", live.join(own_name())).ok();
    let recorder = Recorder::new(b"app", None, Some(store.counting_places()));
    recorder.record(Labels::default(), &[Counter::Hits.by(1)]);
    recorder.record(Labels::default(), &[Counter::Misses.by(1)]);
    let file = disk.path().join("cache/v1/stats").join(own_name());
    assert!(file.exists());
    let open = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    std::fs::set_permissions(live, open).expect("opened");
    assert_eq!(counted(&store), 1);
}

#[test]
fn a_store_that_is_only_read_makes_none() {
    let (disk, memory) = (tempfile::tempdir().expect("a directory"), memory());
    let path = disk.path().join("one");
    drop(store(&path, &[memory.path()]));
    let mut read = store(&path, &[memory.path()]);
    read.limits = None;
    assert!(read.live().is_none());
    assert!(listed(memory.path()).is_empty());
}

#[test]
fn live_directories_of_caches_that_are_gone_are_removed_after_a_day() {
    let (disk, memory) = (tempfile::tempdir().expect("a directory"), memory());
    let path = |name: &str| disk.path().join(name);
    let live = |name| {
        let store = store(&path(name), &[memory.path()]);
        let recorder = Recorder::new(b"app", None, Some(store.counting_places()));
        recorder.record(Labels::default(), &[Counter::Hits.by(1)]);
        path_of_live(&store)
    };
    let (gone, kept) = (live("gone"), live("kept"));
    std::fs::remove_dir_all(path("gone")).expect("removed");
    live("third");
    assert!(gone.exists(), "it may be in use");
    let opened = store(&path("kept"), &[memory.path()]);
    let own = &*opened.live().expect("a live directory").directory;
    let name = |path: &Path| {
        let name = path.file_name().expect("a name").to_string_lossy();
        name.rsplit_once('-').expect("a name").1.to_owned()
    };
    let directory = own.open_in_memory(&gone).expect("there");
    assert!(!is_abandoned(&directory, &name(&gone)));
    assert!(!is_abandoned(own, &name(&kept)));
    remove_files(&directory);
    assert!(listed(&gone).is_empty());
}

#[test]
fn few_of_many_live_directories_are_looked_at_and_each_by_some() {
    let names: Vec<String> = (0..100).map(|name: u32| name.to_string()).collect();
    for few in [0, 1, 3] {
        assert_eq!(some_of(&names[..few], 7).count(), few);
    }
    let mut times = [0; 100];
    for number in 0..200 {
        let chosen: Vec<&String> = some_of(&names, number).collect();
        for name in chosen {
            times[name.parse::<usize>().expect("a number")] += 1;
        }
    }
    assert_eq!(times, [2 * LOOKED_AT; 100]);
}
