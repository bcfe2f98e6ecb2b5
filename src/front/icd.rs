//! The ICD door: what a loader asks of a driver's library, answered for the real drivers.
//!
//! A loader asks for `clGetExtensionFunctionAddress`, through it for `clIcdGetPlatformIDsKHR` and, in ocl-icd's case, for
//! `clGetPlatformInfo`, which it then uses for all platforms of the library. libOpenCL is never called from here: loaders
//! are in the middle of their own initialisation.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use once_cell::sync::OnceCell;
use opencl_sys::*;

use super::vendors::{self, Identity};
use crate::cl::Platform;
use crate::cl::info::Reply;
use crate::config::Config;
use crate::driver::{Driver, Library, OpenError};
use crate::{cache, hook, log};

/// The answer of clIcdGetPlatformIDsKHR where there is no platform (cl_khr_icd).
const CL_PLATFORM_NOT_FOUND_KHR: cl_int = -1001;

/// All drivers, opened once.
struct Icd {
    libraries: Vec<Library>,
    reported: Vec<Platform>,
}

static ICD: OnceCell<Icd> = OnceCell::new();

thread_local! {
    /// A driver that asks a loader for platforms while it is being opened comes back here, and is told that there are none.
    static OPENING: Cell<bool> = const { Cell::new(false) };
}

/// Where libraries that are opened from inside this one look: for a loader's function, and for ourselves.
#[unsafe(no_mangle)]
extern "C" fn clGetExtensionFunctionAddress(name: *const c_char) -> *mut c_void {
    catch_unwind(|| extension_function_address(name)).unwrap_or(std::ptr::null_mut())
}

/// The version, as a C string. Also the mark by which a copy of this library is recognised.
#[unsafe(no_mangle)]
extern "C" fn oclcache_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("the version has a NUL"),
        };
    VERSION.as_ptr()
}

fn extension_function_address(name: *const c_char) -> *mut c_void {
    if name.is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: a C string (OpenCL 3.0, 5.20).
    let name = unsafe { CStr::from_ptr(name) };
    match name.to_bytes() {
        b"clIcdGetPlatformIDsKHR" => icd_get_platform_ids as *const () as *mut c_void,
        b"clGetPlatformInfo" => get_platform_info as *const () as *mut c_void,
        b"clGetExtensionFunctionAddress" => private_address as *const () as *mut c_void,
        _ => ICD
            .get()
            .map_or(std::ptr::null_mut(), |icd| icd.extension_function(name)),
    }
}

/// What is handed out by name: the exported function's address could resolve to the loader's.
unsafe extern "C" fn private_address(name: *const c_char) -> *mut c_void {
    catch_unwind(|| extension_function_address(name)).unwrap_or(std::ptr::null_mut())
}

unsafe extern "C" fn icd_get_platform_ids(
    num_entries: cl_uint,
    platforms: *mut cl_platform_id,
    num_platforms: *mut cl_uint,
) -> cl_int {
    if num_entries == 0 && !platforms.is_null() || platforms.is_null() && num_platforms.is_null() {
        return CL_INVALID_VALUE;
    }
    if OPENING.replace(true) {
        return CL_PLATFORM_NOT_FOUND_KHR;
    }
    let opened = catch_unwind(|| ICD.get_or_init(Icd::open));
    OPENING.set(false);
    let icd = match opened {
        Ok(icd) if !icd.reported.is_empty() => icd,
        _ => return CL_PLATFORM_NOT_FOUND_KHR,
    };
    if !platforms.is_null() {
        for (index, platform) in icd.reported.iter().take(num_entries as usize).enumerate() {
            // SAFETY: there is room for `num_entries` platforms (OpenCL 3.0, 4.1).
            unsafe { platforms.add(index).write(platform.raw()) };
        }
    }
    if !num_platforms.is_null() {
        // SAFETY: not NULL, so it points to a cl_uint (OpenCL 3.0, 4.1).
        unsafe { num_platforms.write(icd.reported.len() as cl_uint) };
    }
    CL_SUCCESS
}

unsafe extern "C" fn get_platform_info(
    platform: cl_platform_id,
    name: cl_platform_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> cl_int {
    let answer = catch_unwind(AssertUnwindSafe(|| {
        let platform = Platform::new(platform);
        let icd = ICD.get()?;
        let library = icd
            .libraries
            .iter()
            .find(|library| library.platforms().contains(&platform))?;
        Some(library.platform_info(
            platform,
            name,
            Reply {
                size,
                value,
                size_ret,
            },
        ))
    }));
    answer.ok().flatten().unwrap_or(CL_INVALID_PLATFORM)
}

impl Icd {
    fn open() -> Icd {
        quiet_panics();
        if is_secure() {
            return Self::forward_registered();
        }
        let config = Config::read();
        if let Some((filter, file)) = config.log() {
            log::start(&filter, file.as_deref());
        }
        for complaint in &config.complaints {
            tracing::warn!("{complaint}");
        }
        let environment = |name: &str| std::env::var_os(name);
        let vendors = vendors::find(&config, &environment, &Library::is_open, &identify);
        let mut icd = Icd {
            libraries: Vec::new(),
            reported: Vec::new(),
        };
        for vendor in vendors {
            icd.add(&vendor, !config.disable());
        }
        if !config.disable() {
            cache::announce();
        }
        icd
    }

    /// In a program with raised privileges: the registered drivers, and nothing of us.
    fn forward_registered() -> Icd {
        let mut icd = Icd {
            libraries: Vec::new(),
            reported: Vec::new(),
        };
        for vendor in vendors::registered(&Library::is_open, &identify) {
            icd.add(&vendor, false);
        }
        icd
    }

    fn add(&mut self, vendor: &vendors::Vendor, hook_it: bool) {
        let library = match Library::open(&vendor.library) {
            Ok(library) => library,
            Err(OpenError::Ourselves) => return,
            Err(error) => {
                let words = error.to_string();
                tracing::warn!(
                    driver = %log::path(&vendor.library), why = %log::text(words.as_bytes()), "left out: not loadable"
                );
                return;
            }
        };
        if self
            .libraries
            .iter()
            .any(|known| known.handle() == library.handle())
        {
            return;
        }
        let tables = if hook_it {
            Driver::hook(&library, hook::table)
        } else {
            0
        };
        tracing::debug!(
            driver = %log::path(&vendor.library),
            platforms = library.platforms().len(),
            tables,
            reported = !vendor.loaded_by_loader,
            "driver"
        );
        if !vendor.loaded_by_loader {
            self.reported.extend(library.platforms());
        }
        self.libraries.push(library);
    }

    /// clGetExtensionFunctionAddress without a platform: the first driver that knows the name.
    fn extension_function(&self, name: &CStr) -> *mut c_void {
        for library in &self.libraries {
            let own = library.extension_function(name);
            if own.is_null() {
                continue;
            }
            let hooked = Driver::of_library(library).and_then(|driver| hook::by_name(driver, name));
            return hooked.unwrap_or(own);
        }
        std::ptr::null_mut()
    }
}

fn identify(library: &Path) -> Identity {
    match Library::identify(library) {
        Ok(None) => Identity::Us,
        Ok(Some(handle)) => Identity::Other(handle),
        Err(_) => Identity::Unknown,
    }
}

/// Whether the program runs with privileges that its caller does not have (setuid, setgid, file capabilities).
fn is_secure() -> bool {
    // SAFETY: getauxval has no preconditions.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// A panic of ours is logged; standard error is the application's.
fn quiet_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let words = panic.to_string();
        tracing::error!(panic = %log::text(words.as_bytes()), "a fault of oclcache; the driver is called instead");
    }));
}
