//! The libraries in which processes have searched for names. A baker gathers all names in them.
//!
//! A process with a variable that is new searches the driver's libraries for its name before its first hit, and one after some searches
//! gathers all. A first hit takes 2 to 4 ms (1 kernel, Intel's CPU runtime and GPU driver, rusticl); it took 40 to 70 with a search and 107
//! to 122 where all names were gathered, and takes 0.1 to 0.7 ms longer with all names in a file. rusticl compiles that kernel in 33 ms.
//! Each terminal, desktop and service has variables of its own, so nearly every user has such processes.

use std::io;

use super::asked_names::{AskedNames, MAGIC, Place};
use super::file_memory::FileMemory;
use super::names::{self, Names};
use super::scanned_library::ScannedLibrary;

/// What the file of a search begins with.
pub const BEGINNING: &[u8] = MAGIC;

/// What was asked of libraries whose names nobody has gathered.
pub struct LeftNames(AskedNames);

impl LeftNames {
    /// What the file of a search says. None: it is another file, or there is nothing to gather.
    pub fn of(file: &[u8], memory: &dyn FileMemory) -> Option<LeftNames> {
        let asked = AskedNames::read(file)?;
        let (identity, places) = asked.libraries();
        let is_left = !places.is_empty() && Names::recall(identity, memory).is_none();
        is_left.then_some(LeftNames(asked))
    }

    /// The libraries, if all are there as they were when they were searched.
    fn libraries(&self, memory: &dyn FileMemory) -> Option<Vec<ScannedLibrary>> {
        let (identity, places) = self.0.libraries();
        let libraries: Option<Vec<_>> = places.iter().map(|place| place.library(memory)).collect();
        libraries.filter(|libraries| names::identity(libraries) == *identity)
    }

    /// Whether the names can be gathered here.
    pub fn are_there(&self, memory: &dyn FileMemory) -> bool {
        self.libraries(memory).is_some()
    }

    /// Gathers the names, and stores them.
    ///
    /// First it notes that they need not be gathered. So if it fails, or is killed, no process starts another baker for them until there
    /// is another search.
    ///
    /// # Errors
    /// The libraries are not there, cannot be read or change meanwhile, or nothing can be stored.
    pub fn gather(self, memory: &dyn FileMemory) -> io::Result<()> {
        let (identity, places) = self.0.libraries();
        let libraries = self.libraries(memory);
        AskedNames::put_off(identity, memory);
        if AskedNames::recall(identity, memory).are_left_at(places) {
            return Err(io::Error::other("nothing can be stored"));
        }
        let changed = || io::Error::other("a library is not what was searched");
        let names = names::scan(&libraries.ok_or_else(changed)?, memory)?;
        let is_same = |place: &Place| place.library(memory).is_some();
        if !places.iter().all(is_same) {
            return Err(changed());
        }
        memory.remember_facts(identity, &names);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::ffi::OsStr;
    use std::fs::File;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    use tempfile::TempDir;

    use super::*;
    use crate::driver::driver_names::DriverNames;
    use crate::driver::names::tests::TestMemory;
    use crate::driver::{content_value, loaded_paths};

    /// A copy of the C library under this name, and what must live as long.
    fn copy_of_c_library(name: &[u8]) -> (ScannedLibrary, TestMemory, TempDir) {
        let memory = TestMemory::new();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join(OsStr::from_bytes(name));
        let mut paths = loaded_paths().into_iter();
        let library = paths.find(|path| path.to_string_lossy().contains("libc.so"));
        std::fs::copy(library.expect("the C library"), &path).expect("copied");
        let identity = content_value(&memory.digest(&path).expect("read"));
        (ScannedLibrary { identity, path }, memory, directory)
    }

    fn left(memory: &TestMemory) -> Vec<LeftNames> {
        let files = memory.files().into_iter();
        let files = files.map(|file| std::fs::read(file).expect("read"));
        let files = files.filter(|file| file.starts_with(BEGINNING));
        files
            .filter_map(|file| LeftNames::of(&file, memory))
            .collect()
    }

    fn search(library: &ScannedLibrary, name: &str, memory: &dyn FileMemory) {
        let names = DriverNames::of(vec![library.clone()]);
        let wanted = [name.as_bytes().to_vec()];
        names.look_for(&wanted, memory).expect("searched");
    }

    #[test]
    fn names_are_left_by_a_search_until_they_were_gathered() {
        let (library, memory, _directory) = copy_of_c_library(b"library");
        assert!(left(&memory).is_empty());
        search(&library, "TMPDIR", &memory);
        let found = left(&memory).pop().expect("a list of libraries");
        found.gather(&memory).expect("gathered");
        assert!(left(&memory).is_empty());
        // A process with another name reads no library.
        std::fs::remove_file(&library.path).expect("removed");
        let names = DriverNames::of(vec![library]);
        let wanted = [b"LANG".to_vec(), b"A_NAME_THAT_NOBODY_HAS".to_vec()];
        names.look_for(&wanted, &memory).expect("looked up");
        let has = wanted.each_ref().map(|name| names.has(name, &memory));
        assert_eq!(has, [Some(true), Some(false)]);
    }

    /// Another user may have put it there, with the build-id of the library.
    #[test]
    fn a_file_that_is_not_the_one_that_was_searched_is_not_read_and_not_tried_again() {
        let (library, memory, _directory) = copy_of_c_library(b"library");
        search(&library, "TMPDIR", &memory);
        let copy = library.path.with_extension("copy");
        std::fs::copy(&library.path, &copy).expect("copied");
        std::fs::rename(&copy, &library.path).expect("replaced");
        let found = left(&memory).pop().expect("a list of libraries");
        assert!(!found.are_there(&memory));
        assert!(found.gather(&memory).is_err());
        assert!(left(&memory).is_empty(), "until there is another search");
        search(&library, "LANG", &memory);
        let found = left(&memory).pop().expect("a list of libraries");
        found.gather(&memory).expect("gathered");
    }

    #[test]
    fn a_path_need_not_be_a_text() {
        let (library, memory, _directory) = copy_of_c_library(b"library \xff");
        search(&library, "TMPDIR", &memory);
        let found = left(&memory).pop().expect("a list of libraries");
        found.gather(&memory).expect("gathered");
    }

    /// Counts how often it is told that names are left.
    struct Told<'a>(&'a TestMemory, bool, Cell<u32>);

    impl FileMemory for Told<'_> {
        fn digest(&self, path: &Path) -> io::Result<[u8; 32]> {
            self.0.digest(path)
        }

        fn facts(&self, identity: &[u8; 32]) -> io::Result<Option<File>> {
            self.0.facts(identity)
        }

        fn remember_facts(&self, identity: &[u8; 32], facts: &[u8]) {
            if self.1 {
                self.0.remember_facts(identity, facts);
            }
        }

        fn lacks_names(&self) {
            self.2.set(self.2.get() + 1);
        }
    }

    #[test]
    fn nobody_is_told_of_names_that_nobody_can_gather() {
        let (library, memory, _directory) = copy_of_c_library(b"library");
        let told = |name, keeps| {
            let told = Told(&memory, keeps, Cell::new(0));
            search(&library, name, &told);
            told.2.get()
        };
        assert_eq!(told("TMPDIR", false), 0, "nothing can be kept");
        assert_eq!(told("TMPDIR", true), 1);
        assert_eq!(told("TMPDIR", true), 0, "a process that asks again");
        assert_eq!(told("LANG", false), 0, "nothing more can be kept");
        assert_eq!(told("LANG", true), 1, "another search");
    }
}
