//! One directory of the cache, held open: all access below it is relative to it and follows no link.

use std::ffi::OsStr;
use std::io;
use std::io::{Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RawMode, openat};
use rustix::io::Errno;

use super::StoreError;

/// With this the names of unfinished files begin.
pub const TEMPORARY_PREFIX: &str = "new-";

const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::RDONLY);
/// Without O_NONBLOCK, opening a FIFO that somebody put there would block the application.
const FILE: OFlags = OFlags::NOFOLLOW
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);
const PRIVATE_DIRECTORY: RawMode = 0o700;
const PRIVATE_FILE: RawMode = 0o600;

/// An open directory that belongs to the effective user and that nobody else may write.
#[derive(Debug)]
pub struct Directory {
    fd: OwnedFd,
    path: PathBuf,
}

impl Directory {
    /// Opens the directory; None if it does not exist.
    ///
    /// # Errors
    /// It is no directory, not ours, or others may write it.
    pub fn open(path: &Path) -> Result<Option<Directory>, StoreError> {
        // The user may keep the cache elsewhere by a link in place of the directory, which O_NOFOLLOW would refuse.
        match openat(
            rustix::fs::CWD,
            path,
            DIRECTORY - OFlags::NOFOLLOW,
            Mode::empty(),
        ) {
            Ok(fd) => Directory {
                fd,
                path: path.to_owned(),
            }
            .checked()
            .map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(failed("open", path, error)),
        }
    }

    /// Opens the directory, and makes it and its parents, for the owner only, if they are missing.
    ///
    /// # Errors
    /// As for [`Directory::open`], or it cannot be made.
    pub fn create_all(path: &Path) -> Result<Directory, StoreError> {
        use std::os::unix::fs::DirBuilderExt;
        if let Some(directory) = Directory::open(path)? {
            return Ok(directory);
        }
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(PRIVATE_DIRECTORY)
            .create(path);
        made.map_err(|error| StoreError {
            action: "make",
            path: path.to_owned(),
            error,
        })?;
        Directory::open(path)?.ok_or_else(|| failed("open", path, Errno::NOENT))
    }

