//! Reads files of proc(5) in few system calls.
//!
//! These files have no length, so the standard library asks for their size in vain and then reads them in steps that begin with 32
//! bytes: 14 calls for the mappings of a small program (measured with strace).

use std::io;
use std::path::PathBuf;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::retry_on_intr;

/// Larger than most of these files. The kernel returns a page at most in one call for some of them.
const STEP: usize = 32 << 10;

/// The content of a file of this process, by its name below `/proc/self`.
///
/// Once the main thread has ended, that directory has no memory to show: `exe` and `environ` cannot be read, and `maps` is
/// empty (measured on Linux 6.18). That of the calling thread has them. It comes second, since a sandbox may allow only the first.
///
/// # Errors
/// As for [`read`].
pub fn read_own(name: &str) -> io::Result<Vec<u8>> {
    match read(&format!("/proc/self/{name}")) {
        Ok(content) if !content.is_empty() => Ok(content),
        _ => read(&format!("/proc/thread-self/{name}")),
    }
}

/// The path of the program that runs.
///
/// # Errors
/// The system does not tell it.
pub fn running_program() -> io::Result<PathBuf> {
    own_link("exe")
}

/// The target of a link of this process, by its name below `/proc/self`. See [`read_own`].
///
/// # Errors
/// The system does not tell it.
pub fn own_link(name: &str) -> io::Result<PathBuf> {
    let of = |process: &str| std::fs::read_link(format!("/proc/{process}/{name}"));
    of("self").or_else(|_| of("thread-self"))
}

/// The content of a file.
///
/// # Errors
/// It cannot be opened or read, or there is no memory for it.
pub fn read(path: &str) -> io::Result<Vec<u8>> {
    read_until(path, |_| false)
}

/// The content of a file that has one line.
///
/// # Errors
/// As for [`read`].
pub fn read_line(path: &str) -> io::Result<Vec<u8>> {
    read_until(path, |content| content.ends_with(b"\n"))
}

/// The first number of a field of proc_pid_status(5).
pub fn number_of(status: &[u8], field: &str) -> Option<u32> {
    word_of(status, field)?.parse().ok()
}

/// The first word of a field of proc_pid_status(5).
pub fn word_of<'a>(status: &'a [u8], field: &str) -> Option<&'a str> {
    let mut lines = status.split(|byte| *byte == b'\n');
    let value = lines.find_map(|line| line.strip_prefix(field.as_bytes()))?;
    let mut words = std::str::from_utf8(value).ok()?.split_ascii_whitespace();
    words.next()
}

fn read_until(path: &str, is_whole: impl Fn(&[u8]) -> bool) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = retry_on_intr(|| openat(CWD, path, flags, Mode::empty()))?;
    let mut content = Vec::new();
    loop {
        content.try_reserve(STEP)?;
        let count = retry_on_intr(|| {
            rustix::io::read(&file, rustix::buffer::spare_capacity(&mut content))
        })?;
        if count == 0 || is_whole(&content) {
            return Ok(content);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_content_is_that_which_others_read() {
        let name = "/proc/self/environ";
        assert_eq!(
            read(name).expect("read"),
            std::fs::read(name).expect("read")
        );
        assert_eq!(
            read_own("environ").expect("read"),
            std::fs::read(name).expect("read")
        );
        assert_eq!(
            running_program().expect("read"),
            std::env::current_exe().expect("known")
        );
        let name = "/proc/sys/kernel/random/boot_id";
        assert_eq!(
            read_line(name).expect("read"),
            std::fs::read(name).expect("read")
        );
        let name = "/proc/self/nothing";
        assert_eq!(
            read(name).expect_err("there is none").kind(),
            io::ErrorKind::NotFound
        );
    }
}
