//! The ICD door: what a loader asks of a driver's library, answered for the real drivers.
//!
//! A loader asks for `clGetExtensionFunctionAddress`, through it for `clIcdGetPlatformIDsKHR` and, in ocl-icd's case, for
//! `clGetPlatformInfo`, which it then uses for all platforms of the library. libOpenCL is never called from here: loaders
//! are in the middle of their own initialization.
//!
//! Loaders with ICD 2.0 ask each library for two more names, before they ask for its platforms (Khronos' loader, icd.c) or
//! afterwards (ocl-icd). Then the tags of all drivers are replaced, so that such loaders call the drivers through the drivers' own
//! tables, where the hooks are (`driver::loader_tables`). It does not matter which of the two opened a driver. A driver that stays
//! tagged can be hooked only if its platforms come from us: the loader asks for every function by name, gets our hooks, and calls
//! them through its own table, whose address it lets the driver keep in its objects.

use std::cell::Cell;
use std::ffi::{CStr, c_char, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use once_cell::sync::OnceCell;
use opencl_sys::*;

use super::vendors::{self, VendorIdentity};
use super::{copies, enumeration};
use crate::cl::Platform;
use crate::cl::info::Reply;
use crate::driver::float_registers::{OwnWork, as_program};
use crate::driver::{Driver, DriverLibrary, OpenError};
use crate::fork_safety::Mutex;
use crate::{cache, hook, log};

/// The answer of clIcdGetPlatformIDsKHR where there is no platform (cl_khr_icd).
const CL_PLATFORM_NOT_FOUND_KHR: cl_int = -1001;

/// All drivers, opened once.
struct Icd {
    libraries: Vec<DriverLibrary>,
    /// Each with the number of its library.
    reported: Vec<(Platform, usize)>,
    /// Whether a loader was told that there are drivers of ICD 2.0.
    answered_icd2: AtomicBool,
    /// Whether nothing is hooked: the cache is off, or the program has raised privileges.
    leaves_drivers_alone: bool,
    /// The numbers of the libraries of which the log has said that they are not cached.
    warned: Mutex<Vec<usize>>,
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

fn extension_function_address(name: *const c_char) -> *mut c_void {
    if name.is_null() {
        return std::ptr::null_mut();
    }
    if let Some(own) = copies::active().and_then(|copy| copy.extension_function_address) {
        // SAFETY: the same function of another copy, with the caller's own argument.
        return unsafe { own(name) };
    }
    // SAFETY: a C string (OpenCL 3.0, 5.20).
    let name = unsafe { CStr::from_ptr(name) };
    match name.to_bytes() {
        b"clIcdGetPlatformIDsKHR" => {
            enumeration::asked();
            icd_get_platform_ids as *const () as *mut c_void
        }
        b"clGetPlatformInfo" => get_platform_info as *const () as *mut c_void,
        b"clGetExtensionFunctionAddress" => private_address as *const () as *mut c_void,
        b"clIcdGetFunctionAddressForPlatformKHR" => {
            icd2(function_address_for_platform as *const () as *mut c_void)
        }
        b"clIcdSetPlatformDispatchDataKHR" => icd2(set_dispatch_data as *const () as *mut c_void),
        _ => ICD
            .get()
            .map_or(std::ptr::null_mut(), |icd| icd.extension_function(name)),
    }
}

/// What is handed out by name: the exported function's address could resolve to the loader's.
unsafe extern "C" fn private_address(name: *const c_char) -> *mut c_void {
    catch_unwind(|| extension_function_address(name)).unwrap_or(std::ptr::null_mut())
}

/// A function of ICD 2.0, for a loader that knows of it, if a driver behind us stays tagged. For all others it is as for an older
/// loader.
fn icd2(function: *mut c_void) -> *mut c_void {
    let Some(icd) = Icd::get() else {
        return std::ptr::null_mut();
    };
    icd.lead_loaders_through(&|_, _| true);
    let is_tagged = |(platform, library): &(Platform, usize)| {
        icd.libraries[*library].is_dispatched_by_loader(*platform)
    };
    if !icd.reported.iter().any(is_tagged) {
        return std::ptr::null_mut();
    }
    icd.answered_icd2.store(true, Ordering::Relaxed);
    function
}

/// A function of a platform's driver, as a loader puts it into its table. NULL where the driver has none: the loader then
/// answers for it.
unsafe extern "C" fn function_address_for_platform(
    platform: cl_platform_id,
    name: *const c_char,
) -> *mut c_void {
    let function = catch_unwind(|| {
        let platform = Platform::new(platform);
        // SAFETY: a C string (cl_khr_icd 2.0).
        let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) })?;
        let own = ICD
            .get()?
            .library_of(platform)?
            .function_for_platform(platform, name);
        if own.is_null() {
            return None;
        }
        let hooked = Driver::of_platform(platform).and_then(|driver| hook::by_name(driver, name));
        Some(hooked.unwrap_or(own))
    });
    function.ok().flatten().unwrap_or(std::ptr::null_mut())
}

