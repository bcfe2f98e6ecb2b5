//! The names that nobody has gathered yet, for a process that nobody waits for.
//!
//! A process with a variable that is new searches the driver's libraries for its name before its first hit, and one after some searches
//! gathers all. That took 76 to 135 ms and 160 to 240 (10 kernels, PoCL, Intel CPU, rusticl and Intel GPU), where a hit takes 2 to 6 and
//! the drivers compile one kernel in 37 to 570. With all names in a file, it takes 0.2 to 4 ms more. Each terminal, desktop and service has
//! variables of its own, so nearly every user has such processes.

use std::io;

use super::asked_names::{self, MAGIC};
use super::elf::Elf;
use super::file_memory::FileMemory;
use super::names::Names;
use super::scanned_library::ScannedLibrary;

/// What the file of a search begins with.
pub const BEGINNING: &[u8] = MAGIC;

/// Libraries in which processes have searched for names.
pub struct LeftNames {
    libraries: Vec<ScannedLibrary>,
    identity: [u8; 32],
}

impl LeftNames {
    /// The libraries of the file of a search. None: the names in them were gathered, or they are not there any more.
    pub fn of(file: &[u8], memory: &dyn FileMemory) -> Option<LeftNames> {
        let (libraries, identity) = asked_names::searched(file)?;
        let are_there = || libraries.iter().all(|one| is_there(one, memory).is_ok());
        (Names::recall(&identity, memory).is_none() && are_there()).then_some(LeftNames {
            libraries,
            identity,
        })
    }

    /// Gathers the names, and stores them.
    ///
    /// # Errors
    /// A library cannot be read for now.
    pub fn gather(&self, memory: &dyn FileMemory) -> io::Result<()> {
        Names::gather(&self.libraries, &self.identity, memory).map(drop)
    }
}

/// # Errors
/// At its place is no library, or another one.
fn is_there(library: &ScannedLibrary, memory: &dyn FileMemory) -> io::Result<()> {
    let elf = Elf::open(&library.path)?.ok_or(io::ErrorKind::InvalidData)?;
    library.is_read(elf.build_id().as_deref(), memory)
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::driver::driver_names::DriverNames;
    use crate::driver::names::tests::TestMemory;
    use crate::driver::{content_value, loaded_paths};

    fn copy_of_c_library(place: &Path, memory: &TestMemory) -> ScannedLibrary {
        let mut paths = loaded_paths().into_iter();
        let path = paths.find(|path| path.to_string_lossy().contains("libc.so"));
        std::fs::copy(path.expect("the C library"), place).expect("copied");
        ScannedLibrary {
            identity: content_value(&memory.digest(place).expect("read")),
            path: place.to_owned(),
        }
    }

    fn left(memory: &TestMemory) -> Vec<LeftNames> {
        let files = memory.files().into_iter();
        let files = files.map(|file| std::fs::read(file).expect("read"));
        let files = files.filter(|file| file.starts_with(BEGINNING));
        files
            .filter_map(|file| LeftNames::of(&file, memory))
            .collect()
    }

    #[test]
    fn names_are_left_by_a_search_until_they_were_gathered() {
        let memory = TestMemory::new();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let place = directory.path().join("library");
        let library = copy_of_c_library(&place, &memory);
        assert!(left(&memory).is_empty());
        let names = DriverNames::of(vec![library.clone()]);
        let wanted = [b"TMPDIR".to_vec()];
        names.look_for(&wanted, &memory).expect("searched");
        let [found] = &left(&memory)[..] else {
            panic!("one list of libraries")
        };
        found.gather(&memory).expect("gathered");
        assert!(left(&memory).is_empty());
        // A process with another name reads no library.
        std::fs::remove_file(&place).expect("removed");
        let names = DriverNames::of(vec![library]);
        let wanted = [b"LANG".to_vec(), b"A_NAME_THAT_NOBODY_HAS".to_vec()];
        names.look_for(&wanted, &memory).expect("looked up");
        let has = wanted.each_ref().map(|name| names.has(name, &memory));
        assert_eq!(has, [Some(true), Some(false)]);
    }

    #[test]
    fn nothing_is_left_of_libraries_that_were_replaced_or_removed() {
        let memory = TestMemory::new();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let place = directory.path().join("library");
        let names = DriverNames::of(vec![copy_of_c_library(&place, &memory)]);
        let wanted = [b"TMPDIR".to_vec()];
        names.look_for(&wanted, &memory).expect("searched");
        assert_eq!(left(&memory).len(), 1);
        std::fs::copy(std::env::current_exe().expect("a path"), &place).expect("replaced");
        assert!(left(&memory).is_empty());
        std::fs::remove_file(&place).expect("removed");
        assert!(left(&memory).is_empty());
    }
}
