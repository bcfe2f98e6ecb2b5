//! Finds the entry of a plan in memory, in the user's store or in a system store, and makes an inner program of it.

use std::sync::Arc;
use std::time::Instant;

use super::plan::Plan;
use super::single_flight::{BuildTurn, FirstWait, Waited};
use super::withheld_texts::fits_directories;
use super::{Cache, bake, restore};
use crate::cl::Context;
use crate::driver::{self, Driver};
use crate::guarded_file;
use crate::log::text;
use crate::outcome::Missed;
use crate::shadow::{self, CachedProgram, Owner, Ticket};
use crate::store::entry::{Defect, Entry};
use crate::store::load_guard::{Admission, Loading};
use crate::store::stats::Counter;
use crate::store::tier::{EntryOrigin, Tier};
use crate::store::{Lookup, Store};

/// A verified entry that fits the call.
pub(super) struct EntryMatch {
    entry: Arc<Entry>,
    /// Where the entry came from. None: a driver has accepted the entry in this process before.
    origin: Option<EntryOrigin>,
}

impl Cache {
    /// Looks up the plan and makes an inner program of its entry. None is a miss.
    pub(super) fn hit(&self, ticket: &Ticket, plan: &Plan) -> Option<Arc<CachedProgram>> {
        let found = self.look_up(plan)?;
        shadow::set_busy(ticket, true);
        let inner = self.restore(ticket.driver, ticket.context, Owner::Cache, plan, found);
        if inner.is_none() {
            shadow::set_busy(ticket, false);
        }
        inner
    }

    /// After a miss: waits for another builder of the same key. The application sees the program as being built meanwhile.
    pub(super) fn wait(
        &self,
        ticket: &Ticket,
        plan: &Plan,
        turn: &BuildTurn,
    ) -> Waited<Arc<CachedProgram>> {
        let started = Instant::now();
        if turn.has_waited_in_vain() {
            return Waited::Build(BuildTurn::default());
        }
        // Another one may be building it without knowing the key.
        if !turn.has_text() {
            let ended = self.wait_for_first(&plan.text_key(), ticket);
            self.count_wait(
                plan,
                ended != FirstWait::Nobody,
                started,
                "for a first build",
            );
            if ended == FirstWait::InVain {
                return Waited::Build(BuildTurn::default());
            }
        }
        let find = || {
            let entry = self.look_up(plan)?;
            shadow::set_busy(ticket, true);
            self.restore(ticket.driver, ticket.context, Owner::Cache, plan, entry)
        };
        let waited = self.one_build(
            ticket.driver,
            plan,
            &|| shadow::set_busy(ticket, true),
            find,
        );
        if matches!(waited, Waited::Build(_)) {
            shadow::set_busy(ticket, false);
        }
        waited
    }

    /// Whether entries are used. A driver that is being torn down may refuse a good binary (measured: Intel's CPU runtime).
    pub(super) fn looks_up(&self) -> bool {
        !self.config.recache() && !driver::is_ending() && !bake::is_baker()
    }

    /// Whether there is any store to look up in. System stores stay open as well.
    pub(super) fn has_entries(&self) -> bool {
        if !self.opened.is_opened(&self.config) {
            return false;
        }
        self.store().is_some() || self.tiers.used().next().is_some()
    }

    /// Finds a verified entry that fits: first in memory, then in the user's store, then in system stores.
    pub(super) fn look_up(&self, plan: &Plan) -> Option<EntryMatch> {
        if !self.looks_up() {
            plan.missed_by(match self.config.recache() {
                true => Missed::Recache,
                false => Missed::Ending,
            });
            return None;
        }
        let fits = |entry: &Entry| {
            let shown = entry.meta.include_dirs.as_ref();
            fits_directories(shown, &plan.recipe.include_dirs)
        };
        let kept_for = || self.store().and_then(Store::kept_for);
        let known = self.memory.get(&plan.key(), kept_for);
        if let Some(entry) = known.filter(|entry| fits(entry)) {
            return Some(EntryMatch {
                entry,
                origin: None,
            });
        }
        let (entry, origin) = self.look_up_on_disk(plan, &fits)?;
        Some(EntryMatch {
            entry: entry.into(),
            origin: Some(origin),
        })
    }

    pub(super) fn look_up_on_disk(
        &self,
        plan: &Plan,
        fits: &dyn Fn(&Entry) -> bool,
    ) -> Option<(Entry, EntryOrigin)> {
        match self.store().map(|store| store.look_up(&plan.key())) {
            Some(Lookup::Found(_, origin)) if plan.has_refused(&origin) => {}
            Some(Lookup::Found(entry, origin)) if fits(&entry) => return Some((*entry, origin)),
            Some(Lookup::Bad(defect)) => {
                plan.missed_by(Missed::Damaged);
                self.set_aside(plan, &defect, false);
            }
            Some(Lookup::Unreadable(error)) => {
                plan.missed_by(Missed::Unreadable);
                tracing::warn!(key = %plan.key_prefix(), %error, "entry not read");
            }
            Some(Lookup::Found(..)) => plan.missed_by(Missed::OtherDirectories),
            Some(Lookup::Pending(_)) => plan.missed_by(Missed::NotBaked),
            Some(Lookup::Absent) | None => {}
        }
        self.tiers.look_up(&plan.key(), fits)
    }

