//! Counters that survive the process: each process has one small file, rewritten at each event, so that even a process
//! that is killed loses nothing; the command sums the files, and folds those of dead processes into one total.
//!
//! ```text
//! <stats>/<host>-<boot>-<pid>-<start>   counters of one process
//! <stats>/total.json                    the sum of dead processes' files, what was zeroed, and which files are in the sum
//! <stats>/run-<...>/                    files of the processes that `oclcache run` started, until it has read them
//! ```

use std::collections::BTreeMap;
use std::path::Path;

use fs2::FileExt as FileLock;
use serde::{Deserialize, Serialize};

use super::StoreError;
use super::directory::Directory;
use crate::outcome::Bypass;

/// What is counted. The numbers are places in the files: append, never reorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Builds served from the cache.
    Hits = 0,
    /// Builds by the driver after a look-up.
    Misses = 1,
    /// Builds that the driver failed.
    Failed = 2,
    /// Programs that were served and later built for real, because a query could not be answered otherwise.
    Materialised = 3,
    /// Entries set aside because they were damaged or refused.
    SetAside = 4,
    /// Entries written.
    Stored = 5,
    /// Misses whose entry could not be made or written.
    NotStored = 6,
    /// Nanoseconds that drivers spent in builds which missed.
    CompileNs = 7,
    /// Nanoseconds spent in builds that hit.
    LoadNs = 8,
    /// Nanoseconds of compilation that hits avoided.
    SavedNs = 9,
    /// Queries answered from the cache although a build would have been needed, because its inputs have changed since.
    InputsChanged = 10,
    /// Nanoseconds that drivers spent in building programs that were served before.
    RebuiltNs = 11,
    /// Hits that were built from source as well and compared.
    Verified = 12,
    /// Those that differed, and were not served.
    Differed = 13,
    /// Hits from a directory that is only read.
    SystemHits = 14,
    /// Entries removed to make room.
    Evicted = 15,
    /// Builds that waited for another process or thread.
    Waited = 16,
    /// Nanoseconds that they waited.
    WaitNs = 17,
}

const NAMES: [&str; 18] = [
    "hits",
    "misses",
    "failed",
    "materialised",
    "set_aside",
    "stored",
    "not_stored",
    "compile_ns",
    "load_ns",
    "saved_ns",
    "inputs_changed",
    "rebuilt_ns",
    "verified",
    "differed",
    "system_hits",
    "evicted",
    "waited",
    "wait_ns",
];

/// Bypasses stand from here on, by the number of their reason.
const BYPASSES: usize = 32;
pub(super) const COUNTERS: usize = 96;
pub(super) const MAGIC: &[u8; 8] = b"oclcstat";
pub(super) const FILE_SIZE: usize = MAGIC.len() + COUNTERS * size_of::<u64>();
const TOTAL: &str = "total.json";
const LOCK: &str = "lock";
const RUN_PREFIX: &str = "run-";

/// One thing to count, with how much.
#[derive(Clone, Copy, Debug)]
pub struct Event(pub(super) usize, pub(super) u64);

impl Counter {
    /// An amount of this counter.
    pub fn by(self, amount: u64) -> Event {
        Event(self as usize, amount)
    }
}

impl From<Bypass> for Event {
    fn from(reason: Bypass) -> Event {
        Event(BYPASSES + reason as usize, 1)
    }
}

/// The counters in a file, if it is one.
pub(super) fn decode(bytes: &[u8]) -> Option<Totals> {
    let numbers = bytes.strip_prefix(MAGIC)?;
    let mut totals = Totals::default();
    for (index, number) in numbers
        .chunks_exact(size_of::<u64>())
        .take(COUNTERS)
        .enumerate()
    {
        totals.0[index] = u64::from_le_bytes(number.try_into().ok()?);
    }
    Some(totals)
}

/// Sums of all counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals(pub(super) [u64; COUNTERS]);

impl Default for Totals {
    fn default() -> Self {
        Totals([0; COUNTERS])
    }
}

impl Totals {
    /// One counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// Nanoseconds of compilation that were avoided in the end.
    pub fn saved_ns(&self) -> u64 {
        self.get(Counter::SavedNs)
            .saturating_sub(self.get(Counter::RebuiltNs))
    }

    /// Bypassed builds by reason, those that occurred.
    pub fn bypasses(&self) -> impl Iterator<Item = (Bypass, u64)> {
        Bypass::ALL
            .into_iter()
            .map(|reason| (reason, self.0[BYPASSES + reason as usize]))
            .filter(|(_, count)| *count > 0)
    }

    /// All bypassed builds.
    pub fn bypassed(&self) -> u64 {
        self.bypasses().map(|(_, count)| count).sum()
    }

