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
    answers: Answers,
    /// Names that were asked for and that have no answer yet.
    asked: BTreeSet<Vec<u8>>,
}

/// What this process knows about the names in a list of libraries.
enum Answers {
    /// What an earlier process has asked for.
    Remembered,
    /// That, and what was looked for in this process.
    Searched(Occurrences),
    All(Names),
}

impl NamesOfList {
    fn occurs(&mut self, name: &[u8], memory: &dyn FileMemory) -> Option<bool> {
        let earlier = || memory.occurs(&self.identity, name);
        let occurs = match &mut self.answers {
            Answers::Remembered => earlier(),
            Answers::Searched(found) => found.get(name).copied().or_else(earlier),
            Answers::All(names) => match names.find(name) {
                // What is damaged may have every name. That is no answer for later processes.
                None => return Some(true),
                occurs => occurs,
            },
        };
        if let Some(occurs) = occurs {
            memory.note_name(&self.identity, name, occurs);
        }
        occurs
    }

    /// Takes the answers to what was asked. Another thread may have found others meanwhile.
    fn learn(&mut self, asked: &BTreeSet<Vec<u8>>, answers: Answers) {
        self.asked.retain(|name| !asked.contains(name));
        match (&mut self.answers, answers) {
            (Answers::All(_), _) => {}
            (Answers::Searched(known), Answers::Searched(found)) => known.extend(found),
            (known, answers) => *known = answers,
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
                answers: Answers::Remembered,
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
                let is_searched = matches!(list.answers, Answers::Searched(_))
                    || memory.knows_names(&list.identity);
                (list.libraries.clone(), list.asked.clone(), is_searched)
            };
            if asked.is_empty() {
                continue;
            }
            // Without the lock: the libraries may have to be read.
            let answers = match answers(&libraries, &asked, is_searched, memory) {
                Err(error)
                    if !says_what_is_there(&error)
                        && self.failures.fetch_add(1, Ordering::Relaxed) < MAX_LOOKS =>
                {
                    return Err(error);
                }
                answers => answers.unwrap_or_else(|error| {
                    tracing::debug!(%error, "names of variables cannot be looked for: every variable is in the key");
                    Answers::All(Names::All)
                }),
            };
            self.lists.lock()[index].learn(&asked, answers);
        }
        Ok(())
    }

    /// How often libraries were added.
    pub fn changes(&self) -> usize {
        self.lists.lock().len()
    }
}

fn answers(
    libraries: &[ScannedLibrary],
    asked: &BTreeSet<Vec<u8>>,
    is_searched: bool,
    memory: &dyn FileMemory,
) -> io::Result<Answers> {
    if let Some(all) = Names::recall(libraries, memory) {
        return Ok(Answers::All(all));
    }
    if is_searched {
        return Ok(Answers::All(Names::of(libraries, memory)?));
    }
    let found = name_search::search(libraries, asked, memory)?;
    memory.keep_names();
    Ok(Answers::Searched(found))
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
        assert_eq!(names.has(b"LANG", &look), None, "nobody has asked");
        names.load(&look).expect("read");
        assert_eq!(names.has(b"LANG", &look), Some(true));
        assert_eq!(names.has(b"SSH_CONNECTION", &look), Some(false));
    }
}
