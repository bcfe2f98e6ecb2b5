//! Closed descriptors: all of them, whoever has opened them, as daemons do; or the standard streams. And few that are left.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::thread;

use crate::cl;
use crate::session::Session;

/// More than a process of these tests has.
const MAX_DESCRIPTORS: i32 = 64;

/// `no-streams`: builds while the standard streams are closed, and tells which are still.
pub fn no_streams(session: &Session) -> Result<(), String> {
    // SAFETY: descriptors of this process; nothing prints meanwhile.
    let output = unsafe { libc::fcntl(1, libc::F_DUPFD_CLOEXEC, MAX_DESCRIPTORS) };
    for stream in 0..3 {
        // SAFETY: as above.
        unsafe { libc::close(stream) };
    }
    let codes = [1, 2].map(|number| {
        let source = format!("__kernel void f(__global uint *out) {{ out[0] = {number}; }}\n");
        let (program, _) = cl::program(session.context, &source);
        let code = cl::build(program, None);
        cl::release_program(program);
        code
    });
    // SAFETY: asks only.
    let open = [0, 1, 2].map(|stream| unsafe { libc::fcntl(stream, libc::F_GETFD) } != -1);
    // SAFETY: the output's own number again.
    if unsafe { libc::dup2(output, 1) } != 1 {
        return Err("standard output is lost".to_owned());
    }
    println!("build: codes {codes:?}; open: {open:?}");
    Ok(())
}

/// `closing DIRECTORY`: what daemons do, and then the next descriptors get the numbers.
pub fn section(session: &Session, arguments: &[String]) -> Result<(), String> {
    let [directory] = arguments else {
        return Err("closing takes a directory".to_owned());
    };
    for number in [1, 1, 2] {
        let source = format!("__kernel void f(__global uint *out) {{ out[0] = {number}; }}\n");
        let (program, _) = cl::program(session.context, &source);
        println!("build: code {}", cl::build(program, None));
        cl::release_program(program);
        for descriptor in 3..MAX_DESCRIPTORS {
            // SAFETY: nothing of this section's is open.
            unsafe { libc::close(descriptor) };
        }
        let mut opened = Vec::new();
        while opened
            .last()
            .is_none_or(|file: &File| file.as_raw_fd() < MAX_DESCRIPTORS)
        {
            opened.push(File::open(directory).map_err(|error| error.to_string())?);
        }
        std::mem::forget(opened);
    }
    Ok(())
}

/// `few LEFT [own]`: builds a program while that many descriptors are left, and then another one. `own`: on a thread with descriptors of
/// its own.
pub fn few(arguments: &[String]) -> Result<(), String> {
    let left = arguments.first().and_then(|left| left.parse().ok());
    let left: usize = left.ok_or("few takes a number")?;
    if arguments.len() == 1 {
        return builds_with(left);
    }
    let apart = thread::spawn(move || {
        // SAFETY: only of this thread.
        match unsafe { libc::unshare(libc::CLONE_FILES) } {
            0 => builds_with(left),
            _ => Err("the thread shares its descriptors".to_owned()),
        }
    });
    apart.join().map_err(|_| "the thread has panicked")?
}

fn builds_with(left: usize) -> Result<(), String> {
    const LIMIT: libc::rlim_t = 256;
    let session = Session::open()?;
    let limit = libc::rlimit {
        rlim_cur: LIMIT,
        rlim_max: LIMIT,
    };
    // SAFETY: a limit.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) } != 0 {
        return Err("the limit cannot be set".to_owned());
    }
    let mut taken: Vec<File> = std::iter::from_fn(|| File::open("/dev/null").ok()).collect();
    taken.truncate(taken.len().saturating_sub(left));
    let build = |number: u32| {
        let source = format!("__kernel void f(__global uint *out) {{ out[0] = {number}; }}\n");
        let (program, _) = cl::program(session.context, &source);
        println!("build: code {}", cl::build(program, None));
        cl::release_program(program);
    };
    build(1);
    drop(taken);
    build(2);
    Ok(())
}
