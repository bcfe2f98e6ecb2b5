//! A device with a context and a queue, and what every section does with them.

use std::env;
use std::ffi::c_void;
use std::ptr;

use opencl_sys::*;

use crate::cl::{self, Handle, call};
use crate::queries::{ask, build_info, context_references, kernel_references, number};
use crate::queries::{program_info, program_references, string};

pub struct Session {
    pub context: Handle,
    pub devices: Vec<Handle>,
    pub queue: Handle,
    pub platform: Handle,
    pub platform_name: String,
}

// SAFETY: OpenCL objects may be used by any thread; only clSetKernelArg asks for care, on one kernel.
unsafe impl Sync for Session {}

/// A kernel argument.
pub enum Value<'a> {
    /// A buffer of zeros that is read back.
    Out(usize),
    In(&'a [u32]),
    Local(usize),
    Uint(u32),
}

impl Session {
    pub fn open() -> Result<Self, String> {
        let loader = env::var("CLIENT_LOADER").unwrap_or_else(|_| "libOpenCL.so.1".to_owned());
        cl::open(&loader)?;
        let wanted = env::var("CLIENT_PLATFORM").unwrap_or_default();
        let most: usize = env::var("CLIENT_DEVICES")
            .map_or(Ok(1), |most| most.parse())
            .unwrap_or(1);
        let mut platforms = [ptr::null_mut(); 16];
        let mut count = 0;
        let code = call!(clGetPlatformIDs(16, platforms.as_mut_ptr(), &mut count));
        if code != CL_SUCCESS {
            return Err(format!("clGetPlatformIDs: {code}"));
        }
        for platform in platforms.into_iter().take(count as usize) {
            let name = ask(&|size, value, size_ret| {
                call!(clGetPlatformInfo(
                    platform,
                    CL_PLATFORM_NAME,
                    size,
                    value,
                    size_ret
                ))
            });
            let name = String::from_utf8_lossy(&name.unwrap_or_default())
                .trim_end_matches('\0')
                .to_owned();
            let mut devices = [ptr::null_mut(); 16];
            let mut count = 0;
            let list = devices.as_mut_ptr();
            if name.contains(&wanted)
                && call!(clGetDeviceIDs(
                    platform,
                    CL_DEVICE_TYPE_ALL,
                    16,
                    list,
                    &mut count
                )) == CL_SUCCESS
                && count > 0
            {
                let devices = devices[..most.clamp(1, count.min(16) as usize)].to_vec();
                return Self::with(platform, devices, name);
            }
        }
        Err(format!("no platform like '{wanted}' with a device"))
    }

    fn with(platform: Handle, devices: Vec<Handle>, platform_name: String) -> Result<Self, String> {
        let mut code = 1;
        let none = ptr::null_mut();
        let count = devices.len() as cl_uint;
        let context = call!(clCreateContext(
            ptr::null(),
            count,
            devices.as_ptr(),
            None,
            none,
            &mut code
        ));
        if code != CL_SUCCESS {
            return Err(format!("clCreateContext: {code}"));
        }
        let queue = call!(clCreateCommandQueue(context, devices[0], 0, &mut code));
        if code != CL_SUCCESS {
            return Err(format!("clCreateCommandQueue: {code}"));
        }
        Ok(Self {
            context,
            devices,
            queue,
            platform,
            platform_name,
        })
    }

    /// A context of its own for these devices.
    pub fn another(&self, devices: Vec<Handle>) -> Result<Self, String> {
        Self::with(self.platform, devices, self.platform_name.clone())
    }

    /// The parts of the first device, of one compute unit each; None if it has none.
    pub fn parts(&self) -> Option<Vec<Handle>> {
        let properties = [
            CL_DEVICE_PARTITION_EQUALLY as cl_device_partition_property,
            1,
            0,
        ];
        let mut parts = [ptr::null_mut(); 64];
        let mut count = 0;
        let (places, most) = (parts.as_mut_ptr(), parts.len() as cl_uint);
        let code = call!(clCreateSubDevices(
            self.device(),
            properties.as_ptr(),
            most,
            places,
            &mut count
        ));
        println!("clCreateSubDevices: code {code}");
        (code == CL_SUCCESS).then(|| parts[..count as usize].to_vec())
    }

    pub fn device(&self) -> Handle {
        self.devices[0]
    }

