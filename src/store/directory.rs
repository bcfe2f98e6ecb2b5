//! One directory of the cache, held open. All access is to names in it, which have no slash, and follows no link.

mod facts;
mod memory;
mod read;
mod write;

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use rustix::fs::{ABS, CWD, Mode, OFlags, RawMode, Stat, Timespec};
use rustix::io::{Errno, retry_on_intr};

pub use facts::FileFacts;
use facts::milliseconds;

use super::StoreError;
use super::disk::{Disk, SystemDisk};
use crate::file_fingerprint::{FileFingerprint, Validity};
use crate::filesystem::FileSystem;
use crate::guarded_file::{GuardedFile, beyond_streams};
use crate::proc_file;
use crate::trust;

/// The names of unfinished files begin with this.
pub const TEMPORARY_PREFIX: &str = "new-";

/// Whether a name is one of an unfinished file: `new-<process>-<serial number>`.
pub fn is_temporary(name: &str) -> bool {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let numbers = name.strip_prefix(TEMPORARY_PREFIX);
    let numbers = numbers.and_then(|numbers| numbers.split_once('-'));
    numbers.is_some_and(|(process, serial)| is_number(process) && is_number(serial))
}

const DIRECTORY: OFlags = OFlags::DIRECTORY
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC)
    .union(OFlags::RDONLY);
/// Without O_NONBLOCK, opening a FIFO that somebody put there would block the application.
const FILE: OFlags = OFlags::NOFOLLOW
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);
/// The mode of new directories, whatever the mode of the parent is: only the owner may read sources and options.
const PRIVATE: RawMode = 0o700;
/// The mode of new directories that all users may read.
const SHARED: RawMode = 0o755;
/// The mode of files that not even their owner may write.
const PROTECTED: RawMode = 0o444;

/// An open directory that belongs to the effective user, or to a trusted one, and that nobody else may write.
#[derive(Debug)]
pub struct Directory {
    disk: Arc<dyn Disk>,
    descriptor: GuardedFile,
    /// When it was last modified before it was opened, in milliseconds since 1970.
    opened_modified_ms: u64,
    path: PathBuf,
    /// The file system counts links: a removed directory has none.
    has_links: bool,
    /// The mode of what is created in it.
    mode: RawMode,
    is_writable: bool,
    /// It is known to be on a file system in memory.
    is_in_memory: bool,
    /// The users who may own it and its contents, beside the effective user.
    others: Arc<[u32]>,
}

impl Directory {
    /// Opens the directory; None if it does not exist.
    ///
    /// # Errors
    /// It is not a directory, belongs to another user, or others may write it.
    pub fn open(path: &Path) -> Result<Option<Directory>, StoreError> {
        Directory::open_on(Arc::new(SystemDisk), path)
    }

    fn open_on(disk: Arc<dyn Disk>, path: &Path) -> Result<Option<Directory>, StoreError> {
        // The user may keep the cache elsewhere by a link in place of the directory, which O_NOFOLLOW would refuse.
        let flags = DIRECTORY - OFlags::NOFOLLOW;
        let fd = match retry_on_intr(|| disk.open(CWD, path, flags, Mode::empty())) {
            Ok(fd) => fd,
            Err(Errno::NOENT) => return Ok(None),
            Err(error) => return Err(failed("open", path, error)),
        };
        let directory = Directory::checked(disk, fd, path.to_owned(), Arc::default(), PRIVATE)?;
        let refused = |error| failed_with("use", path, error);
        let absolute = std::path::absolute(path).map_err(refused)?;
        // One call tells that no link was followed. openat2(2) tells as much, but a sandbox may kill for what it does not know.
        let number = directory.fd_to_read().as_raw_fd();
        let opened = proc_file::own_link(&format!("fd/{number}"));
        if opened.is_ok_and(|opened| opened == absolute) {
            return Ok(Some(directory));
        }
        match trust::distrust_of_links(&absolute, directory.descriptor.id()) {
            Some(why) => Err(refused(io::Error::new(
                io::ErrorKind::PermissionDenied,
                why,
            ))),
            None => Ok(Some(directory)),
        }
    }

