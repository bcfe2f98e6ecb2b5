//! The parts of texts that inline assembly could read a file with.

use super::lexer::is_word;
use super::scan::{begins_in_any_case, holds_anywhere};

/// The assembler's directives that read files.
const DIRECTIVES: [&[u8]; 2] = [b"incbin", b"include"];

/// Whether inline assembly holding this literal could be told to read a file (`.incbin`, `.include`), perhaps
/// with the directive's name cut over several literals, spelled in escapes, or made by the assembler's macros.
pub(super) fn could_name_a_file(literal: &[u8]) -> bool {
    let start = literal
        .iter()
        .rposition(|byte| !byte.is_ascii_alphabetic())
        .map_or(0, |at| at + 1);
    let tail = &literal[start..];
    let opens = match start.checked_sub(1) {
        None => tail.len() > 2,
        Some(before) => literal[before] == b'.' && !tail.is_empty(),
    };
    let begins = |byte: u8, next: u8| begins_directive(byte, next) | begins_escape(byte, next);
    holds_anywhere(literal, begins, |rest| {
        rest[0] == b'\\' || is_part_of_directive(rest) || begins_in_any_case(rest, b"clude")
    }) || opens && begins_a_directive(tail)
}

/// The same, where the name's first letters come from what is `behind` the literal, or any of them from alternatives of the compiler's
/// (`{a|b}`) or from an operand (`%c0`). Formats such as `%d.%03d` look like that, so it counts only beside inline assembly.
pub(super) fn could_begin_to_name_a_file(literal: &[u8], behind: &[u8]) -> bool {
    literal.ends_with(b".") && goes_on(behind)
        || holds_anywhere(literal, |byte, _| byte == b'.', |rest| is_cut(&rest[1..]))
}

/// Whether a directive's name begins with this, in any case.
fn begins_a_directive(part: &[u8]) -> bool {
    let begins = |word: &&[u8]| {
        let start = word.get(..part.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(part))
    };
    DIRECTIVES.iter().any(begins)
}

/// Whether a directive's name begins here, and goes on with what the compiler puts in place of an operand or of alternatives.
fn is_cut(text: &[u8]) -> bool {
    let longest = DIRECTIVES[0].len().max(DIRECTIVES[1].len());
    let word = text.iter().take(longest + 1);
    let letters = word.take_while(|byte| byte.is_ascii_alphabetic()).count();
    let cuts = match text.get(letters) {
        Some(b'%') => is_operand(&text[letters + 1..]),
        Some(cut) => b"{|}$".contains(cut),
        None => false,
    };
    cuts && begins_a_directive(&text[..letters])
}

/// Whether an operand of the assembly stands behind a percent sign: `0`, `c0`, `[name]`, `c[name]`. Formats begin with others, but for
/// `%03d` and the like.
fn is_operand(text: &[u8]) -> bool {
    let text = match text.first() {
        Some(modifier) if modifier.is_ascii_alphabetic() => &text[1..],
        _ => text,
    };
    let begins = |first: &u8| *first == b'[' || first.is_ascii_digit();
    text.first().is_some_and(begins)
}

/// Whether a text with joined lines has the word that begins inline assembly.
pub(super) fn has_asm(text: &[u8]) -> bool {
    let is_it = |word: &[u8]| {
        let strip = |word: &[u8]| word.iter().take_while(|byte| **byte == b'_').count();
        let word = &word[strip(word)..];
        let rest = word.strip_prefix(b"asm");
        rest.is_some_and(|rest| {
            rest[strip(rest)..]
                .first()
                .is_none_or(|next| !is_word(*next))
        })
    };
    let begins = |byte: u8, next: u8| !is_word(byte) & ((next == b'a') | (next == b'_'));
    is_it(text) || holds_anywhere(text, begins, |rest| is_it(&rest[1..]))
}

/// Whether another literal, or a macro that could be one, may stand behind a literal: in another line as well, since a macro's text ends
/// with its line.
fn goes_on(behind: &[u8]) -> bool {
    let next = behind
        .iter()
        .find(|byte| !byte.is_ascii_whitespace() && **byte != 0x0B);
    next.is_none_or(|next| matches!(next, b'"' | b'/' | b'#') || is_word(*next))
}

