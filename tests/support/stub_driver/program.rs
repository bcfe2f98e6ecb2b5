//! Program objects: their creation, state and lifetime.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use opencl_sys::*;

use crate::abi::{self, Handle, Outcome, code};
use crate::binary;
use crate::compiler::Code;
use crate::config;
use crate::context::{CONTEXTS, Context};
use crate::fork_safety::Mutex;
use crate::il::{self, Constants};
use crate::load;
use crate::platform;
use crate::registry::{Hold, Registry};

/// Where a program came from.
pub enum Origin {
    Source(Vec<u8>),
    Il(Vec<u8>),
    Binary,
    Link,
}

/// A program as one device sees it.
#[derive(Clone)]
pub struct Image {
    pub status: cl_build_status,
    pub options: Vec<u8>,
    pub log: String,
    pub code: Option<Arc<Code>>,
}

impl Image {
    pub fn new(status: cl_build_status) -> Self {
        Self {
            status,
            options: Vec::new(),
            log: String::new(),
            code: None,
        }
    }

    pub fn executable(&self) -> Option<&Arc<Code>> {
        let code = self.code.as_ref()?;
        (self.status == CL_BUILD_SUCCESS && code.kind == CL_PROGRAM_BINARY_TYPE_EXECUTABLE)
            .then_some(code)
    }
}

pub struct State {
    /// In the order of [`Program::devices`].
    pub images: Vec<Image>,
    /// A build has failed; matters with `STUB_STICKY`.
    pub failed: bool,
    /// Specialization constants that were set, for later builds.
    pub constants: Constants,
}

pub struct Program {
    pub context: Hold<Context>,
    pub devices: Vec<usize>,
    pub origin: Origin,
    pub state: Mutex<State>,
}

pub static PROGRAMS: Registry<Program> = Registry::new();

impl Program {
    pub fn new(context: Hold<Context>, devices: Vec<usize>, origin: Origin) -> Self {
        let images = vec![Image::new(CL_BUILD_NONE); devices.len()];
        let state = Mutex::new(State {
            images,
            failed: false,
            constants: Constants::new(),
        });
        Self {
            context,
            devices,
            origin,
            state,
        }
    }

    /// What is compiled; None for a program that has no source and no module.
    pub fn text(&self) -> Option<Vec<u8>> {
        match &self.origin {
            Origin::Source(source) => Some(source.clone()),
            Origin::Il(module) => il::source(module, &self.state.lock().constants),
            Origin::Binary | Origin::Link => None,
        }
    }

    /// The code of the first device that has an executable.
    pub fn executable(&self) -> Option<Arc<Code>> {
        self.state
            .lock()
            .images
            .iter()
            .find_map(|image| image.executable().cloned())
    }

    pub fn index(&self, device: usize) -> Outcome<usize> {
        let position = self.devices.iter().position(|known| *known == device);
        position.ok_or(CL_INVALID_DEVICE)
    }
}

pub fn program(handle: Handle) -> Outcome<Arc<Program>> {
    let is_dead = !config::kernels_keep_programs() && PROGRAMS.counts(handle).0 == 0;
    let program = PROGRAMS.get(handle).ok_or(CL_INVALID_PROGRAM)?;
    if is_dead && config::dies_of_dead_programs() {
        std::process::abort();
    }
    match is_dead {
        true => Err(CL_INVALID_PROGRAM),
        false => Ok(program),
    }
}

/// The strings one after the other: a length of zero, or no lengths, means NUL-terminated; NUL bytes are left out.
///
/// # Safety
/// The arrays have `count` elements; each string has its length or is NUL-terminated.
unsafe fn read_source(
    count: usize,
    strings: *mut *const c_char,
    lengths: *const usize,
) -> Outcome<Vec<u8>> {
    // SAFETY: the caller's promise.
    let (strings, lengths) = unsafe { (abi::list(strings, count), abi::list(lengths, count)) };
    if strings.is_empty() {
        return Err(CL_INVALID_VALUE);
    }
    let mut source = Vec::new();
    for (index, string) in strings.iter().enumerate() {
        if string.is_null() {
            return Err(CL_INVALID_VALUE);
        }
        let length = lengths.get(index).copied().unwrap_or(0);
        // SAFETY: the caller's promise.
        source.extend(unsafe {
            match length {
                0 => abi::text(*string),
                length => abi::list(string.cast::<u8>(), length),
            }
        });
    }
    source.retain(|byte| *byte != 0);
    Ok(source)
}

