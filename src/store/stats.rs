//! Statistics. Each process has one small file of counters and writes each event at once, so that a process that is killed loses
//! nothing (see `recorder`). The file is in the live directory; where there is none (see `live`), it is in `<stats>`, and hits write
//! nothing. The command sums the files, and merges those of dead processes into one total; so do processes that store something,
//! now and then. A process that only hits merges within the live directory, now and then.
//!
//! ```text
//! <stats>/total.json                               the total: the sums of the merged files, the counters when they were zeroed,
//!                                                  and the names of the merged files
//! <live or stats>/<host>-<boot>-<pid>-<start>      counters of one process, by day, program, driver and device: see `file`
//! <live or stats>/run-<...>/                       files of the processes of an `oclcache run`, until it has read them
//! <live>/sum-<...>                                 the sums of files of the live directory, until they are in the total
//! ```
//!
//! The sum needs no lock: it is exact while nobody merges, and one process at a time merges, under a lock. On network file systems
//! only the command merges into the total, if it gets a lock.
//!
//! A process on another host or in another container may live or not. Its file is merged when it has not been written for 30 days.

mod counters;
mod file;
mod merge;
mod owner;
mod places;
mod rows;

use std::path::Path;
use std::time::{Duration, Instant};

use super::directory::{Directory, TEMPORARY_PREFIX, is_temporary};
use super::live::Live;
use super::lock::{LockAttempt, LockGuard, Locks, Purpose};
use super::{STATISTICS, Store, StoreError};
use crate::filesystem::FileSystem;
pub use counters::{Counter, CounterEvent, Totals};
pub use file::{Labels, MAGIC, Program, ROW, ROWS, WORDS, add};
pub use merge::{CountedRows, DAY_MS};
use merge::{PassLimits, StatsMerge, TOTAL, counters, is_sum};
use owner::{StatsView, is_name};
pub use places::CountingPlaces;
pub use rows::{BY_DAY, RowTag, Rows, date};

/// Environment variable by which `oclcache run` tells its children where to write their counters.
pub const RUN_VARIABLE: &str = "OCLCACHE_RUN";
const RUN_PREFIX: &str = "run-";

/// How long the command waits for another process that merges.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);
/// So many files of a directory are looked at where nobody has asked for the statistics.
pub const MAX_FOLDED: usize = 64;

/// The statistics of a store.
pub struct Statistics {
    directory: Directory,
    locks: Locks,
    live: Option<Live>,
}

impl Store {
    /// The statistics; None if nothing was counted yet.
    ///
    /// # Errors
    /// The directory cannot be opened, is not ours, or others may write it.
    pub fn statistics(&self) -> Result<Option<Statistics>, StoreError> {
        let directory = match self.root().open_below(STATISTICS)? {
            // Processes that only hit have counted in memory alone.
            None if self.live().is_some() => self.root().create(STATISTICS).ok(),
            directory => directory,
        };
        Ok(directory.map(|directory| Statistics::new(directory, self)))
    }

    /// The statistics, to be added to.
    ///
    /// # Errors
    /// As for [`Store::statistics`], or the directory cannot be made.
    pub fn create_statistics(&self) -> Result<Statistics, StoreError> {
        let directory = self.root().create(STATISTICS)?;
        Ok(Statistics::new(directory, self))
    }
}

impl Statistics {
    fn new(directory: Directory, store: &Store) -> Statistics {
        Statistics {
            directory,
            locks: store.locks().clone(),
            live: store.live().cloned(),
        }
    }

    /// Where the files of processes are, the preferred directory first.
    pub(super) fn directories(&self) -> impl Iterator<Item = &Directory> {
        self.live_directory().into_iter().chain([&self.directory])
    }

    fn live_directory(&self) -> Option<&Directory> {
        Some(&*self.live.as_ref()?.directory)
    }

    /// Whether each event is counted at once: there is a file system in memory, where hits may write.
    pub fn is_exact(&self) -> bool {
        let places = self.directory.places_in_memory().into_iter();
        let mut systems = places.map(|place| FileSystem::at(&place));
        self.directory.file_system().is_in_memory() || systems.any(FileSystem::is_in_memory)
    }

    fn try_lock(&self) -> LockAttempt {
        self.locks.try_lock(Purpose::Statistics)
    }

