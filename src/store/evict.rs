//! Keeps the entries within the limits: bounded work of the process that stores, under a lock that is only tried.
//!
//! An entry's time of modification is the time of its last use. We write it ourselves, so that mounts without access times do not
//! matter; hits only note it elsewhere (see `uses`). The least recently used entries go first. To find them without listing all
//! shards, `sizes` remembers the oldest time seen in each shard. If that entry was used since, the shard is only listed again, and
//! the next one is examined. So the order is nearly that of all entries.

use std::convert::Infallible;
use std::fmt;
use std::time::Duration;

use super::directory::FileFacts;
use super::heads;
use super::lock::{LockAttempt, Purpose};
use super::ownership::begins_as_ours;
use super::sizes::{SHARDS, Sizes};
use super::walk::walk;
use super::{ENTRIES, Store, StoreError, file_name, shard_name};
use crate::config::Config;
use crate::key::ingredients::Key;

/// Keep 1/100 of the file system free if the user gave no size, but at most 1 GiB.
const FREE_SHARE: u64 = 100;
const MAX_FREE: u64 = 1 << 30;
/// The work that storing one entry may spend on eviction: 1 for each entry that is examined, and 64 for each shard that is listed.
const BUDGET: usize = 16_384;
const LISTING: usize = 64;
/// List at most 8 shards of unknown size when an entry is stored.
const MAX_COUNTED: usize = 8;
/// A collection lists 64 shards under one lock: a process that needs room meanwhile stores nothing.
const COUNTED_AT_ONCE: usize = 64;
/// Remove 1/64 of a large shard at once, so that the next stores need no listing.
const BATCH_SHARE: usize = 64;
/// A cache is nearly full if less than this share of it is free.
const FULL_SHARE: u64 = 8;
/// A use in the future is the latest one, by the clock of a file server or before ours was set right. But if it is so far in the future,
/// the clock was set back, and nothing is known of it.
const CLOCK_TOLERANCE_MS: u64 = 86_400_000;

/// The limits that the user has set.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// The maximum size of all entries on the disk, in bytes; None: no limit.
    pub max_size: Option<u64>,
    /// The space of the file system to keep free, in bytes; None: by its size.
    pub min_free: Option<u64>,
    /// How long an entry is kept that nobody uses; None: always.
    pub max_age: Option<Duration>,
}

impl Limits {
    /// The settings.
    pub fn of(config: &Config) -> Limits {
        Limits {
            max_size: config.max_size(),
            min_free: config.min_free(),
            max_age: config.max_age(),
        }
    }

    /// The space to keep free on a file system of this size.
    pub fn free_of(&self, all: u64) -> u64 {
        self.min_free.unwrap_or((all / FREE_SHARE).min(MAX_FREE))
    }

    /// The time of an unused entry among those of uses: this one, or half of the maximum age ago if that is later, so that the entry does
    /// not exceed the age at once.
    pub(super) fn within_age(&self, used_ms: u64, now_ms: u64) -> u64 {
        self.max_age.map_or(used_ms, |age| {
            let half = u64::try_from(age.as_millis() / 2).unwrap_or(u64::MAX);
            used_ms.max(now_ms.saturating_sub(half))
        })
    }

    /// When an entry was last used. If that is unknown, it goes before all others, but does not exceed the maximum age.
    pub(super) fn used_ms(&self, facts: &FileFacts, now_ms: u64) -> u64 {
        used_ms(facts, now_ms).unwrap_or_else(|| self.within_age(0, now_ms))
    }

    pub(super) fn is_too_old(&self, used_ms: u64, now_ms: u64) -> bool {
        self.max_age
            .is_some_and(|age| u128::from(now_ms.saturating_sub(used_ms)) > age.as_millis())
    }
}

/// When an entry was last used; None, which is unknown, if that is far in the future, since the clock was set back.
pub(super) fn used_ms(facts: &FileFacts, now_ms: u64) -> Option<u64> {
    let used_ms = facts.modified_ms;
    (used_ms <= now_ms.saturating_add(CLOCK_TOLERANCE_MS)).then_some(used_ms)
}

/// Whether there is room for this many bytes beside all other entries.
pub(super) fn has_room_beside(
    store: &Store,
    limits: &Limits,
    sizes: Option<&Sizes>,
    incoming: u64,
) -> bool {
    let is_full = sizes.is_some_and(|sizes| store.lacks(limits, sizes, incoming));
    !is_full && store.has_room(limits, incoming).is_ok()
}

/// Why an entry is not stored, for people.
type Lacking = &'static str;

/// An entry was not stored.
#[derive(Debug)]
pub struct PublishError {
    pub error: StoreError,
    /// How many entries were removed to make room, in vain.
    pub removed: u64,
}

impl fmt::Display for PublishError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl From<StoreError> for PublishError {
    fn from(error: StoreError) -> PublishError {
        PublishError { error, removed: 0 }
    }
}

