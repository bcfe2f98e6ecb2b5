//! What is counted.

use std::collections::BTreeMap;

use crate::outcome::{Bypass, FormerName, Missed, Query, numbered};

numbered! {
    /// What is counted. The numbers are places in the files: append, never reorder.
    pub enum Counter: usize {
        /// Builds served from the cache.
        Hits = 0, "hits";
        /// Builds by the driver after a look-up.
        Misses = 1, "misses";
        /// Builds that the driver failed.
        Failed = 2, "failed";
        /// Programs that were served and later built for real, because a query could not be answered otherwise.
        Materialized = 3, "materialised";
        /// Entries set aside because they were damaged or refused.
        SetAside = 4, "set_aside";
        /// Entries written.
        Stored = 5, "stored";
        /// Misses whose entry could not be made or written.
        NotStored = 6, "not_stored";
        /// Nanoseconds that drivers spent in builds which missed.
        CompileNs = 7, "compile_ns";
        /// Nanoseconds spent in builds that hit, from the call to its end.
        LoadNs = 8, "load_ns";
        /// Nanoseconds of compilation that hits avoided.
        SavedNs = 9, "saved_ns";
        /// Queries answered from the cache although a build would have been needed, because its inputs have changed since.
        InputsChanged = 10, "inputs_changed";
        /// Nanoseconds that drivers spent in building programs that were served before.
        RebuiltNs = 11, "rebuilt_ns";
        /// Hits that were built from source as well and compared.
        Verified = 12, "verified";
        /// Those that differed, and were not served.
        Differed = 13, "differed";
        /// Those of the hits whose entry was in a system directory.
        SystemHits = 14, "system_hits";
        /// Entries removed to make room.
        Evicted = 15, "evicted";
        /// Builds that waited for another's of the same key.
        Waited = 16, "waited";
        /// Nanoseconds that they waited.
        WaitNs = 17, "wait_ns";
        /// Misses that left a recipe instead of an entry, or found it there.
        Recipes = 18, "recipes";
        /// Nanoseconds that drivers spent in builds that were bypassed.
        BypassedNs = 19, "bypassed_ns";
        /// Nanoseconds that drivers spent in builds that failed.
        FailedNs = 20, "failed_ns";
        /// Hits that the baker compared with a compilation of its own.
        Audited = 21, "audited";
        /// Those that differed, so that the cache is off for their driver.
        AuditDiffered = 22, "audit_differed";
        /// Those of which the driver makes something else each time, so that nothing follows.
        AuditUnstable = 23, "audit_unstable";
        /// Hits that were chosen for an audit and cannot be compiled again.
        NotAudited = 24, "not_audited";
        /// Nanoseconds that builds which did not hit took before the driver was called.
        OverheadNs = 25, "overhead_ns";
        /// Builds that were served from an entry of another machine, which the build waited for.
        RemoteHits = 26, "remote_hits";
        /// Builds for which no other machine had an entry.
        RemoteMisses = 27, "remote_misses";
        /// Builds for which the answer of the remote store did not come in time.
        RemoteLate = 28, "remote_late";
        /// Nanoseconds that builds waited for the remote store.
        RemoteWaitNs = 29, "remote_wait_ns";
        /// Those that brought no entry.
        RemoteWastedNs = 30, "remote_wasted_ns";
        /// Builds that could not ask the remote store, or got an answer that was wrong.
        RemoteErrors = 31, "remote_errors";
    }
}

/// Counters of bypasses begin here, by the number of their reason.
const BYPASSES: usize = 32;
/// Counters of misses, by the number of their reason.
const MISSES: usize = 72;
/// Counters of programs that were built for real, by the number of the query.
const QUERIES: usize = 96;
/// How many counters a row has; many have no name yet.
pub const COUNTERS: usize = 128;

/// One thing to count, with how much.
#[derive(Clone, Copy, Debug)]
pub struct CounterEvent(pub usize, pub u64);

impl CounterEvent {
    /// Whether it counts a hit.
    pub fn is_hit(&self) -> bool {
        self.0 == Counter::Hits as usize
    }

