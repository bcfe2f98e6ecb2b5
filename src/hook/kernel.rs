//! Kernels of a served program are created from its P'. Each is remembered with the P that the application knows.

use std::ffi::c_char;

use opencl_sys::*;

use super::Below;
use crate::cache::{Cache, answer};
use crate::cl::{Kernel, Program};
use crate::driver::Driver;
use crate::shadow;

super::hooks! {
    /// Slot 34.
    clCreateKernel(program: cl_program, kernel_name: *const c_char, errcode_ret: *mut cl_int) -> cl_kernel = |driver, below| create(driver, below, Program::new(program), kernel_name, errcode_ret);
    /// Slot 35.
    clCreateKernelsInProgram(
        program: cl_program,
        num_kernels: cl_uint,
        kernels: *mut cl_kernel,
        num_kernels_ret: *mut cl_uint,
    ) -> cl_int = |driver, below| {
        create_all(driver, below, Program::new(program), num_kernels, kernels, num_kernels_ret)
    };
    /// Slot 137.
    clCloneKernel(source_kernel: cl_kernel, errcode_ret: *mut cl_int) -> cl_kernel = |_driver, below| {
        let clone = below.call();
        if !clone.is_null() {
            shadow::kernel_cloned(Kernel::new(source_kernel), Kernel::new(clone));
        }
        clone
    };
}

fn create(
    driver: &'static Driver,
    below: &Below<cl_kernel, impl Fn() -> cl_kernel>,
    program: Program,
    name: *const c_char,
    errcode_ret: *mut cl_int,
) -> cl_kernel {
    let Some(view) = shadow::view(program) else {
        return below.call();
    };
    let executing = answer::executing(program, view.inner.as_ref());
    let kernel = below.instead(|| {
        let Some(function) = driver.below().clCreateKernel else {
            return std::ptr::null_mut();
        };
        // SAFETY: the driver's own function; what executes is P or a program of the same driver that lives as long as
        // `view.inner`, all else is the application's.
        unsafe { function(executing.program().raw(), name, errcode_ret) }
    });
    let origin = executing.origin(&view.inner);
    let is_of_twin = executing.is_own();
    drop(executing);
    if !kernel.is_null() {
        let kernel = Kernel::new(kernel);
        shadow::kernel_created(program, kernel, origin, is_of_twin);
        if let Some(key) = view.recorded {
            Cache::record_kernel(driver, &key, kernel);
        }
    }
    kernel
}

fn create_all(
    driver: &'static Driver,
    below: &Below<cl_int, impl Fn() -> cl_int>,
    program: Program,
    num_kernels: cl_uint,
    kernels: *mut cl_kernel,
    num_kernels_ret: *mut cl_uint,
) -> cl_int {
    let Some(view) = shadow::view(program) else {
        return below.call();
    };
    let mut own_count: cl_uint = 0;
    // A driver may write the count even if it fails (measured: Intel's CPU runtime, if there is not enough room).
    let count = match !kernels.is_null() && num_kernels_ret.is_null() {
        true => &raw mut own_count,
        false => num_kernels_ret,
    };
    let executing = answer::executing(program, view.inner.as_ref());
    let code = below.instead(|| {
        let Some(function) = driver.below().clCreateKernelsInProgram else {
            return CL_INVALID_OPERATION;
        };
        // SAFETY: as in `create`; the count goes to a variable of ours where the application does not want it.
        unsafe { function(executing.program().raw(), num_kernels, kernels, count) }
    });
    let origin = executing.origin(&view.inner);
    let is_of_twin = executing.is_own();
    drop(executing);
    if code == CL_SUCCESS && !kernels.is_null() {
        // SAFETY: the driver has just written the count, and that many kernels.
        let kernels = unsafe { std::slice::from_raw_parts_mut(kernels, count.read() as usize) };
        if let Some(inner) = origin.as_ref().filter(|_| !is_of_twin) {
            answer::in_recorded_order(driver, inner, kernels);
        }
        for &mut kernel in kernels {
            let kernel = Kernel::new(kernel);
            shadow::kernel_created(program, kernel, origin.clone(), is_of_twin);
            if let Some(key) = view.recorded {
                Cache::record_kernel(driver, &key, kernel);
            }
        }
    }
    code
}
