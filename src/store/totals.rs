//! The number and the size of all entries. Of a large store the sum of each shard is remembered while the shard is unchanged, so
//! that `stats` does not list a million files.
//!
//! ```text
//! <cache directory>/v1/totals    a frame of one sum for each shard, with the fingerprint of its directory
//! ```
//!
//! The fingerprint of a directory changes with each name in it, so with each entry that is stored, replaced or removed. A sum is
//! remembered only if the directory was the same before and after the listing, and had not changed for two seconds: it could change
//! again within the resolution of its times. It is remembered only on file systems that allocate no blocks later. In any doubt the
//! shard is listed.
//!
//! Only the command writes the file, and only where listing takes long.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::directory::Directory;
use super::ownership::begins_as_ours;
use super::walk::walk;
use super::{Store, StoreError, TEMPORARY};
use crate::file_fingerprint::FileFingerprint;
use crate::framing;

/// The file.
pub(super) const NAME: &str = "totals";
const MAGIC: &[u8] = b"oclctot1";
/// A sum takes some 50 bytes.
const MAX_BYTES: u64 = 1 << 16;
/// The file is written when so many entries were listed that need not be listed again. Fewer are listed in some milliseconds.
const MIN_LISTED: u64 = 4096;

/// The number and the size of entries.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryTotals {
    /// The number of entries.
    pub entries: u64,
    /// Their blocks, in bytes.
    pub allocated: u64,
    /// Their size on the disk, in bytes: see [`super::directory::FileFacts::taken`].
    pub taken: u64,
}

impl EntryTotals {
    fn add(&mut self, other: &EntryTotals) {
        self.entries += other.entries;
        self.allocated += other.allocated;
        self.taken += other.taken;
    }
}

/// By shard: the fingerprint of the directory, and the sum.
type ShardTotals = BTreeMap<usize, (FileFingerprint, EntryTotals)>;

impl Store {
    /// The number and the size of all entries.
    ///
    /// # Errors
    /// A directory cannot be listed.
    pub fn totals(&self) -> Result<EntryTotals, StoreError> {
        let known = self.remembered_totals();
        let (mut sum, mut next, mut listed) = (EntryTotals::default(), ShardTotals::new(), 0);
        walk(
            &self.shards()?,
            |shard| self.total_of(shard, known.get(&shard)),
            |shard, found| {
                let (total, fingerprint) = found?;
                sum.add(&total);
                if let Some(fingerprint) = fingerprint {
                    if known.get(&shard) != Some(&(fingerprint, total)) {
                        listed += total.entries;
                    }
                    next.insert(shard, (fingerprint, total));
                }
                Ok(())
            },
        )?;
        if listed >= MIN_LISTED {
            self.remember_totals(&next);
        }
        Ok(sum)
    }

    /// The sum of a shard, with the fingerprint of the directory if the sum may be remembered.
    fn total_of(
        &self,
        shard: usize,
        known: Option<&(FileFingerprint, EntryTotals)>,
    ) -> Result<(EntryTotals, Option<FileFingerprint>), StoreError> {
        let Some(directory) = self.shard(shard)? else {
            return Ok((EntryTotals::default(), None));
        };
        let is_settled = directory.settled_test();
        let before = directory.fingerprint();
        if let Some((fingerprint, total)) = known
            && before == Some(*fingerprint)
        {
            return Ok((*total, before));
        }
        let mut total = EntryTotals::default();
        for (_, file) in self.entries_of(shard, &directory)? {
            total.add(&EntryTotals {
                entries: 1,
                allocated: file.allocated,
                taken: file.taken(),
            });
        }
        let lasts = |fingerprint: &FileFingerprint| {
            directory.file_system().keeps_blocks()
                && is_settled(fingerprint)
                && directory.fingerprint() == Some(*fingerprint)
        };
        Ok((total, before.filter(lasts)))
    }

    fn remembered_totals(&self) -> ShardTotals {
        let bytes = self.root.read(NAME, MAX_BYTES).ok().flatten();
        let totals = bytes.and_then(|bytes| framing::decode(MAGIC, &bytes));
        totals.unwrap_or_default()
    }

    fn remember_totals(&self, totals: &ShardTotals) {
        if !self.remembers {
            return;
        }
        let Ok(bytes) = framing::encode(MAGIC, totals) else {
            return;
        };
        let temporary = self.root.create(TEMPORARY);
        let written =
            temporary.and_then(|temporary| self.root.write_by_rename(&temporary, NAME, &bytes));
        if let Err(error) = written {
            tracing::debug!(%error, "sums of shards are not remembered: the next command lists them again");
        }
    }
}

/// Removes the file from the directory of this format. Returns whether there was one.
///
/// # Errors
/// It cannot be removed.
pub(super) fn forget(root: &Directory) -> Result<bool, StoreError> {
    Ok(begins_as_ours(root, NAME) && root.remove(NAME)?)
}
