//! What a kernel answers about itself.

use std::ffi::c_void;

use opencl_sys::*;

use crate::abi::{Answer, Handle, Outcome, respond};
use crate::context::shown;
use crate::kernel::{KERNELS, kernel};

fn answer(handle: Handle, param: cl_kernel_info) -> Outcome<Answer> {
    let kernel = kernel(handle)?;
    let definition = &kernel.definition;
    Ok(match param {
        CL_KERNEL_FUNCTION_NAME => Answer::text(&definition.name),
        CL_KERNEL_NUM_ARGS => Answer::value(definition.arguments.len() as cl_uint),
        CL_KERNEL_REFERENCE_COUNT => shown(KERNELS.counts(handle)),
        CL_KERNEL_CONTEXT => Answer::value(kernel.program.object().context.handle()),
        CL_KERNEL_PROGRAM => Answer::value(kernel.program.handle()),
        CL_KERNEL_ATTRIBUTES => Answer::text(&definition.attributes),
        _ => return Err(CL_INVALID_VALUE),
    })
}

pub unsafe extern "C" fn get_info(
    handle: cl_kernel,
    param: cl_kernel_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> cl_int {
    // SAFETY: the application's own places.
    unsafe { respond(answer(handle, param), size, value, size_ret) }
}

fn argument_answer(handle: Handle, index: cl_uint, param: cl_kernel_arg_info) -> Outcome<Answer> {
    let kernel = kernel(handle)?;
    let definition = &kernel.definition;
    let argument = definition
        .arguments
        .get(index as usize)
        .ok_or(CL_INVALID_ARG_INDEX)?;
    if !definition.from_source {
        return Err(CL_KERNEL_ARG_INFO_NOT_AVAILABLE);
    }
    Ok(match param {
        CL_KERNEL_ARG_ADDRESS_QUALIFIER => Answer::value(argument.address),
        CL_KERNEL_ARG_ACCESS_QUALIFIER => Answer::value(argument.access),
        CL_KERNEL_ARG_TYPE_NAME => Answer::text(&argument.type_name),
        CL_KERNEL_ARG_TYPE_QUALIFIER => Answer::value(argument.type_qualifier),
        CL_KERNEL_ARG_NAME => Answer::text(&argument.name),
        _ => return Err(CL_INVALID_VALUE),
    })
}

pub unsafe extern "C" fn get_argument_info(
    handle: cl_kernel,
    index: cl_uint,
    param: cl_kernel_arg_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> cl_int {
    // SAFETY: the application's own places.
    unsafe { respond(argument_answer(handle, index, param), size, value, size_ret) }
}

fn group_answer(
    handle: Handle,
    device: Handle,
    param: cl_kernel_work_group_info,
) -> Outcome<Answer> {
    let kernel = kernel(handle)?;
    let program = kernel.program.object();
    // CL_INVALID_DEVICE if device is NULL but there is more than one device associated with kernel.
    if !(device.is_null() && program.devices.len() == 1) {
        program.index(device as usize)?;
    }
    Ok(match param {
        CL_KERNEL_WORK_GROUP_SIZE => Answer::value(256_usize),
        CL_KERNEL_COMPILE_WORK_GROUP_SIZE => Answer::values(&kernel.definition.group_size),
        CL_KERNEL_LOCAL_MEM_SIZE | CL_KERNEL_PRIVATE_MEM_SIZE => Answer::value(0_u64),
        CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE => Answer::value(8_usize),
        // CL_KERNEL_GLOBAL_WORK_SIZE is for custom devices and built-in kernels only.
        _ => return Err(CL_INVALID_VALUE),
    })
}

pub unsafe extern "C" fn get_group_info(
    handle: cl_kernel,
    device: cl_device_id,
    param: cl_kernel_work_group_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> cl_int {
    // SAFETY: the application's own places.
    unsafe { respond(group_answer(handle, device, param), size, value, size_ret) }
}

/// There are no sub-groups.
pub unsafe extern "C" fn get_sub_group_info(
    _kernel: cl_kernel,
    _device: cl_device_id,
    _param: cl_kernel_sub_group_info,
    _input_size: usize,
    _input: *const c_void,
    _size: usize,
    _value: *mut c_void,
    _size_ret: *mut usize,
) -> cl_int {
    CL_INVALID_OPERATION
}
