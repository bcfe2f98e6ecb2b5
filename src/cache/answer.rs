//! Answers queries of served programs and kernels.
//!
//! P answers queries of identity, context and source. The entry answers where drivers give other answers for a program from a
//! binary. P' answers the rest. If none of them can answer exactly, the driver builds P (R2, in `materialize`).

use std::ffi::CString;
use std::sync::Arc;

use opencl_sys::*;

use super::Cache;
use super::facts::{ARGUMENT_QUERIES, BUILD_QUERIES, PROGRAM_QUERIES};
use super::materialize::{Materialized, answered, ask_own_kernel};
use super::restore::binary_type;
use crate::cl::info::{Ask, Number, Reply};
use crate::cl::{Device, Kernel, Program};
use crate::driver::Driver;
use crate::fallible;
use crate::outcome::Query;
use crate::shadow::{self, CachedProgram};
use crate::store::entry::{Answer, Answers, Facts, SIZE_ALONE, UNWRITTEN};

/// clGetProgramInfo. None: the driver answers for P itself.
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
    if let Some(twin) = inner.changed_twin() {
        return Some(driver.forward_program_info(twin, name, reply));
    }
    // A query of P that has as many bytes as the sizes of its binaries, if the driver lists all devices.
    let ask_devices = |reply| driver.forward_program_info(program, CL_PROGRAM_DEVICES, reply);
    let given = match name {
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
            reply.give(&sizes, &ask_devices)
        }
        CL_PROGRAM_BINARIES => reply.give_binaries(&inner.binaries(), &ask_devices),
        name => {
            let ask = |reply| driver.forward_program_info(inner.program(), name, reply);
            if !PROGRAM_QUERIES.contains(&name) {
                return Some(ask(reply));
            }
            let find = |facts: &Facts| find(&facts.program, name);
            let query = program_query(name);
            let answer = answered(driver, program, &inner, query, find);
            let facts = inner.facts();
            let gaps = unwritten(&facts, name);
            let size = size_alone(&facts.program, name);
            answer.and_then(|answer| {
                give_size(&answer, size, reply)
                    .or_else(|| give_or_ask(answer, gaps, program, &inner, query, reply, &ask))
            })
        }
    };
    Some(given.unwrap_or_else(|| {
        driver.forward_program_info(made_for_real(program, &inner), name, reply)
    }))
}

/// The query under which a materialization is counted.
fn program_query(name: cl_program_info) -> Query {
    match name {
        CL_PROGRAM_NUM_KERNELS => Query::NumKernels,
        CL_PROGRAM_KERNEL_NAMES => Query::KernelNames,
        CL_PROGRAM_SCOPE_GLOBAL_CTORS_PRESENT => Query::GlobalCtors,
        CL_PROGRAM_SCOPE_GLOBAL_DTORS_PRESENT => Query::GlobalDtors,
        _ => Query::Other,
    }
}

/// See [`program_query`].
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

/// The references to P as the application must see them. On drivers that count kernels, kernels of each P' and of a twin count as
/// kernels of P. Our own references do not count.
fn reference_count(
    driver: &Driver,
    program: Program,
    view: &shadow::ProgramView,
    reply: Reply,
) -> Option<cl_int> {
    let inners = shadow::inners(program);
    let twin = view.inner.as_ref().and_then(|inner| inner.changed_twin());
    if inners.is_empty() && twin.is_none() {
        return None;
    }
    let mut references = driver.program_references(program).ok()?;
    for inner in &inners {
        references += driver.program_references(inner.program()).ok()?;
    }
    if let Some(twin) = twin {
        references += driver.program_references(twin).ok()?;
    }
    let ours = inners.len() + usize::from(twin.is_some()) + usize::from(view.kept);
    let ours = cl_uint::try_from(ours).ok()?;
    let ask = |reply| driver.forward_program_info(program, CL_PROGRAM_REFERENCE_COUNT, reply);
    reply.give(&references.saturating_sub(ours).to_value(), &ask)
}

