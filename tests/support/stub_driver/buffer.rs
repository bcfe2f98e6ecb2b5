//! Buffers, and reading and writing them.

use std::ffi::c_void;
use std::sync::Arc;

use opencl_sys::*;

use crate::abi::{self, Answer, Handle, Outcome, code, respond};
use crate::context::{CONTEXTS, Context, queue, shown};
use crate::event;
use crate::fork_safety::Mutex;
use crate::registry::{Hold, Registry};

pub struct Buffer {
    context: Hold<Context>,
    flags: cl_mem_flags,
    pub bytes: Mutex<Vec<u8>>,
}

static BUFFERS: Registry<Buffer> = Registry::new();

pub fn buffer(handle: Handle) -> Outcome<Arc<Buffer>> {
    BUFFERS.get(handle).ok_or(CL_INVALID_MEM_OBJECT)
}

pub unsafe extern "C" fn create(
    context: cl_context,
    flags: cl_mem_flags,
    size: usize,
    host: *mut c_void,
    errcode: *mut cl_int,
) -> cl_mem {
    let takes_host = flags & (CL_MEM_COPY_HOST_PTR | CL_MEM_USE_HOST_PTR) != 0;
    let outcome = match CONTEXTS.hold(context) {
        None => Err(CL_INVALID_CONTEXT),
        Some(_) if size == 0 => Err(CL_INVALID_BUFFER_SIZE),
        Some(_) if takes_host == host.is_null() => Err(CL_INVALID_HOST_PTR),
        Some(context) => {
            let bytes = match takes_host {
                // SAFETY: the application's memory has `size` bytes.
                true => unsafe { abi::list(host.cast::<u8>(), size) },
                false => vec![0; size],
            };
            let bytes = Mutex::new(bytes);
            let parent = context.handle();
            let buffer = Buffer {
                context,
                flags,
                bytes,
            };
            Ok(BUFFERS.insert(Arc::new(buffer), parent))
        }
    };
    // SAFETY: the application's own place.
    unsafe { abi::handle(outcome, errcode) }
}

pub unsafe extern "C" fn create_with_properties(
    context: cl_context,
    _properties: *const cl_mem_properties,
    flags: cl_mem_flags,
    size: usize,
    host: *mut c_void,
    errcode: *mut cl_int,
) -> cl_mem {
    // SAFETY: the same contract.
    unsafe { create(context, flags, size, host, errcode) }
}

pub unsafe extern "C" fn retain(handle: cl_mem) -> cl_int {
    code(
        BUFFERS
            .retain(handle)
            .then_some(())
            .ok_or(CL_INVALID_MEM_OBJECT),
    )
}

pub unsafe extern "C" fn release(handle: cl_mem) -> cl_int {
    code(
        BUFFERS
            .release(handle)
            .then_some(())
            .ok_or(CL_INVALID_MEM_OBJECT),
    )
}

pub unsafe extern "C" fn get_info(
    handle: cl_mem,
    param: cl_mem_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> cl_int {
    let answer = buffer(handle).and_then(|buffer| match param {
        CL_MEM_TYPE => Ok(Answer::value(CL_MEM_OBJECT_BUFFER)),
        CL_MEM_FLAGS => Ok(Answer::value(buffer.flags)),
        CL_MEM_SIZE => Ok(Answer::value(buffer.bytes.lock().len())),
        CL_MEM_REFERENCE_COUNT => Ok(shown(BUFFERS.counts(handle))),
        CL_MEM_CONTEXT => Ok(Answer::value(buffer.context.handle())),
        CL_MEM_OFFSET | CL_MEM_HOST_PTR | CL_MEM_ASSOCIATED_MEMOBJECT => Ok(Answer::value(0_usize)),
        CL_MEM_MAP_COUNT | CL_MEM_USES_SVM_POINTER => Ok(Answer::value(0_u32)),
        _ => Err(CL_INVALID_VALUE),
    });
    // SAFETY: the application's own places.
    unsafe { respond(answer, size, value, size_ret) }
}

/// The part of a buffer that a transfer names, if it lies inside the buffer.
fn part(buffer: &Buffer, offset: usize, size: usize) -> Outcome<std::ops::Range<usize>> {
    match offset.checked_add(size) {
        Some(end) if end <= buffer.bytes.lock().len() => Ok(offset..end),
        _ => Err(CL_INVALID_VALUE),
    }
}

pub unsafe extern "C" fn enqueue_read(
    queue_handle: cl_command_queue,
    handle: cl_mem,
    _blocking: cl_bool,
    offset: usize,
    size: usize,
    host: *mut c_void,
    _waits: cl_uint,
    _wait_list: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    code((|| {
        queue(queue_handle)?;
        let buffer = buffer(handle)?;
        let range = part(&buffer, offset, size)?;
        if host.is_null() {
            return Err(CL_INVALID_VALUE);
        }
        let bytes = buffer.bytes.lock();
        // SAFETY: the application's memory has `size` bytes; the range was checked.
        unsafe {
            host.cast::<u8>()
                .copy_from_nonoverlapping(bytes[range].as_ptr(), size);
            event::complete(queue_handle, CL_COMMAND_READ_BUFFER, event);
        }
        Ok(())
    })())
}

pub unsafe extern "C" fn enqueue_write(
    queue_handle: cl_command_queue,
    handle: cl_mem,
    _blocking: cl_bool,
    offset: usize,
    size: usize,
    host: *const c_void,
    _waits: cl_uint,
    _wait_list: *const cl_event,
    event: *mut cl_event,
) -> cl_int {
    code((|| {
        queue(queue_handle)?;
        let buffer = buffer(handle)?;
        let range = part(&buffer, offset, size)?;
        if host.is_null() {
            return Err(CL_INVALID_VALUE);
        }
        // SAFETY: the application's memory has `size` bytes.
        let bytes = unsafe { abi::list(host.cast::<u8>(), size) };
        buffer.bytes.lock()[range].copy_from_slice(&bytes);
        // SAFETY: the application's own place.
        unsafe { event::complete(queue_handle, CL_COMMAND_WRITE_BUFFER, event) };
        Ok(())
    })())
}
