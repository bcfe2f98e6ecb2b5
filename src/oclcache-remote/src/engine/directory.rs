//! A directory that machines or users share.
//!
//! Other users can put anything in it. So links in it are not followed, only regular files are read as objects, and opening a FIFO does
//! not block. What this user may not read there counts as missing, as does what is on a file system that does not answer. It keeps
//! nobody from the rest. The path to the directory itself may have links, since the user has set it.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use futures::stream::{self, StreamExt, TryStreamExt};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::{
    Address, CONCURRENT, EVICTS_NOTHING, Engine, EngineError, ListedObject, Listing, Outcome,
};
use crate::object::{HEADER, is_part_of_object};

/// Unfinished objects are in this directory, so that a reader never sees one.
const UNFINISHED: &str = ".tmp";
/// Their names are random, and have so many hexadecimal digits.
const UNFINISHED_DIGITS: usize = 32;
/// The names of objects have at most so many parts.
const MAX_PARTS: usize = 4;
/// A step on the way to an object. It is not opened, which would cost a round trip on a network file system.
const STEP: OFlags = OFlags::PATH
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);
const FILE: OFlags = OFlags::NOFOLLOW
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY)
    .union(OFlags::CLOEXEC);

/// What keeps this user from an object: permissions, or what others have put at its name or on the way there.
const OBSTACLES: [Errno; 8] = [
    Errno::ACCESS,
    Errno::PERM,
    Errno::ROFS,
    Errno::ISDIR,
    Errno::NOTDIR,
    Errno::NOTEMPTY,
    Errno::LOOP,
    Errno::NOTCONN,
];

/// The directory. The umask says who may read and write what is made in it.
pub struct SharedDirectory(Arc<Path>);

impl SharedDirectory {
    /// Nothing is opened yet.
    pub fn new(address: &Address) -> Result<SharedDirectory, String> {
        let path = address.directory();
        let path = path.ok_or_else(|| format!("`{}` is not a path", address.url))?;
        Ok(SharedDirectory(path.into()))
    }

    /// Runs system calls on a thread that may wait for them.
    async fn blocking<T: Send + 'static>(
        &self,
        name: &str,
        calls: impl FnOnce(&Path, &str) -> Result<T, Fault> + Send + 'static,
    ) -> Outcome<T> {
        let (root, name) = (self.0.clone(), name.to_owned());
        let done = tokio::task::spawn_blocking(move || {
            calls(&root, &name).map_err(|fault| fault.judge(&root, &name))
        });
        let failed = |error: tokio::task::JoinError| Err(EngineError::Failed(error.to_string()));
        done.await.unwrap_or_else(failed)
    }

    async fn read_one(&self, name: &str, limit: u64) -> Outcome<Option<Vec<u8>>> {
        let read = move |root: &Path, name: &str| match read(root, name, limit) {
            Err(error) if is_hidden(root, &error) => Ok(None),
            read => Ok(none_if_absent(root, read)?),
        };
        self.blocking(name, read).await
    }
}

/// An error, and what is to blame.
struct Fault {
    error: io::Error,
    /// A file or directory in the root; empty: the root itself; None: what was asked for.
    name: Option<String>,
}

impl<E: Into<io::Error>> From<E> for Fault {
    fn from(error: E) -> Fault {
        Fault {
            error: error.into(),
            name: None,
        }
    }
}

impl Fault {
    /// Of this file or directory.
    fn at<E: Into<io::Error>>(name: &str) -> impl Fn(E) -> Fault {
        move |error| Fault {
            error: error.into(),
            name: Some(name.to_owned()),
        }
    }

    /// What the error means.
    fn judge(self, root: &Path, asked: &str) -> EngineError {
        let name = self.name.as_deref();
        let path = match name.unwrap_or(asked) {
            "" => root.to_owned(),
            name => root.join(name),
        };
        let why = format!("`{}`: {}", path.display(), self.error);
        let errno = Errno::from_io_error(&self.error);
        match errno {
            Some(Errno::NOENT | Errno::NOTDIR) if is_missing(root) => {
                EngineError::Absent(format!("`{}` is no directory", root.display()))
            }
            Some(Errno::NOSPC | Errno::DQUOT) => EngineError::Full(why),
            Some(errno) if OBSTACLES.contains(&errno) && is_usable(root) => match name {
                // Every object is written by way of these.
                Some("" | UNFINISHED) => EngineError::Unwritable(why),
                _ => EngineError::Obstructed(why),
            },
            Some(Errno::ACCESS | Errno::PERM) => EngineError::Forbidden(why),
            _ => EngineError::Failed(why),
        }
    }
}

/// None if there is nothing of this name, or a link, a socket or a device on the way or at its end. That the root is missing stays an
/// error.
fn none_if_absent<T>(root: &Path, result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(found) => Ok(Some(found)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR) if is_missing(root) => Err(error),
            Some(
                Errno::NOENT
                | Errno::NOTDIR
                | Errno::LOOP
                | Errno::NXIO
                | Errno::NODEV
                | Errno::STALE,
            ) => Ok(None),
            _ => Err(error),
        },
    }
}

