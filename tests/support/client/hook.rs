//! What a call costs whose handle the cache does not know: the least that a hook does.

use std::time::Instant;

use opencl_sys::{CL_PROGRAM_BINARIES, CL_PROGRAM_BINARY_SIZES};

use crate::cl::{self, Handle, call};
use crate::queries::program_info;
use crate::session::Session;

/// The fastest of some batches counts: what else the machine does only adds.
const BATCHES: u32 = 20;
const CALLS: u32 = 100_000;
const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 9; }\n";

/// The binary of a program for one device.
fn binary(program: Handle) -> Result<Vec<u8>, i32> {
    let sizes = program_info(program, CL_PROGRAM_BINARY_SIZES)?;
    let size = sizes
        .first_chunk()
        .map_or(0, |size| usize::from_ne_bytes(*size));
    let mut binary = vec![0_u8; size];
    let mut place = binary.as_mut_ptr();
    let code = call!(clGetProgramInfo(
        program,
        CL_PROGRAM_BINARIES,
        size_of::<Handle>(),
        (&raw mut place).cast(),
        std::ptr::null_mut()
    ));
    if code == 0 { Ok(binary) } else { Err(code) }
}

/// Prints the nanoseconds of one clRetainKernel of a kernel whose program the application made from its own binary.
pub fn section(session: &Session) -> Result<(), String> {
    let program = session.program(SOURCE);
    cl::build(program, None);
    let binary = binary(program).map_err(|code| format!("no binary: {code}"))?;
    let (own, _, _) = cl::program_from_binary(session.context, session.device(), &binary);
    cl::build(own, None);
    let (kernel, code) = cl::kernel(own, "f");
    if code != 0 {
        return Err(format!("no kernel: {code}"));
    }
    let batch = |_| {
        let start = Instant::now();
        for _ in 0..CALLS {
            call!(clRetainKernel(kernel));
        }
        start.elapsed()
    };
    let best = (0..BATCHES).map(batch).min().unwrap_or_default();
    println!(
        "retain_ns={:.1}",
        best.as_secs_f64() * 1e9 / f64::from(CALLS)
    );
    Ok(())
}
