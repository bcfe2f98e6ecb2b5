//! The counters of this process, in a file of its own.
//!
//! Each event changes a row in memory and writes it, 1280 bytes, with one system call, which takes half a microsecond in the live
//! directory (`ci/bench event` measures it). The counters are exact whatever ends the process, `_exit`, SIGKILL and execve included,
//! except for an event that another thread was about to write when the process was killed. The file is never mapped, which would
//! save that half microsecond: if somebody truncates a mapped file, the programs that count in it die of SIGBUS. A truncated file is
//! written again. Its blocks are allocated by the first write, so no later one finds the memory full.
//!
//! Misses have a file of their own on the disk: they have stored something there anyway, and a container may end with the process and take
//! its memory along (measured: what two runs had counted was gone in the next container). Not on a network file system: only the command
//! merges files there, and those of other hosts stay for a month, so each process of a cluster would leave one.
//!
//! Where there is no live directory, the one file is on a disk, on which hits must not wait. There the rows are written by events that
//! are no hits, and when the process exits: what a process has counted since is lost if it is killed, executes another program or
//! calls `_exit`. Below `oclcache run`, which somebody asked for, each event is written wherever the file is.
//!
//! Lost are, besides: what was in the live directory when the system restarted; events of a process that ended while its file could
//! not be written; and events after somebody has removed the file.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::{io, iter, ptr};

use once_cell::race::OnceBox;
use rustix::time::{ClockId, clock_gettime};

use super::directory::Directory;
use super::ownership::is_our_start;
use super::stats::{
    CounterEvent, CountingPlaces, DAY_MS, Labels, MAGIC, MAX_FOLDED, Program, ROW, ROWS, WORDS,
    add, own_name,
};
use crate::fork_generation::generation;
use crate::fork_safety::Mutex;
use crate::guarded_file::GuardedFile;
use crate::syscall_filters;

/// Each process makes a file, so 1 process in 32 merges files of dead ones, and looks at more than 32 of them ([`MAX_FOLDED`]). (Programs
/// that only hit never sweep.)
const FOLDS: u64 = 32;

/// The counters of this process.
pub struct Recorder {
    /// Of all events, or of all but misses.
    usual: ProcessCounters,
    /// Of misses. None: they have no file of their own.
    of_misses: Option<ProcessCounters>,
}

/// In which directories a file may be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    Any,
    Memory,
    Disk,
}

/// Those of this process that are in one file.
struct ProcessCounters {
    program: Program,
    run: Option<Directory>,
    places: Option<Arc<CountingPlaces>>,
    place: Place,
    // All is made without a lock, for which a child that is forked meanwhile would wait for ever: if two threads make it at once, one of
    // the two is dropped unused.
    process: OnceBox<Process>,
}

/// That of a run, that in memory, and that on the disk.
const MAX_DIRECTORIES: usize = 3;

/// Labels and events.
type FirstEvents<'a> = (Labels<'a>, &'a [CounterEvent]);

struct Process {
    /// Identifies the process: a child inherits that of its parent.
    generation: u64,
    /// What was in the file in each directory before this process wrote there.
    before: [OnceBox<Vec<u64>>; MAX_DIRECTORIES],
    /// The counters, and the number of the directory of their file. None if no file can be made, for example because a link is in
    /// its place.
    counters: OnceBox<Option<(usize, Counters)>>,
    /// A child that was forked later counts from zero in a file of its own.
    forked: OnceBox<Process>,
}

/// Counters in memory, and the file to which changed rows are written.
struct Counters {
    name: String,
    /// Made by the first write.
    file: OnceBox<io::Result<GuardedFile>>,
    /// The file is on a disk: hits leave it to later events, or to the end.
    waits: bool,
    words: Vec<AtomicU64>,
    /// A bit for each row to be written; [`WHOLE`] is the whole file.
    changed: AtomicU32,
    writing: Mutex<()>,
}

const WHOLE: u32 = 1 << ROWS;
/// Larger files are not ours.
const MAX_FILE_BYTES: u64 = 1 << 20;

impl Recorder {
    /// Counts into files in the directory of an `oclcache run`, or, if there is none, in these places. The first event creates its file.
    /// `program` is the name of the running program.
    pub fn new(program: &[u8], run: Option<Directory>, places: Option<CountingPlaces>) -> Recorder {
        let places = places.map(Arc::new);
        // A run is read when it ends.
        let of_misses = (places.clone()).filter(|all| run.is_none() && all.has_memory());
        let place = of_misses.as_ref().map_or(Place::Any, |_| Place::Memory);
        let of_misses =
            of_misses.map(|all| ProcessCounters::new(program, None, Some(all), Place::Disk));
        Recorder {
            usual: ProcessCounters::new(program, run, places, place),
            of_misses,
        }
    }

