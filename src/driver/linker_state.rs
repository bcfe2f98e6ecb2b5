//! What the dynamic linker itself says of how the program was started. The program may have written over the variables that say it as
//! well (setproctitle(3bsd)), or hide them (prctl(2), PR_SET_DUMPABLE).

#![allow(unsafe_code)] // the dynamic linker's own structures

use std::ffi::{CStr, OsStr, c_char, c_int, c_uint};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::ptr;

use super::bindings::Scope;
use crate::fork_safety::without_forks;

/// `Dl_serinfo` of dlfcn.h, without the paths behind it.
#[repr(C)]
struct SearchInfo {
    size: usize,
    count: c_uint,
}

/// `Dl_serpath`.
#[repr(C)]
struct SearchPath {
    name: *const c_char,
    /// Always 0 with glibc 2.36.
    _flags: c_uint,
}

/// The beginning of `struct r_debug` of link.h.
#[repr(C)]
struct Debug {
    version: c_int,
}

/// The directories in which the dynamic linker looks for libraries of the program (dlinfo(3), RTLD_DI_SERINFO):
/// those of LD_LIBRARY_PATH as the program was started with it, between those that the program says and the usual ones. glibc does not
/// tell which is which. None: it does not tell.
pub fn search_path() -> Option<Vec<PathBuf>> {
    let program = Scope::open(None)?;
    let mut wanted = SearchInfo { size: 0, count: 0 };
    // SAFETY: a handle, and room for the two numbers that this request gives.
    let told = without_forks(|| unsafe {
        let info = (&raw mut wanted).cast();
        libc::dlinfo(program.handle(), libc::RTLD_DI_SERINFOSIZE, info)
    });
    let start = size_of::<SearchInfo>();
    let end = start.checked_add(size_of::<SearchPath>().checked_mul(wanted.count as usize)?)?;
    if told != 0 || wanted.size < end {
        return None;
    }
    // Words, so that pointers in it are aligned.
    let mut info = vec![0usize; wanted.size.div_ceil(size_of::<usize>())];
    let place = info.as_mut_ptr();
    // SAFETY: it has the size that the linker wants, and begins with the numbers that the linker gave, which it reads again.
    let told = without_forks(|| unsafe {
        place.cast::<SearchInfo>().write(wanted);
        libc::dlinfo(program.handle(), libc::RTLD_DI_SERINFO, place.cast())
    });
    if told != 0 {
        return None;
    }
    // SAFETY: that many paths stand behind the two numbers, within `info`; each names a text within it.
    let directories = unsafe {
        let count = (*place.cast::<SearchInfo>()).count as usize;
        let paths = place.cast::<u8>().add(start).cast::<SearchPath>();
        let paths = std::slice::from_raw_parts(paths, count);
        let paths = paths.iter().filter(|path| !path.name.is_null());
        let names = paths.map(|path| CStr::from_ptr(path.name).to_bytes());
        let paths = names.map(|name| PathBuf::from(OsStr::from_bytes(name)));
        paths.collect::<Vec<_>>()
    };
    Some(directories)
}

/// Whether all libraries are known to be in one namespace: libraries that audit the dynamic linker are in one of their own
/// (rtld-audit(7)). glibc tells it since 2.35, by the version of the structure that debuggers read.
pub fn has_one_namespace() -> bool {
    let tells = version().is_some_and(|version| version >= (2, 35));
    let place = Scope::open(None).and_then(|program| program.find(c"_r_debug", None));
    tells
        && place.is_some_and(|place| {
            let debug = ptr::with_exposed_provenance::<Debug>(place);
            // SAFETY: a structure of the dynamic linker's, which never goes away. It changes this number once.
            let debug = unsafe { ptr::read_volatile(debug) };
            debug.version == 1
        })
}

/// Major and minor version of the C library.
fn version() -> Option<(u32, u32)> {
    // SAFETY: it gives a text that lives for ever.
    let text = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    let (major, minor) = text.to_str().ok()?.split_once('.')?;
    let minor = minor.split('.').next()?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_search_path_is_that_of_the_start() {
        // Cargo sets it, and nothing in this process changes it.
        let first = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let there = std::env::split_paths(&first).filter(|one| one.is_dir());
        let told = search_path().expect("told");
        for one in there {
            assert!(told.contains(&one), "{one:?} is not in {told:?}");
        }
        let is_usual =
            |one: &std::path::PathBuf| one.starts_with("/lib") || one.starts_with("/usr/lib");
        assert!(told.iter().any(is_usual), "{told:?}");
    }

    #[test]
    fn nobody_audits_these_tests() {
        let tells = version().is_some_and(|version| version >= (2, 35));
        assert_eq!(has_one_namespace(), tells);
    }
}