/// Whether a build that goes on is for a device of the program, or may be: some drivers take sub-devices for their root device.
fn is_built_for(
    driver: &Driver,
    program: Program,
    view: &shadow::ProgramView,
    device: Device,
) -> bool {
    let is_named = |named: &Vec<Device>| {
        named.contains(&device) || driver.behavior().sub_devices_are_their_root
    };
    view.built_for.as_ref().is_none_or(is_named) && driver.build_status(program, device).is_ok()
}

/// clGetProgramBuildInfo. None: the driver answers for P itself.
pub fn build_info(
    driver: &Driver,
    program: Program,
    device: Device,
    name: cl_program_build_info,
    reply: Reply,
) -> Option<cl_int> {
    let view = shadow::view(program)?;
    if view.busy && name == CL_PROGRAM_BUILD_STATUS && is_built_for(driver, program, &view, device)
    {
        let ask = |reply| driver.forward_build_info(program, device, name, reply);
        return reply.give(&CL_BUILD_IN_PROGRESS.to_value(), &ask);
    }
    let inner = view.inner?;
    if is_dead(driver, view.kept) {
        return Some(driver.forward_build_info(inner.program(), device, name, reply));
    }
    if let Some(twin) = inner.changed_twin() {
        return Some(driver.forward_build_info(twin, device, name, reply));
    }
    let Some(index) = device_index(&inner, device) else {
        // If the handle is no device of the program, P answers as if it was built. But some drivers answer for any sub-device of
        // their devices, and for handles of no device (measured: PoCL).
        driver.build_status(program, device).ok()?;
        let _own = Cache::get().own(program, &inner, Query::OtherDevice);
        let own = made_for_real(program, &inner);
        let ask = |reply| driver.forward_build_info(own, device, name, reply);
        let given = recorded_of_alike(driver, own, &inner, device, name)
            .and_then(|answer| give(answer, &[], &inner, reply, &ask));
        return Some(given.unwrap_or_else(|| ask(reply)));
    };
    if !BUILD_QUERIES.contains(&name) {
        return Some(driver.forward_build_info(inner.program(), device, name, reply));
    }
    let find = |facts: &Facts| find(facts.devices.get(index)?, name);
    let ask = |reply| driver.forward_build_info(inner.program(), device, name, reply);
    let query = build_query(name);
    let given = answered(driver, program, &inner, query, find).and_then(|answer| {
        let size = inner
            .facts()
            .devices
            .get(index)
            .and_then(|answers| size_alone(answers, name));
        give_size(&answer, size, reply)
            .or_else(|| give_or_ask(answer, &[], program, &inner, query, reply, &ask))
    });
    Some(given.unwrap_or_else(|| {
        // The entry records nothing of a device that was not built.
        driver.forward_build_info(made_for_real(program, &inner), device, name, reply)
    }))
}

/// The index of the program's device that a handle means. None if it is neither one of the program's nor one that the application has
/// built for.
fn device_index(inner: &CachedProgram, device: Device) -> Option<usize> {
    let own = inner.devices().iter().position(|own| *own == device);
    own.or_else(|| inner.recipe().named_device(device))
}

/// The recorded answer for devices about which P, built for real, says the same as about this one. PoCL has no log of a program
/// whose binary the process has loaded before, and takes a sub-device for its root device (measured).
fn recorded_of_alike(
    driver: &Driver,
    own: Program,
    inner: &CachedProgram,
    device: Device,
    name: cl_program_build_info,
) -> Option<Answer> {
    let said = driver.build_info(own, device, name).ok()?;
    let facts = inner.facts();
    let is_alike = |index: &usize| {
        let other = inner.devices().get(*index);
        other.is_some_and(|other| driver.build_info(own, *other, name).as_ref() == Ok(&said))
    };
    let alike = inner.built().into_iter().filter(is_alike);
    let mut recorded = alike.map(|index| find(facts.devices.get(index)?, name));
    let first = recorded.next()??;
    recorded
        .all(|other| other.as_ref() == Some(&first))
        .then_some(first)
}

/// The program that answers if the entry does not: a link's twin, else P, which is built for real by now if it could be.
fn made_for_real(program: Program, inner: &CachedProgram) -> Program {
    inner.twin().unwrap_or(program)
}

