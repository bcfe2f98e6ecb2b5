//! How long recording and loading take with each driver. A profile says so for drivers that were measured; for others this file
//! does. It also has what `oclcache doctor` measured on the drivers' own caches, for the command only.
//!
//! ```text
//! <cache directory>/v1/driver_costs    a frame (see `framing`) of a list of [`DriverCosts`]
//! ```
//!
//! A process reads the file once for each driver and replaces it whole by a rename, so there is no lock. If several processes
//! replace it at once, the last one wins, and the measurements of the others are lost. A damaged file counts as none.

use std::io;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::leftovers::is_past;
use super::{Store, TEMPORARY};
use crate::fork_safety::Mutex;
use crate::framing;
use crate::key::ingredients::Key;

pub(super) const NAME: &str = "driver_costs";
const MAGIC: &[u8] = b"oclcdrv2";
/// Ignore larger files: we never write them.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The least recently used ones are forgotten.
const MAX_DRIVERS: usize = 32;
/// At this number all measurements are halved, so that newer ones count more: programs differ, and so do days.
const MAX_COUNTED: u32 = 64;
/// A smaller sum decides nothing: it is mostly noise, and nobody notices the time.
pub const MIN_NS: u64 = 200_000_000;
const MIN_RECORDED: u32 = 4;
const MIN_LOADED: u32 = 8;
/// Recording is expensive if it takes more than a quarter of the build.
pub const DEAR_SHARE: u64 = 4;
/// There is no gain if a hit saves no more than an eighth of the build.
pub const GAIN_SHARE: u64 = 8;
/// A decision is forgotten after this time, and measured again.
pub const AGAIN: Duration = Duration::from_secs(14 * 86400);
/// The interval at which the use of a driver is noted.
const NOTED: Duration = Duration::from_secs(86400);
/// The first recordings of a process are each written at once.
const FIRST: u32 = 4;

/// The times of some builds, and of recording or loading the same programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CostTimes {
    /// The number of builds.
    pub count: u32,
    /// The time of the builds, in nanoseconds.
    pub compile_ns: u64,
    /// The time of recording or loading the same programs, in nanoseconds.
    pub beside_ns: u64,
}

impl CostTimes {
    /// The times of one build.
    pub fn of(compile_ns: u64, beside_ns: u64) -> CostTimes {
        CostTimes {
            count: 1,
            compile_ns,
            beside_ns,
        }
    }

    fn add(&mut self, more: CostTimes) {
        self.count = self.count.saturating_add(more.count);
        self.compile_ns = self.compile_ns.saturating_add(more.compile_ns);
        self.beside_ns = self.beside_ns.saturating_add(more.beside_ns);
        while self.count >= MAX_COUNTED {
            self.count /= 2;
            self.compile_ns /= 2;
            self.beside_ns /= 2;
        }
    }

    /// The time of recording or loading in percent of that of the builds.
    pub fn percent(&self) -> u64 {
        let percent = u128::from(self.beside_ns) * 100 / u128::from(self.compile_ns.max(1));
        u64::try_from(percent).unwrap_or(u64::MAX)
    }
}

/// The measurements of one driver, as it is installed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DriverCosts {
    /// Its family.
    pub family: String,
    /// Its library.
    pub library: String,
    /// The digest of the driver's part of keys. After an update it is another driver.
    pub identity: Key,
    /// When it was last noted to be in use, in milliseconds since 1970.
    pub used_ms: u64,
    /// Programs that were recorded inside the miss.
    pub recorded: CostTimes,
    /// Programs that were served.
    pub loaded: CostTimes,
    /// When the verdict was reached, in milliseconds since 1970.
    pub decided_ms: Option<u64>,
    /// The driver's own caches, of the devices that were measured.
    pub own_caches: Vec<OwnCache>,
}

/// A driver's own cache of compiled kernels, as `oclcache doctor` measured it for a device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnCache {
    /// The name of the device, as it is in the counters.
    pub device: String,
    /// How long a build takes from the cache, in nanoseconds; None if the driver has no cache.
    pub load_ns: Option<u64>,
}

/// Why not to record inside the miss, by the measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostVerdict {
    /// The application waits too long for it.
    Dear,
    /// A hit takes as long as the build.
    NoGain,
}

impl DriverCosts {
    /// A driver without measurements.
    pub fn new(family: &str, library: String, identity: Key) -> DriverCosts {
        DriverCosts {
            family: family.to_owned(),
            library,
            identity,
            used_ms: 0,
            recorded: CostTimes::default(),
            loaded: CostTimes::default(),
            decided_ms: None,
            own_caches: Vec::new(),
        }
    }

    /// The verdict of the measurements; None if there is none, or it is too old.
    pub fn verdict(&self, now_ms: u64) -> Option<CostVerdict> {
        self.by_times().filter(|_| !self.is_over(now_ms))
    }

