//! Many threads that build programs at the same time.

use std::thread;

use opencl_sys::CL_PROGRAM_KERNEL_NAMES;

use crate::cl::{self, Handle};
use crate::queries::program_info;
use crate::session::{Session, Value};

fn source(number: u32) -> String {
    format!(
        "__kernel void left(__global uint *out) {{ out[get_global_id(0)] = {number} + (uint)get_global_id(0); }}\n\
         __kernel void right(__global uint *out) {{ out[get_global_id(0)] = {number} * (uint)get_global_id(0); }}\n"
    )
}

/// One program from its source to its results; the results' digest, or the first error code.
fn one(session: &Session, queue: Handle, number: u32) -> Result<u64, i32> {
    let check = |code| if code == 0 { Ok(()) } else { Err(code) };
    let (program, code) = cl::program(session.context, &source(number));
    check(code)?;
    check(cl::build(program, Some("-DTHREADS")))?;
    let names = program_info(program, CL_PROGRAM_KERNEL_NAMES)?;
    let mut digest = names.len() as u64;
    for name in ["left", "right"] {
        let (kernel, code) = cl::kernel(program, name);
        check(code)?;
        for word in session.launch(queue, kernel, &[Value::Out(16)])? {
            digest = digest.wrapping_mul(31).wrapping_add(u64::from(word));
        }
        check(cl::release_kernel(kernel))?;
    }
    check(cl::release_program(program))?;
    Ok(digest)
}

pub fn section(session: &Session, arguments: &[String]) -> Result<(), String> {
    let number = |index: usize, default| {
        arguments
            .get(index)
            .map_or(Ok(default), |text| text.parse::<u32>())
    };
    let threads = number(0, 4).map_err(|error| error.to_string())?;
    let programs = number(1, 4).map_err(|error| error.to_string())?;
    let outcomes: Vec<Result<u64, i32>> = thread::scope(|scope| {
        let work = |thread| {
            move || {
                let queue = session.another_queue();
                // Neighboring threads share half of their sources.
                let first = thread * programs / 2;
                let outcomes: Vec<_> = (first..first + programs)
                    .map(|number| one(session, queue, number + 1))
                    .collect();
                cl::call!(clReleaseCommandQueue(queue));
                outcomes
            }
        };
        let running: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(work(thread)))
            .collect();
        running
            .into_iter()
            .flat_map(|thread| thread.join().expect("no panic"))
            .collect()
    });
    let good = outcomes.iter().filter(|outcome| outcome.is_ok()).count();
    let digest = outcomes.iter().flatten().fold(0_u64, |sum, digest| {
        sum.wrapping_mul(31).wrapping_add(*digest)
    });
    println!(
        "threads {threads} programs {programs} good {good} of {} digest {digest:016x}",
        outcomes.len()
    );
    let mut codes: Vec<i32> = outcomes.into_iter().filter_map(Result::err).collect();
    codes.sort_unstable();
    if !codes.is_empty() {
        println!("codes {codes:?}");
    }
    Ok(())
}
