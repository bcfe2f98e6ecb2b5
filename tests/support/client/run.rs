//! Results of kernels.

use std::fs;

use crate::cl;
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

/// A kernel of a file, called with a result buffer only.
fn from_file(
    session: &Session,
    path: &str,
    name: &str,
    options: Option<&str>,
) -> Result<(), String> {
    let source = fs::read(path).map_err(|error| format!("{path}: {error}"))?;
    let program = session.program(&String::from_utf8_lossy(&source));
    println!("build: code {}", cl::build(program, options));
    session.state("built", program);
    session.try_kernel("run", program, name);
    println!("release: code {}", cl::release_program(program));
    Ok(())
}

pub fn section(session: &Session, arguments: &[String]) -> Result<(), String> {
    let options = value(arguments, "--options");
    if let Some(path) = value(arguments, "--source") {
        let name = value(arguments, "--kernel").ok_or("--source needs --kernel")?;
        return from_file(session, path, name, options);
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
