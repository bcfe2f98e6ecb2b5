//! Programs that are built again with the options that they have.
//!
//! Measured on Intel's CPU runtime: for the same options, of which NULL and "" are one, nothing is compiled, whatever has become of header
//! files since, and variables of program scope stay, also those of devices that the call does not name. It refuses to compile a program
//! so, with or without a change, and leaves it as it was.

use std::sync::Arc;

use opencl_sys::CL_SUCCESS;

use super::devices::targets;
use super::plan::check_state;
use super::{BuildCall, Cache};
use crate::driver::BuildArguments;
use crate::driver::profile::Rebuild;
use crate::shadow::{CachedProgram, Operation, Origin, Ticket};

impl Cache {
    /// The P' that serves a program and goes on to serve it, since the driver keeps what it has compiled in such a call. Then no key
    /// is needed: what it tells may have changed.
    #[inline(never)] // its frame is gone when the driver compiles
    pub(super) fn built_again(
        &self,
        ticket: &Ticket,
        call: &BuildCall,
    ) -> Option<Arc<CachedProgram>> {
        let inner = ticket.inner.as_ref().filter(|inner| inner.is_inner())?;
        let keeps = self.behavior(ticket.driver).rebuild == Rebuild::KeepsVariables;
        let is_source = matches!(ticket.origin, Origin::Source(_));
        if !keeps || !is_source || call.odd || !self.looks_up() || self.switch.look() {
            return None;
        }
        let recipe = inner.recipe();
        let is_build = matches!(recipe.operation, Operation::Build) && call.headers.is_none();
        if !is_build || options(&recipe.arguments) != options(&call.arguments) {
            return None;
        }
        // The program has one device, or would not be served: see `devices::previous`.
        let targets = targets(ticket.driver, inner.devices(), &call.arguments);
        if targets.is_err() || check_state(ticket).is_err() {
            return None;
        }
        // Variables of program scope are those of P', so this build must keep them.
        let code = ticket
            .driver
            .build_program(inner.program(), &recipe.arguments);
        (code == CL_SUCCESS).then(|| inner.clone())
    }
}

/// The options as the driver compares them.
fn options(arguments: &BuildArguments) -> &[u8] {
    let options = arguments.options.as_deref();
    options.map_or(&[], |options| options.to_bytes())
}
