//! Counters that survive the process: each process has one small file, to which each event is added at once, so that even a
//! process that is killed loses nothing (see `recorder`); the command sums the files, and folds those of dead processes into
//! one total, as the library does now and then.
//!
//! ```text
//! <stats>/<host>-<boot>-<pid>-<start>   counters of one process
//! <stats>/total.json                    the sum of dead processes' files, what was zeroed, and which files are in the sum
//! <stats>/lock                          locked while files are folded or moved
//! <stats>/run-<...>/                    files of the processes that `oclcache run` started, until it has read them
//! ```
//!
//! The sum needs no lock: it is exact while nobody folds, and files are folded under a lock by one process only. Where there
//! are no locks to rely on, as on some network file systems, nothing is folded but by whoever gets one all the same.
//!
//! A file of a process of which nothing can be known, on another host or in another container, is folded when it has not been
//! written for [`FORGOTTEN`].

mod counters;
mod owner;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::StoreError;
use super::directory::{Directory, TEMPORARY_PREFIX};
use crate::fork::{Mutex, MutexGuard};
pub use counters::{COUNTERS, Counter, Event, FILE_SIZE, MAGIC, Totals, decode};
use owner::{Owner, View};

const TOTAL: &str = "total.json";
const LOCK: &str = "lock";
const RUN_PREFIX: &str = "run-";

/// Larger files are none of ours.
const LARGEST: u64 = 1 << 20;
/// How many files are folded into one total, whose list of them must stay below [`LARGEST`].
const FOLDED_AT_ONCE: usize = 4096;
/// How long the command waits for another process that folds.
const PATIENCE: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(10);
/// A process of which nothing is known has ended when it has counted nothing for so long.
const FORGOTTEN: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// A file that was not finished for so long never will be.
const UNFINISHED: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Default, Serialize, Deserialize)]
struct Total {
    /// The sum of the files that were folded.
    counters: BTreeMap<String, u64>,
    /// What had been counted when the user last zeroed.
    zeroed: BTreeMap<String, u64>,
    /// Files that are in the sum but may not have been removed yet.
    absorbed: BTreeSet<String>,
}

/// The statistics directory as the command sees it.
pub struct Statistics<'a> {
    directory: &'a Directory,
}

/// Held by whoever moves, folds or removes files, and released when it is dropped or its process ends.
///
/// A record lock (fcntl), since a child that is forked meanwhile does not have it. It excludes processes only, and ends when
/// any descriptor of the file is closed; so the threads of a process come one after the other, and no thread forks meanwhile.
struct Lock {
    // Closed before another thread may come.
    _file: File,
    _thread: MutexGuard<'static, ()>,
}

impl Lock {
    /// None if somebody else has it.
    fn attempt(directory: &Directory) -> Result<Option<Lock>, StoreError> {
        static FOLDING: Mutex<()> = Mutex::new(());
        let Some(thread) = FOLDING.try_lock() else {
            return Ok(None);
        };
        let locked = directory.open_or_create_file(LOCK).and_then(|file| {
            match fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Ok(Some(file)),
                Err(Errno::AGAIN | Errno::ACCESS) => Ok(None),
                Err(error) => Err(error.into()),
            }
        });
        match locked {
            Ok(file) => Ok(file.map(|file| Lock {
                _file: file,
                _thread: thread,
            })),
            Err(error) => Err(StoreError {
                action: "lock",
                path: directory.path().join(LOCK),
                error,
            }),
        }
    }

    /// None if somebody else has it all the time.
    fn wait(directory: &Directory) -> Result<Option<Lock>, StoreError> {
        let until = Instant::now() + PATIENCE;
        loop {
            let lock = Lock::attempt(directory)?;
            if lock.is_some() || Instant::now() >= until {
                return Ok(lock);
            }
            std::thread::sleep(PAUSE);
        }
    }
}

impl<'a> Statistics<'a> {
    /// The statistics in this directory.
    pub fn new(directory: &'a Directory) -> Self {
        Self { directory }
    }

    /// What was counted since the statistics were zeroed, by all processes, living ones included.
    ///
    /// # Errors
    /// The directory or a file cannot be read.
    pub fn totals(&self) -> Result<Totals, StoreError> {
        let lock = Lock::wait(self.directory).ok().flatten();
        let mut round = Round::begin(self.directory, lock, usize::MAX);
        round.each_file()?;
        let mut sum = round.sum.clone();
        sum.subtract(&Totals::from_map(&round.total.zeroed));
        round.end();
        Ok(sum)
    }

