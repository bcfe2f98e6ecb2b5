//! Reads all files, and merges those of ended processes into one total.

use std::collections::BTreeSet;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::RUN_PREFIX;
use super::file::{MAGIC, decode};
use super::owner::{FileOwner, StatsView, is_name};
use super::rows::{Rows, StoredRow, bound};
use crate::store::StoreError;
use crate::store::directory::{Directory, TEMPORARY_PREFIX};
use crate::store::leftovers::is_leftover;
use crate::store::lock::LockGuard;
use crate::store::ownership::is_blank;

pub const TOTAL: &str = "total.json";

/// Ignore larger files: we never write them.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The total is far smaller: its rows (`rows`) and its list of files are bounded.
pub const MAX_TOTAL_BYTES: u64 = 1 << 24;
/// How many files are merged before the total is written.
const MAX_MERGED: usize = 4096;
/// A process that cannot be examined counts as ended when it has counted nothing for so long.
const FORGOTTEN: Duration = Duration::from_secs(30 * 24 * 60 * 60);
/// The milliseconds of a day.
pub const DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// A file that is unfinished for so long never will be finished.
const UNFINISHED: Duration = Duration::from_secs(24 * 60 * 60);

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Total {
    /// The sums of the merged files.
    rows: Vec<StoredRow>,
    /// The counters when the user last zeroed them, as far as they are not in `rows` yet: of processes that lived then.
    earlier: Vec<StoredRow>,
    /// When the user last zeroed them, in milliseconds since 1970.
    zeroed_ms: Option<u64>,
    /// Files that are in the sums but may not have been removed yet.
    absorbed: BTreeSet<String>,
}

/// The counters in a file of this name, if it is one.
pub fn counters(directory: &Directory, name: &str) -> Option<Rows> {
    let bytes = directory.read(name, MAX_FILE_BYTES).ok()??;
    decode(&bytes)
}

/// Whether a file is blank, or has only a part of the magic number.
fn is_begun(directory: &Directory, name: &str) -> bool {
    let start = directory.read_start(name, MAGIC.len());
    start.is_some_and(|start| is_blank(&start) || MAGIC.starts_with(&start))
}

/// One pass over all files. Merges those of dead processes if the lock is held.
///
/// A process that is killed loses nothing: a file counts either by being in `absorbed`, or by being there and not in
/// `absorbed`. A power cut may leave the total empty on file systems that rename before they write (XFS): then statistics
/// start from zero. That is not worth an fsync for each merge.
pub struct StatsMerge<'a> {
    directory: &'a Directory,
    view: StatsView,
    now_ms: u64,
    lock: Option<LockGuard>,
    /// How many more files to look at.
    left: usize,
    zeroed_ms: Option<u64>,
    absorbed: BTreeSet<String>,
    /// The sums of the total, present or future.
    folded: Rows,
    /// The part of `folded` and `living` that was counted before the user zeroed the counters.
    earlier: Rows,
    /// The sums of the other files.
    living: Rows,
    /// Files that are in `folded` and not yet in the total on disk.
    dead: Vec<String>,
}

