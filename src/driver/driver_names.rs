//! The names that occur in a driver's libraries, and in libraries that it opened later.

use std::io;
use std::path::Path;

use super::identity::FileMemory;
use super::names::{self, Names, ScannedLibrary};
use crate::fork_safety::Mutex;

/// The names of each list of libraries that was added.
#[derive(Default)]
pub struct DriverNames(Mutex<Vec<NamesOfList>>);

/// The names of a list of libraries.
struct NamesOfList {
    libraries: Vec<ScannedLibrary>,
    identity: [u8; 32],
    /// None until this process asks for a name that no earlier one has asked for.
    names: Option<Names>,
}

impl DriverNames {
    /// The names in these libraries.
    ///
    /// # Errors
    /// One cannot be read for now.
    pub(super) fn of(
        libraries: Vec<ScannedLibrary>,
        memory: &dyn FileMemory,
    ) -> io::Result<DriverNames> {
        let names = DriverNames::default();
        names.add(libraries, memory)?;
        Ok(names)
    }

    /// Adds the names in libraries that are not known yet.
    pub(super) fn add(
        &self,
        mut libraries: Vec<ScannedLibrary>,
        memory: &dyn FileMemory,
    ) -> io::Result<()> {
        libraries.retain(|library| !self.has_library(library));
        libraries.sort();
        libraries.dedup();
        if !libraries.is_empty() {
            let identity = names::identity(&libraries);
            let names = match memory.knows_names(&identity) {
                true => None,
                false => Some(Names::of(&libraries, memory)?),
            };
            self.0.lock().push(NamesOfList {
                libraries,
                identity,
                names,
            });
        }
        Ok(())
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

    /// Whether the driver may ask for the name. None: [`DriverNames::load`] must be called first.
    pub fn has(&self, name: &[u8], memory: &dyn FileMemory) -> Option<bool> {
        for list in self.0.lock().iter_mut() {
            let identity = &list.identity;
            let occurs = match &mut list.names {
                None => Some(memory.occurs(identity, name)?),
                Some(names) => names.find(name),
            };
            if let Some(occurs) = occurs {
                memory.note_name(identity, name, occurs);
            }
            if occurs.unwrap_or(true) {
                return Some(true);
            }
        }
        Some(false)
    }

    /// Loads all names, so that each one can be asked for.
    ///
    /// # Errors
    /// A library cannot be read for now.
    pub fn load(&self, memory: &dyn FileMemory) -> io::Result<()> {
        for index in 0..self.changes() {
            let libraries = {
                let list = &self.0.lock()[index];
                list.names.is_none().then(|| list.libraries.clone())
            };
            // Without the lock: the libraries may have to be read.
            if let Some(libraries) = libraries {
                let names = Names::of(&libraries, memory)?;
                self.0.lock()[index].names.get_or_insert(names);
            }
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
        let names = DriverNames::of(vec![library.clone()], &look).expect("read");
        assert_eq!(names.has(b"TMPDIR", &look), Some(true));
        assert_eq!(names.has(b"POCL_DEVICES", &look), Some(false));
        look.remember_part(&[2; 32], b"");
        look.keep();

        let look = begin();
        let names = DriverNames::of(vec![library], &look).expect("not read");
        assert_eq!(names.has(b"TMPDIR", &look), Some(true));
        assert_eq!(names.has(b"POCL_DEVICES", &look), Some(false));
        assert_eq!(names.has(b"LANG", &look), None, "nobody has asked");
        names.load(&look).expect("read");
        assert_eq!(names.has(b"LANG", &look), Some(true));
        assert_eq!(names.has(b"SSH_CONNECTION", &look), Some(false));
    }
}