    /// Begins to count from zero.
    ///
    /// # Errors
    /// The directory or a file cannot be read or written, or another process has the lock and does not give it back.
    pub fn zero(&self) -> Result<(), StoreError> {
        let lock = match Lock::wait(self.directory) {
            Ok(Some(lock)) => Some(lock),
            Ok(None) => {
                return Err(StoreError {
                    action: "lock",
                    path: self.directory.path().join(LOCK),
                    error: std::io::ErrorKind::ResourceBusy.into(),
                });
            }
            // There are no locks: then the last one who zeroes is right.
            Err(_) => None,
        };
        let mut round = Round::begin(self.directory, lock, usize::MAX);
        round.each_file()?;
        round.total.zeroed = round.sum.to_map();
        round.write()
    }

    /// Folds files of dead processes: looks at so many files at most, waits for nobody, and does without if it cannot be done.
    pub fn fold_some(&self, limit: usize) {
        if let Ok(Some(lock)) = Lock::attempt(self.directory) {
            let mut round = Round::begin(self.directory, Some(lock), limit);
            match round.each_file() {
                Ok(()) => round.end(),
                Err(error) => tracing::debug!(%error, "statistics are not folded"),
            }
        }
    }

    /// Makes a directory for the processes of one `oclcache run`.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn begin_run(&self) -> Result<Directory, StoreError> {
        let name = format!("{RUN_PREFIX}{}", own_name());
        self.directory.create(&name)
    }

    /// Reads what the processes of a run have counted.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn read_run(run: &Directory) -> Result<Run, StoreError> {
        let mut result = Run::default();
        for file in run.names()? {
            if let Some(counters) = counters(run, &file) {
                result.processes += 1;
                result.totals.add(&counters);
            }
        }
        Ok(result)
    }

    /// Reads what the processes of a run have counted, and moves their files: to those of the run that it is part of, or to
    /// all others. Processes that live on go on in the same files.
    ///
    /// # Errors
    /// A file cannot be moved.
    pub fn end_run(&self, run: &Directory, outer: Option<&Directory>) -> Result<Run, StoreError> {
        let _lock = Lock::wait(self.directory);
        let result = Self::read_run(run)?;
        for file in run.names()? {
            run.move_to(&file, outer.unwrap_or(self.directory))?;
        }
        let name = run.path().file_name().and_then(|name| name.to_str());
        self.directory.remove_directory(name.unwrap_or_default());
        Ok(result)
    }
}

/// The name of this process's file.
pub fn own_name() -> String {
    View::new().name_of(std::process::id())
}

fn counters(directory: &Directory, name: &str) -> Option<Totals> {
    let bytes = directory.read(name, LARGEST).ok()??;
    decode(&bytes)
}

/// One look at all files, at which those of dead processes are folded if the lock is held.
///
/// Crash-proof: a file counts either by being in `absorbed`, or by being there and not in `absorbed`.
struct Round<'a> {
    directory: &'a Directory,
    view: View,
    now_ms: u64,
    lock: Option<Lock>,
    /// How many files are still looked at.
    left: usize,
    total: Total,
    /// What is or will be the total's sum.
    folded: Totals,
    /// All that was ever counted.
    sum: Totals,
    /// Files that are in `folded` and not yet in the total.
    dead: Vec<String>,
}

