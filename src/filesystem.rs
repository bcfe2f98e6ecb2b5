//! The file system of a file or directory, and which guarantees it gives.

use std::fmt;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{StatFs, fstatfs, statfs};

/// Which guarantees a file system gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// All guarantees: it is on this host.
    Local,
    /// Other hosts may have it mounted, or a server in user space answers: locks, atomic appends and the visibility of new files
    /// are not guaranteed.
    Network,
    /// It is not known here, and treated as local.
    Unknown,
}

/// Who sets the time of a file's last change (`st_ctime`). Programs can set it nowhere but on file systems of the last kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeTime {
    /// This kernel, with parts of a second. An image of such a file system may bring other times along, mostly whole seconds.
    Kernel,
    /// The server, with parts of a second if its file system has them.
    Server,
    /// The server, in whole seconds.
    ServerSeconds,
    /// A program in user space that answers for the file system, or the file system is not known here.
    Foreign,
}

const EXT: u32 = 0xef53;
const XFS: u32 = 0x5846_5342;
const TMPFS: u32 = 0x0102_1994;
const RAMFS: u32 = 0x8584_58f6;
const OVERLAY: u32 = 0x794c_7630;

/// The kinds that are known, by `f_type` of statfs(2): names and numbers of the kernel's include/uapi/linux/magic.h. ZFS,
/// Lustre, GPFS, BeeGFS, PanFS, StorNext, VMware's and GFS2 are not there; theirs are those that stat(1) of the GNU coreutils
/// knows (src/stat.c, which says "remote" of them as well), ZFS's that of OpenZFS.
///
/// A FUSE server may answer with any times: sshfs and CVMFS give that of the last modification for that of the last change. AFS does
/// so as well (fs/afs/inode.c). Lustre and BeeGFS keep whole seconds.
const KNOWN: [(u32, &str, Kind, ChangeTime); 32] = [
    (EXT, "ext", Kind::Local, ChangeTime::Kernel), // 2, 3 and 4 have one number
    (XFS, "xfs", Kind::Local, ChangeTime::Kernel),
    (TMPFS, "tmpfs", Kind::Local, ChangeTime::Kernel),
    (0x2405_1905, "ubifs", Kind::Local, ChangeTime::Kernel),
    (0x7371_7368, "squashfs", Kind::Local, ChangeTime::Kernel), // whole seconds, and nobody writes
    (RAMFS, "ramfs", Kind::Local, ChangeTime::Kernel),
    (0x9123_683e, "btrfs", Kind::Local, ChangeTime::Kernel),
    (0xca45_1a4e, "bcachefs", Kind::Local, ChangeTime::Kernel),
    (0x2fc1_2fc1, "zfs", Kind::Local, ChangeTime::Kernel),
    (0xf2f5_2010, "f2fs", Kind::Local, ChangeTime::Kernel),
    (OVERLAY, "overlay", Kind::Local, ChangeTime::Kernel),
    (0x6969, "nfs", Kind::Network, ChangeTime::Server),
    (0x517b, "smb", Kind::Network, ChangeTime::Server),
    (0xff53_4d42, "cifs", Kind::Network, ChangeTime::Server),
    (0xfe53_4d42, "smb2", Kind::Network, ChangeTime::Server),
    (0x0102_1997, "9p", Kind::Network, ChangeTime::Foreign),
    (0x6573_5546, "fuse", Kind::Network, ChangeTime::Foreign), // virtiofs, sshfs and the like, too
    (0x00c3_6400, "ceph", Kind::Network, ChangeTime::Server),
    (
        0x0bd0_0bd0,
        "lustre",
        Kind::Network,
        ChangeTime::ServerSeconds,
    ),
    (0x4750_4653, "gpfs", Kind::Network, ChangeTime::Server),
    (
        0x1983_0326,
        "beegfs",
        Kind::Network,
        ChangeTime::ServerSeconds,
    ),
    (0x5346_414f, "afs", Kind::Network, ChangeTime::Foreign),
    (0x6b41_4653, "afs", Kind::Network, ChangeTime::Foreign),
    (0x7375_7245, "coda", Kind::Network, ChangeTime::Foreign),
    (0xaad7_aaea, "panfs", Kind::Network, ChangeTime::Server),
    (0xbeef_dead, "snfs", Kind::Network, ChangeTime::Server),
    (0xbacb_acbc, "vmhgfs", Kind::Network, ChangeTime::Foreign),
    (0x786f_4256, "vboxsf", Kind::Network, ChangeTime::Foreign),
    (0x7c7c_6673, "prl_fs", Kind::Network, ChangeTime::Foreign),
    (0x0116_1970, "gfs2", Kind::Network, ChangeTime::Server), // one disk for many hosts
    (0x7461_636f, "ocfs2", Kind::Network, ChangeTime::Server),
    (0x564c, "ncp", Kind::Network, ChangeTime::Foreign),
];

