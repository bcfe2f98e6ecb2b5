//! A library that uses OpenCL in its constructor, and closes the loader again before the constructor ends.
//!
//! It prints what it has got, as `client` does: nothing that differs from run to run.

// The C ABI of OpenCL is called through looked-up functions.
#![allow(unsafe_code)]
// Printing is what this library is for.
#![allow(clippy::print_stdout)]

use std::ffi::{CStr, c_void};
use std::ptr;

use libloading::{Library, Symbol};
use opencl_sys::cl_function_types::*;
use opencl_sys::*;

const SOURCE: &CStr = c"__kernel void f(__global uint *out) { out[get_global_id(0)] = 3; }\n";

#[used]
#[unsafe(link_section = ".init_array")]
static CONSTRUCTOR: extern "C" fn() = constructor;

extern "C" fn constructor() {
    match used() {
        Ok(said) => println!("plugin: {said}"),
        Err(what) => println!("plugin: no {what}"),
    }
}

fn used() -> Result<String, &'static str> {
    let loader = std::env::var("CLIENT_LOADER").unwrap_or_else(|_| "libOpenCL.so.1".to_owned());
    // SAFETY: a loader's constructors have no preconditions. It is closed when this function ends.
    let library = unsafe { Library::new(loader) }.map_err(|_| "loader")?;
    macro_rules! call {
        ($name:ident: $type:ident, $($argument:expr),* $(,)?) => {{
            // SAFETY: in a loader a function of this type stands behind this name.
            let found: Symbol<$type> = unsafe { library.get(stringify!($name)) }.map_err(|_| stringify!($name))?;
            let function = found.ok_or(stringify!($name))?;
            // SAFETY: pointers are NULL or point to live values; handles came from OpenCL.
            unsafe { function($($argument),*) }
        }};
    }
    let (none, mut code) = (ptr::null_mut::<c_void>(), 1);
    let (mut platform, mut device) = (none, none);
    call!(clGetPlatformIDs: clGetPlatformIDs_fn, 1, &mut platform, ptr::null_mut());
    call!(clGetDeviceIDs: clGetDeviceIDs_fn, platform, CL_DEVICE_TYPE_ALL, 1, &mut device, ptr::null_mut());
    let context =
        call!(clCreateContext: clCreateContext_fn, ptr::null(), 1, &device, None, none, &mut code);
    let mut source = [SOURCE.as_ptr()];
    let program = call!(
        clCreateProgramWithSource: clCreateProgramWithSource_fn,
        context, 1, source.as_mut_ptr(), ptr::null(), &mut code,
    );
    let build =
        call!(clBuildProgram: clBuildProgram_fn, program, 0, ptr::null(), ptr::null(), None, none);
    let kernel = call!(clCreateKernel: clCreateKernel_fn, program, c"f".as_ptr(), &mut code);
    let released = [
        call!(clReleaseKernel: clReleaseKernel_fn, kernel),
        call!(clReleaseProgram: clReleaseProgram_fn, program),
        call!(clReleaseContext: clReleaseContext_fn, context),
    ];
    Ok(format!("build {build} kernel {code} released {released:?}"))
}
