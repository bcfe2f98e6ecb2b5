//! Building a program again.

use crate::cl;
use crate::session::Session;

const SOURCE: &str = "
#ifdef FAIL
#error told to fail
#endif
#ifndef VALUE
#define VALUE 1
#endif
__kernel void value(__global uint *out) { out[get_global_id(0)] = VALUE + (uint)get_global_id(0); }
#ifdef EXTRA
__kernel void extra(__global uint *out) { out[get_global_id(0)] = 7; }
#endif
";

fn build(session: &Session, program: cl::Handle, options: Option<&str>) {
    let code = cl::build(program, options);
    println!("build {options:?}: code {code}");
    session.state(&format!("{options:?}"), program);
}

pub fn section(session: &Session) -> Result<(), String> {
    println!("[options change]");
    let program = session.program(SOURCE);
    for options in [
        "-DVALUE=10",
        "-DVALUE=20",
        "-DVALUE=20",
        "-DVALUE=10 -DEXTRA",
        "-DVALUE=10",
    ] {
        build(session, program, Some(options));
        session.try_kernel(options, program, "value");
        if options.contains("EXTRA") || session.forgets_kernels() {
            session.try_kernel(options, program, "extra");
        }
    }
    println!("[NULL, then empty]");
    for options in [None, Some(""), None] {
        build(session, program, options);
        session.try_kernel(&format!("{options:?}"), program, "value");
    }
    println!("[a live kernel]");
    let (kernel, code) = cl::kernel(program, "value");
    println!("kernel: code {code}");
    build(session, program, Some("-DVALUE=30"));
    session.print_run("the live kernel", kernel);
    session.try_kernel("a new kernel", program, "value");
    println!("release kernel: code {}", cl::release_kernel(kernel));
    build(session, program, Some("-DVALUE=30"));
    session.try_kernel("after release", program, "value");
    println!("[a failing rebuild with a live kernel]");
    let (kernel, code) = cl::kernel(program, "value");
    println!("kernel: code {code}");
    build(session, program, Some("-DFAIL"));
    session.print_run("the live kernel", kernel);
    println!("release kernel: code {}", cl::release_kernel(kernel));
    println!("[a failing rebuild]");
    build(session, program, Some("-DFAIL"));
    session.try_kernel("after failure", program, "value");
    println!("[after the failure]");
    // Intel's CPU runtime fails from now on.
    build(session, program, Some("-DVALUE=40"));
    session.try_kernel("after failure", program, "value");
    build(session, program, Some("-DVALUE=10"));
    session.try_kernel("known options", program, "value");
    println!("release: code {}", cl::release_program(program));
    println!("[two programs, one source]");
    let (one, two) = (session.program(SOURCE), session.program(SOURCE));
    build(session, one, Some("-DVALUE=50"));
    build(session, two, Some("-DVALUE=50"));
    build(session, two, Some("-DVALUE=60"));
    session.try_kernel("one", one, "value");
    session.try_kernel("two", two, "value");
    println!(
        "release: code {} {}",
        cl::release_program(one),
        cl::release_program(two)
    );
    Ok(())
}
