//! Compilers that are unloaded, and handles that are used again.

use opencl_sys::*;

use crate::cl::{self, Handle, call};
use crate::facts::binaries;
use crate::queries::{context_references, program_info, string};
use crate::session::Session;

const SOURCE: &str = "
#ifdef FAIL
#error told to fail
#endif
#ifndef VALUE
#define VALUE 1
#endif
__kernel void value(__global uint *out) { out[get_global_id(0)] = VALUE + (uint)get_global_id(0); }
";

fn unload(session: &Session, label: &str) {
    let code = call!(clUnloadPlatformCompiler(session.platform));
    println!("{label}: clUnloadPlatformCompiler {code}");
}

fn build(session: &Session, label: &str, program: Handle, options: &str) {
    println!("{label}: build code {}", cl::build(program, Some(options)));
    session.state(label, program);
    session.try_kernel(label, program, "value");
}

pub fn unloading(session: &Session) -> Result<(), String> {
    unload(session, "before all");
    let program = session.program(SOURCE);
    unload(session, "created");
    build(session, "first", program, "-DVALUE=2");
    let (kernel, code) = cl::kernel(program, "value");
    println!("kernel: code {code}");
    unload(session, "with a live kernel");
    session.print_run("live kernel", kernel);
    let names = program_info(program, CL_PROGRAM_KERNEL_NAMES);
    println!("names {}", string(names));
    cl::release_kernel(kernel);
    for options in ["-DVALUE=2", "-DVALUE=3", "-DFAIL"] {
        unload(session, "between");
        build(session, options, program, options);
    }
    let object = session.program(SOURCE);
    println!("compile: code {}", cl::compile(object, "-DVALUE=4", &[]));
    unload(session, "compiled");
    let (linked, code) = cl::link(session.context, "", &[object]);
    println!("link: code {code}");
    unload(session, "linked");
    session.try_kernel("linked", linked, "value");
    println!("clUnloadCompiler {}", call!(clUnloadCompiler()));
    let another = session.program(SOURCE);
    build(session, "another", another, "-DVALUE=2");
    for program in [program, object, linked, another] {
        println!("release: code {}", cl::release_program(program));
    }
    unload(session, "at last");
    println!("context {}", context_references(session.context));
    Ok(())
}

/// Makes a program that gives `value`, in one of several ways.
fn make(session: &Session, way: u32, value: u32, kept: &mut Vec<Vec<Vec<u8>>>) -> Handle {
    let options = format!("-DVALUE={value}");
    let (program, code) = cl::program(session.context, SOURCE);
    println!("create: code {code}");
    match way % 4 {
        0 => println!("build: code {}", cl::build(program, Some(&options))),
        1 => {
            println!("compile: code {}", cl::compile(program, &options, &[]));
            let (linked, code) = cl::link(session.context, "", &[program]);
            println!("link: code {code}");
            cl::release_program(program);
            return linked;
        }
        2 => {
            println!("failing build: code {}", cl::build(program, Some("-DFAIL")));
            cl::release_program(program);
            let source = SOURCE.replace("VALUE +", &format!("{value} +"));
            let (program, _) = cl::program(session.context, &source);
            println!("build: code {}", cl::build(program, None));
            return program;
        }
        _ => {
            println!("build: code {}", cl::build(program, Some(&options)));
            kept.extend(binaries(session, program));
            cl::release_program(program);
            let Some(binaries) = kept.last() else {
                return std::ptr::null_mut();
            };
            let (program, status, code) =
                cl::program_from_binaries(session.context, &session.devices, binaries);
            println!("from binaries: {status:?} code {code}");
            println!("build: code {}", cl::build(program, Some(&options)));
            return program;
        }
    }
    program
}

/// Source, link results and binaries take turns at the same addresses.
pub fn recycled(session: &Session) -> Result<(), String> {
    let before = context_references(session.context);
    let mut kept = Vec::new();
    let mut older: Option<(Handle, Handle)> = None;
    for round in 0..40 {
        println!("[round {round}]");
        let program = make(session, round * 7 + round / 4, round % 5 + 1, &mut kept);
        session.state("made", program);
        let (kernel, code) = cl::kernel(program, "value");
        println!("kernel: code {code}");
        session.print_run("result", kernel);
        // Every third one keeps its kernel over the next, and goes before or after its kernel.
        if let Some((program, kernel)) = older.take() {
            session.print_run("older", kernel);
            let program_first = round % 2 == 0;
            if program_first {
                println!("release: code {}", cl::release_program(program));
                session.print_run("older alone", kernel);
            }
            println!("release kernel: code {}", cl::release_kernel(kernel));
            if !program_first {
                println!("release: code {}", cl::release_program(program));
            }
        }
        if round % 3 == 0 {
            older = Some((program, kernel));
            continue;
        }
        println!("release kernel: code {}", cl::release_kernel(kernel));
        println!("release: code {}", cl::release_program(program));
    }
    if let Some((program, kernel)) = older {
        cl::release_kernel(kernel);
        cl::release_program(program);
    }
    session.settle_context(&before);
    println!("context {}", context_references(session.context));
    Ok(())
}
