//! Attempts to bake: a small file for each recipe, written before the attempt and removed after a successful one. So a recipe that
//! kills or stops the baker is not tried for ever. An application that fetches a binary itself (`record = inline`) does the same,
//! so that a driver that dies then dies once.
//!
//! ```text
//! v1/baking/<key>    the number of attempts and the result of the last one: `2 the driver crashed (signal 11)`
//! ```

use super::directory::Directory;
use super::lock::{LockAttempt, LockGuard, Purpose};
use super::ownership::is_blank;
use super::{Store, StoreError, TEMPORARY};
use crate::key::ingredients::Key;
use crate::outcome::NotBakeable;

pub(super) const BAKING: &str = "baking";
/// Reasons are short.
const MAX_REASON_BYTES: u64 = 4096;
/// The reason while an attempt runs: a process that finds it later knows that the attempt never ended.
const UNENDED: &str = "the baker was killed";

/// The reason while an application's driver is asked for a binary.
const FETCHING: &str = "the driver died in a program that asked for the binary";
/// The reason begins with this if the baker stopped a recipe whose kernels never ran.
pub const UNUSED: &str = "its kernels never ran";
/// The reason begins with this if the driver has another library in the baker than in the program.
pub const OTHER_LIBRARY: &str = "the driver had another library in the program than it has now";
/// The reasons of crashes in the baker begin with this.
pub const CRASHED: &str = "the driver crashed";
/// A recipe is not tried again after so many failures.
const MAX_ATTEMPTS: u32 = 2;

/// Earlier attempts to bake a recipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BakeAttempts {
    /// Their number.
    pub count: u32,
    /// The result of the last one.
    pub reason: String,
}

/// Whether a name is that of such a file.
pub(super) fn is_ours(name: &str) -> bool {
    Key::from_hex(name).is_some()
}

/// Whether an application may ask its driver for a binary.
pub enum FetchAdmission<'a> {
    /// It may. The caller drops the guard as soon as the driver has returned.
    Granted(FetchGuard<'a>),
    /// Another process or thread asks for it now.
    Taken,
    /// The driver did not return from an earlier attempt, or the baker has given the recipe up.
    Refused(NotBakeable),
}

/// A driver is being asked for a binary.
pub struct FetchGuard<'a> {
    store: &'a Store,
    key: Key,
    // Given back after the file is removed.
    _lock: Option<LockGuard>,
}

impl Drop for FetchGuard<'_> {
    fn drop(&mut self) {
        self.store.forget_attempts(&self.key);
    }
}

/// Whether a file certainly is one of these: it has a line of this form, or what a power cut left of one.
pub(super) fn is_left(directory: &Directory, name: &str) -> bool {
    is_ours(name) && has_content(directory, name)
}

/// Whether a file has the content of one of these, by whatever name.
pub(super) fn has_content(directory: &Directory, name: &str) -> bool {
    let bytes = directory.read(name, MAX_REASON_BYTES).ok().flatten();
    bytes.is_some_and(|bytes| is_blank(&bytes) || BakeAttempts::parse(&bytes).is_some())
}

impl BakeAttempts {
    /// Why the recipe is not tried again; None if it is.
    pub fn given_up(&self) -> Option<NotBakeable> {
        let is_over = self.count >= MAX_ATTEMPTS && self.is_failure();
        (is_over || self.is_fetching()).then(|| self.verdict())
    }

    /// Whether the last one says something about the recipe itself, and not only about the baker.
    pub fn is_failure(&self) -> bool {
        !self.is_unused() && !self.has_other_library()
    }

    /// Whether an application asks its driver for the binary, or died while it did.
    fn is_fetching(&self) -> bool {
        self.reason == FETCHING
    }

    /// Whether the baker stopped it, since its kernels never ran. It is tried again once they have.
    pub fn is_unused(&self) -> bool {
        self.reason.starts_with(UNUSED)
    }

    /// Whether the driver had another library in the baker than in the program. A baker that is started where the program runs may
    /// have the same: `LD_LIBRARY_PATH` (modules, oneAPI) tells both. `--stale` bakes it for the library that is there.
    pub fn has_other_library(&self) -> bool {
        self.reason.starts_with(OTHER_LIBRARY)
    }

    /// What the last attempt shows about the recipe.
    pub fn verdict(&self) -> NotBakeable {
        match self.reason.starts_with(CRASHED) || self.is_fetching() {
            true => NotBakeable::DriverDied,
            false if self.has_other_library() => NotBakeable::OtherLibrary,
            false => NotBakeable::BakingFailed,
        }
    }

