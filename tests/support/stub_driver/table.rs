//! The dispatch tables: usually one static that all objects point to, alone in its page.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::os::fd::AsRawFd;
use std::sync::OnceLock;
use std::{mem, ptr};

use opencl_sys::CL_INVALID_OPERATION;
use opencl_sys::cl_icd::cl_icd_dispatch;

use crate::slots::{self, SLOTS};
use crate::{
    buffer, build, config, context, event, il, kernel, kernel_info, link, platform, program,
    program_info, run,
};

const PAGE: usize = 4096;
/// The slots of OpenCL 1.1.
const SHORT: usize = 93;

/// A whole page, so that its protection concerns nothing else.
#[repr(C, align(4096))]
struct Page {
    table: UnsafeCell<cl_icd_dispatch>,
    _rest: [u8; PAGE - mem::size_of::<cl_icd_dispatch>()],
}

// SAFETY: this library writes to a table only before anybody knows it; others store single words atomically.
unsafe impl Sync for Page {}

const fn page() -> Page {
    Page {
        table: UnsafeCell::new(DISPATCH),
        _rest: [0; PAGE - mem::size_of::<cl_icd_dispatch>()],
    }
}

static TABLE: Page = page();

/// The addresses of the tables, one for each platform that has its own.
static TABLES: OnceLock<Vec<usize>> = OnceLock::new();

/// The address that each object of a platform begins with.
pub fn address(platform: usize) -> usize {
    let tables = TABLES.get_or_init(|| {
        let count = match config::own_tables() {
            true => config::platform_count(),
            false => 1,
        };
        (0..count).map(make).collect()
    });
    tables[platform % tables.len()]
}

fn make(number: usize) -> usize {
    let address = match number {
        _ if config::short_table() => short(),
        0 => TABLE.table.get() as usize,
        _ => ptr::from_ref(Box::leak(Box::new(page()))) as usize,
    };
    if config::tagged() {
        for slot in [0, 31] {
            // SAFETY: the table has these slots, and nobody knows it yet.
            unsafe { (address as *mut usize).add(slot).write(slots::ICD2_TAG) };
        }
    }
    for slot in slots_named("STUB_NULL_SLOTS").chain(slots_named("STUB_ABSENT")) {
        // SAFETY: as above.
        unsafe { (address as *mut usize).add(slot).write(0) };
    }
    match config::read_only_table().as_str() {
        "1" => {
            // SAFETY: the page holds nothing but the table, which this library only reads from now on.
            unsafe { libc::mprotect(page_of(address), PAGE, libc::PROT_READ) };
        }
        "forever" => read_only_forever(address),
        _ => {}
    }
    address
}

/// The slots of the functions that a variable names.
fn slots_named(variable: &str) -> impl Iterator<Item = usize> {
    let names = config::names(variable);
    let slots = slots::names().enumerate();
    slots.filter_map(move |(slot, name)| names.iter().any(|one| one == name).then_some(slot))
}

fn page_of(address: usize) -> *mut c_void {
    (address / PAGE * PAGE) as *mut c_void
}

/// Puts a file that was opened for reading into the place of the table's page: nobody can make that writable.
fn read_only_forever(address: usize) {
    let place = page_of(address);
    let name = std::env::temp_dir().join(format!("stub-table-{}", std::process::id()));
    // SAFETY: the page holds nothing but the table, and is readable; the file has the same content.
    unsafe {
        let content = std::slice::from_raw_parts(place.cast::<u8>(), PAGE);
        std::fs::write(&name, content).expect("a temporary file");
        let file = std::fs::File::open(&name).expect("just written");
        let _ = std::fs::remove_file(&name);
        let flags = libc::MAP_SHARED | libc::MAP_FIXED;
        let mapped = libc::mmap(place, PAGE, libc::PROT_READ, flags, file.as_raw_fd(), 0);
        assert_eq!(mapped, place);
    }
}

/// A table that ends with its page; whoever reads beyond ends the process.
fn short() -> usize {
    let size = SHORT * mem::size_of::<usize>();
    // SAFETY: two fresh pages, of which the second is closed; the table fits into the first.
    unsafe {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let pages = libc::mmap(ptr::null_mut(), 2 * PAGE, protection, flags, -1, 0);
        assert_ne!(pages, libc::MAP_FAILED);
        libc::mprotect(pages.add(PAGE), PAGE, libc::PROT_NONE);
        let table = pages.add(PAGE - size);
        ptr::copy_nonoverlapping(own().as_ptr(), table.cast::<usize>(), SHORT);
        table as usize
    }
}

/// The functions as they are here, whatever stands in the tables.
fn own() -> &'static [usize; SLOTS] {
    static OWN: Page = page();
    // SAFETY: an array of words, which nobody writes to.
    unsafe { &*OWN.table.get().cast::<[usize; SLOTS]>() }
}