/// clGetKernelInfo. None: the driver answers.
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
        if !inner.is_inner() && inner.twin().is_none() {
            return None;
        }
        let ask = |reply| driver.forward_kernel_info(kernel, name, reply);
        return reply.give(&program.to_value(), &ask);
    }
    let kernel_name = function_name(driver, kernel)?;
    let is_changed = inner.changed_twin().is_some();
    let find = |facts: &Facts| {
        let kernel = facts.kernel(kernel_name.as_bytes())?;
        known(&kernel.attributes).filter(|_| !is_changed)
    };
    let ask = |reply| driver.forward_kernel_info(kernel, name, reply);
    let given = find(&inner.facts()).and_then(|answer| give(answer, &[], &inner, reply, &ask));
    if given.is_some() {
        return given;
    }
    let query = Query::KernelAttributes;
    ask_own_kernel(driver, program, &inner, &kernel_name, query, &|own| {
        driver.forward_kernel_info(own, name, reply)
    })
}

/// clGetKernelArgInfo. None: the driver answers.
pub fn kernel_arg_info(
    driver: &Driver,
    kernel: Kernel,
    index: cl_uint,
    name: cl_kernel_arg_info,
    reply: Reply,
) -> Option<cl_int> {
    let (program, inner) = shadow::kernel_origin(kernel)?;
    let kernel_name = function_name(driver, kernel)?;
    if ARGUMENT_QUERIES.contains(&name) && inner.changed_twin().is_none() {
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
        let ask = |reply| driver.forward_kernel_arg_info(kernel, index, name, reply);
        // Intel's CPU runtime does not know these facts of kernels from binaries. It handles the size of a kernel's name as it
        // would handle theirs.
        let ask_name = |reply| driver.forward_kernel_info(kernel, CL_KERNEL_FUNCTION_NAME, reply);
        let given = find(&inner.facts()).and_then(|answer| {
            let given = give(answer.clone(), &[], &inner, reply, &ask);
            given.or_else(|| give(answer, &[], &inner, reply, &ask_name))
        });
        if given.is_some() {
            return given;
        }
    }
    let query = Query::KernelArgInfo;
    ask_own_kernel(driver, program, &inner, &kernel_name, query, &|own| {
        driver.forward_kernel_arg_info(own, index, name, reply)
    })
}

/// Sorts the kernels of P' into the order in which the driver would have created those of P.
pub fn in_recorded_order(driver: &Driver, inner: &CachedProgram, kernels: &mut [cl_kernel]) {
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
    /// P itself, or the program that serves it.
    Itself(Program),
    /// A program that the driver has built for real. For compiled objects and libraries the driver itself reports why there are no
    /// kernels, since objects from binaries may have some (measured on rusticl). After a failed call to change the result of a
    /// link, a program from a binary may behave differently.
    Own(Materialized),
}

impl Executing {
    /// The program's handle.
    pub fn program(&self) -> Program {
        match self {
            Executing::Itself(program) => *program,
            Executing::Own(own) => own.program,
        }
    }

    /// The origin of its kernels, if they come from the serving program or from a twin.
    pub fn origin(&self, inner: &Option<Arc<CachedProgram>>) -> Option<Arc<CachedProgram>> {
        match self {
            Executing::Itself(_) => inner.clone(),
            Executing::Own(_) => inner.clone().filter(|inner| !inner.is_inner()),
        }
    }

    /// Whether the driver has built it for real.
    pub fn is_own(&self) -> bool {
        matches!(self, Executing::Own(_))
    }
}

/// Whether kernels are created from the serving program. Else they are created from a program that the driver builds for real.
pub fn executes(inner: &CachedProgram) -> bool {
    let first = inner.built().first().copied().unwrap_or(0);
    let executable = CL_PROGRAM_BINARY_TYPE_EXECUTABLE as cl_int;
    !inner.has_lost_kernels()
        && binary_type(&inner.facts(), first).is_none_or(|kind| kind == executable)
}

/// The program from which kernels of `program` are created, if `inner` serves it.
pub fn executing(program: Program, inner: Option<&Arc<CachedProgram>>) -> Executing {
    let Some(inner) = inner else {
        return Executing::Itself(program);
    };
    if executes(inner) {
        return Executing::Itself(inner.program());
    }
    match Cache::get().own(program, inner, Query::CreateKernel) {
        Some(own) => Executing::Own(own),
        None => Executing::Itself(inner.program()),
    }
}