    fn is_rusticl(&self) -> bool {
        self.platform_name.contains("rusticl")
    }

    fn is_pocl(&self) -> bool {
        self.platform_name.contains("Portable Computing Language")
    }

    fn is_intel(&self) -> bool {
        self.platform_name.contains("Intel")
    }

    /// PoCL may end the process when the result of a link is built.
    pub fn builds_link_results(&self) -> bool {
        !self.is_pocl()
    }

    /// Intel's CPU runtime ends the process when a program is built whose kernel is still to be executed; the `basic` device of
    /// PoCL never comes back from a user event.
    pub fn builds_over_commands(&self) -> bool {
        !self.is_intel() && (!self.is_pocl() || self.devices.len() == 1)
    }

    /// PoCL takes a build for some devices for one of all, and ends the process when another is given a kernel then.
    pub fn keeps_devices_apart(&self) -> bool {
        !self.is_pocl() || self.devices.len() == 1
    }

    /// PoCL ends the process on a link for fewer devices than its inputs were compiled for.
    pub fn links_for_some(&self, devices: &[Handle]) -> bool {
        !self.is_pocl() || self.devices.len() == devices.len()
    }

    /// PoCL ends the process when a constant of a program that is not built is set.
    pub fn sets_constants_of_sources(&self) -> bool {
        !self.is_pocl()
    }

    /// Whether the process survives an odd call on a program in this state.
    pub fn bears(&self, call: &str, state: &str) -> bool {
        match call {
            "build with a wrong device" => !self.is_pocl(),
            "compile with headers that are not there" => !self.is_pocl() || state == "linked",
            "kernels without a place for them" => !self.is_intel() || state != "compiled",
            _ => true,
        }
    }

    /// rusticl's own cache on disk knows nothing of files: a changed one counts or not, as its writer thread is slow or quick.
    pub fn sees_changed_files(&self) -> bool {
        !self.is_rusticl()
    }

    /// rusticl ends the process when a binary is none.
    pub fn refuses_garbage(&self) -> bool {
        !self.is_rusticl()
    }

    /// PoCL and Intel's CPU runtime end the process when an embedded header was made from a binary.
    pub fn reads_headers_from_binaries(&self) -> bool {
        !self.is_pocl() && !self.is_intel()
    }

    /// rusticl never comes back from a link of one program given twice.
    pub fn links_one_input_twice(&self) -> bool {
        !self.is_rusticl()
    }

    /// rusticl gives kernels in an order that changes from process to process.
    pub fn shuffles_kernels(&self) -> bool {
        self.is_rusticl()
    }

    /// rusticl ends the process when the array for the binaries is too small.
    pub fn checks_binaries_array(&self) -> bool {
        !self.is_rusticl()
    }

    /// rusticl remembers the kernels of an earlier build, and ends the process when one that is gone is created; what one has of
    /// arguments after a compile depends on how far a thread of its disk cache has come.
    pub fn forgets_kernels(&self) -> bool {
        !self.is_rusticl()
    }

    /// The queue threads of PoCL and rusticl keep the objects of a command for a moment after clFinish. They would be
    /// counted, and a kernel would still be attached to its program: waits until the count is what it was.
    fn settle(before: &str, count: impl Fn() -> String) {
        let mut patience = 2000;
        while patience > 0 && count() != before {
            std::thread::sleep(std::time::Duration::from_millis(1));
            patience -= 1;
        }
    }

    /// Waits until nothing but what was there `before` counts for the context. A kernel may count through the buffers
    /// that are its arguments, so it has to be released first.
    pub fn settle_context(&self, before: &str) {
        Self::settle(before, || context_references(self.context));
    }

    pub fn program(&self, source: &str) -> Handle {
        let (program, code) = cl::program(self.context, source);
        println!("create program: code {code}");
        program
    }

    /// Another queue on the first device.
    pub fn another_queue(&self) -> Handle {
        call!(clCreateCommandQueue(
            self.context,
            self.device(),
            0,
            ptr::null_mut()
        ))
    }

