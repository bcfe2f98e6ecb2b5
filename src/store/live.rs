//! The live directory: on a file system in memory, for what a hit writes.
//!
//! A hit waits for no disk. To make a file waits for the journal of a busy disk, and for the server of a network file system
//! (measured on NEO 22.43 with a counter file in the cache directory: a first hit took 11 to 31 ms while the disk was busy, and 2.5
//! to 3 ms otherwise).
//!
//! ```text
//! <cache directory>/v1/live           a magic number and a random number
//! <place>/oclcache-<user>-<name>/     the live directory, for its owner only
//!     cache                           the path of <cache directory>/v1
//!     uses                            when entries were used, see `uses`
//!     <process>, sum-<...>, run-<...> counters, see `stats`
//!     locks                           excludes processes that merge counters here
//! ```
//!
//! The place is /dev/shm, or the user's directory for runtime files where that is in memory. The name is made of the random number,
//! so nobody can take it first, and of the identity of `v1`, so a copy of a cache has another one. What is in the live directory moves to the cache directory with a miss now and then, and when the command reads or
//! collects. The rest is lost when the system restarts, or when a container ends that has a /dev/shm of its own.
//!
//! Where nothing is in memory, hits write nothing: counters and uses stay in the process, and are written when it misses and when
//! it exits.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};

use super::directory::Directory;
use super::leftovers::is_past;
use super::lock::Locks;
use super::stats::Statistics;
use super::{LOCKS, Store, TEMPORARY, VERSION_DIRECTORY, uses};
use crate::key::ingredients::{hex, sha256};
use crate::one_call;

/// The file that has the random number.
pub(super) const NAME: &str = "live";
const MAGIC: &[u8] = b"oclclive";
const RANDOM_BYTES: usize = 32;
/// The bytes of a name, before they are written as hexadecimal digits.
const NAME_BYTES: usize = 16;
/// The file that has the path of the cache's directory.
const OF_CACHE: &str = "cache";
/// A live directory whose cache is gone is removed after this time.
const ABANDONED: Duration = Duration::from_secs(86400);

/// The directories that may be on a file system in memory, the preferred one first.
pub fn places() -> Vec<PathBuf> {
    let user = one_call::effective_user();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.unwrap_or_else(|| format!("/run/user/{user}").into());
    vec!["/dev/shm".into(), runtime]
}

fn prefix() -> String {
    format!("oclcache-{}-", one_call::effective_user())
}

/// An open live directory.
#[derive(Clone, Debug)]
pub struct Live {
    /// The directory.
    pub directory: Arc<Directory>,
    /// Its locks. A process has them once for each store.
    pub locks: Locks,
}

impl Store {
    /// The live directory; None if nothing is in memory here. It is made if it is missing, unless the store is only read.
    pub fn live(&self) -> Option<&Live> {
        let opened = self.live.get_or_init(|| {
            let opened = self.open_live();
            if opened.is_none() {
                tracing::debug!(
                    "no file system in memory can be used: counters are written at misses and at the end of the process"
                );
            }
            Box::new(opened.map(|directory| {
                let directory = Arc::new(directory);
                let locks = Locks::new(directory.clone());
                Live { directory, locks }
            }))
        });
        opened.as_ref()
    }

    fn open_live(&self) -> Option<Directory> {
        let places = self.root.places_in_memory();
        if places.is_empty() {
            return None;
        }
        let name = self.live_name()?;
        let open = |place: &PathBuf| self.root.open_in_memory(&place.join(&name));
        let make = |place: &PathBuf| self.make_live(place, &name);
        let found = places.iter().find_map(open);
        found.or_else(|| {
            self.limits?;
            places.iter().find_map(make)
        })
    }

    fn make_live(&self, place: &Path, name: &str) -> Option<Directory> {
        let made = self.root.make_in_memory(&place.join(name))?;
        let path = self.root.path().as_os_str().as_encoded_bytes();
        if let Err(error) = made.write_by_rename(&made, OF_CACHE, &[MAGIC, path].concat()) {
            tracing::debug!(%error, "a live directory cannot be used");
            made.remove_itself();
            return None;
        }
        remove_abandoned(&made, place);
        Some(made)
    }

    /// The name of the live directory. The first process of a cache chooses the number.
    fn live_name(&self) -> Option<String> {
        let choose = || {
            self.limits?;
            let mut content = [MAGIC, &[0; RANDOM_BYTES]].concat();
            let random = &mut content[MAGIC.len()..];
            if getrandom(random, GetRandomFlags::empty()) != Ok(RANDOM_BYTES) {
                return None;
            }
            let temporary = self.root.create(TEMPORARY).ok()?;
            // Of several processes and threads that choose at once, the first one is right: it may have counted already.
            let first = self.root.write_first(&temporary, NAME, &content);
            let name = first.ok().and_then(|()| name_of(&self.root));
            // What is there is damaged, or the file system knows no second names.
            name.or_else(|| {
                let written = self.root.write_by_rename(&temporary, NAME, &content);
                written.ok().and_then(|()| name_of(&self.root))
            })
        };
        let name = name_of(&self.root).or_else(choose)?;
        Some(format!("{}{name}", prefix()))
    }
}

