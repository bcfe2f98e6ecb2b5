//! What a driver may do to its process where a binary is loaded, by the words in the file of `STUB_LOAD`:
//!
//! - `refuse`: clCreateProgramWithBinary refuses everything.
//! - `fork`: it leaves a child that outlives the process; its number is in the log.
//! - `wait`: it waits until the word is gone.
//! - `die-create`, `die-build`: the process ends by SIGABRT there, or in the build that follows.

use std::thread;
use std::time::{Duration, Instant};

use crate::config;

/// A child ends by itself if nobody ends it, and nobody waits longer.
const MAX_LIFE: Duration = Duration::from_secs(60);

/// In clCreateProgramWithBinary, before its line of the log.
pub fn begins() {
    if config::load().contains("fork") {
        leave_child();
    }
}

/// Behind that line.
pub fn goes_on() {
    let words = config::load();
    let until = Instant::now() + MAX_LIFE;
    while config::load().contains("wait") && Instant::now() < until {
        thread::sleep(Duration::from_millis(5));
    }
    if words.contains("die-create") {
        std::process::abort();
    }
}

/// In the build of what was loaded.
pub fn built() {
    thread::sleep(config::load_time());
    if config::load().contains("die-build") {
        std::process::abort();
    }
}

fn leave_child() {
    // SAFETY: the child makes system calls only.
    let pid = unsafe { libc::fork() };
    if pid != 0 {
        return config::log(&format!("left-child {pid}"));
    }
    // Nobody shall wait for the end of its output.
    for stream in 0..3 {
        // SAFETY: a descriptor that nobody in this process uses again.
        unsafe { libc::close(stream) };
    }
    thread::sleep(MAX_LIFE);
    // SAFETY: no preconditions.
    unsafe { libc::_exit(0) }
}
