//! Gathers the names in drivers' libraries that processes have searched.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::driver::file_memory::FileMemory;
use crate::driver::left_names::{BEGINNING, LeftNames};
use crate::store::digests::Digests;
use crate::store::library_facts::FileStates;
use crate::store::{Store, library_facts};

/// What the store remembers of drivers' files, and is to remember.
struct BakerMemory<'a> {
    store: &'a Store,
    digests: Digests,
}

impl FileMemory for BakerMemory<'_> {
    fn digest(&self, path: &Path) -> io::Result<[u8; 32]> {
        self.digests.digest(Some(self.store), path)
    }

    fn facts(&self, identity: &[u8; 32]) -> io::Result<Option<File>> {
        library_facts::open(self.store, identity)
    }

    fn remember_facts(&self, identity: &[u8; 32], facts: &[u8]) {
        library_facts::save(self.store, identity, facts);
    }
}

/// What was left in files that are not as they were among these, with the memory for it.
fn left<'a>(store: &'a Store, known: &FileStates) -> (Vec<LeftNames>, BakerMemory<'a>) {
    let memory = BakerMemory {
        store,
        digests: Digests::new(),
    };
    // Without them, processes search.
    let files = library_facts::beginning_with(store, BEGINNING, known).unwrap_or_default();
    let left = files.iter().filter_map(|file| LeftNames::of(file, &memory));
    (left.collect(), memory)
}

/// Whether names that can be gathered here were left since the files were in these states. Earlier ones are no reason to start a baker:
/// what stopped one then, a full disk, would stop each.
pub fn are_left_since(store: &Store, before: &FileStates) -> bool {
    let (left, memory) = left(store, before);
    left.iter().any(|left| left.are_there(&memory))
}

/// Gathers them. What cannot be gathered is left again by the next process that searches.
pub fn gather(store: &Store) {
    let (left, memory) = left(store, &FileStates::new());
    for left in left {
        if let Err(error) = left.gather(&memory) {
            tracing::debug!(%error, "the names in a driver's libraries cannot be gathered");
        }
    }
}