    /// Opens a directory to read, which these other users may own, with its contents; None if it does not exist.
    ///
    /// # Errors
    /// For people: which part of its path somebody else can write, or cannot be opened.
    pub fn open_of_others(path: &Path, others: &[u32]) -> Result<Option<Directory>, String> {
        let owners: Vec<u32> = trust::own_user()
            .into_iter()
            .chain(others.to_vec())
            .collect();
        let Some(fd) = trust::open(path, trust::DIRECTORY, &owners)? else {
            return Ok(None);
        };
        Directory::checked(
            Arc::new(SystemDisk),
            fd,
            path.to_owned(),
            others.into(),
            PRIVATE,
        )
        .map(Some)
        .map_err(|error| error.to_string())
    }

    /// Opens the directory. Creates it and its parents, for the owner only, if they are missing.
    ///
    /// # Errors
    /// See [`Directory::open`], or it cannot be created.
    pub fn create_all(path: &Path) -> Result<Directory, StoreError> {
        Directory::create_all_on(Arc::new(SystemDisk), path)
    }

    /// [`Directory::create_all`] on another disk than the system's.
    ///
    /// # Errors
    /// See [`Directory::create_all`].
    pub fn create_all_on(disk: Arc<dyn Disk>, path: &Path) -> Result<Directory, StoreError> {
        if let Some(directory) = Directory::open_on(disk.clone(), path)? {
            return Ok(directory);
        }
        let mode = Mode::from_raw_mode(PRIVATE);
        let make = |path| retry_on_intr(|| disk.make_directory(CWD, path, mode));
        let mut missing = Vec::new();
        for ancestor in path.ancestors().filter(|path| !path.as_os_str().is_empty()) {
            missing.push(ancestor);
            match make(ancestor) {
                Ok(()) | Err(Errno::EXIST) => break,
                Err(Errno::NOENT) => {}
                Err(error) => return Err(failed("make", path, error)),
            }
        }
        for directory in missing.into_iter().rev().skip(1) {
            match make(directory) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(failed("make", path, error)),
            }
        }
        Directory::open_on(disk, path)?.ok_or_else(|| failed("open", path, Errno::NOENT))
    }

    /// The same directory, in which all users may read new files and directories, as far as the umask allows.
    pub fn shared(self) -> Directory {
        let mode = SHARED;
        Directory { mode, ..self }
    }

    /// Opens the directory of this name in this one. Creates it if it is missing.
    ///
    /// # Errors
    /// See [`Directory::open`], or it cannot be created.
    pub fn create(&self, name: &str) -> Result<Directory, StoreError> {
        if let Some(directory) = self.open_below(name)? {
            return Ok(directory);
        }
        let mode = Mode::from_raw_mode(self.mode);
        match retry_on_intr(|| self.disk.make_directory(self.fd(), name.as_ref(), mode)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(failed("make", &self.path.join(name), error)),
        }
        self.open_below(name)?.ok_or_else(|| StoreError {
            action: "use",
            path: self.path.join(name),
            error: io::Error::other("it is a link or no directory"),
        })
    }

    /// Opens the directory of this name in this one; None if it does not exist or is not a directory.
    ///
    /// # Errors
    /// It cannot be opened, belongs to another user, or others may write it.
    pub fn open_below(&self, name: &str) -> Result<Option<Directory>, StoreError> {
        let path = self.path.join(name);
        match self.open_at(name, DIRECTORY) {
            Ok(fd) => {
                let others = self.others.clone();
                Directory::checked(self.disk.clone(), fd, path, others, self.mode).map(Some)
            }
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::STALE) => Ok(None),
            Err(error) => Err(failed("open", &path, error)),
        }
    }

    fn checked(
        disk: Arc<dyn Disk>,
        fd: OwnedFd,
        path: PathBuf,
        others: Arc<[u32]>,
        mode: RawMode,
    ) -> Result<Directory, StoreError> {
        let fd = beyond_streams(fd);
        let stat = fd.and_then(|fd| Ok((retry_on_intr(|| disk.stat_of(fd.as_fd()))?, fd)));
        let (stat, fd) = stat.map_err(|error| failed("examine", &path, error))?;
        Directory::with_state(disk, fd, &stat, path, others, mode)
    }

    fn with_state(
        disk: Arc<dyn Disk>,
        fd: OwnedFd,
        stat: &Stat,
        path: PathBuf,
        others: Arc<[u32]>,
        mode: RawMode,
    ) -> Result<Directory, StoreError> {
        if let Err(error) = check_directory(stat, &others) {
            return Err(StoreError {
                action: "use",
                path,
                error,
            });
        }
        Ok(Directory {
            disk,
            descriptor: GuardedFile::of(fd.into(), stat),
            opened_modified_ms: milliseconds(stat.st_mtime, stat.st_mtime_nsec as i64),
            has_links: stat.st_nlink > 0,
            path,
            mode,
            is_writable: stat.st_mode & 0o200 != 0,
            is_in_memory: false,
            others,
        })
    }

    /// The descriptor; an invalid one if an application has closed it, since the number may be that of another directory now.
    fn fd(&self) -> BorrowedFd<'_> {
        self.descriptor.descriptor().unwrap_or(ABS)
    }

    /// The same to read: asked once in a call.
    fn fd_to_read(&self) -> BorrowedFd<'_> {
        self.descriptor.descriptor_to_read().unwrap_or(ABS)
    }

    /// Whether it was removed, or an application has closed the descriptor.
    pub fn is_lost(&self) -> bool {
        let is_removed = |stat: &Stat| self.has_links && stat.st_nlink == 0;
        let state = self.descriptor.state();
        state.map_or(true, |stat| is_removed(&stat))
    }

    /// Opens an existing file or directory.
    fn open_at(&self, name: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
        self.open_with_mode(name, flags, 0)
    }

    /// `mode` is that of a new file, before the mode of the directory and the umask are applied.
    fn open_with_mode(&self, name: &str, flags: OFlags, mode: RawMode) -> Result<OwnedFd, Errno> {
        let mode = Mode::from_raw_mode(self.mode & mode);
        let writes = OFlags::WRONLY | OFlags::RDWR | OFlags::CREATE;
        let directory = || match flags.intersects(writes) {
            true => self.fd(),
            false => self.fd_to_read(),
        };
        retry_on_intr(|| self.disk.open(directory(), name.as_ref(), flags, mode))
    }

    fn stat_of(&self, file: BorrowedFd<'_>) -> Result<Stat, Errno> {
        retry_on_intr(|| self.disk.stat_of(file))
    }

    fn stat(&self, name: &str) -> Result<Stat, Errno> {
        retry_on_intr(|| self.disk.stat(self.fd_to_read(), name.as_ref()))
    }

    /// Refuses changes in a directory that its owner has made read-only, also those that the system allows the owner of a file, and
    /// root.
    fn check_writable(&self, action: &'static str, name: &str) -> Result<(), StoreError> {
        if self.is_writable {
            return Ok(());
        }
        Err(failed(action, &self.path.join(name), Errno::ACCESS))
    }

    /// The clock of its disk, in milliseconds since 1970.
    pub fn now_ms(&self) -> u64 {
        let since = self.disk.now().duration_since(UNIX_EPOCH);
        since.map_or(0, |since| since.as_millis() as u64)
    }

    /// Tells of a file there, or of the directory, whether each change from now on will show in the fingerprint that it has.
    pub fn settled_test(&self) -> impl Fn(&FileFingerprint) -> bool + use<> {
        let (now, change_time) = (self.now_ms() / 1000, self.file_system().change_time());
        move |fingerprint| fingerprint.validity_at(now as i64, change_time) == Validity::Lasting
    }

    /// The file system of the directory.
    pub fn file_system(&self) -> FileSystem {
        FileSystem::of(self.fd_to_read())
    }

    /// Whether it is on a file system in memory: writing waits for no disk and no server.
    pub fn is_in_memory(&self) -> bool {
        self.is_in_memory || self.file_system().is_in_memory()
    }

    /// A short path of what has this name here, also if the path of the directory is long; None if the descriptor is lost.
    pub fn short_path(&self, name: &str) -> Option<PathBuf> {
        let number = self.fd().as_raw_fd();
        (number >= 0).then(|| format!("/proc/self/fd/{number}/{name}").into())
    }

    /// The path, for messages.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a file read-only for its owner, if it still has this inode.
    ///
    /// # Errors
    /// It cannot be opened or changed, or the directory is read-only.
    pub fn protect(&self, name: &str, inode: u64) -> Result<(), StoreError> {
        self.check_writable("protect", name)?;
        let protected = || {
            let file = self.open_at(name, FILE | OFlags::RDONLY)?;
            let stat = self.stat_of(file.as_fd())?;
            if stat.st_ino != inode {
                return Ok(());
            }
            let mode = Mode::from_raw_mode(stat.st_mode & PROTECTED);
            retry_on_intr(|| self.disk.set_mode(file.as_fd(), mode))
        };
        protected().map_err(|error| failed("protect", &self.path.join(name), error))
    }

    /// Device and inode.
    pub fn identity(&self) -> Option<(u64, u64)> {
        (self.fd_to_read().as_raw_fd() >= 0).then_some(self.descriptor.id())
    }

    /// When it was last modified before it was opened, in milliseconds since 1970.
    pub fn opened_modified_ms(&self) -> u64 {
        self.opened_modified_ms
    }

    /// Whether an open file has this name.
    pub fn is_named(&self, name: &str, file: &std::fs::File) -> bool {
        let named = self.stat(name);
        let same =
            |named: Stat, open: Stat| (named.st_dev, named.st_ino) == (open.st_dev, open.st_ino);
        matches!((named, self.stat_of(file.as_fd())), (Ok(named), Ok(open)) if same(named, open))
    }

    /// Renames a file in this directory, and replaces one of the new name.
    ///
    /// # Errors
    /// Nothing has changed.
    pub fn rename(&self, from: &str, to: &str) -> Result<(), StoreError> {
        self.rename_to(from, self, to)
    }

    /// Moves a file to another directory of the same file system.
    ///
    /// # Errors
    /// Nothing has changed.
    pub fn move_to(&self, name: &str, other: &Directory) -> Result<(), StoreError> {
        self.rename_to(name, other, name)
    }

    /// Moves a file to another directory of the same file system, under another name, and replaces one of that name.
    ///
    /// # Errors
    /// Nothing has changed.
    pub fn rename_to(&self, from: &str, other: &Directory, to: &str) -> Result<(), StoreError> {
        let (old, new) = (from.as_ref(), to.as_ref());
        retry_on_intr(|| self.disk.rename(self.fd(), old, other.fd(), new))
            .map_err(|error| failed("move", &self.path.join(from), error))
    }

    /// Removes a file or link. Returns whether there was one.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(&self, name: &str) -> Result<bool, StoreError> {
        match retry_on_intr(|| self.disk.remove(self.fd(), name.as_ref())) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT | Errno::STALE) => Ok(false),
            Err(error) => Err(failed("remove", &self.path.join(name), error)),
        }
    }

    /// Removes a directory if it is empty.
    pub fn remove_directory(&self, name: &str) {
        let _ = retry_on_intr(|| self.disk.remove_directory(self.fd(), name.as_ref()));
    }

    /// Facts about a regular file; None for anything else.
    pub fn facts(&self, name: &str) -> Option<FileFacts> {
        FileFacts::of(&self.stat(name).ok()?)
    }

    /// Facts about a regular file, and the fingerprint of its state; None for anything else.
    pub fn facts_and_fingerprint(&self, name: &str) -> Option<(FileFacts, FileFingerprint)> {
        let stat = self.stat(name).ok()?;
        Some((FileFacts::of(&stat)?, FileFingerprint::of_stat(&stat)))
    }

    /// The fingerprint of this directory, which changes with the names in it; None if it is lost.
    pub fn fingerprint(&self) -> Option<FileFingerprint> {
        let stat = self.stat_of(self.fd()).ok()?;
        Some(FileFingerprint::of_stat(&stat))
    }

    /// When a file or directory was last modified, in milliseconds since 1970.
    pub fn modified_ms(&self, name: &str) -> Option<u64> {
        let stat = self.stat(name).ok()?;
        Some(milliseconds(stat.st_mtime, stat.st_mtime_nsec as i64))
    }

    /// When a file was last written, moved or otherwise changed, in milliseconds since 1970.
    pub fn changed_ms(&self, name: &str) -> Option<u64> {
        let stat = self.stat(name).ok()?;
        Some(milliseconds(stat.st_ctime, stat.st_ctime_nsec as i64))
    }

    /// The free bytes and all bytes of the file system; None if it does not tell.
    pub fn room(&self) -> Option<(u64, u64)> {
        let room = retry_on_intr(|| self.disk.room(self.fd())).ok();
        // FUSE says 0 for file systems that do not tell.
        room.filter(|(_, all)| *all > 0)
    }

    /// Sets the time of a file's last modification.
    ///
    /// # Errors
    /// It does not exist, or the directory is read-only.
    pub fn set_modified(&self, name: &str, time_ms: u64) -> Result<(), StoreError> {
        self.check_writable("date", name)?;
        let time = Timespec {
            tv_sec: (time_ms / 1000) as i64,
            tv_nsec: (time_ms % 1000 * 1_000_000) as i64,
        };
        retry_on_intr(|| self.disk.set_modified(self.fd(), name.as_ref(), time))
            .map_err(|error| failed("date", &self.path.join(name), error))
    }

    /// All names in the directory that are UTF-8, as all of ours are, in the order of readdir(3).
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn names(&self) -> Result<Vec<String>, StoreError> {
        let names = self.names_and_inodes()?.into_iter();
        Ok(names.map(|(_, name)| name).collect())
    }

    /// The same in the order of the files' inodes. ext4 lists names in the order of their hashes, and looks at files and removes them
    /// faster in the order in which their inodes lie on the disk.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn names_by_inode(&self) -> Result<Vec<String>, StoreError> {
        let mut names = self.names_and_inodes()?;
        names.sort_unstable();
        Ok(names.into_iter().map(|(_, name)| name).collect())
    }

    fn names_and_inodes(&self) -> Result<Vec<(u64, String)>, StoreError> {
        let mut names = Vec::new();
        let listed = retry_on_intr(|| {
            names.clear();
            self.disk.list(self.fd(), &mut |name, _, inode| {
                names.extend(name.to_str().map(|name| (inode, name.to_owned())));
                true
            })
        });
        match listed {
            // Removed meanwhile.
            Ok(()) | Err(Errno::NOENT | Errno::STALE) => Ok(names),
            Err(error) => Err(failed("list", &self.path, error)),
        }
    }

    /// Refuses anything but a regular file of this user.
    fn own_file(&self, fd: BorrowedFd<'_>) -> io::Result<FileFacts> {
        self.own(&self.stat_of(fd)?)
    }

    fn own(&self, stat: &Stat) -> io::Result<FileFacts> {
        let facts = FileFacts::of(stat).ok_or_else(|| unfit(NO_FILE))?;
        if !is_owner(stat.st_uid, &self.others) {
            return Err(unfit("it belongs to another user"));
        }
        // A user who can write it can also forge its checksum.
        if stat.st_mode & 0o022 != 0 {
            return Err(unfit("others may write it"));
        }
        Ok(facts)
    }
}

