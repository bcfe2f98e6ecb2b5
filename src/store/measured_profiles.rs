//! What `oclcache doctor --qualify` has measured on drivers: one file for each driver, named by the digest of the driver's identity.
//! `driver` defines their contents and notices damage.
//!
//! Only the user's own cache has them. They are not exported, imported or read from system directories.

use super::directory::Directory;
use super::ownership::begins_as_ours;
use super::{Store, StoreError, TEMPORARY};
use crate::key::ingredients::Key;

pub(super) const DIRECTORY: &str = "profiles";
/// Ignore larger files: we never write them.
const MAX_FILE_BYTES: u64 = 4096;
/// Each update of a driver leaves the file of the driver before.
const MAX_FILES: usize = 64;

/// The file of this driver; None if there is none that can be read.
pub fn read(store: &Store, identity: &Key) -> Option<Vec<u8>> {
    let directory = store.root().open_below(DIRECTORY).ok()??;
    directory.read(&identity.hex(), MAX_FILE_BYTES).ok()?
}

/// Writes the file of this driver, and removes the oldest files if there are too many.
///
/// # Errors
/// It cannot be written.
pub fn save(store: &Store, identity: &Key, bytes: &[u8]) -> Result<(), StoreError> {
    let directory = store.root().create(DIRECTORY)?;
    let temporary = store.root().create(TEMPORARY)?;
    directory.write_by_rename(&temporary, &identity.hex(), bytes)?;
    let mut files = files(&directory)?;
    // This one is the newest, whatever the times say: others may be in the future.
    files.retain(|(_, name)| *name != identity.hex());
    files.sort();
    let excess = (files.len() + 1).saturating_sub(MAX_FILES);
    for (_, name) in files.iter().take(excess) {
        directory.remove(name)?;
    }
    Ok(())
}

/// Our files with their times of change.
fn files(directory: &Directory) -> Result<Vec<(u64, String)>, StoreError> {
    let names = directory.names()?.into_iter();
    let names = names.filter(|name| is_ours(name) && begins_as_ours(directory, name));
    let files = names.filter_map(|name| Some((directory.facts(&name)?.modified_ms, name)));
    Ok(files.collect())
}

/// Whether a name is that of such a file.
pub(super) fn is_ours(name: &str) -> bool {
    Key::from_hex(name).is_some()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, SystemTime};

    use super::*;
    use crate::store::Limits;

    /// A clock that was wrong has dated the others: they are from tomorrow.
    #[test]
    fn what_is_written_stays_and_the_oldest_others_go() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = Store::open(directory.path(), Limits::default()).expect("opened");
        let key = |number: usize| Key([number as u8; 32]);
        let tomorrow = SystemTime::now() + Duration::from_secs(86400);
        for number in 0..MAX_FILES {
            save(&store, &key(number), b"oclcprf").expect("saved");
            let path = store.root().path().join(DIRECTORY).join(key(number).hex());
            let file = std::fs::File::options().write(true).open(path);
            let time = tomorrow + Duration::from_secs(number as u64);
            file.expect("opened").set_modified(time).expect("dated");
        }
        save(&store, &key(MAX_FILES), b"oclcprf").expect("saved");
        assert!(
            read(&store, &key(MAX_FILES)).is_some(),
            "it was just written"
        );
        assert!(read(&store, &key(0)).is_none(), "the oldest");
        assert!(read(&store, &key(1)).is_some());
    }
}
