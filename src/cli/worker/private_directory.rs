//! The private directory of one worker. It is locked while it is in use, so that a later command can tell which directories killed
//! commands have left, and remove them.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, Mode, flock, openat};
use tempfile::TempDir;

use crate::store::live;
use crate::trust;

const PREFIX: &str = "oclcache-bake-";
/// A file in each directory that marks it as ours.
pub const MARK: &str = ".made-by-oclcache";
/// How often to try to make a directory: another command may remove it before it is locked.
const MAX_ATTEMPTS: u32 = 5;

/// A private directory, removed when it is dropped.
pub struct PrivateDirectory {
    directory: TempDir,
    /// A child that is being started holds it as well, for a moment.
    _lock: File,
}

impl PrivateDirectory {
    /// Makes a private directory.
    ///
    /// # Errors
    /// It cannot be made or locked.
    pub fn new() -> io::Result<PrivateDirectory> {
        for _ in 0..MAX_ATTEMPTS {
            let directory = tempfile::Builder::new()
                .prefix(PREFIX)
                .permissions(Permissions::from_mode(0o700))
                .tempdir()?;
            File::create_new(directory.path().join(MARK))?;
            if let Some(lock) = lock(directory.path())
                && directory.path().exists()
            {
                return Ok(PrivateDirectory {
                    directory,
                    _lock: lock,
                });
            }
        }
        Err(io::Error::other("the private directory is in use"))
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for PrivateDirectory {
    fn drop(&mut self) {
        forget_caches(self.path());
    }
}

/// Removes what caches below a private directory have in memory.
fn forget_caches(private: &Path) {
    let below = std::fs::read_dir(private).into_iter().flatten().flatten();
    for cache in below.map(|entry| entry.path()).filter(|path| path.is_dir()) {
        live::forget(&cache);
    }
}

/// Opens and locks a directory; None if it is in use or is not a directory.
fn lock(path: &Path) -> Option<File> {
    let flags = trust::FILE | rustix::fs::OFlags::DIRECTORY;
    let opened = openat(CWD, path, flags, Mode::empty()).ok()?;
    flock(&opened, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(opened.into())
}

/// Removes the directories that this user's killed commands have left.
#[allow(clippy::disallowed_methods)] // they were made in it, each for its owner only
pub fn clear_leftovers() {
    let user = rustix::process::geteuid().as_raw();
    let entries = std::fs::read_dir(std::env::temp_dir());
    let is_left = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let of_user = |path: &PathBuf| path.symlink_metadata().is_ok_and(|it| it.uid() == user);
        name.starts_with(PREFIX) && of_user(path) && path.join(MARK).symlink_metadata().is_ok()
    };
    let paths = entries.into_iter().flatten().flatten();
    for path in paths.map(|entry| entry.path()).filter(is_left) {
        if let Some(_lock) = lock(&path) {
            forget_caches(&path);
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}
