//! A library that the stub driver opens inside a build, and that changes code by a variable that only its own text names.

#![allow(unsafe_code)] // it is found by its name

use std::thread;
use std::time::Duration;

fn number(variable: &str) -> u64 {
    let value = std::env::var(variable).unwrap_or_default();
    value.parse().unwrap_or(0)
}

/// What it adds to all code, after so many milliseconds.
#[unsafe(no_mangle)]
pub extern "C" fn helper_code() -> u64 {
    thread::sleep(Duration::from_millis(number("HELPER_MS")));
    number("HELPER_X")
}
