//! The administrator's switch: `disable` in the system's configuration file, which running programs obey at their next build.
//!
//! It costs each build one look at the file. The file is read again only after it has changed.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::{Config, of_system};
use crate::file_fingerprint::FileFingerprint;
use crate::fork_safety::Mutex;
use crate::one_call;

/// Whether the cache was switched off since the process has read its settings.
#[derive(Default)]
pub struct SiteSwitch {
    /// The system's file as it was read last; None: there was none.
    read: Mutex<Option<FileFingerprint>>,
    is_off: AtomicBool,
    /// The call of the application in which the file was looked at last; see `one_call`.
    looked_in: AtomicU64,
}

impl SiteSwitch {
    /// Notes the present file. Call it before the settings are read, so that no change is missed.
    pub fn new() -> SiteSwitch {
        SiteSwitch {
            read: Mutex::new(present()),
            is_off: AtomicBool::new(false),
            looked_in: AtomicU64::new(one_call::number().unwrap_or(0)),
        }
    }

    /// Whether the cache is switched off now. Looked at once in a call of the application.
    pub fn look(&self) -> bool {
        self.look_at(present, || Config::read().disable())
    }

    /// The lock is held until the answer is there: of two threads that see two changes, the one that reads the settings last decides, and
    /// no thread goes by the answer of before.
    fn look_at(
        &self,
        present: impl Fn() -> Option<FileFingerprint>,
        is_disabled: impl Fn() -> bool,
    ) -> bool {
        if let Some(call) = one_call::number()
            && self.looked_in.swap(call, Ordering::Relaxed) == call
        {
            return self.was_off();
        }
        let now = present();
        let mut read = self.read.lock();
        if *read == now {
            return self.was_off();
        }
        // Looked at again, since another thread may have read a newer file meanwhile.
        let now = present();
        let is_off = is_disabled();
        *read = now;
        let changed = self.is_off.swap(is_off, Ordering::Relaxed) != is_off;
        drop(read);
        if changed {
            let what = if is_off { "off" } else { "on" };
            tracing::warn!("the system's configuration file has switched the cache {what}");
        }
        is_off
    }

    /// Whether it was switched off at the last look.
    pub fn was_off(&self) -> bool {
        self.is_off.load(Ordering::Relaxed)
    }
}

fn present() -> Option<FileFingerprint> {
    FileFingerprint::at(&of_system()?)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::Barrier;
    use std::thread;
    use std::time::Duration;

    use super::*;

    /// The administrator switches off and on at once. One thread has read the first change and is slow, another sees the second.
    #[test]
    fn a_slow_thread_does_not_undo_what_a_later_one_has_read() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("config.toml");
        let present = || FileFingerprint::at(&file);
        let switch = SiteSwitch::default();
        fs::write(&file, "disable = true").expect("written");
        let has_read = Barrier::new(2);
        thread::scope(|scope| {
            let slow = scope.spawn(|| {
                switch.look_at(present, || {
                    has_read.wait();
                    thread::sleep(Duration::from_millis(20));
                    true
                })
            });
            has_read.wait();
            fs::remove_file(&file).expect("removed");
            assert!(!switch.look_at(present, || false));
            slow.join().expect("no panic");
        });
        assert!(
            !switch.look_at(present, || false),
            "it was switched on last"
        );
    }

    #[test]
    fn no_thread_goes_by_the_answer_of_before_while_another_reads() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let present = || FileFingerprint::at(directory.path());
        let switch = SiteSwitch::default();
        let reads = Barrier::new(2);
        thread::scope(|scope| {
            scope.spawn(|| {
                switch.look_at(present, || {
                    reads.wait();
                    thread::sleep(Duration::from_millis(20));
                    true
                })
            });
            reads.wait();
            assert!(switch.look_at(present, || true), "the file says so");
        });
    }
}
