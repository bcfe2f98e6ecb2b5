//! The header names that macros could make from the operand of an include directive.
//!
//! Only the driver knows which of several definitions is active at a directive, since conditions are not evaluated here. So each
//! definition of a name is tried, and no definition as well, and every resulting name counts. The driver's own macros are unknown:
//! a name that could be one of them leaves the directive unresolved.
//!
//! A definition is kept as written, found by its name and parsed when an operand first needs it: a text of a megabyte may define a
//! hundred thousand macros and use two of them in includes. Constants bound the cost of the expansion of one operand, and the length
//! of the texts that of all. The state of an expansion is on the heap: the stack is the application's, however deeply macros are
//! nested.

mod expansion;
mod lex;
mod predefined;
mod written;

use std::collections::HashMap;
use std::rc::Rc;

use super::work::Work;
use crate::fallible::{copy, push, with_capacity};
use crate::outcome::Bypass;
use expansion::Expansion;
use lex::{Lexemes, TokenKind, is_odd};
pub use predefined::could_be_predefined;
use written::WrittenDefinitions;

/// Steps of the expansion of one operand.
const MAX_STEPS: usize = 20_000;
/// Tokens that the expansion of one operand may copy or compare.
const MAX_WORK: usize = 1 << 18;
/// The depth of an expansion, and the number of tokens of an expanded operand.
const MAX_DEPTH: usize = 400;
/// Different names from one operand.
const MAX_NAMES: usize = 64;
/// Definitions of one name that are tried.
const MAX_DEFINITIONS: usize = 64;
/// The length of a definition, an operand or a pasted token, in bytes.
const MAX_TEXT_BYTES: usize = 1 << 14;
/// The length of a header's name, in bytes. No file has a longer path.
pub const MAX_NAME_BYTES: usize = 4096;

/// Steps ([`Work`]) of one expansion, beside those of its tokens.
const STEPS_OF_EXPANSION: usize = 1500;
/// Steps of one token that is expanded.
const STEPS_OF_ADVANCE: usize = 400;
/// Steps of a token that is read, copied or compared.
const STEPS_OF_TOKEN: usize = 32;

/// A preprocessing token (C99 6.4).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Token {
    kind: TokenKind,
    /// Whether white space precedes it.
    spaced: bool,
    /// The number of its text.
    word: u32,
    /// The number of its hide set: the macros that it came from, which are not expanded in it again (C99 6.10.3.4).
    hidden: u32,
}

/// The number of the set that holds no macro.
const NONE_HIDDEN: u32 = 0;

/// An operand of an include directive, ready to be expanded.
pub struct OperandTokens(Vec<Token>);

/// A macro that is understood.
#[derive(Debug, PartialEq, Eq)]
struct Definition {
    /// The number of parameters of a function-like macro. None: object-like.
    parameters: Option<usize>,
    /// The tokens, each with the index of the parameter that it names.
    body: Vec<(Token, Option<usize>)>,
    /// Whether the body uses the parameter where its argument is expanded.
    expands: Vec<bool>,
}

/// All definitions of one name.
#[derive(Default)]
struct Named {
    /// How many definitions, of all names, were looked through.
    looked_through: usize,
    /// The different definitions as written, by their numbers.
    written: Vec<u32>,
    /// The same, parsed. What means the same is here once.
    parsed: Vec<Rc<Definition>>,
    /// Whether the meaning of the macro is unknown, so that its uses stay unresolved.
    opaque: bool,
}

/// Macros by name.
#[derive(Default)]
pub struct Macros {
    written: WrittenDefinitions,
    /// Those that were asked for.
    named: HashMap<u32, Named>,
    words: Words,
    work: Work,
}

/// Texts of tokens, by number.
#[derive(Default)]
struct Words {
    numbers: HashMap<Rc<[u8]>, u32>,
    texts: Vec<Rc<[u8]>>,
}

impl Words {
    fn number(&mut self, text: &[u8]) -> Result<u32, Bypass> {
        if let Some(number) = self.numbers.get(text) {
            return Ok(*number);
        }
        let number = self.texts.len() as u32;
        let text: Rc<[u8]> = text.into();
        self.numbers.try_reserve(1).map_err(|_| Bypass::NoMemory)?;
        push(&mut self.texts, text.clone())?;
        self.numbers.insert(text, number);
        Ok(number)
    }

    fn text(&self, token: Token) -> &[u8] {
        &self.texts[token.word as usize]
    }

    fn is(&self, token: Token, text: &[u8]) -> bool {
        token.kind != TokenKind::Literal && self.text(token) == text
    }

