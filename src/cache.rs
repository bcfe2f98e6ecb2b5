//! The policy: what becomes of a call that builds, compiles or links a program. Read this first.
//!
//! ```text
//! plan     what would the key be? no key: bypass, with a reason
//! look up  an entry that is whole and has this key?
//! restore  an inner program of its binaries, built and checked: a hit (a share of them is verified by a build from source)
//! wait     else, while another process or thread builds the same, for its entry
//! build    else the driver builds the application's own program, with the application's own arguments
//! record   a call that succeeded after a look-up becomes an entry, and what was no hit stands in the journal
//! ```
//!
//! Rules: a program that is not known here belongs to the driver alone (R1). What the entry and the inner program cannot
//! answer exactly makes the driver build the application's program for real (R2, in `materialize`). Before a call that changes
//! the state of a program that is being served, the program is built for real, so that the driver itself gives the verdict
//! (R3). Failures always come from the driver. In any doubt the driver is called as if we were not there.

pub mod answer;
mod attribution;
pub mod audit;
pub mod autobake;
pub mod bake;
mod bakeable;
mod devices;
mod handle;
mod headers;
mod journal;
pub mod link;
mod look_up;
pub mod materialize;
mod memory;
mod must_hit;
mod plan;
pub mod policy;
mod recipe;
mod record;
mod restore;
mod single_flight;
mod sources;
mod verify;

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use once_cell::race::OnceBox;
use opencl_sys::*;

use crate::cl::{Device, Program};
use crate::config::Config;
use crate::driver::foreign_call::{self, Reference};
use crate::driver::identity::FileMemory;
use crate::driver::notify::{self, Held, Next};
use crate::driver::{BuildArguments, Driver, NotifyTarget};
use crate::log::text;
use crate::outcome::{Bypass, Missed, Outcome, Query};
use crate::shadow::{self, CachedProgram, Ended, Origin, Ticket};
use crate::store::Store;
use crate::store::digests::Digests;
use crate::store::driver_costs::Measures;
use crate::store::journal::{BuildResult, Kept};
use crate::store::library_facts;
use crate::store::stats::{Counter, Event, Labels};
use crate::store::tiers::Tiers;
use attribution::Attribution;
use audit::AuditMarks;
use handle::CacheHandle;
use journal::kernel_names_after;
use memory::Memory;
pub use plan::HeaderProgram;
use plan::Plan;
pub use record::without_texts;
use single_flight::Turn;
use sources::Sources;

/// The variable in which `oclcache run` passes the directory where it will look for its children's counters.
pub const RUN_VARIABLE: &str = "OCLCACHE_RUN";

// Opened without a lock, which a child that is forked meanwhile would wait for: if two threads do it, one is dropped unused.
static CACHE: OnceBox<Cache> = OnceBox::new();

/// The cache of this process.
pub struct Cache {
    config: Config,
    opened: CacheHandle,
    tiers: Tiers,
    digests: Digests,
    measures: Measures,
    memory: Memory,
    sources: Sources,
    marks: AuditMarks,
}

/// The arguments of a clBuildProgram or clCompileProgram call, as far as they could be read without judging them.
pub struct BuildCall {
    /// The program.
    pub program: Program,
    /// Devices and options.
    pub arguments: BuildArguments,
    /// The embedded headers of clCompileProgram; None is clBuildProgram.
    pub headers: Option<Vec<HeaderProgram>>,
    /// The callback.
    pub notify: NotifyTarget,
    /// Only the driver can judge the arguments: a count without a list, data without a callback, a NULL device.
    pub odd: bool,
}

/// Makes the process known to `oclcache run`, if it was started by that.
pub fn announce() {
    if std::env::var_os(RUN_VARIABLE).is_some()
        && let Some(recorder) = Cache::get().opened.recorder()
    {
        recorder.announce();
    }
}

/// What a forked child does before all else.
pub fn forked() {
    shadow::forked();
    for store in CACHE
        .get()
        .into_iter()
        .flat_map(|cache| cache.opened.stores())
    {
        store.locks().forked();
    }
}

/// What the driver's own clBuildProgram or clCompileProgram gets in place of the application's arguments.
#[derive(Clone, Copy)]
pub struct BuildBelow {
    /// The program.
    pub program: Program,
    /// The callback.
    pub notify: NotifyTarget,
}

