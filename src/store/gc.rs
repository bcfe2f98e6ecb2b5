//! Garbage collection by the command: examines every entry, while a process that stores an entry examines few.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use super::directory::{Directory, is_temporary};
use super::evict::Limits;
use super::heads::{self, EntryDriver, ShardHeads};
use super::leftovers::{is_past, is_set_aside};
use super::ownership::{begins_as_ours, has_our_content};
use super::stats::Statistics;
use super::uses::{ListedEntry, MAX_DATED};
use super::walk::walk;
use super::{
    ARCHIVE_KEY, ASIDE, ENTRIES, LOADING, LOCKS, STATISTICS, SUFFIX, Store, StoreError, TEMPORARY,
    VERSION_DIRECTORY, audit, bake_attempts, digests, driver_costs, evictions, file_name, is_shard,
    library_facts, live, load_guard, measured_profiles, shard_of, totals,
};
use crate::fork_safety::Mutex;
use crate::key::ingredients::Key;

/// Of entries that were used within this time, in milliseconds, none counts as used more recently than another.
const JUST_USED_MS: u64 = 60_000;
/// A format that was not used for so long is garbage.
const UNUSED: Duration = Duration::from_secs(30 * 86400);

/// The files in the directory of a format; the others are directories.
const FILES: [&str; 10] = [
    "sizes",
    totals::NAME,
    "journal",
    "journal.old",
    evictions::NAME,
    LOCKS,
    driver_costs::NAME,
    "swept",
    live::NAME,
    ARCHIVE_KEY,
];
/// The magic numbers of all formats begin with this.
const FAMILY: &[u8] = b"oclc";

/// The result of a collection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct GcResult {
    /// Entries that were removed.
    pub entries: u64,
    /// Their size on the disk, in bytes.
    pub bytes: u64,
    /// Files of formats that are no longer used.
    pub old_formats: u64,
    /// Files of killed processes, and entries that were set aside long ago.
    pub leftovers: u64,
    /// Entries that are left.
    pub left: u64,
    /// Their size, in bytes.
    pub left_bytes: u64,
    /// The collection was stopped: the remaining entries were not counted.
    pub stopped: bool,
}

/// What a collection asks and reports.
pub trait Collector {
    /// Whether this driver of entries is still installed. Never called on network file systems: the driver may be on another host.
    fn is_installed(&mut self, driver: &EntryDriver) -> bool;

    /// Reports how many of the steps are done. Returns whether to continue.
    fn progress(&mut self, what: &'static str, done: usize, of: usize) -> bool;
}

/// An entry that may be removed.
struct Candidate {
    /// How much compile time it spares, for its size and for the time since its last use: what was just used will be used again.
    spares: f64,
    entry: ListedEntry,
    is_damaged: bool,
}

/// What the threads of a collection have removed.
#[derive(Default)]
struct Removed {
    /// Only count.
    is_dry: bool,
    keys: Mutex<Vec<Key>>,
    entries: AtomicU64,
    bytes: AtomicU64,
    /// Remove no more.
    stop: AtomicBool,
}

/// Why a collection ends early.
enum Stop {
    Stopped,
    Failed(StoreError),
}

impl From<StoreError> for Stop {
    fn from(error: StoreError) -> Stop {
        Stop::Failed(error)
    }
}

impl Removed {
    fn add(&self, key: &Key, bytes: u64) {
        self.keys.lock().push(*key);
        self.entries.fetch_add(1, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    fn end(self, collected: Result<(), Stop>, done: GcResult) -> Result<GcResult, StoreError> {
        let stopped = match collected {
            Err(Stop::Failed(error)) => return Err(error),
            collected => collected.is_err(),
        };
        Ok(GcResult {
            entries: self.entries.into_inner(),
            bytes: self.bytes.into_inner(),
            stopped,
            ..done
        })
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Relaxed)
    }

    fn go_on(&self, goes_on: bool) -> Result<(), Stop> {
        match goes_on {
            true => Ok(()),
            false => {
                self.stop.store(true, Relaxed);
                Err(Stop::Stopped)
            }
        }
    }
}

impl Store {
    /// Removes formats that were not used for 30 days, leftovers, and entries that exceed the maximum age. Then, while the cache is
    /// too large, removes entries of drivers that are no longer installed, and those with the least compile time for their size.
    ///
    /// # Errors
    /// A directory cannot be listed, or a file cannot be removed.
    pub fn collect(
        &self,
        limits: &Limits,
        collector: &mut dyn Collector,
    ) -> Result<GcResult, StoreError> {
        let mut done = GcResult {
            old_formats: self.remove_old_formats()?,
            leftovers: self.sweep()?,
            ..GcResult::default()
        };
        self.date_uses(MAX_DATED);
        let removed = Removed::default();
        let collected = self.collect_entries(limits, collector, &removed, &mut done);
        self.count_all_again();
        self.note_evictions(&removed.keys.lock());
        removed.end(collected, done)
    }

