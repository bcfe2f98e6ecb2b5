//! The key of a build, and the list of its ingredients.
//!
//! The encoding: SHA-256 over `"oclcache key"`, the version as u32, then for each ingredient in order its kind as u8, the length of
//! its name as u32, the name, the length of its value as u64, and the value. All integers are little-endian. Each length precedes
//! its content, so two lists never have the same encoding. A change of the encoding must raise [`VERSION`].

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The version of the encoding and of the choice of ingredients.
pub const VERSION: u32 = 11;

/// The key of a build: equal keys mean that the driver would make an equal program.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key(pub [u8; 32]);

impl Key {
    /// The 64 lower-case hexadecimal digits.
    pub fn hex(&self) -> String {
        hex(&self.0)
    }

    /// The key that 64 hexadecimal digits spell.
    pub fn from_hex(digits: &str) -> Option<Key> {
        let digits = digits.as_bytes();
        let nibble = |digit: u8| match digit {
            b'0'..=b'9' => Some(digit - b'0'),
            b'a'..=b'f' => Some(digit - b'a' + 10),
            _ => None,
        };
        let mut key = [0; 32];
        if digits.len() != 64 {
            return None;
        }
        for (byte, pair) in key.iter_mut().zip(digits.chunks_exact(2)) {
            *byte = nibble(pair[0])? << 4 | nibble(pair[1])?;
        }
        Some(Key(key))
    }
}

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.hex())
    }
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    // Not by `write!`, which takes a microsecond for a key: `list` writes a million.
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits
        .map(|digit| char::from(DIGITS[usize::from(digit)]))
        .collect()
}

/// The kind of an ingredient. The numbers are part of the encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[repr(u8)]
pub enum Kind {
    /// SHA-256 of the source text.
    Source = 1,
    /// SHA-256 of the options; the name tells NULL from empty.
    Options = 2,
    /// An answer of a device or its platform.
    Device = 3,
    /// A library or file of the driver, by build-id or content.
    Driver = 4,
    /// The processor, for devices that are one.
    Processor = 5,
    /// An environment variable that changes code.
    Environment = 6,
    /// The name of the running program, for compilers that look at it.
    Executable = 7,
    /// The function that was called, if not clBuildProgram.
    Operation = 8,
    /// SHA-256 of the source of an embedded header. The name is its include name.
    Header = 9,
    /// SHA-256 of the intermediate language.
    Il = 10,
    /// The value of a specialization constant; the name is its number.
    Constant = 11,
    /// The key of a program that is linked.
    Input = 12,
    /// The key of the earlier state that devices keep which the call does not name.
    Previous = 13,
    /// A place of a header. The name is the place (see [`super::include`]), the value its content.
    Include = 14,
    /// The working directory, which debug information may hold.
    WorkingDirectory = 15,
    /// A library that answers calls of the driver's instead of the usual one, or the variants of a library's functions that answer.
    Functions = 16,
    /// A floating-point register that differs from a program's start. The name tells which register, and when.
    FloatingPoint = 17,
}

/// One readable part of a key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ingredient {
    /// Its kind.
    pub kind: Kind,
    /// Its name among those of its kind.
    pub name: String,
    /// Its value. Digests are raw bytes.
    pub value: Vec<u8>,
}

impl Ingredient {
    /// The prefix of the name of an ingredient that tells the chosen variants of a library's functions.
    pub const VARIANTS: &str = "variants of ";
    /// The suffix of the name of a register's state when the driver was opened.
    pub const AT_OPENING: &str = " when the driver was opened";
    /// Ends the name of a library that the program has loaded from elsewhere, and that the driver gets when it opens that name.
    pub const OF_PROGRAM: &str = " of the program";
    /// Ends the name of a library that is preloaded into the programs that the driver runs.
    pub const IN_TOOLS: &str = " preloaded into the driver's tools";
    /// Ends the name of a register as it was when devices were asked for.
    pub const AT_DEVICES: &str = " when devices were asked for";
    /// Ends the name of a register as it was when contexts were made.
    pub const AT_CONTEXT: &str = " when contexts were made";

    /// Whether another process of ours on the same machine can have the same ingredient without executing foreign code. That
    /// excludes a library that answers calls of the driver's, and a floating-point state in which the driver was opened.
    pub fn is_reproducible(&self) -> bool {
        match self.kind {
            // Each of our processes has the C library's mathematics.
            Kind::Functions => {
                self.name.starts_with(Self::VARIANTS) || self.name.starts_with("libm.so")
            }
            Kind::FloatingPoint => ![Self::AT_OPENING, Self::AT_DEVICES, Self::AT_CONTEXT]
                .iter()
                .any(|end| self.name.ends_with(end)),
            Kind::Driver => ![Self::OF_PROGRAM, Self::IN_TOOLS]
                .iter()
                .any(|end| self.name.ends_with(end)),
            _ => true,
        }
    }

    /// An ingredient.
    pub fn new(kind: Kind, name: impl Into<String>, value: impl Into<Vec<u8>>) -> Self {
        Self {
            kind,
            name: name.into(),
            value: value.into(),
        }
    }
}

/// The prefix that distinguishes a digest from a text.
const DIGEST: &[u8] = b"sha256 ";

/// The digest as the value of an ingredient, for a text that must not be stored, or for a small file.
pub fn sha256_value(digest: &[u8; 32]) -> Vec<u8> {
    [DIGEST, digest.as_slice()].concat()
}

