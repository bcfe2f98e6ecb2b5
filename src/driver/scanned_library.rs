//! The libraries of a driver that are searched for texts: what they are, and how they are read.
//!
//! Most of a driver is often in one library, 43 of 60 MB of data in rusticl's LLVM, so each is read in parts, on several threads at once.

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::elf::{Chunk, Elf};
use super::file_memory::FileMemory;
use super::identity::{build_id_value, content_value};
use super::loaded::Object;
use crate::file_fingerprint::{FileFingerprint, FileId};
use crate::parallel_files;
use crate::stop::Stop;

/// How many bytes of a file have a part of their own. To begin a part costs 0.1 ms.
const PART: u64 = 16 << 20;

/// A library or program of a driver, which is searched.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ScannedLibrary {
    /// Its build-id or content, as in a key.
    pub identity: Vec<u8>,
    /// Where it is.
    pub path: PathBuf,
}

impl ScannedLibrary {
    /// A library that is loaded.
    ///
    /// # Errors
    /// It has no build-id, and its file cannot be read.
    pub fn of(
        object: &Object,
        identity: impl FnOnce(&Path) -> io::Result<Vec<u8>>,
    ) -> io::Result<ScannedLibrary> {
        let Some(build_id) = &object.build_id else {
            return ScannedLibrary::of_file(&object.path, identity);
        };
        Ok(ScannedLibrary {
            identity: build_id_value(build_id),
            path: object.path.clone(),
        })
    }

    /// A library or program in a file.
    ///
    /// # Errors
    /// It cannot be read.
    pub fn of_file(
        path: &Path,
        identity: impl FnOnce(&Path) -> io::Result<Vec<u8>>,
    ) -> io::Result<ScannedLibrary> {
        Ok(ScannedLibrary {
            identity: identity(path)?,
            path: path.to_owned(),
        })
    }
}

impl ScannedLibrary {
    /// What was read at the path may not be what was loaded from there. `build_id` and `file`: those of the file that was read.
    ///
    /// # Errors
    /// It is another library.
    fn is_read(
        &self,
        build_id: Option<&[u8]>,
        file: FileId,
        memory: &dyn FileMemory,
    ) -> io::Result<()> {
        if build_id.is_some_and(|build_id| self.identity == build_id_value(build_id)) {
            return Ok(());
        }
        // The path may have led to another file for a while: a link to the directory of a version.
        let is_there = || FileFingerprint::at(&self.path).is_some_and(|now| now.file == file);
        let is_same =
            is_there() && content_value(&memory.digest(&self.path)?) == self.identity && is_there();
        match is_same {
            true => Ok(()),
            false => Err(io::Error::other("it was replaced since it was loaded")),
        }
    }
}

/// A part of a library.
pub(super) struct Part {
    pub elf: Elf,
    stop: Stop,
    data: Vec<Piece>,
    code: Vec<Piece>,
}

/// Some data or code of a section.
struct Piece {
    /// Where it is in the file.
    place: Range<u64>,
    /// How many bytes of the same section lie before it.
    before: u64,
    /// Whether the section ends with it.
    is_last: bool,
}

/// Which part of a library.
struct PartOf<'a> {
    library: &'a ScannedLibrary,
    /// How many bytes the file has.
    bytes: u64,
    number: u64,
    parts: u64,
}

impl PartOf<'_> {
    /// # Errors
    /// The library cannot be read, or is no ELF file.
    fn open(&self, stop: Stop) -> io::Result<Part> {
        stop.check()?;
        let elf = Elf::open(&self.library.path)?.ok_or(io::ErrorKind::InvalidData)?;
        let sections = elf.sections()?;
        let part_of = |places: Vec<_>| cut(&places, self.number, self.parts);
        Ok(Part {
            stop,
            data: part_of(elf.data(&sections)),
            code: part_of(elf.code(&sections)),
            elf,
        })
    }
}

/// The bytes at these places, cut into so many parts of equal length: the pieces of the part of this number.
fn cut(places: &[Range<u64>], number: u64, parts: u64) -> Vec<Piece> {
    let length = |place: &Range<u64>| place.end.saturating_sub(place.start);
    let total = places.iter().map(length).fold(0, u64::saturating_add);
    let share = total.div_ceil(parts);
    let mut first = number.saturating_mul(share);
    let mut left = share;
    let mut pieces = Vec::new();
    for place in places {
        let length = length(place);
        let taken = length.saturating_sub(first).min(left);
        if taken > 0 {
            let start = place.start + first;
            pieces.push(Piece {
                place: start..start + taken,
                before: first,
                is_last: first + taken == length,
            });
        }
        first = first.saturating_sub(length);
        left -= taken;
    }
    pieces
}