    fn by_times(&self) -> Option<CostVerdict> {
        let is_long = |times: CostTimes| times.beside_ns >= MIN_NS;
        let (loaded, recorded) = (self.loaded, self.recorded);
        let gain = loaded.compile_ns.saturating_sub(loaded.beside_ns);
        if is_long(loaded) && loaded.count >= MIN_LOADED && gain <= loaded.compile_ns / GAIN_SHARE {
            return Some(CostVerdict::NoGain);
        }
        let is_dear = is_long(recorded)
            && recorded.count >= MIN_RECORDED
            && recorded.beside_ns > recorded.compile_ns / DEAR_SHARE;
        is_dear.then_some(CostVerdict::Dear)
    }

    fn is_over(&self, now_ms: u64) -> bool {
        self.decided_ms
            .is_some_and(|decided| is_past(decided, AGAIN, now_ms))
    }

    /// Adds new measurements. Forgets an old verdict with its measurements.
    fn add(&mut self, recorded: CostTimes, loaded: CostTimes, now_ms: u64) {
        if self.is_over(now_ms) {
            (self.recorded, self.loaded) = Default::default();
            self.decided_ms = None;
        }
        self.recorded.add(recorded);
        self.loaded.add(loaded);
        self.decided_ms = self
            .by_times()
            .map(|_| self.decided_ms.unwrap_or(now_ms).max(1));
        self.used_ms = now_ms;
    }
}

/// The measurements of this process, added to those of earlier processes.
#[derive(Default)]
pub struct CostMemory {
    drivers: Mutex<Vec<Known>>,
}

struct Known {
    /// The number of the driver in this process.
    driver: usize,
    /// All measurements, including those that are not written yet; before the file is read, those of this process.
    measured: DriverCosts,
    /// How many loads earlier processes have written. None: the file was not read, which hits leave to a release.
    written_loads: Option<u32>,
    /// Only the measurements that are not written yet.
    fresh: [CostTimes; 2],
    /// How often this process recorded and loaded.
    counts: [u32; 2],
    /// The measurements of loads are to be written, but hits write nothing.
    is_due: bool,
}

/// What a measurement is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CostSample {
    /// A program was built, and recorded.
    Recorded,
    /// A program was loaded that had been built before.
    Loaded,
}

impl CostMemory {
    /// The costs of a driver, and notes that it is in use. `new` identifies the driver; None if it cannot be identified.
    pub fn of(
        &self,
        store: &Store,
        driver: usize,
        new: impl FnOnce() -> Option<DriverCosts>,
    ) -> Option<DriverCosts> {
        self.know(driver, new)?;
        let mut drivers = self.drivers.lock();
        let known = drivers.iter_mut().find(|known| known.driver == driver)?;
        known.read(store);
        if is_past(known.measured.used_ms, NOTED, store.root().now_ms()) {
            known.write(store);
        }
        Some(known.measured.clone())
    }

    /// Adds a measurement, unless another thread is adding one.
    pub fn add(
        &self,
        store: &Store,
        driver: usize,
        new: impl FnOnce() -> Option<DriverCosts>,
        sample: CostSample,
        times: CostTimes,
    ) {
        if self.know(driver, new).is_none() {
            return;
        }
        let Some(mut drivers) = self.drivers.try_lock() else {
            return;
        };
        if let Some(known) = drivers.iter_mut().find(|known| known.driver == driver) {
            known.add(sample, times);
            match sample {
                _ if !known.is_worth_writing(sample) => {}
                CostSample::Recorded => known.write(store),
                CostSample::Loaded => known.is_due = true,
            }
        }
    }

    /// Whether hits have left something to be written.
    pub fn has_due(&self) -> bool {
        let drivers = self.drivers.try_lock();
        drivers.is_some_and(|drivers| drivers.iter().any(|known| known.is_due))
    }

    /// Writes what hits have left to be written. What is never written is measured again by later processes.
    pub fn write_due(&self, store: &Store) {
        let Some(mut drivers) = self.drivers.try_lock() else {
            return;
        };
        for known in drivers.iter_mut().filter(|known| known.is_due) {
            known.read(store);
            match known.lacks_loads() {
                true => known.write(store),
                false => known.is_due = false,
            }
        }
    }

    /// Runs first in a forked child: what its parent has measured is the parent's to write.
    pub fn forked(&self) {
        let Some(mut drivers) = self.drivers.try_lock() else {
            return;
        };
        for known in drivers.iter_mut() {
            known.fresh = Default::default();
            known.counts = [0; 2];
            known.is_due = false;
        }
    }

    /// Makes room for the measurements of a driver, if this process has not done so.
    fn know(&self, driver: usize, new: impl FnOnce() -> Option<DriverCosts>) -> Option<()> {
        let is_known = |drivers: &[Known]| drivers.iter().any(|known| known.driver == driver);
        if is_known(&self.drivers.lock()) {
            return Some(());
        }
        let new = new()?;
        let mut drivers = self.drivers.lock();
        if !is_known(&drivers) {
            drivers.push(Known {
                driver,
                measured: new,
                written_loads: None,
                fresh: Default::default(),
                counts: [0; 2],
                is_due: false,
            });
        }
        Some(())
    }
}

