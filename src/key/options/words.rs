//! Splits build options into words. Drivers differ in the meaning of quotes, apostrophes and backslashes.

use std::ops::Range;

use crate::fallible::push;
use crate::outcome::Bypass;

/// Which bytes hold words together.
#[derive(Clone, Copy)]
pub struct Reading {
    escapes: bool,
    quotes: bool,
    apostrophes: bool,
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
        let (escapes, quotes, apostrophes) = (both(b'\\'), both(b'"'), both(b'\''));
        escapes.iter().flat_map(move |&escapes| {
            quotes.iter().flat_map(move |&quotes| {
                apostrophes.iter().map(move |&apostrophes| Reading {
                    escapes,
                    quotes,
                    apostrophes,
                })
            })
        })
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
        let is_blank = |byte: u8| byte.is_ascii_whitespace() || byte == 0x0B;
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
            at += 1;
            let is_quote = match next {
                b'"' => self.reading.quotes,
                b'\'' => self.reading.apostrophes,
                _ => false,
            };
            if next == b'\\' && self.reading.escapes && open != Some(b'\'') {
                let Some(escaped) = byte(at) else {
                    return Ok(Some((start..at, false)));
                };
                at += 1;
                each(escaped)?;
            } else if is_quote && open.is_none() {
                open = Some(next);
            } else if is_quote && open == Some(next) {
                open = None;
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
