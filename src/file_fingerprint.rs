//! What tells that a file is still the one that was read: which it is, its size and its times.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

const SETTLED_SECONDS: i64 = 2;

/// Device and inode.
pub type FileId = (u64, u64);

/// What a file is known by on one host. It serves to notice changes and is in no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFingerprint {
    /// Which it is.
    pub file: FileId,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileFingerprint {
    /// By what the system says of the file.
    pub fn of(metadata: &Metadata) -> FileFingerprint {
        FileFingerprint {
            file: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// Of what a path leads to; None: nothing is there.
    pub fn at(path: &Path) -> Option<FileFingerprint> {
        Some(FileFingerprint::of(&std::fs::metadata(path).ok()?))
    }

    /// Whether the file cannot change any more without a change of its times.
    pub fn is_settled(&self) -> bool {
        let now = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .map_or(0, |since| since.as_secs() as i64);
        now - self.changed_at() > SETTLED_SECONDS
    }

    /// When it last changed in any way, in seconds since 1970.
    pub fn changed_at(&self) -> i64 {
        self.changed.0.max(self.modified.0)
    }
}
