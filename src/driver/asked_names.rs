//! The names that processes have searched libraries for, and what was found.
//!
//! A process has some dozens of variables, and most processes have the same ones. So a process searches for what nobody has asked for
//! yet, and leaves the answers to the next. Measured for a whole process that is served a hit and has one new variable, searching and
//! gathering all names: 295 and 385 ms on rusticl, 104 and 200 ms on Intel's CPU runtime, 92 and 172 ms on its GPU driver. Without a
//! cache Intel's CPU runtime takes 184 ms, so a hit that gathers is slower than the driver.
//!
//! Where programs make names up there is no end of them: each pod of Kubernetes gets some for each service. Each new name delays a first
//! hit. So a baker gathers all names once, after the first process has ended: see `left_names`. Where no baker may run, the process after
//! [`MAX_SEARCHES`] searches gathers all: see `names`. The searches before it have taken about as long in sum, for nothing. Where only few
//! kinds of processes use a cache, there are never so many searches.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::file_memory::{FileMemory, list_identity};
use super::look::FactBytes;
use super::scanned_library::ScannedLibrary;
use crate::file_fingerprint::FileFingerprint;
use crate::framing;
use crate::host;
use crate::key::ingredients::sha256;

/// The version of this file's format. That of searching and gathering is in the identity of the libraries: see `names::MAGIC`.
pub(super) const MAGIC: &[u8] = b"oclcasked6";
/// How many searches are made, the first of them while the driver compiles. Three take the time of gathering.
pub(super) const MAX_SEARCHES: u32 = 4;
/// More names are gathered rather than searched for: of many, most of what is in a library must be looked at closely.
pub(super) const MAX_NAMES: usize = 1 << 10;

/// Where a library was when it was searched, and in which state: the file there now may be anybody's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    identity: Vec<u8>,
    path: Vec<u8>,
    state: FileFingerprint,
}

/// The places of libraries. None of them, if one is not known well enough to be found by another process.
pub(super) fn places(libraries: &[ScannedLibrary], memory: &dyn FileMemory) -> Vec<Place> {
    let place = |library: &ScannedLibrary| {
        let state = library
            .path
            .is_absolute()
            .then(|| memory.state(&library.path));
        Some(Place {
            identity: library.identity.clone(),
            path: library.path.as_os_str().as_bytes().to_vec(),
            state: state??,
        })
    };
    let places: Option<Vec<Place>> = libraries.iter().map(place).collect();
    places.unwrap_or_default()
}

impl Place {
    /// The library, if its file is there as it was.
    pub fn library(&self, memory: &dyn FileMemory) -> Option<ScannedLibrary> {
        let path = PathBuf::from(OsStr::from_bytes(&self.path));
        (memory.state(&path) == Some(self.state)).then(|| ScannedLibrary {
            identity: self.identity.clone(),
            path,
        })
    }
}

/// What was asked of a list of libraries, as it is in a file.
#[derive(Serialize, Deserialize)]
pub(super) struct AskedNames {
    /// The identity of the libraries.
    libraries: [u8; 32],
    searches: u32,
    /// Whether names occur, by their digests: names of variables are a program's own.
    answers: BTreeMap<[u8; 32], bool>,
    /// The host on which they were searched last.
    host: Vec<u8>,
    /// Where they are on that host; none if nobody needs to gather the names.
    places: Vec<Place>,
}

impl AskedNames {
    /// What processes have asked of the libraries of this identity. What cannot be read is asked again.
    pub fn recall(libraries: &[u8; 32], memory: &dyn FileMemory) -> AskedNames {
        let read = || {
            let file = memory.facts(&identity(libraries)).ok()??;
            let asked = AskedNames::read(&FactBytes::read(&file).ok()?)?;
            (asked.libraries == *libraries).then_some(asked)
        };
        read().unwrap_or_else(|| AskedNames {
            libraries: *libraries,
            searches: 0,
            answers: BTreeMap::new(),
            host: Vec::new(),
            places: Vec::new(),
        })
    }

