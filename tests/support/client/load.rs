//! What the first call of a process costs, in which the loader opens its drivers.

use std::env;
use std::fs;
use std::ptr;
use std::time::Instant;

use crate::cl::{self, call};

/// The memory of this process that is in RAM, files that it maps included.
pub fn resident_kib() -> Result<usize, String> {
    let statm = fs::read_to_string("/proc/self/statm").map_err(|error| error.to_string())?;
    let pages = statm
        .split(' ')
        .nth(1)
        .and_then(|pages| pages.parse::<usize>().ok());
    Ok(pages.ok_or("/proc/self/statm has another form")? * rustix::param::page_size() / 1024)
}

/// The part of it that no file has and that is shared with no process.
fn own_kib() -> Result<usize, String> {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup");
    let rollup = rollup.map_err(|error| error.to_string())?;
    let own = rollup
        .lines()
        .find_map(|line| line.strip_prefix("Anonymous:"));
    let number = own.and_then(|own| own.trim().strip_suffix(" kB")?.parse().ok());
    number.ok_or_else(|| "/proc/self/smaps_rollup has another form".to_owned())
}

pub fn section() -> Result<(), String> {
    let loader = env::var("CLIENT_LOADER").unwrap_or_else(|_| "libOpenCL.so.1".to_owned());
    let start = Instant::now();
    cl::open(&loader)?;
    let opened = start.elapsed();
    let (mut count, start) = (0, Instant::now());
    let code = call!(clGetPlatformIDs(0, ptr::null_mut(), &mut count));
    let listed = start.elapsed();
    if code != 0 {
        return Err(format!("clGetPlatformIDs: {code}"));
    }
    println!(
        "platforms={count} open_ns={} platforms_ns={} resident_kib={} own_kib={}",
        opened.as_nanos(),
        listed.as_nanos(),
        resident_kib()?,
        own_kib()?
    );
    Ok(())
}
