//! Adds facts to an entry that is stored already, and writes at a release what earlier calls have left.

use std::collections::BTreeMap;

use super::facts::kernel_facts;
use super::withheld_texts::{fits_directories, shown_directories, withhold_texts};
use super::{CACHE, Cache};
use crate::cl::Kernel;
use crate::driver::Driver;
use crate::driver::profile::KernelFactsTime;
use crate::fork_safety::Mutex;
use crate::key::ingredients::Key;
use crate::linker_lock;
use crate::store::Lookup;
use crate::store::entry::{Defect, Entry, EntryContent, Facts, KernelFacts};
use crate::store::stats::{Counter, Labels};
use crate::store::tier::Tier;
use crate::syscall_filters;

/// The facts of so many kernels wait at most. Each takes some hundred bytes.
const MAX_WAITING: usize = 4096;

/// The facts of kernels that wait to be added to their entries.
#[derive(Default)]
pub(super) struct WaitingKernels(Mutex<BTreeMap<Key, Vec<KernelFacts>>>);

impl WaitingKernels {
    fn add(&self, key: Key, kernel: KernelFacts) {
        let mut waiting = self.0.lock();
        if waiting.values().map(Vec::len).sum::<usize>() < MAX_WAITING {
            let kernels = waiting.entry(key).or_default();
            if kernels.iter().all(|known| known.name != kernel.name) {
                kernels.push(kernel);
            }
        }
    }

    fn has_any(&self) -> bool {
        self.0.try_lock().is_some_and(|waiting| !waiting.is_empty())
    }

    /// Runs first in a forked child: what its parent has created is the parent's to add.
    pub fn forked(&self) {
        self.take();
    }

    /// Empty if another thread is adding one.
    fn take(&self) -> BTreeMap<Key, Vec<KernelFacts>> {
        let waiting = self.0.try_lock();
        waiting.map_or_else(BTreeMap::new, |mut waiting| std::mem::take(&mut *waiting))
    }
}

/// Adds a kernel's facts, unless they are there. Returns whether they were new.
pub(super) fn add_kernel(facts: &mut Facts, kernel: KernelFacts) -> bool {
    let is_new = facts.kernel(&kernel.name).is_none();
    if is_new {
        facts.kernels.push(kernel);
    }
    is_new
}

impl Cache {
    /// Asks a kernel that the application has created from a recorded program for its facts, on drivers where creating one is expensive.
    ///
    /// Bare, that call needs little stack and no system call, and the program may have left itself no more. So they wait for the next
    /// program that is recorded or released. At the end of the process that is too late: exit(3) in a handler of a signal may have interrupted
    /// malloc(3). Where nothing follows, they are asked for when the kernel was served, as those of one that was never created.
    pub fn record_kernel(driver: &Driver, key: &Key, kernel: Kernel) {
        if driver.behavior().kernel_facts == KernelFactsTime::WhenCreated
            && let Some(known) = kernel_facts(driver, kernel)
        {
            Cache::get().waiting_kernels.add(*key, known);
        }
    }

    /// Adds what waits to the entries.
    pub(super) fn amend_waiting_kernels(&self) {
        for (key, kernels) in self.waiting_kernels.take() {
            self.amend(&key, None, |facts| {
                let added = kernels.into_iter().map(|kernel| add_kernel(facts, kernel));
                added.fold(false, |any, is_new| any | is_new)
            });
        }
    }

    /// Writes what other calls have left to be written, when the application releases a program, unless it may have forbidden itself the
    /// calls for it.
    pub fn write_at_release() {
        let Some(cache) = CACHE.get().filter(|cache| !cache.switch.was_off()) else {
            return;
        };
        let is_due = cache.waiting_kernels.has_any() || cache.measures.has_due();
        if !is_due || syscall_filters::first_thread_has_more() != Some(false) {
            return;
        }
        cache.amend_waiting_kernels();
        if let Some(store) = cache.written_store() {
            cache.measures.write_due(store);
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
            let shown = entry.meta.include_dirs.as_ref();
            include_dirs.is_none_or(|own| fits_directories(shown, own))
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
            meta.include_dirs = shown_directories(&meta.facts, own);
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
        let removed = match replaced {
            Ok(removed) => {
                self.share(store, key, marker.as_ref());
                removed
            }
            Err(error) => {
                tracing::warn!(%error, "facts not added to the entry");
                error.removed
            }
        };
        let place = Labels {
            driver: &meta.driver_family,
            ..Labels::default()
        };
        self.count(place, &[Counter::Evicted.by(removed)]);
    }
}
