//! Records a program that the driver has just built as an entry.

use std::fmt::Display;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use opencl_sys::*;

use super::audit::add_kernels;
use super::facts::{facts, kernel_names};
use super::plan::Plan;
use super::policy::Policy;
use super::program_binaries::{ProgramBinaries, binaries};
use super::restore::binary_type;
use super::withheld_texts::{shown_directories, withhold_texts};
use super::{Cache, bake, nanoseconds};
use crate::cl::{Context, Program};
use crate::config::program_name;
use crate::driver::Driver;
use crate::outcome::NotBakeable;
use crate::shadow::Operation;
use crate::store::entry::{EntryContent, Facts, Meta};
use crate::store::journal::Kept;
use crate::store::stats::Counter;
use crate::store::tier::Tier;
use crate::store::{Lookup, Store};

/// A call that missed, and the program that the driver has built in it.
pub(super) struct Miss<'a> {
    pub(super) driver: &'static Driver,
    pub(super) program: Program,
    pub(super) context: Context,
    pub(super) plan: &'a Plan,
    /// How long the driver took.
    pub(super) elapsed: Duration,
    /// Whether no other build of the same program has begun meanwhile. Otherwise the program may hold the other's result.
    pub(super) is_alone: &'a dyn Fn() -> bool,
}

impl Cache {
    /// Records a miss, if the policy says so. Returns the names of the program's kernels, and what the cache has of it now.
    pub(super) fn record(&self, miss: &Miss<'_>) -> (Vec<Vec<u8>>, Kept) {
        let Miss {
            driver,
            program,
            plan,
            ..
        } = *miss;
        if !(miss.is_alone)() || crate::driver::is_ending() {
            return (Vec::new(), Kept::Nothing);
        }
        self.set_refused_aside(plan);
        let Some(store) = self.written_store() else {
            return (kernel_names(driver, program), Kept::Nothing);
        };
        let decision = self.policy_of(driver, &plan.recipe.operation);
        match decision.policy {
            Policy::InMiss => self.record_now(store, miss),
            Policy::Off => {
                self.not_stored(plan, &decision);
                let kept = match decision.lacks_recipes() {
                    true => Kept::not_bakeable(NotBakeable::NoSources),
                    false => Kept::Nothing,
                };
                (kernel_names(driver, program), kept)
            }
            Policy::Baked => self.leave_to_baker(store, driver, program, plan, miss.elapsed),
        }
    }

    /// Asks the program for its binaries and for all that the API shows, and publishes them.
    fn record_now(&self, store: &Store, miss: &Miss<'_>) -> (Vec<Vec<u8>>, Kept) {
        let Miss {
            driver,
            program,
            plan,
            ..
        } = *miss;
        if bake::is_put_off() {
            return (Vec::new(), Kept::Nothing);
        }
        let fetching = match self.begin_fetch(store, driver, plan) {
            Ok(fetching) => fetching,
            Err(kept) => return (kernel_names(driver, program), kept),
        };
        let started = Instant::now();
        let binaries = binaries(driver, program, plan);
        drop(fetching);
        let binaries = match binaries {
            Ok(binaries) => binaries,
            Err(why) => {
                self.not_stored(plan, &why);
                return (Vec::new(), Kept::Nothing);
            }
        };
        let arguments = &plan.recipe.arguments;
        let mut facts = facts(driver, program, &plan.devices, &binaries.built, arguments);
        add_kernels(driver, program, bake::audited_kernels(), &mut facts);
        self.measure_recording(driver, miss.elapsed, started.elapsed());
        let names = facts.kernel_names.clone();
        if let Some(why) = self.obstacle(miss, &binaries, &facts) {
            self.not_stored(plan, &why);
            return (names, Kept::Nothing);
        }
        let kept = match (miss.is_alone)() {
            true => self.publish(store, miss, &binaries, facts),
            false => Kept::Nothing,
        };
        (names, kept)
    }

