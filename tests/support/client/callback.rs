//! Builds with a callback.

use std::ffi::c_void;
use std::ptr;
use std::sync::{Condvar, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use opencl_sys::*;

use crate::cl::{self, Handle};
use crate::queries::{build_info, number, program_references, string};
use crate::session::Session;

const SOURCE: &str = "
#ifdef FAIL
#error told to fail
#endif
__kernel void main_kernel(__global uint *out) { out[get_global_id(0)] = 11; }
";

const NESTED: &str = "
__kernel void nested(__global uint *out) { out[get_global_id(0)] = 22; }
";

/// What a callback does besides looking around.
#[derive(Clone, Copy, PartialEq)]
enum Task {
    Look,
    CreateKernel,
    BuildAnother,
    Release,
    Inspect,
}

/// What is passed as user data.
struct Record<'a> {
    session: &'a Session,
    program: Handle,
    task: Task,
    caller: ThreadId,
    lines: Mutex<Vec<String>>,
    called: Condvar,
}

unsafe extern "C" fn notify(program: Handle, data: *mut c_void) {
    // SAFETY: the record outlives the call: `build` waits for it.
    let record = unsafe { &*data.cast::<Record>() };
    let mut lines = vec![format!(
        "program {}",
        if program == record.program {
            "same"
        } else {
            "another"
        }
    )];
    let thread = thread::current().id() == record.caller;
    lines.push(format!(
        "thread {}",
        if thread { "the caller's" } else { "another" }
    ));
    let status = build_info(program, record.session.device(), CL_PROGRAM_BUILD_STATUS);
    lines.push(format!("status {}", number(status)));
    match record.task {
        Task::Look => {}
        Task::CreateKernel => {
            let (kernel, code) = cl::kernel(program, "main_kernel");
            lines.push(format!("kernel code {code}"));
            if !kernel.is_null() {
                cl::release_kernel(kernel);
            }
        }
        Task::BuildAnother => {
            let (nested, _) = cl::program(record.session.context, NESTED);
            lines.push(format!("nested build code {}", cl::build(nested, None)));
            let (kernel, code) = cl::kernel(nested, "nested");
            lines.push(format!("nested kernel code {code}"));
            if !kernel.is_null() {
                cl::release_kernel(kernel);
            }
            cl::release_program(nested);
        }
        Task::Release => lines.push(format!("release code {}", cl::release_program(program))),
        Task::Inspect => {
            let options = build_info(program, record.session.device(), CL_PROGRAM_BUILD_OPTIONS);
            lines.push(format!("options {}", string(options)));
            lines.push(format!("references {}", program_references(program)));
        }
    }
    record.lines.lock().expect("no panic above").extend(lines);
    record.called.notify_all();
}

fn build(session: &Session, label: &str, options: Option<&str>, task: Task, program: Handle) {
    let record = Record {
        session,
        program,
        task,
        caller: thread::current().id(),
        lines: Mutex::new(Vec::new()),
        called: Condvar::new(),
    };
    let data = ptr::from_ref(&record).cast_mut().cast();
    let code = cl::build_notify(program, options, Some(notify), data);
    println!("{label}: code {code}");
    // Some drivers report an error without calling; others call later from another thread.
    let patience = match code {
        CL_SUCCESS => Duration::from_secs(60),
        _ => Duration::from_millis(300),
    };
    let lines = record.lines.lock().expect("the callback does not panic");
    let waited = record
        .called
        .wait_timeout_while(lines, patience, |lines| lines.is_empty());
    let (lines, _) = waited.expect("the callback does not panic");
    if lines.is_empty() {
        println!("{label}: not called");
    }
    for line in lines.iter() {
        println!("{label}: {line}");
    }
}

pub fn section(session: &Session) -> Result<(), String> {
    println!("[success]");
    let program = session.program(SOURCE);
    build(session, "look", Some("-DA"), Task::Look, program);
    session.state("look", program);
    session.try_kernel("look", program, "main_kernel");
    build(session, "again", Some("-DA"), Task::Look, program);
    build(session, "kernel", Some("-DB"), Task::CreateKernel, program);
    session.try_kernel("kernel", program, "main_kernel");
    build(session, "nested", Some("-DC"), Task::BuildAnother, program);
    session.try_kernel("nested", program, "main_kernel");
    println!("release: code {}", cl::release_program(program));
    println!("[released inside]");
    let program = session.program(SOURCE);
    cl::call!(clRetainProgram(program));
    build(session, "release", Some("-DD"), Task::Release, program);
    session.try_kernel("release", program, "main_kernel");
    println!("release: code {}", cl::release_program(program));
    println!("[over a live kernel]");
    let program = session.program(SOURCE);
    println!("first: code {}", cl::build(program, Some("-DE")));
    let (kernel, code) = cl::kernel(program, "main_kernel");
    println!("first: kernel code {code}");
    build(session, "over", Some("-DF"), Task::Inspect, program);
    session.state("over", program);
    if !kernel.is_null() {
        cl::release_kernel(kernel);
    }
    session.try_kernel("over", program, "main_kernel");
    println!("release: code {}", cl::release_program(program));
    println!("[no function but user data]");
    let program = session.program(SOURCE);
    let mut data = 0_u32;
    let code = cl::build_notify(program, None, None, ptr::from_mut(&mut data).cast());
    println!("user data alone: code {code}");
    session.state("user data alone", program);
    println!("release: code {}", cl::release_program(program));
    println!("[failure]");
    let program = session.program(SOURCE);
    build(
        session,
        "failure",
        Some("-DFAIL"),
        Task::CreateKernel,
        program,
    );
    session.state("failure", program);
    println!("release: code {}", cl::release_program(program));
    println!("[an invalid option]");
    let program = session.program(SOURCE);
    build(session, "invalid", Some("-bad-option"), Task::Look, program);
    session.state("invalid", program);
    println!("release: code {}", cl::release_program(program));
    Ok(())
}
