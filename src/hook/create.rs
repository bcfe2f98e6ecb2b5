//! The functions that create programs. A program from source or an intermediate language is remembered. For any other, the state
//! under its handle is dropped.

use std::ffi::{CStr, c_char, c_uchar, c_void};

use opencl_sys::*;

use crate::cache::materialize;
use crate::cl::{Context, Program};
use crate::driver::Driver;
use crate::fallible::copy;
use crate::key::il;
use crate::shadow::{self, Constants, Origin};

super::hooks! {
    /// Slot 26.
    clCreateProgramWithSource(
        context: cl_context,
        count: cl_uint,
        strings: *mut *const c_char,
        lengths: *const usize,
        errcode_ret: *mut cl_int,
    ) -> cl_program = |driver, below| {
        let program = below.call();
        if !program.is_null() {
            // SAFETY: the driver has accepted the same arguments, so they are as OpenCL 3.0, 5.8.1 wants them.
            let length = unsafe { source_length(count, strings, lengths) };
            let origin = Origin::Source(length);
            shadow::program_created(driver, Context::new(context), Program::new(program), origin);
        }
        program
    };
    /// Slot 27. Programs from the application's own binaries are not cached.
    clCreateProgramWithBinary(
        context: cl_context,
        num_devices: cl_uint,
        device_list: *const cl_device_id,
        lengths: *const usize,
        binaries: *mut *const c_uchar,
        binary_status: *mut cl_int,
        errcode_ret: *mut cl_int,
    ) -> cl_program = |_driver, below| not_ours(below.call());
    /// Slot 97.
    clCreateProgramWithBuiltInKernels(
        context: cl_context,
        num_devices: cl_uint,
        device_list: *const cl_device_id,
        kernel_names: *const c_char,
        errcode_ret: *mut cl_int,
    ) -> cl_program = |_driver, below| not_ours(below.call());
    /// Slot 138.
    clCreateProgramWithIL(
        context: cl_context,
        il: *const c_void,
        length: usize,
        errcode_ret: *mut cl_int,
    ) -> cl_program = |driver, below| {
        // SAFETY: the arguments are those of the application's call.
        unsafe { created_with_il(driver, context, il, length, below.call()) }
    };
    /// Slot 145.
    clSetProgramSpecializationConstant(
        program: cl_program,
        spec_id: cl_uint,
        spec_size: usize,
        spec_value: *const c_void,
    ) -> cl_int = |_driver, below| {
        materialize::before_constant(Program::new(program));
        let code = below.call();
        if code == CL_SUCCESS {
            // SAFETY: the driver has accepted the same arguments: `spec_size` bytes (OpenCL 3.0, 5.8.4).
            let value = unsafe { std::slice::from_raw_parts(spec_value.cast::<u8>(), spec_size) };
            match copy(value) {
                Ok(value) => shadow::constant_set(Program::new(program), spec_id, value),
                // What the program holds is not known any more.
                Err(_) => shadow::program_recycled(Program::new(program)),
            }
        }
        code
    };
}

/// Remembers a program that the driver has created from an intermediate language.
///
/// # Safety
/// The arguments are those of a call of clCreateProgramWithIL or clCreateProgramWithILKHR in progress, in which the driver has
/// created `program`: if that is not NULL, `il` points to `length` bytes.
pub(super) unsafe fn created_with_il(
    driver: &'static Driver,
    context: cl_context,
    il: *const c_void,
    length: usize,
    program: cl_program,
) -> cl_program {
    if program.is_null() || il.is_null() {
        return not_ours(program);
    }
    // SAFETY: by the contract.
    let code = unsafe { std::slice::from_raw_parts(il.cast::<u8>(), length) };
    match il::read(code) {
        Some(module) => {
            let origin = Origin::Il(module, Constants::new());
            shadow::program_created(driver, Context::new(context), Program::new(program), origin);
            program
        }
        None => not_ours(program),
    }
}

/// The length of all strings together, without NULs at the end of the last string: applications may count the terminator in
/// `lengths`. PoCL, Intel's CPU runtime and rusticl compile the same with and without such NULs, in sources and in embedded
/// headers (measured). None if there is a NUL before that: PoCL and Intel's CPU runtime compile nothing behind it, rusticl goes
/// on with the next string (measured).
///
/// # Safety
/// `strings` has `count` strings; `lengths` is NULL or has `count` lengths, of which 0 means that the string ends with NUL.
unsafe fn source_length(
    count: cl_uint,
    strings: *mut *const c_char,
    lengths: *const usize,
) -> Option<usize> {
    let count = count as usize;
    let mut total = 0usize;
    for index in 0..count {
        // SAFETY: by the contract.
        let string = unsafe { strings.add(index).read() };
        let given = match lengths.is_null() {
            true => 0,
            // SAFETY: by the contract.
            false => unsafe { lengths.add(index).read() },
        };
        let length = match given {
            // There is no NUL before its end.
            // SAFETY: by the contract.
            0 => unsafe { CStr::from_ptr(string) }.to_bytes().len(),
            _ => {
                // SAFETY: by the contract.
                let text = unsafe { std::slice::from_raw_parts(string.cast::<u8>(), given) };
                let text = match index + 1 == count {
                    true => without_terminators(text),
                    false => text,
                };
                if memchr::memchr(0, text).is_some() {
                    return None;
                }
                text.len()
            }
        };
        total = total.checked_add(length)?;
    }
    Some(total)
}

fn without_terminators(text: &[u8]) -> &[u8] {
    let length = text.iter().rposition(|byte| *byte != 0);
    &text[..length.map_or(0, |last| last + 1)]
}

/// Forgets the state under the handle of a new program that is not cached.
fn not_ours(program: cl_program) -> cl_program {
    shadow::program_recycled(Program::new(program));
    program
}
