//! Compiles and links that fail, and those with a callback.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use opencl_sys::*;

use crate::cl::{self, Handle, Report};
use crate::queries::{build_info, number, program_references};
use crate::session::Session;

const MAIN: &str = "
#ifdef FAIL
#error told to fail
#endif
uint helper(uint x);
__kernel void linked(__global uint *out) { out[get_global_id(0)] = helper((uint)get_global_id(0)); }
";

const HELPER: &str = "
uint helper(uint x) { return x * 7 + 2; }
";

const ALONE: &str = "
__kernel void alone(__global uint *out) { out[get_global_id(0)] = 4; }
";

/// What is passed as user data.
struct Record<'a> {
    session: &'a Session,
    /// The program that is compiled; NULL for a link, whose result is not known yet.
    program: Handle,
    caller: ThreadId,
    seen: Mutex<Option<(usize, Vec<String>)>>,
    called: Condvar,
}

unsafe extern "C" fn notify(program: Handle, data: *mut c_void) {
    // SAFETY: the record outlives the call: `report` waits for it.
    let record = unsafe { &*data.cast::<Record>() };
    let caller = thread::current().id() == record.caller;
    let mut lines = vec![format!(
        "called on {} thread, NULL {}",
        if caller { "the caller's" } else { "another" },
        program.is_null()
    )];
    if !record.program.is_null() {
        lines.push(format!("the program itself {}", program == record.program));
    }
    if !program.is_null() {
        let device = record.session.device();
        let status = number(build_info(program, device, CL_PROGRAM_BUILD_STATUS));
        let kind = number(build_info(program, device, CL_PROGRAM_BINARY_TYPE));
        lines.push(format!("status {status} type {kind}"));
        lines.push(format!("references {}", program_references(program)));
        if status == "0" {
            let (kernel, code) = cl::kernel(program, "linked");
            lines.push(format!("kernel code {code}"));
            if !kernel.is_null() {
                cl::release_kernel(kernel);
            }
        }
    }
    *record.seen.lock().expect("no panic above") = Some((program as usize, lines));
    record.called.notify_all();
}

/// Makes a call with a callback and prints what that saw; `call` gives the program it is about and the code.
fn report(
    session: &Session,
    label: &str,
    program: Handle,
    call: impl FnOnce(Report) -> (Handle, cl_int),
) -> (Handle, cl_int) {
    let record = Record {
        session,
        program,
        caller: thread::current().id(),
        seen: Mutex::new(None),
        called: Condvar::new(),
    };
    let (result, code) = call((Some(notify), ptr::from_ref(&record).cast_mut().cast()));
    println!("{label}: code {code} NULL {}", result.is_null());
    // Some drivers report an error without calling; others call later from another thread.
    let patience = match code {
        CL_SUCCESS => Duration::from_secs(60),
        _ => Duration::from_millis(300),
    };
    let seen = record.seen.lock().expect("the callback does not panic");
    let waited = record
        .called
        .wait_timeout_while(seen, patience, |seen| seen.is_none());
    let (seen, _) = waited.expect("the callback does not panic");
    match &*seen {
        None => println!("{label}: not called"),
        Some((program, lines)) => {
            println!("{label}: about the result {}", *program == result as usize);
            for line in lines {
                println!("{label}: {line}");
            }
        }
    }
    (result, code)
}

fn compile(session: &Session, label: &str, program: Handle, options: &str) {
    report(session, label, program, |report| {
        let code = cl::compile_for(program, &[], Some(options), &[], report);
        (program, code)
    });
}

fn link(session: &Session, label: &str, options: &str, inputs: &[Handle]) -> (Handle, cl_int) {
    report(session, label, ptr::null_mut(), |report| {
        cl::link_for(session.context, &[], Some(options), inputs, report)
    })
}

fn release(programs: &[Handle]) {
    for program in programs.iter().filter(|program| !program.is_null()) {
        println!("release: code {}", cl::release_program(*program));
    }
}

