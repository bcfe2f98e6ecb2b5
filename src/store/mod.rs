//! The directory of entries: pure file handling that knows nothing of OpenCL objects.

pub mod digests;
pub mod directory;
pub mod disk;
pub mod entry;
pub mod journal;
pub mod recorder;
pub mod stats;

use std::path::{Path, PathBuf};
use std::{fmt, io};

use directory::Directory;
use entry::{Defect, Entry, EntryContent};

use crate::key::ingredients::Key;

/// The directory of this format below the cache directory. Another format gets another name, so that versions live side by
/// side and an old one is only ever garbage.
pub const VERSION_DIRECTORY: &str = "v1";

const ENTRIES: &str = "entries";
const ASIDE: &str = "aside";
const TEMPORARY: &str = "tmp";
const SUFFIX: &str = ".entry";

/// Entries of this size or more are neither written nor read, in bytes.
pub const LARGEST_ENTRY: u64 = 1 << 30;

/// A failure to use the store, with the path and what was tried.
#[derive(Debug)]
pub struct StoreError {
    /// What was tried.
    pub action: &'static str,
    /// The file or directory.
    pub path: PathBuf,
    /// What the system said.
    pub error: io::Error,
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "cannot {} `{}`: {}",
            self.action,
            crate::log::path(&self.path),
            self.error
        )
    }
}

impl std::error::Error for StoreError {}

/// What a look-up found.
pub enum Lookup {
    /// No entry.
    Absent,
    /// A file that is no whole, unchanged entry of this key.
    Bad(Defect),
    /// A verified entry.
    Found(Box<Entry>),
}

/// The entries below one cache directory.
///
/// ```text
/// <cache directory>/CACHEDIR.TAG
/// <cache directory>/v1/entries/4f/4f1d...c2.entry    published by rename, read without a lock
/// <cache directory>/v1/aside/4f1d...c2.entry         set aside: damaged, or refused by the driver
/// <cache directory>/v1/tmp/                          being written
/// <cache directory>/v1/stats/                        counters, one file for each process
/// <cache directory>/v1/digests/                      remembered digests of driver files, one file for each host
/// <cache directory>/v1/journal, journal.old          misses, bypasses and failures, appended without a lock
/// ```
#[derive(Debug)]
pub struct Store {
    root: Directory,
}

impl Store {
    /// Opens the cache directory, and makes it if it is missing.
    ///
    /// # Errors
    /// It cannot be made or opened, belongs to another user, or others may write it.
    pub fn open(path: &Path) -> Result<Store, StoreError> {
        let cache = Directory::create_all(path)?;
        cache.write_once("CACHEDIR.TAG", CACHEDIR_TAG)?;
        Ok(Store {
            root: cache.create(VERSION_DIRECTORY)?,
        })
    }

    /// Opens the cache directory for reading only; None if there is none.
    ///
    /// # Errors
    /// It cannot be opened, belongs to another user, or others may write it.
    pub fn open_existing(path: &Path) -> Result<Option<Store>, StoreError> {
        let Some(cache) = Directory::open(path)? else {
            return Ok(None);
        };
        Ok(cache
            .open_below(VERSION_DIRECTORY)?
            .map(|root| Store { root }))
    }

    /// The directory of this format.
    pub fn root(&self) -> &Directory {
        &self.root
    }

    /// Reads and verifies the entry of a key.
    pub fn look_up(&self, key: &Key) -> Lookup {
        match self.root.read(&entry_name(key), LARGEST_ENTRY) {
            Ok(Some(bytes)) => match Entry::parse(bytes, Some(key)) {
                Ok(entry) => Lookup::Found(Box::new(entry)),
                Err(defect) => Lookup::Bad(defect),
            },
            Ok(None) => Lookup::Absent,
            Err(error) => Lookup::Bad(Defect::Unreadable(error.to_string())),
        }
    }

    /// Publishes an entry, replacing one of the same key. Returns its size in bytes.
    ///
    /// # Errors
    /// Nothing is visible then.
    pub fn publish(&self, key: &Key, content: &EntryContent<'_>) -> Result<u64, StoreError> {
        let bytes = content.encode(key);
        let size = bytes.len() as u64;
        if size >= LARGEST_ENTRY {
            let error = io::Error::new(io::ErrorKind::FileTooLarge, "the entry is too large");
            return Err(StoreError {
                action: "write",
                path: self.path_of(key),
                error,
            });
        }
        let entries = self.root.create(ENTRIES)?;
        entries.create(&key.hex()[..2])?;
        let temporary = self.root.create(TEMPORARY)?;
        self.root
            .write_by_rename(&temporary, &entry_name(key), &bytes)?;
        Ok(size)
    }

