//! Judges whether the texts of a compilation determine its result, and finds the headers that they name.
//!
//! A cache that is keyed by texts is correct only if equal texts give equal results. They do not if the compiler reads anything
//! else: another file (`.incbin` in inline assembly, some pragmas), the clock (`__DATE__`), or the name of the compiled file, which
//! drivers choose: a random temporary path, a constant, or one character, depending on the driver. [`Texts`] finds all of these. It
//! returns headers (`#include`, `__has_include`, `#embed`) as [`Operand`]s; [`super::include`] follows them and adds their texts to
//! the others.
//!
//! OpenCL C takes its preprocessor from C99 (OpenCL C 3.0 specification, section 6.11 and the translation phases
//! of C99 5.1.1.2). Nearly every driver carries some version of clang, but not all do, and a source may be wrong C
//! that clang accepts. So no text is given a single meaning where lexers differ. Each known difference is a bit
//! of a *reading*; each text is judged in every combination of the differences that it really contains, and one
//! obstacle in one reading is enough. Texts without such oddities are read once.
//!
//! Conditionals are not evaluated: an `#include` under `#if 0` counts, since a driver's macros decide. Macros are expanded only for
//! the names of headers. Instead, once a text pastes tokens, any special name counts that could be put together from the
//! identifiers of all texts.
//!
//! Every build call pays for this, so speed matters: the scan jumps, in blocks that the compiler vectorizes, to the few byte pairs
//! that can open a comment, a literal, a directive or a special name.

mod lexer;
mod pasting;
mod random_name;
mod scan;

use std::borrow::Cow;
use std::collections::HashSet;

use lexer::{Lexer, READINGS, Token, join_lines};
use pasting::Pieces;
use random_name::Spelling;
pub use random_name::{RANDOM_NAME, before_digits, is_spelled_by_environment};
use scan::{contains, escape, find, find_in_any_case};

use crate::fallible::{copy, push};
use crate::outcome::Bypass;

/// Names which make a result depend on more than the text.
const SPECIAL: [(&[u8], Bypass); 14] = [
    (b"__has_include", Bypass::UnresolvedInclude),
    (b"__has_include_next", Bypass::UnresolvedInclude),
    (b"__has_embed", Bypass::UnresolvedInclude),
    (b"__DATE__", Bypass::UsesTimeOrFileName),
    (b"__TIME__", Bypass::UsesTimeOrFileName),
    (b"__TIMESTAMP__", Bypass::UsesTimeOrFileName),
    (b"__FILE__", Bypass::UsesTimeOrFileName),
    (b"__BASE_FILE__", Bypass::UsesTimeOrFileName),
    (b"__FILE_NAME__", Bypass::UsesTimeOrFileName),
    (b"__builtin_FILE", Bypass::UsesTimeOrFileName),
    (b"__builtin_FILE_NAME", Bypass::UsesTimeOrFileName),
    (b"__builtin_source_location", Bypass::UsesTimeOrFileName),
    // These spell out types, and the name of an unnamed type holds the file's name.
    (b"__builtin_dump_struct", Bypass::UsesTimeOrFileName),
    (b"__PRETTY_FUNCTION__", Bypass::UsesTimeOrFileName),
];

/// Operators that run a pragma from anywhere in a line.
const PRAGMA_OPERATORS: [&[u8]; 2] = [b"_Pragma", b"__pragma"];

/// Words of the pragmas that read files or rename headers: `GCC dependency`, `GCC pch_preprocess`, `clang module import`,
/// `include_alias` and others.
const PRAGMA_WORDS: [&[u8]; 4] = [
    b"dependency",
    b"pch_preprocess",
    b"module",
    b"include_alias",
];

/// Macros that are considered for computed header names.
const MAX_DEFINITIONS: usize = 1 << 17;

/// The work on all texts in all their readings: a number of bytes plus a multiple of their length. Texts that show most of the
/// differences between compilers would be read 128 times.
const MAX_READ: usize = 4 << 20;
const MAX_TIMES_READ: usize = 4;