pub unsafe extern "C" fn create_with_source(
    context: cl_context,
    count: cl_uint,
    strings: *mut *const c_char,
    lengths: *const usize,
    errcode: *mut cl_int,
) -> cl_program {
    config::log_frame("source");
    let outcome = (|| {
        let context = CONTEXTS.hold(context).ok_or(CL_INVALID_CONTEXT)?;
        // SAFETY: the application's own arrays.
        let source = unsafe { read_source(count as usize, strings, lengths) }?;
        let devices = context.object().devices.iter();
        let devices = devices
            .map(|device| platform::of_programs(*device))
            .collect();
        let parent = context.handle();
        let program = Program::new(context, devices, Origin::Source(source));
        Ok(PROGRAMS.insert(Arc::new(program), parent))
    })();
    // SAFETY: the application's own place.
    unsafe { abi::handle(outcome, errcode) }
}

/// One binary for each device; all of them must be good.
fn load(
    context: Handle,
    devices: &[Handle],
    binaries: &[Vec<u8>],
    status: &mut [cl_int],
) -> Outcome<Handle> {
    let parent = context;
    let context = CONTEXTS.hold(context).ok_or(CL_INVALID_CONTEXT)?;
    if devices.is_empty() || binaries.len() != devices.len() {
        return Err(CL_INVALID_VALUE);
    }
    let mut images = Vec::new();
    for (index, device) in devices.iter().enumerate() {
        if !context.object().devices.contains(&(*device as usize)) {
            return Err(CL_INVALID_DEVICE);
        }
        let name = &platform::device(*device)?.name;
        let code = match config::refuses_binaries() {
            true => None,
            false => binary::read(&binaries[index], name),
        };
        status[index] = match &code {
            _ if binaries[index].is_empty() => CL_INVALID_VALUE,
            None => CL_INVALID_BINARY,
            Some(_) => CL_SUCCESS,
        };
        let code = code.map(Arc::new);
        images.push(Image {
            code,
            ..Image::new(CL_BUILD_NONE)
        });
    }
    if let Some(error) = status.iter().find(|status| **status != CL_SUCCESS) {
        return Err(*error);
    }
    load::begins();
    for code in images.iter().flat_map(|image| &image.code) {
        config::log(&format!("load-binary {:016x}", code.digest));
    }
    load::goes_on();
    let devices = devices.iter().map(|device| *device as usize).collect();
    let program = Program::new(context, devices, Origin::Binary);
    program.state.lock().images = images;
    Ok(PROGRAMS.insert(Arc::new(program), parent))
}

pub unsafe extern "C" fn create_with_binary(
    context: cl_context,
    count: cl_uint,
    devices: *const cl_device_id,
    lengths: *const usize,
    binaries: *mut *const u8,
    status: *mut cl_int,
    errcode: *mut cl_int,
) -> cl_program {
    config::log_frame("binary");
    let count = count as usize;
    // SAFETY: the application's own arrays of `count` elements.
    let (devices, lengths, binaries) = unsafe {
        (
            abi::list(devices, count),
            abi::list(lengths, count),
            abi::list(binaries, count),
        )
    };
    let read = |(start, length): (&*const u8, &usize)| {
        // SAFETY: each binary has its length.
        unsafe { abi::list(*start, *length) }
    };
    let binaries: Vec<Vec<u8>> = binaries.iter().zip(&lengths).map(read).collect();
    let mut found = vec![CL_SUCCESS; count];
    let outcome = load(context, &devices, &binaries, &mut found);
    for (index, code) in found.into_iter().enumerate() {
        if !status.is_null() {
            // SAFETY: the application's array has `count` elements.
            unsafe { abi::store(status.add(index), code) };
        }
    }
    // SAFETY: the application's own place.
    unsafe { abi::handle(outcome, errcode) }
}

/// There are no built-in kernels.
pub unsafe extern "C" fn create_with_built_in_kernels(
    _context: cl_context,
    _count: cl_uint,
    _devices: *const cl_device_id,
    _names: *const c_char,
    errcode: *mut cl_int,
) -> cl_program {
    // SAFETY: the application's own place.
    unsafe { abi::handle(Err(CL_INVALID_VALUE), errcode) }
}

pub unsafe extern "C" fn retain(handle: cl_program) -> cl_int {
    code(
        PROGRAMS
            .retain(handle)
            .then_some(())
            .ok_or(CL_INVALID_PROGRAM),
    )
}

/// A program lives until it is released and its kernels are gone.
pub unsafe extern "C" fn release(handle: cl_program) -> cl_int {
    code(
        PROGRAMS
            .release(handle)
            .then_some(())
            .ok_or(CL_INVALID_PROGRAM),
    )
}

pub unsafe extern "C" fn set_release_callback(
    handle: cl_program,
    _notify: Option<unsafe extern "C" fn(cl_program, *mut c_void)>,
    _user_data: *mut c_void,
) -> cl_int {
    code(program(handle).and(Err(CL_INVALID_OPERATION)))
}
