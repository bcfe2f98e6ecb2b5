//! The headers for which a text asks: the operands of include directives and of `__has_include`.

use super::lexer::{Lexer, Tested};
use crate::fallible::copy;
use crate::outcome::Bypass;

/// The operand of an include directive or of `__has_include`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Operand {
    /// A literal name in quotes or angle brackets. Drivers differ in where they look for each, so both count the same.
    Name(Vec<u8>),
    /// Tokens from which macros compute a name, with the comments between them.
    Computed(Vec<u8>),
}

/// The operand of an include directive.
pub(super) fn included(
    lexer: &mut Lexer,
    first_on_line: bool,
    embeds: bool,
) -> Result<Operand, Bypass> {
    // `#` makes a string of a macro parameter that is called so, and what follows is no name.
    if !first_on_line {
        return Err(Bypass::UnresolvedInclude);
    }
    if let Some(name) = lexer.header_name()? {
        // Some compilers ignore text after a name, with a warning. Parameters of `#embed` name no file.
        return match embeds || lexer.is_at_line_end() {
            true => Ok(Operand::Name(copy(name)?)),
            false => Err(Bypass::UnresolvedInclude),
        };
    }
    let rest = lexer.rest_of_directive().trim_ascii();
    match !embeds && !rest.is_empty() {
        true => computed(rest),
        false => Err(Bypass::UnresolvedInclude),
    }
}

/// Tokens from which macros compute a name. While clang reads them, `<` begins a name wherever it stands, also in the arguments of a macro,
/// and what looks like blanks and comments behind it is of the name (measured on PoCL).
fn computed(tokens: &[u8]) -> Result<Operand, Bypass> {
    match tokens.contains(&b'<') {
        true => Err(Bypass::UnresolvedInclude),
        false => Ok(Operand::Computed(copy(tokens)?)),
    }
}

/// Whether the name asks the compiler for a file, or could in some compiler.
pub(super) fn is_question(name: &[u8]) -> bool {
    name.starts_with(b"__has_include") || name.starts_with(b"__has_embed")
}

/// Names that ask the compiler for a file, also in spellings of old compilers.
const QUESTIONS: [&[u8]; 5] = [
    b"__has_include",
    b"__has_include_next",
    b"__has_include__",
    b"__has_include_next__",
    b"__has_embed",
];

/// Whether what a macro is has no word, as where `__has_include(x)` is 0 in a compiler without it. `definition`: what stands behind the name.
fn is_number(definition: &[u8]) -> bool {
    let behind = definition.strip_prefix(b"(").and_then(|rest| {
        let end = rest.iter().position(|byte| *byte == b')')?;
        Some(&rest[end + 1..])
    });
    let is_plain = |byte: &u8| byte.is_ascii_digit() || b"() \t".contains(byte);
    behind.unwrap_or(definition).iter().all(is_plain)
}

/// The operand of `__has_include` and the like, unless the name is only tested for or defined. `in_macro`: the name is in a macro's
/// body or arguments, where parameters and other macros may contribute to the operand. `in_definition`: it is in a definition.
pub(super) fn question(
    lexer: &mut Lexer,
    name: &[u8],
    in_macro: bool,
    in_definition: bool,
) -> Result<Option<Operand>, Bypass> {
    match lexer.tested(name) {
        // What stands behind a macro of this name is no name of a header.
        Tested::ByDirective if in_definition && !is_number(lexer.rest_of_directive()) => {
            return Err(Bypass::UnresolvedInclude);
        }
        Tested::ByDirective => return Ok(None),
        // In a macro, `##` may make another word of the operator.
        Tested::ByOperator if !in_macro => return Ok(None),
        Tested::ByOperator | Tested::No => {}
    }
    if !QUESTIONS.contains(&name) {
        return Err(Bypass::UnresolvedInclude);
    }
    let inside = lexer.parenthesised().flatten();
    let inside = inside.ok_or(Bypass::UnresolvedInclude)?;
    if in_macro && !inside.trim_ascii_start().starts_with(b"\"") {
        return Err(Bypass::UnresolvedInclude);
    }
    match lexer.header_name()? {
        Some(name) => Ok(Some(Operand::Name(copy(name)?))),
        // A parenthesis in a literal or a comment is not the end.
        None if inside.iter().any(|byte| b"\"'*".contains(byte)) => Err(Bypass::UnresolvedInclude),
        None => computed(inside).map(Some),
    }
}
