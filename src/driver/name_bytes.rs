//! Tells which bytes of a block may be in a name of a variable: most of the work of looking for names in the 150 MB of a driver.

#![allow(unsafe_code)] // instructions that not every processor has

/// How many bytes are looked at together.
pub(super) const LANES: usize = 64;

pub(super) type Block = [u8; LANES];

/// Whether a name of a variable may have this byte.
#[inline]
pub(super) const fn is_in_a_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Looks at the bytes of a block together. A result has a bit for each byte, the lowest for the first.
pub(super) trait Lanes: Copy {
    /// Those that may be in a name.
    fn of_names(self, block: &Block) -> u64;

    /// Those that are this byte.
    fn equal(self, block: &Block, byte: u8) -> u64;
}

/// With instructions that every processor has.
#[derive(Clone, Copy)]
pub(super) struct Plain;

impl Lanes for Plain {
    #[inline(always)]
    fn of_names(self, block: &Block) -> u64 {
        bits(block.map(is_in_a_name))
    }

    #[inline(always)]
    fn equal(self, block: &Block, byte: u8) -> u64 {
        bits(block.map(|other| other == byte))
    }
}

#[inline(always)]
fn bits(flags: [bool; LANES]) -> u64 {
    let flags = flags.iter().rev();
    flags.fold(0, |bits, flag| bits << 1 | u64::from(*flag))
}

/// The first bytes of a text, filled with zeros.
#[inline(always)]
pub(super) fn block_of(text: &[u8]) -> Block {
    match text.first_chunk() {
        Some(block) => *block,
        None => {
            let mut block = [0; LANES];
            block[..text.len()].copy_from_slice(text);
            block
        }
    }
}

#[cfg(target_arch = "x86_64")]
pub(super) use wide::Wide;

#[cfg(target_arch = "x86_64")]
mod wide {
    use std::arch::x86_64::{
        __m256i, _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_min_epu8, _mm256_movemask_epi8,
        _mm256_or_si256, _mm256_set1_epi8, _mm256_sub_epi8,
    };

    use super::{Block, LANES, Lanes};

    /// With AVX2, which this processor has.
    #[derive(Clone, Copy)]
    pub struct Wide(());

    impl Wide {
        /// None if the processor has no such instructions.
        pub fn detect() -> Option<Wide> {
            is_x86_feature_detected!("avx2").then_some(Wide(()))
        }
    }

    impl Lanes for Wide {
        #[inline(always)]
        fn of_names(self, block: &Block) -> u64 {
            // SAFETY: there is a `Wide` only if the processor has AVX2.
            unsafe { bits(block, |half| are_in_names(half)) }
        }

        #[inline(always)]
        fn equal(self, block: &Block, byte: u8) -> u64 {
            // SAFETY: as above.
            unsafe { bits(block, |half| _mm256_cmpeq_epi8(half, all(byte))) }
        }
    }

    /// `flags`: sets all bits of each byte that is meant.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn bits(block: &Block, flags: impl Fn(__m256i) -> __m256i) -> u64 {
        const WIDTH: usize = LANES / 2;
        let (halves, _) = block.as_chunks::<WIDTH>();
        let half_of = |half: &[u8; WIDTH]| {
            // SAFETY: it reads 32 bytes, which are there, from any address.
            let half = unsafe { _mm256_loadu_si256(half.as_ptr().cast()) };
            u64::from(_mm256_movemask_epi8(flags(half)) as u32)
        };
        half_of(&halves[0]) | half_of(&halves[1]) << WIDTH
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn all(byte: u8) -> __m256i {
        _mm256_set1_epi8(byte as i8)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn are_in_names(bytes: __m256i) -> __m256i {
        // This bit makes a capital its small letter, and nothing else a letter.
        let lower = _mm256_or_si256(bytes, all(b'a' ^ b'A'));
        let letters = is_within(lower, b'a', 25);
        let digits = is_within(bytes, b'0', 9);
        let underscores = _mm256_cmpeq_epi8(bytes, all(b'_'));
        _mm256_or_si256(_mm256_or_si256(letters, digits), underscores)
    }

    /// Whether bytes are from `first` to that one and `more`, by differences without sign.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn is_within(bytes: __m256i, first: u8, more: u8) -> __m256i {
        let beyond = _mm256_sub_epi8(bytes, all(first));
        _mm256_cmpeq_epi8(_mm256_min_epu8(beyond, all(more)), beyond)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn says_of_each_byte_what_is_said_of_it_alone(lanes: impl Lanes) {
        for byte in 0..=u8::MAX {
            for lane in 0..LANES {
                let mut block = [b'-'; LANES];
                block[lane] = byte;
                let expected = u64::from(is_in_a_name(byte)) << lane;
                assert_eq!(lanes.of_names(&block), expected, "{byte} at {lane}");
                let dash = if byte == b'-' { !0 } else { 1 << lane };
                assert_eq!(lanes.equal(&block, byte), dash, "{byte} at {lane}");
            }
        }
    }

    #[test]
    fn each_byte_is_told() {
        says_of_each_byte_what_is_said_of_it_alone(Plain);
        #[cfg(target_arch = "x86_64")]
        if let Some(wide) = Wide::detect() {
            says_of_each_byte_what_is_said_of_it_alone(wide);
        }
    }
}
