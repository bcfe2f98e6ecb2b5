//! Looks for single names in libraries, without gathering all that they have.
//!
//! The first process of an empty cache directory asks for the names of its own variables, some dozens. To gather the 200,000 names of
//! the driver's libraries for later processes was most of what it did before its first build. See `asked_names`.

use std::collections::BTreeMap;
use std::io;

use super::file_memory::FileMemory;
use super::name_ends::MIN_LENGTH;
use super::name_traces::{Trace, read_traces};
use super::names::traces_of;
use super::scanned_library::ScannedLibrary;

/// Whether each of these names may be asked for by one of the libraries: what [`super::names::Names::find`] says of them.
///
/// # Errors
/// A library cannot be read, is no ELF file or was replaced.
pub(super) fn search(
    libraries: &[ScannedLibrary],
    names: &[Vec<u8>],
    memory: &dyn FileMemory,
) -> io::Result<Vec<bool>> {
    let wanted = WantedNames::of(names);
    let of_each = read_traces(libraries, memory, |traces| {
        let mut found = wanted.none_found();
        traces.each(|trace| {
            wanted.note(&trace, &mut found);
            Ok(())
        })?;
        Ok(found)
    })?;
    let mut found = wanted.none_found();
    for of_one in &of_each {
        found.add(of_one);
    }
    let occurs = |name: &Vec<u8>| wanted.occurs(name, &found).unwrap_or(true);
    Ok(names.iter().map(occurs).collect())
}

/// Names that are looked for.
pub(super) struct WantedNames {
    /// The traces of each; None: it counts in every library.
    names: BTreeMap<Vec<u8>, Option<Vec<Vec<u8>>>>,
    traces: WantedTraces,
}

/// Which of the traces of such names were found.
#[derive(Clone, PartialEq, Eq)]
pub(super) struct FoundTraces(Vec<bool>);

impl FoundTraces {
    /// Adds those that were found elsewhere.
    pub fn add(&mut self, other: &FoundTraces) {
        for (one, other) in self.0.iter_mut().zip(&other.0) {
            *one |= other;
        }
    }
}

impl WantedNames {
    pub fn of(names: &[Vec<u8>]) -> WantedNames {
        let names = names.iter().map(|name| (name.clone(), traces_of(name)));
        let names: BTreeMap<_, _> = names.collect();
        WantedNames {
            traces: WantedTraces::of(names.values().flatten().flatten().cloned()),
            names,
        }
    }

    pub fn none_found(&self) -> FoundTraces {
        FoundTraces(vec![false; self.traces.traces.len()])
    }

    /// Notes which of their traces are in this one.
    #[inline]
    pub fn note(&self, trace: &Trace<'_>, found: &mut FoundTraces) {
        self.traces.note(trace.as_bytes(), &mut found.0);
    }

    /// Whether the name occurs where these traces are. None: it is not looked for.
    pub fn occurs(&self, name: &[u8], found: &FoundTraces) -> Option<bool> {
        let is_found = |trace: &Vec<u8>| {
            let place = self.traces.traces.binary_search(trace);
            place.is_ok_and(|place| found.0[place])
        };
        let traces = self.names.get(name)?.as_ref();
        Some(traces.is_none_or(|traces| traces.iter().any(is_found)))
    }
}

/// The last bytes that decide whether a trace is looked at closely. No trace that is looked for is shorter.
const LAST: usize = MIN_LENGTH;
/// The number of bits in the table of these.
const BITS: usize = 1 << 15;

/// Traces of names that are looked for. A trace is found if one in a library ends in it.
struct WantedTraces {
    /// Ascending.
    traces: Vec<Vec<u8>>,
    /// The last bytes of each and its place in the list, ascending.
    by_last: Vec<([u8; LAST], usize)>,
    /// A bit for the last bytes of each. What ends otherwise, as nearly all does, costs one look.
    bits: Vec<u64>,
}

impl WantedTraces {
    fn of(traces: impl Iterator<Item = Vec<u8>>) -> WantedTraces {
        let mut traces: Vec<Vec<u8>> = traces.collect();
        traces.sort_unstable();
        traces.dedup();
        let places = traces.iter().enumerate();
        let lasts = places.filter_map(|(place, trace)| Some((*trace.last_chunk()?, place)));
        let mut by_last: Vec<_> = lasts.collect();
        by_last.sort_unstable();
        let mut bits = vec![0; BITS / 64];
        for (last, _) in &by_last {
            let bit = bit_of(last);
            bits[bit / 64] |= 1 << (bit % 64);
        }
        WantedTraces {
            traces,
            by_last,
            bits,
        }
    }

    /// Notes which of them are at the end of this one.
    #[inline]
    fn note(&self, trace: &[u8], found: &mut [bool]) {
        if let Some(last) = trace.last_chunk() {
            let bit = bit_of(last);
            if self.bits[bit / 64] & (1 << (bit % 64)) != 0 {
                self.look_closely(trace, last, found);
            }
        }
    }

    #[cold]
    fn look_closely(&self, trace: &[u8], last: &[u8; LAST], found: &mut [bool]) {
        let first = self.by_last.partition_point(|(other, _)| other < last);
        let alike = self.by_last[first..].iter();
        for (_, place) in alike.take_while(|(other, _)| other == last) {
            found[*place] |= trace.ends_with(&self.traces[*place]);
        }
    }
}

/// The bit of the last bytes of a trace.
#[inline]
fn bit_of(last: &[u8; LAST]) -> usize {
    let number = last
        .iter()
        .fold(0, |number, byte| number << 8 | u32::from(*byte));
    // Fibonacci hashing: the upper bits of the product depend on all bytes.
    (number.wrapping_mul(0x9e37_79b1) >> (32 - BITS.ilog2())) as usize
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
}
