//! Clears away what processes that were killed have left, now and then, in a process that has just stored something.
//!
//! The cache may be in a directory that a user has other things in, of any name. So a file goes only if it is certainly the cache's:
//! its name has the 64 digits of a key, or its name and its content are such as only the cache makes. In doubt it stays.

use std::io;
use std::time::Duration;

use super::directory::{Directory, is_temporary};
use super::load_guard;
use super::lock::{LockAttempt, Purpose};
use super::{
    ASIDE, CACHEDIR_TAG, LOADING, SUFFIX, Store, StoreError, TEMPORARY, VERSION_DIRECTORY,
    bake_attempts,
};
use crate::key::ingredients::Key;

/// With these the files begin that are written whole: with a magic number, as JSON, or as the tag.
const STARTS: [&[u8]; 3] = [b"oclc", b"{\"rows\":", CACHEDIR_TAG];

/// Modified when a sweep begins.
const SWEPT: &str = "swept";
const INTERVAL: Duration = Duration::from_secs(3600);
/// A file that is being written is finished long before. A process that was stopped meanwhile finds its file gone, and stores
/// nothing.
const UNFINISHED: Duration = Duration::from_secs(3600);
/// A load that began so long ago has ended, if only by death. Its entry is young again then.
const LOAD: Duration = Duration::from_secs(7 * 86400);
/// What was set aside is for people who look into it soon.
const SET_ASIDE: Duration = Duration::from_secs(30 * 86400);
/// What could not be baked is tried again after this time: the driver may be another by then.
const BAKED_IN_VAIN: Duration = Duration::from_secs(30 * 86400);
const MAX_SET_ASIDE: usize = 256;
/// How many files of dead processes are folded at once.
const MAX_FOLDED: usize = 256;
/// The directory of this format bears the time when it was last opened to store, or nearly.
const OPENED: Duration = Duration::from_secs(86400);

impl Store {
    /// Notes that this format is in use.
    pub(super) fn opened(cache: &Directory) {
        let now = cache.now_ms();
        let noted = cache.modified_ms(VERSION_DIRECTORY);
        if noted.is_none_or(|noted| is_past(noted, OPENED, now)) {
            let _ = cache.set_modified(VERSION_DIRECTORY, now);
        }
    }

    /// Sweeps if the last sweep was long ago and nobody else does.
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
            tracing::debug!(%error, "leftovers stay");
        }
    }

    /// Removes what is old enough to be nobody's. Returns how many files went.
    ///
    /// # Errors
    /// A directory cannot be listed or a file not be removed.
    pub fn sweep(&self) -> Result<u64, StoreError> {
        let now = self.root.now_ms();
        let temporary = self.root.create(TEMPORARY)?;
        self.root.write_once(&temporary, SWEPT, b"")?;
        self.root.set_modified(SWEPT, now)?;
        let mut removed = 0;
        let mut remove = |directory: &Directory, names: Vec<String>| {
            for name in names {
                match directory.remove(&name) {
                    Ok(gone) => removed += u64::from(gone),
                    // Set aside from an entry's place, and not ours: it stays.
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
        if let Some(loading) = self.root.open_below(LOADING)? {
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
            remove(&aside, names.split_off(kept))?;
        }
        if let Some(statistics) = self.statistics()? {
            statistics.fold_some(MAX_FOLDED);
        }
        Ok(removed)
    }
}

/// Whether a file is certainly one that was not finished: by its name, and as far as it was written.
pub(super) fn is_leftover(directory: &Directory, name: &str) -> bool {
    const MAX_READ_BYTES: usize = 64;
    let start = is_temporary(name).then(|| directory.read_start(name, MAX_READ_BYTES));
    start.flatten().is_some_and(|start| {
        let begins = |known: &&[u8]| start.starts_with(known) || known.starts_with(&start);
        is_blank(&start) || STARTS.iter().any(begins)
    })
}

/// What nobody misses, and a power cut leaves of a file: nothing, or zeros.
pub(super) fn is_blank(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| *byte == 0)
}

/// Whether a name is one under which an entry is set aside.
pub(super) fn is_set_aside(name: &str) -> bool {
    let Some(name) = name.strip_suffix(SUFFIX) else {
        return false;
    };
    let (key, number) = name.split_once('-').unwrap_or((name, "1"));
    Key::from_hex(key).is_some() && matches!(number.as_bytes(), [b'1'..=b'7'])
}

/// Whether something is older than this. What is of the future was made before the clock was set back.
pub(super) fn is_past(then_ms: u64, age: Duration, now_ms: u64) -> bool {
    u128::from(now_ms.abs_diff(then_ms)) > age.as_millis()
}
