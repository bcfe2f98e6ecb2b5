//! Single flight: when several processes or threads miss the same key at once, one builds and the others wait for its entry.
//!
//! After a miss, each tries the lock of the key. The one that gets it looks once more, then builds, and releases the lock once the
//! entry is published, before its callback. The others look for the entry, try the lock, and sleep in between, until there is an
//! entry, or until they get the lock because its holder was killed. They stop waiting and build for themselves
//!
//! - when the holder has signaled that its build failed or was not stored: the next build would do no better, and builds in turn
//!   would take a multiple of the time;
//! - when the wait takes too long ([`longest_wait`]). After each such wait the bound is halved: a builder that is stopped or hangs
//!   may hold hundreds of locks, and a process waits two minutes for all of them together;
//! - when another thread builds the same program, or the process ends;
//! - at once in a callback, and in any other call from inside of a call: the driver or the application may hold locks that the
//!   builder needs, or this thread may hold the lock of another key.
//!
//! A build in the callback of an event is not recognized as nested. The specification forbids blocking builds there (OpenCL 3.0,
//! clSetEventCallback), and a build that does not block waits no longer than any other.
//!
//! The one that gets the lock asks other machines first, if there is a remote store (`shared_entries`). It waits for a bounded time,
//! and the others wait for it as they do for its build.
//!
//! Marks and locks only save time: the result is correct without them.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use super::plan::Plan;
use super::shared_entries::Shared;
use super::{Cache, nanoseconds};
use crate::driver::{self, Driver, reentrancy};
use crate::key::ingredients::Key;
use crate::remote::client::Lease;
use crate::shadow::{self, Ticket};
use crate::store::lock::{LockAttempt, LockGuard, Purpose};
use crate::store::stats::Counter;
use crate::store::tier::Tier;
use crate::store::{Lookup, Store};

/// The first and the longest pause between two looks.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(25));

/// The bound of a wait if the time of the build is unknown, and the smallest bound otherwise.
const MAX_WAIT: Duration = Duration::from_secs(60);
const MIN_WAIT: Duration = Duration::from_secs(1);

/// Waits of this process that took too long.
static IN_VAIN: AtomicU32 = AtomicU32::new(0);

/// The outcome of a wait.
pub enum Waited<T> {
    /// The entry was found.
    Found(T),
    /// This thread is to build.
    Build(BuildTurn),
}

impl<T> Waited<T> {
    /// What was found. Otherwise stores the turn to build in `turn`.
    pub fn found_or(self, turn: &mut BuildTurn) -> Option<T> {
        match self {
            Waited::Found(found) => Some(found),
            Waited::Build(mine) => {
                let text = turn.text.take();
                *turn = mine;
                turn.text = text;
                None
            }
        }
    }
}

/// How a wait for a first build ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FirstWait {
    /// There was none.
    Nobody,
    /// It has ended, and there may be an entry.
    Over,
    /// The other build has failed or takes too long. The thread that waited builds for itself, and waits for nobody else.
    InVain,
}

/// The right to build, while others wait if there is a lock. A drop without [`BuildTurn::published`] tells them to stop waiting.
#[derive(Default)]
pub struct BuildTurn {
    guard: Option<LockGuard>,
    /// The right to build the text, in a store where nobody may know the key.
    text: Option<LockGuard>,
    /// This thread has waited in vain, and waits no more.
    has_waited_in_vain: bool,
    /// The right to build among all hosts. In a box, since it is on the stack on which the driver works.
    lease: Option<Box<Lease>>,
}

impl BuildTurn {
    /// The right to build a text, of which this process does not know the key.
    pub(super) fn of_text(text: LockGuard) -> BuildTurn {
        let mut turn = BuildTurn::default();
        turn.text = Some(text);
        turn
    }

    /// The same, with the lock of its key.
    pub(super) fn with_key(mut self, guard: Option<LockGuard>) -> BuildTurn {
        self.guard = guard;
        self
    }

    /// That of a thread that has waited for a first build.
    pub(super) fn after(wait: FirstWait) -> BuildTurn {
        let mut turn = BuildTurn::default();
        turn.has_waited_in_vain = wait == FirstWait::InVain;
        turn
    }

    /// Whether it has the right to build the text.
    pub(super) fn has_text(&self) -> bool {
        self.text.is_some()
    }

    /// Whether this thread waits no more.
    pub(super) fn has_waited_in_vain(&self) -> bool {
        self.has_waited_in_vain
    }

    fn new(guard: Option<LockGuard>, lease: Option<Lease>) -> BuildTurn {
        let lease = lease.map(Box::new);
        BuildTurn {
            guard,
            text: None,
            has_waited_in_vain: false,
            lease,
        }
    }

    /// Ends the turn after the entry was published.
    pub fn published(mut self) {
        self.guard = None;
        self.text = None;
        if let Some(lease) = self.lease.take() {
            lease.done(true);
        }
    }
}

impl Drop for BuildTurn {
    fn drop(&mut self) {
        for guard in self.guard.iter().chain(&self.text) {
            guard.signal_abandoned();
        }
        if let Some(lease) = self.lease.take() {
            lease.done(false);
        }
    }
}

