//! What names of variables leave in libraries: texts behind which a name may end, and beginnings of names.
//!
//! In C and C++ a NUL follows a name, or `=` and a NUL. In Rust, texts are adjacent, so in a library with Rust code each name of capitals
//! counts, whatever follows it. Compilers place the beginnings in code: see `name_beginnings`.

use std::cell::Cell;
use std::io;

use memchr::memmem;

use super::elf::{Chunk, Elf, Section};
use super::file_memory::FileMemory;
use super::name_beginnings::{self, Beginning, each_constant};
use super::name_ends::{self, LENGTH, MIN_LENGTH, each_end};
use super::scanned_library::{Part, ScannedLibrary, read_parts};

/// How much of a chunk of data must lie before its new bytes.
pub(super) const OVERLAP: usize = {
    let (of_ends, of_beginnings) = (name_ends::OVERLAP, name_beginnings::OVERLAP);
    if of_ends > of_beginnings {
        of_ends
    } else {
        of_beginnings
    }
};
/// Text in every library with Rust code: its standard library, which reads variables, names one and its own sources. Shorter than
/// [`OVERLAP`].
const OF_RUST: [&[u8]; 2] = [b"RUST_BACKTRACE", b"/rustc/"];

/// What a name may have left.
pub(super) enum Trace<'a> {
    /// A text that may end in it. Only its last [`LENGTH`] bytes count.
    Text(&'a [u8]),
    /// Its first bytes.
    Beginning(&'a Beginning),
}

impl Trace<'_> {
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            Trace::Text(text) => text,
            Trace::Beginning(beginning) => beginning.as_bytes(),
        }
    }
}

/// Tells libraries with Rust code.
pub(super) struct OfRust([memmem::Finder<'static>; 2]);

impl OfRust {
    pub fn new() -> OfRust {
        OfRust(OF_RUST.map(memmem::Finder::new))
    }

    /// Whether these data are of such a library.
    pub fn is_in(&self, data: &[u8]) -> bool {
        self.0.iter().any(|text| text.find(data).is_some())
    }

    /// Whether the compilers that made a library say that it is one.
    pub fn is_said_by(elf: &Elf, sections: &[Section]) -> bool {
        memmem::find(&elf.comment(sections), b"rustc version").is_some()
    }
}

/// Calls the function with each trace in a chunk of data, whatever language it is of.
///
/// # Errors
/// Those of the function.
pub(super) fn each_in_data(
    chunk: &Chunk<'_>,
    mut each: impl FnMut(Trace<'_>) -> io::Result<()>,
) -> io::Result<()> {
    each_end(chunk, |end| each(Trace::Text(&chunk.bytes[..end])))?;
    each_constant(chunk, |beginning| each(Trace::Beginning(beginning)))
}

/// The same for machine code.
///
/// # Errors
/// Those of the function.
pub(super) fn each_in_code(
    chunk: &Chunk<'_>,
    mut each: impl FnMut(Trace<'_>) -> io::Result<()>,
) -> io::Result<()> {
    match name_beginnings::ARE_IN_CODE {
        true => name_beginnings::each_in_code(chunk, |beginning| each(Trace::Beginning(beginning))),
        false => Ok(()),
    }
}

/// The traces of names in a part of a library.
pub(super) struct Traces<'a> {
    part: &'a Part,
    of: Kind<'a>,
}

/// Which traces these are.
enum Kind<'a> {
    /// Texts before a NUL, and beginnings. Reading them sets `is_of_rust` if the library has Rust code.
    OfAll { is_of_rust: &'a Cell<bool> },
    /// Names of capitals.
    Capitals,
}

impl Traces<'_> {
    /// Calls the function with each trace.
    ///
    /// # Errors
    /// The library cannot be read, or the function fails.
    pub fn each(&self, mut each: impl FnMut(Trace<'_>) -> io::Result<()>) -> io::Result<()> {
        match self.of {
            Kind::OfAll { is_of_rust } => {
                let of_rust = OfRust::new();
                self.part.each_chunk_of_data(OVERLAP, |chunk| {
                    is_of_rust.set(is_of_rust.get() || of_rust.is_in(chunk.bytes));
                    each_in_data(&chunk, &mut each)
                })?;
                if !name_beginnings::ARE_IN_CODE {
                    return Ok(());
                }
                let overlap = name_beginnings::OVERLAP;
                self.part
                    .each_chunk_of_code(overlap, |chunk| each_in_code(&chunk, &mut each))
            }
            Kind::Capitals => self.each_of_capitals(each),
        }
    }

    fn each_of_capitals(
        &self,
        mut each: impl FnMut(Trace<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let is_in_rust =
            |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        self.part.each_chunk_of_data(LENGTH, |chunk| {
            let (data, new) = (chunk.bytes, chunk.new);
            let before = data[..new].iter().rev();
            let mut length = before.take_while(|byte| is_in_rust(**byte)).count();
            for end in new..data.len() {
                if !is_in_rust(data[end]) {
                    length = 0;
                    continue;
                }
                length += 1;
                if length >= MIN_LENGTH {
                    each(Trace::Text(&data[end + 1 - length.min(LENGTH)..=end]))?;
                }
            }
            Ok(())
        })
    }
}

/// What the function finds in the traces in these libraries, part by part.
///
/// # Errors
/// A library cannot be read, is no ELF file or was replaced, or the function fails.
pub(super) fn read_traces<R: Send + Sync>(
    libraries: &[ScannedLibrary],
    memory: &dyn FileMemory,
    read: impl Fn(&Traces) -> io::Result<R> + Sync,
) -> io::Result<Vec<R>> {
    let of_all = read_parts(libraries, memory, |part| {
        let is_of_rust = Cell::new(OfRust::is_said_by(&part.elf, &part.elf.sections()?));
        let of = Kind::OfAll {
            is_of_rust: &is_of_rust,
        };
        let found = read(&Traces { part, of })?;
        Ok((found, is_of_rust.get()))
    })?;
    let mut of_rust = Vec::new();
    let mut found = Vec::new();
    for (library, (of_part, is_of_rust)) in of_all {
        if is_of_rust && of_rust.last() != Some(library) {
            of_rust.push(library.clone());
        }
        found.push(of_part);
    }
    let of_capitals = read_parts(&of_rust, memory, |part| {
        let of = Kind::Capitals;
        read(&Traces { part, of })
    })?;
    found.extend(of_capitals.into_iter().map(|(_, found)| found));
    Ok(found)
}
