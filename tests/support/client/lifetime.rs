//! Kernels that outlive their program, reference counts, clones.

use opencl_sys::*;

use crate::cl::{self, Handle, call};
use crate::queries::{context_references, is_handle, kernel_info, kernel_references, program_info};
use crate::queries::{program_references, string};
use crate::session::Session;

const SOURCE: &str = "
__kernel void first(__global uint *out) { out[get_global_id(0)] = 100 + (uint)get_global_id(0); }
__kernel void second(__global uint *out) { out[get_global_id(0)] = 200 + (uint)get_global_id(0); }
";

fn counts(session: &Session, step: &str, program: Handle) {
    let context = context_references(session.context);
    println!(
        "{step}: program {} context {context}",
        program_references(program)
    );
}

fn retained(session: &Session) {
    let program = session.program(SOURCE);
    println!(
        "retain before build: code {}",
        call!(clRetainProgram(program))
    );
    counts(session, "retained", program);
    println!("build: code {}", cl::build(program, Some("")));
    counts(session, "built", program);
    println!("release: code {}", cl::release_program(program));
    counts(session, "released once", program);
    session.try_kernel("after one release", program, "first");
    counts(session, "kernel came and went", program);
    let before = context_references(session.context);
    let (kernel, _) = cl::kernel(program, "second");
    println!("retain kernel: code {}", call!(clRetainKernel(kernel)));
    println!("kernel references {}", kernel_references(kernel));
    counts(session, "kernel retained", program);
    println!("release kernel: code {}", cl::release_kernel(kernel));
    println!("kernel references {}", kernel_references(kernel));
    session.print_run("after kernel release", kernel);
    println!("release kernel: code {}", cl::release_kernel(kernel));
    session.settle_context(&before);
    counts(session, "kernel gone", program);
    println!("release: code {}", cl::release_program(program));
    println!("context {}", context_references(session.context));
}

fn outliving(session: &Session) {
    let before = context_references(session.context);
    let program = session.program(SOURCE);
    println!("build: code {}", cl::build(program, None));
    let (first, _) = cl::kernel(program, "first");
    counts(session, "one kernel", program);
    let (second, _) = cl::kernel(program, "second");
    counts(session, "two kernels", program);
    println!("release program: code {}", cl::release_program(program));
    let answer = kernel_info(first, CL_KERNEL_PROGRAM);
    println!("program of a kernel: {}", is_handle(answer, program));
    counts(session, "released with kernels", program);
    let name = string(kernel_info(first, CL_KERNEL_FUNCTION_NAME));
    println!("name {name}");
    println!("kernel names {}", names(session, program));
    session.print_run("first", first);
    session.print_run("second", second);
    println!("release first: code {}", cl::release_kernel(first));
    let answer = kernel_info(second, CL_KERNEL_PROGRAM);
    println!(
        "program of the other kernel: {}",
        is_handle(answer, program)
    );
    session.print_run("second again", second);
    println!("release second: code {}", cl::release_kernel(second));
    session.settle_context(&before);
    println!("context {}", context_references(session.context));
}

/// The names as they come, or only how many bytes where the driver shuffles them.
fn names(session: &Session, program: Handle) -> String {
    let answer = program_info(program, CL_PROGRAM_KERNEL_NAMES);
    match answer {
        Ok(bytes) if session.shuffles_kernels() => format!("{} bytes", bytes.len()),
        answer => string(answer),
    }
}

fn cloned(session: &Session) {
    let before = context_references(session.context);
    let program = session.program(SOURCE);
    println!("build: code {}", cl::build(program, Some("-DCLONE")));
    let (kernel, _) = cl::kernel(program, "first");
    let mut code = 1;
    let clone = call!(clCloneKernel(kernel, &mut code));
    println!("clone: code {code} NULL {}", clone.is_null());
    if clone.is_null() {
        cl::release_kernel(kernel);
        cl::release_program(program);
        return;
    }
    counts(session, "cloned", program);
    println!("clone is another handle {}", clone != kernel);
    println!(
        "clone's name {}",
        string(kernel_info(clone, CL_KERNEL_FUNCTION_NAME))
    );
    println!(
        "clone's program {}",
        is_handle(kernel_info(clone, CL_KERNEL_PROGRAM), program)
    );
    println!("clone's references {}", kernel_references(clone));
    println!("release kernel: code {}", cl::release_kernel(kernel));
    counts(session, "original gone", program);
    println!("release program: code {}", cl::release_program(program));
    println!(
        "clone's program {}",
        is_handle(kernel_info(clone, CL_KERNEL_PROGRAM), program)
    );
    counts(session, "program released", program);
    session.print_run("clone", clone);
    println!("release clone: code {}", cl::release_kernel(clone));
    session.settle_context(&before);
    println!("context {}", context_references(session.context));
}

/// Handles are used again by drivers: a new program must not be taken for an old one.
fn recycled(session: &Session) {
    for round in 0..6 {
        let source = SOURCE.replace("100", &format!("{}", 1000 * (round % 3 + 1)));
        let (program, _) = cl::program(session.context, &source);
        let code = cl::build(program, None);
        println!("round {round}: build {code}");
        session.try_kernel(&format!("round {round}"), program, "first");
        cl::release_program(program);
    }
    println!("context {}", context_references(session.context));
}

pub fn section(session: &Session) -> Result<(), String> {
    println!("context {}", context_references(session.context));
    println!("[retained]");
    retained(session);
    println!("[outliving]");
    outliving(session);
    println!("[cloned]");
    cloned(session);
    println!("[recycled]");
    recycled(session);
    Ok(())
}