    /// Opens the directory below this one, and makes it if it is missing.
    ///
    /// # Errors
    /// As for [`Directory::open`], or it cannot be made.
    pub fn create(&self, name: &str) -> Result<Directory, StoreError> {
        if let Some(directory) = self.open_below(name)? {
            return Ok(directory);
        }
        match rustix::fs::mkdirat(&self.fd, name, Mode::from_raw_mode(PRIVATE_DIRECTORY)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed("make", &self.path.join(name), error)),
        }
        self.open_below(name)?
            .ok_or_else(|| failed("open", &self.path.join(name), Errno::NOENT))
    }

    /// Opens the directory below this one; None if it does not exist or is none.
    ///
    /// # Errors
    /// It cannot be opened, is not ours, or others may write it.
    pub fn open_below(&self, name: &str) -> Result<Option<Directory>, StoreError> {
        let path = self.path.join(name);
        match openat(&self.fd, name, DIRECTORY, Mode::empty()) {
            Ok(fd) => Directory { fd, path }.checked().map(Some),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(failed("open", &path, error)),
        }
    }

    fn checked(self) -> Result<Directory, StoreError> {
        let stat =
            rustix::fs::fstat(&self.fd).map_err(|error| failed("examine", &self.path, error))?;
        let refusal = if stat.st_uid != rustix::process::geteuid().as_raw() {
            "it belongs to another user"
        } else if stat.st_mode & 0o022 != 0 {
            "others may write it; `chmod go-w` it, since whoever writes it can run code in your programs"
        } else {
            return Ok(self);
        };
        let error = io::Error::new(io::ErrorKind::PermissionDenied, refusal);
        Err(StoreError {
            action: "use",
            path: self.path,
            error,
        })
    }

    /// The path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The whole content of a file; None if it does not exist.
    ///
    /// # Errors
    /// It is a link or no regular file, not ours, of `limit` bytes or more, or cannot be read.
    pub fn read(&self, name: &str, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let fd = match openat(&self.fd, name, FILE | OFlags::RDONLY, Mode::empty()) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let stat = own_file(&fd)?;
        let size = u64::try_from(stat.st_size).unwrap_or(u64::MAX);
        if size >= limit {
            return Err(io::Error::other("it is too large"));
        }
        // One byte more, so that the read that finds the end does not grow the buffer.
        let mut bytes = Vec::with_capacity(size as usize + 1);
        while (bytes.len() as u64) < limit {
            if bytes.len() == bytes.capacity() {
                bytes.reserve(1 << 16); // it grew since
            }
            match rustix::io::read(&fd, rustix::buffer::spare_capacity(&mut bytes)) {
                Ok(0) => return Ok(Some(bytes)),
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Err(io::Error::other("it is too large"))
    }

    /// Whether a regular file begins with these bytes.
    pub fn begins_with(&self, name: &str, magic: &[u8]) -> bool {
        let Ok(fd) = openat(&self.fd, name, FILE | OFlags::RDONLY, Mode::empty()) else {
            return false;
        };
        let mut start = vec![0; magic.len()];
        std::fs::File::from(fd).read_exact(&mut start).is_ok() && start == magic
    }

    /// Writes a file that appears whole or not at all: into `temporary`, then renamed to `name` here.
    ///
    /// There is no fsync: a reader verifies a checksum, so a file that a power cut left empty is a miss.
    ///
    /// # Errors
    /// Nothing is visible under `name` then, or what was there before.
    pub fn write_by_rename(
        &self,
        temporary: &Directory,
        name: &str,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let process = rustix::process::getpid().as_raw_nonzero();
        let unfinished = loop {
            let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
            let unfinished = format!("{TEMPORARY_PREFIX}{process}-{serial}");
            match temporary.create_file(&unfinished) {
                Ok(mut file) => match file.write_all(bytes) {
                    Ok(()) => break unfinished,
                    Err(error) => {
                        let _ = rustix::fs::unlinkat(&temporary.fd, &*unfinished, AtFlags::empty());
                        return Err(StoreError {
                            action: "write",
                            path: temporary.path.join(unfinished),
                            error,
                        });
                    }
                },
                // Left by a process of the same number, on this host or on another that shares the directory.
                Err(Errno::EXIST) => continue,
                Err(error) => {
                    return Err(failed("create", &temporary.path.join(unfinished), error));
                }
            }
        };
        rustix::fs::renameat(&temporary.fd, &*unfinished, &self.fd, name).map_err(|error| {
            let _ = rustix::fs::unlinkat(&temporary.fd, &*unfinished, AtFlags::empty());
            failed("publish", &self.path.join(name), error)
        })
    }

    /// Makes a new file for the owner only.
    pub fn create_file(&self, name: &str) -> Result<std::fs::File, Errno> {
        let flags = FILE | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
        openat(&self.fd, name, flags, Mode::from_raw_mode(PRIVATE_FILE)).map(std::fs::File::from)
    }

    /// Opens a file for the owner only, and makes it if it is missing.
    pub fn open_or_create_file(&self, name: &str) -> Result<std::fs::File, Errno> {
        let flags = FILE | OFlags::RDWR | OFlags::CREATE;
        openat(&self.fd, name, flags, Mode::from_raw_mode(PRIVATE_FILE)).map(std::fs::File::from)
    }

    /// Opens a file for the owner only to write behind its end, and makes it if it is missing.
    ///
    /// # Errors
    /// It is a link or no regular file, not ours, or cannot be opened; or its owner has made the directory one that is not
    /// written, which the system asks of new files only.
    pub fn open_to_append(&self, name: &str) -> io::Result<std::fs::File> {
        if rustix::fs::fstat(&self.fd)?.st_mode & 0o200 == 0 {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let flags = FILE | OFlags::WRONLY | OFlags::APPEND | OFlags::CREATE;
        let fd = openat(&self.fd, name, flags, Mode::from_raw_mode(PRIVATE_FILE))?;
        own_file(&fd)?;
        Ok(fd.into())
    }

    /// Whether a name is that of an open file.
    pub fn is_named(&self, name: &str, file: &std::fs::File) -> bool {
        let named = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW);
        let same = |named: rustix::fs::Stat, open: rustix::fs::Stat| {
            (named.st_dev, named.st_ino) == (open.st_dev, open.st_ino)
        };
        matches!((named, rustix::fs::fstat(file)), (Ok(named), Ok(open)) if same(named, open))
    }

    /// Writes a small file unless there is one.
    ///
    /// # Errors
    /// It cannot be made or written.
    pub fn write_once(&self, name: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let failure = |error: io::Error| StoreError {
            action: "write",
            path: self.path.join(name),
            error,
        };
        match self.create_file(name) {
            Ok(mut file) => file.write_all(bytes).map_err(|error| {
                // Half of it would stay for ever.
                let _ = self.remove(name);
                failure(error)
            }),
            Err(Errno::EXIST) => Ok(()),
            Err(error) => Err(failure(error.into())),
        }
    }

    /// Renames below this directory, replacing what is there.
    ///
    /// # Errors
    /// Nothing has changed then.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), StoreError> {
        rustix::fs::renameat(&self.fd, from, &self.fd, to)
            .map_err(|error| failed("move", &self.path.join(from), error))
    }

    /// Moves a file to another directory of the same file system.
    ///
    /// # Errors
    /// Nothing has changed then.
    pub fn move_to(&self, name: &str, other: &Directory) -> Result<(), StoreError> {
        rustix::fs::renameat(&self.fd, name, &other.fd, name)
            .map_err(|error| failed("move", &self.path.join(name), error))
    }

    /// Removes a file or link. Tells whether there was one.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(&self, name: &str) -> Result<bool, StoreError> {
        match rustix::fs::unlinkat(&self.fd, name, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(failed("remove", &self.path.join(name), error)),
        }
    }

    /// Removes a directory if it is empty.
    pub fn remove_directory(&self, name: &str) {
        let _ = rustix::fs::unlinkat(&self.fd, name, AtFlags::REMOVEDIR);
    }

    /// The size of a regular file in bytes; None for anything else.
    pub fn size(&self, name: &str) -> Option<u64> {
        let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        (FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile)
            .then(|| u64::try_from(stat.st_size).ok())?
    }

    /// When a file was last written, moved or otherwise changed, in milliseconds since 1970.
    pub fn changed_ms(&self, name: &str) -> Option<u64> {
        let stat = rustix::fs::statat(&self.fd, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
        let seconds = u64::try_from(stat.st_ctime).ok()?;
        Some(seconds * 1000 + stat.st_ctime_nsec as u64 / 1_000_000)
    }

    /// The names of all entries that are UTF-8, as all of ours are.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        let failure = |error| failed("list", &self.path, error);
        let mut names = Vec::new();
        for entry in Dir::read_from(self.fd.as_fd()).map_err(failure)? {
            let entry = entry.map_err(failure)?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.extend(OsStr::from_bytes(name).to_str().map(str::to_owned));
            }
        }
        Ok(names)
    }
}

/// Refuses what is no regular file, or another user's.
fn own_file(fd: &OwnedFd) -> io::Result<rustix::fs::Stat> {
    let stat = rustix::fs::fstat(fd)?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(io::Error::other("it is not a regular file"));
    }
    if stat.st_uid != rustix::process::geteuid().as_raw() {
        return Err(io::Error::other("it belongs to another user"));
    }
    Ok(stat)
}

fn failed(action: &'static str, path: &Path, error: Errno) -> StoreError {
    StoreError {
        action,
        path: path.to_owned(),
        error: error.into(),
    }
}
