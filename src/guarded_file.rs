//! Files that stay open to be written in place, for as long as the process lives.
//!
//! Applications that become daemons close all descriptors that they find, and the files that they open next get the numbers:
//! what we wrote then would stand in a file of theirs. So each time it is asked whose the descriptor is.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::time::Duration;

use rustix::fs::{FlockOperation, Stat, flock, fstat};
use rustix::io::Errno;
use rustix::process::{Resource, getrlimit};

use crate::file_fingerprint::FileId;

/// Device and inode.
pub fn file_id(stat: &Stat) -> FileId {
    (stat.st_dev, stat.st_ino)
}

/// Refuses to write a file up to this byte where the process may not: beyond the limit (RLIMIT_FSIZE) a write fails, and before
/// that it ends the application by SIGXFSZ, as fallocate(2) does.
///
/// # Errors
/// It may not.
pub fn may_reach(end: u64) -> Result<(), Errno> {
    match getrlimit(Resource::Fsize).current {
        Some(limit) if end > limit => Err(Errno::FBIG),
        _ => Ok(()),
    }
}

/// The same with a number above those of the standard streams. Programs run with some of these closed, and what such a one prints would
/// go into the file, or it would find the stream open.
///
/// # Errors
/// There is no other number.
pub fn beyond_streams(file: OwnedFd) -> Result<OwnedFd, Errno> {
    const FIRST: RawFd = 3;
    match file.as_raw_fd() {
        ..FIRST => rustix::io::fcntl_dupfd_cloexec(&file, FIRST),
        _ => Ok(file),
    }
}

/// A file that stays open.
#[derive(Debug)]
pub struct GuardedFile {
    /// Some, until it is dropped.
    file: Option<File>,
    id: FileId,
}

impl GuardedFile {
    /// Keeps this file.
    ///
    /// # Errors
    /// The system does not tell which one it is.
    pub fn new(file: File) -> io::Result<GuardedFile> {
        let file = File::from(beyond_streams(file.into())?);
        let id = file_id(&fstat(&file)?);
        let file = Some(file);
        Ok(GuardedFile { file, id })
    }

    fn open(&self) -> io::Result<(&File, Stat)> {
        let file = self.file.as_ref().ok_or(Errno::BADF)?;
        let stat = fstat(file)?;
        if file_id(&stat) != self.id {
            return Err(Errno::BADF.into());
        }
        Ok((file, stat))
    }

    /// [`FileExt::read_exact_at`].
    ///
    /// # Errors
    /// It ends before, or somebody has closed it.
    pub fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.open()?.0.read_exact_at(bytes, at)
    }

    /// [`FileExt::write_all_at`], of bytes that are there.
    ///
    /// # Errors
    /// As for [`GuardedFile::write_all_at`], or somebody has made the file shorter: [`io::ErrorKind::UnexpectedEof`].
    pub fn overwrite_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let (file, stat) = self.open()?;
        let end = at.saturating_add(bytes.len() as u64);
        if u64::try_from(stat.st_size).unwrap_or(0) < end {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        file.write_all_at(bytes, at)
    }

    /// Does something while no other process does it with this file, or, where one keeps the lock (flock(2)) for long or there are
    /// none, all the same. Threads are not kept from each other.
    pub fn alone<T>(&self, body: impl FnOnce() -> T) -> T {
        const ATTEMPTS: u32 = 16;
        const PAUSE: Duration = Duration::from_millis(1);
        for attempt in 0..ATTEMPTS {
            let Ok((file, _)) = self.open() else {
                break;
            };
            match flock(file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let done = body();
                    // Not left to the end of the descriptor, of which a forked child may have a copy.
                    if let Ok((file, _)) = self.open() {
                        let _ = flock(file, FlockOperation::Unlock);
                    }
                    return done;
                }
                Err(Errno::WOULDBLOCK) if attempt + 1 < ATTEMPTS => std::thread::sleep(PAUSE),
                Err(_) => break,
            }
        }
        body()
    }

    /// [`FileExt::write_all_at`].
    ///
    /// # Errors
    /// It cannot be written, or somebody has closed it.
    pub fn write_all_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let (file, _) = self.open()?;
        may_reach(at.saturating_add(bytes.len() as u64))?;
        file.write_all_at(bytes, at)
    }
}

/// Of a file that was opened to append.
impl Write for &GuardedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let (mut file, stat) = self.open()?;
        let end = u64::try_from(stat.st_size).unwrap_or(0);
        may_reach(end.saturating_add(bytes.len() as u64))?;
        file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for GuardedFile {
    fn drop(&mut self) {
        if self.open().is_err() {
            // It is another's now, or nobody's.
            std::mem::forget(self.file.take());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_that_is_another_files_now_is_neither_read_nor_written_nor_closed() {
        let ours = tempfile::tempfile().expect("made");
        ours.write_all_at(b"0123", 0).expect("written");
        let mut kept = GuardedFile::new(ours).expect("kept");
        kept.write_all_at(b"x", 1).expect("written");
        let mut bytes = [0; 4];
        kept.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(bytes, *b"0x23");
        // As close, and an open that gets the number.
        let theirs = tempfile::tempfile().expect("made");
        theirs.write_all_at(b"mine", 0).expect("written");
        let mut number = OwnedFd::from(kept.file.take().expect("open"));
        rustix::io::dup2(&theirs, &mut number).expect("duplicated");
        let number = File::from(number);
        let again = number.try_clone().expect("duplicated");
        kept.file = Some(number);
        assert!(kept.write_all_at(b"x", 1).is_err());
        assert!(kept.read_exact_at(&mut bytes, 0).is_err());
        assert!((&kept).write_all(b"x").is_err());
        theirs.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(bytes, *b"mine");
        let raw = kept.file.as_ref().expect("open").as_raw_fd();
        drop(kept);
        let link = std::fs::read_link(format!("/proc/self/fd/{raw}"));
        let other = again.as_raw_fd();
        let expected = std::fs::read_link(format!("/proc/self/fd/{other}"));
        assert_eq!(link.expect("not closed"), expected.expect("open"));
    }
}
