//! The policy: how a call that builds, compiles or links a program is answered. Read this first.
//!
//! ```text
//! plan     what would the key be? no key: bypass, with a reason
//! look up  an entry that is whole and has this key?
//! restore  make an inner program from the entry's binaries, build and check it: a hit (some hits are verified by a build from source)
//! wait     else, if another process or thread is building the same program, wait for its entry
//! build    else the driver builds the application's own program, with the application's own arguments
//! record   a build that succeeded after a look-up found nothing becomes an entry; every build that is not a hit is journaled
//! ```
//!
//! The inner program is P' of the crate's glossary. Rules:
//!
//! - R1: a program that is not known here belongs to the driver alone.
//! - R2: if neither the entry nor the inner program can answer exactly, the driver builds the application's program for real
//!   (`materialize`).
//! - R3: before a call that changes a program that is served from the cache and that has no key, the driver builds that program for
//!   real. Then the call goes to the driver, which decides whether it is valid.
//!
//! Failures always come from the driver. In any doubt the driver is called as if we were not there.

mod amend;
pub mod answer;
mod attribution;
pub mod audit;
pub mod autobake;
pub mod bake;
mod bakeable;
pub mod behavior;
mod built_again;
mod change;
mod counting;
mod devices;
mod driver_files;
pub mod early_reading;
mod entry_memory;
mod facts;
mod first_build;
mod handle;
mod headers;
mod journal;
mod known_sources;
pub mod link;
mod look_up;
pub mod materialize;
mod must_hit;
mod plan;
pub mod policy;
pub mod private_texts;
mod program_binaries;
mod prove;
mod recipe;
mod record;
mod restore;
mod shared_entries;
mod single_flight;
mod verify;
mod withheld_texts;

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use once_cell::race::OnceBox;
use opencl_sys::*;

use crate::cl::{Device, Program};
use crate::config::{Config, SiteSwitch};
use crate::driver::notify::{self, NextStep};
use crate::driver::{BuildArguments, Driver, NotifyTarget, variable_history};
use crate::linker_lock;
use crate::one_call::{self, CallPart};
use crate::outcome::{Bypass, Missed};
use crate::remote::client::RemoteClient;
use crate::shadow::{self, BuildEnd, CachedProgram, Origin, Ticket};
use crate::store::Store;
use crate::store::digests::Digests;
use crate::store::driver_costs::CostMemory;
use crate::store::journal::Kept;
use crate::store::tiers::Tiers;
use crate::syscall_filters;
use amend::WaitingKernels;
use attribution::Attribution;
use audit::AuditMarks;
use change::Judged;
use counting::{BuildTime, nanoseconds};
use entry_memory::EntryMemory;
use first_build::{Beginning, FirstBuild};
use handle::CacheHandle;
use journal::kernel_names_after;
use known_sources::KnownSources;
pub use plan::HeaderProgram;
use plan::{Plan, SharedParts};
use record::Miss;
pub use shared_entries::hello;
use single_flight::BuildTurn;

pub use crate::store::stats::RUN_VARIABLE;

// Opened without a lock: a child that is forked meanwhile would wait for it. If two threads open the cache, one result is dropped
// unused.
static CACHE: OnceBox<Cache> = OnceBox::new();

/// The settings of the process, from when a loader first called this library.
static SETTINGS: OnceBox<Config> = OnceBox::new();

/// The cache of this process.
pub struct Cache {
    config: Config,
    switch: SiteSwitch,
    opened: CacheHandle,
    tiers: Tiers,
    digests: Digests,
    measures: CostMemory,
    memory: EntryMemory,
    sources: KnownSources,
    shared_parts: SharedParts,
    marks: AuditMarks,
    /// Whether there are names to be gathered behind this process.
    lacks_names: AtomicBool,
    /// None: there is no remote store.
    remote: Option<RemoteClient>,
    waiting_kernels: WaitingKernels,
}

/// The arguments of a clBuildProgram or clCompileProgram call, read but not judged.
pub struct BuildCall {
    /// The program.
    pub program: Program,
    /// Devices and options.
    pub arguments: BuildArguments,
    /// The embedded headers of clCompileProgram; None is clBuildProgram.
    pub headers: Option<Vec<HeaderProgram>>,
    /// The callback.
    pub notify: NotifyTarget,
    /// Whether only the driver can judge the arguments: a count without a list, data without a callback, a NULL device.
    pub odd: bool,
}

/// Tells the cache its settings, before it is opened. Otherwise it would read the environment at the first build, while another thread of
/// the program may change it: the C library then reads memory that it has freed.
pub fn set_up(config: &Config) {
    SETTINGS.get_or_init(|| Box::new(config.clone()));
}

