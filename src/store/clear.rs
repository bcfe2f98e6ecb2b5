//! Empties the cache.

use super::directory::Directory;
use super::leftovers::is_leftover;
use super::{
    ASIDE, ENTRIES, LOADING, SUFFIX, Store, StoreError, TEMPORARY, audit, bake_attempts, entry,
    is_shard, journal, load_guard,
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
                .filter(|name| is_leftover(&temporary, name))
            {
                if temporary.remove(&name)? {
                    cleared.files += 1;
                }
            }
        }
        if let Some(loading) = self.root.open_below(LOADING)? {
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

fn clear_directory(directory: &Directory, cleared: &mut ClearResult) -> Result<(), StoreError> {
    for name in directory.names()? {
        let named = name.strip_suffix(SUFFIX).and_then(Key::from_hex).is_some();
        // Another process may have removed the file since it was listed, and stored it again by now: look twice.
        let look = || directory.read_start(&name, entry::MAGIC.len());
        let start = look().or_else(look);
        if start.is_none() && directory.changed_ms(&name).is_none() {
            continue;
        }
        // The name and the magic number show that it is ours. A power cut may have left an empty file, or zeros.
        let is_ours = |start: Vec<u8>| {
            entry::MAGIC.starts_with(&start) || start.iter().all(|byte| *byte == 0)
        };
        let ours = named && start.is_some_and(is_ours);
        match directory
            .facts(&name)
            .map(|facts| facts.taken())
            .filter(|_| ours)
        {
            Some(taken) if directory.remove(&name)? => {
                cleared.files += 1;
                cleared.bytes += taken;
            }
            Some(_) => {}
            None if ours => {} // removed in between
            None => cleared.foreign += 1,
        }
    }
    Ok(())
}