    /// Creates the file now, so that `oclcache run` can see that this process loaded the library.
    pub fn announce(&self) {
        if let Some((counters, directory, _)) = self.usual.counters(None) {
            counters.write_changed(directory);
        }
    }

    /// Adds to the counters of a driver and device. Does not wait for other threads. A failure to write is ignored: the next event
    /// writes again.
    pub fn record(&self, place: Labels<'_>, events: &[CounterEvent]) {
        let mut files = [Some(&self.usual), self.of_misses.as_ref()];
        if events.iter().any(CounterEvent::is_miss) {
            files.reverse();
        }
        // Where the disk or the memory is full, the other one counts.
        let mut files = files.into_iter().flatten();
        files.any(|counters| counters.record(place, events));
    }

    /// Writes what hits have left to be written when the process ends. Where counters are in memory there is nothing, and nothing is
    /// allocated: a program may call exit() in a handler of a signal that has interrupted malloc.
    pub fn at_end(&self) {
        for counters in [Some(&self.usual), self.of_misses.as_ref()] {
            counters.inspect(|counters| counters.at_end());
        }
    }
}

impl ProcessCounters {
    fn new(
        program: &[u8],
        run: Option<Directory>,
        places: Option<Arc<CountingPlaces>>,
        place: Place,
    ) -> ProcessCounters {
        ProcessCounters {
            program: Program::new(program),
            run,
            places,
            place,
            process: OnceBox::new(),
        }
    }

    /// Whether there is a file for them.
    fn record(&self, place: Labels<'_>, events: &[CounterEvent]) -> bool {
        let Some((counters, directory, is_counted)) = self.counters(Some((place, events))) else {
            return false;
        };
        if !is_counted {
            counters.add(&self.program, place, events);
        }
        if !counters.waits || !events.iter().any(CounterEvent::is_hit) {
            counters.write_changed(directory);
        }
        true
    }

    fn at_end(&self) {
        let counters = self.known().and_then(|process| self.written(process));
        if let Some((counters, directory)) = counters
            && counters.waits
            && (counters.changed.load(Ordering::Acquire) > 0 || self.place == Place::Any)
            && !syscall_filters::were_added()
        {
            counters.write_changed(directory);
            self.fold_sometimes();
        }
    }

    fn fold_sometimes(&self) {
        if let Some(places) = &self.places
            && let Some(directory) = self.directories().next()
            && directory.now_ms().is_multiple_of(FOLDS)
        {
            match self.place {
                Place::Disk => places.fold_some(MAX_FOLDED),
                Place::Any | Place::Memory => places.fold_some_in_memory(MAX_FOLDED),
            }
        }
    }

    /// The counters of the process that is running, the directory of their file, and whether these events, if they are the first ones,
    /// have been counted: then the file is written once.
    fn counters(&self, first: Option<FirstEvents>) -> Option<(&Counters, &Directory, bool)> {
        let generation = generation();
        let mut process = self.process.get_or_init(|| Process::new(generation));
        while process.generation != generation {
            process = process.forked.get_or_init(|| Process::new(generation));
        }
        let made = Cell::new(ptr::null());
        let found = process.counters.get_or_init(|| {
            let counters = Box::new(self.begin(process, first));
            made.set(ptr::from_ref(&*counters));
            counters
        });
        let (counters, directory) = self.written(process)?;
        // If another thread was faster, what this one has made is dropped, and was perhaps written over what that one wrote.
        let is_own = ptr::eq(found, made.get());
        if !is_own && !made.get().is_null() {
            counters.changed.fetch_or(WHOLE, Ordering::AcqRel);
        }
        Some((counters, directory, first.is_some() && is_own))
    }

