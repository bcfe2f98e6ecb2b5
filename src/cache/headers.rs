//! The texts that a compiler reads: sources, the embedded headers of clCompileProgram, and header files.

use std::ffi::CString;

use opencl_sys::{CL_OUT_OF_HOST_MEMORY, CL_PROGRAM_SOURCE};

use crate::cl::Program;
use crate::driver::Driver;
use crate::key::include::{self, Closure, FollowedIncludes, Inputs};
use crate::key::options::Options;
use crate::key::work::Work;
use crate::outcome::Bypass;
use crate::shadow::{self, Header, Recipe, Ticket};

/// An embedded header, with its current source. Only programs that are known to be made from source are asked: PoCL and Intel's CPU
/// runtime crash with others (measured), and the application must see that as without us.
pub fn header(ticket: &Ticket, name: &CString, program: Program) -> Result<Header, Bypass> {
    // Names of ingredients are UTF-8. PoCL writes headers into files of these names below a directory of its cache. It leaves files
    // outside of that directory there, where later compilations find them (measured).
    let outside = name.as_bytes().starts_with(b"/")
        || name
            .as_bytes()
            .split(|byte| *byte == b'/')
            .any(|part| part == b"..");
    if name.to_str().is_err() || outside {
        return Err(Bypass::UnusualArguments);
    }
    // Intel's CPU runtime refuses headers of another context (measured).
    let length = shadow::source_length(program, ticket.context).ok_or(Bypass::UnknownInput)?;
    Ok(Header {
        name: name.clone(),
        source: source_text(ticket.driver, program, length)?.into(),
    })
}

/// Judges source, headers and options together, and follows the includes.
pub fn texts(
    driver: &Driver,
    source: &[u8],
    headers: &[Header],
    options: Option<&Options>,
) -> Result<FollowedIncludes, Bypass> {
    let embedded: Vec<(&[u8], &[u8])> = headers
        .iter()
        .map(|header| (header.name.as_bytes(), header.source.as_slice()))
        .collect();
    let inputs = Inputs {
        source,
        embedded: &embedded,
        options,
        working_directory: &std::env::current_dir().unwrap_or_default(),
        driver_dirs: &driver.include_dirs().ok_or(Bypass::UnidentifiedDriver)?,
        implicit: driver.profile.implicit_includes,
    };
    include::follow(&inputs, &Work::default())
}

/// The files that are looked for whatever the source says; None if one of them exists, since it could name more.
pub fn source_independent_closure(driver: &Driver, options: Option<&Options>) -> Option<Closure> {
    let forced = options.map_or(&[][..], |options| &options.forced_includes);
    if driver.profile.implicit_includes.is_empty() && forced.is_empty() {
        return Some(Closure::default());
    }
    let closure = texts(driver, &[], &[], options).ok()?.closure;
    let finds_a_file = closure.files().next().is_some();
    (!finds_a_file).then_some(closure)
}

/// Whether all header files that led to a program are unchanged.
pub fn are_unchanged(recipe: &Recipe) -> bool {
    let mut all = vec![recipe];
    while let Some(recipe) = all.pop() {
        if !recipe.closure.is_unchanged() {
            return false;
        }
        let earlier = recipe.base.inputs().iter().chain(&recipe.previous);
        all.extend(earlier.map(|earlier| &**earlier));
    }
    true
}

/// The source as the driver shows it, without the NULs that end it: Intel's CPU runtime shows also those that the application
/// counted in `lengths` (measured). It must have the length that the application gave, since some drivers could compile more than
/// they show (OpenCL 3.0, 5.8.7: CL_PROGRAM_SOURCE leaves out NULs within strings).
pub fn source_text(driver: &Driver, program: Program, length: usize) -> Result<Vec<u8>, Bypass> {
    let mut source =
        driver
            .program_info(program, CL_PROGRAM_SOURCE)
            .map_err(|code| match code {
                CL_OUT_OF_HOST_MEMORY => Bypass::NoMemory,
                _ => Bypass::FromBinary,
            })?;
    let has_length = source.len() > length && source[length..].iter().all(|byte| *byte == 0);
    if !has_length {
        return Err(Bypass::UnusualArguments);
    }
    source.truncate(length);
    Ok(source)
}
