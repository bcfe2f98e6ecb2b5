//! Builds that the driver refuses because kernels are alive. They change nothing, also for other threads and in their callbacks.

use std::collections::BTreeSet;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::{ptr, thread};

use opencl_sys::*;

use crate::cl::{self, Handle};
use crate::queries::{build_info, string};
use crate::session::{Session, Value};

/// Kernels of one program share the variable, where there are such variables.
const SOURCE: &str = "
#ifdef __opencl_c_program_scope_global_variables
__global uint program_state = 5;
__kernel void bump(__global uint *out) { if (get_global_id(0) == 0) { program_state += 1; out[0] = program_state; } }
#else
__kernel void bump(__global uint *out) { if (get_global_id(0) == 0) out[0] = 1; }
#endif
";

const OPTIONS: &str = "-cl-std=CL3.0";
const THREADS: usize = 3;
const ROUNDS: usize = 5;
const BUILDS: usize = 25;

/// A program that is built, with a kernel that is alive.
fn alive(session: &Session) -> (Handle, Handle) {
    let program = session.program(SOURCE);
    println!("build: code {}", cl::build(program, Some(OPTIONS)));
    let (kernel, code) = cl::kernel(program, "bump");
    println!("kernel: code {code}");
    (program, kernel)
}

fn options(session: &Session, program: Handle) -> String {
    string(build_info(
        program,
        session.device(),
        CL_PROGRAM_BUILD_OPTIONS,
    ))
}

fn release(program: Handle, kernel: Handle) {
    println!(
        "release: code {} {}",
        cl::release_kernel(kernel),
        cl::release_program(program)
    );
}

/// Kernels that are made and run while another thread's builds are refused. If they count in a variable of the program, no two runs
/// give the same value.
fn other_kernels(session: &Session) {
    println!("[kernels of another thread]");
    let (program, kernel) = alive(session);
    let bump = |kernel| {
        let words = session.launch(session.queue, kernel, &[Value::Out(16)]);
        words.map(|words| words[0])
    };
    let (first, second) = (bump(kernel), bump(kernel));
    println!("{first:?} {second:?}");
    let counts = first != second;
    let mut values = BTreeSet::from([first, second]);
    let done = AtomicBool::new(false);
    let address = program as usize;
    let (codes, wrong) = thread::scope(|scope| {
        let builder = scope.spawn(|| {
            let build = |_| cl::build(address as Handle, Some("-cl-std=CL3.0 -DOTHER"));
            let codes: Vec<cl_int> = (0..BUILDS).map(build).collect();
            done.store(true, Ordering::Relaxed);
            codes
        });
        let mut wrong = 0;
        while !done.load(Ordering::Relaxed) {
            let (other, code) = cl::kernel(program, "bump");
            if other.is_null() {
                println!("kernel: code {code}");
                continue;
            }
            wrong += usize::from(values.insert(bump(other)) != counts);
            cl::release_kernel(other);
        }
        (builder.join().expect("no panic"), wrong)
    });
    let refused = codes.iter().filter(|code| **code == CL_INVALID_OPERATION);
    println!("refused {} of {BUILDS}, wrong {wrong}", refused.count());
    release(program, kernel);
}

/// Threads that build one program at once.
fn at_once(session: &Session) {
    println!("[builds at once]");
    for round in 0..ROUNDS {
        let (program, kernel) = alive(session);
        let address = program as usize;
        let codes: Vec<cl_int> = thread::scope(|scope| {
            let build = |number| {
                scope.spawn(move || {
                    thread::sleep(std::time::Duration::from_millis((number * round) as u64));
                    cl::build(
                        address as Handle,
                        Some(&format!("-cl-std=CL3.0 -DOTHER={number}")),
                    )
                })
            };
            let threads: Vec<_> = (0..THREADS).map(build).collect();
            let join =
                |thread: thread::ScopedJoinHandle<'_, cl_int>| thread.join().expect("no panic");
            threads.into_iter().map(join).collect()
        });
        println!("codes {codes:?}, options {}", options(session, program));
        release(program, kernel);
    }
}

static NESTED: AtomicI32 = AtomicI32::new(1);

unsafe extern "C" fn build_again(program: Handle, _data: *mut c_void) {
    let code = cl::build(program, Some("-cl-std=CL3.0 -DNESTED"));
    NESTED.store(code, Ordering::Relaxed);
}

/// A build of the same program in the callback, which some drivers call although they refuse the build.
fn nested(session: &Session) {
    println!("[a build in the callback]");
    let (program, kernel) = alive(session);
    let other = Some("-cl-std=CL3.0 -DOTHER");
    println!(
        "build: code {}",
        cl::build_notify(program, other, Some(build_again), ptr::null_mut())
    );
    println!("nested: code {}", NESTED.load(Ordering::Relaxed));
    println!("options {}", options(session, program));
    release(program, kernel);
}

pub fn section(session: &Session) -> Result<(), String> {
    nested(session);
    at_once(session);
    other_kernels(session);
    Ok(())
}