/// Not all of what a failed link gives can be asked much.
fn status(session: &Session, label: &str, program: Handle) {
    if !program.is_null() {
        let status = build_info(program, session.device(), CL_PROGRAM_BUILD_STATUS);
        println!("{label}: status {}", number(status));
    }
}

pub fn callbacks(session: &Session) -> Result<(), String> {
    println!("[success]");
    let (main, helper) = (session.program(MAIN), session.program(HELPER));
    compile(session, "main", main, "-DA");
    compile(session, "helper", helper, "");
    for label in ["link", "link again"] {
        let (linked, _) = link(session, label, "", &[main, helper]);
        session.state(label, linked);
        session.try_kernel(label, linked, "linked");
        release(&[linked]);
    }
    let (library, _) = link(session, "library", "-create-library", &[helper]);
    session.state("library", library);
    release(&[library]);
    println!("[failure]");
    compile(session, "main fails", main, "-DFAIL");
    status(session, "main fails", main);
    compile(session, "main again", main, "-DA");
    compile(session, "invalid option", helper, "-bad-option");
    status(session, "invalid option", helper);
    for (label, options, inputs) in [
        ("unresolved", "", vec![main]),
        ("invalid option", "-bad-option", vec![main, helper]),
    ] {
        let (linked, _) = link(session, label, options, &inputs);
        status(session, label, linked);
        release(&[linked]);
    }
    let raw = session.program(ALONE);
    let (linked, _) = link(session, "never compiled", "", &[raw]);
    status(session, "never compiled", linked);
    release(&[linked]);
    println!("[no function but user data]");
    let mut data = 0_u32;
    let data: *mut c_void = ptr::from_mut(&mut data).cast();
    let code = cl::compile_for(raw, &[], Some(""), &[], (None, data));
    println!("compile: code {code}");
    let (linked, code) = cl::link_for(session.context, &[], None, &[helper], (None, data));
    println!("link: code {code} NULL {}", linked.is_null());
    release(&[linked, raw, main, helper]);
    Ok(())
}

pub fn failing(session: &Session) -> Result<(), String> {
    let main = session.program(MAIN);
    for round in 0..2 {
        for options in ["-DFAIL", "-bad-option", "-DOK", "-DFAIL"] {
            let code = cl::compile(main, options, &[]);
            println!("round {round}: compile {options}: code {code}");
            status(session, "compile", main);
        }
    }
    println!("compile: code {}", cl::compile(main, "-DOK", &[]));
    let helper = session.program(HELPER);
    println!("compile: code {}", cl::compile(helper, "", &[]));
    let raw = session.program(ALONE);
    for round in 0..2 {
        for (label, options, inputs) in [
            ("unresolved", "", vec![main]),
            ("defined twice", "", vec![main, helper, helper]),
            ("never compiled", "", vec![raw]),
            ("one never compiled", "", vec![main, raw]),
            ("invalid option", "-bad-option", vec![main, helper]),
            ("no inputs", "", vec![]),
            ("good", "", vec![main, helper]),
        ] {
            if label == "defined twice" && !session.links_one_input_twice() {
                continue;
            }
            let (linked, code) = cl::link(session.context, options, &inputs);
            println!(
                "round {round}: {label}: code {code} NULL {}",
                linked.is_null()
            );
            status(session, label, linked);
            if code == 0 && label == "good" {
                session.try_kernel(label, linked, "linked");
            }
            release(&[linked]);
        }
    }
    println!("[no place for the error code]");
    let inputs = [main, helper];
    let linked = cl::call!(clLinkProgram(
        session.context,
        0,
        ptr::null(),
        ptr::null(),
        2,
        inputs.as_ptr(),
        None,
        ptr::null_mut(),
        ptr::null_mut(),
    ));
    println!("link: NULL {}", linked.is_null());
    session.try_kernel("no place", linked, "linked");
    release(&[linked, main, helper, raw]);
    Ok(())
}