/// The name that follows from a cache's directory, without the prefix; None if no number was chosen yet.
fn name_of(root: &Directory) -> Option<String> {
    let content = root.read_start(NAME, MAGIC.len() + RANDOM_BYTES)?;
    let random = content.strip_prefix(MAGIC)?;
    let (device, inode) = root.identity()?;
    let known = [random, &device.to_le_bytes(), &inode.to_le_bytes()].concat();
    (random.len() == RANDOM_BYTES).then(|| hex(&sha256(&known)[..NAME_BYTES]))
}

/// Removes this user's live directories of caches that are gone.
fn remove_abandoned(own: &Directory, place: &Path) {
    let prefix = prefix();
    let Ok(listed) = std::fs::read_dir(place) else {
        return;
    };
    let names = listed.flatten().map(|entry| entry.file_name());
    for name in names.filter_map(|name| name.into_string().ok()) {
        if let Some(name_of_cache) = name.strip_prefix(&prefix)
            && let Some(directory) = own.open_in_memory(&place.join(&name))
            && is_abandoned(&directory, name_of_cache)
        {
            remove_files(&directory);
            directory.remove_itself();
        }
    }
}

/// Whether no cache has this name for its live directory any more, as far as this process sees. The cache may be in another
/// container, so it is not abandoned while somebody writes there.
fn is_abandoned(directory: &Directory, name: &str) -> bool {
    let Ok(Some(path)) = directory.read(OF_CACHE, 1 << 16) else {
        return false;
    };
    let Some(path) = path.strip_prefix(MAGIC) else {
        return false;
    };
    let path = Path::new(OsStr::from_bytes(path));
    let cache = Directory::open(path).ok().flatten();
    if cache.is_some_and(|cache| name_of(&cache).is_some_and(|own| own == name)) {
        return false;
    }
    let now = directory.now_ms();
    let names = directory.names().unwrap_or_default();
    let is_old = |name: &String| {
        let changed = directory.changed_ms(name);
        changed.is_none_or(|changed| is_past(changed, ABANDONED, now))
    };
    names.iter().all(is_old)
}

/// Moves what the live directory of a cache has to its disk, of more uses than [`uses::MAX_DATED`] only the times of some, and removes
/// the directory, unless programs still count there. Returns whether programs do.
pub fn leave(store: &Store) -> bool {
    let Ok(Some(statistics)) = store.statistics() else {
        return false;
    };
    let Some(live) = store.live().filter(|_| statistics.counted().is_ok()) else {
        return false;
    };
    store.date_uses(uses::MAX_DATED);
    let names = live.directory.names().unwrap_or_default();
    let counts = |name: &String| Statistics::names(name) || Statistics::names_run(name);
    let is_counted = names.iter().any(counts);
    if !is_counted {
        remove_files(&live.directory);
        live.directory.remove_itself();
    }
    is_counted
}

/// Removes the live directory of a cache that is going to be removed.
pub fn forget(cache: &Path) {
    let Ok(Some(root)) = Directory::open(&cache.join(VERSION_DIRECTORY)) else {
        return;
    };
    let Some(name) = name_of(&root) else {
        return;
    };
    for place in root.places_in_memory() {
        if let Some(live) = root.open_in_memory(&place.join(format!("{}{name}", prefix()))) {
            remove_files(&live);
            live.remove_itself();
        }
    }
}

/// Removes the files that the cache makes in a live directory.
fn remove_files(directory: &Directory) {
    for name in directory.names().unwrap_or_default() {
        let is_ours = Statistics::names(&name) || [OF_CACHE, uses::NAME, LOCKS].contains(&&*name);
        if is_ours {
            let _ = directory.remove(&name);
        } else if Statistics::names_run(&name)
            && let Ok(Some(run)) = directory.open_below(&name)
        {
            for name in run.names().unwrap_or_default() {
                if Statistics::names(&name) {
                    let _ = run.remove(&name);
                }
            }
            directory.remove_directory(&name);
        }
    }
}

#[cfg(test)]
mod tests {
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
        let statistics = store.create_statistics().expect("made");
        Recorder::new(b"app", None, Some(statistics))
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
        let live = store.live().expect("a live directory").directory.clone();
        let named = |what: &str| {
            let names = live.names().expect("listed").into_iter();
            names.filter(|name| name.contains(what)).collect::<Vec<_>>()
        };
        let fold = || {
            let statistics = store.create_statistics().expect("made");
            statistics.fold_some_in_memory(usize::MAX);
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
        let statistics = store.create_statistics().expect("made");
        let recorder = Recorder::new(b"app", None, Some(statistics));
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
            let statistics = store.create_statistics().expect("made");
            let recorder = Recorder::new(b"app", None, Some(statistics));
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
}
