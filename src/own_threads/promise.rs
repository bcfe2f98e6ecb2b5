//! What a thread of ours hands over to the thread that has started it.

#![allow(unsafe_code)] // asks whether a thread is there

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicU8, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use rustix::thread::gettid;

use super::{LOOK_AGAIN, start};
use crate::fork_generation::generation;
use crate::fork_safety::{Mutex, Signal};

/// What a function that runs on another thread is going to return.
pub struct Promise<T> {
    shared: Arc<Shared<T>>,
    thread: JoinHandle<()>,
    /// The process that has the thread.
    generation: u64,
}

struct Shared<T> {
    /// None until the function has returned, and again when its result was taken.
    result: Mutex<Option<T>>,
    state: AtomicU8,
    changed: Signal,
    /// The number that the system has given to the thread.
    number: AtomicI32,
}

/// What [`Shared::state`] says, in this order.
const STARTED: u8 = 0;
const BEGUN: u8 = 1;
const OVER: u8 = 2;
/// The thread has not begun in time, and does nothing.
const GIVEN_UP: u8 = 3;

impl<T: Send + 'static> Promise<T> {
    /// Runs two functions on a thread of its own. None: it could not be started, or has not run the first one within this time.
    ///
    /// The first should need what the second needs: the caller may hold a lock of the C library's, for which the thread would wait
    /// as long as the caller waits for it. That of the dynamic linker is held in each library's constructor.
    pub fn new(
        stack: usize,
        patience: Duration,
        first: impl FnOnce() + Send + 'static,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Promise<T>> {
        Promise::starting(stack, first, run)?.begun_within(patience)
    }

    /// Runs a function on a thread of its own, whenever that begins. None: it could not be started.
    pub fn of(stack: usize, run: impl FnOnce() -> T + Send + 'static) -> Option<Promise<T>> {
        Promise::starting(stack, || {}, run)
    }

    fn starting(
        stack: usize,
        first: impl FnOnce() + Send + 'static,
        run: impl FnOnce() -> T + Send + 'static,
    ) -> Option<Promise<T>> {
        let shared = Arc::new(Shared {
            result: Mutex::new(None),
            state: AtomicU8::new(STARTED),
            changed: Signal::new(),
            number: AtomicI32::new(0),
        });
        let of_thread = shared.clone();
        let started = start(stack, move || {
            let number = gettid().as_raw_nonzero().get();
            of_thread.number.store(number, Ordering::Relaxed);
            let result = catch_unwind(AssertUnwindSafe(|| {
                first();
                of_thread.goes_on(BEGUN).then(run)
            }));
            *of_thread.result.lock() = result.ok().flatten();
            of_thread.state.store(OVER, Ordering::Release);
            of_thread.changed.notify();
        });
        Some(Promise {
            shared,
            thread: started.ok()?,
            generation: generation(),
        })
    }

    fn begun_within(self, patience: Duration) -> Option<Promise<T>> {
        let until = Instant::now() + patience;
        loop {
            let seen = self.shared.changed.now();
            if self.shared.state.load(Ordering::Acquire) != STARTED {
                return Some(self);
            }
            if Instant::now() >= until && self.shared.goes_on(GIVEN_UP) {
                return None;
            }
            self.shared.changed.wait(seen, until);
        }
    }

    /// Waits for the result and for the end of the thread, while it `may_wait`, which is asked now and then. None: a function has
    /// panicked, or the thread was not waited for, or this is a forked child, which has no such thread.
    pub fn wait(self, may_wait: impl Fn() -> bool) -> Option<T> {
        self.wait_by_steps(|| may_wait().then(|| Instant::now() + LOOK_AGAIN))
    }

    /// The same, for at most this time. A thread that takes longer ends by itself.
    pub fn wait_for(self, patience: Duration) -> Option<T> {
        let until = Instant::now() + patience;
        self.wait_by_steps(|| (Instant::now() < until).then_some(until))
    }

    /// `until`: until when it may wait before that is asked again. None: no longer.
    fn wait_by_steps(self, until: impl Fn() -> Option<Instant>) -> Option<T> {
        loop {
            let seen = self.shared.changed.now();
            if self.generation != generation() {
                std::mem::forget(self.thread);
                return None;
            }
            if self.shared.state.load(Ordering::Acquire) == OVER {
                // Programs that must have one thread may go on at once: unshare(CLONE_NEWUSER) asks for that.
                let _ = self.thread.join();
                until_gone(self.shared.number.load(Ordering::Relaxed));
                return self.shared.result.lock().take();
            }
            self.shared.changed.wait(seen, until()?);
        }
    }
}

/// Waits until the system does not count an ended thread any more. It may do so for some microseconds after pthread_join(3) has returned
/// (measured: after up to 7 of 10,000).
fn until_gone(thread: i32) {
    const PATIENCE: Duration = Duration::from_millis(100);
    let until = Instant::now() + PATIENCE;
    // SAFETY: asks only; no signal is sent.
    while unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) } == 0
        && Instant::now() < until
    {
        thread::yield_now();
    }
}

