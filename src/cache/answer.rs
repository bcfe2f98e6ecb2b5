//! Queries of programs and kernels that are served: who answers what.
//!
//! P answers for identity, context and source; the entry for what drivers tell differently of a program that was made
//! from a binary; P' for the rest. What none of them answers exactly makes the driver build P (R2, in `own`).

use std::ffi::CString;
use std::sync::Arc;

use opencl_sys::*;

use super::own::{Own, answered, ask_own_kernel};
use super::record::{ARGUMENT_QUERIES, BUILD_QUERIES, PROGRAM_QUERIES};
use super::restore::binary_type;
use super::{Cache, devices};
use crate::cl::info::{Number, Reply};
use crate::cl::{Device, Kernel, Program};
use crate::driver::Driver;
use crate::outcome::Query;
use crate::shadow::{self, Inner, Recipe};
use crate::store::entry::{Answer, Answers, Facts};

/// clGetProgramInfo; None: the driver answers for P itself.
pub fn program_info(
    driver: &Driver,
    program: Program,
    name: cl_program_info,
    reply: Reply,
) -> Option<cl_int> {
    let view = shadow::view(program)?;
    if name == CL_PROGRAM_REFERENCE_COUNT && !is_dead(driver, view.kept) {
        return reference_count(driver, program, &view, reply);
    }
    let inner = view.inner?;
    if is_dead(driver, view.kept) {
        return Some(driver.forward_program_info(inner.program(), name, reply));
    }
    Some(match name {
        CL_PROGRAM_CONTEXT
        | CL_PROGRAM_SOURCE
        | CL_PROGRAM_IL
        | CL_PROGRAM_NUM_DEVICES
        | CL_PROGRAM_DEVICES => return None,
        CL_PROGRAM_BINARY_SIZES => {
            let sizes: Vec<u8> = inner
                .binaries()
                .iter()
                .flat_map(|binary| binary.len().to_value())
                .collect();
            reply.give(&sizes)
        }
        CL_PROGRAM_BINARIES => reply.give_binaries(&inner.binaries()),
        name if PROGRAM_QUERIES.contains(&name) => {
            let find = |facts: &Facts| find(&facts.program, name);
            match answered(driver, program, &inner, program_query(name), find) {
                Some(answer) if !asks_nothing(&answer, reply) => give(answer, &inner, reply),
                Some(_) => driver.forward_program_info(inner.program(), name, reply),
                None => driver.forward_program_info(made_for_real(program, &inner), name, reply),
            }
        }
        _ => driver.forward_program_info(inner.program(), name, reply),
    })
}

/// As it is counted.
fn program_query(name: cl_program_info) -> Query {
    match name {
        CL_PROGRAM_NUM_KERNELS => Query::NumKernels,
        CL_PROGRAM_KERNEL_NAMES => Query::KernelNames,
        CL_PROGRAM_SCOPE_GLOBAL_CTORS_PRESENT => Query::GlobalCtors,
        CL_PROGRAM_SCOPE_GLOBAL_DTORS_PRESENT => Query::GlobalDtors,
        _ => Query::Other,
    }
}

/// As it is counted.
fn build_query(name: cl_program_build_info) -> Query {
    match name {
        CL_PROGRAM_BUILD_STATUS => Query::BuildStatus,
        CL_PROGRAM_BUILD_OPTIONS => Query::BuildOptions,
        CL_PROGRAM_BUILD_LOG => Query::BuildLog,
        CL_PROGRAM_BINARY_TYPE => Query::BinaryType,
        CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE => Query::GlobalVariableSize,
        _ => Query::Other,
    }
}

/// References to P, and what stands for them: on drivers that count kernels, those of each P' that P ever had count as
/// kernels of P. Our own references do not.
fn reference_count(
    driver: &Driver,
    program: Program,
    view: &shadow::View,
    reply: Reply,
) -> Option<cl_int> {
    let inners = shadow::inners(program);
    if inners.is_empty() {
        return None;
    }
    let mut references = driver.program_references(program).ok()?;
    for inner in &inners {
        references += driver.program_references(inner.program()).ok()?;
    }
    let ours = cl_uint::try_from(inners.len()).ok()? + cl_uint::from(view.kept);
    Some(reply.give(&references.saturating_sub(ours).to_value()))
}

