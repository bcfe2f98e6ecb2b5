//! Calls that change a program which is served from the cache.

use std::ffi::CString;

use opencl_sys::{CL_INVALID_OPERATION, cl_int};

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

/// The code with which the driver refuses a call that changes P'.
pub(super) struct Refusal(pub cl_int);

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
    /// call.
    ///
    /// # Errors
    /// P is not built, and the driver refuses such a call for P' because of its kernels.
    pub(super) fn prepare_change(
        &self,
        ticket: &Ticket,
        plan: &BuildPlan,
    ) -> Result<Option<HeldObject>, Refusal> {
        let Some(inner) = ticket.inner.as_ref().filter(|inner| inner.is_inner()) else {
            return Ok(None);
        };
        let _alone = shadow::own_for_change(ticket);
        let is_fresh = self.behavior(ticket.driver).rebuild == Rebuild::Fresh
            && matches!(plan, BuildPlan::Before(Ok(plan), _) if plan.recipe.previous.is_none());
        if is_fresh {
            shadow::hide_inner(ticket);
            return Ok(None);
        }
        if !inner.is_materialized() && !self.still_holds(inner) {
            return match refuses_for_kernels(ticket, inner) {
                true => Err(Refusal(CL_INVALID_OPERATION)),
                false => Ok(None),
            };
        }
        if !self.build_own(ticket.program, inner, Query::Rebuild) {
            return Ok(None);
        }
        let held = self.held_kernel(ticket, inner, ticket.program);
        if held.is_none() {
            shadow::hide_inner(ticket);
        }
        Ok(held)
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
