//! Compiling, linking, libraries and embedded headers.

use crate::cl::{self, Handle};
use crate::facts;
use crate::session::Session;

const MAIN: &str = "
uint helper(uint x);
__kernel void linked(__global uint *out) { out[get_global_id(0)] = helper((uint)get_global_id(0)); }
";

const HELPER: &str = "
uint helper(uint x) { return x * 3 + 1; }
";

const OTHER_HELPER: &str = "
uint helper(uint x) { return x * 5 + 2; }
";

const ALONE: &str = "
__kernel void alone(__global uint *out) { out[get_global_id(0)] = 77; }
";

const INCLUDING: &str = "
#include \"numbers.h\"
__kernel void including(__global uint *out) { out[get_global_id(0)] = NUMBER; }
";

/// A program that is compiled with these options in turn, and which name its binary has of those that they give to a function.
pub fn in_turn(session: &Session, arguments: &[String]) -> Result<(), String> {
    let program = session.program("uint NAME(uint x) { return x * 3 + 1; }");
    for options in arguments {
        println!("compile: code {}", cl::compile(program, options, &[]));
    }
    let binaries = facts::binaries(session, program).ok_or("no binary")?;
    for name in ["first", "second"] {
        let has = |binary: &Vec<u8>| {
            binary
                .windows(name.len())
                .any(|part| part == name.as_bytes())
        };
        println!("{name}: {}", binaries.iter().any(has));
    }
    Ok(())
}

fn compile(session: &Session, label: &str, source: &str, options: &str) -> Handle {
    let program = session.program(source);
    println!(
        "{label}: compile code {}",
        cl::compile(program, options, &[])
    );
    session.state(label, program);
    program
}

fn link(
    session: &Session,
    label: &str,
    options: &str,
    programs: &[Handle],
    kernel: &str,
) -> Handle {
    let (program, code) = cl::link(session.context, options, programs);
    println!("{label}: link code {code} NULL {}", program.is_null());
    // Intel's CPU runtime gives a program even with an error, but one that is not to be asked much.
    if !program.is_null() && code == 0 {
        session.state(label, program);
        session.try_kernel(label, program, kernel);
    }
    program
}

fn release(programs: &[Handle]) {
    for program in programs.iter().filter(|program| !program.is_null()) {
        println!("release: code {}", cl::release_program(*program));
    }
}

pub fn section(session: &Session) -> Result<(), String> {
    println!("[compile]");
    let main = compile(session, "main", MAIN, "-DM");
    session.try_kernel("main", main, "linked");
    let helper = compile(session, "helper", HELPER, "");
    let other = compile(session, "other helper", OTHER_HELPER, "");
    println!("[link]");
    let linked = link(session, "main and helper", "", &[main, helper], "linked");
    let again = link(session, "again", "", &[main, helper], "linked");
    let otherwise = link(
        session,
        "main and other helper",
        "",
        &[main, other],
        "linked",
    );
    println!("[library]");
    let library = link(session, "library", "-create-library", &[helper], "linked");
    let mut results = vec![linked, again, otherwise, library];
    if !library.is_null() {
        results.push(link(
            session,
            "main and library",
            "",
            &[main, library],
            "linked",
        ));
    }
    release(&results);
    release(&[main, helper, other]);

    println!("[one object]");
    let alone = compile(session, "alone", ALONE, "");
    let linked = link(session, "alone", "", &[alone], "alone");
    release(&[linked, alone]);

    println!("[link what was never compiled]");
    let program = session.program(ALONE);
    let linked = link(session, "never compiled", "", &[program], "alone");
    release(&[linked, program]);

    println!("[link what was built]");
    let program = session.program(ALONE);
    println!("build: code {}", cl::build(program, None));
    let linked = link(session, "built", "", &[program], "alone");
    session.state("the input", program);
    session.try_kernel("the input", program, "alone");
    release(&[linked, program]);

    println!("[compile what was built]");
    let program = session.program(ALONE);
    println!("build: code {}", cl::build(program, None));
    let (kernel, code) = cl::kernel(program, "alone");
    println!("kernel: code {code}");
    println!(
        "compile with a live kernel: code {}",
        cl::compile(program, "", &[])
    );
    session.state("with a live kernel", program);
    session.print_run("the live kernel", kernel);
    println!("release kernel: code {}", cl::release_kernel(kernel));
    println!("compile: code {}", cl::compile(program, "", &[]));
    session.state("compiled", program);
    if session.forgets_kernels() {
        session.try_kernel("compiled", program, "alone");
    }
    println!("build again: code {}", cl::build(program, None));
    session.state("built again", program);
    session.try_kernel("built again", program, "alone");
    release(&[program]);

    println!("[built twice]");
    let program = session.program(ALONE);
    for round in ["first", "second"] {
        println!("{round}: build code {}", cl::build(program, Some("-DT")));
        session.state(round, program);
        session.try_kernel(round, program, "alone");
    }
    release(&[program]);

    println!("[embedded header]");
    for number in ["5", "6"] {
        let header = session.program(&format!("#define NUMBER {number}\n"));
        let program = session.program(INCLUDING);
        let code = cl::compile(program, "", &[("numbers.h", header)]);
        println!("compile with header {number}: code {code}");
        session.state("with header", program);
        let linked = link(session, "with header", "", &[program], "including");
        release(&[linked, program, header]);
    }
    println!("[a header that is missing]");
    let program = session.program(INCLUDING);
    println!(
        "compile without header: code {}",
        cl::compile(program, "", &[])
    );
    session.state("without header", program);
    release(&[program]);
    Ok(())
}
