//! Sources whose lengths count the NUL at the end of a string, or that have a NUL elsewhere.

use std::ffi::c_char;

use opencl_sys::CL_PROGRAM_SOURCE;

use crate::cl::{self, Handle, call};
use crate::queries::{escape, program_info};
use crate::session::Session;

const FIRST: &str = "__kernel void one(__global uint *out) { out[get_global_id(0)] = 1; }\n";
const SECOND: &str = "__kernel void two(__global uint *out) { out[get_global_id(0)] = 2; }\n";
const INCLUDES: &str = "#include \"value.h\"\n__kernel void one(__global uint *out) { out[get_global_id(0)] = VALUE; }\n";
const HEADER: &str = "#define VALUE 3\n#define UNUSED";

/// A program of these strings, with the lengths of all their bytes.
fn program(session: &Session, strings: &[String]) -> Handle {
    let lengths: Vec<usize> = strings.iter().map(String::len).collect();
    let mut pointers: Vec<*const c_char> = strings
        .iter()
        .map(|string| string.as_ptr().cast())
        .collect();
    let mut code = 1;
    let program = call!(clCreateProgramWithSource(
        session.context,
        strings.len() as u32,
        pointers.as_mut_ptr(),
        lengths.as_ptr(),
        &mut code
    ));
    let shown = program_info(program, CL_PROGRAM_SOURCE).map(|source| escape(&source));
    println!("create: code {code}, source {shown:?}");
    program
}

/// `header` compiles a program with an embedded header; every other case builds one.
pub fn section(session: &Session, arguments: &[String]) -> Result<(), String> {
    let of = |strings: &[&str]| {
        let strings: Vec<String> = strings.iter().map(|string| (*string).to_owned()).collect();
        program(session, &strings)
    };
    let counted = |string: &str| format!("{string}\0");
    let program = match arguments.first().map(String::as_str) {
        Some("none") => of(&[FIRST, SECOND]),
        Some("last") => of(&[FIRST, &counted(SECOND)]),
        Some("only") => of(&[&counted(&format!("{FIRST}{SECOND}"))]),
        Some("padded") => of(&[FIRST, &counted(&counted(SECOND))]),
        Some("first") => of(&[&counted(FIRST), SECOND]),
        Some("within") => of(&[&format!("{}{SECOND}", counted(FIRST))]),
        Some("header") => of(&[&counted(INCLUDES)]),
        other => return Err(format!("no such case: {other:?}")),
    };
    if arguments.iter().any(|argument| argument == "header") {
        let header = of(&[&counted(HEADER)]);
        let code = cl::compile(program, "", &[("value.h", header)]);
        println!("compile: code {code}");
        let (linked, code) = cl::link(session.context, "", &[program]);
        println!("link: code {code}");
        session.try_kernel("linked", linked, "one");
    } else {
        println!("build: code {}", cl::build(program, None));
        session.try_kernel("built", program, "one");
        session.try_kernel("built", program, "two");
    }
    Ok(())
}
