//! clBuildProgram and clCompileProgram.

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, c_char, c_void};

use opencl_sys::*;

use super::unwinding::{hooked, unwinding_hooks};
use crate::cache::{self, BuildBelow, BuildCall, HeaderProgram};
use crate::cl::{Device, Notify, Program};
use crate::driver::{BuildArguments, NotifyTarget};
use crate::fallible::copy;

unwinding_hooks! {
    /// Slot 30.
    clBuildProgram(
        program: cl_program,
        num_devices: cl_uint,
        device_list: *const cl_device_id,
        options: *const c_char,
        pfn_notify: Option<Notify>,
        user_data: *mut c_void,
    ) -> cl_int = |_driver, function, entry| {
        let notify = NotifyTarget { function: pfn_notify, user_data };
        let program = Program::new(program);
        let prepare = || {
            // SAFETY: the arguments are those of the application's call.
            let (arguments, odd) = unsafe { read_arguments(num_devices, device_list, options, notify) };
            cache::build(&BuildCall { program, arguments, headers: None, notify, odd })
        };
        let below = |changed: Option<BuildBelow>| {
            let BuildBelow { program: judged, notify } = changed.unwrap_or(BuildBelow { program, notify });
            // SAFETY: the driver's own function; all arguments are the application's but for the program, which is its own or
            // a twin of it, and the callback, which is of the same type and gets the data that belongs to it.
            let code = unsafe {
                function(judged.raw(), num_devices, device_list, options, notify.function, notify.user_data)
            };
            (program, code)
        };
        hooked(entry, prepare, below).1
    };
    /// Slot 98.
    clCompileProgram(
        program: cl_program,
        num_devices: cl_uint,
        device_list: *const cl_device_id,
        options: *const c_char,
        num_input_headers: cl_uint,
        input_headers: *const cl_program,
        header_include_names: *mut *const c_char,
        pfn_notify: Option<Notify>,
        user_data: *mut c_void,
    ) -> cl_int = |_driver, function, entry| {
        let notify = NotifyTarget { function: pfn_notify, user_data };
        let program = Program::new(program);
        let prepare = || {
            // SAFETY: the arguments are those of the application's call.
            let (arguments, mut odd) = unsafe { read_arguments(num_devices, device_list, options, notify) };
            // SAFETY: as above.
            let headers = unsafe { read_headers(num_input_headers, input_headers, header_include_names) };
            odd |= headers.is_none();
            let headers = Some(headers.unwrap_or_default());
            cache::build(&BuildCall { program, arguments, headers, notify, odd })
        };
        let below = |changed: Option<BuildBelow>| {
            let BuildBelow { program: judged, notify } = changed.unwrap_or(BuildBelow { program, notify });
            // SAFETY: as in clBuildProgram.
            let code = unsafe {
                function(
                    judged.raw(),
                    num_devices,
                    device_list,
                    options,
                    num_input_headers,
                    input_headers,
                    header_include_names,
                    notify.function,
                    notify.user_data,
                )
            };
            (program, code)
        };
        hooked(entry, prepare, below).1
    };
}

/// No context has more devices. The driver judges a larger count.
const MAX_DEVICES: cl_uint = 4096;

/// Reads the arguments that all calls have, without judging them. Also returns whether only the driver can judge them.
///
/// # Safety
/// The arguments are those of a call in progress: `devices` is NULL or points to `count` devices, `options` is NULL or a C string.
pub(super) unsafe fn read_arguments(
    count: cl_uint,
    devices: *const cl_device_id,
    options: *const c_char,
    notify: NotifyTarget,
) -> (BuildArguments, bool) {
    let mut odd = (count == 0) != devices.is_null()
        || count > MAX_DEVICES
        || notify.function.is_none() && !notify.user_data.is_null();
    let devices = (!odd && !devices.is_null()).then(|| {
        let device = |index| {
            // SAFETY: by the contract.
            Device::new(unsafe { devices.add(index).read() })
        };
        (0..count as usize)
            .map(device)
            .take_while(|device| !device.is_null())
            .collect::<Vec<_>>()
    });
    // If a device is named twice, rusticl 22.3 keeps its kernels twice (measured).
    odd |= devices.as_ref().is_some_and(|devices| {
        let distinct: BTreeSet<_> = devices.iter().collect();
        distinct.len() < count as usize
    });
    // SAFETY: by the contract.
    let written = (!options.is_null()).then(|| unsafe { CStr::from_ptr(options) });
    let options = written.and_then(|written| {
        let bytes = copy(written.to_bytes_with_nul()).ok()?;
        CString::from_vec_with_nul(bytes).ok()
    });
    // There is no memory for the options.
    odd |= written.is_some() && options.is_none();
    (BuildArguments { devices, options }, odd)
}

/// No program has more headers; the driver judges a larger count.
const MAX_HEADERS: cl_uint = 4096;
/// The longest path of Linux; the driver judges a header of a longer name.
const MAX_NAME_BYTES: usize = 4096;

/// The embedded headers of a call. None if only the driver can judge them.
///
/// # Safety
/// The arguments are those of a call in progress: each array is NULL or has `count` elements, each name is NULL or a C string.
unsafe fn read_headers(
    count: cl_uint,
    programs: *const cl_program,
    names: *mut *const c_char,
) -> Option<Vec<HeaderProgram>> {
    let is_odd = (count == 0) != programs.is_null() || (count == 0) != names.is_null();
    if is_odd || count > MAX_HEADERS {
        return None;
    }
    let header = |index| {
        // SAFETY: by the contract.
        let (program, name) = unsafe { (programs.add(index).read(), names.add(index).read()) };
        if program.is_null() || name.is_null() {
            return None;
        }
        // SAFETY: by the contract.
        let name = unsafe { CStr::from_ptr(name) };
        let is_short = name.count_bytes() <= MAX_NAME_BYTES;
        is_short.then(|| (CString::from(name), Program::new(program)))
    };
    (0..count as usize).map(header).collect()
}