    /// What a file has. None: it is damaged, or another one.
    pub fn read(file: &[u8]) -> Option<AskedNames> {
        framing::decode(MAGIC, file)
    }

    /// The identity of the libraries, and where they are on this host. Paths of other hosts are left alone: a path may lead to a server
    /// that this one would wait for.
    pub fn libraries(&self) -> (&[u8; 32], &[Place]) {
        let is_here = self.host == host::of_files();
        (&self.libraries, if is_here { &self.places } else { &[] })
    }

    /// Whether the names in the libraries at these places are to be gathered.
    pub fn are_left_at(&self, places: &[Place]) -> bool {
        !places.is_empty() && self.places == places
    }

    /// Notes that nobody needs to gather the names in these libraries, until there is another search.
    pub fn put_off(libraries: &[u8; 32], memory: &dyn FileMemory) {
        let mut asked = AskedNames::recall(libraries, memory);
        asked.places.clear();
        asked.keep(memory);
    }

    fn keep(&self, memory: &dyn FileMemory) {
        if let Ok(bytes) = framing::encode(MAGIC, self) {
            memory.remember_facts(&identity(&self.libraries), &bytes);
        }
    }

    /// Whether this name occurs; None: nobody has asked.
    pub fn occurs(&self, name: &[u8]) -> Option<bool> {
        self.answers.get(&sha256(name)).copied()
    }

    /// Whether to gather all names rather than to search once more, for so many names.
    pub fn are_too_many_with(&self, new: usize) -> bool {
        self.searches >= MAX_SEARCHES || self.answers.len() + new > MAX_NAMES
    }

    /// Adds the answers of one more search in the libraries at these places, and leaves all to later processes, with what others have
    /// left meanwhile. Of two processes that write at once, one leaves its own.
    pub fn add<'n>(
        &mut self,
        answers: impl Iterator<Item = (&'n Vec<u8>, bool)>,
        places: Vec<Place>,
        memory: &dyn FileMemory,
    ) {
        let others = AskedNames::recall(&self.libraries, memory);
        let answers: Vec<_> = answers
            .map(|(name, occurs)| (sha256(name), occurs))
            .collect();
        // Processes that begin together, with the same names, have made one search.
        let is_new = answers
            .iter()
            .any(|(name, _)| !others.answers.contains_key(name));
        self.searches = self.searches.max(others.searches);
        self.searches = self.searches.saturating_add(u32::from(is_new));
        self.answers.extend(others.answers);
        self.answers.extend(answers);
        self.host = host::of_files().to_vec();
        self.places = places;
        self.keep(memory);
    }
}