    /// Takes an entry out of use but keeps it for whoever wants to know why; replaces what was set aside for the same key.
    pub fn set_aside(&self, key: &Key) -> Result<(), StoreError> {
        self.root.create(ASIDE)?;
        let (from, name) = (entry_name(key), key.hex());
        let first = self.root.rename(&from, &format!("{ASIDE}/{name}{SUFFIX}"));
        // A directory takes no file's place, and the reverse: both are damage of somebody else's making.
        (1..8).fold(first, |done, number| {
            done.or_else(|_| {
                let aside = format!("{ASIDE}/{name}-{number}{SUFFIX}");
                self.root.rename(&from, &aside)
            })
        })
    }

    /// Where the entry of a key stands.
    pub fn path_of(&self, key: &Key) -> PathBuf {
        self.root.path().join(entry_name(key))
    }

    /// The keys of all entries, with their sizes in bytes.
    ///
    /// # Errors
    /// A directory cannot be listed.
    pub fn entries(&self) -> Result<Vec<(Key, u64)>, StoreError> {
        let mut found = Vec::new();
        let Some(entries) = self.root.open_below(ENTRIES)? else {
            return Ok(found);
        };
        for shard in entries.names()? {
            if !is_shard(&shard) {
                continue;
            }
            let Some(shard) = entries.open_below(&shard)? else {
                continue;
            };
            for name in shard.names()? {
                let key = name.strip_suffix(SUFFIX).and_then(Key::from_hex);
                if let (Some(key), Some(size)) = (key, shard.facts(&name).map(|facts| facts.size)) {
                    found.push((key, size));
                }
            }
        }
        found.sort();
        Ok(found)
    }

    /// Removes one entry. Tells whether there was one.
    ///
    /// # Errors
    /// It cannot be removed.
    pub fn remove(&self, key: &Key) -> Result<bool, StoreError> {
        self.root.remove(&entry_name(key))
    }

    /// When the entry of this key was last set aside, in milliseconds since 1970.
    pub fn set_aside_at(&self, key: &Key) -> Option<u64> {
        self.root
            .changed_ms(&format!("{ASIDE}/{}{SUFFIX}", key.hex()))
    }

    /// Removes all entries, what was set aside, the journal and what was left half-written: files whose names and contents
    /// are the cache's own, and nothing else. Tells how many files and bytes went.
    ///
    /// # Errors
    /// A directory cannot be listed or a file cannot be removed.
    pub fn clear(&self) -> Result<Cleared, StoreError> {
        let mut cleared = Cleared::default();
        if let Some(entries) = self.root.open_below(ENTRIES)? {
            for shard in entries.names()?.into_iter().filter(|name| is_shard(name)) {
                if let Some(directory) = entries.open_below(&shard)? {
                    clear_directory(&directory, &mut cleared)?;
                }
                entries.remove_directory(&shard);
            }
        }
        if let Some(aside) = self.root.open_below(ASIDE)? {
            clear_directory(&aside, &mut cleared)?;
        }
        if let Some(temporary) = self.root.open_below(TEMPORARY)? {
            for name in temporary
                .names()?
                .into_iter()
                .filter(|name| name.starts_with(directory::TEMPORARY_PREFIX))
            {
                if temporary.facts(&name).is_some() && temporary.remove(&name)? {
                    cleared.files += 1;
                }
            }
        }
        journal::clear(&self.root, &mut cleared)?;
        Ok(cleared)
    }
}

/// What [`Store::clear`] did.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cleared {
    /// Files removed.
    pub files: u64,
    /// Their sizes, in bytes.
    pub bytes: u64,
    /// Files that were left because they are not the cache's.
    pub foreign: u64,
}

fn clear_directory(directory: &Directory, cleared: &mut Cleared) -> Result<(), StoreError> {
    for name in directory.names()? {
        let named = name.strip_suffix(SUFFIX).and_then(Key::from_hex).is_some();
        // What another process has removed since it was listed is nobody's; it may have stored it anew by now.
        let look = || directory.read_start(&name, entry::MAGIC.len());
        let start = look().or_else(look);
        if start.is_none() && directory.changed_ms(&name).is_none() {
            continue;
        }
        // Ours are told by name and content. A power cut may have left nothing behind a name, or zeros.
        let is_ours = |start: Vec<u8>| {
            entry::MAGIC.starts_with(&start) || start.iter().all(|byte| *byte == 0)
        };
        let ours = named && start.is_some_and(is_ours);
        match directory
            .facts(&name)
            .map(|facts| facts.size)
            .filter(|_| ours)
        {
            Some(size) if directory.remove(&name)? => {
                cleared.files += 1;
                cleared.bytes += size;
            }
            Some(_) => {}
            None if ours => {} // removed in between
            None => cleared.foreign += 1,
        }
    }
    Ok(())
}

