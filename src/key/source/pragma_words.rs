//! The names of pragmas that make the compiler or the linker read a file.

use super::lexer::is_word;
use super::scan::holds_anywhere;

/// Words of the pragmas that read files or rename headers: `GCC dependency`, `GCC pch_preprocess`, `clang module import`,
/// `include_alias`, `comment(lib, ...)` (which LLVM's linker follows) and others.
pub(super) const PRAGMA_WORDS: [&[u8]; 5] = [
    COMMENT,
    b"dependency",
    b"pch_preprocess",
    b"module",
    b"include_alias",
];

/// A common word, which has other forms.
const COMMENT: &[u8] = b"comment";

/// Whether the text has one of [`PRAGMA_WORDS`] but [`COMMENT`].
pub(super) fn has_pragma_word(text: &[u8]) -> bool {
    let begins =
        |byte: u8, _: u8| (byte == b'd') | (byte == b'p') | (byte == b'm') | (byte == b'i');
    holds_anywhere(text, begins, |rest| {
        let mut words = PRAGMA_WORDS[1..].iter();
        words.any(|word| rest.starts_with(word))
    })
}

/// Whether the text has the word [`COMMENT`], whose pragma may name a library. What follows it may come from a macro.
pub(super) fn has_comment_word(text: &[u8]) -> bool {
    let begins = |byte: u8, next: u8| (byte == b'c') & (next == b'o');
    holds_anywhere(text, begins, |rest| {
        let before = text[..text.len() - rest.len()].last();
        let is_end = |byte: Option<&u8>| !byte.is_some_and(|byte| is_word(*byte));
        let behind = rest.strip_prefix(COMMENT);
        behind.is_some_and(|behind| is_end(before) && is_end(behind.first()))
    })
}

/// Whether a directive with this line behind `pragma` may be called [`COMMENT`]. Its name comes from no macro.
pub(super) fn is_pragma_comment(line: &[u8]) -> bool {
    let begins_name = |byte: &u8| !byte.is_ascii() || byte.is_ascii_graphic();
    let name = line.iter().position(begins_name).map(|at| &line[at..]);
    let is_plain = name.is_none_or(|name| is_word(name[0]) && !name.starts_with(COMMENT));
    !is_plain && has_comment_word(line)
}
