//! Queries of programs and kernels that are served: who answers what.
//!
//! P answers for identity, context and source; the entry for what drivers tell differently of a program that was made
//! from a binary; P' for the rest. What none of them answers exactly makes the driver build P (R2).

use std::ffi::CString;
use std::sync::Arc;
use std::time::Instant;

use opencl_sys::*;

use super::record::{ARGUMENT_QUERIES, BUILD_QUERIES, PROGRAM_QUERIES, facts, kernel_facts};
use super::{Cache, nanoseconds};
use crate::cl::info::{Number, Reply};
use crate::cl::{Device, Kernel, Program};
use crate::driver::{self, Driver, NotifyTarget};
use crate::shadow::{self, Inner};
use crate::store::entry::{Answer, Answers, Facts};
use crate::store::stats::Counter;

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
            give(answered(driver, program, &inner, find)?, &inner, reply)
        }
        _ => driver.forward_program_info(inner.program(), name, reply),
    })
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
    // Of a device that the program is not for, P says what it would say if it was built.
    let index = inner.devices().iter().position(|known| *known == device)?;
    if !BUILD_QUERIES.contains(&name) {
        return Some(driver.forward_build_info(inner.program(), device, name, reply));
    }
    let find = |facts: &Facts| find(facts.devices.get(index)?, name);
    Some(give(
        answered(driver, program, &inner, find)?,
        &inner,
        reply,
    ))
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
        return Some(reply.give(&program.to_value()));
    }
    let kernel_name = function_name(driver, kernel)?;
    let find = |facts: &Facts| known(&facts.kernel(kernel_name.as_bytes())?.attributes);
    if let Some(answer) = find(&inner.facts()) {
        return Some(give(answer, &inner, reply));
    }
    ask_own_kernel(driver, program, &inner, &kernel_name, &|own| {
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
    ask_own_kernel(driver, program, &inner, &kernel_name, &|own| {
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

fn give(answer: Answer, inner: &Inner, reply: Reply) -> cl_int {
    match answer {
        Answer::Value(value) => reply.give(&value),
        Answer::OwnOptions => reply.give(
            inner
                .arguments()
                .options
                .as_ref()
                .map_or(b"\0", |options| options.as_bytes_with_nul()),
        ),
        Answer::AroundOwnOptions(parts) => {
            let options = inner.arguments().options.as_ref();
            reply.give(&parts.join(options.map_or(b"".as_slice(), |options| options.as_bytes())))
        }
        Answer::Error(code) => code,
        Answer::Withheld => CL_INVALID_VALUE,
    }
}

/// What was recorded, if need be after P was built for real; None if even that does not help, so that P answers.
fn answered(
    driver: &Driver,
    program: Program,
    inner: &Arc<Inner>,
    find: impl Fn(&Facts) -> Option<Answer>,
) -> Option<Answer> {
    if let Some(answer) = find(&inner.facts()) {
        return Some(answer);
    }
    let cache = Cache::get();
    let own = shadow::own_program(program, inner)?;
    if !cache.materialise(program, inner) {
        return None;
    }
    let fresh = facts(driver, program, inner.devices(), inner.arguments());
    drop(own);
    inner.set_facts(Arc::new(fresh.clone()));
    cache.amend(&inner.key(), |facts| {
        let changed = *facts != fresh;
        *facts = fresh;
        changed
    });
    find(&inner.facts())
}

/// Asks a kernel of P itself, after P was built for real; None: that cannot be, so the kernel of P' answers.
fn ask_own_kernel(
    driver: &Driver,
    program: Program,
    inner: &Arc<Inner>,
    name: &CString,
    ask: &dyn Fn(Kernel) -> cl_int,
) -> Option<cl_int> {
    let cache = Cache::get();
    let own = shadow::own_program(program, inner)?;
    if !cache.materialise(program, inner) {
        return None;
    }
    let kernel = driver.create_kernel(program, name).ok()?;
    let code = ask(kernel);
    let fresh = kernel_facts(driver, kernel);
    driver.release_kernel(kernel);
    drop(own);
    if let Some(fresh) = fresh {
        let mut facts = (*inner.facts()).clone();
        if facts.kernel(&fresh.name).is_none() {
            facts.kernels.push(fresh.clone());
            inner.set_facts(Arc::new(facts));
        }
        cache.amend(&inner.key(), |facts| {
            let new = facts.kernel(&fresh.name).is_none();
            if new {
                facts.kernels.push(fresh);
            }
            new
        });
    }
    Some(code)
}

impl Cache {
    /// R2: builds a served P for real, with its last arguments, unless its inputs have changed since. P answers queries
    /// from then on where it must; kernels still come from P', so that program-scope variables stay one set.
    ///
    /// The caller has the right to P, by [`shadow::own_program`].
    fn materialise(&self, program: Program, inner: &Inner) -> bool {
        if inner.is_materialised() {
            return true;
        }
        let driver = inner.driver();
        let source = driver.program_info(program, CL_PROGRAM_SOURCE);
        let length = source.map_or(0, |source| source.len().saturating_sub(1));
        let plan = self.key(driver, program, length, inner.arguments());
        if !plan.is_ok_and(|plan| plan.key == inner.key()) {
            self.count(&[Counter::InputsChanged.by(1)]);
            let key = &inner.key().hex()[..16];
            tracing::warn!(
                key,
                "a query is answered from the cache although the inputs have changed"
            );
            return false;
        }
        self.build_own(program, inner)
    }

    /// Builds a served P for real, whatever has become of its inputs.
    ///
    /// The caller has the right to P, by [`shadow::own_program`] or because it is building it.
    pub(super) fn build_own(&self, program: Program, inner: &Inner) -> bool {
        if inner.is_materialised() {
            return true;
        }
        if driver::is_ending() {
            return false;
        }
        let started = Instant::now();
        let code = inner
            .driver()
            .build_program(program, inner.arguments(), NotifyTarget::NONE);
        let elapsed = nanoseconds(started.elapsed());
        self.count(&[Counter::Materialised.by(1), Counter::RebuiltNs.by(elapsed)]);
        tracing::info!(key = &inner.key().hex()[..16], code, "built for real");
        if code == CL_SUCCESS {
            inner.set_materialised();
        }
        code == CL_SUCCESS
    }
}
