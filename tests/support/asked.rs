//! A library for LD_PRELOAD that notes each variable that anything in the process asks for, in the file ASKED_LOG.

#![allow(unsafe_code)] // stands in for functions of the C library

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

type Getenv = unsafe extern "C" fn(*const c_char) -> *mut c_char;

/// The next function of that name.
fn next(known: &OnceLock<Option<Getenv>>, name: &CStr) -> Option<Getenv> {
    *known.get_or_init(|| {
        // SAFETY: the name is a C string.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, name.as_ptr()) };
        // SAFETY: getenv and secure_getenv are of this type, and a function's address may be NULL in an Option.
        unsafe { std::mem::transmute::<*mut libc::c_void, Option<Getenv>>(found) }
    })
}

/// # Safety
/// The name is a C string.
unsafe fn asked(
    known: &OnceLock<Option<Getenv>>,
    function: &CStr,
    name: *const c_char,
) -> *mut c_char {
    static PLAIN: OnceLock<Option<Getenv>> = OnceLock::new();
    let Some(below) = next(known, function) else {
        return std::ptr::null_mut();
    };
    if let Some(plain) = next(&PLAIN, c"getenv") {
        // SAFETY: all are C strings, and a line is written at once behind the end of the file.
        unsafe {
            let log = plain(c"ASKED_LOG".as_ptr());
            if !log.is_null() {
                let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_APPEND | libc::O_CLOEXEC;
                let file = libc::open(log, flags, 0o600);
                let line = [CStr::from_ptr(name).to_bytes(), b"\n"].concat();
                libc::write(file, line.as_ptr().cast(), line.len());
                libc::close(file);
            }
        }
    }
    // SAFETY: the caller's argument.
    unsafe { below(name) }
}

/// # Safety
/// As getenv(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn getenv(name: *const c_char) -> *mut c_char {
    static NEXT: OnceLock<Option<Getenv>> = OnceLock::new();
    // SAFETY: the caller's argument.
    unsafe { asked(&NEXT, c"getenv", name) }
}

/// # Safety
/// As secure_getenv(3).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn secure_getenv(name: *const c_char) -> *mut c_char {
    static NEXT: OnceLock<Option<Getenv>> = OnceLock::new();
    // SAFETY: the caller's argument.
    unsafe { asked(&NEXT, c"secure_getenv", name) }
}
