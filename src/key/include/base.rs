//! The directories in which headers are looked for.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::file_fingerprint::FileId;
use crate::key::ingredients::{Ingredient, Kind};

/// A directory in which headers are looked for.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Base {
    pub(super) name: Vec<u8>,
    pub(super) path: PathBuf,
}

impl Base {
    pub(super) fn join(&self, name: &[u8]) -> Base {
        Base {
            name: [self.name.as_slice(), b"/", name].concat(),
            path: self.path.join(OsStr::from_bytes(name)),
        }
    }

    pub(super) fn parent(&self) -> Base {
        let end = self
            .name
            .iter()
            .rposition(|byte| *byte == b'/')
            .unwrap_or(0);
        Base {
            name: self.name[..end].to_vec(),
            path: self.path.parent().unwrap_or(Path::new("/")).to_owned(),
        }
    }
}

/// A directory in which headers were looked for, as it was.
#[derive(Clone, Debug)]
pub(super) struct SearchedBase {
    pub(super) base: Base,
    /// Its device and inode; None if there was no directory.
    pub(super) id: Option<FileId>,
}

impl SearchedBase {
    /// Whether the same directory is there, or still nothing. A file may be a header map.
    pub(super) fn is_same(&self) -> bool {
        match std::fs::metadata(&self.base.path) {
            Ok(now) => now.is_dir() && self.id == Some((now.dev(), now.ino())),
            Err(_) => self.id.is_none(),
        }
    }

    /// What is there now.
    fn now(&self) -> Option<FileId> {
        let now = std::fs::metadata(&self.base.path).ok()?;
        Some((now.dev(), now.ino()))
    }
}

/// For each directory that is an earlier one under another name, both numbers. Compilers skip it, so it changes which files they find
/// from there on (`#include_next`), and which of two options counts.
fn repetitions(directories: impl Iterator<Item = Option<FileId>>) -> Vec<(usize, usize)> {
    let mut firsts = HashMap::new();
    let first = |(index, id): (usize, Option<FileId>)| {
        let first = *firsts.entry(id?).or_insert(index);
        (first != index).then_some((index, first))
    };
    directories.enumerate().filter_map(first).collect()
}

/// An ingredient for each directory that is an earlier one.
pub(super) fn ingredients(bases: &[SearchedBase]) -> impl Iterator<Item = Ingredient> {
    let repeated = repetitions(bases.iter().map(|base| base.id)).into_iter();
    repeated.map(|(index, first)| {
        let name = |index: usize| bases[index].base.name.as_slice();
        let value = [b"is ", name(first)].concat();
        Ingredient::new(Kind::Include, String::from_utf8_lossy(name(index)), value)
    })
}

/// Whether those that are earlier ones are the same as then.
pub(super) fn repeat_alike(bases: &[SearchedBase]) -> bool {
    let then = repetitions(bases.iter().map(|base| base.id));
    then == repetitions(bases.iter().map(SearchedBase::now))
}
