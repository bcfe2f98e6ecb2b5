//! What texts could do together that none of them does alone.

use std::cell::{Cell, OnceCell, RefCell};

use super::asm_texts::AsmTexts;
use super::assembly::{code_could_name_a_file, has_asm};
use super::directive_code::is_balanced;
use super::lexer::Lexer;
use super::macro_names::{CallWords, Definition, MacroNames};
use super::pasting::Pieces;
use super::pragma_words::{PRAGMA_WORDS, has_comment_word, has_pragma_word};
use super::scan::contains;
use super::{
    ASM_NAMES, PRAGMA_OPERATORS, STEPS_OF_WORDS, STRING_MAKERS, SYMBOL_NAMES, Texts,
    mentions_special, special_names,
};
use crate::outcome::Bypass;

/// What macros could make of inline assembly.
struct MadeAssembly {
    /// `##` could write the word that begins it.
    is_pasted: bool,
    /// `#x` makes strings, which may be its text or the name of a symbol.
    makes_strings: bool,
    /// `##` could write an attribute that names a symbol.
    pastes_symbol_names: bool,
}

/// The inline assembly that was found in the texts and in definitions of macros.
#[derive(Default)]
struct WrittenAssembly {
    /// Its text, or a part of it, is no literal.
    has_made_text: bool,
    /// Some has no parentheses, or macros give them, so that code may be its text.
    is_bare: bool,
    /// A label may be no name.
    has_odd_label: bool,
    /// An attribute names a symbol.
    names_symbols: bool,
}

impl Texts<'_> {
    /// Judges the effect of the texts together.
    ///
    /// # Errors
    /// See [`Texts::add`].
    pub fn finish(&mut self) -> Result<(), Bypass> {
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
        self.runs_pragmas |= makes(&PRAGMA_OPERATORS);
        let makes_strings = self.makes_strings || makes(&STRING_MAKERS);
        // The operator takes one string, so a word that is joined comes to it by `#x`.
        if self.runs_pragmas && makes_strings && makes(&PRAGMA_WORDS) {
            return Err(Bypass::ReadsFile);
        }
        if self.runs_pragmas {
            self.judge_pragmas()?;
        }
        let assembly = MadeAssembly {
            is_pasted: self.pastes && makes(&ASM_NAMES),
            makes_strings,
            pastes_symbol_names: self.pastes && makes(&SYMBOL_NAMES),
        };
        match self.assembles_a_file(&assembly, &macros)? {
            true => Err(Bypass::ReadsFile),
            false => Ok(()),
        }
    }

    /// Whether inline assembly may read a file.
    fn assembles_a_file(
        &self,
        made: &MadeAssembly,
        macros: &OnceCell<MacroNames>,
    ) -> Result<bool, Bypass> {
        let is_written = self.mentions_asm && self.has_asm()?;
        if !is_written && !made.is_pasted {
            return Ok(false);
        }
        // In C++ the text of inline assembly may be a constant that is computed.
        if self.is_cpp || self.names_assembled {
            return Ok(true);
        }
        let macros = self.macro_names(macros)?;
        let written = self.written_assembly(macros)?;
        if written.is_bare {
            return Ok(true);
        }
        let names_symbols = made.pastes_symbol_names || written.names_symbols;
        let makes_text = made.makes_strings && (written.has_made_text || names_symbols);
        // A label that is no name can begin a statement, if an operand writes it.
        let may_be_odd = self.has_odd_literal || made.makes_strings;
        let has_odd_name =
            made.is_pasted || written.has_odd_label || made.makes_strings && names_symbols;
        // Code that is its text may have operands (`%c0`), and without parentheses each name of a variable is one.
        let has_operand = self.has_operand || made.is_pasted || makes_text;
        Ok(has_operand && may_be_odd && has_odd_name
            || (made.is_pasted || makes_text) && self.code_could_name_a_file(macros)?)
    }

    /// The operator's text can come from anywhere, by `#x` or in another text, so no place is left out but comments.
    fn judge_pragmas(&self) -> Result<(), Bypass> {
        let (reads, mentions) = (Cell::new(false), Cell::new(None));
        let judge = |text: &[u8]| {
            reads.set(reads.get() || has_pragma_word(text) || has_comment_word(text));
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
            let replaced = replaced.unwrap_or_default();
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
            self.each_code(joined, reading, |code| has = has || has_asm(code))
        })?;
        Ok(has)
    }

    /// Finds the inline assembly in all texts and definitions.
    fn written_assembly(&self, macros: &MacroNames) -> Result<WrittenAssembly, Bypass> {
        let mut found = WrittenAssembly::default();
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
            found.has_made_text |= texts.is_found();
            found.is_bare |= texts.is_bare();
            found.has_odd_label |= texts.has_odd_label();
            found.names_symbols |= names_symbol.get();
            Ok(())
        };
        self.each_definition(&mut read)?;
        self.each_reading(read)?;
        Ok(found)
    }

    /// Whether there is code that could name a file as the text of inline assembly.
    fn code_could_name_a_file(&self, macros: &MacroNames) -> Result<bool, Bypass> {
        let mut could_name = false;
        let may_be_macro = |word: &[u8]| {
            let may_be_pasted = || {
                self.work.count(macros.len());
                self.pastes && macros.may_end_with(word)
            };
            macros.may_contain(word) || may_be_pasted()
        };
        self.each_definition(|text, reading| {
            let parameters = Definition::new(text).replaced(text);
            let is_parameter = |word: &[u8]| {
                let known = parameters.as_ref();
                known.is_none_or(|all| all.contains(word))
            };
            let may_be_other = |word: &[u8]| is_parameter(word) || may_be_macro(word);
            self.each_code(text, reading, |code| {
                could_name = could_name || code_could_name_a_file(code, may_be_other);
            })
        })?;
        self.each_reading(|text, reading| {
            self.each_code(text, reading, |code| {
                could_name = could_name || code_could_name_a_file(code, may_be_macro);
            })
        })?;
        Ok(could_name)
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
