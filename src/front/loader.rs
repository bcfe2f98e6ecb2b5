//! Opens a loader as an application does, for `oclcache doctor`, in a process of its own that may crash.
//!
//! The library itself never calls a loader. The linker leaves this module out of it.

use std::ffi::{CStr, c_char, c_void};
use std::path::PathBuf;
use std::ptr::{null, null_mut};
use std::time::{Duration, Instant};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL, RTLD_NOW};
use opencl_sys::*;

use crate::cl::info;
use crate::cl::{Device, Platform};
use crate::driver::{loaded_paths, path_of};

/// The name that programs are linked with.
const NAME: &str = "libOpenCL.so.1";

/// Queries by which both loaders tell their name and version (ocl_icd.h of ocl-icd: CL_ICDL_VERSION and CL_ICDL_NAME).
const VERSION_OF_LOADER: cl_uint = 2;
const NAME_OF_LOADER: cl_uint = 3;

type InfoOfLoader = unsafe extern "C" fn(cl_uint, usize, *mut c_void, *mut usize) -> cl_int;
type Notify = Option<unsafe extern "C" fn(*mut c_void, *mut c_void)>;
type ContextNotify = Option<unsafe extern "C" fn(*const c_char, *const c_void, usize, *mut c_void)>;

/// A loader that is open.
pub struct Loader {
    library: Library,
}

/// One copy of our library in this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoaderCopy {
    /// Its path, as the dynamic linker knows it.
    pub path: PathBuf,
    /// Its version.
    pub version: String,
    /// Whether it has the functions of a layer for ocl-icd, and for Khronos' loader.
    pub is_layer: [bool; 2],
}

/// Calls a function of the loader by its name.
macro_rules! call {
    ($loader:expr, $name:ident ( $($argument:expr => $type:ty),* $(,)? ) -> $result:ty) => {{
        let name = concat!(stringify!($name), "\0").as_bytes();
        // SAFETY: a function of this name has this type (OpenCL 3.0), and the arguments are
        // valid for it: each call says why.
        unsafe {
            $loader
                .library
                .get::<unsafe extern "C" fn($($type),*) -> $result>(name)
                .ok()
                .map(|function| function($($argument),*))
        }
    }};
}

impl Loader {
    /// Opens the loader that a program in this environment gets.
    ///
    /// # Errors
    /// The dynamic linker's words.
    pub fn open() -> Result<Loader, String> {
        // SAFETY: initializers of the loader run, as in every OpenCL program.
        let library = unsafe { Library::open(Some(NAME), RTLD_NOW | RTLD_LOCAL) };
        let library = library.map_err(|error| {
            let source = std::error::Error::source(&error);
            source.map_or_else(|| error.to_string(), |source| source.to_string())
        })?;
        Ok(Loader { library })
    }

    /// Its file.
    pub fn file(&self) -> Option<PathBuf> {
        // SAFETY: only the address is taken.
        let function = unsafe { self.library.get::<*const c_void>(c"clGetPlatformIDs") };
        path_of(function.ok()?.into_raw() as usize)
    }

    /// Its name and version, if it tells them. The loader opens the drivers for that.
    pub fn words(&self) -> Option<(String, String)> {
        // A C string. ocl-icd exports it by no other way.
        let address = call!(self, clGetExtensionFunctionAddress(
            c"clGetICDLoaderInfoOCLICD".as_ptr() => *const c_char
        ) -> *mut c_void);
        let address = address.filter(|address| !address.is_null())?;
        // SAFETY: a function of this name has this type (ocl_icd.h).
        let ask = unsafe { std::mem::transmute::<*mut c_void, InfoOfLoader>(address) };
        let one = |name: cl_uint| {
            // SAFETY: a query as all others, whose arguments are those of `info::ask`.
            let answer =
                info::ask(|size, value, size_ret| unsafe { ask(name, size, value, size_ret) });
            answer.ok().map(|bytes| text(&bytes))
        };
        Some((one(NAME_OF_LOADER)?, one(VERSION_OF_LOADER)?))
    }

    /// All platforms, in the loader's order.
    pub fn platforms(&self) -> Vec<Platform> {
        // Room for as many as are said.
        let ids = self.ids(|count, ids, found| {
            call!(self, clGetPlatformIDs(
                count => cl_uint, ids => *mut *mut c_void, found => *mut cl_uint
            ) -> cl_int)
        });
        ids.into_iter().map(Platform::new).collect()
    }

    /// All devices of a platform.
    pub fn devices(&self, platform: Platform) -> Vec<Device> {
        // The loader's own platform, and room for as many as are said.
        let ids = self.ids(|count, ids, found| {
            call!(self, clGetDeviceIDs(
                platform.raw() => *mut c_void, CL_DEVICE_TYPE_ALL => cl_bitfield,
                count => cl_uint, ids => *mut *mut c_void, found => *mut cl_uint
            ) -> cl_int)
        });
        ids.into_iter().map(Device::new).collect()
    }

    fn ids(
        &self,
        query: impl Fn(cl_uint, *mut *mut c_void, *mut cl_uint) -> Option<cl_int>,
    ) -> Vec<*mut c_void> {
        let mut count = 0;
        if query(0, null_mut(), &mut count) != Some(CL_SUCCESS) {
            return Vec::new();
        }
        let mut ids = vec![null_mut(); count as usize];
        if query(count, ids.as_mut_ptr(), null_mut()) != Some(CL_SUCCESS) {
            return Vec::new();
        }
        ids
    }

