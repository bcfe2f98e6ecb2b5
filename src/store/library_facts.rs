//! Facts about the libraries of a driver: one file for each kind of facts and each list of libraries. `driver::names` and
//! `driver::bindings` define their contents and notice damage.

use std::fs::File;

use super::{Store, TEMPORARY};
use crate::key::ingredients::hex;

/// Most of its files have names of variables.
pub(super) const DIRECTORY: &str = "names";
/// A file of names has some 2 MB, the others some kB, and a machine has a few drivers with half a dozen files each. New files replace
/// those of former drivers.
const MAX_FILES: usize = 64;

/// The file of this identity.
pub fn open(store: &Store, identity: &[u8; 32]) -> Option<File> {
    let directory = store.root().open_below(DIRECTORY).ok()??;
    directory.open_to_read(&name(identity))
}

/// Writes the file of this identity.
pub fn save(store: &Store, identity: &[u8; 32], facts: &[u8]) {
    let written = store.root().create(DIRECTORY).and_then(|directory| {
        let temporary = store.root().create(TEMPORARY)?;
        directory.write_by_rename(&temporary, &name(identity), facts)?;
        let files = directory.names()?.into_iter().filter(|name| is_ours(name));
        let mut files: Vec<_> = files
            .map(|name| (directory.modified_ms(&name), name))
            .collect();
        files.sort();
        let excess = files.len().saturating_sub(MAX_FILES);
        for (_, name) in &files[..excess] {
            directory.remove(name)?;
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
