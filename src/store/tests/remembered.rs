//! What is remembered of a large store changes nothing but the time: `totals` and `heads`.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, SystemTime};

use rustix::fs::{Mode, OFlags, Stat};

use super::super::entry::tests::{content, facts};
use super::super::heads::{EntryDriver, EntryHead, MIN_ENTRIES, ShardHeads};
use super::super::{gc, totals};
use super::*;
use crate::file_fingerprint::FileFingerprint;
use crate::framing;

/// The system's disk with another clock, that counts what is done with entries.
#[derive(Debug, Default)]
struct Counting {
    /// In seconds.
    ahead: u64,
    behind: u64,
    examined: AtomicUsize,
    opened: AtomicUsize,
}

fn is_entry(path: &Path) -> bool {
    path.extension().is_some_and(|last| last == "entry")
}

impl Disk for Counting {
    fn open(
        &self,
        at: BorrowedFd<'_>,
        path: &Path,
        flags: OFlags,
        mode: Mode,
    ) -> rustix::io::Result<OwnedFd> {
        self.opened.fetch_add(usize::from(is_entry(path)), Relaxed);
        SystemDisk.open(at, path, flags, mode)
    }

    fn stat(&self, at: BorrowedFd<'_>, path: &Path) -> rustix::io::Result<Stat> {
        self.examined
            .fetch_add(usize::from(is_entry(path)), Relaxed);
        SystemDisk.stat(at, path)
    }

    fn now(&self) -> SystemTime {
        SystemTime::now() + Duration::from_secs(self.ahead) - Duration::from_secs(self.behind)
    }
}

/// Everything changed long ago, as this disk's clock says.
fn settled() -> Counting {
    Counting {
        ahead: 100,
        ..Counting::default()
    }
}

struct Large {
    path: tempfile::TempDir,
    disk: Arc<Counting>,
    store: Store,
}

/// The keys of the first shard.
fn keys(count: usize) -> impl Iterator<Item = Key> {
    (0..count).map(|number| {
        let mut key = [0; 32];
        let [low, high, ..] = (number as u64).to_le_bytes();
        (key[30], key[31]) = (high, low);
        Key(key)
    })
}

/// A store with so many entries in its first shard, and one in the second.
fn large(disk: Counting, count: usize) -> Large {
    let path = tempfile::tempdir().expect("a temporary directory");
    let disk = Arc::new(disk);
    let limits = Limits {
        min_free: Some(0),
        ..Limits::default()
    };
    let store = Store::open_on(disk.clone(), &path.path().join("cache"), limits);
    let store = store.expect("a store").remembering(true);
    for key in [&Key([0xff; 32]), &Key([0; 32])] {
        put(&store, key, 0);
    }
    for key in keys(count) {
        let meta = meta(u64::from(key.0[31]));
        let bytes = content(&meta, &[b"binary"]).encode(&key).expect("memory");
        fs::write(store.path_of(&key), bytes).expect("written");
    }
    pass_a_tick();
    Large { path, disk, store }
}

/// A later change gets another time.
fn pass_a_tick() {
    std::thread::sleep(Duration::from_millis(20));
}

fn meta(number: u64) -> Meta {
    Meta {
        compile_ns: number,
        driver_library: format!("/driver-{}.so", number % 3),
        ..facts()
    }
}

fn put(store: &Store, key: &Key, number: u64) {
    let published = store.publish(key, &content(&meta(number), &[b"binary"]));
    published.expect("published");
}

impl Large {
    fn file(&self, name: &str) -> PathBuf {
        self.store.root().path().join(name)
    }

    /// How many entries were examined and opened by it.
    fn work<T>(&self, of: impl FnOnce(&Store) -> T) -> (T, usize, usize) {
        let counters = [&self.disk.examined, &self.disk.opened];
        for counter in counters {
            counter.store(0, Relaxed);
        }
        let done = of(&self.store);
        let [examined, opened] = counters.map(|counter| counter.load(Relaxed));
        (done, examined, opened)
    }

    /// By key: its head and driver; None if it is damaged.
    fn heads(&self) -> BTreeMap<Key, Option<(EntryHead, EntryDriver)>> {
        let view = |heads: &ShardHeads| {
            let entries = heads.entries.iter().map(|(entry, head)| {
                let known = |head: &EntryHead| {
                    let driver = heads.drivers[heads.driver_of(head)].clone();
                    (head.clone(), driver)
                };
                (entry.key, head.as_ref().map(known))
            });
            entries.collect::<Vec<_>>()
        };
        let mut all = Vec::new();
        let walked = self.store.walk_heads(view, |entries| {
            all.extend(entries);
            Ok::<(), StoreError>(())
        });
        walked.expect("walked");
        let keys: Vec<Key> = all.iter().map(|(key, _)| *key).collect();
        assert!(keys.is_sorted());
        all.into_iter().collect()
    }

