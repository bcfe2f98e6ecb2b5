//! The variable with a random name that PyOpenCL appends to sources, to defeat the caches of drivers (pyopencl/cache.py).
//!
//! The digits of the name are left out of the key if nothing else in a build can observe them. The variable is the last thing in
//! the source, so no macro can take it as an argument: nothing closes the parentheses. The name could still be spelled out: by a
//! macro of that name, a declaration of it, or a string that an attribute or inline assembly uses as a symbol. To spell the name, a
//! text must spell the part before its digits, from words and parts of words of the source, the headers, the options or the
//! environment: whole, by pasting, by adjacent strings or by strings made of tokens. So the digits are left out only if no sequence
//! of words makes that part, and no escape in a string could be one of its characters. Line, column and `__COUNTER__` do not depend
//! on the digits.

use super::has_escape;
use super::lexer::is_word;
use super::scan::contains;

/// How the random names begin.
pub const RANDOM_NAME: &[u8] = b"pyopencl_defeat_cache_";

const LENGTH: usize = RANDOM_NAME.len();

/// The formats that parts of the name can be: a character, numbers, and how long they are.
const FORMATS: [&[u8]; 7] = [b"c", b"d", b"o", b"h", b"l", b"hd", b"ld"];

/// For each ASCII byte, a bit for each of its positions in the name.
static PLACES: [u32; 128] = {
    let mut places = [0; 128];
    let mut at = 0;
    while at < LENGTH {
        places[RANDOM_NAME[at] as usize] |= 1 << at;
        at += 1;
    }
    places
};

/// The source up to the digits of the variable that it ends with, if it does.
pub fn before_digits(source: &[u8]) -> Option<&[u8]> {
    const BEFORE: &[u8] = b"\n\n__constant int ";
    const DIGITS: usize = 32;
    let before = source.strip_suffix(b" = 0;")?;
    let (before, digits) = before.split_at(before.len().checked_sub(DIGITS)?);
    let is_digit = |digit: &u8| matches!(digit, b'0'..=b'9' | b'a'..=b'f');
    let rest = before.strip_suffix(RANDOM_NAME)?;
    (rest.ends_with(BEFORE) && digits.iter().all(is_digit)).then_some(before)
}

/// Whether texts could spell such a name.
#[derive(Clone)]
pub(super) struct Spelling {
    /// A bit for each length of a word's end that begins the first part of the name.
    begun: u32,
    /// For each place in the name, a bit for each end of a word that is there in the name.
    within: [u32; LENGTH],
    /// A bit for each place in the name from which on a word begins with what is left.
    ended: u32,
    is_spelled: bool,
}

impl Default for Spelling {
    fn default() -> Spelling {
        let mut spelling = Spelling {
            begun: 0,
            within: [0; LENGTH],
            ended: 0,
            is_spelled: false,
        };
        // Compilers define macros that expand to a single underscore (`__USER_LABEL_PREFIX__`).
        spelling.add_word(b"_");
        spelling
    }
}

impl Spelling {
    /// Adds all words of a text with joined lines.
    pub(super) fn add(&mut self, text: &[u8]) {
        self.is_spelled |= has_escape(text);
        // And macros that expand to formats, as strings (`__INT64_FMTd__`): these fit between others.
        if contains(text, b"_FMT") {
            for conversion in FORMATS {
                self.add_word(conversion);
            }
        }
        for word in text.split(|byte| !is_word(*byte)) {
            self.add_word(word);
        }
    }

    fn add_word(&mut self, word: &[u8]) {
        let (Some(first), Some(last)) = (word.first(), word.last()) else {
            return;
        };
        self.add_ends(word, *first, *last);
        self.is_spelled |=
            word.len() >= LENGTH && word.windows(LENGTH).any(|part| part == RANDOM_NAME);
    }

    #[inline]
    fn add_ends(&mut self, word: &[u8], first: u8, last: u8) {
        let mut places = PLACES[usize::from(last & 0x7F)];
        while places != 0 {
            let length = places.trailing_zeros() as usize + 1;
            places &= places - 1;
            if word.ends_with(&RANDOM_NAME[..length]) {
                self.begun |= 1 << length;
            }
        }
        let mut places = PLACES[usize::from(first & 0x7F)];
        while places != 0 {
            let at = places.trailing_zeros() as usize;
            places &= places - 1;
            let left = &RANDOM_NAME[at..];
            if word.starts_with(left) {
                self.ended |= 1 << at;
            } else if left.starts_with(word) {
                self.within[at] |= 1 << (at + word.len());
            }
        }
    }

    /// Whether the added texts may spell the name.
    pub(super) fn is_possible(&self) -> bool {
        let mut reached = self.begun;
        for at in 1..LENGTH {
            if reached & 1 << at != 0 {
                reached |= self.within[at];
            }
        }
        self.is_spelled || reached & (self.ended | 1 << LENGTH) != 0
    }
}

/// Whether the environment could spell such a name: some drivers take options from it.
pub fn is_spelled_by_environment() -> bool {
    use std::os::unix::ffi::OsStrExt;
    let mut spelling = Spelling::default();
    for (_, value) in std::env::vars_os() {
        spelling.add(value.as_bytes());
    }
    spelling.is_possible()
}
