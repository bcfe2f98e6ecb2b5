//! What tells that a file is still the one that was read: which it is, its size and its times.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;

use serde::{Deserialize, Serialize};

/// Device and inode.
pub type FileId = (u64, u64);

/// What a file is known by on one host. It serves to notice changes and is in no key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stamp {
    /// Which it is.
    pub file: FileId,
    size: u64,
    modified: (i64, i64),
    changed: (i64, i64),
}

impl Stamp {
    /// By what the system says of the file.
    pub fn of(metadata: &Metadata) -> Stamp {
        Stamp {
            file: (metadata.dev(), metadata.ino()),
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
        }
    }

    /// When it last changed in any way, in seconds since 1970.
    pub fn changed_at(&self) -> i64 {
        self.changed.0.max(self.modified.0)
    }
}
