//! The functions that the loader exports: each goes to the outermost layer, and below all layers to the object's driver.

use std::ffi::{CStr, c_char, c_void};
use std::mem::offset_of;
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::Ordering;

use opencl_sys::cl_icd::cl_icd_dispatch;
use opencl_sys::*;

use crate::slots::{ICD2_TAG, SLOTS};
use crate::{FIRST, NOT_FOUND, loader};

/// An object, a pointer, as the C ABI sees it.
type P = *mut c_void;
type U = cl_uint;
type L = cl_ulong;
type S = usize;

/// A word of an object or a table.
///
/// # Safety
/// It has that many words.
pub unsafe fn at(words: *mut c_void, index: usize) -> usize {
    // SAFETY: by the contract.
    unsafe { words.cast::<usize>().add(index).read() }
}

/// The tables of drivers that were tagged when the loader opened them, if it calls their objects through its own tables
/// even after the tag is gone. No loader that is known does so.
pub static KEPT: Mutex<Vec<usize>> = Mutex::new(Vec::new());

/// The table through which an object's functions are called.
///
/// # Safety
/// It is an object of a driver.
pub unsafe fn dispatch(object: P) -> *const usize {
    let is_kept = |table| KEPT.lock().expect("no panic").contains(&table);
    // SAFETY: objects begin with their table (cl_khr_icd), those of one that is or was tagged have a second word.
    unsafe {
        match at(object, 0) {
            table if at(table as P, 0) == ICD2_TAG || is_kept(table) => {
                at(object, 1) as *const usize
            }
            table => table as *const usize,
        }
    }
}

/// Stands in for functions that a driver lacks.
pub fn failing() -> usize {
    extern "C" fn fail() -> cl_int {
        CL_INVALID_OPERATION
    }
    fail as *const () as usize
}

/// What a function answers for a NULL object.
trait Refuse {
    /// # Safety
    /// `errcode` is NULL or a place for an error code.
    unsafe fn refuse(code: cl_int, errcode: *mut cl_int) -> Self;
}

impl Refuse for cl_int {
    unsafe fn refuse(code: cl_int, _errcode: *mut cl_int) -> Self {
        code
    }
}

impl Refuse for P {
    unsafe fn refuse(code: cl_int, errcode: *mut cl_int) -> Self {
        if !errcode.is_null() {
            // SAFETY: by the contract.
            unsafe { errcode.write(code) };
        }
        ptr::null_mut()
    }
}

macro_rules! slot {
    ($name:ident) => {
        offset_of!(cl_icd_dispatch, $name) / size_of::<usize>()
    };
}

/// Exports functions. `object(...)` gives that by which a call is dispatched.
macro_rules! functions {
    ($($error:ident $name:ident($($argument:ident: $type:ty),*) -> $result:ty, $object:expr, $errcode:expr;)*) => {
        mod below {
            use super::*;

            $(
                #[allow(non_snake_case)]
                pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                    let object: P = $object;
                    if object.is_null() {
                        // SAFETY: the application's own place for an error code.
                        return unsafe { <$result>::refuse($error, $errcode) };
                    }
                    // SAFETY: the driver's function of this slot has this type.
                    unsafe {
                        let function = *dispatch(object).add(slot!($name));
                        let function = std::mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> $result>(function);
                        function($($argument),*)
                    }
                }
            )*
        }

        $(
            #[unsafe(no_mangle)]
            #[allow(non_snake_case)]
            unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                loader();
                let first = FIRST.load(Ordering::Acquire);
                // SAFETY: the layer's function of this slot has this type.
                unsafe {
                    if first.is_null() {
                        return below::$name($($argument),*);
                    }
                    let function = *first.add(slot!($name));
                    let function = std::mem::transmute::<usize, unsafe extern "C" fn($($type),*) -> $result>(function);
                    function($($argument),*)
                }
            }
        )*

        mod missing {
            use super::*;

            $(
                #[allow(non_snake_case, unused_variables)]
                pub unsafe extern "C" fn $name($($argument: $type),*) -> $result {
                    // SAFETY: the application's own place for an error code.
                    unsafe { <$result>::refuse(CL_INVALID_OPERATION, $errcode) }
                }
            )*
        }

        /// Stands in a table of ICD 2.0 for a function that the driver does not give by name.
        pub fn missing(name: &str) -> usize {
            match name {
                $(stringify!($name) => missing::$name as *const () as usize,)*
                _ => failing(),
            }
        }

        /// What the innermost layer stands on. Functions that no test calls fail.
        pub fn main() -> [usize; SLOTS] {
            let mut table = [failing(); SLOTS];
            $(table[slot!($name)] = below::$name as *const () as usize;)*
            table[slot!(clGetPlatformIDs)] = platform_ids as *const () as usize;
            table[slot!(clGetExtensionFunctionAddressForPlatform)] = address_for_platform as *const () as usize;
            table
        }
    };
}

