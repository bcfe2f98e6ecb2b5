//! What calls cost that the cache hooks and has little to do in, and one that it does not hook.

use std::ptr;
use std::time::Instant;

use crate::cl::{self, Handle, call};
use crate::queries::binary;
use crate::session::Session;

/// The fastest of some batches counts: what else the machine does only adds.
const BATCHES: u32 = 20;
const CALLS: u32 = 100_000;
const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 9; }\n";

fn nanoseconds(one: impl Fn()) -> f64 {
    let batch = |_| {
        let start = Instant::now();
        for _ in 0..CALLS {
            one();
        }
        start.elapsed()
    };
    let best = (0..BATCHES).map(batch).min().unwrap_or_default();
    best.as_secs_f64() * 1e9 / f64::from(CALLS)
}

fn kernel(program: Handle) -> Result<Handle, String> {
    match cl::kernel(program, "f") {
        (kernel, 0) => Ok(kernel),
        (_, code) => Err(format!("no kernel: {code}")),
    }
}

/// Prints the nanoseconds of one clRetainKernel of a kernel whose program the application made from its own binary, and of one
/// whose program was built from source, and of one clSetKernelArg.
pub fn section(session: &Session) -> Result<(), String> {
    let program = session.program(SOURCE);
    cl::build(program, None);
    let binary = binary(program).map_err(|code| format!("no binary: {code}"))?;
    let (own, _, _) = cl::program_from_binary(session.context, session.device(), &binary);
    cl::build(own, None);
    let (unknown, known) = (kernel(own)?, kernel(program)?);
    let retain = |kernel: Handle| {
        nanoseconds(|| {
            call!(clRetainKernel(kernel));
        })
    };
    let none: Handle = ptr::null_mut();
    let set_argument = nanoseconds(|| {
        let (size, value) = (size_of::<Handle>(), ptr::from_ref(&none).cast());
        call!(clSetKernelArg(known, 0, size, value));
    });
    println!(
        "retain_ns={:.1} retain_known_ns={:.1} set_argument_ns={set_argument:.1}",
        retain(unknown),
        retain(known),
    );
    Ok(())
}
