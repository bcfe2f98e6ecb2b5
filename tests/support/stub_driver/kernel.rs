//! Kernel objects: their creation, arguments and lifetime.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use opencl_sys::*;

use crate::abi::{self, Handle, Outcome, code};
use crate::compiler::Code;
use crate::config;
use crate::fork_safety::Mutex;
use crate::parse;
use crate::program::{PROGRAMS, Program};
use crate::registry::{Hold, Registry};

/// A value that was set, none yet, or NULL for local memory.
pub type Value = Option<Vec<u8>>;

pub struct Kernel {
    pub program: Hold<Program>,
    pub definition: parse::Kernel,
    /// The code of each device at the time of creation: a later build does not change a kernel.
    pub codes: Vec<Option<Arc<Code>>>,
    pub values: Mutex<Vec<Value>>,
}

pub static KERNELS: Registry<Kernel> = Registry::new();

pub fn kernel(handle: Handle) -> Outcome<Arc<Kernel>> {
    KERNELS.get(handle).ok_or(CL_INVALID_KERNEL)
}

fn new(program: Handle, choose: impl FnOnce(&Code) -> Option<&parse::Kernel>) -> Outcome<Handle> {
    let program = PROGRAMS.hold(program).ok_or(CL_INVALID_PROGRAM)?;
    std::thread::sleep(config::kernel_time());
    // CL_INVALID_PROGRAM_EXECUTABLE if there is no successfully built executable for program.
    let code = program
        .object()
        .executable()
        .ok_or(CL_INVALID_PROGRAM_EXECUTABLE)?;
    let definition = choose(&code).ok_or(CL_INVALID_KERNEL_NAME)?.clone();
    let images = program.object().state.lock().images.clone();
    let codes = images
        .iter()
        .map(|image| image.executable().cloned())
        .collect();
    let values = Mutex::new(vec![None; definition.arguments.len()]);
    let parent = program.handle();
    let kernel = Kernel {
        program,
        definition,
        codes,
        values,
    };
    Ok(KERNELS.insert(Arc::new(kernel), parent))
}

pub unsafe extern "C" fn create(
    program: cl_program,
    name: *const c_char,
    errcode: *mut cl_int,
) -> cl_kernel {
    config::log_frame("kernel");
    let outcome = match name.is_null() {
        true => Err(CL_INVALID_VALUE),
        false => {
            // SAFETY: the application's own string.
            let name = unsafe { abi::text(name) };
            new(program, |code| {
                code.kernels
                    .iter()
                    .find(|kernel| kernel.name.as_bytes() == name)
            })
        }
    };
    // SAFETY: the application's own place.
    unsafe { abi::handle(outcome, errcode) }
}

pub unsafe extern "C" fn create_all(
    handle: cl_program,
    count: cl_uint,
    kernels: *mut cl_kernel,
    found: *mut cl_uint,
) -> cl_int {
    code((|| {
        let program = crate::program::program(handle)?;
        let code = program.executable().ok_or(CL_INVALID_PROGRAM_EXECUTABLE)?;
        let total = code.kernels.len();
        if !kernels.is_null() {
            // CL_INVALID_VALUE if kernels is not NULL and num_kernels is less than the number of kernels.
            if (count as usize) < total {
                return Err(CL_INVALID_VALUE);
            }
            for index in 0..total {
                let kernel = new(handle, |code| code.kernels.get(index))?;
                // SAFETY: the application's array has `count` elements.
                unsafe { abi::store(kernels.add(index), kernel) };
            }
        }
        // SAFETY: the application's own place.
        unsafe { abi::store(found, total as cl_uint) };
        Ok(())
    })())
}

pub unsafe extern "C" fn clone(handle: cl_kernel, errcode: *mut cl_int) -> cl_kernel {
    let outcome = kernel(handle).and_then(|kernel| {
        let program = PROGRAMS
            .hold(kernel.program.handle())
            .ok_or(CL_INVALID_PROGRAM)?;
        let clone = Kernel {
            program,
            definition: kernel.definition.clone(),
            codes: kernel.codes.clone(),
            values: Mutex::new(kernel.values.lock().clone()),
        };
        Ok(KERNELS.insert(Arc::new(clone), handle))
    });
    // SAFETY: the application's own place.
    unsafe { abi::handle(outcome, errcode) }
}

pub unsafe extern "C" fn retain(handle: cl_kernel) -> cl_int {
    code(
        KERNELS
            .retain(handle)
            .then_some(())
            .ok_or(CL_INVALID_KERNEL),
    )
}

pub unsafe extern "C" fn release(handle: cl_kernel) -> cl_int {
    code(
        KERNELS
            .release(handle)
            .then_some(())
            .ok_or(CL_INVALID_KERNEL),
    )
}

pub unsafe extern "C" fn set_argument(
    handle: cl_kernel,
    index: cl_uint,
    size: usize,
    value: *const c_void,
) -> cl_int {
    code((|| {
        let kernel = kernel(handle)?;
        let index = index as usize;
        let argument = kernel
            .definition
            .arguments
            .get(index)
            .ok_or(CL_INVALID_ARG_INDEX)?;
        match argument.address {
            CL_KERNEL_ARG_ADDRESS_LOCAL if !value.is_null() => return Err(CL_INVALID_ARG_VALUE),
            CL_KERNEL_ARG_ADDRESS_GLOBAL | CL_KERNEL_ARG_ADDRESS_CONSTANT
                if size != size_of::<cl_mem>() =>
            {
                return Err(CL_INVALID_ARG_SIZE);
            }
            _ if size == 0 => return Err(CL_INVALID_ARG_SIZE),
            _ => {}
        }
        // SAFETY: the application's value has `size` bytes.
        kernel.values.lock()[index] = Some(unsafe { abi::list(value.cast::<u8>(), size) });
        Ok(())
    })())
}
