//! The preprocessing tokens of directives whose lines are joined.

/// The kind of a token (C99 6.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum TokenKind {
    Identifier,
    Number,
    Literal,
    Punctuator,
}

/// A token as it is written.
pub(super) struct Lexeme<'a> {
    pub kind: TokenKind,
    pub text: &'a [u8],
    /// Whether white space precedes it.
    pub spaced: bool,
}

/// The tokens of a text whose lines are joined; comments are white space.
pub(super) struct Lexemes<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Lexemes<'a> {
    pub fn new(text: &'a [u8]) -> Lexemes<'a> {
        Lexemes { text, at: 0 }
    }

    /// The end of the last token.
    pub fn at(&self) -> usize {
        self.at
    }

    fn byte(&self, at: usize) -> u8 {
        self.text.get(at).copied().unwrap_or(b'\n')
    }
}

impl<'a> Iterator for Lexemes<'a> {
    type Item = Lexeme<'a>;

    fn next(&mut self) -> Option<Lexeme<'a>> {
        let text = self.text;
        let mut at = self.at;
        let mut spaced = false;
        while at < text.len() {
            let start = at;
            let kind = match (self.byte(at), self.byte(at + 1)) {
                (b'/', b'/') => break,
                (b'/', b'*') => {
                    let end = text[at + 2..].windows(2).position(|pair| pair == b"*/");
                    at = end.map_or(text.len(), |end| at + 2 + end + 2);
                    spaced = true;
                    continue;
                }
                (blank, _) if blank.is_ascii_whitespace() || matches!(blank, 0 | 0x0B) => {
                    at += 1;
                    spaced = true;
                    continue;
                }
                (quote @ (b'"' | b'\''), _) => {
                    at += 1;
                    while at < text.len() && self.byte(at) != quote {
                        at += 1 + usize::from(self.byte(at) == b'\\');
                    }
                    at = (at + 1).min(text.len());
                    TokenKind::Literal
                }
                (first, next)
                    if first.is_ascii_digit() || first == b'.' && next.is_ascii_digit() =>
                {
                    // A preprocessing number (C99 6.4.8).
                    while is_word(self.byte(at))
                        || self.byte(at) == b'.'
                        || at > start && is_sign(self.byte(at - 1), self.byte(at))
                    {
                        at += 1;
                    }
                    TokenKind::Number
                }
                (first, _) if is_word(first) => {
                    while is_word(self.byte(at)) {
                        at += 1;
                    }
                    TokenKind::Identifier
                }
                (b'#', b'#') => {
                    at += 2;
                    TokenKind::Punctuator
                }
                _ => {
                    at += 1;
                    TokenKind::Punctuator
                }
            };
            self.at = at;
            return Some(Lexeme {
                kind,
                text: &text[start..at],
                spaced,
            });
        }
        self.at = text.len();
        None
    }
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || is_odd(byte)
}

/// Whether compilers differ in whether the byte can be a part of a word.
pub(super) fn is_odd(byte: u8) -> bool {
    byte == b'$' || !byte.is_ascii()
}

/// Whether a sign belongs to the number that ends in the byte before it.
fn is_sign(before: u8, sign: u8) -> bool {
    matches!(before, b'e' | b'E' | b'p' | b'P') && matches!(sign, b'+' | b'-')
}