/// An entry of a shard that is examined.
struct Candidate {
    key: Key,
    used_ms: u64,
    bytes: u64,
    /// How many entries of the shard were used less recently.
    index: usize,
    /// The number of entries in the shard.
    of: usize,
    /// When the least recently used entry of the shard was used.
    first_used_ms: u64,
}

impl Store {
    /// The time since an entry was last used, in milliseconds; 0 if that is unknown.
    pub fn unused_ms(&self, facts: &FileFacts) -> u64 {
        let now = self.root.now_ms();
        used_ms(facts, now).map_or(0, |used| now.saturating_sub(used))
    }

    /// How long an unused entry stays in a nearly full cache; None if no entry will be evicted soon.
    pub fn kept_for(&self) -> Option<Duration> {
        let most = self.limits?.max_size?;
        let sizes = self.readable_sizes()?;
        if sizes.total() < most - most / FULL_SHARE {
            return None;
        }
        let (_, oldest) = sizes.oldest(None)?;
        Some(Duration::from_millis(
            self.root.now_ms().saturating_sub(oldest),
        ))
    }

    /// Makes room for an entry of this size. Adds how many entries were removed.
    ///
    /// # Errors
    /// There is no room: the entry must not be stored.
    pub(super) fn make_room(
        &self,
        limits: &Limits,
        incoming: u64,
        removed: &mut u64,
    ) -> Result<(), Lacking> {
        if limits.max_size.is_some_and(|most| incoming > most) {
            return Err("it alone is larger than OCLCACHE_MAX_SIZE");
        }
        let Some(sizes) = self.sizes() else {
            return self.has_room(limits, incoming);
        };
        self.note_absent_shards(sizes);
        for _ in 0..MAX_COUNTED {
            let Some(shard) = sizes.unknown() else {
                break;
            };
            self.count_again(sizes, shard);
        }
        let mut budget = BUDGET;
        // A process that does not get the lock leaves eviction to the holder.
        while budget > 0 && self.lacks(limits, sizes, incoming) {
            let _lock = match self.locks().try_lock(Purpose::Evict) {
                LockAttempt::Got(lock) => Some(lock),
                // Storing is faster than eviction: each process may be one entry ahead.
                LockAttempt::Taken if excess_of(limits, sizes, 0) > 0 => {
                    return Err("the cache is full, and another process is making room");
                }
                LockAttempt::Taken => return self.has_room(limits, incoming),
                LockAttempt::Unavailable => None,
            };
            while budget > 0 && self.lacks(limits, sizes, incoming) {
                let oldest = || sizes.oldest(None).map(|(shard, _)| shard);
                let Some(shard) = sizes.unknown().or_else(oldest) else {
                    budget = 0;
                    break;
                };
                let (examined, gone) = self.evict_from(limits, sizes, shard, incoming, budget);
                budget = budget.saturating_sub(examined + LISTING);
                *removed += gone;
            }
        }
        let too_many = excess_of(limits, sizes, incoming);
        if *removed == 0 && too_many > 0 || too_many > incoming {
            return Err("the cache is full, and not enough could be removed");
        }
        self.has_room(limits, incoming)
    }

    /// Notes that shards without a directory are empty: most of them in a new cache.
    fn note_absent_shards(&self, sizes: &Sizes) {
        let unlisted = sizes.unlisted();
        if unlisted.is_empty() {
            return;
        }
        let present = || {
            let entries = self.root.open_below(ENTRIES).ok()??;
            entries.names().ok()
        };
        let Some(before) = present() else {
            return;
        };
        let is_absent = |shard: &usize| !before.contains(&shard_name(*shard));
        let absent: Vec<usize> = unlisted.into_iter().filter(is_absent).collect();
        sizes.absent(&absent);
        // Another process may have created one meanwhile.
        let after = present().unwrap_or_default();
        for shard in absent {
            if after.contains(&shard_name(shard)) {
                self.count_again(sizes, shard);
            }
        }
    }

    /// Whether the file system has room.
    fn has_room(&self, limits: &Limits, incoming: u64) -> Result<(), Lacking> {
        match self.shortage(limits, incoming) {
            0 => Ok(()),
            _ => Err("less would be free than OCLCACHE_MIN_FREE"),
        }
    }

    /// How many bytes too few are free.
    pub(super) fn shortage(&self, limits: &Limits, incoming: u64) -> u64 {
        let short = |(free, all)| match limits.free_of(all) {
            0 => 0,
            wanted => wanted.saturating_add(incoming).saturating_sub(free),
        };
        self.root.room().map_or(0, short)
    }

    /// How many of these bytes too few are free because of the cache: none if all its entries together, which take so many bytes, would
    /// not make up for them. Something else has filled the disk, and a cache that is emptied for that is of no use to anybody.
    pub(super) fn shortage_to_evict(&self, limits: &Limits, incoming: u64, taken: u64) -> u64 {
        Some(self.shortage(limits, incoming))
            .filter(|shortage| *shortage <= taken)
            .unwrap_or(0)
    }

