//! The definitions of texts as they are written, by name.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, BuildHasherDefault, Hasher};
use std::ops::Range;

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::MAX_TEXT_BYTES;
use super::lex::{Lexemes, TokenKind, is_odd};
use crate::fallible::push;
use crate::key::work::Work;
use crate::outcome::Bypass;

/// Steps of a definition that is added, beside those of its bytes.
const STEPS_OF_DEFINITION: usize = 250;

/// Definitions in the order in which they were added.
pub(super) struct WrittenDefinitions {
    /// The texts of all, one after another: one allocation for each would take longer than to read it.
    texts: Vec<u8>,
    definitions: Vec<Written>,
    /// The last definition by the digest of its name.
    last: HashMap<u32, u32, BuildHasherDefault<Digested>>,
    /// Of the digests, so that no text can be made whose names have the same ones.
    seed: u64,
}

impl Default for WrittenDefinitions {
    fn default() -> WrittenDefinitions {
        WrittenDefinitions {
            texts: Vec::new(),
            definitions: Vec::new(),
            last: HashMap::default(),
            seed: RandomState::new().hash_one(()),
        }
    }
}

/// A definition. There may be hundreds of thousands, so numbers are small.
struct Written {
    /// Where its text begins and ends. Of a text that is too long the name is kept alone.
    text: Range<u32>,
    /// Where its name begins and ends.
    name: Range<u32>,
    is_understood: bool,
    /// The definition before of a name with the same digest.
    before: Option<u32>,
}

/// Hashes what is a digest already.
#[derive(Default)]
struct Digested(u64);

impl Hasher for Digested {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0 << 8 ^ u64::from(*byte);
        }
    }

    fn write_u32(&mut self, digest: u32) {
        // The table takes the place from the lowest bits and a tag from the highest.
        self.0 = u64::from(digest) << 32 | u64::from(digest);
    }
}

impl WrittenDefinitions {
    /// Adds the text after `#define`, up to the end of the directive.
    ///
    /// # Errors
    /// There is no memory for it, or it costs too much; or where its name begins is unknown.
    pub fn add(&mut self, text: &[u8], work: &Work) -> Result<(), Bypass> {
        work.spend(STEPS_OF_DEFINITION)?;
        work.count_search(text.len());
        let mut lexemes = Lexemes::new(text);
        let first = lexemes.next();
        work.count(lexemes.at());
        let Some(first) = first.filter(|lexeme| lexeme.kind == TokenKind::Identifier) else {
            return Ok(()); // it defines nothing
        };
        let from = lexemes.at() - first.text.len();
        // Some compilers end the name before such a character.
        let plain = first.text.iter().position(|byte| is_odd(*byte));
        // Others take it for a blank (measured on Intel's CPU runtime: a no-break space).
        if plain == Some(0) {
            return Err(Bypass::UnresolvedInclude);
        }
        let name = &first.text[..plain.unwrap_or(first.text.len())];
        // Digraphs mean `#` and `##`.
        let has_digraph = text.contains(&b'%') && text.windows(2).any(|pair| pair == b"%:");
        let is_understood = plain.is_none() && !has_digraph && text.len() <= MAX_TEXT_BYTES;
        let kept = match is_understood {
            true => text,
            false => &text[..from + name.len()],
        };
        let reserved = self.texts.try_reserve(kept.len());
        let reserved = reserved.and_then(|()| self.last.try_reserve(1));
        reserved.map_err(|_| Bypass::NoMemory)?;
        let small = |number: usize| u32::try_from(number).map_err(|_| Bypass::CostlyText);
        let start = self.texts.len();
        let end = small(start + kept.len())?;
        let name_start = small(start + from)?;
        let number = small(self.definitions.len())?;
        self.texts.extend_from_slice(kept);
        let before = self.last.insert(self.digest(name), number);
        let definition = Written {
            text: small(start)?..end,
            name: name_start..small(start + from + name.len())?,
            is_understood,
            before,
        };
        push(&mut self.definitions, definition)
    }

    fn digest(&self, name: &[u8]) -> u32 {
        xxh3_64_with_seed(name, self.seed) as u32
    }

    fn bytes(&self, range: &Range<u32>) -> &[u8] {
        &self.texts[range.start as usize..range.end as usize]
    }

    /// The text of a definition.
    pub fn text(&self, number: u32) -> &[u8] {
        self.bytes(&self.definitions[number as usize].text)
    }

    /// Whether the definition can be parsed.
    pub fn is_understood(&self, number: u32) -> bool {
        self.definitions[number as usize].is_understood
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.definitions.len()
    }

    /// The definitions of a name, the last one first. The first `count` definitions are left out, whatever names they have.
    ///
    /// # Errors
    /// They are too many, or there is no memory for them.
    pub fn since(&self, count: usize, name: &[u8], work: &Work) -> Result<Vec<u32>, Bypass> {
        let mut found = Vec::new();
        let mut next = self.last.get(&self.digest(name)).copied();
        while let Some(number) = next.filter(|number| *number as usize >= count) {
            let definition = &self.definitions[number as usize];
            // Others with the same digest are few, and not counted: digests differ from process to process.
            if self.bytes(&definition.name) == name {
                work.spend(STEPS_OF_DEFINITION)?;
                push(&mut found, number)?;
            }
            next = definition.before;
        }
        Ok(found)
    }
}