impl<'a> StatsMerge<'a> {
    /// Reads the total. The pass looks at `limit` files at most, and merges none without a lock.
    pub fn begin(
        directory: &'a Directory,
        lock: Option<LockGuard>,
        limit: usize,
    ) -> StatsMerge<'a> {
        let (total, lock) = match directory.read(TOTAL, MAX_TOTAL_BYTES) {
            Ok(Some(bytes)) => (serde_json::from_slice(&bytes).unwrap_or_default(), lock),
            Ok(None) => (Total::default(), lock),
            // It may exist, so do not overwrite it.
            Err(_) => (Total::default(), None),
        };
        StatsMerge {
            directory,
            view: StatsView::new(),
            now_ms: directory.now_ms(),
            lock,
            left: limit,
            zeroed_ms: total.zeroed_ms,
            absorbed: total.absorbed,
            folded: Rows::from_written(total.rows),
            earlier: Rows::from_written(total.earlier),
            living: Rows::default(),
            dead: Vec::new(),
        }
    }

    /// Reads the files.
    ///
    /// # Errors
    /// The directory cannot be listed.
    pub fn each_file(&mut self) -> Result<(), StoreError> {
        let (runs, files): (Vec<_>, Vec<_>) =
            (self.directory.names()?.into_iter()).partition(|name| name.starts_with(RUN_PREFIX));
        let mut there: BTreeSet<String> = files.iter().cloned().collect();
        self.files(self.directory, "", FileOwner::Dead, files);
        for run in runs {
            let owner = run.strip_prefix(RUN_PREFIX).unwrap_or_default();
            let is_ours = is_name(owner);
            let owner = self.view.owner(owner);
            // A directory that is not ours has no files of ours.
            let Ok(Some(directory)) = self.directory.open_below(&run) else {
                continue;
            };
            let names = directory.names()?;
            let prefix = format!("{run}/");
            there.extend(names.iter().map(|name| format!("{prefix}{name}")));
            self.files(&directory, &prefix, owner, names);
            // The files of a run that goes on are the runner's to read, and its directory is its processes' to write to.
            let changed = self.directory.changed_ms(&run);
            if is_ours && self.lock.is_some() && self.is_over(owner, changed, FORGOTTEN) {
                self.directory.remove_directory(&run);
            }
        }
        // Those that are gone need no name any more. What was folded at the end is not listed yet, so it is left.
        let dead = &self.dead;
        self.absorbed
            .retain(|path| there.contains(path) || dead.contains(path));
        Ok(())
    }

    /// Looks at these files of a directory; `run` is who reads them first.
    fn files(
        &mut self,
        directory: &Directory,
        prefix: &str,
        run: FileOwner,
        mut names: Vec<String>,
    ) {
        if self.left < names.len() {
            // Not always the same, which may be those of processes that live.
            let start = self.now_ms as usize % names.len();
            names.rotate_left(start);
        }
        for name in names {
            if self.left == 0 {
                return;
            }
            self.left -= 1;
            self.file(directory, prefix, run, &name);
        }
    }

    fn file(&mut self, directory: &Directory, prefix: &str, run: FileOwner, name: &str) {
        let modified = || directory.facts(name).map(|facts| facts.modified_ms);
        if name.starts_with(TEMPORARY_PREFIX) {
            if self.lock.is_some()
                && self.is_over(FileOwner::Unknown, modified(), UNFINISHED)
                && is_leftover(directory, name)
            {
                let _ = directory.remove(name);
            }
            return;
        }
        let path = format!("{prefix}{name}");
        if self.absorbed.contains(&path) {
            self.forget(directory, name, &path);
            return;
        }
        // Asked before the file is read: a process that dies in between has counted all it will.
        let owner = match (self.view.owner(name), run) {
            (FileOwner::Dead, run) => run,
            (owner, _) => owner,
        };
        let is_over = run != FileOwner::Alive && self.is_over(owner, modified(), FORGOTTEN);
        match counters(directory, name) {
            Some(counters) if is_over && self.lock.is_some() => {
                self.folded.add_all(&counters);
                self.dead.push(path);
            }
            Some(counters) => self.living.add_all(&counters),
            // Its process could not write it, on a full disk.
            None if owner == FileOwner::Dead
                && self.lock.is_some()
                && is_begun(directory, name) =>
            {
                let _ = directory.remove(name);
            }
            None => {}
        }
        if self.dead.len() >= MAX_MERGED {
            self.fold();
        }
    }

    fn is_over(&self, owner: FileOwner, changed_ms: Option<u64>, patience: Duration) -> bool {
        match owner {
            FileOwner::Alive => false,
            FileOwner::Dead => true,
            FileOwner::Unknown => changed_ms.is_some_and(|changed| {
                u128::from(self.now_ms.saturating_sub(changed)) > patience.as_millis()
            }),
        }
    }

    /// Removes a file that is in the total.
    fn forget(&mut self, directory: &Directory, name: &str, path: &str) {
        let is_ours = counters(directory, name).is_some() || is_begun(directory, name);
        if self.lock.is_some() && is_ours && directory.remove(name).is_ok() {
            self.absorbed.remove(path);
        }
    }

    /// Writes the total. A failure loses nothing: another pass merges the files.
    fn fold(&mut self) {
        if let Err(error) = self.write() {
            tracing::debug!(%error, "statistics of dead processes are not merged: the next process tries again");
            self.lock = None;
        }
    }

    fn write(&mut self) -> Result<(), StoreError> {
        let dead = std::mem::take(&mut self.dead);
        let today = self.today();
        bound(&mut self.folded, &mut self.earlier, today);
        self.folded.cancel(&mut self.earlier);
        self.absorbed.extend(dead.iter().cloned());
        let total = Total {
            rows: self.folded.to_written(),
            earlier: self.earlier.to_written(),
            zeroed_ms: self.zeroed_ms,
            absorbed: self.absorbed.clone(),
        };
        let json = serde_json::to_vec(&total).expect("maps of numbers and names");
        self.directory
            .write_by_rename(self.directory, TOTAL, &json)?;
        for path in dead {
            let removed = match path.split_once('/') {
                None => self.directory.remove(&path).is_ok(),
                Some((run, name)) => match self.directory.open_below(run) {
                    Ok(Some(run)) => run.remove(name).is_ok(),
                    Ok(None) => true,
                    Err(_) => false,
                },
            };
            if removed {
                self.absorbed.remove(&path);
            }
        }
        Ok(())
    }

    fn today(&self) -> u32 {
        u32::try_from(self.now_ms / DAY_MS).unwrap_or(0)
    }

    /// Sets all counters to zero.
    ///
    /// # Errors
    /// The total cannot be written.
    pub fn zero(mut self) -> Result<(), StoreError> {
        self.earlier = self.folded.clone();
        self.earlier.add_all(&self.living);
        self.zeroed_ms = Some(self.now_ms);
        self.write()
    }

    /// What was counted since the statistics were zeroed.
    pub fn end(mut self) -> CountedRows {
        if !self.dead.is_empty() {
            self.fold();
        }
        let today = self.today();
        let mut rows = self.folded;
        rows.add_all(&self.living);
        bound(&mut rows, &mut self.earlier, today);
        rows.subtract(&self.earlier);
        CountedRows {
            rows,
            today,
            zeroed_ms: self.zeroed_ms,
        }
    }
}

/// What was counted since the statistics were zeroed.
#[derive(Default)]
pub struct CountedRows {
    /// The counters.
    pub rows: Rows,
    /// Today, as in the tags of rows.
    pub today: u32,
    /// When they were zeroed, in milliseconds since 1970.
    pub zeroed_ms: Option<u64>,
}