/// The bound of a wait, from the time of an earlier build and the number of waits that took too long.
fn longest_wait(earlier: Option<Duration>, in_vain: u32) -> Duration {
    let longest = earlier.map_or(MAX_WAIT, |took| {
        took.saturating_mul(3).clamp(MIN_WAIT, MAX_WAIT)
    });
    longest / 2u32.saturating_pow(in_vain)
}

impl Cache {
    /// After a miss: waits for another builder of the same key. `find` looks for the entry. `goes_on` tells whether the call still
    /// needs our answer.
    pub(super) fn one_build<T>(
        &self,
        driver: &Driver,
        plan: &Plan,
        goes_on: &dyn Fn() -> bool,
        mut find: impl FnMut() -> Option<T>,
    ) -> Waited<T> {
        self.open_again_if_lost();
        let store = self.written_store();
        let Some(store) = store.filter(|_| self.looks_up()) else {
            return Waited::Build(BuildTurn::default());
        };
        let (locks, key) = (store.locks(), plan.key());
        let before = locks.abandonments(&key);
        let started = Instant::now();
        let in_vain = IN_VAIN.load(Ordering::Relaxed);
        let mut longest = longest_wait(None, in_vain);
        let (mut pause, mut seen, mut earlier) = (PAUSES.0, None, None);
        let mut waited = false;
        let turn = loop {
            let guard = match locks.try_lock(Purpose::Build(key)) {
                LockAttempt::Got(guard) => Some(guard),
                LockAttempt::Taken => None,
                // Without locks each process asks.
                LockAttempt::Unavailable => {
                    let lease_wait = |earlier| longest_wait(earlier, in_vain);
                    match self.ask_others(driver, plan, earlier, &lease_wait, goes_on, &mut find) {
                        Shared::Found(found) => return Waited::Found(found),
                        Shared::Build(lease) => break BuildTurn::new(None, lease),
                    }
                }
            };
            // Only a new entry is worth reading. The lock was tried before, so its new holder misses no entry.
            let there = store.which_entry(&key);
            if there != seen {
                seen = there;
                if let Some(found) = find() {
                    self.count_wait(plan, waited, started, "served");
                    return Waited::Found(found);
                }
                earlier = compile_time(store, &key);
                longest = longest_wait(earlier, in_vain);
            }
            let marked = match (before, locks.abandonments(&key)) {
                (Some(before), Some(now)) => now != before,
                _ => guard.is_some(),
            };
            if waited && marked {
                break BuildTurn::default();
            }
            if guard.is_some() {
                let lease_wait = |earlier| longest_wait(earlier, in_vain);
                match self.ask_others(driver, plan, earlier, &lease_wait, goes_on, &mut find) {
                    Shared::Found(found) => {
                        self.count_wait(plan, waited, started, "served");
                        return Waited::Found(found);
                    }
                    Shared::Build(lease) => break BuildTurn::new(guard, lease),
                }
            }
            if started.elapsed() >= longest {
                // Threads that wait at the same time count once.
                let more = in_vain.saturating_add(1);
                IN_VAIN.fetch_max(more, Ordering::Relaxed);
                break BuildTurn::default();
            }
            if reentrancy::is_nested() || driver::is_ending() || !goes_on() {
                break BuildTurn::default();
            }
            std::thread::sleep(pause);
            pause = PAUSES.1.min(pause * 2);
            waited = true;
        };
        self.count_wait(plan, waited, started, "not served");
        Waited::Build(turn)
    }

    /// Waits while another process or thread builds this text, of which nobody may know the key yet: see `first_build`.
    pub(super) fn wait_for_first(&self, text: &Key, ticket: &Ticket) -> FirstWait {
        let store = self.written_store().filter(|_| self.looks_up());
        let Some(locks) = store.map(Store::locks) else {
            return FirstWait::Nobody;
        };
        let is_taken = || matches!(locks.try_lock(Purpose::Build(*text)), LockAttempt::Taken);
        if !is_taken() {
            return FirstWait::Nobody;
        }
        let before = locks.abandonments(text);
        let started = Instant::now();
        let in_vain = IN_VAIN.load(Ordering::Relaxed);
        let longest = longest_wait(None, in_vain);
        let mut pause = PAUSES.0;
        let ended = loop {
            let may_wait = || !reentrancy::is_nested() && !driver::is_ending();
            if locks.abandonments(text) != before || !shadow::set_busy(ticket, true) || !may_wait()
            {
                break FirstWait::InVain;
            }
            if started.elapsed() >= longest {
                IN_VAIN.fetch_max(in_vain.saturating_add(1), Ordering::Relaxed);
                break FirstWait::InVain;
            }
            std::thread::sleep(pause);
            pause = PAUSES.1.min(pause * 2);
            // A build that fails is marked before its lock is given back, so the mark is looked for after the lock.
            if !is_taken() {
                break match locks.abandonments(text) == before {
                    true => FirstWait::Over,
                    false => FirstWait::InVain,
                };
            }
        };
        shadow::set_busy(ticket, false);
        ended
    }

    pub(super) fn count_wait(&self, plan: &Plan, waited: bool, started: Instant, outcome: &str) {
        if waited {
            let time = started.elapsed();
            let events = [Counter::Waited.by(1), Counter::WaitNs.by(nanoseconds(time))];
            self.count(plan.place(), &events);
            let ms = time.as_millis();
            tracing::debug!(key = %plan.key_prefix(), ms, outcome, "waited for a build of the same");
        }
    }
}

/// The compile time of an entry that did not serve.
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
