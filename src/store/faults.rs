//! A disk on which any operation can fail, for tests: it fails, does half of what it was asked for, or the power is cut.
//!
//! What a power cut leaves: what happened to names is ordered, and is there up to the cut; what was written into files and
//! never synced is there, or is not, or in part (ext4 with data=writeback, XFS). The store never syncs, so all files that
//! were written since the disk was made are damaged in one of these ways, wherever they were moved to.

mod cases;

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime};

use rustix::fs::{FileType, Mode, OFlags, Stat, Timespec};
use rustix::io::{Errno, Result};

use super::disk::{Disk, SystemDisk};
use crate::fork_safety::Mutex;

/// What goes wrong.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Nothing.
    None,
    /// This operation fails.
    Fails(usize, Errno),
    /// This operation and all that follow fail.
    FailsFrom(usize, Errno),
    /// This operation is done, but said to have failed, as it may be on a network file system; reads and writes are not done.
    IsSaidToFail(usize, Errno),
    /// Before this operation the power is cut.
    PowerCut(usize),
}

/// What a power cut does to a file that was written and not synced.
#[derive(Clone, Copy, Debug)]
enum Damage {
    /// All is there.
    None,
    /// It has no bytes.
    Empty,
    /// It has the first half.
    Half,
    /// It has its length, and no content.
    Zeros,
    /// It has its length, and the content of the first half.
    HalfZeros,
}

impl Damage {
    const ALL: [Damage; 5] = [
        Damage::None,
        Damage::Empty,
        Damage::Half,
        Damage::Zeros,
        Damage::HalfZeros,
    ];

    fn of(self, bytes: &[u8]) -> Vec<u8> {
        let mut bytes = bytes.to_vec();
        let (length, half) = (bytes.len(), bytes.len() / 2);
        let kept = match self {
            Damage::None => length,
            Damage::Empty | Damage::Zeros => 0,
            Damage::Half | Damage::HalfZeros => half,
        };
        bytes.truncate(kept);
        if matches!(self, Damage::Zeros | Damage::HalfZeros) {
            bytes.resize(length, 0);
        }
        bytes
    }
}

/// The system's disk, with faults.
#[derive(Debug)]
struct Faulty(Mutex<State>);

impl std::fmt::Debug for Mutex<State> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.lock().fault.fmt(f)
    }
}

struct State {
    fault: Fault,
    /// How many bytes one call reads or writes at most.
    most: usize,
    /// How far the clock is behind.
    behind: Duration,
    /// The operations so far.
    done: Vec<&'static str>,
    /// The files that were written, by inode.
    written: BTreeSet<u64>,
}

impl Faulty {
    /// Without faults so far.
    fn new() -> Faulty {
        Faulty(Mutex::new(State {
            fault: Fault::None,
            most: usize::MAX,
            behind: Duration::ZERO,
            done: Vec::new(),
            written: BTreeSet::new(),
        }))
    }

    /// From now on operations are counted, and this goes wrong.
    fn begin(&self, fault: Fault, most: usize) {
        let mut state = self.0.lock();
        (state.fault, state.most) = (fault, most);
        state.done.clear();
    }

    fn set_clock_back(&self, by: Duration) {
        self.0.lock().behind = by;
    }

    /// The operations so far.
    fn done(&self) -> Vec<&'static str> {
        self.0.lock().done.clone()
    }

    fn call<T>(&self, name: &'static str, operation: impl FnOnce() -> Result<T>) -> Result<T> {
        let mut state = self.0.lock();
        let number = state.done.len();
        state.done.push(name);
        let fault = state.fault;
        drop(state);
        match fault {
            Fault::Fails(at, error) if at == number => Err(error),
            Fault::FailsFrom(at, error) if at <= number => Err(error),
            Fault::PowerCut(at) if at <= number => Err(Errno::IO),
            Fault::IsSaidToFail(at, error) if at == number => match name {
                "read" | "write" => Err(error),
                _ => operation().and(Err(error)),
            },
            _ => operation(),
        }
    }

    /// Damages what was written below a directory.
    fn damage(&self, directory: &Path, damage: Damage) {
        let written = &self.0.lock().written;
        let mut directories = vec![directory.to_owned()];
        while let Some(directory) = directories.pop() {
            for entry in fs::read_dir(directory).expect("listed").flatten() {
                let (path, facts) = (entry.path(), entry.metadata().expect("examined"));
                if facts.is_dir() {
                    directories.push(path);
                } else if written.contains(&facts.ino()) {
                    let bytes = fs::read(&path).expect("read");
                    let permissions = facts.permissions();
                    let mut writable = permissions.clone();
                    std::os::unix::fs::PermissionsExt::set_mode(&mut writable, 0o600);
                    fs::set_permissions(&path, writable).expect("changed");
                    fs::write(&path, damage.of(&bytes)).expect("written");
                    fs::set_permissions(&path, permissions).expect("changed");
                }
            }
        }
    }
}

impl Disk for Faulty {
    fn open(&self, at: BorrowedFd<'_>, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        self.call("open", || SystemDisk.open(at, path, flags, mode))
    }

    fn stat_of(&self, file: BorrowedFd<'_>) -> Result<Stat> {
        self.call("fstat", || SystemDisk.stat_of(file))
    }

    fn stat(&self, at: BorrowedFd<'_>, path: &Path) -> Result<Stat> {
        self.call("stat", || SystemDisk.stat(at, path))
    }

    fn read(&self, file: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Result<usize> {
        let most = self.0.lock().most;
        self.call("read", || {
            let mut part = Vec::with_capacity((buffer.capacity() - buffer.len()).min(most));
            let count = SystemDisk.read(file, &mut part)?;
            buffer.extend(part);
            Ok(count)
        })
    }

    fn write(&self, file: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize> {
        let most = self.0.lock().most.min(bytes.len());
        self.call("write", || {
            let inode = SystemDisk.stat_of(file)?.st_ino;
            self.0.lock().written.insert(inode);
            SystemDisk.write(file, &bytes[..most])
        })
    }

    fn remove(&self, at: BorrowedFd<'_>, path: &Path) -> Result<()> {
        self.call("unlink", || SystemDisk.remove(at, path))
    }

    fn remove_directory(&self, at: BorrowedFd<'_>, path: &Path) -> Result<()> {
        self.call("rmdir", || SystemDisk.remove_directory(at, path))
    }

    fn list(
        &self,
        directory: BorrowedFd<'_>,
        visit: &mut dyn FnMut(&OsStr, FileType, u64) -> bool,
    ) -> Result<()> {
        self.call("list", || SystemDisk.list(directory, visit))
    }

    fn set_modified(&self, at: BorrowedFd<'_>, path: &Path, time: Timespec) -> Result<()> {
        self.call("utimens", || SystemDisk.set_modified(at, path, time))
    }

    fn set_mode(&self, file: BorrowedFd<'_>, mode: Mode) -> Result<()> {
        self.call("fchmod", || SystemDisk.set_mode(file, mode))
    }

    fn room(&self, at: BorrowedFd<'_>) -> Result<(u64, u64)> {
        self.call("statvfs", || SystemDisk.room(at))
    }

    fn now(&self) -> SystemTime {
        SystemTime::now() - self.0.lock().behind
    }
}
