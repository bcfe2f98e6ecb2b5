//! What texts could do together that none of them does alone.

use std::cell::{Cell, OnceCell, RefCell};

use super::assembly::{AsmTexts, has_asm};
use super::directive_code::is_balanced;
use super::lexer::Lexer;
use super::macro_names::{CallWords, Definition, MacroNames};
use super::pasting::Pieces;
use super::scan::contains;
use super::{
    ASM_NAMES, PRAGMA_OPERATORS, PRAGMA_WORDS, STEPS_OF_WORDS, STRING_MAKERS, SYMBOL_NAMES, Texts,
    has_pragma_word, mentions_special, special_names,
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
        let makes_strings = self.makes_strings || makes(&STRING_MAKERS);
        // The operator takes one string, so a word that is joined comes to it by `#x`.
        if runs_pragmas && makes_strings && makes(&PRAGMA_WORDS) {
            return Err(Bypass::ReadsFile);
        }
        if runs_pragmas {
            self.judge_pragmas()?;
        }
        // In C++ the text of inline assembly may be a constant that is computed.
        let has_text = self.is_cpp || self.names_assembled;
        let pastes_any = |names: &[&[u8]]| self.pastes && makes(names);
        let makes_labels = self.has_odd_literal && self.has_operand;
        let assembles = if (has_text || makes_strings || makes_labels) && pastes_any(&ASM_NAMES) {
            true
        } else if has_text {
            self.has_asm()?
        } else if makes_strings || makes_labels {
            let names_symbols = makes_strings && pastes_any(&SYMBOL_NAMES);
            self.has_asm()?
                && (names_symbols || self.assembles_more(&macros, makes_strings, makes_labels)?)
        } else {
            false
        };
        match assembles {
            true => Err(Bypass::ReadsFile),
            false => Ok(()),
        }
    }

    /// The operator's text can come from anywhere, by `#x` or in another text, so no place is left out but comments.
    fn judge_pragmas(&self) -> Result<(), Bypass> {
        let (reads, mentions) = (Cell::new(false), Cell::new(None));
        let judge = |text: &[u8]| {
            reads.set(reads.get() || has_pragma_word(text));
            let earlier = mentions.get();
            mentions.set(earlier.or_else(|| mentions_special(text, self.is_cpp)));
        };
        self.each_reading(|joined, reading| {
            self.work.count(STEPS_OF_WORDS * joined.len());
            Lexer::spans_of(joined, reading, &self.work, &mut |code| judge(code), judge)
        })?;
        match reads.get().then_some(Bypass::ReadsFile).or(mentions.get()) {
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
        let mut runs_on = false;
        self.each_reading(|joined, reading| {
            let mut calls = CallWords::new(macros, !macros.are_clear(), reading);
            self.each_code(joined, reading, |code| {
                calls.find(code, |word| pieces.add(word));
            })?;
            runs_on |= calls.are_open();
            Ok(())
        })?;
        // A call that begins in a header may end in the text that includes it.
        Ok(Some(if runs_on { all } else { pieces }))
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

    /// Whether inline assembly has a text or a label that may read a file. `makes_labels`: a label that is no name can do so.
    /// `makes_strings`: so can a literal that `#x` makes of code, in the text or in the name of a symbol.
    fn assembles_more(
        &self,
        macros: &OnceCell<MacroNames>,
        makes_strings: bool,
        makes_labels: bool,
    ) -> Result<bool, Bypass> {
        let macros = self.macro_names(macros)?;
        let mut is_found = false;
        let mut read = |text: &[u8], reading| {
            let names_symbol = Cell::new(false);
            let texts = RefCell::new(AsmTexts::default());
            let mut code = |code: &[u8]| {
                texts
                    .borrow_mut()
                    .read(code, |word| macros.may_contain(word));
                names_symbol.set(names_symbol.get() || contains(code, SYMBOL_NAMES[0]));
            };
            let literal = |literal: &[u8]| texts.borrow_mut().read_literal(literal);
            self.work.count(STEPS_OF_WORDS * text.len());
            Lexer::spans_of(text, reading, &self.work, &mut code, literal)?;
            let texts = texts.borrow();
            is_found |= makes_labels && texts.has_odd_label()
                || makes_strings && (names_symbol.get() || texts.is_found());
            Ok(())
        };
        self.each_definition(&mut read)?;
        self.each_reading(&mut read)?;
        Ok(is_found)
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
