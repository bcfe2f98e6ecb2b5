//! The names that the libraries of a driver look for, to be compared with what other objects of the process have.

use std::ops::Range;

use super::look::FactBytes;

/// The hashes of names in a file of facts: a bit for each value of the lower bits, for each value of the upper bits the number of
/// hashes before it, then all hashes in order. Numbers are little-endian and have four bytes. The last bit of a hash is not in it, since
/// DT_GNU_HASH does not have it either.
///
/// PoCL's libraries look for 21,000 names, those of rusticl for 29,000. Other objects have 17,000 in a program with PyOpenCL: the bits
/// rule out nine of ten at once.
#[derive(Debug)]
pub struct ImportedNames {
    file: FactBytes,
    /// Where they are in it.
    place: Range<usize>,
}

const FILTER_BITS: u32 = 1 << 18;
const FILTER: usize = (FILTER_BITS / u8::BITS) as usize;
/// With 29,000 names, seven hashes have the same upper bits.
const BUCKET_BITS: u32 = 12;
const BUCKETS: usize = 1 << BUCKET_BITS;
const NUMBER: usize = size_of::<u32>();

impl PartialEq for ImportedNames {
    fn eq(&self, other: &ImportedNames) -> bool {
        self.bytes() == other.bytes()
    }
}

impl ImportedNames {
    /// The names of these hashes.
    pub fn of(hashes: impl Iterator<Item = u32>) -> ImportedNames {
        let mut hashes: Vec<u32> = hashes.map(|hash| hash & !1).collect();
        hashes.sort_unstable();
        hashes.dedup();
        let start = |bucket: usize| hashes.partition_point(|hash| Self::bucket(*hash) < bucket);
        let starts = (0..=BUCKETS).map(|bucket| start(bucket) as u32);
        let numbers = starts.chain(hashes.iter().copied());
        let mut file = vec![0; FILTER];
        for hash in &hashes {
            let (at, bit) = Self::filter(*hash);
            file[at] |= bit;
        }
        file.extend(numbers.flat_map(u32::to_le_bytes));
        let place = 0..file.len();
        ImportedNames {
            file: file.into(),
            place,
        }
    }

    /// Those at a place in a file. Any bytes do no harm. The file is kept, since a copy takes as long as all look-ups.
    pub fn in_file(file: FactBytes, place: Range<usize>) -> ImportedNames {
        ImportedNames { file, place }
    }

    /// What [`ImportedNames::in_file`] wants.
    pub fn bytes(&self) -> &[u8] {
        self.file.get(self.place.clone()).unwrap_or_default()
    }

    fn bucket(hash: u32) -> usize {
        (hash >> (u32::BITS - BUCKET_BITS)) as usize
    }

    /// The byte and the bit for the lower bits of a hash.
    fn filter(hash: u32) -> (usize, u8) {
        let number = hash >> 1 & (FILTER_BITS - 1);
        ((number / u8::BITS) as usize, 1 << (number % u8::BITS))
    }

    /// Whether there is a name with this hash, apart from the last bit.
    #[inline]
    pub fn may_have(&self, hash: u32) -> bool {
        let (at, bit) = Self::filter(hash);
        let may_be = self.bytes().get(at).is_some_and(|bits| bits & bit != 0);
        may_be
            && self.hashes(Self::bucket(hash)).is_some_and(|hashes| {
                let wanted = (hash & !1).to_le_bytes();
                hashes.chunks_exact(NUMBER).any(|known| *known == wanted)
            })
    }

    /// The hashes with these upper bits.
    fn hashes(&self, bucket: usize) -> Option<&[u8]> {
        const FIRST: usize = (BUCKETS + 1) * NUMBER;
        let bytes = self.bytes().get(FILTER..)?;
        let around = bytes
            .get(bucket * NUMBER..)?
            .first_chunk::<{ 2 * NUMBER }>()?;
        let (start, end) = around.split_first_chunk::<NUMBER>()?;
        let place = |number: &[u8; NUMBER]| FIRST + u32::from_le_bytes(*number) as usize * NUMBER;
        bytes.get(place(start)..place(end.first_chunk()?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_found_and_others_are_not() {
        let hashes = [0, 5, 0x000f_ffff, 0x0010_0000, 0x8000_0001, u32::MAX];
        let names = ImportedNames::of(hashes.into_iter());
        let file = [b"before", names.bytes(), b"after"].concat();
        let end = file.len() - b"after".len();
        let again = ImportedNames::in_file(file.into(), b"before".len()..end);
        for hash in hashes {
            assert!(again.may_have(hash) && again.may_have(hash ^ 1), "{hash:x}");
        }
        for hash in [2, 6, 0x000f_fffd, 0x0010_0002, 0x8000_0003, u32::MAX - 2] {
            assert!(!again.may_have(hash), "{hash:x}");
        }
    }

    #[test]
    fn damaged_bytes_have_no_names_or_wrong_ones() {
        let names = ImportedNames::of([0x1234_5678, 0x9abc_def0].into_iter());
        for end in [0, 3, FILTER, FILTER + 4 * BUCKETS, names.bytes().len() - 1] {
            let cut = ImportedNames::in_file(names.bytes().to_vec().into(), 0..end);
            assert!(!cut.may_have(0x9abc_def0));
        }
        let length = FILTER + 4 * BUCKETS;
        for place in [0..length, 0..2 * length, 2 * length..usize::MAX] {
            let wrong = ImportedNames::in_file(vec![0xff; length].into(), place);
            assert!(!wrong.may_have(0x1234_5678));
        }
    }
}
