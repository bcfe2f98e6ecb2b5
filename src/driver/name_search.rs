//! Looks for a few names in libraries: for those that the first process asks for.
//!
//! The set of all names (see [`super::names`]) must be sorted and stored, which takes several times as long as finding a few. So it
//! is made only when a later process asks for a name that none has asked for: in containers and in continuous integration there may
//! be no later process. Both ways give the same answers.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::identity::FileMemory;
use super::name_ends::MIN_LENGTH;
use super::names::{ScannedLibrary, each_text, read_each, wanted_end};

/// Whether each of some names occurs.
pub type Occurrences = BTreeMap<Vec<u8>, bool>;

/// Looks for the names in the libraries.
///
/// # Errors
/// A library cannot be read, is no ELF file or was replaced.
pub fn search(
    libraries: &[ScannedLibrary],
    names: &BTreeSet<Vec<u8>>,
    memory: &dyn FileMemory,
) -> io::Result<Occurrences> {
    let wanted = Wanted::new(names);
    let of_each = read_each(libraries, memory, |elf| {
        let mut found = vec![false; wanted.ends.len()];
        each_text(elf, |text| {
            wanted.find(text, &mut found);
            Ok(())
        })?;
        Ok(found)
    })?;
    let occurs = |name: &Vec<u8>| match wanted_end(name) {
        None => true,
        Some(end) => {
            let index = wanted.ends.binary_search(&end);
            index.is_ok_and(|index| of_each.iter().any(|found| found[index]))
        }
    };
    Ok(names
        .iter()
        .map(|name| (name.clone(), occurs(name)))
        .collect())
}

/// The last bytes of a text that are looked at first.
type Tail = [u8; MIN_LENGTH];

/// Ends of names that are looked for.
struct Wanted<'a> {
    /// In order.
    ends: Vec<&'a [u8]>,
    /// Whether an end of this place may be wanted. Nearly no text gets further.
    places: Vec<bool>,
    by_tail: BTreeMap<Tail, Vec<usize>>,
}

impl<'a> Wanted<'a> {
    fn new(names: &'a BTreeSet<Vec<u8>>) -> Wanted<'a> {
        let ends: BTreeSet<&[u8]> = names.iter().filter_map(|name| wanted_end(name)).collect();
        let mut wanted = Wanted {
            ends: ends.into_iter().collect(),
            places: vec![false; 1 << 16],
            by_tail: BTreeMap::new(),
        };
        for (index, end) in wanted.ends.iter().enumerate() {
            if let Some(tail) = end.last_chunk() {
                wanted.places[place(tail)] = true;
                wanted.by_tail.entry(*tail).or_default().push(index);
            }
        }
        wanted
    }

    /// Notes the ends that this text has.
    #[inline]
    fn find(&self, text: &[u8], found: &mut [bool]) {
        let Some(tail) = text.last_chunk() else {
            return;
        };
        if !self.places[place(tail)] {
            return;
        }
        for index in self.by_tail.get(tail).into_iter().flatten() {
            found[*index] |= text.ends_with(self.ends[*index]);
        }
    }
}

/// A number of 16 bits. Bytes of names differ in their lower five bits, mostly.
#[inline]
fn place(tail: &Tail) -> usize {
    let [first, second, last] = tail.map(usize::from);
    (last ^ (second << 5) ^ (first << 10)) & 0xffff
}

#[cfg(test)]
mod tests {
    use super::super::identity::content_value;
    use super::super::names::Names;
    use super::super::names::tests::TestMemory;
    use super::*;

    /// A C library, and this test's own program, in which names in Rust run into each other.
    #[test]
    fn a_search_finds_the_names_that_the_set_of_all_names_has() {
        let memory = TestMemory::new();
        let library = |path: std::path::PathBuf| ScannedLibrary {
            identity: content_value(&memory.digest(&path).expect("read")),
            path,
        };
        let mut loaded = crate::driver::loaded_paths().into_iter();
        let of_c = loaded.find(|path| path.to_string_lossy().contains("libc.so"));
        let of_c = library(of_c.expect("the C library"));
        let of_rust = library(std::env::current_exe().expect("a path"));
        let names = [
            "LANG",
            "LC_ALL",
            "ALL",
            "TMPDIR",
            "RUST_BACKTRACE",
            "UST_BACK",
            "SSH_CONNECTION",
            "getenv",
            "BASH_FUNC_module%%",
            "PS",
            "AN_EXTREMELY_LONG_NAME_OF_A_VARIABLE",
            "",
        ];
        let names = names.map(|name| name.as_bytes().to_vec()).into();
        for libraries in [
            &[of_c.clone()][..],
            std::slice::from_ref(&of_rust),
            &[of_c.clone(), of_rust.clone()],
        ] {
            let found = search(libraries, &names, &memory).expect("read");
            let mut all = Names::of(libraries, &memory).expect("read");
            let of_all = |name: &Vec<u8>| (name.clone(), all.find(name).expect("known"));
            assert_eq!(found, names.iter().map(of_all).collect());
            let has = |name: &str| found[name.as_bytes()];
            assert!(has("BASH_FUNC_module%%") && has("PS") && has(""));
            assert!(has("TMPDIR") && has("RUST_BACKTRACE") == libraries.contains(&of_rust));
        }
    }

    #[test]
    fn a_library_that_is_another_one_by_now_has_no_answers() {
        let memory = TestMemory::new();
        let library = ScannedLibrary {
            identity: content_value(&[0; 32]),
            path: std::env::current_exe().expect("a path"),
        };
        let names = [b"LANG".to_vec()].into();
        assert!(search(&[library], &names, &memory).is_err());
    }

    #[test]
    fn ends_that_share_their_last_bytes_are_told_apart() {
        let names = ["PATH", "MY_PATH", "xATH", "OTHER"].map(|name| name.as_bytes().to_vec());
        let names = names.into();
        let wanted = Wanted::new(&names);
        let found_in = |text: &str| {
            let mut found = vec![false; wanted.ends.len()];
            wanted.find(text.as_bytes(), &mut found);
            let found = wanted.ends.iter().zip(found).filter(|(_, found)| *found);
            found.map(|(end, _)| *end).collect::<Vec<_>>()
        };
        assert_eq!(found_in("a MY_PATH"), [&b"MY_PATH"[..], b"PATH"]);
        assert_eq!(found_in("xATH"), [b"xATH"]);
        assert!(found_in("ATH").is_empty());
        assert!(found_in("TH").is_empty());
    }
}
