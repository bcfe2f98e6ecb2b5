//! clBuildProgram and clCompileProgram.

use std::ffi::{c_char, c_void};
use std::sync::Arc;
use std::thread;

use opencl_sys::*;

use crate::abi::{self, Handle, Notify, NotifyFn, Outcome, code};
use crate::compiler::{self, Code};
use crate::config;
use crate::load;
use crate::platform::chosen_devices;
use crate::preprocess::Header;
use crate::program::{Image, Origin, PROGRAMS, Program, program};

/// The parts in which building and compiling differ.
#[derive(Clone, Copy)]
enum Verb {
    Build,
    Compile,
}

impl Verb {
    fn kind(self) -> cl_program_binary_type {
        match self {
            Self::Build => CL_PROGRAM_BINARY_TYPE_EXECUTABLE,
            Self::Compile => CL_PROGRAM_BINARY_TYPE_COMPILED_OBJECT,
        }
    }

    fn invalid_options(self) -> cl_int {
        match self {
            Self::Build => CL_INVALID_BUILD_OPTIONS,
            Self::Compile => CL_INVALID_COMPILER_OPTIONS,
        }
    }

    fn failure(self) -> cl_int {
        match self {
            Self::Build => CL_BUILD_PROGRAM_FAILURE,
            Self::Compile => CL_COMPILE_PROGRAM_FAILURE,
        }
    }
}

/// One call that has passed all checks.
struct Job {
    verb: Verb,
    images: Vec<usize>,
    options: Vec<u8>,
    headers: Vec<Header>,
}

impl Job {
    /// Compiles for each device in turn and publishes the results.
    fn run(&self, program: &Program) -> Outcome {
        let mut outcome = Ok(());
        for index in &self.images {
            let image = self.image(program, *index);
            if image.status != CL_BUILD_SUCCESS {
                outcome = Err(self.verb.failure());
            }
            let mut state = program.state.lock();
            state.failed |= outcome.is_err();
            state.images[*index] = image;
        }
        outcome
    }

    fn image(&self, program: &Program, index: usize) -> Image {
        let Some(source) = program.text() else {
            // A loaded binary only becomes usable; it says nothing about it.
            load::built();
            let code = program.state.lock().images[index].code.clone();
            return Image {
                code,
                options: self.options.clone(),
                ..Image::new(CL_BUILD_SUCCESS)
            };
        };
        let before = program.state.lock().images[index].clone();
        let kind = before.code.as_ref().map(|code| code.kind);
        if config::keeps("variables")
            && kind == Some(self.verb.kind())
            && before.options == self.options
        {
            return Image {
                status: CL_BUILD_SUCCESS,
                ..before
            };
        }
        let sticky = config::sticky_failures() && program.state.lock().failed;
        let compiled = match sticky {
            true => Err("stub: an earlier build failed".to_owned()),
            false => compiler::compile(self.verb.kind(), &source, &self.options, &self.headers),
        };
        match compiled.map(|code| self.keeping(code, &before)) {
            Ok(code) => Image {
                status: CL_BUILD_SUCCESS,
                options: self.options.clone(),
                log: format!("stub: built {} kernels\n", code.kernels.len()),
                code: Some(Arc::new(code)),
            },
            Err(log) => Image {
                options: self.options.clone(),
                log: log + "\n",
                ..Image::new(CL_BUILD_ERROR)
            },
        }
    }
}

impl Job {
    /// Code with what this driver keeps of the build before.
    fn keeping(&self, mut code: Code, before: &Image) -> Code {
        let Some(old) = before.code.as_ref() else {
            return code;
        };
        if config::keeps("kernels") {
            code.kernels.extend(old.kernels.iter().cloned());
        }
        code
    }
}

/// The checks of the specification, then the work, here or on another thread. Gives the callback that is to be called now.
#[inline(never)]
fn start(
    handle: Handle,
    job: impl FnOnce(&Program) -> Outcome<Job>,
    notify: Outcome<Option<Notify>>,
) -> Outcome<(Outcome, Option<Notify>)> {
    let notify = notify?;
    let held = PROGRAMS.hold(handle).ok_or(CL_INVALID_PROGRAM)?;
    let program = held.object();
    let job = job(program)?;
    if compiler::has_invalid_option(&job.options) {
        return Err(job.verb.invalid_options());
    }
    // Our own hold is no kernel.
    let kernels = PROGRAMS.counts(handle).1 - 1;
    if kernels > 0 && !config::permissive() {
        return Err(CL_INVALID_OPERATION);
    }
    {
        let mut state = program.state.lock();
        // CL_INVALID_OPERATION if a previous build for any of the devices has not completed.
        if job
            .images
            .iter()
            .any(|index| state.images[*index].status == CL_BUILD_IN_PROGRESS)
        {
            return Err(CL_INVALID_OPERATION);
        }
        for index in &job.images {
            let image = &mut state.images[*index];
            if matches!(program.origin, Origin::Binary | Origin::Link) && image.code.is_none() {
                return Err(CL_INVALID_BINARY);
            }
            image.status = CL_BUILD_IN_PROGRESS;
        }
    }
    match notify {
        None => Ok((job.run(program), None)),
        Some(notify) if config::asynchronous() => {
            let address = handle as usize;
            thread::spawn(move || {
                let _ = job.run(held.object());
                // The hold of an unfinished build is not visible to the callback.
                drop(held);
                notify.call(address);
            });
            Ok((Ok(()), None))
        }
        Some(notify) => Ok((job.run(program), Some(notify))),
    }
}

