//! Safe calls into a driver, through the functions of its table before it was patched.
//!
//! "Safe" means: handles come from this driver or from the application's call in progress, in which the driver itself would get the
//! same handle; buffers are ours and have the stated size.

use std::ffi::{CStr, c_char, c_void};
use std::ops::Range;
use std::sync::atomic::Ordering;

use opencl_sys::*;

use super::Driver;
use super::loaded::Object;
use crate::cl::info::{Number, PartialValue, Reply, ask, ask_partial};
use crate::cl::{Context, Device, Kernel, Notify, Platform, Program};
use crate::fallible::with_capacity;

/// The arguments of a clBuildProgram call except the callback, kept for later.
#[derive(Clone, Debug)]
pub struct BuildArguments {
    /// `device_list`; None is NULL.
    pub devices: Option<Vec<Device>>,
    /// `options`; None is NULL.
    pub options: Option<std::ffi::CString>,
}

/// A callback and its data.
#[derive(Clone, Copy)]
pub struct NotifyTarget {
    /// `pfn_notify`.
    pub function: Option<Notify>,
    /// `user_data`.
    pub user_data: *mut c_void,
}

// SAFETY: the application's pointer is only handed back to it, on the thread of the driver's choice, as without us.
unsafe impl Send for NotifyTarget {}

impl NotifyTarget {
    /// No callback.
    pub const NONE: NotifyTarget = NotifyTarget {
        function: None,
        user_data: std::ptr::null_mut(),
    };
}

/// Calls a function of the table, or returns CL_INVALID_OPERATION if the driver has none. (A call of the application through an
/// empty slot never arrives here: empty slots are not patched.)
macro_rules! call {
    ($driver:expr, $name:ident($($argument:expr),* $(,)?)) => {
        match $driver.below.$name {
            // SAFETY: as the module says.
            Some(function) => unsafe { function($($argument),*) },
            None => CL_INVALID_OPERATION,
        }
    };
}
pub(super) use call;

impl Driver {
    /// clGetProgramInfo.
    pub fn program_info(&self, program: Program, name: cl_program_info) -> Result<Vec<u8>, cl_int> {
        ask(|size, value, size_ret| {
            call!(
                self,
                clGetProgramInfo(program.raw(), name, size, value, size_ret)
            )
        })
    }

    /// clGetProgramInfo, with the bytes that the driver does not write.
    pub fn partial_program_info(
        &self,
        program: Program,
        name: cl_program_info,
    ) -> Result<PartialValue, cl_int> {
        ask_partial(|size, value, size_ret| {
            call!(
                self,
                clGetProgramInfo(program.raw(), name, size, value, size_ret)
            )
        })
    }

    /// clGetProgramBuildInfo.
    pub fn build_info(
        &self,
        program: Program,
        device: Device,
        name: cl_program_build_info,
    ) -> Result<Vec<u8>, cl_int> {
        ask(|size, value, size_ret| {
            call!(
                self,
                clGetProgramBuildInfo(program.raw(), device.raw(), name, size, value, size_ret)
            )
        })
    }

    /// clGetKernelInfo.
    pub fn kernel_info(&self, kernel: Kernel, name: cl_kernel_info) -> Result<Vec<u8>, cl_int> {
        ask(|size, value, size_ret| {
            call!(
                self,
                clGetKernelInfo(kernel.raw(), name, size, value, size_ret)
            )
        })
    }

    /// clGetKernelArgInfo.
    pub fn kernel_arg_info(
        &self,
        kernel: Kernel,
        index: cl_uint,
        name: cl_kernel_arg_info,
    ) -> Result<Vec<u8>, cl_int> {
        ask(|size, value, size_ret| {
            call!(
                self,
                clGetKernelArgInfo(kernel.raw(), index, name, size, value, size_ret)
            )
        })
    }

