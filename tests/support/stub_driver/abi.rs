//! Arguments of the C ABI made into Rust values, and answers made into theirs.

use std::ffi::{CStr, c_char, c_void};
use std::{mem, slice};

use opencl_sys::{CL_INVALID_VALUE, CL_SUCCESS, cl_int};

/// The outcome of an entry point: its value or the error code.
pub type Outcome<T = ()> = Result<T, cl_int>;

/// A handle as the application holds it.
pub type Handle = *mut c_void;

/// The type of such a callback. An application may leave it by an exception.
pub type NotifyFn = unsafe extern "C-unwind" fn(Handle, *mut c_void);

/// A callback of a build, compile or link, and what it is called with.
#[derive(Clone, Copy)]
pub struct Notify {
    pub function: NotifyFn,
    pub user_data: usize,
}

impl Notify {
    /// CL_INVALID_VALUE if pfn_notify is NULL but user_data is not NULL.
    pub fn new(function: Option<NotifyFn>, user_data: *mut c_void) -> Outcome<Option<Self>> {
        match function {
            None if !user_data.is_null() => Err(CL_INVALID_VALUE),
            None => Ok(None),
            Some(function) => Ok(Some(Self {
                function,
                user_data: user_data as usize,
            })),
        }
    }

    /// From frames that have nothing to drop.
    pub fn call(self, program: usize) {
        // SAFETY: the application vouched for the function when it passed it together with this user data.
        unsafe { (self.function)(program as Handle, self.user_data as *mut c_void) }
    }
}

/// The error code for an outcome without a value.
pub fn code(outcome: Outcome) -> cl_int {
    outcome.err().unwrap_or(CL_SUCCESS)
}

/// Stores the error code where the application asked for it and returns the handle or NULL.
///
/// # Safety
/// `errcode` is NULL or can be written.
pub unsafe fn handle(outcome: Outcome<Handle>, errcode: *mut cl_int) -> Handle {
    // SAFETY: the caller's promise.
    unsafe { store(errcode, outcome.err().unwrap_or(CL_SUCCESS)) };
    outcome.unwrap_or(std::ptr::null_mut())
}

/// Writes `value` unless the pointer is NULL.
///
/// # Safety
/// `place` is NULL or can be written.
pub unsafe fn store<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller's promise.
        unsafe { place.write_unaligned(value) }
    }
}

/// The elements of an array; none for NULL.
///
/// # Safety
/// `start` is NULL or points to `count` elements.
pub unsafe fn list<T: Copy>(start: *const T, count: usize) -> Vec<T> {
    if start.is_null() || count == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(start, count) }.to_vec()
}

/// The bytes of a C string; none for NULL.
///
/// # Safety
/// `text` is NULL or NUL-terminated.
pub unsafe fn text(text: *const c_char) -> Vec<u8> {
    if text.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { CStr::from_ptr(text) }.to_bytes().to_vec()
}

/// The value of a query, as bytes.
pub struct Answer(pub Vec<u8>);

impl Answer {
    pub fn value<T: Copy>(value: T) -> Self {
        Self::values(&[value])
    }

    pub fn values<T: Copy>(values: &[T]) -> Self {
        // SAFETY: only integers and pointers are passed, which have no padding.
        let bytes =
            unsafe { slice::from_raw_parts(values.as_ptr().cast(), mem::size_of_val(values)) };
        Self(bytes.to_vec())
    }

    /// A string with the NUL that the specification adds.
    pub fn text(text: impl AsRef<[u8]>) -> Self {
        let mut bytes = text.as_ref().to_vec();
        bytes.push(0);
        Self(bytes)
    }

    /// CL_INVALID_VALUE if param_value_size is less than the size of the answer and param_value is not NULL.
    ///
    /// # Safety
    /// `value` is NULL or has `size` bytes; `size_ret` is NULL or can be written.
    pub unsafe fn give(self, size: usize, value: *mut c_void, size_ret: *mut usize) -> Outcome {
        if !value.is_null() {
            if size < self.0.len() {
                return Err(CL_INVALID_VALUE);
            }
            // SAFETY: the caller's promise; the size was checked.
            unsafe {
                value
                    .cast::<u8>()
                    .copy_from_nonoverlapping(self.0.as_ptr(), self.0.len())
            };
        }
        // SAFETY: the caller's promise.
        unsafe { store(size_ret, self.0.len()) };
        Ok(())
    }
}

/// An answer given or the error code that stands in its place.
///
/// # Safety
/// As [`Answer::give`].
pub unsafe fn respond(
    answer: Outcome<Answer>,
    size: usize,
    value: *mut c_void,
    size_ret: *mut usize,
) -> cl_int {
    // SAFETY: the caller's promise.
    code(answer.and_then(|answer| unsafe { answer.give(size, value, size_ret) }))
}
