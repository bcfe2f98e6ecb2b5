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

impl Cache {
    /// R3: builds a served program for real before a call that changes it, so that the driver judges the call. If kernels of its P'
    /// are alive, a kernel of P is held until then, and P' goes on to serve.
    ///
    /// A call that has a key needs nothing of what P has, unless other devices or the driver keep that: Intel's CPU runtime still tells
    /// the binary type of the build before one that fails (measured). And P is not built of other inputs: that might fail, and that
    /// runtime refuses each later build then (measured). P' goes on to serve if the driver refuses the call.
    pub(super) fn prepare_change(&self, ticket: &Ticket, plan: &BuildPlan) -> Option<HeldObject> {
        let inner = ticket.inner.as_ref().filter(|inner| inner.is_inner())?;
        let _alone = shadow::own_for_change(ticket);
        let is_fresh = self.behavior(ticket.driver).rebuild == Rebuild::Fresh
            && matches!(plan, BuildPlan::Before(Ok(plan), _) if plan.recipe.previous.is_none());
        if is_fresh {
            shadow::hide_inner(ticket);
            return None;
        }
        let may_build = inner.is_materialized() || self.still_holds(inner);
        if !may_build || !self.build_own(ticket.program, inner, Query::Rebuild) {
            return None;
        }
        let held = self.held_kernel(ticket, inner, ticket.program);
        if held.is_none() {
            shadow::hide_inner(ticket);
        }
        held
    }

    /// Creates a kernel of `judged` if kernels of the serving program are alive, so that the driver judges `judged` as a program
    /// with kernels. The driver decides which kernels count: rusticl builds over clones and over kernels that only commands hold,
    /// PoCL does not (measured).
    pub(super) fn held_kernel(
        &self,
        ticket: &Ticket,
        inner: &CachedProgram,
        judged: Program,
    ) -> Option<HeldObject> {
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
