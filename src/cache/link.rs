//! clLinkProgram. The result is cached like a build, but it is a new program.
//!
//! On a hit the application gets the program that was made from the recorded binaries. If a query needs more, the driver makes a
//! *twin*: it links newly made inputs again (`materialize`).

use std::time::Instant;

use opencl_sys::*;

use super::attribution::Attribution;
use super::counting::BuildTime;
use super::journal::kernel_names_after;
use super::plan::Plan;
use super::record::Miss;
use super::single_flight::BuildTurn;
use super::{BuildBelow, BuildCall, Cache, verdict};
use crate::cl::{Context, Program};
use crate::driver::notify::{self, HeldObject, NextStep};
use crate::driver::{BuildArguments, Driver, NotifyTarget, variable_history};
use crate::linker_lock;
use crate::outcome::{Bypass, Query};
use crate::shadow::{self, BuildEnd, Owner, Ticket};
use crate::store::journal::Kept;

/// The arguments of a clLinkProgram call.
pub struct LinkCall {
    /// The driver of the context.
    pub driver: &'static Driver,
    /// The context.
    pub context: Context,
    /// Devices and options.
    pub arguments: BuildArguments,
    /// The linked programs.
    pub inputs: Vec<Program>,
    /// The callback.
    pub notify: NotifyTarget,
    /// See [`BuildCall::odd`].
    pub odd: bool,
}

/// The arguments of the driver's own clLinkProgram that replace the application's.
#[derive(Clone, Copy)]
pub struct LinkBelow {
    /// The inputs and their number. None: the application's. They live until the function has returned.
    pub inputs: Option<(*const Program, usize)>,
    /// The callback.
    pub notify: NotifyTarget,
}

/// Handles clLinkProgram up to the call of the driver or of the application's callback.
pub fn link(call: &LinkCall) -> NextStep<LinkBelow> {
    let started = Instant::now();
    variable_history::note();
    let cache = Cache::get();
    let plan = if cache.switch.look() {
        Err(Bypass::SwitchedOff)
    } else if call.odd {
        Err(Bypass::UnusualArguments)
    } else if linker_lock::is_busy_for_long() {
        Err(Bypass::OpeningLibrary)
    } else {
        cache.plan_link(call.driver, call.context, &call.arguments, &call.inputs)
    };
    if cache.is_refused_by_baker(plan.as_deref().map_err(|reason| *reason)) {
        return NextStep::Return(Program::new(std::ptr::null_mut()), CL_INVALID_OPERATION);
    }
    let mut turn = BuildTurn::default();
    let find = |plan| {
        let entry = cache.look_up(plan)?;
        let owner = Owner::Application;
        cache.restore(call.driver, call.context, owner, plan, entry)
    };
    if let Ok(plan) = &plan
        && let Some(inner) = find(plan).or_else(|| {
            let waited = cache.one_build(call.driver, plan, &|| true, || find(plan));
            waited.found_or(&mut turn)
        })
    {
        let program = inner.program();
        let recipe = Some(plan.recipe.clone());
        shadow::program_linked(
            call.driver,
            call.context,
            program,
            Some(inner.clone()),
            None,
            recipe,
        );
        cache.count_hit(&inner, started.elapsed());
        drop(inner);
        return NextStep::Notify(call.notify, program);
    }
    cache.link_by_driver(plan, turn, call, started)
}

impl Cache {
    /// Handles a build or compilation of the result of a link. The specification defines no use for it. The served program was made
    /// from a binary, which drivers judge differently, so the twin is judged (R3) and answers from then on. The twin is asked
    /// nothing else: Intel's CPU runtime ends the process when the log of a built library is queried (measured). If a driver builds
    /// a link's result again, its code does not change (measured on Intel's CPU runtime and rusticl), so kernels still come from
    /// the served program. After a compilation there are none (measured on NEO 22.43).
    pub(super) fn change_linked(
        &'static self,
        ticket: Box<Ticket>,
        call: &BuildCall,
    ) -> NextStep<BuildBelow> {
        let of = match ticket.concurrent {
            true => Attribution::driver(ticket.driver),
            false => Attribution::program(ticket.driver, ticket.program, &call.arguments),
        };
        self.count_bypass(&of, Bypass::FromBinary, Vec::new(), BuildTime::default());
        let program = call.program;
        let twin = ticket
            .inner
            .as_ref()
            .and_then(|inner| self.own(program, inner, Query::Rebuild))
            .map(|own| own.program);
        let judged = twin.unwrap_or(program);
        let inner = ticket.inner.as_ref().filter(|_| twin.is_some());
        let held = inner.and_then(|inner| self.held_kernel(&ticket, inner, judged));
        let devices = call.arguments.devices.clone();
        let driver = ticket.driver;
        let is_compilation = call.headers.is_some();
        let finish = Box::new(move |_, code: Option<cl_int>| {
            let how = verdict(driver, judged, devices.as_deref(), code);
            match &ticket.inner {
                Some(inner) if twin.is_some() && how != BuildEnd::Refused => {
                    inner.set_changed(how == BuildEnd::Failed || is_compilation);
                    shadow::ended(&ticket, BuildEnd::Twin, None, None);
                }
                _ => shadow::ended(&ticket, how, None, None),
            }
        });
        let (number, notify) =
            notify::begin_call(Some(program), call.notify, true, held, None, finish);
        NextStep::Call {
            arguments: BuildBelow {
                program: judged,
                notify,
            },
            number: Some(number),
            is_outside: false,
        }
    }

