//! A minimal ICD loader that does what Khronos' newest does, as far as a cache below it can tell.
//!
//! - It asks each library for the two functions of ICD 2.0 before it asks for platforms, fills a table of its own for each
//!   platform that is tagged, lets the driver keep its address, and calls tagged objects through that.
//! - Layers are made with clInitLayerWithProperties, the first of `OPENCL_LAYERS` nearest the driver; none is called meanwhile.
//! - A library without a platform is closed at once. At exit all calls fail, layers are told to end and closed, the outermost
//!   first, then the libraries that say they may be closed.
//!
//! | variable | meaning |
//! |---|---|
//! | `OCL_ICD_FILENAMES`, `OCL_ICD_VENDORS` | libraries, and a directory of `.icd` files |
//! | `OPENCL_LAYERS` | layers |
//! | `LOADER_ENTRIES` | how many entries a layer is given (150) |
//! | `LOADER_ASKS_LATE` | the functions of ICD 2.0 are asked for behind the platforms, and not of a library without any, as ocl-icd does |
//! | `LOADER_KEEPS_TABLES` | a driver that was tagged when it was opened is called through the loader's table, whatever its own says later |
//! | `LOADER_LOG` | a file to which each step is appended as one line |

// The whole library is the C ABI of OpenCL: raw handles in, function pointers out.
#![allow(unsafe_code)]

mod functions;
#[path = "../slots.rs"]
mod slots;

use std::ffi::{CStr, CString, c_char, c_void};
use std::io::Write;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::{env, fs, ptr};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use opencl_sys::*;

use functions::{KEPT, at, dispatch, failing, main, missing};
use slots::{ICD2_TAG, SLOTS};

const PLATFORM_UNLOADABLE: cl_platform_info = 0x0921;
const NOT_FOUND: cl_int = -1001;

/// A platform, with the handle of its library.
struct Platform {
    handle: usize,
    library: usize,
    unloadable: bool,
}

struct Layer {
    library: Library,
    deinit: unsafe extern "C" fn() -> cl_int,
}

struct Loader {
    platforms: Vec<Platform>,
}

static LOADER: OnceLock<Loader> = OnceLock::new();
static LAYERS: std::sync::Mutex<Vec<Layer>> = std::sync::Mutex::new(Vec::new());
/// The table of the outermost layer; NULL without one.
static FIRST: AtomicPtr<usize> = AtomicPtr::new(ptr::null_mut());

fn log(line: &str) {
    let Some(path) = env::var_os("LOADER_LOG") else {
        return;
    };
    if let Ok(mut file) = fs::File::options().append(true).create(true).open(path) {
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}

fn loader() -> &'static Loader {
    LOADER.get_or_init(|| {
        let mut loader = Loader {
            platforms: Vec::new(),
        };
        for path in drivers() {
            // SAFETY: a driver's constructors are run by every loader in the same way.
            match unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_LOCAL) } {
                Ok(library) => loader.add(&path, library),
                Err(_) => log(&format!("not loadable {path}")),
            }
        }
        for path in list("OPENCL_LAYERS") {
            add_layer(&path);
        }
        loader
    })
}

fn list(variable: &str) -> Vec<String> {
    let value = env::var(variable).unwrap_or_default();
    let parts = value.split(':').filter(|part| !part.is_empty());
    parts.map(str::to_owned).collect()
}

fn drivers() -> Vec<String> {
    let mut drivers = list("OCL_ICD_FILENAMES");
    let directory = env::var_os("OCL_ICD_VENDORS").map(PathBuf::from);
    let files = directory.and_then(|directory| fs::read_dir(directory).ok());
    for file in files.into_iter().flatten().flatten() {
        let path = file.path();
        if path.extension().is_some_and(|extension| extension == "icd") {
            let text = fs::read_to_string(path).unwrap_or_default();
            drivers.push(text.trim_end_matches('\n').to_owned());
        }
    }
    drivers
}

