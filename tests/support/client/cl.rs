//! The OpenCL functions, looked up in the loader, behind functions that take slices.
//!
//! Handles are raw: a section may pass on purpose what the specification calls invalid, such as NULL.

use std::ffi::{CStr, CString, c_char, c_void};
use std::fs::File;
use std::io::Write;
use std::path::PathBuf;
use std::ptr;
use std::sync::OnceLock;

use libloading::Library;
use opencl_sys::cl_function_types::*;
use opencl_sys::*;

pub type Handle = *mut c_void;

macro_rules! functions {
    ($($name:ident: $type:ident,)*) => {
        /// The loader's functions.
        #[allow(non_snake_case)]
        pub struct Functions { $(pub $name: $type,)* }

        impl Functions {
            fn load(library: &Library) -> Self {
                Self { $(
                    // SAFETY: in a loader a function of this type stands behind this name.
                    $name: unsafe { library.get::<$type>(stringify!($name)) }
                        .ok()
                        .and_then(|symbol| *symbol),
                )* }
            }
        }
    };
}

functions! {
    clGetPlatformIDs: clGetPlatformIDs_fn,
    clGetPlatformInfo: clGetPlatformInfo_fn,
    clGetDeviceIDs: clGetDeviceIDs_fn,
    clGetDeviceInfo: clGetDeviceInfo_fn,
    clCreateSubDevices: clCreateSubDevices_fn,
    clReleaseDevice: clReleaseDevice_fn,
    clGetExtensionFunctionAddress: clGetExtensionFunctionAddress_fn,
    clGetExtensionFunctionAddressForPlatform: clGetExtensionFunctionAddressForPlatform_fn,
    clUnloadCompiler: clUnloadCompiler_fn,
    clUnloadPlatformCompiler: clUnloadPlatformCompiler_fn,
    clCreateContext: clCreateContext_fn,
    clReleaseContext: clReleaseContext_fn,
    clGetContextInfo: clGetContextInfo_fn,
    clCreateCommandQueue: clCreateCommandQueue_fn,
    clReleaseCommandQueue: clReleaseCommandQueue_fn,
    clFinish: clFinish_fn,
    clCreateUserEvent: clCreateUserEvent_fn,
    clSetUserEventStatus: clSetUserEventStatus_fn,
    clReleaseEvent: clReleaseEvent_fn,
    clCreateBuffer: clCreateBuffer_fn,
    clReleaseMemObject: clReleaseMemObject_fn,
    clEnqueueReadBuffer: clEnqueueReadBuffer_fn,
    clEnqueueNDRangeKernel: clEnqueueNDRangeKernel_fn,
    clCreateProgramWithSource: clCreateProgramWithSource_fn,
    clCreateProgramWithBinary: clCreateProgramWithBinary_fn,
    clCreateProgramWithIL: clCreateProgramWithIL_fn,
    clSetProgramSpecializationConstant: clSetProgramSpecializationConstant_fn,
    clSetProgramReleaseCallback: clSetProgramReleaseCallback_fn,
    clRetainProgram: clRetainProgram_fn,
    clReleaseProgram: clReleaseProgram_fn,
    clBuildProgram: clBuildProgram_fn,
    clCompileProgram: clCompileProgram_fn,
    clLinkProgram: clLinkProgram_fn,
    clGetProgramInfo: clGetProgramInfo_fn,
    clGetProgramBuildInfo: clGetProgramBuildInfo_fn,
    clCreateKernel: clCreateKernel_fn,
    clCreateKernelsInProgram: clCreateKernelsInProgram_fn,
    clCloneKernel: clCloneKernel_fn,
    clRetainKernel: clRetainKernel_fn,
    clReleaseKernel: clReleaseKernel_fn,
    clSetKernelArg: clSetKernelArg_fn,
    clGetKernelInfo: clGetKernelInfo_fn,
    clGetKernelArgInfo: clGetKernelArgInfo_fn,
    clGetKernelWorkGroupInfo: clGetKernelWorkGroupInfo_fn,
    clGetKernelSubGroupInfo: clGetKernelSubGroupInfo_fn,
}

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// Opens the loader, for the rest of the process's life.
pub fn open(name: &str) -> Result<(), String> {
    // SAFETY: a loader's constructors have no preconditions.
    let library = unsafe { Library::new(name) }.map_err(|error| error.to_string())?;
    FUNCTIONS.get_or_init(|| Functions::load(&library));
    std::mem::forget(library);
    if std::env::var_os("STUB_STACK").is_some()
        && let Some(log) = std::env::var_os("STUB_LOG")
    {
        FRAMES.get_or_init(|| log.into());
    }
    Ok(())
}

