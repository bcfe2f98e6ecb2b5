//! The names that occur in a driver's libraries, and in libraries that it opened later.

use std::collections::HashMap;
use std::io;
use std::path::Path;

use super::file_memory::FileMemory;
use super::name_search::{has_been_asked, note_asked, search};
use super::names::{self, Names};
use super::real_paths::says_what_is_there;
use super::scanned_library::ScannedLibrary;
use crate::fork_safety::Mutex;

/// The names of each list of libraries that was added.
#[derive(Default)]
pub struct DriverNames(Mutex<Vec<NamesOfList>>);

/// The names of a list of libraries.
struct NamesOfList {
    libraries: Vec<ScannedLibrary>,
    identity: [u8; 32],
    /// Whether names occur that this process has looked for.
    answers: HashMap<Vec<u8>, bool>,
    /// None until this process needs them.
    names: Option<Names>,
}

impl DriverNames {
    /// The names in these libraries.
    pub(super) fn of(libraries: Vec<ScannedLibrary>) -> DriverNames {
        let names = DriverNames::default();
        names.add(libraries);
        names
    }

    /// Adds the names in libraries that are not known yet.
    pub(super) fn add(&self, mut libraries: Vec<ScannedLibrary>) {
        libraries.retain(|library| !self.has_library(library));
        libraries.sort();
        libraries.dedup();
        if !libraries.is_empty() {
            let identity = names::identity(&libraries);
            self.0.lock().push(NamesOfList {
                libraries,
                identity,
                answers: HashMap::new(),
                names: None,
            });
        }
    }

    fn has_library(&self, library: &ScannedLibrary) -> bool {
        let known = self.0.lock();
        let mut known = known.iter().flat_map(|list| &list.libraries);
        known.any(|one| one.identity == library.identity)
    }

    /// Whether the library at this path is among them.
    pub(super) fn has_path(&self, path: &Path) -> bool {
        let known = self.0.lock();
        let mut known = known.iter().flat_map(|list| &list.libraries);
        known.any(|one| one.path == path)
    }

    /// Whether the driver may ask for the name. None: [`DriverNames::look_for`] must be called first.
    pub fn has(&self, name: &[u8], memory: &dyn FileMemory) -> Option<bool> {
        for list in self.0.lock().iter_mut() {
            let occurs = match (list.answers.get(name), &mut list.names) {
                (Some(known), _) => Some(*known),
                (None, Some(names)) => names.find(name),
                (None, None) => Some(memory.occurs(&list.identity, name)?),
            };
            if let Some(occurs) = occurs {
                memory.note_name(&list.identity, name, occurs);
            }
            if occurs.unwrap_or(true) {
                return Some(true);
            }
        }
        Some(false)
    }

    /// Looks for these names, so that each one can be asked for. The first process that looks for names in some libraries searches
    /// for its own; the second gathers all.
    ///
    /// # Errors
    /// A library cannot be read for now.
    pub fn look_for(&self, wanted: &[Vec<u8>], memory: &dyn FileMemory) -> io::Result<()> {
        for index in 0..self.changes() {
            let (libraries, identity) = {
                let list = &self.0.lock()[index];
                if list.names.is_some() {
                    continue;
                }
                (list.libraries.clone(), list.identity)
            };
            // Without the lock: the libraries may have to be read.
            let recalled = Names::recall(&identity, memory);
            let names = match recalled {
                None if !has_been_asked(&identity, memory) => {
                    match search(&libraries, wanted, memory) {
                        Ok(answers) => {
                            note_asked(&identity, memory);
                            let answers = wanted.iter().cloned().zip(answers);
                            self.0.lock()[index].answers.extend(answers);
                            continue;
                        }
                        Err(error) if says_what_is_there(&error) => Names::All,
                        Err(error) => return Err(error),
                    }
                }
                None => Names::of(&libraries, memory)?,
                Some(names) => names,
            };
            self.0.lock()[index].names.get_or_insert(names);
        }
        Ok(())
    }

    /// How often libraries were added.
    pub fn changes(&self) -> usize {
        self.0.lock().len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::content_value;
    use crate::driver::look::Look;
    use crate::driver::names::tests::TestMemory;

    const SEARCH: [u8; 32] = [1; 32];

    fn asked(names: &DriverNames, wanted: &[&str], look: &Look<'_>) -> Vec<Option<bool>> {
        let has = |name: &&str| names.has(name.as_bytes(), look);
        let answers = || wanted.iter().map(has).collect::<Vec<_>>();
        if answers().contains(&None) {
            let wanted: Vec<_> = wanted.iter().map(|name| name.as_bytes().to_vec()).collect();
            names.look_for(&wanted, look).expect("read");
        }
        answers()
    }

    #[test]
    fn the_first_process_searches_for_its_names_and_the_second_that_has_others_gathers_all() {
        let memory = TestMemory::new();
        let mut paths = crate::driver::loaded_paths().into_iter();
        let path = paths.find(|path| path.to_string_lossy().contains("libc.so"));
        let path = path.expect("the C library");
        let library = ScannedLibrary {
            identity: content_value(&memory.digest(&path).expect("read")),
            path,
        };
        let begin = || {
            let look = Look::new(&memory);
            look.begin(&SEARCH);
            look
        };
        let list = names::identity(std::slice::from_ref(&library));
        let is_gathered = || Names::recall(&list, &memory).is_some();
        let own = ["TMPDIR", "POCL_DEVICES"];
        let look = begin();
        let names = DriverNames::of(vec![library.clone()]);
        assert_eq!(names.has(b"TMPDIR", &look), None, "nobody has asked");
        assert_eq!(asked(&names, &own, &look), [Some(true), Some(false)]);
        look.keep();
        assert!(!is_gathered());

        let look = begin();
        let names = DriverNames::of(vec![library]);
        assert_eq!(names.has(b"TMPDIR", &look), Some(true));
        assert_eq!(names.has(b"POCL_DEVICES", &look), Some(false));
        assert_eq!(names.has(b"LANG", &look), None, "nobody has asked");
        assert!(!is_gathered());
        let others = ["LANG", "SSH_CONNECTION"];
        assert_eq!(asked(&names, &others, &look), [Some(true), Some(false)]);
        assert!(is_gathered());
        assert_eq!(names.has(b"HOME", &look), Some(true), "read from the file");
    }
}
