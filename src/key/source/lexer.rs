//! Finds the parts of OpenCL C text that can matter to the preprocessor: directives, special names, literals and pasting.
//!
//! The phases are those of C99 5.1.1.2: [`super::lines`] does the first two (trigraphs, line splices), [`Lexer`] the third
//! (comments, literals, tokens). Text is bytes: a source need not be UTF-8 and may hold any byte.
//!
//! Each difference between compilers is a bit of the *reading*; a clear bit is clang's behavior. The caller learns which
//! differences occurred (`met`) and may read the text again with those bits set.

use std::cell::Cell;

use super::directive_code::DirectiveCode;
use super::names_a_macro;
use super::scan::{Marks, TokenStart, contains, find, first, holds_anywhere, line_end};
use crate::key::work::Work;
use crate::outcome::Bypass;

/// Trigraphs mean nothing (GNU modes and C++17; strict C99 has them).
pub(super) const NO_TRIGRAPHS: u8 = 1;
/// A backslash joins lines only directly before the line's end (clang and gcc allow blanks between).
pub(super) const STRICT_SPLICES: u8 = 1 << 1;
/// A carriage return without a line feed is a blank (in clang it ends the line).
pub(super) const RETURN_IS_BLANK: u8 = 1 << 2;
/// A quote that is not closed on its line is a character by itself (in clang it takes the rest of the line).
pub(super) const LONE_QUOTES: u8 = 1 << 3;
/// An apostrophe within a number is part of it (digit separators of C++14 and C23).
pub(super) const JOINED_APOSTROPHES: u8 = 1 << 4;
/// A line splice within `*/` leaves the comment open (old clang with more than one splice).
pub(super) const WHOLE_COMMENT_ENDS: u8 = 1 << 5;
/// All readings are below this.
pub(super) const READINGS: u8 = 1 << 6;

/// The length of the operand of `__has_include`.
const MAX_OPERAND_BYTES: usize = 4096;

/// Steps for each mark in a text.
pub(super) const STEPS_OF_MARK: usize = 8;

/// A part of the text that can matter. All else is skipped.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// An identifier that begins with two underscores, `_P` or `_C`.
    Name(&'a [u8]),
    /// `#` or its digraph with the word after it, which is empty at the line's end. A byte that cannot begin a
    /// word is a word.
    Directive { name: &'a [u8], first_on_line: bool },
    /// `##` or its digraph.
    Paste,
    /// The inside of a literal, and whether it is a character that is closed.
    Literal(&'a [u8], bool),
    /// The prefix and the quote of a raw string.
    RawString,
    /// So much on one line is open, or must be looked at again, that reading it would take quadratic time.
    TooMuchOpen,
    /// A backslash, outside of literals, that begins a universal character name.
    UniversalName,
}

/// Finds the tokens of a text with joined lines (phase 3).
pub(super) struct Lexer<'a> {
    text: &'a [u8],
    work: &'a Work,
    marks: Marks<'a, TokenStart>,
    at: usize,
    reading: u8,
    /// The differences between readings that occurred in this text.
    pub(super) met: u8,
    /// A comment or raw string may begin in the text of `#error` or `#warning` and end behind it. clang begins none there, except where it
    /// skips.
    opens_message: bool,
    /// A byte beyond ASCII was taken for a blank beside a directive's parts. clang takes most characters for letters.
    odd_blanks: Cell<bool>,
    /// There is an apostrophe behind a letter or digit that is no prefix.
    pub(super) has_separator: bool,
    /// The receiver of the spans of code, which are all but comments and literals, up to `code_from`.
    code: Option<&'a mut dyn FnMut(&'a [u8])>,
    code_from: usize,
    directive: DirectiveCode,
    /// The last comment: its end, and whether only blanks and comments preceded it on its line.
    comment: Option<(usize, bool)>,
}

impl<'a> Lexer<'a> {
    pub(super) fn new(text: &'a [u8], reading: u8, work: &'a Work) -> Self {
        work.count_search(text.len());
        Lexer {
            text,
            work,
            marks: Marks::new(text, TokenStart),
            at: 0,
            reading,
            met: 0,
            opens_message: false,
            odd_blanks: Cell::new(false),
            has_separator: false,
            code: None,
            code_from: 0,
            directive: DirectiveCode::default(),
            comment: None,
        }
    }

