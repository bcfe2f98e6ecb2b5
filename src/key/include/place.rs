//! The content of a place where a header could be.

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::Metadata;
use std::io::{self, ErrorKind};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use rustix::buffer::spare_capacity;
use rustix::io::retry_on_intr;

use super::super::ingredients::sha256;
use crate::fallible::{copy, with_capacity};
use crate::file_fingerprint::{FileFingerprint, FileId};
use crate::outcome::Bypass;
use crate::regular_file;

/// The content of a place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PlaceContent {
    Nothing,
    Directory,
    File {
        digest: [u8; 32],
        stamp: FileFingerprint,
        /// The earlier place that is the same file: `#pragma once` and `#import` tell a file that is included twice from a copy.
        same_as: Option<usize>,
    },
}

/// The first place of each file.
pub(super) type FileNumbers = HashMap<FileId, usize>;

impl PlaceContent {
    /// The content of the place with this index, and the earlier place of the same file.
    pub(super) fn known_from(mut self, index: usize, files: &mut FileNumbers) -> PlaceContent {
        if let PlaceContent::File { stamp, same_as, .. } = &mut self {
            let first = *files.entry(stamp.file).or_insert(index);
            *same_as = (first != index).then_some(first);
        }
        self
    }
}

/// The directories of headers, each looked at once: most headers of a program are in few.
#[derive(Default)]
pub(super) struct Directories(HashMap<PathBuf, Directory>);

struct Directory {
    id: FileId,
    is_link: bool,
    /// Whether it is a link of which [`is_respelled`] was asked.
    is_judged: bool,
}

impl Directories {
    /// The directory at a path; None if nothing is there.
    ///
    /// # Errors
    /// There is something else than a directory, or no memory.
    pub(super) fn check(&mut self, path: &Path) -> Result<Option<FileId>, Bypass> {
        match see(path) {
            Ok((metadata, is_link)) if metadata.is_dir() => {
                self.note(path, &metadata, is_link).map(Some)
            }
            Ok(_) => Err(Bypass::ReadsFile),
            Err(_) => Ok(None),
        }
    }

    /// The directory of a file. `named`: how many directories the name has by which the file was included.
    ///
    /// # Errors
    /// One of these cannot be looked at, or is respelled by a link, or is a link in front of `..`, which leads to another place than the
    /// name does for clang; or there is no memory.
    pub(super) fn around(&mut self, file: &Path, named: usize) -> Result<FileId, Bypass> {
        let mut goes_back = false;
        for path in file.ancestors().skip(1).take(named) {
            self.at(path)?;
            if let Some(directory) = self.0.get_mut(path)
                && directory.is_link
            {
                let is_judged = std::mem::replace(&mut directory.is_judged, true);
                if goes_back || !is_judged && is_respelled(path) {
                    return Err(Bypass::ReadsFile);
                }
            }
            goes_back |= path.ends_with("..");
        }
        self.at(file.parent().unwrap_or(Path::new("/")))
    }

    fn at(&mut self, path: &Path) -> Result<FileId, Bypass> {
        if let Some(known) = self.0.get(path) {
            return Ok(known.id);
        }
        let (metadata, is_link) = see(path).map_err(|_| Bypass::ReadsFile)?;
        self.note(path, &metadata, is_link)
    }

    fn note(&mut self, path: &Path, metadata: &Metadata, is_link: bool) -> Result<FileId, Bypass> {
        self.0.try_reserve(1).map_err(|_| Bypass::NoMemory)?;
        let path = OsString::from_vec(copy(path.as_os_str().as_bytes())?);
        let id = (metadata.dev(), metadata.ino());
        let directory = Directory {
            id,
            is_link,
            is_judged: false,
        };
        self.0.insert(path.into(), directory);
        Ok(id)
    }
}

/// What is at a path, and whether the path is a link.
fn see(path: &Path) -> io::Result<(Metadata, bool)> {
    let own = std::fs::symlink_metadata(path)?;
    match own.is_symlink() {
        true => Ok((std::fs::metadata(path)?, true)),
        false => Ok((own, false)),
    }
}

/// Whether the path behind a link ends like that of the link, but in another case: clang warns of a name that differs from its file's only
/// so (`-Wnonportable-include-path`), and fails with `-Werror` (measured on PoCL 3.1 and Intel's CPU runtime 2026.2).
fn is_respelled(link: &Path) -> bool {
    let Ok(real) = link.canonicalize() else {
        return true;
    };
    let own = without_detours(link).into_iter().rev();
    let pairs = own.zip(real.components().rev());
    let is_alike = |one: Component, other: Component| {
        let other = other.as_os_str();
        one.as_os_str().eq_ignore_ascii_case(other)
    };
    let mut alike = pairs.take_while(|(own, real)| is_alike(*own, *real));
    alike.any(|(own, real)| own != real)
}

/// The components of a path without `..` and what that cancels, as clang compares them.
fn without_detours(path: &Path) -> Vec<Component<'_>> {
    let mut kept = Vec::new();
    for part in path.components() {
        match (part, kept.last()) {
            (Component::CurDir, _) => {}
            (Component::ParentDir, Some(Component::Normal(_))) => drop(kept.pop()),
            _ => kept.push(part),
        }
    }
    kept
}

/// The content of a path, and its text. `room`: the bytes that may be read. A file whose digest is `known` is not read.
pub(super) fn look(
    path: &Path,
    room: &mut u64,
    known: impl Fn(&FileFingerprint) -> Option<[u8; 32]>,
) -> Result<(PlaceContent, Option<Vec<u8>>), Bypass> {
    let is_nothing = |error: &std::io::Error| {
        // ENAMETOOLONG: no file can be there, unless a relative path is short enough.
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => true,
            ErrorKind::InvalidFilename => path.as_os_str().len() < libc::PATH_MAX as usize,
            _ => false,
        }
    };
    let (metadata, is_link) = match see(path) {
        Ok(seen) => seen,
        Err(error) if is_nothing(&error) => return Ok((PlaceContent::Nothing, None)),
        Err(_) => return Err(Bypass::ReadsFile),
    };
    if metadata.is_dir() {
        return Ok((PlaceContent::Directory, None));
    }
    if !metadata.is_file() || is_link && is_respelled(path) {
        return Err(Bypass::ReadsFile);
    }
    let opened = regular_file::open_seen(path).ok().flatten();
    let (file, metadata) = opened.ok_or(Bypass::ReadsFile)?;
    let stamp = FileFingerprint::of(&metadata);
    if let Some(digest) = known(&stamp) {
        let same_as = None;
        let found = PlaceContent::File {
            digest,
            stamp,
            same_as,
        };
        return Ok((found, None));
    }
    let mut text = with_capacity(metadata.size().min(*room) as usize + 1)?;
    // One call for most files. The standard library makes four for 30 KB.
    loop {
        let read = retry_on_intr(|| rustix::io::read(&file, spare_capacity(&mut text)));
        match read.map_err(|_| Bypass::ReadsFile)? {
            0 => break,
            // There was room for more, so this is the end.
            _ if text.len() as u64 == metadata.size() => break,
            _ if text.len() as u64 > *room => break,
            _ => text.try_reserve(1).map_err(|_| Bypass::NoMemory)?,
        }
    }
    *room = room
        .checked_sub(text.len() as u64)
        .ok_or(Bypass::TooManyHeaders)?;
    let digest = sha256(&text);
    Ok((
        PlaceContent::File {
            digest,
            stamp,
            same_as: None,
        },
        Some(text),
    ))
}
