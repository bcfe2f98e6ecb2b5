//! Safe calls that run a kernel and divide a device, to measure a driver. See `calls` for what safe means.

use opencl_sys::*;

use super::Driver;
use super::calls::call;
use crate::cl::{Context, Device, Kernel};

/// The number of words that a kernel may write.
const WORDS: usize = 16;
/// The words before the kernel runs.
const BEFORE: u32 = 0x5eed_5eed;

/// A queue and a buffer, released after use.
struct Bench<'a> {
    driver: &'a Driver,
    queue: cl_command_queue,
    buffer: cl_mem,
}

impl Drop for Bench<'_> {
    fn drop(&mut self) {
        if !self.buffer.is_null() {
            call!(self.driver, clReleaseMemObject(self.buffer));
        }
        if !self.queue.is_null() {
            call!(self.driver, clReleaseCommandQueue(self.queue));
        }
    }
}

impl Driver {
    /// Runs a kernel whose one argument is a buffer of [`WORDS`] words, one work-item for each, and returns the words.
    ///
    /// # Errors
    /// The driver's code.
    pub fn run_kernel(
        &self,
        context: Context,
        device: Device,
        kernel: Kernel,
    ) -> Result<[u32; WORDS], cl_int> {
        let mut words = [BEFORE; WORDS];
        let size = size_of_val(&words);
        let mut bench = Bench {
            driver: self,
            queue: std::ptr::null_mut(),
            buffer: std::ptr::null_mut(),
        };
        let mut code = CL_SUCCESS;
        let create = self.below.clCreateCommandQueue;
        let create = create.ok_or(CL_INVALID_OPERATION)?;
        // SAFETY: as the module says; no properties.
        bench.queue = unsafe { create(context.raw(), device.raw(), 0, &mut code) };
        succeeded(code)?;
        let create = self.below.clCreateBuffer.ok_or(CL_INVALID_OPERATION)?;
        let flags = CL_MEM_READ_WRITE | CL_MEM_COPY_HOST_PTR;
        let data = words.as_mut_ptr().cast();
        // SAFETY: as the module says; `words` has `size` bytes, which are copied.
        bench.buffer = unsafe { create(context.raw(), flags, size, data, &mut code) };
        succeeded(code)?;
        let argument = std::ptr::from_ref(&bench.buffer).cast();
        succeeded(call!(
            self,
            clSetKernelArg(kernel.raw(), 0, size_of::<cl_mem>(), argument)
        ))?;
        let (none, no_sizes) = (std::ptr::null(), std::ptr::null());
        succeeded(call!(
            self,
            clEnqueueNDRangeKernel(
                bench.queue,
                kernel.raw(),
                1,
                no_sizes,
                &WORDS,
                no_sizes,
                0,
                none,
                std::ptr::null_mut(),
            )
        ))?;
        succeeded(call!(self, clFinish(bench.queue)))?;
        succeeded(call!(
            self,
            clEnqueueReadBuffer(
                bench.queue,
                bench.buffer,
                CL_TRUE,
                0,
                size,
                words.as_mut_ptr().cast(),
                0,
                none,
                std::ptr::null_mut(),
            )
        ))?;
        Ok(words)
    }

    /// Divides a device into sub-devices of one compute unit each. They live as long as the process.
    ///
    /// # Errors
    /// The driver's code: most devices cannot be divided.
    pub fn create_sub_devices(&self, device: Device) -> Result<Vec<Device>, cl_int> {
        const MAX: cl_uint = 1 << 16;
        let how = [CL_DEVICE_PARTITION_EQUALLY, 1, 0];
        let mut count = 0;
        succeeded(call!(
            self,
            clCreateSubDevices(
                device.raw(),
                how.as_ptr(),
                0,
                std::ptr::null_mut(),
                &mut count
            )
        ))?;
        if count > MAX {
            return Err(CL_INVALID_VALUE);
        }
        let mut made = vec![std::ptr::null_mut(); count as usize];
        succeeded(call!(
            self,
            clCreateSubDevices(
                device.raw(),
                how.as_ptr(),
                count,
                made.as_mut_ptr(),
                std::ptr::null_mut()
            )
        ))?;
        Ok(made.into_iter().map(Device::new).collect())
    }
}

fn succeeded(code: cl_int) -> Result<(), cl_int> {
    match code {
        CL_SUCCESS => Ok(()),
        code => Err(code),
    }
}
