//! An ICD library that stands before one real driver and writes down which programs that driver builds.
//!
//! The cache has counters of its own; this library counts independently of them, below whatever else is loaded. It
//! opens the driver that `SPY_DRIVER` names (spelt as in an `.icd` file), puts its functions into the driver's own
//! dispatch tables and appends one line for each event to the file that `SPY_LOG` names:
//!
//! | line | meaning |
//! |---|---|
//! | `create-source`, `create-binary`, `create-il` | a program object was created |
//! | `source-build RC` | clBuildProgram on a program created from source |
//! | `il-build RC` | clBuildProgram on a program created from an intermediate language |
//! | `binary-build RC` | clBuildProgram on a program created from a binary |
//! | `other-build RC` | clBuildProgram on any other program (linked, built-in) |
//! | `compile RC`, `link RC` | clCompileProgram, clLinkProgram |
//! | `binaries-fetched` | clGetProgramInfo for CL_PROGRAM_BINARIES or CL_PROGRAM_BINARY_SIZES |
//!
//! With `SPY_RENAME`, platforms have texts by which no driver is recognized.
//!
//! Handles, platforms and every other function stay the driver's. A loader that asks a driver of ICD 2.0 for its functions by name
//! is given the spy's for those that are counted.
//! The address of an exported function is never taken here: it would resolve to libOpenCL's function of that name.

// Values of queries are in the byte order of the machine.
#![allow(clippy::disallowed_methods)]
// The whole file is the C ABI of OpenCL: raw handles in, function pointers out.
#![allow(unsafe_code)]

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_void};
use std::fs;
use std::io::Write;
use std::mem;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use libloading::os::unix::{Library, RTLD_LAZY, RTLD_LOCAL};
use opencl_sys::cl_function_types::*;
use opencl_sys::{
    CL_INVALID_VALUE, CL_PLATFORM_NAME, CL_PLATFORM_VENDOR, CL_PROGRAM_BINARIES,
    CL_PROGRAM_BINARY_SIZES, CL_PROGRAM_REFERENCE_COUNT, CL_SUCCESS, cl_context, cl_device_id,
    cl_int, cl_platform_id, cl_platform_info, cl_program, cl_program_info, cl_uint,
};

#[allow(dead_code)] // only the mutex is taken
#[path = "../../src/fork_safety.rs"]
mod fork_safety;

#[path = "spy/icd2.rs"]
mod icd2;
#[path = "spy/table.rs"]
mod table;
#[path = "spy/types.rs"]
mod types;

use fork_safety::Mutex;
use table::{Hook, Table, slot};
use types::*;

const PLATFORM_NOT_FOUND: cl_int = -1001;
const CL_PLATFORM_ICD_SUFFIX_KHR: cl_platform_info = 0x0920; // cl_khr_icd

struct Driver {
    library: Library,
    tables: Vec<Table>,
}

#[derive(Clone, Copy)]
enum Origin {
    Source,
    Binary,
    Il,
}

static DRIVER: OnceLock<Option<Driver>> = OnceLock::new();
/// Where each live program came from. A handle is overwritten when it is created anew.
static ORIGINS: Mutex<Option<HashMap<usize, Origin>>> = Mutex::new(None);

fn remember(program: cl_program, origin: Origin) {
    if !program.is_null() {
        ORIGINS
            .lock()
            .get_or_insert_default()
            .insert(program as usize, origin);
    }
}

fn forget(program: cl_program) {
    ORIGINS
        .lock()
        .get_or_insert_default()
        .remove(&(program as usize));
}

fn origin(program: cl_program) -> Option<Origin> {
    ORIGINS
        .lock()
        .get_or_insert_default()
        .get(&(program as usize))
        .copied()
}

/// A variable of the spy's own. Its name is put together here, so that it is in no text of this library: the spy is among the
/// libraries of the driver, and a variable that one of them names is in the key.
fn variable(name: &str) -> Option<std::ffi::OsString> {
    std::env::var_os(format!("SPY_{}", name.to_ascii_uppercase()))
}

/// Appends one line with one write, so that lines of several processes do not mix.
fn log(line: &str) {
    let Some(path) = variable("log") else {
        return;
    };
    if let Ok(mut file) = fs::File::options().append(true).create(true).open(path) {
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}

fn driver() -> Option<&'static Driver> {
    fork_safety::prepare(|| ());
    DRIVER.get_or_init(open).as_ref()
}

