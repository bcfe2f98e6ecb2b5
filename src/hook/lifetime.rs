//! Reference counts of programs and kernels, and the release callback of programs.
//!
//! A driver's release may run the application's callbacks (of memory objects that a kernel held, measured on rusticl), so it
//! is called outside of our hooks.

use std::ffi::c_void;

use opencl_sys::*;

use crate::cache::Cache;
use crate::cl::{Kernel, Program};
use crate::driver::reentrancy;
use crate::shadow::{self, Release, Retain};

super::hooks! {
    /// Slot 28.
    clRetainProgram(program: cl_program) -> cl_int = no_cancellation_point |driver, below| {
        match shadow::program_retained(Program::new(program)) {
            Retain::Forward => below.call(),
            // The reference that was kept at the application's last release becomes the application's again.
            Retain::Counted => CL_SUCCESS,
            Retain::Dead(inner) => below.instead(|| driver.retain_program(inner.program())),
        }
    };
    /// Slot 29.
    clReleaseProgram(program: cl_program) -> cl_int = |driver, below| {
        // Before the driver's: Oclgrind 21.10, whose own destructors have run in a late handler of atexit(3), damages the heap there.
        Cache::write_at_release();
        match shadow::program_released(Program::new(program)) {
            Release::Forward => reentrancy::outside(|| below.call()),
            Release::Last(inner) => {
                let code = reentrancy::outside(|| below.call());
                drop(inner);
                code
            }
            Release::Keep(dead) => {
                if let Some(inner) = dead {
                    inner.release();
                }
                CL_SUCCESS
            }
            Release::Dead(inner) => below.instead(|| driver.release_program(inner.program())),
        }
    };
    /// Slot 36.
    clRetainKernel(kernel: cl_kernel) -> cl_int = no_cancellation_point |_driver, below| {
        shadow::kernel_retained(Kernel::new(kernel));
        below.call()
    };
    /// Slot 37.
    clReleaseKernel(kernel: cl_kernel) -> cl_int = |driver, below| {
        let release = shadow::kernel_released(Kernel::new(kernel));
        let code = reentrancy::outside(|| below.call());
        if let Some(release) = release {
            if let Some(program) = release.program {
                reentrancy::outside(|| driver.release_program(program));
            }
            drop(release.inners);
        }
        code
    };
    /// Slot 144.
    clSetProgramReleaseCallback(
        program: cl_program,
        pfn_notify: Option<unsafe extern "C" fn(cl_program, *mut c_void)>,
        user_data: *mut c_void,
    ) -> cl_int = |_driver, below| {
        let code = below.call();
        if code == CL_SUCCESS {
            // Destructors of program-scope variables would run in P', but the callback belongs to P.
            shadow::release_callback_set(Program::new(program));
        }
        code
    };
}
