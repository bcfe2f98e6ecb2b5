//! Finds the ends of texts that could be names in the data of libraries: half the work of looking for names.

#![allow(unsafe_code)] // calls what was compiled for this processor

use std::io;

/// Shorter names occur in any data by chance, so each of them counts.
pub(super) const MIN_LENGTH: usize = 3;
/// Longer names are compared by this many of their last bytes.
pub(super) const LENGTH: usize = 24;
/// How many bytes of data are looked at together.
const LANES: usize = 64;

/// Calls the function with the place behind each name of at least [`MIN_LENGTH`] bytes, from the place `new` on. A NUL ends a name, and so
/// do `=` and a NUL: code that looks through the whole environment (`environ`) compares it with `NAME=`.
pub(super) fn each_end(
    data: &[u8],
    new: usize,
    each: impl FnMut(usize) -> io::Result<()>,
) -> io::Result<()> {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the instructions.
        return unsafe { each_end_avx2(data, new, each) };
    }
    each_end_in_blocks(data, new, each)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn each_end_avx2(
    data: &[u8],
    new: usize,
    each: impl FnMut(usize) -> io::Result<()>,
) -> io::Result<()> {
    each_end_in_blocks(data, new, each)
}

/// Few bytes of data are such a place, and what is not is told for a whole block without a branch, which compilers turn into vector
/// instructions. Looking for each NUL took five times as long in data with many of them (Intel's compiler, 70 MB: 180 ms).
#[inline(always)]
fn each_end_in_blocks(
    data: &[u8],
    new: usize,
    mut each: impl FnMut(usize) -> io::Result<()>,
) -> io::Result<()> {
    let is_end = |end: usize| {
        is_behind_name(data[end], data.get(end + 1).copied())
            && data[end - MIN_LENGTH..end]
                .iter()
                .all(|byte| is_in_a_name(*byte))
    };
    let mut at = new.max(MIN_LENGTH);
    while let Some((block, _)) = data
        .get(at - MIN_LENGTH..)
        .and_then(|rest| rest.split_first_chunk::<{ MIN_LENGTH + LANES + 1 }>())
    {
        let names = block.map(|byte| u8::from(is_in_a_name(byte)));
        let mut has_end = 0;
        for lane in 0..LANES {
            let [first, second] = [block[lane + MIN_LENGTH], block[lane + MIN_LENGTH + 1]];
            let is_behind = u8::from(first == 0) | u8::from(first == b'=') & u8::from(second == 0);
            has_end |= is_behind & names[lane] & names[lane + 1] & names[lane + 2];
        }
        if has_end != 0 {
            for end in (at..at + LANES).filter(|end| is_end(*end)) {
                each(end)?;
            }
        }
        at += LANES;
    }
    for end in (at..data.len()).filter(|end| is_end(*end)) {
        each(end)?;
    }
    Ok(())
}

/// Whether these bytes end a text that is a name. What follows the last byte is unknown.
fn is_behind_name(first: u8, second: Option<u8>) -> bool {
    first == 0 || first == b'=' && second.is_none_or(|second| second == 0)
}

/// Whether a name of a variable may have this byte.
#[inline]
pub(super) const fn is_in_a_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Data of a few kinds of bytes, so that names and NULs are frequent.
    fn data(seed: u64, length: usize) -> Vec<u8> {
        let mut state = seed;
        let mut next = || {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            b"\0\0AZaz09_ -=="[(state >> 33) as usize % 13]
        };
        (0..length).map(|_| next()).collect()
    }

    #[test]
    fn the_same_ends_are_found_with_and_without_wide_instructions_as_one_by_one() {
        for (seed, length) in (0..300).zip([0, 1, 3, 4, 66, 67, 68, 131, 400].into_iter().cycle()) {
            let data = data(seed, length);
            for new in [0, 2, 5, 64, 200] {
                let expected: Vec<usize> = (new.max(MIN_LENGTH)..length)
                    .filter(|end| is_behind_name(data[*end], data.get(end + 1).copied()))
                    .filter(|end| {
                        data[end - MIN_LENGTH..*end]
                            .iter()
                            .all(|byte| is_in_a_name(*byte))
                    })
                    .collect();
                let (mut found, mut in_blocks) = (Vec::new(), Vec::new());
                each_end(&data, new, |end| {
                    found.push(end);
                    Ok(())
                })
                .expect("no error");
                each_end_in_blocks(&data, new, |end| {
                    in_blocks.push(end);
                    Ok(())
                })
                .expect("no error");
                assert_eq!((&found, &in_blocks), (&expected, &expected), "{seed} {new}");
            }
        }
    }
}
