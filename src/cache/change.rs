//! Calls that change a program which is served from the cache.

use std::ffi::CString;

use super::{BuildPlan, Cache, answer, plan, restore};
use crate::cl::{Kernel, Program};
use crate::driver::Driver;
use crate::driver::foreign_call::{self, OwnReference};
use crate::driver::notify::HeldObject;
use crate::driver::profile::Rebuild;
use crate::outcome::Query;
use crate::shadow::{self, CachedProgram, Ticket};

/// A kernel of P that represents the kernels of P' while the driver judges a call.
struct HeldKernel(&'static Driver, Kernel);

impl Drop for HeldKernel {
    fn drop(&mut self) {
        foreign_call::give_back(self.0, OwnReference::Kernel(self.1));
    }
}

/// What the driver is called for in a call that changes a program.
pub(super) struct Judged {
    /// The program that it gets.
    pub program: Program,
    /// What makes it judge that program as one with kernels.
    pub held: Option<HeldObject>,
}

impl Judged {
    fn own(ticket: &Ticket, held: Option<HeldObject>) -> Judged {
        Judged {
            program: ticket.program,
            held,
        }
    }
}

/// Whether the driver refuses to build P' because kernels of it are alive. It decides which kernels count: rusticl builds over clones and
/// over kernels that only commands hold, PoCL does not (measured).
fn refuses_for_kernels(ticket: &Ticket, inner: &CachedProgram) -> bool {
    answer::executes(inner)
        && plan::has_inner_kernels(ticket, inner)
        && restore::refuses_to_build_again(inner)
}

impl Cache {
    /// R3: builds a served program for real before a call that changes it, so that the driver judges the call. If kernels of its P'
    /// are alive, a kernel of P is held until then, and P' goes on to serve.
    ///
    /// A call that has a key needs nothing of what P has, unless other devices or the driver keep that. (If it fails, PoCL and Intel's GPU
    /// driver still have the binary of the build before, which is a limit. Intel's CPU runtime keeps more.) And P is not built of other
    /// inputs: that might fail, and that runtime refuses each later build then (measured). P' goes on to serve if the driver refuses the
    /// call. If kernels of P' are alive, the driver gets P' itself then, to refuse the call in its own way: the callback that it calls
    /// and the code differ from driver to driver.
    pub(super) fn prepare_change(&self, ticket: &Ticket, plan: &BuildPlan) -> Judged {
        let Some(inner) = ticket.inner.as_ref().filter(|inner| inner.is_inner()) else {
            return Judged::own(ticket, None);
        };
        let _alone = shadow::own_for_change(ticket);
        let is_fresh = self.behavior(ticket.driver).rebuild == Rebuild::Fresh
            && matches!(plan, BuildPlan::Before(Ok(plan), _) if plan.recipe.previous.is_none());
        if is_fresh {
            shadow::hide_inner(ticket);
            return Judged::own(ticket, None);
        }
        if !inner.is_materialized() && !self.still_holds(inner) {
            let program = inner.program();
            let held = self.held_kernel(ticket, inner, program);
            return match held.is_some() {
                true => Judged { program, held },
                false => Judged::own(ticket, None),
            };
        }
        if !self.build_own(ticket.program, inner, Query::Rebuild) {
            return Judged::own(ticket, None);
        }
        let held = self.held_kernel(ticket, inner, ticket.program);
        if held.is_none() {
            shadow::hide_inner(ticket);
        }
        Judged::own(ticket, held)
    }

    /// Creates a kernel of `judged` if kernels of the serving program are alive, so that the driver judges `judged` as a program
    /// with kernels.
    pub(super) fn held_kernel(
        &self,
        ticket: &Ticket,
        inner: &CachedProgram,
        judged: Program,
    ) -> Option<HeldObject> {
        if !refuses_for_kernels(ticket, inner) {
            return None;
        }
        let driver = ticket.driver;
        let facts = inner.facts();
        let name = CString::new(facts.kernel_names.first()?.clone()).ok()?;
        let kernel = driver.create_kernel(judged, &name).ok()?;
        Some(Box::new(HeldKernel(driver, kernel)))
    }
}
