//! The file that tells backups that a directory is a cache (<https://bford.info/cachedir/>).

use std::path::Path;

use super::directory::Directory;
use super::ownership::written;
use super::{ENTRIES, StoreError, TEMPORARY, VERSION_DIRECTORY};

pub(super) const TAG: &str = "CACHEDIR.TAG";
pub(super) const CACHEDIR_TAG: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55\n\
# This is the cache directory of oclcache, a compiler cache for OpenCL. It can be deleted at any time.\n";

/// Tags the directory as a cache, so that backups leave it out; unless it has other files, since a user may keep the cache in a
/// directory with other things.
pub(super) fn tag(cache: &Directory, root: &Directory) -> Result<(), StoreError> {
    if cache.begins_with(TAG, CACHEDIR_TAG) {
        return Ok(());
    }
    let temporary = root.create(TEMPORARY)?;
    // Another format's directory is one that has entries.
    let is_format = |name: &str| {
        let other = || cache.open_below(name).ok().flatten();
        let has_entries = |other: Directory| other.open_below(ENTRIES).is_ok_and(|it| it.is_some());
        name == VERSION_DIRECTORY || is_numbered(name) && other().is_some_and(has_entries)
    };
    let is_alone = cache.names()?.iter().all(|name| match name.as_str() {
        // Keep the tag of another program. A power cut may have left a part of ours.
        TAG => (cache.read_start(TAG, CACHEDIR_TAG.len()))
            .is_some_and(|start| CACHEDIR_TAG.starts_with(written(&start))),
        name => is_format(name),
    });
    if is_alone {
        cache.write_by_rename(&temporary, TAG, CACHEDIR_TAG)?;
    }
    Ok(())
}

/// Whether all that a directory contains belongs to a cache, and there is one. It does not matter who owns it. False if the directory
/// cannot be listed.
pub fn is_only_a_cache(path: &Path) -> bool {
    let Ok(names) = std::fs::read_dir(path) else {
        return false;
    };
    let mut has_mark = false;
    for entry in names {
        let Ok(entry) = entry else {
            return false;
        };
        let (name, at) = (entry.file_name(), entry.path());
        let is_ours = match name.to_str() {
            // A FIFO of that name would be waited for.
            Some(TAG) => {
                let is_file = at.symlink_metadata().is_ok_and(|found| found.is_file());
                is_file && std::fs::read(&at).is_ok_and(|bytes| bytes == CACHEDIR_TAG)
            }
            Some(name) => is_numbered(name) && at.join(ENTRIES).is_dir(),
            None => false,
        };
        // What root has restored there may be closed.
        if !is_ours && name != VERSION_DIRECTORY {
            return false;
        }
        has_mark |= is_ours;
    }
    has_mark
}

/// Whether it is a name as of the directory of a format.
fn is_numbered(name: &str) -> bool {
    let number = name.strip_prefix('v');
    number.is_some_and(|number| number.parse::<u32>().is_ok())
}