/// Whether there is no directory at the path of the root.
fn is_missing(root: &Path) -> bool {
    matches!(go_to(root, ""), Err(Errno::NOENT | Errno::NOTDIR))
}

/// Whether this user may use the root, and its file system answers.
fn is_usable(root: &Path) -> bool {
    let stat = |root| rustix::fs::statat(root, ".", AtFlags::SYMLINK_NOFOLLOW);
    go_to(root, "").and_then(stat).is_ok()
}

/// Whether this user may not use a file or directory in the root, or its own file system does not answer, but may use the root.
fn is_hidden(root: &Path, error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    matches!(errno, Some(Errno::ACCESS | Errno::NOTCONN)) && is_usable(root)
}

/// The directories of a name, and its last part.
fn split(name: &str) -> (&str, &str) {
    name.rsplit_once('/').unwrap_or(("", name))
}

fn join(directory: &str, name: &str) -> String {
    match directory {
        "" => name.to_owned(),
        _ => format!("{directory}/{name}"),
    }
}

fn parts(directories: &str) -> impl Iterator<Item = &str> {
    directories.split('/').filter(|part| !part.is_empty())
}

/// Goes to a directory in the root.
fn go_to(root: &Path, directories: &str) -> Result<OwnedFd, Errno> {
    let root = rustix::fs::openat(CWD, root, STEP - OFlags::NOFOLLOW, Mode::empty())?;
    parts(directories).try_fold(root, |at, part| {
        rustix::fs::openat(&at, part, STEP, Mode::empty())
    })
}

/// The same. What is missing in the root is made. The root is not: where a file system is not mounted, that would be another store.
fn make(root: &Path, directories: &str) -> Result<OwnedFd, Fault> {
    let mut at = go_to(root, "").map_err(Fault::at(""))?;
    let mut way = String::new();
    for part in parts(directories) {
        let next = join(&way, part);
        let step = || rustix::fs::openat(&at, part, STEP, Mode::empty());
        let found = match step() {
            Err(Errno::NOENT) => {
                match rustix::fs::mkdirat(&at, part, Mode::from_raw_mode(0o777)) {
                    // Somebody else has made it meanwhile.
                    Ok(()) | Err(Errno::EXIST) => step(),
                    Err(error) => Err(error),
                }
            }
            found => found,
        };
        at = found.map_err(|error| match error {
            Errno::NOTDIR | Errno::LOOP => Fault::at(&next)(error),
            _ => Fault::at(&way)(error),
        })?;
        way = next;
    }
    Ok(at)
}