/// Announces the process to `oclcache run`, if that started the process.
pub fn announce() {
    if std::env::var_os(RUN_VARIABLE).is_some()
        && let Some(recorder) = Cache::get().opened.recorder()
    {
        recorder.announce();
    }
}

/// Whether an administrator had switched the cache off at the last build. Nothing is written from then on.
pub fn is_switched_off() -> bool {
    CACHE.get().is_some_and(|cache| cache.switch.was_off())
}

/// Writes what hits have left to be written, at the end of the process. Calls no driver. A program that has forbidden itself system calls
/// since the first build may be killed for any of ours, so then nothing is written.
pub fn at_end() {
    let Some(cache) = CACHE.get() else {
        return;
    };
    if cache.switch.was_off() {
        return;
    }
    if let Some(recorder) = cache.opened.recorder() {
        recorder.at_end();
    }
    if let Some(store) = cache.written_store() {
        store.at_end();
    }
}

/// Runs first in a forked child.
pub fn forked() {
    variable_history::forked();
    shadow::forked();
    let Some(cache) = CACHE.get() else {
        return;
    };
    cache.measures.forked();
    cache.waiting_kernels.forked();
    for store in cache.opened.stores() {
        store.forked();
    }
}

/// The arguments of the driver's own clBuildProgram or clCompileProgram that replace the application's.
#[derive(Clone, Copy)]
pub struct BuildBelow {
    /// The program.
    pub program: Program,
    /// The callback.
    pub notify: NotifyTarget,
}

/// Handles clBuildProgram and clCompileProgram up to the call of the driver or of the application's callback.
pub fn build(call: &BuildCall) -> NextStep<BuildBelow> {
    let started = Instant::now();
    variable_history::note();
    let ticket = match shadow::dead(call.program) {
        Some(dead) => Err(Some(dead)),
        None => {
            let devices = call.arguments.devices.as_deref();
            shadow::begin(call.program, devices)
                .map(Box::new)
                .ok_or(None)
        }
    };
    let ticket = match ticket {
        Ok(ticket) => ticket,
        Err(dead) => return Cache::get().leave_to_driver(call, dead),
    };
    if linker_lock::is_busy_for_long() {
        let plan = BuildPlan::Before(Err(Bypass::OpeningLibrary), BuildTurn::default());
        return Cache::get().build_by_driver(ticket, plan, call, started);
    }
    // No closures: they would have frames below the driver.
    let mut part = one_call::begin();
    let cache = Cache::get();
    if let Some(inner) = cache.built_again(&ticket, call)
        && cache.serve_by(&ticket, inner, started)
    {
        return NextStep::Notify(call.notify, call.program);
    }
    let (plan, mut turn) = match cache.begin(&ticket, call) {
        Beginning::Planned(plan, turn) => (plan, turn),
        Beginning::First(first) => {
            drop(part);
            return cache.build_by_driver(ticket, BuildPlan::Meanwhile(first), call, started);
        }
        Beginning::Behind(text) => {
            drop(part);
            let planned = cache.plan_behind(&text, &ticket, call, started);
            part = one_call::begin();
            planned
        }
    };
    if cache.is_refused_by_baker(plan.as_deref().map_err(|reason| *reason)) {
        shadow::ended(&ticket, BuildEnd::Refused, None, None);
        return NextStep::Return(call.program, CL_INVALID_OPERATION);
    }
    match &plan {
        Ok(plan) => {
            if cache.serve(&ticket, plan, &mut turn, part, started) {
                return NextStep::Notify(call.notify, call.program);
            }
        }
        Err(_) => drop(part),
    }
    cache.build_by_driver(ticket, BuildPlan::Before(plan, turn), call, started)
}

/// The plan of a build that the driver makes.
enum BuildPlan {
    /// Made before, with the right to build.
    Before(Result<Box<Plan>, Bypass>, BuildTurn),
    /// It is being made.
    Meanwhile(Box<FirstBuild>),
}

impl BuildPlan {
    /// The plan when the driver has built, and the turn that ends with the build.
    fn end(self, cache: &Cache) -> (Result<Box<Plan>, Bypass>, BuildTurn) {
        match self {
            BuildPlan::Before(plan, turn) => (plan, turn),
            BuildPlan::Meanwhile(first) => first.end(cache),
        }
    }
}