/// Headers that a text may name.
const MAX_OPERANDS: usize = 1 << 15;

/// The operand of an include directive or of `__has_include`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operand {
    /// A literal name in quotes or angle brackets. Drivers differ in where they look for each, so both count the same.
    Name(Vec<u8>),
    /// Tokens from which macros compute a name, with the comments between them.
    Computed(Vec<u8>),
}

/// Texts that are compiled together: the source, its headers and the macro definitions of the build options.
#[derive(Default)]
pub struct Texts<'a> {
    texts: Vec<Text<'a>>,
    pastes: bool,
    makes_strings: bool,
    runs_pragmas: bool,
    assembles: bool,
    /// The length of the texts, and the bytes that were read.
    length: usize,
    read: usize,
    /// The number of texts that were searched for definitions, and the number of definitions.
    searched: usize,
    definitions: usize,
}

struct Text<'a> {
    bytes: Cow<'a, [u8]>,
    /// The differences between readings that occur in it.
    met: u8,
}

impl Text<'_> {
    /// The text with its lines joined, in each of its readings.
    fn readings(&self, each: impl FnMut(&[u8], u8) -> Result<(), Bypass>) -> Result<(), Bypass> {
        self.readings_until(self.bytes.len(), each)
    }

    /// The same, of the first bytes of the text.
    fn readings_until(
        &self,
        end: usize,
        mut each: impl FnMut(&[u8], u8) -> Result<(), Bypass>,
    ) -> Result<(), Bypass> {
        for reading in (0..READINGS).filter(|reading| reading & !self.met == 0) {
            each(&join_lines(&self.bytes[..end], reading, &mut 0)?, reading)?;
        }
        Ok(())
    }
}

impl<'a> Texts<'a> {
    /// Adds a text, and returns the headers that it names in any reading, each once.
    ///
    /// # Errors
    /// Why the texts could give a different result although their bytes are equal.
    pub fn add(&mut self, bytes: impl Into<Cow<'a, [u8]>>) -> Result<Vec<Operand>, Bypass> {
        let bytes = bytes.into();
        let mut operands = HashSet::new();
        let mut met = 0;
        self.length += bytes.len();
        // Reading 0 is clang's. Each scan adds the differences it met, so every combination of them comes up.
        for reading in 0..READINGS {
            if reading & !met == 0 {
                self.read += bytes.len();
                if self.read > MAX_READ + MAX_TIMES_READ * self.length {
                    return Err(Bypass::UnresolvedInclude);
                }
                self.judge(&bytes, reading, &mut met, &mut operands)?;
            }
        }
        push(&mut self.texts, Text { bytes, met })?;
        let mut operands: Vec<_> = operands.into_iter().collect();
        operands.sort_unstable();
        Ok(operands)
    }

    /// The number of texts.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Judges the effect of the texts together.
    ///
    /// # Errors
    /// See [`Texts::add`].
    pub fn finish(&self) -> Result<(), Bypass> {
        let mut runs_pragmas = self.runs_pragmas;
        if self.pastes {
            let mut pieces = Pieces::default();
            self.each_code(|code| pieces.add(code))?;
            if let Some((_, reason)) = SPECIAL.iter().find(|(name, _)| pieces.make(name)) {
                return Err(*reason);
            }
            runs_pragmas |= PRAGMA_OPERATORS.iter().any(|name| pieces.make(name));
        }
        // The operator's text can come from anywhere, by `#x` or in another text, so no place is left out.
        if runs_pragmas {
            let (mut reads, mut mentions) = (false, None);
            self.each_text(|joined| {
                reads |= PRAGMA_WORDS.iter().any(|word| contains(joined, word));
                mentions = mentions.or_else(|| mentions_special(joined));
            })?;
            if let Some(reason) = reads.then_some(Bypass::ReadsFile).or(mentions) {
                return Err(reason);
            }
        }
        if !self.assembles && !self.makes_strings {
            return Ok(());
        }
        let (mut has_asm, mut assembles) = (false, self.assembles);
        self.each_text(|joined| has_asm |= contains(joined, b"asm"))?;
        if !assembles && has_asm {
            self.each_code(|code| assembles |= could_name_a_file_within(code))?;
        }
        match assembles && (self.pastes || has_asm) {
            true => Err(Bypass::ReadsFile),
            false => Ok(()),
        }
    }

