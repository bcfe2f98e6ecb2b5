//! Queries: clGetProgramInfo, clGetProgramBuildInfo, clGetKernelInfo, clGetKernelArgInfo and the one of clGetContextInfo
//! that would show inner programs. All other queries of a kernel give the same answers for P and P' (measured on PoCL,
//! Intel's CPU runtime and rusticl), so they are not hooked.

use std::ffi::c_void;

use opencl_sys::*;

use super::Below;
use crate::cache::answer;
use crate::cl::info::{Number, Reply};
use crate::cl::{Context, Device, Kernel, Program};
use crate::driver::Driver;
use crate::shadow;

super::hooks! {
    /// Slot 8.
    clGetContextInfo(
        context: cl_context,
        param_name: cl_context_info,
        param_value_size: usize,
        param_value: *mut c_void,
        param_value_size_ret: *mut usize,
    ) -> cl_int = context_info;
    /// Slot 32.
    clGetProgramInfo(
        program: cl_program,
        param_name: cl_program_info,
        param_value_size: usize,
        param_value: *mut c_void,
        param_value_size_ret: *mut usize,
    ) -> cl_int = program_info;
    /// Slot 33.
    clGetProgramBuildInfo(
        program: cl_program,
        device: cl_device_id,
        param_name: cl_program_build_info,
        param_value_size: usize,
        param_value: *mut c_void,
        param_value_size_ret: *mut usize,
    ) -> cl_int = build_info;
    /// Slot 39.
    clGetKernelInfo(
        kernel: cl_kernel,
        param_name: cl_kernel_info,
        param_value_size: usize,
        param_value: *mut c_void,
        param_value_size_ret: *mut usize,
    ) -> cl_int = kernel_info;
    /// Slot 101.
    clGetKernelArgInfo(
        kernel: cl_kernel,
        arg_index: cl_uint,
        param_name: cl_kernel_arg_info,
        param_value_size: usize,
        param_value: *mut c_void,
        param_value_size_ret: *mut usize,
    ) -> cl_int = kernel_arg_info;
}

fn context_info(
    driver: &'static Driver,
    below: &Below<cl_int, impl Fn() -> cl_int>,
    context: cl_context,
    name: cl_context_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> cl_int {
    if name != CL_CONTEXT_REFERENCE_COUNT || !driver.context_counts_programs() {
        return below.call();
    }
    let context = Context::new(context);
    match (
        shadow::inner_programs(context),
        driver.context_references(context),
    ) {
        (ours @ 1.., Ok(references)) => {
            let references = references.saturating_sub(cl_uint::try_from(ours).unwrap_or(0));
            Reply {
                size,
                value,
                size_ret,
            }
            .give(&references.to_value())
        }
        _ => below.call(),
    }
}

fn program_info(
    driver: &'static Driver,
    below: &Below<cl_int, impl Fn() -> cl_int>,
    program: cl_program,
    name: cl_program_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> cl_int {
    let reply = Reply {
        size,
        value,
        size_ret,
    };
    answer::program_info(driver, Program::new(program), name, reply).unwrap_or_else(|| below.call())
}

fn build_info(
    driver: &'static Driver,
    below: &Below<cl_int, impl Fn() -> cl_int>,
    program: cl_program,
    device: cl_device_id,
    name: cl_program_build_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> cl_int {
    let reply = Reply {
        size,
        value,
        size_ret,
    };
    answer::build_info(
        driver,
        Program::new(program),
        Device::new(device),
        name,
        reply,
    )
    .unwrap_or_else(|| below.call())
}

fn kernel_info(
    driver: &'static Driver,
    below: &Below<cl_int, impl Fn() -> cl_int>,
    kernel: cl_kernel,
    name: cl_kernel_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> cl_int {
    let reply = Reply {
        size,
        value,
        size_ret,
    };
    answer::kernel_info(driver, Kernel::new(kernel), name, reply).unwrap_or_else(|| below.call())
}

fn kernel_arg_info(
    driver: &'static Driver,
    below: &Below<cl_int, impl Fn() -> cl_int>,
    kernel: cl_kernel,
    index: cl_uint,
    name: cl_kernel_arg_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> cl_int {
    let reply = Reply {
        size,
        value,
        size_ret,
    };
    answer::kernel_arg_info(driver, Kernel::new(kernel), index, name, reply)
        .unwrap_or_else(|| below.call())
}
