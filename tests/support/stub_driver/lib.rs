//! A driver without a device: an ICD library that counts its compilations and misbehaves on request.
//!
//! It follows the specification's rules for programs and kernels (states, reference counts, sizes, error codes) and
//! differs between source and binary as real drivers do. A "compiled" kernel writes numbers that follow from the
//! source, the options, the included headers and `STUB_CODE`, so a wrong program shows in the results. One platform
//! named "Stub", of ICD 1.0.
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `STUB_DEVICES` | 1 | number of devices |
//! | `STUB_DEVICE_NAME` | `stub` | device names are this and a number; binaries of one name are foreign to another |
//! | `STUB_ACCELERATOR` | 0 | 1: devices are accelerators |
//! | `STUB_LOG` | none | file to which each compilation and each loaded binary is appended as one line |
//! | `STUB_CODE` | empty | enters into what kernels compute, as a code generator's variable would |
//! | `STUB_CODE_FILE` | none | a file whose content does the same, and is in no key; `#error`: nothing compiles |
//! | `STUB_REBUILD` | `strict` | `permissive`: build over live kernels and link executables instead of failing with -59 |
//! | `STUB_SPOIL` | 0 | 1: a call that is refused with -30 fails a program that was built |
//! | `STUB_STICKY` | 0 | 1: after a failed build each later build of that program fails as well |
//! | `STUB_REFCOUNT_KERNELS` | 1 | 0: reference counts show the application's own references only |
//! | `STUB_KERNELS_KEEP` | 1 | 0: a program is dead when it is released, although kernels of it live; `crash`: asking it ends the process |
//! | `STUB_KEEPS` | none | what a program that is built again keeps: with the same options all of it, `variables` included, or `kernels` |
//! | `STUB_SUB_DEVICES` | none | the device can be divided, and programs for a half are for it (`own`) or for the whole device (`root`) |
//! | `STUB_OWN_CACHE` | 0 | 1: a cache below `XDG_CACHE_HOME`: builds of equal programs give equal binaries also with `STUB_VARY`, and take no time in later processes |
//! | `STUB_REFUSE_BINARIES` | 0 | 1: clCreateProgramWithBinary refuses everything |
//! | `STUB_LOAD` | none | file whose words say what happens where a binary is loaded, see `load`: unlike variables, it is in no key |
//! | `STUB_ASYNC` | 0 | 1: with a callback, build, compile and link on another thread |
//! | `STUB_BUILD_MS` | 0 | how long each compilation takes |
//! | `STUB_UNCHECKED` | 0 | 1: a query of what is no device, or of the names of kernels where there are none, ends the process |
//! | `STUB_DEVICES_MS` | 0 | how long clGetDeviceIDs takes |
//! | `STUB_SETS` | none | the name of a variable that clGetDeviceIDs sets |
//! | `STUB_CONTEXT_MS` | 0 | how long the creation of a context takes |
//! | `STUB_FETCH_MS` | 0 | how long it takes to give a program's binaries, unless it was made of one |
//! | `STUB_KERNEL_MS` | 0 | how long it takes to create a kernel |
//! | `STUB_LOAD_MS` | 0 | how long each build of a loaded binary takes |
//! | `STUB_STUCK` | none | a file: the compilation that finds it, of a source that has the word in it, removes it and never ends |
//! | `STUB_HELD` | none | a file: no compilation ends while it is there |
//! | `STUB_CRASH` | none | a file with a word: the compilation of a source that has the word ends the process |
//! | `STUB_INTRUDE` | none | a directory: a compilation tries what a confined process must not do, see `intruder` |
//! | `STUB_BINARY_BYTES` | 0 | the size that binaries have at least |
//! | `STUB_VARY` | 0 | 1: no two compilations give equal binaries |
//! | `STUB_GARBAGE` | 0 | 1: of devices that were not built, the size of the binary is garbage and the rest as of built ones |
//! | `STUB_READONLY_TABLE` | 0 | 1: the dispatch table lies in read-only memory; `forever`: in memory that cannot be made writable |
//! | `STUB_NULL_SLOTS` | none | names of functions that are not in the dispatch table |
//! | `STUB_UNNAMED` | none | names of functions that ICD 2.0 does not give by name |
//! | `STUB_ABSENT` | none | names of functions that are missing in both |
//! | `STUB_PLATFORMS` | 1 | number of platforms; the second is named "Stub 2", and so on |
//! | `STUB_OWN_TABLES` | 0 | 1: each platform has a dispatch table of its own |
//! | `STUB_ICD2` | 0 | 1: ICD 2.0: tagged tables, functions by name, a loader's data in the second word of each object; `tag`: the tags only |
//! | `STUB_SHORT_TABLE` | 0 | 1: OpenCL 1.1, and a table of 93 slots behind which nothing can be read |
//! | `STUB_STACK` | 0 | 1: calls that make programs and kernels log an address of their frame |
//! | `STUB_UNLOADABLE` | 0 | 1: cl_khr_icd_unloadable: loaders may close the library |
//!
//! A copy of the library that is named `lib*-X.so` has the ICD suffix X. By name it gives the functions that loaders ask for, and one for
//! each name that begins with `clStubExtension`.
//!
//! A forked child can use it, whatever the parent's other threads do.
//!
//! Lines of the log: `compile KIND DIGEST OPTIONS` with KIND `build`, `compile` or `link` and the FNV-1a digest of
//! the source, and when it has taken its time `done KIND DIGEST`; `load-binary DIGEST` with the digest of the code;
//! `left-child PID`; `frame CALL ADDRESS`.
//!
//! The language: `kernel void NAME(ARGUMENTS)` with attributes is a kernel, `#error` fails, `#ifdef` and its
//! companions and `#include` (from `-I` directories or embedded headers) work, an option that begins with `-bad` is
//! invalid. A kernel's first writable global argument receives one number per work item. Where the source has a
//! variable called `program_state`, results also depend on how often the program's kernels ran before. Of a SPIR-V module
//! the names of the entry points and the specialization constants matter, and each bit of it.

// Values of queries are in the byte order of the machine.
#![allow(clippy::disallowed_methods)]
// The whole library is the C ABI of OpenCL: raw handles in, function pointers out.
#![allow(unsafe_code)]

mod abi;
mod binary;
mod buffer;
mod build;
mod compiler;
mod config;
mod context;
mod event;
#[allow(dead_code)] // only the mutex is taken
#[path = "../../../src/fork_safety.rs"]
mod fork_safety;
mod il;
mod intruder;
mod kernel;
mod kernel_info;
mod link;
mod load;
mod parse;
mod platform;
mod preprocess;
mod program;
mod program_info;
mod registry;
mod run;
#[path = "../slots.rs"]
mod slots;
mod table;

use std::ffi::{c_char, c_void};

/// What a loader asks a registered library for.
///
/// # Safety
/// `name` is NULL or a NUL-terminated string, as the OpenCL specification demands.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn clGetExtensionFunctionAddress(name: *const c_char) -> *mut c_void {
    fork_safety::prepare(|| ());
    // SAFETY: the same contract.
    unsafe { platform::extension_address(name) }
}
