//! All queries of a program of varied kernels.

use std::ffi::c_void;
use std::ptr;

use opencl_sys::*;

use crate::cl::{self, Handle, call};
use crate::queries::{
    Form, ask, context_references, is_handle, kernel_info, program_info, program_references, show,
    string,
};
use crate::session::Session;

const SOURCE: &str = r#"
__constant uint table[8] = { 2, 3, 5, 7, 11, 13, 17, 19 };

#ifdef __opencl_c_program_scope_global_variables
__global uint visits[2] = { 1, 2 };
__kernel void visit(__global uint *out) { out[get_global_id(0)] = visits[get_global_id(0) & 1]; }
#endif

static uint twist(uint x) { return (x << 5) ^ (x >> 3); }

__kernel void zeta(__global uint *restrict out, __global const uint *restrict in) {
    size_t i = get_global_id(0);
    out[i] = twist(in[i]) + table[i & 7];
}

kernel void alpha(global float4 *result, const float factor) {
    result[get_global_id(0)] *= factor;
}

__kernel __attribute__((reqd_work_group_size(8, 4, 1)))
void fixed_size(__global int *out) {
    out[get_global_id(0) + 8 * get_global_id(1)] = (int)get_local_id(0);
}

__kernel __attribute__((vec_type_hint(float4)))
void hinted(__global float4 *data) {
    data[get_global_id(0)] += (float4)(1.0f, 2.0f, 3.0f, 4.0f);
}

__kernel __attribute__((work_group_size_hint(16, 1, 1)))
void suggested(__global uchar *bytes, uchar step) {
    bytes[get_global_id(0)] += step;
}

__kernel void reduce(__global const float *in, __global float *out, __local float *scratch, uint count) {
    uint i = get_local_id(0);
    scratch[i] = i < count ? in[i] : 0.0f;
    barrier(CLK_LOCAL_MEM_FENCE);
    if (i == 0) {
        float sum = 0.0f;
        for (uint k = 0; k < get_local_size(0); k++)
            sum += scratch[k];
        out[get_group_id(0)] = sum;
    }
}

__kernel void own_local(__global uint *out) {
    __local uint cells[16];
    cells[get_local_id(0) & 15] = (uint)get_local_id(0);
    barrier(CLK_LOCAL_MEM_FENCE);
    out[get_global_id(0)] = cells[(get_local_id(0) + 1) & 15];
}

typedef struct { uint a; float b; } pair_t;

__kernel void structured(__global pair_t *pairs, __constant uint *weights, volatile __global uint *counter) {
    pairs[get_global_id(0)].a += weights[0];
    counter[0] += 1;
}

#ifdef __IMAGE_SUPPORT__
__kernel void picture(__read_only image2d_t from, __write_only image2d_t to, sampler_t how) {
    int2 at = (int2)((int)get_global_id(0), (int)get_global_id(1));
    write_imagef(to, at, read_imagef(from, how, at));
}
#endif

__kernel void nothing(void) { }
"#;

/// The name of no query.
const UNKNOWN: cl_uint = 0x1fff;

/// Whether queries that no driver knows are made as well: each of them is answered by a build.
#[derive(Clone, Copy, PartialEq)]
pub enum Asking {
    Known,
    Anything,
}

