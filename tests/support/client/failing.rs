//! Builds that fail.

use opencl_sys::*;

use crate::cl::{self, Handle, call};
use crate::queries::build_info;
use crate::session::Session;

const GUARDED: &str = "
#ifndef GOOD
#error not good
#endif
__kernel void good(__global uint *out) { out[get_global_id(0)] = 5; }
";

const PLAIN: &str = "
__kernel void good(__global uint *out) { out[get_global_id(0)] = 6; }
";

fn build(session: &Session, program: Handle, options: Option<&str>) {
    println!("build {options:?}: code {}", cl::build(program, options));
    session.state(&format!("{options:?}"), program);
    // The text itself names temporary files on PoCL.
    match build_info(program, session.device(), CL_PROGRAM_BUILD_LOG) {
        Ok(log) => println!("{options:?}: log present {}", log.len() > 1),
        Err(code) => println!("{options:?}: log code {code}"),
    }
    session.try_kernel(&format!("{options:?}"), program, "good");
}

pub fn section(session: &Session) -> Result<(), String> {
    println!("[an error in the source]");
    let program = session.program(GUARDED);
    build(session, program, Some("-DBAD"));
    println!("[the same program with good options]");
    // Intel's CPU runtime fails again.
    build(session, program, Some("-DGOOD"));
    println!("release: code {}", cl::release_program(program));
    println!("[good from the start]");
    let program = session.program(GUARDED);
    build(session, program, Some("-DGOOD"));
    println!("release: code {}", cl::release_program(program));
    println!("[good, then bad, then good]");
    let program = session.program(GUARDED);
    build(session, program, Some("-DGOOD"));
    build(session, program, None);
    build(session, program, Some("-DGOOD"));
    println!("release: code {}", cl::release_program(program));
    println!("[an invalid option]");
    let program = session.program(PLAIN);
    build(session, program, Some("-bad-option"));
    println!("release: code {}", cl::release_program(program));
    println!("[an invalid option after a build]");
    let program = session.program(PLAIN);
    build(session, program, Some("-DX=1"));
    build(session, program, Some("-bad-option"));
    println!("release: code {}", cl::release_program(program));
    println!("[invalid arguments]");
    let program = session.program(PLAIN);
    let (null, device) = (std::ptr::null_mut(), session.device());
    println!("no program: code {}", cl::build(null, None));
    let code = call!(clBuildProgram(
        program,
        1,
        std::ptr::null(),
        std::ptr::null(),
        None,
        null
    ));
    println!("a count without devices: code {code}");
    let code = call!(clBuildProgram(
        program,
        0,
        &device,
        std::ptr::null(),
        None,
        null
    ));
    println!("devices without a count: code {code}");
    build(session, program, None);
    println!("release: code {}", cl::release_program(program));
    println!("[no source]");
    let mut code = 1;
    let empty = call!(clCreateProgramWithSource(
        session.context,
        0,
        std::ptr::null_mut(),
        std::ptr::null(),
        &mut code,
    ));
    println!("no strings: code {code} NULL {}", empty.is_null());
    Ok(())
}