const NONE: *mut cl_int = ptr::null_mut();

functions! {
    CL_INVALID_PLATFORM clGetPlatformInfo(p: P, name: U, size: S, value: P, ret: P) -> cl_int, p, NONE;
    CL_INVALID_PLATFORM clGetDeviceIDs(p: P, kind: L, count: U, devices: P, ret: P) -> cl_int, p, NONE;
    CL_INVALID_PLATFORM clUnloadPlatformCompiler(p: P) -> cl_int, p, NONE;
    CL_INVALID_DEVICE clGetDeviceInfo(d: P, name: U, size: S, value: P, ret: P) -> cl_int, d, NONE;
    CL_INVALID_DEVICE clCreateContext(list: P, count: U, devices: *mut P, notify: P, data: P, errcode: *mut cl_int) -> P, first(devices), errcode;
    CL_INVALID_CONTEXT clRetainContext(c: P) -> cl_int, c, NONE;
    CL_INVALID_CONTEXT clReleaseContext(c: P) -> cl_int, c, NONE;
    CL_INVALID_CONTEXT clGetContextInfo(c: P, name: U, size: S, value: P, ret: P) -> cl_int, c, NONE;
    CL_INVALID_CONTEXT clCreateCommandQueue(c: P, device: P, properties: L, errcode: *mut cl_int) -> P, c, errcode;
    CL_INVALID_CONTEXT clCreateBuffer(c: P, flags: L, size: S, host: P, errcode: *mut cl_int) -> P, c, errcode;
    CL_INVALID_CONTEXT clCreateProgramWithSource(c: P, count: U, strings: P, lengths: P, errcode: *mut cl_int) -> P, c, errcode;
    CL_INVALID_CONTEXT clCreateProgramWithBinary(c: P, count: U, devices: P, lengths: P, binaries: P, status: P, errcode: *mut cl_int) -> P, c, errcode;
    CL_INVALID_CONTEXT clCreateProgramWithIL(c: P, il: P, length: S, errcode: *mut cl_int) -> P, c, errcode;
    CL_INVALID_CONTEXT clLinkProgram(c: P, count: U, devices: P, options: P, inputs: U, programs: P, notify: P, data: P, errcode: *mut cl_int) -> P, c, errcode;
    CL_INVALID_COMMAND_QUEUE clReleaseCommandQueue(q: P) -> cl_int, q, NONE;
    CL_INVALID_COMMAND_QUEUE clFinish(q: P) -> cl_int, q, NONE;
    CL_INVALID_COMMAND_QUEUE clEnqueueReadBuffer(q: P, buffer: P, blocking: U, offset: S, size: S, host: P, events: U, waits: P, event: P) -> cl_int, q, NONE;
    CL_INVALID_COMMAND_QUEUE clEnqueueNDRangeKernel(q: P, kernel: P, dimensions: U, offset: P, global: P, local: P, events: U, waits: P, event: P) -> cl_int, q, NONE;
    CL_INVALID_COMMAND_QUEUE clGetKernelSuggestedLocalWorkSize(q: P, kernel: P, dimensions: U, offset: P, global: P, suggested: P) -> cl_int, q, NONE;
    CL_INVALID_MEM_OBJECT clReleaseMemObject(m: P) -> cl_int, m, NONE;
    CL_INVALID_PROGRAM clRetainProgram(p: P) -> cl_int, p, NONE;
    CL_INVALID_PROGRAM clReleaseProgram(p: P) -> cl_int, p, NONE;
    CL_INVALID_PROGRAM clBuildProgram(p: P, count: U, devices: P, options: P, notify: P, data: P) -> cl_int, p, NONE;
    CL_INVALID_PROGRAM clCompileProgram(p: P, count: U, devices: P, options: P, headers: U, programs: P, names: P, notify: P, data: P) -> cl_int, p, NONE;
    CL_INVALID_PROGRAM clSetProgramSpecializationConstant(p: P, id: U, size: S, value: P) -> cl_int, p, NONE;
    CL_INVALID_PROGRAM clGetProgramInfo(p: P, name: U, size: S, value: P, ret: P) -> cl_int, p, NONE;
    CL_INVALID_PROGRAM clGetProgramBuildInfo(p: P, device: P, name: U, size: S, value: P, ret: P) -> cl_int, p, NONE;
    CL_INVALID_PROGRAM clCreateKernel(p: P, name: P, errcode: *mut cl_int) -> P, p, errcode;
    CL_INVALID_PROGRAM clCreateKernelsInProgram(p: P, count: U, kernels: P, ret: P) -> cl_int, p, NONE;
    CL_INVALID_KERNEL clCloneKernel(k: P, errcode: *mut cl_int) -> P, k, errcode;
    CL_INVALID_KERNEL clRetainKernel(k: P) -> cl_int, k, NONE;
    CL_INVALID_KERNEL clReleaseKernel(k: P) -> cl_int, k, NONE;
    CL_INVALID_KERNEL clSetKernelArg(k: P, index: U, size: S, value: P) -> cl_int, k, NONE;
    CL_INVALID_KERNEL clGetKernelInfo(k: P, name: U, size: S, value: P, ret: P) -> cl_int, k, NONE;
    CL_INVALID_KERNEL clGetKernelArgInfo(k: P, index: U, name: U, size: S, value: P, ret: P) -> cl_int, k, NONE;
    CL_INVALID_KERNEL clGetKernelWorkGroupInfo(k: P, device: P, name: U, size: S, value: P, ret: P) -> cl_int, k, NONE;
}