/// Opens the real driver and patches the tables of its platforms.
fn open() -> Option<Driver> {
    let path = variable("driver")?;
    // SAFETY: a driver's constructors are run by every loader in the same way.
    let library = unsafe { Library::open(Some(path), RTLD_LAZY | RTLD_LOCAL) }.ok()?;
    let mut driver = Driver {
        library,
        tables: Vec::new(),
    };
    let get_platforms = driver.platform_ids()?;
    let mut count = 0;
    // SAFETY: the documented two-call protocol of clIcdGetPlatformIDsKHR.
    unsafe { get_platforms(0, ptr::null_mut(), &mut count) };
    let mut platforms = vec![ptr::null_mut(); count as usize];
    // SAFETY: as above; the array has `count` elements.
    let code = unsafe { get_platforms(count, platforms.as_mut_ptr(), ptr::null_mut()) };
    if code != CL_SUCCESS || count == 0 {
        return None;
    }
    table::pin();
    for platform in platforms {
        // SAFETY: the ICD extension requires the first word of each object to point to the dispatch table.
        let address = unsafe { *platform.cast::<usize>() };
        if driver.tables.iter().all(|table| table.address != address) {
            let hooks = hooks();
            let mut table = table::patch(platform, address, &hooks)?;
            for hook in &hooks {
                if table.original[hook.slot] == 0 {
                    // SAFETY: a platform of the driver.
                    table.original[hook.slot] =
                        unsafe { icd2::by_name(&driver, platform, hook.name.as_ptr()) };
                }
            }
            driver.tables.push(table);
        }
    }
    Some(driver)
}

/// What goes into a table, and where.
fn hooks() -> [Hook; 9] {
    let hook = |slot, name, function| Hook {
        slot,
        name,
        function,
    };
    [
        hook(
            slot::CREATE_WITH_SOURCE,
            c"clCreateProgramWithSource",
            create_with_source as CreateWithSource as *const c_void,
        ),
        hook(
            slot::CREATE_WITH_BINARY,
            c"clCreateProgramWithBinary",
            create_with_binary as CreateWithBinary as *const c_void,
        ),
        hook(
            slot::RELEASE,
            c"clReleaseProgram",
            release as Release as *const c_void,
        ),
        hook(
            slot::BUILD,
            c"clBuildProgram",
            build as Build as *const c_void,
        ),
        hook(
            slot::GET_INFO,
            c"clGetProgramInfo",
            get_info as GetInfo as *const c_void,
        ),
        hook(
            slot::COMPILE,
            c"clCompileProgram",
            compile as Compile as *const c_void,
        ),
        hook(slot::LINK, c"clLinkProgram", link as Link as *const c_void),
        hook(
            slot::FOR_PLATFORM,
            c"clGetExtensionFunctionAddressForPlatform",
            address_for_platform as AddressForPlatform as *const c_void,
        ),
        hook(
            slot::CREATE_WITH_IL,
            c"clCreateProgramWithIL",
            create_with_il as CreateWithIl as *const c_void,
        ),
    ]
}

impl Driver {
    fn extension(&self, name: &CStr) -> *mut c_void {
        // SAFETY: the symbol has this type in every ICD.
        let found = unsafe {
            self.library
                .get::<clGetExtensionFunctionAddress_fn>("clGetExtensionFunctionAddress")
        };
        let Ok(Some(get)) = found.map(|symbol| *symbol) else {
            return ptr::null_mut();
        };
        // SAFETY: called with a NUL-terminated name, as documented.
        unsafe { get(name.as_ptr()) }
    }

    fn platform_ids(
        &self,
    ) -> Option<unsafe extern "C" fn(cl_uint, *mut cl_platform_id, *mut cl_uint) -> cl_int> {
        let address = self.extension(c"clIcdGetPlatformIDsKHR");
        // SAFETY: a function of this type stands behind this name; NULL becomes None.
        unsafe { mem::transmute::<*mut c_void, clGetPlatformIDs_fn>(address) }
    }
}

/// The function that stood in `index` of the table that `object` points to, of the first table for NULL; where nothing stood, the
/// one that the driver gives by name.
///
/// # Safety
/// `object` is NULL or an object of the driver, and `F` is the type of the function in that slot.
unsafe fn original<F: Copy>(object: *mut c_void, index: usize) -> Option<F> {
    let driver = driver()?;
    let table = if object.is_null() {
        driver.tables.first()?
    } else {
        // SAFETY: the first word of each object is the address of its table.
        let address = unsafe { *object.cast::<usize>() };
        driver
            .tables
            .iter()
            .find(|table| table.address == address)
            .or(driver.tables.first())?
    };
    const { assert!(mem::size_of::<F>() == mem::size_of::<usize>()) };
    // SAFETY: same size; the caller vouches for the type. NULL words stay out.
    (table.original[index] != 0)
        .then(|| unsafe { mem::transmute_copy::<usize, F>(&table.original[index]) })
}

