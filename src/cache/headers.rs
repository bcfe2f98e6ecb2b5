//! The texts that a compiler reads: sources, and the embedded headers of clCompileProgram.

use std::cell::RefCell;
use std::ffi::{CString, OsStr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use opencl_sys::CL_PROGRAM_SOURCE;

use crate::cl::Program;
use crate::driver::Driver;
use crate::key::options::{self, Options};
use crate::key::source;
use crate::outcome::Bypass;
use crate::shadow::{self, Base, Header, Operation, Recipe, Ticket};

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

/// Judges source, headers and definitions together. Gives the files that must not be there, since drivers differ in whether
/// they or the embedded headers win (measured: rusticl takes those of the working directory first).
pub fn judge_texts(
    source: &[u8],
    headers: &[Header],
    options: Option<&Options>,
) -> Result<Vec<PathBuf>, Bypass> {
    let absent = RefCell::new(Vec::new());
    let is_header = |name: &[u8]| {
        let known = headers.iter().any(|header| header.name.as_bytes() == name);
        if !known || name.starts_with(b"/") {
            return false;
        }
        let candidates = candidates(name, headers, options);
        let nowhere = candidates.iter().all(|path| is_absent(path));
        absent.borrow_mut().extend(candidates);
        nowhere
    };
    let definitions = options
        .iter()
        .flat_map(|options| options.definitions.iter().map(Vec::as_slice));
    let texts: Vec<&[u8]> = [source]
        .into_iter()
        .chain(headers.iter().map(|header| &*header.source))
        .chain(definitions)
        .collect();
    match source::obstacle_beside_headers(&texts, &is_header) {
        Some(reason) => Err(reason),
        None => {
            let mut absent = absent.into_inner();
            absent.sort_unstable();
            absent.dedup();
            Ok(absent)
        }
    }
}

/// Whether embedded headers would still be read, and not files: in all that led to a program.
pub fn judge_again(recipe: &Recipe) -> Result<(), Bypass> {
    if let (Base::Source(source), Operation::Compile(headers)) = (&recipe.base, &recipe.operation) {
        let options = recipe.arguments.options.as_ref();
        let options = options.map(|options| options::parse(options.as_bytes()));
        judge_texts(source, headers, options.transpose()?.as_ref())?;
    }
    let mut earlier = recipe.base.inputs().iter().chain(&recipe.previous);
    earlier.try_for_each(|recipe| judge_again(recipe))
}

/// Where files could stand that a driver would read for a header's name: in the working directory and in each include
/// directory, also below the directories that header names have.
fn candidates(name: &[u8], headers: &[Header], options: Option<&Options>) -> Vec<PathBuf> {
    let name = Path::new(OsStr::from_bytes(name));
    let include_dirs = options.map_or(&[][..], |options| &options.include_dirs);
    let directories = [&b""[..]]
        .into_iter()
        .chain(include_dirs.iter().map(Vec::as_slice))
        .map(|directory| Path::new(OsStr::from_bytes(directory)));
    let below = |directory: &Path| {
        let of_headers = headers.iter().filter_map(|header| {
            let header = Path::new(OsStr::from_bytes(header.name.as_bytes()));
            Some(directory.join(header.parent()?).join(name))
        });
        of_headers.collect::<Vec<_>>()
    };
    directories.flat_map(below).collect()
}

pub fn is_absent(path: &Path) -> bool {
    path.symlink_metadata()
        .is_err_and(|error| error.kind() == std::io::ErrorKind::NotFound)
}

/// The source as the driver has it. It must have the length that the application gave, since some drivers could compile
/// more than they show (OpenCL 3.0, 5.8.7: NUL characters within strings are left out of CL_PROGRAM_SOURCE).
pub fn source_text(driver: &Driver, program: Program, length: usize) -> Result<Vec<u8>, Bypass> {
    let mut source = driver
        .program_info(program, CL_PROGRAM_SOURCE)
        .map_err(|_| Bypass::NotFromSource)?;
    if source.pop() != Some(0) || source.len() != length {
        return Err(Bypass::UnusualArguments);
    }
    Ok(source)
}
