//! The names that macros could make of the operand of an include directive.
//!
//! Nobody but the driver knows which of several definitions holds where a directive stands, since conditions are not
//! evaluated here. So each definition of a name is tried, and none as well, and every name that comes out counts. What a
//! driver defines by itself is not known: a name that could be such a one leaves the directive unresolved.

mod predefined;

use std::collections::HashMap;

use crate::outcome::Bypass;
use predefined::could_be_predefined;

/// How many steps the expansion of one operand may take.
const MOST_STEPS: usize = 20_000;
/// How many steps the expansion of all operands may take.
const MOST_STEPS_OF_ALL: usize = 200_000;
/// How deep it may go, on a stack of the application's.
const DEEPEST: usize = 400;
/// How many different names may come out.
const MOST_NAMES: usize = 64;
/// How many definitions of one name are tried.
const MOST_DEFINITIONS: usize = 64;
/// How long a definition may be, in bytes.
const LONGEST: usize = 1 << 14;

/// A preprocessing token (C99 6.4).
#[derive(Clone, Debug, PartialEq, Eq)]
struct Token {
    kind: Kind,
    text: Vec<u8>,
    /// Whether white space stands before it.
    spaced: bool,
    /// The macros that it came from, which are not expanded in it again (C99 6.10.3.4).
    hidden: Vec<Vec<u8>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Identifier,
    Number,
    Literal,
    Punctuator,
}

/// A macro.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Definition {
    name: Vec<u8>,
    /// Of a function-like macro; None: object-like.
    parameters: Option<Vec<Vec<u8>>>,
    body: Vec<Token>,
    /// Whether it is not known what the macro makes, so that what uses it stays unresolved.
    opaque: bool,
}

impl Definition {
    /// What stands behind `#define`, up to the end of the directive. None: it defines nothing.
    ///
    /// A variable number of arguments is not understood: no name of a header was ever seen to need it.
    pub fn parse(text: &[u8]) -> Option<Definition> {
        let name = tokens(&text[..text.len().min(LONGEST)])
            .into_iter()
            .next()
            .filter(|token| token.kind == Kind::Identifier)?
            .text;
        // Some compilers end the name before such a character.
        let plain = name.iter().position(|byte| is_odd(*byte));
        let opaque = |name: &[u8]| Definition {
            name: name.to_vec(),
            parameters: None,
            body: Vec::new(),
            opaque: true,
        };
        match plain {
            Some(end) => Some(opaque(&name[..end])),
            None if text.len() > LONGEST => Some(opaque(&name)),
            None => Some(Definition::understood(text).unwrap_or_else(|| opaque(&name))),
        }
    }

    fn understood(text: &[u8]) -> Option<Definition> {
        let mut tokens = tokens(text).into_iter().peekable();
        let name = tokens.next()?.text;
        let mut parameters = None;
        if tokens
            .next_if(|token| token.is(b"(") && !token.spaced)
            .is_some()
        {
            let mut names = Vec::new();
            while tokens.next_if(|token| token.is(b")")).is_none() {
                if !names.is_empty() && !tokens.next()?.is(b",") {
                    return None;
                }
                names.push(
                    tokens
                        .next()
                        .filter(|token| token.kind == Kind::Identifier)?
                        .text,
                );
            }
            parameters = Some(names);
        }
        Some(Definition {
            name,
            parameters,
            body: tokens.collect(),
            opaque: false,
        })
    }

    /// A macro definition of the build options: `NAME`, `NAME=VALUE` or `NAME(PARAMETERS)=VALUE`.
    pub fn of_option(text: &[u8]) -> Option<Definition> {
        let mut text = text.to_vec();
        match text.iter().position(|byte| *byte == b'=') {
            Some(equals) => text[equals] = b' ',
            None => text.extend(b" 1"),
        }
        Definition::parse(&text)
    }
}

impl Token {
    fn is(&self, text: &[u8]) -> bool {
        self.kind != Kind::Literal && self.text == text
    }
}

/// Macros by name.
pub struct Macros(HashMap<Vec<u8>, Vec<Definition>>);

impl Macros {
    /// All of these definitions.
    pub fn new(definitions: impl IntoIterator<Item = Definition>) -> Macros {
        let mut macros: HashMap<Vec<u8>, Vec<Definition>> = HashMap::new();
        for definition in definitions {
            let known = macros.entry(definition.name.clone()).or_default();
            if known.len() < MOST_DEFINITIONS {
                if !known.contains(&definition) {
                    known.push(definition);
                }
            } else {
                known[0].opaque = true;
            }
        }
        Macros(macros)
    }

