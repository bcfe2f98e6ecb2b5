//! The statistics and the state of the cache, which `stats` and `report` show.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value, json};

use super::failure::Failure;
use super::open::{directory, existing_store, tiers};
use super::own_caches::{OwnCaches, ServedTime};
use crate::config::Config;
use crate::filesystem::FileSystem;
use crate::outcome::{Bypass, FormerName, Missed};
use crate::remote::local::helper_state;
use crate::remote::state::HelperState;
use crate::store::journal::now_ms;
use crate::store::stats::{BY_DAY, CountedRows, Counter, DAY_MS, RowTag, Totals, date};
use crate::store::tiers::Tiers;
use crate::store::{EntryTotals, Store};

/// The statistics and the state of the cache.
pub struct CacheSummary {
    /// The counters.
    pub counted: CountedRows,
    /// The drivers' own caches, as far as they were measured.
    pub own_caches: OwnCaches,
    /// Each event is counted at once, so that killed processes lose nothing.
    pub is_exact: bool,
    /// The store; None if there is none yet.
    pub store: Option<Store>,
    /// The cache directory.
    pub directory: PathBuf,
    /// The number and the size of the entries.
    pub totals: EntryTotals,
    /// The size limit of the entries.
    pub max_size: Option<u64>,
    /// The state of the helper; None if there is no remote store.
    pub remote: Option<HelperState>,
    tiers: Tiers,
}

/// How counters are grouped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Grouping {
    /// By day, in UTC; by month if older than five weeks
    Day,
    /// By program
    Program,
    /// By driver
    Driver,
    /// By driver and device
    Device,
}

impl Grouping {
    /// The names of a row; empty ones are unknown.
    fn names(self, tag: &RowTag, today: u32) -> Vec<String> {
        match self {
            Grouping::Day => vec![period(tag.day, today)],
            Grouping::Program => vec![tag.program.clone()],
            Grouping::Driver => vec![tag.driver.clone()],
            Grouping::Device => vec![tag.driver.clone(), tag.device.clone()],
        }
    }

    fn fields(self) -> &'static [&'static str] {
        match self {
            Grouping::Day => &["day"],
            Grouping::Program => &["program"],
            Grouping::Driver => &["driver"],
            Grouping::Device => &["driver", "device"],
        }
    }

    /// The sums by name: days in order, others by number of builds.
    pub fn groups(self, counted: &CountedRows) -> Vec<(Vec<String>, Totals)> {
        let sums = counted.rows.by(|tag| self.names(tag, counted.today));
        let mut groups: Vec<_> = sums.into_iter().collect();
        if self != Grouping::Day {
            groups.sort_by_key(|(_, totals)| std::cmp::Reverse(totals.builds()));
        }
        groups
    }
}

/// The date of a day; empty for day 0, which stands for older days.
pub fn day(day: u32) -> String {
    let (year, month, of_month) = date(day);
    match day {
        0 => String::new(),
        _ => format!("{year:04}-{month:02}-{of_month:02}"),
    }
}

/// The day, or the month if it is too old for days.
fn period(of: u32, today: u32) -> String {
    let mut shown = day(of);
    if of > 0 && today.saturating_sub(of) > BY_DAY {
        shown.truncate("2026-11".len());
    }
    shown
}

/// The share of hits among builds that were looked up, in percent.
pub fn hit_rate(totals: &Totals) -> Option<f64> {
    let [hits, misses] = [Counter::Hits, Counter::Misses].map(|counter| totals.get(counter) as f64);
    (hits + misses > 0.0).then(|| hits / (hits + misses) * 100.0)
}

impl CacheSummary {
    /// What the compile time of the entries served is called.
    pub fn served_time(&self) -> ServedTime {
        self.own_caches.served_time(&self.counted.rows)
    }

    /// Reads the statistics and counts the entries. What the drivers' own caches would have avoided does not count as avoided.
    ///
    /// # Errors
    /// The cache is off, or cannot be read.
    pub fn read() -> Result<CacheSummary, Failure> {
        let mut summary = CacheSummary::read_as_counted()?;
        summary.own_caches.discount(&mut summary.counted.rows);
        Ok(summary)
    }

