//! A library to preload that lets allocations of one library fail: the large ones that `liboclcache.so` makes itself.
//!
//! | variable | meaning |
//! |---|---|
//! | `STARVING_AT` | which of them fails, from 1 on |
//! | `STARVING_FROM` | from which on all fail |
//! | `STARVING_SIZE` | the smallest that counts, in bytes, from 4096 on |
//! | `STARVING_LOG` | file to which a byte is appended for each |

#![allow(unsafe_code)] // the C library's allocator

use std::arch::naked_asm;
use std::ffi::{CStr, c_int, c_void};
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

/// Smaller ones never fail.
const LARGE: usize = 4096;

unsafe extern "C" {
    fn __libc_malloc(size: usize) -> *mut c_void;
    fn __libc_calloc(count: usize, size: usize) -> *mut c_void;
    fn __libc_realloc(old: *mut c_void, size: usize) -> *mut c_void;
    fn __libc_memalign(alignment: usize, size: usize) -> *mut c_void;
}

static COUNT: AtomicUsize = AtomicUsize::new(0);
static LOG: AtomicI64 = AtomicI64::new(-2);

fn number(name: &CStr) -> Option<usize> {
    // SAFETY: a C string, and nothing sets variables meanwhile.
    let value = unsafe { libc::getenv(name.as_ptr()) };
    // SAFETY: the value of a variable.
    (!value.is_null()).then(|| unsafe { libc::atol(value) as usize })
}

/// Whether the allocation that is asked for from this address fails. Nothing here allocates.
fn fails(size: usize, caller: *const c_void) -> bool {
    if size < LARGE || number(c"STARVING_SIZE").is_some_and(|least| size < least) {
        return false;
    }
    // SAFETY: an empty structure of C.
    let mut found: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: any address may be asked for.
    if unsafe { libc::dladdr(caller, &mut found) } == 0 || found.dli_fname.is_null() {
        return false;
    }
    // SAFETY: the name of a library that is loaded.
    if unsafe { libc::strstr(found.dli_fname, c"liboclcache".as_ptr()) }.is_null() {
        return false;
    }
    let count = COUNT.fetch_add(1, Ordering::Relaxed) + 1;
    if LOG.load(Ordering::Relaxed) == -2 {
        // SAFETY: C strings.
        let log = unsafe {
            let path = libc::getenv(c"STARVING_LOG".as_ptr());
            let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_CLOEXEC;
            if path.is_null() {
                -1
            } else {
                libc::open(path, flags, 0o600)
            }
        };
        LOG.store(log.into(), Ordering::Relaxed);
    }
    // SAFETY: one byte.
    unsafe {
        libc::write(
            LOG.load(Ordering::Relaxed) as c_int,
            c".".as_ptr().cast(),
            1,
        )
    };
    number(c"STARVING_AT") == Some(count)
        || number(c"STARVING_FROM").is_some_and(|from| from <= count)
}

extern "C" fn malloc_from(size: usize, caller: *const c_void) -> *mut c_void {
    match fails(size, caller) {
        true => std::ptr::null_mut(),
        // SAFETY: any size.
        false => unsafe { __libc_malloc(size) },
    }
}

extern "C" fn calloc_from(count: usize, size: usize, caller: *const c_void) -> *mut c_void {
    match fails(count.saturating_mul(size), caller) {
        true => std::ptr::null_mut(),
        // SAFETY: any sizes.
        false => unsafe { __libc_calloc(count, size) },
    }
}

extern "C" fn realloc_from(old: *mut c_void, size: usize, caller: *const c_void) -> *mut c_void {
    match fails(size, caller) {
        true => std::ptr::null_mut(),
        // SAFETY: the caller's own.
        false => unsafe { __libc_realloc(old, size) },
    }
}

extern "C" fn posix_memalign_from(
    place: *mut *mut c_void,
    alignment: usize,
    size: usize,
    caller: *const c_void,
) -> c_int {
    if fails(size, caller) {
        return libc::ENOMEM;
    }
    // SAFETY: an alignment that the caller chose.
    let memory = unsafe { __libc_memalign(alignment, size) };
    if memory.is_null() {
        return libc::ENOMEM;
    }
    // SAFETY: the caller's place.
    unsafe { place.write(memory) };
    0
}

/// Functions that pass the address of their caller on, as one more argument.
macro_rules! known_by_caller {
    ($($name:ident, $x86:literal, $arm:literal => $to:ident;)*) => {$(
        /// As in C.
        #[unsafe(no_mangle)]
        #[unsafe(naked)]
        pub extern "C" fn $name() {
            #[cfg(target_arch = "x86_64")]
            naked_asm!(concat!("mov ", $x86, ", [rsp]"), "jmp {to}", to = sym $to);
            #[cfg(target_arch = "aarch64")]
            naked_asm!(concat!("mov ", $arm, ", x30"), "b {to}", to = sym $to);
        }
    )*};
}
known_by_caller! {
    malloc, "rsi", "x1" => malloc_from;
    calloc, "rdx", "x2" => calloc_from;
    realloc, "rdx", "x2" => realloc_from;
    posix_memalign, "rcx", "x3" => posix_memalign_from;
}
