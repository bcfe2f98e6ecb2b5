//! What a program answers about itself.

use std::ffi::c_void;
use std::thread;

use opencl_sys::*;

use crate::abi::{self, Answer, Handle, Outcome, code, respond};
use crate::binary;
use crate::config;
use crate::context::shown;
use crate::platform;
use crate::program::{Origin, PROGRAMS, Program, program};

/// The size of the binary of a device that was not built, as measured on PoCL.
const GARBAGE: usize = 94_199_750_409_672;

/// The binary for each device; empty where there is no code.
fn binaries(program: &Program) -> Vec<Vec<u8>> {
    let state = program.state.lock();
    let binary = |(index, image): (usize, &crate::program::Image)| {
        let device = platform::device(program.devices[index] as Handle).ok();
        match (&image.code, device) {
            (Some(code), Some(device)) => binary::write(code, &device.name),
            _ => Vec::new(),
        }
    };
    state.images.iter().enumerate().map(binary).collect()
}

fn kernel_names(program: &Program) -> Outcome<Vec<String>> {
    let code = program.executable().ok_or(CL_INVALID_PROGRAM_EXECUTABLE)?;
    Ok(code
        .kernels
        .iter()
        .map(|kernel| kernel.name.clone())
        .collect())
}

fn answer(handle: Handle, program: &Program, param: cl_program_info) -> Outcome<Answer> {
    Ok(match param {
        CL_PROGRAM_REFERENCE_COUNT => shown(PROGRAMS.counts(handle)),
        CL_PROGRAM_CONTEXT => Answer::value(program.context.handle()),
        CL_PROGRAM_NUM_DEVICES => Answer::value(program.devices.len() as cl_uint),
        CL_PROGRAM_DEVICES => Answer::values(&program.devices),
        CL_PROGRAM_SOURCE => match &program.origin {
            Origin::Source(source) => Answer::text(source),
            _ => Answer::text(""),
        },
        CL_PROGRAM_IL => match &program.origin {
            Origin::Il(module) => Answer(module.clone()),
            _ => Answer(Vec::new()),
        },
        CL_PROGRAM_BINARY_SIZES => {
            let mut sizes: Vec<usize> = binaries(program).iter().map(Vec::len).collect();
            for (size, image) in sizes.iter_mut().zip(&program.state.lock().images) {
                if config::gives_garbage() && image.status == CL_BUILD_NONE {
                    *size = GARBAGE;
                }
            }
            Answer::values(&sizes)
        }
        CL_PROGRAM_NUM_KERNELS => Answer::value(kernel_names(program)?.len()),
        CL_PROGRAM_KERNEL_NAMES => {
            let names = kernel_names(program)?;
            if config::is_unchecked() && names.is_empty() {
                std::process::abort();
            }
            Answer::text(names.join(";"))
        }
        CL_PROGRAM_SCOPE_GLOBAL_CTORS_PRESENT | CL_PROGRAM_SCOPE_GLOBAL_DTORS_PRESENT => {
            Answer::value(CL_FALSE)
        }
        _ => return Err(CL_INVALID_VALUE),
    })
}

/// Copies each binary to where the application's array points; NULL entries are passed over.
///
/// # Safety
/// `value` is NULL or an array of pointers of `size` bytes, each to enough memory for its binary.
unsafe fn give_binaries(
    program: &Program,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> Outcome {
    if !matches!(program.origin, Origin::Binary) {
        thread::sleep(config::fetch_time());
    }
    let binaries = binaries(program);
    let needed = binaries.len() * size_of::<*mut u8>();
    if !value.is_null() {
        if size < needed {
            return Err(CL_INVALID_VALUE);
        }
        // SAFETY: the caller's promise; the size was checked.
        let places = unsafe { abi::list(value.cast::<*mut u8>(), binaries.len()) };
        for (place, binary) in places.into_iter().zip(&binaries) {
            if !place.is_null() {
                // SAFETY: the caller's promise.
                unsafe { place.copy_from_nonoverlapping(binary.as_ptr(), binary.len()) };
            }
        }
    }
    // SAFETY: the application's own place.
    unsafe { abi::store(size_ret, needed) };
    Ok(())
}

pub unsafe extern "C" fn get_info(
    handle: cl_program,
    param: cl_program_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> cl_int {
    let program = match program(handle) {
        Ok(program) => program,
        Err(error) => return error,
    };
    // SAFETY: the application's own places.
    unsafe {
        match param {
            CL_PROGRAM_BINARIES => code(give_binaries(&program, size, value, size_ret)),
            _ => respond(answer(handle, &program, param), size, value, size_ret),
        }
    }
}

fn build_answer(handle: Handle, device: Handle, param: cl_program_build_info) -> Outcome<Answer> {
    let program = program(handle)?;
    let index = program.index(device as usize)?;
    let image = {
        let images = &program.state.lock().images;
        let built = images.iter().find(|image| image.status == CL_BUILD_SUCCESS);
        match (images[index].status, built) {
            (CL_BUILD_NONE, Some(built)) if config::gives_garbage() => built.clone(),
            _ => images[index].clone(),
        }
    };
    let code = image.code.as_ref();
    Ok(match param {
        CL_PROGRAM_BUILD_STATUS => Answer::value(image.status),
        CL_PROGRAM_BUILD_OPTIONS => Answer::text(&image.options),
        CL_PROGRAM_BUILD_LOG => Answer::text(&image.log),
        CL_PROGRAM_BINARY_TYPE => {
            Answer::value(code.map_or(CL_PROGRAM_BINARY_TYPE_NONE, |code| code.kind))
        }
        CL_PROGRAM_BUILD_GLOBAL_VARIABLE_TOTAL_SIZE => {
            Answer::value(if code.is_some_and(|code| code.stateful) {
                4_usize
            } else {
                0
            })
        }
        _ => return Err(CL_INVALID_VALUE),
    })
}

pub unsafe extern "C" fn get_build_info(
    handle: cl_program,
    device: cl_device_id,
    param: cl_program_build_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> cl_int {
    // SAFETY: the application's own places.
    unsafe { respond(build_answer(handle, device, param), size, value, size_ret) }
}
