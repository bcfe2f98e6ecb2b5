//! How long a program takes from its source to its kernels and to its first result.

use std::fmt::Write;
use std::time::Instant;

use crate::cl;
use crate::session::{Session, Value};

/// A kernel that takes a compiler a while: one loop over mathematical functions for each step.
fn kernel(number: usize, steps: usize) -> String {
    let mut body = String::new();
    for step in 0..steps {
        let constant = number * 7 + step;
        let _ = write!(
            body,
            "    for (int k = 0; k < {}; k++) {{\n\
             \x20       x = sin(x * {constant}.25f) + cos(y + (float)k);\n\
             \x20       y = exp(-fabs(y)) * pow(fabs(x) + 1.0f, 0.{constant}1f) + log(fabs(x) + {step}.5f);\n\
             \x20       if (y > {constant}.0f) x = atan2(y, x) + tan(y * 0.125f);\n\
             \x20   }}\n",
            4 + step % 6
        );
    }
    format!(
        "__kernel void heavy{number}(__global uint *out) {{\n    \
         float x = (float)get_global_id(0), y = {number}.0f;\n{body}    \
         out[get_global_id(0)] = as_uint(x + y);\n}}\n"
    )
}

pub fn section(session: &Session, arguments: &[String]) -> Result<(), String> {
    let (mut count, mut steps) = (10, 6);
    for pair in arguments.chunks(2) {
        let number = pair.get(1).and_then(|text| text.parse().ok());
        let number: usize = number.ok_or("time takes --kernels N and --steps N")?;
        match pair[0].as_str() {
            "--kernels" => count = number,
            "--steps" => steps = number,
            _ => return Err("time takes --kernels N and --steps N".to_owned()),
        }
    }
    let source: String = (0..count).map(|number| kernel(number, steps)).collect();

    let start = Instant::now();
    let (program, code) = cl::program(session.context, &source);
    let build = if code == 0 {
        cl::build(program, None)
    } else {
        code
    };
    if build != 0 {
        return Err(format!("clBuildProgram: {build}"));
    }
    let kernels: Vec<_> = (0..count)
        .map(|number| cl::kernel(program, &format!("heavy{number}")).0)
        .collect();
    let built = start.elapsed();

    let start = Instant::now();
    let first = kernels
        .first()
        .map(|kernel| session.launch(session.queue, *kernel, &[Value::Out(16)]));
    let ran = start.elapsed();
    if let Some(Err(code)) = first {
        return Err(format!("first run: {code}"));
    }
    println!(
        "kernels={count} build_ns={} first_run_ns={}",
        built.as_nanos(),
        ran.as_nanos()
    );
    for kernel in kernels {
        cl::release_kernel(kernel);
    }
    cl::release_program(program);
    Ok(())
}
