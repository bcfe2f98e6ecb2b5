//! The counters of this process, in a file of its own.
//!
//! The counters are in memory. Each event writes their row, 1280 bytes, with one system call. That takes half a microsecond on a
//! local disk, and a round trip through FUSE or to a server (`ci/bench event` measures it). The counters are exact whatever ends
//! the process, `_exit`, SIGKILL and execve included, except for an event that another thread was about to write when the process
//! was killed. The file is never mapped, which would save that half microsecond: if somebody truncates a mapped file, the programs
//! that count in it die of SIGBUS. A truncated file is written again.
//!
//! Lost are: events that the system had not written to the disk when the power failed; events of a process that ended while its
//! file could not be written, for example on a full disk; and events after somebody has removed the file.

use std::io;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use once_cell::race::OnceBox;
use rustix::time::{ClockId, clock_gettime};

use super::directory::Directory;
use super::ownership::is_our_start;
use super::stats::{
    CounterEvent, DAY_MS, Labels, MAGIC, Program, ROW, ROWS, Statistics, WORDS, add, own_name,
};
use crate::fork_generation::generation;
use crate::fork_safety::Mutex;
use crate::guarded_file::GuardedFile;

/// Each process makes a file, so 1 process in 32 merges files of dead ones, and looks at more than 32 of them. (Programs that only
/// hit never sweep.)
const FOLDS: u64 = 32;
const MAX_FOLDED: usize = 256;

/// The counters of this process.
pub struct Recorder {
    program: Program,
    run: Option<Directory>,
    statistics: Option<Statistics>,
    // Made without a lock, for which a child that is forked meanwhile would wait for ever: if two threads make it at once, one of
    // the two is dropped unused.
    process: OnceBox<Process>,
}

struct Process {
    /// Identifies the process: a child inherits that of its parent.
    generation: u64,
    /// None if it cannot be made, for example because a link is in its place.
    file: Option<CounterFile>,
    /// A child that was forked later counts from zero in a file of its own.
    forked: OnceBox<Process>,
}

/// Counters in memory, and the file to which changed rows are written.
struct CounterFile {
    file: GuardedFile,
    words: Vec<AtomicU64>,
    /// A bit for each row to be written; [`WHOLE`] is the whole file.
    changed: AtomicU32,
    writing: Mutex<()>,
}

const WHOLE: u32 = 1 << ROWS;

impl Recorder {
    /// Counts into a file in the directory of an `oclcache run`, or, if there is none, in that of the statistics. The first event
    /// creates the file. `program` is the name of the running program.
    pub fn new(program: &[u8], run: Option<Directory>, statistics: Option<Statistics>) -> Recorder {
        Recorder {
            program: Program::new(program),
            run,
            statistics,
            process: OnceBox::new(),
        }
    }

    /// Creates the file now, so that `oclcache run` can see that this process loaded the library.
    pub fn announce(&self) {
        if let Some(written) = &self.process().file {
            written.write_changed();
        }
    }

    /// Adds to the counters of a driver and device. Does not wait for other threads. A failure to write is ignored: the next event
    /// writes again.
    pub fn record(&self, place: Labels<'_>, events: &[CounterEvent]) {
        if let Some(written) = &self.process().file {
            written.record(&self.program, place, events);
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
        // What the process counted before it executed another program is in the file of the same name.
        let name = own_name();
        let directories =
            (recorder.run.iter()).chain(recorder.statistics.as_ref().map(Statistics::directory));
        let mut files = directories.filter_map(|directory| {
            CounterFile::open(directory, &name)
                .inspect_err(
                    |error| tracing::debug!(%error, "the file of counters cannot be opened"),
                )
                .ok()
        });
        if let Some(statistics) = &recorder.statistics
            && statistics.directory().now_ms().is_multiple_of(FOLDS)
        {
            statistics.fold_some(MAX_FOLDED);
        }
        Process {
            generation,
            file: files.next(),
            forked: OnceBox::new(),
        }
    }
}

impl CounterFile {
    fn open(directory: &Directory, name: &str) -> io::Result<CounterFile> {
        let file = GuardedFile::new(directory.open_or_create_file(name)?)?;
        let before = directory.read(name, 1 << 20).ok().flatten();
        let before = before.unwrap_or_default();
        if !is_our_start(&before[..before.len().min(MAGIC.len())]) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let (before, _) = before.strip_prefix(MAGIC).unwrap_or_default().as_chunks();
        let mut words: Vec<u64> = before
            .iter()
            .map(|word| u64::from_le_bytes(*word))
            .collect();
        words.resize(WORDS, 0);
        Ok(CounterFile {
            file,
            words: words.into_iter().map(AtomicU64::new).collect(),
            changed: AtomicU32::new(WHOLE),
            writing: Mutex::new(()),
        })
    }