impl Part {
    /// Calls the function with all data, a chunk at a time. A chunk begins with up to `overlap` bytes that lie before its new ones. Those
    /// bytes are the same however a library is parted.
    ///
    /// # Errors
    /// The library cannot be read, or the function fails.
    pub fn each_chunk_of_data(
        &self,
        overlap: usize,
        each: impl FnMut(Chunk<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.each_chunk(&self.data, overlap, each)
    }

    /// The same for machine code.
    ///
    /// # Errors
    /// The library cannot be read, or the function fails.
    pub fn each_chunk_of_code(
        &self,
        overlap: usize,
        each: impl FnMut(Chunk<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        self.each_chunk(&self.code, overlap, each)
    }

    fn each_chunk(
        &self,
        pieces: &[Piece],
        overlap: usize,
        mut each: impl FnMut(Chunk<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        for piece in pieces {
            let mut known = overlap.min(usize::try_from(piece.before).unwrap_or(overlap));
            let place = piece.place.start - known as u64..piece.place.end;
            self.elf.each_chunk(&[place], overlap, |chunk| {
                self.stop.check()?;
                each(Chunk {
                    new: chunk.new.max(std::mem::take(&mut known)),
                    is_last: chunk.is_last && piece.is_last,
                    ..chunk
                })
            })?;
        }
        Ok(())
    }
}

/// What the function finds in each part of these libraries, library by library.
///
/// # Errors
/// A library cannot be read, is no ELF file or was replaced, the function fails, or the work is stopped.
pub(super) fn read_parts<'a, R: Send + Sync>(
    libraries: &'a [ScannedLibrary],
    memory: &dyn FileMemory,
    read: impl Fn(&Part) -> io::Result<R> + Sync,
) -> io::Result<Vec<(&'a ScannedLibrary, R)>> {
    let parts_of = |library: &'a ScannedLibrary| {
        let bytes = parallel_files::size(&library.path);
        let parts = bytes.div_ceil(PART).max(1);
        (0..parts).map(move |number| PartOf {
            library,
            bytes,
            number,
            parts,
        })
    };
    let parts: Vec<PartOf> = libraries.iter().flat_map(parts_of).collect();
    let size = |part: &PartOf| part.bytes / part.parts;
    let stop = memory.stop();
    let found = parallel_files::map(&parts, size, |part| {
        let part = part.open(stop.clone())?;
        Ok((read(&part)?, part.elf.build_id(), part.elf.file_id()?))
    });
    let found = parts.iter().zip(found);
    let found = found.map(|(part, found): (_, io::Result<_>)| {
        let (found, build_id, file) = found?;
        part.library.is_read(build_id.as_deref(), file, memory)?;
        Ok((part.library, found))
    });
    found.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::names::tests::TestMemory;

    #[test]
    fn a_path_that_led_to_another_file_for_a_while_is_not_read() {
        let memory = TestMemory::new();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let [path, other] = ["library", "other"].map(|name| directory.path().join(name));
        std::fs::write(&path, "one").expect("written");
        std::fs::write(&other, "another").expect("written");
        let library = ScannedLibrary {
            identity: content_value(&memory.digest(&path).expect("read")),
            path: path.clone(),
        };
        let id = |path: &PathBuf| FileFingerprint::at(path).expect("it is there").file;
        let [file, elsewhere] = [&path, &other].map(id);
        assert!(library.is_read(None, file, &memory).is_ok());
        assert!(library.is_read(None, elsewhere, &memory).is_err());
        // As `hardlink` and ostree do, which changes the time of its last change.
        std::fs::hard_link(&path, directory.path().join("link")).expect("linked");
        assert!(library.is_read(None, file, &memory).is_ok());
        let [build_id, wrong] = [&b"\x01\x02"[..], b"\x03"].map(Some);
        let library = ScannedLibrary {
            identity: build_id_value(b"\x01\x02"),
            path,
        };
        assert!(library.is_read(build_id, elsewhere, &memory).is_ok());
        assert!(library.is_read(wrong, file, &memory).is_err());
    }

    #[test]
    fn the_parts_of_data_are_all_of_it_once() {
        let places = [10..10, 100..107, 200..201, 300..320];
        for parts in 1..40 {
            let cuts = (0..parts).flat_map(|number| cut(&places, number, parts));
            let mut bytes = Vec::new();
            for piece in cuts {
                let section = places
                    .iter()
                    .find(|section| section.contains(&piece.place.start))
                    .expect("a section");
                assert_eq!(piece.place.start - piece.before, section.start);
                assert_eq!(piece.is_last, piece.place.end == section.end);
                bytes.extend(piece.place);
            }
            let all: Vec<u64> = places.iter().cloned().flatten().collect();
            assert_eq!(bytes, all, "{parts}");
        }
        assert!(cut(&[], 0, 1).is_empty());
    }

    /// A part begins behind what a text that ends in it may need of the part before.
    #[test]
    fn what_lies_before_each_byte_is_the_same_however_a_library_is_parted() {
        const OVERLAP: usize = 24;
        let library = ScannedLibrary {
            identity: Vec::new(),
            path: std::env::current_exe().expect("a path"),
        };
        let read = |parts| {
            let (mut all, mut begins) = (Vec::new(), Vec::new());
            for number in 0..parts {
                let library = &library;
                let part = PartOf {
                    library,
                    bytes: 0,
                    number,
                    parts,
                };
                let part = part.open(Stop::default()).expect("a library");
                let chunk = |Chunk { bytes, new, .. }: Chunk<'_>| {
                    if new == 0 {
                        begins.push(all.len());
                    }
                    // There is less only where a section begins.
                    let begin = begins.last().expect("a section");
                    assert_eq!(new, OVERLAP.min(all.len() - begin), "{number} of {parts}");
                    assert!(all.ends_with(&bytes[..new]), "{number} of {parts}");
                    all.extend(&bytes[new..]);
                    Ok(())
                };
                part.each_chunk_of_data(OVERLAP, chunk).expect("read");
            }
            (all, begins)
        };
        let whole = read(1);
        assert!(whole.1.len() > 1);
        for parts in [2, 3, 64] {
            assert!(read(parts) == whole, "{parts}");
        }
    }
}
