//! What the helper tells others by files beside its socket, so that nobody need ask it.
//!
//! ```text
//! <name>.open     the store failed: nobody asks before the time of this file's modification, which may lie ahead
//! <name>.state    a frame (see `framing`) of [`HelperState`]
//! <name>.changes  locked by the process that reads the state to change it
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::framing;
use crate::store::StoreError;
use crate::store::directory::Directory;
use crate::store::ownership::begins_as_ours;

const MAGIC: &[u8] = b"oclcrst2";
const OPEN: &str = ".open";
const STATE: &str = ".state";
const CHANGES: &str = ".changes";
/// How long a process waits for another one that changes the state. One that was stopped meanwhile must not stop a helper for ever.
const PATIENCE_MS: u32 = 2000;
/// The circuit breaker is open for this time at most. A time further ahead comes from a clock that was set back.
pub const MAX_OPEN: Duration = Duration::from_secs(300);
/// Larger files are not ours.
const MAX_STATE_BYTES: u64 = 64 << 10;
/// What other helpers have left is removed after this time: names change with each boot.
const LEFT: Duration = Duration::from_secs(30 * 86400);

/// The counters of a helper and of its forerunners of the same name, and what is wrong now.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HelperState {
    /// What is wrong, for people; empty: nothing.
    pub trouble: String,
    /// Objects that were refused: a wrong or unknown signature, a wrong key, or content that an import would refuse.
    pub refused: u64,
    /// Operations on the store that failed.
    pub errors: u64,
    /// Entries that were stored because somebody asked for them.
    pub received: u64,
    /// Entries that were stored before somebody asked for them.
    pub prefetched: u64,
    /// Entries that were sent.
    pub sent: u64,
    /// Entries that are never sent.
    pub withheld: u64,
    /// Why the last of them is not, for people; empty: there is none.
    pub withheld_why: String,
    /// Bytes that came from the store.
    pub bytes_in: u64,
    /// Bytes that went there.
    pub bytes_out: u64,
    /// The last program that was not served because it has another version of the protocol.
    pub other_version: Option<OtherVersion>,
}

/// A program whose messages have another version than the helper's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OtherVersion {
    /// The version of its messages.
    pub version: u8,
    /// When it asked, in seconds since 1970.
    pub asked: u64,
}

impl HelperState {
    /// How many entries are never sent, and why the last of them is not, for people. None: there are none.
    pub fn never_sent(&self) -> Option<String> {
        let why = &self.withheld_why;
        (self.withheld > 0).then(|| format!("{} (the last: {why})", self.withheld))
    }
}

/// For how long the store is not to be asked; None: it may be asked.
pub(super) fn open_for(place: &Directory, name: &str) -> Option<Duration> {
    let until = place.modified_ms(&format!("{name}{OPEN}"))?;
    let rest = Duration::from_millis(until.checked_sub(place.now_ms())?);
    (!rest.is_zero() && rest <= MAX_OPEN).then_some(rest)
}

/// Says that the store is not to be asked for this time, and why; None: it may be asked.
pub(super) fn set_open(
    place: &Directory,
    name: &str,
    open: Option<(Duration, &str)>,
) -> Result<(), StoreError> {
    let name = format!("{name}{OPEN}");
    let Some((time, why)) = open else {
        if begins_as_ours(place, &name) {
            place.remove(&name)?;
        }
        return Ok(());
    };
    place.write_by_rename(place, &name, &[MAGIC, why.as_bytes()].concat())?;
    let ms = u64::try_from(time.min(MAX_OPEN).as_millis()).unwrap_or(0);
    place.set_modified(&name, place.now_ms() + ms)
}

/// The state that a helper of this name has written.
pub(super) fn read(place: &Directory, name: &str) -> Option<HelperState> {
    let bytes = place.read(&format!("{name}{STATE}"), MAX_STATE_BYTES);
    framing::decode(MAGIC, &bytes.ok()??)
}

/// Changes the state. Meanwhile no other process does.
pub(super) fn change(
    place: &Directory,
    name: &str,
    change: impl Fn(&mut HelperState),
) -> Result<(), StoreError> {
    let changed = || {
        let old = read(place, name).unwrap_or_default();
        let mut new = old.clone();
        change(&mut new);
        (new != old).then_some(new)
    };
    // Most helpers have nothing to say most of the time.
    if changed().is_none() {
        return Ok(());
    }
    let changed = || match changed() {
        Some(new) => write(place, name, &new),
        None => Ok(()),
    };
    match place.open_or_create_guarded(&format!("{name}{CHANGES}")) {
        Ok((lock, _)) => lock.alone(PATIENCE_MS, changed),
        Err(_) => changed(),
    }
}