/// clGetProgramBuildInfo; None: the driver answers for P itself.
pub fn build_info(
    driver: &Driver,
    program: Program,
    device: Device,
    name: cl_program_build_info,
    reply: Reply,
) -> Option<cl_int> {
    let view = shadow::view(program)?;
    if view.busy && name == CL_PROGRAM_BUILD_STATUS {
        return Some(reply.give(&CL_BUILD_IN_PROGRESS.to_value()));
    }
    let inner = view.inner?;
    if is_dead(driver, view.kept) {
        return Some(driver.forward_build_info(inner.program(), device, name, reply));
    }
    let Some(index) = device_index(driver, &inner, device) else {
        // Of what is no device of the program, P says what it would say if it was built; but some drivers answer for any part of
        // a device of theirs, and for what is no device at all (measured: PoCL).
        driver.build_status(program, device).ok()?;
        let _own = Cache::get().own(program, &inner, Query::OtherDevice);
        let own = made_for_real(program, &inner);
        return Some(driver.forward_build_info(own, device, name, reply));
    };
    if !BUILD_QUERIES.contains(&name) {
        return Some(driver.forward_build_info(inner.program(), device, name, reply));
    }
    let find = |facts: &Facts| find(facts.devices.get(index)?, name);
    Some(
        match answered(driver, program, &inner, build_query(name), find) {
            Some(answer) if !asks_nothing(&answer, reply) => give(answer, &inner, reply),
            Some(_) => driver.forward_build_info(inner.program(), device, name, reply),
            // Of a device that was not built, nothing is recorded.
            None => driver.forward_build_info(made_for_real(program, &inner), device, name, reply),
        },
    )
}

/// Which of the program's devices is meant, if the handle is known to be one of a device: the program has it, or the application
/// has built for it.
fn device_index(driver: &Driver, inner: &Inner, device: Device) -> Option<usize> {
    let is_named = |call: &&Recipe| {
        let named = call.arguments.devices.as_ref();
        named.is_some_and(|named| named.contains(&device))
    };
    let is_device =
        inner.devices().contains(&device) || inner.recipe().calls().iter().any(is_named);
    is_device
        .then(|| devices::index(driver, inner.devices(), device))
        .flatten()
}

/// What answers where the entry does not: P, which has been built for real by now if it could be, or a link's twin.
fn made_for_real(program: Program, inner: &Inner) -> Program {
    inner.twin().unwrap_or(program)
}

/// clGetKernelInfo; None: the driver answers.
pub fn kernel_info(
    driver: &Driver,
    kernel: Kernel,
    name: cl_kernel_info,
    reply: Reply,
) -> Option<cl_int> {
    if !matches!(name, CL_KERNEL_PROGRAM | CL_KERNEL_ATTRIBUTES) {
        return None;
    }
    let (program, inner) = shadow::kernel_origin(kernel)?;
    if name == CL_KERNEL_PROGRAM {
        if !inner.is_apart() {
            return None;
        }
        return Some(reply.give(&program.to_value()));
    }
    let kernel_name = function_name(driver, kernel)?;
    let find = |facts: &Facts| known(&facts.kernel(kernel_name.as_bytes())?.attributes);
    if let Some(answer) = find(&inner.facts()) {
        return Some(give(answer, &inner, reply));
    }
    let query = Query::KernelAttributes;
    ask_own_kernel(driver, program, &inner, &kernel_name, query, &|own| {
        driver.forward_kernel_info(own, name, reply)
    })
}

/// clGetKernelArgInfo; None: the driver answers.
pub fn kernel_arg_info(
    driver: &Driver,
    kernel: Kernel,
    index: cl_uint,
    name: cl_kernel_arg_info,
    reply: Reply,
) -> Option<cl_int> {
    let (program, inner) = shadow::kernel_origin(kernel)?;
    let kernel_name = function_name(driver, kernel)?;
    if ARGUMENT_QUERIES.contains(&name) {
        let find = |facts: &Facts| {
            let kernel = facts.kernel(kernel_name.as_bytes())?;
            find(
                kernel
                    .arguments
                    .get(index as usize)
                    .unwrap_or(&kernel.behind_last_argument),
                name,
            )
        };
        if let Some(answer) = find(&inner.facts()) {
            return Some(give(answer, &inner, reply));
        }
    }
    let query = Query::KernelArgInfo;
    ask_own_kernel(driver, program, &inner, &kernel_name, query, &|own| {
        driver.forward_kernel_arg_info(own, index, name, reply)
    })
}

