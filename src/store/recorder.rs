//! The counters of this process, in a file of its own.
//!
//! Where the file can be mapped, an event is an atomic addition to it: no lock, no system call, and exact whatever happens
//! to the process, `_exit`, SIGKILL and execve included. Elsewhere (another kind of file system, a full disk) the counters
//! stand in memory and the whole file, 776 bytes, is written at each event, which is as exact, but for what another thread
//! was about to write when the process was killed. That is one system call, on a local disk of half a microsecond; through
//! FUSE, or where a server is asked each time, it is a round trip. `ci/bench event` measures both.
//!
//! Lost is what the system had not written to the disk when the power failed; what was counted while no file could be
//! written, on a full disk for example, by a process that ended before there was room; and what a process counts after
//! somebody has removed its file.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use once_cell::race::OnceBox;

use super::directory::Directory;
use super::mapping::Mapping;
use super::stats::{COUNTERS, Event, FILE_SIZE, MAGIC, Statistics, decode, own_name};
use crate::fork::Mutex;
use crate::generation::generation;
use crate::kept::KeptFile;

/// Each process makes a file, so one of so many folds files of dead ones, and looks at more than so many: programs that only
/// hit sweep nothing.
const FOLDS: u64 = 32;
const MOST_FOLDED: usize = 256;

/// The counters of this process.
pub struct Recorder {
    run: Option<Directory>,
    statistics: Option<Directory>,
    // Made without a lock: if two threads do it at once, one of the two is dropped unused. A child that was forked meanwhile
    // would wait for ever for a lock.
    process: OnceBox<Process>,
}

struct Process {
    /// Which process this is. What a child inherits is its parent's, and a mapping would count there.
    generation: u64,
    file: CounterFile,
    /// A child that was forked later counts from zero in a file of its own.
    forked: OnceBox<Process>,
}

enum CounterFile {
    Mapped(Mapping),
    Written(Box<Written>),
    /// Such as a link of somebody else's in its place.
    Nowhere,
}

/// Counters in memory, and a file that gets all of them.
struct Written {
    file: KeptFile,
    counters: [AtomicU64; COUNTERS],
    changes: AtomicU64,
    writing: Mutex<()>,
}

impl Recorder {
    /// Counts into a file in the directory of an `oclcache run` if there is one, where that cannot be in that of the statistics.
    /// It is made at the first event.
    pub fn new(run: Option<Directory>, statistics: Option<Directory>) -> Recorder {
        Recorder {
            run,
            statistics,
            process: OnceBox::new(),
        }
    }

    /// Makes the file now, so that whoever started this process can see that it was here.
    pub fn announce(&self) {
        self.record(&[]);
    }

    /// Adds to the counters. Waits for no other thread; failures to write are not the application's concern.
    pub fn record(&self, events: &[Event]) {
        match &self.process().file {
            CounterFile::Mapped(mapping) => add(mapping.counters(), events),
            CounterFile::Written(written) => written.record(events),
            CounterFile::Nowhere => {}
        }
    }

    /// The state of the process that is running.
    fn process(&self) -> &Process {
        let generation = generation();
        let mut place = &self.process;
        loop {
            let process = place.get_or_init(|| Box::new(Process::new(generation, self)));
            if process.generation == generation {
                return process;
            }
            place = &process.forked;
        }
    }
}

impl Process {
    fn new(generation: u64, recorder: &Recorder) -> Process {
        // What the process counted before it executed another program stands under the same name.
        let name = own_name();
        let directories = recorder.run.iter().chain(&recorder.statistics);
        let mut files = directories.filter_map(|directory| {
            CounterFile::open(directory, &name)
                .inspect_err(|error| tracing::debug!(%error, "events are not counted here"))
                .ok()
        });
        if let Some(statistics) = &recorder.statistics
            && statistics.now_ms().is_multiple_of(FOLDS)
        {
            Statistics::new(statistics).fold_some(MOST_FOLDED);
        }
        Process {
            generation,
            file: files.next().unwrap_or(CounterFile::Nowhere),
            forked: OnceBox::new(),
        }
    }
}

impl CounterFile {
    fn open(directory: &Directory, name: &str) -> io::Result<CounterFile> {
        match Mapping::open(directory, name, MAGIC, COUNTERS) {
            Ok(Some(mapping)) => return Ok(CounterFile::Mapped(mapping)),
            Ok(None) => {}
            Err(error) => tracing::debug!(%error, "the statistics are written instead of mapped"),
        }
        Written::open(directory, name).map(CounterFile::Written)
    }
}

impl Written {
    fn open(directory: &Directory, name: &str) -> io::Result<Box<Written>> {
        let file = KeptFile::new(directory.open_or_create_file(name)?)?;
        let before = directory.read(name, 1 << 20).ok().flatten();
        let before = before.and_then(|bytes| decode(&bytes)).unwrap_or_default();
        Ok(Box::new(Written {
            file,
            counters: before.0.map(AtomicU64::new),
            changes: AtomicU64::new(0),
            writing: Mutex::new(()),
        }))
    }

    fn record(&self, events: &[Event]) {
        add(&self.counters, events);
        let mut seen = self.changes.fetch_add(1, Ordering::AcqRel) + 1;
        // Who cannot write now leaves it to the one who is writing, who looks for later changes before it goes.
        while let Some(writing) = self.writing.try_lock() {
            let _ = self.file.write_all_at(&self.encode(), 0);
            drop(writing);
            let changes = self.changes.load(Ordering::Acquire);
            if changes == seen {
                break;
            }
            seen = changes;
        }
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(FILE_SIZE);
        bytes.extend(MAGIC);
        for counter in &self.counters {
            bytes.extend(counter.load(Ordering::Relaxed).to_le_bytes());
        }
        bytes
    }
}

