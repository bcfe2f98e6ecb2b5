//! The cache directory: pure file handling that knows no OpenCL objects.

pub mod audit;
pub mod bake_attempts;
mod clear;
mod compressed;
pub mod digests;
pub mod directory;
pub mod disk;
pub mod driver_costs;
pub mod entry;
mod evict;
mod evictions;
#[cfg(test)]
mod faults;
pub mod foreign;
pub mod gc;
pub mod heads;
pub mod journal;
mod leftovers;
pub mod library_facts;
pub mod live;
pub mod load_guard;
pub mod lock;
pub mod measured_profiles;
pub mod ownership;
pub mod recipe;
pub mod recorder;
mod sizes;
pub mod stats;
mod store_error;
mod tag;
pub mod tier;
pub mod tiers;
mod totals;
mod uses;
mod walk;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub use clear::ClearResult;
use directory::{Directory, FileFacts};
use disk::{Disk, SystemDisk};
use entry::{Defect, Entry, EntryContent, Meta};
pub use evict::{Limits, PublishError};
use live::Live;
use lock::Locks;
use once_cell::race::OnceBox;
use ownership::{begins_as_ours, may_write, not_ours};
use sizes::Sizes;
pub use store_error::StoreError;
pub use tag::is_only_a_cache;
pub use tier::Lookup;
use tier::{EntryOrigin, ReadError, Tier};
pub use totals::EntryTotals;
pub use uses::ListedEntry;
use uses::Uses;
use walk::walk;

use crate::key::ingredients::Key;

/// The directory of this format below the cache directory. Another format gets another name, so that versions live side by
/// side, and an old one is only garbage. `oclcache gc` recognizes other formats by [`ENTRIES`] in them.
pub const VERSION_DIRECTORY: &str = "v1";

/// The file of the key that signs the archives of this cache (`cli::archive`).
pub const ARCHIVE_KEY: &str = "archive-key";
const LOCKS: &str = "locks";
const ENTRIES: &str = "entries";
const ASIDE: &str = "aside";
const LOADING: &str = "loading";
/// The directory of the statistics.
const STATISTICS: &str = "stats";
const TEMPORARY: &str = "tmp";
const SUFFIX: &str = ".entry";

/// Entries of this size, in bytes, or more are neither written nor read.
pub const MAX_ENTRY_BYTES: u64 = 1 << 30;

/// Most file systems allocate files in multiples of this, in bytes.
const BLOCK: u64 = 4096;
/// Bytes read first; enough for the metadata of most entries.
const FIRST_READ_BYTES: usize = 4096;
/// Re-list a shard on 8 in 256 stores or removals, so that an error in its counter does not stay.
const COUNTED_AGAIN: u8 = 8;

/// The entries below one cache directory.
///
/// ```text
/// <cache directory>/CACHEDIR.TAG
/// <cache directory>/v1/entries/4f/4f1d...c2.entry    published by rename, read without a lock
/// <cache directory>/v1/aside/4f1d...c2.entry         set aside: damaged, or refused by the driver
/// <cache directory>/v1/tmp/                          being written
/// <cache directory>/v1/loading/4f1d...c2             an entry that no driver has loaded yet is being loaded
/// <cache directory>/v1/baking/4f1d...c2              a recipe that is being baked, or whose baking failed
/// <cache directory>/v1/audit/4f1d...c2               an audit found a wrong entry of this driver: the cache is off for the driver
/// <cache directory>/v1/sizes                         the size of each shard, and the oldest use in it
/// <cache directory>/v1/totals                        the number and the size of the entries of each large shard, see `totals`
/// <cache directory>/v1/heads/4f                      what `list` shows of the entries of a large shard, see `heads`
/// <cache directory>/v1/locks                         one byte for each lock, see `lock`
/// <cache directory>/v1/live                          the name of a directory in memory for what hits write, see `live`
/// <cache directory>/v1/stats/                        counters: a total, and files of processes
/// <cache directory>/v1/digests/                      remembered digests of driver files, one file for each host
/// <cache directory>/v1/driver_costs                  how long recording and loading took with each driver
/// <cache directory>/v1/profiles/                     what was measured on a driver, see `measured_profiles`
/// <cache directory>/v1/swept                         its time of modification is that of the last sweep
/// <cache directory>/v1/archive-key                   signs the archives of this cache
/// <cache directory>/v1/remote/                      the socket and the state of the helper of the remote level, see `remote::socket`
/// <cache directory>/v1/vendors-.../                  the vendors directory of `oclcache run`, if it cannot be in the home directory
/// <cache directory>/v1/journal, journal.old          misses, bypasses and failures, appended without a lock
/// ```
#[derive(Debug)]
pub struct Store {
    root: Arc<Directory>,
    locks: Locks,
    /// None: the store is only read, and uses of entries are not noted.
    limits: Option<Limits>,
    /// Whether sums and heads of entries are written: see `totals` and `heads`.
    remembers: bool,
    // Opened without a lock: if two threads open it at once, one of the two is dropped unused.
    sizes: OnceBox<Option<Sizes>>,
    /// The same file, for a process that only reads it.
    readable_sizes: OnceBox<Option<Sizes>>,
    live: OnceBox<Option<Live>>,
    uses: OnceBox<Uses>,
    facts: OnceBox<Directory>,
}