impl<'a> Round<'a> {
    fn begin(directory: &'a Directory, lock: Option<Lock>, limit: usize) -> Round<'a> {
        let total: Total = match directory.read(TOTAL, LARGEST) {
            Ok(Some(bytes)) => serde_json::from_slice(&bytes).unwrap_or_default(),
            _ => Total::default(),
        };
        let folded = Totals::from_map(&total.counters);
        Round {
            directory,
            view: View::new(),
            now_ms: directory.now_ms(),
            lock,
            left: limit,
            total,
            sum: folded.clone(),
            folded,
            dead: Vec::new(),
        }
    }

    fn each_file(&mut self) -> Result<(), StoreError> {
        let (runs, files): (Vec<_>, Vec<_>) =
            (self.directory.names()?.into_iter()).partition(|name| name.starts_with(RUN_PREFIX));
        self.files(self.directory, "", Owner::Dead, files);
        for run in runs {
            let owner = run.strip_prefix(RUN_PREFIX).unwrap_or_default();
            let owner = self.view.owner(owner);
            // What is no directory of ours holds no file of ours.
            let Ok(Some(directory)) = self.directory.open_below(&run) else {
                continue;
            };
            let names = directory.names()?;
            self.files(&directory, &format!("{run}/"), owner, names);
            // The files of a run that goes on are the runner's to read, and its directory is its processes' to write to.
            let changed = self.directory.changed_ms(&run);
            if self.lock.is_some() && self.is_over(owner, changed, FORGOTTEN) {
                self.directory.remove_directory(&run);
            }
        }
        Ok(())
    }

    /// Looks at these files of a directory; `run` is who reads them first.
    fn files(&mut self, directory: &Directory, prefix: &str, run: Owner, mut names: Vec<String>) {
        if self.left < names.len() {
            // Not always the same, which may be those of processes that live.
            let start = self.now_ms as usize % names.len();
            names.rotate_left(start);
        }
        for name in names {
            if self.left == 0 {
                return;
            }
            self.left -= 1;
            self.file(directory, prefix, run, &name);
        }
    }

    fn file(&mut self, directory: &Directory, prefix: &str, run: Owner, name: &str) {
        let modified = || directory.facts(name).map(|facts| facts.modified_ms);
        if name.starts_with(TEMPORARY_PREFIX) {
            if self.lock.is_some() && self.is_over(Owner::Unknown, modified(), UNFINISHED) {
                let _ = directory.remove(name);
            }
            return;
        }
        let path = format!("{prefix}{name}");
        if self.total.absorbed.contains(&path) {
            self.forget(directory, name, &path);
            return;
        }
        // Asked before the file is read: a process that dies in between has counted all it will.
        let owner = match (self.view.owner(name), run) {
            (Owner::Dead, run) => run,
            (owner, _) => owner,
        };
        let is_over = run != Owner::Alive && self.is_over(owner, modified(), FORGOTTEN);
        match counters(directory, name) {
            Some(counters) => {
                self.sum.add(&counters);
                if is_over && self.lock.is_some() {
                    self.folded.add(&counters);
                    self.dead.push(path);
                }
            }
            // Its process could not write it, on a full disk.
            None if owner == Owner::Dead && self.lock.is_some() => {
                let _ = directory.remove(name);
            }
            None => {}
        }
        if self.dead.len() >= FOLDED_AT_ONCE {
            self.fold();
        }
    }

    fn is_over(&self, owner: Owner, changed_ms: Option<u64>, patience: Duration) -> bool {
        match owner {
            Owner::Alive => false,
            Owner::Dead => true,
            Owner::Unknown => changed_ms.is_some_and(|changed| {
                u128::from(self.now_ms.saturating_sub(changed)) > patience.as_millis()
            }),
        }
    }

    /// Removes a file that is in the total.
    fn forget(&mut self, directory: &Directory, name: &str, path: &str) {
        if self.lock.is_some() && directory.remove(name).is_ok() {
            self.total.absorbed.remove(path);
        }
    }

    /// Folds what is to be folded. Nothing is lost if that fails: then it is done another time.
    fn fold(&mut self) {
        if let Err(error) = self.write() {
            tracing::debug!(%error, "statistics are not folded");
            self.lock = None;
        }
    }

    fn write(&mut self) -> Result<(), StoreError> {
        let dead = std::mem::take(&mut self.dead);
        self.total.counters = self.folded.to_map();
        self.total.absorbed.extend(dead.iter().cloned());
        let json = serde_json::to_vec(&self.total).expect("maps of numbers and a list of names");
        self.directory
            .write_by_rename(self.directory, TOTAL, &json)?;
        for path in dead {
            let removed = match path.split_once('/') {
                None => self.directory.remove(&path).is_ok(),
                Some((run, name)) => match self.directory.open_below(run) {
                    Ok(Some(run)) => run.remove(name).is_ok(),
                    Ok(None) => true,
                    Err(_) => false,
                },
            };
            if removed {
                self.total.absorbed.remove(&path);
            }
        }
        Ok(())
    }

    fn end(mut self) {
        if !self.dead.is_empty() {
            self.fold();
        }
    }
}

/// What the processes of one `oclcache run` did.
#[derive(Default)]
pub struct Run {
    /// Processes that loaded the library.
    pub processes: usize,
    /// The sum of their counters.
    pub totals: Totals,
}

/// Opens the directory that `oclcache run` made for its children.
pub fn run_directory(path: &Path) -> Option<Directory> {
    Directory::open(path).ok().flatten()
}
#[cfg(test)]
mod tests {
    use super::super::recorder::Recorder;
    use super::*;
    use crate::outcome::Bypass;

    fn directory() -> (tempfile::TempDir, Directory) {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let directory = Directory::create_all(&temporary.path().join("stats")).expect("made");
        (temporary, directory)
    }

    /// The name that a file of a process has which is gone.
    fn dead_name(start: u32) -> String {
        let own = own_name();
        let (host, _) = own.rsplit_once('-').expect("a time");
        let (host, _) = host.rsplit_once('-').expect("a process");
        format!("{host}-4194999-{start}")
    }

    fn seven_hits() -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.resize(FILE_SIZE, 0);
        bytes[MAGIC.len()] = 7;
        bytes
    }

    fn set_age(path: &Path, days: u64) {
        let file = File::options().write(true).open(path).expect("opened");
        let age = Duration::from_secs(days * 24 * 60 * 60);
        let then = std::time::SystemTime::now() - age;
        file.set_modified(then).expect("dated");
    }