impl Known {
    /// Reads what earlier processes have written, unless that was done.
    fn read(&mut self, store: &Store) {
        if self.written_loads.is_some() {
            return;
        }
        let mut all = list(store).into_iter();
        let written = all.find(|known| known.identity == self.measured.identity);
        let loads = written.as_ref().map_or(0, |written| written.loaded.count);
        self.written_loads = Some(loads);
        if let Some(mut written) = written {
            let [recorded, loaded] = self.fresh;
            written.recorded.add(recorded);
            written.loaded.add(loaded);
            self.measured = written;
        }
    }

    fn add(&mut self, sample: CostSample, times: CostTimes) {
        let all = match sample {
            CostSample::Recorded => &mut self.measured.recorded,
            CostSample::Loaded => &mut self.measured.loaded,
        };
        all.add(times);
        self.fresh[sample as usize].add(times);
        self.counts[sample as usize] += 1;
    }

    /// Seldom, and of loads only until there are enough measurements, as far as the file was read.
    fn is_worth_writing(&self, sample: CostSample) -> bool {
        let count = self.counts[sample as usize];
        match sample {
            CostSample::Recorded => count <= FIRST || count.is_power_of_two(),
            CostSample::Loaded => count.is_power_of_two() && self.lacks_loads(),
        }
    }

    /// Whether earlier processes have measured few loads, or this one many.
    fn lacks_loads(&self) -> bool {
        let own = self.counts[CostSample::Loaded as usize];
        self.written_loads.unwrap_or(0) < MAX_COUNTED / 4 || own >= MAX_COUNTED
    }

    /// Adds the new measurements to those that other processes have written.
    fn write(&mut self, store: &Store) {
        self.is_due = false;
        let now_ms = store.root().now_ms();
        let [recorded, loaded] = std::mem::take(&mut self.fresh);
        let (mut measured, others) = take(store, &self.measured);
        let before = measured.verdict(now_ms);
        measured.add(recorded, loaded, now_ms);
        let verdict = measured.verdict(now_ms);
        if verdict != before {
            let library = crate::log::text(measured.library.as_bytes());
            tracing::info!(%library, ?verdict, "recording changes for this driver: see `oclcache config`");
        }
        self.measured = measured.clone();
        if let Err(error) = save(store, measured, others) {
            tracing::debug!(%error, "the costs of recording are not stored: the next process measures again");
        }
    }
}

/// All drivers that were used with this cache, the most recent first.
pub fn list(store: &Store) -> Vec<DriverCosts> {
    let read = || {
        let bytes = store.root().read(NAME, MAX_FILE_BYTES).ok()??;
        framing::decode(MAGIC, &bytes)
    };
    read().unwrap_or_default()
}

/// Notes what was measured on the own caches of a driver. Of two times for one device the smaller one stays: whatever else the machine
/// does only makes a build slower, and what `stats` tells of the past must not change with it.
///
/// # Errors
/// The file cannot be written.
pub fn note_own_caches(store: &Store, driver: &DriverCosts, caches: &[OwnCache]) -> io::Result<()> {
    let (mut measured, others) = take(store, driver);
    for cache in caches {
        let is_same = |known: &OwnCache| known.device == cache.device;
        let known = measured.own_caches.iter().position(is_same);
        let known = known.and_then(|index| measured.own_caches.swap_remove(index).load_ns);
        let load_ns = cache
            .load_ns
            .map(|new| known.map_or(new, |known| known.min(new)));
        measured.own_caches.push(OwnCache {
            load_ns,
            ..cache.clone()
        });
    }
    measured.used_ms = store.root().now_ms();
    save(store, measured, others)
}

/// What the file has on a driver, and on the others. A driver that is not in it has no measurements.
fn take(store: &Store, driver: &DriverCosts) -> (DriverCosts, Vec<DriverCosts>) {
    let mut drivers = list(store);
    let is_it = |known: &DriverCosts| known.identity == driver.identity;
    let written = drivers.iter().position(is_it);
    let measured = match written {
        Some(index) => drivers.swap_remove(index),
        None => DriverCosts::new(&driver.family, driver.library.clone(), driver.identity),
    };
    (measured, drivers)
}

/// Writes the file with this driver first, which was used last.
fn save(store: &Store, first: DriverCosts, mut drivers: Vec<DriverCosts>) -> io::Result<()> {
    drivers.sort_unstable_by_key(|known| std::cmp::Reverse(known.used_ms));
    drivers.truncate(MAX_DRIVERS - 1);
    drivers.insert(0, first);
    let bytes = framing::encode(MAGIC, &drivers)?;
    let written = || {
        let temporary = store.root().create(TEMPORARY)?;
        store.root().write_by_rename(&temporary, NAME, &bytes)
    };
    written().map_err(io::Error::other)
}

#[cfg(test)]
mod tests;
