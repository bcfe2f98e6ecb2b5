//! Each way to make a program, once and without odd questions: a second run needs no compiler.

use crate::cl::{self, Handle, NO_REPORT};
use crate::il;
use crate::session::Session;

const ALONE: &str = "
__kernel void f(__global uint *out) { out[get_global_id(0)] = VALUE; }
";

const CALLING: &str = "
uint g(uint x);
__kernel void f(__global uint *out) { out[get_global_id(0)] = g((uint)get_global_id(0)); }
";

const CALLED: &str = "
uint g(uint x) { return x * 3 + 1; }
";

const INCLUDING: &str = "
#include \"value.h\" // the number
__kernel void f(__global uint *out) { out[get_global_id(0)] = VALUE; }
";

fn compiled(session: &Session, source: &str, headers: &[(&str, Handle)]) -> Handle {
    let program = session.program(source);
    let code = cl::compile(program, "-DVALUE=7", headers);
    println!("compile: code {code}");
    session.state("compiled", program);
    program
}

fn linked(session: &Session, label: &str, options: &str, inputs: &[Handle]) -> Handle {
    let (program, code) = cl::link(session.context, options, inputs);
    println!("{label}: link code {code}");
    session.state(label, program);
    program
}

fn release(programs: &[Handle]) {
    for program in programs {
        println!("release: code {}", cl::release_program(*program));
    }
}

pub fn section(session: &Session) -> Result<(), String> {
    println!("[build]");
    let program = session.program(ALONE);
    println!("build: code {}", cl::build(program, Some("-DVALUE=5")));
    session.try_kernel("built", program, "f");
    release(&[program]);

    println!("[compile and link]");
    let (calling, called) = (
        compiled(session, CALLING, &[]),
        compiled(session, CALLED, &[]),
    );
    let both = linked(session, "both", "", &[calling, called]);
    session.try_kernel("both", both, "f");

    println!("[library]");
    let library = linked(session, "library", "-create-library", &[called]);
    release(&[called, both]);
    let with_library = linked(session, "with library", "", &[calling, library]);
    release(&[calling, library]);
    session.try_kernel("with library", with_library, "f");
    release(&[with_library]);

    println!("[embedded header]");
    let header = session.program("#define VALUE 9\n");
    let including = session.program(INCLUDING);
    let code = cl::compile(including, "", &[("value.h", header)]);
    println!("compile: code {code}");
    let program = linked(session, "with header", "", &[including]);
    release(&[header, including]);
    session.try_kernel("with header", program, "f");
    release(&[program]);

    println!("[one device after another]");
    let program = session.program(ALONE);
    for device in &session.devices {
        let code = cl::build_for(program, &[*device], Some("-DVALUE=6"), NO_REPORT);
        println!("build for one: code {code}");
        let (kernel, code) = cl::kernel(program, "f");
        println!("kernel: code {code}");
        cl::release_kernel(kernel);
    }
    release(&[program]);

    println!("[intermediate language]");
    il::with_constant(session);
    Ok(())
}
