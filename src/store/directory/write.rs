//! Makes files and writes them: whole by a rename, or in place.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{OFlags, RawMode};
use rustix::io::{Errno, retry_on_intr};

use super::{Directory, FILE, PROTECTED, StoreError, TEMPORARY_PREFIX, failed};
use crate::guarded_file::may_reach;

const NEW: OFlags = FILE
    .union(OFlags::RDWR)
    .union(OFlags::CREATE)
    .union(OFlags::EXCL);
/// Of files that are published, as far as the directory's own mode and the umask let it.
const WRITABLE: RawMode = 0o666;
/// Of files that are written in place.
const PRIVATE: RawMode = 0o600;

impl Directory {
    /// Writes a file that appears whole or not at all: into `temporary`, then renamed to `name` here.
    ///
    /// There is no fsync: a reader verifies a checksum, so a file that a power cut left empty is a miss (shown in `faults`).
    ///
    /// # Errors
    /// Nothing is visible under `name` then, or what was there before.
    pub fn write_by_rename(
        &self,
        temporary: &Directory,
        name: &str,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        temporary.write_new(bytes)?.publish(self, name)
    }

    /// Writes a small file as [`Directory::write_by_rename`] does, unless there is one that begins so: what a power cut has
    /// left of it does not stay for ever.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_once(
        &self,
        temporary: &Directory,
        name: &str,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        match self.begins_with(name, bytes) {
            true => Ok(()),
            false => self.write_by_rename(temporary, name, bytes),
        }
    }

    /// Writes a file of a name that no other has. It is removed again unless it is published.
    ///
    /// # Errors
    /// Nothing is left then.
    pub fn write_new(&self, bytes: &[u8]) -> Result<Unfinished<'_>, StoreError> {
        self.write_with_mode(bytes, WRITABLE)
    }

    /// The same for a file that its owner cannot write either: [`super::FileFacts::is_writable`] is false.
    ///
    /// # Errors
    /// As for [`Directory::write_new`].
    pub fn write_new_protected(&self, bytes: &[u8]) -> Result<Unfinished<'_>, StoreError> {
        self.write_with_mode(bytes, PROTECTED)
    }

    fn write_with_mode(&self, bytes: &[u8], mode: RawMode) -> Result<Unfinished<'_>, StoreError> {
        may_reach(bytes.len() as u64).map_err(|error| failed("write", &self.path, error))?;
        let (unfinished, file) = self.create_unfinished(mode)?;
        let written = self.write(file.as_fd(), bytes);
        written.map_err(|error| failed("write", &self.path.join(&unfinished.name), error))?;
        Ok(unfinished)
    }

    /// Makes an empty file of a name that no other has.
    fn create_unfinished(&self, mode: RawMode) -> Result<(Unfinished<'_>, OwnedFd), StoreError> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let process = rustix::process::getpid().as_raw_nonzero();
        loop {
            let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
            let name = format!("{TEMPORARY_PREFIX}{process}-{serial}");
            match self.open_with_mode(&name, NEW, mode) {
                Ok(file) => {
                    let directory = self;
                    return Ok((Unfinished { directory, name }, file));
                }
                // Left by a process of the same number, on this host or on another that shares the directory.
                Err(Errno::EXIST) => continue,
                Err(error) => return Err(failed("create", &self.path.join(name), error)),
            }
        }
    }

    fn write(&self, file: BorrowedFd<'_>, mut bytes: &[u8]) -> Result<(), Errno> {
        while !bytes.is_empty() {
            match self.disk.write(file, bytes) {
                Ok(0) => return Err(Errno::IO),
                Ok(written) => bytes = &bytes[written..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// Opens a file to read and write in place, and makes it if it is missing.
    ///
    /// # Errors
    /// It is a link or no regular file, not ours, or cannot be opened.
    pub fn open_or_create_file(&self, name: &str) -> io::Result<std::fs::File> {
        self.open_to_write(name, FILE | OFlags::RDWR | OFlags::CREATE)
    }

    /// Opens a file to write behind its end, and makes it if it is missing.
    ///
    /// # Errors
    /// It is a link or no regular file, not ours, or cannot be opened.
    pub fn open_to_append(&self, name: &str) -> io::Result<std::fs::File> {
        self.open_to_write(
            name,
            FILE | OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE,
        )
    }

    /// A file with another name is somebody else's, too, and would be written there as well. What is made is the owner's
    /// alone: whoever can open a file to read can hold a lock of it.
    fn open_to_write(&self, name: &str, flags: OFlags) -> io::Result<std::fs::File> {
        (self.check_writable("open", name)).map_err(|failure| failure.error)?;
        let fd = self.open_with_mode(name, flags, PRIVATE)?;
        self.own_file(fd.as_fd())?;
        if self.stat_of(fd.as_fd())?.st_nlink > 1 {
            return Err(io::Error::other("it has another name as well"));
        }
        Ok(fd.into())
    }

    /// Adds to a file, which is made if it is missing, unless it has `limit` bytes already. Gives its size before.
    ///
    /// # Errors
    /// As for [`Directory::open_to_append`], or it cannot be written.
    pub fn append_below(&self, name: &str, bytes: &[u8], limit: u64) -> io::Result<u64> {
        let file = self.open_to_append(name)?;
        let size = self.own_file(file.as_fd())?.size;
        if size < limit {
            may_reach(size + bytes.len() as u64)?;
            self.write(file.as_fd(), bytes)?;
        }
        Ok(size)
    }
}

/// A file that is removed unless it is published.
pub struct Unfinished<'a> {
    directory: &'a Directory,
    name: String,
}

impl Unfinished<'_> {
    /// Moves it to a place in a directory of the same file system, where it replaces what is there.
    ///
    /// # Errors
    /// Nothing has changed there then.
    pub fn publish(mut self, to: &Directory, name: &str) -> Result<(), StoreError> {
        let from = self.directory;
        let unfinished = self.name.as_ref();
        let new = name.as_ref();
        retry_on_intr(|| from.disk.rename(from.fd(), unfinished, to.fd(), new))
            .map_err(|error| failed("publish", &to.path.join(name), error))?;
        self.name.clear();
        Ok(())
    }
}

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            let _ = self.directory.remove(&self.name);
        }
    }
}
