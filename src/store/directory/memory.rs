//! Directories on file systems in memory, see `live`.

use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{CWD, Mode, OFlags};
use rustix::io::retry_on_intr;

use super::{DIRECTORY, Directory, PRIVATE, is_owner};
use crate::filesystem::FileSystem;

impl Directory {
    /// Directories that may be on a file system in memory.
    pub fn places_in_memory(&self) -> Vec<PathBuf> {
        self.disk.places_in_memory()
    }

    /// Opens a directory that is in memory and that only this user may enter, on the disk of this one. None if it is not such a
    /// directory.
    pub fn open_in_memory(&self, path: &Path) -> Option<Directory> {
        let fd = retry_on_intr(|| self.disk.open(CWD, path, DIRECTORY, Mode::empty())).ok()?;
        let stat = retry_on_intr(|| self.disk.stat_of(fd.as_fd())).ok()?;
        if stat.st_mode & 0o077 != 0 || !FileSystem::of(&fd).is_in_memory() {
            return None;
        }
        let (disk, path) = (self.disk.clone(), path.to_owned());
        let directory = Directory::with_state(disk, fd, &stat, path, Arc::default(), PRIVATE);
        let directory = directory.ok()?;
        Some(Directory {
            is_in_memory: true,
            ..directory
        })
    }

    /// Makes such a directory. Its parent is in memory, and other users cannot rename what is in it. None if that is not so, or
    /// there is no room.
    pub fn make_in_memory(&self, path: &Path) -> Option<Directory> {
        let parent = path.parent()?;
        let flags = DIRECTORY - OFlags::NOFOLLOW;
        let fd = retry_on_intr(|| self.disk.open(CWD, parent, flags, Mode::empty())).ok()?;
        let stat = retry_on_intr(|| self.disk.stat_of(fd.as_fd())).ok()?;
        let is_shared_safely = stat.st_mode & 0o1000 != 0 && stat.st_uid == 0;
        let is_own = is_owner(stat.st_uid, &[]) && stat.st_mode & 0o022 == 0;
        if !FileSystem::of(&fd).is_in_memory() || !is_shared_safely && !is_own {
            return None;
        }
        let mode = Mode::from_raw_mode(PRIVATE);
        let _ = retry_on_intr(|| self.disk.make_directory(CWD, path, mode));
        self.open_in_memory(path)
    }

    /// Removes this directory, which has this path, if it is empty.
    pub fn remove_itself(&self) {
        let _ = retry_on_intr(|| self.disk.remove_directory(CWD, &self.path));
    }
}
