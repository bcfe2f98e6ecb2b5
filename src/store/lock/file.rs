//! The file whose bytes are locked.

#![allow(unsafe_code)] // fcntl; no safe wrapper locks single bytes

use std::fs::File;
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::fs::FileExt;

use rustix::fs::FallocateFlags;
use rustix::io::Errno;

use crate::guarded_file::may_reach;
use crate::store::directory::Directory;
use crate::store::ownership::is_blank;

/// The bytes before the first lock: numbers of abandoned builds, of eight bytes each.
const COUNTS: u64 = 1 << 16;

/// An open file of locks.
pub struct LockFile {
    file: ManuallyDrop<File>,
    /// Device and inode.
    identity: (u64, u64),
    is_trusted: bool,
}

impl LockFile {
    /// Opens the file, and creates it if it is missing.
    pub fn open(
        directory: &Directory,
        name: &str,
        is_trusted: fn(BorrowedFd<'_>) -> bool,
    ) -> io::Result<LockFile> {
        let file = directory.open_or_create_file(name)?;
        let identity = identity(&file)?;
        let length = file.metadata()?.len();
        if length > 0 && length < COUNTS && !is_ours(&file) {
            // A user has another file of this name. Locks of its bytes would exclude nobody, or others.
            return Err(io::ErrorKind::AlreadyExists.into());
        }
        if length < COUNTS && may_reach(COUNTS).is_ok() {
            // Allocated, so that it can be written when the disk is full: just then builds are abandoned. If the disk is full
            // already, nobody counts.
            let allocated = rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, COUNTS);
            if let Err(Errno::OPNOTSUPP | Errno::NOSYS) = allocated {
                let _ = file.set_len(COUNTS);
            }
        }
        Ok(LockFile {
            is_trusted: is_trusted(file.as_fd()),
            file: ManuallyDrop::new(file),
            identity,
        })
    }

    pub fn file(&self) -> &File {
        &self.file
    }

    /// Whether locks of its bytes are trusted.
    pub fn is_trusted(&self) -> bool {
        self.is_trusted
    }

    /// Whether the descriptor still is that of this file. Applications that become daemons close all descriptors, and may open
    /// files of their own under the same numbers.
    pub fn is_open(&self) -> bool {
        identity(&self.file).is_ok_and(|found| found == self.identity)
    }

    /// Whether both are descriptors of one file.
    pub fn is_same(&self, other: &LockFile) -> bool {
        self.identity == other.identity
    }

    /// Never closes the descriptor.
    pub fn leave_open(self) {
        std::mem::forget(self);
    }

    /// Locks a byte; false: another process has it.
    pub fn try_lock(&self, byte: u64) -> io::Result<bool> {
        match self.set(libc::F_WRLCK, byte) {
            Ok(()) => Ok(true),
            Err(error) => match error.raw_os_error() {
                Some(libc::EAGAIN | libc::EACCES) => Ok(false),
                _ => Err(error),
            },
        }
    }

    pub fn unlock(&self, byte: u64) {
        if self.is_open() {
            let _ = self.set(libc::F_UNLCK, byte);
        }
    }

    fn set(&self, kind: libc::c_int, byte: u64) -> io::Result<()> {
        // SAFETY: it is made of integers, which may be 0.
        let mut lock: libc::flock = unsafe { std::mem::zeroed() };
        lock.l_type = kind as libc::c_short;
        lock.l_whence = libc::SEEK_SET as libc::c_short;
        lock.l_start = libc::off_t::try_from(byte).map_err(io::Error::other)?;
        lock.l_len = 1;
        loop {
            // SAFETY: F_SETLK reads a flock, and the descriptor is open.
            if unsafe { libc::fcntl(self.file.as_raw_fd(), libc::F_SETLK, &lock) } == 0 {
                return Ok(());
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }

    /// How many builds with this lock were abandoned; None if nobody counts them.
    pub fn abandonments(&self, byte: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.file.read_exact_at(&mut bytes, place(byte)).ok()?;
        Some(u64::from_le_bytes(bytes))
    }

    pub fn add_abandonment(&self, byte: u64) {
        if let Some(count) = self.abandonments(byte)
            && may_reach(COUNTS).is_ok()
            && is_ours(&self.file)
        {
            let raised = count.wrapping_add(1).to_le_bytes();
            let _ = self.file.write_all_at(&raised, place(byte));
        }
    }
}

impl Drop for LockFile {
    fn drop(&mut self) {
        if self.is_open() {
            // SAFETY: it is dropped here only.
            unsafe { ManuallyDrop::drop(&mut self.file) };
        }
    }
}

/// Whether a file of this name certainly is one of these, by its content.
pub fn is_lock_file(directory: &Directory, name: &str) -> bool {
    let file = directory.open_to_read(name).ok();
    file.is_some_and(|file| is_ours(&file))
}

/// Whether a file is blank, or has nothing but small numbers where the counts are.
fn is_ours(file: &File) -> bool {
    const MAX_ABANDONED: u64 = 1 << 32;
    let Ok(length) = file.metadata().map(|file| file.len()) else {
        return false;
    };
    let mut bytes = vec![0; length.min(COUNTS) as usize];
    let is_count = |bytes: &[u8; 8]| u64::from_le_bytes(*bytes) < MAX_ABANDONED;
    length <= COUNTS
        && file.read_exact_at(&mut bytes, 0).is_ok()
        && (is_blank(&bytes) || length == COUNTS && bytes.as_chunks().0.iter().all(is_count))
}

fn place(byte: u64) -> u64 {
    byte % (COUNTS / 8) * 8
}

fn identity(file: &File) -> io::Result<(u64, u64)> {
    let stat = rustix::fs::fstat(file)?;
    Ok((stat.st_dev, stat.st_ino))
}
