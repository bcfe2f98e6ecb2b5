//! The texts that a compiler reads: sources, the embedded headers of clCompileProgram, and header files.

use std::ffi::CString;

use opencl_sys::{CL_OUT_OF_HOST_MEMORY, CL_PROGRAM_SOURCE};

use crate::cl::Program;
use crate::driver::Driver;
use crate::key::include::{self, Closure, Followed, Inputs};
use crate::key::options::Options;
use crate::outcome::Bypass;
use crate::shadow::{self, Header, Recipe, Ticket};

/// An embedded header, with its source as it is now. Only programs that are known to be made from source are asked: PoCL and
/// Intel's CPU runtime crash with others (measured), and so they shall without us.
pub fn header(ticket: &Ticket, name: &CString, program: Program) -> Result<Header, Bypass> {
    // Ingredients have names in UTF-8. PoCL writes headers into files of these names below a directory of its cache, and leaves
    // those there that lie outside of it, where later compiles find them (measured).
    let outside = name.as_bytes().starts_with(b"/")
        || name
            .as_bytes()
            .split(|byte| *byte == b'/')
            .any(|part| part == b"..");
    if name.to_str().is_err() || outside {
        return Err(Bypass::UnusualArguments);
    }
    // Intel's CPU runtime refuses those of another context (measured).
    let length = shadow::source_length(program, ticket.context).ok_or(Bypass::UnknownInput)?;
    Ok(Header {
        name: name.clone(),
        source: source_text(ticket.driver, program, length)?.into(),
    })
}

/// Judges source, headers and options together, and follows what they include.
pub fn texts(
    driver: &Driver,
    source: &[u8],
    headers: &[Header],
    options: Option<&Options>,
) -> Result<Followed, Bypass> {
    let embedded: Vec<(&[u8], &[u8])> = headers
        .iter()
        .map(|header| (header.name.as_bytes(), header.source.as_slice()))
        .collect();
    include::follow(&Inputs {
        source,
        embedded: &embedded,
        options,
        working_directory: &std::env::current_dir().unwrap_or_default(),
        driver_dirs: &driver.include_dirs(),
        implicit: driver.profile.implicit_includes,
    })
}

/// What is looked for whatever the source says; None if a file is found that could say more.
pub fn around(driver: &Driver, options: Option<&Options>) -> Option<Closure> {
    let forced = options.map_or(&[][..], |options| &options.forced_includes);
    if driver.profile.implicit_includes.is_empty() && forced.is_empty() {
        return Some(Closure::default());
    }
    let around = texts(driver, &[], &[], options).ok()?.closure;
    let finds_a_file = around.files().next().is_some();
    (!finds_a_file).then_some(around)
}

/// Whether the files that were read for all that led to a program are as they were then.
pub fn are_unchanged(recipe: &Recipe) -> bool {
    let mut earlier = recipe.base.inputs().iter().chain(&recipe.previous);
    recipe.closure.is_unchanged() && earlier.all(|recipe| are_unchanged(recipe))
}

/// The source as the driver has it. It must have the length that the application gave, since some drivers could compile
/// more than they show (OpenCL 3.0, 5.8.7: NUL characters within strings are left out of CL_PROGRAM_SOURCE).
pub fn source_text(driver: &Driver, program: Program, length: usize) -> Result<Vec<u8>, Bypass> {
    let mut source =
        driver
            .program_info(program, CL_PROGRAM_SOURCE)
            .map_err(|code| match code {
                CL_OUT_OF_HOST_MEMORY => Bypass::NoMemory,
                _ => Bypass::FromBinary,
            })?;
    if source.pop() != Some(0) || source.len() != length {
        return Err(Bypass::UnusualArguments);
    }
    Ok(source)
}
