//! ICD 2.0: what a loader asks a tagged driver for by name, to call it past the driver's own table.

use std::ffi::{CStr, c_char, c_void};
use std::mem;

use opencl_sys::cl_platform_id;

use crate::{Driver, driver, hooks};

type FunctionByName = unsafe extern "C" fn(cl_platform_id, *const c_char) -> *mut c_void;

const GET_FUNCTION: &CStr = c"clIcdGetFunctionAddressForPlatformKHR";
const SET_DATA: &CStr = c"clIcdSetPlatformDispatchDataKHR";

/// The two functions that make a driver one of ICD 2.0: ours in front of the driver's, and the driver's own. NULL if the driver
/// lacks one of them. None for any other name.
pub fn extension(name: &CStr) -> Option<*mut c_void> {
    if name != GET_FUNCTION && name != SET_DATA {
        return None;
    }
    let found = |name| {
        let found = driver().map_or(std::ptr::null_mut(), |driver| driver.extension(name));
        (!found.is_null()).then_some(found)
    };
    let both = found(GET_FUNCTION).and(found(SET_DATA));
    Some(both.map_or(std::ptr::null_mut(), |set_data| match name {
        name if name == SET_DATA => set_data,
        _ => function_by_name as FunctionByName as *mut c_void,
    }))
}

/// The driver's function of this name; zero if it has none, or is one of ICD 1.0.
///
/// # Safety
/// It is a platform of the driver.
pub unsafe fn by_name(driver: &Driver, platform: cl_platform_id, name: *const c_char) -> usize {
    let get = driver.extension(GET_FUNCTION);
    // SAFETY: a function of this type stands behind this name; NULL becomes None.
    let get = unsafe { mem::transmute::<*mut c_void, Option<FunctionByName>>(get) };
    // SAFETY: the driver's function with its own platform and a C string.
    get.map_or(0, |get| unsafe { get(platform, name) } as usize)
}

/// The driver's answer, but for the functions that we count.
unsafe extern "C" fn function_by_name(
    platform: cl_platform_id,
    name: *const c_char,
) -> *mut c_void {
    let Some(driver) = driver() else {
        return std::ptr::null_mut();
    };
    // SAFETY: the loader's own arguments.
    let found = unsafe { by_name(driver, platform, name) };
    // SAFETY: the specification demands a NUL-terminated string; the driver has just read it.
    let name = unsafe { CStr::from_ptr(name) };
    let hooks = hooks();
    let hook = hooks.iter().find(|hook| found != 0 && hook.name == name);
    hook.map_or(found as *mut c_void, |hook| hook.function.cast_mut())
}
