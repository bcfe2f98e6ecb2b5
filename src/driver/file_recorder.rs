//! Records what a search for a driver's files reads.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::file_memory::FileMemory;
use super::library_texts::LibraryTexts;
use super::real_paths::RealPaths;
use crate::stop::Stop;

/// Records the identity of each file that a search asks for, and the texts of those that are read for it.
pub(super) struct FileRecorder<'a> {
    memory: &'a dyn FileMemory,
    pub real: &'a RealPaths,
    identities: RefCell<BTreeMap<PathBuf, Vec<u8>>>,
    pub texts: LibraryTexts,
}

impl<'a> FileRecorder<'a> {
    /// `texts`: what is looked for.
    pub fn new(
        memory: &'a dyn FileMemory,
        real: &'a RealPaths,
        texts: LibraryTexts,
    ) -> FileRecorder<'a> {
        FileRecorder {
            memory,
            real,
            identities: RefCell::default(),
            texts,
        }
    }

    /// Reads the files that the search asks for later, all at once.
    pub fn read_ahead(&self, paths: &[&Path]) {
        let known = self.identities.borrow();
        let paths = paths
            .iter()
            .copied()
            .filter(|path| !known.contains_key(*path));
        let paths: Vec<&Path> = paths.collect();
        drop(known);
        for path in &paths {
            self.real.watch(path);
        }
        let read = self.memory.identities(&paths, &self.texts);
        // What cannot be read is asked for again.
        let read = paths.iter().zip(read);
        let read = read.filter_map(|(path, identity)| Some((path.to_path_buf(), identity.ok()?)));
        self.identities.borrow_mut().extend(read);
    }

    /// The identities of all files that were asked for, and the texts of those that were read.
    pub fn end(self) -> (BTreeMap<PathBuf, Vec<u8>>, LibraryTexts) {
        (self.identities.into_inner(), self.texts)
    }
}

impl FileMemory for FileRecorder<'_> {
    fn digest(&self, path: &Path) -> io::Result<[u8; 32]> {
        self.real.watch(path);
        let digest = self.memory.digest(path);
        digest.inspect_err(|error| self.real.note(error))
    }

    fn identity(&self, path: &Path) -> io::Result<Vec<u8>> {
        if let Some(known) = self.identities.borrow().get(path) {
            return Ok(known.clone());
        }
        self.real.watch(path);
        let identity = self.memory.identity(path);
        let identity = identity.inspect_err(|error| self.real.note(error))?;
        let mut identities = self.identities.borrow_mut();
        identities.insert(path.to_owned(), identity.clone());
        Ok(identity)
    }

    fn facts(&self, identity: &[u8; 32]) -> io::Result<Option<File>> {
        self.memory.facts(identity)
    }

    fn remember_facts(&self, identity: &[u8; 32], facts: &[u8]) {
        self.memory.remember_facts(identity, facts);
    }

    fn stop(&self) -> Stop {
        self.memory.stop()
    }
}
