//! Empties the cache.

use super::directory::Directory;
use super::heads::{self, KnownEntries};
use super::leftovers::is_leftover;
use super::walk::walk;
use super::{
    ASIDE, ENTRIES, SUFFIX, Store, StoreError, TEMPORARY, audit, bake_attempts, entry, evictions,
    journal, load_guard, shard_name, totals,
};
use crate::key::ingredients::Key;

impl Store {
    /// Removes all entries, entries set aside, findings of audits, the journal, and files of unfinished writes and loads. Removes
    /// only files whose names and contents show that the cache wrote them. Returns how many files and bytes it removed.
    ///
    /// # Errors
    /// A directory cannot be listed or a file cannot be removed.
    pub fn clear(&self) -> Result<ClearResult, StoreError> {
        let mut cleared = ClearResult::default();
        walk(
            &self.shards()?,
            |shard| self.clear_shard(shard),
            |_, of_shard| {
                cleared.add(&of_shard?);
                Ok::<(), StoreError>(())
            },
        )?;
        cleared.files += heads::forget_all(&self.root)?;
        cleared.files += u64::from(totals::forget(&self.root)?);
        if let Some(aside) = self.root.open_below(ASIDE)? {
            clear_directory(&aside, &KnownEntries::default(), &mut cleared)?;
        }
        if let Some(temporary) = self.root.open_below(TEMPORARY)? {
            for name in temporary
                .names()?
                .into_iter()
                .filter(|name| is_leftover(&temporary, name))
            {
                if temporary.remove(&name)? {
                    cleared.files += 1;
                }
            }
        }
        for loading in self.load_directories()? {
            let names = loading.names()?.into_iter();
            for name in names.filter(|name| load_guard::is_left(&loading, name)) {
                if loading.remove(&name)? {
                    cleared.files += 1;
                }
            }
        }
        if let Some((baking, names)) = bake_attempts::files(&self.root)? {
            for name in names {
                cleared.files += u64::from(baking.remove(&name)?);
            }
        }
        audit::clear(&self.root, &mut cleared)?;
        journal::clear(&self.root, &mut cleared)?;
        evictions::clear(&self.root, &mut cleared)?;
        Ok(cleared)
    }

    fn clear_shard(&self, shard: usize) -> Result<ClearResult, StoreError> {
        let mut cleared = ClearResult::default();
        let Some(entries) = self.root.open_below(ENTRIES)? else {
            return Ok(cleared);
        };
        let name = shard_name(shard);
        if let Some(directory) = entries.open_below(&name)? {
            let known = KnownEntries::read(&self.root, shard);
            clear_directory(&directory, &known, &mut cleared)?;
        }
        entries.remove_directory(&name);
        Ok(cleared)
    }
}

/// What [`Store::clear`] did.
#[derive(Clone, Copy, Debug, Default)]
pub struct ClearResult {
    /// Files removed.
    pub files: u64,
    /// Their size on the disk, in bytes.
    pub bytes: u64,
    /// Files left in place because the cache did not write them.
    pub foreign: u64,
}

impl ClearResult {
    fn add(&mut self, other: &ClearResult) {
        self.files += other.files;
        self.bytes += other.bytes;
        self.foreign += other.foreign;
    }
}

/// Removes the entries of a directory. Those that are known are not read again.
fn clear_directory(
    directory: &Directory,
    known: &KnownEntries,
    cleared: &mut ClearResult,
) -> Result<(), StoreError> {
    for name in directory.names_by_inode()? {
        let key = name.strip_suffix(SUFFIX).and_then(Key::from_hex);
        let remembered = key.and_then(|key| known.facts(directory, &name, &key));
        let ours = remembered.or_else(|| {
            // Another process may have removed the file since it was listed, and stored it again by now: look twice.
            let look = || directory.read_start_with_facts(&name, entry::MAGIC.len());
            let (start, facts) = look().or_else(look)?;
            // The name and the magic number show that it is ours. A power cut may have left an empty file, or zeros.
            let begins = entry::MAGIC.starts_with(&start) || start.iter().all(|byte| *byte == 0);
            (key.is_some() && begins).then_some(facts)
        });
        match ours {
            Some(facts) if directory.remove(&name)? => {
                cleared.files += 1;
                cleared.bytes += facts.taken();
            }
            Some(_) => {} // removed in between
            None => cleared.foreign += u64::from(directory.changed_ms(&name).is_some()),
        }
    }
    Ok(())
}
