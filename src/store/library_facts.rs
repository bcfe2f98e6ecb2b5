//! Facts about the libraries of a driver: one file for each kind of facts and each list of libraries. `driver` defines their contents
//! and notices damage.

use std::collections::HashMap;
use std::fs::File;
use std::io;

use super::directory::Directory;
use super::ownership::begins_as_ours;
use super::{Store, TEMPORARY};
use crate::file_fingerprint::FileFingerprint;
use crate::key::ingredients::hex;

/// Most of its files have names of variables.
pub(super) const DIRECTORY: &str = "names";
/// A file of names has some 2 MB, the others some kB. A machine has a few drivers with half a dozen files each, and many machines may
/// share a directory. New files replace those of former drivers.
const MAX_FILES: usize = 1024;
const MAX_BYTES: u64 = 256 << 20;
/// A file that is read at once has some 150 kB.
const MAX_READ_BYTES: u64 = 4 << 20;

/// The file of this identity; None: there is none.
///
/// # Errors
/// It cannot be opened.
pub fn open(store: &Store, identity: &[u8; 32]) -> io::Result<Option<File>> {
    let Some(directory) = store.facts_directory()? else {
        return Ok(None);
    };
    match directory.open_to_read(&name(identity)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        opened => opened.map(Some),
    }
}

/// The content of the file of this identity; None: there is none.
///
/// # Errors
/// It cannot be read, or is too large.
pub fn read(store: &Store, identity: &[u8; 32]) -> io::Result<Option<Vec<u8>>> {
    match store.facts_directory()? {
        None => Ok(None),
        Some(directory) => directory.read(&name(identity), MAX_READ_BYTES),
    }
}

/// The state of each file, by its name.
pub type FileStates = HashMap<String, FileFingerprint>;

/// The states of all files here.
///
/// # Errors
/// The directory cannot be read.
pub fn states(store: &Store) -> io::Result<FileStates> {
    let Some(directory) = store.facts_directory()? else {
        return Ok(FileStates::new());
    };
    let names = directory.names().map_err(|failure| failure.error)?;
    let state = |name: String| {
        directory
            .facts_and_fingerprint(&name)
            .map(|(_, state)| (name, state))
    };
    Ok(names.into_iter().filter_map(state).collect())
}

/// The content of each file that begins with this and is not as it was among these.
///
/// # Errors
/// The directory cannot be read.
pub fn beginning_with(
    store: &Store,
    beginning: &[u8],
    known: &FileStates,
) -> io::Result<Vec<Vec<u8>>> {
    let Some(directory) = store.facts_directory()? else {
        return Ok(Vec::new());
    };
    let names = directory.names().map_err(|failure| failure.error)?;
    let names = names.into_iter().filter(|name| {
        let state = || {
            directory
                .facts_and_fingerprint(name)
                .map(|(_, state)| state)
        };
        let is_known = || known.get(name).is_some_and(|known| Some(*known) == state());
        let start = || directory.read_start(name, beginning.len());
        is_ours(name) && !is_known() && start().is_some_and(|start| start == beginning)
    });
    // What is removed meanwhile is left out.
    let read = |name: String| directory.read(&name, MAX_READ_BYTES).ok().flatten();
    Ok(names.filter_map(read).collect())
}

impl Store {
    /// The directory, once there is one. A process reads half a dozen files in it.
    fn facts_directory(&self) -> io::Result<Option<&Directory>> {
        if let Some(known) = self.facts.get() {
            return Ok(Some(known));
        }
        let opened = self.root.open_below(DIRECTORY);
        let opened = opened.map_err(|failure| failure.error)?;
        Ok(opened.map(|opened| self.facts.get_or_init(|| Box::new(opened))))
    }
}

/// Writes the file of this identity.
pub fn save(store: &Store, identity: &[u8; 32], facts: &[u8]) {
    let written = store.root().create(DIRECTORY).and_then(|directory| {
        let temporary = store.root().create(TEMPORARY)?;
        directory.write_by_rename(&temporary, &name(identity), facts)?;
        let files = directory.names()?.into_iter();
        let files = files.filter(|name| is_ours(name) && begins_as_ours(&directory, name));
        let files = files.filter_map(|name| Some((directory.facts(&name)?, name)));
        let mut files: Vec<_> = files
            .map(|(file, name)| (file.modified_ms, file.size, name))
            .collect();
        files.sort();
        let mut bytes: u64 = files.iter().map(|(_, size, _)| size).sum();
        let mut count = files.len();
        for (_, size, name) in &files {
            if count <= MAX_FILES && bytes <= MAX_BYTES {
                break;
            }
            directory.remove(name)?;
            count -= 1;
            bytes -= size;
        }
        Ok(())
    });
    if let Err(error) = written {
        tracing::debug!(%error, "facts about driver libraries are not stored: the next process looks for them again");
    }
}

fn name(identity: &[u8; 32]) -> String {
    hex(identity)
}

/// Whether a name is that of such a file.
pub(super) fn is_ours(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}
