//! An OpenCL program as people write them in Rust: on `cl3`, which opens the ICD loader by itself and knows nothing of any
//! cache. Prints whether the sum of two vectors is right.

// Values of queries and buffers are in the byte order of the machine, and printing is what this program is for.
#![allow(clippy::disallowed_methods, clippy::print_stdout)]
// The functions of cl3 are unsafe as those of OpenCL are.
#![allow(unsafe_code)]

use std::ffi::CString;
use std::ptr::null_mut;

use cl3::command_queue::{
    create_command_queue, enqueue_nd_range_kernel, enqueue_read_buffer, enqueue_write_buffer,
    finish, release_command_queue,
};
use cl3::context::{create_context, release_context};
use cl3::device::{CL_DEVICE_TYPE_ALL, get_device_ids};
use cl3::kernel::{create_kernel, release_kernel, set_kernel_arg};
use cl3::memory::{CL_MEM_READ_ONLY, CL_MEM_WRITE_ONLY, create_buffer, release_mem_object};
use cl3::platform::get_platform_ids;
use cl3::program::{build_program, create_program_with_source, release_program};
use cl3::types::{CL_BLOCKING, cl_mem};

const SOURCE: &str =
    "__kernel void add(__global const float *a, __global const float *b, __global float *sum) {
    size_t i = get_global_id(0);
    sum[i] = a[i] + b[i];
}";
const COUNT: usize = 1024;

fn main() -> Result<(), i32> {
    let platforms = get_platform_ids()?;
    let devices = platforms.iter().find_map(|&platform| {
        get_device_ids(platform, CL_DEVICE_TYPE_ALL)
            .ok()
            .filter(|devices| !devices.is_empty())
    });
    let device = devices.ok_or(-1)?[0];
    let values: Vec<f32> = (0..COUNT).map(|value| value as f32).collect();
    let mut sums = vec![0f32; COUNT];
    let bytes = size_of_val(values.as_slice());

    let context = create_context(&[device], std::ptr::null(), None, null_mut())?;
    // One string: with several, create_program_with_source of cl3 0.13 passes lengths for pointers.
    let program = create_program_with_source(context, &[SOURCE])?;
    let options = CString::new("-cl-std=CL1.2").map_err(|_| -1)?;
    build_program(program, &[device], &options, None, null_mut())?;
    let kernel = create_kernel(program, &CString::new("add").map_err(|_| -1)?)?;

    // SAFETY: the objects are live, the sizes are those of the vectors, and reads and writes end before they go.
    unsafe {
        let queue = create_command_queue(context, device, 0)?;
        let [a, b] = [
            create_buffer(context, CL_MEM_READ_ONLY, bytes, null_mut())?,
            create_buffer(context, CL_MEM_READ_ONLY, bytes, null_mut())?,
        ];
        let sum = create_buffer(context, CL_MEM_WRITE_ONLY, bytes, null_mut())?;
        for buffer in [a, b] {
            enqueue_write_buffer(
                queue,
                buffer,
                CL_BLOCKING,
                0,
                bytes,
                values.as_ptr().cast(),
                0,
                std::ptr::null(),
            )?;
        }
        for (index, buffer) in [a, b, sum].iter().enumerate() {
            set_kernel_arg(
                kernel,
                index as u32,
                size_of::<cl_mem>(),
                std::ptr::from_ref(buffer).cast(),
            )?;
        }
        let size = [COUNT];
        enqueue_nd_range_kernel(
            queue,
            kernel,
            1,
            std::ptr::null(),
            size.as_ptr(),
            std::ptr::null(),
            0,
            std::ptr::null(),
        )?;
        enqueue_read_buffer(
            queue,
            sum,
            CL_BLOCKING,
            0,
            bytes,
            sums.as_mut_ptr().cast(),
            0,
            std::ptr::null(),
        )?;
        finish(queue)?;
        for buffer in [a, b, sum] {
            release_mem_object(buffer)?;
        }
        release_kernel(kernel)?;
        release_program(program)?;
        release_command_queue(queue)?;
        release_context(context)?;
    }
    let right = sums
        .iter()
        .zip(&values)
        .all(|(sum, value)| *sum == 2.0 * value);
    println!("sum {}", if right { "OK" } else { "WRONG" });
    Ok(())
}