/// Prints everything about a program but its binaries.
pub fn program_facts(session: &Session, program: Handle, asking: Asking) {
    let names = match session.shuffles_kernels() {
        true => Form::SortedNames,
        false => Form::Text,
    };
    let queries: [(&str, cl_program_info, Form); 11] = [
        (
            "CL_PROGRAM_REFERENCE_COUNT",
            CL_PROGRAM_REFERENCE_COUNT,
            Form::U32,
        ),
        (
            "CL_PROGRAM_CONTEXT",
            CL_PROGRAM_CONTEXT,
            Form::Handles(&[session.context]),
        ),
        ("CL_PROGRAM_NUM_DEVICES", CL_PROGRAM_NUM_DEVICES, Form::U32),
        (
            "CL_PROGRAM_DEVICES",
            CL_PROGRAM_DEVICES,
            Form::Handles(&session.devices),
        ),
        ("CL_PROGRAM_SOURCE", CL_PROGRAM_SOURCE, Form::Text),
        ("CL_PROGRAM_IL", CL_PROGRAM_IL, Form::Text),
        ("CL_PROGRAM_NUM_KERNELS", CL_PROGRAM_NUM_KERNELS, Form::U64),
        ("CL_PROGRAM_KERNEL_NAMES", CL_PROGRAM_KERNEL_NAMES, names),
        (
            "CTORS_PRESENT",
            CL_PROGRAM_SCOPE_GLOBAL_CTORS_PRESENT,
            Form::U32,
        ),
        (
            "DTORS_PRESENT",
            CL_PROGRAM_SCOPE_GLOBAL_DTORS_PRESENT,
            Form::U32,
        ),
        ("unknown parameter", UNKNOWN, Form::U32),
    ];
    for (name, param, form) in queries {
        if param == UNKNOWN && asking == Asking::Known {
            continue;
        }
        show(
            name,
            &|size, value, size_ret| call!(clGetProgramInfo(program, param, size, value, size_ret)),
            form,
        );
    }
    let queries: [(&str, cl_program_build_info, Form); 6] = [
        (
            "CL_PROGRAM_BUILD_STATUS",
            CL_PROGRAM_BUILD_STATUS,
            Form::I32,
        ),
        (
            "CL_PROGRAM_BUILD_OPTIONS",
            CL_PROGRAM_BUILD_OPTIONS,
            Form::Text,
        ),
        ("CL_PROGRAM_BUILD_LOG", CL_PROGRAM_BUILD_LOG, Form::Text),
        ("CL_PROGRAM_BINARY_TYPE", CL_PROGRAM_BINARY_TYPE, Form::U32),
        (
            "GLOBAL_VARIABLE_TOTAL_SIZE",
            CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE,
            Form::U64,
        ),
        ("unknown parameter", UNKNOWN, Form::U32),
    ];
    for (index, device) in session.devices.iter().enumerate() {
        for (name, param, form) in queries {
            if param == UNKNOWN && asking == Asking::Known {
                continue;
            }
            show(
                &format!("device {index} {name}"),
                &|size, value, size_ret| {
                    call!(clGetProgramBuildInfo(
                        program, *device, param, size, value, size_ret
                    ))
                },
                form,
            );
        }
    }
    let (size, none) = (size_of::<cl_int>(), ptr::null_mut());
    let mut status: cl_int = 1;
    let value = ptr::from_mut(&mut status).cast();
    let code = call!(clGetProgramBuildInfo(
        program,
        ptr::null_mut(),
        CL_PROGRAM_BUILD_STATUS,
        size,
        value,
        none
    ));
    println!("build status of no device: code {code}");
}

/// The size of a device's binary may differ from run to run; that there is one may not.
pub fn binaries(session: &Session, program: Handle) -> Option<Vec<Vec<u8>>> {
    let sizes = match program_info(program, CL_PROGRAM_BINARY_SIZES) {
        Ok(sizes) => sizes,
        Err(code) => {
            println!("binary sizes: code {code}");
            return None;
        }
    };
    let sizes: Vec<usize> = sizes
        .chunks_exact(8)
        .map(|size| usize::from_ne_bytes(size.try_into().expect("exact chunks")))
        .collect();
    // PoCL and the stub driver may say anything of devices that were not built.
    if sizes.iter().any(|size| *size > 1 << 40) {
        println!("binary sizes: {} of them, some garbage", sizes.len());
        return None;
    }
    let present: Vec<bool> = sizes.iter().map(|size| *size > 0).collect();
    println!("binaries present {present:?}");
    let mut binaries: Vec<Vec<u8>> = sizes.iter().map(|size| vec![0; *size]).collect();
    let mut places: Vec<*mut u8> = binaries
        .iter_mut()
        .map(|binary| binary.as_mut_ptr())
        .collect();
    let bytes = size_of_val(places.as_slice());
    let value = places.as_mut_ptr().cast::<c_void>();
    let mut size = 0;
    if session.checks_binaries_array() {
        println!(
            "binaries: one byte too few: code {}",
            call!(clGetProgramInfo(
                program,
                CL_PROGRAM_BINARIES,
                bytes - 1,
                value,
                ptr::null_mut()
            ))
        );
    }
    let code = call!(clGetProgramInfo(
        program,
        CL_PROGRAM_BINARIES,
        bytes,
        value,
        &mut size
    ));
    println!(
        "binaries: code {code} size {size} devices {}",
        session.devices.len()
    );
    let filled: Vec<bool> = binaries
        .iter()
        .map(|binary| binary.iter().any(|byte| *byte != 0))
        .collect();
    println!("binaries: not all zero {filled:?}");
    (code == CL_SUCCESS && present[0]).then_some(binaries)
}

