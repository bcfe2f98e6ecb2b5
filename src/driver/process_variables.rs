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

/// The variables with which the process was started (proc(5)), as a driver finds them there: they are read when a door is opened,
/// before a driver is, and kept. A program may write where they are at any time (setproctitle(3bsd)), and a loader may (measured:
/// ocl-icd 2.3.1 cuts OPENCL_LAYERS in its place), so what the dynamic linker has read there is only known from itself: see
/// `linker_state`.
///
/// None: they cannot be read now (prctl(2), PR_SET_DUMPABLE).
pub fn at_start() -> Option<&'static [u8]> {
    static AT_START: OnceBox<Vec<u8>> = OnceBox::new();
    // Only an error may pass.
    let at_start = AT_START.get_or_try_init(|| proc_file::read_own("environ").map(Box::new));
    at_start.ok().map(Vec::as_slice)
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
