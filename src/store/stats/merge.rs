//! Reads all files, and merges those of ended processes: into the total, or within the live directory into a sum.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::RUN_PREFIX;
use super::file::{MAGIC, decode};
use super::own_name;
use super::owner::{FileOwner, StatsView, is_name};
use super::rows::{Rows, StoredRow, bound};
use crate::store::StoreError;
use crate::store::directory::{Directory, TEMPORARY_PREFIX};
use crate::store::leftovers::is_leftover;
use crate::store::lock::LockGuard;
use crate::store::ownership::is_blank;

pub const TOTAL: &str = "total.json";
/// The names of sums begin with this. Each has a name of its own, and a total that has absorbed one knows that by its name.
const SUM_PREFIX: &str = "sum-";
/// The paths of files in the live directory begin with this, in the lists of absorbed files.
const LIVE: &str = "live/";

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

/// Whether a name is that of a sum.
pub fn is_sum(name: &str) -> bool {
    name.starts_with(SUM_PREFIX)
}

/// A name that no sum of this host has had.
fn new_sum(now_ms: u64) -> String {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    format!("{SUM_PREFIX}{}-{now_ms}-{number}", own_name())
}

/// A directory with files of counters.
struct Source<'a> {
    directory: &'a Directory,
    /// The paths of its files begin with this.
    prefix: &'static str,
    /// Its files may be removed.
    is_merged: bool,
    /// How many of its files are looked at.
    limit: usize,
}

/// How many files of each directory a pass looks at.
#[derive(Clone, Copy)]
pub struct PassLimits {
    /// Of the cache directory.
    pub on_disk: usize,
    /// Of the live directory.
    pub in_memory: usize,
}

impl PassLimits {
    /// All files.
    pub const NONE: PassLimits = PassLimits::of_each(usize::MAX);

    /// So many files of each.
    pub const fn of_each(limit: usize) -> PassLimits {
        PassLimits {
            on_disk: limit,
            in_memory: limit,
        }
    }
}

/// One pass over all files. Merges those of dead processes if the locks are held.
///
/// A process that is killed loses nothing: a file counts either by being in `absorbed`, or by being there and not in
/// `absorbed`. A power cut may leave the total empty on file systems that rename before they write (XFS): then statistics
/// start from zero. That is not worth an fsync for each merge.
pub struct StatsMerge<'a> {
    sources: Vec<Source<'a>>,
    /// Where the sums are written, and the locks that allow it. None: nothing is merged.
    target: Option<Target<'a>>,
    view: StatsView,
    now_ms: u64,
    /// How many more files of the directory to look at.
    left: usize,
    /// Whether other hosts may share the directory.
    is_among_hosts: bool,
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

/// Where the sums are written.
struct Target<'a> {
    directory: &'a Directory,
    name: String,
    /// Fewer files are not worth it: one sum is not merged into another.
    least: usize,
    _locks: [Option<LockGuard>; 2],
}

