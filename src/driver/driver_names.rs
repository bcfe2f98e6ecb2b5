//! The names that occur in a driver's libraries, and in libraries that it opened later.

use std::collections::BTreeSet;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};

use super::identity::{FileMemory, MAX_LOOKS};
use super::name_search::{self, Occurrences};
use super::names::{self, Names, ScannedLibrary};
use super::real_paths::says_what_is_there;
use crate::fork_safety::Mutex;

/// The names of each list of libraries that was added.
#[derive(Default)]
pub struct DriverNames {
    lists: Mutex<Vec<NamesOfList>>,
    /// How often libraries could not be read for now.
    failures: AtomicU32,
}

/// The names of a list of libraries.
struct NamesOfList {
    libraries: Vec<ScannedLibrary>,
    identity: [u8; 32],
    known: Occurrences,
    /// The set of all names. None until this process asks for one that neither it nor an earlier process has looked for.
    all: Option<Names>,
    /// Names that were asked for and that have no answer yet.
    asked: BTreeSet<Vec<u8>>,
}

/// What was found about names that were asked for.
enum Found {
    Some(Occurrences),
    All(Names),
}

impl NamesOfList {
    fn occurs(&mut self, name: &[u8], memory: &dyn FileMemory) -> Option<bool> {
        let occurs = match (self.known.get(name), &mut self.all) {
            (Some(occurs), _) => *occurs,
            // What is damaged may have every name. That is no answer for later processes.
            (None, Some(all)) => match all.find(name) {
                None => return Some(true),
                Some(occurs) => occurs,
            },
            (None, None) => memory.occurs(&self.identity, name)?,
        };
        if !self.known.contains_key(name) {
            self.known.insert(name.to_vec(), occurs);
        }
        memory.note_name(&self.identity, name, occurs);
        Some(occurs)
    }

    /// Whether names were looked for in these libraries, here or by an earlier process.
    fn is_searched(&self, memory: &dyn FileMemory) -> bool {
        !self.known.is_empty() || memory.knows_names(&self.identity)
    }

    /// Takes the answers to what was asked. Another thread may have found others meanwhile.
    fn learn(&mut self, asked: &BTreeSet<Vec<u8>>, found: Found) {
        self.asked.retain(|name| !asked.contains(name));
        match found {
            Found::Some(found) => self.known.extend(found),
            Found::All(names) => {
                self.all.get_or_insert(names);
            }
        }
    }
}

impl DriverNames {
    /// The names in these libraries. None is read before [`DriverNames::load`].
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
            self.lists.lock().push(NamesOfList {
                identity: names::identity(&libraries),
                libraries,
                known: Occurrences::new(),
                all: None,
                asked: BTreeSet::new(),
            });
        }
    }

    fn has_library(&self, library: &ScannedLibrary) -> bool {
        let known = self.lists.lock();
        let mut known = known.iter().flat_map(|list| &list.libraries);
        known.any(|one| one.identity == library.identity)
    }

    /// Whether the library at this path is among them.
    pub(super) fn has_path(&self, path: &Path) -> bool {
        let known = self.lists.lock();
        let mut known = known.iter().flat_map(|list| &list.libraries);
        known.any(|one| one.path == path)
    }

    /// Whether the driver may ask for the name. None: [`DriverNames::load`] finds out.
    pub fn has(&self, name: &[u8], memory: &dyn FileMemory) -> Option<bool> {
        let mut is_known = true;
        for list in self.lists.lock().iter_mut() {
            match list.occurs(name, memory) {
                Some(true) => return Some(true),
                Some(false) => {}
                None => {
                    is_known = false;
                    list.asked.insert(name.to_vec());
                }
            }
        }
        is_known.then_some(false)
    }

    /// Finds out about the names that were asked for without an answer. The first process with these libraries looks for its names
    /// only; who comes with others loads all names, or makes that set.
    ///
    /// # Errors
    /// A library cannot be read for now.
    pub fn load(&self, memory: &dyn FileMemory) -> io::Result<()> {
        for index in 0..self.changes() {
            let (libraries, asked, is_searched) = {
                let list = &self.lists.lock()[index];
                let is_searched = list.is_searched(memory);
                (list.libraries.clone(), list.asked.clone(), is_searched)
            };
            if asked.is_empty() {
                continue;
            }
            // Without the lock: the libraries may have to be read.
            let found = match find(&libraries, &asked, is_searched, memory) {
                Err(error)
                    if !says_what_is_there(&error)
                        && self.failures.fetch_add(1, Ordering::Relaxed) < MAX_LOOKS =>
                {
                    return Err(error);
                }
                found => found.unwrap_or_else(|error| {
                    tracing::debug!(%error, "names of variables cannot be looked for: every variable is in the key");
                    Found::All(Names::All)
                }),
            };
            self.lists.lock()[index].learn(&asked, found);
        }
        Ok(())
    }

    /// How often libraries were added.
    pub fn changes(&self) -> usize {
        self.lists.lock().len()
    }
}

fn find(
    libraries: &[ScannedLibrary],
    asked: &BTreeSet<Vec<u8>>,
    is_searched: bool,
    memory: &dyn FileMemory,
) -> io::Result<Found> {
    if let Some(all) = Names::recall(libraries, memory) {
        return Ok(Found::All(all));
    }
    if is_searched {
        return Ok(Found::All(Names::of(libraries, memory)?));
    }
    let found = name_search::search(libraries, asked, memory)?;
    memory.keep_names();
    Ok(Found::Some(found))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::content_value;
    use crate::driver::look::Look;
    use crate::driver::names::tests::TestMemory;

    const SEARCH: [u8; 32] = [1; 32];

    #[test]
    fn names_are_loaded_for_a_name_that_no_earlier_process_has_asked_for() {
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
        let look = begin();
        let names = DriverNames::of(vec![library.clone()]);
        let asked = |names: &DriverNames, look: &Look<'_>| {
            ["TMPDIR", "POCL_DEVICES"].map(|name| names.has(name.as_bytes(), look))
        };
        assert_eq!(asked(&names, &look), [None, None]);
        names.load(&look).expect("read");
        assert_eq!(asked(&names, &look), [Some(true), Some(false)]);
        look.keep();
        assert_eq!(memory.files().len(), 1, "a snapshot, no set of all names");

        let look = begin();
        let names = DriverNames::of(vec![library]);
        assert_eq!(asked(&names, &look), [Some(true), Some(false)]);
        assert_eq!(
            asked(&names, &Look::new(&memory)),
            [Some(true), Some(false)],
            "also where no snapshot is read"
        );
        assert_eq!(names.has(b"LANG", &look), None, "nobody has asked");
        names.load(&look).expect("read");
        assert_eq!(names.has(b"LANG", &look), Some(true));
        assert_eq!(names.has(b"SSH_CONNECTION", &look), Some(false));
    }
}