impl Store {
    /// Opens the cache directory, and makes it if it is missing.
    ///
    /// # Errors
    /// It cannot be made or opened, belongs to another user, or others may write it.
    pub fn open(path: &Path, limits: Limits) -> Result<Store, StoreError> {
        Store::open_on(Arc::new(SystemDisk), path, limits)
    }

    /// [`Store::open`] on another disk than the system's.
    ///
    /// # Errors
    /// See [`Store::open`].
    pub fn open_on(disk: Arc<dyn Disk>, path: &Path, limits: Limits) -> Result<Store, StoreError> {
        Store::open_in(Directory::create_all_on(disk, path)?, limits)
    }

    /// [`Store::open`] for a directory whose entries all users are to read.
    ///
    /// # Errors
    /// See [`Store::open`].
    pub fn open_shared(path: &Path, limits: Limits) -> Result<Store, StoreError> {
        Store::open_in(Directory::create_all(path)?.shared(), limits)
    }

    fn open_in(cache: Directory, limits: Limits) -> Result<Store, StoreError> {
        let root = cache.create(VERSION_DIRECTORY)?;
        Store::opened(&cache, &root);
        Ok(Store::of(root, Some(limits)))
    }

    /// Opens the cache directory for reading only; None if there is none.
    ///
    /// # Errors
    /// It cannot be opened, belongs to another user, or others may write it.
    pub fn open_existing(path: &Path) -> Result<Option<Store>, StoreError> {
        let Some(cache) = Directory::open(path)? else {
            return Ok(None);
        };
        let root = cache.open_below(VERSION_DIRECTORY)?;
        Ok(root.map(|root| Store::of(root, None)))
    }

    /// Whether no process has identified a driver with it yet, or found that it cannot be, and it holds no entry.
    pub fn is_unused(&self) -> bool {
        let is_missing = |name| self.root.modified_ms(name).is_none();
        is_missing(digests::DIRECTORY) && is_missing(ENTRIES)
    }

    /// The same of the store in a cache directory that is not opened, if there is one.
    pub fn is_unused_at(cache: &Path) -> bool {
        let root = cache.join(VERSION_DIRECTORY);
        let is_missing = |name| root.join(name).symlink_metadata().is_err();
        is_missing(digests::DIRECTORY) && is_missing(ENTRIES)
    }

    fn of(root: Directory, limits: Option<Limits>) -> Store {
        let root = Arc::new(root);
        let locks = Locks::new(root.clone());
        Store {
            root,
            locks,
            limits,
            remembers: false,
            sizes: OnceBox::new(),
            readable_sizes: OnceBox::new(),
            live: OnceBox::new(),
            uses: OnceBox::new(),
            facts: OnceBox::new(),
        }
    }

    /// The same store, which remembers sums and heads of entries if `remembers`. Only the command does: no application writes them.
    pub fn remembering(self, remembers: bool) -> Store {
        Store { remembers, ..self }
    }

    /// The sizes of the shards; None if their file cannot be opened.
    fn sizes(&self) -> Option<&Sizes> {
        let opened = self.sizes.get_or_init(|| {
            let opened = Sizes::open(&self.root);
            let opened = opened.inspect_err(|error| tracing::debug!(%error, "sizes of shards are not counted: the cache may exceed its limit"));
            Box::new(opened.ok())
        });
        opened.as_ref()
    }

