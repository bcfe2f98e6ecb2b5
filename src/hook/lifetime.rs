//! Reference counts of programs and kernels, and the release callback of programs.
//!
//! A driver's release may run the application's callbacks (of memory objects that a kernel held, measured on rusticl), so it
//! is called outside of our hooks.

use std::ffi::c_void;

use opencl_sys::*;

use super::Below;
use crate::cl::{Kernel, Notify, Program};
use crate::driver::{Driver, notify};
use crate::shadow::{self, Release};

super::hooks! {
    /// Slot 28.
    clRetainProgram(program: cl_program) -> cl_int = retain_program;
    /// Slot 29.
    clReleaseProgram(program: cl_program) -> cl_int = release_program;
    /// Slot 36.
    clRetainKernel(kernel: cl_kernel) -> cl_int = retain_kernel;
    /// Slot 37.
    clReleaseKernel(kernel: cl_kernel) -> cl_int = release_kernel;
    /// Slot 144.
    clSetProgramReleaseCallback(
        program: cl_program,
        pfn_notify: Option<Notify>,
        user_data: *mut c_void,
    ) -> cl_int = set_release_callback;
}

fn retain_program(
    _driver: &'static Driver,
    below: &Below<cl_int, impl Fn() -> cl_int>,
    program: cl_program,
) -> cl_int {
    // A reference that was kept when the application gave its last one back is given again.
    if shadow::program_retained(Program::new(program)) {
        below.call()
    } else {
        CL_SUCCESS
    }
}

fn release_program(
    _driver: &'static Driver,
    below: &Below<cl_int, impl Fn() -> cl_int>,
    program: cl_program,
) -> cl_int {
    match shadow::program_released(Program::new(program)) {
        Release::Forward => notify::outside(|| below.call()),
        Release::Last(inner) => {
            let code = notify::outside(|| below.call());
            drop(inner);
            code
        }
        Release::Keep => CL_SUCCESS,
    }
}

fn retain_kernel(
    _driver: &'static Driver,
    below: &Below<cl_int, impl Fn() -> cl_int>,
    kernel: cl_kernel,
) -> cl_int {
    shadow::kernel_retained(Kernel::new(kernel));
    below.call()
}

fn release_kernel(
    driver: &'static Driver,
    below: &Below<cl_int, impl Fn() -> cl_int>,
    kernel: cl_kernel,
) -> cl_int {
    let release = shadow::kernel_released(Kernel::new(kernel));
    let code = notify::outside(|| below.call());
    if let Some(release) = release {
        if let Some(program) = release.program {
            notify::outside(|| driver.release_program(program));
        }
        drop(release.inners);
    }
    code
}

fn set_release_callback(
    _driver: &'static Driver,
    below: &Below<cl_int, impl Fn() -> cl_int>,
    program: cl_program,
    _pfn_notify: Option<Notify>,
    _user_data: *mut c_void,
) -> cl_int {
    let code = below.call();
    if code == CL_SUCCESS {
        // Destructors of program-scope variables would run in P', the callback belongs to P.
        shadow::release_callback_set(Program::new(program));
    }
    code
}
