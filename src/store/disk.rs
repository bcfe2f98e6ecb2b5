//! The system calls of the store, one method each, so that a test can let any of them fail, or cut the power before it.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, Stat, Timespec, Timestamps};
use rustix::io::Result;

use crate::guarded_file::beyond_streams;

/// The system calls that the store uses. Each may fail with any error.
///
/// Relative paths are below `at`.
pub trait Disk: Debug + Send + Sync {
    /// openat(2), with a descriptor above those of the standard streams.
    fn open(&self, at: BorrowedFd<'_>, path: &Path, flags: OFlags, mode: Mode) -> Result<OwnedFd> {
        rustix::fs::openat(at, path, flags, mode).and_then(beyond_streams)
    }

    /// fstat(2).
    fn stat_of(&self, file: BorrowedFd<'_>) -> Result<Stat> {
        rustix::fs::fstat(file)
    }

    /// fstatat(2), of a link itself.
    fn stat(&self, at: BorrowedFd<'_>, path: &Path) -> Result<Stat> {
        rustix::fs::statat(at, path, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// read(2) into the free capacity of the buffer. May read less than fits.
    fn read(&self, file: BorrowedFd<'_>, buffer: &mut Vec<u8>) -> Result<usize> {
        rustix::io::read(file, rustix::buffer::spare_capacity(buffer))
    }

    /// write(2). May write less.
    fn write(&self, file: BorrowedFd<'_>, bytes: &[u8]) -> Result<usize> {
        rustix::io::write(file, bytes)
    }

    /// mkdirat(2).
    fn make_directory(&self, at: BorrowedFd<'_>, path: &Path, mode: Mode) -> Result<()> {
        rustix::fs::mkdirat(at, path, mode)
    }

    /// renameat(2).
    fn rename(
        &self,
        from: BorrowedFd<'_>,
        name: &Path,
        to: BorrowedFd<'_>,
        new: &Path,
    ) -> Result<()> {
        rustix::fs::renameat(from, name, to, new)
    }

    /// linkat(2): gives a file another name, unless there is a file of that name.
    fn link(
        &self,
        from: BorrowedFd<'_>,
        name: &Path,
        to: BorrowedFd<'_>,
        new: &Path,
    ) -> Result<()> {
        rustix::fs::linkat(from, name, to, new, AtFlags::empty())
    }

    /// unlinkat(2), of a file or link.
    fn remove(&self, at: BorrowedFd<'_>, path: &Path) -> Result<()> {
        rustix::fs::unlinkat(at, path, AtFlags::empty())
    }

    /// unlinkat(2), of an empty directory.
    fn remove_directory(&self, at: BorrowedFd<'_>, path: &Path) -> Result<()> {
        rustix::fs::unlinkat(at, path, AtFlags::REMOVEDIR)
    }

    /// readdir(3): calls `visit` with the name, the type and the inode of each entry, until that gives false.
    fn list(
        &self,
        directory: BorrowedFd<'_>,
        visit: &mut dyn FnMut(&OsStr, FileType, u64) -> bool,
    ) -> Result<()> {
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            let is_own = name != b"." && name != b"..";
            if is_own && !visit(OsStr::from_bytes(name), entry.file_type(), entry.ino()) {
                break;
            }
        }
        Ok(())
    }

    /// utimensat(2): sets the time of the last modification, and of the last access: file systems on libfuse's older interface
    /// report success and set nothing if one of the two is left out (measured: bindfs 1.14, fusepy 3.0).
    fn set_modified(&self, at: BorrowedFd<'_>, path: &Path, time: Timespec) -> Result<()> {
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        rustix::fs::utimensat(at, path, &times, AtFlags::SYMLINK_NOFOLLOW)
    }

    /// fchmod(2).
    fn set_mode(&self, file: BorrowedFd<'_>, mode: Mode) -> Result<()> {
        rustix::fs::fchmod(file, mode)
    }

    /// fstatvfs(3): bytes that a user may still fill, and all bytes of the file system.
    fn room(&self, at: BorrowedFd<'_>) -> Result<(u64, u64)> {
        let found = rustix::fs::fstatvfs(at)?;
        let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
        Ok((bytes(found.f_bavail), bytes(found.f_blocks)))
    }

    /// Directories that may be on a file system in memory, see `live`. A test's disk has none.
    fn places_in_memory(&self) -> Vec<PathBuf> {
        Vec::new()
    }

    /// The clock, which may be set back.
    fn now(&self) -> SystemTime {
        SystemTime::now()
    }
}

/// The disk of the system.
#[derive(Debug)]
pub struct SystemDisk;

impl Disk for SystemDisk {
    fn places_in_memory(&self) -> Vec<PathBuf> {
        match cfg!(test) {
            // Unit tests leave nothing in the system's memory.
            true => Vec::new(),
            false => super::live::places(),
        }
    }
}
