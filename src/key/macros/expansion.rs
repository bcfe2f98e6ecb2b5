//! The expansion of one operand (C99 6.10.3, by hide sets), in all ways that the definitions allow.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;

use super::lex::{Lexemes, TokenKind, is_odd};
use super::predefined::could_be_predefined;
use super::{
    Definition, MAX_DEPTH, MAX_NAMES, MAX_STEPS, MAX_TEXT_BYTES, MAX_WORK, Macros, NONE_HIDDEN,
    STEPS_OF_ADVANCE, STEPS_OF_TOKEN, Token, Words,
};
use crate::fallible::push;
use crate::outcome::Bypass;

/// The state and cost of the expansion of one operand.
pub(super) struct Expansion<'a> {
    macros: &'a mut Macros,
    cells: Vec<Cell>,
    hide_sets: HideSets,
    /// How often a token was expanded, and how many were copied or compared.
    steps: usize,
    work: usize,
}

/// Bytes of new tokens that cost as much as a token.
const BYTES_OF_TOKEN: usize = 16;

/// A token whose rest of the list may be shared.
#[derive(Clone, Copy)]
struct Cell {
    token: Token,
    next: List,
}

/// The first cell of a list, and its length.
#[derive(Clone, Copy)]
struct List {
    first: u32,
    length: u32,
}

const EMPTY: List = List {
    first: 0,
    length: 0,
};

/// A partial expansion: the expanded tokens, last one first, and the rest.
#[derive(Clone, Copy)]
struct State {
    done: List,
    rest: List,
    depth: usize,
}

/// Tokens that are being expanded: those of the operand, or an argument.
#[derive(Default)]
struct Frame {
    /// Partial expansions to continue, each with the definition taken for its first token, or none.
    todo: Vec<(State, Option<Rc<Definition>>)>,
    /// In an order that does not depend on the process, as the cost does not.
    expanded: BTreeSet<Vec<Token>>,
}

/// A macro whose arguments are being expanded.
struct Call {
    definition: Rc<Definition>,
    name: Token,
    arguments: Vec<Vec<Token>>,
    /// The expanded arguments, in each combination.
    combinations: Vec<Vec<Rc<Vec<Token>>>>,
    /// The number of expanded arguments.
    parameter: usize,
    /// The expansion around it, without its name and arguments.
    state: State,
}