    /// The same, with the counters as programs have counted.
    ///
    /// # Errors
    /// As for [`CacheSummary::read`].
    pub fn read_as_counted() -> Result<CacheSummary, Failure> {
        let config = Config::read();
        let directory = directory(&config)?;
        let store = existing_store(&config)?;
        let mut counted = CountedRows {
            today: u32::try_from(now_ms() / DAY_MS).unwrap_or(0),
            ..CountedRows::default()
        };
        let (mut totals, mut is_exact) = (EntryTotals::default(), true);
        if let Some(store) = &store {
            if let Some(statistics) = store.statistics()? {
                counted = statistics.counted()?;
                is_exact = statistics.is_exact();
            }
            totals = store.totals()?;
        }
        Ok(CacheSummary {
            counted,
            own_caches: store.as_ref().map(OwnCaches::read).unwrap_or_default(),
            is_exact,
            directory,
            totals,
            max_size: config.max_size(),
            remote: config.remote().map(|_| {
                let state = store.as_ref().map(|store| helper_state(&config, store));
                state.unwrap_or_default()
            }),
            tiers: tiers(&config),
            store,
        })
    }

    /// Drops what was counted before this day.
    pub fn since(&mut self, day: u32) {
        self.counted.rows = self.counted.rows.of(|tag| tag.day >= day);
    }

    /// The counters of today and this many days before, without days in the future, which a wrong clock has made.
    pub fn latest(&self, days: u32) -> Totals {
        let first = self.counted.today.saturating_sub(days);
        let days = first..=self.counted.today;
        self.counted.rows.of(|tag| days.contains(&tag.day)).total()
    }

    /// The file system of the cache directory.
    pub fn file_system(&self) -> FileSystem {
        FileSystem::at(&self.directory)
    }

    /// The system directories, with the number of entries, or why the directory is not used.
    pub fn tiers(&self) -> impl Iterator<Item = (&Path, Result<usize, String>)> {
        self.tiers.all().iter().map(|tier| {
            let entries = tier.tier.as_ref().map_err(Clone::clone).and_then(|tier| {
                let keys = tier.keys().map_err(|error| error.to_string())?;
                Ok(keys.len())
            });
            (tier.path.as_path(), entries)
        })
    }

    /// The statistics and the state as JSON.
    pub fn to_json(&self) -> Value {
        let (rows, today) = (&self.counted.rows, self.counted.today);
        let mut object = counters(&rows.total());
        let by = |by: Grouping| -> Value {
            let groups = by.groups(&self.counted).into_iter();
            let groups = groups.map(|(names, totals)| {
                let names = by.fields().iter().zip(names);
                named(names.map(|(field, name)| (*field, name)), &totals)
            });
            groups.collect()
        };
        for (name, value) in [
            ("today", counters(&self.latest(0)).into()),
            ("by_day", by(Grouping::Day)),
            ("by_driver", by(Grouping::Driver)),
            ("by_device", by(Grouping::Device)),
            ("by_program", by(Grouping::Program)),
            (
                "rows",
                rows.iter()
                    .map(|(tag, row)| in_full(tag, row, today))
                    .collect(),
            ),
            ("own_caches", self.own_caches.to_json()),
            ("former_names", former_names()),
            ("date", day(self.counted.today).into()),
            ("zeroed", self.counted.zeroed_ms.map(|ms| ms / 1000).into()),
            ("directory", self.directory.to_string_lossy().into()),
            ("file_system", self.file_system().to_string().into()),
            ("entries", self.totals.entries.into()),
            ("bytes", self.totals.allocated.into()),
            ("max_size", self.max_size.into()),
            ("exact", self.is_exact.into()),
        ] {
            object.insert(name.into(), value);
        }
        if let Some(state) = &self.remote {
            let remote = json!({
                "trouble": state.trouble,
                "refused": state.refused,
                "errors": state.errors,
                "received": state.received,
                "prefetched": state.prefetched,
                "sent": state.sent,
                "bytes_in": state.bytes_in,
                "bytes_out": state.bytes_out,
            });
            object.insert("remote".into(), remote);
        }
        let directories = self.tiers().map(|(directory, entries)| {
            let directory = directory.to_string_lossy();
            match entries {
                Ok(entries) => json!({ "path": directory, "entries": entries }),
                Err(why) => json!({ "path": directory, "not_used": why }),
            }
        });
        object.insert("system_directories".into(), directories.collect());
        json!(object)
    }
}

