//! The ICD dispatch table: the slots of each OpenCL version, and the address of each slot.

use std::ffi::CStr;
use std::mem::offset_of;
use std::sync::atomic::{AtomicUsize, Ordering};

use opencl_sys::cl_icd::cl_icd_dispatch;

/// The slots of the newest table that we know (OpenCL 3.1).
pub const SLOTS: usize = 150;

const _: () = assert!(size_of::<cl_icd_dispatch>() == SLOTS * size_of::<usize>());

/// The tag that a driver of ICD 2.0 puts into slots 0 and 31 of its table, which no loader calls (CL_ICD2_TAG_KHR of `cl_khr_icd`
/// 2.0).
const ICD2_TAG: usize = 0x4F50_454E_434C_3331_u64 as usize;

/// One slot of the table, by its index in `cl_icd.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Slot(usize);

/// Hands the names of all slots, in the order of `cl_icd.h`, to another macro.
macro_rules! with_slots {
    ($then:ident) => {
        $then! {
            clGetPlatformIDs, clGetPlatformInfo, clGetDeviceIDs, clGetDeviceInfo, clCreateContext,
            clCreateContextFromType, clRetainContext, clReleaseContext, clGetContextInfo, clCreateCommandQueue,
            clRetainCommandQueue, clReleaseCommandQueue, clGetCommandQueueInfo, clSetCommandQueueProperty,
            clCreateBuffer, clCreateImage2D, clCreateImage3D, clRetainMemObject, clReleaseMemObject,
            clGetSupportedImageFormats, clGetMemObjectInfo, clGetImageInfo, clCreateSampler, clRetainSampler,
            clReleaseSampler, clGetSamplerInfo, clCreateProgramWithSource, clCreateProgramWithBinary,
            clRetainProgram, clReleaseProgram, clBuildProgram, clUnloadCompiler, clGetProgramInfo,
            clGetProgramBuildInfo, clCreateKernel, clCreateKernelsInProgram, clRetainKernel, clReleaseKernel,
            clSetKernelArg, clGetKernelInfo, clGetKernelWorkGroupInfo, clWaitForEvents, clGetEventInfo,
            clRetainEvent, clReleaseEvent, clGetEventProfilingInfo, clFlush, clFinish, clEnqueueReadBuffer,
            clEnqueueWriteBuffer, clEnqueueCopyBuffer, clEnqueueReadImage, clEnqueueWriteImage,
            clEnqueueCopyImage, clEnqueueCopyImageToBuffer, clEnqueueCopyBufferToImage, clEnqueueMapBuffer,
            clEnqueueMapImage, clEnqueueUnmapMemObject, clEnqueueNDRangeKernel, clEnqueueTask,
            clEnqueueNativeKernel, clEnqueueMarker, clEnqueueWaitForEvents, clEnqueueBarrier,
            clGetExtensionFunctionAddress, clCreateFromGLBuffer, clCreateFromGLTexture2D,
            clCreateFromGLTexture3D, clCreateFromGLRenderbuffer, clGetGLObjectInfo, clGetGLTextureInfo,
            clEnqueueAcquireGLObjects, clEnqueueReleaseGLObjects, clGetGLContextInfoKHR,
            clGetDeviceIDsFromD3D10KHR, clCreateFromD3D10BufferKHR, clCreateFromD3D10Texture2DKHR,
            clCreateFromD3D10Texture3DKHR, clEnqueueAcquireD3D10ObjectsKHR, clEnqueueReleaseD3D10ObjectsKHR,
            clSetEventCallback, clCreateSubBuffer, clSetMemObjectDestructorCallback, clCreateUserEvent,
            clSetUserEventStatus, clEnqueueReadBufferRect, clEnqueueWriteBufferRect, clEnqueueCopyBufferRect,
            clCreateSubDevicesEXT, clRetainDeviceEXT, clReleaseDeviceEXT, clCreateEventFromGLsyncKHR,
            clCreateSubDevices, clRetainDevice, clReleaseDevice, clCreateImage,
            clCreateProgramWithBuiltInKernels, clCompileProgram, clLinkProgram, clUnloadPlatformCompiler,
            clGetKernelArgInfo, clEnqueueFillBuffer, clEnqueueFillImage, clEnqueueMigrateMemObjects,
            clEnqueueMarkerWithWaitList, clEnqueueBarrierWithWaitList, clGetExtensionFunctionAddressForPlatform,
            clCreateFromGLTexture, clGetDeviceIDsFromD3D11KHR, clCreateFromD3D11BufferKHR,
            clCreateFromD3D11Texture2DKHR, clCreateFromD3D11Texture3DKHR, clCreateFromDX9MediaSurfaceKHR,
            clEnqueueAcquireD3D11ObjectsKHR, clEnqueueReleaseD3D11ObjectsKHR,
            clGetDeviceIDsFromDX9MediaAdapterKHR, clEnqueueAcquireDX9MediaSurfacesKHR,
            clEnqueueReleaseDX9MediaSurfacesKHR, clCreateFromEGLImageKHR, clEnqueueAcquireEGLObjectsKHR,
            clEnqueueReleaseEGLObjectsKHR, clCreateEventFromEGLSyncKHR, clCreateCommandQueueWithProperties,
            clCreatePipe, clGetPipeInfo, clSVMAlloc, clSVMFree, clEnqueueSVMFree, clEnqueueSVMMemcpy,
            clEnqueueSVMMemFill, clEnqueueSVMMap, clEnqueueSVMUnmap, clCreateSamplerWithProperties,
            clSetKernelArgSVMPointer, clSetKernelExecInfo, clGetKernelSubGroupInfoKHR, clCloneKernel,
            clCreateProgramWithIL, clEnqueueSVMMigrateMem, clGetDeviceAndHostTimer, clGetHostTimer,
            clGetKernelSubGroupInfo, clSetDefaultDeviceCommandQueue, clSetProgramReleaseCallback,
            clSetProgramSpecializationConstant, clCreateBufferWithProperties, clCreateImageWithProperties,
            clSetContextDestructorCallback, clGetKernelSuggestedLocalWorkSize
        }
    };
}
pub(super) use with_slots;