type Address = unsafe extern "C" fn(*const c_char) -> *mut c_void;
type PlatformIds = unsafe extern "C" fn(cl_uint, *mut cl_platform_id, *mut cl_uint) -> cl_int;
type AddressForPlatform = unsafe extern "C" fn(cl_platform_id, *const c_char) -> *mut c_void;
type SetData = unsafe extern "C" fn(cl_platform_id, *mut c_void) -> cl_int;
type PlatformInfo = unsafe extern "C" fn(
    cl_platform_id,
    cl_platform_info,
    usize,
    *mut c_void,
    *mut usize,
) -> cl_int;

impl Loader {
    fn add(&mut self, path: &str, library: Library) {
        let handle = library.into_raw();
        // SAFETY: the handle just taken.
        let library = unsafe { Library::from_raw(handle) };
        let number = handle as usize;
        if self.platforms.iter().any(|known| known.library == number) {
            return log(&format!("again {path}"));
        }
        let before = self.platforms.len();
        // SAFETY: as in every loader.
        if unsafe { self.add_platforms(&library, number) }.is_none() {
            log(&format!("no driver {path}"));
        }
        log(&format!(
            "{} platforms {path}",
            self.platforms.len() - before
        ));
        if self.platforms.len() > before {
            std::mem::forget(library);
        } else {
            drop(library);
            log(&format!("closed {path}"));
        }
    }

    /// # Safety
    /// The library is a driver's.
    unsafe fn add_platforms(&mut self, library: &Library, number: usize) -> Option<()> {
        // SAFETY: functions of these names have these types (cl_khr_icd); the calls are as it demands.
        unsafe {
            let address = *library
                .get::<Address>(c"clGetExtensionFunctionAddress")
                .ok()?;
            let ids = named::<PlatformIds>(address, c"clIcdGetPlatformIDsKHR")?;
            let of_icd2 = || {
                (
                    named::<AddressForPlatform>(address, c"clIcdGetFunctionAddressForPlatformKHR"),
                    named::<SetData>(address, c"clIcdSetPlatformDispatchDataKHR"),
                )
            };
            let early = env::var_os("LOADER_ASKS_LATE").is_none().then(of_icd2);
            let mut count = 0;
            if ids(0, ptr::null_mut(), &mut count) != CL_SUCCESS {
                return Some(());
            }
            let mut platforms = vec![ptr::null_mut(); count as usize];
            if ids(count, platforms.as_mut_ptr(), ptr::null_mut()) != CL_SUCCESS {
                return Some(());
            }
            let (by_name, set_data) = early.unwrap_or_else(of_icd2);
            for platform in platforms {
                if platform.is_null() || at(platform, 0) == 0 {
                    continue;
                }
                let tagged = at(at(platform, 0) as *mut c_void, 0) == ICD2_TAG;
                if tagged {
                    let (Some(by_name), Some(set_data)) = (by_name, set_data) else {
                        log("tagged, without the functions");
                        continue;
                    };
                    set_data(platform, own_table(platform, by_name).cast());
                    if env::var_os("LOADER_KEEPS_TABLES").is_some() {
                        KEPT.lock().expect("no panic").push(at(platform, 0));
                    }
                }
                log(if tagged { "tagged" } else { "not tagged" });
                let info: PlatformInfo = std::mem::transmute(*dispatch(platform).add(1));
                let mut unloadable: cl_bool = 0;
                let place = (&raw mut unloadable).cast();
                info(
                    platform,
                    PLATFORM_UNLOADABLE,
                    size_of::<cl_bool>(),
                    place,
                    ptr::null_mut(),
                );
                self.platforms.push(Platform {
                    handle: platform as usize,
                    library: number,
                    unloadable: unloadable == CL_TRUE,
                });
            }
        }
        Some(())
    }
}

