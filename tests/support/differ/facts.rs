//! Queries and their answers: code, size, bytes, and what is left of a buffer that was too small.

use std::ffi::c_void;
use std::ptr;

use opencl_sys::*;

use crate::cl::{Handle, call};
use crate::document::Query;
use crate::objects::{Kind, Objects};

/// What no driver leaves in a place by chance.
const UNTOUCHED: u8 = 0xa5;
/// A program has no more kernels, and a kernel no more arguments, that are asked for.
const MAX_LISTED: u32 = 8;

type Answer<'a> = &'a dyn Fn(usize, *mut c_void, *mut usize) -> cl_int;

/// How bytes are printed.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Text,
    Number,
    Handles,
}

const PROGRAM: [(&str, cl_uint, Form); 10] = [
    ("references", CL_PROGRAM_REFERENCE_COUNT, Form::Number),
    ("context", CL_PROGRAM_CONTEXT, Form::Handles),
    ("number of devices", CL_PROGRAM_NUM_DEVICES, Form::Number),
    ("devices", CL_PROGRAM_DEVICES, Form::Handles),
    ("source", CL_PROGRAM_SOURCE, Form::Text),
    ("il", CL_PROGRAM_IL, Form::Text),
    ("number of kernels", CL_PROGRAM_NUM_KERNELS, Form::Number),
    ("kernels", CL_PROGRAM_KERNEL_NAMES, Form::Text),
    (
        "constructors",
        CL_PROGRAM_SCOPE_GLOBAL_CTORS_PRESENT,
        Form::Number,
    ),
    (
        "destructors",
        CL_PROGRAM_SCOPE_GLOBAL_DTORS_PRESENT,
        Form::Number,
    ),
];

const BUILD: [(&str, cl_uint, Form); 5] = [
    ("status", CL_PROGRAM_BUILD_STATUS, Form::Number),
    ("options", CL_PROGRAM_BUILD_OPTIONS, Form::Text),
    ("log", CL_PROGRAM_BUILD_LOG, Form::Text),
    ("type", CL_PROGRAM_BINARY_TYPE, Form::Number),
    (
        "variables",
        CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE,
        Form::Number,
    ),
];

const KERNEL: [(&str, cl_uint, Form); 6] = [
    ("name", CL_KERNEL_FUNCTION_NAME, Form::Text),
    ("arguments", CL_KERNEL_NUM_ARGS, Form::Number),
    ("references", CL_KERNEL_REFERENCE_COUNT, Form::Number),
    ("context", CL_KERNEL_CONTEXT, Form::Handles),
    ("program", CL_KERNEL_PROGRAM, Form::Handles),
    ("attributes", CL_KERNEL_ATTRIBUTES, Form::Text),
];

const ARGUMENT: [(&str, cl_uint, Form); 5] = [
    (
        "address space",
        CL_KERNEL_ARG_ADDRESS_QUALIFIER,
        Form::Number,
    ),
    ("access", CL_KERNEL_ARG_ACCESS_QUALIFIER, Form::Number),
    ("type", CL_KERNEL_ARG_TYPE_NAME, Form::Text),
    ("qualifiers", CL_KERNEL_ARG_TYPE_QUALIFIER, Form::Number),
    ("name", CL_KERNEL_ARG_NAME, Form::Text),
];

const GROUP: [(&str, cl_uint, Form); 5] = [
    ("size", CL_KERNEL_WORK_GROUP_SIZE, Form::Number),
    ("fixed size", CL_KERNEL_COMPILE_WORK_GROUP_SIZE, Form::Text),
    ("local memory", CL_KERNEL_LOCAL_MEM_SIZE, Form::Number),
    (
        "multiple",
        CL_KERNEL_PREFERRED_WORK_GROUP_SIZE_MULTIPLE,
        Form::Number,
    ),
    ("private memory", CL_KERNEL_PRIVATE_MEM_SIZE, Form::Number),
];

/// The bytes of an answer, asked for in two calls.
fn ask(answer: Answer) -> Result<Vec<u8>, cl_int> {
    let mut size = 0;
    match answer(0, ptr::null_mut(), &mut size) {
        CL_SUCCESS => {}
        code => return Err(code),
    }
    // Some answers are empty, and NULL would mean "size only".
    let mut bytes = vec![0; size.max(1)];
    match answer(size, bytes.as_mut_ptr().cast(), ptr::null_mut()) {
        CL_SUCCESS => {
            bytes.truncate(size);
            Ok(bytes)
        }
        code => Err(code),
    }
}

fn number(bytes: &[u8]) -> String {
    match bytes.len() {
        4 => i32::from_ne_bytes(bytes.try_into().expect("four")).to_string(),
        8 => u64::from_ne_bytes(bytes.try_into().expect("eight")).to_string(),
        _ => bytes.escape_ascii().to_string(),
    }
}

fn format(objects: &Objects, bytes: &[u8], form: Form) -> String {
    match form {
        Form::Text => format!("\"{}\"", bytes.escape_ascii()),
        Form::Number => number(bytes),
        Form::Handles => {
            let words = bytes.chunks_exact(size_of::<usize>());
            let handles =
                words.map(|word| usize::from_ne_bytes(word.try_into().expect("exact")) as Handle);
            let names: Vec<String> = handles.map(|handle| objects.name(handle)).collect();
            names.join(" ")
        }
    }
}