    /// Gives `each` the spans of a text that are code.
    ///
    /// # Errors
    /// [`Token::TooMuchOpen`].
    pub(super) fn code_of(
        text: &'a [u8],
        reading: u8,
        work: &'a Work,
        each: &'a mut dyn FnMut(&'a [u8]),
    ) -> Result<(), Bypass> {
        Lexer::spans_of(text, reading, work, each, |_| {})
    }

    /// The same, and gives `literal` the insides of literals.
    ///
    /// # Errors
    /// [`Token::TooMuchOpen`].
    pub(super) fn spans_of(
        text: &'a [u8],
        reading: u8,
        work: &'a Work,
        code: &'a mut dyn FnMut(&'a [u8]),
        literal: impl Fn(&'a [u8]),
    ) -> Result<(), Bypass> {
        let mut lexer = Lexer::new(text, reading, work);
        lexer.code = Some(code);
        for token in lexer {
            match token {
                Token::Literal(inside, _) => literal(inside),
                Token::TooMuchOpen => return Err(Bypass::CostlyText),
                _ => {}
            }
        }
        Ok(())
    }

    fn byte(&self, at: usize) -> u8 {
        self.text.get(at).copied().unwrap_or(b'\n')
    }

    /// The rest of the line.
    pub(super) fn rest_of_line(&self) -> &'a [u8] {
        let rest = &self.text[self.at..];
        let end = line_end(rest);
        self.work.count_search(2 * end);
        &rest[..end]
    }

    /// Reads the name in quotes or angle brackets that comes next after blanks and comments.
    ///
    /// # Errors
    /// Where a compiler skips the directive, or reads it for another purpose, a literal or comment begins in the name.
    pub(super) fn header_name(&mut self) -> Result<Option<&'a [u8]>, Bypass> {
        self.skip_blanks();
        let close = match self.byte(self.at) {
            b'"' => b'"',
            b'<' => b'>',
            _ => return Ok(None),
        };
        let rest = &self.text[self.at..];
        let ends = |byte: &u8| *byte == close || *byte == b'\n';
        let end = rest[1..].iter().position(ends);
        let end = end.map_or(rest.len(), |end| end + 1);
        self.work.count(end);
        if rest.get(end) != Some(&close) {
            return Ok(None);
        }
        let name = &rest[1..end];
        let is_odd = match close {
            b'"' => name.ends_with(b"\\"),
            _ => {
                let begins_comment = |pair: &[u8]| matches!(pair, b"//" | b"/*");
                name.iter().any(|byte| b"\"'".contains(byte)) || name.windows(2).any(begins_comment)
            }
        };
        if is_odd {
            return Err(Bypass::UnresolvedInclude);
        }
        self.leave_code(self.at, self.at + end + 1);
        Ok(Some(name))
    }

    /// Reads the rest of the directive. Returns whether it has only blanks and comments.
    pub(super) fn is_at_line_end(&mut self) -> bool {
        self.skip_blanks();
        self.byte(self.at) == b'\n'
    }

    /// The position in the text.
    pub(super) fn at(&self) -> usize {
        self.at
    }

    /// The rest of the directive, with its comments, which may extend over line ends.
    pub(super) fn rest_of_directive(&self) -> &'a [u8] {
        &self.text[self.at..self.directive_end(self.at)]
    }

    /// The end of the directive that holds `from`.
    pub(super) fn directive_end(&self, from: usize) -> usize {
        let mut end = from;
        let may_matter = |byte: u8, next: u8| {
            let begins_comment = (byte == b'/') & ((next == b'/') | (next == b'*'));
            (byte == b'\n') | (byte == b'"') | (byte == b'\'') | begins_comment
        };
        let mut marks = Marks::new(self.text, may_matter);
        loop {
            end = marks.next(end);
            match (self.byte(end), self.byte(end + 1)) {
                (b'\n', _) | (b'/', b'/') => break,
                (b'/', b'*') => {
                    let rest = &self.text[end + 2..];
                    end += 2 + find(rest, b"*/").map_or(rest.len(), |at| at + 2);
                }
                (quote @ (b'"' | b'\''), _) => {
                    end += 1;
                    while !matches!(self.byte(end), b'\n') && self.byte(end) != quote {
                        end +=
                            1 + usize::from(self.byte(end) == b'\\' && self.byte(end + 1) != b'\n');
                    }
                    end += usize::from(self.byte(end) == quote);
                }
                _ => end += 1,
            }
        }
        // Where it goes on over line ends that end a literal for the lexer, each line would be read with all that follow.
        self.work.count(end - from);
        end.min(self.text.len())
    }

    /// The content of the parentheses that come next: `Some(None)` if they are not closed on their line, None if there are none.
    /// Long ones count as not closed.
    pub(super) fn parenthesised(&mut self) -> Option<Option<&'a [u8]>> {
        self.skip_blanks();
        if self.byte(self.at) != b'(' {
            return None;
        }
        self.at += 1;
        // So short that many of them on one line take little time.
        let rest = &self.text[self.at..self.text.len().min(self.at + MAX_OPERAND_BYTES)];
        let mut open = 1;
        let end = rest.iter().position(|byte| {
            open += i32::from(*byte == b'(') - i32::from(*byte == b')');
            open == 0 || *byte == b'\n'
        });
        self.work.count(end.unwrap_or(rest.len()));
        let end = end.filter(|end| rest[*end] == b')');
        Some(end.map(|end| &rest[..end]))
    }

    /// What only tests for the last name, defines or undefines it. None does where the name is an argument of a macro named like that, or
    /// behind such a macro.
    pub(super) fn tested(&self, name: &[u8]) -> Tested {
        let before = self.text[..self.at - name.len()].trim_ascii_end();
        let in_parentheses = before.strip_suffix(b"(").map(<[u8]>::trim_ascii_end);
        let before = in_parentheses.unwrap_or(before);
        let start = before.len()
            - before
                .iter()
                .rev()
                .take_while(|byte| is_word(**byte))
                .count();
        self.work.count(self.at - start);
        let word = &before[start..];
        if in_parentheses.is_none() && names_a_macro(word) {
            return match self.directive.begins_at(before.len()) {
                true => Tested::ByDirective,
                false => Tested::No,
            };
        }
        // In the arguments of a macro the name is expanded all the same, if what follows is its operand.
        if word != b"defined" || ends_in_odd_letter(&before[..start]) {
            return Tested::No;
        }
        let rest = &self.text[self.at..];
        let blanks = rest.iter().take_while(|byte| is_blank(**byte)).count();
        self.work.count(blanks);
        let rest = &rest[blanks..];
        match rest.starts_with(b"(") || rest.starts_with(b"/*") {
            true => Tested::No,
            false => Tested::ByOperator,
        }
    }

    /// Whether the last name may be in the arguments of a macro. The text after it is then not read as the name of a header
    /// (measured on PoCL, Intel's CPU runtime and rusticl: macros are expanded in it).
    pub(super) fn may_be_argument(&self, name: &[u8]) -> bool {
        (self.directive).may_be_argument(self.text, self.at - name.len(), self.work)
    }

    /// Skips the text of a message directive, which need not be tokens and is not expanded.
    fn skip_message(&mut self) {
        let message = self.rest_of_line();
        self.work.count(2 * STEPS_OF_MARK);
        self.opens_message |= opens_comment(message) || opens_raw_string(message);
        self.leave_code(self.at, self.at + message.len());
    }

    /// Ends a span of code before `from`, and continues after the comment or literal at `to`.
    fn leave_code(&mut self, from: usize, to: usize) {
        if let Some(code) = &mut self.code {
            code(&self.text[self.code_from..from]);
        }
        (self.code_from, self.at) = (to, to);
        self.directive.skip(from, to);
    }

    /// Skips the comment that begins at `start`.
    fn comment(&mut self, start: usize) {
        let rest = &self.text[start + 2..];
        let length = if self.text[start + 1] == b'/' {
            line_end(rest)
        } else {
            let end = first(rest, 0, |byte: u8, next: u8| {
                (byte == b'*') & (next == b'/')
            });
            (end + 2).min(rest.len())
        };
        self.work.count(STEPS_OF_MARK);
        self.work.count_search(length);
        let end = start + 2 + length;
        self.comment = Some((end, self.is_first_on_line(start)));
        self.leave_code(start, end);
    }

    /// Whether there is no token between the line's beginning and `at`.
    fn is_first_on_line(&self, at: usize) -> bool {
        let (bound, after_comment) = self.comment.unwrap_or((0, true));
        let reached = at
            - self.text[bound..at]
                .iter()
                .rev()
                .take_while(|byte| is_blank(**byte))
                .count();
        self.work.count(at - reached);
        self.note_blanks(reached, at);
        if reached > bound {
            self.text[reached - 1] == b'\n'
        } else {
            after_comment
        }
    }

    fn note_blanks(&self, from: usize, to: usize) {
        let is_odd = !self.text[from..to].is_ascii();
        self.odd_blanks.set(self.odd_blanks.get() || is_odd);
    }

    /// Whether other compilers may read directives otherwise.
    pub(super) fn has_odd_directives(&self) -> bool {
        self.opens_message || self.odd_blanks.get()
    }

    /// Skips blanks and comments within a directive.
    fn skip_blanks(&mut self) {
        loop {
            match (self.byte(self.at), self.byte(self.at + 1)) {
                (b'/', b'/' | b'*') => self.comment(self.at),
                (byte, _) if self.at < self.text.len() && is_blank(byte) => {
                    let start = self.at;
                    self.at = first(self.text, start + 1, |byte: u8, _: u8| !is_blank(byte));
                    self.work.count(self.at - start);
                    self.note_blanks(start, self.at);
                }
                _ => return,
            }
        }
    }

    /// The end of the word at `start`.
    fn word_end(&self, start: usize) -> usize {
        let rest = self.text[start..].iter();
        let length = rest.take_while(|byte| is_word(**byte)).count();
        self.work.count(length);
        start + length
    }

    /// The token of a `#`. That of a message ends behind the text.
    fn hash(&mut self, start: usize, width: usize) -> Token<'a> {
        self.at = start + width;
        if (0..width).all(|at| self.byte(self.at + at) == self.text[start + at]) {
            self.at += width;
            return Token::Paste;
        }
        let first_on_line = self.is_first_on_line(start);
        self.skip_blanks();
        let word = self.at;
        let end = self.word_end(word);
        if end == word && self.byte(word) != b'\n' {
            // Left in place: it may begin a literal or another `#`.
            return Token::Directive {
                name: &self.text[word..word + 1],
                first_on_line,
            };
        }
        // `#__FILE__` also shows its name.
        self.at = if self.byte(word) == b'_' { word } else { end };
        let name = &self.text[word..end];
        if first_on_line {
            self.directive.begin(end);
        }
        if first_on_line && matches!(name, b"error" | b"warning") {
            self.skip_message();
        }
        Token::Directive {
            name,
            first_on_line,
        }
    }

    /// Whether the byte at `at` can continue a number that has begun before it, if digits may be separated. Any letter can (`1é`).
    fn is_in_number(&self, at: usize) -> bool {
        let joins = || self.byte(at) == b'\'' && is_word(self.byte(at + 1));
        let is_sign = || {
            matches!(self.byte(at), b'+' | b'-')
                && at > 0
                && matches!(self.text[at - 1], b'e' | b'E' | b'p' | b'P')
        };
        let is_letter = |byte: u8| is_word(byte) || !byte.is_ascii();
        is_letter(self.byte(at)) || self.byte(at) == b'.' || joins() || is_sign()
    }

    /// Whether the apostrophe at `at` is a part of a number, if digits may be separated. Nothing behind it is looked at: a long
    /// row of such literals would be read once for each.
    fn is_separator(&self, at: usize) -> bool {
        if !self.is_in_number(at) {
            return false;
        }
        let before = (self.code_from..at).rev();
        let Some(mut from) = before.take_while(|at| self.is_in_number(*at)).last() else {
            return false;
        };
        self.work.count(4 * (at - from));
        while from < at {
            let point = usize::from(self.byte(from) == b'.');
            if self.byte(from + point).is_ascii_digit() {
                return true;
            }
            from = self.word_end(from).max(from + 1);
        }
        false
    }

    /// The literal whose opening quote is at `start`, if it is one in this reading.
    fn literal(&mut self, start: usize) -> Option<Token<'a>> {
        let quote = self.text[start];
        self.at = start + 1;
        let before = if start > 0 {
            self.text[start - 1]
        } else {
            b'\n'
        };
        if quote == b'"' && before == b'R' {
            let begin = start
                - self.text[..start]
                    .iter()
                    .rev()
                    .take_while(|byte| is_word(**byte))
                    .count();
            if matches!(
                &self.text[begin..start],
                b"R" | b"LR" | b"uR" | b"UR" | b"u8R"
            ) {
                return Some(Token::RawString);
            }
        }
        if quote == b'\'' {
            let word = self.text[..start]
                .iter()
                .rev()
                .take_while(|byte| is_word(**byte));
            let prefix = &self.text[start - word.count()..start];
            let is_prefix = matches!(prefix, b"" | b"L" | b"u" | b"U" | b"u8");
            self.has_separator |=
                !is_prefix || ends_in_odd_letter(&self.text[..start - prefix.len()]);
        }
        if quote == b'\'' && self.is_separator(start) {
            self.met |= JOINED_APOSTROPHES;
            if self.reading & JOINED_APOSTROPHES != 0 {
                while self.is_in_number(self.at) {
                    self.at += 1;
                }
                return None;
            }
        }
        let mut end = start + 1;
        loop {
            match self.byte(end) {
                b'\n' => {
                    self.met |= LONE_QUOTES;
                    if self.reading & LONE_QUOTES != 0 {
                        self.work.count(end - start);
                        return self.work.is_used_up().then_some(Token::TooMuchOpen);
                    }
                    break;
                }
                b'\\' if self.byte(end + 1) != b'\n' => end += 2,
                byte if byte == quote => break,
                _ => end += 1,
            }
        }
        self.work.count(end - start);
        let is_closed = self.byte(end) == quote;
        self.leave_code(start, end + usize::from(is_closed));
        let is_character = is_closed && quote == b'\'';
        Some(Token::Literal(&self.text[start + 1..end], is_character))
    }
}

