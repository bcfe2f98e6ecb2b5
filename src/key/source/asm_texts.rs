//! Finds inline assembly in a source: what its assembly code is made of, and which symbols it names.

use super::assembly::{begins_word, is_symbol, word_begins_asm};
use super::lexer::is_word;
use super::scan::Marks;

/// Finds inline assembly whose text may be more than the literals that stand there. A word between them may be a macro, and so a string
/// that `#x` makes of code. Where no parenthesis stands behind `asm`, the text may come from elsewhere, or be code.
///
/// Also finds labels, which name a function or variable, that may begin a statement, or come from a macro. clang joins the label of a
/// function and the name of a variable in it with a period, and an operand may write that (`;.incbin`, measured on Intel's CPU runtime).
/// Older versions of clang take a label with a qualifier; none takes one with operands.
pub(super) struct AsmTexts {
    state: State,
    /// What was read so far ends with a statement. `asm` behind anything else may give the label of a declaration.
    ends_statement: bool,
    /// The line that was read last has a `#` so far, as a directive has.
    is_directive: bool,
    /// There is inline assembly of something else.
    is_found: bool,
    /// There is some without parentheses.
    is_bare: bool,
    has_odd_label: bool,
}

/// Where the code that was read so far ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    Elsewhere,
    /// Behind `asm` and its qualifiers. `is_label`: it may be one.
    Named {
        is_label: bool,
    },
    /// In the parentheses, where only literals stood so far. `is_odd`: some of them are no name.
    InText {
        is_label: bool,
        is_odd: bool,
    },
}

impl State {
    /// No parenthesis stands behind `asm` so far.
    fn is_bare(self) -> bool {
        matches!(self, State::Named { .. })
    }

    fn is_label(self) -> bool {
        match self {
            State::Elsewhere => false,
            State::Named { is_label } | State::InText { is_label, .. } => is_label,
        }
    }
}

impl Default for AsmTexts {
    fn default() -> AsmTexts {
        AsmTexts {
            state: State::Elsewhere,
            ends_statement: false,
            is_directive: false,
            is_found: false,
            is_bare: false,
            has_odd_label: false,
        }
    }
}

impl AsmTexts {
    /// Reads the next span of code of a text or definition. `is_macro`: whether a word may be one.
    pub(super) fn read(&mut self, code: &[u8], is_macro: impl Fn(&[u8]) -> bool) {
        let mut words = Marks::new(code, begins_word);
        let (mut at, mut passed) = (0, 0);
        while at < code.len() {
            let rest = &code[at..];
            let length = rest.iter().take_while(|byte| is_word(**byte)).count();
            let word = &rest[..length];
            let (state, next) = match (self.state, rest[0]) {
                (State::Elsewhere, _) if word_begins_asm(word) => {
                    self.pass(&code[passed..at], true);
                    passed = at;
                    let is_label = !self.ends_statement;
                    (State::Named { is_label }, at + length)
                }
                (State::Elsewhere, _) => (State::Elsewhere, words.next(at + length) + 1),
                // The end of a definition, as which it is read as well.
                (state @ State::Named { .. }, b'\n') if self.is_directive => {
                    (self.is_found, self.is_bare) = (true, true);
                    self.has_odd_label |= state.is_label();
                    (State::Elsewhere, at)
                }
                (state, b' ' | b'\t' | b'\n' | b'\r' | 0x0B | 0x0C) => (state, at + 1),
                (State::Named { is_label }, b'(') => {
                    let is_odd = false;
                    (State::InText { is_label, is_odd }, at + 1)
                }
                (state @ State::Named { .. }, _) if is_qualifier(word) && !is_macro(word) => {
                    (state, at + length)
                }
                (State::InText { .. }, b':') => (State::Elsewhere, at + 1),
                (State::InText { is_label, is_odd }, b')') => {
                    self.has_odd_label |= is_label && is_odd;
                    (State::Elsewhere, at + 1)
                }
                (state, _) => {
                    self.is_found = true;
                    self.is_bare |= state.is_bare();
                    self.has_odd_label |= state.is_label();
                    (State::Elsewhere, at)
                }
            };
            (self.state, at) = (state, next);
        }
        self.pass(&code[passed..], false);
    }

    /// Reads a literal behind the code. Its prefix is in the code.
    pub(super) fn read_literal(&mut self, literal: &[u8]) {
        self.is_bare |= self.state.is_bare();
        if let State::InText { is_odd, .. } = &mut self.state {
            *is_odd |= !is_symbol(literal);
        }
        self.ends_statement = false;
    }

    /// Notes what code ends with. What a directive ends with ends nothing behind its line. `has_asm_behind`: `asm` follows at once.
    fn pass(&mut self, code: &[u8], has_asm_behind: bool) {
        let trimmed = code.trim_ascii_end();
        if let Some(last) = trimmed.last() {
            let is_on_line = has_asm_behind && !code[trimmed.len()..].contains(&b'\n');
            self.ends_statement =
                b";{}".contains(last) && (is_on_line || !self.is_directive_with(trimmed));
        }
        self.is_directive = self.is_directive_with(code);
    }

    /// Whether the line that this code ends in, before which stands what was read, may be a directive.
    fn is_directive_with(&self, code: &[u8]) -> bool {
        let start = code.iter().rposition(|byte| *byte == b'\n');
        let line = &code[start.map_or(0, |at| at + 1)..];
        let has_hash = line.contains(&b'#') || line.windows(2).any(|pair| pair == b"%:");
        has_hash || start.is_none() && self.is_directive
    }

    /// Whether there is such inline assembly in what was read, which ends here. What has not ended goes on elsewhere.
    pub(super) fn is_found(&self) -> bool {
        self.is_found || self.state != State::Elsewhere
    }

    /// Whether there is, or may be, inline assembly without parentheses in what was read, which ends here.
    pub(super) fn is_bare(&self) -> bool {
        self.is_bare || self.state.is_bare()
    }

    /// Whether there is, or may be, such a label in what was read, which ends here.
    pub(super) fn has_odd_label(&self) -> bool {
        self.has_odd_label || self.state.is_label()
    }
}

/// Whether the word may stand between `asm` and its text.
fn is_qualifier(word: &[u8]) -> bool {
    let words = [
        &b"volatile"[..],
        b"__volatile__",
        b"__volatile",
        b"goto",
        b"inline",
    ];
    words.contains(&word)
}
