//! clLinkProgram: its result is cached like a build, but is a program of its own.
//!
//! On a hit the application gets the program that was made from the recorded binaries. Where that is not enough, the driver
//! makes a *twin* of it from anew made inputs (`materialize`).

use std::time::{Duration, Instant};

use opencl_sys::*;

use super::attribution::Attribution;
use super::journal::kernel_names_after;
use super::plan::Plan;
use super::single_flight::Turn;
use super::{BuildBelow, BuildCall, Cache, verdict};
use crate::cl::{Context, Program};
use crate::driver::notify::{self, Held, Next};
use crate::driver::{BuildArguments, Driver, NotifyTarget};
use crate::outcome::{Bypass, Query};
use crate::shadow::{self, Ended, Owner, Ticket};
use crate::store::journal::Kept;

/// The arguments of a clLinkProgram call.
pub struct LinkCall {
    /// The driver of the context.
    pub driver: &'static Driver,
    /// The context.
    pub context: Context,
    /// Devices and options.
    pub arguments: BuildArguments,
    /// What is linked.
    pub inputs: Vec<Program>,
    /// The callback.
    pub notify: NotifyTarget,
    /// See [`BuildCall::odd`].
    pub odd: bool,
}

/// What the driver's own clLinkProgram gets in place of the application's arguments.
#[derive(Clone, Copy)]
pub struct LinkBelow {
    /// The inputs and how many they are; None: the application's. They live until the function has returned.
    pub inputs: Option<(*const Program, usize)>,
    /// The callback.
    pub notify: NotifyTarget,
}

/// clLinkProgram, until the driver or the application is called.
pub fn link(call: &LinkCall) -> Next<LinkBelow> {
    let cache = Cache::get();
    let plan = if call.odd {
        Err(Bypass::UnusualArguments)
    } else {
        cache.plan_link(call.driver, call.context, &call.arguments, &call.inputs)
    };
    if cache.is_refused_by_baker(plan.as_deref().map_err(|reason| *reason)) {
        return Next::Return(Program::new(std::ptr::null_mut()), CL_INVALID_OPERATION);
    }
    let started = Instant::now();
    let mut turn = Turn::default();
    let find = |plan| {
        let entry = cache.look_up(plan)?;
        let standing = Owner::Applications;
        cache.restore(call.driver, call.context, standing, plan, entry)
    };
    if let Ok(plan) = &plan
        && let Some(inner) = find(plan).or_else(|| {
            let waited = cache.one_build(plan, &|| true, || find(plan));
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
        cache.count_hit(plan, &inner, started.elapsed());
        drop(inner);
        return Next::Notify(call.notify, program);
    }
    cache.link_by_driver(plan, turn, call)
}

impl Cache {
    /// A call that would change the result of a link, which the specification has no use for. What serves one was made from a
    /// binary, of which drivers say other things, so its twin is judged (R3), and answers from then on. It is asked nothing unasked:
    /// Intel's CPU runtime ends the process when the log of a library that was built is asked for (measured). Where drivers let a
    /// link be built again, its code stays what it was (measured on Intel's CPU runtime and rusticl), so its kernels still come from
    /// what is served.
    pub(super) fn change_linked(
        &'static self,
        ticket: Box<Ticket>,
        call: &BuildCall,
    ) -> Next<BuildBelow> {
        let of = Attribution::program(ticket.driver, ticket.program, &call.arguments);
        self.count_bypass(&of, Bypass::FromBinary, Vec::new(), Duration::ZERO);
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
        let finish = Box::new(move |_, code: Option<cl_int>| {
            let how = verdict(driver, judged, devices.as_deref(), code);
            match &ticket.inner {
                Some(inner) if twin.is_some() && how != Ended::Refused => {
                    inner.set_changed(how == Ended::Failed);
                    shadow::ended(&ticket, Ended::Twin, None, None);
                }
                _ => shadow::ended(&ticket, how, None, None),
            }
        });
        let (number, notify) = notify::begun(Some(program), call.notify, true, held, None, finish);
        Next::Call {
            arguments: BuildBelow {
                program: judged,
                notify,
            },
            number: Some(number),
            is_outside: false,
        }
    }

    /// The driver is to link; what succeeds after a look-up is recorded.
    fn link_by_driver(
        &'static self,
        plan: Result<Box<Plan>, Bypass>,
        turn: Turn,
        call: &LinkCall,
    ) -> Next<LinkBelow> {
        // Inputs that are served are made for real first: Intel's CPU runtime forgets the arguments of kernels in objects that
        // were made from binaries (measured), and what drivers say of linking an executable depends on how that was made.
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
        let of = match (&plan, devices.as_ref().and_then(|devices| devices.first())) {
            (Err(_), Some(device)) => Attribution::device(driver, *device),
            _ => Attribution::driver(driver),
        };
        let started = Instant::now();
        let finish = Box::new(move |program: Program, code: Option<cl_int>| {
            let elapsed = started.elapsed();
            // Whatever its address stood for before must be forgotten before the application hears of it.
            shadow::program_recycled(program);
            let how = if program.is_null() {
                Ended::Failed
            } else {
                verdict(driver, program, devices.as_deref(), code)
            };
            if how != Ended::Built {
                return self.count_failed(&of, plan.as_deref().ok(), elapsed);
            }
            // Another thread may have compiled an input anew before the driver read it.
            let plan = plan.and_then(|plan| match plan.is_of(&inputs, context) {
                true if is_changed => Err(Bypass::ReadsFile),
                true => Ok(plan),
                false => Err(Bypass::ConcurrentBuild),
            });
            drop(served); // the driver has linked them
            match plan {
                Ok(plan) => {
                    let (names, kept) = self.record(driver, program, &plan, elapsed, &|| true);
                    let recipe = Some(plan.recipe.clone());
                    let recorded = (kept == Kept::Entry).then(|| plan.key());
                    shadow::program_linked(driver, context, program, None, recorded, recipe);
                    self.count_miss(driver, &plan, names, kept, elapsed);
                    if recorded.is_some() {
                        turn.published();
                    }
                }
                Err(reason) => {
                    let names = kernel_names_after(driver, program, reason);
                    self.count_bypass(&of, reason, names, elapsed);
                }
            }
        });
        let inputs = linked
            .as_ref()
            .map(|linked| (linked.as_ptr(), linked.len()));
        let kept = linked.map(|linked| Box::new(linked) as Held);
        let (number, notify) = notify::begun(None, call.notify, false, None, kept, finish);
        Next::Call {
            arguments: LinkBelow { inputs, notify },
            number: Some(number),
            is_outside: false,
        }
    }
}
