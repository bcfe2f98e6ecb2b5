//! Which entries were evicted lately, so that `oclcache explain` can tell an evicted entry from one that was never stored.
//!
//! ```text
//! <cache directory>/v1/evicted    a frame of keys, each with the time in milliseconds since 1970, oldest first
//! ```
//!
//! Each eviction writes the file again. Two processes that evict at once may lose some keys; nothing but an explanation needs them.
//! Entries that a person removes are not noted: that person may want to hide that they were there.

use super::directory::Directory;
use super::ownership::may_write;
use super::{ClearResult, Store, StoreError, TEMPORARY};
use crate::framing;
use crate::key::ingredients::Key;

pub(super) const NAME: &str = "evicted";
const MAGIC: &[u8] = b"oclcevc1";
/// A key takes some 38 bytes.
const MAX_KEYS: usize = 1024;
const MAX_FILE_BYTES: u64 = 1 << 17;

impl Store {
    /// Notes that entries are evicted now. A failure is logged only.
    pub(super) fn note_evictions(&self, keys: &[Key]) {
        if keys.is_empty() {
            return;
        }
        let root = &self.root;
        let now = root.now_ms();
        let mut all = read(root);
        let skipped = keys.len().saturating_sub(MAX_KEYS);
        all.extend(keys[skipped..].iter().map(|key| (*key, now)));
        let excess = all.len().saturating_sub(MAX_KEYS);
        all.drain(..excess);
        let written = framing::encode(MAGIC, &all).map(|bytes| {
            if may_write(root, NAME, &bytes) {
                let temporary = root.create(TEMPORARY)?;
                root.write_by_rename(&temporary, NAME, &bytes)?;
            }
            Ok::<(), StoreError>(())
        });
        if let Ok(Err(error)) = written {
            tracing::debug!(%error, "evictions are not noted");
        }
    }

    /// The entries that were evicted lately, with the times in milliseconds since 1970, oldest first. One may have been evicted several
    /// times.
    pub fn evictions(&self) -> Vec<(Key, u64)> {
        read(&self.root)
    }
}

fn read(root: &Directory) -> Vec<(Key, u64)> {
    let bytes = root.read(NAME, MAX_FILE_BYTES).ok().flatten();
    bytes
        .and_then(|bytes| framing::decode(MAGIC, &bytes))
        .unwrap_or_default()
}

/// Removes the file.
///
/// # Errors
/// It cannot be removed.
pub(super) fn clear(root: &Directory, cleared: &mut ClearResult) -> Result<(), StoreError> {
    if root.begins_with(NAME, MAGIC) && root.remove(NAME)? {
        cleared.files += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Limits;

    #[test]
    fn the_latest_evictions_are_known_until_the_cache_is_cleared() {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let store = Store::open(temporary.path(), Limits::default()).expect("a store");
        let key = |number: u64| {
            let mut key = [0; 32];
            key[..8].copy_from_slice(&number.to_le_bytes());
            Key(key)
        };
        assert!(store.evictions().is_empty());
        store.note_evictions(&[key(1), key(2)]);
        store.note_evictions(&[key(2), key(3)]);
        let known: Vec<Key> = store.evictions().into_iter().map(|(key, _)| key).collect();
        assert_eq!(known, [key(1), key(2), key(2), key(3)]);
        let many: Vec<Key> = (10..10 + 2 * MAX_KEYS as u64).map(key).collect();
        store.note_evictions(&many);
        let known = store.evictions();
        assert_eq!(known.len(), MAX_KEYS);
        let has = |key: &Key| known.iter().any(|(known, _)| known == key);
        assert!(has(many.last().expect("a key")) && !has(&key(3)));
        store.clear().expect("cleared");
        assert!(store.evictions().is_empty());
        // A file of the user's stays.
        std::fs::write(store.root().path().join(NAME), "mine").expect("written");
        store.note_evictions(&[key(1)]);
        store.clear().expect("cleared");
        assert_eq!(
            std::fs::read(store.root().path().join(NAME)).expect("read"),
            b"mine"
        );
    }
}