    /// clGetKernelWorkGroupInfo.
    pub fn kernel_work_group_info(
        &self,
        kernel: Kernel,
        device: Device,
        name: cl_kernel_work_group_info,
    ) -> Result<Vec<u8>, cl_int> {
        ask(|size, value, size_ret| {
            call!(
                self,
                clGetKernelWorkGroupInfo(kernel.raw(), device.raw(), name, size, value, size_ret)
            )
        })
    }

    /// clGetDeviceInfo.
    pub fn device_info(&self, device: Device, name: cl_device_info) -> Result<Vec<u8>, cl_int> {
        ask(|size, value, size_ret| {
            call!(
                self,
                clGetDeviceInfo(device.raw(), name, size, value, size_ret)
            )
        })
    }

    /// clGetPlatformInfo.
    pub fn platform_info(
        &self,
        platform: Platform,
        name: cl_platform_info,
    ) -> Result<Vec<u8>, cl_int> {
        ask(|size, value, size_ret| {
            call!(
                self,
                clGetPlatformInfo(platform.raw(), name, size, value, size_ret)
            )
        })
    }

    /// CL_PROGRAM_DEVICES.
    pub fn program_devices(&self, program: Program) -> Result<Vec<Device>, cl_int> {
        devices(&self.program_info(program, CL_PROGRAM_DEVICES)?)
    }

    /// CL_PROGRAM_BUILD_STATUS.
    pub fn build_status(
        &self,
        program: Program,
        device: Device,
    ) -> Result<cl_build_status, cl_int> {
        number(&self.build_info(program, device, CL_PROGRAM_BUILD_STATUS)?)
    }

    /// CL_PROGRAM_REFERENCE_COUNT.
    pub fn program_references(&self, program: Program) -> Result<cl_uint, cl_int> {
        number(&self.program_info(program, CL_PROGRAM_REFERENCE_COUNT)?)
    }

    /// CL_PROGRAM_BINARY_SIZES, in bytes.
    pub fn program_binary_sizes(&self, program: Program) -> Result<Vec<usize>, cl_int> {
        let sizes = self.program_info(program, CL_PROGRAM_BINARY_SIZES)?;
        let words = sizes.chunks_exact(size_of::<usize>());
        Ok(words
            .map(|word| Number::from_value(word).unwrap_or(0))
            .collect())
    }

    /// CL_PROGRAM_BINARIES, for programs with these CL_PROGRAM_BINARY_SIZES.
    ///
    /// # Errors
    /// The driver's code. CL_INVALID_VALUE if a size is impossible: room must be given for every binary, since a NULL pointer
    /// crashes PoCL 3.1 and rusticl 22.3 (measured).
    pub fn program_binaries(
        &self,
        program: Program,
        sizes: &[usize],
    ) -> Result<Vec<Vec<u8>>, cl_int> {
        if sizes
            .iter()
            .any(|size| *size > crate::cl::info::MAX_ANSWER_BYTES)
        {
            return Err(CL_INVALID_VALUE);
        }
        let room = |size: &usize| {
            let mut binary = with_capacity(*size).map_err(|_| CL_OUT_OF_HOST_MEMORY)?;
            binary.resize(*size, 0);
            Ok(binary)
        };
        let mut binaries: Vec<Vec<u8>> = sizes.iter().map(room).collect::<Result<_, cl_int>>()?;
        let mut rooms: Vec<*mut u8> = binaries
            .iter_mut()
            .map(|binary| binary.as_mut_ptr())
            .collect();
        let size = size_of_val(rooms.as_slice());
        let code = call!(
            self,
            clGetProgramInfo(
                program.raw(),
                CL_PROGRAM_BINARIES,
                size,
                rooms.as_mut_ptr().cast(),
                std::ptr::null_mut()
            )
        );
        if code == CL_SUCCESS {
            Ok(binaries)
        } else {
            Err(code)
        }
    }

    /// clRetainProgram.
    pub fn retain_program(&self, program: Program) -> cl_int {
        call!(self, clRetainProgram(program.raw()))
    }

