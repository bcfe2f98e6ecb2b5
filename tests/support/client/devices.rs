//! Programs for several devices, and several contexts.

use std::collections::BTreeSet;
use std::time::Duration;
use std::{ptr, thread};

use opencl_sys::*;

use crate::cl::{self, Handle, call};
use crate::facts::{Asking, binaries, program_facts};
use crate::queries::{ask, build_info, context_references, number, program_info};
use crate::session::{Session, Value};

const SOURCE: &str = "
#ifdef FAIL
#error told to fail
#endif
#ifndef VALUE
#define VALUE 1
#endif
__kernel void value(__global uint *out) { out[get_global_id(0)] = VALUE + (uint)get_global_id(0); }
__kernel void other(__global uint *out) { out[get_global_id(0)] = 2 * VALUE; }
";

/// Runs a kernel on each of these devices.
fn run(session: &Session, label: &str, program: Handle, devices: &[Handle]) {
    let before = context_references(session.context);
    let (kernel, code) = cl::kernel(program, "value");
    println!("{label}: kernel code {code}");
    if kernel.is_null() {
        return;
    }
    for device in devices {
        let index = session.devices.iter().position(|known| known == device);
        let mut code = 1;
        let queue = call!(clCreateCommandQueue(session.context, *device, 0, &mut code));
        match session.launch(queue, kernel, &[Value::Out(16)]) {
            Ok(words) => println!("{label}: on {index:?} {words:?}"),
            Err(code) => println!("{label}: on {index:?} code {code}"),
        }
        call!(clReleaseCommandQueue(queue));
    }
    cl::release_kernel(kernel);
    session.settle_context(&before);
}

fn build(session: &Session, label: &str, program: Handle, devices: &[Handle], options: &str) {
    let code = cl::build_for(program, devices, Some(options), cl::NO_REPORT);
    println!("{label}: build {options}: code {code}");
    session.state(label, program);
}

fn release(program: Handle) {
    println!("release: code {}", cl::release_program(program));
}

/// How many devices have a binary, and what becomes of a program that is made from them.
fn from_binaries(session: &Session, label: &str, program: Handle, devices: &[Handle]) {
    let Some(binaries) = binaries(session, program) else {
        return;
    };
    let binaries: Vec<Vec<u8>> = binaries
        .into_iter()
        .filter(|binary| !binary.is_empty())
        .collect();
    if binaries.len() != devices.len() {
        println!(
            "{label}: {} binaries for {} devices",
            binaries.len(),
            devices.len()
        );
        return;
    }
    let (loaded, status, code) = cl::program_from_binaries(session.context, devices, &binaries);
    println!("{label}: from binaries {status:?} code {code}");
    if !loaded.is_null() {
        build(session, label, loaded, devices, "-DVALUE=1");
        let count = number(program_info(loaded, CL_PROGRAM_NUM_DEVICES));
        println!("{label}: devices {count}");
        run(session, label, loaded, devices);
        release(loaded);
    }
}

/// One call for each list of devices, on a program of its own.
fn at_once(session: &Session) {
    let all = &session.devices[..];
    let reversed: Vec<Handle> = all.iter().rev().copied().collect();
    let twice = [all[0], all[0]];
    for round in 0..2 {
        for (label, list, built) in [
            ("NULL", &[][..], all),
            ("all", all, all),
            ("reversed", &reversed, all),
            ("first", &all[..1], &all[..1]),
            ("last", &reversed[..1], &reversed[..1]),
            ("twice the first", &twice, &all[..1]),
        ] {
            println!("[{label}, round {round}]");
            let program = session.program(SOURCE);
            build(session, label, program, list, "-DVALUE=1");
            program_facts(session, program, Asking::Known);
            run(session, label, program, built);
            if round == 1 {
                from_binaries(session, label, program, built);
            }
            release(program);
        }
    }
}

