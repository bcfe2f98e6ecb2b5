//! What the baker tries, so that a recipe which kills or stops it is not tried for ever: a small file for each, written before
//! it is tried and removed when that has gone well.
//!
//! ```text
//! v1/baking/<key>    how often it was tried, and what became of it: `2 the driver crashed (signal 11)`
//! ```

use super::directory::Directory;
use super::{Store, StoreError, TEMPORARY};
use crate::key::ingredients::Key;

const BAKING: &str = "baking";
/// Reasons are short.
const LARGEST: u64 = 4096;
/// What stands there of a recipe that is being tried: whoever finds it later knows that it came to no end.
const UNENDED: &str = "whoever baked it was killed";

/// What is known of earlier attempts at a recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attempts {
    /// How many there were.
    pub count: u32,
    /// What became of the last one.
    pub reason: String,
}

/// Whether a name is one of these files'.
fn is_ours(name: &str) -> bool {
    Key::from_hex(name).is_some()
}

impl Attempts {
    fn parse(bytes: &[u8]) -> Option<Attempts> {
        let text = str::from_utf8(bytes).ok()?.trim_end();
        let (count, reason) = text.split_once(' ')?;
        Some(Attempts {
            count: count.parse().ok()?,
            reason: reason.to_owned(),
        })
    }
}

impl Store {
    /// The attempts at a recipe that did not go well.
    pub fn attempts(&self, key: &Key) -> Option<Attempts> {
        let directory = self.root.open_below(BAKING).ok()??;
        let bytes = directory.read(&key.hex(), LARGEST).ok()??;
        Attempts::parse(&bytes)
    }

    /// Another attempt begins.
    ///
    /// # Errors
    /// It cannot be written down.
    pub fn begin_attempt(&self, key: &Key) -> Result<(), StoreError> {
        let before = self.attempts(key).map_or(0, |attempts| attempts.count);
        self.write_attempts(key, before.saturating_add(1), UNENDED)
    }

    /// The attempt that was begun has failed.
    ///
    /// # Errors
    /// It cannot be written down.
    pub fn attempt_failed(&self, key: &Key, reason: &str) -> Result<(), StoreError> {
        let count = self.attempts(key).map_or(1, |attempts| attempts.count);
        self.write_attempts(key, count, reason)
    }

    /// The attempt that was begun needs no mention.
    pub fn forget_attempts(&self, key: &Key) {
        if let Ok(Some(directory)) = self.root.open_below(BAKING) {
            let _ = directory.remove(&key.hex());
        }
    }

    fn write_attempts(&self, key: &Key, count: u32, reason: &str) -> Result<(), StoreError> {
        let directory = self.root.create(BAKING)?;
        let temporary = self.root.create(TEMPORARY)?;
        let line = format!("{count} {}\n", reason.replace('\n', " "));
        directory.write_by_rename(&temporary, &key.hex(), line.as_bytes())
    }
}

/// The directory of these files, and their names; None if there is none.
///
/// # Errors
/// It cannot be opened or listed.
pub(super) fn files(root: &Directory) -> Result<Option<(Directory, Vec<String>)>, StoreError> {
    let Some(directory) = root.open_below(BAKING)? else {
        return Ok(None);
    };
    let mut names = directory.names()?;
    names.retain(|name| is_ours(name) && directory.facts(name).is_some());
    Ok(Some((directory, names)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Limits;

    #[test]
    fn an_attempt_without_an_end_is_known_to_the_next_one() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("cache");
        let store = Store::open(&path, Limits::default()).expect("a store");
        let key = Key([3; 32]);
        assert_eq!(store.attempts(&key), None);
        store.begin_attempt(&key).expect("written");
        let unended = store.attempts(&key).expect("an attempt");
        assert_eq!((unended.count, unended.reason.as_str()), (1, UNENDED));
        store.begin_attempt(&key).expect("written");
        store
            .attempt_failed(&key, "the driver\ncrashed")
            .expect("written");
        let failed = store.attempts(&key).expect("two attempts");
        assert_eq!(
            (failed.count, failed.reason.as_str()),
            (2, "the driver crashed")
        );
        assert_eq!(store.clear().expect("cleared").files, 1);
        assert_eq!(store.attempts(&key), None);
    }
}
