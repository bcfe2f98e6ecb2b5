//! Programs without those that they belong to: built when their context was released, and asked when they were released
//! themselves but for their kernels.

use std::ptr;

use opencl_sys::*;

use crate::cl::{self, Handle, call};
use crate::queries::program_info;
use crate::session::Session;

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 7; }";

/// The context that is released is held by its program only.
fn context(session: &Session) {
    let mut code = 1;
    let count = session.devices.len() as cl_uint;
    let context = call!(clCreateContext(
        ptr::null(),
        count,
        session.devices.as_ptr(),
        None,
        ptr::null_mut(),
        &mut code
    ));
    let (program, _) = cl::program(context, SOURCE);
    println!("release context: code {}", call!(clReleaseContext(context)));
    println!("build: code {}", cl::build(program, None));
    let (kernel, code) = cl::kernel(program, "f");
    println!("kernel: code {code}");
    if !kernel.is_null() {
        println!("release kernel: code {}", cl::release_kernel(kernel));
    }
    println!("release program: code {}", cl::release_program(program));
}

/// Drivers that let a program die before its kernels say so. To others one release more would be a kernel's.
fn dead(session: &Session, label: &str, ask: &dyn Fn(Handle) -> cl_int) {
    let (program, _) = cl::program(session.context, SOURCE);
    println!("build: code {}", cl::build(program, None));
    let (kernel, _) = cl::kernel(program, "f");
    println!("release program: code {}", cl::release_program(program));
    match program_info(program, CL_PROGRAM_SOURCE) {
        Err(CL_INVALID_PROGRAM) => println!("{label}: code {}", ask(program)),
        _ => println!("{label}: its kernel keeps it"),
    }
    println!("release kernel: code {}", cl::release_kernel(kernel));
}

pub fn section(session: &Session) -> Result<(), String> {
    for _ in 0..2 {
        context(session);
        dead(session, "release", &cl::release_program);
        dead(session, "retain and release", &|program| {
            println!("retain: code {}", call!(clRetainProgram(program)));
            cl::release_program(program)
        });
        dead(session, "build", &|program| cl::build(program, None));
        dead(session, "compile", &|program| cl::compile(program, "", &[]));
    }
    Ok(())
}
