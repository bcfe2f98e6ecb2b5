//! Many threads that do with programs all that can be done, on programs of their own and on a shared one.
//!
//! Meant for ThreadSanitizer, so threads wait for each other by atomics and joins only: it does not see into std's locks.

use std::ffi::c_void;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::thread;
use std::time::Duration;

use libloading::Library;
use opencl_sys::cl_function_types::{
    clGetDeviceInfo_fn, clGetPlatformIDs_fn, clUnloadPlatformCompiler_fn,
};
use opencl_sys::*;

use crate::cl::{self, Handle, call};
use crate::queries::{build_info, kernel_info, program_info};
use crate::session::{Session, Value};

/// Sources that come again and again, so that they hit.
const COMMON: u32 = 40;

static CALLED_BACK: AtomicU32 = AtomicU32::new(0);

/// What the planted race races for.
static mut RACED: u64 = 0;

unsafe extern "C" fn notify(_: Handle, data: *mut c_void) {
    CALLED_BACK.fetch_add(1, Ordering::Relaxed);
    // SAFETY: `build` waits for it.
    unsafe { &*data.cast::<AtomicBool>() }.store(true, Ordering::Release);
}

fn source(number: u32) -> String {
    let failing = if number % 29 == 7 {
        "#error told to\n"
    } else {
        ""
    };
    format!(
        "{failing}__kernel void left(__global uint *out) {{ out[get_global_id(0)] = {number}; }}\n\
         __kernel void right(__global uint *out, float x) {{ out[get_global_id(0)] = {number}; }}\n"
    )
}

fn caller(number: u32) -> String {
    format!(
        "uint called(uint x);\n\
         __kernel void calling(__global uint *out) {{ out[get_global_id(0)] = called({number}); }}\n"
    )
}

/// One thread: its own randomness, and what all share.
struct Worker<'a> {
    session: &'a Session,
    queue: Handle,
    shared: Handle,
    /// A compiled program.
    object: Handle,
    state: u32,
}

// SAFETY: handles may be used by any thread.
unsafe impl Send for Worker<'_> {}

impl Worker<'_> {
    fn below(&mut self, bound: u32) -> u32 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 17;
        self.state ^= self.state << 5;
        self.state % bound
    }

    /// With or without a callback, which is waited for where the call succeeded.
    fn build(&mut self, program: Handle, options: Option<&str>) -> i32 {
        if self.below(2) == 0 {
            return cl::build(program, options);
        }
        let called = AtomicBool::new(false);
        let data = ptr::from_ref(&called).cast_mut().cast();
        let code = cl::build_notify(program, options, Some(notify), data);
        while matches!(code, CL_SUCCESS | CL_BUILD_PROGRAM_FAILURE)
            && !called.load(Ordering::Acquire)
        {
            thread::sleep(Duration::from_micros(50));
        }
        code
    }

    fn ask(&mut self, program: Handle) {
        let device = self.session.device();
        for name in [
            CL_PROGRAM_KERNEL_NAMES,
            CL_PROGRAM_REFERENCE_COUNT,
            CL_PROGRAM_BINARY_SIZES,
        ] {
            let _ = program_info(program, name);
        }
        for name in [
            CL_PROGRAM_BUILD_STATUS,
            CL_PROGRAM_BUILD_LOG,
            CL_PROGRAM_BUILD_OPTIONS,
        ] {
            let _ = build_info(program, device, name);
        }
    }

    fn use_kernel(&mut self, kernel: Handle) {
        let _ = kernel_info(kernel, CL_KERNEL_PROGRAM);
        let _ = kernel_info(kernel, CL_KERNEL_ATTRIBUTES);
        let mut size = 0;
        // An unknown query is one that makes the driver build a program that is served.
        let query = if self.below(8) == 0 {
            0
        } else {
            CL_KERNEL_ARG_NAME
        };
        call!(clGetKernelArgInfo(
            kernel,
            0,
            query,
            0,
            ptr::null_mut(),
            &mut size
        ));
        call!(clRetainKernel(kernel));
        let clone = call!(clCloneKernel(kernel, ptr::null_mut()));
        if !clone.is_null() {
            cl::release_kernel(clone);
        }
        cl::release_kernel(kernel);
    }

    /// A program from its source to its end, and a build of it in between.
    fn own(&mut self, number: u32) {
        let (program, _) = cl::program(self.session.context, &source(number));
        if self.build(program, Some("-DSTRESS")) == CL_SUCCESS {
            self.ask(program);
            let mut kernels = match self.below(2) {
                0 => cl::all_kernels(program).unwrap_or_default(),
                _ => vec![cl::kernel(program, "left").0],
            };
            // A driver that builds later may have failed since.
            kernels.retain(|kernel| !kernel.is_null());
            // Over live kernels: the driver decides.
            if self.below(4) == 0 {
                self.build(program, Some("-DOTHER"));
            }
            for kernel in &kernels {
                self.use_kernel(*kernel);
            }
            if let Some(kernel) = kernels.first()
                && self.below(8) == 0
            {
                let _ = self.session.launch(self.queue, *kernel, &[Value::Out(16)]);
            }
            let early = self.below(2) == 0;
            if early {
                cl::release_program(program);
            }
            for kernel in kernels {
                cl::release_kernel(kernel);
            }
            if early {
                return;
            }
            if self.below(3) == 0 {
                self.build(program, Some("-DAGAIN"));
                self.ask(program);
            }
        }
        cl::release_program(program);
    }

    /// A program that is linked from one of its own and one that all threads link.
    fn linked(&mut self, number: u32) {
        let (main, _) = cl::program(self.session.context, &caller(number));
        if cl::compile(main, "-DSTRESS", &[]) == CL_SUCCESS {
            let options = ["", "-create-library"][self.below(2) as usize];
            let (result, _) = cl::link(self.session.context, options, &[main, self.object]);
            if self.below(4) == 0 {
                cl::compile(main, "-DAGAIN", &[]);
            }
            if !result.is_null() {
                self.ask(result);
                let (kernel, _) = cl::kernel(result, "calling");
                if !kernel.is_null() {
                    self.use_kernel(kernel);
                    cl::release_kernel(kernel);
                }
                if self.below(6) == 0 {
                    self.build(result, None);
                }
                cl::release_program(result);
            }
        }
        cl::release_program(main);
    }

    /// The program that all threads use at once; builds of it may be refused.
    fn common(&mut self) {
        call!(clRetainProgram(self.shared));
        if self.below(10) == 0 {
            self.build(self.shared, Some("-DSHARED"));
        }
        let (kernel, _) = cl::kernel(self.shared, "left");
        if !kernel.is_null() {
            self.use_kernel(kernel);
            cl::release_kernel(kernel);
        }
        self.ask(self.shared);
        cl::release_program(self.shared);
    }
}

