//! Finds the ends of texts that could be names in the data of libraries.

#![allow(unsafe_code)] // calls what was compiled for this processor

use std::io;

use super::elf::Chunk;
#[cfg(target_arch = "x86_64")]
use super::name_bytes::Wide;
use super::name_bytes::{LANES, Lanes, Plain, block_of};

/// Shorter names occur in any data or code by chance, so each of them counts.
pub(super) const MIN_LENGTH: usize = 4;
/// Longer names are compared by this many of their last bytes.
pub(super) const LENGTH: usize = 24;

/// How much of a chunk must lie before its new bytes: a name, and the byte behind it if what follows that is new.
pub(super) const OVERLAP: usize = LENGTH + 1;

/// Calls the function with the place behind each name of at least [`MIN_LENGTH`] bytes in a chunk of data. A NUL ends a name, and so do
/// `=` and a NUL: code that looks through the whole environment (`environ`) compares it with `NAME=`. Of the chunks of a section, each
/// place is in just one, however the section is cut: in that which has the next byte.
pub(super) fn each_end(
    chunk: &Chunk<'_>,
    each: impl FnMut(usize) -> io::Result<()>,
) -> io::Result<()> {
    #[cfg(target_arch = "x86_64")]
    if let Some(wide) = Wide::detect() {
        // SAFETY: the processor has the instructions.
        return unsafe { each_end_avx2(wide, chunk, each) };
    }
    each_end_in_blocks(Plain, chunk, each)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn each_end_avx2(
    wide: Wide,
    chunk: &Chunk<'_>,
    each: impl FnMut(usize) -> io::Result<()>,
) -> io::Result<()> {
    each_end_in_blocks(wide, chunk, each)
}

/// Few bytes of data are such a place. Looking for each NUL took five times as long in data with many of them (Intel's compiler, 70 MB:
/// 180 ms).
#[inline(always)]
fn each_end_in_blocks(
    lanes: impl Lanes,
    chunk: &Chunk<'_>,
    mut each: impl FnMut(usize) -> io::Result<()>,
) -> io::Result<()> {
    let data = chunk.bytes;
    let first = chunk.new.saturating_sub(1);
    let behind = data.len().saturating_sub(usize::from(!chunk.is_last));
    let begin = first.saturating_sub(MIN_LENGTH);
    let mut is_wanted = !0 << (first - begin);
    let mut before = 0;
    for at in (begin..behind).step_by(LANES) {
        let rest = &data[at..];
        let block = block_of(rest);
        let names = lanes.of_names(&block);
        // What follows the last byte of a section is unknown, and may be a NUL.
        let next_is_zero = rest.get(LANES).is_none_or(|next| *next == 0);
        let zeros = lanes.equal(&block, 0);
        let next_zeros = zeros >> 1 | u64::from(next_is_zero) << (LANES - 1);
        let is_behind = zeros | lanes.equal(&block, b'=') & next_zeros;
        // The bytes of the block before, and this one's behind them.
        let names_of_both = u128::from(before) | u128::from(names) << LANES;
        let one_before = names_of_both << 1;
        let two_before = one_before & one_before << 1;
        let four_before = two_before & two_before << 2;
        let mut ends = is_behind & (four_before >> LANES) as u64 & is_wanted;
        if behind - at < LANES {
            ends &= (1 << (behind - at)) - 1;
        }
        while ends != 0 {
            each(at + ends.trailing_zeros() as usize)?;
            ends &= ends - 1;
        }
        (before, is_wanted) = (names, !0);
    }
    Ok(())
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::driver::name_bytes::is_in_a_name;

    /// Whether these bytes end a text that is a name. What follows the last byte is unknown.
    fn is_behind_name(first: u8, second: Option<u8>) -> bool {
        first == 0 || first == b'=' && second.is_none_or(|second| second == 0)
    }

    /// Data of these bytes only.
    pub fn data_of(bytes: &[u8], seed: u64, length: usize) -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            bytes[(state >> 33) as usize % bytes.len()]
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn the_same_ends_are_found_with_and_without_wide_instructions_as_one_by_one() {
        for (seed, length) in (0..300).zip([0, 1, 3, 4, 66, 67, 68, 131, 400].into_iter().cycle()) {
            // Names and NULs are frequent.
            let data = data_of(b"\0\0AZaz09_ -==", seed, length);
            let news = [0, 2, 5, 64, 200].into_iter();
            for (new, is_last) in news.flat_map(|new| [(new, true), (new, false)]) {
                let chunk = Chunk {
                    bytes: &data,
                    new,
                    place: 0,
                    is_last,
                };
                let places = MIN_LENGTH.max(new.saturating_sub(1))..length;
                let expected: Vec<usize> = places
                    .filter(|end| is_last || end + 1 < length)
                    .filter(|end| is_behind_name(data[*end], data.get(end + 1).copied()))
                    .filter(|end| {
                        data[end - MIN_LENGTH..*end]
                            .iter()
                            .all(|byte| is_in_a_name(*byte))
                    })
                    .collect();
                let (mut found, mut in_blocks) = (Vec::new(), Vec::new());
                each_end(&chunk, |end| {
                    found.push(end);
                    Ok(())
                })
                .expect("no error");
                each_end_in_blocks(Plain, &chunk, |end| {
                    in_blocks.push(end);
                    Ok(())
                })
                .expect("no error");
                assert_eq!((&found, &in_blocks), (&expected, &expected), "{seed} {new}");
            }
        }
    }

    #[test]
    fn each_place_is_in_one_chunk_however_the_data_are_cut() {
        let mut all = 0;
        for (seed, length) in (0..40).zip([30, 66, 131, 400].into_iter().cycle()) {
            let data = data_of(b"\0\0AZaz09_ -==", seed, length);
            let ends_in = |size: usize| {
                let mut found = Vec::new();
                for new in (0..length).step_by(size) {
                    let first = new.saturating_sub(OVERLAP);
                    let chunk = Chunk {
                        bytes: &data[first..length.min(new + size)],
                        new: new - first,
                        place: first as u64,
                        is_last: new + size >= length,
                    };
                    let note = |end| {
                        let text = &chunk.bytes[..end];
                        let text = &text[text.len().saturating_sub(LENGTH)..];
                        found.push((first + end, text.to_vec()));
                        Ok(())
                    };
                    each_end(&chunk, note).expect("no error");
                }
                found
            };
            let whole = ends_in(length);
            all += whole.len();
            for size in [1, 2, 7, 64, 65] {
                assert_eq!(ends_in(size), whole, "{seed} {size}");
            }
        }
        assert!(all > 40);
    }
}
