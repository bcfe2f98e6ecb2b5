//! clLinkProgram: not cached; its inputs and its result matter.

use std::ffi::{c_char, c_void};

use opencl_sys::*;

use super::Below;
use crate::cache;
use crate::cl::{Notify, Program};
use crate::driver::{Driver, NotifyTarget, notify};
use crate::shadow;

super::hooks! {
    /// Slot 99.
    clLinkProgram(
        context: cl_context,
        num_devices: cl_uint,
        device_list: *const cl_device_id,
        options: *const c_char,
        num_input_programs: cl_uint,
        input_programs: *const cl_program,
        pfn_notify: Option<Notify>,
        user_data: *mut c_void,
        errcode_ret: *mut cl_int,
    ) -> cl_program = link;
}

fn link(
    driver: &'static Driver,
    below: &Below<cl_program, impl Fn() -> cl_program>,
    context: cl_context,
    num_devices: cl_uint,
    device_list: *const cl_device_id,
    options: *const c_char,
    num_input_programs: cl_uint,
    input_programs: *const cl_program,
    pfn_notify: Option<Notify>,
    user_data: *mut c_void,
    errcode_ret: *mut cl_int,
) -> cl_program {
    if !input_programs.is_null() {
        for index in 0..num_input_programs as usize {
            // SAFETY: the application's call gives an array of that many programs (OpenCL 3.0, 5.8.6). A driver stops at
            // the first that is none, so what stands behind a NULL is not read.
            let input = Program::new(unsafe { input_programs.add(index).read() });
            if input.is_null() {
                break;
            }
            cache::link_input(input);
        }
    }
    // The driver may call back with the new program before it returns, and the application may use it there, so by then
    // whatever its address stood for must be forgotten.
    let notify = NotifyTarget {
        function: pfn_notify,
        user_data,
    };
    let target = notify::wrapped_for_new_program(notify, shadow::program_recycled);
    let program = below.instead(|| {
        let Some(function) = driver.below().clLinkProgram else {
            return std::ptr::null_mut();
        };
        // SAFETY: the driver's own function; all arguments are the application's but for the callback, which is of the same
        // type and gets the data that belongs to it.
        unsafe {
            function(
                context,
                num_devices,
                device_list,
                options,
                num_input_programs,
                input_programs,
                target.function,
                target.user_data,
                errcode_ret,
            )
        }
    });
    if pfn_notify.is_none() {
        shadow::program_recycled(Program::new(program));
    }
    program
}
