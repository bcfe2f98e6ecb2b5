//! The platforms and their devices, which live for ever.

use std::ffi::{CStr, c_char, c_void};
use std::sync::{Arc, OnceLock};
use std::{mem, ptr};

use opencl_sys::*;

use crate::abi::{Answer, Handle, Outcome, code, respond, store};
use crate::config;
use crate::registry::{Head, Registry};
use crate::table;

const PLATFORM_ICD_SUFFIX: cl_platform_info = 0x0920;
const PLATFORM_UNLOADABLE: cl_platform_info = 0x0921;

pub struct Device {
    pub name: String,
    platform: usize,
    /// The device of which it is a part; zero for a whole device.
    parent: usize,
}

struct Platform {
    handle: usize,
    devices: Vec<usize>,
}

static PLATFORMS: Registry<()> = Registry::new();
static DEVICES: Registry<Device> = Registry::new();
static ALL: OnceLock<Vec<Platform>> = OnceLock::new();

fn platforms() -> &'static [Platform] {
    ALL.get_or_init(|| (0..config::platform_count()).map(make).collect())
}

fn make(number: usize) -> Platform {
    let head = Head {
        table: table::address(number),
        loader_data: 0,
    };
    let handle = PLATFORMS.insert_root(Arc::new(()), head);
    let device = |index| {
        let device = Device {
            name: config::device_name(index),
            platform: handle as usize,
            parent: 0,
        };
        DEVICES.insert(Arc::new(device), handle) as usize
    };
    Platform {
        handle: handle as usize,
        devices: (0..config::device_count()).map(device).collect(),
    }
}

fn platform(handle: Handle) -> Outcome<(usize, &'static Platform)> {
    let mut all = platforms().iter().enumerate();
    all.find(|(_, platform)| platform.handle == handle as usize)
        .ok_or(CL_INVALID_PLATFORM)
}

pub fn device(handle: Handle) -> Outcome<Arc<Device>> {
    DEVICES.get(handle).ok_or(CL_INVALID_DEVICE)
}

/// CL_INVALID_VALUE if a list is given without a count or a count without a list, CL_INVALID_DEVICE for a device
/// that is not among `allowed`; all of `allowed` for no list.
pub fn chosen_devices(
    given: &[Handle],
    count: u32,
    null: bool,
    allowed: &[usize],
) -> Outcome<Vec<usize>> {
    if (count == 0) != null {
        return Err(CL_INVALID_VALUE);
    }
    if null {
        return Ok(allowed.to_vec());
    }
    let chosen: Vec<usize> = given.iter().map(|device| *device as usize).collect();
    match chosen.iter().all(|device| allowed.contains(device)) {
        true => Ok(chosen),
        false => Err(CL_INVALID_DEVICE),
    }
}

pub unsafe extern "C" fn get_platform_ids(
    entries: cl_uint,
    platforms_ret: *mut cl_platform_id,
    found: *mut cl_uint,
) -> cl_int {
    if (entries == 0 && !platforms_ret.is_null()) || (platforms_ret.is_null() && found.is_null()) {
        return CL_INVALID_VALUE;
    }
    if !platforms_ret.is_null() {
        for (index, platform) in platforms().iter().enumerate().take(entries as usize) {
            // SAFETY: the application's or loader's array has `entries` elements.
            unsafe { store(platforms_ret.add(index), platform.handle as Handle) };
        }
    }
    // SAFETY: the application's or loader's own place.
    unsafe { store(found, platforms().len() as cl_uint) };
    CL_SUCCESS
}