fn add(counters: &[AtomicU64], events: &[Event]) {
    for Event(index, amount) in events {
        counters[*index].fetch_add(*amount, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use super::super::stats::Counter;
    use super::*;

    fn directory(below: &Path) -> (tempfile::TempDir, Directory) {
        let temporary = tempfile::tempdir_in(below).expect("a temporary directory");
        let directory = Directory::create_all(&temporary.path().join("stats")).expect("made");
        (temporary, directory)
    }

    fn hits(directory: &Directory) -> u64 {
        let totals = Statistics::new(directory).totals().expect("read");
        totals.get(Counter::Hits)
    }

    #[test]
    fn a_file_goes_on_where_it_ended_whether_it_was_mapped_or_written() {
        let (_temporary, directory) = directory(Path::new("/dev/shm"));
        let mapped = || Mapping::open(&directory, &own_name(), MAGIC, COUNTERS);
        let mapped = || mapped().expect("possible").expect("in memory it is mapped");
        let events = [Counter::Hits.by(2)];
        add(mapped().counters(), &events);
        let written = Written::open(&directory, &own_name()).expect("opened");
        written.record(&events);
        add(mapped().counters(), &events);
        assert_eq!(hits(&directory), 6);
        assert_eq!(directory.names().expect("listed").len(), 2, "and a lock");
    }

    #[test]
    fn what_stands_in_the_place_of_the_file_is_left_alone() {
        let (temporary, directory) = directory(Path::new("/dev/shm"));
        let elsewhere = temporary.path().join("elsewhere");
        std::fs::write(&elsewhere, "something").expect("written");
        let place = directory.path().join(own_name());
        std::os::unix::fs::symlink(&elsewhere, place).expect("linked");
        let path = directory.path().to_owned();
        Recorder::new(None, Some(directory)).record(&[Counter::Hits.by(1)]);
        assert_eq!(std::fs::read(&elsewhere).expect("read"), b"something");
        let directory = Directory::open(&path).expect("opened").expect("there");
        assert_eq!(hits(&directory), 0);
    }

    #[test]
    fn processes_that_only_hit_leave_no_more_files_the_more_there_are() {
        let (_temporary, directory) = directory(Path::new("/dev/shm"));
        let own = own_name();
        let (host, _) = own.rsplit_once('-').expect("a time");
        let (host, _) = host.rsplit_once('-').expect("a process");
        let path = directory.path().to_owned();
        let mut files = 0;
        for dead in 1..=2000 {
            std::fs::write(path.join(format!("{host}-4194999-{dead}")), MAGIC).expect("written");
            let opened = Directory::open(&path).expect("opened").expect("there");
            Recorder::new(None, Some(opened)).record(&[Counter::Hits.by(1)]);
            std::thread::sleep(std::time::Duration::from_micros(500));
            files = directory.names().expect("listed").len();
            if files < dead / 2 {
                break;
            }
        }
        assert!(files < 1000, "{files}");
        assert!(hits(&directory) > 0);
    }

    /// The median of some times in nanoseconds, with what a tenth is below and a tenth above.
    fn spread(mut times: Vec<u64>) -> String {
        times.sort_unstable();
        let part = |tenths: usize| times[times.len() * tenths / 10];
        format!("{} ns ({} to {})", part(5), part(1), part(9))
    }

    fn measured(rounds: usize, each: u64, mut body: impl FnMut()) -> String {
        let times = (0..rounds).map(|_| {
            let started = Instant::now();
            for _ in 0..each {
                body();
            }
            started.elapsed().as_nanos() as u64 / each
        });
        spread(times.collect())
    }

    #[test]
    #[ignore = "a measurement, by `ci/bench event`"]
    fn what_an_event_costs() {
        // A hit.
        let events = [
            Counter::Hits.by(1),
            Counter::LoadNs.by(1000),
            Counter::SavedNs.by(100_000),
        ];
        println!("\nAn event (a hit, three counters), median (a tenth is below, a tenth above)\n");
        for place in ["/dev/shm", "."] {
            let (_temporary, directory) = directory(Path::new(place));
            let file_system = directory.file_system();
            let written = Written::open(&directory, "written").expect("opened");
            let path = directory.path().to_owned();
            let recorder = Recorder::new(None, Some(directory));
            let started = Instant::now();
            recorder.announce();
            let first = started.elapsed().as_nanos();
            println!("{file_system}, the first of a process: {first} ns");
            let what = match &recorder.process().file {
                CounterFile::Mapped(_) => "mapped",
                CounterFile::Written(_) | CounterFile::Nowhere => "as it is",
            };
            let time = measured(1000, 10_000, || recorder.record(&events));
            println!("{file_system}, {what}: {time}");
            let (goes_on, turns) = (AtomicBool::new(true), AtomicU64::new(0));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while goes_on.load(Ordering::Relaxed) {
                        recorder.record(&events);
                        turns.fetch_add(1, Ordering::Relaxed);
                    }
                });
                std::thread::sleep(Duration::from_millis(100)); // it gets a processor of its own
                let before = turns.load(Ordering::Relaxed);
                let time = measured(1000, 10_000, || recorder.record(&events));
                let share = (turns.load(Ordering::Relaxed) - before) / 100_000;
                println!(
                    "{file_system}, {what}, while another thread counts {share} % as much: {time}"
                );
                goes_on.store(false, Ordering::Relaxed);
            });
            let time = measured(1000, 100, || written.record(&events));
            println!("{file_system}, written: {time}");
            let directory = Directory::open(&path).expect("opened").expect("there");
            assert!(hits(&directory) >= 20_000_000 + 100_000);
        }
    }
}