    fn parse(bytes: &[u8]) -> Option<BakeAttempts> {
        let text = str::from_utf8(bytes).ok()?.trim_end();
        let (count, reason) = text.split_once(' ')?;
        Some(BakeAttempts {
            count: count.parse().ok()?,
            reason: reason.to_owned(),
        })
    }
}

impl Store {
    /// The attempts at a recipe that failed.
    pub fn attempts(&self, key: &Key) -> Option<BakeAttempts> {
        let directory = self.root.open_below(BAKING).ok()??;
        let bytes = directory.read(&key.hex(), MAX_REASON_BYTES).ok()??;
        BakeAttempts::parse(&bytes)
    }

    /// Why a recipe is not tried again; None if it is, or was never tried.
    pub fn given_up(&self, key: &Key) -> Option<NotBakeable> {
        self.attempts(key)?.given_up()
    }

    /// Notes that another attempt begins.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn begin_attempt(&self, key: &Key) -> Result<(), StoreError> {
        let before = self.attempts(key).filter(BakeAttempts::is_failure);
        let before = before.map_or(0, |attempts| attempts.count);
        self.write_attempts(key, before.saturating_add(1), UNENDED)
    }

    /// Takes an attempt back: it neither failed nor stored anything. `before` are the attempts before it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn take_back_attempt(
        &self,
        key: &Key,
        before: Option<&BakeAttempts>,
    ) -> Result<(), StoreError> {
        let Some(before) = before else {
            self.forget_attempts(key);
            return Ok(());
        };
        self.write_attempts(key, before.count, &before.reason)
    }

    /// Notes that the attempt has failed.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn attempt_failed(&self, key: &Key, reason: &str) -> Result<(), StoreError> {
        let count = self.attempts(key).map_or(1, |attempts| attempts.count);
        self.write_attempts(key, count, reason)
    }

    /// Forgets all attempts at a recipe.
    pub fn forget_attempts(&self, key: &Key) {
        let name = key.hex();
        if let Ok(Some(directory)) = self.root.open_below(BAKING)
            && is_left(&directory, &name)
        {
            let _ = directory.remove(&name);
        }
    }

    /// Called before an application asks its driver for the binary of this key. Without locks, a process that died while it asked
    /// looks like one that asks now.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn begin_fetch(&self, key: &Key) -> Result<FetchAdmission<'_>, StoreError> {
        let lock = match self.locks().try_lock(Purpose::Load(*key)) {
            LockAttempt::Got(lock) => Some(lock),
            LockAttempt::Taken => return Ok(FetchAdmission::Taken),
            LockAttempt::Unavailable => None,
        };
        let attempts = self.attempts(key);
        if lock.is_none() && attempts.as_ref().is_some_and(BakeAttempts::is_fetching) {
            return Ok(FetchAdmission::Taken);
        }
        if let Some(attempts) = attempts
            && let reason = attempts.verdict()
            && (reason == NotBakeable::DriverDied || attempts.given_up().is_some())
        {
            return Ok(FetchAdmission::Refused(reason));
        }
        self.write_attempts(key, 1, FETCHING)?;
        Ok(FetchAdmission::Granted(FetchGuard {
            store: self,
            key: *key,
            _lock: lock,
        }))
    }

    fn write_attempts(&self, key: &Key, count: u32, reason: &str) -> Result<(), StoreError> {
        let directory = self.root.create(BAKING)?;
        let temporary = self.root.create(TEMPORARY)?;
        let line = format!("{count} {}\n", reason.replace('\n', " "));
        directory.write_by_rename(&temporary, &key.hex(), line.as_bytes())
    }
}

