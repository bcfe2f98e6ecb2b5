//! Leaves out the groups of lines that no compiler reads (C99 6.10.1).
//!
//! Programs that are C for the host as well include the host's headers where `__OPENCL_VERSION__` is not defined, often behind a macro
//! of their own that depends on it. Such a header can name anything, and no driver reads it.
//!
//! Few conditions are known: those of `defined`, numbers, `!`, `&&`, `||` and parentheses, where the macro is certainly defined.
//! `__OPENCL_VERSION__` and `__OPENCL_C_VERSION__` are from the beginning (OpenCL C 3.0, section 6.11), others from a `#define` on around
//! which all conditions are known to hold, unless the text undefines them anywhere. That no other text does is checked when all are known
//! ([`super::Texts::holds_conditions`]), and so is that each header has been found: a header that a driver has in memory could undefine
//! them.
//!
//! A text in which lexers differ is left as it is.

use std::collections::HashSet;

use super::lexer::{Lexer, Token, is_word};
use super::lines::join_lines;
use super::macro_names::Definition;
use super::scan::{contains, find};
use crate::fallible::{copy, push, with_capacity};
use crate::key::work::Work;
use crate::outcome::Bypass;

/// The macros that each compiler for OpenCL C defines (measured on PoCL, Intel's two runtimes, rusticl and Oclgrind, for OpenCL C 1.0 to
/// 3.0; the specification has the second one since 1.2).
const PREDEFINED: [&[u8]; 2] = [b"__OPENCL_VERSION__", b"__OPENCL_C_VERSION__"];
/// What most texts have in which lines are certainly left out: how those macros begin, and code that somebody has turned off. Others are
/// not searched for such lines.
const HINTS: [&[u8]; 2] = [b"__OPENCL_", b"if 0"];

/// Whether each compiler defines a macro before any text.
pub(super) fn is_predefined(name: &[u8]) -> bool {
    PREDEFINED.contains(&name)
}

/// How deep parentheses may be nested in a condition.
const MAX_NESTED: usize = 32;

/// Steps of each directive.
const STEPS_OF_DIRECTIVE: usize = 16;

/// A text without the groups that are not read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ReadText {
    /// The text with joined lines.
    pub bytes: Vec<u8>,
    /// The macros that must be defined for that.
    pub needed: HashSet<Vec<u8>>,
}

/// The text without the groups that are not read. None: all of it may be read, or that is not certain.
///
/// # Errors
/// There is no memory, or it costs too much.
pub(super) fn without_skipped(text: &[u8], work: &Work) -> Result<Option<ReadText>, Bypass> {
    work.count_search(HINTS.len() * text.len());
    if !HINTS.iter().any(|hint| contains(text, hint)) {
        return Ok(None);
    }
    let mut met = 0;
    let joined = join_lines(text, 0, &mut met, work)?;
    let Some(undefined) = undefined(&joined, work)? else {
        return Ok(None);
    };
    let mut lexer = Lexer::new(&joined, 0, work);
    let mut groups = Groups {
        undefined,
        ..Groups::default()
    };
    while let Some(token) = lexer.next() {
        match token {
            Token::Directive {
                name,
                first_on_line: true,
            } => {
                work.spend(STEPS_OF_DIRECTIVE)?;
                if !groups.pass(&joined, name, &lexer)? {
                    return Ok(None);
                }
            }
            Token::RawString | Token::TooMuchOpen | Token::UniversalName => return Ok(None),
            _ => {}
        }
    }
    let is_certain = met | lexer.met == 0 && !lexer.has_odd_directives() && groups.open.is_empty();
    if !is_certain || groups.skipped.is_empty() {
        return Ok(None);
    }
    let mut bytes = with_capacity(joined.len() + groups.skipped.len())?;
    let mut from = 0;
    for (start, end) in groups.skipped {
        bytes.extend_from_slice(&joined[from..start]);
        bytes.push(b'\n');
        from = end;
    }
    bytes.extend_from_slice(&joined[from..]);
    // It is read like a text as it was written: its lines must not be joined once more.
    if *join_lines(&bytes, 0, &mut met, work)? != *bytes || met != 0 {
        return Ok(None);
    }
    let needed = groups
        .needed
        .into_iter()
        .map(copy)
        .collect::<Result<_, _>>();
    Ok(Some(ReadText {
        bytes,
        needed: needed?,
    }))
}