    /// Whether all that is remembered agrees with the entries.
    #[track_caller]
    fn is_right(&self) {
        let entries = self.store.entries().expect("listed");
        let totals = self.store.totals().expect("counted");
        let sum = |size: &dyn Fn(&FileFacts) -> u64| -> u64 {
            entries.iter().map(|(_, file)| size(file)).sum()
        };
        assert_eq!(totals.entries, entries.len() as u64);
        assert_eq!(totals.allocated, sum(&|file| file.allocated));
        assert_eq!(totals.taken, sum(&|file| file.taken()));
        let heads = self.heads();
        assert_eq!(heads.len(), entries.len());
        for (key, head) in heads {
            let meta = self.store.read_meta(&key);
            let library = head.as_ref().map(|(_, driver)| driver.library.clone());
            assert_eq!(
                library,
                meta.as_ref().map(|meta| meta.driver_library.clone())
            );
            let numbers = head.map(|(head, _)| (head.compile_ns, head.kernel_names));
            let wanted = meta.map(|meta| (meta.compile_ns, meta.facts.kernel_names));
            assert_eq!(numbers, wanted, "{key:?}");
        }
        pass_a_tick();
    }
}

#[test]
fn a_shard_that_has_not_changed_is_not_listed_for_its_sum() {
    let large = large(settled(), 4200);
    let (first, examined, _) = large.work(|store| store.totals().expect("counted"));
    assert_eq!((first.entries, examined), (4201, 4201));
    let (again, examined, _) = large.work(|store| store.totals().expect("counted"));
    assert_eq!((again, examined), (first, 0));
    large.is_right();
    // The other shard still has its sum.
    pass_a_tick();
    put(&large.store, &Key([0; 32]), 7);
    let (_, examined, _) = large.work(|store| store.totals().expect("counted"));
    assert_eq!(examined, 4200);
    large.is_right();
    fs::remove_file(large.store.path_of(&Key([0; 32]))).expect("removed");
    large.is_right();
    let remembered = fs::read(large.file(totals::NAME)).expect("remembered");
    large.store.clear().expect("cleared");
    assert!(!large.file(totals::NAME).exists());
    fs::write(large.file(totals::NAME), remembered).expect("written");
    large.is_right();
}

#[test]
fn heads_of_entries_that_have_not_changed_are_not_read_again() {
    let large = large(settled(), 100);
    let (first, _, opened) = large.work(|_| large.heads());
    assert_eq!((first.len(), opened), (101, 101));
    let (again, _, opened) = large.work(|_| large.heads());
    // That of the small shard.
    assert_eq!((again == first, opened), (true, 1));
    large.is_right();
    let key = keys(51).last().expect("a key");
    put(&large.store, &key, 99);
    large.is_right();
    assert_eq!(
        large.heads()[&key].as_ref().expect("whole").0.compile_ns,
        99
    );
    pass_a_tick();
    // In place, with the same size and time of modification.
    let path = large.store.path_of(&key);
    let time = fs::metadata(&path).expect("there").modified();
    let mut bytes = fs::read(&path).expect("read");
    bytes[0] ^= 0x55;
    fs::write(&path, bytes).expect("written");
    let file = fs::File::open(&path).expect("opened");
    file.set_modified(time.expect("a time")).expect("dated");
    large.is_right();
    assert_eq!(large.heads()[&key], None);
}

#[test]
fn what_has_just_changed_is_not_remembered() {
    let behind = Counting {
        behind: 100,
        ..Counting::default()
    };
    let large = large(behind, 4200);
    large.is_right();
    assert!(!large.file(totals::NAME).exists());
    assert!(!large.file("heads").exists());
}

#[test]
fn who_may_not_remember_or_has_few_entries_writes_nothing() {
    let mut large = large(settled(), 4200);
    large.store = large.store.remembering(false);
    large.is_right();
    assert!(!large.file(totals::NAME).exists() && !large.file("heads").exists());
    let small = self::large(settled(), MIN_ENTRIES - 1);
    small.is_right();
    assert!(!small.file(totals::NAME).exists() && !small.file("heads").exists());
}