/// The identity of the file of what was asked of these libraries.
fn identity(libraries: &[u8; 32]) -> [u8; 32] {
    list_identity(MAGIC, [&libraries[..]].into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::names::tests::TestMemory;

    const LIBRARIES: [u8; 32] = [1; 32];

    #[test]
    fn what_one_process_has_searched_for_the_next_one_knows() {
        let memory = TestMemory::new();
        let names = ["HOME", "PATH", "USER"].map(|name| name.as_bytes().to_vec());
        let occur = [true, false, true];
        let mut asked = AskedNames::recall(&LIBRARIES, &memory);
        assert_eq!(asked.occurs(b"HOME"), None);
        asked.add(names.iter().zip(occur).take(2), Vec::new(), &memory);
        let mut asked = AskedNames::recall(&LIBRARIES, &memory);
        asked.add(names.iter().zip(occur).skip(2), Vec::new(), &memory);
        let asked = AskedNames::recall(&LIBRARIES, &memory);
        for (name, occurs) in names.iter().zip(occur) {
            assert_eq!(asked.occurs(name), Some(occurs));
        }
        assert_eq!(asked.occurs(b"LANG"), None);
        let others = AskedNames::recall(&[2; 32], &memory);
        assert_eq!(others.occurs(b"HOME"), None);
    }

    #[test]
    fn what_another_process_leaves_during_a_search_stays() {
        let memory = TestMemory::new();
        let recall = || AskedNames::recall(&LIBRARIES, &memory);
        let [mut slow, mut fast] = [recall(), recall()];
        fast.add([(&b"HOME".to_vec(), true)].into_iter(), Vec::new(), &memory);
        slow.add(
            [(&b"PATH".to_vec(), false)].into_iter(),
            Vec::new(),
            &memory,
        );
        let asked = recall();
        assert_eq!(asked.occurs(b"HOME"), Some(true));
        assert_eq!(asked.occurs(b"PATH"), Some(false));
        assert_eq!(asked.searches, 2);
    }

    #[test]
    fn processes_that_begin_together_with_the_same_names_make_one_search() {
        let memory = TestMemory::new();
        let answer = (&b"HOME".to_vec(), true);
        let asked: [_; 4] = std::array::from_fn(|_| AskedNames::recall(&LIBRARIES, &memory));
        for mut asked in asked {
            asked.add([answer].into_iter(), Vec::new(), &memory);
        }
        assert_eq!(AskedNames::recall(&LIBRARIES, &memory).searches, 1);
    }

    #[test]
    fn after_some_searches_or_for_many_names_all_are_gathered() {
        let memory = TestMemory::new();
        for number in 0..MAX_SEARCHES {
            let mut asked = AskedNames::recall(&LIBRARIES, &memory);
            assert!(!asked.are_too_many_with(1));
            asked.add(
                [(&vec![number as u8], true)].into_iter(),
                Vec::new(),
                &memory,
            );
        }
        assert!(AskedNames::recall(&LIBRARIES, &memory).are_too_many_with(1));
        let names: Vec<Vec<u8>> = (1..MAX_NAMES).map(|name| name.to_string().into()).collect();
        let mut asked = AskedNames::recall(&[2; 32], &memory);
        assert!(!asked.are_too_many_with(MAX_NAMES));
        assert!(asked.are_too_many_with(MAX_NAMES + 1));
        asked.add(names.iter().map(|name| (name, false)), Vec::new(), &memory);
        let asked = AskedNames::recall(&[2; 32], &memory);
        assert_eq!(
            [1, 2].map(|new| asked.are_too_many_with(new)),
            [false, true]
        );
    }

    #[test]
    fn a_damaged_file_answers_nothing() {
        let memory = TestMemory::new();
        let mut asked = AskedNames::recall(&LIBRARIES, &memory);
        asked.add(
            [(&b"HOME".to_vec(), false)].into_iter(),
            Vec::new(),
            &memory,
        );
        let [file] = &memory.files()[..] else {
            panic!("one file");
        };
        let bytes = std::fs::read(file).expect("read");
        let occurs = || AskedNames::recall(&LIBRARIES, &memory).occurs(b"HOME");
        assert_eq!(occurs(), Some(false));
        for index in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[index] ^= 0x10;
            for damaged in [&flipped[..], &bytes[..index]] {
                std::fs::write(file, damaged).expect("written");
                assert_eq!(occurs(), None, "byte {index}");
            }
        }
    }

    #[test]
    fn places_on_another_host_are_not_looked_at_here() {
        let memory = TestMemory::new();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("library");
        std::fs::write(&path, "").expect("written");
        let library = ScannedLibrary {
            identity: vec![1],
            path,
        };
        let answer = (&b"HOME".to_vec(), true);
        let mut asked = AskedNames::recall(&LIBRARIES, &memory);
        asked.add([answer].into_iter(), places(&[library], &memory), &memory);
        assert_eq!(asked.libraries().1.len(), 1);
        asked.host = b"another".to_vec();
        asked.keep(&memory);
        let asked = AskedNames::recall(&LIBRARIES, &memory);
        assert!(asked.libraries().1.is_empty());
        assert_eq!(
            asked.occurs(b"HOME"),
            Some(true),
            "they have the same names"
        );
    }
}
