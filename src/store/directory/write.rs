//! Creates and writes files: whole by a rename, or in place.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{OFlags, RawMode, Stat};
use rustix::io::{Errno, retry_on_intr};

use super::{Directory, FILE, PROTECTED, StoreError, TEMPORARY_PREFIX, failed};
use crate::guarded_file::{GuardedFile, may_reach};
use crate::store::ownership::{has_our_content, may_write, not_ours};

const NEW: OFlags = FILE
    .union(OFlags::RDWR)
    .union(OFlags::CREATE)
    .union(OFlags::EXCL);
/// The mode of published files, before the mode of the directory and the umask are applied.
const WRITABLE: RawMode = 0o666;
/// The mode of files that are written in place.
const PRIVATE: RawMode = 0o600;

impl Directory {
    /// Writes a file that appears whole or not at all: into `temporary`, then renamed to `name` here.
    ///
    /// A file that the cache did not write is not replaced.
    ///
    /// There is no fsync: a reader verifies a checksum, so a file that a power cut left empty is a miss (shown in `faults`).
    ///
    /// # Errors
    /// `name` is unchanged.
    pub fn write_by_rename(
        &self,
        temporary: &Directory,
        name: &str,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        temporary.write_new(bytes)?.publish(self, name, bytes)
    }

    /// Writes a small file as [`Directory::write_by_rename`] does, unless it exists and begins with this content. So the remains of
    /// a power cut are replaced.
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

    /// Writes a file whole, unless there is one: of several processes that do so at once, the first one's stays.
    ///
    /// # Errors
    /// There is neither this file nor another one; for example because the file system knows no second names.
    pub fn write_first(
        &self,
        temporary: &Directory,
        name: &str,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        let unfinished = temporary.write_new(bytes)?;
        let own = unfinished.name.as_ref();
        match retry_on_intr(|| (self.disk).link(temporary.fd(), own, self.fd(), name.as_ref())) {
            Ok(()) | Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(failed("publish", &self.path.join(name), error)),
        }
    }

    /// Writes a file under a unique name. It is removed again unless it is published.
    ///
    /// # Errors
    /// No file is left.
    pub fn write_new(&self, bytes: &[u8]) -> Result<Unfinished<'_>, StoreError> {
        self.write_with_mode(bytes, WRITABLE)
    }

    /// The same for a file that not even its owner may write: [`super::FileFacts::is_writable`] is false.
    ///
    /// # Errors
    /// See [`Directory::write_new`].
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

    /// Creates an empty file under a unique name.
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

    /// Opens a file to read and write in place. Creates it if it is missing.
    ///
    /// # Errors
    /// It is a link, not a regular file, another user's, or cannot be opened.
    pub fn open_or_create_file(&self, name: &str) -> io::Result<std::fs::File> {
        Ok(self
            .open_to_write(name, FILE | OFlags::RDWR | OFlags::CREATE)?
            .0)
    }

    /// The same for a file that stays open, with its length.
    ///
    /// # Errors
    /// See [`Directory::open_or_create_file`].
    pub fn open_or_create_guarded(&self, name: &str) -> io::Result<(GuardedFile, u64)> {
        let (file, stat) = self.open_to_write(name, FILE | OFlags::RDWR | OFlags::CREATE)?;
        let length = u64::try_from(stat.st_size).unwrap_or(0);
        Ok((GuardedFile::of(file, &stat), length))
    }

    /// Opens a file to read, and to append to. Creates it if it is missing.
    ///
    /// # Errors
    /// It is a link, not a regular file, another user's, or cannot be opened.
    pub fn open_to_append(&self, name: &str) -> io::Result<std::fs::File> {
        let flags = FILE | OFlags::RDWR | OFlags::APPEND | OFlags::CREATE;
        Ok(self.open_to_write(name, flags)?.0)
    }

    /// Refuses a file with several names: it would be changed under all of them. A new file is readable for its owner only, because
    /// a user who can open a file for reading can hold a lock of it.
    fn open_to_write(&self, name: &str, flags: OFlags) -> io::Result<(std::fs::File, Stat)> {
        (self.check_writable("open", name)).map_err(|failure| failure.error)?;
        let fd = self.open_with_mode(name, flags, PRIVATE)?;
        let stat = self.stat_of(fd.as_fd())?;
        self.own(&stat)?;
        if stat.st_nlink > 1 {
            return Err(io::Error::other("it has another name as well"));
        }
        Ok((fd.into(), stat))
    }

    /// Appends to a file, unless it has `limit` bytes already. Creates it if it is missing. Returns its size before.
    ///
    /// # Errors
    /// See [`Directory::open_to_append`], or it cannot be written, or the cache did not write it.
    pub fn append_below(&self, name: &str, bytes: &[u8], limit: u64) -> io::Result<u64> {
        let file = self.open_to_append(name)?;
        let size = self.own_file(file.as_fd())?.size;
        if size > 0 && !has_our_content(self, name) {
            return Err(io::ErrorKind::AlreadyExists.into());
        }
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
    /// Moves it, with this content, to a directory of the same file system. Replaces a file of that name, if the cache wrote that.
    ///
    /// # Errors
    /// That directory is unchanged.
    pub fn publish(mut self, to: &Directory, name: &str, content: &[u8]) -> Result<(), StoreError> {
        if !may_write(to, name, content) {
            return Err(not_ours(to, name));
        }
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
