//! Functions of extensions that take a program, looked up by name: with a platform, and without one.

use std::ffi::{CStr, c_char, c_void};
use std::{mem, ptr};

use opencl_sys::*;

use crate::cl::{self, Handle, call};
use crate::session::Session;

const SOURCE: &str = "
__global uint counter = 5;
__kernel void bump(__global uint *out) { counter += 1; out[get_global_id(0)] = counter; }
";

/// A lookup: the name of the way, and what it finds.
type Lookup<'a> = (&'static str, &'a dyn Fn(&CStr) -> *mut c_void);

type Pointer =
    unsafe extern "C" fn(Handle, Handle, *const c_char, *mut usize, *mut *mut c_void) -> cl_int;

type FunctionPointer = unsafe extern "C" fn(Handle, Handle, *const c_char, *mut cl_ulong) -> cl_int;

type Read = unsafe extern "C" fn(
    Handle,
    Handle,
    *const c_char,
    cl_bool,
    usize,
    usize,
    *mut c_void,
    cl_uint,
    *const Handle,
    *mut Handle,
) -> cl_int;

/// What each function says of a built program.
fn ask(session: &Session, (way, find): Lookup, program: Handle) {
    let address = find(c"clGetDeviceGlobalVariablePointerINTEL");
    println!("{way}: pointer NULL {}", address.is_null());
    if !address.is_null() {
        // SAFETY: the extension's function has this type.
        let pointer: Pointer = unsafe { mem::transmute(address) };
        for name in [c"counter", c"nobody"] {
            let (mut size, mut value) = (77_777, ptr::null_mut());
            let (device, name) = (session.device(), name.as_ptr());
            // SAFETY: live objects, a C string, and places for both answers.
            let code = unsafe { pointer(device, program, name, &mut size, &mut value) };
            let is_null = value.is_null();
            println!("{way}: pointer: code {code} size {size} NULL {is_null}");
        }
    }
    let address = find(c"clGetDeviceFunctionPointerINTEL");
    println!("{way}: function NULL {}", address.is_null());
    if !address.is_null() {
        // SAFETY: the extension's function has this type.
        let function: FunctionPointer = unsafe { mem::transmute(address) };
        let (mut value, name) = (0, c"bump".as_ptr());
        // SAFETY: as above.
        let code = unsafe { function(session.device(), program, name, &mut value) };
        println!("{way}: function: code {code}");
    }
    let address = find(c"clEnqueueReadGlobalVariableINTEL");
    println!("{way}: read NULL {}", address.is_null());
    if !address.is_null() {
        // SAFETY: the extension's function has this type.
        let read: Read = unsafe { mem::transmute(address) };
        let (queue, name, none) = (session.queue, c"counter".as_ptr(), ptr::null_mut());
        let mut value: u32 = 0;
        let to = ptr::from_mut(&mut value).cast();
        // SAFETY: as above; the value has four bytes, and is read before the call returns.
        let code = unsafe {
            read(
                queue,
                program,
                name,
                CL_TRUE,
                4,
                0,
                to,
                0,
                ptr::null(),
                none,
            )
        };
        println!("{way}: read: code {code} value {value}");
    }
}

pub fn section(session: &Session) -> Result<(), String> {
    let with_platform = |name: &CStr| {
        let name = name.as_ptr();
        call!(clGetExtensionFunctionAddressForPlatform(
            session.platform,
            name
        ))
    };
    let without = |name: &CStr| call!(clGetExtensionFunctionAddress(name.as_ptr()));
    let lookups: [Lookup; 2] = [("with", &with_platform), ("without", &without)];
    let unbuilt = session.program(SOURCE);
    for options in ["-cl-std=CL2.0", "-cl-std=CL2.0 -DX"] {
        let program = session.program(SOURCE);
        println!("build: code {}", cl::build(program, Some(options)));
        for lookup in lookups {
            ask(session, lookup, program);
        }
        println!("release: code {}", cl::release_program(program));
    }
    println!("[a program that is not built]");
    for lookup in lookups {
        ask(session, lookup, unbuilt);
    }
    println!("release: code {}", cl::release_program(unbuilt));
    Ok(())
}
