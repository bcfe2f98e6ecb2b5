//! The special names that token pasting could make from the identifiers of a text.

use std::collections::HashSet;

use super::lexer::is_word;
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

/// Whether an identifier is a part of a forbidden name. Its cost does not depend on how many names there are.
fn is_part(word: &[u8]) -> bool {
    let Some((first, rest)) = word.split_first() else {
        return false;
    };
    let places = |byte: &u8| &PLACES[usize::from(byte & 0x7F)];
    // The places at which the bytes so far end.
    let mut ends = *places(first);
    for byte in rest {
        let ([low, high], next) = (ends, places(byte));
        ends = [low << 1 & next[0], (high << 1 | low >> 127) & next[1]];
        if ends == [0; 2] {
            return false;
        }
    }
    ends != [0; 2]
}

/// The identifiers that are part of a special name. These are few, however long the texts are.
#[derive(Default)]
pub(super) struct Pieces(HashSet<Vec<u8>>);

impl Pieces {
    /// Adds those of a span of code.
    pub(super) fn add(&mut self, code: &[u8]) {
        let words = code.split(|byte| !is_word(*byte));
        for word in words.filter(|word| is_part(word)) {
            if !self.0.contains(word) {
                self.0.insert(word.to_vec());
            }
        }
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