impl<'a> Iterator for Lexer<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        loop {
            let start = self.marks.next(self.at);
            self.work.count(STEPS_OF_MARK);
            self.at = start;
            let Some(byte) = self.text.get(start) else {
                self.leave_code(start, start);
                return None;
            };
            match byte {
                b'/' => self.comment(start),
                b'"' | b'\'' => {
                    if let Some(literal) = self.literal(start) {
                        return Some(literal);
                    }
                }
                b'#' => return Some(self.hash(start, 1)),
                b'%' if self.byte(start + 1) == b':' => return Some(self.hash(start, 2)),
                b'%' | b'$' | b'&' => self.at += 1,
                b'\\' => {
                    self.at += 1;
                    if matches!(self.byte(self.at), b'u' | b'U' | b'N') {
                        return Some(Token::UniversalName);
                    }
                }
                _ => {
                    self.at = self.word_end(start);
                    if start == 0 || !is_word(self.text[start - 1]) {
                        return Some(Token::Name(&self.text[start..self.at]));
                    }
                }
            }
        }
    }
}

/// Whether a comment may begin on the line and end on a later one. It may also begin in what one compiler takes for a literal or comment.
pub(super) fn opens_comment(line: &[u8]) -> bool {
    let last = line.windows(2).rposition(|pair| pair == b"/*");
    last.is_some_and(|at| !contains(&line[at + 2..], b"*/"))
}

