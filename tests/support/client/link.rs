//! What comes of clCompileProgram and clLinkProgram: objects, libraries, executables, and all of them from binaries.

use opencl_sys::cl_int;

use crate::cl::{self, Handle};
use crate::facts::{Asking, binaries, kernel_facts, program_facts};
use crate::queries::{context_references, program_references};
use crate::session::Session;

const MAIN: &str = "
uint helper(uint x);
__kernel void zulu(__global uint *restrict out) { out[get_global_id(0)] = helper((uint)get_global_id(0)); }
__kernel __attribute__((reqd_work_group_size(16, 1, 1)))
void alpha(__global uint *out) { out[get_global_id(0)] = helper(100 + (uint)get_global_id(0)); }
";

const HELPER: &str = "
#ifndef FACTOR
#define FACTOR 3
#endif
uint helper(uint x) { return x * FACTOR + 1; }
";

const OTHER: &str = "
uint unused_helper(uint x) { return x ^ 5; }
";

const ALONE: &str = "
#ifndef VALUE
#define VALUE 77
#endif
__kernel void alone(__global uint *out) { out[get_global_id(0)] = VALUE; }
";

fn object(session: &Session, source: &str, options: Option<&str>) -> Handle {
    let program = session.program(source);
    let code = cl::compile_for(program, &[], options, &[], cl::NO_REPORT);
    println!("compile {options:?}: code {code}");
    program
}

/// Everything about a program and these kernels of it.
fn facts(session: &Session, label: &str, program: Handle, kernels: &[&str]) {
    println!("{label}: facts");
    program_facts(session, program, Asking::Known);
    for name in kernels {
        let before = context_references(session.context);
        let (kernel, code) = cl::kernel(program, name);
        println!("{label}: kernel {name} code {code}");
        if !kernel.is_null() {
            println!("{label}: with it {}", program_references(program));
            kernel_facts(session, program, kernel, name, Asking::Known);
            session.print_run(label, kernel);
            cl::release_kernel(kernel);
            session.settle_context(&before);
        }
    }
}

/// None if there is no program or it is of no use.
fn link(
    session: &Session,
    label: &str,
    options: Option<&str>,
    inputs: &[Handle],
) -> Option<Handle> {
    let (program, code) = cl::link_for(session.context, &[], options, inputs, cl::NO_REPORT);
    println!(
        "{label}: link {options:?} code {code} NULL {}",
        program.is_null()
    );
    println!("{label}: context {}", context_references(session.context));
    if code != 0 && !program.is_null() {
        cl::release_program(program);
    }
    (code == 0 && !program.is_null()).then_some(program)
}

fn release(programs: &[Handle]) {
    for program in programs {
        println!("release: code {}", cl::release_program(*program));
    }
}

/// A program from the binaries of another, not built.
fn reloaded(session: &Session, label: &str, program: Handle) -> Option<Handle> {
    let binaries = binaries(session, program)?;
    let (program, status, code) =
        cl::program_from_binaries(session.context, &session.devices, &binaries);
    println!("{label}: from binaries {status:?} code {code}");
    (!program.is_null()).then_some(program)
}

fn results(session: &Session) {
    println!("[executables]");
    let main = object(session, MAIN, Some(" -DM -cl-kernel-arg-info"));
    let helper = object(session, HELPER, None);
    facts(session, "object", main, &["zulu"]);
    for options in [
        None,
        Some(""),
        Some(" -cl-mad-enable"),
        Some("-cl-denorms-are-zero"),
    ] {
        let Some(linked) = link(session, "executable", options, &[main, helper]) else {
            continue;
        };
        facts(session, "executable", linked, &["zulu", "alpha"]);
        if let Some(loaded) = reloaded(session, "executable", linked) {
            println!("own binary: build code {}", cl::build(loaded, options));
            facts(session, "own binary", loaded, &["alpha"]);
            release(&[loaded]);
        }
        release(&[linked]);
    }
    println!("[libraries]");
    let other = object(session, OTHER, Some(""));
    for inputs in [&[helper][..], &[helper, other], &[other, helper]] {
        for options in ["-create-library", "-create-library -enable-link-options"] {
            let Some(library) = link(session, "library", Some(options), inputs) else {
                continue;
            };
            facts(session, "library", library, &["zulu"]);
            if let Some(linked) = link(session, "with library", None, &[main, library]) {
                facts(session, "with library", linked, &["zulu"]);
                release(&[linked]);
            }
            release(&[library]);
        }
    }
    release(&[main, helper, other]);
}

/// Fresh objects and libraries with others that come from binaries.
fn mixed(session: &Session) {
    println!("[mixed inputs]");
    let main = object(session, MAIN, Some("-DMIXED"));
    let helper = object(session, HELPER, Some("-DFACTOR=4"));
    let (Some(old_main), Some(old_helper)) = (
        reloaded(session, "main", main),
        reloaded(session, "helper", helper),
    ) else {
        return release(&[main, helper]);
    };
    session.state("old main", old_main);
    for (label, inputs) in [
        ("both old", [old_main, old_helper]),
        ("old main", [old_main, helper]),
        ("old helper", [main, old_helper]),
        ("helper first", [old_helper, main]),
    ] {
        if let Some(linked) = link(session, label, None, &inputs) {
            facts(session, label, linked, &["zulu"]);
            release(&[linked]);
        }
    }
    for helper in [helper, old_helper] {
        let Some(library) = link(session, "library", Some("-create-library"), &[helper]) else {
            continue;
        };
        let old_library = reloaded(session, "library", library);
        for (label, input) in [("library", Some(library)), ("old library", old_library)] {
            let linked = input.and_then(|input| link(session, label, None, &[old_main, input]));
            if let Some(linked) = linked {
                facts(session, label, linked, &["zulu"]);
                release(&[linked]);
            }
            release(&Vec::from_iter(input));
        }
    }
    release(&[main, helper, old_main, old_helper]);
}

