//! The variables of this process, as bytes: `NAME=VALUE` texts that each end with a NUL.

use std::cell::Cell;
use std::ffi::{CStr, OsStr, OsString, c_char};
use std::os::unix::ffi::OsStrExt;
use std::ptr::NonNull;

use once_cell::race::OnceBox;

use crate::proc_file;

unsafe extern "C" {
    /// environ(7)
    static environ: *const *const c_char;
}

thread_local! {
    /// What [`as_at`] has set. Without a destructor, which a thread could not register beside a constructor (see `linker_lock`).
    static OF_MOMENT: Cell<Option<NonNull<[u8]>>> = const { Cell::new(None) };
}

/// Runs with these variables, as [`current`] gave them, in place of the current ones, in this thread: the program and its drivers may
/// change those at any time while another thread of ours works, and free what it reads (measured).
pub fn as_at<T>(variables: &[u8], run: impl FnOnce() -> T) -> T {
    struct Before(Option<NonNull<[u8]>>);
    impl Drop for Before {
        fn drop(&mut self) {
            OF_MOMENT.set(self.0.take());
        }
    }
    let _before = Before(OF_MOMENT.replace(Some(variables.into())));
    run()
}

/// Calls the function with what [`as_at`] has set.
fn with_moment<T>(read: impl FnOnce(Option<&[u8]>) -> T) -> T {
    // SAFETY: `as_at` of this thread has lent them, and has not returned: it sets what was there before first.
    read(
        OF_MOMENT
            .get()
            .map(|variables| unsafe { variables.as_ref() }),
    )
}

/// The value of a variable. Only this asks for it in a module of drivers: see [`as_at`].
pub fn value(name: &str) -> Option<OsString> {
    with_moment(|variables| {
        let Some(variables) = variables else {
            return std::env::var_os(name);
        };
        let variables = variables.split(|byte| *byte == 0);
        let mut values =
            variables.filter_map(|one| one.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        values
            .next()
            .map(|value| OsStr::from_bytes(value).to_owned())
    })
}

/// Calls the function for each variable with its NUL, until it says no. Makes no copies, unlike `std::env::vars_os`.
fn all_variables(mut each: impl FnMut(&[u8]) -> bool) {
    let is_done = with_moment(|variables| {
        variables.is_some_and(|variables| {
            let mut variables = variables.split_inclusive(|byte| *byte == 0);
            let _ = variables.all(&mut each);
            true
        })
    });
    if is_done {
        return;
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_may_have_the_variables_of_another_moment() {
        let now = current();
        assert!(is_current(&now) && value("PATH").is_some());
        let then = b"PATH=/then\0A=1\0A=2\0EMPTY=\0";
        as_at(then, || {
            assert_eq!(current(), then);
            assert!(is_current(then) && !is_current(&now));
            let values = ["PATH", "A", "EMPTY", "PAT", "HOME"].map(value);
            let expected = [Some("/then"), Some("1"), Some(""), None, None];
            assert_eq!(values, expected.map(|value| value.map(OsString::from)));
        });
        assert!(is_current(&now));
    }
}
