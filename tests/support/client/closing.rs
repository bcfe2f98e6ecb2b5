//! What daemons do: all descriptors are closed, whoever has opened them, and the next ones get their numbers.

use std::fs::File;
use std::os::fd::AsRawFd;

use crate::cl;
use crate::session::Session;

/// More than a process of these tests has.
const MOST: i32 = 64;

pub fn section(session: &Session, arguments: &[String]) -> Result<(), String> {
    let [directory] = arguments else {
        return Err("closing takes a directory".to_owned());
    };
    for number in [1, 1, 2] {
        let source = format!("__kernel void f(__global uint *out) {{ out[0] = {number}; }}\n");
        let (program, _) = cl::program(session.context, &source);
        println!("build: code {}", cl::build(program, None));
        cl::release_program(program);
        for descriptor in 3..MOST {
            // SAFETY: nothing of this section's is open.
            unsafe { libc::close(descriptor) };
        }
        let mut opened = Vec::new();
        while opened
            .last()
            .is_none_or(|file: &File| file.as_raw_fd() < MOST)
        {
            opened.push(File::open(directory).map_err(|error| error.to_string())?);
        }
        std::mem::forget(opened);
    }
    Ok(())
}
