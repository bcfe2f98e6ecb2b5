//! The counters of this process, in a file of its own that is rewritten at each event.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};

use once_cell::race::OnceBox;

use super::directory::Directory;
use super::stats::{COUNTERS, Event, FILE_SIZE, MAGIC, decode, process_name};
use crate::fork::Mutex;

/// The counters of this process.
pub struct Recorder {
    directory: Directory,
    // Made without a lock: if two threads do it at once, one of the two is dropped unused. A child that was forked meanwhile
    // would wait for ever for a lock.
    process: OnceBox<Process>,
}

struct Process {
    id: u32,
    file: Option<File>,
    counters: [AtomicU64; COUNTERS],
    changes: AtomicU64,
    writing: Mutex<()>,
    /// A child that was forked later counts from zero in a file of its own. What it inherits is its parent's.
    forked: OnceBox<Process>,
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
        let process = self.process();
        for Event(index, amount) in events {
            process.counters[*index].fetch_add(*amount, Ordering::Relaxed);
        }
        let mut seen = process.changes.fetch_add(1, Ordering::AcqRel) + 1;
        // Who cannot write now leaves it to the one who is writing, who looks for later changes before it goes.
        while let Some(writing) = process.writing.try_lock() {
            if let Some(file) = &process.file {
                let _ = file.write_all_at(&process.encode(), 0);
            }
            drop(writing);
            let changes = process.changes.load(Ordering::Acquire);
            if changes == seen {
                break;
            }
            seen = changes;
        }
    }

    /// The state of the process that is running.
    fn process(&self) -> &Process {
        let id = std::process::id();
        let mut place = &self.process;
        loop {
            let process = place.get_or_init(|| Box::new(Process::new(id, &self.directory)));
            if process.id == id {
                return process;
            }
            place = &process.forked;
        }
    }
}

impl Process {
    fn new(id: u32, directory: &Directory) -> Process {
        let name = process_name(id);
        // What the process counted before it executed another program: number and start are the same.
        let before = directory.read(&name, 1 << 20).ok().flatten();
        let before = before.and_then(|bytes| decode(&bytes)).unwrap_or_default();
        Process {
            id,
            file: directory.open_or_create_file(&name).ok(),
            counters: before.0.map(AtomicU64::new),
            changes: AtomicU64::new(0),
            writing: Mutex::new(()),
            forked: OnceBox::new(),
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
