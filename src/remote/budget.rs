//! How long builds of this process may wait for the remote store: never longer than what they can save.
//!
//! - One wait takes at most a quarter of the expected compile time, and at most `remote_wait`.
//! - All waits that were in vain together take at most as long as one wait, or 1 % of the compile time of this process if that is
//!   more. After that one question in eight waits; the others are hints, by which the helper fetches the entry for next time.
//!
//! All counts are of this process, and a lost update between threads costs nothing but accuracy.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// One wait takes at most this part of the expected compile time.
const SHARE_OF_ONE: u32 = 4;
/// Waits in vain take at most this part of the compile time.
const SHARE_IN_VAIN: u64 = 100;
/// After that one question in this many waits.
const ONE_IN: u64 = 8;

/// The waits of a process, and the compile times that it knows.
#[derive(Debug, Default)]
pub struct WaitBudget {
    /// Waits that brought no entry, in nanoseconds.
    in_vain_ns: AtomicU64,
    /// Questions that could not wait.
    refused: AtomicU64,
    /// The compile time of programs that were compiled here, in nanoseconds.
    compile_ns: AtomicU64,
    /// The compile time of all programs of this process, served ones included, in nanoseconds.
    seen_ns: AtomicU64,
    /// The number of these programs.
    seen: AtomicU64,
}

impl WaitBudget {
    /// The expected compile time of a program of which nothing is known; None: this process knows none yet.
    pub fn mean(&self) -> Option<Duration> {
        let programs = self.seen.load(Ordering::Relaxed);
        let sum = self.seen_ns.load(Ordering::Relaxed);
        sum.checked_div(programs).map(Duration::from_nanos)
    }

    /// How long the next question may wait; zero: it is a hint. `longest`: the setting `remote_wait`.
    pub fn next(&self, estimate: Option<Duration>, longest: Duration) -> Duration {
        let wait = estimate.map_or(longest, |estimate| (estimate / SHARE_OF_ONE).min(longest));
        if wait.is_zero() {
            return wait;
        }
        let share = self.compile_ns.load(Ordering::Relaxed) / SHARE_IN_VAIN;
        let most = Duration::from_nanos(share).max(wait);
        let in_vain = Duration::from_nanos(self.in_vain_ns.load(Ordering::Relaxed));
        match most.checked_sub(in_vain) {
            Some(rest) if !rest.is_zero() => wait.min(rest),
            _ => {
                let refused = self.refused.fetch_add(1, Ordering::Relaxed) + 1;
                match refused.is_multiple_of(ONE_IN) {
                    true => wait,
                    false => Duration::ZERO,
                }
            }
        }
    }

    /// Notes a wait that brought no entry.
    pub fn in_vain(&self, waited: Duration) {
        add(&self.in_vain_ns, waited);
    }

    /// Notes the compile time of a program that was compiled here.
    pub fn compiled(&self, time: Duration) {
        add(&self.compile_ns, time);
        self.saw(time);
    }

    /// Notes the compile time of a program that was served.
    pub fn saw(&self, time: Duration) {
        add(&self.seen_ns, time);
        self.seen.fetch_add(1, Ordering::Relaxed);
    }
}

fn add(sum: &AtomicU64, time: Duration) {
    let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let more = sum.load(Ordering::Relaxed).saturating_add(ns);
    sum.store(more, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_millis(250);

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn one_wait_is_bounded_by_a_quarter_of_the_compile_time_and_by_the_setting() {
        let budget = WaitBudget::default();
        assert_eq!(budget.next(None, MOST), MOST);
        assert_eq!(budget.next(Some(ms(100)), MOST), ms(25));
        assert_eq!(budget.next(Some(Duration::MAX), MOST), MOST);
        assert_eq!(budget.next(Some(ms(100)), Duration::ZERO), Duration::ZERO);
        assert_eq!(budget.next(Some(Duration::ZERO), MOST), Duration::ZERO);
    }

    #[test]
    fn waits_in_vain_take_one_wait_or_a_hundredth_of_the_compile_time_and_then_one_in_eight_waits()
    {
        let budget = WaitBudget::default();
        let first = budget.next(None, MOST);
        budget.in_vain(first);
        let waits = |count| {
            (0..count)
                .map(|_| budget.next(None, MOST))
                .filter(|wait| !wait.is_zero())
        };
        assert_eq!(waits(7).count(), 0);
        assert_eq!(waits(1).count(), 1);
        assert_eq!(waits(80).count(), 10);
        // 30 s of compilation pay for 300 ms, of which 250 are spent.
        budget.compiled(Duration::from_secs(30));
        assert_eq!(budget.next(None, MOST), ms(50));
    }

    #[test]
    fn fast_answers_leave_the_rest_of_the_budget() {
        let budget = WaitBudget::default();
        let mut left = ms(25);
        for _ in 0..25 {
            assert_eq!(budget.next(Some(ms(100)), MOST), left);
            budget.in_vain(ms(1));
            left -= ms(1);
        }
        assert_eq!(budget.next(Some(ms(100)), MOST), Duration::ZERO);
    }

    #[test]
    fn the_sum_of_waits_in_vain_stays_below_its_bound_whatever_the_questions_are() {
        let budget = WaitBudget::default();
        let (mut in_vain, mut eighths) = (Duration::ZERO, Duration::ZERO);
        for number in 0..2000_u64 {
            let before = budget.refused.load(Ordering::Relaxed);
            let wait = budget.next(Some(ms(number % 977 + 1)), MOST);
            match budget.refused.load(Ordering::Relaxed) == before {
                true => in_vain += wait,
                false => eighths += wait,
            }
            budget.in_vain(wait);
            budget.compiled(ms(number % 977 + 1));
        }
        let compiled = Duration::from_nanos(budget.compile_ns.load(Ordering::Relaxed));
        assert!(in_vain <= MOST.max(compiled / 100), "{in_vain:?}");
        assert!(eighths <= MOST * 2000 / 8, "{eighths:?}");
    }

    #[test]
    fn the_mean_is_that_of_the_programs_of_this_process() {
        let budget = WaitBudget::default();
        assert_eq!(budget.mean(), None);
        budget.compiled(ms(10));
        budget.saw(ms(30));
        assert_eq!(budget.mean(), Some(ms(20)));
        assert_eq!(budget.compile_ns.load(Ordering::Relaxed), 10_000_000);
        budget.compiled(Duration::MAX);
        assert!(budget.mean().is_some());
    }
}
