//! A failure to use the store.

use std::path::PathBuf;
use std::{fmt, io};

/// A failure to use the store, with the path and what was tried.
#[derive(Debug)]
pub struct StoreError {
    /// What was tried.
    pub action: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// What the system said.
    pub error: io::Error,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot {} `{}`: {}",
            self.action,
            crate::log::path(&self.path),
            self.error
        )
    }
}

impl std::error::Error for StoreError {}

impl StoreError {
    /// Whether there was no room.
    pub fn is_full(&self) -> bool {
        use io::ErrorKind::{QuotaExceeded, StorageFull};
        matches!(self.error.kind(), StorageFull | QuotaExceeded)
    }
}
