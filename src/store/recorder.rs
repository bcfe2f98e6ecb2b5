//! The counters of this process, in a file of its own.
//!
//! Where the file can be mapped, an event is an atomic addition to it: no lock, no system call, and exact whatever happens,
//! `_exit`, SIGKILL and execve included. Elsewhere (another kind of file system, a full disk) the counters stand in memory
//! and the whole file, 784 bytes, is written at each event: a system call of some microseconds on a local disk, as exact;
//! through FUSE or to a server that is asked each time it is a round trip, which a build does not notice. There, what a
//! client's cache had not sent when the host went down is lost; and while a disk is full, what is counted is lost unless a
//! later event finds room.
//!
//! Lost is as well what a process counts after somebody has removed its file.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use once_cell::race::OnceBox;

use super::directory::Directory;
use super::mapping::Mapping;
use super::stats::{COUNTERS, Event, FILE_SIZE, MAGIC, decode, own_name};
use crate::fork::Mutex;
use crate::generation::generation;

/// The counters of this process.
pub struct Recorder {
    directory: Directory,
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
}

/// Counters in memory, and a file that gets all of them.
struct Written {
    file: Option<File>,
    counters: [AtomicU64; COUNTERS],
    changes: AtomicU64,
    writing: Mutex<()>,
}

impl Recorder {
    /// Counts into a file of this directory, which is made at the first event.
    pub fn new(directory: Directory) -> Recorder {
        Recorder {
            directory,
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
        }
    }

    /// The state of the process that is running.
    fn process(&self) -> &Process {
        let generation = generation();
        let mut place = &self.process;
        loop {
            let process = place.get_or_init(|| Box::new(Process::new(generation, &self.directory)));
            if process.generation == generation {
                return process;
            }
            place = &process.forked;
        }
    }
}

impl Process {
    fn new(generation: u64, directory: &Directory) -> Process {
        // What the process counted before it executed another program stands under the same name.
        let name = own_name();
        let file = match Mapping::open(directory, &name, MAGIC, COUNTERS) {
            Ok(Some(mapping)) => CounterFile::Mapped(mapping),
            Ok(None) => CounterFile::Written(Written::open(directory, &name)),
            Err(error) => {
                tracing::debug!(%error, "the statistics are written instead of mapped");
                CounterFile::Written(Written::open(directory, &name))
            }
        };
        Process {
            generation,
            file,
            forked: OnceBox::new(),
        }
    }
}

impl Written {
    fn open(directory: &Directory, name: &str) -> Box<Written> {
        let before = directory.read(name, 1 << 20).ok().flatten();
        let before = before.and_then(|bytes| decode(&bytes)).unwrap_or_default();
        Box::new(Written {
            file: directory.open_or_create_file(name).ok(),
            counters: before.0.map(AtomicU64::new),
            changes: AtomicU64::new(0),
            writing: Mutex::new(()),
        })
    }

    fn record(&self, events: &[Event]) {
        add(&self.counters, events);
        let mut seen = self.changes.fetch_add(1, Ordering::AcqRel) + 1;
        // Who cannot write now leaves it to the one who is writing, who looks for later changes before it goes.
        while let Some(writing) = self.writing.try_lock() {
            if let Some(file) = &self.file {
                let _ = file.write_all_at(&self.encode(), 0);
            }
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