    fn tokens(&mut self, text: &[u8], work: &Work) -> Result<Vec<Token>, Bypass> {
        let mut tokens = Vec::new();
        work.spend(STEPS_OF_TOKEN + text.len())?;
        for lexeme in Lexemes::new(text) {
            work.spend(STEPS_OF_TOKEN)?;
            let token = Token {
                kind: lexeme.kind,
                spaced: lexeme.spaced,
                word: self.number(lexeme.text)?,
                hidden: NONE_HIDDEN,
            };
            push(&mut tokens, token)?;
        }
        Ok(tokens)
    }
}

impl Macros {
    /// No macros. Whatever is done with them counts its steps.
    pub fn new(work: Work) -> Macros {
        Macros {
            work,
            ..Macros::default()
        }
    }

    /// Adds a definition: the text after `#define`, up to the end of the directive.
    ///
    /// # Errors
    /// There is no memory for it, or it costs too much.
    pub fn add(&mut self, text: &[u8]) -> Result<(), Bypass> {
        self.written.add(text, &self.work)
    }

    /// Adds a macro definition of the build options: `NAME`, `NAME=VALUE` or `NAME(PARAMETERS)=VALUE`.
    ///
    /// # Errors
    /// See [`Macros::add`].
    pub fn add_option(&mut self, text: &[u8]) -> Result<(), Bypass> {
        match text.iter().position(|byte| *byte == b'=') {
            Some(equals) => {
                let mut text = copy(text)?;
                text[equals] = b' ';
                self.add(&text)
            }
            None => self.add(&[text, b" 1"].concat()),
        }
    }

    /// The tokens of an operand.
    ///
    /// # Errors
    /// It is longer than any expansion may come to be.
    pub fn operand(&mut self, text: &[u8]) -> Result<OperandTokens, Bypass> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(Bypass::UnresolvedInclude);
        }
        Ok(OperandTokens(self.words.tokens(text, &self.work)?))
    }

    /// Every header name that an operand could become.
    ///
    /// # Errors
    /// [`Bypass::UnresolvedInclude`]: one of them may be a name that only the driver knows.
    pub fn names(&mut self, operand: &OperandTokens) -> Result<Vec<Vec<u8>>, Bypass> {
        self.work.count(STEPS_OF_EXPANSION);
        let expanded = Expansion::new(self).expand(&operand.0)?;
        let mut names = Vec::new();
        for tokens in &expanded {
            self.work.count(STEPS_OF_TOKEN * tokens.len());
            names.extend(self.header_name(tokens)?);
        }
        names.sort_unstable();
        names.dedup();
        match names.len() {
            1..=MAX_NAMES => Ok(names),
            _ => Err(Bypass::UnresolvedInclude),
        }
    }

    /// The name that the tokens of an include directive spell (C99 6.10.2). None: an error in every compiler.
    ///
    /// # Errors
    /// They spell none, and it is not certain that no compiler finds one.
    fn header_name(&self, tokens: &[Token]) -> Result<Option<Vec<u8>>, Bypass> {
        let Some((first, rest)) = tokens.split_first() else {
            return Ok(None);
        };
        let words = &self.words;
        if first.kind == TokenKind::Literal {
            let inside = words.text(*first).strip_prefix(b"\"");
            let inside = inside.and_then(|text| text.strip_suffix(b"\""));
            return match inside {
                Some(name) => Ok(Some(copy(name)?)),
                None => Err(Bypass::UnresolvedInclude),
            };
        }
        let end = rest.iter().position(|token| words.is(*token, b">"));
        let Some(end) = end.filter(|_| words.is(*first, b"<")) else {
            // A literal may have hidden the end of the operand, or of a macro's arguments.
            let mut all = tokens.iter();
            return match all.any(|token| token.kind == TokenKind::Literal) || words.is(*first, b"<")
            {
                true => Err(Bypass::UnresolvedInclude),
                false => Ok(None),
            };
        };
        // `->`, `:>`, `>>` and the like are one token, which does not end the name.
        let is_one_of = |token: &Token, others: &[u8]| {
            let text = words.text(*token);
            token.kind == TokenKind::Punctuator && text.len() == 1 && others.contains(&text[0])
        };
        let before = end.checked_sub(1).map(|before| &rest[before]);
        if !rest[end].spaced && before.is_some_and(|token| is_one_of(token, b"-:%"))
            || rest
                .get(end + 1)
                .is_some_and(|token| !token.spaced && is_one_of(token, b">="))
        {
            return Err(Bypass::UnresolvedInclude);
        }
        // A blank precedes each token that white space precedes, also the first and the last (measured on PoCL and Intel's CPU
        // runtime; clang's Preprocessor::LexHeaderName).
        let lengths = rest[..=end]
            .iter()
            .map(|token| words.text(*token).len() + 1);
        let length: usize = lengths.sum();
        if length > MAX_NAME_BYTES {
            return Err(Bypass::UnresolvedInclude);
        }
        let mut name = with_capacity(length)?;
        for token in &rest[..=end] {
            if token.spaced {
                name.push(b' ');
            }
            name.extend_from_slice(words.text(*token));
        }
        name.pop();
        Ok(Some(name))
    }

    /// The definitions of a name.
    ///
    /// # Errors
    /// It is not known what one of them makes, or finding out costs too much.
    fn definitions(&mut self, name: u32) -> Result<&[Rc<Definition>], Bypass> {
        self.named.try_reserve(1).map_err(|_| Bypass::NoMemory)?;
        let named = self.named.entry(name).or_default();
        if named.looked_through < self.written.len() {
            let text = &self.words.texts[name as usize];
            let new = (self.written).since(named.looked_through, text, &self.work)?;
            named.looked_through = self.written.len();
            for number in new.into_iter().rev() {
                named.add(number, &self.written, &mut self.words, &self.work)?;
            }
        }
        match named.opaque {
            true => Err(Bypass::UnresolvedInclude),
            false => Ok(&named.parsed),
        }
    }
}

