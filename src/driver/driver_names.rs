//! The names that occur in a driver's libraries, and in libraries that it opened later.

use std::io;
use std::path::Path;

use super::identity::FileMemory;
use super::names::{Names, ScannedLibrary};
use crate::fork_safety::Mutex;

/// The names of each list of libraries that was added.
#[derive(Default)]
pub struct DriverNames(Mutex<Vec<(Vec<ScannedLibrary>, Names)>>);

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
            let names = Names::of(&libraries, memory)?;
            self.0.lock().push((libraries, names));
        }
        Ok(())
    }

    fn has_library(&self, library: &ScannedLibrary) -> bool {
        let known = self.0.lock();
        let mut known = known.iter().flat_map(|(libraries, _)| libraries);
        known.any(|one| one.identity == library.identity)
    }

    /// Whether the library at this path is among them.
    pub(super) fn has_path(&self, path: &Path) -> bool {
        let known = self.0.lock();
        let mut known = known.iter().flat_map(|(libraries, _)| libraries);
        known.any(|one| one.path == path)
    }

    /// Whether the driver may ask for the name.
    pub fn has(&self, name: &[u8]) -> bool {
        self.0.lock().iter_mut().any(|(_, names)| names.has(name))
    }

    /// How often libraries were added.
    pub fn changes(&self) -> usize {
        self.0.lock().len()
    }
}