    /// Builds that drivers did, and that went well; made from a binary, a program is not compiled.
    pub fn compiled(&self) -> u64 {
        let of_binaries = self.0[BYPASSES + Bypass::NotFromSource as usize];
        self.get(Counter::Misses) + self.bypassed() - of_binaries
    }

    /// All counters but the bypasses, by name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.0)
    }

    fn add(&mut self, other: &Totals) {
        for (sum, number) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(number);
        }
    }

    fn subtract(&mut self, other: &Totals) {
        for (sum, number) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_sub(number);
        }
    }

    fn to_map(&self) -> BTreeMap<String, u64> {
        let bypasses = self
            .bypasses()
            .map(|(reason, count)| (format!("bypassed.{}", reason.name()), count));
        self.named()
            .map(|(name, number)| (name.to_owned(), number))
            .chain(bypasses)
            .collect()
    }

    fn from_map(map: &BTreeMap<String, u64>) -> Totals {
        let mut totals = Totals::default();
        for (index, name) in NAMES.iter().enumerate() {
            totals.0[index] = map.get(*name).copied().unwrap_or(0);
        }
        for reason in Bypass::ALL {
            let name = format!("bypassed.{}", reason.name());
            totals.0[BYPASSES + reason as usize] = map.get(&name).copied().unwrap_or(0);
        }
        totals
    }
}

#[derive(Default, Serialize, Deserialize)]
struct Total {
    /// The sum of the files that were folded.
    counters: BTreeMap<String, u64>,
    /// What had been counted when the user last zeroed.
    zeroed: BTreeMap<String, u64>,
    /// Files that are in the sum but may not have been removed yet.
    absorbed: Vec<String>,
}

/// The statistics directory as the command sees it.
pub struct Statistics<'a> {
    directory: &'a Directory,
}

impl<'a> Statistics<'a> {
    /// The statistics in this directory.
    pub fn new(directory: &'a Directory) -> Self {
        Self { directory }
    }

    /// What was counted since the statistics were zeroed, by all processes, living ones included.
    ///
    /// # Errors
    /// The directory or a file cannot be read or written.
    pub fn totals(&self) -> Result<Totals, StoreError> {
        self.update(|_, _| {})
    }

    /// Begins to count from zero.
    ///
    /// # Errors
    /// The directory or a file cannot be read or written.
    pub fn zero(&self) -> Result<(), StoreError> {
        self.update(|total, sum| total.zeroed = sum.to_map())
            .map(drop)
    }

    /// Makes a directory for the processes of one `oclcache run`.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn begin_run(&self) -> Result<Directory, StoreError> {
        let name = format!("{RUN_PREFIX}{}", process_name(std::process::id()));
        self.directory.create(&name)
    }

    /// Reads what the processes of a run have counted.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn read_run(run: &Directory) -> Result<Run, StoreError> {
        let mut result = Run::default();
        for file in run.names()? {
            if let Ok(Some(bytes)) = run.read(&file, 1 << 20)
                && let Some(counters) = decode(&bytes)
            {
                result.processes += 1;
                result.totals.add(&counters);
            }
        }
        Ok(result)
    }

    /// Reads what the processes of a run have counted, and moves their files: to those of the run that it is part of, or to
    /// all others.
    ///
    /// # Errors
    /// A file cannot be moved.
    pub fn end_run(&self, run: &Directory, outer: Option<&Directory>) -> Result<Run, StoreError> {
        let _lock = self.lock()?;
        let result = Self::read_run(run)?;
        for file in run.names()? {
            run.move_to(&file, outer.unwrap_or(self.directory))?;
        }
        let name = run.path().file_name().and_then(|name| name.to_str());
        self.directory.remove_directory(name.unwrap_or_default());
        Ok(result)
    }

    /// Held by whoever moves, folds or removes files. Released when it is dropped.
    fn lock(&self) -> Result<std::fs::File, StoreError> {
        let path = self.directory.path().join(LOCK);
        let failure = |error: std::io::Error| StoreError {
            action: "lock",
            path,
            error,
        };
        let lock = self.directory.open_or_create_file(LOCK).and_then(|lock| {
            FileLock::lock_exclusive(&lock)?;
            Ok(lock)
        });
        lock.map_err(failure)
    }

    /// Sums all files under the lock, folds those of dead processes, and lets `change` have its way with the total.
    ///
    /// Crash-proof: a file counts either by being in `absorbed`, or by being there and not in `absorbed`.
    fn update(&self, change: impl FnOnce(&mut Total, &Totals)) -> Result<Totals, StoreError> {
        let _lock = self.lock()?;
        let mut total: Total = match self.directory.read(TOTAL, 1 << 20) {
            Ok(Some(bytes)) => serde_json::from_slice(&bytes).unwrap_or_default(),
            _ => Total::default(),
        };
        let mut folded = Totals::from_map(&total.counters);
        let mut sum = folded.clone();
        let mut dead = Vec::new();
        self.each_file(&mut |file| {
            if total.absorbed.contains(&file.name) {
                let _ = file.directory.remove(file.in_directory());
                return;
            }
            sum.add(&file.counters);
            if file.is_final {
                folded.add(&file.counters);
                dead.push(file.name.clone());
            }
        })?;
        change(&mut total, &sum);
        sum.subtract(&Totals::from_map(&total.zeroed));
        total.counters = folded.to_map();
        total.absorbed = dead;
        let json = serde_json::to_vec(&total).expect("maps of numbers and a list of names");
        self.directory
            .write_by_rename(self.directory, TOTAL, &json)?;
        self.each_file(&mut |file| {
            if total.absorbed.contains(&file.name) {
                let _ = file.directory.remove(file.in_directory());
            }
        })?;
        Ok(sum)
    }

    fn each_file(&self, visit: &mut dyn FnMut(&CounterFile)) -> Result<(), StoreError> {
        visit_files("", self.directory, true, visit)?;
        for run in self
            .directory
            .names()?
            .into_iter()
            .filter(|name| name.starts_with(RUN_PREFIX))
        {
            let Some(directory) = self.directory.open_below(&run)? else {
                continue;
            };
            // The files of a run that goes on are the runner's to read.
            let over = run.strip_prefix(RUN_PREFIX).is_some_and(is_dead);
            visit_files(&format!("{run}/"), &directory, over, visit)?;
            if over {
                self.directory.remove_directory(&run);
            }
        }
        Ok(())
    }
}

