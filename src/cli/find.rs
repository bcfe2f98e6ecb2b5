//! Keys as people type them: as many of their first digits as make them clear.

use std::collections::BTreeMap;
use std::path::PathBuf;

use super::failure::Failure;
use super::open::{store, tiers};
use crate::config::Config;
use crate::key::ingredients::Key;
use crate::store::entry::Entry;
use crate::store::{Lookup, Store};

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

/// The entry that some first digits name, verified, and where it stands.
pub fn find_entry(digits: &str) -> Result<(Key, PathBuf, Entry), Failure> {
    let (own, tiers) = (store()?, tiers(&Config::read()));
    let (key, store) = find(own.iter().chain(tiers.stores()), digits)?;
    let entry = match store.look_up(&key) {
        Lookup::Found(entry, _) | Lookup::Pending(entry) => entry,
        Lookup::Absent => return Err(no_entry(digits)),
        Lookup::Unreadable(error) => {
            let path = store.path_of(&key);
            let words = format!(
                "cannot read `{}`: {error}; `oclcache doctor` looks at the directory",
                crate::log::path(&path)
            );
            return Err(Failure::new(words));
        }
        Lookup::Bad(defect) => {
            let path = store.path_of(&key);
            let words = format!(
                "`{}` is damaged ({defect}); the next build replaces it",
                crate::log::path(&path)
            );
            return Err(Failure::new(words));
        }
    };
    Ok((key, store.path_of(&key), *entry))
}

/// The first of the stores that has the key that some first digits name.
fn find<'a>(
    stores: impl Iterator<Item = &'a Store>,
    digits: &str,
) -> Result<(Key, &'a Store), Failure> {
    let mut found = BTreeMap::new();
    for store in stores {
        for (key, _) in store.entries()? {
            found.entry(key).or_insert(store);
        }
    }
    let key = choose_key(found.keys().copied(), digits, "list")?;
    Ok((key, found[&key]))
}
