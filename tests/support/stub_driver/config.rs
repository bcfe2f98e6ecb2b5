//! The environment variables, read anew at each use: a test may set them before its first OpenCL call.

use std::env;
use std::ffi::CString;
use std::fs::File;
use std::io::Write;
use std::time::Duration;

fn is(name: &str, value: &str) -> bool {
    env::var(name).is_ok_and(|found| found == value)
}

fn number(name: &str, default: u64) -> u64 {
    env::var(name)
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(default)
}

pub fn device_count() -> usize {
    number("STUB_DEVICES", 1).clamp(1, 64) as usize
}

pub fn device_name(index: usize) -> String {
    let base = env::var("STUB_DEVICE_NAME").unwrap_or_else(|_| "stub".to_owned());
    format!("{base}{index}")
}

pub fn code() -> String {
    env::var("STUB_CODE").unwrap_or_default()
}

/// What a file changes in all code: no key has the content of a file that nobody knows of.
pub fn hidden_code() -> String {
    let file = env::var_os("STUB_CODE_FILE").map(std::fs::read_to_string);
    file.and_then(Result::ok).unwrap_or_default()
}

/// The library that a build opens: `text` takes a name that is in this library's text, `hidden` one that is not.
pub fn helper() -> Option<CString> {
    match env::var("STUB_HELPER").as_deref() {
        Ok("text") => Some(c"libhelper.so".to_owned()),
        Ok(name) => CString::new(format!("lib{name}.so")).ok(),
        Err(_) => None,
    }
}

/// Whether building over live kernels and linking executables is allowed.
pub fn permissive() -> bool {
    is("STUB_REBUILD", "permissive")
}

/// Whether a call that is refused for its arguments spoils the program, as Intel's GPU driver has it.
pub fn spoils() -> bool {
    is("STUB_SPOIL", "1")
}

pub fn sticky_failures() -> bool {
    is("STUB_STICKY", "1")
}

/// Whether reference counts include the objects that depend on an object.
pub fn counts_dependents() -> bool {
    !is("STUB_REFCOUNT_KERNELS", "0")
}

pub fn refuses_binaries() -> bool {
    is("STUB_REFUSE_BINARIES", "1") || load().contains("refuse")
}

/// What happens where a binary is loaded.
pub fn load() -> String {
    let file = env::var_os("STUB_LOAD").map(std::fs::read_to_string);
    file.and_then(Result::ok).unwrap_or_default()
}

pub fn asynchronous() -> bool {
    is("STUB_ASYNC", "1")
}

/// How long it takes to give a program's binaries, unless it was made of one.
pub fn fetch_time() -> Duration {
    Duration::from_millis(number("STUB_FETCH_MS", 0))
}

/// Whether devices are accelerators; otherwise they are processors.
pub fn is_accelerator() -> bool {
    is("STUB_ACCELERATOR", "1")
}

/// How long it takes to create a kernel.
pub fn kernel_time() -> Duration {
    Duration::from_millis(number("STUB_KERNEL_MS", 0))
}

/// Whether a program lives as long as its kernels.
pub fn kernels_keep_programs() -> bool {
    !is("STUB_KERNELS_KEEP", "0") && !dies_of_dead_programs()
}

/// Whether a dead program that is asked for something ends the process.
pub fn dies_of_dead_programs() -> bool {
    is("STUB_KERNELS_KEEP", "crash")
}

/// Whether a program that is built again keeps this of its earlier build.
pub fn keeps(what: &str) -> bool {
    is("STUB_KEEPS", what)
}

/// Whether the device can be divided, and what programs of sub-devices are for: `own` or `root`.
pub fn sub_devices() -> String {
    env::var("STUB_SUB_DEVICES").unwrap_or_default()
}

/// The value of this name in a cache below the directory that XDG_CACHE_HOME names; otherwise the fresh one, which is kept there.
fn cached(name: &str, fresh: u64) -> u64 {
    let home = env::var_os("XDG_CACHE_HOME").filter(|_| is("STUB_OWN_CACHE", "1"));
    let Some(home) = home.map(std::path::PathBuf::from) else {
        return fresh;
    };
    let file = home.join(name);
    let known = std::fs::read_to_string(&file).ok();
    known.and_then(|text| text.parse().ok()).unwrap_or_else(|| {
        let _ = std::fs::create_dir_all(&home);
        let _ = std::fs::write(&file, fresh.to_string());
        fresh
    })
}