pub fn kernel_facts(
    session: &Session,
    program: Handle,
    kernel: Handle,
    name: &str,
    asking: Asking,
) {
    let programs = [program];
    let contexts = [session.context];
    let queries: [(&str, cl_kernel_info, Form); 7] = [
        (
            "CL_KERNEL_FUNCTION_NAME",
            CL_KERNEL_FUNCTION_NAME,
            Form::Text,
        ),
        ("CL_KERNEL_NUM_ARGS", CL_KERNEL_NUM_ARGS, Form::U32),
        (
            "CL_KERNEL_REFERENCE_COUNT",
            CL_KERNEL_REFERENCE_COUNT,
            Form::U32,
        ),
        (
            "CL_KERNEL_CONTEXT",
            CL_KERNEL_CONTEXT,
            Form::Handles(&contexts),
        ),
        (
            "CL_KERNEL_PROGRAM",
            CL_KERNEL_PROGRAM,
            Form::Handles(&programs),
        ),
        ("CL_KERNEL_ATTRIBUTES", CL_KERNEL_ATTRIBUTES, Form::Text),
        ("unknown parameter", UNKNOWN, Form::U32),
    ];
    for (query, param, form) in queries {
        if param == UNKNOWN && asking == Asking::Known {
            continue;
        }
        show(
            &format!("{name} {query}"),
            &|size, value, size_ret| call!(clGetKernelInfo(kernel, param, size, value, size_ret)),
            form,
        );
    }
    let arguments = kernel_info(kernel, CL_KERNEL_NUM_ARGS).unwrap_or_default();
    let arguments = arguments.try_into().map_or(0, u32::from_ne_bytes);
    let queries: [(&str, cl_kernel_arg_info, Form); 6] = [
        (
            "ADDRESS_QUALIFIER",
            CL_KERNEL_ARG_ADDRESS_QUALIFIER,
            Form::U32,
        ),
        (
            "ACCESS_QUALIFIER",
            CL_KERNEL_ARG_ACCESS_QUALIFIER,
            Form::U32,
        ),
        ("TYPE_NAME", CL_KERNEL_ARG_TYPE_NAME, Form::Text),
        ("TYPE_QUALIFIER", CL_KERNEL_ARG_TYPE_QUALIFIER, Form::U64),
        ("NAME", CL_KERNEL_ARG_NAME, Form::Text),
        ("unknown parameter", UNKNOWN, Form::U32),
    ];
    // One more than there are: an error.
    let past = arguments + cl_uint::from(asking == Asking::Anything);
    for index in 0..past {
        for (query, param, form) in queries {
            if param == UNKNOWN && asking == Asking::Known {
                continue;
            }
            show(
                &format!("{name} argument {index} {query}"),
                &|size, value, size_ret| {
                    call!(clGetKernelArgInfo(
                        kernel, index, param, size, value, size_ret
                    ))
                },
                form,
            );
        }
    }
    let queries: [(&str, cl_kernel_work_group_info, Form); 7] = [
        ("WORK_GROUP_SIZE", CL_KERNEL_WORK_GROUP_SIZE, Form::U64),
        (
            "COMPILE_WORK_GROUP_SIZE",
            CL_KERNEL_COMPILE_WORK_GROUP_SIZE,
            Form::U64,
        ),
        ("LOCAL_MEM_SIZE", CL_KERNEL_LOCAL_MEM_SIZE, Form::U64),
        (
            "PREFERRED_MULTIPLE",
            CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE,
            Form::U64,
        ),
        ("PRIVATE_MEM_SIZE", CL_KERNEL_PRIVATE_MEM_SIZE, Form::U64),
        ("GLOBAL_WORK_SIZE", CL_KERNEL_GLOBAL_WORK_SIZE, Form::U64),
        ("unknown parameter", UNKNOWN, Form::U32),
    ];
    for (index, device) in session.devices.iter().enumerate() {
        for (query, param, form) in queries {
            if param == UNKNOWN && asking == Asking::Known {
                continue;
            }
            show(
                &format!("{name} device {index} {query}"),
                &|size, value, size_ret| {
                    call!(clGetKernelWorkGroupInfo(
                        kernel, *device, param, size, value, size_ret
                    ))
                },
                form,
            );
        }
    }
}

fn name_of(kernel: Handle) -> String {
    let name = kernel_info(kernel, CL_KERNEL_FUNCTION_NAME).unwrap_or_default();
    String::from_utf8_lossy(&name)
        .trim_end_matches('\0')
        .to_owned()
}