/// Calls clUnloadPlatformCompiler.
fn unloader(session: &Session) -> Result<impl Fn() + use<>, String> {
    let loader = std::env::var("CLIENT_LOADER").unwrap_or_else(|_| "libOpenCL.so.1".to_owned());
    // SAFETY: it is open already.
    let library = unsafe { Library::new(loader) }.map_err(|error| error.to_string())?;
    // SAFETY: in a loader functions of these types stand behind these names.
    let (ask, unload) = unsafe {
        (
            library
                .get::<clGetDeviceInfo_fn>("clGetDeviceInfo")
                .map(|found| *found),
            library
                .get::<clUnloadPlatformCompiler_fn>("clUnloadPlatformCompiler")
                .map(|found| *found),
        )
    };
    let (Ok(Some(ask)), Ok(Some(unload))) = (ask, unload) else {
        return Err("the loader lacks clUnloadPlatformCompiler".to_owned());
    };
    std::mem::forget(library);
    let mut platform: Handle = ptr::null_mut();
    // SAFETY: a live device, and room for a handle.
    unsafe {
        ask(
            session.device(),
            CL_DEVICE_PLATFORM,
            size_of::<Handle>(),
            ptr::from_mut(&mut platform).cast(),
            ptr::null_mut(),
        )
    };
    let platform = platform as usize;
    Ok(move || {
        // SAFETY: the driver's platform.
        unsafe { unload(platform as Handle) };
    })
}

/// How many platforms another loader lists.
fn platforms(loader: &str) -> cl_uint {
    // SAFETY: an ICD loader, which stays open.
    let library = unsafe { Library::new(loader) }.expect("a loader");
    // SAFETY: in a loader a function of this type stands behind this name.
    let list = unsafe { library.get::<clGetPlatformIDs_fn>("clGetPlatformIDs") };
    let list = list.expect("a loader").expect("a function");
    let mut count = 0;
    // SAFETY: room for a number.
    unsafe { list(0, ptr::null_mut(), &raw mut count) };
    std::mem::forget(library);
    count
}

pub fn section(session: &Session, arguments: &[String]) -> Result<(), String> {
    let number = |index: usize| -> Result<u32, String> {
        let text = arguments.get(index).ok_or("stress takes two numbers")?;
        text.parse().map_err(|_| format!("no number: {text}"))
    };
    let (threads, programs) = (number(0)?, number(1)?);
    let (races, later) = match arguments.get(2).map(String::as_str) {
        Some("race") => (true, None),
        later => (false, later),
    };
    let unload = unloader(session)?;
    let shared = session.program(&source(1));
    println!("shared build: code {}", cl::build(shared, None));
    let object = session.program("uint called(uint x) { return x + 1; }\n");
    println!("object: code {}", cl::compile(object, "", &[]));
    let next = AtomicU32::new(0);
    let work = |thread: u32| {
        if races {
            // Before anything that would order the threads.
            // SAFETY: none: this is the race that must be found.
            unsafe { (&raw mut RACED).write_volatile(u64::from(thread)) };
        }
        let mut worker = Worker {
            session,
            queue: session.another_queue(),
            shared,
            object,
            state: thread * 7919 + 1,
        };
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= programs {
                break;
            }
            let common = worker.below(2) == 0;
            let which = if common {
                worker.below(COMMON)
            } else {
                number + COMMON
            };
            match worker.below(4) {
                0 => worker.linked(which),
                _ => worker.own(which),
            }
            if number.is_multiple_of(4) {
                worker.common();
            }
            if number.is_multiple_of(50) {
                unload();
            }
        }
        call!(clReleaseCommandQueue(worker.queue));
    };
    // A shared reference may cross threads, handles inside may, too.
    struct Shared<T>(T);
    // SAFETY: `work` uses handles, which any thread may use, and atomics.
    unsafe impl<T> Sync for Shared<T> {}
    let work = Shared(work);
    thread::scope(|scope| {
        let work = &work;
        for thread in 1..=threads {
            scope.spawn(move || (work.0)(thread));
        }
        if let Some(later) = later {
            let next = &next;
            scope.spawn(move || {
                while next.load(Ordering::Relaxed) < programs / 2 {
                    thread::sleep(Duration::from_millis(1));
                }
                println!(
                    "{} platforms in the loader that came later",
                    platforms(later)
                );
            });
        }
    });
    let builds = CALLED_BACK.load(Ordering::Relaxed) > 0;
    println!("{threads} threads, {programs} programs, callbacks {builds}");
    for program in [shared, object] {
        println!("release: code {}", cl::release_program(program));
    }
    Ok(())
}