/// clBuildProgram and clCompileProgram, until the driver or the application is called.
pub fn build(call: &BuildCall) -> Next<BuildBelow> {
    let cache = Cache::get();
    let ticket = match shadow::dead(call.program) {
        Some(dead) => Err(Some(dead)),
        None => shadow::begin(call.program).map(Box::new).ok_or(None),
    };
    let ticket = match ticket {
        Ok(ticket) => ticket,
        Err(dead) => return cache.leave_to_driver(call, dead),
    };
    let plan = cache.plan_call(&ticket, call);
    if cache.is_refused_by_baker(plan.as_deref().map_err(|reason| *reason)) {
        shadow::ended(&ticket, Ended::Refused, None, None);
        return Next::Return(call.program, CL_INVALID_OPERATION);
    }
    let mut turn = Turn::default();
    if let Ok(plan) = &plan
        && cache.serve(&ticket, plan, &mut turn)
    {
        return Next::Notify(call.notify, call.program);
    }
    cache.build_by_driver(ticket, plan, turn, call)
}

/// What has become of a build, compilation or link. `code` is what the function returned, if it has.
///
/// What it returns with a callback differs from driver to driver, also for builds that fail (measured: Intel's CPU runtime
/// returns 0), so the status decides.
fn verdict(
    driver: &Driver,
    program: Program,
    devices: Option<&[Device]>,
    code: Option<cl_int>,
) -> Ended {
    if code.is_some_and(is_refusal) {
        return Ended::Refused;
    }
    let all;
    let devices = match devices {
        Some(devices) => devices,
        None => {
            all = driver.program_devices(program).unwrap_or_default();
            &all
        }
    };
    let succeeded = matches!(code, None | Some(CL_SUCCESS))
        && !devices.is_empty()
        && devices
            .iter()
            .all(|device| driver.build_status(program, *device) == Ok(CL_BUILD_SUCCESS));
    if succeeded {
        Ended::Built
    } else {
        Ended::Failed
    }
}

/// Whether the driver refused the call before it changed the program (OpenCL 3.0, 5.8.4: errors of arguments, and kernels
/// attached to the program).
fn is_refusal(code: cl_int) -> bool {
    matches!(
        code,
        CL_INVALID_OPERATION | CL_INVALID_VALUE | CL_INVALID_DEVICE | CL_INVALID_PROGRAM
    )
}