    /// What [`Store::collect`] would remove. Only entries are looked at, and nothing is removed.
    ///
    /// # Errors
    /// A directory cannot be listed.
    pub fn would_collect(
        &self,
        limits: &Limits,
        collector: &mut dyn Collector,
    ) -> Result<GcResult, StoreError> {
        let mut done = GcResult::default();
        let removed = Removed {
            is_dry: true,
            ..Removed::default()
        };
        let collected = self.collect_entries(limits, collector, &removed, &mut done);
        removed.end(collected, done)
    }

    /// Counts what is left. The sizes are not counted.
    fn collect_entries(
        &self,
        limits: &Limits,
        collector: &mut dyn Collector,
        removed: &Removed,
        done: &mut GcResult,
    ) -> Result<(), Stop> {
        let (mut left, mut left_bytes) = (0, 0);
        let shards = self.shards()?;
        // 130 bytes of an entry, as many as it takes to weigh them.
        let mut listed = BTreeMap::new();
        walk(
            &shards,
            |shard| self.collect_old(shard, limits, removed),
            |shard, kept| {
                let kept = kept?;
                left += kept.len() as u64;
                left_bytes += kept.iter().map(|entry| entry.file.taken()).sum::<u64>();
                listed.insert(shard, kept);
                removed.go_on(collector.progress("listing", listed.len(), shards.len()))
            },
        )?;
        let too_large = limits
            .max_size
            .map_or(0, |most| left_bytes.saturating_sub(most));
        let excess = too_large.max(self.shortage_to_evict(limits, 0, left_bytes));
        if excess > 0 {
            let ordered = self.in_order(listed, limits, collector)?;
            let (mut freed, mut chosen) = (0, BTreeMap::new());
            (left, left_bytes) = (0, 0);
            for candidate in ordered {
                let bytes = candidate.entry.file.taken();
                if freed < excess {
                    freed += bytes;
                    let shard = shard_of(&candidate.entry.key);
                    let of_shard: &mut Vec<_> = chosen.entry(shard).or_default();
                    of_shard.push(candidate);
                } else {
                    left += 1;
                    left_bytes += bytes;
                }
            }
            for of_shard in chosen.values_mut() {
                // See `Directory::names_by_inode`.
                of_shard.sort_by_key(|candidate| candidate.entry.fingerprint.file.1);
            }
            let of = chosen.values().map(Vec::len).sum();
            let shards: Vec<usize> = chosen.keys().copied().collect();
            let mut passed = 0;
            walk(
                &shards,
                |shard| self.collect_chosen(shard, &chosen[&shard], removed),
                |shard, removal| {
                    removal?;
                    passed += chosen[&shard].len();
                    removed.go_on(collector.progress("removing", passed, of))
                },
            )?;
        }
        (done.left, done.left_bytes) = (left, left_bytes);
        Ok(())
    }