fn entry_name(key: &Key) -> String {
    let hex = key.hex();
    format!("{ENTRIES}/{}/{hex}{SUFFIX}", &hex[..2])
}

fn is_shard(name: &str) -> bool {
    name.len() == 2
        && name
            .bytes()
            .all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f'))
}

const CACHEDIR_TAG: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55\n\
# This is the cache directory of oclcache, a compiler cache for OpenCL. It can be deleted at any time.\n";

#[cfg(test)]
mod tests {
    use super::entry::tests::{content, facts};
    use super::*;

    fn key(byte: u8) -> Key {
        Key([byte; 32])
    }

    fn filled() -> (tempfile::TempDir, Store) {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let store = Store::open(&directory.path().join("cache")).expect("a store");
        let facts = facts();
        store
            .publish(&key(1), &content(&facts, &[b"binary"]))
            .expect("published");
        (directory, store)
    }

    #[test]
    fn what_was_published_is_found_and_nothing_else() {
        let (directory, store) = filled();
        let Lookup::Found(entry) = store.look_up(&key(1)) else {
            panic!("not found")
        };
        assert_eq!(entry.binaries().collect::<Vec<_>>(), [b"binary"]);
        assert!(matches!(store.look_up(&key(2)), Lookup::Absent));
        assert_eq!(store.entries().expect("listed").len(), 1);
        let tag = std::fs::read(directory.path().join("cache/CACHEDIR.TAG")).expect("a tag");
        assert!(tag.starts_with(b"Signature: 8a477f597d28d172789f06886806bc55"));
    }

    #[test]
    fn an_entry_under_the_name_of_another_key_is_bad() {
        let (_directory, store) = filled();
        let other = store
            .path_of(&key(1))
            .to_string_lossy()
            .replace(&key(1).hex(), &key(2).hex());
        let other = other.replace("/01/", "/02/");
        std::fs::create_dir(Path::new(&other).parent().expect("a shard")).expect("made");
        std::fs::copy(store.path_of(&key(1)), &other).expect("copied");
        assert!(matches!(
            store.look_up(&key(2)),
            Lookup::Bad(Defect::OtherKey)
        ));
    }

    #[test]
    fn what_is_set_aside_is_a_miss_and_can_be_published_again() {
        let (_directory, store) = filled();
        store.set_aside(&key(1)).expect("set aside");
        assert!(matches!(store.look_up(&key(1)), Lookup::Absent));
        let facts = facts();
        store
            .publish(&key(1), &content(&facts, &[b"new"]))
            .expect("published");
        assert!(matches!(store.look_up(&key(1)), Lookup::Found(_)));
    }

    #[test]
    fn clear_leaves_foreign_files_and_follows_no_link() {
        let (directory, store) = filled();
        let precious = directory.path().join("precious");
        std::fs::create_dir(&precious).expect("made");
        std::fs::write(
            precious.join(format!("{}.entry", key(3).hex())),
            entry::MAGIC,
        )
        .expect("written");
        let shards = store.root().path().join(ENTRIES);
        std::os::unix::fs::symlink(&precious, shards.join("03")).expect("linked");
        std::fs::write(shards.join("01").join("notes.txt"), "mine").expect("written");
        std::fs::write(
            shards.join("01").join(format!("{}.entry", key(4).hex())),
            "not an entry",
        )
        .expect("written");
        std::os::unix::fs::symlink(
            precious.join("x"),
            shards.join("01").join(format!("{}.entry", key(5).hex())),
        )
        .expect("linked");
        let cleared = store.clear().expect("cleared");
        assert_eq!((cleared.files, cleared.foreign), (1, 3));
        assert!(shards.join("01/notes.txt").exists());
        assert!(precious.join(format!("{}.entry", key(3).hex())).exists());
        assert!(matches!(store.look_up(&key(1)), Lookup::Absent));
    }

    #[test]
    fn a_link_in_place_of_an_entry_is_not_followed() {
        let (directory, store) = filled();
        let elsewhere = directory.path().join("elsewhere");
        std::fs::rename(store.path_of(&key(1)), &elsewhere).expect("moved");
        std::os::unix::fs::symlink(&elsewhere, store.path_of(&key(1))).expect("linked");
        assert!(matches!(
            store.look_up(&key(1)),
            Lookup::Bad(Defect::Unreadable(_))
        ));
    }

    #[test]
    fn a_directory_that_others_may_write_is_refused() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().expect("a temporary directory");
        std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777))
            .expect("changed");
        let error = Store::open(directory.path())
            .expect_err("refused")
            .to_string();
        assert!(error.contains("others may write it"), "{error}");
    }
}
