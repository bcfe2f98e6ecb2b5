//! One build for many: when several processes or threads miss the same key at once, one builds and the others wait for its
//! entry.
//!
//! Who misses tries the lock of its key. Who gets it looks once more, then builds, and gives the lock back once the entry is
//! published, before the application hears of it. The others look for the entry, try the lock, and sleep in between, until
//! there is an entry, or the lock is theirs because the holder was killed. They stop waiting and build for themselves
//!
//! - when the holder has left a mark: its build failed, or was not stored, so the next one would fare no better, and one after
//!   another would take a multiple of the time;
//! - when it takes too long ([`longest_wait`]), and after each wait in vain the next may take half of that: whoever is stopped or
//!   hangs while it builds may have begun hundreds, and a process waits two minutes for all of them together;
//! - when another thread builds the same program, or the process ends;
//! - at once in a callback, and in whatever else calls us from inside of a call: a driver or the application may hold locks then
//!   that the builder needs, or a lock of another key is this thread's own.
//!
//! A build in the callback of an event is not known as such. The specification forbids builds there that block (OpenCL 3.0,
//! clSetEventCallback), and one that does not waits no longer than any other.
//!
//! No mark and no lock is needed for anything but speed.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::plan::Plan;
use super::{Cache, nanoseconds};
use crate::driver::{self, notify};
use crate::key::ingredients::Key;
use crate::store::lock::{LockAttempt, LockGuard, Purpose};
use crate::store::stats::Counter;
use crate::store::tier::Tier;
use crate::store::{Lookup, Store};

/// Pauses between two looks: the first, and the longest.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(25));

/// The longest wait where nothing is known of the build, and the shortest bound where something is.
const MAX_WAIT: Duration = Duration::from_secs(60);
const MIN_WAIT: Duration = Duration::from_secs(1);

/// How many waits of this process ended because they took too long.
static IN_VAIN: AtomicU32 = AtomicU32::new(0);

/// What became of the wait.
pub enum Waited<T> {
    /// It was found.
    Found(T),
    /// The driver is to build it.
    Build(Turn),
}

impl<T> Waited<T> {
    /// What was found; else the turn to build goes into `turn`.
    pub fn found_or(self, turn: &mut Turn) -> Option<T> {
        match self {
            Waited::Found(found) => Some(found),
            Waited::Build(mine) => {
                *turn = mine;
                None
            }
        }
    }
}

/// Somebody's turn to build, while which others wait if there is a lock. Dropped, it tells them not to wait for each other.
#[derive(Default)]
pub struct Turn(Option<LockGuard>);

impl Turn {
    /// The entry is published: the others will find it.
    pub fn published(mut self) {
        self.0 = None;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if let Some(guard) = &self.0 {
            guard.signal_abandoned();
        }
    }
}

/// How long a build is waited for, by how long an earlier one took, and by how many waits were in vain.
fn longest_wait(earlier: Option<Duration>, in_vain: u32) -> Duration {
    let longest = earlier.map_or(MAX_WAIT, |took| {
        took.saturating_mul(3).clamp(MIN_WAIT, MAX_WAIT)
    });
    longest / 2u32.saturating_pow(in_vain)
}

impl Cache {
    /// After a look-up that missed: waits for who is building the same. `find` looks for its entry; `goes_on` tells whether the
    /// call is still to be answered by us.
    pub(super) fn one_build<T>(
        &self,
        plan: &Plan,
        goes_on: &dyn Fn() -> bool,
        mut find: impl FnMut() -> Option<T>,
    ) -> Waited<T> {
        self.open_again_if_lost();
        let store = self.written_store();
        let Some(store) = store.filter(|_| self.looks_up()) else {
            return Waited::Build(Turn::default());
        };
        let (locks, key) = (store.locks(), plan.key());
        let before = locks.abandonments(&key);
        let started = Instant::now();
        let in_vain = IN_VAIN.load(Ordering::Relaxed);
        let mut longest = longest_wait(None, in_vain);
        let (mut pause, mut seen) = (PAUSES.0, None);
        let mut waited = false;
        let turn = loop {
            let guard = match locks.try_lock(Purpose::Build(key)) {
                LockAttempt::Got(guard) => Some(guard),
                LockAttempt::Taken => None,
                LockAttempt::Unavailable => break Turn::default(),
            };
            // Only an entry that was not there before is worth reading; the lock was tried first, so who has it misses none.
            let there = store.which_entry(&key);
            if there != seen {
                seen = there;
                if let Some(found) = find() {
                    self.count_wait(plan, waited, started, "served");
                    return Waited::Found(found);
                }
                longest = longest_wait(compile_time(store, &key), in_vain);
            }
            let marked = match (before, locks.abandonments(&key)) {
                (Some(before), Some(now)) => now != before,
                _ => guard.is_some(),
            };
            if waited && marked {
                break Turn::default();
            }
            if guard.is_some() {
                break Turn(guard);
            }
            if started.elapsed() >= longest {
                // Of threads that wait at once one counts.
                let more = in_vain.saturating_add(1);
                IN_VAIN.fetch_max(more, Ordering::Relaxed);
                break Turn::default();
            }
            if notify::is_nested() || driver::is_ending() || !goes_on() {
                break Turn::default();
            }
            std::thread::sleep(pause);
            pause = PAUSES.1.min(pause * 2);
            waited = true;
        };
        self.count_wait(plan, waited, started, "not served");
        Waited::Build(turn)
    }

    fn count_wait(&self, plan: &Plan, waited: bool, started: Instant, outcome: &str) {
        if waited {
            let time = started.elapsed();
            let events = [Counter::Waited.by(1), Counter::WaitNs.by(nanoseconds(time))];
            self.count(plan.place(), &events);
            let ms = time.as_millis();
            tracing::debug!(key = %plan.key_prefix(), ms, outcome, "waited for a build of the same");
        }
    }
}

/// How long an entry took to compile that is there but did not serve.
fn compile_time(store: &Store, key: &Key) -> Option<Duration> {
    match store.look_up(key) {
        Lookup::Found(entry, _) | Lookup::Pending(entry) => {
            Some(Duration::from_nanos(entry.meta.compile_ns))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wait_is_bounded_by_what_is_known_of_the_build() {
        let seconds = Duration::from_secs;
        assert_eq!(longest_wait(None, 0), seconds(60));
        assert_eq!(longest_wait(Some(seconds(5)), 0), seconds(15));
        assert_eq!(longest_wait(Some(Duration::from_millis(5)), 0), seconds(1));
        assert_eq!(longest_wait(Some(seconds(3600)), 0), seconds(60));
        assert_eq!(longest_wait(Some(Duration::MAX), 0), seconds(60));
        let all = (0..30).map(|in_vain| longest_wait(None, in_vain));
        assert!(all.sum::<Duration>() <= seconds(120));
        assert!(longest_wait(None, u32::MAX) < Duration::from_micros(1));
    }
}
