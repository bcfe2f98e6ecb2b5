//! What texts could do together that none of them does alone.

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
        let pieces = match joins_tokens {
            true => self.joined_pieces()?,
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
        match assembles && (has_text || self.makes_name_assembled()?) {
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
    fn joined_pieces(&self) -> Result<Option<Pieces>, Bypass> {
        let mut all = Pieces::default();
        self.each_reading(|joined, reading| self.each_code(joined, reading, |code| all.add(code)))?;
        if !all.make_any() {
            return Ok(None);
        }
        let macros = self.macro_names()?;
        let gets_all = !macros.are_clear() || !self.are_definitions_balanced()?;
        let mut pieces = Pieces::default();
        self.each_definition(|definition, reading| {
            let replaced = Definition::new(definition).replaced(definition);
            self.each_code(definition, reading, |code| {
                pieces.add_unless(code, |word| replaced.contains(word));
            })
        })?;
        let runs_on = self.each_call(&macros, gets_all, |code, word| pieces.add(&code[word]))?;
        // A call that begins in a header may end in the text that includes it.
        Ok(Some(if runs_on { all } else { pieces }))
    }

    /// Gives `each` the words and periods of the texts that calls of macros may get. Returns whether a call has no end in its text.
    fn each_call(
        &self,
        macros: &MacroNames,
        gets_all: bool,
        mut each: impl FnMut(&[u8], Range<usize>),
    ) -> Result<bool, Bypass> {
        let mut runs_on = false;
        self.each_reading(|joined, reading| {
            let mut calls = CallWords::new(macros, gets_all, reading);
            self.work.count(STEPS_OF_WORDS * joined.len());
            self.each_code(joined, reading, |code| {
                calls.find(code, |word| each(code, word));
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
    fn makes_name_assembled(&self) -> Result<bool, Bypass> {
        let macros = self.macro_names()?;
        let pasted = match self.pastes {
            true => Some(PastedNames::new(&macros, &self.work, begins_a_directive)?),
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
                    Operand::First => pasted.any_begins_with(word),
                    Operand::Last => pasted.any_ends_with(word),
                }
        };
        let mut makes = false;
        self.each_reading(|joined, reading| {
            self.each_code(joined, reading, |code| {
                makes |= code_could_name_a_file(code, alone);
            })
        })?;
        self.each_definition(|definition, reading| {
            let parameters = Definition::new(definition).parameters();
            self.each_code(definition, reading, |code| {
                makes |= code_could_name_a_file(code, |word, operand| {
                    parameters.contains(word) || may_become_any(word, operand)
                });
            })
        })?;
        if pasted.is_some() && !makes {
            let mut judge = |code: &[u8], word: Range<usize>| {
                makes |= code[word.start] == b'.'
                    && period_could_name_a_file(code, word.start, may_become_any);
            };
            let gets_all = !macros.are_clear() || !self.are_definitions_balanced()?;
            if self.each_call(&macros, gets_all, &mut judge)? {
                self.each_call(&macros, true, judge)?;
            }
        }
        Ok(makes)
    }

    fn macro_names(&self) -> Result<MacroNames, Bypass> {
        let mut names = MacroNames::default();
        self.each_definition(|definition, _| names.add(&Definition::new(definition)))?;
        Ok(names)
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