/// The macros that a text with joined lines undefines, whatever conditions are around that. None: that is not certain.
fn undefined<'a>(joined: &'a [u8], work: &'a Work) -> Result<Option<HashSet<&'a [u8]>>, Bypass> {
    let mut undefined = HashSet::new();
    work.count_search(joined.len());
    if !contains(joined, b"undef") {
        return Ok(Some(undefined));
    }
    let mut lexer = Lexer::new(joined, 0, work);
    while let Some(token) = lexer.next() {
        if let Token::Directive {
            name: b"undef",
            first_on_line: true,
        } = token
        {
            work.spend(STEPS_OF_DIRECTIVE)?;
            let Some(name) = name_at(lexer.rest_of_directive()) else {
                return Ok(None);
            };
            undefined.try_reserve(1).map_err(|_| Bypass::NoMemory)?;
            undefined.insert(name);
        }
    }
    Ok(Some(undefined))
}

/// Whether a group of lines is read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reached {
    Yes,
    No,
    Unknown,
}

/// The groups of one `#if`, up to the one that is open.
struct Conditional {
    around: Reached,
    /// Whether one of the conditions so far holds.
    is_taken: Option<bool>,
    /// Whether the last group is read.
    reached: Reached,
    has_else: bool,
}

/// The conditionals of a text.
#[derive(Default)]
struct Groups<'a> {
    open: Vec<Conditional>,
    /// Where the outermost open group begins that is not read.
    skipped_from: Option<usize>,
    /// Where groups that are not read begin and end.
    skipped: Vec<(usize, usize)>,
    /// The macros that are certainly defined, beside the predefined ones.
    defined: HashSet<&'a [u8]>,
    /// Those that are undefined somewhere, so that they are never certain: the text may include itself.
    undefined: HashSet<&'a [u8]>,
    needed: HashSet<&'a [u8]>,
}

impl<'a> Groups<'a> {
    /// Takes in a directive of a text. Returns false if it is not certain what it does.
    fn pass(&mut self, text: &'a [u8], name: &'a [u8], lexer: &Lexer<'a>) -> Result<bool, Bypass> {
        let no_memory = |_| Bypass::NoMemory;
        let rest = || lexer.rest_of_directive();
        // For clang the name may go on, and some options turn digraphs off.
        let at = name.as_ptr() as usize - text.as_ptr() as usize;
        let is_end = text.get(at + name.len()).is_none_or(ends_word);
        let blanks = text[..at].iter().rev();
        let blanks = blanks.take_while(|byte| b" \t".contains(byte)).count();
        let Some(before) = text[..at - blanks].strip_suffix(b"#").filter(|_| is_end) else {
            return Ok(false);
        };
        match name {
            b"if" | b"ifdef" | b"ifndef" => {
                let around = self.reached();
                self.open.try_reserve(1).map_err(no_memory)?;
                self.open.push(Conditional {
                    around,
                    is_taken: Some(false),
                    reached: around,
                    has_else: false,
                });
                let holds = match around {
                    Reached::No => None,
                    _ => self.condition(name, rest()),
                };
                self.enter(holds, lexer)?;
            }
            b"elif" | b"else" => {
                let Some(last) = self.open.last_mut() else {
                    return Ok(false);
                };
                let (is_taken, is_else) = (last.is_taken, name == b"else");
                if last.has_else {
                    return Ok(false);
                }
                last.has_else = is_else;
                self.leave(before.len())?;
                // Behind a group that is read, a condition may be anything.
                let holds = match (is_else, is_taken) {
                    (true, _) | (false, Some(true)) => Some(is_else),
                    (false, _) => self.condition(b"if", rest()),
                };
                self.enter(holds, lexer)?;
            }
            b"endif" => {
                self.leave(before.len())?;
                if self.open.pop().is_none() {
                    return Ok(false);
                }
            }
            // Older compilers do not know them.
            b"elifdef" | b"elifndef" => return Ok(false),
            b"define" if self.reached() == Reached::Yes => {
                if let Some(name) = Definition::new(rest()).clear_name() {
                    self.defined.try_reserve(1).map_err(no_memory)?;
                    self.defined.insert(name);
                }
            }
            _ => {}
        }
        Ok(true)
    }

