//! The special names that token pasting could make from the identifiers of a text.

use std::collections::HashSet;

use super::lexer::is_word;
use super::pragma_words::PRAGMA_WORDS;
use super::scan::holds_anywhere;
use super::{ASM_NAMES, PRAGMA_OPERATORS, SPECIAL, STRING_MAKERS, SYMBOL_NAMES, special_names};

/// How many forbidden names there are.
const NAMES: usize = SPECIAL.len()
    + PRAGMA_OPERATORS.len()
    + PRAGMA_WORDS.len()
    + STRING_MAKERS.len()
    + SYMBOL_NAMES.len()
    + ASM_NAMES.len();

/// A forbidden name.
const fn name(index: usize) -> &'static [u8] {
    const OPERATORS: usize = SPECIAL.len();
    const WORDS: usize = OPERATORS + PRAGMA_OPERATORS.len();
    const MAKERS: usize = WORDS + PRAGMA_WORDS.len();
    const SYMBOLS: usize = MAKERS + STRING_MAKERS.len();
    const ASM: usize = SYMBOLS + SYMBOL_NAMES.len();
    match index {
        ASM.. => ASM_NAMES[index - ASM],
        SYMBOLS.. => SYMBOL_NAMES[index - SYMBOLS],
        MAKERS.. => STRING_MAKERS[index - MAKERS],
        WORDS.. => PRAGMA_WORDS[index - WORDS],
        OPERATORS.. => PRAGMA_OPERATORS[index - OPERATORS],
        _ => SPECIAL[index].0,
    }
}

/// A bit for each place in the forbidden names.
type Bits = [u128; 4];

/// All forbidden names, one after another with a gap after each: for each ASCII byte a bit for each of its places.
static PLACES: [Bits; 128] = {
    let mut places = [[0; 4]; 128];
    let mut index = 0;
    let mut place = 0;
    while index < NAMES {
        let bytes = name(index);
        let mut at = 0;
        while at < bytes.len() {
            places[bytes[at] as usize][place / 128] |= 1 << (place % 128);
            place += 1;
            at += 1;
        }
        place += 1;
        index += 1;
    }
    places
};

/// The identifier at the beginning of a text, if it is a part of a forbidden name. Its cost does not depend on how many names there are,
/// and usually the second or third byte decides.
fn part_at(text: &[u8]) -> Option<&[u8]> {
    let places = |byte: &u8| &PLACES[usize::from(byte & 0x7F)];
    // The places at which the bytes so far end.
    let mut ends = *places(text.first()?);
    let mut length = 1;
    while let Some(byte) = text.get(length).filter(|byte| is_word(**byte)) {
        let (before, next) = (ends, places(byte));
        ends[0] = before[0] << 1 & next[0];
        for at in 1..ends.len() {
            ends[at] = (before[at] << 1 | before[at - 1] >> 127) & next[at];
        }
        if ends == Bits::default() {
            return None;
        }
        length += 1;
    }
    (ends != Bits::default()).then(|| &text[..length])
}

/// An identifier begins behind the byte. The case of a letter is one bit.
fn begins(byte: u8, next: u8) -> bool {
    let is_letter = |byte: u8| ((byte | 0x20).wrapping_sub(b'a') < 26) | (byte == b'_');
    let is_digit = byte.wrapping_sub(b'0') < 10;
    !(is_letter(byte) | is_digit) & is_letter(next)
}

/// The identifiers that are part of a special name. These are few, however long the texts are.
pub(super) struct Pieces(HashSet<Vec<u8>>);

impl Default for Pieces {
    /// What compilers' own macros expand to: suffixes of constants (`__INT64_C_SUFFIX__`).
    fn default() -> Pieces {
        let suffixes = ["L", "LL", "U", "UL", "ULL"];
        Pieces(suffixes.map(|suffix| suffix.as_bytes().to_vec()).into())
    }
}

impl Pieces {
    /// Adds those of a span of code.
    pub(super) fn add(&mut self, code: &[u8]) {
        self.add_unless(code, |_| false);
    }

    /// Adds those of a span of code, but for some words.
    pub(super) fn add_unless(&mut self, code: &[u8], is_left_out: impl Fn(&[u8]) -> bool) {
        let mut add = |text: &[u8]| {
            if let Some(word) = part_at(text)
                && !self.0.contains(word)
                && !is_left_out(word)
            {
                self.0.insert(word.to_vec());
            }
        };
        if code.first().is_some_and(|byte| is_word(*byte)) {
            add(code);
        }
        holds_anywhere(code, begins, |rest| {
            add(&rest[1..]);
            false
        });
    }

    /// Whether any forbidden name of the language can be put together from pieces.
    pub(super) fn make_any(&self, is_cpp: bool) -> bool {
        let special = special_names(is_cpp).len();
        let mut names = (0..special).chain(SPECIAL.len()..NAMES);
        names.any(|index| self.make(name(index)))
    }