    /// Prints the state of a program in one line for each device.
    pub fn state(&self, label: &str, program: Handle) {
        for (index, device) in self.devices.iter().enumerate() {
            println!(
                "{label}: device {index} status {} type {} options {}",
                number(build_info(program, *device, CL_PROGRAM_BUILD_STATUS)),
                number(build_info(program, *device, CL_PROGRAM_BINARY_TYPE)),
                string(build_info(program, *device, CL_PROGRAM_BUILD_OPTIONS)),
            );
        }
        println!(
            "{label}: kernels {} references {}",
            number(program_info(program, CL_PROGRAM_NUM_KERNELS)),
            program_references(program),
        );
    }

    /// Creates a kernel, runs it if there is one, and prints both outcomes. The kernel's first argument is the result.
    pub fn try_kernel(&self, label: &str, program: Handle, name: &str) {
        let before = context_references(self.context);
        let (kernel, code) = cl::kernel(program, name);
        println!("{label}: kernel {name} code {code}");
        if !kernel.is_null() {
            self.print_run(label, kernel);
            cl::release_kernel(kernel);
            self.settle_context(&before);
        }
    }

    /// Runs a kernel whose only argument is the result, and prints that.
    pub fn print_run(&self, label: &str, kernel: Handle) {
        match self.launch(self.queue, kernel, &[Value::Out(16)]) {
            Ok(words) => println!("{label}: result {words:?}"),
            Err(code) => println!("{label}: run code {code}"),
        }
    }

    /// Runs 16 work items in one group; the first `Out` comes back.
    pub fn launch(
        &self,
        queue: Handle,
        kernel: Handle,
        values: &[Value],
    ) -> Result<Vec<u32>, cl_int> {
        let mut buffers = Vec::new();
        let before = kernel_references(kernel);
        let outcome = self.launch_with(queue, kernel, values, &mut buffers);
        Self::settle(&before, || kernel_references(kernel));
        for buffer in buffers {
            call!(clReleaseMemObject(buffer));
        }
        outcome
    }

    fn launch_with(
        &self,
        queue: Handle,
        kernel: Handle,
        values: &[Value],
        buffers: &mut Vec<Handle>,
    ) -> Result<Vec<u32>, cl_int> {
        let check = |code| {
            if code == CL_SUCCESS {
                Ok(())
            } else {
                Err(code)
            }
        };
        let mut result = None;
        for (index, value) in values.iter().enumerate() {
            let index = index as cl_uint;
            let zeros;
            let words: &[u32] = match value {
                Value::Local(bytes) => {
                    check(call!(clSetKernelArg(kernel, index, *bytes, ptr::null())))?;
                    continue;
                }
                Value::Uint(word) => {
                    check(call!(clSetKernelArg(
                        kernel,
                        index,
                        size_of::<u32>(),
                        ptr::from_ref(word).cast()
                    )))?;
                    continue;
                }
                Value::In(words) => words,
                Value::Out(count) => {
                    zeros = vec![0; *count];
                    &zeros
                }
            };
            let mut code = 1;
            let flags = CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR;
            let host = words.as_ptr().cast_mut().cast::<c_void>();
            let buffer = call!(clCreateBuffer(
                self.context,
                flags,
                size_of_val(words),
                host,
                &mut code
            ));
            check(code)?;
            buffers.push(buffer);
            check(call!(clSetKernelArg(
                kernel,
                index,
                size_of::<Handle>(),
                ptr::from_ref(&buffer).cast()
            )))?;
            if matches!(value, Value::Out(_)) && result.is_none() {
                result = Some((buffer, words.len()));
            }
        }
        let (none, items) = (ptr::null_mut(), 16_usize);
        check(call!(clEnqueueNDRangeKernel(
            queue,
            kernel,
            1,
            ptr::null(),
            &items,
            &items,
            0,
            ptr::null(),
            none
        )))?;
        let Some((buffer, count)) = result else {
            check(call!(clFinish(queue)))?;
            return Ok(Vec::new());
        };
        let mut words = vec![0_u32; count];
        let bytes = size_of_val(words.as_slice());
        let host = words.as_mut_ptr().cast();
        check(call!(clEnqueueReadBuffer(
            queue,
            buffer,
            CL_TRUE,
            0,
            bytes,
            host,
            0,
            ptr::null(),
            none
        )))?;
        // Until then a driver may keep the kernel, which would count as attached to its program.
        check(call!(clFinish(queue)))?;
        Ok(words)
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        call!(clReleaseCommandQueue(self.queue));
        call!(clReleaseContext(self.context));
    }
}