/// Calls the callback that is to be called now.
fn end(handle: Handle, started: Outcome<(Outcome, Option<Notify>)>) -> cl_int {
    let (outcome, notify) = match started {
        Ok(started) => started,
        Err(error) => {
            if error == CL_INVALID_VALUE && config::spoils() {
                spoil(handle);
            }
            return error;
        }
    };
    if let Some(notify) = notify {
        notify.call(handle as usize);
    }
    code(outcome)
}

/// A program that was built is so no more.
fn spoil(handle: Handle) {
    if let Some(held) = PROGRAMS.hold(handle) {
        for image in &mut held.object().state.lock().images {
            *image = Image::new(CL_BUILD_ERROR);
        }
    }
}

fn selected(program: &Program, count: u32, devices: *const cl_device_id) -> Outcome<Vec<usize>> {
    // SAFETY: the application's own array.
    let given = unsafe { abi::list(devices, count as usize) };
    let chosen = chosen_devices(&given, count, devices.is_null(), &program.devices)?;
    chosen
        .into_iter()
        .map(|device| program.index(device))
        .collect()
}

pub unsafe extern "C-unwind" fn build(
    handle: cl_program,
    count: cl_uint,
    devices: *const cl_device_id,
    options: *const c_char,
    notify: Option<NotifyFn>,
    user_data: *mut c_void,
) -> cl_int {
    // SAFETY: the same contract.
    let started = unsafe { start_build(handle, count, devices, options, notify, user_data) };
    end(handle, started)
}

unsafe fn start_build(
    handle: cl_program,
    count: cl_uint,
    devices: *const cl_device_id,
    options: *const c_char,
    notify: Option<NotifyFn>,
    user_data: *mut c_void,
) -> Outcome<(Outcome, Option<Notify>)> {
    config::log_frame("build");
    // SAFETY: the application's own string.
    let options = unsafe { abi::text(options) };
    let job = |program: &Program| {
        let images = selected(program, count, devices)?;
        // A loaded binary must be an executable one.
        if matches!(program.origin, Origin::Binary) {
            let state = program.state.lock();
            let kinds = images
                .iter()
                .map(|index| state.images[*index].code.as_ref().map(|code| code.kind));
            if kinds
                .into_iter()
                .any(|kind| kind != Some(CL_PROGRAM_BINARY_TYPE_EXECUTABLE))
            {
                return Err(CL_INVALID_BINARY);
            }
        }
        // CL_INVALID_OPERATION if program was not created with a source, IL or a binary.
        if matches!(program.origin, Origin::Link) {
            return Err(CL_INVALID_OPERATION);
        }
        Ok(Job {
            verb: Verb::Build,
            images,
            options,
            headers: Vec::new(),
        })
    };
    start(handle, job, Notify::new(notify, user_data))
}

pub unsafe extern "C-unwind" fn compile(
    handle: cl_program,
    count: cl_uint,
    devices: *const cl_device_id,
    options: *const c_char,
    num_headers: cl_uint,
    headers: *const cl_program,
    names: *mut *const c_char,
    notify: Option<NotifyFn>,
    user_data: *mut c_void,
) -> cl_int {
    // SAFETY: the same contract.
    let started = unsafe {
        start_compile(
            handle,
            count,
            devices,
            options,
            num_headers,
            headers,
            names,
            notify,
            user_data,
        )
    };
    end(handle, started)
}

#[allow(clippy::too_many_arguments)] // as many as the function has
unsafe fn start_compile(
    handle: cl_program,
    count: cl_uint,
    devices: *const cl_device_id,
    options: *const c_char,
    num_headers: cl_uint,
    headers: *const cl_program,
    names: *mut *const c_char,
    notify: Option<NotifyFn>,
    user_data: *mut c_void,
) -> Outcome<(Outcome, Option<Notify>)> {
    let job = |program: &Program| {
        // SAFETY: the application's own arrays.
        let (options, programs, names) = unsafe {
            let count = num_headers as usize;
            (
                abi::text(options),
                abi::list(headers, count),
                abi::list(names, count),
            )
        };
        if programs.len() != num_headers as usize || names.len() != programs.len() {
            return Err(CL_INVALID_VALUE);
        }
        let images = selected(program, count, devices)?;
        // CL_INVALID_OPERATION if program has no source.
        if matches!(program.origin, Origin::Binary | Origin::Link) {
            return Err(CL_INVALID_OPERATION);
        }
        let mut headers = Vec::new();
        for (header, name) in programs.into_iter().zip(names) {
            let header = self::program(header)?;
            let Origin::Source(text) = &header.origin else {
                return Err(CL_INVALID_OPERATION);
            };
            headers.push(Header {
                // SAFETY: the application's own string.
                name: String::from_utf8_lossy(&unsafe { abi::text(name) }).into_owned(),
                text: String::from_utf8_lossy(text).into_owned(),
            });
        }
        Ok(Job {
            verb: Verb::Compile,
            images,
            options,
            headers,
        })
    };
    start(handle, job, Notify::new(notify, user_data))
}
