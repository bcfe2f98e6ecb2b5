//! What `list` and `gc` need of each entry. Of a large shard it is remembered in one file, so that they need not open each entry.
//!
//! ```text
//! <cache directory>/v1/heads/4f    a frame of the heads of the entries in entries/4f, ascending by key
//! ```
//!
//! A head is taken from the file only if the entry has the fingerprint that it had when it was read, and is remembered only if the
//! entry had not changed for two seconds then. In any doubt the entry is read. A damaged entry is always read. The file has nothing
//! that the entries do not have, and nothing relies on it: whoever removes it loses time.
//!
//! Only the command writes such files, and only of shards with many entries.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::directory::{Directory, FileFacts};
use super::entry::Meta;
use super::ownership::begins_as_ours;
use super::uses::ListedEntry;
use super::walk::walk;
use super::{Store, StoreError, TEMPORARY, is_shard, read_meta_in, shard_name};
use crate::file_fingerprint::FileFingerprint;
use crate::fork_safety::Mutex;
use crate::framing;
use crate::key::ingredients::{Key, Kind};

/// The directory of the files.
pub(super) const DIRECTORY: &str = "heads";
/// Changes with the grammar of entries as well: another version may take for damaged what this one reads.
const MAGIC: &[u8] = b"oclched1";
/// A head takes some 100 bytes, so this is that of a million.
const MAX_BYTES: u64 = 100 << 20;
/// Fewer entries are read from their files in a millisecond.
pub(super) const MIN_ENTRIES: usize = 64;
/// The file is written when so many entries were read that need not be read again, and one in 16 of the shard.
const MIN_READ: usize = 64;
const READ_SHARE: usize = 16;
/// The drivers of entries that are gone stay in the file. With more, all heads are read again.
const MAX_DRIVERS: usize = 256;

/// What the command shows of an entry, and what a collection weighs.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryHead {
    /// [`Meta::options`].
    pub options: Option<Vec<u8>>,
    /// [`Meta::driver_family`].
    pub driver_family: String,
    /// [`Meta::executable`].
    pub executable: String,
    /// [`Meta::created`].
    pub created: u64,
    /// [`Meta::compile_ns`].
    pub compile_ns: u64,
    /// [`Meta::is_pending`].
    pub is_pending: bool,
    /// The kernels' names.
    pub kernel_names: Vec<Vec<u8>>,
    /// Which of [`ShardHeads::drivers`] it is for.
    driver: u32,
}

impl EntryHead {
    /// The head of an entry with these metadata.
    pub fn of(meta: Meta) -> EntryHead {
        EntryHead {
            is_pending: meta.is_pending(),
            options: meta.options,
            driver_family: meta.driver_family,
            executable: meta.executable,
            created: meta.created,
            compile_ns: meta.compile_ns,
            kernel_names: meta.facts.kernel_names,
            driver: 0,
        }
    }
}

/// What tells whether the driver of an entry is still installed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryDriver {
    /// [`Meta::driver_library`].
    pub library: String,
    /// The values of the key that identify the driver's files.
    pub files: Vec<Vec<u8>>,
}

impl EntryDriver {
    fn of(meta: &Meta) -> EntryDriver {
        let ingredients = meta.ingredients.iter();
        let of_driver = ingredients.filter(|one| one.kind == Kind::Driver);
        EntryDriver {
            library: meta.driver_library.clone(),
            files: of_driver.map(|one| one.value.clone()).collect(),
        }
    }
}

/// The entries of a shard, ascending by key, with their heads.
#[derive(Default)]
pub struct ShardHeads {
    /// The drivers that the entries are for.
    pub drivers: Vec<EntryDriver>,
    /// The entries; None: it is damaged.
    pub entries: Vec<(ListedEntry, Option<EntryHead>)>,
}

impl ShardHeads {
    /// The index of the driver of an entry.
    pub fn driver_of(&self, head: &EntryHead) -> usize {
        head.driver as usize
    }

