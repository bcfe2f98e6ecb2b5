//! clLinkProgram: not cached; its inputs and its result matter.

use std::ffi::{c_char, c_void};

use opencl_sys::*;

use crate::cache;
use crate::cl::{Notify, Program};
use crate::driver::{NotifyTarget, notify};
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
    ) -> cl_program = |driver, below| {
        if !input_programs.is_null() {
            // SAFETY: the application's call gives an array of that many programs (OpenCL 3.0, 5.8.6).
            unsafe { prepare_inputs(num_input_programs, input_programs) };
        }
        // The driver may call back with the new program before it returns, and the application may use it there, so by then
        // whatever its address stood for must be forgotten.
        let notify = NotifyTarget { function: pfn_notify, user_data };
        let target = notify::wrapped_for_new_program(notify, shadow::program_recycled);
        let function = driver.below().clLinkProgram;
        // SAFETY: the driver's own function; all arguments are the application's but for the callback, which is of the same
        // type and gets the data that belongs to it.
        let program = below.instead(|| function.map_or(std::ptr::null_mut(), |function| unsafe {
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
        }));
        if pfn_notify.is_none() {
            shadow::program_recycled(Program::new(program));
        }
        program
    };
}

/// # Safety
/// `programs` points to `count` programs, of which a driver reads no more than up to the first NULL.
unsafe fn prepare_inputs(count: cl_uint, programs: *const cl_program) {
    for index in 0..count as usize {
        // SAFETY: by the contract.
        let input = Program::new(unsafe { programs.add(index).read() });
        if input.is_null() {
            break;
        }
        cache::link_input(input);
    }
}
