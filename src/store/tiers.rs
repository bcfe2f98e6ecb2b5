//! The tiers of the system: directories of entries that a distributor or an administrator has made. They are looked up in order,
//! after the user's own, and only read: not even the time of an entry's last use is written, and entries are not copied.
//!
//! They have the layout of a cache directory. A directory is used only if nobody can write it but root, the effective user and the
//! users whom the system's configuration file names, because whoever writes an entry runs code in the program.

use std::path::PathBuf;

use once_cell::race::OnceBox;

use super::entry::Entry;
use super::tier::{EntryOrigin, Tier};
use super::{Lookup, Store};
use crate::key::ingredients::Key;

const ROOT: u32 = 0;

/// A directory of the system that is there.
pub struct SystemDirectory {
    /// As it was configured.
    pub path: PathBuf,
    /// Its entries; or, for people, why they are not used.
    pub tier: Result<Box<dyn Tier>, String>,
}

/// The tiers of the system, opened at the first look-up of a process.
pub struct Tiers {
    paths: Vec<PathBuf>,
    /// The users who may own them, beside the effective user.
    owners: Vec<u32>,
    // Opened without a lock: a child that is forked meanwhile would wait for it.
    opened: OnceBox<Vec<SystemDirectory>>,
}

impl Tiers {
    /// The tiers in these directories, which may also belong to root and to these users.
    pub fn new(paths: Vec<PathBuf>, trusted: &[u32]) -> Tiers {
        Tiers {
            paths,
            owners: [&[ROOT], trusted].concat(),
            opened: OnceBox::new(),
        }
    }

    /// Those that exist, in order.
    pub fn all(&self) -> &[SystemDirectory] {
        if let Some(opened) = self.opened.get() {
            return opened;
        }
        let found = self.paths.iter().filter_map(|path| {
            let store = Store::open_of_others(path, &self.owners).transpose()?;
            Some(SystemDirectory {
                path: path.clone(),
                tier: store.map(|store| Box::new(store) as Box<dyn Tier>),
            })
        });
        // If two threads open them at once, one of the two warns.
        if self.opened.set(Box::new(found.collect())).is_ok() {
            self.warn();
        }
        self.opened.get().map_or(&[], Vec::as_slice)
    }

    fn warn(&self) {
        for directory in self.opened.get().into_iter().flatten() {
            if let Err(why) = &directory.tier {
                let directory = crate::log::path(&directory.path);
                tracing::warn!(%directory, %why, "system directory not used");
            }
        }
    }

    /// Those that are used.
    pub fn used(&self) -> impl Iterator<Item = &dyn Tier> {
        let all = self.all().iter();
        all.filter_map(|directory| directory.tier.as_deref().ok())
    }

    /// The first intact entry of a key that fits.
    pub fn look_up(
        &self,
        key: &Key,
        fits: &dyn Fn(&Entry) -> bool,
    ) -> Option<(Entry, EntryOrigin)> {
        self.used().find_map(|tier| match tier.look_up(key) {
            Lookup::Found(mut entry, origin) if fits(&entry) => {
                entry.is_of_system = true;
                Some((*entry, origin))
            }
            Lookup::Found(..) | Lookup::Pending(_) | Lookup::Absent => None,
            Lookup::Unreadable(error) => {
                let place = tier.location(key);
                let file = crate::log::text(place.as_bytes());
                tracing::warn!(%file, %error, "entry of a system directory not read: the driver compiles");
                None
            }
            Lookup::Bad(defect) => {
                let (place, why) = (tier.location(key), defect.to_string());
                let file = crate::log::text(place.as_bytes());
                let defect = crate::log::text(why.as_bytes());
                tracing::warn!(%file, %defect, "entry of a system directory not used: the driver compiles");
                None
            }
        })
    }
}