    /// Every header name that an operand could come to be. `steps` counts those of all operands.
    ///
    /// # Errors
    /// [`Bypass::UnresolvedInclude`]: one of them may be a name that only the driver knows.
    pub fn names(&self, operand: &[u8], steps: &mut usize) -> Result<Vec<Vec<u8>>, Bypass> {
        let mut expansion = Expansion {
            macros: self,
            steps: 0,
        };
        let expanded = expansion.expand(&tokens(operand), 0)?;
        *steps += expansion.steps;
        if *steps > MOST_STEPS_OF_ALL {
            return Err(Bypass::UnresolvedInclude);
        }
        let mut names = Vec::new();
        for tokens in &expanded {
            names.extend(header_name(tokens)?);
        }
        names.sort_unstable();
        names.dedup();
        match names.len() {
            1..=MOST_NAMES => Ok(names),
            _ => Err(Bypass::UnresolvedInclude),
        }
    }
}

/// The name that the tokens of an include directive spell (C99 6.10.2); None: an error in every compiler.
fn header_name(tokens: &[Token]) -> Result<Option<Vec<u8>>, Bypass> {
    let Some((first, rest)) = tokens.split_first() else {
        return Ok(None);
    };
    if first.kind == Kind::Literal {
        let inside = first.text.strip_prefix(b"\"");
        let inside = inside.and_then(|text| text.strip_suffix(b"\""));
        return Ok(inside.map(<[u8]>::to_vec));
    }
    let end = rest.iter().position(|token| token.is(b">"));
    let Some(end) = end.filter(|_| first.is(b"<")) else {
        return Ok(None);
    };
    // `->`, `:>`, `>>` and the like are one token, which does not end the name.
    let is_one_of = |token: &Token, others: &[u8]| {
        token.kind == Kind::Punctuator && token.text.len() == 1 && others.contains(&token.text[0])
    };
    let before = end.checked_sub(1).map(|before| &rest[before]);
    if !rest[end].spaced && before.is_some_and(|token| is_one_of(token, b"-:%"))
        || rest
            .get(end + 1)
            .is_some_and(|token| !token.spaced && is_one_of(token, b">="))
    {
        return Err(Bypass::UnresolvedInclude);
    }
    // Each token with a blank before it wherever white space stands there, also before the first and the last (measured on
    // PoCL and Intel's CPU runtime; clang's Preprocessor::LexHeaderName).
    let mut name = Vec::new();
    for token in &rest[..=end] {
        if token.spaced {
            name.push(b' ');
        }
        name.extend(&token.text);
    }
    name.pop();
    Ok(Some(name))
}

struct Expansion<'a> {
    macros: &'a Macros,
    steps: usize,
}

impl<'a> Expansion<'a> {
    fn definitions(&self, name: &[u8]) -> impl Iterator<Item = &'a Definition> + use<'a> {
        self.macros.0.get(name).into_iter().flatten()
    }

    /// All that the tokens could be after expansion (C99 6.10.3, by hide sets).
    fn expand(&mut self, tokens: &[Token], depth: usize) -> Result<Vec<Vec<Token>>, Bypass> {
        self.steps += 1;
        if self.steps > MOST_STEPS || depth > DEEPEST {
            return Err(Bypass::UnresolvedInclude);
        }
        let Some((first, rest)) = tokens.split_first() else {
            return Ok(vec![Vec::new()]);
        };
        let mut found = Vec::new();
        let is_word = matches!(first.kind, Kind::Identifier | Kind::Number);
        if is_word && first.text.iter().any(|byte| is_odd(*byte)) {
            return Err(Bypass::UnresolvedInclude);
        }
        if first.kind == Kind::Identifier && first.hidden.contains(&first.text) {
            // Arguments from behind a macro's end: the standard leaves open what is still hidden (C99 6.10.3.4, note).
            let takes_arguments =
                |name: &Vec<u8>| self.definitions(name).any(|one| one.parameters.is_some());
            if first.hidden.iter().any(takes_arguments) {
                return Err(Bypass::UnresolvedInclude);
            }
        } else if first.kind == Kind::Identifier {
            if could_be_predefined(&first.text) {
                return Err(Bypass::UnresolvedInclude);
            }
            for definition in self.definitions(&first.text) {
                for (taken, mut replaced) in self.replace(first, definition, rest, depth)? {
                    if replaced.is_empty() && first.spaced {
                        // The white space passes to the next token in some compilers (measured on PoCL and Intel's CPU runtime).
                        return Err(Bypass::UnresolvedInclude);
                    }
                    replaced.extend_from_slice(&rest[taken..]);
                    found.extend(self.expand(&replaced, depth + 1)?);
                }
            }
        }
        for mut behind in self.expand(rest, depth + 1)? {
            behind.insert(0, first.clone());
            found.push(behind);
        }
        let mut different: Vec<Vec<Token>> = Vec::new();
        for tokens in found {
            if !different.contains(&tokens) {
                different.push(tokens);
            }
        }
        match different.len() > MOST_NAMES {
            true => Err(Bypass::UnresolvedInclude),
            false => Ok(different),
        }
    }

