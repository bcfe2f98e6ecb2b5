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
    /// None while an earlier process has asked for all names that this one has asked for.
    names: Option<Names>,
}

impl NamesOfList {
    fn has(&mut self, name: &[u8], memory: &dyn FileMemory) -> bool {
        let known = match &self.names {
            None => memory.occurs(&self.identity, name),
            Some(_) => None,
        };
        if known.is_none() && self.names.is_none() {
            // What cannot be read for now may have the name.
            self.names = Names::of(&self.libraries, memory).ok();
        }
        let names = self.names.as_mut();
        let occurs = known.or_else(|| names?.find(name));
        if let Some(occurs) = occurs {
            memory.note_name(&self.identity, name, occurs);
        }
        occurs.unwrap_or(true)
    }
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

    /// Whether the driver may ask for the name.
    pub fn has(&self, name: &[u8], memory: &dyn FileMemory) -> bool {
        let mut known = self.0.lock();
        let mut known = known.iter_mut();
        known.any(|list| list.has(name, memory))
    }

    /// How often libraries were added.
    pub fn changes(&self) -> usize {
        self.0.lock().len()
    }
}
