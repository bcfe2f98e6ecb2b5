//! What is remembered of drivers' files from process to process, and how it is asked for.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};

use super::identity::content_value;
use super::look::FactBytes;
use super::search_memory;
use crate::content_digest::ReadAlong;
use crate::file_fingerprint::FileFingerprint;
use crate::key::ingredients::sha256;
use crate::stop::Stop;

/// Facts about drivers' files that are kept from process to process.
pub trait FileMemory {
    /// The digest of a file's content.
    ///
    /// # Errors
    /// The file cannot be read, or changes meanwhile.
    fn digest(&self, path: &Path) -> io::Result<[u8; 32]>;
    /// The facts about a list of libraries, as [`FileMemory::remember_facts`] got them; None: nobody has.
    ///
    /// `identity`: the digest of the search and of the libraries, see [`list_identity`].
    ///
    /// # Errors
    /// They cannot be read.
    fn facts(&self, identity: &[u8; 32]) -> io::Result<Option<File>>;
    /// Keeps the facts about a list of libraries.
    fn remember_facts(&self, identity: &[u8; 32], facts: &[u8]);
    /// The facts that [`FileMemory::remember_part`] got, in memory. Damage is for the caller to notice.
    ///
    /// # Errors
    /// They cannot be read.
    fn part(&self, identity: &[u8; 32]) -> io::Result<Option<FactBytes>> {
        let file = self.facts(identity)?;
        file.map(|file| FactBytes::read(&file)).transpose()
    }
    /// Keeps facts that follow from this identity, or that have states with them which tell whether they still hold.
    fn remember_part(&self, identity: &[u8; 32], facts: &[u8]) {
        self.remember_facts(identity, facts);
    }
    /// Begins to read the parts of the snapshot of this search, see [`super::look`].
    fn begin(&self, _search: &[u8; 32]) {}
    /// Whether a name occurs in the libraries of this identity, if an earlier process has asked; see [`super::names`].
    fn occurs(&self, _libraries: &[u8; 32], _name: &[u8]) -> Option<bool> {
        None
    }
    /// Notes whether a name occurs in these libraries.
    fn note_name(&self, _libraries: &[u8; 32], _name: &[u8], _occurs: bool) {}
    /// Notes that the names of some libraries were never gathered, so that processes with new variables search for theirs.
    fn lacks_names(&self) {}
    /// The state of the file that a path leads to, at any time since this look began; None: there is none.
    fn state(&self, path: &Path) -> Option<FileFingerprint> {
        FileFingerprint::at(path)
    }
    /// The target of the link at a path, at any time since this look began; None: there is none.
    fn target(&self, path: &Path) -> Option<PathBuf> {
        std::fs::read_link(path).ok()
    }
    /// The host and the rights of this process, see [`super::search_memory`].
    fn reader(&self) -> Vec<u8> {
        search_memory::reader()
    }
    /// A file's identity as it is in a key: its content. A build-id would not do: a library that is not loaded yet may be changed in
    /// place and keep it.
    ///
    /// # Errors
    /// The file cannot be read, or changes meanwhile.
    fn identity(&self, path: &Path) -> io::Result<Vec<u8>> {
        Ok(content_value(&self.digest(path)?))
    }
    /// The identities of several files. `along` reads those along that are not remembered.
    fn identities(&self, paths: &[&Path], _along: &dyn ReadAlong) -> Vec<io::Result<Vec<u8>>> {
        paths.iter().map(|path| self.identity(path)).collect()
    }
    /// Whether no process has left anything about a driver yet, so that all is soon asked for.
    fn knows_no_driver(&self) -> bool {
        false
    }
    /// Stops the work for which the memory is asked.
    fn stop(&self) -> Stop {
        Stop::default()
    }
    /// Whether an administrator says that a library of this name may answer for functions of a driver's and changes nothing.
    fn is_neutral_library(&self, _name: &str) -> bool {
        false
    }
}

/// The digest of a search in a list of libraries, and of the identities of these libraries.
pub fn list_identity<'a>(wanted: &[u8], libraries: impl Iterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut text = wanted.to_vec();
    for identity in libraries {
        text.extend((identity.len() as u32).to_le_bytes());
        text.extend(identity);
    }
    sha256(&text)
}
