//! Adds facts to an entry that is stored already.

use super::Cache;
use super::facts::kernel_facts;
use super::first_build::STACK;
use super::withheld_texts::{shows_directories, withhold_texts};
use crate::cl::Kernel;
use crate::driver::Driver;
use crate::driver::profile::KernelFactsTime;
use crate::key::ingredients::Key;
use crate::own_threads::{self, Promise};
use crate::store::Lookup;
use crate::store::entry::{Defect, Entry, EntryContent, Facts, KernelFacts};
use crate::store::stats::{Counter, Labels};
use crate::store::tier::Tier;
use crate::{linker_lock, syscall_filters};

/// Adds a kernel's facts, unless they are there. Returns whether they were new.
pub(super) fn add_kernel(facts: &mut Facts, kernel: KernelFacts) -> bool {
    let is_new = facts.kernel(&kernel.name).is_none();
    if is_new {
        facts.kernels.push(kernel);
    }
    is_new
}

impl Cache {
    /// Adds the facts of a kernel that the application has created from a recorded program, on drivers where creating one is
    /// expensive.
    pub fn record_kernel(driver: &Driver, key: &Key, kernel: Kernel) {
        if driver.behavior().kernel_facts != KernelFactsTime::WhenCreated {
            return;
        }
        // Bare, this call needs little stack and few system calls, and the program may have left itself no more. A kernel whose facts are
        // not stored is asked about when it was served, as one that was never created.
        // A new thread calls the dynamic linker, for which it would wait as long as this one is in a constructor, or one waits for this one.
        let may_call_linker = || !linker_lock::is_busy_for_long() && !linker_lock::is_held();
        if !may_call_linker() || syscall_filters::were_added() || !own_threads::may_start() {
            return;
        }
        let Some(known) = kernel_facts(driver, kernel) else {
            return;
        };
        let key = *key;
        let amend = move || Cache::get().amend(&key, None, |facts| add_kernel(facts, known));
        if let Some(amended) = Promise::of(STACK, amend) {
            amended.wait(|| !linker_lock::is_busy_for_long());
        }
    }

    /// Replaces an entry by one with other facts. `change` returns whether it changed anything. `include_dirs`: the include
    /// directories of the program that the facts are from, if the facts may quote them.
    #[inline(never)] // its frame is gone when the driver compiles
    pub(super) fn amend(
        &self,
        key: &Key,
        include_dirs: Option<&[Vec<u8>]>,
        change: impl FnOnce(&mut Facts) -> bool,
    ) {
        // The first entry that a thread reads registers a destructor.
        let store = self.written_store();
        let Some(store) = store.filter(|_| !linker_lock::is_busy_for_long()) else {
            return;
        };
        let fits = |entry: &Entry| {
            let others = entry.meta.include_dirs.as_deref();
            others.is_none_or(|dirs| include_dirs.is_none_or(|own| dirs == own))
        };
        let found = match store.look_up(key) {
            Lookup::Found(entry, origin) => Some((*entry, origin)).filter(|(entry, _)| fits(entry)),
            // A system entry with more facts becomes the user's own. Otherwise each process would ask the driver again.
            Lookup::Absent | Lookup::Pending(_) => self.tiers.look_up(key, &fits),
            Lookup::Unreadable(_) | Lookup::Bad(_) => None,
        };
        let Some((mut entry, origin)) = found else {
            return;
        };
        let stored = std::mem::take(&mut entry.meta);
        let mut meta = stored.clone();
        if !change(&mut meta.facts) {
            // Another process has added them since the entry was read here.
            return self.memory.forget(key);
        }
        if let Some(own) = include_dirs {
            meta.include_dirs = shows_directories(&meta.facts, own).then(|| own.to_vec());
        }
        withhold_texts(&mut meta.facts, !self.config.store_source());
        if meta == stored {
            // What is new is withheld from the disk.
            return;
        }
        let recipe = match entry.recipe() {
            // The entry would lose its recipe.
            Err(Defect::NoMemory) => return,
            recipe => recipe.ok().filter(|_| self.config.store_source()),
        };
        let content = EntryContent {
            meta: &meta,
            recipe: recipe.as_ref(),
            binaries: entry.binaries().collect(),
        };
        let is_built_here = self.is_built_here(key, entry.bytes());
        let marker = is_built_here
            .then(|| self.built_here(key, &content))
            .flatten();
        let replaced = store.replace(key, &content, &origin);
        self.memory.forget(key);
        match replaced {
            Ok(removed) => {
                self.share(store, key, marker.as_ref());
                let place = Labels {
                    driver: &meta.driver_family,
                    ..Labels::default()
                };
                self.count(place, &[Counter::Evicted.by(removed)]);
            }
            Err(error) => tracing::warn!(%error, "facts not added to the entry"),
        }
    }
}