macro_rules! all {
    ($($name:ident),*) => {
        const NAMES: [&CStr; SLOTS] = [$(c_name(concat!(stringify!($name), "\0"))),*];

        const OFFSETS: [usize; SLOTS] = [$(offset_of!(cl_icd_dispatch, $name)),*];
    };
}
with_slots!(all);

const fn c_name(name: &str) -> &CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a name has a NUL"),
    }
}

const _: () = {
    let mut index = 0;
    while index < SLOTS {
        assert!(OFFSETS[index] == index * size_of::<usize>());
        index += 1;
    }
};

macro_rules! constants {
    ($($name:ident),* $(,)?) => {
        #[allow(non_upper_case_globals)]
        impl Slot {
            $(
                #[doc = concat!("The slot of ", stringify!($name), ".")]
                pub const $name: Slot = Slot(offset_of!(cl_icd_dispatch, $name) / size_of::<usize>());
            )*
        }
    };
}

constants! {
    clGetPlatformIDs, clGetDeviceIDs, clCreateContext, clCreateContextFromType, clGetContextInfo, clCreateProgramWithSource,
    clCreateProgramWithBinary,
    clRetainProgram, clReleaseProgram, clBuildProgram, clUnloadCompiler, clGetProgramInfo, clGetProgramBuildInfo,
    clCreateKernel, clCreateKernelsInProgram, clRetainKernel, clReleaseKernel, clGetKernelInfo,
    clGetExtensionFunctionAddress, clCreateProgramWithBuiltInKernels, clCompileProgram,
    clLinkProgram, clGetKernelArgInfo, clGetExtensionFunctionAddressForPlatform, clCloneKernel,
    clCreateProgramWithIL, clSetProgramReleaseCallback, clSetProgramSpecializationConstant,
    clGetKernelSuggestedLocalWorkSize,
}