unsafe extern "C" fn set_dispatch_data(platform: cl_platform_id, data: *mut c_void) -> cl_int {
    let answer = catch_unwind(|| {
        let platform = Platform::new(platform);
        Some(
            ICD.get()?
                .library_of(platform)?
                .set_dispatch_data(platform, data),
        )
    });
    answer.ok().flatten().unwrap_or(CL_INVALID_PLATFORM)
}

unsafe extern "C" fn icd_get_platform_ids(
    num_entries: cl_uint,
    platforms: *mut cl_platform_id,
    num_platforms: *mut cl_uint,
) -> cl_int {
    if num_entries == 0 && !platforms.is_null() || platforms.is_null() && num_platforms.is_null() {
        return CL_INVALID_VALUE;
    }
    let icd = match Icd::get() {
        Some(icd) if !enumeration::is_repeated() => icd,
        _ => return CL_PLATFORM_NOT_FOUND_KHR,
    };
    let knows_icd2 = OnceCell::new();
    icd.lead_loaders_through(&|_, _| *knows_icd2.get_or_init(enumeration::caller_knows_icd2));
    let reported = icd.reported();
    if reported.is_empty() {
        return CL_PLATFORM_NOT_FOUND_KHR;
    }
    if !platforms.is_null() {
        enumeration::given();
        for (index, platform) in reported.iter().take(num_entries as usize).enumerate() {
            // SAFETY: there is room for `num_entries` platforms (OpenCL 3.0, 4.1).
            unsafe { platforms.add(index).write(platform.raw()) };
        }
    }
    if !num_platforms.is_null() {
        // SAFETY: not NULL, so it points to a cl_uint (OpenCL 3.0, 4.1).
        unsafe { num_platforms.write(reported.len() as cl_uint) };
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
        let library = ICD.get()?.library_of(platform)?;
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
    /// Opened at the first call; None while this thread opens it, or if that failed.
    fn get() -> Option<&'static Icd> {
        if OPENING.replace(true) {
            return None;
        }
        let opened = catch_unwind(|| ICD.get_or_init(Icd::open));
        OPENING.set(false);
        opened.ok()
    }

    fn open() -> Icd {
        let _work = OwnWork::begin();
        let Some(config) = super::open() else {
            return Self::forward_registered();
        };
        let environment = |name: &str| std::env::var_os(name);
        let vendors = vendors::find(config, &environment, &DriverLibrary::is_open, &identify);
        let mut icd = Icd {
            libraries: Vec::new(),
            reported: Vec::new(),
            answered_icd2: AtomicBool::new(false),
            leaves_drivers_alone: config.disable(),
            warned: Mutex::default(),
        };
        for vendor in vendors {
            icd.add(&vendor, !config.disable());
        }
        icd.lead_loaders_through(&DriverLibrary::has_dispatch_data);
        if !config.disable() {
            cache::hello(config);
            cache::early_reading::allow(config);
        }
        icd
    }

    /// In a program with raised privileges: the registered drivers, and nothing of us.
    fn forward_registered() -> Icd {
        let mut icd = Icd {
            libraries: Vec::new(),
            reported: Vec::new(),
            answered_icd2: AtomicBool::new(false),
            leaves_drivers_alone: true,
            warned: Mutex::default(),
        };
        for vendor in vendors::registered(&DriverLibrary::is_open, &identify) {
            icd.add(&vendor, false);
        }
        icd
    }

    fn add(&mut self, vendor: &vendors::Vendor, hook_it: bool) {
        // A loader would open it.
        let library = match as_program(|| DriverLibrary::open(&vendor.library)) {
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
            let number = self.libraries.len();
            let platforms = library.platforms().iter();
            self.reported
                .extend(platforms.map(|platform| (*platform, number)));
        }
        self.libraries.push(library);
    }

    /// The platforms for the loader. One that knows of ICD 2.0 asks once for all drivers behind us whether they are of that kind,
    /// so what it would refuse of a driver alone is left out here.
    fn reported(&self) -> Vec<Platform> {
        let answered = self.answered_icd2.load(Ordering::Relaxed);
        let mut reported = self.reported.clone();
        reported.retain(|(platform, library)| {
            !(answered && self.libraries[*library].is_refused_by_loader(*platform))
        });
        reported.into_iter().map(|(platform, _)| platform).collect()
    }

    fn library_of(&self, platform: Platform) -> Option<&DriverLibrary> {
        self.libraries
            .iter()
            .find(|library| library.platforms().contains(&platform))
    }

    /// Leads a loader with ICD 2.0 through the tables of the drivers that it calls. That there is such a loader is known once it has
    /// asked us for the functions of ICD 2.0, by its own constants, or once a platform has a table of a loader's. Under older loaders
    /// alone nothing is changed.
    fn lead_loaders_through(&self, by_loader: &dyn Fn(&DriverLibrary, Platform) -> bool) {
        if self.leaves_drivers_alone {
            return;
        }
        for (number, library) in self.libraries.iter().enumerate() {
            let is_called = |platform: &Platform| {
                library.is_dispatched_by_loader(*platform) && by_loader(library, *platform)
            };
            if !library.platforms().iter().any(is_called) {
                continue;
            }
            let Err(why) = Driver::lead_loaders_through(library, hook::table) else {
                continue;
            };
            let mut reported = self.reported.iter();
            let is_beside = reported.all(|(_, reported)| *reported != number);
            if is_beside && self.is_new_warning(number) {
                tracing::warn!(
                    driver = %log::path(library.path()), %why,
                    "a loader calls this driver through a table of its own, so it is not cached; it is if oclcache is registered \
                     alone, with the drivers in OCLCACHE_VENDORS, or as a layer, in OPENCL_LAYERS"
                );
            }
        }
    }

    /// Whether the log has not yet said that this library is not cached.
    fn is_new_warning(&self, library: usize) -> bool {
        let mut warned = self.warned.lock();
        let is_new = !warned.contains(&library);
        if is_new {
            warned.push(library);
        }
        is_new
    }

    /// clGetExtensionFunctionAddress without a platform: that of the driver for which a loader asks, by its ICD suffix, and otherwise the
    /// first driver that knows the name. Drivers may know names of others: by its source, a later PoCL than 3.1 has some of Intel's.
    fn extension_function(&self, name: &CStr) -> *mut c_void {
        let of_suffix = self.libraries.iter().filter_map(|library| {
            let platform = library.platform_of_function(name)?;
            Some((library, platform))
        });
        let all = self.libraries.iter();
        let all = all.filter_map(|library| Some((library, *library.platforms().first()?)));
        for (library, platform) in of_suffix.chain(all) {
            let own = library.extension_function(name);
            if own.is_null() {
                continue;
            }
            let hooked =
                Driver::of_platform(platform).and_then(|driver| hook::by_name(driver, name));
            return hooked.unwrap_or(own);
        }
        std::ptr::null_mut()
    }
}

fn identify(library: &Path) -> VendorIdentity {
    match as_program(|| DriverLibrary::identify(library)) {
        Ok(None) => VendorIdentity::Us,
        Ok(Some(handle)) => VendorIdentity::Other(handle),
        Err(_) => VendorIdentity::Unknown,
    }
}
