//! The texts in the data of libraries behind which a name of a variable may end.
//!
//! In C and C++ a NUL follows a name, or `=` and a NUL. In Rust, texts are adjacent, so in a library with Rust code each name of capitals
//! counts, whatever follows it.

use std::cell::Cell;
use std::io;

use memchr::memmem;

use super::file_memory::FileMemory;
use super::name_ends::{LENGTH, MIN_LENGTH, each_end};
use super::scanned_library::{Part, ScannedLibrary, read_parts};

/// Text in every library with Rust code: its standard library, which reads variables, names one and its own sources.
const OF_RUST: [&[u8]; 2] = [b"RUST_BACKTRACE", b"/rustc/"];

/// The texts in a part of a library's data.
pub(super) struct Texts<'a> {
    part: &'a Part,
    of: Kind<'a>,
}

/// Which texts these are.
enum Kind<'a> {
    /// Those before a NUL. Reading them sets `is_of_rust` if the library has Rust code.
    BeforeNul { is_of_rust: &'a Cell<bool> },
    /// Names of capitals.
    Capitals,
}

impl Texts<'_> {
    /// Calls the function with each text. Only its last [`LENGTH`] bytes count.
    ///
    /// # Errors
    /// The library cannot be read, or the function fails.
    pub fn each(&self, each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        match self.of {
            Kind::BeforeNul { is_of_rust } => self.each_before_nul(is_of_rust, each),
            Kind::Capitals => self.each_of_capitals(each),
        }
    }

    fn each_before_nul(
        &self,
        is_of_rust: &Cell<bool>,
        mut each: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        let [backtrace, sources] = OF_RUST.map(memmem::Finder::new);
        self.part.each_chunk(LENGTH, |chunk, new| {
            if !is_of_rust.get() {
                let is_rusts = backtrace.find(chunk).is_some() || sources.find(chunk).is_some();
                is_of_rust.set(is_rusts);
            }
            each_end(chunk, new, |end| each(&chunk[..end]))
        })
    }

    fn each_of_capitals(&self, mut each: impl FnMut(&[u8]) -> io::Result<()>) -> io::Result<()> {
        let is_in_rust =
            |byte: u8| byte.is_ascii_uppercase() || byte.is_ascii_digit() || byte == b'_';
        self.part.each_chunk(LENGTH, |chunk, new| {
            let before = chunk[..new].iter().rev();
            let mut length = before.take_while(|byte| is_in_rust(**byte)).count();
            for end in new..chunk.len() {
                if !is_in_rust(chunk[end]) {
                    length = 0;
                    continue;
                }
                length += 1;
                if length >= MIN_LENGTH {
                    each(&chunk[end + 1 - length.min(LENGTH)..=end])?;
                }
            }
            Ok(())
        })
    }
}

/// What the function finds in the texts of these libraries, part by part.
///
/// # Errors
/// A library cannot be read, is no ELF file or was replaced, or the function fails.
pub(super) fn read_texts<R: Send + Sync>(
    libraries: &[ScannedLibrary],
    memory: &dyn FileMemory,
    read: impl Fn(&Texts) -> io::Result<R> + Sync,
) -> io::Result<Vec<R>> {
    let before_nul = read_parts(libraries, memory, |part| {
        let comment = part.elf.comment(&part.elf.sections()?);
        let is_of_rust = Cell::new(memmem::find(&comment, b"rustc version").is_some());
        let of = Kind::BeforeNul {
            is_of_rust: &is_of_rust,
        };
        let found = read(&Texts { part, of })?;
        Ok((found, is_of_rust.get()))
    })?;
    let mut of_rust = Vec::new();
    let mut found = Vec::new();
    for (library, (of_part, is_of_rust)) in before_nul {
        if is_of_rust && of_rust.last() != Some(library) {
            of_rust.push(library.clone());
        }
        found.push(of_part);
    }
    let of_capitals = read_parts(&of_rust, memory, |part| {
        let of = Kind::Capitals;
        read(&Texts { part, of })
    })?;
    found.extend(of_capitals.into_iter().map(|(_, found)| found));
    Ok(found)
}