/// The function of a slot by its name; NULL if there is none.
pub fn by_name(name: &[u8]) -> *mut c_void {
    let is_unnamed = ["STUB_UNNAMED", "STUB_ABSENT"].iter().any(|variable| {
        let names = config::names(variable);
        names.iter().any(|one| one.as_bytes() == name)
    });
    let slot = slots::names().position(|known| known.as_bytes() == name && !is_unnamed);
    let function = slot.map_or(0, |slot| own()[slot]);
    function as *mut c_void
}

unsafe extern "C" fn unsupported() -> i32 {
    CL_INVALID_OPERATION
}

unsafe extern "C" fn nothing() -> usize {
    0
}

/// Stands in for any function that returns an error code.
const fn refuse<F: Copy>() -> F {
    const { assert!(mem::size_of::<F>() == mem::size_of::<usize>()) };
    let function: unsafe extern "C" fn() -> i32 = unsupported;
    // SAFETY: in the C calling convention a function may ignore its arguments; the slot returns a cl_int.
    unsafe { mem::transmute_copy(&function) }
}

/// Stands in for any function that returns a handle or an address.
const fn null<F: Copy>() -> F {
    const { assert!(mem::size_of::<F>() == mem::size_of::<usize>()) };
    let function: unsafe extern "C" fn() -> usize = nothing;
    // SAFETY: in the C calling convention a function may ignore its arguments; the slot returns a pointer.
    unsafe { mem::transmute_copy(&function) }
}

/// A function that an application's callback may leave by an exception.
const fn unwinding<F: Copy>(function: *const ()) -> F {
    const { assert!(mem::size_of::<F>() == mem::size_of::<usize>()) };
    // SAFETY: the function has the type of its slot but for its ABI, which is the same where nothing unwinds.
    unsafe { mem::transmute_copy(&function) }
}