fn show(objects: &Objects, label: &str, form: Form, answer: Answer) {
    match ask(answer) {
        Err(code) => println!("{label}: code {code}"),
        Ok(bytes) => {
            let value = format(objects, &bytes, form);
            println!("{label}: {} bytes {value}", bytes.len());
        }
    }
}

/// All queries of an object.
pub fn all(objects: &Objects, label: &str, id: &str) {
    if let Some(program) = objects.get(id, Kind::Program) {
        program_facts(objects, label, id, program);
    } else if let Some(kernel) = objects.get(id, Kind::Kernel) {
        kernel_facts(objects, label, id, kernel);
    } else if let Some(context) = objects.get(id, Kind::Context) {
        show(objects, label, Form::Number, &|size, value, size_ret| {
            let param = CL_CONTEXT_REFERENCE_COUNT;
            call!(clGetContextInfo(context, param, size, value, size_ret))
        });
    }
}

fn program_facts(objects: &Objects, label: &str, id: &str, program: Handle) {
    for (name, param, form) in PROGRAM {
        show(
            objects,
            &format!("{label} {name}"),
            form,
            &|size, value, size_ret| call!(clGetProgramInfo(program, param, size, value, size_ret)),
        );
    }
    for device in objects.devices_of(id) {
        let handle = objects
            .get(&device, Kind::Device)
            .unwrap_or(ptr::null_mut());
        for (name, param, form) in BUILD {
            let label = format!("{label} {device} {name}");
            show(objects, &label, form, &|size, value, size_ret| {
                call!(clGetProgramBuildInfo(
                    program, handle, param, size, value, size_ret
                ))
            });
        }
    }
}

fn kernel_facts(objects: &Objects, label: &str, id: &str, kernel: Handle) {
    for (name, param, form) in KERNEL {
        show(
            objects,
            &format!("{label} {name}"),
            form,
            &|size, value, size_ret| call!(clGetKernelInfo(kernel, param, size, value, size_ret)),
        );
    }
    let count = ask(&|size, value, size_ret| {
        let param = CL_KERNEL_NUM_ARGS;
        call!(clGetKernelInfo(kernel, param, size, value, size_ret))
    });
    let count = count.unwrap_or_default().try_into();
    let count = count.map_or(0, u32::from_ne_bytes);
    for index in 0..count.min(MAX_LISTED) {
        for (name, param, form) in ARGUMENT {
            let label = format!("{label} argument {index} {name}");
            show(objects, &label, form, &|size, value, size_ret| {
                call!(clGetKernelArgInfo(
                    kernel, index, param, size, value, size_ret
                ))
            });
        }
    }
    let program = objects.parents.get(id).cloned().unwrap_or_default();
    for device in objects.devices_of(&program) {
        let handle = objects
            .get(&device, Kind::Device)
            .unwrap_or(ptr::null_mut());
        for (name, param, form) in GROUP {
            let label = format!("{label} {device} {name}");
            show(objects, &label, form, &|size, value, size_ret| {
                call!(clGetKernelWorkGroupInfo(
                    kernel, handle, param, size, value, size_ret
                ))
            });
        }
    }
}

/// One query of an object and what it leaves in the places that it is given.
#[derive(Clone, Copy)]
pub struct Odd {
    pub query: Query,
    pub device: Handle,
    pub index: u32,
    pub param: u32,
    pub size: Option<usize>,
    pub more: isize,
    pub without_value: bool,
    pub without_size: bool,
}

pub fn odd(label: &str, handle: Handle, odd: Odd) {
    let Odd {
        device,
        index,
        param,
        ..
    } = odd;
    let answer = |size: usize, value: *mut c_void, size_ret: *mut usize| match odd.query {
        Query::Program => call!(clGetProgramInfo(handle, param, size, value, size_ret)),
        Query::Build => call!(clGetProgramBuildInfo(
            handle, device, param, size, value, size_ret
        )),
        Query::Kernel => call!(clGetKernelInfo(handle, param, size, value, size_ret)),
        Query::Argument => call!(clGetKernelArgInfo(
            handle, index, param, size, value, size_ret
        )),
        Query::Group => call!(clGetKernelWorkGroupInfo(
            handle, device, param, size, value, size_ret
        )),
    };
    let passed = odd.size.unwrap_or_else(|| {
        let mut needed = 0;
        answer(0, ptr::null_mut(), &mut needed);
        needed.saturating_add_signed(odd.more).min(1 << 20)
    });
    // Twice as long as it is said to be, so that what is written behind the end is seen.
    let mut place = vec![UNTOUCHED; passed * 2 + 64];
    let mut size = usize::from_ne_bytes([UNTOUCHED; 8]);
    let value = match odd.without_value {
        true => ptr::null_mut(),
        false => place.as_mut_ptr().cast(),
    };
    let size_ret = match odd.without_size {
        true => ptr::null_mut(),
        false => &raw mut size,
    };
    let code = answer(passed, value, size_ret);
    let end = place.iter().rposition(|byte| *byte != UNTOUCHED);
    let written = end.map_or(0, |end| end + 1);
    let size = match size.to_ne_bytes() == [UNTOUCHED; 8] {
        true => "untouched".to_owned(),
        false => size.to_string(),
    };
    println!("{label}: code {code} size {size} written {written} of {passed}");
}
