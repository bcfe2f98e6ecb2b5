//! Chooses the entries for an archive, and reads them.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use clap::Args;

use super::disclosure::Disclosure;
use crate::cache::private_texts::{BuildLogs, without_secrets};
use crate::cli::archive::manifest::ListedMember;
use crate::cli::entry_filter::{KnownNames, is_driver};
use crate::cli::entry_view::devices;
use crate::cli::failure::Failure;
use crate::cli::interrupt::Interrupt;
use crate::cli::parse::{Since, parse_since};
use crate::cli::progress::bar;
use crate::cli::replace_file::directory_of;
use crate::key::ingredients::Key;
use crate::store::entry::{Entry, EntryContent, Meta};
use crate::store::journal::now_ms;
use crate::store::recipe::StoredRecipe;
use crate::store::tier::Tier;
use crate::store::{Lookup, Store, StoreError};

/// Which entries are exported, and which of their parts.
#[derive(Args)]
pub struct ExportFilter {
    /// Only entries of this driver, such as `pocl` or "Portable Computing Language"
    #[arg(long, value_name = "DRIVER")]
    driver: Option<String>,
    /// Only entries for devices with this in their name
    #[arg(long, value_name = "TEXT")]
    device: Option<String>,
    /// Only entries that this program made
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
    /// Only entries compiled since this day (2026-11-21), month (2026-11) or time ago (7d); days are in UTC
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    since: Option<Since>,
    /// Leave out sources, headers, build logs, paths, and values of options and variables; skip entries that contain them otherwise
    #[arg(long)]
    pub no_source: bool,
}

/// What goes into the archive.
#[derive(Default)]
pub struct ExportSelection {
    /// The entries, in order.
    pub listed: Vec<(Key, ListedMember)>,
    /// The bytes of the entries, one after the other.
    pub spool: Option<File>,
    /// What the archive discloses.
    pub disclosure: Disclosure,
    /// What was left out, and how many entries.
    pub left_out: Vec<(&'static str, u64)>,
    /// The number of damaged entries.
    pub damaged: u64,
}

impl ExportSelection {
    /// Reads the matching entries, and those that they were linked from: a program that links needs these first.
    pub fn read(
        store: &Store,
        filter: &ExportFilter,
        spool: Option<&Path>,
        interrupt: &Interrupt,
    ) -> Result<ExportSelection, Failure> {
        let now = now_ms();
        let mut chosen = ExportSelection::default();
        if let Some(place) = spool {
            let made = tempfile::tempfile_in(place);
            chosen.spool = Some(made.map_err(|error| cannot("write into", place, &error))?);
        }
        let (mut read, mut needed) = (BTreeSet::new(), BTreeSet::new());
        let entries = store.entries()?;
        let bar = bar(entries.len() as u64, "reading");
        for (key, _) in entries {
            interrupt.go_on()?;
            bar.inc(1);
            let is_wanted = |meta: &Meta| filter.takes(meta, now);
            // Damaged entries usually have no metadata.
            if store.read_meta(&key).as_ref().is_none_or(is_wanted)
                && let Some(entry) = chosen.look_up(store, &key)
                && is_wanted(&entry.meta)
            {
                read.insert(key);
                needed.extend(chosen.add(filter, &key, &entry, spool)?);
            }
        }
        while let Some(key) = needed.pop_first() {
            interrupt.go_on()?;
            if read.insert(key)
                && let Some(entry) = chosen.look_up(store, &key)
            {
                needed.extend(chosen.add(filter, &key, &entry, spool)?);
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

    /// Adds an entry. Returns the keys of the entries that it was linked from.
    fn add(
        &mut self,
        filter: &ExportFilter,
        key: &Key,
        entry: &Entry,
        place: Option<&Path>,
    ) -> Result<Vec<Key>, Failure> {
        let recipe = entry.recipe().ok();
        let needed = recipe
            .as_ref()
            .map(StoredRecipe::needed)
            .unwrap_or_default();
        let (meta, recipe) = match filter.no_source {
            false => (entry.meta.clone(), recipe),
            true => match without_secrets(entry, BuildLogs::Withheld) {
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
        if let (Some(spool), Some(place)) = (&mut self.spool, place) {
            let written = spool.write_all(&bytes);
            written.map_err(|error| cannot("write into", place, &error))?;
        }
        Ok(needed)
    }
}

impl ExportFilter {
    /// Lists the names that there are if no entry has the one that is asked for.
    ///
    /// # Errors
    /// The store cannot be listed.
    pub fn say_unknown_names(&self, store: &Store) -> Result<(), StoreError> {
        let known = KnownNames::of_all(store)?;
        known.say_unknown(self.program.as_deref(), self.driver.as_deref());
        Ok(())
    }

    fn takes(&self, meta: &Meta, now: u64) -> bool {
        let has = |device: &str| {
            let wanted = device.to_lowercase();
            let names = devices(&meta.ingredients);
            names
                .iter()
                .any(|name| name.to_lowercase().contains(&wanted))
        };
        self.driver
            .as_ref()
            .is_none_or(|name| is_driver(&meta.driver_family, name))
            && self.device.as_deref().is_none_or(has)
            && self
                .program
                .as_ref()
                .is_none_or(|name| *name == meta.executable)
            && self
                .since
                .is_none_or(|since| meta.created.saturating_mul(1000) >= since.in_ms(now))
    }
}

/// The bytes of the entry in the archive, without the mark that it was imported.
fn encoded(key: &Key, entry: &Entry, meta: &Meta, recipe: Option<&StoredRecipe>) -> Vec<u8> {
    let content = EntryContent {
        meta: &Meta {
            imported: false,
            ..meta.clone().signed_by(None)
        },
        recipe,
        binaries: entry.binaries().collect(),
    };
    content.encode(key).expect("memory for an entry")
}

/// The directory in which temporary files for this archive are made.
pub fn place(file: &Path) -> PathBuf {
    if file == OsStr::new("-") {
        #[allow(clippy::disallowed_methods)] // the file has no name
        return std::env::temp_dir();
    }
    directory_of(file).to_owned()
}

pub fn cannot(action: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::new(format_args!(
        "cannot {action} `{}`: {error}",
        crate::log::path(path)
    ))
}
