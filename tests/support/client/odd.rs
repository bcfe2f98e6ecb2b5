//! Arguments that no sane application passes, on programs in each state, and calls that end the process bare.

use std::ffi::c_void;
use std::ptr;

use opencl_sys::*;

use crate::cl::{self, Handle, call};
use crate::facts::binaries;
use crate::queries::ask;
use crate::session::{Session, Value};

const SOURCE: &str = "
__kernel void odd(__global uint *out, uint step) { out[get_global_id(0)] = step; }
";

const NONE: *mut c_void = ptr::null_mut();

type Case = (&'static str, fn(&Session, Handle) -> Vec<cl_int>);

/// What may be called with any program; the answers are error codes mostly.
const CASES: &[Case] = &[
    ("build with a wrong device", |session, program| {
        let list = [session.context];
        vec![call!(clBuildProgram(
            program,
            1,
            list.as_ptr(),
            ptr::null(),
            None,
            NONE
        ))]
    }),
    ("compile with headers that are not there", |_, program| {
        let none = ptr::null_mut();
        let (no_list, no_names) = (ptr::null(), ptr::null_mut());
        let mut names = [c"h.h".as_ptr()];
        let names = names.as_mut_ptr();
        let list = [program];
        let list = list.as_ptr();
        vec![
            call!(clCompileProgram(
                program,
                0,
                no_list,
                ptr::null(),
                1,
                no_list,
                no_names,
                None,
                none
            )),
            call!(clCompileProgram(
                program,
                0,
                no_list,
                ptr::null(),
                0,
                list,
                no_names,
                None,
                none
            )),
            call!(clCompileProgram(
                program,
                0,
                no_list,
                ptr::null(),
                0,
                no_list,
                names,
                None,
                none
            )),
            call!(clCompileProgram(
                program,
                0,
                no_list,
                ptr::null(),
                1,
                list,
                no_names,
                None,
                none
            )),
            call!(clCompileProgram(
                program,
                0,
                no_list,
                ptr::null(),
                1,
                no_list,
                names,
                None,
                none
            )),
        ]
    }),
    ("link of nothing", |session, program| {
        let list = [program];
        let mut codes = vec![];
        for (count, list) in [(0, list.as_ptr()), (1, ptr::null()), (0, ptr::null())] {
            let mut code = 1;
            let (context, none) = (session.context, ptr::null());
            let linked = call!(clLinkProgram(
                context,
                0,
                none,
                ptr::null(),
                count,
                list,
                None,
                NONE,
                &mut code
            ));
            codes.extend([code, cl_int::from(linked.is_null())]);
        }
        codes
    }),
    ("sizes that do not fit", |_, program| {
        let mut byte = 0_u8;
        let place = ptr::from_mut(&mut byte).cast();
        [
            CL_PROGRAM_REFERENCE_COUNT,
            CL_PROGRAM_CONTEXT,
            CL_PROGRAM_NUM_DEVICES,
            CL_PROGRAM_DEVICES,
            CL_PROGRAM_SOURCE,
            CL_PROGRAM_NUM_KERNELS,
            CL_PROGRAM_KERNEL_NAMES,
            0,
            0xffff_ffff,
        ]
        .into_iter()
        .map(|param| call!(clGetProgramInfo(program, param, 0, place, ptr::null_mut())))
        .collect()
    }),
    ("build info of what is no device", |session, program| {
        let mut size = 0;
        [ptr::null_mut(), session.context]
            .into_iter()
            .flat_map(|device| {
                [
                    CL_PROGRAM_BUILD_STATUS,
                    CL_PROGRAM_BUILD_LOG,
                    CL_PROGRAM_BINARY_TYPE,
                ]
                .map(|param| (device, param))
            })
            .map(|(device, param)| {
                call!(clGetProgramBuildInfo(
                    program, device, param, 0, NONE, &mut size
                ))
            })
            .collect()
    }),
    ("kernels of wrong names", |_, program| {
        ["", " odd", "odd ", "oddity", "od", "\u{e9}"]
            .into_iter()
            .map(|name| {
                let (kernel, code) = cl::kernel(program, name);
                if !kernel.is_null() {
                    cl::release_kernel(kernel);
                }
                code
            })
            .collect()
    }),
    ("kernels without a place for them", |_, program| {
        let none = ptr::null_mut();
        vec![call!(clCreateKernelsInProgram(
            program,
            0,
            none,
            ptr::null_mut()
        ))]
    }),
    ("a release callback", |_, program| {
        unsafe extern "C" fn never(_program: Handle, _data: *mut c_void) {}
        vec![
            call!(clSetProgramReleaseCallback(program, None, NONE)),
            call!(clSetProgramReleaseCallback(program, Some(never), NONE)),
        ]
    }),
    ("retained and released", |_, program| {
        vec![
            call!(clRetainProgram(program)),
            cl::release_program(program),
        ]
    }),
];

/// Calls that need no program.
fn creations(session: &Session) {
    let mut code = 1;
    let none = ptr::null_mut();
    let context = session.context;
    let program = call!(clCreateProgramWithSource(
        context,
        0,
        none,
        ptr::null(),
        &mut code
    ));
    println!("no strings: code {code} NULL {}", program.is_null());
    let mut strings = [ptr::null()];
    let start = strings.as_mut_ptr();
    let program = call!(clCreateProgramWithSource(
        context,
        1,
        start,
        ptr::null(),
        &mut code
    ));
    println!("a NULL string: code {code} NULL {}", program.is_null());
    let device = session.device();
    for (label, binary) in [
        ("garbage", &b"no binary of any driver"[..]),
        ("nothing", &[]),
    ] {
        if !session.refuses_garbage() {
            continue;
        }
        let (program, status, code) = cl::program_from_binary(context, device, binary);
        println!(
            "{label} as binary: status {status} code {code} NULL {}",
            program.is_null()
        );
        if !program.is_null() {
            println!("{label}: build {}", cl::build(program, None));
            cl::release_program(program);
        }
    }
    let none = NONE;
    println!("NULL program: build {}", cl::build(none, None));
    println!("NULL program: compile {}", cl::compile(none, "", &[]));
    println!("NULL program: release {}", cl::release_program(none));
    println!("NULL program: retain {}", call!(clRetainProgram(none)));
    println!("NULL program: kernel {}", cl::kernel(none, "odd").1);
    println!("NULL kernel: release {}", cl::release_kernel(none));
    println!("NULL context: link {}", cl::link(none, "", &[]).1);
}

/// Queries of a kernel whose answers are not in [`crate::facts`].
fn kernels(session: &Session, program: Handle) {
    let (kernel, code) = cl::kernel(program, "odd");
    println!("kernel: code {code}");
    if kernel.is_null() {
        return;
    }
    let sizes = [8_usize, 2, 1];
    for (device, label) in [
        (session.device(), "device"),
        (ptr::null_mut(), "NULL device"),
    ] {
        let answer = ask(&|size, value, size_ret| {
            let param = CL_KERNEL_WORK_GROUP_SIZE;
            call!(clGetKernelWorkGroupInfo(
                kernel, device, param, size, value, size_ret
            ))
        });
        println!("work-group size, {label}: {answer:?}");
        for param in [
            CL_KERNEL_MAX_SUB_GROUP_SIZE_FOR_NDRANGE,
            CL_KERNEL_SUB_GROUP_COUNT_FOR_NDRANGE,
            CL_KERNEL_LOCAL_SIZE_FOR_SUB_GROUP_COUNT,
            CL_KERNEL_MAX_NUM_SUB_GROUPS,
            CL_KERNEL_COMPILE_NUM_SUB_GROUPS,
            0,
        ] {
            for input in [0, 8, 16] {
                let answer = ask(&|size, value, size_ret| {
                    let start = sizes.as_ptr().cast();
                    call!(clGetKernelSubGroupInfo(
                        kernel, device, param, input, start, size, value, size_ret
                    ))
                });
                println!("sub-groups {param:#x}, {label}, {input} bytes: {answer:?}");
            }
        }
    }
    let word = 5_u32;
    let place = ptr::from_ref(&word).cast();
    for (label, index, size) in [("good", 1, 4), ("too large", 1, 8), ("no such", 2, 4)] {
        let code = call!(clSetKernelArg(kernel, index, size, place));
        println!("argument, {label}: code {code}");
    }
    println!("release kernel: code {}", cl::release_kernel(kernel));
}

fn link_for_wrong_device(session: &Session, program: cl_program) {
    let wrong = [session.context];
    let (linked, code) = cl::link_for(session.context, &wrong, None, &[program], cl::NO_REPORT);
    println!("link: code {code}, nothing {}", linked.is_null());
}

/// One call that ends the process on some driver, with a program that was built before.
pub fn fatal(session: &Session, arguments: &[String]) -> Result<(), String> {
    let call = arguments.first().ok_or("which call?")?;
    let (program, _) = cl::program(session.context, SOURCE);
    println!("build: code {}", cl::build(program, Some("-DODD")));
    match call.as_str() {
        "wrong-device" => println!("{:?}", CASES[0].1(session, program)),
        "absent-headers" => println!("{:?}", CASES[1].1(session, program)),
        "link-for-wrong-device" => {
            let (program, _) = cl::program(session.context, SOURCE);
            println!("compile: code {}", cl::compile(program, "", &[]));
            link_for_wrong_device(session, program);
        }
        "link-of-executable-for-wrong-device" => link_for_wrong_device(session, program),
        "kernels-nowhere" => {
            let (program, _) = cl::program(session.context, SOURCE);
            println!("compile: code {}", cl::compile(program, "", &[]));
            let none = ptr::null_mut();
            let code = call!(clCreateKernelsInProgram(program, 0, none, ptr::null_mut()));
            println!("kernels: code {code}");
        }
        "header-from-binary" => {
            let binaries = binaries(session, program).ok_or("no binaries")?;
            let (header, _, code) =
                cl::program_from_binaries(session.context, &session.devices, &binaries);
            println!("from binaries: code {code}");
            let including = session.program("#include \"h.h\"\n");
            let code = cl::compile(including, "", &[("h.h", header)]);
            println!("compile: code {code}");
        }
        "constant" => {
            let (program, _) = cl::program(session.context, SOURCE);
            let word = 5_u32;
            let place = ptr::from_ref(&word).cast();
            let code = call!(clSetProgramSpecializationConstant(program, 7, 4, place));
            println!("constant: code {code}");
        }
        "garbage" => {
            let device = session.device();
            let (_, status, code) = cl::program_from_binary(session.context, device, b"garbage");
            println!("garbage: status {status} code {code}");
        }
        "other-device" => {
            let devices = &session.devices[..1];
            let code = cl::build_for(program, devices, Some("-DONE"), cl::NO_REPORT);
            println!("build for one: code {code}");
            let (kernel, code) = cl::kernel(program, "odd");
            println!("kernel: code {code}");
            let last = session.devices[session.devices.len() - 1];
            let queue = call!(clCreateCommandQueue(
                session.context,
                last,
                0,
                ptr::null_mut()
            ));
            let values = [Value::Out(16), Value::Uint(3)];
            println!("{:?}", session.launch(queue, kernel, &values));
        }
        _ => return Err(format!("unknown call '{call}'")),
    }
    println!("the process lives");
    Ok(())
}

pub fn section(session: &Session) -> Result<(), String> {
    println!("[creations]");
    creations(session);
    for round in 0..2 {
        for state in ["unbuilt", "built", "compiled", "linked"] {
            for (name, case) in CASES {
                if !session.bears(name, state) {
                    continue;
                }
                let (mut program, _) = cl::program(session.context, SOURCE);
                match state {
                    "built" => println!("build: code {}", cl::build(program, Some("-DODD"))),
                    "compiled" => println!("compile: code {}", cl::compile(program, "", &[])),
                    "linked" => {
                        cl::compile(program, "", &[]);
                        let (linked, code) = cl::link(session.context, "", &[program]);
                        println!("link: code {code}");
                        cl::release_program(program);
                        program = linked;
                    }
                    _ => {}
                }
                println!("{state}, {name}: {:?}", case(session, program));
                session.state(state, program);
                if matches!(state, "built" | "linked") {
                    kernels(session, program);
                }
                println!("release: code {}", cl::release_program(program));
            }
        }
        println!("[round {round} ends]");
    }
    Ok(())
}