    fn record(&self, program: &Program, place: Labels<'_>, events: &[CounterEvent]) {
        let row = add(&self.words, program, place, today(), events);
        self.changed.fetch_or(1 << row, Ordering::AcqRel);
        self.write_changed();
    }

    fn write_changed(&self) {
        // A thread that cannot write now leaves it to the one that is writing, which looks for later changes before it returns.
        while self.changed.load(Ordering::Acquire) > 0
            && let Some(writing) = self.writing.try_lock()
        {
            let written = match self.write(self.changed.swap(0, Ordering::AcqRel)) {
                // Somebody has truncated the file.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => self.write(WHOLE),
                written => written,
            };
            if written.is_err() {
                self.changed.fetch_or(WHOLE, Ordering::AcqRel);
                return;
            }
            drop(writing);
        }
    }

    /// Writes the changed rows; or the whole file, if it was not written before or could not be.
    fn write(&self, changed: u32) -> io::Result<()> {
        if changed & WHOLE > 0 {
            let bytes = [&MAGIC[..], &encode(&self.words)].concat();
            return self.file.write_all_at(&bytes, 0);
        }
        for (index, row) in self.words.chunks_exact(ROW).enumerate() {
            if changed >> index & 1 > 0 {
                let at = MAGIC.len() + index * size_of_val(row);
                self.file.overwrite_at(&encode(row), at as u64)?;
            }
        }
        Ok(())
    }
}

fn encode(words: &[AtomicU64]) -> Vec<u8> {
    let words = words.iter().map(|word| word.load(Ordering::Relaxed));
    words.flat_map(u64::to_le_bytes).collect()
}

/// The day, by the coarse clock, which costs a few nanoseconds.
fn today() -> u64 {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    u64::try_from(now.tv_sec).unwrap_or(0) / (DAY_MS / 1000)
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::sync::atomic::AtomicBool;
    use std::time::{Duration, Instant};

    use super::super::stats::Counter;
    use super::super::{Limits, Store};
    use super::*;

    fn store(below: &Path) -> (tempfile::TempDir, Store) {
        let temporary = tempfile::tempdir_in(below).expect("a temporary directory");
        let store = Store::open(temporary.path(), Limits::default()).expect("a store");
        (temporary, store)
    }

    fn statistics(store: &Store) -> Statistics {
        store.create_statistics().expect("made")
    }

    fn recorder(store: &Store) -> Recorder {
        Recorder::new(b"app", None, Some(statistics(store)))
    }

    fn hits(store: &Store) -> u64 {
        let counted = statistics(store).counted().expect("read");
        counted.rows.total().get(Counter::Hits)
    }

    #[test]
    fn a_file_goes_on_where_it_ended_and_is_written_anew_where_it_was_cut() {
        let (_temporary, store) = store(Path::new("/dev/shm"));
        let statistics = statistics(&store);
        let directory = statistics.directory();
        let open = || CounterFile::open(directory, &own_name()).expect("opened");
        let (events, program) = ([Counter::Hits.by(2)], Program::new(b"app"));
        open().record(&program, Labels::default(), &events);
        let written = open();
        written.record(&program, Labels::default(), &events);
        assert_eq!(hits(&store), 4);
        let file = directory.path().join(own_name());
        for length in [0, 8, 1000, 4096] {
            let cut = std::fs::File::options().write(true).open(&file);
            cut.and_then(|file| file.set_len(length)).expect("cut");
            written.record(&program, Labels::default(), &events);
        }
        assert_eq!(hits(&store), 12);
        assert_eq!(directory.names().expect("listed").len(), 1);
    }

    #[test]
    fn what_threads_write_at_once_is_all_in_the_file() {
        let (_temporary, store) = store(Path::new("/dev/shm"));
        let statistics = statistics(&store);
        let written = CounterFile::open(statistics.directory(), &own_name()).expect("opened");
        let program = Program::new(b"app");
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let (written, program) = (&written, &program);
                scope.spawn(move || {
                    for event in 0..200 {
                        let device = [b'a' + (thread + event) % 3];
                        let place = Labels {
                            driver: "pocl",
                            device: &device,
                        };
                        written.record(program, place, &[Counter::Hits.by(1)]);
                    }
                });
            }
        });
        assert_eq!(hits(&store), 4 * 200);
    }

    #[test]
    fn what_stands_in_the_place_of_the_file_is_left_alone() {
        let (temporary, store) = store(Path::new("/dev/shm"));
        let elsewhere = temporary.path().join("elsewhere");
        std::fs::write(&elsewhere, "something").expect("written");
        let place = statistics(&store).directory().path().join(own_name());
        std::os::unix::fs::symlink(&elsewhere, place).expect("linked");
        recorder(&store).record(Labels::default(), &[Counter::Hits.by(1)]);
        assert_eq!(std::fs::read(&elsewhere).expect("read"), b"something");
        assert_eq!(hits(&store), 0);
    }

    #[test]
    fn processes_that_only_hit_leave_no_more_files_the_more_there_are() {
        let (_temporary, store) = store(Path::new("/dev/shm"));
        let own = own_name();
        let (host, _) = own.rsplit_once('-').expect("a time");
        let (host, _) = host.rsplit_once('-').expect("a process");
        let statistics = statistics(&store);
        let directory = statistics.directory();
        let path = directory.path().to_owned();
        let mut files = 0;
        for dead in 1..=2000 {
            std::fs::write(path.join(format!("{host}-4194999-{dead}")), MAGIC).expect("written");
            recorder(&store).record(Labels::default(), &[Counter::Hits.by(1)]);
            std::thread::sleep(std::time::Duration::from_micros(500));
            files = directory.names().expect("listed").len();
            if files < dead / 2 {
                break;
            }
        }
        assert!(files < 1000, "{files}");
        assert!(hits(&store) > 0);
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
        let place = Labels {
            driver: "intel-cpu",
            device: b"Intel(R) Xeon(R) Processor @ 2.10GHz",
        };
        println!("\nAn event (a hit, three counters), median (a tenth is below, a tenth above)\n");
        for below in ["/dev/shm", "."] {
            let (_temporary, store) = store(Path::new(below));
            let file_system = store.root().file_system();
            let recorder = recorder(&store);
            let started = Instant::now();
            recorder.announce();
            let first = started.elapsed().as_nanos();
            println!("{file_system}, the first of a process: {first} ns");
            let time = measured(1000, 1000, || recorder.record(place, &events));
            println!("{file_system}: {time}");
            let (goes_on, turns) = (AtomicBool::new(true), AtomicU64::new(0));
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while goes_on.load(Ordering::Relaxed) {
                        recorder.record(place, &events);
                        turns.fetch_add(1, Ordering::Relaxed);
                    }
                });
                std::thread::sleep(Duration::from_millis(100)); // it gets a processor of its own
                let before = turns.load(Ordering::Relaxed);
                let time = measured(1000, 1000, || recorder.record(place, &events));
                let share = (turns.load(Ordering::Relaxed) - before) / 10_000;
                println!("{file_system}, while another thread counts {share} % as much: {time}");
                goes_on.store(false, Ordering::Relaxed);
            });
            assert!(hits(&store) >= 2_000_000);
        }
    }
}
