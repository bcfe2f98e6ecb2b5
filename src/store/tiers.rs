//! Directories of entries that a distributor or an administrator has made, and that are only read: looked up in order after
//! the user's own.
//!
//! They have the layout of a cache directory. Nothing in them is written, not even the time of an entry's last use, and what is
//! found is not copied. Used is what nobody can write but root, the effective user and those whom the system's configuration
//! file names: whoever writes an entry runs code in the program.

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
    /// Its entries, or why they are not used, for people.
    pub tier: Result<Box<dyn Tier>, String>,
}

/// The directories of a process, opened at the first look-up.
pub struct Tiers {
    paths: Vec<PathBuf>,
    /// Whose they may be, beside the effective user.
    owners: Vec<u32>,
    // Opened without a lock, which a child that is forked meanwhile would wait for.
    opened: OnceBox<Vec<SystemDirectory>>,
}

impl Tiers {
    /// These directories, which may belong to root and to these users as well.
    pub fn new(paths: Vec<PathBuf>, trusted: &[u32]) -> Tiers {
        Tiers {
            paths,
            owners: [&[ROOT], trusted].concat(),
            opened: OnceBox::new(),
        }
    }

    /// Those that are there, in order.
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
        // Of two threads that do this at once, one says what is wrong.
        if self.opened.set(Box::new(found.collect())).is_ok() {
            self.warn();
        }
        self.opened.get().map_or(&[], Vec::as_slice)
    }

    fn warn(&self) {
        for directory in self.opened.get().into_iter().flatten() {
            if let Err(why) = &directory.tier {
                let directory = crate::log::path(&directory.path);
                tracing::warn!(%directory, %why, "a system directory is not used");
            }
        }
    }

    /// Those that are used.
    pub fn used(&self) -> impl Iterator<Item = &dyn Tier> {
        let all = self.all().iter();
        all.filter_map(|directory| directory.tier.as_deref().ok())
    }

    /// The first entry of a key that is whole and fits.
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
                tracing::warn!(%file, %error, "entry of a system directory not read");
                None
            }
            Lookup::Bad(defect) => {
                let (place, why) = (tier.location(key), defect.to_string());
                let file = crate::log::text(place.as_bytes());
                let defect = crate::log::text(why.as_bytes());
                tracing::warn!(%file, %defect, "entry of a system directory not used");
                None
            }
        })
    }
}
