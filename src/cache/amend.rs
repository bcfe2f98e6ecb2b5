//! Adds facts to an entry that is stored already.

use super::Cache;
use super::facts::kernel_facts;
use super::withheld_texts::{shows_directories, withhold_texts};
use crate::cl::Kernel;
use crate::driver::Driver;
use crate::driver::profile::KernelFactsTime;
use crate::key::ingredients::Key;
use crate::store::Lookup;
use crate::store::entry::{Entry, EntryContent, Facts, KernelFacts};
use crate::store::stats::{Counter, Labels};

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
    pub fn record_kernel(&self, driver: &Driver, key: &Key, kernel: Kernel) {
        if driver.profile.kernel_facts != KernelFactsTime::WhenCreated {
            return;
        }
        let Some(known) = kernel_facts(driver, kernel) else {
            return;
        };
        self.amend(key, None, |facts| add_kernel(facts, known));
    }

    /// Replaces an entry by one with other facts. `change` returns whether it changed anything. `include_dirs`: the include
    /// directories of the program that the facts are from, if the facts may quote them.
    pub(super) fn amend(
        &self,
        key: &Key,
        include_dirs: Option<&[Vec<u8>]>,
        change: impl FnOnce(&mut Facts) -> bool,
    ) {
        let Some(store) = self.written_store() else {
            return;
        };
        let fits = |entry: &Entry| {
            let others = entry.meta.include_dirs.as_deref();
            others.is_none_or(|dirs| include_dirs.is_none_or(|own| dirs == own))
        };
        let found = match store.look_up(key) {
            Lookup::Found(entry, file) => Some((*entry, file)).filter(|(entry, _)| fits(entry)),
            // A system entry with more facts becomes the user's own. Otherwise each process would ask the driver again.
            Lookup::Absent | Lookup::Pending(_) => self.tiers.look_up(key, &fits),
            Lookup::Unreadable(_) | Lookup::Bad(_) => None,
        };
        let Some((mut entry, file)) = found else {
            return;
        };
        let mut meta = std::mem::take(&mut entry.meta);
        if !change(&mut meta.facts) {
            // Another process has added them since the entry was read here.
            return self.memory.forget(key);
        }
        if let Some(own) = include_dirs {
            meta.include_dirs = shows_directories(&meta.facts, own).then(|| own.to_vec());
        }
        withhold_texts(&mut meta.facts, !self.config.store_source());
        let recipe = entry.recipe().filter(|_| self.config.store_source());
        let content = EntryContent {
            meta: &meta,
            recipe: recipe.as_ref(),
            binaries: entry.binaries().collect(),
        };
        let replaced = store.replace(key, &content, &file);
        self.memory.forget(key);
        match replaced {
            Ok(removed) => {
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