    /// What a macro could make of its name and, if it is function-like, of the arguments in `rest`, and how much of `rest`
    /// those take; nothing without arguments.
    fn replace(
        &mut self,
        name: &Token,
        definition: &Definition,
        rest: &[Token],
        depth: usize,
    ) -> Result<Vec<(usize, Vec<Token>)>, Bypass> {
        if definition.opaque {
            return Err(Bypass::UnresolvedInclude);
        }
        let parameters = definition.parameters.as_deref().unwrap_or_default();
        let (arguments, taken) = match definition.parameters {
            None => (Vec::new(), 0),
            Some(_) => match arguments(rest) {
                Some((arguments, taken)) if arguments.len() == parameters.len().max(1) => {
                    (arguments, taken)
                }
                _ => return Ok(Vec::new()),
            },
        };
        // Each argument is expanded by itself first, where neither `#` nor `##` takes it as it is.
        let mut combinations = vec![Vec::new()];
        for (parameter, argument) in parameters.iter().zip(&arguments) {
            let expanded = match definition.expands(parameter) {
                true => self.expand(argument, depth + 1)?,
                false => vec![Vec::new()],
            };
            let longer = combinations
                .iter()
                .flat_map(|combination: &Vec<Vec<Token>>| {
                    expanded.iter().map(|tokens| {
                        [combination.as_slice(), std::slice::from_ref(tokens)].concat()
                    })
                });
            combinations = longer.collect();
            if combinations.len() > MOST_NAMES {
                return Err(Bypass::UnresolvedInclude);
            }
        }
        let substituted = combinations.iter().map(|expanded| {
            let mut made = definition.substitute(&arguments, expanded)?;
            for token in &mut made {
                token
                    .hidden
                    .extend(name.hidden.iter().cloned().chain([name.text.clone()]));
            }
            if let Some(first) = made.first_mut() {
                first.spaced = name.spaced;
            }
            Ok((taken, made))
        });
        substituted.collect()
    }
}

impl Definition {
    fn parameter(&self, token: &Token) -> Option<usize> {
        let mut parameters = self.parameters.iter().flatten();
        let index = parameters.position(|name| *name == token.text)?;
        (token.kind == Kind::Identifier).then_some(index)
    }

    /// Whether the body has the parameter where its argument is expanded.
    fn expands(&self, parameter: &[u8]) -> bool {
        (0..self.body.len()).any(|at| self.body[at].is(parameter) && !self.is_taken_as_it_is(at))
    }

    fn is_taken_as_it_is(&self, at: usize) -> bool {
        let before = at.checked_sub(1).map(|before| &self.body[before]);
        before.is_some_and(|before| before.is(b"#") || before.is(b"##"))
            || self.body.get(at + 1).is_some_and(|next| next.is(b"##"))
    }

    /// The body with arguments in place of parameters (C99 6.10.3.1 to 6.10.3.3).
    fn substitute(
        &self,
        arguments: &[Vec<Token>],
        expanded: &[Vec<Token>],
    ) -> Result<Vec<Token>, Bypass> {
        let mut made: Vec<Token> = Vec::new();
        let mut pastes = false;
        let mut at = 0;
        while let Some(token) = self.body.get(at) {
            at += 1;
            if token.is(b"##") && !pastes && !made.is_empty() {
                pastes = true;
                continue;
            }
            let mut new = match self.parameter(token) {
                Some(index) if self.is_taken_as_it_is(at - 1) => arguments[index].clone(),
                Some(index) => expanded[index].clone(),
                None if token.is(b"#") && self.parameters.is_some() => {
                    let index = self.body.get(at).and_then(|token| self.parameter(token));
                    at += 1;
                    vec![string(&arguments[index.ok_or(Bypass::UnresolvedInclude)?])]
                }
                None => vec![token.clone()],
            };
            // Nothing is pasted to what stands around, and its white space passes on, each compiler in its own way.
            if new.is_empty() && (self.is_taken_as_it_is(at - 1) || token.spaced && at > 1) {
                return Err(Bypass::UnresolvedInclude);
            }
            if let Some(first) = new.first_mut() {
                first.spaced = token.spaced;
            }
            if std::mem::take(&mut pastes)
                && let (Some(left), Some(right)) = (made.last_mut(), new.first())
            {
                let pasted = tokens(&[left.text.as_slice(), &right.text].concat());
                let [pasted] = pasted.as_slice() else {
                    return Err(Bypass::UnresolvedInclude);
                };
                (left.kind, left.text) = (pasted.kind, pasted.text.clone());
                new.remove(0);
            }
            made.append(&mut new);
        }
        Ok(made)
    }
}