fn first(devices: *mut P) -> P {
    match devices.is_null() {
        true => ptr::null_mut(),
        // SAFETY: the application's array has a device at least.
        false => unsafe { devices.read() },
    }
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
unsafe extern "C" fn clGetPlatformIDs(count: U, platforms: *mut P, ret: *mut U) -> cl_int {
    loader();
    let first = FIRST.load(Ordering::Acquire);
    // SAFETY: the slot's type, and the application's own arguments.
    unsafe {
        if first.is_null() {
            return platform_ids(count, platforms, ret);
        }
        let function = *first.add(slot!(clGetPlatformIDs));
        let function = std::mem::transmute::<
            usize,
            unsafe extern "C" fn(U, *mut P, *mut U) -> cl_int,
        >(function);
        function(count, platforms, ret)
    }
}

unsafe extern "C" fn platform_ids(count: U, platforms: *mut P, ret: *mut U) -> cl_int {
    let all = &loader().platforms;
    // SAFETY: the application's own places.
    unsafe {
        if !ret.is_null() {
            ret.write(all.len() as U);
        }
        if !platforms.is_null() {
            for (index, platform) in all.iter().enumerate().take(count as usize) {
                platforms.add(index).write(platform.handle as P);
            }
        }
    }
    if all.is_empty() {
        NOT_FOUND
    } else {
        CL_SUCCESS
    }
}

#[unsafe(no_mangle)]
#[allow(non_snake_case)]
unsafe extern "C" fn clGetExtensionFunctionAddressForPlatform(
    platform: P,
    name: *const c_char,
) -> P {
    loader();
    let first = FIRST.load(Ordering::Acquire);
    // SAFETY: the slot's type, and the application's own arguments.
    unsafe {
        if first.is_null() {
            return address_for_platform(platform, name);
        }
        let function = *first.add(slot!(clGetExtensionFunctionAddressForPlatform));
        let function =
            std::mem::transmute::<usize, unsafe extern "C" fn(P, *const c_char) -> P>(function);
        function(platform, name)
    }
}

/// Names of ICD 2.0 are none of an application's business.
unsafe extern "C" fn address_for_platform(platform: P, name: *const c_char) -> P {
    // SAFETY: the application's C string; the slot's type.
    unsafe {
        if platform.is_null() || CStr::from_ptr(name).to_bytes().starts_with(b"clIcd") {
            return ptr::null_mut();
        }
        let function = *dispatch(platform).add(slot!(clGetExtensionFunctionAddressForPlatform));
        let function =
            std::mem::transmute::<usize, unsafe extern "C" fn(P, *const c_char) -> P>(function);
        function(platform, name)
    }
}
