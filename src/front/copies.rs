//! Other copies of this library in the process, at other paths. For example, a wheel may bring one beside the system's.
//!
//! Each copy would serve each call, one inside the other. So only the copy whose door was opened first is active, and the others
//! forward calls to it. Two copies that are opened at the same moment may both be active: then calls are counted twice, but served
//! correctly.

use std::ffi::{c_char, c_int, c_void};

use libloading::os::unix::{Library, RTLD_LAZY};
use opencl_sys::cl_icd::cl_icd_dispatch;
use opencl_sys::{cl_int, cl_uint};

use super::oclcache_active;
use crate::driver::loaded_paths;

pub type ExtensionFunctionAddress = unsafe extern "C" fn(*const c_char) -> *mut c_void;
pub type InitLayer = unsafe extern "C" fn(
    cl_uint,
    *const cl_icd_dispatch,
    *mut cl_uint,
    *mut *const cl_icd_dispatch,
) -> cl_int;

/// The doors of another copy.
#[derive(Clone, Copy)]
pub struct LibraryCopy {
    /// Its clGetExtensionFunctionAddress.
    pub extension_function_address: Option<ExtensionFunctionAddress>,
    /// Its clInitLayer.
    pub init_layer: Option<InitLayer>,
}

/// The active copy, unless it is this one.
pub fn active() -> Option<LibraryCopy> {
    if oclcache_active() != 0 {
        return None;
    }
    loaded_paths().iter().find_map(|path| {
        // SAFETY: nothing is loaded, so nothing runs.
        let library = unsafe { Library::open(Some(path), RTLD_LAZY | libc::RTLD_NOLOAD) }.ok()?;
        // SAFETY: a function of this name is one of ours.
        let is_active =
            unsafe { library.get::<unsafe extern "C" fn() -> c_int>(c"oclcache_active") }.ok()?;
        // SAFETY: it has no preconditions.
        if unsafe { is_active() } == 0 {
            return None;
        }
        // SAFETY: the types are those of the interfaces. Copies are never unloaded.
        unsafe {
            Some(LibraryCopy {
                extension_function_address: library
                    .get(c"clGetExtensionFunctionAddress")
                    .ok()
                    .map(|symbol| *symbol),
                init_layer: library.get(c"clInitLayer").ok().map(|symbol| *symbol),
            })
        }
    })
}
