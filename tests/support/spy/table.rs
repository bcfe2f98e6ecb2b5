//! One of the driver's dispatch tables, patched.

use std::ffi::{CStr, c_void};
use std::fs;
use std::mem;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use opencl_sys::{CL_PLATFORM_VERSION, cl_platform_id};

use crate::types::PlatformInfo;

/// Positions in the dispatch table.
pub mod slot {
    pub const GET_PLATFORM_INFO: usize = 1;
    pub const CREATE_WITH_SOURCE: usize = 26;
    pub const CREATE_WITH_BINARY: usize = 27;
    pub const RELEASE: usize = 29;
    pub const BUILD: usize = 30;
    pub const GET_INFO: usize = 32;
    pub const COMPILE: usize = 98;
    pub const LINK: usize = 99;
    /// As much of a table as drivers have since OpenCL 1.2.
    pub const COUNT_1_2: usize = 100;
    pub const FOR_PLATFORM: usize = 107;
    pub const CREATE_WITH_IL: usize = 138;
    /// As much of a table as is read, of drivers since OpenCL 2.1.
    pub const COUNT: usize = 139;
}

/// A function of ours that a driver's is called through.
pub struct Hook {
    pub slot: usize,
    pub name: &'static CStr,
    pub function: *const c_void,
}

/// The functions that stood in one of the driver's tables before ours.
pub struct Table {
    pub address: usize,
    /// Zero where the table was not read or is empty.
    pub original: [usize; slot::COUNT],
}

/// Keeps this library in memory: the driver's tables point into it from now on.
pub fn pin() {
    let private: *const c_void = pin as fn() as *const c_void;
    let mut info = mem::MaybeUninit::<libc::Dl_info>::uninit();
    // SAFETY: dladdr fills `info` when it returns non-zero; dli_fname stays valid while this library is loaded.
    unsafe {
        if libc::dladdr(private, info.as_mut_ptr()) != 0 {
            libc::dlopen(
                info.assume_init().dli_fname,
                libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE,
            );
        }
    }
}

/// How many words of the table of a platform are there for certain, by its version.
fn length(platform: cl_platform_id, address: usize) -> usize {
    let words = address as *const usize;
    // SAFETY: each table has this slot, and a function of this type stands in it.
    let get_info = unsafe { mem::transmute::<usize, PlatformInfo>(words.add(1).read()) };
    let mut text = [0_u8; 64];
    // SAFETY: the buffer has its size.
    unsafe {
        get_info(
            platform,
            CL_PLATFORM_VERSION,
            text.len(),
            text.as_mut_ptr().cast(),
            ptr::null_mut(),
        )
    };
    // "OpenCL 3.0 ..."
    match text.strip_prefix(b"OpenCL ") {
        Some([major, b'.', minor, ..]) if (*major, *minor) >= (b'2', b'1') => slot::COUNT,
        _ => slot::COUNT_1_2,
    }
}

/// Saves what the table of a platform holds, then stores these functions into it, one word at a time.
pub fn patch(platform: cl_platform_id, address: usize, hooks: &[Hook]) -> Option<Table> {
    let length = length(platform, address);
    let words = address as *mut usize;
    let mut original = [0; slot::COUNT];
    for (index, word) in original.iter_mut().enumerate().take(length) {
        // SAFETY: the table has `length` words.
        *word = unsafe { words.add(index).read() };
    }
    let writable = is_writable(address, length);
    if !writable && !protect(address, length, libc::PROT_READ | libc::PROT_WRITE) {
        return None;
    }
    // Calls may come in as soon as the first slot is ours; they wait until the whole driver is known.
    for hook in hooks {
        // A place that the driver left empty stays empty.
        if original[hook.slot] == 0 {
            continue;
        }
        // SAFETY: the word is aligned, inside the table and writable now; others may read it at the same time.
        unsafe { AtomicUsize::from_ptr(words.add(hook.slot)) }
            .store(hook.function as usize, Ordering::Release);
    }
    if !writable {
        protect(address, length, libc::PROT_READ);
    }
    Some(Table { address, original })
}

/// Whether the table that begins at `address` can be written, by the process's own memory map.
fn is_writable(address: usize, length: usize) -> bool {
    let maps = fs::read_to_string("/proc/self/maps").unwrap_or_default();
    maps.lines().any(|line| {
        let mut fields = line.split(' ');
        let range = fields.next().and_then(|range| range.split_once('-'));
        let Some((start, end)) = range else {
            return false;
        };
        let parse = |text| usize::from_str_radix(text, 16).unwrap_or(0);
        (parse(start)..parse(end)).contains(&address)
            && parse(end) >= address + length * mem::size_of::<usize>()
            && fields.next().is_some_and(|flags| flags.starts_with("rw"))
    })
}

fn protect(address: usize, length: usize, protection: i32) -> bool {
    // SAFETY: sysconf has no preconditions.
    let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) } as usize;
    let start = address / page * page;
    let bytes = address + length * mem::size_of::<usize>() - start;
    // SAFETY: the pages belong to the driver's table; only their protection changes, never to less than readable.
    unsafe { libc::mprotect(start as *mut c_void, bytes, protection) == 0 }
}
