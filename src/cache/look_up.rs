//! Finds the entry of a plan, in memory, in the user's store or in the system's, and makes an inner program of it.

use std::sync::Arc;
use std::time::Instant;

use opencl_sys::CL_SUCCESS;

use super::plan::Plan;
use super::single_flight::Waited;
use super::{Cache, bake, restore};
use crate::cl::Context;
use crate::driver::profile::Rebuild;
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

/// An entry that is whole and fits.
pub(super) struct EntryMatch {
    entry: Arc<Entry>,
    /// Where it came from; None: from this process's memory.
    origin: Option<EntryOrigin>,
}

impl Cache {
    /// Looks the plan up and makes an inner program of what is found; None is a miss.
    pub(super) fn hit(&self, ticket: &Ticket, plan: &Plan) -> Option<Arc<CachedProgram>> {
        if self.looks_up()
            && let Some(inner) = self.rebuilt(ticket, plan)
        {
            return Some(inner);
        }
        let found = self.look_up(plan)?;
        shadow::set_busy(ticket, true);
        let inner = self.restore(ticket.driver, ticket.context, Owner::Apart, plan, found);
        if inner.is_none() {
            shadow::set_busy(ticket, false);
        }
        inner
    }

    /// After a miss: waits for who builds the same meanwhile. For the application the program is being built.
    pub(super) fn wait(&self, ticket: &Ticket, plan: &Plan) -> Waited<Arc<CachedProgram>> {
        let find = || {
            let entry = self.look_up(plan)?;
            shadow::set_busy(ticket, true);
            self.restore(ticket.driver, ticket.context, Owner::Apart, plan, entry)
        };
        let waited = self.one_build(plan, &|| shadow::set_busy(ticket, true), find);
        if matches!(waited, Waited::Build(_)) {
            shadow::set_busy(ticket, false);
        }
        waited
    }

    /// A driver that is being torn down may refuse a good binary (measured: Intel's CPU runtime).
    pub(super) fn looks_up(&self) -> bool {
        !self.config.recache() && !driver::is_ending() && !bake::is_baker()
    }

    /// Whether there is anything to look up in.
    pub(super) fn has_entries(&self) -> bool {
        self.store().is_some() || self.tiers.used().next().is_some()
    }

    /// An entry that is whole and fits: what was loaded before, else the user's, else one of the system's.
    pub(super) fn look_up(&self, plan: &Plan) -> Option<EntryMatch> {
        if !self.looks_up() {
            plan.missed_by(match self.config.recache() {
                true => Missed::Recache,
                false => Missed::Ending,
            });
            return None;
        }
        let fits = |entry: &Entry| {
            let others = entry.meta.include_dirs.as_ref();
            others.is_none_or(|directories| *directories == plan.recipe.include_dirs)
        };
        let kept_for = self.store().and_then(Store::kept_for);
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

    /// The program of an entry; an entry that the driver does not take, or that is found wrong, is set aside.
    pub(super) fn restore(
        &self,
        driver: &'static Driver,
        context: Context,
        standing: Owner,
        plan: &Plan,
        EntryMatch { entry, origin }: EntryMatch,
    ) -> Option<Arc<CachedProgram>> {
        // PoCL writes the files of a binary into its cache when it loads it: beyond the process's limit on the size of files that
        // ends the application, and a file that is cut off does so when a kernel is made of it (measured).
        let bytes: usize = entry.binaries().map(<[u8]>::len).sum();
        if driver.profile.keeps_a_cache() && guarded_file::may_reach(bytes as u64).is_err() {
            plan.missed_by(Missed::NoRoom);
            return None;
        }
        let loading = self.admit(plan, &entry, origin.as_ref())?;
        let started = Instant::now();
        let restored = restore::restore(driver, context, standing, plan, &entry);
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

    /// Whether a driver may be given an entry; what comes back is dropped when the driver has taken or refused it.
    #[inline(never)] // what it keeps on the stack is not below the driver
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

    /// Remembers what a driver has made of an entry.
    #[inline(never)] // as above
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
            // What is on disk now may be another.
            (Err(_), _) if origin.is_none() => self.memory.forget(&plan.key()),
            (Err(restore::RestoreFailure::Entry(defect)), _) => {
                self.set_aside(plan, defect, entry.is_of_system);
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

    /// The P' that serves, built again with the same options, on drivers that keep something of P then: of P' they keep it,
    /// too.
    pub(super) fn rebuilt(&self, ticket: &Ticket, plan: &Plan) -> Option<Arc<CachedProgram>> {
        let inner = ticket.inner.as_ref()?;
        let same = inner.key() == plan.key()
            && inner.recipe().arguments.options == plan.recipe.arguments.options;
        if ticket.driver.profile.rebuild != Rebuild::KeepsVariables || !same {
            return None;
        }
        let arguments = &plan.recipe.arguments;
        let code = ticket.driver.build_program(inner.program(), arguments);
        (code == CL_SUCCESS).then(|| inner.clone())
    }

    /// Takes a bad entry out of use. One of the system's stays: what the driver builds now goes into the user's store, where it
    /// is found first.
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
