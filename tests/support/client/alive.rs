//! Calls that change a program while kernels of it are alive: the application's own, clones of them, and kernels that only an
//! enqueued command still holds.

use std::ptr;

use opencl_sys::*;

use crate::cl::{self, Handle, NO_REPORT, call};
use crate::session::Session;

const SOURCE: &str = "
#ifndef VALUE
#define VALUE 7
#endif
__kernel void alive(__global uint *out) { out[get_global_id(0)] = VALUE; }
";

/// What keeps a kernel alive.
#[derive(Clone, Copy, Debug)]
enum Holder {
    Application,
    Clone,
    Command,
}

/// A kernel that is alive, and how it is let go.
struct Alive {
    kernel: Handle,
    buffer: Handle,
    event: Handle,
}

impl Alive {
    fn of(session: &Session, program: Handle, holder: Holder) -> Option<Alive> {
        let (mut kernel, code) = cl::kernel(program, "alive");
        println!("{holder:?}: kernel code {code}");
        if kernel.is_null() {
            return None;
        }
        let (mut buffer, mut event) = (ptr::null_mut(), ptr::null_mut());
        let mut code = 1;
        match holder {
            Holder::Application => {}
            Holder::Clone => {
                let clone = call!(clCloneKernel(kernel, &mut code));
                println!("clone: code {code}");
                cl::release_kernel(kernel);
                kernel = clone;
            }
            Holder::Command => {
                let context = session.context;
                let items = 16_usize;
                buffer = call!(clCreateBuffer(
                    context,
                    CL_MEM_READ_WRITE,
                    64,
                    ptr::null_mut(),
                    &mut code
                ));
                let argument = ptr::from_ref(&buffer).cast();
                call!(clSetKernelArg(kernel, 0, size_of::<Handle>(), argument));
                event = call!(clCreateUserEvent(context, &mut code));
                let code = call!(clEnqueueNDRangeKernel(
                    session.queue,
                    kernel,
                    1,
                    ptr::null(),
                    &items,
                    &items,
                    1,
                    &event,
                    ptr::null_mut()
                ));
                println!("enqueue: code {code}");
                cl::release_kernel(kernel);
                kernel = ptr::null_mut();
            }
        }
        Some(Alive {
            kernel,
            buffer,
            event,
        })
    }

    fn end(self, session: &Session) {
        if !self.kernel.is_null() {
            println!("release kernel: code {}", cl::release_kernel(self.kernel));
        }
        if !self.event.is_null() {
            call!(clSetUserEventStatus(self.event, CL_COMPLETE));
            println!("finish: code {}", call!(clFinish(session.queue)));
            call!(clReleaseEvent(self.event));
            call!(clReleaseMemObject(self.buffer));
        }
    }
}

/// How a program came to be.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Made {
    Built,
    Linked,
    LinkedOfBuilt,
}

fn made(session: &Session, how: Made) -> (Handle, Vec<Handle>) {
    let source = session.program(SOURCE);
    if how == Made::Linked {
        println!("compile: code {}", cl::compile(source, "", &[]));
    } else {
        println!("build: code {}", cl::build(source, Some("")));
    }
    if how == Made::Built {
        return (source, Vec::new());
    }
    let (linked, code) = cl::link(session.context, "", &[source]);
    println!("link: code {code}");
    (linked, vec![source])
}

type Change = (&'static str, fn(&Session, Handle) -> cl_int);

const CHANGES: &[Change] = &[
    ("build", |_, program| cl::build(program, Some(""))),
    ("build for the device", |session, program| {
        let devices = &session.devices[..1];
        cl::build_for(program, devices, Some(""), NO_REPORT)
    }),
    ("build otherwise", |_, program| {
        cl::build(program, Some("-DVALUE=8"))
    }),
    ("build what fails", |_, program| {
        cl::build(program, Some("-DVALUE=)"))
    }),
    ("compile", |_, program| cl::compile(program, "", &[])),
    ("compile otherwise", |_, program| {
        cl::compile(program, "-DVALUE=9", &[])
    }),
    ("link", |session, program| {
        let (linked, code) = cl::link(session.context, "", &[program]);
        if !linked.is_null() {
            cl::release_program(linked);
        }
        code
    }),
    ("unload", |session, _| {
        call!(clUnloadPlatformCompiler(session.platform))
    }),
];

pub fn section(session: &Session) -> Result<(), String> {
    for how in [Made::Built, Made::Linked, Made::LinkedOfBuilt] {
        for holder in [Holder::Application, Holder::Clone, Holder::Command] {
            if matches!(holder, Holder::Command) && !session.builds_over_commands() {
                continue;
            }
            for (name, change) in CHANGES {
                println!("[{how:?}, {holder:?}, {name}]");
                let (program, inputs) = made(session, how);
                if program.is_null() {
                    continue;
                }
                let Some(alive) = Alive::of(session, program, holder) else {
                    cl::release_program(program);
                    continue;
                };
                println!("{name}: code {}", change(session, program));
                session.state(name, program);
                println!("{name} again: code {}", change(session, program));
                alive.end(session);
                println!("release: code {}", cl::release_program(program));
                for input in inputs {
                    cl::release_program(input);
                }
            }
        }
    }
    Ok(())
}
