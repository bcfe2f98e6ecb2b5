//! An OpenCL application that does what a document says and prints every answer: one side of `ci/differ`.
//!
//! `differ FILE` carries out the case in FILE, in the working directory. What it prints has no addresses and no times in it, and each
//! line is written before the next call begins, so that a crash shows where it was.
//!
//! | variable | default | meaning |
//! |---|---|---|
//! | `CLIENT_LOADER` | `libOpenCL.so.1` | the ICD loader to open; nothing is linked |

// Values of queries are in the byte order of the machine.
#![allow(clippy::disallowed_methods)]
// The C ABI of OpenCL is called through looked-up functions, in `cl` mostly.
#![allow(unsafe_code)]
// Printing is what this program is for.
#![allow(clippy::print_stdout, clippy::print_stderr)]

#[allow(dead_code)] // what only the other client calls
#[path = "../client/cl.rs"]
mod cl;
mod document;
mod facts;
mod objects;
mod state;
mod steps;

use std::process::ExitCode;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(message) => {
            eprintln!("differ: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let path = std::env::args_os().nth(1).ok_or("which file?")?;
    let text = std::fs::read_to_string(path).map_err(|error| error.to_string())?;
    let case: document::Case = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    for (path, text) in &case.files {
        steps::write(path, Some(text))?;
    }
    if let Some(state) = case.state {
        state::set(state);
    }
    let loader = std::env::var("CLIENT_LOADER").unwrap_or_else(|_| "libOpenCL.so.1".to_owned());
    cl::open(&loader)?;
    let mut objects = objects::Objects::open()?;
    steps::run(&mut objects, &case.calls, "");
    Ok(())
}
