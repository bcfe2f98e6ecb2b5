//! Events, which are complete from the start.

use std::ffi::c_void;
use std::sync::Arc;

use opencl_sys::*;

use crate::abi::{self, Answer, Handle, code, respond};
use crate::context::shown;
use crate::registry::Registry;

/// The command that an event stands for.
pub struct Event {
    queue: usize,
    command: cl_command_type,
}

static EVENTS: Registry<Event> = Registry::new();

/// Makes the event of a command that has run, if the application wants one.
///
/// # Safety
/// `event` is NULL or can be written.
pub unsafe fn complete(queue: Handle, command: cl_command_type, event: *mut cl_event) {
    if !event.is_null() {
        let made = Event {
            queue: queue as usize,
            command,
        };
        // SAFETY: the caller's promise.
        unsafe { abi::store(event, EVENTS.insert(Arc::new(made), queue)) };
    }
}

pub unsafe extern "C" fn wait(count: cl_uint, events: *const cl_event) -> cl_int {
    // SAFETY: the application's own array.
    let events = unsafe { abi::list(events, count as usize) };
    if events.is_empty() {
        return CL_INVALID_VALUE;
    }
    match events.iter().all(|event| EVENTS.get(*event).is_some()) {
        true => CL_SUCCESS,
        false => CL_INVALID_EVENT,
    }
}

pub unsafe extern "C" fn retain(event: cl_event) -> cl_int {
    code(EVENTS.retain(event).then_some(()).ok_or(CL_INVALID_EVENT))
}

pub unsafe extern "C" fn release(event: cl_event) -> cl_int {
    code(EVENTS.release(event).then_some(()).ok_or(CL_INVALID_EVENT))
}

pub unsafe extern "C" fn get_info(
    handle: cl_event,
    param: cl_event_info,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> cl_int {
    let answer = EVENTS
        .get(handle)
        .ok_or(CL_INVALID_EVENT)
        .and_then(|event| match param {
            CL_EVENT_COMMAND_QUEUE => Ok(Answer::value(event.queue)),
            CL_EVENT_COMMAND_TYPE => Ok(Answer::value(event.command)),
            CL_EVENT_COMMAND_EXECUTION_STATUS => Ok(Answer::value(0_i32)),
            CL_EVENT_REFERENCE_COUNT => Ok(shown(EVENTS.counts(handle))),
            _ => Err(CL_INVALID_VALUE),
        });
    // SAFETY: the application's own places.
    unsafe { respond(answer, size, value, size_ret) }
}

pub unsafe extern "C" fn get_profiling_info(
    _event: cl_event,
    _param: cl_profiling_info,
    _size: usize,
    _value: *mut c_void,
    _size_ret: *mut usize,
) -> cl_int {
    CL_PROFILING_INFO_NOT_AVAILABLE
}