impl Slot {
    /// All slots, in order.
    pub fn all() -> impl Iterator<Item = Slot> {
        (0..SLOTS).map(Slot)
    }

    /// Whether a driver with ICD 2.0 has the tag there, so that no loader calls what is in the slot.
    pub fn is_for_tag(self) -> bool {
        self == Slot::clGetPlatformIDs || self == Slot::clUnloadCompiler
    }

    /// The index in the table.
    pub fn index(self) -> usize {
        self.0
    }

    /// The name of its function.
    pub fn name(self) -> &'static CStr {
        NAMES[self.0]
    }

    /// Whether a table that was copied has a function there.
    pub fn is_in(self, functions: &cl_icd_dispatch) -> bool {
        words(functions)[self.0] != 0
    }
}

/// A table as an array of words, which are functions, tags or NULL.
pub fn words(functions: &cl_icd_dispatch) -> &[usize; SLOTS] {
    // SAFETY: same size and alignment; each field is a function pointer, NULL, or an integer.
    unsafe { &*std::ptr::from_ref(functions).cast::<[usize; SLOTS]>() }
}

/// The minimum number of slots of a platform with this CL_PLATFORM_VERSION ("OpenCL MAJOR.MINOR ...").
///
/// Other data follows the end of a table (measured on Oclgrind, Intel and PoCL), so no further slot is ever read.
pub fn slots_of_version(version: &[u8]) -> usize {
    let number = version.strip_prefix(b"OpenCL ").unwrap_or_default();
    let mut parts = number.split(|byte| !byte.is_ascii_digit());
    let mut part = || {
        parts
            .next()
            .and_then(|digits| str::from_utf8(digits).ok()?.parse::<u32>().ok())
            .unwrap_or(0)
    };
    match (part(), part()) {
        (0, _) => 0,
        (1, 0) => 65,
        (1, 1) => 93,
        (1, _) => 108,
        (2, 0) => 136,
        (2, 1) => 143,
        (2, _) => 146,
        (3, 0) => 149,
        (3.., _) => SLOTS,
    }
}

/// The functions that another table has as well.
pub fn masked(functions: &cl_icd_dispatch, by: &cl_icd_dispatch) -> cl_icd_dispatch {
    let mut masked = *words(functions);
    for (function, by) in masked.iter_mut().zip(words(by)) {
        if *by == 0 {
            *function = 0;
        }
    }
    // SAFETY: same size; each field is that of a table, or NULL.
    unsafe { std::mem::transmute::<[usize; SLOTS], cl_icd_dispatch>(masked) }
}

/// A table that a driver's objects point to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DispatchTable {
    address: usize,
    slots: usize,
}

impl DispatchTable {
    /// The table that the first word of an object names.
    ///
    /// # Safety
    /// `object` is a live OpenCL object of a driver that gave it out through the ICD interface, whose first word is by
    /// `cl_khr_icd` the address of a dispatch table, of at least `slots` slots.
    pub unsafe fn of_object(object: *mut std::ffi::c_void, slots: usize) -> Option<DispatchTable> {
        // SAFETY: by the contract of this function. A handle that is none may stand anywhere.
        let address = unsafe { object.cast::<usize>().read_unaligned() };
        (address != 0).then_some(DispatchTable { address, slots })
    }

    /// The first slots of a table that a loader hands to a layer.
    ///
    /// # Safety
    /// `table` is NULL or points to `slots` slots that are never unmapped.
    pub unsafe fn of_loader(table: *const cl_icd_dispatch, slots: usize) -> Option<DispatchTable> {
        (!table.is_null()).then_some(DispatchTable {
            address: table as usize,
            slots,
        })
    }

    /// Whether this is the table of an ICD 2.0 driver for older loaders. A loader that knows ICD 2.0 calls the driver through a
    /// table of its own.
    pub fn is_tagged(self) -> bool {
        let is_tagged = |slot: Slot| self.has(slot) && self.load(slot) == ICD2_TAG;
        is_tagged(Slot::clGetPlatformIDs) && is_tagged(Slot::clUnloadCompiler)
    }

