//! Removes files of processes that were killed: now and then, in a process that has just stored something.
//!
//! A user may have other files in the cache directory, under any names. So a file is removed only if both its name and its content
//! have a form that only the cache uses (see `ownership`). In doubt it stays.

use std::io;
use std::time::Duration;

use super::directory::{Directory, is_temporary};
use super::load_guard;
use super::lock::{LockAttempt, Purpose};
use super::ownership::begins_as_ours;
use super::tag::tag;
use super::uses::MAX_DATED_BY_A_PROGRAM;
use super::{ASIDE, SUFFIX, Store, StoreError, TEMPORARY, VERSION_DIRECTORY, bake_attempts};
use crate::key::ingredients::Key;

/// The file whose time of modification is that of the last sweep.
const SWEPT: &str = "swept";
const INTERVAL: Duration = Duration::from_secs(3600);
/// Writing a file takes much less. A process that was stopped meanwhile finds its file removed, and stores nothing.
const UNFINISHED: Duration = Duration::from_secs(3600);
/// A load that began so long ago has ended, perhaps by the death of its process. Forget the death.
const LOAD: Duration = Duration::from_secs(7 * 86400);
/// Entries are set aside for people, who examine them soon or never.
const SET_ASIDE: Duration = Duration::from_secs(30 * 86400);
/// A recipe that could not be baked is tried again after this time: the driver may have been updated.
const BAKED_IN_VAIN: Duration = Duration::from_secs(30 * 86400);
const MAX_SET_ASIDE: usize = 256;
/// How many files of dead processes a sweep looks at.
const MAX_FOLDED: usize = 256;
/// The interval at which the time of modification of this format's directory is set to the time of its use.
const OPENED: Duration = Duration::from_secs(86400);

impl Store {
    /// Notes that this format is in use (see `gc`).
    pub(super) fn opened(cache: &Directory, root: &Directory) {
        let now = cache.now_ms();
        if is_past(root.opened_modified_ms(), OPENED, now) {
            let _ = cache.set_modified(VERSION_DIRECTORY, now);
        }
    }

    /// Sweeps, and dates some entries that were used, if the last sweep was long ago, and no other process does.
    pub(super) fn sweep_sometimes(&self) {
        let now = self.root.now_ms();
        let swept = self.root.modified_ms(SWEPT);
        if swept.is_some_and(|swept| !is_past(swept, INTERVAL, now)) {
            return;
        }
        let _lock = match self.locks().try_lock(Purpose::Evict) {
            LockAttempt::Got(lock) => Some(lock),
            LockAttempt::Taken => return,
            LockAttempt::Unavailable => None,
        };
        if let Err(error) = self.sweep() {
            tracing::debug!(%error, "files of killed processes are not removed: a later sweep tries again");
        }
        self.date_uses(MAX_DATED_BY_A_PROGRAM);
    }

    /// Removes files that are too old to be in use. Returns how many.
    ///
    /// # Errors
    /// A directory cannot be listed or a file not be removed.
    pub fn sweep(&self) -> Result<u64, StoreError> {
        let now = self.root.now_ms();
        let temporary = self.root.create(TEMPORARY)?;
        let cache = self.root.path().parent().map(Directory::open);
        if let Some(Ok(Some(cache))) = cache
            && let Err(error) = tag(&cache, &self.root)
        {
            tracing::debug!(%error, "the cache directory is not tagged as one");
        }
        self.root.write_once(&temporary, SWEPT, b"")?;
        self.root.set_modified(SWEPT, now)?;
        let mut removed = 0;
        let mut remove = |directory: &Directory, names: Vec<String>| {
            for name in names {
                match directory.remove(&name) {
                    Ok(gone) => removed += u64::from(gone),
                    // A directory that had the name of an entry, and was set aside. It is not ours, so it stays.
                    Err(error) if error.error.kind() == io::ErrorKind::IsADirectory => {}
                    Err(error) => return Err(error),
                }
            }
            Ok(())
        };
        let old = |directory: &Directory, age| -> Result<Vec<String>, StoreError> {
            let mut names = directory.names()?;
            names.retain(|name| {
                let file = directory.facts(name);
                file.is_some_and(|file| is_past(file.modified_ms, age, now))
            });
            Ok(names)
        };
        let mut names = old(&temporary, UNFINISHED)?;
        names.retain(|name| is_leftover(&temporary, name));
        remove(&temporary, names)?;
        for loading in self.load_directories()? {
            let mut names = old(&loading, LOAD)?;
            names.retain(|name| load_guard::is_left(&loading, name));
            remove(&loading, names)?;
        }
        if let Some((baking, mut names)) = bake_attempts::files(&self.root)? {
            let known = old(&baking, BAKED_IN_VAIN)?;
            names.retain(|name| known.contains(name));
            remove(&baking, names)?;
        }
        if let Some(aside) = self.root.open_below(ASIDE)? {
            let mut names: Vec<_> = aside.names()?;
            names.retain(|name| is_set_aside(name));
            names.sort_by_cached_key(|name| std::cmp::Reverse(aside.changed_ms(name)));
            let is_old = |name: &String| {
                let changed = aside.changed_ms(name);
                changed.is_some_and(|changed| is_past(changed, SET_ASIDE, now))
            };
            let young = names
                .iter()
                .take(MAX_SET_ASIDE)
                .take_while(|name| !is_old(name));
            let kept = young.count();
            let mut old = names.split_off(kept);
            old.retain(|name| begins_as_ours(&aside, name));
            remove(&aside, old)?;
        }
        if let Some(statistics) = self.statistics()? {
            statistics.fold_some(MAX_FOLDED);
        }
        Ok(removed)
    }
}

/// Whether a file certainly is an unfinished one, by its name and content.
pub(super) fn is_leftover(directory: &Directory, name: &str) -> bool {
    is_temporary(name)
        && (begins_as_ours(directory, name) || bake_attempts::has_content(directory, name))
}

/// Whether a name is one under which an entry is set aside.
pub(super) fn is_set_aside(name: &str) -> bool {
    let Some(name) = name.strip_suffix(SUFFIX) else {
        return false;
    };
    let (key, number) = name.split_once('-').unwrap_or((name, "1"));
    Key::from_hex(key).is_some() && matches!(number.as_bytes(), [b'1'..=b'7'])
}

/// Whether a time is longer ago than this. A time in the future is old: the clock was set back.
pub(super) fn is_past(then_ms: u64, age: Duration, now_ms: u64) -> bool {
    u128::from(now_ms.abs_diff(then_ms)) > age.as_millis()
}
