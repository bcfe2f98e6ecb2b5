//! The administrator's switch: `disable` in the system's configuration file, which running programs obey at their next build.
//!
//! It costs each build one look at the file. The file is read again only after it has changed.

use std::sync::atomic::{AtomicBool, Ordering};

use super::{Config, of_system};
use crate::file_fingerprint::FileFingerprint;
use crate::fork_safety::Mutex;

/// Whether the cache was switched off since the process has read its settings.
#[derive(Default)]
pub struct SiteSwitch {
    /// The system's file as it was read last; None: there was none.
    read: Mutex<Option<FileFingerprint>>,
    is_off: AtomicBool,
}

impl SiteSwitch {
    /// Notes the present file. Call it before the settings are read, so that no change is missed.
    pub fn new() -> SiteSwitch {
        SiteSwitch {
            read: Mutex::new(present()),
            is_off: AtomicBool::new(false),
        }
    }

    /// Whether the cache is switched off now.
    pub fn look(&self) -> bool {
        let now = present();
        let mut read = self.read.lock();
        if *read != now {
            *read = now;
            drop(read);
            let is_off = Config::read().disable();
            if self.is_off.swap(is_off, Ordering::Relaxed) != is_off {
                let what = if is_off { "off" } else { "on" };
                tracing::warn!("the system's configuration file has switched the cache {what}");
            }
        }
        self.was_off()
    }

    /// Whether it was switched off at the last look.
    pub fn was_off(&self) -> bool {
        self.is_off.load(Ordering::Relaxed)
    }
}

fn present() -> Option<FileFingerprint> {
    FileFingerprint::at(&of_system()?)
}
