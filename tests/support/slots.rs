//! The names of all slots of a dispatch table, in the order of `cl_icd.h` (OpenCL 3.1).

/// Parted by blanks.
const NAMES: &str = "\
    clGetPlatformIDs clGetPlatformInfo clGetDeviceIDs clGetDeviceInfo clCreateContext clCreateContextFromType \
    clRetainContext clReleaseContext clGetContextInfo clCreateCommandQueue clRetainCommandQueue \
    clReleaseCommandQueue clGetCommandQueueInfo clSetCommandQueueProperty clCreateBuffer clCreateImage2D \
    clCreateImage3D clRetainMemObject clReleaseMemObject clGetSupportedImageFormats clGetMemObjectInfo \
    clGetImageInfo clCreateSampler clRetainSampler clReleaseSampler clGetSamplerInfo clCreateProgramWithSource \
    clCreateProgramWithBinary clRetainProgram clReleaseProgram clBuildProgram clUnloadCompiler clGetProgramInfo \
    clGetProgramBuildInfo clCreateKernel clCreateKernelsInProgram clRetainKernel clReleaseKernel clSetKernelArg \
    clGetKernelInfo clGetKernelWorkGroupInfo clWaitForEvents clGetEventInfo clRetainEvent clReleaseEvent \
    clGetEventProfilingInfo clFlush clFinish clEnqueueReadBuffer clEnqueueWriteBuffer clEnqueueCopyBuffer \
    clEnqueueReadImage clEnqueueWriteImage clEnqueueCopyImage clEnqueueCopyImageToBuffer \
    clEnqueueCopyBufferToImage clEnqueueMapBuffer clEnqueueMapImage clEnqueueUnmapMemObject clEnqueueNDRangeKernel \
    clEnqueueTask clEnqueueNativeKernel clEnqueueMarker clEnqueueWaitForEvents clEnqueueBarrier \
    clGetExtensionFunctionAddress clCreateFromGLBuffer clCreateFromGLTexture2D clCreateFromGLTexture3D \
    clCreateFromGLRenderbuffer clGetGLObjectInfo clGetGLTextureInfo clEnqueueAcquireGLObjects \
    clEnqueueReleaseGLObjects clGetGLContextInfoKHR clGetDeviceIDsFromD3D10KHR clCreateFromD3D10BufferKHR \
    clCreateFromD3D10Texture2DKHR clCreateFromD3D10Texture3DKHR clEnqueueAcquireD3D10ObjectsKHR \
    clEnqueueReleaseD3D10ObjectsKHR clSetEventCallback clCreateSubBuffer clSetMemObjectDestructorCallback \
    clCreateUserEvent clSetUserEventStatus clEnqueueReadBufferRect clEnqueueWriteBufferRect \
    clEnqueueCopyBufferRect clCreateSubDevicesEXT clRetainDeviceEXT clReleaseDeviceEXT clCreateEventFromGLsyncKHR \
    clCreateSubDevices clRetainDevice clReleaseDevice clCreateImage clCreateProgramWithBuiltInKernels \
    clCompileProgram clLinkProgram clUnloadPlatformCompiler clGetKernelArgInfo clEnqueueFillBuffer \
    clEnqueueFillImage clEnqueueMigrateMemObjects clEnqueueMarkerWithWaitList clEnqueueBarrierWithWaitList \
    clGetExtensionFunctionAddressForPlatform clCreateFromGLTexture clGetDeviceIDsFromD3D11KHR \
    clCreateFromD3D11BufferKHR clCreateFromD3D11Texture2DKHR clCreateFromD3D11Texture3DKHR \
    clCreateFromDX9MediaSurfaceKHR clEnqueueAcquireD3D11ObjectsKHR clEnqueueReleaseD3D11ObjectsKHR \
    clGetDeviceIDsFromDX9MediaAdapterKHR clEnqueueAcquireDX9MediaSurfacesKHR clEnqueueReleaseDX9MediaSurfacesKHR \
    clCreateFromEGLImageKHR clEnqueueAcquireEGLObjectsKHR clEnqueueReleaseEGLObjectsKHR \
    clCreateEventFromEGLSyncKHR clCreateCommandQueueWithProperties clCreatePipe clGetPipeInfo clSVMAlloc clSVMFree \
    clEnqueueSVMFree clEnqueueSVMMemcpy clEnqueueSVMMemFill clEnqueueSVMMap clEnqueueSVMUnmap \
    clCreateSamplerWithProperties clSetKernelArgSVMPointer clSetKernelExecInfo clGetKernelSubGroupInfoKHR \
    clCloneKernel clCreateProgramWithIL clEnqueueSVMMigrateMem clGetDeviceAndHostTimer clGetHostTimer \
    clGetKernelSubGroupInfo clSetDefaultDeviceCommandQueue clSetProgramReleaseCallback \
    clSetProgramSpecializationConstant clCreateBufferWithProperties clCreateImageWithProperties \
    clSetContextDestructorCallback clGetKernelSuggestedLocalWorkSize";

/// How many there are.
pub const SLOTS: usize = 150;

/// What a driver of ICD 2.0 has in slots 0 and 31 of its table.
pub const ICD2_TAG: usize = 0x4F50_454E_434C_3331_u64 as usize;

/// In the order of the slots.
pub fn names() -> impl Iterator<Item = &'static str> {
    NAMES.split_whitespace()
}