    /// CL_PLATFORM_NAME.
    pub fn platform_name(&self, platform: Platform) -> String {
        // The loader's own platform; the rest is of `ask`.
        let answer = info::ask(|size, value, size_ret| {
            call!(self, clGetPlatformInfo(
                platform.raw() => *mut c_void, CL_PLATFORM_NAME => cl_uint,
                size => usize, value => *mut c_void, size_ret => *mut usize
            ) -> cl_int)
            .unwrap_or(CL_INVALID_VALUE)
        });
        text(&answer.unwrap_or_default())
    }

    /// CL_DEVICE_NAME.
    pub fn device_name(&self, device: Device) -> String {
        // The loader's own device; the rest is of `ask`.
        let answer = info::ask(|size, value, size_ret| {
            call!(self, clGetDeviceInfo(
                device.raw() => *mut c_void, CL_DEVICE_NAME => cl_uint,
                size => usize, value => *mut c_void, size_ret => *mut usize
            ) -> cl_int)
            .unwrap_or(CL_INVALID_VALUE)
        });
        text(&answer.unwrap_or_default())
    }

    /// Builds a program for a device, makes its kernel, and tells how long the build took.
    ///
    /// # Errors
    /// What failed, with the driver's code or words, for people.
    pub fn build(&self, device: Device, source: &CStr, kernel: &CStr) -> Result<Duration, String> {
        let failed = |what: &str, code: cl_int| format!("{what} fails with {code}");
        let device = device.raw();
        let mut code = CL_INVALID_VALUE;
        // One device, neither properties nor a callback.
        let context = call!(self, clCreateContext(
            null() => *const c_void, 1 => cl_uint, &device => *const *mut c_void,
            None => ContextNotify, null_mut() => *mut c_void, &mut code => *mut cl_int
        ) -> *mut c_void)
        .filter(|context| !context.is_null())
        .ok_or_else(|| failed("clCreateContext", code))?;
        // One text that ends with a NUL.
        let program = call!(self, clCreateProgramWithSource(
            context => *mut c_void, 1 => cl_uint, &source.as_ptr() => *const *const c_char,
            null() => *const usize, &mut code => *mut cl_int
        ) -> *mut c_void)
        .filter(|program| !program.is_null())
        .ok_or_else(|| failed("clCreateProgramWithSource", code));
        let built = program.and_then(|program| {
            let begun = Instant::now();
            // The program's own device, no options and no callback.
            let code = call!(self, clBuildProgram(
                program => *mut c_void, 1 => cl_uint, &device => *const *mut c_void,
                c"".as_ptr() => *const c_char, None => Notify, null_mut() => *mut c_void
            ) -> cl_int);
            let took = begun.elapsed();
            let built = match code {
                Some(CL_SUCCESS) => self.make_kernel(program, kernel).map(|()| took),
                code => Err(failed("clBuildProgram", code.unwrap_or(CL_INVALID_VALUE))),
            };
            // The reference of clCreateProgramWithSource.
            call!(self, clReleaseProgram(program => *mut c_void) -> cl_int);
            built
        });
        // The reference of clCreateContext.
        call!(self, clReleaseContext(context => *mut c_void) -> cl_int);
        built
    }

    fn make_kernel(&self, program: *mut c_void, name: &CStr) -> Result<(), String> {
        let mut code = CL_INVALID_VALUE;
        // A program that is built, and a C string.
        let kernel = call!(self, clCreateKernel(
            program => *mut c_void, name.as_ptr() => *const c_char, &mut code => *mut cl_int
        ) -> *mut c_void);
        let kernel = kernel
            .filter(|kernel| !kernel.is_null())
            .ok_or_else(|| format!("clCreateKernel fails with {code}"))?;
        // The reference of clCreateKernel.
        call!(self, clReleaseKernel(kernel => *mut c_void) -> cl_int);
        Ok(())
    }
}

fn text(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    String::from_utf8_lossy(&bytes[..end.unwrap_or(bytes.len())]).into_owned()
}

/// The copies of our library in this process.
pub fn copies() -> Vec<LoaderCopy> {
    let own = std::env::current_exe().ok();
    let paths = loaded_paths()
        .into_iter()
        .filter(|path| own.as_ref() != Some(path));
    paths.filter_map(copy).collect()
}

fn copy(path: PathBuf) -> Option<LoaderCopy> {
    // SAFETY: nothing is loaded, so nothing runs.
    let library =
        unsafe { Library::open(Some(&path), RTLD_LAZY | RTLD_LOCAL | libc::RTLD_NOLOAD) }.ok()?;
    // SAFETY: a function of this name is ours, and gives a C string that stays.
    let version = unsafe {
        let version = library.get::<unsafe extern "C" fn() -> *const c_char>(c"oclcache_version");
        CStr::from_ptr(version.ok()?())
            .to_string_lossy()
            .into_owned()
    };
    // SAFETY: only whether there is such a function is asked.
    let has = |name: &CStr| unsafe { library.get::<*const c_void>(name) }.is_ok();
    Some(LoaderCopy {
        is_layer: [has(c"clInitLayer"), has(c"clInitLayerWithProperties")],
        path,
        version,
    })
}
