//! The names that the libraries of a driver look for, to be compared with what other objects of the process have.

/// The hashes of names in a file of facts: for each value of the upper bits the number of hashes before it, then all hashes in order.
/// Little-endian, four bytes each. The last bit of a hash is not in it, since DT_GNU_HASH does not have it either.
///
/// PoCL's libraries look for 21,000 names, those of rusticl for 29,000.
#[derive(Debug, PartialEq, Eq)]
pub struct ImportedNames(Vec<u8>);

const BUCKET_BITS: u32 = 12;
const BUCKETS: usize = 1 << BUCKET_BITS;
const NUMBER: usize = size_of::<u32>();

impl ImportedNames {
    /// The names of these hashes.
    pub fn of(hashes: impl Iterator<Item = u32>) -> ImportedNames {
        let mut hashes: Vec<u32> = hashes.map(|hash| hash & !1).collect();
        hashes.sort_unstable();
        hashes.dedup();
        let start = |bucket: usize| hashes.partition_point(|hash| Self::bucket(*hash) < bucket);
        let starts = (0..=BUCKETS).map(|bucket| start(bucket) as u32);
        let numbers = starts.chain(hashes.iter().copied());
        ImportedNames(numbers.flat_map(u32::to_le_bytes).collect())
    }

    /// The bytes of a file. Any bytes do no harm.
    pub fn from_bytes(bytes: &[u8]) -> ImportedNames {
        ImportedNames(bytes.to_vec())
    }

    /// What [`ImportedNames::from_bytes`] wants.
    pub fn bytes(&self) -> &[u8] {
        &self.0
    }

    fn bucket(hash: u32) -> usize {
        (hash >> (u32::BITS - BUCKET_BITS)) as usize
    }

    fn number(&self, at: usize) -> Option<u32> {
        let bytes = self.0.get(at * NUMBER..)?.first_chunk()?;
        Some(u32::from_le_bytes(*bytes))
    }

    /// Whether there is a name with this hash, apart from the last bit.
    #[inline]
    pub fn may_have(&self, hash: u32) -> bool {
        let bucket = Self::bucket(hash);
        let (Some(start), Some(end)) = (self.number(bucket), self.number(bucket + 1)) else {
            return false;
        };
        let hashes = (start..end).map(|at| self.number(BUCKETS + 1 + at as usize));
        hashes
            .take_while(Option::is_some)
            .any(|known| known == Some(hash & !1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hashes_are_found_and_others_are_not() {
        let hashes = [0, 5, 0x000f_ffff, 0x0010_0000, 0x8000_0001, u32::MAX];
        let names = ImportedNames::of(hashes.into_iter());
        let again = ImportedNames::from_bytes(names.bytes());
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
        for end in [0, 3, 4, 4 * BUCKETS, names.bytes().len() - 1] {
            let cut = ImportedNames::from_bytes(&names.bytes()[..end]);
            assert!(!cut.may_have(0x9abc_def0));
        }
        let wrong = ImportedNames::from_bytes(&vec![0xff; 4 * BUCKETS]);
        assert!(!wrong.may_have(0x1234_5678));
    }
}
