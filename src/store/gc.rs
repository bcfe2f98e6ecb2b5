//! Garbage collection by the command: examines every entry, while a process that stores an entry examines few.

use std::cmp::Ordering;
use std::path::Path;
use std::time::Duration;

use super::directory::{Directory, is_temporary};
use super::evict::{Limits, used_ms};
use super::leftovers::{is_past, is_set_aside};
use super::ownership::{begins_as_ours, has_our_content};
use super::stats::Statistics;
use super::{
    ARCHIVE_KEY, ASIDE, ENTRIES, LOADING, LOCKS, SHARDS, STATISTICS, SUFFIX, Store, StoreError,
    TEMPORARY, VERSION_DIRECTORY, audit, bake_attempts, digests, file_name, is_shard,
    library_facts, live, load_guard, shard_of,
};
use crate::key::ingredients::Key;
use crate::store::entry::Meta;

/// A format that was not used for so long is garbage.
const UNUSED: Duration = Duration::from_secs(30 * 86400);

/// The files in the directory of a format; the others are directories.
const FILES: [&str; 8] = [
    "sizes",
    "journal",
    "journal.old",
    LOCKS,
    "drivers",
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
    /// Whether the driver of an entry is still installed. Never called on network file systems: the driver may be on another host.
    fn is_installed(&mut self, meta: &Meta) -> bool;

    /// Reports how many of the steps are done. Returns whether to continue.
    fn progress(&mut self, what: &'static str, done: usize, of: usize) -> bool;
}

struct Candidate {
    used_ms: u64,
    bytes: u64,
    key: Key,
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
        let collected = self.collect_entries(limits, collector, &mut done);
        if let Some(sizes) = self.sizes() {
            (0..SHARDS).for_each(|shard| self.count_again(sizes, shard));
        }
        done.stopped = !collected?;
        Ok(done)
    }

    /// Tells whether it was done to the end. The sizes are not counted.
    fn collect_entries(
        &self,
        limits: &Limits,
        collector: &mut dyn Collector,
        done: &mut GcResult,
    ) -> Result<bool, StoreError> {
        let now = self.root.now_ms();
        let mut kept = Vec::new();
        for shard in 0..SHARDS {
            if !collector.progress("listing", shard, SHARDS) {
                return Ok(false);
            }
            let Some(directory) = self.shard(shard)? else {
                continue;
            };
            for (key, file) in self.entries_of(shard, &directory)? {
                let candidate = Candidate {
                    used_ms: used_ms(&file, now),
                    bytes: file.taken(),
                    key,
                };
                if limits.is_too_old(candidate.used_ms, now) {
                    self.collect_one(&candidate, done)?;
                } else {
                    kept.push(candidate);
                }
            }
        }
        let size: u64 = kept.iter().map(|entry| entry.bytes).sum();
        let too_large = limits.max_size.map_or(0, |most| size.saturating_sub(most));
        let excess = too_large.max(self.shortage(limits, 0));
        if excess > 0 {
            let Some(ordered) = self.in_order(kept, collector) else {
                return Ok(false);
            };
            kept = ordered;
        }
        let mut freed = 0;
        for (index, entry) in kept.iter().enumerate() {
            if freed < excess {
                if !collector.progress("removing", index, kept.len()) {
                    return Ok(false);
                }
                self.collect_one(entry, done)?;
                freed += entry.bytes;
            } else {
                done.left += 1;
                done.left_bytes += entry.bytes;
            }
        }
        Ok(true)
    }

    /// Removes an entry; the sizes are counted at the end.
    fn collect_one(&self, entry: &Candidate, done: &mut GcResult) -> Result<(), StoreError> {
        if let Some(shard) = self.shard(shard_of(&entry.key))?
            && begins_as_ours(&shard, &file_name(&entry.key))
            && shard.remove(&file_name(&entry.key))?
        {
            done.entries += 1;
            done.bytes += entry.bytes;
        }
        Ok(())
    }

    /// The entries in order of removal: damaged ones, those of drivers that are not installed, then those with the least compile
    /// time per byte. None if the collection was stopped.
    fn in_order(
        &self,
        entries: Vec<Candidate>,
        collector: &mut dyn Collector,
    ) -> Option<Vec<Candidate>> {
        let is_network = self.root.file_system().is_network();
        let of = entries.len();
        let mut ranked = Vec::with_capacity(of);
        for (index, entry) in entries.into_iter().enumerate() {
            if index % 256 == 0 && !collector.progress("reading", index, of) {
                return None;
            }
            let meta = self.read_meta(&entry.key);
            let meta = meta.filter(|meta| is_network || collector.is_installed(meta));
            // A recipe that nobody has baked spares nothing yet.
            let spares = meta.map_or(-1.0, |meta| match meta.is_pending() {
                true => 0.0,
                false => meta.compile_ns as f64 / entry.bytes.max(1) as f64,
            });
            ranked.push((spares, entry));
        }
        ranked.sort_by(|(one, first), (other, second)| {
            let by_use = || first.used_ms.cmp(&second.used_ms);
            one.partial_cmp(other)
                .unwrap_or(Ordering::Equal)
                .then_with(by_use)
        });
        Some(ranked.into_iter().map(|(_, entry)| entry).collect())
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
        for name in directory.names()? {
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
    let directories: [(&str, IsOurs); 8] = [
        (ASIDE, &is_set_aside),
        (TEMPORARY, &is_temporary),
        (LOADING, &load_guard::is_ours),
        (bake_attempts::BAKING, &bake_attempts::is_ours),
        (audit::AUDIT, &audit::is_ours),
        (digests::DIRECTORY, &digests::is_host),
        (library_facts::DIRECTORY, &library_facts::is_ours),
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
