//! What is known of a file without reading it.

use rustix::fs::{FileType, Stat};

/// What is known of a regular file without reading it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileFacts {
    /// Its length, in bytes.
    pub size: u64,
    /// Its size on the disk, in bytes: its blocks.
    pub allocated: u64,
    /// When it was last modified, in milliseconds since 1970. The time of an entry is that of its last use, or nearly.
    pub modified_ms: u64,
    /// Which file it is, on its file system.
    pub inode: u64,
    /// Whether its owner may write it.
    pub is_writable: bool,
}

impl FileFacts {
    /// The size on the disk. File systems may say 0 for new files, until they have chosen blocks.
    pub fn taken(&self) -> u64 {
        self.allocated.max(self.size)
    }

    pub(super) fn of(stat: &Stat) -> Option<FileFacts> {
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return None;
        }
        let blocks = u64::try_from(stat.st_blocks).unwrap_or(0);
        Some(FileFacts {
            size: u64::try_from(stat.st_size).ok()?,
            allocated: blocks.saturating_mul(512),
            modified_ms: milliseconds(stat.st_mtime, stat.st_mtime_nsec as i64),
            inode: stat.st_ino,
            is_writable: stat.st_mode & 0o200 != 0,
        })
    }
}

/// A time in milliseconds since 1970.
pub(super) fn milliseconds(seconds: i64, nanoseconds: i64) -> u64 {
    let whole = seconds.saturating_mul(1000);
    u64::try_from(whole.saturating_add(nanoseconds / 1_000_000)).unwrap_or(0)
}