    /// Whether it counts a miss.
    pub fn is_miss(&self) -> bool {
        self.0 == Counter::Misses as usize
    }
}

impl Counter {
    /// An amount of this counter.
    pub fn by(self, amount: u64) -> CounterEvent {
        CounterEvent(self as usize, amount)
    }
}

impl From<Counter> for CounterEvent {
    fn from(counter: Counter) -> CounterEvent {
        counter.by(1)
    }
}

impl From<Bypass> for CounterEvent {
    fn from(reason: Bypass) -> CounterEvent {
        CounterEvent(BYPASSES + reason as usize, 1)
    }
}

impl From<Missed> for CounterEvent {
    fn from(reason: Missed) -> CounterEvent {
        CounterEvent(MISSES + reason as usize, 1)
    }
}

impl From<Query> for CounterEvent {
    fn from(query: Query) -> CounterEvent {
        CounterEvent(QUERIES + query as usize, 1)
    }
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

    /// Nanoseconds of compilation that was avoided in the end. What builds that did not hit took longer is not taken off: that could be
    /// more than a row has, and the rows would not make up the total.
    pub fn saved_ns(&self) -> u64 {
        self.get(Counter::SavedNs)
            .saturating_sub(self.get(Counter::RebuiltNs))
    }

    /// Has the hits count as avoided only what the driver's own cache would not have avoided, which takes this long for a build.
    pub(super) fn discount(&mut self, own_load_ns: u64) {
        let own_ns = self.get(Counter::Hits).saturating_mul(own_load_ns);
        let avoided = own_ns.saturating_sub(self.get(Counter::LoadNs));
        let saved = &mut self.0[Counter::SavedNs as usize];
        *saved = (*saved).min(avoided);
    }

    /// Bypassed builds by reason, those that occurred.
    pub fn bypasses(&self) -> impl Iterator<Item = (Bypass, u64)> {
        Bypass::ALL
            .into_iter()
            .map(|reason| (reason, self.0[BYPASSES + reason as usize]))
            .filter(|(_, count)| *count > 0)
    }

    /// Misses by reason, those that occurred.
    pub fn missed(&self) -> impl Iterator<Item = (Missed, u64)> {
        Missed::ALL
            .into_iter()
            .map(|reason| (reason, self.0[MISSES + reason as usize]))
            .filter(|(_, count)| *count > 0)
    }

    /// Programs that were built for real by query, those that occurred.
    pub fn queries(&self) -> impl Iterator<Item = (Query, u64)> {
        Query::ALL
            .into_iter()
            .map(|query| (query, self.0[QUERIES + query as usize]))
            .filter(|(_, count)| *count > 0)
    }

    /// Nanoseconds that drivers spent in builds that did not hit.
    pub fn compiled_ns(&self) -> u64 {
        let spent = [Counter::CompileNs, Counter::BypassedNs, Counter::FailedNs];
        spent
            .into_iter()
            .fold(0, |sum: u64, counter| sum.saturating_add(self.get(counter)))
    }

    /// All build calls.
    pub fn builds(&self) -> u64 {
        let ended = [Counter::Hits, Counter::Misses, Counter::Failed];
        ended.into_iter().fold(self.bypassed(), |sum, counter| {
            sum.saturating_add(self.get(counter))
        })
    }

    /// Whether nothing was counted.
    pub fn is_empty(&self) -> bool {
        self.0.iter().all(|number| *number == 0)
    }

    /// All bypassed builds.
    pub fn bypassed(&self) -> u64 {
        let counts = self.bypasses().map(|(_, count)| count);
        counts.fold(0, u64::saturating_add)
    }

    /// Builds that were bypassed for this reason.
    pub fn bypassed_by(&self, reason: Bypass) -> u64 {
        self.0[BYPASSES + reason as usize]
    }

    /// Successful builds by drivers. A program that is loaded from a binary is not compiled.
    pub fn compiled(&self) -> u64 {
        let of_binaries = self.bypassed_by(Bypass::FromBinary);
        let bypassed = self.bypassed().saturating_sub(of_binaries);
        self.get(Counter::Misses).saturating_add(bypassed)
    }

