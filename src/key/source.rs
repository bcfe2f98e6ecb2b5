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
//! Conditionals are hardly evaluated, since a driver's macros decide: see [`conditions`]. Macros are expanded only for the names of
//! headers. Instead, once a text pastes tokens, any special name counts that could be put together from the
//! identifiers of all texts that can become operands of `##`: those in definitions, and in the arguments of macros.
//!
//! Every build call pays for this, so speed matters: the scan jumps, in blocks that the compiler vectorizes, to the few byte pairs
//! that can open a comment, a literal, a directive or a special name.

mod asm_texts;
mod assembly;
mod conditions;
mod directive_code;
mod language;
mod lexer;
mod lines;
mod macro_names;
mod operands;
mod pasting;
mod pragma_words;
mod random_name;
mod scan;
mod together;

use std::borrow::Cow;
use std::collections::HashSet;

use assembly::{ASM_LETTERS, could_name_a_file, has_escape, is_symbol, may_have_operand};
use conditions::{is_predefined, name_at, without_skipped};
pub use language::could_be_cpp;
use lexer::{JOINED_APOSTROPHES, Lexer, READINGS, Tested, Token, opens_comment};
use lines::join_lines;
pub use operands::Operand;
use operands::{included, is_question, question};
use pragma_words::{has_pragma_word, is_pragma_comment};
use random_name::Spelling;
pub use random_name::{RANDOM_NAME, before_digits, is_spelled_by_environment};
use scan::{contains, holds_anywhere};

use super::work::Work;
use crate::fallible::push;
use crate::outcome::Bypass;

/// Names which make a result depend on more than the text. The last ones do so only in C++ ([`special_names`]).
const SPECIAL: [(&[u8], Bypass); 17] = [
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
    (b"__func__", Bypass::UsesTimeOrFileName),
    (b"__FUNCTION__", Bypass::UsesTimeOrFileName),
    (b"__builtin_FUNCTION", Bypass::UsesTimeOrFileName),
];

/// How many special names there are in C.
const SPECIAL_IN_C: usize = 14;

/// Operators that run a pragma from anywhere in a line.
const PRAGMA_OPERATORS: [&[u8]; 2] = [b"_Pragma", b"__pragma"];

/// Macros of drivers that make strings by `#` (measured: of PoCL 3.1; Intel's CPU runtime, rusticl and clang's headers have none).
const STRING_MAKERS: [&[u8]; 1] = [b"_CL_STATIC_ASSERT"];

/// How the macros of Intel's GPU driver begin that paste two arguments, and that its headers leave to programs (measured on 22.43; its
/// others paste them to words of their own, and those of other drivers paste none). A program has no use for them.
const PASTERS: &[u8] = b"__CLFN_";

/// The names that begin inline assembly.
const ASM_NAMES: [&[u8]; 4] = [b"asm", b"_asm", b"__asm", b"__asm__"];

/// Attributes that give a symbol a name from a string, which an operand of inline assembly may write (measured on Intel's CPU runtime).
const SYMBOL_NAMES: [&[u8]; 2] = [b"weakref", b"__weakref__"];

/// Steps for each text in each pass, however short it is.
const STEPS_OF_TEXT: usize = 64;
/// Steps for each header that a text names.
const STEPS_OF_OPERAND: usize = 128;
/// Steps for the words in each byte of code.
const STEPS_OF_WORDS: usize = 2;

/// Headers that a text may name.
const MAX_OPERANDS: usize = 1 << 15;

/// Texts that are compiled together: the source, its headers and the macro definitions of the build options.
#[derive(Default)]
pub struct Texts<'a> {
    texts: Vec<Text<'a>>,
    /// They could be C++ for OpenCL.
    is_cpp: bool,
    pastes: bool,
    makes_strings: bool,
    runs_pragmas: bool,
    /// A literal could name a file in inline assembly.
    names_assembled: bool,
    /// A literal could not be the name of a symbol.
    has_odd_literal: bool,
    /// A literal could have an operand of inline assembly.
    has_operand: bool,
    /// The letters of the word that begins inline assembly stand somewhere.
    mentions_asm: bool,
    /// It asks for a file.
    asks: bool,
    /// Groups of lines are left out that are certainly not read.
    leaves_out: bool,
    /// The macros that must be defined for that.
    needed: HashSet<Vec<u8>>,
    /// The macros that a text undefines.
    undefined: HashSet<Vec<u8>>,
    /// A pragma, or a directive that is not understood, may undefine any macro.
    undefines_any: bool,
    work: Work,
    /// The number of texts that were searched for definitions.
    searched: usize,
}