/// The log of the stub driver, if it says where the stack comes to.
static FRAMES: OnceLock<PathBuf> = OnceLock::new();

/// Says where the stack has come to before a call of the loader, if the stub driver says so of its own calls.
#[inline(never)]
pub fn log_frame() {
    if let Some(path) = FRAMES.get()
        && let Ok(mut log) = File::options().append(true).create(true).open(path)
    {
        let here = 0u8;
        let here = ptr::from_ref(&here) as usize;
        let _ = log.write_all(format!("call {here:#x}\n").as_bytes());
    }
}

pub fn functions() -> &'static Functions {
    FUNCTIONS.get().expect("the loader was opened first")
}

/// Calls a function of the loader by name.
macro_rules! call {
    ($name:ident($($argument:expr),* $(,)?)) => {{
        let function = $crate::cl::functions()
            .$name
            .expect(concat!("the loader lacks ", stringify!($name)));
        $crate::cl::log_frame();
        // SAFETY: pointers are NULL or point to live values of the caller with the sizes that are passed beside
        // them; handles came from OpenCL or are NULL.
        unsafe { function($($argument),*) }
    }};
}
pub(crate) use call;

pub type Notify = Option<unsafe extern "C" fn(Handle, *mut c_void)>;

pub fn text(text: &str) -> CString {
    CString::new(text).expect("no NUL inside")
}

/// The pointer for an optional C string.
pub fn pointer(text: &Option<CString>) -> *const c_char {
    text.as_ref().map_or(ptr::null(), |text| text.as_ptr())
}

pub fn program(context: Handle, source: &str) -> (Handle, cl_int) {
    program_from_text(context, &text(source))
}

pub fn program_from_text(context: Handle, source: &CStr) -> (Handle, cl_int) {
    let mut strings = [source.as_ptr()];
    let mut code = 1;
    let program = call!(clCreateProgramWithSource(
        context,
        1,
        strings.as_mut_ptr(),
        ptr::null(),
        &mut code
    ));
    (program, code)
}

/// For one device, with the status of its binary.
pub fn program_from_binary(
    context: Handle,
    device: Handle,
    binary: &[u8],
) -> (Handle, cl_int, cl_int) {
    let (program, status, code) = program_from_binaries(context, &[device], &[binary]);
    (program, status[0], code)
}

/// One binary for each device, and the status of each.
pub fn program_from_binaries(
    context: Handle,
    devices: &[Handle],
    binaries: &[impl AsRef<[u8]>],
) -> (Handle, Vec<cl_int>, cl_int) {
    let binaries: Vec<&[u8]> = binaries.iter().map(AsRef::as_ref).collect();
    let lengths: Vec<usize> = binaries.iter().map(|binary| binary.len()).collect();
    let mut starts: Vec<*const u8> = binaries.iter().map(|binary| binary.as_ptr()).collect();
    let (mut status, mut code) = (vec![1; devices.len()], 1);
    let program = call!(clCreateProgramWithBinary(
        context,
        devices.len() as cl_uint,
        devices.as_ptr(),
        lengths.as_ptr(),
        starts.as_mut_ptr(),
        status.as_mut_ptr(),
        &mut code,
    ));
    (program, status, code)
}

/// Builds for all devices of the program.
pub fn build(program: Handle, options: Option<&str>) -> cl_int {
    build_notify(program, options, None, ptr::null_mut())
}

