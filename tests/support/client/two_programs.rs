//! Program-scope variables belong to a program: kernels of one share them, two programs from one source do not.

use crate::cl;
use crate::session::{Session, Value};

const SOURCE: &str = "
#ifdef __opencl_c_program_scope_global_variables
__global uint program_state = 5;
__kernel void bump(__global uint *out) { if (get_global_id(0) == 0) { program_state += 1; out[0] = program_state; } }
__kernel void peek(__global uint *out) { if (get_global_id(0) == 0) out[0] = program_state; }
#else
__kernel void bump(__global uint *out) { if (get_global_id(0) == 0) out[0] = 1; }
__kernel void peek(__global uint *out) { if (get_global_id(0) == 0) out[0] = 2; }
#endif
";

pub fn section(session: &Session) -> Result<(), String> {
    let options = Some("-cl-std=CL3.0");
    let programs = [session.program(SOURCE), session.program(SOURCE)];
    for program in programs {
        println!("build: code {}", cl::build(program, options));
        session.state("built", program);
    }
    let run = |which: usize, name: &str| {
        let (kernel, code) = cl::kernel(programs[which], name);
        println!("program {which} {name}: code {code}");
        if !kernel.is_null() {
            let words = session.launch(session.queue, kernel, &[Value::Out(16)]);
            println!("program {which} {name}: {:?}", words.map(|words| words[0]));
            cl::release_kernel(kernel);
        }
    };
    for (which, name) in [
        (0, "bump"),
        (0, "bump"),
        (1, "peek"),
        (1, "bump"),
        (0, "peek"),
        (0, "bump"),
        (1, "peek"),
    ] {
        run(which, name);
    }
    println!("[built again]");
    println!("build: code {}", cl::build(programs[0], options));
    run(0, "peek");
    run(1, "peek");
    for program in programs {
        println!("release: code {}", cl::release_program(program));
    }
    Ok(())
}