/// Whether the text has a part of such a directive, or of a macro's definition. Clang's assembler accepts directives in capitals as
/// well.
pub(super) fn could_name_a_file_within(text: &[u8]) -> bool {
    // As a macro's argument, such as `(.in)`. A member's name has its object before it, and in an initializer `=` behind it.
    let is_argument = |rest: &[u8]| {
        let word = rest[2..]
            .iter()
            .take_while(|byte| byte.is_ascii_alphabetic());
        let (name, end) = rest[2..].split_at(word.count());
        let next = end.trim_ascii_start().first();
        let ends = next.is_none_or(|next| b"),".contains(next));
        ends && !name.is_empty() && begins_a_directive(name)
    };
    let is_before = |byte: u8| (byte == b'(') | (byte == b',') | byte.is_ascii_whitespace();
    let begins_argument = |byte: u8, next: u8| is_before(byte) & (next == b'.');
    holds_anywhere(text, begins_directive, is_part_of_directive)
        || holds_anywhere(text, begins_argument, is_argument)
}

/// Whether a part of such a directive could begin with these bytes.
fn begins_directive(byte: u8, next: u8) -> bool {
    let next = next | 0x20;
    (byte == b'.') & ((next == b'i') | (next == b'm'))
        | (byte | 0x20 == b'c') & ((next == b'b') | (next == b'l'))
}

/// Whether the text begins with such a part.
fn is_part_of_directive(text: &[u8]) -> bool {
    // PTX has `atom.inc.u32`.
    let is_inclusion = || !matches!(text.get(4), None | Some(b'.' | b' '));
    let mut parts = [&b"cbin"[..], b".macro", b".irp"].into_iter();
    begins_in_any_case(text, b".inc") && is_inclusion()
        || parts.any(|part| begins_in_any_case(text, part))
}

/// Whether an escape that could mean any character begins with these bytes.
fn begins_escape(byte: u8, next: u8) -> bool {
    let is_letter = (next == b'x') | (next == b'u') | (next == b'U') | (next == b'N');
    (byte == b'\\') & (is_letter | (next.wrapping_sub(b'0') < 10))
}

/// Whether an escape in the text could mean any character.
pub(super) fn has_escape(text: &[u8]) -> bool {
    holds_anywhere(text, begins_escape, |_| true)
}

#[cfg(test)]
mod tests {
    use crate::key::source::Texts;
    use crate::outcome::Bypass;

    fn reads_a_file(text: &str) -> bool {
        let mut texts = Texts::default();
        let judged = texts.add(text.as_bytes()).and_then(|_| texts.finish());
        judged == Err(Bypass::ReadsFile)
    }

    #[test]
    fn a_directive_that_the_compiler_puts_together_counts() {
        for text in [
            r#"asm(".section .rodata\n." "in" "cb" "in \"/blob\"");"#,
            r#"asm("." CB "in \"/blob\"");"#,
            r#"asm(".in{cb|xx}in \"/blob\"");"#,
            r#"asm(".%c0 \"/blob\"" :: "i"(incbin));"#,
            "#define S(x) #x\nasm(S(.in) S(cb) S(in) \" 'b'\");",
            "#define S(x) #x\nasm(S(nop,.i) S(nc) \" 'b'\");",
            "#define S(x) #x\nasm(S( .in ) S(cb) S(in) \" 'b'\");",
            "#define D \".\"\n#define E\nasm(D \"in\" \"cb\" \"in 'b'\");",
        ] {
            assert!(reads_a_file(text), "{text}");
        }
    }

    #[test]
    fn what_only_looks_like_one_does_not_count() {
        for text in [
            r#"asm("nop"); printf("done.");"#,
            r#"asm("nop"); printf("%s.", x); printf("ends."  );"#,
            r#"printf("%d.%03d", a, b); f(a ## b); // plasma"#,
            r#"asm("nop"); printf("v%u.%u %f.", a, b, c);"#,
            "#define S(x) #x\nasm(S(nop)); t x = {.a = 1,.i = 2, .in = 3 };",
            r#"asm("mad.lo.cc.u32 %0, %1;" : "=r"(a) : "r"(b));"#,
            r#"asm("{.reg .pred p; setp.ne.b32 p, %0, 0; @p bra.uni d;}" :: "r"(x));"#,
            r#"asm("v_add_f32 %0, %1, %2" : "=v"(a) : "v"(b), "v"(c));"#,
            "#define S(x) #x\nasm(S(nop)); f(v.i, v.in); p->in = (x).in;",
        ] {
            assert!(!reads_a_file(text), "{text}");
        }
    }
}