    fn lacks(&self, limits: &Limits, sizes: &Sizes, incoming: u64) -> bool {
        let too_old = |(_, used)| limits.is_too_old(used, self.root.now_ms());
        excess_of(limits, sizes, incoming) > 0
            || self.shortage_to_evict(limits, incoming, most_taken(sizes)) > 0
            || sizes.oldest(None).is_some_and(too_old)
    }

    /// Evicts from the shard that seems to have the oldest entry. Returns how many entries it had, and how many were removed.
    fn evict_from(
        &self,
        limits: &Limits,
        sizes: &Sizes,
        shard: usize,
        incoming: u64,
        budget: usize,
    ) -> (usize, u64) {
        let next = sizes.oldest(Some(shard)).map_or(u64::MAX, |(_, used)| used);
        let now = self.root.now_ms();
        let shortage = self.shortage_to_evict(limits, incoming, most_taken(sizes));
        let wanted = excess_of(limits, sizes, incoming).max(shortage);
        let (mut gone, mut freed) = (Vec::new(), 0);
        let examined = self.look_through(sizes, shard, &mut |entry| {
            let batch = (entry.of / BATCH_SHARE).max(1);
            let is_last_chance = entry.of + LISTING >= budget;
            let in_batch = entry.index < batch && (entry.first_used_ms <= next || is_last_chance);
            let in_turn = freed < wanted && entry.used_ms <= next || wanted > 0 && in_batch;
            let goes = in_turn || limits.is_too_old(entry.used_ms, now);
            if goes {
                gone.push(entry.key);
                freed += entry.bytes;
            }
            goes
        });
        self.note_evictions(&gone);
        (examined, gone.len() as u64)
    }

    /// Lists a shard to correct its counter, unless another process or thread lists shards: each would add what it has found.
    pub(super) fn count_again(&self, sizes: &Sizes, shard: usize) {
        let attempt = self.locks().try_lock(Purpose::Evict);
        if !matches!(attempt, LockAttempt::Taken) {
            self.look_through(sizes, shard, &mut |_| false);
        }
    }

    /// Lists all shards to correct their counters, and removes the remembered heads of those that have few entries left.
    pub(super) fn count_all_again(&self) {
        let Some(sizes) = self.sizes() else {
            return;
        };
        let all: Vec<usize> = (0..SHARDS).collect();
        for shards in all.chunks(COUNTED_AT_ONCE) {
            match self.locks().try_lock(Purpose::Evict) {
                // For a moment; another process counts some of them.
                LockAttempt::Taken => shards
                    .iter()
                    .for_each(|shard| self.count_again(sizes, *shard)),
                _lock => {
                    let count = |shard| self.look_through(sizes, shard, &mut |_| false);
                    let _: Result<(), Infallible> = walk(shards, count, |shard, entries| {
                        if entries < heads::MIN_ENTRIES {
                            heads::forget(&self.root, shard);
                        }
                        Ok(())
                    });
                }
            }
        }
    }

    /// Lists a shard, asks for each entry whether to remove it, the least recently used one first, and corrects the counter.
    /// Returns how many entries there were.
    fn look_through(
        &self,
        sizes: &Sizes,
        shard: usize,
        goes: &mut dyn FnMut(&Candidate) -> bool,
    ) -> usize {
        let known = sizes.of(shard);
        let (now, limits) = (self.root.now_ms(), self.limits.unwrap_or_default());
        let listed = self.shard(shard).ok().flatten();
        let listed = listed
            .and_then(|directory| Some((self.entries_of(shard, &directory).ok()?, directory)));
        let Some((entries, directory)) = listed else {
            sizes.listed(shard, known, 0, None);
            return 0;
        };
        let mut entries: Vec<_> = entries
            .into_iter()
            .map(|(key, file)| (limits.used_ms(&file, now), file.taken(), key))
            .collect();
        entries.sort_unstable();
        let (of, first_used_ms) = (entries.len(), entries.first().map_or(0, |first| first.0));
        let (mut kept, mut oldest) = (0, None);
        for (index, (used_ms, bytes, key)) in entries.into_iter().enumerate() {
            let candidate = Candidate {
                key,
                used_ms,
                bytes,
                index,
                of,
                first_used_ms,
            };
            let name = file_name(&key);
            let remove = || begins_as_ours(&directory, &name) && directory.remove(&name).is_ok();
            if !goes(&candidate) || !remove() {
                kept += bytes;
                oldest = oldest.or(Some(used_ms));
            }
        }
        sizes.listed(shard, known, kept, oldest);
        of
    }
}

/// The most that the entries can take: there is no limit as long as not all shards are counted.
fn most_taken(sizes: &Sizes) -> u64 {
    sizes.unknown().map_or(sizes.total(), |_| u64::MAX)
}

/// How many bytes too many there are.
fn excess_of(limits: &Limits, sizes: &Sizes, incoming: u64) -> u64 {
    let most = limits.max_size.unwrap_or(u64::MAX);
    sizes.total().saturating_add(incoming).saturating_sub(most)
}

#[cfg(test)]
mod tests;