    /// The sizes of the shards, to read them; None if there is no such file.
    fn readable_sizes(&self) -> Option<&Sizes> {
        let opened = self.sizes.get();
        let opened = opened.unwrap_or_else(|| {
            let open = || Box::new(Sizes::open_to_read(&self.root).ok());
            self.readable_sizes.get_or_init(open)
        });
        opened.as_ref()
    }

    /// Opens a system directory for look-ups; None if it does not exist or has nothing of this format.
    ///
    /// # Errors
    /// For people: who else can write it or a parent, or why it cannot be opened.
    fn open_of_others(path: &Path, others: &[u32]) -> Result<Option<Store>, String> {
        let Some(directory) = Directory::open_of_others(path, others)? else {
            return Ok(None);
        };
        let root = directory.open_below(VERSION_DIRECTORY);
        let root = root.map_err(|error| error.to_string())?;
        Ok(root.map(|root| Store::of(root, None)))
    }

    /// Whether the directory was removed, or an application has closed its descriptor: nothing can be stored any more.
    pub fn is_lost(&self) -> bool {
        self.root.is_lost()
    }

    /// The directory of this format.
    pub fn root(&self) -> &Directory {
        &self.root
    }

    /// The locks of processes and threads that write.
    pub fn locks(&self) -> &Locks {
        &self.locks
    }

    /// Runs first in a forked child.
    pub fn forked(&self) {
        self.locks.forked();
        if let Some(Some(live)) = self.live.get() {
            live.locks.forked();
        }
    }

    /// Publishes an entry, and replaces one of the same key. Removes other entries if there is no room, and returns how many.
    ///
    /// # Errors
    /// The entry is not visible.
    pub fn publish(&self, key: &Key, content: &EntryContent<'_>) -> Result<u64, PublishError> {
        let removed = self.write(key, content, false)?;
        self.forget_loads(key);
        Ok(removed)
    }

    fn write(
        &self,
        key: &Key,
        content: &EntryContent<'_>,
        is_proven: bool,
    ) -> Result<u64, PublishError> {
        let bytes = content.encode(key).map_err(|error| StoreError {
            action: "store",
            path: self.path_of(key),
            error,
        })?;
        let refused = |why: &str| StoreError {
            action: "store",
            path: self.path_of(key),
            error: io::Error::new(io::ErrorKind::StorageFull, why),
        };
        if bytes.len() as u64 >= MAX_ENTRY_BYTES {
            return Err(refused("it is too large").into());
        }
        let entries = self.root.create(ENTRIES)?;
        let shard = entries.create(&shard_name(shard_of(key)))?;
        let name = file_name(key);
        let limits = self.limits.unwrap_or_default();
        let blocks = (bytes.len() as u64).next_multiple_of(BLOCK);
        let more = blocks.saturating_sub(taken_by(&shard, &name));
        let mut removed = 0;
        let room = self.make_room(&limits, more, &mut removed);
        let write = || {
            let temporary = self.root.create(TEMPORARY)?;
            // The entry that it replaces may have been evicted to make room.
            let replaced = taken_by(&shard, &name);
            let unfinished = match is_proven {
                true => temporary.write_new_protected(&bytes)?,
                false => temporary.write_new(&bytes)?,
            };
            // Counted before it is published: if the process is killed in between, the counter is too high, and the cache stays within
            // its limit. (Counted afterwards, 40 killed processes put 3 entries too many into a cache of 24.)
            let counted = blocks as i64 - replaced as i64;
            self.count(key, counted);
            let published = unfinished.publish(&shard, &name, &bytes);
            let taken = published.map(|()| taken_by(&shard, &name) as i64 - replaced as i64);
            self.resized(key, *taken.as_ref().unwrap_or(&0) - counted);
            taken.map(|_| self.sweep_sometimes())
        };
        let written = room.map_err(refused).and_then(|()| write());
        written.map_err(|error| PublishError { error, removed })?;
        Ok(removed)
    }

    /// Adds to the size of the key's shard, or subtracts.
    fn resized(&self, key: &Key, bytes: i64) {
        self.count(key, bytes);
        if key.0[1] < COUNTED_AGAIN
            && let Some(sizes) = self.sizes()
        {
            self.count_again(sizes, shard_of(key));
        }
    }

