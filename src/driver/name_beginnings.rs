//! Finds what names of variables may begin with in machine code and among its constants.
//!
//! Where a compiler copies or compares a short text, it may place the text in its instructions, a word of the processor at a time, and
//! longer texts among constants of 16 or 32 bytes that vector instructions read. Then the name is nowhere as a whole, but its beginning
//! is. Measured with GCC 12 and Clang 14 at -O2 and -O3, with libstdc++ and libc++ (`std::string` in C++):
//!
//! - The first word is in code. Of a name that is shorter than a word, the first 4 bytes are.
//! - GCC has the first 16 bytes as a constant.
//! - Clang has the first 8 bytes as half a constant, behind the length of the text.
//!
//! Not found is the second of two names in one function whose first words differ in the first 4 bytes only: it is computed from the first
//! (`MAX_SIZE` from `MIN_SIZE`). To count each name whose first word ends as one in code does was too much: 3000 ends are in LLVM's, and
//! `HISTSIZE` and `PYTHONPATH` were in keys. Nor is a name of fewer than 8 bytes found that Clang has amid a constant with numbers.
//!
//! 90 MB of LLVM's code have 34,000 different parts of 4 bytes that could be in a name, and 19,000 of 8.

#![allow(unsafe_code)] // calls what was compiled for this processor

use std::io;

use super::elf::Chunk;
#[cfg(target_arch = "x86_64")]
use super::name_bytes::Wide;
use super::name_bytes::{LANES, Lanes, Plain, block_of};

/// How many bytes an instruction may hold, if it can.
const WORD: usize = size_of::<usize>();
/// Texts that are shorter than a word are placed in pieces. The first has this many bytes.
const HALF: usize = 4;
/// The size of a constant, at a multiple of which it lies.
const CONSTANT: usize = 16;
/// How much of a chunk must lie before its new bytes: what may begin there and end in them.
pub(super) const OVERLAP: usize = CONSTANT - 1;

/// What a name in an instruction has behind its beginning, to be told from other text: no name has this byte.
const IN_CODE: u8 = 1;
/// The same for a constant.
const IN_CONSTANT: u8 = 2;

/// Whether names in code are found. ARM's instructions hold two bytes of a text at most.
pub(super) const ARE_IN_CODE: bool = cfg!(any(target_arch = "x86_64", target_arch = "x86"));

/// What begins `/proc/self/environ` where that is a constant.
const FIRST_ENVIRONMENT: &[u8; CONSTANT] = b"/proc/self/envir";
/// A bit for each byte of it that no name has.
const SLASHES: u16 = 1 | 1 << 5 | 1 << 10;

/// The beginning of a name, and what tells where it is.
///
/// A search and a set of names alike take one for each shorter one in which it ends: of 8 bytes in code, the last 4 are there as well.
pub(super) struct Beginning {
    bytes: [u8; CONSTANT + 1],
    length: usize,
}