/// The file system of a file or directory. Displays its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSystem {
    /// `f_type`; 0 if the system does not tell.
    magic: u32,
    name: Option<&'static str>,
    kind: Kind,
    change_time: ChangeTime,
}

impl FileSystem {
    /// The file system of an open file or directory.
    pub fn of(file: impl AsFd) -> FileSystem {
        FileSystem::from_magic(fstatfs(file).map_or(0, |found| magic(&found)))
    }

    /// The file system of a path, or of its nearest parent that exists.
    pub fn at(path: &Path) -> FileSystem {
        let found = path
            .ancestors()
            .find_map(|path| statfs(path).ok())
            .map_or(0, |found| magic(&found));
        FileSystem::from_magic(found)
    }

    /// Who sets the time of a change of this file. Foreign if the system does not tell.
    pub fn change_time_at(path: &Path) -> ChangeTime {
        let found = statfs(path).map_or(0, |found| magic(&found));
        FileSystem::from_magic(found).change_time
    }

    /// Who sets the time of a change of its files.
    pub fn change_time(self) -> ChangeTime {
        self.change_time
    }

    /// Whether the blocks of a file stay what they are until somebody changes the file. Other file systems allocate, compress or
    /// share them later.
    pub fn keeps_blocks(self) -> bool {
        matches!(self.magic, EXT | XFS | TMPFS | RAMFS)
    }

    /// Whether it lays directories over each other, as the roots of containers.
    pub fn is_overlay(self) -> bool {
        self.magic == OVERLAY
    }

    /// Its name, and which guarantees are missing, for people.
    pub fn described(self) -> String {
        match self.kind {
            Kind::Local | Kind::Unknown => self.to_string(),
            Kind::Network => format!("{self}: no locks relied on"),
        }
    }

    fn from_magic(magic: u32) -> FileSystem {
        let known = KNOWN.iter().find(|(number, ..)| *number == magic);
        FileSystem {
            magic,
            name: known.map(|(_, name, ..)| *name),
            kind: known.map_or(Kind::Unknown, |(_, _, kind, _)| *kind),
            change_time: known.map_or(ChangeTime::Foreign, |(.., time)| *time),
        }
    }

    /// Whether it is in memory: writing waits for no disk and no server.
    pub fn is_in_memory(self) -> bool {
        matches!(self.magic, TMPFS | RAMFS)
    }

    /// Whether other hosts or an unknown server may take part: then locks in it and atomic appends are not relied on.
    pub fn is_network(self) -> bool {
        self.kind == Kind::Network
    }
}

/// The low 32 bits: the field is signed on some platforms and wider on others.
fn magic(found: &StatFs) -> u32 {
    found.f_type as u32
}

impl fmt::Display for FileSystem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name {
            Some(name) => f.write_str(name),
            None if self.magic == 0 => f.write_str("unknown"),
            None => write!(f, "unknown ({:#x})", self.magic),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_relied_on_follows_from_the_kind() {
        for (magic, name, is_network) in [
            (0xef53, "ext", false),
            (0x0102_1994, "tmpfs", false),
            (0x794c_7630, "overlay", false),
            (0x9123_683e, "btrfs", false),
            (0x6969, "nfs", true),
            (0xff53_4d42, "cifs", true),
            (0x6573_5546, "fuse", true),
            (0x4d44, "unknown (0x4d44)", false),
            (0, "unknown", false),
        ] {
            let found = FileSystem::from_magic(magic);
            assert_eq!(found.to_string(), name);
            assert_eq!(found.described() == name, !is_network);
            assert_eq!(found.is_network(), is_network, "{name}");
        }
    }

    #[test]
    fn of_a_path_that_is_not_there_yet_it_is_that_of_the_directory_above() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let open = std::fs::File::open(directory.path()).expect("opened");
        let missing = directory.path().join("not/yet");
        assert_eq!(FileSystem::at(&missing), FileSystem::of(&open));
        // stat(1) has the same numbers, and other names for some.
        let magic = std::process::Command::new("stat")
            .args(["-f", "-c", "%t"])
            .arg(directory.path())
            .output()
            .expect("stat runs");
        let magic = String::from_utf8_lossy(&magic.stdout);
        assert_eq!(
            u32::from_str_radix(magic.trim(), 16),
            Ok(FileSystem::of(&open).magic)
        );
    }
}