/// A kernel of P that stands for the kernels of P' in the eyes of the driver, while it judges a call.
struct HeldKernel(&'static Driver, crate::cl::Kernel);

impl Drop for HeldKernel {
    fn drop(&mut self) {
        foreign_call::give_back(self.0, Reference::Kernel(self.1));
    }
}

impl FileMemory for Cache {
    fn digest(&self, path: &Path) -> io::Result<[u8; 32]> {
        self.digests.digest(self.store(), path)
    }

    fn facts(&self, identity: &[u8; 32]) -> Option<File> {
        library_facts::open(self.store()?, identity)
    }

    fn remember_facts(&self, identity: &[u8; 32], facts: &[u8]) {
        if let Some(store) = self.written_store() {
            library_facts::save(store, identity, facts);
        }
    }

    fn is_neutral_library(&self, name: &str) -> bool {
        self.config.is_neutral_library(name)
    }
}

impl Cache {
    /// The cache of this process, opened at the first build.
    pub fn get() -> &'static Cache {
        CACHE.get_or_init(|| Box::new(Cache::open(Config::read())))
    }

    fn open(config: Config) -> Cache {
        let opened = CacheHandle::new(&config);
        Cache {
            tiers: Tiers::new(config.system_dirs(), &config.trusted_owners()),
            config,
            opened,
            digests: Digests::new(),
            measures: Measures::default(),
            memory: Memory::new(),
            sources: Sources::default(),
            marks: AuditMarks::default(),
        }
    }

    /// The user's entries; None: the cache is off.
    fn store(&self) -> Option<&Store> {
        self.opened.store()
    }

    /// The same, unless it is only read.
    fn written_store(&self) -> Option<&Store> {
        self.store().filter(|_| !self.config.readonly())
    }

    fn count(&self, place: Labels<'_>, events: &[Event]) {
        if let Some(recorder) = self.opened.recorder() {
            recorder.record(place, events);
        }
    }

    /// The directory may be removed while the program runs.
    fn open_again_if_lost(&self) {
        if self.opened.open_again_if_lost(&self.config) {
            self.digests.forget_saved();
            self.remember_digests();
        }
    }

    /// Keeps digests of driver files for the next process.
    fn remember_digests(&self) {
        if let Some(store) = self.written_store() {
            self.digests.save(store);
        }
    }

    fn count_hit(&self, plan: &Plan, inner: &CachedProgram, elapsed: Duration) {
        let load_ns = nanoseconds(elapsed);
        let events = [
            Counter::Hits.by(1),
            Counter::SystemHits.by(inner.is_of_system().into()),
            Counter::LoadNs.by(load_ns),
            Counter::SavedNs.by(inner.compile_ns().saturating_sub(load_ns)),
        ];
        self.count(plan.place(), &events);
        log_build(
            Outcome::Hit,
            Some(plan),
            &inner.facts().kernel_names,
            elapsed,
        );
        // The recipe of an entry of the system's is somebody else's.
        if self.written_store().is_some() && !inner.is_of_system() {
            autobake::hit_served(&self.config, &plan.key());
        }
    }

    #[inline(never)] // what it keeps on the stack is not below the driver's compiler
    fn count_not_from_source(&self) {
        self.count_bypass(
            &Attribution::default(),
            Bypass::NotFromSource,
            Vec::new(),
            Duration::ZERO,
        );
    }

    #[inline(never)] // as above
    fn plan_call(&self, ticket: &Ticket, call: &BuildCall) -> Result<Box<Plan>, Bypass> {
        let started = Instant::now();
        let plan = match call.odd {
            true => Err(Bypass::UnusualArguments),
            false => self.plan(ticket, &call.arguments, call.headers.as_deref()),
        };
        tracing::debug!(key_ns = nanoseconds(started.elapsed()), "planned");
        plan
    }

    /// Serves a program from the cache; false: the driver is to build it.
    #[inline(never)] // as above
    fn serve(&self, ticket: &Ticket, plan: &Plan, turn: &mut Turn) -> bool {
        let started = Instant::now();
        let inner = self.hit(ticket, plan);
        let Some(inner) = inner.or_else(|| self.wait(ticket, plan).found_or(turn)) else {
            return false;
        };
        match shadow::publish(ticket, inner.clone()) {
            Ok(()) => self.count_hit(plan, &inner, started.elapsed()),
            // Another thread builds the same program: the driver sorts that out.
            Err(unpublished) => {
                plan.missed_by(Missed::ConcurrentBuild);
                drop(unpublished);
                return false;
            }
        }
        true
    }

    /// The call is the driver's own affair, so callbacks that it makes are outside of our hooks. `dead`: see [`shadow::dead`].
    #[inline(never)] // as above
    fn leave_to_driver(
        &self,
        call: &BuildCall,
        dead: Option<Arc<CachedProgram>>,
    ) -> Next<BuildBelow> {
        let mut program = call.program;
        let mut number = None;
        match dead {
            Some(dead) => {
                program = dead.program();
                number = Some(notify::begun_outside(Box::new(dead)));
            }
            None => self.count_not_from_source(),
        }
        let notify = call.notify;
        Next::Call {
            arguments: BuildBelow { program, notify },
            number,
            is_outside: true,
        }
    }

    /// The driver is to build the application's program; what succeeds after a look-up is recorded.
    fn build_by_driver(
        &'static self,
        ticket: Box<Ticket>,
        plan: Result<Box<Plan>, Bypass>,
        turn: Turn,
        call: &BuildCall,
    ) -> Next<BuildBelow> {
        if matches!(ticket.origin, Origin::Linked) {
            return self.change_linked(ticket, call);
        }
        let held = self.prepare_change(&ticket);
        // While the application is in the call: later the program may be gone.
        let of = match &plan {
            Ok(_) => Attribution::driver(ticket.driver),
            Err(_) => Attribution::program(ticket.driver, ticket.program, &call.arguments),
        };
        let refusable = ticket.built && plan::has_kernels(&ticket);
        let devices = call.arguments.devices.clone();
        let started = Instant::now();
        let finish = Box::new(move |_, code: Option<cl_int>| {
            let elapsed = started.elapsed();
            if self.built(&ticket, plan, &of, devices, code, elapsed) {
                turn.published();
            }
        });
        let program = call.program;
        let (number, notify) =
            notify::begun(Some(program), call.notify, refusable, held, None, finish);
        Next::Call {
            arguments: BuildBelow { program, notify },
            number: Some(number),
            is_outside: false,
        }
    }

    /// What follows a build by the driver, before the application hears of it. Tells whether there is an entry of it now.
    fn built(
        &self,
        ticket: &Ticket,
        plan: Result<Box<Plan>, Bypass>,
        of: &Attribution,
        devices: Option<Vec<Device>>,
        code: Option<cl_int>,
        elapsed: Duration,
    ) -> bool {
        if !shadow::set_busy(ticket, true) {
            // The application has released the program in its callback, or a later build has begun: there is nothing left to
            // ask, and what this build has made cannot be told any more.
            let how = match code.is_some_and(is_refusal) {
                true => Ended::Refused,
                false => Ended::Failed,
            };
            shadow::ended(ticket, how, None, None);
            self.count_bypass(of, Bypass::ConcurrentBuild, Vec::new(), elapsed);
            return false;
        }
        let how = verdict(ticket.driver, ticket.program, devices.as_deref(), code);
        if how != Ended::Built {
            shadow::ended(ticket, how, None, None);
            self.count_failed(of, plan.as_deref().ok(), elapsed);
            return false;
        }
        match plan {
            // Nobody knows which of its contents the driver has read.
            Ok(plan) if !plan.still_holds() => {
                shadow::ended(ticket, how, None, None);
                tracing::warn!(key = %plan.key_prefix(), "not stored: a header was changed, made or removed meanwhile");
                self.count(plan.place(), &[Counter::NotStored.by(1)]);
                self.count_miss(ticket.driver, &plan, Vec::new(), Kept::Nothing, elapsed);
                false
            }
            Ok(plan) => {
                let is_alone = || shadow::is_alone(ticket);
                let (names, kept) =
                    self.record(ticket.driver, ticket.program, &plan, elapsed, &is_alone);
                let recorded = (kept == Kept::Entry).then(|| plan.key());
                shadow::ended(ticket, how, recorded, Some(plan.recipe.clone()));
                self.count_miss(ticket.driver, &plan, names, kept, elapsed);
                recorded.is_some()
            }
            Err(reason) => {
                let names = kernel_names_after(ticket.driver, ticket.program, reason);
                shadow::ended(ticket, how, None, None);
                self.count_bypass(of, reason, names, elapsed);
                false
            }
        }
    }

    fn count_miss(
        &self,
        driver: &Driver,
        plan: &Plan,
        names: Vec<Vec<u8>>,
        kept: Kept,
        elapsed: Duration,
    ) {
        let events = [
            Counter::Misses.by(1),
            Counter::CompileNs.by(nanoseconds(elapsed)),
            plan.missed().into(),
        ];
        self.count(plan.place(), &events);
        log_build(Outcome::Miss, Some(plan), &names, elapsed);
        self.must_have_hit(Outcome::Miss, Some(plan), &names);
        let recache = self.config.recache();
        let ended = BuildResult::Miss { kept, recache };
        self.note(Some(driver), Some(plan), names, ended, elapsed);
    }

    fn count_bypass(
        &self,
        of: &Attribution,
        reason: Bypass,
        names: Vec<Vec<u8>>,
        elapsed: Duration,
    ) {
        let place = of.place();
        self.count(
            place,
            &[reason.into(), Counter::BypassedNs.by(nanoseconds(elapsed))],
        );
        log_build(Outcome::Bypassed(reason), None, &names, elapsed);
        self.must_have_hit(Outcome::Bypassed(reason), None, &names);
        self.note(
            of.driver,
            None,
            names,
            BuildResult::bypassed(reason),
            elapsed,
        );
    }

    fn count_failed(&self, of: &Attribution, plan: Option<&Plan>, elapsed: Duration) {
        let place = plan.map_or_else(|| of.place(), Plan::place);
        let events = [
            Counter::Failed.by(1),
            Counter::FailedNs.by(nanoseconds(elapsed)),
        ];
        self.count(place, &events);
        log_build(Outcome::Failed, plan, &[], elapsed);
        self.note(of.driver, plan, Vec::new(), BuildResult::Failed, elapsed);
    }

    /// R3: before a call that changes the state of a served program, it is built for real and answers for itself, also in
    /// the call's callback, and if kernels of its P' are alive, one of P is held until the driver has judged.
    fn prepare_change(&self, ticket: &Ticket) -> Option<Held> {
        let inner = ticket.inner.as_ref().filter(|inner| inner.is_apart())?;
        if !self.build_own(ticket.program, inner, Query::Rebuild) {
            return None;
        }
        shadow::stand_aside(ticket);
        self.held_kernel(ticket, inner, ticket.program)
    }

    /// A kernel of `judged`, which the driver judges in place of what serves and which has no kernel yet, if kernels of what serves
    /// are alive. Which kernels count is the driver's to say: rusticl builds over clones and over kernels that only commands hold,
    /// PoCL does not (measured).
    fn held_kernel(&self, ticket: &Ticket, inner: &CachedProgram, judged: Program) -> Option<Held> {
        if !answer::executes(inner)
            || !plan::has_inner_kernels(ticket, inner)
            || !restore::refuses_to_build_again(inner)
        {
            return None;
        }
        let driver = ticket.driver;
        let facts = inner.facts();
        let name = CString::new(facts.kernel_names.first()?.clone()).ok()?;
        let kernel = driver.create_kernel(judged, &name).ok()?;
        Some(Box::new(HeldKernel(driver, kernel)))
    }
}

fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// One line for each build call.
fn log_build(outcome: Outcome, plan: Option<&Plan>, kernel_names: &[Vec<u8>], elapsed: Duration) {
    if !tracing::enabled!(tracing::Level::INFO) {
        return;
    }
    let reason = match outcome {
        Outcome::Bypassed(reason) => reason.name(),
        _ => "",
    };
    let key = plan.map(Plan::key_prefix).unwrap_or_default();
    let kernels = kernel_names.join(&b' ');
    let ms = elapsed.as_secs_f64() * 1e3;
    tracing::info!(outcome = outcome.name(), reason, key, kernels = %text(&kernels), ms = format_args!("{ms:.3}"), "build");
}