/// Writes the state.
fn write(place: &Directory, name: &str, state: &HelperState) -> Result<(), StoreError> {
    let name = format!("{name}{STATE}");
    let bytes = framing::encode(MAGIC, state).map_err(|error| StoreError {
        action: "write",
        path: place.path().join(&name),
        error,
    })?;
    place.write_by_rename(place, &name, &bytes)
}

/// Removes what helpers of other names have left long ago.
pub(super) fn sweep(place: &Directory, own: &str) {
    let now = place.now_ms();
    for name in place.names().unwrap_or_default() {
        let stem = name.split('.').next().unwrap_or_default();
        let is_name = stem.len() == own.len() && stem.bytes().all(|byte| byte.is_ascii_hexdigit());
        let age = place
            .modified_ms(&name)
            .map(|then| now.saturating_sub(then));
        let is_old = age.is_some_and(|age| u128::from(age) > LEFT.as_millis());
        // Sockets have no content.
        let is_ours = name == stem || begins_as_ours(place, &name);
        if is_name && stem != own && is_old && is_ours {
            let _ = place.remove(&name);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use rustix::fs::{FlockOperation, flock};
    use rustix::io::Errno;

    use super::*;

    fn place() -> (tempfile::TempDir, Directory) {
        let temporary = tempfile::tempdir().expect("a temporary directory");
        let place = Directory::open(temporary.path()).expect("opened");
        (temporary, place.expect("there"))
    }

    #[test]
    fn the_breaker_is_open_for_the_time_that_was_said_and_no_longer() {
        let (_temporary, place) = place();
        assert_eq!(open_for(&place, "x"), None);
        let minute = Duration::from_secs(60);
        set_open(&place, "x", Some((minute, "refused"))).expect("written");
        let rest = open_for(&place, "x").expect("open");
        assert!(rest <= minute && rest > minute / 2);
        assert_eq!(open_for(&place, "y"), None);
        set_open(&place, "x", Some((Duration::ZERO, "refused"))).expect("written");
        assert_eq!(open_for(&place, "x"), None);
        set_open(&place, "x", Some((Duration::MAX, "refused"))).expect("written");
        assert!(open_for(&place, "x").is_some_and(|rest| rest <= MAX_OPEN));
        // A clock that was set back.
        let ahead = place.now_ms() + 10 * MAX_OPEN.as_millis() as u64;
        place.set_modified("x.open", ahead).expect("set");
        assert_eq!(open_for(&place, "x"), None);
        set_open(&place, "x", None).expect("removed");
        assert_eq!(place.modified_ms("x.open"), None);
    }

    #[test]
    fn nobody_else_changes_the_state_meanwhile() {
        let (temporary, place) = place();
        let lock = temporary.path().join("x.changes");
        let is_locked = || {
            let file = std::fs::File::open(&lock).expect("a lock");
            let attempt = flock(&file, FlockOperation::NonBlockingLockExclusive);
            attempt == Err(Errno::WOULDBLOCK)
        };
        for sent in 1..=2 {
            let was_locked = Cell::new(false);
            let changed = change(&place, "x", |state| {
                was_locked.set(lock.exists() && is_locked());
                state.sent += 1;
            });
            changed.expect("written");
            assert!(was_locked.get() && !is_locked());
            assert_eq!(read(&place, "x").map(|state| state.sent), Some(sent));
        }
    }

    #[test]
    fn a_state_comes_back_and_a_damaged_one_is_none() {
        let (temporary, place) = place();
        let state = HelperState {
            trouble: "no route to host".to_owned(),
            refused: 3,
            ..HelperState::default()
        };
        write(&place, "x", &state).expect("written");
        assert_eq!(read(&place, "x"), Some(state));
        std::fs::write(temporary.path().join("x.state"), b"oclcrst2").expect("written");
        assert_eq!(read(&place, "x"), None);
    }

    #[test]
    fn only_old_files_of_other_helpers_are_removed() {
        let (temporary, place) = place();
        let (own, other) = ("0a".repeat(16), "0b".repeat(16));
        let names = [own.clone(), format!("{own}.open"), format!("{other}.lock")];
        let names = names
            .into_iter()
            .chain([other.clone(), format!("{other}.state")]);
        for name in names.chain(["notes.state".to_owned(), format!("{other}.mine")]) {
            let content = if name.ends_with("mine") {
                "my text"
            } else {
                ""
            };
            std::fs::write(temporary.path().join(&name), content).expect("written");
            place.set_modified(&name, 1000).expect("set");
        }
        sweep(&place, &own);
        let mut left = place.names().expect("listed");
        left.sort();
        let wanted = [own.clone(), format!("{own}.open"), format!("{other}.mine")];
        assert_eq!(left, [&wanted[..], &["notes.state".to_owned()]].concat());
    }
}
