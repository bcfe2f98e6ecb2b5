//! Detects that a file has changed since it was read: by its identity, size and times.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

const SETTLED_SECONDS: i64 = 2;

/// Device and inode.
pub type FileId = (u64, u64);

/// Identifies a state of a file on one host. It serves to notice changes, and no key contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileFingerprint {
    /// Device and inode.
    pub file: FileId,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileFingerprint {
    /// The fingerprint of a file with these metadata.
    pub fn of(metadata: &Metadata) -> FileFingerprint {
        FileFingerprint {
            file: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// The fingerprint of the file that a path leads to; None if there is none.
    pub fn at(path: &Path) -> Option<FileFingerprint> {
        Some(FileFingerprint::of(&std::fs::metadata(path).ok()?))
    }

    /// Whether every later change of the file will change its times.
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
