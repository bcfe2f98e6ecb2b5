//! Contexts and command queues. Queues run each command before the enqueue returns.

use std::ffi::{c_char, c_void};
use std::sync::Arc;

use opencl_sys::*;

use crate::abi::{self, Answer, Handle, Outcome, code, respond};
use crate::config;
use crate::platform;
use crate::registry::{Hold, Registry};

pub struct Context {
    pub devices: Vec<usize>,
    properties: Vec<cl_context_properties>,
}

pub struct Queue {
    context: Hold<Context>,
    pub device: usize,
    properties: u64,
}

pub static CONTEXTS: Registry<Context> = Registry::new();
pub static QUEUES: Registry<Queue> = Registry::new();

/// The property list with its terminating zero.
///
/// # Safety
/// `properties` is NULL or a list of pairs that ends with zero.
unsafe fn read_properties(properties: *const cl_context_properties) -> Vec<cl_context_properties> {
    let mut list = Vec::new();
    if properties.is_null() {
        return list;
    }
    loop {
        // SAFETY: the list has not ended yet.
        let word = unsafe { *properties.add(list.len()) };
        list.push(word);
        if word == 0 && list.len() % 2 == 1 {
            return list;
        }
    }
}

type ContextNotify = Option<unsafe extern "C" fn(*const c_char, *const c_void, usize, *mut c_void)>;

pub unsafe extern "C" fn create_context(
    properties: *const cl_context_properties,
    count: cl_uint,
    devices: *const cl_device_id,
    notify: ContextNotify,
    user_data: *mut c_void,
    errcode: *mut cl_int,
) -> cl_context {
    std::thread::sleep(config::context_time());
    // SAFETY: the application's own arrays.
    let (properties, devices) = unsafe {
        (
            read_properties(properties),
            abi::list(devices, count as usize),
        )
    };
    let outcome = if devices.is_empty() || (notify.is_none() && !user_data.is_null()) {
        Err(CL_INVALID_VALUE)
    } else if devices
        .iter()
        .any(|device| platform::device(*device).is_err())
    {
        Err(CL_INVALID_DEVICE)
    } else {
        let first = devices[0];
        let devices = devices.into_iter().map(|device| device as usize).collect();
        let context = Context {
            devices,
            properties,
        };
        Ok(CONTEXTS.insert(Arc::new(context), first))
    };
    // SAFETY: the application's own place.
    unsafe { abi::handle(outcome, errcode) }
}

pub unsafe extern "C" fn create_context_from_type(
    properties: *const cl_context_properties,
    kind: cl_device_type,
    notify: ContextNotify,
    user_data: *mut c_void,
    errcode: *mut cl_int,
) -> cl_context {
    let mut platform = std::ptr::null_mut();
    let mut devices = [std::ptr::null_mut(); 64];
    let mut count = 0;
    // SAFETY: places of this function, with their sizes; the application's own arguments are passed on.
    unsafe {
        platform::get_platform_ids(1, &mut platform, std::ptr::null_mut());
        let found = platform::get_device_ids(platform, kind, 64, devices.as_mut_ptr(), &mut count);
        if found != CL_SUCCESS {
            return abi::handle(Err(found), errcode);
        }
        create_context(
            properties,
            count,
            devices.as_ptr(),
            notify,
            user_data,
            errcode,
        )
    }
}

pub unsafe extern "C" fn retain_context(context: cl_context) -> cl_int {
    code(
        CONTEXTS
            .retain(context)
            .then_some(())
            .ok_or(CL_INVALID_CONTEXT),
    )
}

pub unsafe extern "C" fn release_context(context: cl_context) -> cl_int {
    code(
        CONTEXTS
            .release(context)
            .then_some(())
            .ok_or(CL_INVALID_CONTEXT),
    )
}

/// A reference count as this driver shows it.
pub fn shown(counts: (u32, u32)) -> Answer {
    let (references, holds) = counts;
    Answer::value(
        references
            + if config::counts_dependents() {
                holds
            } else {
                0
            },
    )
}

fn context_answer(handle: Handle, param: cl_context_info) -> Outcome<Answer> {
    let context = CONTEXTS.get(handle).ok_or(CL_INVALID_CONTEXT)?;
    Ok(match param {
        CL_CONTEXT_REFERENCE_COUNT => shown(CONTEXTS.counts(handle)),
        CL_CONTEXT_NUM_DEVICES => Answer::value(context.devices.len() as cl_uint),
        CL_CONTEXT_DEVICES => Answer::values(&context.devices),
        CL_CONTEXT_PROPERTIES => Answer::values(&context.properties),
        _ => return Err(CL_INVALID_VALUE),
    })
}

pub unsafe extern "C" fn get_context_info(
    context: cl_context,
    param: cl_context_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> cl_int {
    // SAFETY: the application's own places.
    unsafe { respond(context_answer(context, param), size, value, size_ret) }
}

fn new_queue(context: Handle, device: Handle, properties: u64) -> Outcome<Handle> {
    let context = CONTEXTS.hold(context).ok_or(CL_INVALID_CONTEXT)?;
    if !context.object().devices.contains(&(device as usize)) {
        return Err(CL_INVALID_DEVICE);
    }
    let parent = context.handle();
    let queue = Queue {
        context,
        device: device as usize,
        properties,
    };
    Ok(QUEUES.insert(Arc::new(queue), parent))
}

pub unsafe extern "C" fn create_queue(
    context: cl_context,
    device: cl_device_id,
    properties: cl_command_queue_properties,
    errcode: *mut cl_int,
) -> cl_command_queue {
    // SAFETY: the application's own place.
    unsafe { abi::handle(new_queue(context, device, properties), errcode) }
}

pub unsafe extern "C" fn create_queue_with_properties(
    context: cl_context,
    device: cl_device_id,
    _properties: *const cl_queue_properties,
    errcode: *mut cl_int,
) -> cl_command_queue {
    // SAFETY: the application's own place.
    unsafe { abi::handle(new_queue(context, device, 0), errcode) }
}

pub fn queue(handle: Handle) -> Outcome<Arc<Queue>> {
    QUEUES.get(handle).ok_or(CL_INVALID_COMMAND_QUEUE)
}

pub unsafe extern "C" fn retain_queue(handle: cl_command_queue) -> cl_int {
    code(
        QUEUES
            .retain(handle)
            .then_some(())
            .ok_or(CL_INVALID_COMMAND_QUEUE),
    )
}

pub unsafe extern "C" fn release_queue(handle: cl_command_queue) -> cl_int {
    code(
        QUEUES
            .release(handle)
            .then_some(())
            .ok_or(CL_INVALID_COMMAND_QUEUE),
    )
}

/// clFlush and clFinish: nothing is ever left to do.
pub unsafe extern "C" fn finish(handle: cl_command_queue) -> cl_int {
    code(queue(handle).map(drop))
}

pub unsafe extern "C" fn get_queue_info(
    handle: cl_command_queue,
    param: cl_command_queue_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> cl_int {
    let answer = queue(handle).and_then(|queue| match param {
        CL_QUEUE_CONTEXT => Ok(Answer::value(queue.context.handle())),
        CL_QUEUE_DEVICE => Ok(Answer::value(queue.device)),
        CL_QUEUE_REFERENCE_COUNT => Ok(shown(QUEUES.counts(handle))),
        CL_QUEUE_PROPERTIES => Ok(Answer::value(queue.properties)),
        _ => Err(CL_INVALID_VALUE),
    });
    // SAFETY: the application's own places.
    unsafe { respond(answer, size, value, size_ret) }
}