    /// Whether `name` is a sequence of two pieces or more, each used any number of times.
    pub(super) fn make(&self, name: &[u8]) -> bool {
        let mut reached = 1u64;
        for at in 0..name.len() {
            for end in at + 1..=name.len() {
                if reached & 1 << at == 0 {
                    break;
                }
                if end - at < name.len() && self.0.contains(&name[at..end]) {
                    reached |= 1 << end;
                }
            }
        }
        reached & 1 << name.len() != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::source::Texts;
    use crate::outcome::Bypass;

    fn names() -> impl Iterator<Item = &'static [u8]> {
        (0..NAMES).map(name)
    }

    #[test]
    fn a_word_that_is_pasted_for_a_pragma_operator_counts() {
        let judge = |text: &str| {
            let mut texts = Texts::default();
            texts.add(text.as_bytes()).and_then(|_| texts.finish())
        };
        let macros = "#define S(x) #x\n#define C(a, b) a ## b\n";
        let asks = "_Pragma(S(GCC C(depen, dency) \"a\"))";
        assert_eq!(judge(&[macros, asks].concat()), Err(Bypass::ReadsFile));
        let asks_nothing = "int C(depen, dency); _Pragma(\"unroll\")";
        assert_eq!(
            judge(&["#define C(a, b) a ## b\n", asks_nothing].concat()),
            Ok(())
        );
        let variables = "int d, e, p, n, c, y; _Pragma(S(unroll)) int C(x, 1);";
        assert_eq!(judge(&[macros, variables].concat()), Ok(()));
        let variables =
            "int mod, u, l, e; int g(int mod, int u) { return C(x, 1); } _Pragma(S(unroll))";
        assert_eq!(judge(&[macros, variables].concat()), Ok(()));
        for short in [
            "_Pragma(S(GCC C(de, C(pe, C(nd, C(en, cy)))) \"a\"))",
            "_Pragma(S(GCC C(d, C(e, C(p, C(e, C(n, C(d, C(e, C(n, C(c, y))))))))) \"a\"))",
        ] {
            assert_eq!(judge(&[macros, short].concat()), Err(Bypass::ReadsFile));
        }
        let maker = "#define C(a, b) a##b\n_Pragma(C(_CL_STATIC_, ASSERT)(ID(mod)ule, 1))";
        assert_eq!(judge(maker), Err(Bypass::ReadsFile));
        let macros = "#define S2(x) #x\n#define S(x) S2(x)\n#define ID(x) x\n";
        for (joined, reason) in [
            ("_Pragma(S(GCC ID(depen)dency \"a\"))", Bypass::ReadsFile),
            (
                "_Pragma(S(message ID(__FI)LE__))",
                Bypass::UsesTimeOrFileName,
            ),
        ] {
            assert_eq!(judge(&[macros, joined].concat()), Err(reason));
        }
        assert_eq!(
            judge(&[macros, "int ID(depen), dency; // _Pragma"].concat()),
            Ok(())
        );
        let macros = "#define C(a, b) a ## b\n";
        let suffix = "C(__FI, C(__INT64_C_SUFFIX__, E__))";
        let judged = judge(&[macros, suffix].concat());
        assert_eq!(judged, Err(Bypass::UsesTimeOrFileName));
    }

    /// Words are only looked for where a letter or an underscore begins one.
    #[test]
    fn no_forbidden_name_has_a_digit() {
        assert!(names().all(|name| !name.iter().any(u8::is_ascii_digit)));
    }

    #[test]
    fn the_pieces_of_any_text_are_those_words_that_a_forbidden_name_contains() {
        let alphabet: Vec<u8> = names()
            .flatten()
            .copied()
            .chain(*b"  (.;9\xe9@[`{")
            .collect();
        let mut random = 1u64;
        for _ in 0..20_000 {
            let mut next = |below: usize| {
                random = random
                    .wrapping_mul(6_364_136_223_846_793_005)
                    .wrapping_add(1);
                (random >> 33) as usize % below
            };
            let length = next(200);
            let mut text: Vec<u8> = (0..length)
                .map(|_| alphabet[next(alphabet.len())])
                .collect();
            // Long pieces do not come by chance.
            let all: Vec<&[u8]> = names().collect();
            let name = all[next(all.len())];
            let from = next(name.len());
            let at = next(text.len() + 1);
            text.splice(
                at..at,
                name[from..from + 1 + next(name.len() - from)]
                    .iter()
                    .copied(),
            );
            let mut found = Pieces::default();
            found.add(&text);
            let contains = |word: &&[u8]| {
                !word.is_empty()
                    && names().any(|name| name.windows(word.len()).any(|part| part == *word))
            };
            let words = text.split(|byte| !is_word(*byte)).filter(contains);
            let mut expected = Pieces::default().0;
            expected.extend(words.map(<[u8]>::to_vec));
            assert_eq!(found.0, expected, "{}", text.escape_ascii());
        }
    }
}
