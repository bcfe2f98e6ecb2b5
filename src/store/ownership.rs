//! Which files the cache certainly wrote.
//!
//! A user may use a directory of his own as the cache directory, with files under any names. So a file is removed, replaced, cut or
//! appended to only if its content has a form that only the cache writes. In doubt it stays, and the cache does without the file of
//! that name.

use std::io;

use xxhash_rust::xxh3::xxh3_64;

use super::directory::Directory;
use super::tag::CACHEDIR_TAG;
use super::{ARCHIVE_KEY, LOCKS, StoreError, bake_attempts, load_guard, lock};

/// How files begin that are written whole: a magic number, the JSON of the statistics, or the tag.
const STARTS: [&[u8]; 3] = [b"oclc", b"{\"rows\":", CACHEDIR_TAG];
const MAX_START_BYTES: usize = 64;
/// Larger files without a magic number are not ours.
const MAX_READ_BYTES: u64 = 16 << 20;
const ARCHIVE_KEY_BYTES: u64 = 32;

/// Whether these first bytes are of a file that the cache wrote, as far as it was written.
pub fn is_our_start(start: &[u8]) -> bool {
    let begins = |known: &&[u8]| start.starts_with(known) || known.starts_with(start);
    is_blank(start) || STARTS.iter().any(begins)
}

/// Whether a file begins as those do that the cache writes whole, as far as it was written.
pub fn begins_as_ours(directory: &Directory, name: &str) -> bool {
    let start = directory.read_start(name, MAX_START_BYTES);
    start.is_some_and(|start| is_our_start(&start))
}

/// Whether a file certainly is the cache's: it begins as one, or has a content that only files of its name have.
pub fn has_our_content(directory: &Directory, name: &str) -> bool {
    if begins_as_ours(directory, name) {
        return true;
    }
    match name {
        LOCKS => return lock::is_lock_file(directory, name),
        // Its bytes are random.
        ARCHIVE_KEY => {
            let file = directory.facts(name);
            return file.is_some_and(|file| file.size == ARCHIVE_KEY_BYTES);
        }
        _ => {}
    }
    load_guard::is_left(directory, name)
        || bake_attempts::is_left(directory, name)
        || has_former_checksum(directory, name)
}

/// Whether a file has the framing that files without a magic number had: a checksum, then what it is of.
fn has_former_checksum(directory: &Directory, name: &str) -> bool {
    let bytes = directory.read(name, MAX_READ_BYTES).ok().flatten();
    bytes.is_some_and(|bytes| {
        let parts = bytes.split_first_chunk();
        parts.is_some_and(|(checksum, body)| u64::from_le_bytes(*checksum) == xxh3_64(body))
    })
}

/// Whether a file of this name may be written with this content: there is none, or one that the cache wrote. A power cut may have
/// left a part of the same content.
pub fn may_write(directory: &Directory, name: &str, content: &[u8]) -> bool {
    let look = || {
        let is_part = |start: Vec<u8>| content.starts_with(written(&start));
        directory.changed_ms(name).is_none()
            || has_our_content(directory, name)
            || directory
                .read_start(name, content.len())
                .is_some_and(is_part)
                && directory
                    .facts(name)
                    .is_some_and(|file| file.size <= content.len() as u64)
    };
    // Another process may write or remove it between two of these calls.
    look() || look()
}

/// The error of a write that [`may_write`] forbids.
pub fn not_ours(directory: &Directory, name: &str) -> StoreError {
    StoreError {
        action: "replace",
        path: directory.path().join(name),
        error: io::Error::new(io::ErrorKind::AlreadyExists, "oclcache did not write it"),
    }
}

/// Whether a file is empty or has only zeros, as after a power cut.
pub fn is_blank(bytes: &[u8]) -> bool {
    written(bytes).is_empty()
}

/// The part of a file that was written before a power cut; the rest is zeros.
pub fn written(bytes: &[u8]) -> &[u8] {
    let end = bytes.iter().rposition(|byte| *byte != 0);
    &bytes[..end.map_or(0, |last| last + 1)]
}