    #[test]
    fn counters_of_all_threads_are_summed_exactly() {
        let (_temporary, directory) = directory();
        let path = directory.path().to_owned();
        let recorder = Recorder::new(directory);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for _ in 0..500 {
                        recorder.record(&[
                            Counter::Hits.by(1),
                            Counter::SavedNs.by(10),
                            Bypass::ReadsFile.into(),
                        ]);
                    }
                });
            }
        });
        let directory = Directory::open(&path).expect("opened").expect("there");
        let totals = Statistics::new(&directory).totals().expect("read");
        assert_eq!(totals.get(Counter::Hits), 4000);
        assert_eq!(totals.get(Counter::SavedNs), 40_000);
        assert_eq!(
            totals.bypasses().collect::<Vec<_>>(),
            [(Bypass::ReadsFile, 4000)]
        );
    }

    #[test]
    fn files_of_dead_processes_are_folded_once_and_zero_begins_anew() {
        let (_temporary, directory) = directory();
        let path = directory.path().to_owned();
        let dead = dead_name(1);
        let other = format!("other{dead}");
        for name in [&dead, &other] {
            std::fs::write(path.join(name), seven_hits()).expect("written");
        }
        let statistics = Statistics::new(&directory);
        for _ in 0..3 {
            assert_eq!(statistics.totals().expect("read").get(Counter::Hits), 14);
        }
        assert!(!path.join(&dead).exists());
        assert!(path.join(&other).exists());
        statistics.zero().expect("zeroed");
        assert_eq!(statistics.totals().expect("read").get(Counter::Hits), 0);
    }

    #[test]
    fn a_run_reads_its_own_processes_and_leaves_them_in_the_sum() {
        let (_temporary, directory) = directory();
        let statistics = Statistics::new(&directory);
        let run = statistics.begin_run().expect("made");
        Recorder::new(Directory::open(run.path()).expect("opened").expect("there"))
            .record(&[Counter::Misses.by(3)]);
        assert_eq!(statistics.totals().expect("read").get(Counter::Misses), 3);
        let result = statistics.end_run(&run, None).expect("read");
        assert_eq!(
            (result.processes, result.totals.get(Counter::Misses)),
            (1, 3)
        );
        assert!(!run.path().exists());
        assert_eq!(statistics.totals().expect("read").get(Counter::Misses), 3);
    }

    #[test]
    fn what_nobody_will_finish_or_add_to_is_folded_or_removed_in_the_end() {
        let (_temporary, directory) = directory();
        let path = directory.path().to_owned();
        let old = format!("other{}", dead_name(1));
        for name in [&old, "new-1-0"] {
            std::fs::write(path.join(name), seven_hits()).expect("written");
            set_age(&path.join(name), 31);
        }
        // A process on a full disk leaves it empty.
        std::fs::write(path.join(dead_name(2)), "").expect("written");
        std::fs::write(path.join("foreign"), seven_hits()).expect("written");
        let statistics = Statistics::new(&directory);
        assert_eq!(statistics.totals().expect("read").get(Counter::Hits), 14);
        let mut left = directory.names().expect("listed");
        left.sort();
        assert_eq!(left, ["foreign", LOCK, TOTAL]);
        assert_eq!(statistics.totals().expect("read").get(Counter::Hits), 14);
    }

    #[test]
    fn files_are_folded_a_few_at_a_time_and_by_one_process_only() {
        let (_temporary, directory) = directory();
        for start in 1..=20 {
            let path = directory.path().join(dead_name(start));
            std::fs::write(path, seven_hits()).expect("written");
        }
        let statistics = Statistics::new(&directory);
        let left = || directory.names().expect("listed").len();
        let lock = Lock::wait(&directory).expect("possible").expect("free");
        statistics.fold_some(8);
        assert_eq!(left(), 20 + 1, "somebody else folds");
        drop(lock);
        for _ in 0..1000 {
            let before = left();
            statistics.fold_some(8);
            assert!(before - left().min(before) <= 8);
            if left() == 2 {
                break;
            }
            std::thread::sleep(Duration::from_millis(1)); // other tests fold as well
        }
        assert_eq!(left(), 2, "all but the total and the lock is folded");
        assert_eq!(statistics.totals().expect("read").get(Counter::Hits), 140);
    }

    #[test]
    fn a_file_that_was_folded_and_not_removed_counts_once() {
        let (_temporary, directory) = directory();
        let dead = directory.path().join(dead_name(1));
        std::fs::write(&dead, seven_hits()).expect("written");
        let statistics = Statistics::new(&directory);
        assert_eq!(statistics.totals().expect("read").get(Counter::Hits), 7);
        // As if the power had been cut before it was removed.
        std::fs::write(&dead, seven_hits()).expect("written");
        for _ in 0..2 {
            assert_eq!(statistics.totals().expect("read").get(Counter::Hits), 7);
        }
        assert!(!dead.exists());
    }
}