    /// Each text with its lines joined, in each reading.
    fn each_text(&self, mut each: impl FnMut(&[u8])) -> Result<(), Bypass> {
        let mut texts = self.texts.iter();
        texts.try_for_each(|text| {
            text.readings(|joined, _| {
                each(joined);
                Ok(())
            })
        })
    }

    /// Each span of code in each reading. Comments and literals are not code.
    fn each_code(&self, mut each: impl FnMut(&[u8])) -> Result<(), Bypass> {
        let mut texts = self.texts.iter();
        texts.try_for_each(|text| {
            text.readings(|joined, reading| Lexer::code_of(joined, reading, &mut |code| each(code)))
        })
    }

    /// Whether one of the texts, or of the given words, could spell the random name that the source ends with. `source` is the
    /// number of the source, and `before` its length up to the name.
    ///
    /// # Errors
    /// There is no memory to tell.
    pub fn could_spell_random_name<'w>(
        &self,
        (source, before): (usize, usize),
        words: impl IntoIterator<Item = &'w [u8]>,
    ) -> Result<bool, Bypass> {
        let mut spelling = Spelling::default();
        for word in words {
            spelling.add(word);
        }
        for (index, text) in self.texts.iter().enumerate() {
            let end = match index == source {
                true => before,
                false => text.bytes.len(),
            };
            text.readings_until(end, |joined, _| {
                spelling.add(joined);
                Ok(())
            })?;
        }
        Ok(spelling.is_possible())
    }

    /// Passes the text after each `#define` to `each`, for texts that were added since, whatever conditions are around it.
    ///
    /// # Errors
    /// They are too many to be tried, or there is no memory for them.
    pub fn new_definitions(
        &mut self,
        mut each: impl FnMut(&[u8]) -> Result<(), Bypass>,
    ) -> Result<(), Bypass> {
        for text in &self.texts[self.searched..] {
            text.readings(|joined, reading| {
                let mut lexer = Lexer::new(joined, reading);
                while let Some(token) = lexer.next() {
                    match token {
                        Token::Directive {
                            name: b"define",
                            first_on_line: true,
                        } => {
                            self.definitions += 1;
                            let definition = lexer.rest_of_directive();
                            if self.definitions > MAX_DEFINITIONS || lexer.is_exhausted() {
                                return Err(Bypass::UnresolvedInclude);
                            }
                            each(definition)?;
                        }
                        // Such as in the text of `#error`, which the judgment passed over.
                        Token::TooMuchOpen => return Err(Bypass::UnresolvedInclude),
                        _ => {}
                    }
                }
                Ok(())
            })?;
        }
        self.searched = self.texts.len();
        Ok(())
    }

    /// Judges one text in one reading.
    fn judge(
        &mut self,
        bytes: &[u8],
        reading: u8,
        met: &mut u8,
        operands: &mut HashSet<Operand>,
    ) -> Result<(), Bypass> {
        let joined = join_lines(bytes, reading, met)?;
        let mut lexer = Lexer::new(&joined, reading);
        let mut last_define = None;
        let mut define_end = None;
        let mut pragma_end = 0;
        while let Some(token) = lexer.next() {
            match token {
                Token::Name(name) if is_question(name) => {
                    let end = || last_define.map_or(0, |at| lexer.directive_end(at));
                    let in_macro = lexer.at() <= *define_end.get_or_insert_with(end)
                        || lexer.may_be_argument(name);
                    if let Some(operand) = question(&mut lexer, name, in_macro)? {
                        add(operands, operand)?;
                    }
                    if lexer.is_exhausted() {
                        return Err(Bypass::UnresolvedInclude);
                    }
                }
                Token::Name(name) => {
                    if let Some(reason) = special(name) {
                        return Err(reason);
                    }
                    self.runs_pragmas |= PRAGMA_OPERATORS.contains(&name);
                }
                Token::Directive {
                    name,
                    first_on_line,
                } => match directive(name) {
                    Known::Include => {
                        let operand = included(&mut lexer, first_on_line, name == b"embed")?;
                        add(operands, operand)?;
                        if lexer.is_exhausted() {
                            return Err(Bypass::UnresolvedInclude);
                        }
                    }
                    Known::Pragma if lexer.at() < pragma_end => {}
                    Known::Pragma => {
                        let line = lexer.rest_of_line();
                        pragma_end = lexer.at() + line.len();
                        if PRAGMA_WORDS.iter().any(|word| contains(line, word)) {
                            return Err(Bypass::ReadsFile);
                        }
                        // A comment can carry the directive on over line ends.
                        self.runs_pragmas |= contains(line, b"/*");
                    }
                    // Elsewhere in a line, `#` makes a string of a macro parameter.
                    Known::No if first_on_line => return Err(Bypass::UnknownDirective),
                    Known::Message if first_on_line => lexer.skip_message(),
                    Known::Harmless if first_on_line && name == b"define" => {
                        (last_define, define_end) = (Some(lexer.at()), None);
                    }
                    Known::Message | Known::Harmless | Known::No => {
                        self.makes_strings |= !first_on_line;
                    }
                },
                Token::Paste => self.pastes = true,
                Token::Literal(literal) => self.assembles |= could_name_a_file(literal),
                // A raw string has another end, and undoes line splices, in languages that have it.
                Token::RawString | Token::TooMuchOpen => return Err(Bypass::UnknownDirective),
                // clang refuses names like `__FIL\u0045__`; another compiler may not.
                Token::UniversalName => return Err(Bypass::UsesTimeOrFileName),
            }
        }
        *met |= lexer.met;
        Ok(())
    }
}