/// How a build, compilation or link ended. `code` is what the function returned, if it has returned.
///
/// With a callback, the returned code differs from driver to driver, also for builds that fail (measured: Intel's CPU runtime
/// returns 0). So the build status decides.
fn verdict(
    driver: &Driver,
    program: Program,
    devices: Option<&[Device]>,
    code: Option<cl_int>,
) -> BuildEnd {
    let has = |device: &Device, status| driver.build_status(program, *device) == Ok(status);
    let all = || driver.program_devices(program).unwrap_or_default();
    if code.is_some_and(is_refusal) {
        // Measured on NEO 22.43: a program that was built has failed after a compilation with a wrong list of headers.
        return match all().iter().any(|device| has(device, CL_BUILD_ERROR)) {
            true => BuildEnd::Failed,
            false => BuildEnd::Refused,
        };
    }
    let devices = devices.map_or_else(all, <[Device]>::to_vec);
    let succeeded = matches!(code, None | Some(CL_SUCCESS))
        && !devices.is_empty()
        && devices.iter().all(|device| has(device, CL_BUILD_SUCCESS));
    if succeeded {
        BuildEnd::Built
    } else {
        BuildEnd::Failed
    }
}

/// Whether the driver refused the call, and by the specification did not change the program (OpenCL 3.0, 5.8.4: invalid arguments,
/// or kernels attached to the program).
fn is_refusal(code: cl_int) -> bool {
    matches!(
        code,
        CL_INVALID_OPERATION | CL_INVALID_VALUE | CL_INVALID_DEVICE | CL_INVALID_PROGRAM
    )
}