    /// A file that its owner may not write holds an entry that is proven.
    fn origin(&self, file: &FileFacts) -> EntryOrigin {
        EntryOrigin {
            id: file.inode,
            used_ms: file.modified_ms,
            is_proven: !file.is_writable,
        }
    }

    fn count(&self, key: &Key, bytes: i64) {
        if let Some(sizes) = self.sizes() {
            sizes.add(shard_of(key), bytes, self.root.now_ms());
        }
    }

    /// Moves an entry out of use, where people can examine it. Replaces an entry of the same key that was set aside before.
    pub fn set_aside(&self, key: &Key) -> Result<(), StoreError> {
        let aside = self.root.create(ASIDE)?;
        let shard = self.shard(shard_of(key))?.ok_or_else(|| StoreError {
            action: "move",
            path: self.path_of(key),
            error: io::ErrorKind::NotFound.into(),
        })?;
        let (from, name) = (file_name(key), key.hex());
        let bytes = taken_by(&shard, &from);
        // A user may have a file of that name. If it is a directory, the rename fails. Then try other names.
        let rename = |to: &str| match may_write(&aside, to, b"") {
            true => shard.rename_to(&from, &aside, to),
            false => Err(not_ours(&aside, to)),
        };
        (1..8).fold(rename(&from), |done, number| {
            done.or_else(|_| rename(&format!("{name}-{number}{SUFFIX}")))
        })?;
        self.resized(key, -(bytes as i64));
        self.forget_loads(key);
        Ok(())
    }

    /// Whether the entry of a key is still this one.
    pub fn is_there(&self, key: &Key, origin: &EntryOrigin) -> bool {
        let now = self.which_entry(key);
        now.is_some_and(|(inode, _)| inode == origin.id)
    }

    /// Identifies the present file of a key by inode and size; None if there is none. Reads nothing.
    pub fn which_entry(&self, key: &Key) -> Option<(u64, u64)> {
        let shard = self.shard(shard_of(key)).ok()??;
        let facts = shard.facts(&file_name(key))?;
        Some((facts.inode, facts.size))
    }

    /// The path of the entry of a key.
    pub fn path_of(&self, key: &Key) -> PathBuf {
        let shard = self
            .root
            .path()
            .join(ENTRIES)
            .join(shard_name(shard_of(key)));
        shard.join(file_name(key))
    }

    /// The keys of all entries, ascending, with facts about their files.
    ///
    /// # Errors
    /// A directory cannot be listed.
    pub fn entries(&self) -> Result<Vec<(Key, FileFacts)>, StoreError> {
        let list = |shard| {
            let Some(directory) = self.shard(shard)? else {
                return Ok(Vec::new());
            };
            let mut entries = self.entries_of(shard, &directory)?;
            entries.sort_unstable_by_key(|(key, _)| *key);
            Ok(entries)
        };
        let mut found = Vec::new();
        walk(&self.shards()?, list, |_, entries| {
            found.extend(entries?);
            Ok::<(), StoreError>(())
        })?;
        Ok(found)
    }

    /// The shards that may have entries, ascending.
    ///
    /// # Errors
    /// They cannot be listed.
    fn shards(&self) -> Result<Vec<usize>, StoreError> {
        let Some(entries) = self.root.open_below(ENTRIES)? else {
            return Ok(Vec::new());
        };
        let names = entries.names()?.into_iter().filter(|name| is_shard(name));
        let numbers = names.filter_map(|name| usize::from_str_radix(&name, 16).ok());
        let mut shards: Vec<usize> = numbers.collect();
        shards.sort_unstable();
        Ok(shards)
    }

    /// The directory of a shard; None if it has none.
    ///
    /// # Errors
    /// It cannot be opened, belongs to another user, or others may write it.
    fn shard(&self, shard: usize) -> Result<Option<Directory>, StoreError> {
        let entries = self.root.open_below(ENTRIES)?;
        entries.map_or(Ok(None), |entries| entries.open_below(&shard_name(shard)))
    }

