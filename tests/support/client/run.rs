//! Results of kernels.

use std::fs;

use opencl_sys::*;

use crate::cl::{self, Handle};
use crate::queries::program_info;
use crate::session::{Session, Value};

const SOURCE: &str = r#"
__constant uint primes[8] = { 2, 3, 5, 7, 11, 13, 17, 19 };

static uint mix(uint x) { x ^= x << 13; x ^= x >> 17; x ^= x << 5; return x; }

__kernel void from_table(__global uint *out) {
    size_t i = get_global_id(0);
    out[i] = primes[i & 7] * (uint)(i + 1);
}

__kernel void rotated(__global uint *out, __local uint *cells, uint step) {
    uint i = (uint)get_local_id(0);
    uint n = (uint)get_local_size(0);
    cells[i] = mix((uint)get_global_id(0) + 1);
    barrier(CLK_LOCAL_MEM_FENCE);
    out[get_global_id(0)] = cells[(i + step) % n];
}

__kernel void scaled(__global uint *out, __global const uint *in) {
    size_t i = get_global_id(0);
    float x = (float)in[i] * 0.5f;
    out[i] = as_uint(x * x);
}

__kernel void summed(__global uint *out, __global const uint *in) {
    __local uint sums[16];
    uint i = (uint)get_local_id(0);
    sums[i & 15] = in[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    uint sum = 0;
    for (uint k = 0; k <= (i & 15); k++)
        sum += sums[k];
    out[get_global_id(0)] = sum;
}
"#;

fn value<'a>(arguments: &'a [String], name: &str) -> Option<&'a str> {
    let position = arguments.iter().position(|argument| argument == name)?;
    arguments.get(position + 1).map(String::as_str)
}

/// Every value of an argument that may stand several times.
fn values<'a>(arguments: &'a [String], name: &str) -> Vec<&'a str> {
    let pairs = arguments.iter().zip(arguments.iter().skip(1));
    pairs
        .filter(|(argument, _)| *argument == name)
        .map(|(_, value)| value.as_str())
        .collect()
}

fn read(path: &str) -> Result<String, String> {
    let text = fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// Whether the driver shows the source that it was given.
fn print_source(program: Handle, source: &str) {
    let shown = program_info(program, CL_PROGRAM_SOURCE).unwrap_or_default();
    let same = shown.strip_suffix(&[0]) == Some(source.as_bytes());
    println!("source: {}", if same { "as given" } else { "another" });
}

/// A kernel of a file, called with a result buffer only.
fn from_file(
    session: &Session,
    path: &str,
    name: &str,
    options: Option<&str>,
) -> Result<(), String> {
    let source = read(path)?;
    let program = session.program(&source);
    // A library of the program's own, which says nothing of the driver.
    let opens = std::env::var_os("CLIENT_OPENS");
    // SAFETY: a library of the tests, without constructors.
    let opened = opens.map(|library| unsafe { libloading::Library::new(library) });
    opened.transpose().map_err(|error| error.to_string())?;
    println!("build: code {}", cl::build(program, options));
    session.state("built", program);
    print_source(program, &source);
    session.try_kernel("run", program, name);
    println!("release: code {}", cl::release_program(program));
    Ok(())
}

/// A program that is compiled of files, with files as embedded headers, and linked.
pub fn linked(session: &Session, arguments: &[String]) -> Result<(), String> {
    let options = value(arguments, "--options").unwrap_or("");
    let name = value(arguments, "--kernel").ok_or("--kernel is missing")?;
    let mut headers = Vec::new();
    for pair in values(arguments, "--header") {
        let (name, path) = pair.split_once('=').ok_or("--header needs NAME=FILE")?;
        headers.push((name, session.program(&read(path)?)));
    }
    let mut objects = Vec::new();
    for path in values(arguments, "--source") {
        let program = session.program(&read(path)?);
        println!("compile: code {}", cl::compile(program, options, &headers));
        session.state("compiled", program);
        objects.push(program);
    }
    if let Some(edit) = value(arguments, "--between") {
        let (to, from) = edit.split_once('=').ok_or("--between needs FILE=FILE")?;
        // Where a directory is empty, a file can take its place.
        let _ = fs::remove_dir(to);
        fs::copy(from, to).map_err(|error| format!("{to}: {error}"))?;
    }
    let link_options = value(arguments, "--link-options").unwrap_or("");
    let (result, code) = cl::link(session.context, link_options, &objects);
    println!("link: code {code}");
    if code == CL_SUCCESS && !result.is_null() {
        session.try_kernel("linked", result, name);
        if arguments.iter().any(|argument| argument == "--rebuild") {
            println!("build of the linked: code {}", cl::build(result, None));
        }
        println!("release: code {}", cl::release_program(result));
    }
    for program in headers
        .into_iter()
        .map(|(_, program)| program)
        .chain(objects)
    {
        println!("release: code {}", cl::release_program(program));
    }
    Ok(())
}

pub fn section(session: &Session, arguments: &[String]) -> Result<(), String> {
    // One argument of a program can have 128 KiB at most.
    let file = value(arguments, "--options-file").map(read).transpose()?;
    let options = value(arguments, "--options").or(file.as_deref());
    if let Some(path) = value(arguments, "--source") {
        let name = value(arguments, "--kernel").ok_or("--source needs --kernel")?;
        from_file(session, path, name, options)?;
        // Then a file takes the place of another, or a link that of a link, and a new program is built.
        if let Some(edit) = value(arguments, "--then") {
            let (to, from) = edit.split_once('=').ok_or("--then needs FILE=FILE")?;
            let is_link = fs::symlink_metadata(from).is_ok_and(|metadata| metadata.is_symlink());
            let replaced = match is_link {
                true => fs::rename(from, to),
                false => fs::write(to, read(from)?),
            };
            replaced.map_err(|error| format!("{to}: {error}"))?;
            from_file(session, path, name, options)?;
        }
        return Ok(());
    }
    let program = session.program(SOURCE);
    println!("build: code {}", cl::build(program, options));
    let input: Vec<u32> = (0..16).map(|word| word * word + 3).collect();
    let launches: [(&str, &[Value]); 4] = [
        ("from_table", &[Value::Out(16)]),
        (
            "rotated",
            &[Value::Out(16), Value::Local(64), Value::Uint(3)],
        ),
        ("scaled", &[Value::Out(16), Value::In(&input)]),
        ("summed", &[Value::Out(16), Value::In(&input)]),
    ];
    for (name, values) in launches {
        let (kernel, code) = cl::kernel(program, name);
        println!("{name}: code {code}");
        if !kernel.is_null() {
            println!(
                "{name}: {:?}",
                session.launch(session.queue, kernel, values)
            );
            println!(
                "{name}: again {:?}",
                session.launch(session.queue, kernel, values)
            );
        }
        println!("{name}: release {}", cl::release_kernel(kernel));
    }
    println!("release: code {}", cl::release_program(program));
    Ok(())
}
