//! Which entries a verb takes: the filters that `list` and `clear` share.

use std::collections::BTreeMap;
use std::time::Duration;

use clap::Args;

use super::output::say;
use super::parse::{Since, parse_age, parse_since};
use crate::driver::profile;
use crate::log::text;
use crate::store::directory::FileFacts;
use crate::store::heads::EntryHead;
use crate::store::journal::now_ms;
use crate::store::{Store, StoreError};

/// Which entries.
#[derive(Args, Clone, Debug, Default)]
pub struct EntryFilter {
    /// Only entries that this program made: the name of its file or script, as `list` shows it
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
    /// Only entries of this driver, such as `pocl` or "Portable Computing Language"
    #[arg(long, value_name = "DRIVER")]
    driver: Option<String>,
    /// Only entries compiled since this day (2026-11-21), month (2026-11) or time ago (7d); days are in UTC
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    since: Option<Since>,
    /// Only entries unused for this time, such as 12h or 30d
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    older_than: Option<Duration>,
}

/// The programs and drivers of all entries that were looked at, with the number of entries.
#[derive(Default)]
pub struct KnownNames {
    programs: BTreeMap<String, u64>,
    drivers: BTreeMap<String, u64>,
}

impl KnownNames {
    /// Counts an entry.
    pub fn add(&mut self, head: &EntryHead) {
        let count = |names: &mut BTreeMap<String, u64>, name: &String| match names.get_mut(name) {
            Some(count) => *count += 1,
            None => drop(names.insert(name.clone(), 1)),
        };
        count(&mut self.programs, &head.executable);
        count(&mut self.drivers, &head.driver_family);
    }

    /// The names of all entries of a store.
    ///
    /// # Errors
    /// The store cannot be listed.
    pub fn of_all(store: &Store) -> Result<KnownNames, StoreError> {
        let mut known = KnownNames::default();
        let metas = store.entries()?.into_iter();
        for meta in metas.filter_map(|(key, _)| store.read_meta(&key)) {
            known.add(&EntryHead::of(meta));
        }
        Ok(known)
    }

    /// Lists the names that there are if no entry has the one that is asked for, as the filters compare them.
    pub fn say_unknown(&self, program: Option<&str>, driver: Option<&str>) {
        if let Some(name) = program
            && !self.programs.contains_key(name)
        {
            say_known_names("program", name, &self.programs);
        }
        if let Some(name) = driver
            && !self.drivers.keys().any(|known| is_driver(known, name))
        {
            say_known_names("driver", name, &self.drivers);
        }
    }

    /// Adds the names of others.
    pub fn merge(&mut self, other: KnownNames) {
        for (names, others) in [
            (&mut self.programs, other.programs),
            (&mut self.drivers, other.drivers),
        ] {
            for (name, count) in others {
                *names.entry(name).or_insert(0) += count;
            }
        }
    }
}

/// Whether a driver of this family is meant by this name.
pub fn is_driver(family: &str, name: &str) -> bool {
    family.eq_ignore_ascii_case(name) || {
        let profile = profile::named(family);
        profile.family == family && profile.is_called(name)
    }
}

impl EntryFilter {
    /// Whether all entries are taken.
    pub fn takes_all(&self) -> bool {
        let EntryFilter {
            program,
            driver,
            since,
            older_than,
        } = self;
        program.is_none() && driver.is_none() && since.is_none() && older_than.is_none()
    }

    /// Whether the file of an entry may be taken, before its head is read.
    pub fn takes_file(&self, store: &Store, file: &FileFacts) -> bool {
        let unused = || u128::from(store.unused_ms(file));
        self.older_than.is_none_or(|age| unused() > age.as_millis())
    }

    /// Whether an entry with this head is taken; None: it is damaged.
    pub fn takes_head(&self, head: Option<&EntryHead>) -> bool {
        let is = |is: &dyn Fn(&EntryHead) -> bool| head.is_some_and(is);
        let program = self.program.as_ref();
        let driver = self.driver.as_ref();
        let since = self.since.map(|since| since.in_ms(now_ms()));
        program.is_none_or(|name| is(&|head| head.executable == *name))
            && driver.is_none_or(|name| is(&|head| is_driver(&head.driver_family, name)))
            && since.is_none_or(|since| is(&|head| head.created.saturating_mul(1000) >= since))
    }

    /// Lists the names that there are if no entry has the one that is asked for.
    pub fn say_unknown_names(&self, known: &KnownNames) {
        known.say_unknown(self.program.as_deref(), self.driver.as_deref());
    }
}

/// Lists the names that entries have.
fn say_known_names(what: &str, name: &str, known: &BTreeMap<String, u64>) {
    const SHOWN: usize = 8;
    let mut known: Vec<(&String, &u64)> = known.iter().collect();
    known.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let shown = known.iter().take(SHOWN);
    let shown: Vec<String> = shown
        .map(|(name, count)| format!("{} ({count})", text(name.as_bytes())))
        .collect();
    let name = text(name.as_bytes());
    let there = match shown.as_slice() {
        [] => "the cache has no entries".to_owned(),
        shown => format!("there are entries of {}", shown.join(", ")),
    };
    say(&format!(
        "oclcache: no entry is of the {what} `{name}`; {there}"
    ));
}
