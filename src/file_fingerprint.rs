//! Detects that a file has changed since it was read: by its identity, size and times.
//!
//! What proves a change is the time of the last change (`st_ctime`): programs set the other times as they like, but this one is the
//! kernel's or the server's clock. That holds where this kernel or a server has written the file. It does not on an image, which has
//! the times that its maker chose: a reproducible image has one time for all files, and its next version has the device, inodes,
//! sizes and times of this one (measured: squashfs made with `-all-time`, mounted at the same loop device). So what later processes
//! may conclude from an equal fingerprint depends on the file system ([`FileSystem::change_time_at`]) and on the time:
//!
//! - Parts of a second: a clock has set it. It is trusted for good. So is what containers have on overlays over ext4 or XFS,
//!   whatever times their packages set, because unpacking is a change.
//! - Whole seconds where this kernel counts parts: it comes from an image, such as a squashfs, also below an overlay, or an ext4
//!   made from a directory, as virtual machines have (measured: Firecracker). A kernel's clock gives this once in millions of
//!   changes. It is trusted while the same mount lasts ([`MountIdentity`]): each later change is one of the kernel's.
//! - Whole seconds of a server that may count parts, as NFS: it may export an image, so later processes do not trust it. Lustre and
//!   BeeGFS always keep whole seconds and are trusted, with the two seconds that a change must be old.
//! - File systems in user space and unknown ones: CVMFS and sshfs answer with the time of the last modification. Later processes do
//!   not trust it.
//!
//! Within a process, fingerprints are compared on all file systems.

use std::collections::HashMap;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{AtFlags, CWD, Stat, StatxFlags, statx};
use serde::{Deserialize, Serialize};

use crate::filesystem::{ChangeTime, FileSystem};
use crate::host;

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

/// Seconds since 1970.
#[derive(Clone, Copy, Debug)]
pub struct Seconds(i64);

impl Seconds {
    /// The present time.
    pub fn now() -> Seconds {
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        Seconds(since.map_or(0, |since| since.as_secs() as i64))
    }
}

/// So that what derives its default begins now.
impl Default for Seconds {
    fn default() -> Seconds {
        Seconds::now()
    }
}

/// How long every change of a file shows in its fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Validity {
    /// Not at all: it has just changed, and may change again within the resolution of its times.
    Moment,
    /// In this process, and nobody knows of later ones.
    Process,
    /// While the file system stays mounted.
    Mount,
    /// For good.
    Lasting,
}

/// Who sets the time of a change, by device. Each file system is asked once.
#[derive(Default)]
pub struct FileSystems(HashMap<u64, ChangeTime>);

/// A mount, told from all others of this host. The usual number of a mount would not do: the kernel gives it to the next one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MountIdentity {
    /// When the system was started, as a random number, and the name of the host: clones of a virtual machine have one number.
    boot: Vec<u8>,
    number: u64,
}

impl MountIdentity {
    /// The mount of the file at this path. None: the kernel is older than 6.8 and does not tell.
    pub fn at(path: &Path) -> Option<MountIdentity> {
        const UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000); // STATX_MNT_ID_UNIQUE
        let found = statx(CWD, path, AtFlags::empty(), UNIQUE).ok()?;
        // QEMU's emulation of processes gives the flag and no number (measured on 7.2).
        if found.stx_mask & UNIQUE.bits() == 0 || found.stx_mnt_id == 0 {
            return None;
        }
        Some(MountIdentity {
            boot: [host::boot()?, host::name()].concat(),
            number: found.stx_mnt_id,
        })
    }
}

impl FileSystems {
    fn change_time(&mut self, state: &FileFingerprint, path: &Path) -> ChangeTime {
        let known = self.0.entry(state.file.0);
        *known.or_insert_with(|| FileSystem::change_time_at(path))
    }

