//! What drivers' own caches would have avoided without ours: `oclcache doctor` has measured them, and `stats`, `run` and `report`
//! leave it out of what is counted as avoided.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::output::seconds;
use crate::log::text;
use crate::store::Store;
use crate::store::driver_costs;
use crate::store::stats::{Counter, Rows};

const AVOIDED: &str = "compilation avoided is the compile time of the entries served, less the time to load them and what misses took \
     longer.";

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

    /// What *compilation avoided* is, for these counters.
    pub fn meaning(&self, rows: &Rows) -> String {
        let served = rows.by(|tag| (tag.driver.clone(), tag.device.clone()));
        let served = served.into_iter();
        let served = served.filter(|(_, totals)| totals.get(Counter::Hits) > 0);
        let served: BTreeSet<_> = served.map(|(labels, _)| labels).collect();
        let measured = self.0.iter().filter(|(labels, _)| served.contains(*labels));
        let mut words = AVOIDED.to_owned();
        for ((driver, device), load_ns) in measured {
            if let Some(load_ns) = load_ns {
                let [driver, device] = [driver, device].map(|name| text(name.as_bytes()));
                words += &format!(
                    " A build for {device} ({driver}) counts only as the time that the driver's own warm cache takes for it, {}, as `oclcache doctor` measured.",
                    seconds(*load_ns)
                );
            }
        }
        words += match served.iter().all(|labels| self.0.contains_key(labels)) {
            true => " Where PyOpenCL has a warm cache of its own, a program saves less.",
            false => {
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