/// The digest in a value that [`sha256_value`] made.
pub fn digest_of(value: &[u8]) -> Option<[u8; 32]> {
    value.strip_prefix(DIGEST)?.try_into().ok()
}

/// The key of these ingredients.
pub fn key<'a>(ingredients: impl IntoIterator<Item = &'a Ingredient>) -> Key {
    KeyHash::new().with(ingredients).key()
}

/// The hash of the ingredients of a key as far as they are known. Keys that begin alike share it.
#[derive(Clone)]
pub struct KeyHash(Sha256);

impl KeyHash {
    /// That of no ingredient.
    pub fn new() -> KeyHash {
        let mut hash = Sha256::new();
        hash.update(b"oclcache key");
        hash.update(VERSION.to_le_bytes());
        KeyHash(hash)
    }

    /// The same with more ingredients.
    pub fn with<'a>(mut self, ingredients: impl IntoIterator<Item = &'a Ingredient>) -> KeyHash {
        for ingredient in ingredients {
            self.0.update([ingredient.kind as u8]);
            self.0.update((ingredient.name.len() as u32).to_le_bytes());
            self.0.update(&ingredient.name);
            self.0.update((ingredient.value.len() as u64).to_le_bytes());
            self.0.update(&ingredient.value);
        }
        self
    }

    /// The key of exactly these ingredients.
    pub fn key(self) -> Key {
        Key(self.0.finalize().into())
    }
}

/// SHA-256 of a text.
pub fn sha256(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list() -> Vec<Ingredient> {
        vec![
            Ingredient::new(Kind::Source, "", sha256(b"kernel void f() {}")),
            Ingredient::new(Kind::Options, "given", sha256(b"-DN=1")),
            Ingredient::new(Kind::Device, "name", *b"cpu"),
            Ingredient::new(Kind::Driver, "libx.so", *b"\x01\x02"),
            Ingredient::new(Kind::Processor, "flags", *b"sse avx"),
            Ingredient::new(Kind::Environment, "X_MODE", *b"1"),
            Ingredient::new(Kind::Executable, "", *b"app"),
            Ingredient::new(Kind::Operation, "", *b"compile"),
            Ingredient::new(Kind::Header, "a.h", *b"digest"),
            Ingredient::new(Kind::Il, "", *b"digest"),
            Ingredient::new(Kind::Constant, "1", *b"\x05"),
            Ingredient::new(Kind::Input, "0", *b"key"),
            Ingredient::new(Kind::Previous, "", *b"key"),
            Ingredient::new(Kind::Include, "-I0/a.h", *b"digest"),
            Ingredient::new(Kind::WorkingDirectory, "", *b"/home"),
            Ingredient::new(Kind::Functions, "libx.so", *b"exp 0x1"),
            Ingredient::new(Kind::FloatingPoint, "MXCSR", *b"0x3f80"),
        ]
    }

    #[test]
    fn the_key_of_a_given_list_never_changes_without_a_new_version() {
        assert_eq!(
            key(&list()).hex(),
            "81764aa9129f9eafa74e34b6b6f695052778d3972e081ebdcbde697746b0ba10"
        );
        assert_eq!(
            key(&[]).hex(),
            "d5459aa35ec3b6babb6b65bbcdd78ead177f779de65be37ab3f58e09590e7fb1"
        );
    }

    #[test]
    fn the_key_differs_when_any_kind_name_or_value_differs() {
        let original = key(&list());
        for index in 0..list().len() {
            let mut changed = list();
            changed[index].value.push(b'x');
            assert_ne!(
                key(&changed),
                original,
                "value of {:?}",
                changed[index].kind
            );
            let mut changed = list();
            changed[index].name.push('x');
            assert_ne!(key(&changed), original, "name of {:?}", changed[index].kind);
            let mut changed = list();
            changed.remove(index);
            assert_ne!(key(&changed), original);
        }
        let mut swapped = list();
        swapped.swap(0, 1);
        assert_ne!(key(&swapped), original);
    }

    #[test]
    fn a_library_that_answers_and_the_state_of_an_earlier_thread_cannot_be_had_again() {
        let is = |kind, name: &str| Ingredient::new(kind, name, *b"1").is_reproducible();
        assert!(is(Kind::Driver, "libx.so"));
        assert!(is(Kind::Functions, "variants of libm.so.6"));
        assert!(is(Kind::Functions, "libm.so.6"));
        assert!(!is(Kind::Functions, "libx.so"));
        assert!(is(Kind::FloatingPoint, "MXCSR"));
        assert!(!is(Kind::FloatingPoint, "MXCSR when the driver was opened"));
        assert!(!is(Kind::FloatingPoint, "MXCSR when contexts were made"));
    }

    #[test]
    fn bytes_cannot_move_from_one_field_to_the_next() {
        let one = [Ingredient::new(Kind::Device, "ab", *b"c")];
        let other = [Ingredient::new(Kind::Device, "a", *b"bc")];
        assert_ne!(key(&one), key(&other));
    }

    #[test]
    fn a_key_is_spelled_by_64_lower_case_digits_and_by_nothing_else() {
        let some = key(&list());
        assert_eq!(Key::from_hex(&some.hex()), Some(some));
        for bad in [
            "",
            "../../../../etc/passwd",
            &some.hex().to_uppercase(),
            &some.hex()[..63],
        ] {
            assert_eq!(Key::from_hex(bad), None, "{bad}");
        }
    }
}