    /// The latest time at which the file at this path, which has this fingerprint, was last changed, in nanoseconds since 1970. None if
    /// anybody but this kernel sets that time.
    pub fn kernels_change_time(&mut self, state: &FileFingerprint, path: &Path) -> Option<i128> {
        let (seconds, nanoseconds) = state.changed;
        // Old inodes of ext4 have no room for parts.
        let nanoseconds = match nanoseconds {
            0 => 1_000_000_000,
            parts => parts,
        };
        let is_kernels = self.change_time(state, path) == ChangeTime::Kernel;
        is_kernels.then(|| i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds))
    }
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

    /// The fingerprint of a file with these facts.
    pub fn of_stat(stat: &Stat) -> FileFingerprint {
        FileFingerprint {
            file: (stat.st_dev, stat.st_ino),
            size: u64::try_from(stat.st_size).unwrap_or(0),
            modified: (stat.st_mtime, stat.st_mtime_nsec as i64),
            changed: (stat.st_ctime, stat.st_ctime_nsec as i64),
        }
    }

    /// The fingerprint of the file that a path leads to; None if there is none.
    pub fn at(path: &Path) -> Option<FileFingerprint> {
        Some(FileFingerprint::of(&std::fs::metadata(path).ok()?))
    }

    /// The size that the file system tells.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// How long every change of the file at this path, which has this fingerprint, shows in it. `seen`: when it was seen, or
    /// before. Reading takes seconds, after which a fresh file would look settled.
    pub fn validity(&self, path: &Path, seen: Seconds, systems: &mut FileSystems) -> Validity {
        self.validity_at(seen.0, systems.change_time(self, path))
    }

    /// How long every change of a file with this fingerprint shows in it. `now`: seconds since 1970; `change_time`: of its file system.
    pub fn validity_at(&self, now: i64, change_time: ChangeTime) -> Validity {
        let has_parts = self.changed.1 != 0;
        let validity = match change_time {
            ChangeTime::Kernel | ChangeTime::Server if has_parts => Validity::Lasting,
            ChangeTime::ServerSeconds => Validity::Lasting,
            ChangeTime::Kernel => Validity::Mount,
            ChangeTime::Server | ChangeTime::Foreign => Validity::Process,
        };
        let changed = match validity {
            // Programs may set the other time to any value, also one in the future.
            Validity::Lasting => self.changed.0,
            _ => self.changed.0.max(self.modified.0),
        };
        match now - changed > SETTLED_SECONDS {
            true => validity,
            false => Validity::Moment,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(modified: (i64, i64), changed: (i64, i64)) -> FileFingerprint {
        FileFingerprint {
            file: (1, 2),
            size: 3,
            modified,
            changed,
        }
    }

    #[test]
    fn only_a_time_that_a_clock_has_set_is_trusted_in_later_processes() {
        use ChangeTime::{Foreign, Kernel, Server, ServerSeconds};
        use Validity::{Lasting, Moment, Mount, Process};
        let now = 1_000_000;
        for (state, change_time, expected) in [
            (at((1, 0), (900, 5)), Kernel, Lasting),
            (at((1, 0), (900, 5)), Server, Lasting),
            (at((900, 0), (900, 0)), ServerSeconds, Lasting),
            // Squashfs, also below an overlay, or an image of ext4 that was made from a directory.
            (at((1, 0), (1, 0)), Kernel, Mount),
            (at((1, 0), (1, 0)), Server, Process),
            (at((900, 5), (900, 5)), Foreign, Process),
            (at((1, 0), (now - 2, 5)), Kernel, Moment),
            (at((1, 0), (now - 2, 0)), ServerSeconds, Moment),
            (at((1, 0), (now - 3, 5)), Kernel, Lasting),
            // A program may set it to any value.
            (at((now + 99, 0), (900, 5)), Kernel, Lasting),
            (at((now + 99, 0), (900, 0)), ServerSeconds, Lasting),
            (at((now - 2, 5), (900, 5)), Foreign, Moment),
            (at((now - 2, 5), (900, 0)), Kernel, Moment),
            (at((1, 0), (now + 99, 5)), Kernel, Moment),
        ] {
            let found = state.validity_at(now, change_time);
            assert_eq!(found, expected, "{state:?}, {change_time:?}");
        }
    }

    #[test]
    fn file_systems_without_files_of_their_own_set_no_times() {
        let mut systems = FileSystems::default();
        let path = Path::new("/proc/self/status");
        let state = FileFingerprint::at(path).expect("a file");
        assert!(state.validity(path, Seconds::now(), &mut systems) <= Validity::Process);
        assert_eq!(systems.0.get(&state.file.0), Some(&ChangeTime::Foreign));
    }

    #[test]
    fn a_mount_is_told_from_others() {
        let root = MountIdentity::at(Path::new("/"));
        assert_eq!(MountIdentity::at(Path::new("/")), root);
        if root.is_some() {
            assert_ne!(MountIdentity::at(Path::new("/proc")), root);
        }
        assert_eq!(MountIdentity::at(Path::new("/no such file")), None);
    }
}
