//! What texts could do together that none of them does alone.

use std::cell::OnceCell;
use std::ops::Range;

use super::assembly::{
    Operand, begins_a_directive, code_could_name_a_file, has_asm, period_could_name_a_file,
};
use super::directive_code::is_balanced;
use super::lexer::Lexer;
use super::macro_names::{CallWords, Definition, MacroNames, PastedNames};
use super::pasting::Pieces;
use super::scan::contains;
use super::{
    ASM_NAMES, PRAGMA_OPERATORS, PRAGMA_WORDS, STEPS_OF_WORDS, Texts, has_pragma_word,
    mentions_special, special_names,
};
use crate::outcome::Bypass;

impl Texts<'_> {
    /// Judges the effect of the texts together.
    ///
    /// # Errors
    /// See [`Texts::add`].
    pub fn finish(&self) -> Result<(), Bypass> {
        if self.asks && !self.are_definitions_balanced()? {
            return Err(Bypass::UnresolvedInclude);
        }
        // `#x` joins tokens that no white space parts: the string of a pragma may hold names that nothing pastes.
        let joins_tokens = self.pastes || self.runs_pragmas && self.makes_strings;
        let macros = OnceCell::new();
        let pieces = match joins_tokens {
            true => self.joined_pieces(&macros)?,
            false => None,
        };
        let makes = |names: &[&[u8]]| {
            let makes_one = |pieces: &Pieces| names.iter().any(|name| pieces.make(name));
            pieces.as_ref().is_some_and(makes_one)
        };
        let mut special = special_names(self.is_cpp).iter();
        if let Some((_, reason)) = special.find(|(name, _)| makes(&[*name])) {
            return Err(*reason);
        }
        let runs_pragmas = self.runs_pragmas || makes(&PRAGMA_OPERATORS);
        // The operator takes one string, so a word that is joined comes to it by `#x`.
        if runs_pragmas && self.makes_strings && makes(&PRAGMA_WORDS) {
            return Err(Bypass::ReadsFile);
        }
        if runs_pragmas {
            self.judge_pragmas()?;
        }
        // In C++ the text of inline assembly may be a constant that is computed.
        let has_text = self.is_cpp || self.names_assembled;
        let may_assemble = has_text || self.makes_strings;
        let assembles = may_assemble && (self.pastes && makes(&ASM_NAMES) || self.has_asm()?);
        match assembles && (has_text || self.makes_name_assembled(&macros)?) {
            true => Err(Bypass::ReadsFile),
            false => Ok(()),
        }
    }

    /// The operator's text can come from anywhere, by `#x` or in another text, so no place is left out.
    fn judge_pragmas(&self) -> Result<(), Bypass> {
        let (mut reads, mut mentions) = (false, None);
        self.each_reading(|joined, _| {
            self.work.count(STEPS_OF_WORDS * joined.len());
            reads |= has_pragma_word(joined);
            mentions = mentions.or_else(|| mentions_special(joined, self.is_cpp));
            Ok(())
        })?;
        match reads.then_some(Bypass::ReadsFile).or(mentions) {
            Some(reason) => Err(reason),
            None => Ok(()),
        }
    }

    /// The pieces of forbidden names that `##` or `#x` could join, if all words of the texts together make such a name.
    fn joined_pieces(&self, macros: &OnceCell<MacroNames>) -> Result<Option<Pieces>, Bypass> {
        let mut all = Pieces::default();
        self.each_reading(|joined, reading| self.each_code(joined, reading, |code| all.add(code)))?;
        if !all.make_any(self.is_cpp) {
            return Ok(None);
        }
        let macros = self.macro_names(macros)?;
        let mut pieces = Pieces::default();
        self.each_definition(|definition, reading| {
            let replaced = Definition::new(definition).replaced(definition);
            self.each_code(definition, reading, |code| {
                pieces.add_unless(code, |word| replaced.contains(word));
            })
        })?;
        let runs_on = self.each_word(macros, macros.are_clear(), |code, word, is_in_call| {
            if is_in_call {
                pieces.add(&code[word]);
            }
        })?;
        // A call that begins in a header may end in the text that includes it.
        Ok(Some(if runs_on { all } else { pieces }))
    }

    /// Gives `each` the words and periods in the code of the texts, and whether calls of macros may get them. `knows_calls`: otherwise they
    /// may get all. Returns whether a call has no end in its text.
    fn each_word(
        &self,
        macros: &MacroNames,
        knows_calls: bool,
        mut each: impl FnMut(&[u8], Range<usize>, bool),
    ) -> Result<bool, Bypass> {
        let mut runs_on = false;
        self.each_reading(|joined, reading| {
            let mut calls = CallWords::new(macros, !knows_calls, reading);
            self.each_code(joined, reading, |code| {
                calls.find(code, |word, is_in_call| each(code, word, is_in_call));
            })?;
            runs_on |= calls.are_open();
            Ok(())
        })?;
        Ok(runs_on)
    }

    fn has_asm(&self) -> Result<bool, Bypass> {
        let mut has = false;
        self.each_reading(|joined, reading| {
            self.work.count_search(joined.len());
            if has || !contains(joined, b"asm") {
                return Ok(());
            }
            self.each_code(joined, reading, |code| has |= has_asm(code))
        })?;
        Ok(has)
    }

    /// Whether a literal that is made of code could name a file in inline assembly.
    fn makes_name_assembled(&self, macros: &OnceCell<MacroNames>) -> Result<bool, Bypass> {
        let macros = self.macro_names(macros)?;
        let pasted = match self.pastes {
            true => Some(PastedNames::new(macros, &self.work, begins_a_directive)?),
            false => None,
        };
        let alone = |word: &[u8], _| macros.may_replace(word, begins_a_directive);
        let may_become_any = |word: &[u8], operand| {
            let Some(pasted) = &pasted else {
                return alone(word, operand);
            };
            self.work.count(STEPS_OF_WORDS * word.len());
            alone(word, operand)
                || match operand {
                    Operand::No => false,
                    Operand::First => pasted.any_begins_with(word),
                    Operand::Last => pasted.any_ends_with(word),
                }
        };
        let mut makes = false;
        self.each_definition(|definition, reading| {
            let parameters = Definition::new(definition).parameters();
            self.each_code(definition, reading, |code| {
                makes |= code_could_name_a_file(code, |word, operand| {
                    parameters.contains(word) || may_become_any(word, operand)
                });
            })
        })?;
        if pasted.is_none() {
            self.each_reading(|joined, reading| {
                self.each_code(joined, reading, |code| {
                    makes |= code_could_name_a_file(code, alone);
                })
            })?;
            return Ok(makes);
        }
        let mut judge = |code: &[u8], word: Range<usize>, is_in_call| {
            makes = makes
                || match (code[word.start], is_in_call) {
                    (b'.', true) => period_could_name_a_file(code, word.start, may_become_any),
                    (b'.', false) => period_could_name_a_file(code, word.start, alone),
                    (byte, _) => byte == b'\\',
                };
        };
        if self.each_word(macros, macros.are_clear(), &mut judge)? {
            self.each_word(macros, false, judge)?;
        }
        Ok(makes)
    }

    /// The macros of all texts, which are looked for once.
    fn macro_names<'n>(&self, known: &'n OnceCell<MacroNames>) -> Result<&'n MacroNames, Bypass> {
        if let Some(names) = known.get() {
            return Ok(names);
        }
        let mut names = MacroNames::default();
        self.each_definition(|definition, reading| {
            let is_balanced = is_balanced(definition, reading, &self.work)?;
            names.add(&Definition::new(definition), is_balanced)
        })?;
        Ok(known.get_or_init(|| names))
    }

    /// Whether each definition closes the parentheses that it opens.
    fn are_definitions_balanced(&self) -> Result<bool, Bypass> {
        let mut are_balanced = true;
        self.each_definition(|definition, reading| {
            are_balanced = are_balanced && is_balanced(definition, reading, &self.work)?;
            Ok(())
        })?;
        Ok(are_balanced)
    }

    /// Each definition of a macro, in the texts and from the options.
    fn each_definition(
        &self,
        mut each: impl FnMut(&[u8], u8) -> Result<(), Bypass>,
    ) -> Result<(), Bypass> {
        self.definitions(self.texts.iter(), &mut each)?;
        let mut options = self.texts.iter().filter(|text| text.is_definition);
        options.try_for_each(|text| text.readings(&self.work, &mut each))
    }

    /// Each text with its lines joined, in each reading.
    fn each_reading(
        &self,
        mut each: impl FnMut(&[u8], u8) -> Result<(), Bypass>,
    ) -> Result<(), Bypass> {
        let mut texts = self.texts.iter();
        texts.try_for_each(|text| text.readings(&self.work, &mut each))
    }

    /// Each span of code of a text with joined lines. Comments and literals are not code.
    fn each_code(
        &self,
        joined: &[u8],
        reading: u8,
        mut each: impl FnMut(&[u8]),
    ) -> Result<(), Bypass> {
        self.work.count(STEPS_OF_WORDS * joined.len());
        Lexer::code_of(joined, reading, &self.work, &mut |code| each(code))
    }
}