    /// Whether the open group is read.
    fn reached(&self) -> Reached {
        self.open.last().map_or(Reached::Yes, |last| last.reached)
    }

    /// Begins the next group of the last conditional. `holds`: its condition, if that is known.
    fn enter(&mut self, holds: Option<bool>, lexer: &Lexer) -> Result<(), Bypass> {
        let Some(last) = self.open.last_mut() else {
            return Ok(());
        };
        last.reached = match (last.around, last.is_taken, holds) {
            (Reached::No, _, _) | (_, Some(true), _) | (_, _, Some(false)) => Reached::No,
            (around, Some(false), Some(true)) => around,
            _ => Reached::Unknown,
        };
        last.is_taken = either(last.is_taken, holds);
        if last.reached == Reached::No && last.around != Reached::No {
            self.skipped_from = Some(lexer.directive_end(lexer.at()));
        }
        Ok(())
    }

    /// Ends the open group where the next directive begins.
    fn leave(&mut self, at: usize) -> Result<(), Bypass> {
        let is_outermost = self
            .open
            .last()
            .is_some_and(|last| last.reached == Reached::No && last.around != Reached::No);
        if let Some(from) = self.skipped_from.take_if(|_| is_outermost) {
            push(&mut self.skipped, (from, at))?;
        }
        Ok(())
    }

    /// Whether the condition of a directive holds.
    fn condition(&mut self, directive: &[u8], text: &'a [u8]) -> Option<bool> {
        let mut condition = Condition { rest: text };
        if directive == b"if" {
            let holds = condition.any(self, 0)?;
            return holds.filter(|_| condition.rest.is_empty());
        }
        let name = condition.name()?;
        condition.skip_blanks();
        let is_defined = self.is_defined(name).filter(|_| condition.rest.is_empty());
        is_defined.map(|is_defined| is_defined == (directive == b"ifdef"))
    }

    /// Whether a macro is defined, if that is certain.
    fn is_defined(&mut self, name: &'a [u8]) -> Option<bool> {
        // What drivers include by themselves is in no file, and undefines reserved names (measured on Oclgrind: `__ovld`).
        let is_own = !name.starts_with(b"_") && self.defined.contains(name);
        let is_defined = (is_predefined(name) || is_own) && !self.undefined.contains(name);
        if is_defined {
            self.needed.insert(name);
        }
        is_defined.then_some(true)
    }
}

/// What is left of a condition. None: it is not understood. `Some(None)`: it is, but whether it holds is unknown.
struct Condition<'a> {
    rest: &'a [u8],
}

impl<'a> Condition<'a> {
    fn any(&mut self, groups: &mut Groups<'a>, nested: usize) -> Option<Option<bool>> {
        let mut holds = self.all(groups, nested)?;
        while self.takes(b"||") {
            holds = either(holds, self.all(groups, nested)?);
        }
        Some(holds)
    }

    fn all(&mut self, groups: &mut Groups<'a>, nested: usize) -> Option<Option<bool>> {
        let not = |holds: Option<bool>| holds.map(|holds| !holds);
        let mut holds = self.one(groups, nested)?;
        while self.takes(b"&&") {
            holds = not(either(not(holds), not(self.one(groups, nested)?)));
        }
        Some(holds)
    }

    fn one(&mut self, groups: &mut Groups<'a>, nested: usize) -> Option<Option<bool>> {
        if nested > MAX_NESTED {
            return None;
        }
        if self.takes(b"!") {
            let holds = self.one(groups, nested + 1)?;
            return Some(holds.map(|holds| !holds));
        }
        if self.takes(b"(") {
            let holds = self.any(groups, nested + 1)?;
            return self.takes(b")").then_some(holds);
        }
        let word = self.name()?;
        if word == b"defined" {
            let has_parenthesis = self.takes(b"(");
            let name = self.name()?;
            let is_closed = !has_parenthesis || self.takes(b")");
            let is_defined = || groups.is_defined(name);
            return is_closed.then(is_defined);
        }
        // One that a macro replaces can have any operators.
        let is_number = word.iter().all(u8::is_ascii_digit) && (word == b"0" || word[0] != b'0');
        is_number.then_some(Some(word != b"0"))
    }

