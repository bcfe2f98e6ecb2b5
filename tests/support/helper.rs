//! A library that the stub driver opens inside a build, and that changes code by a variable that only its own text names.

#![allow(unsafe_code)] // it is found by its name

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

fn number(variable: &str) -> u64 {
    let value = std::env::var(variable).unwrap_or_default();
    value.parse().unwrap_or(0)
}

static CALLED: AtomicBool = AtomicBool::new(false);

/// What it adds to all code, after so many milliseconds, and the first time after some more.
#[unsafe(no_mangle)]
pub extern "C" fn helper_code() -> u64 {
    let more = match CALLED.swap(true, Ordering::Relaxed) {
        false => number("HELPER_FIRST_MS"),
        true => 0,
    };
    thread::sleep(Duration::from_millis(number("HELPER_MS") + more));
    number("HELPER_X")
}