/// Where a build, compile or link reports to: the function and its user data.
pub type Report = (Notify, *mut c_void);
pub const NO_REPORT: Report = (None, ptr::null_mut());

/// A device list as the functions take it: none for all devices.
fn list(devices: &[Handle]) -> (cl_uint, *const Handle) {
    match devices {
        [] => (0, ptr::null()),
        devices => (devices.len() as cl_uint, devices.as_ptr()),
    }
}

pub fn build_notify(
    program: Handle,
    options: Option<&str>,
    notify: Notify,
    data: *mut c_void,
) -> cl_int {
    build_for(program, &[], options, (notify, data))
}

/// Builds for these devices, or all.
pub fn build_for(
    program: Handle,
    devices: &[Handle],
    options: Option<&str>,
    (notify, data): Report,
) -> cl_int {
    let options = options.map(text);
    let (count, devices) = list(devices);
    call!(clBuildProgram(
        program,
        count,
        devices,
        pointer(&options),
        notify,
        data
    ))
}

pub fn compile(program: Handle, options: &str, headers: &[(&str, Handle)]) -> cl_int {
    compile_for(program, &[], Some(options), headers, NO_REPORT)
}

/// Compiles for these devices, or all.
pub fn compile_for(
    program: Handle,
    devices: &[Handle],
    options: Option<&str>,
    headers: &[(&str, Handle)],
    (notify, data): Report,
) -> cl_int {
    let options = options.map(text);
    let (count, devices) = list(devices);
    let names: Vec<CString> = headers.iter().map(|(name, _)| text(name)).collect();
    let mut names: Vec<*const c_char> = names.iter().map(|name| name.as_ptr()).collect();
    let programs: Vec<Handle> = headers.iter().map(|(_, program)| *program).collect();
    let none = headers.is_empty();
    call!(clCompileProgram(
        program,
        count,
        devices,
        pointer(&options),
        programs.len() as cl_uint,
        if none { ptr::null() } else { programs.as_ptr() },
        if none {
            ptr::null_mut()
        } else {
            names.as_mut_ptr()
        },
        notify,
        data,
    ))
}

pub fn link(context: Handle, options: &str, programs: &[Handle]) -> (Handle, cl_int) {
    link_for(context, &[], Some(options), programs, NO_REPORT)
}

/// Links for these devices, or all.
pub fn link_for(
    context: Handle,
    devices: &[Handle],
    options: Option<&str>,
    programs: &[Handle],
    (notify, data): Report,
) -> (Handle, cl_int) {
    let options = options.map(text);
    let (count, devices) = list(devices);
    let mut code = 1;
    let program = call!(clLinkProgram(
        context,
        count,
        devices,
        pointer(&options),
        programs.len() as cl_uint,
        programs.as_ptr(),
        notify,
        data,
        &mut code,
    ));
    (program, code)
}

pub fn kernel(program: Handle, name: &str) -> (Handle, cl_int) {
    let name = text(name);
    let mut code = 1;
    (
        call!(clCreateKernel(program, name.as_ptr(), &mut code)),
        code,
    )
}

pub fn all_kernels(program: Handle) -> Result<Vec<Handle>, cl_int> {
    let mut count = 0;
    let code = call!(clCreateKernelsInProgram(
        program,
        0,
        ptr::null_mut(),
        &mut count
    ));
    if code != CL_SUCCESS {
        return Err(code);
    }
    let mut kernels = vec![ptr::null_mut(); count as usize];
    match call!(clCreateKernelsInProgram(
        program,
        count,
        kernels.as_mut_ptr(),
        ptr::null_mut()
    )) {
        CL_SUCCESS => Ok(kernels),
        code => Err(code),
    }
}

pub fn release_kernel(kernel: Handle) -> cl_int {
    call!(clReleaseKernel(kernel))
}

pub fn release_program(program: Handle) -> cl_int {
    call!(clReleaseProgram(program))
}
