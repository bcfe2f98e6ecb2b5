//! What the fuzz targets share: those modules of the library that know no OpenCL, as they stand in `src`, and a clock.

// Each target uses a part of them.
#![allow(dead_code)]

#[path = "../../src/fallible.rs"]
pub mod fallible;
#[path = "../../src/file_fingerprint.rs"]
pub mod file_fingerprint;
#[path = "../../src/filesystem.rs"]
pub mod filesystem;
#[path = "../../src/fork_safety.rs"]
pub mod fork_safety;
#[path = "../../src/framing.rs"]
pub mod framing;
#[path = "../../src/host.rs"]
pub mod host;
#[path = "../../src/key/mod.rs"]
pub mod key;
#[path = "../../src/oclcache-remote/src/object.rs"]
pub mod object;
#[path = "../../src/outcome.rs"]
pub mod outcome;
#[path = "../../src/proc_file.rs"]
pub mod proc_file;
#[path = "../../src/regular_file.rs"]
pub mod regular_file;

/// As in the library, of which only the format of entries is wanted.
#[path = "../../src/store"]
pub mod store {
    mod compressed;
    pub mod entry;
    pub mod recipe;
}

use std::time::Duration;

/// Inputs are repeated up to this size before they are timed, in bytes.
const LARGE: usize = 64 << 10;
/// Many times what a linear scan of so much needs, even if it is instrumented; a quadratic one needs more.
const MAX_TIME: Duration = Duration::from_secs(2);

/// Runs something on a large text that repeats the input, and panics if it takes longer than anything linear could. Other
/// programs on the machine do not count.
pub fn in_linear_time(input: &[u8], run: impl FnOnce(&[u8])) {
    if input.is_empty() {
        return;
    }
    let large = input.repeat(LARGE.div_ceil(input.len()));
    let before = processor_time();
    run(&large);
    let took = processor_time() - before;
    assert!(
        took < MAX_TIME,
        "{} bytes took {took:?}: more than linear time",
        large.len()
    );
}

fn processor_time() -> Duration {
    let mut time = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: the clock exists on Linux, and the place is ours.
    let code = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(code, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// One of so many inputs is timed: a large text takes as long as hundreds of others.
pub fn is_timed(input: &[u8]) -> bool {
    xxhash_rust::xxh3::xxh3_64(input).is_multiple_of(512)
}