    fn add(&mut self, entry: ListedEntry, meta: Option<Meta>) {
        let head = meta.map(|meta| {
            let driver = EntryDriver::of(&meta);
            let known = self.drivers.iter().rposition(|known| *known == driver);
            let index = known.unwrap_or_else(|| {
                self.drivers.push(driver);
                self.drivers.len() - 1
            });
            let driver = index as u32;
            EntryHead {
                driver,
                ..EntryHead::of(meta)
            }
        });
        self.entries.push((entry, head));
    }
}

/// The content of a file.
#[derive(Default, Deserialize)]
struct RememberedHeads {
    drivers: Vec<EntryDriver>,
    heads: Vec<(Key, FileFingerprint, EntryHead)>,
}

impl RememberedHeads {
    fn read(root: &Directory, shard: usize) -> Option<RememberedHeads> {
        let directory = root.open_below(DIRECTORY).ok()??;
        let bytes = directory.read(&shard_name(shard), MAX_BYTES).ok()??;
        let read: RememberedHeads = framing::decode(MAGIC, &bytes)?;
        let mut heads = read.heads.iter();
        let is_whole = heads.all(|(.., head)| (head.driver as usize) < read.drivers.len());
        (is_whole && read.drivers.len() <= MAX_DRIVERS).then_some(read)
    }
}

/// The fingerprints that entries of a shard had when they were read.
#[derive(Default)]
pub(super) struct KnownEntries(Vec<(Key, FileFingerprint)>);

impl KnownEntries {
    /// What is remembered of a shard.
    pub fn read(root: &Directory, shard: usize) -> KnownEntries {
        let heads = RememberedHeads::read(root, shard).unwrap_or_default().heads;
        let known = heads.into_iter();
        KnownEntries(known.map(|(key, known, _)| (key, known)).collect())
    }

    /// Facts about the file of this name if it certainly is the entry of this key; None in any doubt.
    pub fn facts(&self, directory: &Directory, name: &str, key: &Key) -> Option<FileFacts> {
        let index = self.0.binary_search_by_key(key, |(known, _)| *known).ok()?;
        let (facts, fingerprint) = directory.facts_and_fingerprint(name)?;
        (self.0[index].1 == fingerprint).then_some(facts)
    }
}

impl Store {
    /// Gives the entries of each shard to `view`, on a few threads, and the results to `take`, on this one and in the order of the
    /// keys. Ends with the first error of `take`.
    ///
    /// # Errors
    /// A directory cannot be listed, or that of `take`.
    pub fn walk_heads<T: Send, E: From<StoreError>>(
        &self,
        view: impl Fn(&ShardHeads) -> T + Sync,
        mut take: impl FnMut(T) -> Result<(), E>,
    ) -> Result<(), E> {
        let shards = self.shards()?;
        // Who cannot read all of them takes none.
        for shard in &shards {
            self.shard(*shard)?;
        }
        let list = |shard, directory: &Directory| self.listed_entries(shard, directory);
        self.walk_listed(&shards, list, view, &mut take)
    }

    /// The same of what was listed before, by shard.
    ///
    /// # Errors
    /// A directory cannot be opened, or that of `take`.
    pub(super) fn walk_heads_of<T: Send, E: From<StoreError>>(
        &self,
        listed: BTreeMap<usize, Vec<ListedEntry>>,
        view: impl Fn(&ShardHeads) -> T + Sync,
        mut take: impl FnMut(T) -> Result<(), E>,
    ) -> Result<(), E> {
        let shards: Vec<usize> = listed.keys().copied().collect();
        let listed = Mutex::new(listed);
        let list = |shard, _: &Directory| Ok(listed.lock().remove(&shard).unwrap_or_default());
        self.walk_listed(&shards, list, view, &mut take)
    }

    fn walk_listed<T: Send, E: From<StoreError>>(
        &self,
        shards: &[usize],
        list: impl Fn(usize, &Directory) -> Result<Vec<ListedEntry>, StoreError> + Sync,
        view: impl Fn(&ShardHeads) -> T + Sync,
        take: &mut dyn FnMut(T) -> Result<(), E>,
    ) -> Result<(), E> {
        let viewed = |shard| {
            let heads = match self.shard(shard)? {
                Some(directory) => {
                    let entries = list(shard, &directory)?;
                    self.heads_of(shard, &directory, entries)
                }
                None => ShardHeads::default(),
            };
            Ok::<T, StoreError>(view(&heads))
        };
        walk(shards, viewed, |_, viewed| take(viewed?))
    }

