//! Walks through a cache's directory: counts or removes the files of the cache, and lists foreign files.
//!
//! All operations are on names in open directories, none of which was reached by a link. What is on another file system or belongs to
//! another user is foreign, whatever its name.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;
use rustix::fs::{AtFlags, Dir, FileType, Mode, Statx, StatxAttributes, StatxFlags};
use rustix::io::{Errno, retry_on_intr};

use crate::cli::other_caches::environment::DIRECTORY;
use crate::cli::other_caches::structure::{FileKind, Node};
use crate::cli::other_caches::table::CachePath;

/// The result of a walk.
#[derive(Default)]
pub struct WalkResult {
    /// Files and links of the cache.
    pub files: u64,
    /// Their disk space, in bytes.
    pub bytes: u64,
    /// When the latest of them was written, in milliseconds since 1970.
    pub newest: Option<u64>,
    /// When the earliest of them was written.
    pub oldest: Option<u64>,
    /// Whether one of them has a name that only this cache uses.
    pub is_recognized: bool,
    /// What does not belong to the cache.
    pub foreign: Vec<PathBuf>,
    /// What could not be listed or removed.
    pub failed: Vec<(PathBuf, io::Error)>,
}

/// What to do with the files of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WalkAction {
    /// Count them.
    Look,
    /// Remove them.
    Remove,
}

/// Walks through a directory. The bar moves with each file.
///
/// # Errors
/// Why the directory cannot be used.
pub fn through(
    directory: &OwnedFd,
    path: &Path,
    place: &CachePath,
    action: WalkAction,
    bar: &ProgressBar,
) -> Result<WalkResult, String> {
    let user = rustix::process::geteuid().as_raw();
    let stat = examine(directory.as_fd(), OsStr::new(""))
        .map_err(|error| format!("it cannot be examined: {}", io::Error::from(error)))?;
    if stat.stx_uid != user {
        return Err(format!(
            "it belongs to another user, {}; run this as that user",
            stat.stx_uid
        ));
    }
    let mut walk = Walk {
        action,
        user,
        is_shared: place.is_shared,
        device: (stat.stx_dev_major, stat.stx_dev_minor),
        bar,
        found: WalkResult::default(),
    };
    walk.directory(directory, path, place.tree, 0);
    Ok(walk.found)
}

struct Walk<'a> {
    action: WalkAction,
    user: u32,
    /// Foreign files at the top are not listed.
    is_shared: bool,
    /// The file system.
    device: (u32, u32),
    bar: &'a ProgressBar,
    found: WalkResult,
}

impl Walk<'_> {
    fn directory(&mut self, directory: &OwnedFd, path: &Path, nodes: &[Node], depth: usize) {
        let names = match list(directory) {
            Ok(names) => names,
            Err(error) => return self.fail(path.to_owned(), error),
        };
        for name in names {
            let path = path.join(&name);
            let stat = match examine(directory.as_fd(), &name) {
                Ok(stat) => stat,
                Err(Errno::NOENT) => continue, // removed meanwhile
                Err(error) => {
                    self.fail(path, error);
                    continue;
                }
            };
            let file_type = FileType::from_raw_mode(stat.stx_mode.into());
            let node = self.is_ours(&stat).then(|| choose(nodes, &name, file_type));
            match node.flatten().map(|node| node.kind) {
                Some(FileKind::Directory(below)) => {
                    self.below(directory, &name, &path, below, depth)
                }
                Some(kind) => {
                    self.found.is_recognized |= matches!(kind, FileKind::Own);
                    self.file(directory, &name, path, &stat);
                }
                None if self.is_shared && depth == 0 => {}
                None => self.found.foreign.push(path),
            }
        }
    }

    fn below(
        &mut self,
        directory: &OwnedFd,
        name: &OsStr,
        path: &Path,
        nodes: &[Node],
        depth: usize,
    ) {
        let opened =
            retry_on_intr(|| rustix::fs::openat(directory, name, DIRECTORY, Mode::empty()));
        // It may have been replaced since it was examined.
        let opened = opened.and_then(|fd| Ok((examine(fd.as_fd(), OsStr::new(""))?, fd)));
        match opened {
            Ok((stat, fd)) if self.is_ours(&stat) => {
                self.directory(&fd, path, nodes, depth + 1);
                if self.action == WalkAction::Remove {
                    match rustix::fs::unlinkat(directory, name, AtFlags::REMOVEDIR) {
                        // Foreign files stay, and those that another process has just made.
                        Ok(()) | Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOENT) => {}
                        Err(error) => self.fail(path.to_owned(), error),
                    }
                }
            }
            Ok(_) | Err(Errno::LOOP | Errno::NOTDIR) => self.found.foreign.push(path.to_owned()),
            Err(Errno::NOENT) => {}
            Err(error) => self.fail(path.to_owned(), error),
        }
    }

    fn file(&mut self, directory: &OwnedFd, name: &OsStr, path: PathBuf, stat: &Statx) {
        if self.action == WalkAction::Remove {
            match retry_on_intr(|| rustix::fs::unlinkat(directory, name, AtFlags::empty())) {
                Ok(()) => {}
                Err(Errno::NOENT) => return,
                Err(error) => return self.fail(path, error),
            }
        }
        let seconds = u64::try_from(stat.stx_mtime.tv_sec).unwrap_or(0);
        let written = seconds * 1000 + u64::from(stat.stx_mtime.tv_nsec) / 1_000_000;
        self.bar.inc(1);
        let found = &mut self.found;
        found.files += 1;
        found.bytes += stat.stx_blocks * 512;
        found.newest = found.newest.max(Some(written));
        found.oldest = Some(found.oldest.map_or(written, |oldest| oldest.min(written)));
    }

    /// Whether something belongs to the user and is on the cache's file system.
    fn is_ours(&self, stat: &Statx) -> bool {
        stat.stx_uid == self.user
            && (stat.stx_dev_major, stat.stx_dev_minor) == self.device
            // The same file system may be mounted here again (Linux 5.8).
            && !stat.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
    }

    fn fail(&mut self, path: PathBuf, error: Errno) {
        self.found.failed.push((path, error.into()));
    }
}

/// The node for a name.
fn choose<'a>(nodes: &'a [Node], name: &OsStr, file_type: FileType) -> Option<&'a Node> {
    nodes.iter().find(|node| {
        let is_kind = match node.kind {
            FileKind::Own | FileKind::Common => file_type == FileType::RegularFile,
            FileKind::Link => file_type == FileType::Symlink,
            FileKind::Directory(_) => file_type == FileType::Directory,
        };
        is_kind && (node.name)(name.as_bytes())
    })
}

/// Examines a name in a directory, or the directory itself if the name is empty.
fn examine(directory: BorrowedFd<'_>, name: &OsStr) -> Result<Statx, Errno> {
    let flags = match name.is_empty() {
        true => AtFlags::EMPTY_PATH,
        false => AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT,
    };
    retry_on_intr(|| rustix::fs::statx(directory, name, flags, StatxFlags::BASIC_STATS))
}

fn list(directory: &OwnedFd) -> Result<Vec<OsString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(directory)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    names.sort_unstable();
    Ok(names)
}