    /// Makes the program of an entry. One that the driver refuses is set aside once the driver has built the program itself.
    pub(super) fn restore(
        &self,
        driver: &'static Driver,
        context: Context,
        owner: Owner,
        plan: &Plan,
        EntryMatch { entry, origin }: EntryMatch,
    ) -> Option<Arc<CachedProgram>> {
        // PoCL writes the files of a binary into its cache when it loads the binary. Beyond the process's limit on file sizes that
        // ends the application, and so does a truncated file when a kernel is created from it (measured).
        let bytes: usize = entry.binaries().map(<[u8]>::len).sum();
        if driver.profile.keeps_a_cache() && guarded_file::may_reach(bytes as u64).is_err() {
            plan.missed_by(Missed::NoRoom);
            return None;
        }
        let loading = self.admit(plan, &entry, origin.as_ref())?;
        let started = Instant::now();
        let restored = restore::restore(driver, context, owner, plan, &entry);
        let took = started.elapsed();
        self.judge(plan, &entry, origin.as_ref(), &restored);
        drop(loading);
        let inner = restored.ok()?;
        self.measure_load(driver, entry.meta.compile_ns, took);
        let inner = self.verified(inner, plan)?;
        if origin.is_some() {
            self.memory.put(&plan.key(), &entry);
        }
        Some(Arc::from(inner))
    }

    /// Whether a driver may be given an entry. The result is dropped when the driver has accepted or refused the entry.
    #[inline(never)] // its frame is gone when the driver loads
    fn admit(
        &self,
        plan: &Plan,
        entry: &Entry,
        origin: Option<&EntryOrigin>,
    ) -> Option<Option<Box<Loading>>> {
        let stored = self.written_store().zip(origin);
        let Some((store, origin)) = stored else {
            return Some(None);
        };
        match store.admit(&plan.key(), origin, entry.is_of_system) {
            Admission::Granted(loading) => Some(loading.map(Box::new)),
            Admission::Postponed => {
                plan.missed_by(Missed::BeingTried);
                None
            }
            Admission::Refused(defect, _lock) => {
                plan.missed_by(Missed::Refused);
                self.set_aside(plan, &defect, entry.is_of_system);
                None
            }
        }
    }

    /// Remembers whether a driver accepted an entry.
    #[inline(never)] // its frame is gone when the driver loads
    fn judge(
        &self,
        plan: &Plan,
        entry: &Entry,
        origin: Option<&EntryOrigin>,
        restored: &Result<Box<CachedProgram>, restore::RestoreFailure>,
    ) {
        match (restored, self.written_store().zip(origin)) {
            (Ok(_), Some((store, origin))) if !entry.is_of_system => {
                store.prove(&plan.key(), origin)
            }
            (Err(restore::RestoreFailure::Entry(defect)), _) if entry.is_of_system => {
                self.set_aside(plan, defect, true);
            }
            (Err(failure), _) => {
                // The file may hold another entry by now.
                self.memory.forget(&plan.key());
                if let (restore::RestoreFailure::Entry(defect), Some(origin)) = (failure, origin) {
                    plan.refuse(*origin, defect);
                }
            }
            _ => {}
        }
        match restored {
            Ok(_) => {}
            Err(restore::RestoreFailure::Entry(_) | restore::RestoreFailure::ContextGone) => {
                plan.missed_by(Missed::Refused);
            }
            Err(restore::RestoreFailure::Resources(code)) => {
                plan.missed_by(Missed::NoRoom);
                tracing::warn!(key = %plan.key_prefix(), code, "the driver has no room for the cached program");
            }
        }
    }

    /// Takes an entry out of use that the driver has refused, after the driver has built the program itself. If it cannot do that either,
    /// something around it is broken, and the entry serves other machines and later processes.
    pub(super) fn set_refused_aside(&self, plan: &Plan) {
        if let Some((origin, defect)) = plan.refused()
            && let Some(store) = self.written_store()
            && store.is_there(&plan.key(), origin)
        {
            self.set_aside(plan, defect, false);
        }
    }

    /// Takes a bad entry out of use. A system entry stays: the driver's own build goes into the user's store, which is looked up
    /// first.
    pub(super) fn set_aside(&self, plan: &Plan, defect: &Defect, is_of_system: bool) {
        self.memory.forget(&plan.key());
        let (key, why) = (plan.key_prefix(), defect.to_string());
        let defect = text(why.as_bytes());
        if is_of_system {
            return tracing::warn!(key, %defect, "entry of a system directory not used");
        }
        tracing::warn!(key, %defect, "entry set aside");
        self.count(plan.place(), &[Counter::SetAside.by(1)]);
        if let Some(store) = self.written_store()
            && let Err(error) = store.set_aside(&plan.key())
        {
            tracing::warn!(%error, "the entry stays where it is");
        }
    }
}