    /// Removes the entries of a shard that exceed the maximum age. Returns the others.
    fn collect_old(
        &self,
        shard: usize,
        limits: &Limits,
        removed: &Removed,
    ) -> Result<Vec<ListedEntry>, StoreError> {
        let Some(directory) = self.shard(shard)? else {
            return Ok(Vec::new());
        };
        let now = self.root.now_ms();
        let mut kept = self.listed_entries(shard, &directory)?;
        let is_too_old =
            |entry: &mut ListedEntry| limits.is_too_old(limits.used_ms(&entry.file, now), now);
        for ListedEntry { key, file, .. } in kept.extract_if(.., is_too_old) {
            let name = file_name(&key);
            if !removed.is_stopped()
                && begins_as_ours(&directory, &name)
                && (removed.is_dry || directory.remove(&name)?)
            {
                removed.add(&key, file.taken());
            }
        }
        Ok(kept)
    }

    /// Removes entries of a shard.
    fn collect_chosen(
        &self,
        shard: usize,
        chosen: &[Candidate],
        removed: &Removed,
    ) -> Result<(), StoreError> {
        let Some(directory) = self.shard(shard)? else {
            return Ok(());
        };
        for Candidate {
            entry, is_damaged, ..
        } in chosen
        {
            if removed.is_stopped() {
                break;
            }
            let name = file_name(&entry.key);
            // Its content showed that it is ours, and is the same.
            let is_same = |(_, now)| now == entry.fingerprint;
            let is_ours =
                !is_damaged && directory.facts_and_fingerprint(&name).is_some_and(is_same);
            if (is_ours || begins_as_ours(&directory, &name))
                && (removed.is_dry || directory.remove(&name)?)
            {
                removed.add(&entry.key, entry.file.taken());
            }
        }
        Ok(())
    }

    /// The entries in the order in which they are chosen: damaged ones, those of drivers that are not installed, then those that spare
    /// least.
    fn in_order(
        &self,
        listed: BTreeMap<usize, Vec<ListedEntry>>,
        limits: &Limits,
        collector: &mut dyn Collector,
    ) -> Result<Vec<Candidate>, Stop> {
        let is_network = self.root.file_system().is_network();
        let now = self.root.now_ms();
        let (mut ranked, mut read, shards) = (Vec::new(), 0, listed.len());
        let weigh = |heads: &ShardHeads| {
            let weighed = heads.entries.iter().map(|(entry, head)| {
                let mut entry = *entry;
                entry.file.modified_ms = limits.used_ms(&entry.file, now);
                let unused = now.saturating_sub(entry.file.modified_ms).max(JUST_USED_MS) as f64;
                let spares = head.as_ref().map_or(-1.0, |head| match head.is_pending {
                    // A recipe that nobody has baked spares nothing yet.
                    true => 0.0,
                    false => head.compile_ns as f64 / entry.file.taken().max(1) as f64 / unused,
                });
                let candidate = Candidate {
                    spares,
                    entry,
                    is_damaged: head.is_none(),
                };
                (candidate, head.as_ref().map(|head| heads.driver_of(head)))
            });
            (heads.drivers.clone(), weighed.collect::<Vec<_>>())
        };
        self.walk_heads_of(listed, weigh, |(drivers, weighed)| {
            let mut is_installed =
                |driver: &EntryDriver| is_network || collector.is_installed(driver);
            let installed: Vec<bool> = drivers.iter().map(&mut is_installed).collect();
            ranked.extend(weighed.into_iter().map(|(mut candidate, driver)| {
                if driver.is_some_and(|driver| !installed[driver]) {
                    candidate.spares = -1.0;
                }
                candidate
            }));
            read += 1;
            match collector.progress("reading", read, shards) {
                true => Ok(()),
                false => Err(Stop::Stopped),
            }
        })?;
        ranked.sort_by(|one: &Candidate, other: &Candidate| {
            let by_use = || {
                let [one, other] = [one, other].map(|one| one.entry.file.modified_ms);
                one.cmp(&other)
            };
            one.spares.total_cmp(&other.spares).then_with(by_use)
        });
        Ok(ranked)
    }

