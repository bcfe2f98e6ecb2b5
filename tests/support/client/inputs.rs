//! Inputs of compiles and links that do not belong where they are used: of another context, or compiled for another device.

use std::ptr;
use std::thread;
use std::time::Duration;

use opencl_sys::*;

use crate::cl::{self, Handle, call};
use crate::session::Session;

const MAIN: &str = "
uint helper(uint x);
__kernel void value(__global uint *out, uint y) { out[get_global_id(0)] = helper(y); }
";

const HELPER: &str = "
uint helper(uint x) { return x + 7; }
__kernel void other(__global uint *out, uint more) { out[get_global_id(0)] = more; }
";

const WITH_HEADER: &str = "
#include \"inputs.h\"
__kernel void value(__global uint *out) { out[get_global_id(0)] = VALUE; }
";

fn object(session: &Session, source: &str, devices: &[Handle]) -> Handle {
    let program = session.program(source);
    let code = cl::compile_for(program, devices, Some(""), &[], cl::NO_REPORT);
    println!("compile: code {code}");
    program
}

fn link(label: &str, context: Handle, devices: &[Handle], inputs: &[Handle]) {
    let (linked, code) = cl::link_for(context, devices, Some(""), inputs, cl::NO_REPORT);
    println!("{label}: code {code} NULL {}", linked.is_null());
    if !linked.is_null() {
        cl::release_program(linked);
    }
}

/// In its own context a link succeeds; then the same inputs are linked in others.
pub fn contexts(session: &Session) -> Result<(), String> {
    let other = session.another(session.devices.clone())?;
    let objects = [MAIN, HELPER].map(|source| object(session, source, &[]));
    let all = &session.devices[..];
    link("its own", session.context, all, &objects);
    link("another", other.context, all, &objects);
    link("none", ptr::null_mut(), all, &objects);
    link("its own again", session.context, all, &objects);
    let mixed = [objects[0], object(&other, HELPER, &[])];
    link("mixed", session.context, all, &mixed);
    for (label, place) in [("its own", session), ("another", &other)] {
        let header = place.program("#define VALUE 5\n");
        let program = session.program(WITH_HEADER);
        let code = cl::compile(program, "", &[("inputs.h", header)]);
        println!("header of {label}: code {code}");
        cl::release_program(program);
        cl::release_program(header);
    }
    for program in objects.into_iter().chain([mixed[1]]) {
        cl::release_program(program);
    }
    Ok(())
}

/// Objects for one device, linked for that and for another that is alike.
fn devices(session: &Session) -> Result<(), String> {
    let [first, .., last] = session.devices[..] else {
        return Err("this needs two devices".to_owned());
    };
    for (label, device, others) in [
        ("first", first, [first, last]),
        ("last", last, [last, first]),
    ] {
        let objects = [MAIN, HELPER].map(|source| object(session, source, &[device]));
        for (index, device) in others.into_iter().enumerate() {
            link(
                &format!("{label} {index}"),
                session.context,
                &[device],
                &objects,
            );
        }
        for program in objects {
            cl::release_program(program);
        }
    }
    Ok(())
}

/// A device and a part of it.
pub fn parts(session: &Session) -> Result<(), String> {
    let root = session.device();
    let Some(subs) = session.parts() else {
        return Ok(());
    };
    devices(&session.another(vec![root, subs[0]])?)?;
    devices(&session.another(vec![subs[0], subs[1]])?)?;
    for sub in &subs {
        call!(clReleaseDevice(*sub));
    }
    Ok(())
}

const ALONE: &str = "
#ifndef VALUE
#define VALUE 0
#endif
__kernel void alone(__global uint *out) { out[get_global_id(0)] = VALUE; }
";

fn alone(session: &Session) -> Handle {
    let program = session.program(ALONE);
    println!("compile: code {}", cl::compile(program, "-DVALUE=1", &[]));
    program
}

fn run_linked(session: &Session, inputs: &[Handle]) {
    let (linked, code) = cl::link(session.context, "", inputs);
    println!("link: code {code}");
    session.try_kernel("linked", linked, "alone");
    cl::release_program(linked);
}