fn add(operands: &mut HashSet<Operand>, operand: Operand) -> Result<(), Bypass> {
    operands.try_reserve(1).map_err(|_| Bypass::NoMemory)?;
    operands.insert(operand);
    match operands.len() > MAX_OPERANDS {
        true => Err(Bypass::TooManyHeaders),
        false => Ok(()),
    }
}

/// The operand of an include directive.
fn included(lexer: &mut Lexer, first_on_line: bool, embeds: bool) -> Result<Operand, Bypass> {
    if let Some(name) = lexer.header_name() {
        // Some compilers ignore text after a name, with a warning. Parameters of `#embed` name no file.
        return match embeds || lexer.is_at_line_end() {
            true => Ok(Operand::Name(copy(name)?)),
            false => Err(Bypass::UnresolvedInclude),
        };
    }
    let rest = lexer.rest_of_directive().trim_ascii();
    match first_on_line && !embeds && !rest.is_empty() {
        true => Ok(Operand::Computed(copy(rest)?)),
        false => Err(Bypass::UnresolvedInclude),
    }
}

/// Whether the name asks the compiler for a file, also in spellings of old compilers such as `__has_include__`.
fn is_question(name: &[u8]) -> bool {
    name.starts_with(b"__has_include") || name.starts_with(b"__has_embed")
}