fn platform_answer(handle: Handle, param: cl_platform_info) -> Outcome<Answer> {
    let (number, _) = platform(handle)?;
    Ok(match param {
        CL_PLATFORM_PROFILE => Answer::text("FULL_PROFILE"),
        CL_PLATFORM_VERSION => Answer::text(version()),
        CL_PLATFORM_NAME if number == 0 => Answer::text("Stub"),
        CL_PLATFORM_NAME => Answer::text(format!("Stub {}", number + 1)),
        CL_PLATFORM_VENDOR => Answer::text("Stub"),
        CL_PLATFORM_EXTENSIONS if config::unloadable() => {
            Answer::text("cl_khr_icd cl_khr_icd_unloadable")
        }
        CL_PLATFORM_EXTENSIONS => Answer::text("cl_khr_icd"),
        CL_PLATFORM_NUMERIC_VERSION => Answer::value(3_u32 << 22),
        CL_PLATFORM_HOST_TIMER_RESOLUTION => Answer::value(0_u64),
        PLATFORM_ICD_SUFFIX => Answer::text(suffix()),
        PLATFORM_UNLOADABLE if config::unloadable() => Answer::value(CL_TRUE),
        _ => return Err(CL_INVALID_VALUE),
    })
}

/// Of a copy named `lib*-X.so`, X.
fn suffix() -> String {
    // SAFETY: plain data; the name that is found is that of this library, which stays.
    let file = unsafe {
        let mut found: libc::Dl_info = mem::zeroed();
        libc::dladdr(suffix as *const c_void, &mut found);
        CStr::from_ptr(found.dli_fname)
    };
    let file = file.to_string_lossy();
    let name = file
        .rsplit('/')
        .next()
        .and_then(|name| name.strip_suffix(".so"));
    let suffix = name.and_then(|name| name.rsplit_once('-'));
    suffix.map_or("STUB", |(_, suffix)| suffix).to_owned()
}

fn version() -> &'static str {
    match config::short_table() {
        true => "OpenCL 1.1 stub",
        false => "OpenCL 3.0 stub",
    }
}