    /// The address, which identifies the table.
    pub fn address(self) -> usize {
        self.address
    }

    /// How many slots the table has.
    pub fn slots(self) -> usize {
        self.slots
    }

    /// The same table with one slot more.
    ///
    /// # Safety
    /// The table has that slot.
    pub unsafe fn with_one_more(self) -> DispatchTable {
        DispatchTable {
            slots: self.slots + 1,
            ..self
        }
    }

    /// Whether the driver provides this slot.
    pub fn has(self, slot: Slot) -> bool {
        slot.0 < self.slots
    }

    /// The address of a slot.
    pub fn slot_address(self, slot: Slot) -> usize {
        assert!(self.has(slot), "the table has no slot {}", slot.0);
        self.address + slot.0 * size_of::<usize>()
    }

    /// The current content of the slot. 0 if the driver lacks the function.
    pub fn load(self, slot: Slot) -> usize {
        self.atomic(slot).load(Ordering::Acquire)
    }

    /// Replaces the slot. Other threads may be calling through it.
    ///
    /// # Safety
    /// The page is writable, and `function` has the type that the slot stands for and is never unmapped.
    pub unsafe fn store(self, slot: Slot, function: usize) {
        self.atomic(slot).store(function, Ordering::Release);
    }

    fn atomic(self, slot: Slot) -> &'static AtomicUsize {
        // SAFETY: `of_object` was promised a table with this many slots; drivers are never unmapped, so it lives for ever;
        // a slot is an aligned word.
        unsafe { &*(self.slot_address(slot) as *const AtomicUsize) }
    }

    /// All current functions. None for slots that the driver does not provide.
    pub fn copy(self) -> cl_icd_dispatch {
        let mut copy = std::mem::MaybeUninit::<cl_icd_dispatch>::zeroed();
        // SAFETY: `slots` words are readable at `address` by the promise to `of_object`, and at most SLOTS fit. Zero is None
        // for each function and a valid integer for the last slot, so the rest is initialized as well.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.address as *const usize,
                copy.as_mut_ptr().cast::<usize>(),
                self.slots.min(SLOTS),
            );
            copy.assume_init()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_slot_behind_the_end_of_an_old_table_is_read() {
        assert_eq!(slots_of_version(b"OpenCL 1.0 old"), 65);
        assert_eq!(slots_of_version(b"OpenCL 1.1 Mesa"), 93);
        assert_eq!(slots_of_version(b"OpenCL 1.2 "), 108);
        assert_eq!(slots_of_version(b"OpenCL 2.1 LINUX"), 143);
        assert_eq!(slots_of_version(b"OpenCL 3.0 PoCL 3.1"), 149);
        assert_eq!(slots_of_version(b"OpenGL 4"), 0);
        assert_eq!(slots_of_version(b""), 0);
    }

    #[test]
    fn a_copy_of_a_short_table_has_no_functions_behind_its_end() {
        let words = [0x10usize; 200];
        let object = [words.as_ptr() as usize];
        // SAFETY: `object` begins with the address of 200 readable words.
        let table =
            unsafe { DispatchTable::of_object(object.as_ptr() as *mut _, 93) }.expect("not null");
        let copy = table.copy();
        assert!(Slot::clBuildProgram.is_in(&copy));
        assert!(!Slot::clCompileProgram.is_in(&copy));
        assert!(!table.has(Slot::clCompileProgram));
    }

    #[test]
    fn a_driver_is_of_icd_2_if_both_tags_are_there() {
        let mut words = [0x10usize; SLOTS];
        let tagged = |words: &[usize; SLOTS]| {
            // SAFETY: the words outlive the table.
            let table = unsafe { DispatchTable::of_loader(words.as_ptr().cast(), SLOTS) };
            table.expect("not null").is_tagged()
        };
        words[0] = ICD2_TAG;
        assert!(!tagged(&words));
        words[31] = ICD2_TAG;
        assert!(tagged(&words));
    }
}
