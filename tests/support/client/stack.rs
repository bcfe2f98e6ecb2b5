//! Builds on a thread with a small stack: how small it may be, and how much of it is used.

use std::ffi::c_void;

use crate::cl::{self, call};
use crate::inputs;
use crate::queries::binary;
use crate::session::Session;

/// What the whole stack holds before the thread runs.
const PAINT: u8 = 0xA5;

struct Work<'a> {
    session: &'a Session,
    how: &'a str,
    codes: Vec<i32>,
    /// Of `created`: it was built before.
    built: Option<cl::Handle>,
    /// An address of the frame that calls OpenCL.
    frame: usize,
}

fn source(how: &str) -> String {
    let kernel = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 42; }\n";
    match how {
        // Each name of a header is the end of a chain of macros; their conditions do not hold.
        "macros" => {
            let chain = (1..=390).map(|index| format!("#define A{index} A{}\n", index - 1));
            let chain: String = chain.collect();
            format!("#define A0 <x.h>\n{chain}#if 0\n#include A390\n#endif\n{kernel}")
        }
        "header" => format!("#include \"h.h\"\n{kernel}"),
        _ => kernel.to_owned(),
    }
}

#[inline(never)]
fn work(work: &mut Work) {
    let here = 0u8;
    work.frame = std::ptr::from_ref(&here) as usize;
    if let Some(program) = work.built {
        let (kernel, code) = cl::kernel(program, "f");
        return work.codes.extend([code, cl::release_kernel(kernel)]);
    }
    let context = work.session.context;
    let (program, code) = cl::program(context, &source(work.how));
    work.codes.push(code);
    match work.how {
        "compile" | "header" => {
            let (header, _) = cl::program(context, "#define H 1\n");
            let headers = [("h.h", header)];
            work.codes.push(cl::compile(program, "-DX=1", &headers));
            let (linked, code) = cl::link(context, "", &[program]);
            work.codes.push(code);
            if code == 0 {
                work.codes.push(cl::release_program(linked));
            }
            work.codes.push(cl::release_program(header));
        }
        // Libraries of libraries, whose inputs are all made again after a hit.
        "nested" => {
            let nested = inputs::nested(work.session, &["60".to_owned()]);
            work.codes.push(nested.map_or(-1, |()| 0));
        }
        "kernel" => {
            work.codes.push(cl::build(program, Some("-DX=1")));
            let (kernel, code) = cl::kernel(program, "f");
            work.codes.push(code);
            // Nobody knows this query, so the program is built after a hit.
            let (none, size_ret) = (std::ptr::null_mut(), std::ptr::null_mut());
            let code = call!(clGetKernelArgInfo(kernel, 0, 0, 0, none, size_ret));
            work.codes.extend([code, cl::release_kernel(kernel)]);
        }
        "binary" => {
            work.codes.push(cl::build(program, Some("-DX=1")));
            let binary = binary(program).unwrap_or_default();
            let device = work.session.device();
            let (other, _, code) = cl::program_from_binary(context, device, &binary);
            work.codes.extend([code, cl::release_program(other)]);
        }
        _ => work.codes.push(cl::build(program, Some("-DX=1"))),
    }
    work.codes.push(cl::release_program(program));
}

extern "C" fn run(data: *mut c_void) -> *mut c_void {
    // SAFETY: it is the `Work` of the thread that waits for this one.
    work(unsafe { &mut *data.cast::<Work>() });
    std::ptr::null_mut()
}

/// `stack KIB HOW`, where `created` makes nothing but a kernel on the thread: the codes of the calls; on standard error how many bytes were used, and the address of a frame.
pub fn section(session: &Session, arguments: &[String]) -> Result<(), String> {
    let [size, how] = arguments else {
        return Err("stack KIB HOW".to_owned());
    };
    let size: usize = size.parse().map_err(|error| format!("{error}"))?;
    let size = size << 10;
    const GUARD: usize = 4096;
    // SAFETY: new memory, below which nothing can be written.
    let memory = unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_STACK;
        let access = libc::PROT_READ | libc::PROT_WRITE;
        let memory = libc::mmap(std::ptr::null_mut(), size + GUARD, access, flags, -1, 0);
        assert_ne!(memory, libc::MAP_FAILED);
        assert_eq!(libc::mprotect(memory, GUARD, libc::PROT_NONE), 0);
        let stack = memory.cast::<u8>().add(GUARD);
        stack.write_bytes(PAINT, size);
        stack
    };
    let mut work = Work {
        session,
        how,
        codes: Vec::new(),
        built: None,
        frame: 0,
    };
    if how == "created" {
        let (program, code) = cl::program(session.context, &source(how));
        work.codes.extend([code, cl::build(program, Some("-DX=1"))]);
        work.built = Some(program);
    }
    // SAFETY: the thread is joined before what it uses goes.
    let created = unsafe {
        let mut attributes = std::mem::zeroed();
        libc::pthread_attr_init(&mut attributes);
        let code = libc::pthread_attr_setstack(&mut attributes, memory.cast(), size);
        assert_eq!(code, 0, "the size of the stack");
        let mut thread = std::mem::zeroed();
        let data = std::ptr::from_mut(&mut work).cast();
        let created = libc::pthread_create(&mut thread, &attributes, run, data);
        if created == 0 {
            libc::pthread_join(thread, std::ptr::null_mut());
        }
        created
    };
    println!("created {created} codes {:?}", work.codes);
    // SAFETY: the thread is gone, and the memory is still ours.
    let stack = unsafe { std::slice::from_raw_parts(memory, size) };
    let untouched = stack.iter().position(|byte| *byte != PAINT);
    let used = size - untouched.unwrap_or(size);
    eprintln!("stack used {used} frame {:#x}", work.frame);
    Ok(())
}