unsafe extern "C" fn create_with_source(
    context: cl_context,
    count: cl_uint,
    strings: *mut *const c_char,
    lengths: *const usize,
    errcode: *mut cl_int,
) -> cl_program {
    // SAFETY: the slot's own type and the application's own arguments.
    let program = unsafe {
        match original::<CreateWithSource>(context, slot::CREATE_WITH_SOURCE) {
            Some(create) => create(context, count, strings, lengths, errcode),
            None => ptr::null_mut(),
        }
    };
    remember(program, Origin::Source);
    log("create-source");
    program
}

unsafe extern "C" fn create_with_il(
    context: cl_context,
    il: *const c_void,
    length: usize,
    errcode: *mut cl_int,
) -> cl_program {
    // SAFETY: the slot's own type and the application's own arguments.
    let program = unsafe {
        match original::<CreateWithIl>(context, slot::CREATE_WITH_IL) {
            Some(create) => create(context, il, length, errcode),
            None => ptr::null_mut(),
        }
    };
    remember(program, Origin::Il);
    log("create-il");
    program
}

/// The driver's clCreateProgramWithILKHR; zero until somebody asked for it.
static CREATE_WITH_IL_KHR: AtomicUsize = AtomicUsize::new(0);

unsafe extern "C" fn create_with_il_khr(
    context: cl_context,
    il: *const c_void,
    length: usize,
    errcode: *mut cl_int,
) -> cl_program {
    let address = CREATE_WITH_IL_KHR.load(Ordering::Acquire);
    // SAFETY: the address is handed out only after it was stored; the extension's function has this type.
    let program = unsafe {
        let create = mem::transmute::<usize, CreateWithIl>(address);
        create(context, il, length, errcode)
    };
    remember(program, Origin::Il);
    log("create-il");
    program
}

/// The driver's answer, but for the one function that makes programs.
unsafe extern "C" fn address_for_platform(
    platform: cl_platform_id,
    name: *const c_char,
) -> *mut c_void {
    // SAFETY: the slot's own type and the application's own arguments.
    let found = unsafe {
        original::<AddressForPlatform>(platform, slot::FOR_PLATFORM)
            .map_or(ptr::null_mut(), |get| get(platform, name))
    };
    // SAFETY: the specification demands a NUL-terminated string; the driver has just read it.
    if found.is_null() || unsafe { CStr::from_ptr(name) } != c"clCreateProgramWithILKHR" {
        return found;
    }
    CREATE_WITH_IL_KHR.store(found as usize, Ordering::Release);
    create_with_il_khr as CreateWithIl as *mut c_void
}

unsafe extern "C" fn create_with_binary(
    context: cl_context,
    num_devices: cl_uint,
    devices: *const cl_device_id,
    lengths: *const usize,
    binaries: *mut *const u8,
    status: *mut cl_int,
    errcode: *mut cl_int,
) -> cl_program {
    // SAFETY: the slot's own type and the application's own arguments.
    let program = unsafe {
        match original::<CreateWithBinary>(context, slot::CREATE_WITH_BINARY) {
            Some(create) => create(
                context,
                num_devices,
                devices,
                lengths,
                binaries,
                status,
                errcode,
            ),
            None => ptr::null_mut(),
        }
    };
    remember(program, Origin::Binary);
    log("create-binary");
    program
}

/// Forgets a program before its last reference goes: afterwards another thread may be given the same address.
unsafe extern "C" fn release(program: cl_program) -> cl_int {
    let mut count: cl_uint = 0;
    // SAFETY: the slots' own types; `count` has the size that the query needs.
    unsafe {
        if let Some(get_info) = original::<GetInfo>(program, slot::GET_INFO)
            && !program.is_null()
        {
            let size = mem::size_of::<cl_uint>();
            let value = ptr::from_mut(&mut count).cast();
            if get_info(
                program,
                CL_PROGRAM_REFERENCE_COUNT,
                size,
                value,
                ptr::null_mut(),
            ) == CL_SUCCESS
                && count == 1
            {
                forget(program);
            }
        }
        original::<Release>(program, slot::RELEASE)
            .map_or(PLATFORM_NOT_FOUND, |release| release(program))
    }
}

unsafe extern "C-unwind" fn build(
    program: cl_program,
    num_devices: cl_uint,
    devices: *const cl_device_id,
    options: *const c_char,
    notify: Notify,
    user_data: *mut c_void,
) -> cl_int {
    // The callback may release the program: ask now.
    let kind = match origin(program) {
        Some(Origin::Source) => "source-build",
        Some(Origin::Binary) => "binary-build",
        Some(Origin::Il) => "il-build",
        None => "other-build",
    };
    // SAFETY: the slot's own type and the application's own arguments.
    let code = unsafe {
        original::<Build>(program, slot::BUILD).map_or(PLATFORM_NOT_FOUND, |build| {
            build(program, num_devices, devices, options, notify, user_data)
        })
    };
    log(&format!("{kind} {code}"));
    code
}

