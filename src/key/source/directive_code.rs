//! Whether macros may take a part of a directive as their arguments: its parentheses, without those in literals and comments.

use super::lexer::{Lexer, ends_in_odd_letter, is_word};
use crate::fallible;
use crate::key::work::Work;
use crate::outcome::Bypass;

/// Literals, comments and names of headers in one directive that are told from its code.
const MAX_SKIPPED: usize = 16;
/// The code of a directive before a question that is looked at, in bytes.
const MAX_CODE_BYTES: usize = 4096;

/// Where the code of the last directive is.
#[derive(Default)]
pub(super) struct DirectiveCode {
    /// The end of the directive's name.
    from: Option<usize>,
    skipped: [(usize, usize); MAX_SKIPPED],
    /// The number of parts that are no code, also those beyond the kept ones.
    count: usize,
}

impl DirectiveCode {
    /// A directive begins behind its name.
    pub(super) fn begin(&mut self, from: usize) {
        (self.from, self.count) = (Some(from), 0);
    }

    /// A part is no code.
    pub(super) fn skip(&mut self, from: usize, to: usize) {
        if let Some(place) = self.skipped.get_mut(self.count) {
            *place = (from, to);
        }
        self.count += 1;
    }

    /// Whether a directive's name ends here.
    pub(super) fn begins_at(&self, at: usize) -> bool {
        self.from == Some(at)
    }

    /// Whether a macro may take what is at `at` as its argument.
    pub(super) fn may_be_argument(&self, text: &[u8], at: usize, work: &Work) -> bool {
        let Some(from) = self.from.filter(|from| at - from <= MAX_CODE_BYTES) else {
            return true;
        };
        if self.count > MAX_SKIPPED {
            return true;
        }
        work.count(2 * (at - from));
        let Ok(mut code) = fallible::with_capacity(at - from) else {
            return true;
        };
        let mut reached = from;
        for (start, end) in &self.skipped[..self.count] {
            // What begins before the end of the directive's name is a comment before it.
            if (reached..at).contains(start) {
                code.extend_from_slice(&text[reached..*start]);
                code.push(b' ');
                reached = *end;
            }
        }
        code.extend_from_slice(text.get(reached..at).unwrap_or_default());
        is_in_call(&code)
    }
}

/// Whether one of the parentheses that are open at the end may belong to a macro, or what is open is unknown.
fn is_in_call(code: &[u8]) -> bool {
    let mut closed = 0;
    for (at, byte) in code.iter().enumerate().rev() {
        match byte {
            b'\n' => return true,
            b')' => closed += 1,
            b'(' if closed > 0 => closed -= 1,
            b'(' if calls(code[..at].trim_ascii_end()) => return true,
            _ => {}
        }
    }
    // What closes more than it opens is behind a macro that opens.
    closed > 0
}

/// Whether a parenthesis behind this may begin the arguments of a macro: behind a name, and behind arguments whose macro makes a name.
fn calls(before: &[u8]) -> bool {
    match before.last() {
        None => false,
        Some(last) if is_word(*last) => {
            let length = before.iter().rev().take_while(|byte| is_word(**byte));
            let (before, word) = before.split_at(before.len() - length.count());
            word != b"defined" || ends_in_odd_letter(before)
        }
        Some(last) => !b"(&|!=<>+-*/%^~?:,".contains(last),
    }
}

/// Whether a definition closes each parenthesis that it opens. Otherwise it may begin or end the arguments of other macros.
///
/// # Errors
/// It costs too much to tell, or there is no memory.
pub(super) fn is_balanced(definition: &[u8], reading: u8, work: &Work) -> Result<bool, Bypass> {
    let (mut open, mut is_balanced) = (0, true);
    Lexer::code_of(definition, reading, work, &mut |code| {
        for byte in code {
            open += i64::from(*byte == b'(') - i64::from(*byte == b')');
            is_balanced &= open >= 0;
        }
    })?;
    Ok(is_balanced && open == 0)
}
