//! The dispatch table: one static that all objects point to, alone in its page.

use std::cell::UnsafeCell;
use std::ffi::c_void;
use std::mem;

use opencl_sys::CL_INVALID_OPERATION;
use opencl_sys::cl_icd::cl_icd_dispatch;

use crate::{
    buffer, build, config, context, event, kernel, kernel_info, link, platform, program,
    program_info, run,
};

const PAGE: usize = 4096;

/// A whole page, so that its protection concerns nothing else.
#[repr(C, align(4096))]
struct Page {
    table: UnsafeCell<cl_icd_dispatch>,
    _rest: [u8; PAGE - mem::size_of::<cl_icd_dispatch>()],
}

// SAFETY: this library never writes to the table; others store single words atomically.
unsafe impl Sync for Page {}

static TABLE: Page = Page {
    table: UnsafeCell::new(DISPATCH),
    _rest: [0; PAGE - mem::size_of::<cl_icd_dispatch>()],
};

/// The address that each object begins with.
pub fn address() -> usize {
    TABLE.table.get() as usize
}

/// Called once, when the first object exists.
pub fn settle() {
    if config::read_only_table() {
        // SAFETY: the page holds nothing but the table, which this library only reads.
        unsafe { libc::mprotect(address() as *mut c_void, PAGE, libc::PROT_READ) };
    }
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
    clBuildProgram: Some(build::build),
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
    clCreateSubDevices: refuse(),
    clRetainDevice: Some(platform::retain_or_release_device),
    clReleaseDevice: Some(platform::retain_or_release_device),
    clCreateImage: null(),
    clCreateProgramWithBuiltInKernels: Some(program::create_with_built_in_kernels),
    clCompileProgram: Some(build::compile),
    clLinkProgram: Some(link::link_program),
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
    clCreateProgramWithIL: Some(program::create_with_il),
    clEnqueueSVMMigrateMem: refuse(),
    clGetDeviceAndHostTimer: refuse(),
    clGetHostTimer: refuse(),
    clGetKernelSubGroupInfo: Some(kernel_info::get_sub_group_info),
    clSetDefaultDeviceCommandQueue: refuse(),
    clSetProgramReleaseCallback: Some(program::set_release_callback),
    clSetProgramSpecializationConstant: Some(program::set_specialization_constant),
    clCreateBufferWithProperties: Some(buffer::create_with_properties),
    clCreateImageWithProperties: null(),
    clSetContextDestructorCallback: refuse(),
    clGetKernelSuggestedLocalWorkSize: 0,
};
