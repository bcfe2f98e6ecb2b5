//! clLinkProgram.

use std::ffi::{c_char, c_void};

use opencl_sys::*;

use super::build::read_arguments;
use super::unwinding::{hooked, unwinding_hooks};
use crate::cache::link::{self, LinkBelow, LinkCall};
use crate::cl::{Context, Notify, Program};
use crate::driver::NotifyTarget;

unwinding_hooks! {
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
    ) -> cl_program = |driver, function, entry| {
        let notify = NotifyTarget { function: pfn_notify, user_data };
        let prepare = || {
            // SAFETY: the arguments are those of the application's call.
            let (arguments, mut odd) = unsafe { read_arguments(num_devices, device_list, options, notify) };
            // SAFETY: as above.
            let inputs = unsafe { read_inputs(num_input_programs, input_programs) };
            odd |= inputs.is_empty() || inputs.len() < num_input_programs as usize;
            let context = Context::new(context);
            link::link(&LinkCall { driver, context, arguments, inputs, notify, odd })
        };
        let below = |changed: Option<LinkBelow>| {
            let mut own_code = CL_SUCCESS;
            let code = match changed {
                Some(_) if errcode_ret.is_null() => &raw mut own_code,
                _ => errcode_ret,
            };
            let LinkBelow { inputs, notify } = changed.unwrap_or(LinkBelow { inputs: None, notify });
            let (inputs, count) = match inputs {
                Some((inputs, count)) => (inputs.cast::<cl_program>(), count as cl_uint),
                None => (input_programs, num_input_programs),
            };
            // SAFETY: the driver's own function; all arguments are the application's but for the callback, which is of the same
            // type and gets the data that belongs to it, inputs that are of the same driver and live as long, and the code, which
            // goes to a variable of ours if it is not wanted.
            let program = unsafe {
                function(
                    context,
                    num_devices,
                    device_list,
                    options,
                    count,
                    inputs,
                    notify.function,
                    notify.user_data,
                    code,
                )
            };
            let code = match code.is_null() {
                true => CL_SUCCESS,
                // SAFETY: it points to a variable of ours, or to one of the application's (OpenCL 3.0, 5.8.6).
                false => unsafe { code.read() },
            };
            (Program::new(program), code)
        };
        let (program, code) = hooked(entry, prepare, below);
        if !errcode_ret.is_null() {
            // SAFETY: not NULL, so it points to a cl_int (OpenCL 3.0, 5.8.6).
            unsafe { errcode_ret.write(code) };
        }
        program.raw()
    };
}

/// The programs up to the first NULL. Drivers do not read beyond it.
///
/// # Safety
/// `programs` is NULL or points to `count` programs.
unsafe fn read_inputs(count: cl_uint, programs: *const cl_program) -> Vec<Program> {
    if programs.is_null() {
        return Vec::new();
    }
    (0..count as usize)
        // SAFETY: by the contract.
        .map(|index| Program::new(unsafe { programs.add(index).read() }))
        .take_while(|program| !program.is_null())
        .collect()
}
