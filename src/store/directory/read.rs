//! Reads files of a directory.

use std::io;
use std::os::fd::AsFd;

use rustix::fs::{FileType, OFlags};
use rustix::io::Errno;

use super::{Directory, FILE, FileFacts, NO_FILE, check_directory, unfit};

const TOO_LARGE: &str = "it is too large";

impl Directory {
    /// The whole content of a file, and facts about it; None if it does not exist.
    ///
    /// # Errors
    /// [`io::ErrorKind::InvalidData`]: it is a link, not a regular file, another user's, or has `limit` bytes or more. Any other
    /// error is that of the system, which may be temporary.
    pub fn read_with_facts(
        &self,
        name: &str,
        limit: u64,
    ) -> io::Result<Option<(Vec<u8>, FileFacts)>> {
        let fd = match self.open_at(name, FILE | OFlags::RDONLY) {
            Ok(fd) => fd,
            Err(Errno::NOENT | Errno::STALE) => return Ok(None),
            // A link; a socket or a device without a driver.
            Err(Errno::LOOP | Errno::NXIO | Errno::NODEV) => return Err(unfit(NO_FILE)),
            Err(error) => return Err(error.into()),
        };
        let facts = match self.own_file(fd.as_fd()) {
            Err(error) if error.raw_os_error() == Some(Errno::STALE.raw_os_error()) => {
                return Ok(None);
            }
            facts => facts?,
        };
        if facts.size >= limit {
            return Err(unfit(TOO_LARGE));
        }
        let mut bytes = Vec::new();
        // One byte more, so that the read that finds the end does not grow the buffer.
        bytes.try_reserve_exact(facts.size as usize + 1)?;
        while (bytes.len() as u64) < limit {
            if bytes.len() == bytes.capacity() {
                bytes.try_reserve(1 << 16)?; // it grew since
            }
            match self.disk.read(fd.as_fd(), &mut bytes) {
                Ok(0) => return Ok(Some((bytes, facts))),
                // The buffer had room for more, so this is the end.
                Ok(_) if bytes.len() as u64 == facts.size => return Ok(Some((bytes, facts))),
                Ok(_) | Err(Errno::INTR) => {}
                // Removed on a network file system while it was read.
                Err(Errno::STALE) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Err(unfit(TOO_LARGE))
    }

    /// The same for a file below directories, which are looked at and not opened: that takes four calls less. None also if one of them
    /// does not exist or is something else.
    ///
    /// # Errors
    /// As there; and [`io::ErrorKind::PermissionDenied`]: somebody else can change a directory, and could put a link there to another
    /// file of this user.
    pub fn read_below(
        &self,
        directories: &[&str],
        name: &str,
        limit: u64,
    ) -> io::Result<Option<(Vec<u8>, FileFacts)>> {
        let mut path = String::new();
        for directory in directories {
            path += directory;
            match self.stat(&path) {
                // A link is not followed. After this look only those who pass the check can put one in the place of a directory.
                Ok(stat) if !FileType::from_raw_mode(stat.st_mode).is_dir() => return Ok(None),
                Ok(stat) => check_directory(&stat, &self.others)?,
                Err(Errno::NOENT | Errno::NOTDIR | Errno::STALE) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
            path += "/";
        }
        self.read_with_facts(&(path + name), limit)
    }

    /// The whole content of a file; None if it does not exist.
    ///
    /// # Errors
    /// See [`Directory::read_with_facts`].
    pub fn read(&self, name: &str, limit: u64) -> io::Result<Option<Vec<u8>>> {
        let read = self.read_with_facts(name, limit)?;
        Ok(read.map(|(bytes, _)| bytes))
    }

    /// The first bytes of a file, at most `limit`; None if it is not a regular file of this user.
    pub fn read_start(&self, name: &str, limit: usize) -> Option<Vec<u8>> {
        Some(self.read_start_with_facts(name, limit)?.0)
    }

    /// The same with facts about the file.
    pub fn read_start_with_facts(&self, name: &str, limit: usize) -> Option<(Vec<u8>, FileFacts)> {
        let fd = self.open_at(name, FILE | OFlags::RDONLY).ok()?;
        let facts = self.own_file(fd.as_fd()).ok()?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(limit).ok()?;
        while bytes.len() < bytes.capacity() {
            match self.disk.read(fd.as_fd(), &mut bytes) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return None,
            }
        }
        bytes.truncate(limit);
        Some((bytes, facts))
    }

    /// Opens a regular file of this user to read it in parts.
    ///
    /// # Errors
    /// There is none, or it cannot be opened.
    pub fn open_to_read(&self, name: &str) -> io::Result<std::fs::File> {
        let fd = self.open_at(name, FILE | OFlags::RDONLY)?;
        self.own_file(fd.as_fd())?;
        Ok(fd.into())
    }

    /// Whether a regular file begins with these bytes.
    pub fn begins_with(&self, name: &str, magic: &[u8]) -> bool {
        self.read_start(name, magic.len())
            .is_some_and(|start| start == magic)
    }
}