impl<T> Shared<T> {
    /// Leaves the first state for this one. False: it was left before.
    fn goes_on(&self, next: u8) -> bool {
        let left = self
            .state
            .compare_exchange(STARTED, next, Ordering::AcqRel, Ordering::Acquire);
        self.changed.notify();
        left.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::super::tests::end_of;
    use super::*;

    const STACK: usize = 256 << 10;
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Which signals this thread blocks.
    fn blocked() -> Vec<i32> {
        // SAFETY: the set is ours, all zeros is a set without signals, and nothing is changed.
        let set = unsafe {
            let mut set: libc::sigset_t = std::mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, std::ptr::null(), &mut set);
            set
        };
        // SAFETY: the set is a set, and the numbers are those of signals.
        let is_blocked = |signal: &i32| unsafe { libc::sigismember(&set, *signal) == 1 };
        (1..32).filter(is_blocked).collect()
    }

    #[test]
    fn a_thread_handles_no_signals_and_hands_over_its_result() {
        let own = blocked();
        let promise = Promise::new(STACK, PATIENCE, || {}, blocked).expect("a thread");
        let all = (1..32).filter(|signal| ![libc::SIGKILL, libc::SIGSTOP].contains(signal));
        assert_eq!(promise.wait(|| true), Some(all.collect()));
        assert_eq!(blocked(), own);
        let promise = Promise::new(STACK, PATIENCE, || {}, || panic!("in a thread"));
        assert_eq!(promise.expect("a thread").wait(|| true), None::<()>);
    }

    #[test]
    fn a_thread_whose_beginning_nobody_waits_for_hands_over_its_result_as_well() {
        let promise = Promise::of(STACK, || 7).expect("a thread");
        assert_eq!(promise.wait_for(PATIENCE), Some(7));
    }

    #[test]
    fn a_thread_that_begins_late_is_not_waited_for_any_longer() {
        let patience = Duration::from_secs(1);
        let may_end = Arc::new(AtomicBool::new(false));
        let seen = may_end.clone();
        let first = || thread::sleep(Duration::from_millis(900));
        let run = move || {
            while !seen.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
        };
        let promise = Promise::starting(STACK, first, run).expect("a thread");
        let since = Instant::now();
        assert_eq!(promise.wait_for(patience), None);
        let waited = since.elapsed();
        may_end.store(true, Ordering::SeqCst);
        assert!(waited < Duration::from_millis(1850), "{waited:?}");
    }

    #[test]
    fn a_thread_that_was_waited_for_is_gone() {
        for _ in 0..2000 {
            let own = || gettid().as_raw_nonzero().get();
            let promise = Promise::new(STACK, PATIENCE, || {}, own);
            let thread = promise
                .and_then(|promise| promise.wait(|| true))
                .expect("a thread");
            // SAFETY: asks only; no signal is sent.
            let told = unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, 0) };
            assert_eq!(told, -1, "unshare(2) would find two threads");
        }
    }

    #[test]
    fn a_thread_that_cannot_begin_is_given_up_and_does_nothing() {
        let held = Arc::new(Mutex::new(0));
        let (first, second) = (held.clone(), held.clone());
        let guard = held.lock();
        let short = Duration::from_millis(10);
        let promise = Promise::new(
            STACK,
            short,
            move || *first.lock() += 1,
            move || *second.lock() += 2,
        );
        assert!(promise.is_none());
        drop(guard);
        // Both are dropped when the thread ends.
        let deadline = Instant::now() + PATIENCE;
        while Arc::strong_count(&held) > 1 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(*held.lock(), 1);
    }

    #[test]
    fn a_thread_that_may_not_be_waited_for_goes_on_alone() {
        let held = Arc::new(Mutex::new(0));
        let seen = held.clone();
        let guard = held.lock();
        let promise = Promise::new(STACK, PATIENCE, || {}, move || *seen.lock() += 1);
        assert_eq!(promise.expect("a thread").wait(|| false), None);
        drop(guard);
        let deadline = Instant::now() + PATIENCE;
        while *held.lock() == 0 && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(*held.lock(), 1);
    }

    #[test]
    fn a_child_that_is_forked_meanwhile_does_not_wait_for_the_thread() {
        let may_end = Arc::new(AtomicBool::new(false));
        let seen = may_end.clone();
        let promise = Promise::new(
            STACK,
            PATIENCE,
            || {},
            move || {
                while !seen.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(1));
                }
            },
        );
        let promise = promise.expect("a thread");
        // SAFETY: the child calls what is tested, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_none = promise.wait(|| true).is_none();
            // SAFETY: it ends the child.
            unsafe { libc::_exit(i32::from(!is_none)) };
        }
        let status = end_of(child);
        may_end.store(true, Ordering::SeqCst);
        assert_eq!(promise.wait(|| true), Some(()));
        assert_eq!(status, 0, "the child hung");
    }
}
