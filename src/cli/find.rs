//! Finds entries by the first digits of their keys.

use std::collections::BTreeMap;

use super::failure::Failure;
use super::open::{store, tiers};
use crate::config::Config;
use crate::key::ingredients::Key;
use crate::store::entry::Entry;
use crate::store::tier::Tier;
use crate::store::{Lookup, Store};

/// The key of an entry that begins with these digits.
pub fn find_key(store: &Store, digits: &str) -> Result<Key, Failure> {
    let keys = store.entries()?.into_iter().map(|(key, _)| key);
    choose_key(keys, digits, "list")
}

/// The one of these keys that begins with these digits. `verb` lists the keys.
pub fn choose_key(
    keys: impl Iterator<Item = Key>,
    digits: &str,
    verb: &str,
) -> Result<Key, Failure> {
    let shown = crate::log::text(digits.as_bytes());
    let digits = digits.to_ascii_lowercase();
    let valid = !digits.is_empty() && digits.bytes().all(|digit| digit.is_ascii_hexdigit());
    if !valid {
        return Err(Failure::no_such_entry(format_args!(
            "`{shown}` is not a key: keys are hexadecimal digits; run `oclcache {verb}` to list them"
        )));
    }
    let keys: Vec<Key> = keys.filter(|key| key.hex().starts_with(&digits)).collect();
    match keys.as_slice() {
        [key] => Ok(*key),
        [] => Err(Failure::no_such_entry(format_args!(
            "no entry has a key that begins with `{shown}`; run `oclcache {verb}` to list them"
        ))),
        keys => Err(Failure::no_such_entry(format_args!(
            "the keys of {} entries begin with `{shown}`; give more digits",
            keys.len()
        ))),
    }
}

pub fn no_entry(digits: &str) -> Failure {
    Failure::no_such_entry(format_args!(
        "no entry has the key `{}`: the cache is empty; fill it with `oclcache run PROGRAM`",
        crate::log::text(digits.as_bytes())
    ))
}

/// The entry whose key begins with these digits, verified, with its key and its location.
pub fn find_entry(digits: &str) -> Result<(Key, String, Entry), Failure> {
    let (own, tiers) = (store()?, tiers(&Config::read()));
    let own = own.iter().map(|store| store as &dyn Tier);
    let (key, tier) = find(own.chain(tiers.used()), digits)?;
    let location = tier.location(&key);
    let shown = crate::log::text(location.as_bytes()).to_string();
    let entry = match tier.look_up(&key) {
        Lookup::Found(entry, _) | Lookup::Pending(entry) => entry,
        Lookup::Absent => return Err(no_entry(digits)),
        Lookup::Unreadable(error) => {
            return Err(Failure::new(format_args!(
                "cannot read `{shown}`: {error}; run `oclcache doctor`"
            )));
        }
        Lookup::Bad(defect) => {
            return Err(Failure::new(format_args!(
                "`{shown}` is damaged ({defect}); the next build of the program replaces it"
            )));
        }
    };
    Ok((key, location, *entry))
}

/// The key that begins with these digits, and the first tier that has it.
fn find<'a>(
    tiers: impl Iterator<Item = &'a dyn Tier>,
    digits: &str,
) -> Result<(Key, &'a dyn Tier), Failure> {
    let mut found = BTreeMap::new();
    for tier in tiers {
        for key in tier.keys()? {
            found.entry(key).or_insert(tier);
        }
    }
    let key = choose_key(found.keys().copied(), digits, "list")?;
    Ok((key, found[&key]))
}