    /// All counters but the bypasses, by name.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, u64)> {
        Counter::ALL
            .into_iter()
            .map(|counter| (counter.name(), self.get(counter)))
    }

    /// Adds all counters of another; no counter overflows.
    pub(super) fn add(&mut self, other: &Totals) {
        for (sum, number) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_add(number);
        }
    }

    /// Subtracts all counters of another; none falls below zero.
    pub fn subtract(&mut self, other: &Totals) {
        for (sum, number) in self.0.iter_mut().zip(other.0) {
            *sum = sum.saturating_sub(number);
        }
    }

    /// Subtracts from both what is in both.
    pub(super) fn cancel(&mut self, other: &mut Totals) {
        for (one, other) in self.0.iter_mut().zip(&mut other.0) {
            let both = (*one).min(*other);
            *one -= both;
            *other -= both;
        }
    }

    /// The counters that are not zero, by their names in files.
    pub(super) fn to_map(&self) -> BTreeMap<String, u64> {
        stored_names()
            .map(|(place, name)| (name, self.0[place]))
            .filter(|(_, number)| *number > 0)
            .collect()
    }

    /// The counters of these names. Names that this version does not know are left out.
    pub(super) fn from_map(map: &BTreeMap<String, u64>) -> Totals {
        let mut totals = Totals::default();
        for (place, name) in stored_names() {
            totals.0[place] = map.get(&name).copied().unwrap_or(0);
        }
        totals
    }
}

/// The place and the name in files of each counter.
fn stored_names() -> impl Iterator<Item = (usize, String)> {
    fn of<T: FormerName + Into<CounterEvent>>(
        prefix: &str,
        all: impl IntoIterator<Item = T>,
    ) -> impl Iterator<Item = (usize, String)> {
        all.into_iter().map(move |one| {
            let name = format!("{prefix}{}", one.stored_name());
            (one.into().0, name)
        })
    }
    of("", Counter::ALL)
        .chain(of("bypassed.", Bypass::ALL))
        .chain(of("missed.", Missed::ALL))
        .chain(of("materialised.", Query::ALL))
}

const _: () = assert!(Counter::ALL.len() <= BYPASSES);
const _: () = assert!(BYPASSES + Bypass::ALL.len() <= MISSES);
const _: () = assert!(MISSES + Missed::ALL.len() <= QUERIES);
const _: () = assert!(QUERIES + Query::ALL.len() <= COUNTERS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_of_a_damaged_file_overflow_nothing() {
        let mut totals = Totals([u64::MAX; COUNTERS]);
        totals.add(&totals.clone());
        assert_eq!((totals.bypassed(), totals.compiled()), (u64::MAX, u64::MAX));
        assert_eq!(
            (totals.compiled_ns(), totals.builds()),
            (u64::MAX, u64::MAX)
        );
    }

    #[test]
    fn a_cache_of_the_drivers_own_leaves_the_difference() {
        let counted = |saved_ns: u64, load_ns: u64| {
            let mut totals = Totals::default();
            for CounterEvent(index, amount) in [
                Counter::Hits.by(10),
                Counter::LoadNs.by(load_ns),
                Counter::SavedNs.by(saved_ns),
            ] {
                totals.0[index] = amount;
            }
            totals.discount(20);
            totals.saved_ns()
        };
        assert_eq!(counted(5000, 50), 150, "both load");
        assert_eq!(counted(5000, 300), 0, "the driver loads faster");
        assert_eq!(counted(100, 50), 100, "the compiler is faster than both");
    }

    #[test]
    fn all_counters_are_read_as_they_were_written() {
        let mut totals = Totals::default();
        for counter in Counter::ALL {
            totals.0[counter as usize] = counter as u64 + 1;
        }
        let events = Bypass::ALL.map(CounterEvent::from).into_iter();
        let events = events.chain(Missed::ALL.map(CounterEvent::from));
        for CounterEvent(index, amount) in events.chain(Query::ALL.map(CounterEvent::from)) {
            totals.0[index] += amount;
        }
        assert_eq!(Totals::from_map(&totals.to_map()), totals);
    }
}
