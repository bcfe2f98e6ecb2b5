//! The special names that token pasting could make from the identifiers of a text.

use std::collections::HashSet;

use super::lexer::is_word;
use super::{PRAGMA_OPERATORS, SPECIAL};
use crate::key::work;

/// For each ASCII byte, the bytes (modulo 64) that follow it in a forbidden name.
static FOLLOWERS: [u64; 128] = {
    let mut followers = [0; 128];
    let mut name = 0;
    while name < SPECIAL.len() + PRAGMA_OPERATORS.len() {
        let bytes = if name < SPECIAL.len() {
            SPECIAL[name].0
        } else {
            PRAGMA_OPERATORS[name - SPECIAL.len()]
        };
        let mut at = 0;
        while at < bytes.len() {
            // A name's last byte follows itself, which keeps its entry from being empty.
            let next = if at + 1 < bytes.len() {
                bytes[at + 1]
            } else {
                bytes[at]
            };
            followers[bytes[at] as usize] |= 1 << (next % 64);
            at += 1;
        }
        name += 1;
    }
    followers
};

/// The identifiers that are part of a special name. These are few, however long the texts are.
#[derive(Default)]
pub(super) struct Pieces(HashSet<Vec<u8>>);

impl Pieces {
    /// Adds those of a span of code.
    pub(super) fn add(&mut self, code: &[u8]) {
        let could_be_part = |word: &[u8]| match word {
            [byte] => FOLLOWERS[*byte as usize] != 0,
            _ => word
                .windows(2)
                .all(|pair| FOLLOWERS[pair[0] as usize] & 1 << (pair[1] % 64) != 0),
        };
        work::count(code.len());
        let words = code.split(|byte| !is_word(*byte));
        for word in words.filter(|word| !word.is_empty() && could_be_part(word)) {
            let mut names = SPECIAL.iter().map(|(name, _)| *name);
            let is_part = |name: &[u8]| {
                name.len() >= word.len() && name.windows(word.len()).any(|part| part == word)
            };
            if !self.0.contains(word)
                && (names.any(is_part) || PRAGMA_OPERATORS.iter().any(|name| is_part(name)))
            {
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