    /// clReleaseProgram.
    pub fn release_program(&self, program: Program) -> cl_int {
        call!(self, clReleaseProgram(program.raw()))
    }

    /// clCreateKernel.
    pub fn create_kernel(&self, program: Program, name: &CStr) -> Result<Kernel, cl_int> {
        let function = self.below.clCreateKernel.ok_or(CL_INVALID_OPERATION)?;
        let mut code = CL_SUCCESS;
        // SAFETY: as the module says; the name is a C string.
        let kernel = Kernel::new(unsafe {
            function(program.raw(), name.as_ptr().cast::<c_char>(), &mut code)
        });
        if kernel.is_null() {
            Err(code)
        } else {
            Ok(kernel)
        }
    }

    /// clCreateKernelsInProgram for all kernels.
    pub fn create_kernels(&self, program: Program) -> Result<Vec<Kernel>, cl_int> {
        let function = self
            .below
            .clCreateKernelsInProgram
            .ok_or(CL_INVALID_OPERATION)?;
        let mut count = 0;
        // SAFETY: as the module says; only the count is asked for.
        let code = unsafe { function(program.raw(), 0, std::ptr::null_mut(), &mut count) };
        if code != CL_SUCCESS {
            return Err(code);
        }
        let mut raw = with_capacity(count as usize).map_err(|_| CL_OUT_OF_HOST_MEMORY)?;
        raw.resize(count as usize, std::ptr::null_mut());
        // SAFETY: as the module says; there is room for `count` kernels.
        let code =
            unsafe { function(program.raw(), count, raw.as_mut_ptr(), std::ptr::null_mut()) };
        if code != CL_SUCCESS {
            return Err(code);
        }
        let mut kernels = with_capacity(count as usize).map_err(|_| CL_OUT_OF_HOST_MEMORY)?;
        kernels.extend(raw.into_iter().map(Kernel::new));
        Ok(kernels)
    }

    /// clReleaseKernel.
    pub fn release_kernel(&self, kernel: Kernel) -> cl_int {
        call!(self, clReleaseKernel(kernel.raw()))
    }

    /// CL_CONTEXT_REFERENCE_COUNT.
    pub fn context_references(&self, context: Context) -> Result<cl_uint, cl_int> {
        let value = ask(|size, value, size_ret| {
            call!(
                self,
                clGetContextInfo(
                    context.raw(),
                    CL_CONTEXT_REFERENCE_COUNT,
                    size,
                    value,
                    size_ret
                )
            )
        })?;
        number(&value)
    }

    /// CL_CONTEXT_DEVICES.
    pub fn context_devices(&self, context: Context) -> Result<Vec<Device>, cl_int> {
        devices(&ask(|size, value, size_ret| {
            call!(
                self,
                clGetContextInfo(context.raw(), CL_CONTEXT_DEVICES, size, value, size_ret)
            )
        })?)
    }

    /// Whether each program adds one to its context's reference count: from the profile, or as seen when the first inner program
    /// was made (`note_context_references`).
    pub fn context_counts_programs(&self) -> bool {
        self.behavior()
            .context_counts_programs
            .unwrap_or_else(|| self.context_counts.load(Ordering::Relaxed) == 2)
    }