impl<'a> Expansion<'a> {
    pub fn new(macros: &'a mut Macros) -> Expansion<'a> {
        Expansion {
            macros,
            cells: Vec::new(),
            hide_sets: HideSets::default(),
            steps: 0,
            work: 0,
        }
    }

    fn spend(&mut self, tokens: usize) -> Result<(), Bypass> {
        self.macros.work.spend(STEPS_OF_TOKEN * tokens)?;
        self.work += tokens;
        match self.work > MAX_WORK {
            true => Err(Bypass::UnresolvedInclude),
            false => Ok(()),
        }
    }

    /// All possible expansions of the tokens.
    pub fn expand(&mut self, tokens: &[Token]) -> Result<BTreeSet<Vec<Token>>, Bypass> {
        // A text can nest macros to any depth: each frame but the first belongs to the call below it.
        let mut calls: Vec<Call> = Vec::new();
        let mut frames = vec![self.frame(tokens, 0)?];
        while let Some(frame) = frames.last_mut() {
            if let Some((state, definition)) = frame.todo.pop() {
                match definition {
                    None => self.advance(frame, state)?,
                    Some(definition) => {
                        if let Some(call) = self.call(definition, state)? {
                            push(&mut calls, call)?;
                            self.go_on(&mut calls, &mut frames)?;
                        }
                    }
                }
                continue;
            }
            let expanded = std::mem::take(&mut frame.expanded);
            frames.pop();
            let Some(call) = calls.last_mut() else {
                return Ok(expanded);
            };
            let expanded: Vec<_> = expanded.into_iter().map(Rc::new).collect();
            self.combine(call, &expanded)?;
            self.go_on(&mut calls, &mut frames)?;
        }
        Err(Bypass::UnresolvedInclude)
    }

    fn frame(&mut self, tokens: &[Token], depth: usize) -> Result<Frame, Bypass> {
        let state = State {
            done: EMPTY,
            rest: self.list(tokens, EMPTY, depth)?,
            depth,
        };
        Ok(Frame {
            todo: vec![(state, None)],
            expanded: BTreeSet::new(),
        })
    }

    /// Prepends tokens to a list, if so many can still be expanded.
    fn list(&mut self, tokens: &[Token], rest: List, depth: usize) -> Result<List, Bypass> {
        if tokens.len() + rest.length as usize + depth > MAX_DEPTH {
            return Err(Bypass::UnresolvedInclude);
        }
        self.spend(tokens.len())?;
        let mut list = rest;
        for token in tokens.iter().rev() {
            list = self.before(*token, list)?;
        }
        Ok(list)
    }

    fn before(&mut self, token: Token, next: List) -> Result<List, Bypass> {
        let first = self.cells.len() as u32;
        push(&mut self.cells, Cell { token, next })?;
        Ok(List {
            first,
            length: next.length + 1,
        })
    }

    fn split(&self, list: List) -> Option<(Token, List)> {
        let cell = self.cells.get(list.first as usize);
        cell.filter(|_| list.length > 0)
            .map(|cell| (cell.token, cell.next))
    }

    fn tokens(&self, list: List) -> impl Iterator<Item = Token> {
        let next = |(_, rest): &(Token, List)| self.split(*rest);
        std::iter::successors(self.split(list), next).map(|(token, _)| token)
    }

    /// Expands the next token: unchanged, and with each definition of its name.
    fn advance(&mut self, frame: &mut Frame, state: State) -> Result<(), Bypass> {
        self.steps += 1;
        self.macros.work.spend(STEPS_OF_ADVANCE)?;
        if self.steps > MAX_STEPS || state.depth + state.rest.length as usize > MAX_DEPTH {
            return Err(Bypass::UnresolvedInclude);
        }
        let Some((first, rest)) = self.split(state.rest) else {
            self.spend(state.done.length as usize)?;
            let mut tokens: Vec<_> = self.tokens(state.done).collect();
            tokens.reverse();
            frame.expanded.insert(tokens);
            return match frame.expanded.len() > MAX_NAMES {
                true => Err(Bypass::UnresolvedInclude),
                false => Ok(()),
            };
        };
        self.spend(1)?;
        let is_word = matches!(first.kind, TokenKind::Identifier | TokenKind::Number);
        let text = self.macros.words.text(first);
        if is_word && text.iter().any(|byte| is_odd(*byte)) {
            return Err(Bypass::UnresolvedInclude);
        }
        if first.kind == TokenKind::Identifier && self.hide_sets.holds(first.hidden, first.word) {
            // Arguments from behind a macro's end: the standard leaves open what is still hidden (C99 6.10.3.4, note).
            self.spend(self.hide_sets.sets[first.hidden as usize].len())?;
            for name in self.hide_sets.sets[first.hidden as usize].iter() {
                let mut definitions = self.macros.definitions(*name)?.iter();
                if definitions.any(|one| one.parameters.is_some()) {
                    return Err(Bypass::UnresolvedInclude);
                }
            }
        } else if first.kind == TokenKind::Identifier {
            if could_be_predefined(text) {
                return Err(Bypass::UnresolvedInclude);
            }
            for definition in self.macros.definitions(first.word)? {
                push(&mut frame.todo, (state, Some(definition.clone())))?;
            }
        }
        let as_it_is = State {
            done: self.before(first, state.done)?,
            rest,
            depth: state.depth + 1,
        };
        push(&mut frame.todo, (as_it_is, None))
    }

    /// Replaces a macro's name and, if it is function-like, its arguments. Nothing without arguments.
    fn call(&mut self, definition: Rc<Definition>, state: State) -> Result<Option<Call>, Bypass> {
        let Some((name, rest)) = self.split(state.rest) else {
            return Ok(None);
        };
        let (arguments, rest) = match definition.parameters {
            None => (Vec::new(), rest),
            Some(count) => match self.arguments(rest)? {
                Some((arguments, rest)) if arguments.len() == count.max(1) => (arguments, rest),
                _ => return Ok(None),
            },
        };
        Ok(Some(Call {
            definition,
            name,
            arguments,
            combinations: vec![Vec::new()],
            parameter: 0,
            state: State { rest, ..state },
        }))
    }

    /// Expands the next argument of the last call, or substitutes all of them and lets the frame below go on with that.
    fn go_on(&mut self, calls: &mut Vec<Call>, frames: &mut Vec<Frame>) -> Result<(), Bypass> {
        while let Some(call) = calls.last_mut() {
            if call.parameter == call.definition.parameters.unwrap_or(0) {
                break;
            }
            // Each argument is expanded by itself first, where neither `#` nor `##` takes it as it is.
            if call.definition.expands[call.parameter] {
                let argument = &call.arguments[call.parameter];
                let frame = self.frame(argument, call.state.depth + 1)?;
                return push(frames, frame);
            }
            self.combine(call, &[Rc::new(Vec::new())])?;
        }
        let (Some(call), Some(frame)) = (calls.pop(), frames.last_mut()) else {
            return Ok(());
        };
        for expanded in &call.combinations {
            let mut made = self.substitute(&call, expanded)?;
            if let Some(first) = made.first_mut() {
                first.spaced = call.name.spaced;
            } else if call.name.spaced {
                // The white space passes to the next token in some compilers (measured on PoCL and Intel's CPU runtime).
                return Err(Bypass::UnresolvedInclude);
            }
            let depth = call.state.depth + 1;
            let state = State {
                rest: self.list(&made, call.state.rest, depth)?,
                depth,
                ..call.state
            };
            push(&mut frame.todo, (state, None))?;
        }
        Ok(())
    }

    /// All expansions of the next argument, combined with those of the arguments before.
    fn combine(&mut self, call: &mut Call, expanded: &[Rc<Vec<Token>>]) -> Result<(), Bypass> {
        let count = call.combinations.len() * expanded.len();
        if count > MAX_NAMES {
            return Err(Bypass::UnresolvedInclude);
        }
        call.parameter += 1;
        self.spend(count * call.parameter)?;
        if let ([one], true) = (expanded, call.combinations.len() == 1) {
            return push(&mut call.combinations[0], one.clone());
        }
        let longer = call.combinations.iter().flat_map(|combination| {
            expanded
                .iter()
                .map(|one| [combination.as_slice(), std::slice::from_ref(one)].concat())
        });
        call.combinations = longer.collect();
        Ok(())
    }

    /// The arguments in parentheses at the beginning of a list, and the tokens after them.
    #[allow(clippy::type_complexity)]
    fn arguments(&mut self, rest: List) -> Result<Option<(Vec<Vec<Token>>, List)>, Bypass> {
        let Some((first, mut list)) = self.split(rest) else {
            return Ok(None);
        };
        if !self.macros.words.is(first, b"(") {
            return Ok(None);
        }
        let mut arguments = vec![Vec::new()];
        let mut open = 1;
        while let Some((token, rest)) = self.split(list) {
            list = rest;
            self.spend(1)?;
            let words = &self.macros.words;
            open += i32::from(words.is(token, b"(")) - i32::from(words.is(token, b")"));
            match (open, arguments.last_mut()) {
                (0, _) => return Ok(Some((arguments, list))),
                (1, _) if words.is(token, b",") => push(&mut arguments, Vec::new())?,
                (_, Some(last)) => push(last, token)?,
                (_, None) => {}
            }
        }
        Ok(None)
    }

    /// The body of a macro with arguments in place of parameters (C99 6.10.3.1 to 6.10.3.3).
    fn substitute(
        &mut self,
        call: &Call,
        expanded: &[Rc<Vec<Token>>],
    ) -> Result<Vec<Token>, Bypass> {
        let definition = &call.definition;
        let mut made: Vec<Token> = Vec::new();
        let mut pastes = false;
        let mut at = 0;
        while let Some((token, parameter)) = definition.body.get(at).copied() {
            at += 1;
            let words = &mut self.macros.words;
            if words.is(token, b"##") && !pastes && !made.is_empty() {
                pastes = true;
                continue;
            }
            let is_as_it_is = definition.is_taken_as_it_is(at - 1, words);
            let mut new_bytes = 0;
            let one;
            let mut new: &[Token] = match parameter {
                Some(index) if is_as_it_is => &call.arguments[index],
                Some(index) => &expanded[index],
                None if words.is(token, b"#") && definition.parameters.is_some() => {
                    let index = definition.body.get(at).and_then(|(_, index)| *index);
                    at += 1;
                    let index = index.ok_or(Bypass::UnresolvedInclude)?;
                    one = [string(&call.arguments[index], words)?];
                    new_bytes = words.text(one[0]).len();
                    &one
                }
                None => {
                    one = [token];
                    &one
                }
            };
            // Nothing is pasted to the tokens around, and the handling of white space differs between compilers.
            let is_as_it_is = is_as_it_is || definition.is_taken_as_it_is(at - 1, words);
            if new.is_empty() && (is_as_it_is || token.spaced && at > 1) {
                return Err(Bypass::UnresolvedInclude);
            }
            let mut spaced = Some(token.spaced);
            if std::mem::take(&mut pastes)
                && let (Some(left), Some((right, rest))) = (made.last_mut(), new.split_first())
            {
                (left.kind, left.word) = pasted(*left, *right, words)?;
                new_bytes += words.text(*left).len();
                (new, spaced) = (rest, None);
            }
            // The caller refuses longer results, and this one never gets shorter.
            if made.len() + new.len() > MAX_DEPTH {
                return Err(Bypass::UnresolvedInclude);
            }
            self.spend(1 + new.len() + new_bytes / BYTES_OF_TOKEN)?;
            let from = made.len();
            made.try_reserve(new.len()).map_err(|_| Bypass::NoMemory)?;
            made.extend_from_slice(new);
            if let (Some(first), Some(spaced)) = (made.get_mut(from), spaced) {
                first.spaced = spaced;
            }
        }
        let (sets, name) = (&mut self.hide_sets, call.name);
        let hidden = sets.with(name.hidden, name.word)?;
        let mut cost = sets.sets[hidden as usize].len();
        for token in &mut made {
            let (set, compared) = sets.union(token.hidden, hidden)?;
            token.hidden = set;
            cost += compared;
        }
        self.spend(1 + cost / 4)?;
        Ok(made)
    }
}

/// Pastes two tokens to one.
fn pasted(left: Token, right: Token, words: &mut Words) -> Result<(TokenKind, u32), Bypass> {
    let text = [words.text(left), words.text(right)].concat();
    let mut tokens = Lexemes::new(&text);
    match (tokens.next(), tokens.next()) {
        (Some(pasted), None) if pasted.text.len() <= MAX_TEXT_BYTES => {
            Ok((pasted.kind, words.number(pasted.text)?))
        }
        _ => Err(Bypass::UnresolvedInclude),
    }
}

/// The string that `#` makes of an argument (C99 6.10.3.2).
fn string(argument: &[Token], words: &mut Words) -> Result<Token, Bypass> {
    let mut text = b"\"".to_vec();
    for (index, token) in argument.iter().enumerate() {
        if token.spaced && index > 0 {
            text.push(b' ');
        }
        for byte in words.text(*token) {
            if token.kind == TokenKind::Literal && matches!(byte, b'"' | b'\\') {
                text.push(b'\\');
            }
            text.push(*byte);
        }
        // Each string that is made a string again has twice as many backslashes.
        if text.len() > MAX_TEXT_BYTES {
            return Err(Bypass::UnresolvedInclude);
        }
    }
    text.push(b'"');
    Ok(Token {
        kind: TokenKind::Literal,
        word: words.number(&text)?,
        spaced: false,
        hidden: NONE_HIDDEN,
    })
}

/// Sets of macros, each once.
struct HideSets {
    /// Each in ascending order.
    sets: Vec<Rc<[u32]>>,
    numbers: HashMap<Rc<[u32]>, u32>,
    unions: HashMap<(u32, u32), u32>,
}

impl Default for HideSets {
    fn default() -> HideSets {
        let none: Rc<[u32]> = Rc::new([]);
        HideSets {
            sets: vec![none.clone()],
            numbers: HashMap::from([(none, NONE_HIDDEN)]),
            unions: HashMap::new(),
        }
    }
}

impl HideSets {
    fn holds(&self, set: u32, name: u32) -> bool {
        self.sets[set as usize].binary_search(&name).is_ok()
    }