/// Whether the application has released the last reference to a program that only its kernels keep in memory. P' was released as
/// well, so P' gives the driver's answers for such a handle.
fn is_dead(driver: &Driver, kept: bool) -> bool {
    kept && !driver.behavior().kernels_keep_program
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

/// Which bytes of the value of a query of clGetProgramInfo the driver does not write: see [`UNWRITTEN`].
fn unwritten(facts: &Facts, name: cl_program_info) -> &[u8] {
    let mut answers = facts.program.iter();
    match answers.find(|(known, _)| *known == name | UNWRITTEN) {
        Some((_, Answer::Value(bytes))) => bytes,
        _ => &[],
    }
}

/// The recorded size of a value that the driver refuses: see [`SIZE_ALONE`].
fn size_alone(answers: &Answers, name: u32) -> Option<usize> {
    match find(answers, name | SIZE_ALONE)? {
        Answer::Value(size) => {
            usize::try_from(u64::from_le_bytes(size.to_vec().try_into().ok()?)).ok()
        }
        _ => None,
    }
}

/// Gives the size of a value that the driver refuses, if only the size is wanted.
fn give_size(answer: &Answer, size: Option<usize>, reply: Reply) -> Option<cl_int> {
    let is_error = matches!(answer, Answer::Error(_)) && reply.wants_size_alone();
    size.filter(|_| is_error).map(|size| reply.give_size(size))
}

/// Gives a recorded answer of a program. `gaps`: see [`unwritten`]. If the answer is an error and the application passes no value, and room
/// for one or no place for its size, some drivers report success (measured: Intel's CPU runtime), so the driver is asked with the same
/// arguments. None: only the program that the driver builds for real can answer; it is built by now if that is possible.
fn give_or_ask(
    answer: Answer,
    gaps: &[u8],
    program: Program,
    inner: &Arc<CachedProgram>,
    query: Query,
    reply: Reply,
    ask: Ask,
) -> Option<cl_int> {
    let is_error = matches!(answer, Answer::Error(_));
    if is_error && reply.value.is_null() && (reply.size > 0 || reply.size_ret.is_null()) {
        return Some(ask(reply));
    }
    let given = give(answer, gaps, inner, reply, ask);
    if given.is_none() {
        Cache::get().own(program, inner, query);
    }
    given
}

/// Gives a recorded answer. None: only the program that the driver builds for real can answer. `gaps`: see [`unwritten`].
fn give(
    answer: Answer,
    gaps: &[u8],
    inner: &CachedProgram,
    reply: Reply,
    ask: Ask,
) -> Option<cl_int> {
    let options = inner.recipe().arguments.options.as_ref();
    match answer {
        Answer::Value(value) => reply.give_partial(&value, gaps, ask),
        Answer::OwnOptions => {
            let options = options.map_or(b"\0".as_slice(), |options| options.as_bytes_with_nul());
            reply.give(options, ask)
        }
        Answer::AroundOwnOptions(parts) => {
            let options = options.map_or(b"".as_slice(), |options| options.as_bytes());
            let parts = parts.iter().map(|part| &**part);
            reply.give(&fallible::join(parts, options).ok()?, ask)
        }
        Answer::Error(code) => Some(error(code, reply, ask)),
        Answer::Withheld => None,
    }
}

/// The largest answer of a query that is no text, in bytes.
const MAX_NUMBER_BYTES: usize = 8;

/// The error of a query that was recorded as an error. Into a buffer in which the answer would not fit, some drivers report that first
/// (measured: Intel's CPU runtime, CL_INVALID_VALUE in place of CL_INVALID_PROGRAM for a compiled program), so the driver is asked.
/// Nothing else that it says is taken, since it may say it of programs from binaries only (measured there:
/// CL_KERNEL_ARG_INFO_NOT_AVAILABLE in place of CL_INVALID_VALUE for an argument that is not there).
fn error(recorded: cl_int, reply: Reply, ask: Ask) -> cl_int {
    if reply.value.is_null() || reply.size >= MAX_NUMBER_BYTES {
        return recorded;
    }
    match ask(reply) {
        CL_INVALID_VALUE => CL_INVALID_VALUE,
        _ => recorded,
    }
}
