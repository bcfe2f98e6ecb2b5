//! Gathers the names in drivers' libraries that processes have searched.

use std::fs::File;
use std::io;
use std::path::Path;

use crate::driver::file_memory::FileMemory;
use crate::driver::left_names::{BEGINNING, LeftNames};
use crate::store::digests::Digests;
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

/// Calls the function with each list of libraries whose names were not gathered yet.
fn each_left(store: &Store, mut each: impl FnMut(LeftNames, &BakerMemory<'_>)) {
    let memory = BakerMemory {
        store,
        digests: Digests::new(),
    };
    // Without them, processes search.
    let files = library_facts::beginning_with(store, BEGINNING).unwrap_or_default();
    for file in files {
        if let Some(left) = LeftNames::of(&file, &memory) {
            each(left, &memory);
        }
    }
}

/// Whether there are such names.
pub fn are_left(store: &Store) -> bool {
    let mut are_left = false;
    each_left(store, |_, _| are_left = true);
    are_left
}

/// Gathers them. What cannot be read now is left to the next baker.
pub fn gather(store: &Store) {
    each_left(store, |left, memory| {
        if let Err(error) = left.gather(memory) {
            tracing::debug!(%error, "the names in a driver's libraries cannot be gathered");
        }
    });
}