/// One program built for one device after another.
fn in_turn(session: &Session) {
    let (first, last) = (
        &session.devices[..1],
        &session.devices[session.devices.len() - 1..],
    );
    for (label, options) in [
        ("same options", ["-DVALUE=1"; 2]),
        ("other options", ["-DVALUE=2", "-DVALUE=3"]),
    ] {
        println!("[in turn, {label}]");
        let program = session.program(SOURCE);
        build(session, "first", program, first, options[0]);
        run(session, "first", program, first);
        build(session, "last", program, last, options[1]);
        run(session, "last", program, last);
        if session.keeps_devices_apart() {
            run(session, "both", program, &session.devices);
        }
        binaries(session, program);
        build(session, "first again", program, first, options[0]);
        run(session, "first again", program, first);
        build(session, "all", program, &[], options[1]);
        run(session, "all", program, &session.devices);
        binaries(session, program);
        build(session, "first at last", program, first, options[0]);
        run(session, "first at last", program, first);
        release(program);
    }
    println!("[one live kernel]");
    let program = session.program(SOURCE);
    build(session, "first", program, first, "-DVALUE=4");
    let (kernel, code) = cl::kernel(program, "value");
    println!("kernel: code {code}");
    build(session, "last", program, last, "-DVALUE=4");
    session.print_run("live kernel", kernel);
    cl::release_kernel(kernel);
    build(session, "last again", program, last, "-DVALUE=4");
    run(session, "last again", program, last);
    release(program);
    println!("[one fails]");
    let program = session.program(SOURCE);
    build(session, "first", program, first, "-DVALUE=5");
    build(session, "last fails", program, last, "-DVALUE=5 -DFAIL");
    if session.keeps_devices_apart() {
        run(session, "last fails", program, first);
    }
    build(session, "all", program, &[], "-DVALUE=5");
    release(program);
}

fn links(session: &Session) {
    println!("[compile and link]");
    let all = &session.devices[..];
    let program = session.program(SOURCE);
    let code = cl::compile_for(program, all, Some("-DVALUE=6"), &[], cl::NO_REPORT);
    println!("compile: code {code}");
    session.state("object", program);
    let lists = [
        ("NULL", &[][..], all),
        ("all", all, all),
        ("first", &all[..1], &all[..1]),
    ];
    for (label, list, built) in lists {
        if label == "first" && !session.links_for_some(list) {
            continue;
        }
        let inputs = [program];
        let (linked, code) = cl::link_for(session.context, list, Some(""), &inputs, cl::NO_REPORT);
        println!("{label}: link code {code}");
        if code == 0 {
            program_facts(session, linked, Asking::Known);
            run(session, label, linked, built);
            release(linked);
        }
    }
    release(program);
    println!("[compile and link for one]");
    let program = session.program(SOURCE);
    let first = &all[..1];
    let code = cl::compile_for(program, first, Some("-DVALUE=7"), &[], cl::NO_REPORT);
    println!("compile: code {code}");
    session.state("object", program);
    let (linked, code) = cl::link_for(session.context, first, None, &[program], cl::NO_REPORT);
    println!("link: code {code}");
    if code == 0 {
        program_facts(session, linked, Asking::Known);
        run(session, "one", linked, first);
        release(linked);
    }
    release(program);
}

/// A device of another context, and lists that do not fit.
fn wrong(session: &Session) {
    println!("[wrong lists]");
    let program = session.program(SOURCE);
    for (label, count, devices) in [
        ("no list but a count", 1, ptr::null()),
        ("a list but no count", 0, session.devices.as_ptr()),
    ] {
        let (none, data) = (None, ptr::null_mut());
        let code = call!(clBuildProgram(
            program,
            count,
            devices,
            ptr::null(),
            none,
            data
        ));
        println!("{label}: code {code}");
        session.state(label, program);
    }
    release(program);
}

pub fn section(session: &Session) -> Result<(), String> {
    println!("{} devices", session.devices.len());
    at_once(session);
    in_turn(session);
    links(session);
    wrong(session);
    println!("context {}", context_references(session.context));
    Ok(())
}

/// Contexts of one device each, and of all.
pub fn contexts(session: &Session) -> Result<(), String> {
    for round in 0..2 {
        let mut sessions = Vec::new();
        for devices in [
            &session.devices[..1],
            &session.devices[..],
            &session.devices[..1],
        ] {
            sessions.push(session.another(devices.to_vec())?);
        }
        let mut programs = Vec::new();
        for (index, session) in sessions.iter().enumerate() {
            println!("[context {index}, round {round}]");
            let program = session.program(SOURCE);
            build(session, "here", program, &[], "-DVALUE=8");
            program_facts(session, program, Asking::Known);
            run(session, "here", program, &session.devices);
            programs.push(program);
        }
        println!("[over contexts]");
        let object = sessions[0].program(SOURCE);
        println!("compile: code {}", cl::compile(object, "", &[]));
        let (linked, code) = cl::link(sessions[2].context, "", &[object]);
        println!(
            "link in another context: code {code} NULL {}",
            linked.is_null()
        );
        if !linked.is_null() {
            release(linked);
        }
        release(object);
        for (session, program) in sessions.iter().zip(programs).rev() {
            run(session, "in the end", program, &session.devices);
            release(program);
            println!("context {}", context_references(session.context));
        }
    }
    Ok(())
}

