//! clLinkProgram.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::thread;

use opencl_sys::*;

use crate::abi::{self, Handle, Notify, NotifyFn, Outcome};
use crate::compiler::{self, Code};
use crate::config;
use crate::context::CONTEXTS;
use crate::platform::chosen_devices;
use crate::program::{Image, Origin, PROGRAMS, Program, program};

/// For each device of the new program the code of each input.
type Inputs = Vec<Vec<Arc<Code>>>;

/// CL_INVALID_OPERATION if an input is neither a compiled object nor a library for each device.
fn inputs(programs: &[Handle], devices: &[usize]) -> Outcome<Inputs> {
    let usable =
        |code: &Arc<Code>| code.kind != CL_PROGRAM_BINARY_TYPE_EXECUTABLE || config::permissive();
    let mut inputs = vec![Vec::new(); devices.len()];
    for handle in programs {
        let input = program(*handle)?;
        let state = input.state.lock();
        for (index, device) in devices.iter().enumerate() {
            let image = &state.images[input.index(*device).map_err(|_| CL_INVALID_OPERATION)?];
            let code = image.code.as_ref().filter(|code| usable(code));
            inputs[index].push(code.ok_or(CL_INVALID_OPERATION)?.clone());
        }
    }
    Ok(inputs)
}

fn run(program: &Program, inputs: &Inputs, options: &[u8]) -> Outcome {
    let mut outcome = Ok(());
    for (index, codes) in inputs.iter().enumerate() {
        let codes: Vec<&Code> = codes.iter().map(Arc::as_ref).collect();
        let image = match compiler::link(&codes, options) {
            Ok(code) => Image {
                status: CL_BUILD_SUCCESS,
                options: options.to_vec(),
                log: format!("stub: linked {} kernels\n", code.kernels.len()),
                code: Some(Arc::new(code)),
            },
            Err(log) => {
                outcome = Err(CL_LINK_PROGRAM_FAILURE);
                Image {
                    options: options.to_vec(),
                    log: log + "\n",
                    ..Image::new(CL_BUILD_ERROR)
                }
            }
        };
        program.state.lock().images[index] = image;
    }
    outcome
}

/// The new program, the error code (a failed link gives both), and the callback that is to be called now.
fn link(
    context: Handle,
    devices: impl FnOnce(&[usize]) -> Outcome<Vec<usize>>,
    options: Vec<u8>,
    programs: &[Handle],
    notify: Option<Notify>,
) -> Outcome<(Handle, Outcome, Option<Notify>)> {
    let parent = context;
    let context = CONTEXTS.hold(context).ok_or(CL_INVALID_CONTEXT)?;
    if programs.is_empty() {
        return Err(CL_INVALID_VALUE);
    }
    let devices = devices(&context.object().devices)?;
    if compiler::has_invalid_option(&options) {
        return Err(CL_INVALID_LINKER_OPTIONS);
    }
    let inputs = inputs(programs, &devices)?;
    let program = Arc::new(Program::new(context, devices, Origin::Link));
    for image in &mut program.state.lock().images {
        image.status = CL_BUILD_IN_PROGRESS;
    }
    let handle = PROGRAMS.insert(program.clone(), parent);
    match notify {
        Some(notify) if config::asynchronous() => {
            let address = handle as usize;
            thread::spawn(move || {
                let _ = run(&program, &inputs, &options);
                drop(program);
                notify.call(address);
            });
            Ok((handle, Ok(()), None))
        }
        _ => {
            let outcome = run(&program, &inputs, &options);
            Ok((handle, outcome, notify))
        }
    }
}

pub unsafe extern "C-unwind" fn link_program(
    context: cl_context,
    count: cl_uint,
    devices: *const cl_device_id,
    options: *const c_char,
    num_inputs: cl_uint,
    programs: *const cl_program,
    notify: Option<NotifyFn>,
    user_data: *mut c_void,
    errcode: *mut cl_int,
) -> cl_program {
    config::log_frame("link");
    // SAFETY: the same contract.
    let (program, notify) = unsafe {
        start(
            context, count, devices, options, num_inputs, programs, notify, user_data, errcode,
        )
    };
    if let Some(notify) = notify {
        notify.call(program as usize);
    }
    program
}

/// All but the call of the callback that is to be called now, which is given with the program.
#[allow(clippy::too_many_arguments)] // as many as the function has
#[inline(never)]
unsafe fn start(
    context: cl_context,
    count: cl_uint,
    devices: *const cl_device_id,
    options: *const c_char,
    num_inputs: cl_uint,
    programs: *const cl_program,
    notify: Option<NotifyFn>,
    user_data: *mut c_void,
    errcode: *mut cl_int,
) -> (cl_program, Option<Notify>) {
    // SAFETY: the application's own arrays and string.
    let (given, options, programs) = unsafe {
        let given = abi::list(devices, count as usize);
        (
            given,
            abi::text(options),
            abi::list(programs, num_inputs as usize),
        )
    };
    let devices = |allowed: &[usize]| chosen_devices(&given, count, devices.is_null(), allowed);
    let outcome = Notify::new(notify, user_data)
        .and_then(|notify| link(context, devices, options, &programs, notify));
    // SAFETY: the application's own place.
    unsafe {
        match outcome {
            Err(error) => (abi::handle(Err(error), errcode), None),
            Ok((program, linked, notify)) => {
                abi::store(errcode, abi::code(linked));
                (program, notify)
            }
        }
    }
}