    /// Why what was fetched is not to be stored.
    fn obstacle(
        &self,
        miss: &Miss<'_>,
        binaries: &ProgramBinaries,
        facts: &Facts,
    ) -> Option<&'static str> {
        let plan = miss.plan;
        if !is_of_the_right_type(facts, &binaries.built, &plan.recipe.operation) {
            return Some("the driver does not call its binary what it should be");
        }
        // Intel's CPU runtime 2026.2 names the kernel of a program's constructors by the program's number in its process (measured).
        let is_numbered = |name: &Vec<u8>| name.starts_with(b"_GLOBAL__sub_I_");
        if facts.kernel_names.iter().any(is_numbered) {
            return Some("a kernel has the name of the program in this process");
        }
        (!miss
            .driver
            .is_unchanged(&plan.ingredients(), plan.loads, self))
        .then_some("the driver or its environment changed while it compiled")
    }

    /// Publishes an entry. If the entry was pending, it keeps what its recipe's miss said of time and program.
    fn publish(
        &self,
        store: &Store,
        miss: &Miss<'_>,
        binaries: &ProgramBinaries,
        facts: Facts,
    ) -> Kept {
        let (driver, plan) = (miss.driver, miss.plan);
        let key = plan.key();
        let recipe = self.recipe(driver, plan).ok();
        let pending = match store.look_up(&key) {
            Lookup::Pending(pending) => Some(pending.meta),
            _ => None,
        };
        // This build may have been served by a cache of the driver's, which the first miss filled.
        let earlier = pending.as_ref().map(|pending| pending.compile_ns);
        let earlier = Duration::from_nanos(earlier.unwrap_or(0));
        let meta = self.meta(driver, plan, facts, miss.elapsed.max(earlier));
        let meta = Meta {
            built: binaries.built.iter().map(|index| *index as u32).collect(),
            only_built_listed: binaries.only_built_listed,
            executable: pending.map_or(meta.executable, |pending| pending.executable),
            ..meta
        };
        let Some((meta, recipe)) = self.as_recorded(key, meta, recipe) else {
            return Kept::Nothing;
        };
        let content = EntryContent {
            meta: &meta,
            recipe: recipe.as_ref(),
            binaries: binaries.bytes.iter().map(Vec::as_slice).collect(),
        };
        if bake::is_audited(&key, &content) {
            return Kept::Nothing;
        }
        let marker = self.built_here(&key, &content);
        let published = store.publish(&key, &content);
        self.memory.forget(&key);
        match published {
            Ok(removed) => {
                let events = [Counter::Stored.by(1), Counter::Evicted.by(removed)];
                self.count(plan.place(), &events);
                self.prove_baked(store, miss);
                self.recorded_by_baker(key);
                self.share(store, &key, marker.as_ref());
                self.amend_waiting_kernels();
                Kept::Entry
            }
            Err(error) => {
                self.count(plan.place(), &[Counter::Evicted.by(error.removed)]);
                self.not_stored(plan, &error);
                Kept::unwritten(&error.error)
            }
        }
    }

    /// Counts and logs that a miss is not stored.
    pub(super) fn not_stored(&self, plan: &Plan, why: &dyn Display) {
        self.count(plan.place(), &[Counter::NotStored.by(1)]);
        tracing::warn!(key = %plan.key_prefix(), %why, "not stored");
        bake::left(format!("it is not stored: {why}"));
    }

    /// The metadata of an entry of this plan.
    pub(super) fn meta(
        &self,
        driver: &Driver,
        plan: &Plan,
        facts: Facts,
        elapsed: Duration,
    ) -> Meta {
        let private = !self.config.store_source();
        let mut meta = Meta {
            ingredients: plan.ingredients(),
            options: plan.shown_options(private),
            include_dirs: shown_directories(&facts, &plan.recipe.include_dirs),
            driver_family: driver.profile.family.to_owned(),
            driver_library: driver.library().to_string_lossy().into_owned(),
            executable: String::from_utf8_lossy(program_name()).into_owned(),
            created: SystemTime::now()
                .duration_since(UNIX_EPOCH)
                .map_or(0, |since| since.as_secs()),
            compile_ns: nanoseconds(elapsed),
            facts,
            ..Meta::default()
        };
        withhold_texts(&mut meta.facts, private);
        meta
    }
}

/// Whether each device has the binary type that the operation makes: an executable, a compiled object, or either an executable or a
/// library. Drivers of OpenCL 1.1 have no such query, and only build.
fn is_of_the_right_type(facts: &Facts, built: &[usize], operation: &Operation) -> bool {
    let wanted: &[u32] = match operation {
        Operation::Build => &[CL_PROGRAM_BINARY_TYPE_EXECUTABLE],
        Operation::Compile(_) => &[CL_PROGRAM_BINARY_TYPE_COMPILED_OBJECT],
        Operation::Link(_) => &[
            CL_PROGRAM_BINARY_TYPE_EXECUTABLE,
            CL_PROGRAM_BINARY_TYPE_LIBRARY,
        ],
    };
    let first = built.first().and_then(|index| binary_type(facts, *index));
    built.iter().all(|index| match binary_type(facts, *index) {
        Some(kind) => Some(kind) == first && wanted.contains(&(kind as u32)),
        None => matches!(operation, Operation::Build) && first.is_none(),
    })
}
