//! The special names that token pasting could make from the identifiers of a text.

use std::collections::HashSet;

use super::lexer::is_word;
use super::scan::holds_anywhere;
use super::{PRAGMA_OPERATORS, SPECIAL};

/// All forbidden names, one after another with a gap after each: for each ASCII byte a bit for each of its places.
static PLACES: [[u128; 2]; 128] = {
    let mut places = [[0; 2]; 128];
    let mut name = 0;
    let mut place = 0;
    while name < SPECIAL.len() + PRAGMA_OPERATORS.len() {
        let bytes = if name < SPECIAL.len() {
            SPECIAL[name].0
        } else {
            PRAGMA_OPERATORS[name - SPECIAL.len()]
        };
        let mut at = 0;
        while at < bytes.len() {
            places[bytes[at] as usize][place / 128] |= 1 << (place % 128);
            place += 1;
            at += 1;
        }
        place += 1;
        name += 1;
    }
    places
};

/// The identifier at the beginning of a text, if it is a part of a forbidden name. Its cost does not depend on how many names there are,
/// and usually the second or third byte decides.
fn part_at(text: &[u8]) -> Option<&[u8]> {
    let places = |byte: &u8| &PLACES[usize::from(byte & 0x7F)];
    // The places at which the bytes so far end.
    let mut ends = *places(text.first()?);
    let mut length = 1;
    while let Some(byte) = text.get(length).filter(|byte| is_word(**byte)) {
        let ([low, high], next) = (ends, places(byte));
        ends = [low << 1 & next[0], (high << 1 | low >> 127) & next[1]];
        if ends == [0; 2] {
            return None;
        }
        length += 1;
    }
    (ends != [0; 2]).then(|| &text[..length])
}

/// An identifier begins behind the byte. The case of a letter is one bit.
fn begins(byte: u8, next: u8) -> bool {
    let is_letter = |byte: u8| ((byte | 0x20).wrapping_sub(b'a') < 26) | (byte == b'_');
    let is_digit = byte.wrapping_sub(b'0') < 10;
    !(is_letter(byte) | is_digit) & is_letter(next)
}

/// The identifiers that are part of a special name. These are few, however long the texts are.
#[derive(Default)]
pub(super) struct Pieces(HashSet<Vec<u8>>);

impl Pieces {
    /// Adds those of a span of code.
    pub(super) fn add(&mut self, code: &[u8]) {
        let mut add = |text: &[u8]| {
            if let Some(word) = part_at(text)
                && !self.0.contains(word)
            {
                self.0.insert(word.to_vec());
            }
        };
        if code.first().is_some_and(|byte| is_word(*byte)) {
            add(code);
        }
        holds_anywhere(code, begins, |rest| {
            add(&rest[1..]);
            false
        });
    }

    /// Whether `name` is a sequence of pieces, each used any number of times.
    pub(super) fn make(&self, name: &[u8]) -> bool {
        let mut reached = 1u64;
        for at in 0..name.len() {
            if reached & 1 << at != 0 {
                for end in at + 1..=name.len() {
                    if self.0.contains(&name[at..end]) {
                        reached |= 1 << end;
                    }
                }
            }
        }
        reached & 1 << name.len() != 0
    }
}
