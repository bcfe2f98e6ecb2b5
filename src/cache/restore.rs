//! Makes an inner program from an entry, and checks that it is the one that was recorded.

use std::collections::BTreeSet;

use opencl_sys::*;

use super::plan::Plan;
use crate::cl::info::Number;
use crate::driver::NotifyTarget;
use crate::shadow::{Inner, Ticket};
use crate::store::entry::{Defect, Entry};

/// Why there is no inner program.
pub enum Failure {
    /// The entry is to blame.
    Entry(Defect),
    /// The driver has no memory left; the entry may be good.
    Resources(cl_int),
}

/// The inner program of an entry, built with the application's own devices and options: with others, drivers answer
/// differently (OpenCL 3.0, 5.8.2, leaves it to them; measured on PoCL for NULL instead of the same options).
pub fn restore(ticket: &Ticket, plan: &Plan, entry: Entry) -> Result<Inner, Failure> {
    let driver = ticket.driver;
    let binaries: Vec<&[u8]> = entry.binaries().collect();
    if binaries.len() != plan.devices.len() || entry.meta.facts.devices.len() != plan.devices.len()
    {
        return Err(Failure::Entry(Defect::Refused(
            "it is for another number of devices",
        )));
    }
    let before = driver
        .wants_context_references()
        .then(|| driver.context_references(ticket.context));
    let program = driver
        .create_program_with_binary(ticket.context, &plan.devices, &binaries)
        .map_err(|code| failure(code, "the driver does not take the binary"))?;
    if let Some(Ok(before)) = before
        && let Ok(after) = driver.context_references(ticket.context)
    {
        driver.note_context_references(after > before);
    }
    // From here on the program is released by dropping.
    let inner = Inner::new(
        driver,
        program,
        ticket.context,
        plan.devices.clone(),
        plan.arguments.clone(),
        plan.key,
        entry,
    );
    let code = driver.build_program(program, &plan.arguments, NotifyTarget::NONE);
    if code != CL_SUCCESS {
        return Err(failure(code, "the driver cannot build the binary"));
    }
    for &device in &plan.devices {
        if driver.build_status(program, device) != Ok(CL_BUILD_SUCCESS) {
            return Err(Failure::Entry(Defect::Refused("the binary is not built")));
        }
        let kind = driver
            .build_info(program, device, CL_PROGRAM_BINARY_TYPE)
            .ok()
            .and_then(|value| <cl_int as Number>::from_value(&value));
        if kind.is_some_and(|kind| kind != CL_PROGRAM_BINARY_TYPE_EXECUTABLE as cl_int) {
            return Err(Failure::Entry(Defect::Refused(
                "the binary is not executable",
            )));
        }
    }
    let names = driver
        .program_info(program, CL_PROGRAM_KERNEL_NAMES)
        .unwrap_or_default();
    let recorded = inner.facts();
    if split_names(&names).collect::<BTreeSet<_>>()
        != recorded.kernel_names.iter().map(Vec::as_slice).collect()
    {
        return Err(Failure::Entry(Defect::Refused(
            "it has other kernels than were recorded",
        )));
    }
    Ok(inner)
}

/// The names in the value of CL_PROGRAM_KERNEL_NAMES.
pub fn split_names(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    let value = value.strip_suffix(b"\0").unwrap_or(value);
    value
        .split(|byte| *byte == b';')
        .filter(|name| !name.is_empty())
}

fn failure(code: cl_int, why: &'static str) -> Failure {
    match code {
        CL_OUT_OF_HOST_MEMORY | CL_OUT_OF_RESOURCES | CL_MEM_OBJECT_ALLOCATION_FAILURE => {
            Failure::Resources(code)
        }
        _ => Failure::Entry(Defect::Refused(why)),
    }
}
