//! "Running" a kernel: its first writable global argument receives numbers that follow from the code.

use std::sync::atomic::Ordering;

use opencl_sys::*;

use crate::abi::{self, Handle, Outcome, code};
use crate::buffer::buffer;
use crate::compiler::fnv64;
use crate::context::queue;
use crate::event;
use crate::kernel::kernel;

fn run(queue_handle: Handle, handle: Handle, sizes: &[usize]) -> Outcome {
    let queue = queue(queue_handle)?;
    let kernel = kernel(handle)?;
    if sizes.is_empty() || sizes.len() > 3 {
        return Err(CL_INVALID_WORK_DIMENSION);
    }
    let index = kernel.program.object().index(queue.device);
    let code = kernel.codes[index.map_err(|_| CL_INVALID_PROGRAM_EXECUTABLE)?].as_ref();
    let code = code.ok_or(CL_INVALID_PROGRAM_EXECUTABLE)?;
    let values = kernel.values.lock().clone();
    let mut result = None;
    for (argument, value) in kernel.definition.arguments.iter().zip(values) {
        let value = value.ok_or(CL_INVALID_KERNEL_ARGS)?;
        if argument.is_writable_buffer() && result.is_none() {
            let address = value.try_into().map(usize::from_ne_bytes);
            result = Some(buffer(address.map_err(|_| CL_INVALID_ARG_SIZE)? as Handle)?);
        }
    }
    let before = match code.stateful {
        true => code.launches.fetch_add(1, Ordering::SeqCst),
        false => 0,
    };
    let digest = fnv64(&[
        &code.digest.to_le_bytes(),
        kernel.definition.name.as_bytes(),
        &before.to_le_bytes(),
    ]);
    let first = (digest ^ digest >> 32) as u32;
    if let Some(buffer) = result {
        let items: usize = sizes.iter().product();
        for (item, word) in buffer
            .bytes
            .lock()
            .chunks_exact_mut(4)
            .enumerate()
            .take(items)
        {
            word.copy_from_slice(&first.wrapping_add(item as u32).to_ne_bytes());
        }
    }
    Ok(())
}

pub unsafe extern "C" fn enqueue_nd_range(
    queue: cl_command_queue,
    kernel: cl_kernel,
    dimensions: cl_uint,
    _offset: *const usize,
    global: *const usize,
    _local: *const usize,
    _waits: cl_uint,
    _wait_list: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    // SAFETY: the application's own array; more than three dimensions are an error that `run` reports.
    let sizes = unsafe { abi::list(global, dimensions.min(4) as usize) };
    code(run(queue, kernel, &sizes).map(|()| {
        // SAFETY: the application's own place.
        unsafe { event::complete(queue, CL_COMMAND_NDRANGE_KERNEL, event) }
    }))
}

pub unsafe extern "C" fn enqueue_task(
    queue: cl_command_queue,
    kernel: cl_kernel,
    _waits: cl_uint,
    _wait_list: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    code(run(queue, kernel, &[1]).map(|()| {
        // SAFETY: the application's own place.
        unsafe { event::complete(queue, CL_COMMAND_TASK, event) }
    }))
}