/// Inputs that change or go while their results are used.
fn lifetimes(session: &Session) {
    println!("[an input compiled again]");
    let program = object(session, ALONE, Some("-DVALUE=1"));
    let first = link(session, "first", None, &[program]);
    let code = cl::compile(program, "-DVALUE=2", &[]);
    println!("compile again: code {code}");
    let second = link(session, "second", None, &[program]);
    for (label, linked) in [("first", first), ("second", second)] {
        let Some(linked) = linked else { continue };
        session.try_kernel(label, linked, "alone");
        release(&[linked]);
    }
    println!("[inputs released first]");
    let other = object(session, ALONE, Some("-DVALUE=3"));
    let linked = link(session, "early", Some(""), &[other]);
    release(&[other, program]);
    if let Some(linked) = linked {
        facts(session, "early", linked, &["alone"]);
        let (kernel, code) = cl::kernel(linked, "alone");
        println!("kernel: code {code}");
        release(&[linked]);
        if !kernel.is_null() {
            println!("outlives: program {}", program_references(linked));
            session.print_run("outlives", kernel);
            println!("release kernel: code {}", cl::release_kernel(kernel));
        }
    }
    println!("[the same once more]");
    for round in 0..3 {
        let program = object(session, ALONE, Some("-DVALUE=1"));
        if let Some(linked) = link(session, "once more", None, &[program]) {
            session.try_kernel(&format!("round {round}"), linked, "alone");
            release(&[linked]);
        }
        release(&[program]);
    }
    println!("context {}", context_references(session.context));
}

/// Each state of a program with each function that changes it.
fn changes(session: &Session) {
    println!("[compiled, then built]");
    for (first, second) in [("-DVALUE=5", "-DVALUE=5"), ("-DVALUE=5", "-DVALUE=6")] {
        let program = object(session, ALONE, Some(first));
        println!("build {second}: code {}", cl::build(program, Some(second)));
        session.state("built", program);
        session.try_kernel("built", program, "alone");
        println!("compile: code {}", cl::compile(program, "-DVALUE=7", &[]));
        session.state("compiled again", program);
        if let Some(linked) = link(session, "of it", None, &[program]) {
            session.try_kernel("of it", linked, "alone");
            release(&[linked]);
        }
        release(&[program]);
    }
    println!("[built, then compiled]");
    let program = session.program(ALONE);
    println!("build: code {}", cl::build(program, Some("-DVALUE=8")));
    if let Some(linked) = link(session, "an executable as input", None, &[program]) {
        session.try_kernel("an executable as input", linked, "alone");
        release(&[linked]);
    }
    println!("compile: code {}", cl::compile(program, "-DVALUE=9", &[]));
    session.state("compiled", program);
    session.try_kernel("compiled", program, "alone");
    let linked = link(session, "of it", None, &[program]);
    println!(
        "build again: code {}",
        cl::build(program, Some("-DVALUE=8"))
    );
    session.state("built again", program);
    session.try_kernel("built again", program, "alone");
    if let Some(linked) = linked {
        session.state("of it", linked);
        session.try_kernel("of it", linked, "alone");
        println!("[a link result, linked and compiled]");
        if let Some(again) = link(session, "linked again", None, &[linked]) {
            session.state("linked again", again);
            session.try_kernel("linked again", again, "alone");
            release(&[again]);
        }
        if let Some(library) = link(session, "as library", Some("-create-library"), &[linked]) {
            session.state("as library", library);
            release(&[library]);
        }
        println!("compile: code {}", cl::compile(linked, "", &[]));
        session.state("compiled", linked);
        session.try_kernel("compiled", linked, "alone");
        release(&[linked]);
    }
    release(&[program]);
    println!("[a link result, built]");
    let program = object(session, ALONE, Some("-DVALUE=10"));
    match link(session, "to be built", None, &[program]) {
        Some(linked) if session.builds_link_results() => {
            for options in [Some(""), Some("-DX"), None] {
                println!("build {options:?}: code {}", cl::build(linked, options));
                session.state("built", linked);
                session.try_kernel("built", linked, "alone");
            }
            release(&[linked]);
        }
        linked => release(&Vec::from_iter(linked)),
    }
    println!("[a link result, changed in vain]");
    for (label, change) in FAILING {
        let Some(linked) = link(session, label, None, &[program]) else {
            continue;
        };
        println!("{label}: code {}", change(linked));
        program_facts(session, linked, Asking::Known);
        session.try_kernel(label, linked, "alone");
        release(&Vec::from_iter(link(session, label, None, &[linked])));
        release(&[linked]);
    }
    println!("[a library, built]");
    match link(session, "library", Some("-create-library"), &[program]) {
        // Its log is not asked for: Intel's CPU runtime ends the process.
        Some(library) if session.builds_link_results() => {
            println!("build: code {}", cl::build(library, None));
            session.try_kernel("built", library, "alone");
            if let Some(linked) = link(session, "of it", None, &[library]) {
                session.try_kernel("of it", linked, "alone");
                release(&[linked]);
            }
            release(&[library]);
        }
        library => release(&Vec::from_iter(library)),
    }
    release(&[program]);
}

type Change = fn(Handle) -> cl_int;

const FAILING: [(&str, Change); 2] = [
    ("built with a wrong option", |program| {
        cl::build(program, Some("-wrong-option"))
    }),
    ("compiled", |program| cl::compile(program, "", &[])),
];

pub fn section(session: &Session) -> Result<(), String> {
    results(session);
    mixed(session);
    lifetimes(session);
    changes(session);
    Ok(())
}