#[test]
fn a_damaged_or_foreign_file_costs_time_only() {
    for (name, count) in [(totals::NAME, 4200), ("heads/00", 100)] {
        let large = large(settled(), count);
        large.is_right();
        let path = large.file(name);
        let whole = fs::read(&path).expect("remembered");
        let mut flipped = whole.clone();
        flipped[whole.len() / 2] ^= 1;
        let magic = &whole[..8];
        let nonsense = framing::frame(magic, &[0xff; 3000]).expect("memory");
        // A driver that is not in the list.
        let file = FileFingerprint::at(&path).expect("there");
        let head = (Key([0; 32]), file, EntryHead::default());
        let no_driver = framing::encode(magic, &(Vec::<EntryDriver>::new(), vec![head]));
        for damaged in [
            flipped,
            whole[..whole.len() / 2].to_vec(),
            nonsense,
            no_driver.expect("memory"),
            Vec::new(),
        ] {
            fs::write(&path, &damaged).expect("written");
            large.is_right();
            assert_ne!(fs::read(&path).expect("there"), damaged, "{name}");
        }
        fs::write(&path, "precious").expect("written");
        large.is_right();
        large.store.clear().expect("cleared");
        assert_eq!(fs::read(&path).expect("there"), b"precious");
    }
}

/// What it was when its head was read does not count.
#[test]
fn a_file_of_the_user_in_place_of_an_entry_stays() {
    let large = large(settled(), 100);
    large.is_right();
    let theirs: Vec<PathBuf> = keys(3).map(|key| large.store.path_of(&key)).collect();
    fs::write(&theirs[0], "precious").expect("written");
    fs::remove_file(&theirs[1]).expect("removed");
    fs::write(&theirs[1], "precious").expect("written");
    fs::remove_file(&theirs[2]).expect("removed");
    std::os::unix::fs::symlink("/nowhere", &theirs[2]).expect("linked");
    let limits = Limits {
        max_size: Some(20 * 4096),
        min_free: Some(0),
        max_age: None,
    };
    let (done, _, opened) = large.work(|store| {
        store
            .collect(&limits, &mut AllInstalled)
            .expect("collected")
    });
    // Those two are the first to be removed, as they are damaged. The others are not read again.
    assert!(done.entries >= 75, "{done:?}");
    assert!(opened < 10, "{opened}");
    assert_eq!(
        done.left,
        large.store.totals().expect("counted").entries - 2
    );
    let cleared = large.store.clear().expect("cleared");
    assert_eq!((cleared.foreign, cleared.files > 15), (3, true));
    for path in &theirs[..2] {
        assert_eq!(fs::read(path).expect("there"), b"precious");
    }
    assert!(theirs[2].is_symlink());
    assert!(!large.file("heads").exists());
    assert!(large.path.path().join("cache").exists());
}

/// A collection makes room, and forgets the heads of shards that have few entries left.
#[test]
fn a_collection_removes_the_same_entries_with_and_without_what_is_remembered() {
    let left = |remembered: bool| {
        let large = large(settled(), 300);
        if remembered {
            large.is_right();
        }
        let collect = |entries: u64| {
            let limits = Limits {
                max_size: Some(entries * 4096),
                min_free: Some(0),
                max_age: None,
            };
            let done = large.store.collect(&limits, &mut FirstGone);
            let done = done.expect("collected");
            let sizes = large.store.sizes().expect("sizes");
            assert_eq!((done.left, sizes.total()), (entries, entries * 4096));
        };
        collect(100);
        let entries = large.store.entries().expect("listed");
        let keys: Vec<Key> = entries.iter().map(|(key, _)| *key).collect();
        assert!(large.file("heads/00").exists());
        large.is_right();
        collect(30);
        assert!(!large.file("heads/00").exists());
        keys
    };
    let with = left(true);
    assert_eq!(with, left(false));
    // Of one driver in three the library is gone; the cheapest ones go next.
    let spared = with.iter().all(|key| key.0[31] % 3 != 0 && key.0[31] > 60);
    assert!(spared, "{with:?}");
}

struct AllInstalled;

impl gc::Collector for AllInstalled {
    fn is_installed(&mut self, _: &EntryDriver) -> bool {
        true
    }

    fn progress(&mut self, _: &'static str, _: usize, _: usize) -> bool {
        true
    }
}

struct FirstGone;

impl gc::Collector for FirstGone {
    fn is_installed(&mut self, driver: &EntryDriver) -> bool {
        driver.library != "/driver-0.so"
    }

    fn progress(&mut self, _: &'static str, _: usize, _: usize) -> bool {
        true
    }
}