    /// The word that comes next. The end of the condition is one that is empty.
    fn name(&mut self) -> Option<&'a [u8]> {
        self.skip_blanks();
        let name = name_at(self.rest)?;
        self.rest = &self.rest[name.len()..];
        Some(name)
    }

    fn takes(&mut self, sign: &[u8]) -> bool {
        self.skip_blanks();
        let rest = self.rest.strip_prefix(sign);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    /// Skips blanks and comments.
    fn skip_blanks(&mut self) {
        loop {
            let blanks = self.rest.iter().take_while(|byte| b" \t".contains(byte));
            self.rest = &self.rest[blanks.count()..];
            let comment = self.rest.strip_prefix(b"/*");
            let end = comment.and_then(|inside| find(inside, b"*/"));
            let Some(end) = end else {
                return;
            };
            self.rest = &self.rest[end + 4..];
        }
    }
}

/// The word with which a text begins behind blanks, if no other letter may follow it.
pub(super) fn name_at(text: &[u8]) -> Option<&[u8]> {
    let blanks = text.iter().take_while(|byte| b" \t".contains(byte)).count();
    let text = &text[blanks..];
    let length = text.iter().take_while(|byte| is_word(**byte)).count();
    (length > 0 && text.get(length).is_none_or(ends_word)).then(|| &text[..length])
}

/// Whether a byte behind a word is no letter of it for any compiler.
fn ends_word(byte: &u8) -> bool {
    byte.is_ascii() && !b"$\\'.".contains(byte)
}