struct Text<'a> {
    bytes: Cow<'a, [u8]>,
    /// The differences between readings that occur in it.
    met: u8,
    /// It is a macro's definition without `#define`, from the options.
    is_definition: bool,
}

impl Text<'_> {
    /// The text with its lines joined, in each of its readings.
    fn readings(
        &self,
        work: &Work,
        each: impl FnMut(&[u8], u8) -> Result<(), Bypass>,
    ) -> Result<(), Bypass> {
        self.readings_until(self.bytes.len(), work, each)
    }

    /// The same, of the first bytes of the text.
    fn readings_until(
        &self,
        end: usize,
        work: &Work,
        mut each: impl FnMut(&[u8], u8) -> Result<(), Bypass>,
    ) -> Result<(), Bypass> {
        for reading in (0..READINGS).filter(|reading| reading & !self.met == 0) {
            work.spend(STEPS_OF_TEXT)?;
            let joined = join_lines(&self.bytes[..end], reading, &mut 0, work)?;
            each(&joined, reading)?;
        }
        Ok(())
    }
}

impl<'a> Texts<'a> {
    /// No texts. Whatever is done with them counts its steps.
    pub fn new(work: Work) -> Texts<'a> {
        Texts {
            work,
            ..Texts::default()
        }
    }

    /// The same, compiled with these options.
    pub fn with_options(self, options: &[u8]) -> Texts<'a> {
        let is_cpp = could_be_cpp(options);
        Texts { is_cpp, ..self }
    }

    /// The same, without the groups of lines that their conditions leave out. No text can be added any more when
    /// [`Texts::holds_conditions`] is false.
    pub fn leaving_out(self) -> Texts<'a> {
        Texts {
            leaves_out: true,
            ..self
        }
    }

    /// Whether the macros by which lines were left out are defined to the end of all texts so far. What they do together
    /// ([`Texts::finish`]) may deny it.
    pub fn holds_conditions(&self) -> bool {
        let is_certain = !self.undefines_any && !self.runs_pragmas;
        self.needed.is_empty() || is_certain && self.needed.is_disjoint(&self.undefined)
    }

    /// Whether lines were left out by macros that the texts define themselves.
    pub fn relies_on_own_macros(&self) -> bool {
        let mut needed = self.needed.iter();
        needed.any(|name| !is_predefined(name))
    }

    /// Adds a text, and returns the headers that it names in any reading, each once.
    ///
    /// # Errors
    /// Why the texts could give a different result although their bytes are equal.
    pub fn add(&mut self, bytes: impl Into<Cow<'a, [u8]>>) -> Result<Vec<Operand>, Bypass> {
        self.add_text(bytes.into(), false)
    }

    /// Adds a macro's definition from the options: `NAME` or `NAME=VALUE`.
    ///
    /// # Errors
    /// See [`Texts::add`].
    pub fn add_definition(&mut self, bytes: &'a [u8]) -> Result<Vec<Operand>, Bypass> {
        self.add_text(bytes.into(), true)
    }

    fn add_text(
        &mut self,
        bytes: Cow<'a, [u8]>,
        is_definition: bool,
    ) -> Result<Vec<Operand>, Bypass> {
        let mut operands = HashSet::new();
        let mut met = 0;
        let work = self.work.clone();
        work.allow_for(bytes.len());
        let mut bytes = bytes;
        // In C++ numbers have other signs.
        if self.leaves_out
            && !is_definition
            && !self.is_cpp
            && let Some(read) = without_skipped(&bytes, &work)?
        {
            bytes = Cow::Owned(read.bytes);
            self.needed.extend(read.needed);
        }
        let before = work.spent();
        let mut read = 0;
        // Reading 0 is clang's. Each scan adds the differences it met, so every combination of them comes up.
        for reading in 0..READINGS {
            if reading & !met == 0 {
                work.spend(STEPS_OF_TEXT)?;
                self.judge(&bytes, reading, &mut met, &mut operands)?;
                read += 1;
                // A text that takes too many readings is given up after the first one, not after the last that is allowed.
                let left = (1usize << met.count_ones()) - read;
                work.check((work.spent() - before) / read * left)?;
            }
        }
        // In C++ numbers have other signs, so that the words in a computed name are not known.
        if self.is_cpp
            && operands
                .iter()
                .any(|operand| matches!(operand, Operand::Computed(_)))
        {
            return Err(Bypass::UnresolvedInclude);
        }
        let text = Text {
            bytes,
            met,
            is_definition,
        };
        push(&mut self.texts, text)?;
        // Its headers are not looked for in vain.
        if self.leaves_out && !self.holds_conditions() {
            return Err(Bypass::UnresolvedInclude);
        }
        let mut operands: Vec<_> = operands.into_iter().collect();
        operands.sort_unstable();
        Ok(operands)
    }

    /// The number of texts.
    pub fn len(&self) -> usize {
        self.texts.len()
    }

    /// Whether one of the texts, or of the given words, could spell the random name that the source ends with. `source` is the
    /// number of the source, and `length` that of its end from the name on.
    ///
    /// # Errors
    /// It costs too much to tell, or there is no memory.
    pub fn could_spell_random_name<'w>(
        &self,
        (source, length): (usize, usize),
        words: impl IntoIterator<Item = &'w [u8]>,
    ) -> Result<bool, Bypass> {
        let mut spelling = Spelling::default();
        for word in words {
            spelling.add(word);
        }
        for (index, text) in self.texts.iter().enumerate() {
            let end = match index == source {
                true => length,
                false => 0,
            };
            text.readings_until(text.bytes.len() - end, &self.work, |joined, _| {
                self.work.count(2 * STEPS_OF_WORDS * joined.len());
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
        let new = self.texts[self.searched..].iter();
        self.definitions(new, |definition, _| each(definition))?;
        self.searched = self.texts.len();
        Ok(())
    }

    /// The text after each `#define` of some texts, in each reading.
    fn definitions<'t>(
        &self,
        texts: impl Iterator<Item = &'t Text<'a>>,
        mut each: impl FnMut(&[u8], u8) -> Result<(), Bypass>,
    ) -> Result<(), Bypass>
    where
        'a: 't,
    {
        let work = &self.work;
        for text in texts {
            text.readings(work, |joined, reading| {
                let mut lexer = Lexer::new(joined, reading, work);
                while let Some(token) = lexer.next() {
                    match token {
                        Token::Directive {
                            name: b"define",
                            first_on_line: true,
                        } => {
                            let definition = lexer.rest_of_directive();
                            work.check(0)?;
                            each(definition, reading)?;
                        }
                        // Such as in the text of `#error`, which the judgment passed over.
                        Token::TooMuchOpen => return Err(Bypass::CostlyText),
                        _ => {}
                    }
                }
                Ok(())
            })?;
        }
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
        let work = self.work.clone();
        let joined = join_lines(bytes, reading, met, &work)?;
        work.count_search(joined.len());
        self.mentions_asm = self.mentions_asm || contains(&joined, ASM_LETTERS);
        let mut lexer = Lexer::new(&joined, reading, &work);
        let mut last_define = None;
        let mut define_end = None;
        let mut pragma_end = 0;
        while let Some(token) = lexer.next() {
            match token {
                Token::Name(name) if is_question(name) => {
                    let end = || last_define.map_or(0, |at| lexer.directive_end(at));
                    let in_definition = lexer.at() <= *define_end.get_or_insert_with(end);
                    let in_macro = in_definition || lexer.may_be_argument(name);
                    // Also what only seems to be tested for may stand behind a macro that opens a call.
                    self.asks |= lexer.tested(name) == Tested::ByOperator;
                    let operand = question(&mut lexer, name, in_macro, in_definition)?;
                    if let Some(operand) = operand {
                        self.asks = true;
                        add(operands, operand, &work)?;
                    }
                    work.check(0)?;
                }
                Token::Name(name) => {
                    let mut special = special_names(self.is_cpp).iter();
                    if let Some((_, reason)) = special.find(|(special, _)| *special == name) {
                        return Err(*reason);
                    }
                    if name.starts_with(PASTERS) {
                        return Err(Bypass::UsesTimeOrFileName);
                    }
                    self.runs_pragmas |= PRAGMA_OPERATORS.contains(&name);
                    self.makes_strings |= STRING_MAKERS.contains(&name);
                }
                Token::Directive {
                    name,
                    first_on_line,
                } => {
                    // Elsewhere in a line, `#` makes a string of a macro parameter, whatever that is called.
                    self.makes_strings |= !first_on_line;
                    match directive(name) {
                        Known::Include => {
                            let operand = included(&mut lexer, first_on_line, name == b"embed")?;
                            add(operands, operand, &work)?;
                        }
                        Known::Pragma if lexer.at() < pragma_end => {}
                        Known::Pragma => {
                            let line = lexer.rest_of_line();
                            self.undefines_any |= contains(line, b"pop_macro");
                            pragma_end = lexer.at() + line.len();
                            // A comment carries the directive on over line ends, unless it is `#pragma mark`, in which clang reads none.
                            if has_pragma_word(line)
                                || is_pragma_comment(line)
                                || opens_comment(line)
                            {
                                return Err(Bypass::ReadsFile);
                            }
                        }
                        Known::No if first_on_line => return Err(Bypass::UnknownDirective),
                        Known::Harmless if first_on_line && name == b"define" => {
                            (last_define, define_end) = (Some(lexer.at()), None);
                        }
                        Known::Harmless if first_on_line && name == b"undef" => {
                            match name_at(lexer.rest_of_directive()) {
                                Some(name) => drop(self.undefined.insert(name.to_vec())),
                                None => self.undefines_any = true,
                            }
                        }
                        Known::Harmless | Known::No => {}
                    }
                }
                Token::Paste => self.pastes = true,
                Token::Literal(literal, is_character) => {
                    self.names_assembled |= could_name_a_file(literal, is_character);
                    self.has_odd_literal |= !is_character && !is_symbol(literal);
                    self.has_operand |= !is_character && may_have_operand(literal);
                }
                // A raw string has another end, and undoes line splices, in languages that have it.
                Token::RawString => return Err(Bypass::UnknownDirective),
                Token::TooMuchOpen => return Err(Bypass::CostlyText),
                // clang refuses names like `__FIL\u0045__`; another compiler may not.
                Token::UniversalName => return Err(Bypass::UsesTimeOrFileName),
            }
        }
        *met |= lexer.met;
        // In C++ numbers have other signs as well (`1p+a`), so that two readings do not say where one ends.
        let has_separator = lexer.has_separator || lexer.met & JOINED_APOSTROPHES != 0;
        let is_odd = lexer.has_odd_directives() || self.is_cpp && has_separator;
        match is_odd {
            true => Err(Bypass::UnknownDirective),
            false => Ok(()),
        }
    }
}

fn add(operands: &mut HashSet<Operand>, operand: Operand, work: &Work) -> Result<(), Bypass> {
    let (Operand::Name(text) | Operand::Computed(text)) = &operand;
    work.spend(STEPS_OF_OPERAND + text.len())?;
    operands.try_reserve(1).map_err(|_| Bypass::NoMemory)?;
    operands.insert(operand);
    match operands.len() > MAX_OPERANDS {
        true => Err(Bypass::TooManyHeaders),
        false => Ok(()),
    }
}

/// The meaning of a directive's name.
enum Known {
    Include,
    Pragma,
    Harmless,
    No,
}

fn directive(name: &[u8]) -> Known {
    match name {
        b"include" | b"include_next" | b"import" | b"embed" | b"__include_macros" => Known::Include,
        b"pragma" => Known::Pragma,
        b"error" | b"warning" | b"define" | b"undef" | b"if" | b"ifdef" | b"ifndef" | b"elif"
        | b"elifdef" | b"elifndef" | b"else" | b"endif" | b"line" | b"ident" => Known::Harmless,
        // The null directive, and line markers, which name a file and a line but read nothing.
        b"" => Known::Harmless,
        _ if name[0].is_ascii_digit() => Known::Harmless,
        _ => Known::No,
    }
}

/// Whether a directive of this name tests for a macro, defines or undefines it.
fn names_a_macro(name: &[u8]) -> bool {
    matches!(
        name,
        b"ifdef" | b"ifndef" | b"elifdef" | b"elifndef" | b"define" | b"undef"
    )
}

/// The special names of a language. In C++ the name of a function holds types, and that of an unnamed type the file's name.
fn special_names(is_cpp: bool) -> &'static [(&'static [u8], Bypass)] {
    match is_cpp {
        true => &SPECIAL,
        false => &SPECIAL[..SPECIAL_IN_C],
    }
}

/// The reason that follows from the first special name anywhere in the text, even in a comment or a literal.
fn mentions_special(text: &[u8], is_cpp: bool) -> Option<Bypass> {
    let mut reason = None;
    let begins = |byte: u8, next: u8| (byte == b'_') & (next == b'_');
    holds_anywhere(text, begins, |rest| {
        // A row of underscores has many beginnings.
        let is_name = rest.get(2).is_some_and(u8::is_ascii_alphabetic);
        let mut names = special_names(is_cpp).iter();
        let found = names.find(|(name, _)| is_name && rest.starts_with(name));
        reason = found.map(|(_, reason)| *reason);
        found.is_some()
    });
    reason
}

#[cfg(test)]
mod tests;
