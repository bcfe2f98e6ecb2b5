//! Finds out what identifies a driver before anybody asks, for a memory that keeps it.

use std::io;
use std::sync::Arc;

use super::Driver;
use super::file_memory::FileMemory;
use super::loaded::LoadedObjects;

impl Driver {
    /// Reads what the first key would read, as far as what is loaded by now tells it. The driver is asked nothing, and nothing of it is
    /// remembered but by this memory. Programs that the driver runs are not looked for.
    ///
    /// # Errors
    /// The driver cannot be identified now, or a library cannot be read.
    pub fn read_ahead(&self, memory: &dyn FileMemory) -> io::Result<()> {
        let known = self.identity_of(&Arc::new(LoadedObjects::now()), memory);
        let known = known.map_err(|_| io::Error::other("the driver cannot be identified"))?;
        let names = self.names_to_be_asked(&known.names, memory);
        known.names.look_for(&names, memory)
    }
}
