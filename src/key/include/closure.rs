//! What following includes has found.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::fs::{Access, AtFlags, CWD, accessat};

use super::MAX_BYTES;
use super::base::{self, SearchedBase};
use super::place::{PlaceContent, look};
use crate::file_fingerprint::{FileFingerprint, FileId, Validity};
use crate::filesystem::ChangeTime;
use crate::key::ingredients::{Ingredient, Kind};

/// All files that the compiler could read, and all places where it could find others.
#[derive(Clone, Debug, Default)]
pub struct Closure {
    pub(super) places: Vec<Place>,
    /// The directories in which headers were looked for.
    pub(super) bases: Vec<SearchedBase>,
    /// The working directory at that time.
    pub(super) working_directory: PathBuf,
}

/// A file of a closure.
pub struct FoundFile<'a> {
    /// The index of its place.
    pub index: usize,
    /// The name of the place.
    pub name: &'a [u8],
    /// Its path.
    pub path: &'a Path,
    /// SHA-256 of its content.
    pub digest: &'a [u8; 32],
    /// The earlier place that is the same file.
    pub same_as: Option<usize>,
    /// Whether that place is in the same directory.
    pub in_same_directory: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Place {
    pub(super) name: Vec<u8>,
    pub(super) path: PathBuf,
    pub(super) found: PlaceContent,
    /// The directory of a file.
    pub(super) directory: Option<FileId>,
    /// The earlier place that is the same file in the same directory: compilers skip a directory that they have searched, also
    /// under another name.
    pub(super) again: Option<usize>,
}

impl Closure {
    /// Whether the program, or the compiler by itself, names a header.
    pub fn names_any(&self) -> bool {
        !self.places.is_empty()
    }

    /// The ingredients of the key, in the order in which files were found: by content, not by path or time.
    pub fn ingredients(&self) -> impl Iterator<Item = Ingredient> {
        let places = self.places.iter().map(|place| {
            let value = match &place.found {
                PlaceContent::Nothing => Vec::new(),
                PlaceContent::Directory => b"directory".to_vec(),
                PlaceContent::File {
                    digest,
                    same_as: None,
                    ..
                } => digest.to_vec(),
                PlaceContent::File {
                    digest,
                    same_as: Some(first),
                    ..
                } => {
                    let name = |index: usize| self.places[index].name.as_slice();
                    let (first, directory) = match place.again {
                        Some(again) => (name(again), &b", in the same directory"[..]),
                        None => (name(*first), &b""[..]),
                    };
                    [digest.as_slice(), b" same file as ", first, directory].concat()
                }
            };
            Ingredient::new(Kind::Include, String::from_utf8_lossy(&place.name), value)
        });
        places.chain(base::ingredients(self.counted_bases()))
    }

    /// The directories of which it matters that one is another: where only one file was found, none comes before another.
    pub(super) fn counted_bases(&self) -> &[SearchedBase] {
        match self.files().nth(1) {
            Some(_) => &self.bases,
            None => &[],
        }
    }

    /// The working directory, if anything was looked for there.
    pub fn working_directory(&self) -> Option<&Path> {
        (!self.places.is_empty()).then_some(&self.working_directory)
    }

    /// Whether both looked for and found the same in the same places.
    pub fn is_like(&self, other: &Closure) -> bool {
        self.ingredients().eq(other.ingredients())
    }

    /// The files, in the order in which they were found.
    pub fn files(&self) -> impl Iterator<Item = FoundFile<'_>> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let PlaceContent::File {
                digest, same_as, ..
            } = &place.found
            else {
                return None;
            };
            Some(FoundFile {
                index,
                name: &place.name,
                path: &place.path,
                digest,
                same_as: place.again.or(*same_as).filter(|_| same_as.is_some()),
                in_same_directory: place.again.is_some(),
            })
        })
    }

    /// Whether all files are unchanged and were not written since.
    pub fn is_untouched(&self) -> bool {
        self.holds(|before, now| before == now)
    }

    /// Whether all files have the same content.
    pub fn is_unchanged(&self) -> bool {
        self.holds(|before, now| match (before, now) {
            (
                PlaceContent::File {
                    digest: one,
                    same_as: first,
                    ..
                },
                PlaceContent::File {
                    digest: other,
                    same_as: second,
                    ..
                },
            ) => one == other && first == second,
            _ => before == now,
        })
    }

    /// Whether its files had been left alone for so long that each later change shows in their states. A closure of many places is
    /// none: to look at these again costs as much as to follow it.
    ///
    /// `begun`: a time before they were looked at.
    pub fn is_settled(&self, begun: SystemTime) -> bool {
        const MAX_PLACES_AGAIN: usize = 64;
        let now = begun.duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_secs() as i64);
        let is_settled = |place: &Place| match &place.found {
            PlaceContent::File { stamp, .. } => {
                stamp.validity_at(now, ChangeTime::Foreign) > Validity::Moment
            }
            _ => true,
        };
        self.places.len() <= MAX_PLACES_AGAIN && self.places.iter().all(is_settled)
    }

    /// Whether all its files are below these directories.
    pub fn is_below(&self, directories: &[PathBuf]) -> bool {
        let is_below = |path: &Path| {
            let mut parts = path.components();
            parts.all(|part| part != Component::ParentDir)
                && directories.iter().any(|below| path.starts_with(below))
        };
        self.files().all(|file| is_below(file.path))
    }

    /// How many bytes it takes in memory, roughly.
    pub fn weight(&self) -> usize {
        let place = |place: &Place| {
            let texts = place.name.len() + place.path.as_os_str().len();
            size_of::<Place>() + texts
        };
        let base = |base: &SearchedBase| {
            size_of::<SearchedBase>() + base.base.name.len() + base.base.path.as_os_str().len()
        };
        let bases = self.bases.iter().map(base);
        self.places.iter().map(place).chain(bases).sum()
    }

    /// Whether what a settled closure has is still there, by the states of its files. They are not read.
    pub fn has_same_states(&self) -> bool {
        let is_same = |place: &Place| match &place.found {
            PlaceContent::File { stamp, .. } => {
                let directory = place.path.parent().unwrap_or(Path::new("/"));
                FileFingerprint::at(&place.path) == Some(*stamp)
                    && FileFingerprint::at(directory).map(|state| state.file) == place.directory
                    // This process may have fewer rights by now.
                    && accessat(CWD, &place.path, Access::READ_OK, AtFlags::EACCESS).is_ok()
            }
            _ => look(&place.path, &mut 0, |_| None).is_ok_and(|(now, _)| now == place.found),
        };
        self.places.is_empty()
            || std::env::current_dir().is_ok_and(|now| now == self.working_directory)
                && self.bases.iter().all(SearchedBase::is_same)
                && self.places.iter().all(is_same)
    }

    fn holds(&self, same: impl Fn(&PlaceContent, &PlaceContent) -> bool) -> bool {
        let mut files = HashMap::new();
        let mut room = MAX_BYTES;
        let mut is_same = |(index, place): (usize, &Place)| {
            let now = look(&place.path, &mut room, |_| None);
            now.is_ok_and(|(now, _)| same(&place.found, &now.known_from(index, &mut files)))
        };
        self.places.is_empty()
            || std::env::current_dir().is_ok_and(|now| now == self.working_directory)
                && base::repeat_alike(self.counted_bases())
                && self.places.iter().enumerate().all(&mut is_same)
    }
}