fn sorted(mut names: Vec<String>, sort: bool) -> Vec<String> {
    if sort {
        names.sort();
    }
    names
}

/// An application's own cache: a program made from the binaries of the first.
fn from_binaries(session: &Session, binary: &[u8], options: Option<&str>) {
    let (program, status, code) =
        cl::program_from_binary(session.context, session.device(), binary);
    println!("from binary: status {status} code {code}");
    println!("from binary: build {}", cl::build(program, options));
    match cl::all_kernels(program) {
        Err(code) => println!("from binary: kernels code {code}"),
        Ok(kernels) => {
            let names = kernels.iter().map(|kernel| name_of(*kernel)).collect();
            println!(
                "from binary: kernels {:?}",
                sorted(names, session.shuffles_kernels())
            );
            for kernel in kernels {
                cl::release_kernel(kernel);
            }
        }
    }
    let (kernel, code) = cl::kernel(program, "fixed_size");
    println!("from binary: kernel code {code}");
    if !kernel.is_null() {
        let attributes = kernel_info(kernel, CL_KERNEL_ATTRIBUTES);
        println!("from binary: attributes {}", string(attributes));
        let name = ask(&|size, value, size_ret| {
            call!(clGetKernelArgInfo(
                kernel,
                0,
                CL_KERNEL_ARG_NAME,
                size,
                value,
                size_ret
            ))
        });
        println!("from binary: argument name {}", string(name));
        cl::release_kernel(kernel);
    }
    println!("from binary: release {}", cl::release_program(program));
}

pub fn section(session: &Session, arguments: &[String]) -> Result<(), String> {
    let options = arguments.first().map(String::as_str);
    let counts = |step: &str, program| {
        println!(
            "references {step}: context {} program {}",
            context_references(session.context),
            if Handle::is_null(program) {
                "none".to_owned()
            } else {
                program_references(program)
            },
        );
    };
    counts("at first", ptr::null_mut());
    let program = session.program(SOURCE);
    counts("created", program);
    session.state("unbuilt", program);
    println!("build: code {}", cl::build(program, options));
    counts("built", program);
    program_facts(session, program, Asking::Anything);
    let binaries = binaries(session, program);
    counts("binaries fetched", program);

    let kernels =
        cl::all_kernels(program).map_err(|code| format!("clCreateKernelsInProgram: {code}"))?;
    counts("all kernels", program);
    let names = kernels.iter().map(|kernel| name_of(*kernel)).collect();
    let names = sorted(names, session.shuffles_kernels());
    println!("kernels in order {names:?}");
    for room in [0, 1, 2] {
        let mut few = [ptr::null_mut(); 2];
        let mut count = 77;
        let codes = [
            call!(clCreateKernelsInProgram(
                program,
                room,
                few.as_mut_ptr(),
                ptr::null_mut()
            )),
            call!(clCreateKernelsInProgram(
                program,
                room,
                few.as_mut_ptr(),
                &mut count
            )),
        ];
        let written = few.iter().filter(|kernel| !kernel.is_null()).count();
        println!("room for {room} kernels: {codes:?} {count} written {written}");
    }
    let mut count = 77;
    let code = call!(clCreateKernelsInProgram(
        program,
        1,
        ptr::null_mut(),
        &mut count
    ));
    println!("no room for a kernel: code {code} {count}");
    for kernel in kernels {
        cl::release_kernel(kernel);
    }
    counts("kernels released", program);

    for name in &names {
        let (kernel, code) = cl::kernel(program, name);
        println!("{name}: code {code}");
        counts(&format!("with {name}"), program);
        let answer = kernel_info(kernel, CL_KERNEL_PROGRAM);
        println!("{name}: its program is {}", is_handle(answer, program));
        kernel_facts(session, program, kernel, name, Asking::Anything);
        println!("{name}: release {}", cl::release_kernel(kernel));
    }
    let (kernel, code) = cl::kernel(program, "no_such_kernel");
    println!("no such kernel: code {code} NULL {}", kernel.is_null());
    let kernel = call!(clCreateKernel(program, ptr::null(), ptr::null_mut()));
    println!("kernel without a name: NULL {}", kernel.is_null());
    if let Some(binaries) = binaries {
        from_binaries(session, &binaries[0], options);
    }
    counts("before release", program);
    println!("release: code {}", cl::release_program(program));
    counts("at last", ptr::null_mut());
    Ok(())
}