/// Whether a raw string may begin in a text.
fn opens_raw_string(text: &[u8]) -> bool {
    holds_anywhere(
        text,
        |byte, next| (byte == b'R') & (next == b'"'),
        |rest| {
            let before = &text[..text.len() - rest.len()];
            let word = before.iter().rev().take_while(|byte| is_word(**byte));
            matches!(
                &before[before.len() - word.count()..],
                b"" | b"L" | b"u" | b"U" | b"u8"
            )
        },
    )
}

/// Whether the last of these bytes may be of a word that [`is_word`] does not see.
pub(super) fn ends_in_odd_letter(text: &[u8]) -> bool {
    text.last()
        .is_some_and(|last| *last == b'$' || !last.is_ascii())
}

/// What stands before a name that asks for a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tested {
    No,
    /// A directive that tests for it, defines or undefines it.
    ByDirective,
    /// `defined`.
    ByOperator,
}

/// Whether a byte can be in an identifier or number. `$` and bytes beyond ASCII can in some compilers, but more is found if they
/// separate.
pub(super) fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_'
}

/// Whether a byte may precede `#` in a directive. Beyond ASCII, clang treats some characters as blanks and drops others; NUL is a
/// blank.
fn is_blank(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t' | 0x0B | 0x0C | 0) || !byte.is_ascii()
}
