//! Why a verb failed: the message and the exit code.

use std::fmt;
use std::io::ErrorKind;

use super::refused_directory::Remedy;
use crate::store::StoreError;

/// Why a verb failed.
pub struct Failure {
    /// The message, without the command's name.
    pub message: String,
    /// The exit code. Codes above [`Failure::SIGNALED`] stand for the signal that ended the verb.
    pub code: u8,
}

impl Failure {
    /// Added to the number of a signal, as shells do.
    pub const SIGNALED: u8 = 128;

    /// A failure with exit code 1.
    pub fn new(message: impl fmt::Display) -> Failure {
        Failure {
            message: message.to_string(),
            code: 1,
        }
    }

    /// A failure with exit code 2: wrong usage.
    pub fn usage(message: impl fmt::Display) -> Failure {
        Failure {
            message: message.to_string(),
            code: 2,
        }
    }

    /// A failure with exit code 3: no entry matches.
    pub fn no_such_entry(message: impl fmt::Display) -> Failure {
        Failure {
            message: message.to_string(),
            code: 3,
        }
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Failure {
        let kind = error.error.kind();
        let is_refused = kind == ErrorKind::PermissionDenied;
        if let Some(remedy) = is_refused.then(|| Remedy::of(&error.path)).flatten() {
            return Failure::new(format_args!("{error}; {remedy}"));
        }
        let step = match kind {
            ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
                "make room there, or set OCLCACHE_DIR to a directory elsewhere"
            }
            ErrorKind::ReadOnlyFilesystem => {
                "set OCLCACHE_READONLY=1 to use the cache as it is, or OCLCACHE_DIR to a directory elsewhere"
            }
            _ => "run `oclcache doctor`, or set OCLCACHE_DIR to another directory",
        };
        Failure::new(format_args!("{error}; {step}"))
    }
}
