//! The "compiler" and the "linker": what they make of their inputs, and the log of each real run.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use std::{process, thread};

use opencl_sys::*;

use crate::config;
use crate::intruder;
use crate::parse::{self, Kernel};
use crate::preprocess::{self, Header, words};

/// Code for one device.
pub struct Code {
    /// CL_PROGRAM_BINARY_TYPE.
    pub kind: cl_program_binary_type,
    pub kernels: Vec<Kernel>,
    /// Stands for the instructions: all results follow from it.
    pub digest: u64,
    /// Makes binaries differ that are otherwise equal.
    pub nonce: u64,
    /// Whether there is a program-scope variable.
    pub stateful: bool,
    /// That variable: how often kernels ran.
    pub launches: AtomicU64,
}

/// FNV-1a, 64 bits.
pub fn fnv64(parts: &[&[u8]]) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325_u64;
    for part in parts {
        for byte in part.iter().chain(&(part.len() as u64).to_le_bytes()) {
            hash = (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
    hash
}

/// FNV-1a of plain bytes, as the log shows it for a source.
pub fn source_digest(source: &[u8]) -> u64 {
    source.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3)
    })
}

pub fn has_invalid_option(options: &[u8]) -> bool {
    let options = String::from_utf8_lossy(options);
    words(&options).iter().any(|word| word.starts_with("-bad"))
}

fn nonce() -> u64 {
    static COUNTER: AtomicU64 = AtomicU64::new(0);
    match config::varies() {
        true => u64::from(process::id()) << 32 | COUNTER.fetch_add(1, Ordering::Relaxed),
        false => 0,
    }
}

fn begin(kind: &str, source: &[u8], options: &[u8]) {
    let text = source;
    let digest = fnv64(&[kind.as_bytes(), source, options]);
    let source = source_digest(source);
    let options = String::from_utf8_lossy(options);
    config::log(format!("compile {kind} {source:016x} {options}").trim_end());
    thread::sleep(config::compile_time(digest));
    while config::is_stuck(text) {
        thread::sleep(Duration::from_secs(3600));
    }
    while config::is_held() {
        thread::sleep(Duration::from_millis(1));
    }
    config::log(&format!("done {kind} {source:016x}"));
}

/// What a library that is opened now adds to the code.
fn helper_code() -> String {
    let Some(name) = config::helper() else {
        return String::new();
    };
    // SAFETY: the library of the tests, whose function takes nothing.
    let added = unsafe {
        let library = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
        let function = libc::dlsym(library, c"helper_code".as_ptr());
        assert!(!function.is_null(), "{name:?} is not there");
        std::mem::transmute::<*mut libc::c_void, extern "C" fn() -> u64>(function)()
    };
    added.to_string()
}

/// What a function of another library adds to the code, unless it gives what the C library's does: real drivers' libraries call each
/// other.
fn answered_code() -> String {
    unsafe extern "C" {
        fn a64l(text: *const std::ffi::c_char) -> std::ffi::c_long;
    }
    // SAFETY: a C string.
    match unsafe { a64l(c"1".as_ptr()) } {
        3 => String::new(),
        other => other.to_string(),
    }
}

/// Compiles a source; an error is the build log.
pub fn compile(
    kind: cl_program_binary_type,
    source: &[u8],
    options: &[u8],
    headers: &[Header],
) -> Result<Code, String> {
    let verb = match kind {
        CL_PROGRAM_BINARY_TYPE_EXECUTABLE => "build",
        _ => "compile",
    };
    begin(verb, source, options);
    let text = String::from_utf8_lossy(source);
    if config::is_deadly(&text) {
        process::abort();
    }
    intruder::intrude();
    let unit = preprocess::run(&text, &String::from_utf8_lossy(options), headers)?;
    let hidden = config::hidden_code();
    if hidden == "#error" {
        return Err("stub: an error that no source has".to_owned());
    }
    let code = config::code() + &hidden + &helper_code() + &answered_code();
    let digest = fnv64(&[source, options, unit.included.as_bytes(), code.as_bytes()]);
    Ok(Code {
        kind,
        kernels: parse::kernels(&unit.text),
        digest,
        nonce: config::cached_nonce(digest, nonce()),
        stateful: unit.text.contains("program_state"),
        launches: AtomicU64::new(0),
    })
}

/// Links compiled code; an error is the build log.
pub fn link(inputs: &[&Code], options: &[u8]) -> Result<Code, String> {
    let digests: Vec<u8> = inputs
        .iter()
        .flat_map(|code| code.digest.to_le_bytes())
        .collect();
    begin("link", &digests, options);
    let mut kernels: Vec<Kernel> = Vec::new();
    for kernel in inputs.iter().flat_map(|code| &code.kernels) {
        if kernels.iter().any(|known| known.name == kernel.name) {
            return Err(format!("stub: kernel '{}' is defined twice", kernel.name));
        }
        kernels.push(kernel.clone());
    }
    let library = words(&String::from_utf8_lossy(options)).contains(&"-create-library".to_owned());
    Ok(Code {
        kind: match library {
            true => CL_PROGRAM_BINARY_TYPE_LIBRARY,
            false => CL_PROGRAM_BINARY_TYPE_EXECUTABLE,
        },
        kernels,
        digest: fnv64(&[&digests, options, config::code().as_bytes()]),
        nonce: nonce(),
        stateful: inputs.iter().any(|code| code.stateful),
        launches: AtomicU64::new(0),
    })
}