impl Cache {
    /// The cache of this process, opened at the first build.
    pub fn get() -> &'static Cache {
        CACHE.get_or_init(|| {
            let switch = SiteSwitch::new();
            let config = SETTINGS.get().cloned().unwrap_or_else(Config::read);
            Box::new(Cache::open(config, switch))
        })
    }

    fn open(config: Config, switch: SiteSwitch) -> Cache {
        syscall_filters::note();
        let opened = CacheHandle::new(&config);
        let remote = RemoteClient::new(&config);
        Cache {
            tiers: Tiers::new(config.system_dirs(), &config.trusted_owners()),
            config,
            switch,
            opened,
            digests: Digests::new(),
            measures: CostMemory::default(),
            memory: EntryMemory::new(),
            sources: KnownSources::default(),
            shared_parts: SharedParts::default(),
            marks: AuditMarks::default(),
            lacks_names: AtomicBool::new(false),
            remote,
            waiting_kernels: WaitingKernels::default(),
        }
    }

    /// The user's store. None if the cache is off.
    fn store(&self) -> Option<&Store> {
        self.opened.store()
    }

    /// The user's store, unless the cache is read-only or switched off.
    fn written_store(&self) -> Option<&Store> {
        let may_write = !self.config.readonly() && !self.switch.was_off();
        self.store().filter(|_| may_write)
    }

    /// Opens the cache directory again if someone removed it.
    fn open_again_if_lost(&self) {
        if self.opened.open_again_if_lost(&self.config) {
            self.digests.forget_saved();
            self.remember_digests();
        }
    }

    #[inline(never)] // its frame is gone when the driver compiles
    fn plan_call(&self, ticket: &Ticket, call: &BuildCall) -> Result<Box<Plan>, Bypass> {
        let started = Instant::now();
        let plan = match call.odd {
            _ if self.switch.look() => Err(Bypass::SwitchedOff),
            true => Err(Bypass::UnusualArguments),
            false => self.plan(ticket, &call.arguments, call.headers.as_deref()),
        };
        tracing::debug!(key_ns = nanoseconds(started.elapsed()), "planned");
        plan
    }

    /// Serves a program from the cache. Returns false if the driver is to build it. `part`: in which the program was planned; `started`:
    /// when the call began.
    #[inline(never)] // its frame is gone when the driver compiles
    fn serve(
        &self,
        ticket: &Ticket,
        plan: &Plan,
        turn: &mut BuildTurn,
        part: CallPart,
        started: Instant,
    ) -> bool {
        let served = |inner| {
            let is_served = self.serve_by(ticket, inner, started);
            if !is_served {
                plan.missed_by(Missed::ConcurrentBuild);
            }
            is_served
        };
        if let Some(inner) = self.hit(ticket, plan) {
            return served(inner);
        }
        drop(part); // not while it waits for another process
        let waited = self.wait(ticket, plan, turn).found_or(turn);
        waited.is_some_and(served)
    }

    /// Serves a program by this one. Returns false if another thread builds the same program: the driver decides which build wins.
    fn serve_by(&self, ticket: &Ticket, inner: Arc<CachedProgram>, started: Instant) -> bool {
        let is_current = shadow::publish(ticket, inner.clone()).is_ok();
        if is_current {
            self.count_hit(&inner, started.elapsed());
        }
        is_current
    }

    /// Leaves a call to the driver alone. Hooks work in callbacks that the driver makes meanwhile. `dead`: see [`shadow::dead`].
    #[inline(never)] // its frame is gone when the driver compiles
    fn leave_to_driver(
        &self,
        call: &BuildCall,
        dead: Option<Arc<CachedProgram>>,
    ) -> NextStep<BuildBelow> {
        let mut program = call.program;
        let mut number = None;
        match dead {
            Some(dead) => {
                program = dead.program();
                number = Some(notify::begin_outside(Box::new(dead)));
            }
            None => self.count_from_binary(),
        }
        let notify = call.notify;
        NextStep::Call {
            arguments: BuildBelow { program, notify },
            number,
            is_outside: true,
        }
    }

    /// Lets the driver build the application's program. A build that succeeds after a look-up is recorded. `called`: when the call
    /// began.
    fn build_by_driver(
        &'static self,
        ticket: Box<Ticket>,
        plan: BuildPlan,
        call: &BuildCall,
        called: Instant,
    ) -> NextStep<BuildBelow> {
        if matches!(ticket.origin, Origin::Linked) {
            return self.change_linked(ticket, call);
        }
        let plan = match plan {
            BuildPlan::Before(plan, turn) => {
                BuildPlan::Before(plan.and_then(Plan::unless_in_the_way), turn)
            }
            first => first,
        };
        // Asked now, while the application is in the call: later the program may be released.
        let of = match &plan {
            // A program that is being built is not asked for its devices.
            BuildPlan::Before(Ok(_), _) => Attribution::driver(ticket.driver),
            _ if ticket.concurrent => Attribution::driver(ticket.driver),
            _ => Attribution::program(ticket.driver, ticket.program, &call.arguments),
        };
        let Judged { program, held } = self.prepare_change(&ticket, &plan);
        let refusable = held.is_some() || ticket.built && plan::has_kernels(&ticket);
        let devices = call.arguments.devices.clone();
        let watch = ticket.driver.watch_libraries();
        let started = Instant::now();
        let finish = Box::new(move |_, code: Option<cl_int>| {
            let time = BuildTime {
                before: started - called,
                driver: started.elapsed(),
            };
            // The application sees it as being built while a plan is waited for.
            shadow::set_busy(&ticket, true);
            let (plan, turn) = match plan {
                BuildPlan::Before(Err(reason), turn) => (Err(reason), turn),
                _ if linker_lock::is_busy_for_long() => {
                    (Err(Bypass::OpeningLibrary), BuildTurn::default())
                }
                plan => plan.end(self),
            };
            let is_recorded = self.built(&ticket, plan, &of, devices, code, time);
            // Last, since what is stored has looked for them itself.
            ticket.driver.note_libraries(&watch, self);
            if is_recorded {
                turn.published();
            }
        });
        let known_as = Some(call.program);
        let (number, notify) =
            notify::begin_call(known_as, call.notify, refusable, held, None, finish);
        NextStep::Call {
            arguments: BuildBelow { program, notify },
            number: Some(number),
            is_outside: false,
        }
    }

    /// Finishes a build by the driver, before the application's callback. Returns whether the cache has an entry of it now.
    fn built(
        &self,
        ticket: &Ticket,
        plan: Result<Box<Plan>, Bypass>,
        of: &Attribution,
        devices: Option<Vec<Device>>,
        code: Option<cl_int>,
        time: BuildTime,
    ) -> bool {
        if !shadow::set_busy(ticket, true) {
            // The application has released the program in its callback, or a later build has begun. The program cannot be asked for
            // the result of this build any more.
            let how = match code.is_some_and(is_refusal) {
                true => BuildEnd::Refused,
                false => BuildEnd::Failed,
            };
            shadow::ended(ticket, how, None, None);
            self.count_bypass(of, Bypass::ConcurrentBuild, Vec::new(), time);
            return false;
        }
        let how = verdict(ticket.driver, ticket.program, devices.as_deref(), code);
        if how != BuildEnd::Built {
            shadow::ended(ticket, how, None, None);
            self.count_failed(of, plan.as_deref().ok(), time);
            return false;
        }
        match plan {
            Ok(plan) => {
                if let Err(why) = plan.still_holds() {
                    shadow::ended(ticket, how, None, None);
                    self.not_stored(&plan, &why);
                    self.count_miss(ticket.driver, &plan, Vec::new(), Kept::Nothing, time);
                    return false;
                }
                let is_alone = || shadow::is_alone(ticket);
                let (names, kept) = self.record(&Miss {
                    driver: ticket.driver,
                    program: ticket.program,
                    context: ticket.context,
                    plan: &plan,
                    elapsed: time.driver,
                    is_alone: &is_alone,
                });
                let recorded = (kept == Kept::Entry).then(|| plan.key());
                shadow::ended(ticket, how, recorded, Some(plan.recipe.clone()));
                self.count_miss(ticket.driver, &plan, names, kept, time);
                recorded.is_some()
            }
            Err(reason) => {
                let names = kernel_names_after(ticket.driver, ticket.program, reason);
                shadow::ended(ticket, how, None, None);
                self.count_bypass(of, reason, names, time);
                false
            }
        }
    }
}
