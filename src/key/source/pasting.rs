//! Which special names token pasting could make of the identifiers of a text.

use super::lexer::is_word;
use super::{PRAGMA_OPERATORS, SPECIAL};

/// For each ASCII byte, the bytes (modulo 64) that follow it in a name which pasting must not make.
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

/// The identifiers in `code` that could be a part of a special name.
pub(super) fn pieces<'a>(code: impl Iterator<Item = &'a [u8]>) -> Vec<&'a [u8]> {
    let could_be_part = |word: &[u8]| match word {
        [byte] => FOLLOWERS[*byte as usize] != 0,
        _ => word
            .windows(2)
            .all(|pair| FOLLOWERS[pair[0] as usize] & 1 << (pair[1] % 64) != 0),
    };
    let mut pieces: Vec<_> = code
        .flat_map(|span| span.split(|byte| !is_word(*byte)))
        .filter(|word| !word.is_empty() && could_be_part(word))
        .collect();
    pieces.sort_unstable();
    pieces.dedup();
    pieces
}

/// Whether `name` is a sequence of `pieces`, each used any number of times.
pub(super) fn can_be_pasted(name: &[u8], pieces: &[&[u8]]) -> bool {
    let mut reached = 1u64;
    for at in 0..name.len() {
        if reached & 1 << at != 0 {
            for piece in pieces.iter().filter(|piece| name[at..].starts_with(piece)) {
                reached |= 1 << (at + piece.len());
            }
        }
    }
    reached & 1 << name.len() != 0
}
