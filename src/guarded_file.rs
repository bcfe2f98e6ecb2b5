//! Files, directories and sockets that stay open while the application runs.
//!
//! Applications that become daemons close all descriptors, and the files that they open next get the same numbers: we would write
//! into their files, send into their sockets, and close both. So each access first checks that the descriptor still is that of our file.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::fs::{FlockOperation, SeekFrom, Stat, Timespec, flock, fstat, seek};
use rustix::io::{Errno, retry_on_intr};

use crate::file_fingerprint::FileId;
use crate::one_call;

/// Device and inode.
fn file_id(stat: &Stat) -> FileId {
    (stat.st_dev, stat.st_ino)
}

/// Checks that the process may write a file up to this byte. Beyond the limit (RLIMIT_FSIZE), write(2) and fallocate(2) kill the
/// application by SIGXFSZ.
///
/// # Errors
/// It may not.
pub fn may_reach(end: u64) -> Result<(), Errno> {
    match end > one_call::file_size_limit() {
        true => Err(Errno::FBIG),
        false => Ok(()),
    }
}

/// Moves a descriptor above the numbers of the standard streams. Programs run with some of these closed, and would print into the
/// file, or find the stream open.
///
/// # Errors
/// No other number is free.
pub fn beyond_streams(file: OwnedFd) -> Result<OwnedFd, Errno> {
    const FIRST: RawFd = 3;
    match file.as_raw_fd() {
        ..FIRST => rustix::io::fcntl_dupfd_cloexec(&file, FIRST),
        _ => Ok(file),
    }
}

/// A file, directory or socket that stays open.
#[derive(Debug)]
pub struct GuardedFile {
    /// Some, until it is dropped.
    file: Option<File>,
    id: FileId,
    /// The call of the application in which the descriptor was found to be that of the file; see `one_call`.
    checked_in: AtomicU64,
}

impl GuardedFile {
    /// Guards this file.
    ///
    /// # Errors
    /// The system does not identify it.
    pub fn new(file: File) -> io::Result<GuardedFile> {
        let file = File::from(beyond_streams(file.into())?);
        let stat = fstat(&file)?;
        Ok(GuardedFile::of(file, &stat))
    }

    /// Guards this file, which has this state and a number above those of the standard streams.
    pub fn of(file: File, stat: &Stat) -> GuardedFile {
        GuardedFile {
            file: Some(file),
            id: file_id(stat),
            checked_in: AtomicU64::new(one_call::number().unwrap_or(0)),
        }
    }

    fn open(&self) -> io::Result<(&File, Stat)> {
        let file = self.file.as_ref().ok_or(Errno::BADF)?;
        let stat = fstat(file)?;
        if file_id(&stat) != self.id {
            return Err(Errno::BADF.into());
        }
        let call = one_call::number().unwrap_or(0);
        self.checked_in.store(call, Ordering::Relaxed);
        Ok((file, stat))
    }