/// One object of two threads; HOW:
///
/// - `alone`: it is linked.
/// - `refused`: it is compiled anew by one thread, meanwhile the driver refuses another, then it is linked.
/// - `both`: it is compiled in two ways.
/// - `meanwhile`: it is compiled the other way while a link of it and another begins.
/// - `two`: it is linked with another.
pub fn threads(session: &Session, arguments: &[String]) -> Result<(), String> {
    let program = alone(session);
    let how = arguments.first().map_or("", String::as_str);
    match how {
        "alone" => run_linked(session, &[program]),
        "refused" => {
            // The second is refused while the first runs.
            let work = move |options, wait| {
                let handle = program as usize;
                move || {
                    thread::sleep(Duration::from_millis(wait));
                    cl::compile(handle as Handle, options, &[])
                }
            };
            let first = thread::spawn(work("-DVALUE=2", 0));
            let second = thread::spawn(work("-DVALUE=3", 150));
            println!("compile again: code {:?}", first.join().expect("no panic"));
            println!("meanwhile: code {:?}", second.join().expect("no panic"));
            run_linked(session, &[program]);
        }
        "both" | "meanwhile" => {
            let main = object(session, HELPER, &[]);
            if how == "both" {
                println!("compile: code {}", cl::compile(program, "-DVALUE=2", &[]));
            } else {
                let handle = program as usize;
                let other = thread::spawn(move || {
                    thread::sleep(Duration::from_millis(150));
                    cl::compile(handle as Handle, "-DVALUE=2", &[])
                });
                run_linked(session, &[main, program]);
                println!("meanwhile: code {:?}", other.join().expect("no panic"));
            }
            cl::release_program(main);
        }
        "two" => {
            let main = object(session, HELPER, &[]);
            run_linked(session, &[main, program]);
            cl::release_program(main);
        }
        _ => return Err(format!("how: '{how}'")),
    }
    cl::release_program(program);
    Ok(())
}

/// A library of N libraries, one in the other.
pub fn nested(session: &Session, arguments: &[String]) -> Result<(), String> {
    let count: u32 = arguments
        .first()
        .and_then(|count| count.parse().ok())
        .ok_or("how many?")?;
    let mut innermost = alone(session);
    for _ in 0..count {
        let (library, code) = cl::link(session.context, "-create-library", &[innermost]);
        if code != CL_SUCCESS {
            return Err(format!("link: code {code}"));
        }
        cl::release_program(innermost);
        innermost = library;
    }
    let (linked, code) = cl::link(session.context, "", &[innermost]);
    println!("link: code {code}");
    let (kernel, code) = cl::kernel(linked, "alone");
    println!("kernel: code {code}");
    // Nobody knows this query, so the driver has to be asked.
    let (none, size_ret) = (ptr::null_mut(), ptr::null_mut());
    let code = call!(clGetKernelArgInfo(kernel, 0, 0, 0, none, size_ret));
    println!("unknown query: code {code}");
    session.print_run("linked", kernel);
    cl::release_kernel(kernel);
    for program in [linked, innermost] {
        cl::release_program(program);
    }
    Ok(())
}

/// An object with an embedded header, which is linked after a file of the header's name has appeared; HOW: `linked` or not.
pub fn moved(session: &Session, arguments: &[String]) -> Result<(), String> {
    let header = session.program("#define VALUE 5\n");
    let program = session.program(WITH_HEADER);
    let code = cl::compile(program, "", &[("inputs.h", header)]);
    println!("compile: code {code}");
    if arguments.first().is_some_and(|how| how == "linked") {
        std::fs::write("inputs.h", "#define VALUE 6\n").map_err(|error| error.to_string())?;
        let (linked, code) = cl::link(session.context, "", &[program]);
        println!("link: code {code}");
        session.try_kernel("linked", linked, "value");
        cl::release_program(linked);
    }
    cl::release_program(header);
    cl::release_program(program);
    Ok(())
}