    /// The entries of a shard with their heads.
    fn heads_of(
        &self,
        shard: usize,
        directory: &Directory,
        mut entries: Vec<ListedEntry>,
    ) -> ShardHeads {
        // Before any is read: what has settled by now and is changed later has another fingerprint.
        let is_settled = directory.settled_test();
        entries.sort_unstable_by_key(|entry| entry.key);
        let remembered = match entries.len() {
            ..MIN_ENTRIES => None,
            _ => RememberedHeads::read(&self.root, shard),
        };
        let remembered = remembered.unwrap_or_default();
        let mut known = remembered.heads.into_iter().peekable();
        let mut found = ShardHeads {
            drivers: remembered.drivers,
            entries: Vec::with_capacity(entries.len()),
        };
        let mut unknown = Vec::new();
        for entry in entries {
            while known.next_if(|(key, ..)| *key < entry.key).is_some() {}
            let same = known.next_if(|(key, fingerprint, _)| {
                (key, fingerprint) == (&entry.key, &entry.fingerprint)
            });
            match same {
                Some((.., head)) => found.entries.push((entry, Some(head))),
                None => unknown.push(entry),
            }
        }
        // In the order in which they probably are on the disk.
        unknown.sort_unstable_by_key(|entry| entry.file.inode);
        let mut read = 0;
        for entry in unknown {
            let meta = read_meta_in(directory, &entry.key);
            read += usize::from(meta.is_some() && is_settled(&entry.fingerprint));
            found.add(entry, meta);
        }
        found.entries.sort_unstable_by_key(|(entry, _)| entry.key);
        if read >= MIN_READ.max(found.entries.len() / READ_SHARE) {
            self.remember_heads(shard, &found, &is_settled);
        }
        found
    }

    fn remember_heads(
        &self,
        shard: usize,
        heads: &ShardHeads,
        is_settled: &dyn Fn(&FileFingerprint) -> bool,
    ) {
        if !self.remembers {
            return;
        }
        let settled = heads.entries.iter().filter_map(|(entry, head)| {
            let head = head.as_ref()?;
            is_settled(&entry.fingerprint).then_some((&entry.key, &entry.fingerprint, head))
        });
        let settled: Vec<_> = settled.collect();
        let Ok(bytes) = framing::encode(MAGIC, &(&heads.drivers, settled)) else {
            return;
        };
        let size = bytes.len() as u64;
        if size >= MAX_BYTES || self.shortage(&self.limits.unwrap_or_default(), size) > 0 {
            return;
        }
        let written = self.root.create(DIRECTORY).and_then(|directory| {
            let temporary = self.root.create(TEMPORARY)?;
            directory.write_by_rename(&temporary, &shard_name(shard), &bytes)
        });
        if let Err(error) = written {
            tracing::debug!(%error, "heads of entries are not remembered: the next command reads the entries again");
        }
    }
}

/// Removes the file of a shard, if there is one.
pub(super) fn forget(root: &Directory, shard: usize) {
    if let Ok(Some(directory)) = root.open_below(DIRECTORY) {
        remove(&directory, &shard_name(shard));
    }
}

/// Removes all files. Returns how many there were.
///
/// # Errors
/// The directory cannot be listed.
pub(super) fn forget_all(root: &Directory) -> Result<u64, StoreError> {
    let Some(directory) = root.open_below(DIRECTORY)? else {
        return Ok(0);
    };
    let names = directory.names()?.into_iter();
    let removed = names.filter(|name| is_shard(name) && remove(&directory, name));
    let removed = removed.count() as u64;
    root.remove_directory(DIRECTORY);
    Ok(removed)
}

fn remove(directory: &Directory, name: &str) -> bool {
    begins_as_ours(directory, name) && directory.remove(name).unwrap_or(false)
}