    fn number(&mut self, set: Vec<u32>) -> Result<u32, Bypass> {
        if let Some(number) = self.numbers.get(set.as_slice()) {
            return Ok(*number);
        }
        let (number, set): (_, Rc<[u32]>) = (self.sets.len() as u32, set.into());
        self.numbers.try_reserve(1).map_err(|_| Bypass::NoMemory)?;
        push(&mut self.sets, set.clone())?;
        self.numbers.insert(set, number);
        Ok(number)
    }

    fn with(&mut self, set: u32, name: u32) -> Result<u32, Bypass> {
        let mut names = self.sets[set as usize].to_vec();
        if let Err(place) = names.binary_search(&name) {
            names.insert(place, name);
        }
        self.number(names)
    }

    /// The number of the union, and how many names were compared for it.
    fn union(&mut self, one: u32, other: u32) -> Result<(u32, usize), Bypass> {
        if one == NONE_HIDDEN {
            return Ok((other, 0));
        }
        if let Some(known) = self.unions.get(&(one, other)) {
            return Ok((*known, 0));
        }
        let mut names = self.sets[one as usize].to_vec();
        names.extend_from_slice(&self.sets[other as usize]);
        let compared = names.len();
        names.sort_unstable();
        names.dedup();
        let union = self.number(names)?;
        self.unions.try_reserve(1).map_err(|_| Bypass::NoMemory)?;
        self.unions.insert((one, other), union);
        Ok((union, compared))
    }
}