    /// The metadata of an entry, for the command to show. Only the beginning of the file is read, and no checksum is verified.
    pub fn read_meta(&self, key: &Key) -> Option<Meta> {
        read_meta_in(&self.shard(shard_of(key)).ok()??, key)
    }

    /// Writes the key for archives, and replaces a former one.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn write_archive_key(&self, key: &[u8]) -> Result<(), StoreError> {
        let temporary = self.root.create(TEMPORARY)?;
        self.root.write_by_rename(&temporary, ARCHIVE_KEY, key)
    }

    /// Removes one entry. Returns whether there was one.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(&self, key: &Key) -> Result<bool, StoreError> {
        let Some(shard) = self.shard(shard_of(key))? else {
            return Ok(false);
        };
        let name = file_name(key);
        let bytes = taken_by(&shard, &name);
        let removed = begins_as_ours(&shard, &name) && shard.remove(&name)?;
        if removed {
            self.resized(key, -(bytes as i64));
            // Who removes single entries may want to hide that they were there.
            heads::forget(&self.root, shard_of(key));
        }
        Ok(removed)
    }

    /// When the entry of this key was last set aside, in milliseconds since 1970.
    pub fn set_aside_at(&self, key: &Key) -> Option<u64> {
        let aside = self.root.open_below(ASIDE).ok()??;
        aside.changed_ms(&file_name(key))
    }
}

impl Tier for Store {
    fn read(&self, key: &Key) -> Result<Option<(Entry, EntryOrigin)>, ReadError> {
        let directories = [ENTRIES, &shard_name(shard_of(key))];
        let read = (self.root).read_below(&directories, &file_name(key), MAX_ENTRY_BYTES);
        match read {
            Ok(Some((bytes, file))) => {
                let entry = Entry::parse(bytes, Some(key)).map_err(|defect| match defect {
                    Defect::NoMemory => ReadError::Unreadable(io::ErrorKind::OutOfMemory.into()),
                    defect => ReadError::Bad(defect),
                })?;
                Ok(Some((entry, self.origin(&file))))
            }
            Ok(None) => Ok(None),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                Err(ReadError::Bad(Defect::Unreadable(error.to_string())))
            }
            Err(error) => Err(ReadError::Unreadable(error)),
        }
    }

    fn touch(&self, key: &Key, _origin: &EntryOrigin) {
        self.note_use(key);
    }

    fn prove(&self, key: &Key, origin: &EntryOrigin) {
        let prove = || -> Result<(), StoreError> {
            match self.shard(shard_of(key))? {
                Some(shard) => shard.protect(&file_name(key), origin.id),
                None => Ok(()),
            }
        };
        if self.limits.is_some()
            && !origin.is_proven
            && let Err(error) = prove()
        {
            tracing::debug!(%error, "the entry stays unproven");
        }
    }

    fn replace(
        &self,
        key: &Key,
        content: &EntryContent<'_>,
        origin: &EntryOrigin,
    ) -> Result<u64, PublishError> {
        self.write(key, content, origin.is_proven)
    }

    fn keys(&self) -> Result<Vec<Key>, StoreError> {
        let entries = self.entries()?.into_iter();
        Ok(entries.map(|(key, _)| key).collect())
    }

    fn location(&self, key: &Key) -> String {
        self.path_of(key).to_string_lossy().into_owned()
    }
}

/// [`Store::read_meta`] in the directory of the shard.
fn read_meta_in(shard: &Directory, key: &Key) -> Option<Meta> {
    let name = file_name(key);
    let start = shard.read_start(&name, FIRST_READ_BYTES)?;
    let length = entry::head_length(&start)?;
    if length <= start.len() {
        return entry::parse_head(&start, key);
    }
    entry::parse_head(&shard.read_start(&name, length)?, key)
}

/// The size of an entry's file on the disk, in bytes.
fn taken_by(shard: &Directory, name: &str) -> u64 {
    shard.facts(name).map_or(0, |file| file.taken())
}

fn file_name(key: &Key) -> String {
    format!("{}{SUFFIX}", key.hex())
}

fn shard_of(key: &Key) -> usize {
    usize::from(key.0[0])
}

fn shard_name(shard: usize) -> String {
    format!("{shard:02x}")
}

fn is_shard(name: &str) -> bool {
    name.len() == 2
        && name
            .bytes()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

#[cfg(test)]
mod tests;
