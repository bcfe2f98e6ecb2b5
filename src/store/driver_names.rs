//! Remembers which names occur in the libraries of a driver, a file for each list of libraries: see `driver::names`.
//!
//! Their form, and what tells that a file is damaged, is the driver's affair.

use std::fs::File;

use super::{Store, TEMPORARY};
use crate::key::ingredients::hex;

pub(super) const DIRECTORY: &str = "names";
/// A file has some 2 MB, and a machine a few drivers; those of drivers that were replaced go by and by.
const MAX_FILES: usize = 16;

/// The file of these libraries.
pub fn open(store: &Store, libraries: &[u8; 32]) -> Option<File> {
    let directory = store.root().open_below(DIRECTORY).ok()??;
    directory.open_to_read(&name(libraries))
}

/// Writes the file of these libraries.
pub fn save(store: &Store, libraries: &[u8; 32], names: &[u8]) {
    let written = store.root().create(DIRECTORY).and_then(|directory| {
        let temporary = store.root().create(TEMPORARY)?;
        directory.write_by_rename(&temporary, &name(libraries), names)?;
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
        tracing::debug!(%error, "names in driver libraries are not remembered");
    }
}

fn name(libraries: &[u8; 32]) -> String {
    hex(libraries)
}

/// Whether a name is one of these files'.
pub(super) fn is_ours(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_hexdigit())
}
