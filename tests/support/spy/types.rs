//! The types of the functions that the spy puts before a driver's.

use std::ffi::{c_char, c_void};

use opencl_sys::{
    cl_context, cl_device_id, cl_int, cl_platform_id, cl_platform_info, cl_program,
    cl_program_info, cl_uint,
};

/// An application may leave it by an exception, which passes through the spy.
pub type Notify = Option<unsafe extern "C-unwind" fn(cl_program, *mut c_void)>;
pub type CreateWithSource = unsafe extern "C" fn(
    cl_context,
    cl_uint,
    *mut *const c_char,
    *const usize,
    *mut cl_int,
) -> cl_program;
pub type CreateWithBinary = unsafe extern "C" fn(
    cl_context,
    cl_uint,
    *const cl_device_id,
    *const usize,
    *mut *const u8,
    *mut cl_int,
    *mut cl_int,
) -> cl_program;
pub type CreateWithIl =
    unsafe extern "C" fn(cl_context, *const c_void, usize, *mut cl_int) -> cl_program;
pub type AddressForPlatform = unsafe extern "C" fn(cl_platform_id, *const c_char) -> *mut c_void;
pub type Release = unsafe extern "C" fn(cl_program) -> cl_int;
pub type Build = unsafe extern "C-unwind" fn(
    cl_program,
    cl_uint,
    *const cl_device_id,
    *const c_char,
    Notify,
    *mut c_void,
) -> cl_int;
pub type GetInfo =
    unsafe extern "C" fn(cl_program, cl_program_info, usize, *mut c_void, *mut usize) -> cl_int;
/// The type of clGetPlatformInfo.
pub type PlatformInfo = unsafe extern "C" fn(
    cl_platform_id,
    cl_platform_info,
    usize,
    *mut c_void,
    *mut usize,
) -> cl_int;
pub type Compile = unsafe extern "C-unwind" fn(
    cl_program,
    cl_uint,
    *const cl_device_id,
    *const c_char,
    cl_uint,
    *const cl_program,
    *mut *const c_char,
    Notify,
    *mut c_void,
) -> cl_int;
pub type Link = unsafe extern "C-unwind" fn(
    cl_context,
    cl_uint,
    *const cl_device_id,
    *const c_char,
    cl_uint,
    *const cl_program,
    Notify,
    *mut c_void,
    *mut cl_int,
) -> cl_program;
