//! A library that the stub driver opens inside a build, and that changes code by a variable that only its own text names.

#![allow(unsafe_code)] // it is found by its name

/// What it adds to all code.
#[unsafe(no_mangle)]
pub extern "C" fn helper_code() -> u64 {
    let value = std::env::var("HELPER_X").unwrap_or_default();
    value.parse().unwrap_or(0)
}