/// Names of reasons, with their counts and what they mean.
pub type Reasons = Vec<(&'static str, u64, &'static str)>;

/// The reasons of misses and of bypasses, and the queries that materialized hits, each the most frequent first.
pub fn reasons(totals: &Totals) -> [Reasons; 3] {
    let missed = totals
        .missed()
        .map(|(of, count)| (of.name(), count, of.help()));
    let bypassed = totals
        .bypasses()
        .map(|(of, count)| (of.name(), count, of.help()));
    let queries = totals.queries().map(|(of, count)| (of.name(), count, ""));
    let mut reasons = [missed.collect(), bypassed.collect(), queries.collect()];
    for reasons in &mut reasons {
        let reasons: &mut Reasons = reasons;
        reasons.sort_by_key(|(name, count, _)| (std::cmp::Reverse(*count), *name));
    }
    reasons
}

/// All counters of a sum, and values derived from them.
fn counters(totals: &Totals) -> Map<String, Value> {
    // Those of the remote level mean nothing to most people.
    let is_remote = |name: &str| name.starts_with("remote_");
    let numbers = totals.named();
    let numbers = numbers.filter(|(name, number)| *number > 0 || !is_remote(name));
    let mut object: Map<_, _> = numbers
        .map(|(name, number)| (name.to_owned(), number.into()))
        .collect();
    object.insert("bypassed".into(), totals.bypassed().into());
    object.insert("saved_ns".into(), totals.saved_ns().into());
    object.insert("miss_reasons".into(), by_name(totals.missed()));
    object.insert("bypass_reasons".into(), by_name(totals.bypasses()));
    object.insert("materialised_queries".into(), by_name(totals.queries()));
    object
}

/// The counts of reasons by name, and by the former name if there is one.
fn by_name(counts: impl Iterator<Item = (impl FormerName, u64)>) -> Value {
    let named = counts.flat_map(|(of, count)| of.names().map(move |name| (name, count)));
    json!(named.collect::<BTreeMap<_, _>>())
}

/// The names by former name. A sum over all reasons leaves the former names out.
fn former_names() -> Value {
    fn of<T: FormerName>(all: &[T]) -> impl Iterator<Item = (&'static str, &'static str)> {
        all.iter()
            .filter_map(|one| Some((one.former_name()?, one.names().next()?)))
    }
    let names = of(&Bypass::ALL).chain(of(&Missed::ALL));
    json!(names.collect::<BTreeMap<_, _>>())
}

/// The counters with names; an unknown name is null.
fn named(names: impl Iterator<Item = (&'static str, String)>, totals: &Totals) -> Value {
    let mut object = counters(totals);
    for (field, name) in names {
        let name = (!name.is_empty()).then_some(name);
        object.insert(field.into(), name.into());
    }
    object.into()
}

fn in_full(tag: &RowTag, totals: &Totals, today: u32) -> Value {
    let names = [
        ("day", period(tag.day, today)),
        ("program", tag.program.clone()),
        ("driver", tag.driver.clone()),
        ("device", tag.device.clone()),
    ];
    let mut value = named(names.into_iter(), totals);
    // There are many rows, and most of their counters are zero.
    if let Some(object) = value.as_object_mut() {
        object.retain(|_, value| !matches!(value.as_u64(), Some(0)) && value != &json!({}));
    }
    value
}
