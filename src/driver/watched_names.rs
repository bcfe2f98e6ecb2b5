//! The names of watched functions, to be found among many thousand relocations.

use std::ffi::CStr;

/// The hash of a name in DT_GNU_HASH.
pub fn hash(name: &[u8]) -> u32 {
    let step = |hash: u32, byte: &u8| hash.wrapping_mul(33).wrapping_add(u32::from(*byte));
    name.iter().fold(5381, step)
}

/// Names of symbols by their hashes: another name of equal hash is found as well.
pub enum NameHashes {
    /// A copy of DT_GNU_HASH: Intel's libsvml has 25,000 names, and few are looked up.
    Table {
        bloom: Vec<u64>,
        shift: u32,
        buckets: Vec<u32>,
        /// The hashes of the symbols from the first one in the table on. The last bit is not part of the hash; it ends a chain.
        chains: Vec<u32>,
        first: u32,
    },
    /// In order.
    List(Vec<u32>),
}

impl NameHashes {
    /// The hashes of names.
    pub fn of<'a>(names: impl Iterator<Item = &'a [u8]>) -> NameHashes {
        let mut list: Vec<u32> = names.map(hash).collect();
        list.sort_unstable();
        NameHashes::List(list)
    }

    /// The hashes of all names, without the last bit.
    pub fn hashes(&self) -> impl Iterator<Item = u32> {
        let (NameHashes::Table { chains: hashes, .. } | NameHashes::List(hashes)) = self;
        hashes.iter().map(|hash| hash & !1)
    }

    /// Whether there is a name with this hash.
    pub fn has(&self, hash: u32) -> bool {
        let (bloom, shift, buckets, chains, first) = match self {
            NameHashes::List(list) => return list.binary_search(&hash).is_ok(),
            NameHashes::Table {
                bloom,
                shift,
                buckets,
                chains,
                first,
            } => (bloom, *shift, buckets, chains, *first),
        };
        let bit = |number: u32| 1u64 << (number % u64::BITS);
        let bits = bit(hash) | bit(hash.checked_shr(shift).unwrap_or_default());
        let word = bloom.get((hash / u64::BITS) as usize % bloom.len().max(1));
        if word.is_none_or(|word| word & bits != bits) {
            return false;
        }
        let head = buckets.get(hash as usize % buckets.len().max(1));
        let start = head.and_then(|head| head.checked_sub(first));
        let chain = start.and_then(|start| chains.get(start as usize..));
        for link in chain.unwrap_or_default() {
            if link | 1 == hash | 1 {
                return true;
            }
            if link & 1 != 0 {
                break;
            }
        }
        false
    }
}

/// The names of watched functions, to be found among many thousand relocations.
pub struct WatchedNames {
    names: Vec<NameHashes>,
    /// A bit for the lower bits of each hash, without the last. It rules out most names.
    filter: Vec<u64>,
}

const FILTER_BITS: u32 = 1 << 18;

impl WatchedNames {
    /// The names that are in one of these.
    pub fn of(names: Vec<NameHashes>) -> WatchedNames {
        let mut filter = vec![0; (FILTER_BITS / u64::BITS) as usize];
        for hash in names.iter().flat_map(NameHashes::hashes) {
            let (word, bit) = Self::place(hash);
            filter[word] |= bit;
        }
        WatchedNames { names, filter }
    }

    fn place(hash: u32) -> (usize, u64) {
        let bit = hash >> 1 & (FILTER_BITS - 1);
        ((bit / u64::BITS) as usize, 1 << (bit % u64::BITS))
    }

    /// Whether there is a name with this hash, apart from the last bit.
    #[inline]
    pub fn may_have(&self, hash: u32) -> bool {
        let (word, bit) = Self::place(hash);
        self.filter[word] & bit != 0 && (self.has_hash(hash & !1) || self.has_hash(hash | 1))
    }

    fn has_hash(&self, hash: u32) -> bool {
        self.names.iter().any(|names| names.has(hash))
    }

    /// Whether this is one of the names.
    pub fn has(&self, name: &CStr) -> bool {
        let hash = hash(name.to_bytes());
        let (word, bit) = Self::place(hash);
        self.filter[word] & bit != 0 && self.has_hash(hash)
    }
}
