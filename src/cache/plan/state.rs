//! Whether a program's state permits to key its next build.

use opencl_sys::cl_uint;

use crate::cache::Cache;
use crate::cl::Program;
use crate::driver::Driver;
use crate::driver::profile::Rebuild;
use crate::outcome::Bypass;
use crate::shadow::{self, CachedProgram, Operation, Origin, Recipe, Ticket};

/// Refuses programs whose build depends on more than the key tells.
pub(super) fn check(ticket: &Ticket, compiles: bool) -> Result<(), Bypass> {
    check_state(ticket)?;
    if ticket.built && !builds_afresh(ticket, compiles) {
        return Err(Bypass::BuiltBefore);
    }
    Ok(())
}

/// Refuses programs that only the driver can build now.
pub(in crate::cache) fn check_state(ticket: &Ticket) -> Result<(), Bypass> {
    if ticket.concurrent {
        return Err(Bypass::ConcurrentBuild);
    }
    if ticket.release_callback {
        return Err(Bypass::ReleaseCallback);
    }
    if ticket.failed {
        return Err(Bypass::AfterFailedBuild);
    }
    if ticket.built && has_kernels(ticket) {
        return Err(Bypass::LiveKernels);
    }
    Ok(())
}

/// Whether the driver builds a program that was built or compiled before as it would build a new one.
fn builds_afresh(ticket: &Ticket, compiles: bool) -> bool {
    match Cache::get().behavior(ticket.driver).rebuild {
        Rebuild::Fresh => true,
        Rebuild::KeepsKernels => false,
        // The driver also keeps the compiled object, the log, and the specialization constants of an intermediate language
        // (measured). So only a served program from source builds as a new one does.
        Rebuild::KeepsVariables => {
            let was_built = |recipe: &Recipe| matches!(recipe.operation, Operation::Build);
            let served = ticket.inner.as_ref().map(|inner| inner.recipe());
            let from_source = matches!(ticket.origin, Origin::Source(_));
            from_source && !compiles && served.is_some_and(|recipe| was_built(recipe))
        }
    }
}

/// Whether kernels are attached to the program, so that only the driver can judge a new build. Kernels that the application has
/// released may still execute; some drivers count them in the program's references.
pub(in crate::cache) fn has_kernels(ticket: &Ticket) -> bool {
    shadow::held_kernels(ticket).all > 0
        || has_more_references(ticket.driver, ticket.program, ticket.references)
        || ticket
            .inner
            .as_ref()
            .is_some_and(|inner| has_inner_kernels(ticket, inner))
}

/// Whether kernels are attached to the program that was made from binaries: to P', or to the application's own result of a link.
pub(in crate::cache) fn has_inner_kernels(ticket: &Ticket, inner: &CachedProgram) -> bool {
    let held = shadow::held_kernels(ticket);
    let (kernels, ours) = match inner.is_inner() {
        true => (held.inner, 1),
        false => (held.all, ticket.references),
    };
    kernels > 0 || has_more_references(ticket.driver, inner.program(), ours)
}

fn has_more_references(driver: &Driver, program: Program, ours: cl_uint) -> bool {
    driver
        .program_references(program)
        .is_ok_and(|references| references > ours)
}
