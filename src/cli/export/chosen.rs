//! Which entries go into an archive, and their bytes.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

use super::disclosure::Disclosure;
use super::{ExportArgs, cannot, place, private};
use crate::cli::archive::{ListedMember, bar, devices, go_on};
use crate::cli::failure::Failure;
use crate::cli::interrupt::Interrupt;
use crate::key::ingredients::Key;
use crate::store::entry::{Entry, EntryContent, Meta};
use crate::store::recipe::StoredRecipe;
use crate::store::tier::Tier;
use crate::store::{Lookup, Store};

/// What goes into the archive.
#[derive(Default)]
pub struct Chosen {
    /// The entries, in the order in which they go there.
    pub listed: Vec<(Key, ListedMember)>,
    /// Their bytes, one after the other.
    pub spool: Option<File>,
    /// What whoever reads the archive learns.
    pub disclosure: Disclosure,
    /// What was left out, and how many.
    pub left_out: Vec<(&'static str, u64)>,
    /// Entries that are not whole.
    pub damaged: u64,
}

impl Chosen {
    /// Reads what is wanted, and what that was made from, whoever has left it: a program that links asks for that first.
    pub fn read(
        store: &Store,
        wanted: &ExportArgs,
        interrupt: &Interrupt,
    ) -> Result<Chosen, Failure> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.map_or(0, |since| since.as_secs());
        let mut chosen = Chosen::default();
        if !wanted.dry_run {
            let place = place(&wanted.file);
            let made = tempfile::tempfile_in(&place);
            chosen.spool = Some(made.map_err(|error| cannot("write into", &place, &error))?);
        }
        let (mut read, mut needed) = (BTreeSet::new(), BTreeSet::new());
        let entries = store.entries()?;
        let bar = bar(entries.len() as u64, "reading");
        for (key, _) in entries {
            go_on(interrupt)?;
            bar.inc(1);
            let is_wanted = |meta: &Meta| wanted.wants(meta, now);
            // Damaged ones have none, mostly.
            if store.read_meta(&key).as_ref().is_none_or(is_wanted)
                && let Some(entry) = chosen.look_up(store, &key)
                && is_wanted(&entry.meta)
            {
                read.insert(key);
                needed.extend(chosen.add(wanted, &key, &entry)?);
            }
        }
        while let Some(key) = needed.pop_first() {
            go_on(interrupt)?;
            if read.insert(key)
                && let Some(entry) = chosen.look_up(store, &key)
            {
                needed.extend(chosen.add(wanted, &key, &entry)?);
            }
        }
        bar.finish_and_clear();
        Ok(chosen)
    }

    fn look_up(&mut self, store: &Store, key: &Key) -> Option<Entry> {
        match store.look_up(key) {
            Lookup::Found(entry, _) | Lookup::Pending(entry) => Some(*entry),
            Lookup::Absent => None,
            Lookup::Unreadable(_) | Lookup::Bad(_) => {
                self.damaged += 1;
                None
            }
        }
    }

    /// Adds an entry. Gives the keys of what it was made from.
    fn add(&mut self, wanted: &ExportArgs, key: &Key, entry: &Entry) -> Result<Vec<Key>, Failure> {
        let recipe = entry.recipe();
        let needed = recipe
            .as_ref()
            .map(StoredRecipe::needed)
            .unwrap_or_default();
        let (meta, recipe) = match wanted.no_source {
            false => (entry.meta.clone(), recipe),
            true => match private::without_secrets(entry) {
                Ok(meta) => (meta, None),
                Err(why) => {
                    match self.left_out.iter_mut().find(|(known, _)| *known == why) {
                        Some((_, count)) => *count += 1,
                        None => self.left_out.push((why, 1)),
                    }
                    return Ok(Vec::new());
                }
            },
        };
        self.disclosure.add(entry, &meta, recipe.as_ref());
        let bytes = encoded(key, entry, &meta, recipe.as_ref());
        self.listed
            .push((*key, ListedMember::of(key, &meta, recipe.is_some(), &bytes)));
        if let Some(spool) = &mut self.spool {
            let written = spool.write_all(&bytes);
            written.map_err(|error| cannot("write into", &place(&wanted.file), &error))?;
        }
        Ok(needed)
    }
}

impl ExportArgs {
    fn wants(&self, meta: &Meta, now: u64) -> bool {
        let has = |device: &str| {
            let wanted = device.to_lowercase();
            let names = devices(&meta.ingredients);
            names
                .iter()
                .any(|name| name.to_lowercase().contains(&wanted))
        };
        self.driver
            .as_ref()
            .is_none_or(|family| *family == meta.driver_family)
            && self.device.as_deref().is_none_or(has)
            && self
                .program
                .as_ref()
                .is_none_or(|name| *name == meta.executable)
            && self
                .since
                .is_none_or(|age| meta.created >= now.saturating_sub(age.as_secs()))
    }
}

/// The entry's file in an archive. What depends on who has it, and not on the program, is as in any other.
fn encoded(key: &Key, entry: &Entry, meta: &Meta, recipe: Option<&StoredRecipe>) -> Vec<u8> {
    let content = EntryContent {
        meta: &Meta {
            imported: false,
            ..meta.clone()
        },
        recipe,
        binaries: entry.binaries().collect(),
    };
    content.encode(key).expect("memory for an entry")
}