impl Beginning {
    fn new(text: &[u8], place: u8) -> Beginning {
        let mut bytes = [0; CONSTANT + 1];
        bytes[..text.len()].copy_from_slice(text);
        bytes[text.len()] = place;
        Beginning {
            bytes,
            length: text.len() + 1,
        }
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The beginnings by which a name of at least [`HALF`] bytes is found.
pub(super) fn of_name(name: &[u8]) -> impl Iterator<Item = Beginning> {
    let in_code = match name.len() {
        0..WORD => name.get(..HALF),
        _ => name.get(..WORD),
    };
    let all = [(in_code, IN_CODE), (name.get(..CONSTANT), IN_CONSTANT)];
    let there = all.into_iter();
    there.filter_map(|(text, place)| Some(Beginning::new(text?, place)))
}

/// The beginning by which `/proc/self/environ` is found.
pub(super) fn of_first_environment() -> Beginning {
    Beginning::new(FIRST_ENVIRONMENT, IN_CONSTANT)
}

/// Calls the function with each beginning of a name that is in a chunk of machine code.
///
/// # Errors
/// Those of the function.
pub(super) fn each_in_code(
    chunk: &Chunk<'_>,
    each: impl FnMut(&Beginning) -> io::Result<()>,
) -> io::Result<()> {
    #[cfg(target_arch = "x86_64")]
    if let Some(wide) = Wide::detect() {
        // SAFETY: the processor has the instructions.
        return unsafe { each_in_code_avx2(wide, chunk, each) };
    }
    each_in_code_blocks(Plain, chunk, each)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn each_in_code_avx2(
    wide: Wide,
    chunk: &Chunk<'_>,
    each: impl FnMut(&Beginning) -> io::Result<()>,
) -> io::Result<()> {
    each_in_code_blocks(wide, chunk, each)
}

#[inline(always)]
fn each_in_code_blocks(
    lanes: impl Lanes,
    chunk: &Chunk<'_>,
    mut each: impl FnMut(&Beginning) -> io::Result<()>,
) -> io::Result<()> {
    let code = &chunk.bytes[chunk.new.saturating_sub(WORD - 1)..];
    let mut next = lanes.of_names(&block_of(code));
    for at in (0..code.len()).step_by(LANES) {
        let rest = &code[at..];
        let current = next;
        next = lanes.of_names(&block_of(rest.get(LANES..).unwrap_or_default()));
        // The bytes of this block, and those of the next one behind them.
        let ones = u128::from(current) | u128::from(next) << LANES;
        let twos = ones & ones >> 1;
        let fours = twos & twos >> 2;
        let eights = fours & fours >> 4;
        let words = if WORD == HALF { fours } else { eights };
        let mut halves = fours as u64;
        while halves != 0 {
            let lane = halves.trailing_zeros() as usize;
            halves &= halves - 1;
            each(&Beginning::new(&rest[lane..lane + HALF], IN_CODE))?;
            if WORD > HALF && words >> lane & 1 != 0 {
                each(&Beginning::new(&rest[lane..lane + WORD], IN_CODE))?;
            }
        }
    }
    Ok(())
}

/// Calls the function with each beginning of a name that may be a constant in a chunk of data.
///
/// # Errors
/// Those of the function.
pub(super) fn each_constant(
    chunk: &Chunk<'_>,
    each: impl FnMut(&Beginning) -> io::Result<()>,
) -> io::Result<()> {
    #[cfg(target_arch = "x86_64")]
    if let Some(wide) = Wide::detect() {
        // SAFETY: the processor has the instructions.
        return unsafe { each_constant_avx2(wide, chunk, each) };
    }
    each_constant_in_blocks(Plain, chunk, each)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn each_constant_avx2(
    wide: Wide,
    chunk: &Chunk<'_>,
    each: impl FnMut(&Beginning) -> io::Result<()>,
) -> io::Result<()> {
    each_constant_in_blocks(wide, chunk, each)
}

#[inline(always)]
fn each_constant_in_blocks(
    lanes: impl Lanes,
    chunk: &Chunk<'_>,
    mut each: impl FnMut(&Beginning) -> io::Result<()>,
) -> io::Result<()> {
    let begin = chunk.new.saturating_sub(CONSTANT - 1);
    // Files are mapped by pages, so what is at a multiple of 16 in memory is at one in the file.
    let misplaced = (chunk.place + begin as u64) % CONSTANT as u64;
    let begin = begin + (CONSTANT - misplaced as usize) % CONSTANT;
    let data = chunk.bytes.get(begin..).unwrap_or_default();
    for at in (0..data.len()).step_by(LANES) {
        let names = lanes.of_names(&block_of(&data[at..]));
        for lane in (0..LANES).step_by(CONSTANT) {
            let not_of_names = (!names >> lane) as u16;
            // Most constants are none of names, and are looked at no closer.
            if not_of_names >> (CONSTANT / 2) != 0 && not_of_names != SLASHES {
                continue;
            }
            let Some(constant) = data.get(at + lane..at + lane + CONSTANT) else {
                break;
            };
            if not_of_names == 0 || constant == FIRST_ENVIRONMENT {
                each(&Beginning::new(constant, IN_CONSTANT))?;
            }
            let (length, text) = constant.split_at(CONSTANT / 2);
            if not_of_names >> (CONSTANT / 2) == 0 && length[1..] == [0; CONSTANT / 2 - 1] {
                each(&Beginning::new(&text[..WORD], IN_CODE))?;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::driver::content_value;
    use crate::driver::elf::tests::library_of;
    use crate::driver::file_memory::FileMemory;
    use crate::driver::name_bytes::is_in_a_name;
    use crate::driver::name_ends::tests::data_of;
    use crate::driver::name_search::search;
    use crate::driver::names::Names;
    use crate::driver::names::tests::TestMemory;
    use crate::driver::scanned_library::ScannedLibrary;

    type EachIn<'f> = &'f dyn Fn(&Chunk<'_>, Each<'_>) -> io::Result<()>;
    type Each<'f> = &'f mut dyn FnMut(&Beginning) -> io::Result<()>;

    fn all_in(chunks: &[Chunk<'_>], each_in: EachIn<'_>) -> BTreeSet<Vec<u8>> {
        let mut found = BTreeSet::new();
        for chunk in chunks {
            let each: Each<'_> = &mut |beginning| {
                found.insert(beginning.as_bytes().to_vec());
                Ok(())
            };
            each_in(chunk, each).expect("no error");
        }
        found
    }

    #[test]
    fn every_beginning_is_found_in_whatever_chunks_the_bytes_come() {
        let lengths = [0, 3, 4, 7, 8, 15, 16, 63, 64, 65, 127, 400];
        for (seed, length) in (0..200).zip(lengths.into_iter().cycle()) {
            let data = data_of(b"\0AZaz09_AZaz09_-", seed, length);
            let place = seed * 5;
            let begins = |length: usize| {
                let parts = data.windows(length).enumerate();
                parts.filter(|(_, part)| part.iter().copied().all(is_in_a_name))
            };
            let in_code: BTreeSet<Vec<u8>> = begins(HALF)
                .chain(begins(WORD))
                .map(|(_, part)| [part, &[IN_CODE]].concat())
                .collect();
            let constants: BTreeSet<Vec<u8>> = begins(CONSTANT)
                .filter(|(at, _)| (place + *at as u64).is_multiple_of(CONSTANT as u64))
                .map(|(_, part)| [part, &[IN_CONSTANT]].concat())
                .collect();
            for size in [1, 9, 64, 1000] {
                let chunks = chunks_of(&data, place, size);
                let ways: [(&BTreeSet<Vec<u8>>, EachIn<'_>); 4] = [
                    (&in_code, &|chunk, each| each_in_code(chunk, each)),
                    (&in_code, &|chunk, each| {
                        each_in_code_blocks(Plain, chunk, each)
                    }),
                    (&constants, &|chunk, each| each_constant(chunk, each)),
                    (&constants, &|chunk, each| {
                        each_constant_in_blocks(Plain, chunk, each)
                    }),
                ];
                for (number, (expected, each_in)) in ways.into_iter().enumerate() {
                    let found = all_in(&chunks, each_in);
                    assert_eq!(&found, expected, "{number} {seed} {size}");
                }
            }
        }
    }

    fn chunks_of(data: &[u8], place: u64, size: usize) -> Vec<Chunk<'_>> {
        let chunk = |new: usize| {
            let first = new.saturating_sub(OVERLAP);
            Chunk {
                bytes: &data[first..data.len().min(new + size)],
                new: new - first,
                place: place + first as u64,
                is_last: new + size >= data.len(),
            }
        };
        (0..data.len()).step_by(size).map(chunk).collect()
    }

    /// `std::string` of 8 bytes, as Clang makes it, and that of `/proc/self/environ`, as GCC does.
    #[test]
    fn special_constants_are_found() {
        let number = [&[0; 3][..], &[8, 0, 0, 0, 0, 0, 0, 0], b"A_NUMBER", b"\x01"].concat();
        let environment = [&[0; 3][..], FIRST_ENVIRONMENT, b"."].concat();
        for size in 1..40 {
            let constants = |data: &[u8], place| {
                let chunks = chunks_of(data, place, size);
                all_in(&chunks, &|chunk, each| each_constant(chunk, each))
            };
            let word = Beginning::new(&b"A_NUMBER"[..WORD], IN_CODE);
            let first_environment = of_first_environment();
            for place in 0..CONSTANT as u64 {
                let is_even = place == CONSTANT as u64 - 3;
                let [with_number, with_environment] =
                    [&number, &environment].map(|data| constants(data, place));
                assert_eq!(
                    with_number.contains(word.as_bytes()),
                    is_even,
                    "{size} {place}"
                );
                assert_eq!(
                    with_environment.contains(first_environment.as_bytes()),
                    is_even,
                    "{size} {place}"
                );
            }
        }
    }

    /// Copies a name without its NUL, as `std::string` does.
    #[cfg(any(target_arch = "x86_64", target_arch = "x86"))]
    #[test]
    fn a_name_that_a_compiler_has_placed_in_code_is_found() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let memory = TestMemory::new();
        let names: Vec<String> = (HALF..40)
            .map(|length| {
                format!("Q{length}_ABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789")[..length].to_owned()
            })
            .collect();
        let mut source = String::from("char *getenv(const char *);\n");
        for (index, name) in names.iter().enumerate() {
            let (length, end) = (name.len(), name.len() + 1);
            source += &format!(
                "const char *ask{index}(void) {{ char name[{end}]; __builtin_memcpy(name, \"{name}\", {length}); name[{length}] = 0; \
                 return getenv(name); }}\n"
            );
        }
        let path = library_of(directory.path(), &source, &["-O3"]);
        let library = std::fs::read(&path).expect("read");
        let is_whole = |name: &String| {
            memchr::memmem::find(&library, format!("{name}\0").as_bytes()).is_some()
        };
        assert!(
            names.iter().any(|name| !is_whole(name)),
            "the compiler has placed none"
        );
        let library = ScannedLibrary {
            identity: content_value(&memory.digest(&path).expect("read")),
            path,
        };
        let others = names.iter().map(|name| format!("{}Q", &name[..HALF - 1]));
        let names: Vec<Vec<u8>> = names
            .iter()
            .cloned()
            .chain(others)
            .map(String::into_bytes)
            .collect();
        let libraries = [library];
        let found = search(&libraries, &names, &memory).expect("read");
        let mut all = Names::of(&libraries, &memory).expect("read");
        for (index, (name, found)) in names.iter().zip(found).enumerate() {
            let name_text = String::from_utf8_lossy(name);
            assert_eq!(found, index < names.len() / 2, "{name_text}");
            assert_eq!(all.find(name), Some(found), "{name_text}");
        }
    }
}