    /// Lets the driver link. A link that succeeds after a look-up is recorded. `called`: when the call began.
    fn link_by_driver(
        &'static self,
        plan: Result<Box<Plan>, Bypass>,
        turn: BuildTurn,
        call: &LinkCall,
        called: Instant,
    ) -> NextStep<LinkBelow> {
        // Served inputs are built for real first. Intel's CPU runtime loses the arguments of kernels in objects from binaries
        // (measured), and what drivers say of linking an executable depends on how that was made.
        let served = |input: &Program| self.in_place_of(*input);
        let served: Vec<_> = call.inputs.iter().map(served).collect();
        let is_changed = served.iter().any(Option::is_some);
        let linked = call.inputs.iter().zip(&served);
        let linked =
            linked.map(|(input, served)| served.as_ref().map_or(*input, |inner| inner.in_place()));
        let linked: Option<Vec<Program>> = is_changed.then(|| linked.collect());
        let (driver, context) = (call.driver, call.context);
        let devices = call.arguments.devices.clone();
        let inputs = call.inputs.clone();
        // Where there is no plan, the context and the devices are not proven to be any.
        let of = Attribution::driver(driver);
        let watch = driver.watch_libraries();
        let started = Instant::now();
        let finish = Box::new(move |program: Program, code: Option<cl_int>| {
            let time = BuildTime {
                before: started - called,
                driver: started.elapsed(),
            };
            // Forget any earlier program at this address before the application gets the handle.
            shadow::program_recycled(program);
            let how = if program.is_null() {
                BuildEnd::Failed
            } else {
                verdict(driver, program, devices.as_deref(), code)
            };
            if how != BuildEnd::Built {
                driver.note_libraries(&watch, self);
                return self.count_failed(&of, plan.as_deref().ok(), time);
            }
            // Another thread may have compiled an input again before the driver read it.
            let plan = plan.and_then(|plan| match plan.is_of(&inputs, context) {
                _ if linker_lock::is_busy_for_long() => Err(Bypass::OpeningLibrary),
                true if is_changed => Err(Bypass::ReadsFile),
                true => Ok(plan),
                false => Err(Bypass::ConcurrentBuild),
            });
            drop(served); // the driver has linked them
            match plan {
                Ok(plan) => {
                    let (names, kept) = self.record(&Miss {
                        driver,
                        program,
                        context,
                        plan: &plan,
                        elapsed: time.driver,
                        is_alone: &|| true,
                    });
                    let recipe = Some(plan.recipe.clone());
                    let recorded = (kept == Kept::Entry).then(|| plan.key());
                    shadow::program_linked(driver, context, program, None, recorded, recipe);
                    self.count_miss(driver, &plan, names, kept, time);
                    if recorded.is_some() {
                        turn.published();
                    }
                }
                Err(reason) => {
                    let names = kernel_names_after(driver, program, reason);
                    self.count_bypass(&of, reason, names, time);
                }
            }
            // Last, since what is stored has looked for them itself.
            driver.note_libraries(&watch, self);
        });
        let inputs = linked
            .as_ref()
            .map(|linked| (linked.as_ptr(), linked.len()));
        let kept = linked.map(|linked| Box::new(linked) as HeldObject);
        let (number, notify) = notify::begin_call(None, call.notify, false, None, kept, finish);
        NextStep::Call {
            arguments: LinkBelow { inputs, notify },
            number: Some(number),
            is_outside: false,
        }
    }
}