impl<'a> StatsMerge<'a> {
    /// Reads the total of the cache directory. The pass merges no files without a lock: of each directory its own, and of the live
    /// directory both.
    pub fn begin(
        directory: &'a Directory,
        lock: Option<LockGuard>,
        live: Option<&'a Directory>,
        live_lock: Option<LockGuard>,
        limits: PassLimits,
    ) -> StatsMerge<'a> {
        let (total, lock) = match directory.read(TOTAL, MAX_TOTAL_BYTES) {
            Ok(Some(bytes)) => (serde_json::from_slice(&bytes).unwrap_or_default(), lock),
            Ok(None) => (Total::default(), lock),
            // It may exist, so do not overwrite it.
            Err(_) => (Total::default(), None),
        };
        let own = Source {
            directory,
            prefix: "",
            is_merged: lock.is_some(),
            limit: limits.on_disk,
        };
        let live = live.map(|directory| Source {
            directory,
            prefix: LIVE,
            is_merged: lock.is_some() && live_lock.is_some(),
            limit: limits.in_memory,
        });
        let target = lock.map(|lock| Target {
            directory,
            name: TOTAL.to_owned(),
            least: 1,
            _locks: [Some(lock), live_lock],
        });
        let sources = [own].into_iter().chain(live).collect();
        StatsMerge::of(sources, target, total)
    }

    /// Merges within the live directory, into a new sum.
    pub fn begin_in_memory(live: &'a Directory, lock: LockGuard, limit: usize) -> StatsMerge<'a> {
        let source = Source {
            directory: live,
            prefix: LIVE,
            is_merged: true,
            limit,
        };
        let target = Target {
            directory: live,
            name: new_sum(live.now_ms()),
            least: 2,
            _locks: [Some(lock), None],
        };
        StatsMerge::of(vec![source], Some(target), Total::default())
    }

    fn of(sources: Vec<Source<'a>>, target: Option<Target<'a>>, total: Total) -> StatsMerge<'a> {
        StatsMerge {
            now_ms: sources[0].directory.now_ms(),
            sources,
            target,
            view: StatsView::new(),
            left: 0,
            is_among_hosts: false,
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
    /// A directory cannot be listed.
    pub fn each_file(&mut self) -> Result<(), StoreError> {
        let mut there = BTreeSet::new();
        for source in std::mem::take(&mut self.sources) {
            self.each_file_of(&source, &mut there)?;
            self.sources.push(source);
        }
        // Those that are gone need no name any more. What was folded at the end is not listed yet, so it is left; and of the live
        // directory of another host or container nothing is known.
        let (dead, view) = (&self.dead, &self.view);
        let is_elsewhere = |path: &str| {
            let name = path.strip_prefix(LIVE).map(|name| {
                let name = name.rsplit('/').next().unwrap_or(name);
                name.strip_prefix(SUM_PREFIX).unwrap_or(name)
            });
            name.is_some_and(|name| !view.is_of_this_host(name))
        };
        self.absorbed
            .retain(|path| there.contains(path) || dead.contains(path) || is_elsewhere(path));
        Ok(())
    }

    fn each_file_of(
        &mut self,
        source: &Source,
        there: &mut BTreeSet<String>,
    ) -> Result<(), StoreError> {
        let Source {
            directory,
            prefix,
            is_merged,
            limit,
        } = source;
        self.left = *limit;
        self.is_among_hosts = directory.file_system().is_network();
        let names = directory.names()?;
        let (runs, files): (Vec<_>, Vec<_>) =
            (names.into_iter()).partition(|name| name.starts_with(RUN_PREFIX));
        let (sums, files): (Vec<_>, Vec<_>) = files.into_iter().partition(|name| is_sum(name));
        there.extend((files.iter().chain(&sums)).map(|name| format!("{prefix}{name}")));
        self.sums(source, sums);
        self.files(*is_merged, directory, prefix, FileOwner::Dead, files);
        for run in runs {
            let owner = run.strip_prefix(RUN_PREFIX).unwrap_or_default();
            let is_ours = is_name(owner);
            let owner = self.owner(owner);
            // A directory that is not ours has no files of ours.
            let Ok(Some(below)) = directory.open_below(&run) else {
                continue;
            };
            let names = below.names()?;
            let prefix = format!("{prefix}{run}/");
            there.extend(names.iter().map(|name| format!("{prefix}{name}")));
            self.files(*is_merged, &below, &prefix, owner, names);
            // The files of a run that goes on are the runner's to read, and its directory is its processes' to write to.
            let changed = directory.changed_ms(&run);
            if is_ours && *is_merged && self.is_over(owner, changed, FORGOTTEN) {
                directory.remove_directory(&run);
            }
        }
        Ok(())
    }

    /// Reads sums, which count as files of dead processes. Before all other files, since a sum tells what is in it.
    fn sums(&mut self, source: &Source, names: Vec<String>) {
        let mut sums = Vec::new();
        for name in names {
            let read = source.directory.read(&name, MAX_TOTAL_BYTES);
            let sum = read.ok().flatten();
            if let Some(sum) = sum.and_then(|sum| serde_json::from_slice::<Total>(&sum).ok()) {
                self.absorbed.extend(sum.absorbed);
                sums.push((name, Rows::from_written(sum.rows)));
            }
        }
        for (name, rows) in sums {
            let path = format!("{}{name}", source.prefix);
            match (self.absorbed.contains(&path), source.is_merged) {
                (true, true) => self.remove_absorbed(source.directory, &name, &path),
                (true, false) => {}
                (false, true) => {
                    self.folded.add_all(&rows);
                    self.dead.push(path);
                }
                (false, false) => self.living.add_all(&rows),
            }
        }
    }

    /// Removes a file that is in the total or in a sum.
    fn remove_absorbed(&mut self, directory: &Directory, name: &str, path: &str) {
        if directory.remove(name).is_ok() {
            self.absorbed.remove(path);
        }
    }

    /// Looks at these files of a directory; `run` is who reads them first.
    fn files(
        &mut self,
        is_merged: bool,
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
            self.file(is_merged, directory, prefix, run, &name);
        }
    }

    fn file(
        &mut self,
        is_merged: bool,
        directory: &Directory,
        prefix: &str,
        run: FileOwner,
        name: &str,
    ) {
        let modified = || directory.facts(name).map(|facts| facts.modified_ms);
        if name.starts_with(TEMPORARY_PREFIX) {
            if is_merged
                && self.is_over(FileOwner::Unknown, modified(), UNFINISHED)
                && is_leftover(directory, name)
            {
                let _ = directory.remove(name);
            }
            return;
        }
        let path = format!("{prefix}{name}");
        if self.absorbed.contains(&path) {
            let is_ours = counters(directory, name).is_some() || is_begun(directory, name);
            if is_merged && is_ours {
                self.remove_absorbed(directory, name, &path);
            }
            return;
        }
        // Asked before the file is read: a process that dies in between has counted all it will.
        let owner = match (self.owner(name), run) {
            (FileOwner::Dead, run) => run,
            (owner, _) => owner,
        };
        let is_over = run != FileOwner::Alive && self.is_over(owner, modified(), FORGOTTEN);
        match counters(directory, name) {
            Some(counters) if is_over && is_merged => {
                self.folded.add_all(&counters);
                self.dead.push(path);
            }
            Some(counters) => self.living.add_all(&counters),
            // Its process could not write it, on a full disk.
            None if owner == FileOwner::Dead && is_merged && is_begun(directory, name) => {
                let _ = directory.remove(name);
            }
            None => {}
        }
        if self.dead.len() >= MAX_MERGED {
            self.fold();
        }
    }

    fn owner(&self, name: &str) -> FileOwner {
        match self.is_among_hosts {
            true => self.view.owner_among_hosts(name),
            false => self.view.owner(name),
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

    /// Writes the total. A failure loses nothing: another pass merges the files.
    fn fold(&mut self) {
        if let Err(error) = self.write() {
            tracing::debug!(%error, "statistics of dead processes are not merged: the next process tries again");
            self.target = None;
        }
    }

    fn write(&mut self) -> Result<(), StoreError> {
        let Some(target) = &self.target else {
            return Ok(());
        };
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
        let directory = target.directory;
        directory.write_by_rename(directory, &target.name, &json)?;
        for path in dead {
            if self.remove(&path) {
                self.absorbed.remove(&path);
            }
        }
        Ok(())
    }

    /// Removes a file by its path among the sources. Returns whether it is gone.
    fn remove(&self, path: &str) -> bool {
        let found = self.sources.iter().rev().find_map(|source| {
            let below = path.strip_prefix(source.prefix)?;
            Some((source.directory, below))
        });
        let Some((directory, below)) = found else {
            return false;
        };
        match below.split_once('/') {
            None => directory.remove(below).is_ok(),
            Some((run, name)) => match directory.open_below(run) {
                Ok(Some(run)) => run.remove(name).is_ok(),
                Ok(None) => true,
                Err(_) => false,
            },
        }
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
        let directory = self.sources[0].directory;
        // Without locks the last one who zeroes is right. A total that cannot be read has nothing that is still needed.
        self.target.get_or_insert_with(|| Target {
            directory,
            name: TOTAL.to_owned(),
            least: 1,
            _locks: [None, None],
        });
        self.write()
    }

    /// What was counted since the statistics were zeroed.
    pub fn end(mut self) -> CountedRows {
        let least = self
            .target
            .as_ref()
            .map_or(usize::MAX, |target| target.least);
        if self.dead.len() >= least {
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