    fn try_live_lock(&self) -> LockAttempt {
        try_live_lock(self.live.as_ref())
    }

    /// Waits for another process that merges, but not for ever.
    fn lock(&self) -> LockAttempt {
        waited_for(|| self.try_lock())
    }

    /// A pass over all files. Those of the live directory are merged with its lock.
    fn pass(
        &self,
        lock: Option<LockGuard>,
        live_lock: LockAttempt,
        limits: PassLimits,
    ) -> StatsMerge<'_> {
        let live_lock = match live_lock {
            LockAttempt::Got(live_lock) => Some(live_lock),
            LockAttempt::Taken | LockAttempt::Unavailable => None,
        };
        StatsMerge::begin(
            &self.directory,
            lock,
            self.live_directory(),
            live_lock,
            limits,
        )
    }

    /// What was counted since the statistics were zeroed, by all processes, living ones included.
    ///
    /// # Errors
    /// The directory or a file cannot be read.
    pub fn counted(&self) -> Result<CountedRows, StoreError> {
        self.counted_within(PassLimits::NONE)
    }

    /// What was counted according to so many files.
    fn counted_within(&self, limits: PassLimits) -> Result<CountedRows, StoreError> {
        let lock = match self.lock() {
            LockAttempt::Got(lock) => Some(lock),
            LockAttempt::Taken | LockAttempt::Unavailable => None,
        };
        let live_lock = waited_for(|| self.try_live_lock());
        let mut round = self.pass(lock, live_lock, limits);
        round.each_file()?;
        Ok(round.end())
    }

    /// Merges what processes have counted that have ended into the total on the disk: the memory ends with the container or the system.
    /// A failure loses nothing. On a disk that hosts or containers share there may be thousands of files of others, of which a few are
    /// looked at.
    pub fn keep(&self) {
        let limits = PassLimits {
            on_disk: MAX_FOLDED,
            in_memory: usize::MAX,
        };
        if let Err(error) = self.counted_within(limits) {
            tracing::debug!(%error, "the statistics stay in memory");
        }
    }

    /// Sets all counters to zero.
    ///
    /// # Errors
    /// The directory or a file cannot be read or written, or another process keeps the lock.
    pub fn zero(&self) -> Result<(), StoreError> {
        let lock = match self.lock() {
            LockAttempt::Got(lock) => Some(lock),
            LockAttempt::Taken => {
                return Err(StoreError {
                    action: "lock",
                    path: self.directory.path().to_owned(),
                    error: std::io::ErrorKind::ResourceBusy.into(),
                });
            }
            LockAttempt::Unavailable => None,
        };
        let live_lock = waited_for(|| self.try_live_lock());
        let mut round = self.pass(lock, live_lock, PassLimits::NONE);
        round.each_file()?;
        round.zero()
    }

    /// Merges files of dead processes into the total. Looks at this many files of each directory, does not wait for a lock, and only logs a
    /// failure. Does nothing on network file systems, whose locks may never answer.
    pub fn fold_some(&self, limit: usize) {
        if self.directory.file_system().is_network() {
            return;
        }
        if let LockAttempt::Got(lock) = self.try_lock() {
            let limits = PassLimits::of_each(limit);
            merge(self.pass(Some(lock), self.try_live_lock(), limits));
        }
    }

    /// Whether a name is that of a file of statistics.
    pub(super) fn names(name: &str) -> bool {
        name == TOTAL || is_name(name) || is_sum(name) || is_temporary(name)
    }

    /// Whether a name is that of the directory of an `oclcache run`.
    pub(super) fn names_run(name: &str) -> bool {
        name.strip_prefix(RUN_PREFIX).is_some_and(is_name)
    }

    /// Creates a directory for the processes of one `oclcache run`.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn begin_run(&self) -> Result<Directory, StoreError> {
        let name = format!("{RUN_PREFIX}{}", own_name());
        let in_memory = self.live_directory().map(|live| live.create(&name));
        match in_memory {
            Some(Ok(run)) => Ok(run),
            // It may be full.
            Some(Err(_)) | None => self.directory.create(&name),
        }
    }

    /// Reads what the processes of a run have counted.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn read_run(run: &Directory) -> Result<RunCounts, StoreError> {
        let mut result = RunCounts::default();
        for file in run.names()? {
            if let Some(counters) = counters(run, &file)
                && !file.starts_with(TEMPORARY_PREFIX)
            {
                result.processes += 1;
                result.rows.add_all(&counters);
            }
        }
        Ok(result)
    }

    /// Reads what the processes of a run have counted, and moves their files: to the outer run if there is one, or to the
    /// statistics. Processes that are still running continue in the same files.
    ///
    /// # Errors
    /// A file cannot be moved.
    pub fn end_run(
        &self,
        run: &Directory,
        outer: Option<&Directory>,
    ) -> Result<RunCounts, StoreError> {
        let _lock = self.lock();
        let _live_lock = waited_for(|| self.try_live_lock());
        let result = Self::read_run(run)?;
        let files = run.names()?.into_iter();
        // A file can be moved only within its file system: an outer run may be of another cache.
        let device = |directory: &Directory| directory.identity().map(|(device, _)| device);
        let targets = outer.into_iter().chain(self.directories());
        let mut targets = targets.filter(|target| device(target) == device(run));
        let target = targets.next().unwrap_or(&self.directory);
        // Other files are not ours, and would replace files of the same names.
        for file in files.filter(|name| is_name(name)) {
            run.move_to(&file, target)?;
        }
        run.remove_itself();
        Ok(result)
    }
}

