//! Keys as people type them: as many of their first digits as make them clear.

use super::failure::Failure;
use crate::key::ingredients::Key;
use crate::store::Store;

/// The key that some first digits name.
pub fn find_key(store: &Store, digits: &str) -> Result<Key, Failure> {
    let keys = store.entries()?.into_iter().map(|(key, _)| key);
    choose_key(keys, digits, "list")
}

/// The one of these keys that some first digits name; `verb` lists them.
pub fn choose_key(
    keys: impl Iterator<Item = Key>,
    digits: &str,
    verb: &str,
) -> Result<Key, Failure> {
    let valid = !digits.is_empty()
        && digits
            .bytes()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'));
    let shown = crate::log::text(digits.as_bytes());
    if !valid {
        return Err(Failure::no_such_entry(format_args!(
            "`{shown}` is no key: keys are hexadecimal digits, see `oclcache {verb}`"
        )));
    }
    let keys: Vec<Key> = keys.filter(|key| key.hex().starts_with(digits)).collect();
    match keys.as_slice() {
        [key] => Ok(*key),
        [] => Err(Failure::no_such_entry(format_args!(
            "there is no entry `{shown}`; see `oclcache {verb}`"
        ))),
        keys => Err(Failure::no_such_entry(format_args!(
            "{} entries begin with `{shown}`; give more digits",
            keys.len()
        ))),
    }
}

pub fn no_entry(digits: &str) -> Failure {
    Failure::no_such_entry(format_args!(
        "there is no entry `{}`: the cache is empty; `oclcache run PROGRAM` fills it",
        crate::log::text(digits.as_bytes())
    ))
}