unsafe extern "C-unwind" fn compile(
    program: cl_program,
    num_devices: cl_uint,
    devices: *const cl_device_id,
    options: *const c_char,
    num_headers: cl_uint,
    headers: *const cl_program,
    names: *mut *const c_char,
    notify: Notify,
    user_data: *mut c_void,
) -> cl_int {
    // SAFETY: the slot's own type and the application's own arguments.
    let code = unsafe {
        original::<Compile>(program, slot::COMPILE).map_or(PLATFORM_NOT_FOUND, |compile| {
            compile(
                program,
                num_devices,
                devices,
                options,
                num_headers,
                headers,
                names,
                notify,
                user_data,
            )
        })
    };
    log(&format!("compile {code}"));
    code
}

unsafe extern "C-unwind" fn link(
    context: cl_context,
    num_devices: cl_uint,
    devices: *const cl_device_id,
    options: *const c_char,
    num_inputs: cl_uint,
    inputs: *const cl_program,
    notify: Notify,
    user_data: *mut c_void,
    errcode: *mut cl_int,
) -> cl_program {
    let mut code = PLATFORM_NOT_FOUND;
    // SAFETY: the slot's own type and the application's own arguments, but for an error code that is always wanted.
    let program = unsafe {
        match original::<Link>(context, slot::LINK) {
            Some(link) => link(
                context,
                num_devices,
                devices,
                options,
                num_inputs,
                inputs,
                notify,
                user_data,
                &mut code,
            ),
            None => ptr::null_mut(),
        }
    };
    if !errcode.is_null() {
        // SAFETY: not NULL, so it is the application's place for the code.
        unsafe { errcode.write(code) };
    }
    forget(program);
    log(&format!("link {code}"));
    program
}

unsafe extern "C" fn get_info(
    program: cl_program,
    param: cl_program_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> cl_int {
    if param == CL_PROGRAM_BINARIES || param == CL_PROGRAM_BINARY_SIZES {
        log("binaries-fetched");
    }
    // SAFETY: the slot's own type and the application's own arguments.
    unsafe {
        original::<GetInfo>(program, slot::GET_INFO).map_or(PLATFORM_NOT_FOUND, |get_info| {
            get_info(program, param, size, value, size_ret)
        })
    }
}

unsafe extern "C" fn platform_ids(
    count: cl_uint,
    platforms: *mut cl_platform_id,
    found: *mut cl_uint,
) -> cl_int {
    match driver().and_then(Driver::platform_ids) {
        // SAFETY: the driver's own function with the loader's own arguments.
        Some(get_platforms) => unsafe { get_platforms(count, platforms, found) },
        None => PLATFORM_NOT_FOUND,
    }
}

unsafe extern "C" fn platform_info(
    platform: cl_platform_id,
    param: cl_platform_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> cl_int {
    let is_named = matches!(
        param,
        CL_PLATFORM_NAME | CL_PLATFORM_VENDOR | CL_PLATFORM_ICD_SUFFIX_KHR
    );
    if is_named && variable("rename").is_some() {
        // SAFETY: the loader's own arguments.
        return unsafe { give(c"Renamed", size, value, size_ret) };
    }
    // SAFETY: the slot's own type and the loader's own arguments.
    unsafe {
        original::<PlatformInfo>(platform, slot::GET_PLATFORM_INFO)
            .map_or(PLATFORM_NOT_FOUND, |get_info| {
                get_info(platform, param, size, value, size_ret)
            })
    }
}

/// Answers a query with a text.
///
/// # Safety
/// Both places are NULL or valid, and `value` has room for `size` bytes.
unsafe fn give(text: &CStr, size: usize, value: *mut c_void, size_ret: *mut usize) -> cl_int {
    let bytes = text.to_bytes_with_nul();
    if !value.is_null() && size < bytes.len() {
        return CL_INVALID_VALUE;
    }
    // SAFETY: see above; the room was checked.
    unsafe {
        if !value.is_null() {
            value
                .cast::<u8>()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len());
        }
        if !size_ret.is_null() {
            size_ret.write(bytes.len());
        }
    }
    CL_SUCCESS
}

/// What a loader asks a registered library for.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string, as the OpenCL specification demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clGetExtensionFunctionAddress(name: *const c_char) -> *mut c_void {
    if name.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: see above.
    let name = unsafe { CStr::from_ptr(name) };
    type PlatformIds = unsafe extern "C" fn(cl_uint, *mut cl_platform_id, *mut cl_uint) -> cl_int;
    match name.to_bytes() {
        b"clIcdGetPlatformIDsKHR" => platform_ids as PlatformIds as *mut c_void,
        b"clGetPlatformInfo" => platform_info as PlatformInfo as *mut c_void,
        _ => icd2::extension(name)
            .unwrap_or_else(|| driver().map_or(ptr::null_mut(), |driver| driver.extension(name))),
    }
}
