//! What earlier processes have found, by digests: which names the driver's libraries look for an object has, and which libraries answer
//! instead of the usual ones in a state of the slots.
//!
//! To compare the names of a program's objects with those that the driver's libraries look for takes 0.1 to 1 ms in each first key, for
//! the file of these names alone has 115 to 150 KB. To ask the dynamic linker for the usual answer of each slot takes 0.1 to 0.4 ms.

use std::collections::BTreeMap;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::watched_slots::ListIdentity;
use crate::driver::file_memory::{FileMemory, list_identity};
use crate::driver::look::FactBytes;
use crate::framing;

/// XXH3 of 128 bits, little-endian.
pub(super) type Digest = [u8; 16];

/// Programs with PyOpenCL have 60 objects. If there are more, those of the last process are kept.
const MAX: usize = 2048;

/// What is remembered of one kind for the libraries of a driver.
pub(super) struct Remembered<'a, V> {
    magic: &'static [u8],
    /// None: nothing is remembered of these libraries.
    list: Option<ListIdentity>,
    /// Whether more is remembered.
    may_add: bool,
    known: BTreeMap<Digest, V>,
    memory: &'a dyn FileMemory,
}

impl<'a, V: Clone + Serialize + DeserializeOwned> Remembered<'a, V> {
    /// What is remembered for the libraries of this identity.
    ///
    /// `may_add`: whether the program has loaded what it begins with. PoCL loads each kernel as a library, and a hit must not write for it.
    pub fn of(
        magic: &'static [u8],
        list: Option<ListIdentity>,
        may_add: bool,
        memory: &'a dyn FileMemory,
    ) -> Remembered<'a, V> {
        let read = || {
            let list = list?;
            decode(magic, &memory.part(&identity(magic, &list)).ok()??, &list)
        };
        Remembered {
            magic,
            list,
            may_add,
            known: read().unwrap_or_default(),
            memory,
        }
    }

    /// What is known of this one.
    pub fn get(&self, digest: &Digest) -> Option<&V> {
        self.known.get(digest)
    }

    /// Remembers more.
    pub fn add(self, new: BTreeMap<Digest, V>) {
        let Some(list) = self.list.filter(|_| self.may_add && !new.is_empty()) else {
            return;
        };
        let identity = identity(self.magic, &list);
        // The snapshot of this process may have less than others have left.
        let of_others = || {
            let file = self.memory.facts(&identity).ok()??;
            decode(self.magic, &FactBytes::read(&file).ok()?, &list)
        };
        let mut all: BTreeMap<Digest, V> = of_others().unwrap_or_default();
        if new.keys().all(|digest| all.contains_key(digest)) {
            return;
        }
        all.extend(self.known);
        all.extend(new.clone());
        if all.len() > MAX {
            all = new;
        }
        if let Ok(bytes) = framing::encode(self.magic, &(list, all)) {
            self.memory.remember_part(&identity, &bytes);
        }
    }
}

/// The identity of a file.
fn identity(magic: &[u8], list: &ListIdentity) -> [u8; 32] {
    list_identity(magic, [&list[..]].into_iter())
}

/// What a file has. None: it is damaged, or of other libraries.
fn decode<V: DeserializeOwned>(
    magic: &[u8],
    file: &[u8],
    list: &ListIdentity,
) -> Option<BTreeMap<Digest, V>> {
    let (of, found): (ListIdentity, _) = framing::decode(magic, file)?;
    (of == *list).then_some(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::names::tests::TestMemory;

    const LIST: Option<ListIdentity> = Some([1; 32]);
    const MAGIC: &[u8] = b"oclcache test 1";

    fn of<'a>(memory: &'a TestMemory, list: Option<ListIdentity>) -> Remembered<'a, u32> {
        Remembered::of(MAGIC, list, true, memory)
    }

    #[test]
    fn what_one_process_has_found_the_next_one_knows() {
        let memory = TestMemory::new();
        let [one, other, third] = [[1; 16], [2; 16], [3; 16]];
        // Both begin before one has ended.
        let (first, second) = (of(&memory, LIST), of(&memory, LIST));
        assert_eq!(first.get(&one), None);
        first.add([(other, 2), (one, 1)].into());
        second.add([(third, 3)].into());
        let known = of(&memory, LIST);
        let all = [&one, &other, &third, &[4; 16]].map(|one| known.get(one).copied());
        assert_eq!(all, [Some(1), Some(2), Some(3), None]);
        assert_eq!(of(&memory, Some([2; 32])).get(&one), None);
        let of_another_kind = Remembered::<u32>::of(b"oclcache test 2", LIST, true, &memory);
        assert_eq!(of_another_kind.get(&one), None);
    }

    #[test]
    fn nothing_is_kept_of_unknown_libraries_or_later_objects_and_not_too_much_of_others() {
        let memory = TestMemory::new();
        of(&memory, None).add([([1; 16], 1)].into());
        Remembered::of(MAGIC, LIST, false, &memory).add([([1; 16], 1)].into());
        assert!(memory.files().is_empty());
        let digest = |number: usize| {
            let mut digest = [0; 16];
            digest[..8].copy_from_slice(&(number as u64).to_le_bytes());
            digest
        };
        of(&memory, LIST).add((1..MAX).map(|number| (digest(number), 0)).collect());
        of(&memory, LIST).add([(digest(0), 0)].into());
        assert!(of(&memory, LIST).get(&digest(7)).is_some());
        of(&memory, LIST).add([(digest(MAX), 0)].into());
        let known = of(&memory, LIST);
        assert!(known.get(&digest(MAX)).is_some() && known.get(&digest(7)).is_none());
    }

    #[test]
    fn a_damaged_file_says_nothing() {
        let memory = TestMemory::new();
        of(&memory, LIST).add([([1; 16], 1)].into());
        let [file] = memory.files().try_into().expect("one file");
        let bytes = std::fs::read(&file).expect("read");
        for at in 0..bytes.len() {
            let mut flipped = bytes.clone();
            flipped[at] ^= 0x10;
            for damaged in [&flipped[..], &bytes[..at]] {
                std::fs::write(&file, damaged).expect("written");
                assert!(of(&memory, LIST).known.is_empty(), "byte {at}");
            }
        }
    }
}
