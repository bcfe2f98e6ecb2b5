//! What is remembered of the files of drivers: in this process, and in the cache directory.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::Ordering;

use super::Cache;
use crate::content_digest::ReadAlong;
use crate::driver::Driver;
use crate::driver::content_value;
use crate::driver::file_memory::FileMemory;
use crate::driver::look::FactBytes;
use crate::store::{Store, library_facts};

impl FileMemory for Cache {
    fn digest(&self, path: &Path) -> io::Result<[u8; 32]> {
        self.digests.digest(self.store(), path)
    }

    fn identities(&self, paths: &[&Path], along: &dyn ReadAlong) -> Vec<io::Result<Vec<u8>>> {
        let digests = self.digests.digests(self.store(), paths, along);
        let identity = |digest: io::Result<_>| Ok(content_value(&digest?));
        digests.into_iter().map(identity).collect()
    }

    fn knows_no_driver(&self) -> bool {
        self.store().is_some_and(Store::is_unused)
    }

    fn facts(&self, identity: &[u8; 32]) -> io::Result<Option<File>> {
        let store = self.store();
        store.map_or(Ok(None), |store| library_facts::open(store, identity))
    }

    fn part(&self, identity: &[u8; 32]) -> io::Result<Option<FactBytes>> {
        let read = |store| library_facts::read(store, identity);
        let bytes = self.store().map_or(Ok(None), read)?;
        Ok(bytes.map(FactBytes::from))
    }

    fn remember_facts(&self, identity: &[u8; 32], facts: &[u8]) {
        if let Some(store) = self.written_store() {
            library_facts::save(store, identity, facts);
        }
    }

    /// Only notes it: a thread of ours may not read the environment, which a driver may be changing meanwhile.
    fn lacks_names(&self) {
        self.lacks_names.store(true, Ordering::Relaxed);
    }

    fn is_neutral_library(&self, name: &str) -> bool {
        self.config.is_neutral_library(name)
    }
}

impl Cache {
    /// Saves digests of a driver's files for the next process, also if the driver cannot be identified, since each process tries. Not if
    /// that failed for now and nothing is known yet: then the next process is still the first.
    pub(super) fn remember_digests_of(&self, driver: &Driver) {
        if driver.has_identity() || !self.knows_no_driver() {
            self.remember_digests();
        }
    }

    /// Saves digests of driver files for the next process.
    pub(super) fn remember_digests(&self) {
        if let Some(store) = self.written_store() {
            self.digests.save(store);
        }
    }
}