/// # Safety
/// `F` is the type of the function of this name.
unsafe fn named<F: Copy>(address: Address, name: &CStr) -> Option<F> {
    // SAFETY: by the contract; the name is a C string.
    unsafe {
        let function = address(name.as_ptr());
        (!function.is_null()).then(|| std::mem::transmute_copy::<*mut c_void, F>(&function))
    }
}

/// The table of a tagged platform: each function asked for once, by name.
fn own_table(platform: cl_platform_id, by_name: AddressForPlatform) -> *mut usize {
    let mut table = Vec::with_capacity(SLOTS);
    for slot in slots::names() {
        let name = CString::new(slot).expect("no NUL");
        // SAFETY: the driver's function with its own platform.
        let function = unsafe { by_name(platform, name.as_ptr()) } as usize;
        table.push(match function {
            0 => missing(slot),
            function => function,
        });
    }
    table.leak().as_mut_ptr()
}

fn entries() -> usize {
    let entries = env::var("LOADER_ENTRIES").ok();
    entries.map_or(SLOTS, |text| {
        text.parse().expect("LOADER_ENTRIES is a number")
    })
}

type InitLayer = unsafe extern "C" fn(
    cl_uint,
    *const usize,
    *mut cl_uint,
    *mut *const usize,
    *const c_void,
) -> cl_int;

fn add_layer(path: &str) {
    // SAFETY: a layer's constructors, and functions of the types of cl_loader_layers.
    unsafe {
        let Ok(library) = Library::open(Some(path), RTLD_NOW | RTLD_LOCAL) else {
            return log(&format!("not loadable {path}"));
        };
        let (Ok(init), Ok(deinit)) = (
            library.get::<InitLayer>(c"clInitLayerWithProperties"),
            library.get::<unsafe extern "C" fn() -> cl_int>(c"clDeinitLayer"),
        ) else {
            return log(&format!("no layer {path}"));
        };
        let mut target = match FIRST.load(Ordering::Acquire) {
            first if first.is_null() => main().to_vec(),
            first => std::slice::from_raw_parts(first, SLOTS).to_vec(),
        };
        target.resize(entries().max(SLOTS), failing());
        let target = target.leak();
        let (mut count, mut table) = (0, ptr::null());
        let given = entries() as cl_uint;
        let code = init(given, target.as_ptr(), &mut count, &mut table, ptr::null());
        if code != CL_SUCCESS {
            return log(&format!("layer refuses {code} {path}"));
        }
        let mut merged = target[..SLOTS].to_vec();
        let taken = (count as usize).min(entries()).min(SLOTS);
        for (slot, place) in merged.iter_mut().enumerate().take(taken) {
            match *table.add(slot) {
                0 => log(&format!("inherited {slot}")),
                function => *place = function,
            }
        }
        FIRST.store(merged.leak().as_mut_ptr(), Ordering::Release);
        log(&format!("layer {count} {path}"));
        let deinit = *deinit;
        LAYERS
            .lock()
            .expect("no thread panics with it")
            .push(Layer { library, deinit });
    }
}

#[used]
#[unsafe(link_section = ".fini_array")]
static END: extern "C" fn() = end;

extern "C" fn end() {
    let Some(loader) = LOADER.get() else {
        return;
    };
    FIRST.store(
        vec![failing(); SLOTS].leak().as_mut_ptr(),
        Ordering::Release,
    );
    for layer in std::mem::take(&mut *LAYERS.lock().expect("no thread panics with it"))
        .into_iter()
        .rev()
    {
        // SAFETY: the layer's own function, which is called once.
        log(&format!("deinit {}", unsafe { (layer.deinit)() }));
        drop(layer.library);
    }
    let mut closed = Vec::new();
    for platform in loader.platforms.iter().rev() {
        if platform.unloadable && !closed.contains(&platform.library) {
            closed.push(platform.library);
            // SAFETY: the one reference that was kept.
            drop(unsafe { Library::from_raw(platform.library as *mut c_void) });
            log("unloaded");
        }
    }
}
