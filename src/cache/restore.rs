//! Makes a program from an entry, and checks that it is the one that was recorded.

use std::collections::BTreeSet;
use std::sync::Arc;

use opencl_sys::*;

use super::facts::kernel_names;
use super::plan::Plan;
use crate::cl::info::Number;
use crate::cl::{Context, Device, Program};
use crate::driver::{BuildArguments, Driver};
use crate::shadow::{CachedProgram, Owner, Recipe};
use crate::store::entry::{Answer, Defect, Entry, Facts};

/// Why there is no program.
pub enum RestoreFailure {
    /// The entry is bad.
    Entry(Defect),
    /// The driver has no memory left. The entry may be good.
    Resources(cl_int),
    /// The application has released the context, which only its program keeps alive. The driver creates no other program in it
    /// (measured on Intel's CPU runtime).
    ContextGone,
}

/// A program that is released unless it is kept.
struct Fresh(&'static Driver, Program);

impl Drop for Fresh {
    fn drop(&mut self) {
        self.0.release_program(self.1);
    }
}

/// Makes the program of an entry. Executables are built with the application's own options, since with others drivers answer
/// queries differently (OpenCL 3.0, 5.8.2, permits that; measured on PoCL for NULL instead of the same options). They are built for
/// all devices of the program by a NULL list, since PoCL aborts if a list has another order (measured). Compiled objects and
/// libraries are not built: PoCL would make executables of them, and Intel's CPU runtime fails (measured).
pub fn restore(
    driver: &'static Driver,
    context: Context,
    owner: Owner,
    plan: &Plan,
    entry: &Arc<Entry>,
) -> Result<Box<CachedProgram>, RestoreFailure> {
    let built = built_for(plan, entry)?;
    let fresh = Fresh(driver, create(driver, context, &built, entry)?);
    let first = entry.meta.built[0] as usize;
    let kind = binary_type(&entry.meta.facts, first);
    let executable = kind.is_none_or(|kind| kind == CL_PROGRAM_BINARY_TYPE_EXECUTABLE as cl_int);
    if executable {
        build(driver, fresh.1, plan)?;
    }
    check(driver, fresh.1, &built, kind, executable, &entry.meta.facts)?;
    let program = fresh.1;
    std::mem::forget(fresh);
    let (devices, recipe) = (plan.devices.clone(), plan.recipe.clone());
    let inner = CachedProgram::new(
        driver,
        program,
        owner,
        context,
        devices,
        recipe,
        entry.clone(),
    );
    Ok(Box::new(inner))
}

fn refused(why: &'static str) -> RestoreFailure {
    RestoreFailure::Entry(Defect::Refused(why))
}

/// The devices that an entry has binaries for.
fn built_for(plan: &Plan, entry: &Entry) -> Result<Vec<Device>, RestoreFailure> {
    let built: Option<Vec<Device>> = entry
        .meta
        .built
        .iter()
        .map(|index| plan.devices.get(*index as usize).copied())
        .collect();
    let built = built.ok_or(refused("it is for other devices"))?;
    match built.is_empty()
        || entry.binaries().len() != built.len()
        || entry.meta.facts.devices.len() != plan.devices.len()
    {
        true => Err(refused("it is for another number of devices")),
        false => Ok(built),
    }
}

// Each call into the driver's loader has a small function, which keeps our frames below the loader small.
#[inline(never)]
fn create(
    driver: &Driver,
    context: Context,
    built: &[Device],
    entry: &Entry,
) -> Result<Program, RestoreFailure> {
    let binaries: Vec<&[u8]> = entry.binaries().collect();
    let before = driver
        .wants_context_references()
        .then(|| driver.context_references(context));
    let program = driver
        .create_program_with_binary(context, built, &binaries)
        .map_err(|code| failure(code, "the driver does not take the binary"))?;
    if let Some(Ok(before)) = before
        && let Ok(after) = driver.context_references(context)
    {
        driver.note_context_references(after > before);
    }
    Ok(program)
}

#[inline(never)]
fn build(driver: &Driver, program: Program, plan: &Plan) -> Result<(), RestoreFailure> {
    match build_executable(driver, program, &plan.recipe) {
        CL_SUCCESS => Ok(()),
        code => Err(failure(code, "the driver cannot build the binary")),
    }
}

/// Checks by the driver's answers that the program is the recorded one.
#[inline(never)]
fn check(
    driver: &Driver,
    program: Program,
    built: &[Device],
    kind: Option<cl_int>,
    executable: bool,
    facts: &Facts,
) -> Result<(), RestoreFailure> {
    for &device in built {
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
        let found: BTreeSet<_> = kernel_names(driver, program).into_iter().collect();
        if found != facts.kernel_names.iter().cloned().collect() {
            return Err(refused("it has other kernels than were recorded"));
        }
    }
    Ok(())
}

fn build_executable(driver: &Driver, program: Program, recipe: &Recipe) -> cl_int {
    let arguments = BuildArguments {
        devices: None,
        options: recipe.arguments.options.clone(),
    };
    driver.build_program(program, &arguments)
}

/// Whether the driver refuses to build a program from an entry again. If it accepts, the program stays the same.
pub fn refuses_to_build_again(inner: &CachedProgram) -> bool {
    build_executable(inner.driver(), inner.program(), inner.recipe()) == CL_INVALID_OPERATION
}

/// The recorded CL_PROGRAM_BINARY_TYPE of a device. None if the driver has no such query.
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

fn failure(code: cl_int, why: &'static str) -> RestoreFailure {
    match code {
        CL_OUT_OF_HOST_MEMORY | CL_OUT_OF_RESOURCES | CL_MEM_OBJECT_ALLOCATION_FAILURE => {
            RestoreFailure::Resources(code)
        }
        CL_INVALID_CONTEXT => RestoreFailure::ContextGone,
        _ => RestoreFailure::Entry(Defect::Refused(why)),
    }
}