    /// The descriptor, for a call that follows at once.
    ///
    /// # Errors
    /// The application has closed it.
    pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.open()?.0.as_fd())
    }

    /// The descriptor to read: asked for once in a call.
    ///
    /// # Errors
    /// The application has closed it.
    pub fn descriptor_to_read(&self) -> io::Result<BorrowedFd<'_>> {
        Ok(self.open_to_read()?.as_fd())
    }

    /// The state of the file.
    ///
    /// # Errors
    /// The application has closed it.
    pub fn state(&self) -> io::Result<Stat> {
        Ok(self.open()?.1)
    }

    /// Identifies the file.
    pub fn id(&self) -> FileId {
        self.id
    }

    /// Has the descriptor be that of another file, as after close(2) and an open(2) that got the number. Returns the number.
    #[cfg(test)]
    pub fn give_number_to(&mut self, theirs: &File) -> RawFd {
        let mut number = OwnedFd::from(self.file.take().expect("open"));
        rustix::io::dup2(theirs, &mut number).expect("duplicated");
        self.file.insert(number.into()).as_raw_fd()
    }

    /// The file to read: asked for once in a call.
    fn open_to_read(&self) -> io::Result<&File> {
        match (&self.file, one_call::number()) {
            (Some(file), Some(call)) if self.checked_in.load(Ordering::Relaxed) == call => Ok(file),
            _ => Ok(self.open()?.0),
        }
    }

    /// [`FileExt::read_exact_at`].
    ///
    /// # Errors
    /// The file is too short, or the application has closed it.
    pub fn read_exact_at(&self, bytes: &mut [u8], at: u64) -> io::Result<()> {
        self.open_to_read()?.read_exact_at(bytes, at)
    }

    /// [`FileExt::read_at`].
    ///
    /// # Errors
    /// It cannot be read, or the application has closed it.
    pub fn read_at(&self, bytes: &mut [u8], at: u64) -> io::Result<usize> {
        self.open_to_read()?.read_at(bytes, at)
    }

    /// Which of these events poll(2) tells of the file now, beside errors.
    ///
    /// # Errors
    /// The system does not tell, or the application has closed it.
    pub fn events(&self, wanted: PollFlags) -> io::Result<PollFlags> {
        let (file, _) = self.open()?;
        let mut polled = [PollFd::new(file, wanted)];
        retry_on_intr(|| poll(&mut polled, Some(&Timespec::default())))?;
        Ok(polled[0].revents())
    }

    /// [`FileExt::write_all_at`], only over existing bytes.
    ///
    /// # Errors
    /// See [`GuardedFile::write_all_at`]; or [`io::ErrorKind::UnexpectedEof`]: somebody has truncated the file.
    pub fn overwrite_at(&self, bytes: &[u8], at: u64) -> io::Result<()> {
        let (file, stat) = self.open()?;
        let end = at.saturating_add(bytes.len() as u64);
        if u64::try_from(stat.st_size).unwrap_or(0) < end {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        // The limit counts for existing bytes, too.
        may_reach(end)?;
        file.write_all_at(bytes, at)
    }

    /// The length of the file, in bytes.
    ///
    /// # Errors
    /// The application has closed it.
    pub fn length(&self) -> io::Result<u64> {
        Ok(u64::try_from(self.open()?.1.st_size).unwrap_or(0))
    }

    /// Where the next bytes are that were written, from this place on; None: the rest is a hole. Some file systems tell no holes.
    ///
    /// # Errors
    /// The application has closed it.
    pub fn data_from(&self, at: u64) -> io::Result<Option<u64>> {
        match seek(self.open_to_read()?, SeekFrom::Data(at)) {
            Ok(place) => Ok(Some(place)),
            Err(Errno::NXIO) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// [`File::set_len`].
    ///
    /// # Errors
    /// The file cannot have this length, or the application has closed it.
    pub fn resize(&self, length: u64) -> io::Result<()> {
        let (file, _) = self.open()?;
        may_reach(length)?;
        file.set_len(length)
    }

    /// Calls something with the file locked (flock(2)), which excludes other processes but not threads. Calls it without the lock
    /// if another process keeps that for so many milliseconds, or locks do not work.
    pub fn alone<T>(&self, patience_ms: u32, body: impl FnOnce() -> T) -> T {
        const PAUSE: Duration = Duration::from_millis(1);
        for attempt in 0..=patience_ms {
            let Ok((file, _)) = self.open() else {
                break;
            };
            match flock(file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let done = body();
                    // Unlock now: a forked child may have a copy of the descriptor, which would keep the lock.
                    if let Ok((file, _)) = self.open() {
                        let _ = flock(file, FlockOperation::Unlock);
                    }
                    return done;
                }
                Err(Errno::WOULDBLOCK) if attempt < patience_ms => std::thread::sleep(PAUSE),
                Err(_) => break,
            }
        }
        body()
    }

    /// [`FileExt::write_all_at`].
    ///
    /// # Errors
    /// It cannot be written, or the application has closed it.
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
        // Asked for once in a call: a hit opens a dozen directories, and closes them at once.
        if self.open_to_read().is_err() {
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
        let events = kept.events(PollFlags::IN).expect("a file");
        assert_eq!(events, PollFlags::IN);
        let theirs = tempfile::tempfile().expect("made");
        theirs.write_all_at(b"mine", 0).expect("written");
        let raw = kept.give_number_to(&theirs);
        assert!(kept.write_all_at(b"x", 1).is_err());
        assert!(kept.read_exact_at(&mut bytes, 0).is_err());
        assert!((&kept).write_all(b"x").is_err());
        assert!(kept.descriptor().is_err());
        assert!(kept.events(PollFlags::IN).is_err());
        theirs.read_exact_at(&mut bytes, 0).expect("read");
        assert_eq!(bytes, *b"mine");
        drop(kept);
        let link = std::fs::read_link(format!("/proc/self/fd/{raw}"));
        let other = theirs.as_raw_fd();
        let expected = std::fs::read_link(format!("/proc/self/fd/{other}"));
        assert_eq!(link.expect("not closed"), expected.expect("open"));
    }
}