/// Reads an object up to a size, and one byte more.
fn read(root: &Path, name: &str, limit: u64) -> io::Result<Vec<u8>> {
    let (directories, file) = split(name);
    let directory = go_to(root, directories)?;
    let file = rustix::fs::openat(&directory, file, FILE | OFlags::RDONLY, Mode::empty())?;
    let file = File::from(file);
    if !file.metadata()?.is_file() {
        return Err(Errno::NOENT.into());
    }
    let mut bytes = Vec::new();
    file.take(limit + 1).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes an object. What keeps this user from writing any is found first.
fn write(root: &Path, name: &str, bytes: &[u8]) -> Result<(), Fault> {
    let unfinished = make(root, UNFINISHED)?;
    let mut random = [0; 16];
    rustix::rand::getrandom(&mut random, rustix::rand::GetRandomFlags::empty())?;
    let temporary = format!("{:0UNFINISHED_DIGITS$x}", u128::from_le_bytes(random));
    let flags = FILE | OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
    let mode = Mode::from_raw_mode(0o666);
    let opened = rustix::fs::openat(&unfinished, &temporary, flags, mode);
    let mut opened = File::from(opened.map_err(Fault::at(UNFINISHED))?);
    let (directories, file) = split(name);
    let mut finish = || {
        let directory = make(root, directories)?;
        opened.write_all(bytes)?;
        opened.sync_all()?;
        let moved = rustix::fs::renameat(&unfinished, &temporary, &directory, file);
        moved.map_err(|error| match error {
            Errno::ACCESS => Fault::at(directories)(error),
            _ => Fault::from(error),
        })
    };
    let finished = finish();
    if finished.is_err() {
        let _ = rustix::fs::unlinkat(&unfinished, &temporary, AtFlags::empty());
    }
    finished
}

fn delete(root: &Path, name: &str) -> io::Result<()> {
    let (directories, file) = split(name);
    let directory = go_to(root, directories)?;
    Ok(rustix::fs::unlinkat(&directory, file, AtFlags::empty())?)
}

/// Deletes unfinished objects that were written before this time, in seconds since 1970, or only looks. Returns how many there are.
fn delete_unfinished(root: &Path, before: u64, only_looks: bool) -> io::Result<u64> {
    let directory = go_to(root, UNFINISHED)?;
    let mut listing = Listing::default();
    list_one(root, UNFINISHED, &mut Vec::new(), &mut listing)?;
    let is_old = |object: &&ListedObject| object.modified.is_some_and(|time| time < before);
    // Another program may use a directory of this name, too.
    let is_ours = |object: &&ListedObject| {
        let name = split(&object.name).1;
        let is_digit = |byte: u8| byte.is_ascii_hexdigit();
        name.len() == UNFINISHED_DIGITS
            && name.bytes().all(is_digit)
            && read(root, &object.name, HEADER as u64).is_ok_and(|bytes| is_part_of_object(&bytes))
    };
    let is_deleted = |object: &&ListedObject| {
        let name = split(&object.name).1;
        only_looks || rustix::fs::unlinkat(&directory, name, AtFlags::empty()).is_ok()
    };
    let objects = listing.objects.iter().filter(is_old).filter(is_ours);
    Ok(objects.filter(is_deleted).count() as u64)
}

/// The regular files below a directory of this name, with their names.
fn list(root: &Path, name: &str) -> io::Result<Listing> {
    let mut listing = Listing::default();
    let asked = parts(name).collect::<Vec<_>>().join("/");
    let mut left = vec![asked.clone()];
    while let Some(directories) = left.pop() {
        let listed = list_one(root, &directories, &mut left, &mut listing);
        match none_if_absent(root, listed) {
            Ok(_) => {}
            // Others may have mounted any file system there.
            Err(error) if directories != asked || is_hidden(root, &error) => listing.hidden += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(listing)
}

/// The regular files in a directory of this name, and the names of the directories in it.
fn list_one(
    root: &Path,
    name: &str,
    directories: &mut Vec<String>,
    listing: &mut Listing,
) -> io::Result<()> {
    let directory = go_to(root, name)?;
    let listed = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let listed = rustix::fs::openat(&directory, ".", listed, Mode::empty())?;
    for entry in Dir::new(listed)? {
        let entry = entry?;
        // The names of objects are ASCII.
        let Some(file) = entry
            .file_name()
            .to_str()
            .ok()
            .filter(|name| !is_dots(name))
        else {
            continue;
        };
        let stat = rustix::fs::statat(&directory, file, AtFlags::SYMLINK_NOFOLLOW);
        let stat = match none_if_absent(root, stat.map_err(io::Error::from)) {
            Ok(Some(stat)) => stat,
            Ok(None) => continue,
            Err(_) => {
                listing.hidden += 1;
                continue;
            }
        };
        let name = join(name, file);
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory if parts(&name).count() < MAX_PARTS => directories.push(name),
            FileType::RegularFile => listing.objects.push(ListedObject {
                name,
                size: u64::try_from(stat.st_size).unwrap_or(0),
                modified: Some(u64::try_from(stat.st_mtime).unwrap_or(0)),
            }),
            _ => {}
        }
    }
    Ok(())
}

fn is_dots(name: &str) -> bool {
    matches!(name, "." | "..")
}

#[async_trait]
impl Engine for SharedDirectory {
    async fn check(&self) -> Outcome<()> {
        self.read_one("o1-check", 1).await.map(drop)
    }

    async fn read(&self, names: &[String], limit: u64) -> Outcome<Vec<Option<Vec<u8>>>> {
        let reads = names.iter().map(|name| self.read_one(name, limit));
        let reads: Vec<_> = reads.collect();
        stream::iter(reads).buffered(CONCURRENT).try_collect().await
    }

    async fn write(&self, name: &str, bytes: Vec<u8>) -> Outcome<()> {
        let write = move |root: &Path, name: &str| write(root, name, &bytes);
        self.blocking(name, write).await
    }

    async fn delete(&self, name: &str) -> Outcome<bool> {
        let delete = |root: &Path, name: &str| {
            let deleted = none_if_absent(root, delete(root, name))?;
            Ok(deleted.is_some())
        };
        self.blocking(name, delete).await
    }

    async fn delete_unfinished(&self, before: u64, only_looks: bool) -> Outcome<u64> {
        let delete = move |root: &Path, _: &str| match delete_unfinished(root, before, only_looks) {
            Err(error) if is_hidden(root, &error) => Ok(0),
            deleted => Ok(none_if_absent(root, deleted)?.unwrap_or(0)),
        };
        self.blocking(UNFINISHED, delete).await
    }

    async fn list(&self, prefix: &str) -> Outcome<Listing> {
        let list = |root: &Path, name: &str| Ok(list(root, name)?);
        self.blocking(prefix, list).await
    }

    async fn eviction(&self) -> Option<Result<String, String>> {
        Some(Err(EVICTS_NOTHING.to_owned()))
    }
}