/// The string that `#` makes of an argument (C99 6.10.3.2).
fn string(argument: &[Token]) -> Token {
    let mut text = b"\"".to_vec();
    for (index, token) in argument.iter().enumerate() {
        if token.spaced && index > 0 {
            text.push(b' ');
        }
        for byte in &token.text {
            if token.kind == Kind::Literal && matches!(byte, b'"' | b'\\') {
                text.push(b'\\');
            }
            text.push(*byte);
        }
    }
    text.push(b'"');
    Token {
        kind: Kind::Literal,
        text,
        spaced: false,
        hidden: Vec::new(),
    }
}

/// The arguments in parentheses at the beginning of `rest`, and how many tokens they take.
fn arguments(rest: &[Token]) -> Option<(Vec<Vec<Token>>, usize)> {
    if !rest.first()?.is(b"(") {
        return None;
    }
    let mut arguments = vec![Vec::new()];
    let mut open = 1;
    for (index, token) in rest.iter().enumerate().skip(1) {
        open += i32::from(token.is(b"(")) - i32::from(token.is(b")"));
        match open {
            0 => return Some((arguments, index + 1)),
            1 if token.is(b",") => arguments.push(Vec::new()),
            _ => arguments.last_mut()?.push(token.clone()),
        }
    }
    None
}

/// The tokens of a text whose lines are joined; comments are white space.
fn tokens(text: &[u8]) -> Vec<Token> {
    let byte = |at: usize| text.get(at).copied().unwrap_or(b'\n');
    let is_word =
        |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || !byte.is_ascii();
    let mut tokens = Vec::new();
    let (mut at, mut spaced) = (0, false);
    while at < text.len() {
        let start = at;
        let kind = match (byte(at), byte(at + 1)) {
            (b'/', b'/') => break,
            (b'/', b'*') => {
                let end = text[at + 2..].windows(2).position(|pair| pair == b"*/");
                at = end.map_or(text.len(), |end| at + 2 + end + 2);
                spaced = true;
                continue;
            }
            (blank, _) if blank.is_ascii_whitespace() || matches!(blank, 0 | 0x0B) => {
                at += 1;
                spaced = true;
                continue;
            }
            (quote @ (b'"' | b'\''), _) => {
                at += 1;
                while at < text.len() && byte(at) != quote {
                    at += 1 + usize::from(byte(at) == b'\\');
                }
                at = (at + 1).min(text.len());
                Kind::Literal
            }
            (first, next) if first.is_ascii_digit() || first == b'.' && next.is_ascii_digit() => {
                // A preprocessing number (C99 6.4.8).
                while is_word(byte(at))
                    || byte(at) == b'.'
                    || at > start && is_sign(byte(at - 1), byte(at))
                {
                    at += 1;
                }
                Kind::Number
            }
            (first, _) if is_word(first) => {
                while is_word(byte(at)) {
                    at += 1;
                }
                Kind::Identifier
            }
            (b'#', b'#') => {
                at += 2;
                Kind::Punctuator
            }
            _ => {
                at += 1;
                Kind::Punctuator
            }
        };
        let text = text[start..at].to_vec();
        tokens.push(Token {
            kind,
            text,
            spaced,
            hidden: Vec::new(),
        });
        spaced = false;
    }
    tokens
}

/// Whether compilers differ in whether the byte can be a part of a word.
fn is_odd(byte: u8) -> bool {
    byte == b'$' || !byte.is_ascii()
}

/// Whether a sign belongs to the number that ends in the byte before it.
fn is_sign(before: u8, sign: u8) -> bool {
    matches!(before, b'e' | b'E' | b'p' | b'P') && matches!(sign, b'+' | b'-')
}

#[cfg(test)]
mod tests;
