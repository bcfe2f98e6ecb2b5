//! What drivers' own caches would have avoided without ours: `oclcache doctor` has measured them, and `stats`, `run` and `report`
//! leave it out of what is counted. Only where all was measured do they call the rest avoided.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::output::seconds;
use crate::log::text;
use crate::store::Store;
use crate::store::driver_costs;
use crate::store::stats::{Counter, Rows};

/// What the compile time of the entries that were served is called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServedTime {
    /// Programs would have spent it: the drivers' own caches are measured, and what they would have avoided is left out.
    Avoided,
    /// A cache of the driver's own may have avoided it as well.
    Unknown,
}

impl ServedTime {
    /// In a sentence.
    pub fn name(self) -> &'static str {
        match self {
            ServedTime::Avoided => "compilation avoided",
            ServedTime::Unknown => "compile time served",
        }
    }

    /// As a title.
    pub fn title(self) -> &'static str {
        match self {
            ServedTime::Avoided => "Compilation avoided",
            ServedTime::Unknown => "Compile time served",
        }
    }

    /// Above a column of a table.
    pub fn head(self) -> &'static str {
        match self {
            ServedTime::Avoided => "avoided",
            ServedTime::Unknown => "served",
        }
    }
}

const MEANING: &str = "is the compile time of the entries served, less the time to load them; what misses took longer is shown apart. An entry that was the first of its process also counts the start of the compiler, so the sum can be more than a run without oclcache takes.";

/// The measured caches, by the driver's family and the name of the device: how long a build takes from the cache, in nanoseconds;
/// None if the driver has no cache.
#[derive(Default)]
pub struct OwnCaches(BTreeMap<(String, String), Option<u64>>);

impl OwnCaches {
    /// What was measured with this store. Counters do not tell the versions of a driver apart: the one that was used last counts.
    pub fn read(store: &Store) -> OwnCaches {
        let mut caches = BTreeMap::new();
        for driver in driver_costs::list(store) {
            for cache in driver.own_caches {
                let labels = (driver.family.clone(), cache.device);
                caches.entry(labels).or_insert(cache.load_ns);
            }
        }
        OwnCaches(caches)
    }

    /// Has the counters tell as avoided only what the drivers' own caches would not have avoided.
    pub fn discount(&self, rows: &mut Rows) {
        rows.discount(|tag| {
            self.0
                .get(&(tag.driver.clone(), tag.device.clone()))
                .copied()?
        });
    }

    /// What the time is called that is counted for these rows.
    pub fn served_time(&self, rows: &Rows) -> ServedTime {
        let served = served(rows);
        match !served.is_empty() && served.iter().all(|labels| self.0.contains_key(labels)) {
            true => ServedTime::Avoided,
            false => ServedTime::Unknown,
        }
    }

    /// What this time is, in words.
    pub fn meaning(&self, rows: &Rows) -> String {
        let served = served(rows);
        let served_time = self.served_time(rows);
        let measured = self.0.iter().filter(|(labels, _)| served.contains(*labels));
        let mut words = format!("{} {MEANING}", served_time.name());
        for ((driver, device), load_ns) in measured {
            if let Some(load_ns) = load_ns {
                let [driver, device] = [driver, device].map(|name| text(name.as_bytes()));
                words += &format!(
                    " A build for {device} ({driver}) counts only as the time that the driver's own warm cache takes for it, {}, as `oclcache doctor` measured.",
                    seconds(*load_ns)
                );
            }
        }
        words += match served_time {
            ServedTime::Avoided => {
                " Where PyOpenCL has a warm cache of its own, a program saves less."
            }
            ServedTime::Unknown => {
                " Where the driver or PyOpenCL has a warm cache of its own, a program saves less: `oclcache doctor` measures that for drivers."
            }
        };
        words
    }

    /// The caches as JSON.
    pub fn to_json(&self) -> Value {
        let caches = self.0.iter().map(|((driver, device), load_ns)| {
            json!({ "driver": driver, "device": device, "load_ns": load_ns })
        });
        caches.collect()
    }
}

/// The drivers and devices for which entries were served.
fn served(rows: &Rows) -> BTreeSet<(String, String)> {
    let served = rows.by(|tag| (tag.driver.clone(), tag.device.clone()));
    let served = served.into_iter();
    let served = served.filter(|(_, totals)| totals.get(Counter::Hits) > 0);
    served.map(|(labels, _)| labels).collect()
}
