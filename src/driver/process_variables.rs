//! The variables of this process, as bytes: `NAME=VALUE` texts that each end with a NUL.

use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;

use once_cell::race::OnceBox;

use crate::proc_file;

unsafe extern "C" {
    /// environ(7)
    static environ: *const *const c_char;
}

/// Calls the function for each variable with its NUL, until it says no. Makes no copies, unlike `std::env::vars_os`.
fn all_variables(mut each: impl FnMut(&[u8]) -> bool) {
    // SAFETY: a NULL-terminated array of C strings, or NULL (environ(7)). It must not be changed meanwhile, as for drivers and
    // everybody else who reads it.
    unsafe {
        let mut next = environ;
        while !next.is_null() && !(*next).is_null() {
            if !each(CStr::from_ptr(*next).to_bytes_with_nul()) {
                return;
            }
            next = next.add(1);
        }
    }
}

/// All variables as they are in memory, each with its NUL.
pub fn current() -> Vec<u8> {
    let mut all = Vec::new();
    all_variables(|variable| {
        all.extend(variable);
        true
    });
    all
}

/// The variables with which the process was started (proc(5)), as they were when they were first asked for: a program may write there.
/// None if they cannot be read, which holds for the driver as well.
pub fn at_start() -> Option<&'static [u8]> {
    static AT_START: OnceBox<Option<Vec<u8>>> = OnceBox::new();
    let at_start = AT_START.get_or_init(|| Box::new(proc_file::read("/proc/self/environ").ok()));
    at_start.as_deref()
}

/// Whether these are the current variables.
pub fn is_current(mut rest: &[u8]) -> bool {
    let mut is_same = true;
    all_variables(|variable| {
        match rest.strip_prefix(variable) {
            Some(behind) => rest = behind,
            None => is_same = false,
        }
        is_same
    });
    is_same && rest.is_empty()
}

/// Name and value. A name may begin with `=`, as for the standard library.
pub fn parse(text: &[u8]) -> Option<(&OsStr, &OsStr)> {
    let end = 1 + text.get(1..)?.iter().position(|byte| *byte == b'=')?;
    let (name, value) = (&text[..end], &text[end + 1..]);
    Some((OsStr::from_bytes(name), OsStr::from_bytes(value)))
}