/// The nonce of a build of this digest, from the driver's own cache.
pub fn cached_nonce(digest: u64, fresh: u64) -> u64 {
    cached(&format!("stub-{digest:016x}"), fresh)
}

/// How long a compilation of this digest takes: no time if another process left it in the driver's own cache.
pub fn compile_time(digest: u64) -> Duration {
    let own = u64::from(std::process::id());
    match cached(&format!("stub-time-{digest:016x}"), own) == own {
        true => Duration::from_millis(number("STUB_BUILD_MS", 0)),
        false => Duration::ZERO,
    }
}

/// Whether it crashes when it is asked about what is not there.
pub fn is_unchecked() -> bool {
    is("STUB_UNCHECKED", "1")
}

/// Sets a variable, as some drivers do for libraries of theirs.
pub fn set_variable() {
    if let Ok(name) = env::var("STUB_SETS") {
        // SAFETY: the programs of tests with this variable have one thread.
        unsafe { env::set_var(name, "1") };
    }
}

/// How long it takes to look for devices.
pub fn devices_time() -> Duration {
    Duration::from_millis(number("STUB_DEVICES_MS", 0))
}

/// How long it takes to create a context.
pub fn context_time() -> Duration {
    Duration::from_millis(number("STUB_CONTEXT_MS", 0))
}

/// How long a binary takes to load.
pub fn load_time() -> Duration {
    Duration::from_millis(number("STUB_LOAD_MS", 0))
}

/// Whether this is the build that never ends: the one that finds this file, and removes it. A file with a word waits for a source that
/// has it.
pub fn is_stuck(source: &[u8]) -> bool {
    env::var_os("STUB_STUCK").is_some_and(|file| {
        let word = std::fs::read_to_string(&file).unwrap_or_default();
        String::from_utf8_lossy(source).contains(&word) && std::fs::remove_file(file).is_ok()
    })
}

/// Whether compilations do not end for now.
pub fn is_held() -> bool {
    env::var_os("STUB_HELD").is_some_and(|file| std::path::Path::new(&file).exists())
}

/// Whether the compilation of this source ends the process: it has the word that stands in this file.
pub fn is_deadly(source: &str) -> bool {
    let word = env::var_os("STUB_CRASH").map(std::fs::read_to_string);
    word.and_then(Result::ok)
        .is_some_and(|word| source.contains(word.trim()))
}

/// The size that binaries have at least, in bytes.
pub fn binary_bytes() -> usize {
    number("STUB_BINARY_BYTES", 0) as usize
}

pub fn varies() -> bool {
    is("STUB_VARY", "1")
}

/// Whether devices that were not built answer as if they were, with garbage for the size of the binary.
pub fn gives_garbage() -> bool {
    is("STUB_GARBAGE", "1")
}

pub fn read_only_table() -> String {
    env::var("STUB_READONLY_TABLE").unwrap_or_default()
}

/// The functions that a variable names.
pub fn names(variable: &str) -> Vec<String> {
    let names = env::var(variable).unwrap_or_default();
    names.split_whitespace().map(str::to_owned).collect()
}

pub fn platform_count() -> usize {
    number("STUB_PLATFORMS", 1).clamp(1, 8) as usize
}

/// Whether each platform has a dispatch table of its own.
pub fn own_tables() -> bool {
    is("STUB_OWN_TABLES", "1")
}

/// Whether the table is tagged as one of ICD 2.0.
pub fn tagged() -> bool {
    icd2() || is("STUB_ICD2", "tag")
}

/// Whether this is a driver of ICD 2.0.
pub fn icd2() -> bool {
    is("STUB_ICD2", "1")
}

/// Whether the table ends with the functions of OpenCL 1.1.
pub fn short_table() -> bool {
    is("STUB_SHORT_TABLE", "1")
}

/// Says where the stack has come to in a call of the driver, if that is wanted.
#[inline(never)]
pub fn log_frame(call: &str) {
    if is("STUB_STACK", "1") {
        let here = 0u8;
        let here = std::ptr::from_ref(&here) as usize;
        log(&format!("frame {call} {here:#x}"));
    }
}

/// Whether a loader may close this library.
pub fn unloadable() -> bool {
    is("STUB_UNLOADABLE", "1")
}

/// Appends one line with one write, so that lines of several processes do not mix.
pub fn log(line: &str) {
    let Some(path) = env::var_os("STUB_LOG") else {
        return;
    };
    if let Ok(mut file) = File::options().append(true).create(true).open(path) {
        let line = line.replace('\n', " ");
        let _ = file.write_all(format!("{line}\n").as_bytes());
    }
}
