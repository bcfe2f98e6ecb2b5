//! What is counted, and how it stands in a file.

use std::collections::BTreeMap;

use crate::outcome::Bypass;

/// What is counted. The numbers are places in the files: append, never reorder.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
pub enum Counter {
    /// Builds served from the cache.
    Hits = 0,
    /// Builds by the driver after a look-up.
    Misses = 1,
    /// Builds that the driver failed.
    Failed = 2,
    /// Programs that were served and later built for real, because a query could not be answered otherwise.
    Materialised = 3,
    /// Entries set aside because they were damaged or refused.
    SetAside = 4,
    /// Entries written.
    Stored = 5,
    /// Misses whose entry could not be made or written.
    NotStored = 6,
    /// Nanoseconds that drivers spent in builds which missed.
    CompileNs = 7,
    /// Nanoseconds spent in builds that hit.
    LoadNs = 8,
    /// Nanoseconds of compilation that hits avoided.
    SavedNs = 9,
    /// Queries answered from the cache although a build would have been needed, because its inputs have changed since.
    InputsChanged = 10,
    /// Nanoseconds that drivers spent in building programs that were served before.
    RebuiltNs = 11,
    /// Hits that were built from source as well and compared.
    Verified = 12,
    /// Those that differed, and were not served.
    Differed = 13,
    /// Those of the hits whose entry was in a system directory.
    SystemHits = 14,
    /// Entries removed to make room.
    Evicted = 15,
    /// Builds that waited for another's of the same key.
    Waited = 16,
    /// Nanoseconds that they waited.
    WaitNs = 17,
    /// Misses whose recipe was written instead of an entry.
    Recipes = 18,
}

const NAMES: [&str; 19] = [
    "hits",
    "misses",
    "failed",
    "materialised",
    "set_aside",
    "stored",
    "not_stored",
    "compile_ns",
    "load_ns",
    "saved_ns",
    "inputs_changed",
    "rebuilt_ns",
    "verified",
    "differed",
    "system_hits",
    "evicted",
    "waited",
    "wait_ns",
    "recipes",
];

/// Bypasses stand from here on, by the number of their reason.
const BYPASSES: usize = 32;
/// How many counters a file has; most have no name yet.
pub const COUNTERS: usize = 96;
/// With this a file begins.
pub const MAGIC: &[u8; 8] = b"oclcstat";
/// Of a file of counters, in bytes.
pub const FILE_SIZE: usize = MAGIC.len() + COUNTERS * size_of::<u64>();

/// One thing to count, with how much.
#[derive(Clone, Copy, Debug)]
pub struct Event(pub usize, pub u64);

impl Counter {
    /// An amount of this counter.
    pub fn by(self, amount: u64) -> Event {
        Event(self as usize, amount)
    }
}

impl From<Bypass> for Event {
    fn from(reason: Bypass) -> Event {
        Event(BYPASSES + reason as usize, 1)
    }
}

/// The counters in a file, if it is one.
pub fn decode(bytes: &[u8]) -> Option<Totals> {
    let numbers = bytes.strip_prefix(MAGIC)?;
    let mut totals = Totals::default();
    for (index, number) in numbers
        .chunks_exact(size_of::<u64>())
        .take(COUNTERS)
        .enumerate()
    {
        totals.0[index] = u64::from_le_bytes(number.try_into().ok()?);
    }
    Some(totals)
}

/// Sums of all counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Totals(pub [u64; COUNTERS]);

impl Default for Totals {
    fn default() -> Self {
        Totals([0; COUNTERS])
    }
}

impl Totals {
    /// One counter.
    pub fn get(&self, counter: Counter) -> u64 {
        self.0[counter as usize]
    }

    /// Nanoseconds of compilation that were avoided in the end.
    pub fn saved_ns(&self) -> u64 {
        self.get(Counter::SavedNs)
            .saturating_sub(self.get(Counter::RebuiltNs))
    }

    /// Bypassed builds by reason, those that occurred.
    pub fn bypasses(&self) -> impl Iterator<Item = (Bypass, u64)> {
        Bypass::ALL
            .into_iter()
            .map(|reason| (reason, self.0[BYPASSES + reason as usize]))
            .filter(|(_, count)| *count > 0)
    }

    /// All bypassed builds.
    pub fn bypassed(&self) -> u64 {
        let counts = self.bypasses().map(|(_, count)| count);
        counts.fold(0, u64::saturating_add)
    }

    /// Builds that drivers did, and that went well; made from a binary, a program is not compiled.
    pub fn compiled(&self) -> u64 {
        let of_binaries = self.0[BYPASSES + Bypass::NotFromSource as usize];
        let bypassed = self.bypassed().saturating_sub(of_binaries);
        self.get(Counter::Misses).saturating_add(bypassed)
    }

    /// All counters but the bypasses, by name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        NAMES.into_iter().zip(self.0)
    }

    /// Adds all counters of another; no counter overflows.
    pub(super) fn add(&mut self, other: &Totals) {
        for (sum, number) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(number);
        }
    }

    /// Subtracts all counters of another; none falls below zero.
    pub(super) fn subtract(&mut self, other: &Totals) {
        for (sum, number) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_sub(number);
        }
    }

    /// All counters and the bypasses that occurred, by name.
    pub(super) fn to_map(&self) -> BTreeMap<String, u64> {
        let bypasses = self
            .bypasses()
            .map(|(reason, count)| (format!("bypassed.{}", reason.name()), count));
        self.named()
            .map(|(name, number)| (name.to_owned(), number))
            .chain(bypasses)
            .collect()
    }

    /// The counters of these names; names that are not known are left out.
    pub(super) fn from_map(map: &BTreeMap<String, u64>) -> Totals {
        let mut totals = Totals::default();
        for (index, name) in NAMES.iter().enumerate() {
            totals.0[index] = map.get(*name).copied().unwrap_or(0);
        }
        for reason in Bypass::ALL {
            let name = format!("bypassed.{}", reason.name());
            totals.0[BYPASSES + reason as usize] = map.get(&name).copied().unwrap_or(0);
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_a_damaged_file_overflow_nothing() {
        let damaged = [MAGIC.as_slice(), &[0xff; FILE_SIZE - MAGIC.len()]].concat();
        let mut totals = decode(&damaged).expect("a file of counters");
        totals.add(&totals.clone());
        assert_eq!((totals.bypassed(), totals.compiled()), (u64::MAX, u64::MAX));
    }
}
