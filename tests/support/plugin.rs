//! A library that uses OpenCL in its constructor, and closes the loader again before the constructor ends. With `PLUGIN_THREAD` in the
//! environment it builds and makes kernels (`build`), or only makes kernels (`kernel`), in a thread, for which the constructor waits; or it
//! makes kernels in many threads at once (`kernels`). With `PLUGIN_PIPE`, a descriptor, it only removes the file
//! `PLUGIN_REMOVES` and waits until the pipe is closed.
//!
//! It prints what it has got, as `client` does: nothing that differs from run to run.

// The C ABI of OpenCL is called through looked-up functions.
#![allow(unsafe_code)]
// Printing is what this library is for.
#![allow(clippy::print_stdout)]

use std::ffi::{CStr, c_void};
use std::fs::File;
use std::io::Read;
use std::os::fd::FromRawFd;
use std::ptr;

use libloading::Library;
use opencl_sys::cl_function_types::*;
use opencl_sys::*;

const SOURCE: &CStr = c"__kernel void f(__global uint *out) { out[get_global_id(0)] = 3; }\n";

/// How many threads make how many kernels each.
const THREADS: usize = 32;
const KERNELS: usize = 50;

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
    if let Ok(pipe) = std::env::var("PLUGIN_PIPE") {
        let pipe = pipe.parse().map_err(|_| "descriptor")?;
        let held = std::env::var("PLUGIN_REMOVES").map_err(|_| "file")?;
        std::fs::remove_file(held).map_err(|_| "file")?;
        // SAFETY: the program has opened it for this library.
        let mut pipe = unsafe { File::from_raw_fd(pipe) };
        let read = pipe.read_to_end(&mut Vec::new());
        return read.map(|_| "waited".into()).map_err(|_| "pipe");
    }
    let loader = std::env::var("CLIENT_LOADER").unwrap_or_else(|_| "libOpenCL.so.1".to_owned());
    // SAFETY: a loader's constructors have no preconditions. It is closed when this function ends.
    let library = unsafe { Library::new(loader) }.map_err(|_| "loader")?;
    macro_rules! function {
        ($name:ident: $type:ident) => {{
            // SAFETY: in a loader a function of this type stands behind this name.
            let found = unsafe { library.get::<$type>(stringify!($name)) };
            (*found.map_err(|_| stringify!($name))?).ok_or(stringify!($name))?
        }};
    }
    macro_rules! call {
        ($name:ident: $type:ident, $($argument:expr),* $(,)?) => {{
            let function = function!($name: $type);
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
    // Looked up here: the dynamic linker would let the thread wait as long as the constructor runs.
    let build = function!(clBuildProgram: clBuildProgram_fn);
    let create_kernel = function!(clCreateKernel: clCreateKernel_fn);
    let handle = program as usize;
    let build = move || {
        let program = handle as *mut c_void;
        // SAFETY: as above.
        unsafe { build(program, 0, ptr::null(), ptr::null(), None, ptr::null_mut()) }
    };
    let create_kernel = move || {
        let mut code = 1;
        // SAFETY: as above.
        let kernel = unsafe { create_kernel(handle as *mut c_void, c"f".as_ptr(), &mut code) };
        (kernel as usize, code)
    };
    let (build, (kernel, code)) = match std::env::var("PLUGIN_THREAD").as_deref() {
        Ok("build") => in_thread(move || (build(), create_kernel())).ok_or("thread")?,
        Ok("kernel") => (build(), in_thread(create_kernel).ok_or("thread")?),
        Ok("kernels") => {
            let built = build();
            let create_some = || (0..KERNELS).all(|_| create_kernel().1 == CL_SUCCESS);
            let created = in_threads(vec![create_some; THREADS]).ok_or("threads")?;
            assert_eq!(created, [true; THREADS]);
            (built, create_kernel())
        }
        _ => (build(), create_kernel()),
    };
    let kernel = kernel as *mut c_void;
    let released = [
        call!(clReleaseKernel: clReleaseKernel_fn, kernel),
        call!(clReleaseProgram: clReleaseProgram_fn, program),
        call!(clReleaseContext: clReleaseContext_fn, context),
    ];
    Ok(format!("build {build} kernel {code} released {released:?}"))
}

/// Runs a function in a plain thread: one of the standard library's would wait for the dynamic linker, which notes the destructors of
/// its thread-local variables.
fn in_thread<T, F: FnOnce() -> T>(run: F) -> Option<T> {
    in_threads(vec![run])?.pop()
}

/// Runs each function in a plain thread, all at once.
fn in_threads<T, F: FnOnce() -> T>(run: Vec<F>) -> Option<Vec<T>> {
    extern "C" fn begin<T, F: FnOnce() -> T>(work: *mut c_void) -> *mut c_void {
        // SAFETY: the caller's, which waits for this thread and looks at nothing meanwhile.
        let (run, done) = unsafe { &mut *work.cast::<(Option<F>, Option<T>)>() };
        *done = run.take().map(|run| run());
        ptr::null_mut()
    }
    let mut work: Vec<(Option<F>, Option<T>)> =
        run.into_iter().map(|run| (Some(run), None)).collect();
    let mut threads = Vec::new();
    for one in &mut work {
        // SAFETY: the thread has ended before its work is gone, see below.
        unsafe {
            let mut thread = std::mem::zeroed();
            let place = ptr::from_mut(one).cast();
            if libc::pthread_create(&mut thread, ptr::null(), begin::<T, F>, place) == 0 {
                threads.push(thread);
            }
        }
    }
    for thread in threads {
        // SAFETY: a thread of ours, waited for once.
        unsafe { libc::pthread_join(thread, ptr::null_mut()) };
    }
    work.into_iter().map(|(_, done)| done).collect()
}