    /// Removes the directories of other formats beside this one's that nobody has used for long. Returns how many files went.
    ///
    /// A user may have made the cache in a directory of his own, beside a `v2` of something else.
    fn remove_old_formats(&self) -> Result<u64, StoreError> {
        let path = self.root.path().parent().unwrap_or(Path::new("/"));
        let Some(cache) = Directory::open(path)? else {
            return Ok(0);
        };
        let now = cache.now_ms();
        let mut removed = 0;
        for name in cache.names()? {
            let number = name
                .strip_prefix('v')
                .and_then(|number| number.parse::<u32>().ok());
            let modified = cache.modified_ms(&name);
            if number.is_some()
                && name != VERSION_DIRECTORY
                && modified.is_some_and(|modified| is_past(modified, UNUSED, now))
                && let Some(format) = cache.open_below(&name)?
                && is_format(&format)?
            {
                removed += remove_format(&format)?;
                cache.remove_directory(&name);
            }
        }
        Ok(removed)
    }
}

/// Whether a directory certainly is that of a format of ours: it has a file with a magic number, or an entry.
fn is_format(directory: &Directory) -> Result<bool, StoreError> {
    if FILES.iter().any(|name| directory.begins_with(name, FAMILY)) {
        return Ok(true);
    }
    let Some(entries) = directory.open_below(ENTRIES)? else {
        return Ok(false);
    };
    for shard in entries.names()?.iter().filter(|name| is_shard(name)) {
        if let Some(directory) = entries.open_below(shard)?
            && (directory.names()?.iter())
                .any(|name| is_entry(name) && directory.begins_with(name, FAMILY))
        {
            return Ok(true);
        }
    }
    Ok(false)
}

fn is_entry(name: &str) -> bool {
    name.strip_suffix(SUFFIX).and_then(Key::from_hex).is_some()
}

/// Removes the files of a format by their names, directories and contents, and follows no link. Other files stay, with their
/// directories. Returns how many files were removed.
fn remove_format(format: &Directory) -> Result<u64, StoreError> {
    let mut removed = 0;
    let mut each = |directory: &Directory, is_ours: &dyn Fn(&str) -> bool| {
        for name in directory.names_by_inode()? {
            if is_ours(&name) && has_our_content(directory, &name) {
                removed += u64::from(directory.remove(&name)?);
            }
        }
        Ok::<_, StoreError>(())
    };
    if let Some(entries) = format.open_below(ENTRIES)? {
        for shard in entries.names()?.iter().filter(|name| is_shard(name)) {
            if let Some(directory) = entries.open_below(shard)? {
                each(&directory, &is_entry)?;
                entries.remove_directory(shard);
            }
        }
        format.remove_directory(ENTRIES);
    }
    type IsOurs<'a> = &'a dyn Fn(&str) -> bool;
    let directories: [(&str, IsOurs); 10] = [
        (heads::DIRECTORY, &is_shard),
        (ASIDE, &is_set_aside),
        (TEMPORARY, &is_temporary),
        (LOADING, &load_guard::is_ours),
        (bake_attempts::BAKING, &bake_attempts::is_ours),
        (audit::AUDIT, &audit::is_ours),
        (digests::DIRECTORY, &digests::is_host),
        (library_facts::DIRECTORY, &library_facts::is_ours),
        (measured_profiles::DIRECTORY, &measured_profiles::is_ours),
        (STATISTICS, &Statistics::names),
    ];
    for (name, is_ours) in directories {
        if let Some(directory) = format.open_below(name)? {
            each(&directory, is_ours)?;
            format.remove_directory(name);
        }
    }
    each(format, &|name| FILES.contains(&name))?;
    Ok(removed)
}