/// Whether one of two holds.
fn either(one: Option<bool>, other: Option<bool>) -> Option<bool> {
    match (one, other) {
        (Some(true), _) | (_, Some(true)) => Some(true),
        (Some(false), Some(false)) => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read of lines, which are parted by `;`.
    fn read(lines: &str) -> Option<String> {
        let work = Work::default();
        work.allow_for(lines.len());
        let text = lines.replace(';', "\n") + "\n";
        let read = without_skipped(text.as_bytes(), &work).expect("judged")?;
        let read = String::from_utf8(read.bytes).expect("a text");
        let lines = read.lines().filter(|line| !line.is_empty());
        Some(lines.collect::<Vec<_>>().join(";"))
    }

    #[test]
    fn what_is_only_for_the_host_is_left_out() {
        for (lines, expected) in [
            (
                "#ifndef __OPENCL_VERSION__;GONE;#endif;a",
                "#ifndef __OPENCL_VERSION__;#endif;a",
            ),
            (
                "#ifdef __OPENCL_VERSION__;a;#else // host;GONE;#endif;b",
                "#ifdef __OPENCL_VERSION__;a;#else ;#endif;b",
            ),
            (
                "#ifdef __OPENCL_VERSION__;# define CL;#elif defined(__CUDACC__);GONE;#endif;#ifdef CL;a;#elif X;GONE;#else;GONE;#if X;GONE;#else;GONE;#endif;#endif",
                "#ifdef __OPENCL_VERSION__;# define CL;#elif defined(__CUDACC__);#endif;#ifdef CL;a;#elif X;#else;#endif",
            ),
            (
                "#if !defined __OPENCL_VERSION__ && (X || 1);a;#endif;#if !(defined(__OPENCL_VERSION__) || defined(X));GONE;#else;b;#endif",
                "#if !defined __OPENCL_VERSION__ && (X || 1);a;#endif;#if !(defined(__OPENCL_VERSION__) || defined(X));#else;b;#endif",
            ),
            (
                "#if !defined __OPENCL_VERSION__ && (defined X || 1);GONE;/*;#endif;*/;GONE;  #  endif;b",
                "#if !defined __OPENCL_VERSION__ && (defined X || 1);#  endif;b",
            ),
            (
                "#define A;#ifdef A;a;#endif;#undef A;#ifndef __OPENCL_VERSION__;GONE;#endif",
                "#define A;#ifdef A;a;#endif;#undef A;#ifndef __OPENCL_VERSION__;#endif",
            ),
            ("#if 0;GONE;#endif;a", "#if 0;#endif;a"),
            (
                "#if 0;GONE;#elif 1;__OPENCL_VERSION__;#else;GONE;#endif",
                "#if 0;#elif 1;__OPENCL_VERSION__;#else;#endif",
            ),
            (
                "#ifdef __OPENCL_C_VERSION__ /* here */;a;#else;GONE;#endif",
                "#ifdef __OPENCL_C_VERSION__ /* here */;a;#else;#endif",
            ),
            (
                "#if /* not */ ! /**/ defined(/**/ __OPENCL_VERSION__ /**/) /**/;GONE;#endif",
                "#if /* not */ ! /**/ defined(/**/ __OPENCL_VERSION__ /**/) /**/;#endif",
            ),
            (
                "#ifndef \\;__OPENCL_VERSION__;GONE \\;GONE;#endif;a",
                "#ifndef __OPENCL_VERSION__;#endif;a",
            ),
        ] {
            assert_eq!(read(lines).as_deref(), Some(expected), "{lines}");
        }
    }

    #[test]
    fn what_may_be_read_stays() {
        for lines in [
            "a",
            "#ifdef __OPENCL_VERSION__;a;#endif",
            "#ifdef X;a;#else;__OPENCL_VERSION__;#endif",
            "#if __OPENCL_VERSION__ >= 200;a;#else;b;#endif",
            "#if !defined(__OPENCL_VERSION__) || X;a;#endif",
            "#if !defined(__OPENCL_VERSION__) ? 0 : 1;a;#endif",
            "#if !defined(__OPENCL_VERSION__$);a;#endif",
            "#ifndef __OPENCL_VERSION__X;a;#endif",
            "#ifndef __OPENCL_VERSION__\u{e9};a;#endif",
            "#ifndef __OPENCL_VERSION__ a;b;#endif",
            "#ifndef __OPENCL_VERSION__ /* ;b;*/;#endif;;'",
            "#if 00 + defined(__OPENCL_VERSION__);a;#endif",
            "#if 08 && !defined(__OPENCL_VERSION__);a;#endif",
            "#if X;#define Y __OPENCL_VERSION__;#endif;#ifndef Y;a;#endif",
            "#if 1;#else;#define Y __OPENCL_VERSION__;#endif;#ifndef Y;a;#endif;'",
            "#define Y __OPENCL_VERSION__;#undef Y;#ifndef Y;a;#endif",
            "#define Y$ __OPENCL_VERSION__;#ifndef Y;a;#endif",
            "#define _Y __OPENCL_VERSION__;#ifndef _Y;a;#endif",
            "/*;#define Y;*/;#ifndef Y;__OPENCL_VERSION__;#endif",
            "#if 0;a;__OPENCL_VERSION__",
            "#endif;#ifndef __OPENCL_VERSION__;a;#endif",
            "#ifndef __OPENCL_VERSION__;a;#else;b;#else;c;#endif",
            "#ifndef __OPENCL_VERSION__;a;%:endif",
            "#ifndef __OPENCL_VERSION__;a;#/**/endif",
            "#ifndef __OPENCL_VERSION__;a;#elifdef X;b;#endif",
            "#ifndef __OPENCL_VERSION__;#if$ 1;#endif;a;#if 0;#endif$;#endif",
            "#ifndef __OPENCL_VERSION__;#if\u{e9} 1;#endif;a;#if 0;#endif\u{e9};#endif",
            "%:define X;#ifndef __OPENCL_VERSION__;a;#endif",
            "#undef /**/ X;#ifndef __OPENCL_VERSION__;a;#endif",
            "#ifndef __OPENCL_VERSION__;don't;#endif",
            "#ifndef __OPENCL_VERSION__;a\\ ;#endif",
            "#ifndef __OPENCL_VERSION__;??/;#endif",
            "#ifndef __OPENCL_VERSION__;#error a /* b;#endif;*/;#endif",
            "#ifndef __OPENCL_VERSION__;R\"(a;)\";#endif",
            "#ifndef __OPENCL_VERSION__;a;#endif;\\\\;;b",
        ] {
            assert_eq!(read(lines), None, "{lines}");
        }
    }

    #[test]
    fn what_must_be_defined_is_told() {
        let text = b"#define A\n#define B\n#if defined(A) && !defined(C)\n#else\n#endif\n#ifndef __OPENCL_VERSION__\n#endif";
        let work = Work::default();
        let read = without_skipped(text, &work).expect("judged");
        let needed = read.expect("something is left out").needed;
        assert_eq!(
            needed,
            HashSet::from([PREDEFINED[0].to_vec(), b"A".to_vec()])
        );
    }
}
