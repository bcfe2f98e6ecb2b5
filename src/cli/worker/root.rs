//! The private directory of one worker. It is locked as long as it is in use, so that the next baker can tell and clear away what
//! one that was killed has left.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, Mode, flock, openat};
use tempfile::TempDir;

use crate::trust;

const PREFIX: &str = "oclcache-bake-";
/// A file in each, which tells it from what others may have called so.
const MARK: &str = ".made-by-oclcache";
/// How often one is made: another baker may clear it away before it is locked.
const ATTEMPTS: u32 = 5;

/// A private directory, removed when it is dropped.
pub struct Root {
    directory: TempDir,
    /// A child that is just being started has it as well, for a moment.
    _lock: File,
}

impl Root {
    /// Makes one.
    ///
    /// # Errors
    /// It cannot be made, or not be locked.
    pub fn new() -> io::Result<Root> {
        for _ in 0..ATTEMPTS {
            let directory = tempfile::Builder::new()
                .prefix(PREFIX)
                .permissions(Permissions::from_mode(0o700))
                .tempdir()?;
            File::create_new(directory.path().join(MARK))?;
            if let Some(lock) = lock(directory.path())
                && directory.path().exists()
            {
                return Ok(Root {
                    directory,
                    _lock: lock,
                });
            }
        }
        Err(io::Error::other("a directory for it is in use"))
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

/// Opens and locks a directory; None: somebody uses it, or it is none.
fn lock(path: &Path) -> Option<File> {
    let flags = trust::FILE | rustix::fs::OFlags::DIRECTORY;
    let opened = openat(CWD, path, flags, Mode::empty()).ok()?;
    flock(&opened, FlockOperation::NonBlockingLockExclusive).ok()?;
    Some(opened.into())
}

/// Removes what bakers of this user have left that were killed.
#[allow(clippy::disallowed_methods)] // where they were made, each for its owner only
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
            let _ = std::fs::remove_dir_all(&path);
        }
    }
}