/// The operand of `__has_include` and the like, unless the name is only tested for or defined. `in_macro`: the name is in a macro's
/// body or arguments, where parameters and other macros may contribute to the operand.
fn question(lexer: &mut Lexer, name: &[u8], in_macro: bool) -> Result<Option<Operand>, Bypass> {
    if lexer.is_defined_or_tested(name) {
        return Ok(None);
    }
    let inside = lexer.parenthesised().flatten();
    let inside = inside.ok_or(Bypass::UnresolvedInclude)?;
    if in_macro && !inside.trim_ascii_start().starts_with(b"\"") {
        return Err(Bypass::UnresolvedInclude);
    }
    match lexer.header_name() {
        Some(name) => Ok(Some(Operand::Name(copy(name)?))),
        None => Ok(Some(Operand::Computed(copy(inside)?))),
    }
}

/// The meaning of a directive's name.
enum Known {
    Include,
    Pragma,
    Message,
    Harmless,
    No,
}

fn directive(name: &[u8]) -> Known {
    match name {
        b"include" | b"include_next" | b"import" | b"embed" | b"__include_macros" => Known::Include,
        b"pragma" => Known::Pragma,
        b"error" | b"warning" => Known::Message,
        b"define" | b"undef" | b"if" | b"ifdef" | b"ifndef" | b"elif" | b"elifdef"
        | b"elifndef" | b"else" | b"endif" | b"line" | b"ident" => Known::Harmless,
        // The null directive, and line markers, which name a file and a line but read nothing.
        b"" => Known::Harmless,
        _ if name[0].is_ascii_digit() => Known::Harmless,
        _ => Known::No,
    }
}

fn special(name: &[u8]) -> Option<Bypass> {
    SPECIAL
        .iter()
        .find(|(special, _)| *special == name)
        .map(|(_, reason)| *reason)
}

/// The reason that follows from the first special name anywhere in the text, even in a comment or a literal.
fn mentions_special(text: &[u8]) -> Option<Bypass> {
    let mut rest = text;
    while let Some(at) = find(rest, b"__") {
        rest = &rest[at..];
        if let Some((_, reason)) = SPECIAL.iter().find(|(name, _)| rest.starts_with(name)) {
            return Some(*reason);
        }
        rest = &rest[1..];
    }
    None
}

/// Whether inline assembly holding this literal could be told to read a file (`.incbin`, `.include`), perhaps
/// with the directive's name cut over several literals, spelled in escapes, or made by the assembler's macros.
fn could_name_a_file(literal: &[u8]) -> bool {
    let start = literal
        .iter()
        .rposition(|byte| !byte.is_ascii_alphabetic())
        .map_or(0, |at| at + 1);
    let tail = &literal[start..];
    let opens = (start == 0 && tail.len() > 2)
        || (start > 0 && literal[start - 1] == b'.' && !tail.is_empty());
    let has_code = || {
        let is_code = |byte: &u8| byte.is_ascii_digit() || b"xuUN".contains(byte);
        let mut rest = literal;
        while let Some(at) = escape(rest) {
            rest = &rest[at + 1..];
            if rest.first().is_some_and(is_code) {
                return true;
            }
        }
        false
    };
    let begins_with_tail = |word: &[u8]| {
        let part = word.get(..tail.len());
        part.is_some_and(|part| part.eq_ignore_ascii_case(tail))
    };
    could_name_a_file_within(literal)
        || find_in_any_case(literal, b"clude").is_some()
        || has_code()
        || (opens && (begins_with_tail(b"incbin") || begins_with_tail(b"include")))
}

/// Whether the text has a part of such a directive, or of a macro's definition. Clang's assembler accepts directives in capitals as
/// well.
fn could_name_a_file_within(text: &[u8]) -> bool {
    // PTX has `atom.inc.u32`.
    let mut rest = text;
    while let Some(at) = find_in_any_case(rest, b".inc") {
        rest = &rest[at + 4..];
        if rest
            .first()
            .is_some_and(|next| !matches!(next, b'.' | b' '))
        {
            return true;
        }
    }
    let mut parts = [&b"cbin"[..], b".macro", b".irp"].into_iter();
    parts.any(|part| find_in_any_case(text, part).is_some())
}

#[cfg(test)]
mod tests;
