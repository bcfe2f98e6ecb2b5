//! Queries: clGetProgramInfo, clGetProgramBuildInfo, clGetKernelInfo, clGetKernelArgInfo, and the query of clGetContextInfo that
//! would reveal inner programs. All other queries of a kernel give the same answers for P and P' (measured on PoCL, Intel's CPU
//! runtime and rusticl), so they are not hooked.

use std::ffi::c_void;

use opencl_sys::*;

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
    ) -> cl_int = |driver, below| {
        let reply = Reply { size: param_value_size, value: param_value, size_ret: param_value_size_ret };
        context_info(driver, Context::new(context), param_name, reply).unwrap_or_else(|| below.call())
    };
    /// Slot 32.
    clGetProgramInfo(
        program: cl_program,
        param_name: cl_program_info,
        param_value_size: usize,
        param_value: *mut c_void,
        param_value_size_ret: *mut usize,
    ) -> cl_int = |driver, below| {
        let reply = Reply { size: param_value_size, value: param_value, size_ret: param_value_size_ret };
        answer::program_info(driver, Program::new(program), param_name, reply).unwrap_or_else(|| below.call())
    };
    /// Slot 33.
    clGetProgramBuildInfo(
        program: cl_program,
        device: cl_device_id,
        param_name: cl_program_build_info,
        param_value_size: usize,
        param_value: *mut c_void,
        param_value_size_ret: *mut usize,
    ) -> cl_int = |driver, below| {
        let reply = Reply { size: param_value_size, value: param_value, size_ret: param_value_size_ret };
        answer::build_info(driver, Program::new(program), Device::new(device), param_name, reply)
            .unwrap_or_else(|| below.call())
    };
    /// Slot 39.
    clGetKernelInfo(
        kernel: cl_kernel,
        param_name: cl_kernel_info,
        param_value_size: usize,
        param_value: *mut c_void,
        param_value_size_ret: *mut usize,
    ) -> cl_int = |driver, below| {
        let reply = Reply { size: param_value_size, value: param_value, size_ret: param_value_size_ret };
        answer::kernel_info(driver, Kernel::new(kernel), param_name, reply).unwrap_or_else(|| below.call())
    };
    /// Slot 101.
    clGetKernelArgInfo(
        kernel: cl_kernel,
        arg_index: cl_uint,
        param_name: cl_kernel_arg_info,
        param_value_size: usize,
        param_value: *mut c_void,
        param_value_size_ret: *mut usize,
    ) -> cl_int = |driver, below| {
        let reply = Reply { size: param_value_size, value: param_value, size_ret: param_value_size_ret };
        answer::kernel_arg_info(driver, Kernel::new(kernel), arg_index, param_name, reply)
            .unwrap_or_else(|| below.call())
    };
}

/// CL_CONTEXT_REFERENCE_COUNT without inner programs, on drivers where programs count.
fn context_info(
    driver: &Driver,
    context: Context,
    name: cl_context_info,
    reply: Reply,
) -> Option<cl_int> {
    if name != CL_CONTEXT_REFERENCE_COUNT || !driver.context_counts_programs() {
        return None;
    }
    let ours = cl_uint::try_from(shadow::inner_programs(context))
        .ok()
        .filter(|ours| *ours > 0)?;
    let references = driver.context_references(context).ok()?;
    let ask = |reply| driver.forward_context_info(context, name, reply);
    reply.give(&references.saturating_sub(ours).to_value(), &ask)
}
