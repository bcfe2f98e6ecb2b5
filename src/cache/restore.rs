//! Makes a program from an entry, and checks that it is the one that was recorded.

use std::collections::BTreeSet;
use std::sync::Arc;

use opencl_sys::*;

use super::plan::Plan;
use crate::cl::info::Number;
use crate::cl::{Context, Device, Program};
use crate::driver::{BuildArguments, Driver, NotifyTarget};
use crate::shadow::{Inner, Standing};
use crate::store::entry::{Answer, Defect, Entry, Facts};

/// Why there is no program.
pub enum Failure {
    /// The entry is to blame.
    Entry(Defect),
    /// The driver has no memory left; the entry may be good.
    Resources(cl_int),
    /// The application has released the context, which only its program holds: the driver makes no other in it (measured on Intel's
    /// CPU runtime).
    ContextGone,
}

/// A program that is released unless it is kept.
struct Fresh(&'static Driver, Program);

impl Drop for Fresh {
    fn drop(&mut self) {
        self.0.release_program(self.1);
    }
}

/// The program of an entry. Executables are built with the application's own options: with others, drivers answer differently
/// (OpenCL 3.0, 5.8.2, leaves it to them; measured on PoCL for NULL instead of the same options); and for all devices that the
/// program was made for, by NULL: PoCL aborts where they are listed in another order (measured). Compiled objects
/// and libraries are not built: that would make executables of them (measured on PoCL) or fail (Intel's CPU runtime).
pub fn restore(
    driver: &'static Driver,
    context: Context,
    standing: Standing,
    plan: &Plan,
    entry: Arc<Entry>,
) -> Result<Inner, Failure> {
    let refused = |why| Failure::Entry(Defect::Refused(why));
    let binaries: Vec<&[u8]> = entry.binaries().collect();
    let built: Option<Vec<Device>> = entry
        .meta
        .built
        .iter()
        .map(|index| plan.devices.get(*index as usize).copied())
        .collect();
    let built = built.ok_or(refused("it is for other devices"))?;
    let facts = &entry.meta.facts;
    if built.is_empty()
        || binaries.len() != built.len()
        || facts.devices.len() != plan.devices.len()
    {
        return Err(refused("it is for another number of devices"));
    }
    let before = driver
        .wants_context_references()
        .then(|| driver.context_references(context));
    let program = driver
        .create_program_with_binary(context, &built, &binaries)
        .map_err(|code| failure(code, "the driver does not take the binary"))?;
    let fresh = Fresh(driver, program);
    if let Some(Ok(before)) = before
        && let Ok(after) = driver.context_references(context)
    {
        driver.note_context_references(after > before);
    }
    let first = entry.meta.built[0] as usize;
    let kind = binary_type(facts, first);
    let executable = kind.is_none_or(|kind| kind == CL_PROGRAM_BINARY_TYPE_EXECUTABLE as cl_int);
    if executable {
        let arguments = BuildArguments {
            devices: None,
            options: plan.recipe.arguments.options.clone(),
        };
        let code = driver.build_program(program, &arguments, NotifyTarget::NONE);
        if code != CL_SUCCESS {
            return Err(failure(code, "the driver cannot build the binary"));
        }
    }
    for &device in &built {
        if executable && driver.build_status(program, device) != Ok(CL_BUILD_SUCCESS) {
            return Err(refused("the binary is not built"));
        }
        let found = driver
            .build_info(program, device, CL_PROGRAM_BINARY_TYPE)
            .ok()
            .and_then(|value| <cl_int as Number>::from_value(&value));
        if found.is_some() && kind.is_some() && found != kind {
            return Err(refused("the binary is of another type"));
        }
    }
    if executable {
        let names = driver
            .program_info(program, CL_PROGRAM_KERNEL_NAMES)
            .unwrap_or_default();
        if split_names(&names).collect::<BTreeSet<_>>()
            != facts.kernel_names.iter().map(Vec::as_slice).collect()
        {
            return Err(refused("it has other kernels than were recorded"));
        }
    }
    std::mem::forget(fresh);
    Ok(Inner::new(
        driver,
        program,
        standing,
        context,
        plan.devices.clone(),
        plan.recipe.clone(),
        entry,
    ))
}

/// CL_PROGRAM_BINARY_TYPE of a device, as it was recorded; None where the driver does not tell.
pub fn binary_type(facts: &Facts, device: usize) -> Option<cl_int> {
    let answers = facts.devices.get(device)?;
    let (_, answer) = answers
        .iter()
        .find(|(name, _)| *name == CL_PROGRAM_BINARY_TYPE)?;
    match answer {
        Answer::Value(value) => Number::from_value(value),
        _ => None,
    }
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
        CL_INVALID_CONTEXT => Failure::ContextGone,
        _ => Failure::Entry(Defect::Refused(why)),
    }
}
