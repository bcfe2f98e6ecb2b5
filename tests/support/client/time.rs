//! How long a program takes from its source to its kernels and to its first result.

use std::time::Instant;

use crate::cl;
use crate::session::{Session, Value};

/// Functions that every kernel could call, as programs for rendering or cryptography have them: most of what the compiler
/// reads is theirs, most of what it makes is not.
fn helper(number: usize) -> String {
    let kind = ["float", "float2", "float4"][number % 3];
    format!(
        "static {kind} helper{number}({kind} x, {kind} y) {{\n    \
         {kind} a = fma(x, ({kind})({number}.5f), y), b = mix(x, y, ({kind})(0.{number}f));\n    \
         a = clamp(a * b - x, ({kind})(-1.0f), ({kind})({number}.0f)) + fabs(y);\n    \
         return select(a, b, isless(a, b)) + smoothstep(x, y, a) * ({kind})({number}.25f);\n}}\n"
    )
}

/// A kernel that calls three of them.
fn kernel(number: usize) -> String {
    let [one, two, four] = [3 * number, 3 * number + 1, 3 * number + 2];
    format!(
        "__kernel void kernel{number}(__global uint *out) {{\n    \
         float x = (float)get_global_id(0);\n    \
         float4 v = helper{four}((float4)(x), (float4)({number}.0f));\n    \
         out[get_global_id(0)] = as_uint(helper{one}(x, v.x) + helper{two}(v.xy, v.zw).x);\n}}\n"
    )
}

pub fn section(session: &Session, arguments: &[String]) -> Result<(), String> {
    let (mut count, mut helpers) = (10, 600);
    for pair in arguments.chunks(2) {
        let number = pair.get(1).and_then(|text| text.parse().ok());
        let number: usize = number.ok_or("time takes --kernels N and --helpers N")?;
        match pair[0].as_str() {
            "--kernels" => count = number,
            "--helpers" => helpers = number,
            _ => return Err("time takes --kernels N and --helpers N".to_owned()),
        }
    }
    let helpers = helpers.max(3 * count);
    let source: String = (0..helpers)
        .map(helper)
        .chain((0..count).map(kernel))
        .collect();

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
        .map(|number| cl::kernel(program, &format!("kernel{number}")).0)
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