impl Named {
    /// Adds a definition, unless it is known.
    fn add(
        &mut self,
        number: u32,
        written: &WrittenDefinitions,
        words: &mut Words,
        work: &Work,
    ) -> Result<(), Bypass> {
        let text = written.text(number);
        self.opaque |= !written.is_understood(number);
        work.spend(STEPS_OF_TOKEN + self.written.len() * (1 + text.len() / 16))?;
        let known = |known: &u32| written.text(*known) == text;
        if self.opaque || self.written.iter().any(known) {
            return Ok(());
        }
        if self.written.len() >= MAX_DEFINITIONS {
            self.opaque = true;
            return Ok(());
        }
        push(&mut self.written, number)?;
        match Definition::parse(text, words, work)? {
            Some(definition) => {
                let length = definition.body.len();
                let alike = self.parsed.iter().filter(|one| one.body.len() == length);
                work.spend(STEPS_OF_TOKEN * length * alike.count())?;
                if !self.parsed.iter().any(|known| **known == definition) {
                    push(&mut self.parsed, Rc::new(definition))?;
                }
            }
            None => self.opaque = true,
        }
        Ok(())
    }
}

impl Definition {
    /// Parses the text after `#define`. None if it is not understood. Variable numbers of arguments are not: no known header name
    /// needs them.
    fn parse(text: &[u8], words: &mut Words, work: &Work) -> Result<Option<Definition>, Bypass> {
        let tokens = words.tokens(text, work)?;
        let mut body = tokens.get(1..).unwrap_or_default();
        let mut names: Option<HashMap<u32, usize>> = None;
        let mut count = 0;
        if let Some((first, rest)) = body.split_first()
            && words.is(*first, b"(")
            && !first.spaced
        {
            body = rest;
            let mut parameters = HashMap::new();
            loop {
                match body {
                    [end, rest @ ..] if words.is(*end, b")") => {
                        body = rest;
                        break;
                    }
                    [comma, rest @ ..] if count > 0 && words.is(*comma, b",") => body = rest,
                    _ if count > 0 => return Ok(None),
                    _ => {}
                }
                let Some((name, rest)) = body.split_first() else {
                    return Ok(None);
                };
                let is_plain = || !words.text(*name).iter().any(|byte| is_odd(*byte));
                if name.kind != TokenKind::Identifier || !is_plain() {
                    return Ok(None);
                }
                parameters.try_reserve(1).map_err(|_| Bypass::NoMemory)?;
                parameters.entry(name.word).or_insert(count);
                count += 1;
                body = rest;
            }
            names = Some(parameters);
        }
        let mut definition = Definition {
            parameters: names.is_some().then_some(count),
            body: Vec::new(),
            expands: Vec::new(),
        };
        let reserved = definition.body.try_reserve_exact(body.len());
        let reserved = reserved.and_then(|()| definition.expands.try_reserve_exact(count));
        reserved.map_err(|_| Bypass::NoMemory)?;
        definition.expands.resize(count, false);
        let names = names.unwrap_or_default();
        let parameter = |token: &Token| match token.kind {
            TokenKind::Identifier => names.get(&token.word).copied(),
            _ => None,
        };
        let body = body.iter().map(|token| (*token, parameter(token)));
        definition.body.extend(body);
        for at in 0..definition.body.len() {
            if let Some(parameter) = definition.body[at].1
                && !definition.is_taken_as_it_is(at, words)
            {
                definition.expands[parameter] = true;
            }
        }
        Ok(Some(definition))
    }

    fn is_taken_as_it_is(&self, at: usize, words: &Words) -> bool {
        let before = at.checked_sub(1).map(|before| self.body[before].0);
        before.is_some_and(|before| words.is(before, b"#") || words.is(before, b"##"))
            || self
                .body
                .get(at + 1)
                .is_some_and(|(next, _)| words.is(*next, b"##"))
    }
}

#[cfg(test)]
mod tests;