/// The kernels of P' in the order in which the driver would have made those of P.
pub fn in_recorded_order(driver: &Driver, inner: &Inner, kernels: &mut [cl_kernel]) {
    let facts = inner.facts();
    let order = |raw: &cl_kernel| {
        let name = function_name(driver, Kernel::new(*raw)).unwrap_or_default();
        if facts.creation_order {
            facts
                .kernels
                .iter()
                .position(|kernel| kernel.name == name.as_bytes())
        } else {
            facts
                .kernel_names
                .iter()
                .position(|known| known == name.as_bytes())
        }
    };
    kernels.sort_by_cached_key(order);
}

/// The program that kernels are made of.
pub enum Executing {
    /// P itself, or what serves it.
    Itself(Program),
    /// What the driver has made for real: of compiled objects and libraries the driver itself says why there are no kernels,
    /// since those that were made from binaries may have some (measured on rusticl).
    Own(Own),
}

impl Executing {
    /// Its handle.
    pub fn program(&self) -> Program {
        match self {
            Executing::Itself(program) => *program,
            Executing::Own(own) => own.program,
        }
    }

    /// Where its kernels come from, if from what serves P.
    pub fn origin(&self, inner: &Option<Arc<Inner>>) -> Option<Arc<Inner>> {
        match self {
            Executing::Itself(_) => inner.clone(),
            Executing::Own(_) => None,
        }
    }
}

/// The program that kernels of `program` are made of, where `inner` serves it.
pub fn executing(program: Program, inner: Option<&Arc<Inner>>) -> Executing {
    let Some(inner) = inner else {
        return Executing::Itself(program);
    };
    let first = inner.built().first().copied().unwrap_or(0);
    let executable = CL_PROGRAM_BINARY_TYPE_EXECUTABLE as cl_int;
    if binary_type(&inner.facts(), first).is_none_or(|kind| kind == executable) {
        return Executing::Itself(inner.program());
    }
    match Cache::get().own(program, inner, Query::CreateKernel) {
        Some(own) => Executing::Own(own),
        None => Executing::Itself(inner.program()),
    }
}

/// Whether the application has released the last reference to a program that only its kernels keep in memory. P' was released
/// as well, so it gives the driver's answers of such a handle.
fn is_dead(driver: &Driver, kept: bool) -> bool {
    kept && !driver.profile.kernels_keep_program
}

fn function_name(driver: &Driver, kernel: Kernel) -> Option<CString> {
    CString::from_vec_with_nul(driver.kernel_info(kernel, CL_KERNEL_FUNCTION_NAME).ok()?).ok()
}

fn find(answers: &Answers, name: u32) -> Option<Answer> {
    known(&answers.iter().find(|(known, _)| *known == name)?.1)
}

fn known(answer: &Answer) -> Option<Answer> {
    (*answer != Answer::Withheld).then(|| answer.clone())
}

/// Whether an error was recorded and the application asks for neither value nor size: some drivers then find nothing wrong
/// (measured: Intel's CPU runtime), so the driver is asked just so.
fn asks_nothing(answer: &Answer, reply: Reply) -> bool {
    matches!(answer, Answer::Error(_)) && reply.value.is_null() && reply.size_ret.is_null()
}

fn give(answer: Answer, inner: &Inner, reply: Reply) -> cl_int {
    match answer {
        Answer::Value(value) => reply.give(&value),
        Answer::OwnOptions => reply.give(
            inner
                .recipe()
                .arguments
                .options
                .as_ref()
                .map_or(b"\0", |options| options.as_bytes_with_nul()),
        ),
        Answer::AroundOwnOptions(parts) => {
            let options = inner.recipe().arguments.options.as_ref();
            reply.give(&parts.join(options.map_or(b"".as_slice(), |options| options.as_bytes())))
        }
        Answer::Error(code) => code,
        Answer::Withheld => CL_INVALID_VALUE,
    }
}