pub unsafe extern "C" fn get_platform_info(
    handle: cl_platform_id,
    param: cl_platform_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> cl_int {
    // SAFETY: the application's own places.
    unsafe { respond(platform_answer(handle, param), size, value, size_ret) }
}

pub unsafe extern "C" fn get_device_ids(
    handle: cl_platform_id,
    kind: cl_device_type,
    entries: cl_uint,
    devices: *mut cl_device_id,
    found: *mut cl_uint,
) -> cl_int {
    let all = match platform(handle) {
        Ok((_, platform)) => &platform.devices,
        Err(error) => return error,
    };
    if (entries == 0 && !devices.is_null()) || (devices.is_null() && found.is_null()) {
        return CL_INVALID_VALUE;
    }
    std::thread::sleep(config::devices_time());
    config::set_variable();
    if kind & (CL_DEVICE_TYPE_DEFAULT | CL_DEVICE_TYPE_CPU) == 0 {
        return CL_DEVICE_NOT_FOUND;
    }
    if !devices.is_null() {
        for (index, device) in all.iter().enumerate().take(entries as usize) {
            // SAFETY: the application's array has `entries` elements.
            unsafe { store(devices.add(index), *device as Handle) };
        }
    }
    // SAFETY: the application's own place.
    unsafe { store(found, all.len() as cl_uint) };
    CL_SUCCESS
}

fn device_answer(handle: Handle, param: cl_device_info) -> Outcome<Answer> {
    let device = device(handle)?;
    Ok(match param {
        CL_DEVICE_TYPE if config::is_accelerator() => Answer::value(CL_DEVICE_TYPE_ACCELERATOR),
        CL_DEVICE_TYPE => Answer::value(CL_DEVICE_TYPE_CPU),
        CL_DEVICE_NAME => Answer::text(&device.name),
        CL_DEVICE_VENDOR => Answer::text("Stub"),
        CL_DRIVER_VERSION => Answer::text("1.0"),
        CL_DEVICE_PROFILE => Answer::text("FULL_PROFILE"),
        CL_DEVICE_VERSION => Answer::text(version()),
        CL_DEVICE_OPENCL_C_VERSION => Answer::text("OpenCL C 1.2 stub"),
        CL_DEVICE_EXTENSIONS | CL_DEVICE_BUILT_IN_KERNELS => Answer::text(""),
        CL_DEVICE_IL_VERSION => Answer::text("SPIR-V_1.0"),
        CL_DEVICE_PLATFORM => Answer::value(device.platform),
        CL_DEVICE_PARENT_DEVICE => Answer::value(device.parent),
        CL_DEVICE_VENDOR_ID => Answer::value(0x5354_5542_u32),
        CL_DEVICE_MAX_COMPUTE_UNITS
        | CL_DEVICE_REFERENCE_COUNT
        | CL_DEVICE_AVAILABLE
        | CL_DEVICE_COMPILER_AVAILABLE
        | CL_DEVICE_LINKER_AVAILABLE
        | CL_DEVICE_ENDIAN_LITTLE
        | CL_DEVICE_LOCAL_MEM_TYPE
        | CL_DEVICE_MAX_CLOCK_FREQUENCY => Answer::value(1_u32),
        CL_DEVICE_MAX_WORK_ITEM_DIMENSIONS => Answer::value(3_u32),
        CL_DEVICE_MAX_WORK_ITEM_SIZES => Answer::values(&[256_usize; 3]),
        CL_DEVICE_MAX_WORK_GROUP_SIZE => Answer::value(256_usize),
        CL_DEVICE_MAX_PARAMETER_SIZE => Answer::value(4096_usize),
        CL_DEVICE_ADDRESS_BITS => Answer::value(64_u32),
        CL_DEVICE_MEM_BASE_ADDR_ALIGN => Answer::value(1024_u32),
        CL_DEVICE_MAX_CONSTANT_ARGS => Answer::value(8_u32),
        CL_DEVICE_GLOBAL_MEM_SIZE
        | CL_DEVICE_MAX_MEM_ALLOC_SIZE
        | CL_DEVICE_LOCAL_MEM_SIZE
        | CL_DEVICE_MAX_CONSTANT_BUFFER_SIZE => Answer::value(1_u64 << 24),
        CL_DEVICE_EXECUTION_CAPABILITIES | CL_DEVICE_SINGLE_FP_CONFIG => Answer::value(1_u64),
        CL_DEVICE_QUEUE_PROPERTIES
        | CL_DEVICE_SVM_CAPABILITIES
        | CL_DEVICE_GLOBAL_MEM_CACHE_SIZE => Answer::value(0_u64),
        CL_DEVICE_MAX_GLOBAL_VARIABLE_SIZE | CL_DEVICE_PROFILING_TIMER_RESOLUTION => {
            Answer::value(0_usize)
        }
        CL_DEVICE_IMAGE_SUPPORT
        | CL_DEVICE_GLOBAL_MEM_CACHE_TYPE
        | CL_DEVICE_GLOBAL_MEM_CACHELINE_SIZE
        | CL_DEVICE_HOST_UNIFIED_MEMORY => Answer::value(0_u32),
        CL_DEVICE_PREFERRED_VECTOR_WIDTH_CHAR..=CL_DEVICE_PREFERRED_VECTOR_WIDTH_DOUBLE
        | CL_DEVICE_NATIVE_VECTOR_WIDTH_CHAR..=CL_DEVICE_NATIVE_VECTOR_WIDTH_HALF => {
            Answer::value(1_u32)
        }
        _ => return Err(CL_INVALID_VALUE),
    })
}

pub unsafe extern "C" fn get_device_info(
    handle: cl_device_id,
    param: cl_device_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> cl_int {
    if config::is_unchecked() && device(handle).is_err() {
        std::process::abort();
    }
    // SAFETY: the application's own places.
    unsafe { respond(device_answer(handle, param), size, value, size_ret) }
}

/// The device for which programs are that are made for this one.
pub fn of_programs(handle: usize) -> usize {
    let parent = device(handle as Handle).map_or(0, |device| device.parent);
    match parent {
        0 => handle,
        _ if config::sub_devices() != "root" => handle,
        parent => parent,
    }
}

/// Two halves, if the device can be divided.
pub unsafe extern "C" fn create_sub_devices(
    handle: cl_device_id,
    _properties: *const cl_device_partition_property,
    entries: cl_uint,
    devices: *mut cl_device_id,
    found: *mut cl_uint,
) -> cl_int {
    let whole = match device(handle) {
        Ok(_) if config::sub_devices().is_empty() => return CL_INVALID_VALUE,
        Ok(whole) => whole,
        Err(error) => return error,
    };
    for index in 0..2 {
        if !devices.is_null() && index < entries as usize {
            let half = Device {
                name: whole.name.clone(),
                platform: whole.platform,
                parent: handle as usize,
            };
            // SAFETY: the application's array has `entries` elements.
            unsafe { store(devices.add(index), DEVICES.insert(Arc::new(half), handle)) };
        }
    }
    // SAFETY: the application's own place.
    unsafe { store(found, 2) };
    CL_SUCCESS
}

/// Root devices are not counted.
pub unsafe extern "C" fn retain_or_release_device(handle: cl_device_id) -> cl_int {
    code(device(handle).map(drop))
}

pub unsafe extern "C" fn unload_platform_compiler(handle: cl_platform_id) -> cl_int {
    code(platform(handle).map(drop))
}

/// The functions that a loader looks up by name.
///
/// # Safety
/// `name` is NULL or NUL-terminated.
pub unsafe extern "C" fn extension_address(name: *const c_char) -> *mut c_void {
    if name.is_null() {
        return ptr::null_mut();
    }
    type PlatformIds = unsafe extern "C" fn(cl_uint, *mut cl_platform_id, *mut cl_uint) -> cl_int;
    type PlatformInfo = unsafe extern "C" fn(
        cl_platform_id,
        cl_platform_info,
        usize,
        *mut c_void,
        *mut usize,
    ) -> cl_int;
    // SAFETY: the caller's promise.
    match unsafe { CStr::from_ptr(name) }.to_bytes() {
        b"clIcdGetPlatformIDsKHR" => get_platform_ids as PlatformIds as *mut c_void,
        b"clGetPlatformInfo" => get_platform_info as PlatformInfo as *mut c_void,
        b"clIcdGetFunctionAddressForPlatformKHR" if config::icd2() => {
            function_address_for_platform as FunctionForPlatform as *mut c_void
        }
        b"clIcdSetPlatformDispatchDataKHR" if config::icd2() => {
            set_dispatch_data as SetDispatchData as *mut c_void
        }
        // Whatever suffix follows.
        name if name.starts_with(b"clStubExtension") => get_platform_info as *mut c_void,
        _ => ptr::null_mut(),
    }
}

pub unsafe extern "C" fn extension_address_for_platform(
    handle: cl_platform_id,
    name: *const c_char,
) -> *mut c_void {
    if platform(handle).is_err() {
        return ptr::null_mut();
    }
    // SAFETY: the same contract.
    let found = unsafe { extension_address(name) };
    if !found.is_null() || name.is_null() {
        return found;
    }
    // SAFETY: the same contract.
    match unsafe { CStr::from_ptr(name) }.to_bytes() {
        b"clCreateProgramWithILKHR" => table::by_name(b"clCreateProgramWithIL"),
        b"clSetProgramSpecializationConstant" => {
            table::by_name(b"clSetProgramSpecializationConstant")
        }
        _ => ptr::null_mut(),
    }
}

type FunctionForPlatform = unsafe extern "C" fn(cl_platform_id, *const c_char) -> *mut c_void;
type SetDispatchData = unsafe extern "C" fn(cl_platform_id, *mut c_void) -> cl_int;

/// The function of a slot; NULL for the platform of another driver.
unsafe extern "C" fn function_address_for_platform(
    handle: cl_platform_id,
    name: *const c_char,
) -> *mut c_void {
    if platform(handle).is_err() || name.is_null() {
        return ptr::null_mut();
    }
    // SAFETY: a C string.
    table::by_name(unsafe { CStr::from_ptr(name) }.to_bytes())
}

/// Objects that are made from now on inherit the data from the devices.
unsafe extern "C" fn set_dispatch_data(handle: cl_platform_id, data: *mut c_void) -> cl_int {
    let devices = match platform(handle) {
        Ok((_, platform)) => &platform.devices,
        Err(error) => return error,
    };
    for object in devices
        .iter()
        .map(|device| *device as Handle)
        .chain([handle])
    {
        let head = Head {
            loader_data: data as usize,
            ..Head::of(object)
        };
        head.put(object);
    }
    CL_SUCCESS
}
