//! The words that build options fall into. Drivers differ in what quotes, apostrophes and backslashes do to them.

use std::ops::Range;

/// Which bytes hold words together.
#[derive(Clone, Copy)]
pub struct Reading {
    escapes: bool,
    quotes: bool,
    apostrophes: bool,
}

/// A word of the options, in one reading.
pub struct Word {
    /// Where it stands.
    pub span: Range<usize>,
    /// What it says.
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

    /// The words, in order; None: a quote is not closed, or there is nothing to escape.
    pub fn words(self, options: &[u8]) -> Option<Vec<Word>> {
        let mut words: Vec<Word> = Vec::new();
        let mut open = None;
        let mut in_word = false;
        let mut bytes = options.iter().copied().enumerate();
        while let Some((at, byte)) = bytes.next() {
            let is_blank = byte.is_ascii_whitespace() || byte == 0x0B;
            if is_blank && open.is_none() {
                in_word = false;
                continue;
            }
            if !in_word {
                words.push(Word {
                    span: at..at,
                    text: Vec::new(),
                });
                in_word = true;
            }
            let word = words.last_mut()?;
            word.span.end = at + 1;
            match byte {
                b'\\' if self.escapes && open != Some(b'\'') => {
                    let (at, escaped) = bytes.next()?;
                    word.span.end = at + 1;
                    word.text.push(escaped);
                }
                b'"' | b'\''
                    if if byte == b'"' {
                        self.quotes
                    } else {
                        self.apostrophes
                    } =>
                {
                    match open {
                        None => open = Some(byte),
                        Some(quote) if quote == byte => open = None,
                        Some(_) => word.text.push(byte),
                    }
                }
                _ => word.text.push(byte),
            }
        }
        open.is_none().then_some(words)
    }
}
