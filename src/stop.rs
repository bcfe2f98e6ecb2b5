//! Tells work on other threads that nobody wants it any more.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;

use crate::fork_safety::Signal;

/// Shared by those who work and those who may stop them. The default one is never set.
#[derive(Clone, Default)]
pub struct Stop(Option<Arc<Shared>>);

struct Shared {
    is_set: AtomicBool,
    was_set: Signal,
    /// When it is set by itself.
    latest: Instant,
}

impl Stop {
    /// One that can be set, and is set after this time.
    pub fn within(longest: Duration) -> Stop {
        Stop(Some(Arc::new(Shared {
            is_set: AtomicBool::new(false),
            was_set: Signal::new(),
            latest: Instant::now() + longest,
        })))
    }

    /// From now on the work is not wanted.
    pub fn set(&self) {
        if let Some(shared) = &self.0 {
            shared.is_set.store(true, Ordering::SeqCst);
            shared.was_set.notify();
        }
    }

    /// Whether it is set. Once it is, it stays so.
    pub fn is_set(&self) -> bool {
        let is_set = |shared: &Shared| {
            shared.is_set.load(Ordering::SeqCst) || Instant::now() >= shared.latest
        };
        self.0.as_deref().is_some_and(is_set)
    }

    /// Between two steps of the work.
    ///
    /// # Errors
    /// It is set. The error says nothing of what the work is about: see `says_what_is_there`.
    pub fn check(&self) -> io::Result<()> {
        match self.is_set() {
            true => Err(Errno::CANCELED.into()),
            false => Ok(()),
        }
    }

    /// Whether it is set within this time, for which it waits.
    pub fn is_set_within(&self, time: Duration) -> bool {
        let until = Instant::now() + time;
        while let Some(shared) = &self.0 {
            let seen = shared.was_set.now();
            if self.is_set() || Instant::now() >= until {
                break;
            }
            shared.was_set.wait(seen, until);
        }
        self.is_set()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn work_is_stopped_by_whoever_shares_it_and_never_by_default() {
        let never = Stop::default();
        never.set();
        assert!(!never.is_set() && never.check().is_ok());
        assert!(!never.is_set_within(Duration::ZERO));
        let stop = Stop::within(LONG);
        assert!(!stop.is_set_within(Duration::from_millis(1)));
        let shared = stop.clone();
        let thread = std::thread::spawn(move || shared.is_set_within(LONG));
        stop.set();
        assert!(thread.join().expect("no panic"));
        assert!(stop.check().is_err());
    }

    #[test]
    fn work_that_nobody_stops_is_stopped_in_the_end() {
        let stop = Stop::within(Duration::from_millis(1));
        assert!(stop.is_set_within(Duration::from_millis(100)));
        assert!(stop.is_set());
    }
}