    fn written<'a>(&'a self, process: &'a Process) -> Option<(&'a Counters, &'a Directory)> {
        let (index, counters) = process.counters.get()?.as_ref()?;
        Some((counters, self.directories().nth(*index)?))
    }

    /// The state of the process that is running, if it has counted something.
    fn known(&self) -> Option<&Process> {
        let all = std::iter::successors(self.process.get(), |process| process.forked.get());
        all.last()
            .filter(|process| process.generation == generation())
    }

    /// The directories for the file, the preferred one first.
    fn directories(&self) -> impl Iterator<Item = &Directory> {
        let all = self.places.iter().flat_map(|all| all.directories());
        // The last one is on the disk.
        let (skipped, taken) = match self.place {
            Place::Any => (0, usize::MAX),
            Place::Memory => (0, 1),
            Place::Disk => (1, 1),
        };
        self.run.iter().chain(all.skip(skipped).take(taken))
    }

    /// The counters with their first events, written if that is due.
    fn begin(&self, process: &Process, first: Option<FirstEvents>) -> Option<(usize, Counters)> {
        let is_hit = |(_, events): FirstEvents| events.iter().any(CounterEvent::is_hit);
        // Whether the disk is full is known when the file is written.
        let begins = self.place == Place::Disk && !first.is_some_and(is_hit);
        let mut directories = self.directories().zip(&process.before).enumerate();
        let found = directories.find_map(|(index, (directory, before))| {
            let is_of_run = index == 0 && self.run.is_some();
            let waits = !is_of_run && !directory.is_in_memory();
            if self.place == Place::Disk && directory.file_system().is_network() {
                return None;
            }
            let counters = Counters::open(directory, waits, before)
                .and_then(|counters| {
                    if let Some((place, events)) = first {
                        counters.add(&self.program, place, events);
                    }
                    match counters.waits && !begins {
                        true => Ok(counters),
                        false => counters.begin(directory),
                    }
                })
                .inspect_err(
                    |error| tracing::debug!(%error, "the file of counters cannot be used"),
                );
            Some((index, counters.ok()?))
        });
        let is_in_use = |(_, counters): &(usize, Counters)| !counters.waits || begins;
        if found.as_ref().is_some_and(is_in_use) {
            self.fold_sometimes();
        }
        found
    }
}

impl Process {
    fn new(generation: u64) -> Box<Process> {
        Box::new(Process {
            generation,
            before: Default::default(),
            counters: OnceBox::new(),
            forked: OnceBox::new(),
        })
    }
}

impl Counters {
    /// The counters of this process in a directory. What the process counted before it executed another program is in the file of
    /// the same name. Of several threads the first one that has read it tells all what that was, before any of them writes.
    fn open(
        directory: &Directory,
        waits: bool,
        before_all: &OnceBox<Vec<u64>>,
    ) -> io::Result<Counters> {
        let name = own_name();
        let file = OnceBox::new();
        let before = match waits {
            true => directory.read(&name, MAX_FILE_BYTES)?.unwrap_or_default(),
            false => {
                let (opened, length) = directory.open_or_create_guarded(&name)?;
                let mut before = vec![0; length.min(MAX_FILE_BYTES) as usize];
                if length > 0 {
                    opened.read_exact_at(&mut before, 0)?;
                }
                let _ = file.set(Box::new(Ok(opened)));
                before
            }
        };
        if before.len() as u64 == MAX_FILE_BYTES {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if !is_our_start(&before[..before.len().min(MAGIC.len())]) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        let (before, _) = before.strip_prefix(MAGIC).unwrap_or_default().as_chunks();
        let before = before.iter().map(|word| u64::from_le_bytes(*word));
        let before = before_all.get_or_init(|| Box::new(before.collect()));
        // Mostly there is no file.
        let words = before.iter().copied().chain(iter::repeat(0));
        Ok(Counters {
            name,
            file,
            waits,
            words: words.map(AtomicU64::new).take(WORDS).collect(),
            changed: AtomicU32::new(WHOLE),
            writing: Mutex::new(()),
        })
    }

    /// Writes the whole file. If that is not possible, the memory is full, and no file is left.
    fn begin(self, directory: &Directory) -> io::Result<Counters> {
        let written = self.write(WHOLE, directory);
        if written.is_err() {
            let _ = directory.remove(&self.name);
        }
        written?;
        self.changed.store(0, Ordering::Release);
        Ok(self)
    }

    fn add(&self, program: &Program, place: Labels<'_>, events: &[CounterEvent]) {
        let row = add(&self.words, program, place, today(), events);
        self.changed.fetch_or(1 << row, Ordering::AcqRel);
    }

    fn write_changed(&self, directory: &Directory) {
        // A thread that cannot write now leaves it to the one that is writing, which looks for later changes before it returns.
        while self.changed.load(Ordering::Acquire) > 0
            && let Some(writing) = self.writing.try_lock()
        {
            let written = match self.write(self.changed.swap(0, Ordering::AcqRel), directory) {
                // Somebody has truncated the file.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    self.write(WHOLE, directory)
                }
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
    fn write(&self, changed: u32, directory: &Directory) -> io::Result<()> {
        let opened = self.file.get_or_init(|| {
            let opened = directory.open_or_create_file(&self.name);
            Box::new(opened.and_then(GuardedFile::new))
        });
        let file = opened.as_ref().map_err(|error| error.kind())?;
        if changed & WHOLE > 0 {
            let bytes = [&MAGIC[..], &encode(&self.words)].concat();
            return file.write_all_at(&bytes, 0);
        }
        for (index, row) in self.words.chunks_exact(ROW).enumerate() {
            if changed >> index & 1 > 0 {
                let at = MAGIC.len() + index * size_of_val(row);
                file.overwrite_at(&encode(row), at as u64)?;
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
mod tests;
