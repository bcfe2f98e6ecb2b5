//! The names that processes have searched libraries for, and what was found.
//!
//! A process has some dozens of variables, and most processes have the same ones. To search for one name takes a third of the time that
//! gathering all names takes. Measured for a whole process that is served a hit and has one new variable, searching and gathering:
//! 295 and 385 ms on rusticl, 104 and 200 ms on Intel's CPU runtime, 92 and 172 ms on its GPU driver; without a cache 184 ms on Intel's
//! CPU runtime. So a process searches for what nobody has asked for yet, and leaves the answers to the next.
//!
//! Where programs make names up there is no end of them: each pod of Kubernetes gets some for each service. So after as many searches
//! as take the time of gathering, one process gathers all: see `names`.

use std::collections::BTreeMap;

use super::file_memory::{FileMemory, list_identity};
use super::look::FactBytes;
use crate::framing;
use crate::key::ingredients::sha256;

const MAGIC: &[u8] = b"oclcasked4";
/// So many searches take the time of gathering.
const MAX_SEARCHES: u32 = 4;
/// A process has some dozens of variables.
const MAX_NAMES: usize = 1 << 12;

/// What was asked of a list of libraries.
pub(super) struct AskedNames {
    /// The identity of the libraries.
    libraries: [u8; 32],
    searches: u32,
    /// Whether names occur, by their digests: names of variables are a program's own.
    answers: BTreeMap<[u8; 32], bool>,
}

impl AskedNames {
    /// What processes have asked of the libraries of this identity. What cannot be read is asked again.
    pub fn recall(libraries: &[u8; 32], memory: &dyn FileMemory) -> AskedNames {
        let read = || {
            let file = memory.facts(&identity(libraries)).ok()??;
            let bytes = FactBytes::read(&file).ok()?;
            let (of, searches, answers): ([u8; 32], _, _) = framing::decode(MAGIC, &bytes)?;
            (of == *libraries).then_some((searches, answers))
        };
        let (searches, answers) = read().unwrap_or_default();
        AskedNames {
            libraries: *libraries,
            searches,
            answers,
        }
    }

    /// Whether this name occurs; None: nobody has asked.
    pub fn occurs(&self, name: &[u8]) -> Option<bool> {
        self.answers.get(&sha256(name)).copied()
    }

    /// Whether to gather all names rather than to search once more.
    pub fn are_too_many(&self) -> bool {
        self.searches >= MAX_SEARCHES || self.answers.len() >= MAX_NAMES
    }

    /// Adds the answers of one more search, and leaves all to later processes. Two processes that do so at once leave those of one.
    pub fn add<'n>(
        &mut self,
        answers: impl Iterator<Item = (&'n Vec<u8>, bool)>,
        memory: &dyn FileMemory,
    ) {
        self.searches += 1;
        let answers = answers.map(|(name, occurs)| (sha256(name), occurs));
        self.answers.extend(answers);
        let all = (&self.libraries, self.searches, &self.answers);
        if let Ok(bytes) = framing::encode(MAGIC, &all) {
            memory.remember_facts(&identity(&self.libraries), &bytes);
        }
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
        asked.add(names.iter().zip(occur).take(2), &memory);
        let mut asked = AskedNames::recall(&LIBRARIES, &memory);
        asked.add(names.iter().zip(occur).skip(2), &memory);
        let asked = AskedNames::recall(&LIBRARIES, &memory);
        for (name, occurs) in names.iter().zip(occur) {
            assert_eq!(asked.occurs(name), Some(occurs));
        }
        assert_eq!(asked.occurs(b"LANG"), None);
        let others = AskedNames::recall(&[2; 32], &memory);
        assert_eq!(others.occurs(b"HOME"), None);
    }

    #[test]
    fn after_some_searches_or_many_names_all_are_gathered() {
        let memory = TestMemory::new();
        for number in 0..MAX_SEARCHES {
            let mut asked = AskedNames::recall(&LIBRARIES, &memory);
            assert!(!asked.are_too_many());
            asked.add([(&vec![number as u8], true)].into_iter(), &memory);
        }
        assert!(AskedNames::recall(&LIBRARIES, &memory).are_too_many());
        let names: Vec<Vec<u8>> = (0..MAX_NAMES).map(|name| name.to_string().into()).collect();
        let mut asked = AskedNames::recall(&[2; 32], &memory);
        asked.add(names.iter().map(|name| (name, false)), &memory);
        assert!(AskedNames::recall(&[2; 32], &memory).are_too_many());
    }

    #[test]
    fn a_damaged_file_answers_nothing() {
        let memory = TestMemory::new();
        let mut asked = AskedNames::recall(&LIBRARIES, &memory);
        asked.add([(&b"HOME".to_vec(), false)].into_iter(), &memory);
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
}