/// The directory of these files, and their names; None if it does not exist.
///
/// # Errors
/// It cannot be opened or listed.
pub(super) fn files(root: &Directory) -> Result<Option<(Directory, Vec<String>)>, StoreError> {
    let Some(directory) = root.open_below(BAKING)? else {
        return Ok(None);
    };
    let mut names = directory.names()?;
    names.retain(|name| is_left(&directory, name));
    Ok(Some((directory, names)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::lock::tests::occupied;
    use crate::store::{LOCKS, Limits};

    #[test]
    fn an_attempt_without_an_end_is_known_to_the_next_one() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("cache");
        let store = Store::open(&path, Limits::default()).expect("a store");
        let key = Key([3; 32]);
        assert_eq!(store.attempts(&key), None);
        store.begin_attempt(&key).expect("written");
        let unended = store.attempts(&key).expect("an attempt");
        assert_eq!((unended.count, unended.reason.as_str()), (1, UNENDED));
        store.begin_attempt(&key).expect("written");
        store
            .attempt_failed(&key, "the driver\ncrashed")
            .expect("written");
        let failed = store.attempts(&key).expect("two attempts");
        assert_eq!(
            (failed.count, failed.reason.as_str()),
            (2, "the driver crashed")
        );
        assert_eq!(store.clear().expect("cleared").files, 1);
        assert_eq!(store.attempts(&key), None);
    }

    #[test]
    fn what_never_ran_and_took_long_is_never_given_up_and_a_crash_of_it_is_counted() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("cache");
        let store = Store::open(&path, Limits::default()).expect("a store");
        let key = Key([3; 32]);
        let attempts = || store.attempts(&key);
        for _ in 0..3 {
            store.begin_attempt(&key).expect("written");
            store.attempt_failed(&key, UNUSED).expect("written");
            let unused = attempts().expect("an attempt");
            assert!(unused.is_unused() && unused.given_up().is_none());
            store.begin_attempt(&key).expect("written");
            store
                .take_back_attempt(&key, Some(&unused))
                .expect("written");
            assert_eq!(attempts(), Some(unused));
        }
        for count in 1..=MAX_ATTEMPTS {
            assert!(attempts().is_none_or(|before| before.given_up().is_none()));
            store.begin_attempt(&key).expect("written");
            store.attempt_failed(&key, CRASHED).expect("written");
            assert_eq!(attempts().map(|now| now.count), Some(count));
        }
        assert_eq!(store.given_up(&key), Some(NotBakeable::DriverDied));
        store.take_back_attempt(&key, None).expect("removed");
        assert_eq!(attempts(), None);
    }

    #[test]
    fn a_driver_that_does_not_come_back_is_not_asked_again_and_one_that_does_leaves_nothing() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("cache");
        let store = Store::open(&path, Limits::default()).expect("a store");
        let key = Key([3; 32]);
        let begin = || store.begin_fetch(&key).expect("written");
        let FetchAdmission::Granted(fetching) = begin() else {
            panic!("nothing is known of it");
        };
        assert!(matches!(begin(), FetchAdmission::Taken));
        drop(fetching);
        assert_eq!(store.attempts(&key), None);
        // The process of this one is gone.
        store.write_attempts(&key, 1, FETCHING).expect("written");
        let died = NotBakeable::DriverDied;
        assert!(matches!(begin(), FetchAdmission::Refused(reason) if reason == died));
        let given_up = store.attempts(&key).expect("an attempt").given_up();
        assert_eq!(given_up, Some(died));
        // A baker that was killed says nothing of the driver, unless that happens again.
        store.write_attempts(&key, 1, UNENDED).expect("written");
        assert!(matches!(begin(), FetchAdmission::Granted(_)));
        store.write_attempts(&key, 2, UNENDED).expect("written");
        let failed = NotBakeable::BakingFailed;
        assert!(matches!(begin(), FetchAdmission::Refused(reason) if reason == failed));
        // A library that these bakers do not have is no matter of the program's, nor of other bakers.
        store
            .write_attempts(&key, 2, OTHER_LIBRARY)
            .expect("written");
        let attempts = store.attempts(&key).expect("an attempt");
        assert_eq!(attempts.given_up(), None);
        assert_eq!(attempts.verdict(), NotBakeable::OtherLibrary);
        store.begin_attempt(&key).expect("written");
        assert_eq!(store.attempts(&key).expect("an attempt").count, 1);
        store
            .write_attempts(&key, 1, OTHER_LIBRARY)
            .expect("written");
        assert!(matches!(begin(), FetchAdmission::Granted(_)));
    }

    #[test]
    fn without_locks_nobody_is_taken_for_dead() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("cache");
        let store = Store::open(&path, Limits::default()).expect("a store");
        std::fs::create_dir(store.root().path().join(LOCKS)).expect("nothing to lock");
        let key = Key([3; 32]);
        let _occupied = occupied(store.root(), Purpose::Load(key));
        let begin = || store.begin_fetch(&key).expect("written");
        let FetchAdmission::Granted(fetching) = begin() else {
            panic!("nothing is known of it");
        };
        assert!(matches!(begin(), FetchAdmission::Taken));
        drop(fetching);
        assert!(matches!(begin(), FetchAdmission::Granted(_)));
        // What the baker knows holds without locks.
        store.write_attempts(&key, 2, UNENDED).expect("written");
        let failed = NotBakeable::BakingFailed;
        assert!(matches!(begin(), FetchAdmission::Refused(reason) if reason == failed));
    }
}
