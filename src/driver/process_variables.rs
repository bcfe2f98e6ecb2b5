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

/// The variables with which the process was started (proc(5)). They are read when a door is opened, before a driver is, and kept: a
/// program may write where they are (setproctitle(3bsd)), or close them (prctl(2), PR_SET_DUMPABLE).
///
/// None: they cannot be read now, or the program has written there before. What the dynamic linker and the driver have read there is
/// then unknown.
pub fn at_start() -> Option<&'static [u8]> {
    static AT_START: OnceBox<Option<Vec<u8>>> = OnceBox::new();
    // Only an error may pass.
    let read = || {
        let content = proc_file::read_own("environ")?;
        std::io::Result::Ok(Box::new(Some(content).filter(|all| are_variables(all))))
    };
    AT_START.get_or_try_init(read).ok()?.as_deref()
}

/// Whether these are `NAME=VALUE` texts that each end with a NUL, as the kernel has put them there (execve(2) checks no text, but
/// shells and the C library make no others). A loader may have cut a list of paths in its place (measured: ocl-icd 2.3.1 and
/// OPENCL_LAYERS), so a text may also be a path.
fn are_variables(all: &[u8]) -> bool {
    let is_one = |text: &[u8]| parse(text).is_some() || text.starts_with(b"/");
    let texts = |all: &[u8]| all.split(|byte| *byte == 0).all(is_one);
    all.is_empty() || all.strip_suffix(&[0]).is_some_and(texts)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_program_has_written_over_its_first_variables_is_told_from_them() {
        for all in [&b""[..], b"A=1\0", b"A=1\0=B=\0C=\0", b"A=/b\0/c d\0E=\0"] {
            assert!(are_variables(all), "{}", all.escape_ascii());
        }
        for all in [
            &b"\0"[..],
            b"\0\0\0\0",
            b"A=1",
            b"title\0",
            b"A=1\0\0",
            b"itle\0\0\0B=2\0",
            b"le 4\0ONE=1\0",
            b"=\0",
        ] {
            assert!(!are_variables(all), "{}", all.escape_ascii());
        }
        assert!(at_start().is_some());
    }
}