    /// Notes whether the creation of an inner program changed the context's count, if the profile does not know.
    pub fn note_context_references(&self, grown: bool) {
        let seen = if grown { 2 } else { 1 };
        let _ = self
            .context_counts
            .compare_exchange(0, seen, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// Whether it is still unknown how contexts count.
    pub fn wants_context_references(&self) -> bool {
        self.behavior().context_counts_programs.is_none()
            && self.context_counts.load(Ordering::Relaxed) == 0
    }

    /// clGetContextInfo, answered to the application.
    pub fn forward_context_info(
        &self,
        context: Context,
        name: cl_context_info,
        reply: Reply,
    ) -> cl_int {
        call!(
            self,
            clGetContextInfo(context.raw(), name, reply.size, reply.value, reply.size_ret)
        )
    }

    /// clGetProgramInfo, answered to the application.
    pub fn forward_program_info(
        &self,
        program: Program,
        name: cl_program_info,
        reply: Reply,
    ) -> cl_int {
        call!(
            self,
            clGetProgramInfo(program.raw(), name, reply.size, reply.value, reply.size_ret)
        )
    }

    /// clGetProgramBuildInfo, answered to the application.
    pub fn forward_build_info(
        &self,
        program: Program,
        device: Device,
        name: cl_program_build_info,
        reply: Reply,
    ) -> cl_int {
        call!(
            self,
            clGetProgramBuildInfo(
                program.raw(),
                device.raw(),
                name,
                reply.size,
                reply.value,
                reply.size_ret
            )
        )
    }

    /// clGetKernelInfo, answered to the application.
    pub fn forward_kernel_info(
        &self,
        kernel: Kernel,
        name: cl_kernel_info,
        reply: Reply,
    ) -> cl_int {
        call!(
            self,
            clGetKernelInfo(kernel.raw(), name, reply.size, reply.value, reply.size_ret)
        )
    }

    /// clGetKernelArgInfo, answered to the application.
    pub fn forward_kernel_arg_info(
        &self,
        kernel: Kernel,
        index: cl_uint,
        name: cl_kernel_arg_info,
        reply: Reply,
    ) -> cl_int {
        call!(
            self,
            clGetKernelArgInfo(
                kernel.raw(),
                index,
                name,
                reply.size,
                reply.value,
                reply.size_ret
            )
        )
    }

    /// The driver's own extension function of this name; NULL if it has none.
    pub fn extension_function(&self, name: &CStr) -> *mut c_void {
        if let (Some(function), Some(platform)) = (
            self.below.clGetExtensionFunctionAddressForPlatform,
            self.platforms.first(),
        ) {
            // SAFETY: as the module says; the name is a C string.
            return unsafe { function(platform.raw(), name.as_ptr()) };
        }
        match self.below.clGetExtensionFunctionAddress {
            // SAFETY: as above.
            Some(function) => unsafe { function(name.as_ptr()) },
            None => std::ptr::null_mut(),
        }
    }

    /// The addresses of all functions of the driver, and of the layers between us and it, in order.
    pub(super) fn functions(&self) -> Vec<usize> {
        let own = crate::cl::dispatch::words(&self.own).iter();
        let all = own.chain(&self.between).copied();
        let mut functions: Vec<usize> = all.filter(|word| *word != 0).collect();
        functions.sort_unstable();
        functions.dedup();
        functions
    }
}

impl Driver {
    /// Tells the driver's own libraries: those that have its functions, and the one that was opened as the driver, which may only need
    /// them.
    pub(super) fn is_own_library(&self) -> impl Fn(&Object) -> bool + use<'_> {
        let functions = self.functions();
        let opened = self.library();
        move |object| {
            let is_opened = match opened.is_absolute() {
                true => object.path == opened,
                false => object.path.file_name() == opened.file_name(),
            };
            let has_one = |range: &Range<usize>| {
                let next = functions.partition_point(|function| *function < range.start);
                functions.get(next).is_some_and(|next| *next < range.end)
            };
            is_opened || object.ranges.iter().any(has_one)
        }
    }
}

pub(super) fn devices(value: &[u8]) -> Result<Vec<Device>, cl_int> {
    value
        .chunks(size_of::<usize>())
        .map(|word| Device::from_value(word).filter(|device| !device.is_null()))
        .collect::<Option<_>>()
        .ok_or(CL_INVALID_VALUE)
}

fn number<T: Number>(value: &[u8]) -> Result<T, cl_int> {
    T::from_value(value).ok_or(CL_INVALID_VALUE)
}