/// A program that is built for one device, and then for the other by another thread: each status that the first has meanwhile, and
/// the answer for a device that it has not.
pub fn one_by_one(session: &Session) -> Result<(), String> {
    let program = session.program(SOURCE);
    let [first, second] = session.devices[..] else {
        return Err("two devices are wanted".to_owned());
    };
    let build = |device| cl::build_for(program, &[device], Some("-DVALUE=9"), cl::NO_REPORT);
    println!("build for the first: {}", build(first));
    let (mut statuses, mut others) = (BTreeSet::new(), BTreeSet::new());
    let (program_number, second_number) = (program as usize, second as usize);
    let other = thread::spawn(move || {
        let device = &[second_number as Handle];
        let program = program_number as Handle;
        cl::build_for(program, device, Some("-DVALUE=9"), cl::NO_REPORT)
    });
    let status = |device| build_info(program, device, CL_PROGRAM_BUILD_STATUS);
    loop {
        statuses.insert(number(status(first)));
        others.insert(number(status(session.platform)));
        if other.is_finished() {
            break;
        }
        thread::sleep(Duration::from_millis(1));
    }
    println!(
        "build for the second: {:?}",
        other.join().expect("no panic")
    );
    println!("the first has {statuses:?}, another device {others:?}");
    release(program);
    Ok(())
}

/// Contexts of parts of a device.
pub fn parts(session: &Session) -> Result<(), String> {
    let root = session.device();
    let Some(subs) = session.parts() else {
        return Ok(());
    };
    let last = subs[subs.len() - 1];
    for round in 0..2 {
        for (label, devices) in [
            ("root", vec![root]),
            ("one part", vec![subs[0]]),
            ("another part", vec![last]),
            ("two parts", vec![subs[0], last]),
            ("root and part", vec![root, subs[0]]),
        ] {
            println!("[{label}, round {round}]");
            let session = session.another(devices)?;
            let program = session.program(SOURCE);
            build(&session, label, program, &[], "-DVALUE=9");
            program_facts(&session, program, Asking::Known);
            run(&session, label, program, &session.devices);
            release(program);
            for one in 0..session.devices.len() {
                let list = &session.devices[one..=one];
                let program = session.program(SOURCE);
                build(&session, label, program, list, "-DVALUE=9");
                binaries(&session, program);
                run(&session, label, program, list);
                release(program);
            }
        }
        println!("[a part that is not in the context]");
        let program = session.program(SOURCE);
        let code = cl::build_for(program, &subs[..1], Some("-DVALUE=9"), cl::NO_REPORT);
        println!("build: code {code}");
        release(program);
    }
    let parent = ask(&|size, value, size_ret| {
        call!(clGetDeviceInfo(
            subs[0],
            CL_DEVICE_REFERENCE_COUNT,
            size,
            value,
            size_ret
        ))
    });
    println!("references of a part: {}", number(parent));
    for sub in &subs {
        call!(clReleaseDevice(*sub));
    }
    Ok(())
}

/// Programs that are built for a part of a device, which is released before anything else is asked of them.
pub fn released_parts(session: &Session) -> Result<(), String> {
    for label in ["by a query", "by a build over a kernel", "by its handle"] {
        println!("[{label}]");
        let Some(subs) = session.parts() else {
            return Ok(());
        };
        let program = session.program(SOURCE);
        build(session, label, program, &subs[..1], "-DVALUE=10");
        let (kernel, code) = cl::kernel(program, "value");
        println!("kernel: code {code}");
        for sub in &subs {
            call!(clReleaseDevice(*sub));
        }
        match label {
            "by a query" => {
                let unknown = ask(&|size, value, size_ret| {
                    call!(clGetKernelArgInfo(kernel, 0, 0, size, value, size_ret))
                });
                println!("unknown: {unknown:?}");
            }
            "by its handle" => {
                let status = build_info(program, subs[0], CL_PROGRAM_BUILD_STATUS);
                println!("status: {}", number(status));
            }
            _ => build(session, "over it", program, &[], "-DVALUE=11"),
        }
        cl::release_kernel(kernel);
        run(session, label, program, &session.devices);
        build(session, label, program, &[], "-DVALUE=11");
        run(session, label, program, &session.devices);
        release(program);
    }
    Ok(())
}