const NO_FILE: &str = "it is not a regular file";

/// The error for what cannot be a file of ours, now or later.
fn unfit(why: &'static str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// # Errors
/// Somebody else can change what is in a directory of this state.
fn check_directory(stat: &Stat, others: &[u32]) -> io::Result<()> {
    let refusal = if !is_owner(stat.st_uid, others) {
        "it belongs to another user"
    } else if stat.st_mode & 0o022 != 0 {
        "others may write it, so they can run code in your programs"
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::PermissionDenied, refusal))
}

/// The effective user is asked for in each call, because a program may drop its privileges.
fn is_owner(user: u32, others: &[u32]) -> bool {
    trust::is_own(user) || others.contains(&user)
}

fn failed(action: &'static str, path: &Path, error: Errno) -> StoreError {
    failed_with(action, path, error.into())
}

fn failed_with(action: &'static str, path: &Path, error: io::Error) -> StoreError {
    StoreError {
        action,
        path: path.to_owned(),
        error,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_descriptor_that_is_another_files_now_is_not_closed() {
        let place = tempfile::tempdir().expect("a temporary directory");
        let mut directory = Directory::open(place.path())
            .expect("opened")
            .expect("there");
        let theirs = tempfile::tempfile().expect("made");
        let number = directory.descriptor.give_number_to(&theirs);
        assert!(directory.is_lost());
        assert!(directory.names().is_err());
        assert_eq!(directory.identity(), None);
        drop(directory);
        let link = |number| std::fs::read_link(format!("/proc/self/fd/{number}"));
        let expected = link(theirs.as_raw_fd()).expect("open");
        assert_eq!(link(number).expect("not closed"), expected);
    }
}
