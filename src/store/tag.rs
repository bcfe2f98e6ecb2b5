//! The file that tells backups that a directory is a cache (<https://bford.info/cachedir/>).

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
        let number = name.strip_prefix('v');
        let is_number = number.is_some_and(|number| number.parse::<u32>().is_ok());
        let other = || cache.open_below(name).ok().flatten();
        let has_entries = |other: Directory| other.open_below(ENTRIES).is_ok_and(|it| it.is_some());
        name == VERSION_DIRECTORY || is_number && other().is_some_and(has_entries)
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
