//! Splits build options into words. Drivers differ in the meaning of quotes, apostrophes, backslashes and blanks.

use std::ops::Range;

use crate::fallible::push;
use crate::outcome::Bypass;

/// What a double quote is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Quote {
    /// A character as others.
    Plain,
    /// It holds a word together.
    Removed,
    /// It holds a word together, and becomes a blank in it (measured on PoCL 3.1: `-I"in"` names the directory ` in `).
    Blank,
    /// A word begins behind it, or before it ends, also beside other characters (measured on rusticl 22.3: `-DX"-include"a.h` are three).
    Parts,
}

/// Which bytes hold words together, and which part them.
#[derive(Clone, Copy)]
pub struct Reading {
    escapes: bool,
    quotes: Quote,
    apostrophes: bool,
    blanks: &'static [u8],
}

/// What parts words: in PoCL all blanks, in Intel's CPU runtime these two, in Oclgrind the first one (measured on PoCL 3.1, 2026.2 and
/// 21.10; rusticl 22.3 parts words at spaces, and at none but perhaps tabs of the others).
const BLANKS: &[u8] = b" \t\n\x0B\x0C\r";
const SPACE_AND_TAB: &[u8] = b" \t";
const SPACE: &[u8] = b" ";

/// Whether some drivers only part words at this blank.
pub fn is_odd_blank(byte: u8) -> bool {
    BLANKS[1..].contains(&byte)
}

/// A word of the options, in one reading.
pub struct Word {
    /// Its range in the options.
    pub span: Range<usize>,
    /// Its text.
    pub text: Vec<u8>,
}

impl Reading {
    /// The readings that differ for these options.
    pub fn all(options: &[u8]) -> impl Iterator<Item = Reading> {
        let both = |byte: u8| match options.contains(&byte) {
            true => &[true, false][..],
            false => &[false][..],
        };
        let (escapes, apostrophes) = (both(b'\\'), both(b'\''));
        let quotes = match options.contains(&b'"') {
            true => &[Quote::Removed, Quote::Blank, Quote::Parts, Quote::Plain][..],
            false => &[Quote::Plain],
        };
        let has_any = |blanks: &[u8]| options.iter().any(|byte| blanks.contains(byte));
        let blanks = match (has_any(&BLANKS[2..]), has_any(b"\t")) {
            (true, true) => &[BLANKS, SPACE_AND_TAB, SPACE][..],
            (false, false) => &[SPACE],
            _ => &[BLANKS, SPACE],
        };
        blanks.iter().flat_map(move |&blanks| {
            escapes.iter().flat_map(move |&escapes| {
                quotes.iter().flat_map(move |&quotes| {
                    apostrophes.iter().map(move |&apostrophes| Reading {
                        escapes,
                        quotes,
                        apostrophes,
                        blanks,
                    })
                })
            })
        })
    }

    /// Whether a word of this reading is not what drivers with other readings see: most of those refuse it.
    pub fn is_odd(self, word: &[u8]) -> bool {
        matches!(self.quotes, Quote::Blank | Quote::Parts)
            || word.iter().any(|byte| is_odd_blank(*byte))
    }

    /// The words, in order.
    ///
    /// # Errors
    /// A quote is not closed, or there is nothing to escape.
    pub fn words(self, options: &[u8]) -> Result<Words<'_>, Bypass> {
        let mut words = Words {
            reading: self,
            options,
            at: 0,
        };
        while let Some((_, is_closed)) = words.pass(|_| Ok(()))? {
            if !is_closed {
                return Err(Bypass::UnknownOption);
            }
        }
        words.at = 0;
        Ok(words)
    }
}

/// The words of options in one reading.
pub struct Words<'a> {
    reading: Reading,
    options: &'a [u8],
    at: usize,
}

impl Words<'_> {
    /// Reads a word, and passes its bytes to `each`. Returns its range and whether its quotes are closed.
    fn pass(
        &mut self,
        mut each: impl FnMut(u8) -> Result<(), Bypass>,
    ) -> Result<Option<(Range<usize>, bool)>, Bypass> {
        let byte = |at: usize| self.options.get(at).copied();
        let is_blank = |byte: u8| self.reading.blanks.contains(&byte);
        let mut at = self.at;
        while byte(at).is_some_and(is_blank) {
            at += 1;
        }
        let start = at;
        let mut open = None;
        while let Some(next) = byte(at) {
            if open.is_none() && is_blank(next) {
                break;
            }
            let parts = next == b'"' && self.reading.quotes == Quote::Parts;
            if parts && open.is_none() && at > start {
                break;
            }
            at += 1;
            if parts && open == Some(b'"') {
                open = None;
                break;
            }
            let is_quote = match next {
                b'"' => self.reading.quotes != Quote::Plain,
                b'\'' => self.reading.apostrophes,
                _ => false,
            };
            if next == b'\\' && self.reading.escapes && open != Some(b'\'') {
                let Some(escaped) = byte(at) else {
                    return Ok(Some((start..at, false)));
                };
                at += 1;
                each(escaped)?;
            } else if is_quote && open.is_none_or(|quote| quote == next) {
                open = match open {
                    None => Some(next),
                    Some(_) => None,
                };
                if next == b'"' && self.reading.quotes == Quote::Blank {
                    each(b' ')?;
                }
            } else {
                each(next)?;
            }
        }
        self.at = at;
        Ok((at > start).then_some((start..at, open.is_none())))
    }
}

impl Iterator for Words<'_> {
    type Item = Result<Word, Bypass>;

    fn next(&mut self) -> Option<Self::Item> {
        let mut text = Vec::new();
        match self.pass(|byte| push(&mut text, byte)) {
            Ok(Some((span, _))) => Some(Ok(Word { span, text })),
            Ok(None) => None,
            Err(reason) => Some(Err(reason)),
        }
    }
}