/// The counters of one process.
struct CounterFile<'a> {
    /// Below the statistics directory.
    name: String,
    directory: &'a Directory,
    counters: Totals,
    /// Nobody will add to it or move it.
    is_final: bool,
}

impl CounterFile<'_> {
    fn in_directory(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }
}

fn visit_files(
    prefix: &str,
    directory: &Directory,
    over: bool,
    visit: &mut dyn FnMut(&CounterFile),
) -> Result<(), StoreError> {
    for name in directory.names()? {
        // Asked before the file is read: a process that dies in between has counted all it will.
        let is_final = over && is_dead(&name);
        if let Ok(Some(bytes)) = directory.read(&name, 1 << 20)
            && let Some(counters) = decode(&bytes)
        {
            let name = format!("{prefix}{name}");
            visit(&CounterFile {
                name,
                directory,
                counters,
                is_final,
            });
        }
    }
    Ok(())
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

pub(super) fn process_name(id: u32) -> String {
    let [host, boot] = host_and_boot();
    format!("{host}-{boot}-{id}-{}", start_time(id).unwrap_or(0))
}

/// Whether the process that owns a file of this name is gone. Of other hosts nothing is known, so theirs live.
fn is_dead(name: &str) -> bool {
    let mut parts = name.split('-');
    let (Some(host), Some(boot), Some(id), Some(start)) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    let [our_host, our_boot] = host_and_boot();
    let (Ok(id), Ok(start)) = (id.parse(), start.parse()) else {
        return false;
    };
    host == our_host && (boot != our_boot || start_time(id) != Some(start))
}

fn host_and_boot() -> [String; 2] {
    let boot = std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let host = rustix::system::uname();
    [host.nodename().to_bytes(), &boot]
        .map(|bytes| format!("{:08x}", xxhash_rust::xxh3::xxh3_64(bytes) as u32))
}

/// When a process started, in ticks since boot: field 22 of /proc/PID/stat, counted from behind the name in parentheses.
fn start_time(id: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
    stat.rsplit_once(')')?
        .1
        .split_ascii_whitespace()
        .nth(19)?
        .parse()
        .ok()
}

#[cfg(test)]
mod tests {
    use super::super::recorder::Recorder;
    use super::*;

    fn directory() -> (tempfile::TempDir, Directory) {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let directory = Directory::create_all(&temporary.path().join("stats")).expect("made");
        (temporary, directory)
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
        let mut bytes = MAGIC.to_vec();
        bytes.resize(FILE_SIZE, 0);
        bytes[MAGIC.len()] = 7;
        let [host, boot] = host_and_boot();
        std::fs::write(path.join(format!("{host}-{boot}-4194999-1")), &bytes).expect("written");
        std::fs::write(path.join(format!("otherhost-{boot}-4194999-1")), &bytes).expect("written");
        let statistics = Statistics::new(&directory);
        for _ in 0..3 {
            assert_eq!(statistics.totals().expect("read").get(Counter::Hits), 14);
        }
        assert!(!path.join(format!("{host}-{boot}-4194999-1")).exists());
        assert!(path.join(format!("otherhost-{boot}-4194999-1")).exists());
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
}