/// In the order of the header.
const DISPATCH: cl_icd_dispatch = cl_icd_dispatch {
    clGetPlatformIDs: Some(platform::get_platform_ids),
    clGetPlatformInfo: Some(platform::get_platform_info),
    clGetDeviceIDs: Some(platform::get_device_ids),
    clGetDeviceInfo: Some(platform::get_device_info),
    clCreateContext: Some(context::create_context),
    clCreateContextFromType: Some(context::create_context_from_type),
    clRetainContext: Some(context::retain_context),
    clReleaseContext: Some(context::release_context),
    clGetContextInfo: Some(context::get_context_info),
    clCreateCommandQueue: Some(context::create_queue),
    clRetainCommandQueue: Some(context::retain_queue),
    clReleaseCommandQueue: Some(context::release_queue),
    clGetCommandQueueInfo: Some(context::get_queue_info),
    clSetCommandQueueProperty: refuse(),
    clCreateBuffer: Some(buffer::create),
    clCreateImage2D: null(),
    clCreateImage3D: null(),
    clRetainMemObject: Some(buffer::retain),
    clReleaseMemObject: Some(buffer::release),
    clGetSupportedImageFormats: refuse(),
    clGetMemObjectInfo: Some(buffer::get_info),
    clGetImageInfo: refuse(),
    clCreateSampler: null(),
    clRetainSampler: refuse(),
    clReleaseSampler: refuse(),
    clGetSamplerInfo: refuse(),
    clCreateProgramWithSource: Some(program::create_with_source),
    clCreateProgramWithBinary: Some(program::create_with_binary),
    clRetainProgram: Some(program::retain),
    clReleaseProgram: Some(program::release),
    clBuildProgram: unwinding(build::build as *const ()),
    clUnloadCompiler: refuse(),
    clGetProgramInfo: Some(program_info::get_info),
    clGetProgramBuildInfo: Some(program_info::get_build_info),
    clCreateKernel: Some(kernel::create),
    clCreateKernelsInProgram: Some(kernel::create_all),
    clRetainKernel: Some(kernel::retain),
    clReleaseKernel: Some(kernel::release),
    clSetKernelArg: Some(kernel::set_argument),
    clGetKernelInfo: Some(kernel_info::get_info),
    clGetKernelWorkGroupInfo: Some(kernel_info::get_group_info),
    clWaitForEvents: Some(event::wait),
    clGetEventInfo: Some(event::get_info),
    clRetainEvent: Some(event::retain),
    clReleaseEvent: Some(event::release),
    clGetEventProfilingInfo: Some(event::get_profiling_info),
    clFlush: Some(context::finish),
    clFinish: Some(context::finish),
    clEnqueueReadBuffer: Some(buffer::enqueue_read),
    clEnqueueWriteBuffer: Some(buffer::enqueue_write),
    clEnqueueCopyBuffer: refuse(),
    clEnqueueReadImage: refuse(),
    clEnqueueWriteImage: refuse(),
    clEnqueueCopyImage: refuse(),
    clEnqueueCopyImageToBuffer: refuse(),
    clEnqueueCopyBufferToImage: refuse(),
    clEnqueueMapBuffer: null(),
    clEnqueueMapImage: null(),
    clEnqueueUnmapMemObject: refuse(),
    clEnqueueNDRangeKernel: Some(run::enqueue_nd_range),
    clEnqueueTask: Some(run::enqueue_task),
    clEnqueueNativeKernel: refuse(),
    clEnqueueMarker: refuse(),
    clEnqueueWaitForEvents: refuse(),
    clEnqueueBarrier: refuse(),
    clGetExtensionFunctionAddress: Some(platform::extension_address),
    clCreateFromGLBuffer: null(),
    clCreateFromGLTexture2D: null(),
    clCreateFromGLTexture3D: null(),
    clCreateFromGLRenderbuffer: null(),
    clGetGLObjectInfo: refuse(),
    clGetGLTextureInfo: refuse(),
    clEnqueueAcquireGLObjects: refuse(),
    clEnqueueReleaseGLObjects: refuse(),
    clGetGLContextInfoKHR: refuse(),
    clGetDeviceIDsFromD3D10KHR: refuse(),
    clCreateFromD3D10BufferKHR: null(),
    clCreateFromD3D10Texture2DKHR: null(),
    clCreateFromD3D10Texture3DKHR: null(),
    clEnqueueAcquireD3D10ObjectsKHR: refuse(),
    clEnqueueReleaseD3D10ObjectsKHR: refuse(),
    clSetEventCallback: refuse(),
    clCreateSubBuffer: null(),
    clSetMemObjectDestructorCallback: refuse(),
    clCreateUserEvent: null(),
    clSetUserEventStatus: refuse(),
    clEnqueueReadBufferRect: refuse(),
    clEnqueueWriteBufferRect: refuse(),
    clEnqueueCopyBufferRect: refuse(),
    clCreateSubDevicesEXT: refuse(),
    clRetainDeviceEXT: refuse(),
    clReleaseDeviceEXT: refuse(),
    clCreateEventFromGLsyncKHR: null(),
    clCreateSubDevices: Some(platform::create_sub_devices),
    clRetainDevice: Some(platform::retain_or_release_device),
    clReleaseDevice: Some(platform::retain_or_release_device),
    clCreateImage: null(),
    clCreateProgramWithBuiltInKernels: Some(program::create_with_built_in_kernels),
    clCompileProgram: unwinding(build::compile as *const ()),
    clLinkProgram: unwinding(link::link_program as *const ()),
    clUnloadPlatformCompiler: Some(platform::unload_platform_compiler),
    clGetKernelArgInfo: Some(kernel_info::get_argument_info),
    clEnqueueFillBuffer: refuse(),
    clEnqueueFillImage: refuse(),
    clEnqueueMigrateMemObjects: refuse(),
    clEnqueueMarkerWithWaitList: refuse(),
    clEnqueueBarrierWithWaitList: refuse(),
    clGetExtensionFunctionAddressForPlatform: Some(platform::extension_address_for_platform),
    clCreateFromGLTexture: null(),
    clGetDeviceIDsFromD3D11KHR: refuse(),
    clCreateFromD3D11BufferKHR: null(),
    clCreateFromD3D11Texture2DKHR: null(),
    clCreateFromD3D11Texture3DKHR: null(),
    clCreateFromDX9MediaSurfaceKHR: null(),
    clEnqueueAcquireD3D11ObjectsKHR: refuse(),
    clEnqueueReleaseD3D11ObjectsKHR: refuse(),
    clGetDeviceIDsFromDX9MediaAdapterKHR: refuse(),
    clEnqueueAcquireDX9MediaSurfacesKHR: refuse(),
    clEnqueueReleaseDX9MediaSurfacesKHR: refuse(),
    clCreateFromEGLImageKHR: null(),
    clEnqueueAcquireEGLObjectsKHR: refuse(),
    clEnqueueReleaseEGLObjectsKHR: refuse(),
    clCreateEventFromEGLSyncKHR: null(),
    clCreateCommandQueueWithProperties: Some(context::create_queue_with_properties),
    clCreatePipe: null(),
    clGetPipeInfo: refuse(),
    clSVMAlloc: null(),
    clSVMFree: refuse(),
    clEnqueueSVMFree: refuse(),
    clEnqueueSVMMemcpy: refuse(),
    clEnqueueSVMMemFill: refuse(),
    clEnqueueSVMMap: refuse(),
    clEnqueueSVMUnmap: refuse(),
    clCreateSamplerWithProperties: null(),
    clSetKernelArgSVMPointer: refuse(),
    clSetKernelExecInfo: refuse(),
    clGetKernelSubGroupInfoKHR: refuse(),
    clCloneKernel: Some(kernel::clone),
    clCreateProgramWithIL: Some(il::create),
    clEnqueueSVMMigrateMem: refuse(),
    clGetDeviceAndHostTimer: refuse(),
    clGetHostTimer: refuse(),
    clGetKernelSubGroupInfo: Some(kernel_info::get_sub_group_info),
    clSetDefaultDeviceCommandQueue: refuse(),
    clSetProgramReleaseCallback: Some(program::set_release_callback),
    clSetProgramSpecializationConstant: Some(il::set_constant),
    clCreateBufferWithProperties: Some(buffer::create_with_properties),
    clCreateImageWithProperties: null(),
    clSetContextDestructorCallback: refuse(),
    clGetKernelSuggestedLocalWorkSize: refuse(),
};