/// The lock of the live directory. A process that merges into the total needs both locks.
fn try_live_lock(live: Option<&Live>) -> LockAttempt {
    match live {
        Some(live) => live.locks.try_lock(Purpose::Statistics),
        None => LockAttempt::Unavailable,
    }
}

fn waited_for(attempt: impl Fn() -> LockAttempt) -> LockAttempt {
    let until = Instant::now() + PATIENCE;
    loop {
        let attempt = attempt();
        if !matches!(attempt, LockAttempt::Taken) || Instant::now() >= until {
            return attempt;
        }
        std::thread::sleep(PAUSE);
    }
}

fn merge(mut round: StatsMerge<'_>) {
    match round.each_file() {
        Ok(()) => drop(round.end()),
        Err(error) => {
            tracing::debug!(%error, "statistics of dead processes are not merged: the next process tries again")
        }
    }
}

/// The name of this process's file.
pub fn own_name() -> String {
    StatsView::new().own_name()
}

/// The counters of the processes of one `oclcache run`.
#[derive(Default)]
pub struct RunCounts {
    /// Processes that loaded the library.
    pub processes: usize,
    /// Their counters.
    pub rows: Rows,
}

/// Opens the directory that `oclcache run` made for its children.
pub fn run_directory(path: &Path) -> Option<Directory> {
    Directory::open(path).ok().flatten()
}
#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::sync::atomic::AtomicU64;
    use std::time::Duration;

    use super::super::Limits;
    use super::super::recorder::Recorder;
    use super::*;
    use crate::outcome::Bypass;

    fn store() -> (tempfile::TempDir, Store) {
        // In memory, where each event is written at once.
        let temporary = tempfile::tempdir_in("/dev/shm").expect("a temporary directory");
        let store = Store::open(temporary.path(), Limits::default()).expect("a store");
        (temporary, store)
    }

    fn statistics() -> (tempfile::TempDir, Statistics) {
        let (temporary, store) = store();
        (temporary, store.create_statistics().expect("made"))
    }

    /// The name that a file of a process has which is gone.
    fn dead_name(start: u32) -> String {
        let own = own_name();
        let (host, _) = own.rsplit_once('-').expect("a time");
        let (host, _) = host.rsplit_once('-').expect("a process");
        format!("{host}-4194999-{start}")
    }

    fn total(statistics: &Statistics) -> Totals {
        statistics.counted().expect("read").rows.total()
    }

    /// Of a program, on a day.
    fn seven_hits_of(program: &str, day: u64) -> Vec<u8> {
        let words: Vec<_> = (0..WORDS).map(|_| AtomicU64::new(0)).collect();
        let program = Program::new(program.as_bytes());
        add(
            &words,
            &program,
            Labels::default(),
            day,
            &[Counter::Hits.by(7)],
        );
        let words = words.into_iter().map(AtomicU64::into_inner);
        MAGIC
            .iter()
            .copied()
            .chain(words.flat_map(u64::to_le_bytes))
            .collect()
    }

    fn seven_hits() -> Vec<u8> {
        seven_hits_of("app", 20_000)
    }

    fn set_age(path: &Path, days: u64) {
        let file = File::options().write(true).open(path).expect("opened");
        let age = Duration::from_secs(days * 24 * 60 * 60);
        let then = std::time::SystemTime::now() - age;
        file.set_modified(then).expect("dated");
    }

    #[test]
    fn counters_of_all_threads_are_summed_exactly() {
        let (_temporary, store) = store();
        let statistics = || store.create_statistics().expect("made");
        let recorder = Recorder::new(b"app", None, Some(store.counting_places()));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        recorder.record(
                            Labels::default(),
                            &[
                                Counter::Hits.by(1),
                                Counter::SavedNs.by(10),
                                Bypass::ReadsFile.into(),
                            ],
                        );
                    }
                });
            }
        });
        let totals = total(&statistics());
        assert_eq!(totals.get(Counter::Hits), 4000);
        assert_eq!(totals.get(Counter::SavedNs), 40_000);
        assert_eq!(
            totals.bypasses().collect::<Vec<_>>(),
            [(Bypass::ReadsFile, 4000)]
        );
    }

    #[test]
    fn files_of_dead_processes_are_folded_once_and_zero_begins_anew() {
        let (_temporary, statistics) = statistics();
        let path = statistics.directory.path().to_owned();
        let dead = dead_name(1);
        let other = format!("other{dead}");
        for name in [&dead, &other] {
            std::fs::write(path.join(name), seven_hits()).expect("written");
        }
        for _ in 0..3 {
            assert_eq!(total(&statistics).get(Counter::Hits), 14);
        }
        assert!(!path.join(&dead).exists());
        assert!(path.join(&other).exists());
        statistics.zero().expect("zeroed");
        assert_eq!(total(&statistics).get(Counter::Hits), 0);
    }

    #[test]
    fn rows_stay_apart_when_they_are_folded_and_zeroed_ones_never_come_back() {
        let (_temporary, statistics) = statistics();
        let path = statistics.directory.path().to_owned();
        let today = statistics.directory.now_ms() / DAY_MS;
        // Of a process of which nothing is known, as if it lived.
        let other = format!("other{}", dead_name(1));
        std::fs::write(path.join(&other), seven_hits_of("one", today)).expect("written");
        std::fs::write(path.join(dead_name(2)), seven_hits_of("two", today)).expect("written");
        let rows = statistics.counted().expect("read").rows;
        let hits = |rows: &Rows| {
            let by = rows.by(|tag| (u64::from(tag.day) == today, tag.program.clone()));
            let hits = by.into_iter().map(|(of, row)| (of, row.get(Counter::Hits)));
            hits.collect::<Vec<_>>()
        };
        assert_eq!(
            hits(&rows),
            [((true, "one".into()), 7), ((true, "two".into()), 7)]
        );
        statistics.zero().expect("zeroed");
        let mut more = seven_hits_of("one", today);
        let counted = more.iter().position(|byte| *byte == 7).expect("seven");
        more[counted] = 9;
        std::fs::write(path.join(&other), more).expect("written");
        let two = [((true, "one".to_owned()), 2)];
        assert_eq!(hits(&statistics.counted().expect("read").rows), two);
        set_age(&path.join(&other), 31);
        for _ in 0..2 {
            let counted = statistics.counted().expect("read");
            assert_eq!(hits(&counted.rows), two);
            assert!(counted.zeroed_ms.is_some());
        }
        assert!(!path.join(&other).exists());
        let total = std::fs::read_to_string(path.join(TOTAL)).expect("read");
        assert!(total.contains("\"earlier\":[]"), "{total}");
    }

    #[test]
    fn a_run_reads_its_own_processes_and_leaves_them_in_the_sum() {
        let (_temporary, statistics) = statistics();
        let run = statistics.begin_run().expect("made");
        let opened = Directory::open(run.path()).expect("opened");
        Recorder::new(b"app", opened, None).record(Labels::default(), &[Counter::Misses.by(3)]);
        assert_eq!(total(&statistics).get(Counter::Misses), 3);
        let result = statistics.end_run(&run, None).expect("read");
        assert_eq!(
            (result.processes, result.rows.total().get(Counter::Misses)),
            (1, 3)
        );
        assert!(!run.path().exists());
        assert_eq!(total(&statistics).get(Counter::Misses), 3);
    }

    #[test]
    fn what_nobody_will_finish_or_add_to_is_folded_or_removed_in_the_end() {
        let (_temporary, statistics) = statistics();
        let path = statistics.directory.path().to_owned();
        let old = format!("other{}", dead_name(1));
        for name in [&old, "new-1-0"] {
            std::fs::write(path.join(name), seven_hits()).expect("written");
            set_age(&path.join(name), 31);
        }
        // Of a user who keeps things there.
        for (name, content) in [
            ("new-x".to_owned(), seven_hits()),
            ("new-2-0".to_owned(), b"a chapter".to_vec()),
            (dead_name(3), b"mine".to_vec()),
        ] {
            std::fs::write(path.join(&name), content).expect("written");
            set_age(&path.join(&name), 60);
        }
        std::fs::create_dir(path.join("run-home")).expect("made");
        std::fs::File::open(path.join("run-home"))
            .and_then(|run| run.set_modified(std::time::UNIX_EPOCH))
            .expect("dated");
        // A process on a full disk leaves it empty.
        std::fs::write(path.join(dead_name(2)), "").expect("written");
        std::fs::write(path.join("foreign"), seven_hits()).expect("written");
        assert_eq!(total(&statistics).get(Counter::Hits), 14);
        let mut left = statistics.directory.names().expect("listed");
        left.sort();
        let mut kept = ["foreign", "new-2-0", "new-x", "run-home", TOTAL]
            .map(str::to_owned)
            .to_vec();
        kept.push(dead_name(3));
        kept.sort();
        assert_eq!(left, kept);
        assert_eq!(total(&statistics).get(Counter::Hits), 14);
    }

    #[test]
    fn files_are_folded_a_few_at_a_time_and_by_one_process_only() {
        let (_temporary, statistics) = statistics();
        for start in 1..=20 {
            let path = statistics.directory.path().join(dead_name(start));
            std::fs::write(path, seven_hits()).expect("written");
        }
        let left = || statistics.directory.names().expect("listed").len();
        let LockAttempt::Got(lock) = statistics.try_lock() else {
            panic!("nobody has it");
        };
        statistics.fold_some(8);
        assert_eq!(left(), 20, "somebody else folds");
        drop(lock);
        statistics.fold_some(8);
        assert_eq!(left(), 12 + 1, "and a total");
        for _ in 0..20 {
            statistics.fold_some(8);
        }
        assert_eq!(left(), 1, "all but the total is folded");
        assert_eq!(total(&statistics).get(Counter::Hits), 140);
    }

    #[test]
    fn a_file_that_was_folded_and_not_removed_counts_once() {
        let (_temporary, statistics) = statistics();
        let dead = statistics.directory.path().join(dead_name(1));
        std::fs::write(&dead, seven_hits()).expect("written");
        assert_eq!(total(&statistics).get(Counter::Hits), 7);
        // As if the power had been cut before it was removed.
        std::fs::write(&dead, seven_hits()).expect("written");
        for _ in 0..2 {
            assert_eq!(total(&statistics).get(Counter::Hits), 7);
        }
        assert!(!dead.exists());
    }

    #[test]
    fn the_total_does_not_grow_with_the_number_of_processes() {
        let (_temporary, statistics) = statistics();
        let total = statistics.directory.path().join(TOTAL);
        let mut sizes = Vec::new();
        for start in 1..=20 {
            std::fs::write(
                statistics.directory.path().join(dead_name(start)),
                seven_hits(),
            )
            .expect("written");
            drop(statistics.counted().expect("read"));
            sizes.push(std::fs::metadata(&total).expect("there").len());
        }
        assert!(sizes[19] < sizes[0] + 20, "{sizes:?}");
    }

    #[test]
    fn a_total_that_cannot_be_read_is_not_written_over() {
        let (_temporary, statistics) = statistics();
        let path = statistics.directory.path().to_owned();
        let unreadable = vec![b' '; merge::MAX_TOTAL_BYTES as usize];
        std::fs::write(path.join(TOTAL), &unreadable).expect("written");
        std::fs::write(path.join(dead_name(1)), seven_hits()).expect("written");
        assert_eq!(total(&statistics).get(Counter::Hits), 7);
        assert!(path.join(dead_name(1)).exists());
        assert!(std::fs::read(path.join(TOTAL)).expect("read") == unreadable);
    }
}
