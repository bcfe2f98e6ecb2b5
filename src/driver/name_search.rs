//! Looks for single names in libraries, without gathering all that they have.
//!
//! The first process of an empty cache directory asks for the names of its own variables, some dozens. To gather the 200,000 names of
//! the driver's libraries for later processes was most of what it did before its first build. So it only leaves a mark, and the next
//! process that asks for names which nobody has asked for gathers them: see `names`.

use std::io;

use super::file_memory::{FileMemory, list_identity};
use super::name_texts::read_texts;
use super::names::end_of;
use super::opened_by_name::{checked, with_checksum};
use super::scanned_library::ScannedLibrary;

const MAGIC: &[u8; 16] = b"oclcache asked 2";

/// Whether a process has looked for names in the libraries of this identity.
pub(super) fn has_been_asked(libraries: &[u8; 32], memory: &dyn FileMemory) -> bool {
    let identity = mark_of(libraries);
    let mark = memory.facts(&identity).ok().flatten();
    mark.is_some_and(|mark| checked(mark, MAGIC, &identity).is_some())
}

/// Leaves the mark that [`has_been_asked`] looks for.
pub(super) fn note_asked(libraries: &[u8; 32], memory: &dyn FileMemory) {
    let identity = mark_of(libraries);
    memory.remember_facts(&identity, &with_checksum(MAGIC, &identity, b""));
}

fn mark_of(libraries: &[u8; 32]) -> [u8; 32] {
    list_identity(MAGIC, [&libraries[..]].into_iter())
}

/// Whether each of these names may be asked for by one of the libraries: what [`super::names::Names::find`] says of them.
///
/// # Errors
/// A library cannot be read, is no ELF file or was replaced.
pub(super) fn search(
    libraries: &[ScannedLibrary],
    names: &[Vec<u8>],
    memory: &dyn FileMemory,
) -> io::Result<Vec<bool>> {
    let wanted = WantedEnds::of(names.iter().filter_map(|name| end_of(name)));
    let of_each = read_texts(libraries, memory, |texts| {
        let mut found = vec![false; wanted.ends.len()];
        texts.each(|text| {
            wanted.note(text, &mut found);
            Ok(())
        })?;
        Ok(found)
    })?;
    let occurs = |name: &Vec<u8>| match end_of(name) {
        None => true,
        Some(end) => {
            let place = wanted.ends.binary_search(&end);
            place.is_ok_and(|place| of_each.iter().any(|found| found[place]))
        }
    };
    Ok(names.iter().map(occurs).collect())
}

/// The last bytes that decide whether a text is looked at closely.
const LAST: usize = 3;
/// The number of bits in the table of these.
const BITS: usize = 1 << 14;

/// Ends of names that are looked for.
struct WantedEnds<'a> {
    /// Ascending.
    ends: Vec<&'a [u8]>,
    /// A bit for the last bytes of each. Texts that end otherwise, which are nearly all, cost one look.
    last: Vec<u64>,
}

impl<'a> WantedEnds<'a> {
    fn of(ends: impl Iterator<Item = &'a [u8]>) -> WantedEnds<'a> {
        let mut ends: Vec<&[u8]> = ends.collect();
        ends.sort_unstable();
        ends.dedup();
        let mut last = vec![0; BITS / 64];
        for bit in ends.iter().filter_map(|end| bit_of(end)) {
            last[bit / 64] |= 1 << (bit % 64);
        }
        WantedEnds { ends, last }
    }

    /// Notes which of the ends this text has.
    #[inline]
    fn note(&self, text: &[u8], found: &mut [bool]) {
        let is_candidate =
            bit_of(text).is_some_and(|bit| self.last[bit / 64] & (1 << (bit % 64)) != 0);
        if !is_candidate {
            return;
        }
        for (end, found) in self.ends.iter().zip(found) {
            *found |= text.ends_with(end);
        }
    }
}

/// The bit of the last bytes of a text.
#[inline]
fn bit_of(text: &[u8]) -> Option<usize> {
    let last: &[u8; LAST] = text.last_chunk()?;
    let number = last
        .iter()
        .fold(0, |number, byte| number << 8 | u32::from(*byte));
    // Fibonacci hashing: the upper bits of the product depend on all bytes.
    Some((number.wrapping_mul(0x9e37_79b1) >> (32 - BITS.ilog2())) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::names::Names;
    use crate::driver::names::tests::TestMemory;
    use crate::driver::{content_value, loaded_paths};

    #[test]
    fn a_search_says_of_each_name_what_the_gathered_names_say() {
        let memory = TestMemory::new();
        // The test itself is of Rust.
        let own = std::env::current_exe().expect("a path");
        let paths = loaded_paths().into_iter().filter(|path| path.is_file());
        let libraries: Vec<ScannedLibrary> = paths
            .chain([own])
            .map(|path| ScannedLibrary {
                identity: content_value(&memory.digest(&path).expect("read")),
                path,
            })
            .collect();
        let mut names: Vec<Vec<u8>> = [
            "TMPDIR",
            "LD_DEBUG",
            "LANG",
            "RUST_BACKTRACE",
            "NO_SUCH_NAME_1",
            "no_such_name",
            "XY",
            "",
            "BASH_FUNC_x%%",
            "BASH_FUNC_LANG%%LANG",
            "A_NAME_THAT_IS_LONGER_THAN_ALL_THAT_IS_COMPARED_OF_ONE",
            "environ",
            "ANG",
            "GCONV_PATH",
            "DIR",
            "rust_backtrace",
            "HOME",
            "USERNAME_OF_NOBODY",
        ]
        .map(|name| name.as_bytes().to_vec())
        .into();
        names.extend((0..400u32).map(|number| format!("N{}", number * number).into_bytes()));
        let found = search(&libraries, &names, &memory).expect("read");
        let mut gathered = Names::of(&libraries, &memory).expect("read");
        for (name, found) in names.iter().zip(&found) {
            let name_text = String::from_utf8_lossy(name);
            assert_eq!(gathered.find(name), Some(*found), "{name_text}");
        }
        assert!(found.contains(&true) && found.contains(&false));
    }

    #[test]
    fn the_first_to_ask_leaves_a_mark() {
        let memory = TestMemory::new();
        assert!(!has_been_asked(&[1; 32], &memory));
        note_asked(&[1; 32], &memory);
        assert!(has_been_asked(&[1; 32], &memory));
        assert!(!has_been_asked(&[2; 32], &memory));
    }
}
