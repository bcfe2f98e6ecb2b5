//! The names that processes have searched libraries for, and what was found.
//!
//! A process has some dozens of variables, and most processes have the same ones. So a process searches for what nobody has asked for
//! yet, and leaves the answers to the next. Measured for a whole process that is served a hit and has one new variable, searching and
//! gathering all names: 295 and 385 ms on rusticl, 104 and 200 ms on Intel's CPU runtime, 92 and 172 ms on its GPU driver. Without a
//! cache Intel's CPU runtime takes 184 ms, so a hit that gathers is slower than the driver.
//!
//! Where programs make names up there is no end of them: each pod of Kubernetes gets some for each service. And each new name is in the
//! way of a first hit. So all names are gathered once, by a process that nobody waits for: see `left_names`. Where none may run, a
//! process gathers in the end: see `names`. Those before it have taken about as long for their searches as it takes, which was all for
//! nothing; where few kinds of processes use a cache, nobody gathers there.

use std::collections::BTreeMap;

use super::file_memory::{FileMemory, list_identity};
use super::look::FactBytes;
use super::names;
use super::scanned_library::ScannedLibrary;
use crate::framing;
use crate::key::ingredients::sha256;

/// The version of this file's format. That of searching and gathering is in the identity of the libraries: see `names::MAGIC`.
pub(super) const MAGIC: &[u8] = b"oclcasked5";
/// How many searches are made, the first of them while the driver compiles. Three take the time of gathering.
pub(super) const MAX_SEARCHES: u32 = 4;
/// More names are gathered rather than searched for: of many, most of what is in a library must be looked at closely.
const MAX_NAMES: usize = 1 << 10;

/// What a file has: the identity of the libraries, the number of searches, the answers, and where the libraries were.
type Kept = ([u8; 32], u32, BTreeMap<[u8; 32], bool>, Vec<ScannedLibrary>);

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
            let (of, searches, answers, _): Kept = framing::decode(MAGIC, &bytes)?;
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

    /// Whether to gather all names rather than to search once more, for so many names.
    pub fn are_too_many_with(&self, new: usize) -> bool {
        self.searches >= MAX_SEARCHES || self.answers.len() + new > MAX_NAMES
    }

    /// Adds the answers of one more search in these libraries, and leaves all to later processes, with what others have left meanwhile.
    /// Of two processes that write at once, one leaves its own.
    pub fn add<'n>(
        &mut self,
        answers: impl Iterator<Item = (&'n Vec<u8>, bool)>,
        searched: &[ScannedLibrary],
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
        let all = (&self.libraries, self.searches, &self.answers, searched);
        if let Ok(bytes) = framing::encode(MAGIC, &all) {
            memory.remember_facts(&identity(&self.libraries), &bytes);
        }
    }
}

/// The libraries of a file and their identity. None: it is damaged, or another one.
pub(super) fn searched(file: &[u8]) -> Option<(Vec<ScannedLibrary>, [u8; 32])> {
    let (of, _, _, libraries): Kept = framing::decode(MAGIC, file)?;
    (names::identity(&libraries) == of).then_some((libraries, of))
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
        asked.add(names.iter().zip(occur).take(2), &[], &memory);
        let mut asked = AskedNames::recall(&LIBRARIES, &memory);
        asked.add(names.iter().zip(occur).skip(2), &[], &memory);
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
        fast.add([(&b"HOME".to_vec(), true)].into_iter(), &[], &memory);
        slow.add([(&b"PATH".to_vec(), false)].into_iter(), &[], &memory);
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
            asked.add([answer].into_iter(), &[], &memory);
        }
        assert_eq!(AskedNames::recall(&LIBRARIES, &memory).searches, 1);
    }

    #[test]
    fn after_some_searches_or_for_many_names_all_are_gathered() {
        let memory = TestMemory::new();
        for number in 0..MAX_SEARCHES {
            let mut asked = AskedNames::recall(&LIBRARIES, &memory);
            assert!(!asked.are_too_many_with(1));
            asked.add([(&vec![number as u8], true)].into_iter(), &[], &memory);
        }
        assert!(AskedNames::recall(&LIBRARIES, &memory).are_too_many_with(1));
        let names: Vec<Vec<u8>> = (1..MAX_NAMES).map(|name| name.to_string().into()).collect();
        let mut asked = AskedNames::recall(&[2; 32], &memory);
        assert!(!asked.are_too_many_with(MAX_NAMES));
        assert!(asked.are_too_many_with(MAX_NAMES + 1));
        asked.add(names.iter().map(|name| (name, false)), &[], &memory);
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
        asked.add([(&b"HOME".to_vec(), false)].into_iter(), &[], &memory);
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
