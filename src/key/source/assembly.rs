//! The parts of texts that inline assembly could read a file with.
//!
//! The compiler puts the text of inline assembly together from literals, from code of which `#x` makes a literal, and from operands. The
//! assembler reads a file if a statement in it begins with `.incbin` or `.include`; its macros could write that statement. So in a
//! program with inline assembly every period counts that could begin such a name, wherever it stands: with the whole name behind it, or
//! with a first part of one, which may be empty, where something else can go on. To the assembler a period behind a letter is within a
//! name.

use super::lexer::is_word;
use super::scan::{Marks, holds_anywhere};

/// The assembler's directives that read files, and those that write statements. Clang's assembler takes them in capitals as well.
const DIRECTIVES: [&[u8]; 7] = [
    b"incbin", b"include", b"macro", b"irp", b"irpc", b"rept", b"rep",
];

/// The letters of the longest directive.
const MAX_LETTERS: usize = 7;

/// Whether inline assembly with this literal could read a file. Others may come before and behind the literal, unless it is a
/// character.
pub(super) fn could_name_a_file(literal: &[u8], is_character: bool) -> bool {
    let begins = |byte: u8, next: u8| (byte == b'.') | begins_escape(byte, next);
    holds_anywhere(literal, begins, |rest| {
        if rest[0] == b'\\' {
            return !is_character && is_escape(rest) && !is_plain_escape(rest);
        }
        let at = literal.len() - rest.len();
        !is_within_name(&literal[..at]) && {
            let letters = letters(&rest[1..]);
            let (name, behind) = rest[1..].split_at(letters);
            let may_go_on = match behind.is_empty() {
                true => !is_character,
                false => is_cut(behind),
            };
            is_directive(name) || may_go_on && begins_a_directive(name)
        }
    })
}

/// Whether an escape that begins here means a byte that is neither a period nor a backslash.
fn is_plain_escape(text: &[u8]) -> bool {
    let (base, digits) = match text {
        [b'\\', b'x', digits @ ..] => (16, digits),
        [b'\\', digits @ ..] => (8, &digits[..digits.len().min(3)]),
        _ => return false,
    };
    let digit = |byte: &u8| char::from(*byte).to_digit(base);
    let mut digits = digits.iter().map_while(digit).peekable();
    // Some compilers cut a value that is too large.
    digits.peek().is_some() && {
        let value = digits.fold(0, |value: u32, digit| (value * base + digit) & 0xFF);
        !b".\\".contains(&(value as u8))
    }
}

/// Whether a period behind this is within a name. A letter behind a backslash may be a line end, and so may a hexadecimal digit. A digit
/// may be the end of an operand.
fn is_within_name(before: &[u8]) -> bool {
    let digits = before
        .iter()
        .rev()
        .take_while(|byte| byte.is_ascii_hexdigit());
    match before {
        _ if before[..before.len() - digits.count()].ends_with(b"\\x") => false,
        [.., b'\\', last] => *last == b'.',
        [.., last] => last.is_ascii_alphabetic() || matches!(last, b'_' | b'.'),
        [] => false,
    }
}

/// The number of letters at the beginning, as far as they matter.
fn letters(text: &[u8]) -> usize {
    let letters = text.iter().take(MAX_LETTERS + 1);
    letters
        .take_while(|byte| byte.is_ascii_alphabetic())
        .count()
}

fn is_directive(name: &[u8]) -> bool {
    DIRECTIVES
        .iter()
        .any(|word| word.eq_ignore_ascii_case(name))
}

/// Whether a directive's name begins with this.
pub(super) fn begins_a_directive(part: &[u8]) -> bool {
    let begins = |word: &&[u8]| {
        let start = word.get(..part.len());
        start.is_some_and(|start| start.eq_ignore_ascii_case(part))
    };
    DIRECTIVES.iter().any(begins)
}

/// Whether letters can go on behind what begins here: an operand (`%c0`, which the literal's end may cut), one of several alternatives
/// (`{a|b}`), an escape that means a letter, or the assembler's own backslash.
fn is_cut(text: &[u8]) -> bool {
    match text {
        [b'%', rest @ ..] => is_operand(rest),
        [b'\\', escaped, ..] => !b"\"'?abfnrtv".contains(escaped),
        [first, ..] => b"{|}$\\".contains(first),
        [] => true,
    }
}

/// Whether an operand of the assembly stands behind a percent sign: `0`, `c0`, `[name]`, `c[name]`. Formats begin with others, but for
/// `%03d` and the like.
fn is_operand(text: &[u8]) -> bool {
    let is_modifier = |byte: &&u8| byte.is_ascii_alphabetic() || **byte == b'^';
    let modifiers = text.iter().take(MAX_LETTERS).take_while(is_modifier);
    let next = text.get(modifiers.count());
    next.is_none_or(|next| *next == b'[' || next.is_ascii_digit())
}

/// Whether code has the word that begins inline assembly.
pub(super) fn has_asm(code: &[u8]) -> bool {
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
    is_it(code) || holds_anywhere(code, begins, |rest| is_it(&rest[1..]))
}

/// Which operand of `##` a word beside a period may be.
#[derive(Clone, Copy)]
pub(super) enum Operand {
    No,
    /// Behind the period: the first one.
    First,
    /// Before the period: the last one.
    Last,
}

/// Whether a literal that `#x` makes of code could begin to name a file. `may_be_macro`: whether something else may take a word's place,
/// alone or as an operand of `##`.
pub(super) fn code_could_name_a_file(
    code: &[u8],
    may_be_macro: impl Fn(&[u8], Operand) -> bool,
) -> bool {
    // In the literal it is an escape.
    if code.contains(&b'\\') {
        return true;
    }
    let mut periods = Marks::new(code, |byte: u8, _: u8| byte == b'.');
    let mut at = periods.next(0);
    while at < code.len() {
        if period_could_name_a_file(code, at, &may_be_macro) {
            return true;
        }
        at = periods.next(at + 1);
    }
    false
}

/// The same of the period at `at`.
pub(super) fn period_could_name_a_file(
    code: &[u8],
    at: usize,
    may_be_macro: impl Fn(&[u8], Operand) -> bool,
) -> bool {
    let is_alone = |word: &[u8]| !may_be_macro(word, Operand::No);
    let stays = |word: &[u8], before: &[u8]| match may_be_last_operand(before, is_alone) {
        true => !may_be_macro(word, Operand::Last),
        false => is_alone(word),
    };
    let before = &code[..at];
    let word = word_before(before);
    let begins_no_statement = match word.is_empty() {
        true => before.ends_with(b".") || is_subscript(before, stays),
        false => stays(word, &before[..at - word.len()]),
    };
    if begins_no_statement {
        return false;
    }
    let behind = &code[at + 1..];
    let length = behind.iter().take_while(|byte| is_word(**byte)).count();
    let (name, behind) = behind.split_at(length);
    match name.first() {
        None => behind.first() != Some(&b'.'),
        Some(first) if first.is_ascii_digit() => false,
        Some(_) => {
            let operand = match may_be_first_operand(behind) {
                true => Operand::First,
                false => Operand::No,
            };
            begins_a_directive(name) || may_be_macro(name, operand)
        }
    }
}

/// Whether a word with this code behind it may be the first operand of `##`: the end of a macro's argument, or of the definition.
fn may_be_first_operand(behind: &[u8]) -> bool {
    // A comment, which is no code, may stand between.
    let behind = behind.trim_ascii_start();
    let ends = [&b","[..], b")", b"##", b"%:%:"];
    behind.is_empty() || ends.iter().any(|end| behind.starts_with(end))
}

/// Whether a word with this code before it may be the last operand of `##`: the beginning of a macro's argument, or of what a macro is,
/// before which others may be nothing. `stays`: whether a word is no macro.
fn may_be_last_operand(before: &[u8], stays: impl Fn(&[u8]) -> bool) -> bool {
    let blanks = before.len() - before.trim_ascii_end().len();
    let (before, blanks) = before.split_at(before.len() - blanks);
    match before {
        // The line before may be a directive, and not what is before the word.
        _ if blanks.contains(&b'\n') => true,
        [.., b'(' | b',' | b')' | b'#' | b':'] | [] => true,
        // The option `-DNAME=`.
        [name @ .., b'='] => !name.iter().any(u8::is_ascii_whitespace),
        [.., last] if !is_word(*last) => false,
        before => !stays(word_before(before)),
    }
}

/// Whether a bracket ends here that stays in the assembly, unlike that of an operand's name (`%[name]`, `%c[name]`). `stays`: whether a
/// word does, with the code before it.
fn is_subscript(code: &[u8], stays: impl Fn(&[u8], &[u8]) -> bool) -> bool {
    let Some(code) = code.strip_suffix(b"]") else {
        return false;
    };
    let index = word_before(code);
    let before = &code[..code.len() - index.len()];
    let Some(first) = index.first() else {
        return before.ends_with(b"]") || before.ends_with(b" ");
    };
    stays(index, before)
        && match before.strip_suffix(b"[") {
            _ if first.is_ascii_digit() => true,
            Some(before) => {
                let array = word_before(before);
                array.len() > 1 && stays(array, &before[..before.len() - array.len()])
            }
            None => !before.is_empty(),
        }
}

/// The word or number that ends here.
fn word_before(code: &[u8]) -> &[u8] {
    let length = code.iter().rev().take_while(|byte| is_word(**byte)).count();
    &code[code.len() - length..]
}

/// Whether an escape that could mean any character may begin with these bytes.
fn begins_escape(byte: u8, next: u8) -> bool {
    let is_number = (next == b'x') | (next == b'o') | (next.wrapping_sub(b'0') < 10);
    let is_name = (next == b'u') | (next == b'U') | (next == b'N');
    (byte == b'\\') & (is_number | is_name)
}

/// Whether an escape in the text could mean any character.
pub(super) fn has_escape(text: &[u8]) -> bool {
    holds_anywhere(text, begins_escape, is_escape)
}

/// Whether what [`begins_escape`] has found is one. `\o{56}` is one for clang since version 15.
fn is_escape(text: &[u8]) -> bool {
    !text.starts_with(b"\\o") || text.get(2) == Some(&b'{')
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
            r#"asm(".%c" "1 \"/blob\"" : "=r"(v) : "i"(&incbin));"#,
            r#"asm(".in\cbin \"/blob\"");"#,
            r#"asm("\o{56}incbin \"/blob\"");"#,
            r#"asm("\x{2e}incbin \"/blob\"");"#,
            r#"asm("\56incbin \"/blob\"");"#,
            r#"asm("\x00002Eincbin \"/blob\"");"#,
            r#"asm("\x12Eincbin \"/blob\"");"#,
            r#"asm("\456incbin \"/blob\"");"#,
            r#"asm("\12.incbin \"/blob\"");"#,
            r#"asm("\xa.incbin \"/blob\"");"#,
            r#"asm("\12.in" "cbin \"/blob\"");"#,
            r#"asm(".in\143bin \"/blob\"");"#,
            r#"asm(".in\x63\x62in \"/blob\"");"#,
            r#"asm("\134");"#,
            r#"asm("\u002eincbin \"/blob\"");"#,
            r#"asm("nop\n." "in" "cb" "in \"/blob\"");"#,
            r#"extern int f2 asm("."); asm("%c1in" "cb" "in 'b'" :: "i"(&f2));"#,
            "#define A(x, y) asm(x y \"'b'\")\nA(\".\", \"in\" \"cb\" \"in\");",
            "#define D \".\"\n;\nasm(D \"in\" \"cb\" \"in 'b'\");",
            "#define D \".\"\n%:define E\nasm(D \"in\" \"cb\" \"in 'b'\");",
            "#define D \".\"\n#define E\nasm(D \"in\" \"cb\" \"in 'b'\");",
        ] {
            assert!(reads_a_file(text), "{text}");
        }
    }

    #[test]
    fn a_macro_of_the_assembler_counts() {
        for text in [
            r#"asm(".ma" "cro q a b\n .\\a\\b 'b'\n.endm\nq inc bin");"#,
            r#"asm(".ir" "p q,inc\n .\\q\\()bin 'b'\n.endr");"#,
            r#"asm(".re" "pt 1\n nop\n.endr");"#,
            r#"asm(".IRPC q,a\n nop\n.endr");"#,
            r#"asm("nop\n .in\\()cbin 'b'");"#,
        ] {
            assert!(reads_a_file(text), "{text}");
        }
    }

    #[test]
    fn a_directive_that_is_made_of_code_counts() {
        for text in [
            "asm(S(.in) S(cb) S(in) \" 'b'\");",
            "asm(S(nop,.i) S(nc) \" 'b'\");",
            "asm(S( .in ) S(cb) S(in) \" 'b'\");",
            "asm(S(.) S(in) S(cb) S(in));",
            "asm(S(.\\\n) S(in) S(cb) S(in));",
            "asm(S(3:.in) S(cb) S(in));",
            "asm(S(nop;.in) S(cb) S(in));",
            "asm(S(\\056incbin) \" 'b'\");",
            "asm(S(\\n.incbin) \" 'b'\");",
            "#define M 056\nasm(S(\\M) \"incbin 'b'\");",
            "asm(S({.IN) S(CB) S(IN));",
            "#define D .in\n#define E\nasm(S(D) S(cb) S(in));",
            "#define C(a, b) a##b\n#define X(q) S(.q)\nasm(X(C(inc, bin)));",
            "#define Q incbin\nasm(S(.Q));",
            "#define E\nasm(S(E.in) S(cb) S(in));",
            "#define E\n#define X asm(S(E##E.in) S(cb) S(in));",
            "asm(S(%[v].in) S(cb) S(in));",
            "asm(\"%c\" S([v].in) S(cb) S(in));",
            "asm(\"%\" S(c[v].in) S(cb) S(in));",
            "#define V [v\nasm(S(%V].in) S(cb) S(in));",
            "#define E\nasm(S(E (x).in) S(cb) S(in));",
            "#define EE\n#define X asm(S(E ## /**/E.in) S(cb) S(in));",
            "#define EE\n#define X(q) asm(S(q[E ## E[v].in) S(cb) S(in));",
            "#define QQ incbin\n#define X asm(S(.Q ##Q));",
            "#define Q i\nasm(S(.Q) S(ncbin));",
            "#define Q i\nasm(S(.Q /**/ nop) S(ncbin));",
            "#define Q incbin\nasm(S(.Q 'b'));",
            "#define E\n#define Q E\nasm(S(Q.in) S(cb) S(in));",
            "#define Q x\n#define Q\nasm(S(Q.in) S(cb) S(in));",
            "asm(S(__USER_LABEL_PREFIX__.in) S(cb) S(in));",
            "asm(S(.__REGISTER_PREFIX__) S(in) S(cb) S(in));",
            "#define __builtin_astype(a, b)\nasm(S(NAN.in) S(cb) S(in));",
        ] {
            let text = format!("#define S2(x) #x\n#define S(x) S2(x)\n{text}");
            assert!(reads_a_file(&text), "{text}");
        }
    }

    #[test]
    fn a_macro_whose_name_is_pasted_beside_a_period_counts() {
        let macros = "#define S2(x) #x\n#define S(x) S2(x)\n#define C(a, b) a##b\n";
        for text in [
            "#define xE\nasm(S(C(x,E.in)) S(cb) S(in) \" 'b'\");",
            "#define xE\nasm(S(C(x,\nE.in)) S(cb) S(in) \" 'b'\");",
            "#define xE\n#define D(y) C(x,y)\nasm(S(D(E.in)) S(cb) S(in));",
            "#define xE\n#define P E.in\n#define D(y) C(x,y)\nasm(S(D(P)) S(cb) S(in));",
            "#define xE\n#define P C(x,E.in)\nasm(S(P) S(cb) S(in));",
            "#define xE\n#define I\n#define D(y) C(x,y)\nasm(S(D(I E.in)) S(cb) S(in));",
            "#define xE\n#define O C(\nasm(S(O x,E.in)) S(cb) S(in));",
            "#define xEE\nasm(S(C(x,EE[v].in)) S(cb) S(in));",
            "#define QQ incbin\nasm(S(C(.Q,Q)) \" 'b'\");",
            "#define QQ inc\nasm(S(C(.Q,Q)) S(bin));",
            "asm(S(C(__USER_LABEL_,PREFIX__.in)) S(cb) S(in));",
            "#define __attribute__(a)\nasm(S(C(__con,v.in)) S(cb) S(in));",
            "#define __builtin_astype(a, b)\nasm(S(C(N,AN.in)) S(cb) S(in));",
        ] {
            assert!(reads_a_file(&[macros, text].concat()), "{text}");
        }
        for text in [
            "#define xE\nasm(\"nop\"); f(E.in); int y = C(x, y);",
            "#define xE\nasm(\"nop\"); C(f(v.in), w.i);",
            "#define QQ incbin\nasm(\"nop\"); C(v.x, v.q);",
            "#define or 1\n#define _M 1\n__asm__ __volatile__ (\"nop\" : \"=v\"(r.se) : \"v\"(a.i));",
            "#define _KERN_ATTR\n#define EQ(a) (a).se + (a).sf\nasm(\"nop\"); EQ(h.se)",
            "#define x0\n#define F(e) r = vn[0].s##e;\nasm(\"nop\"); F(1)",
            "#define xarr\n#define xn\n#define F(W) W##y(1+ arr[n+n].in);\nasm(\"nop\");",
            "#define F(W, v) W##y(arr[n].k)\nasm(\"nop\");",
        ] {
            assert!(!reads_a_file(&[macros, text].concat()), "{text}");
        }
    }

    #[test]
    fn a_period_in_a_call_that_begins_in_a_header_counts() {
        let mut texts = Texts::default();
        let source = "#include <a.h>\nE.in)) S(cb) S(in) \" 'b'\");";
        let macros = "#define S2(x) #x\n#define S(x) S2(x)\n#define C(a, b) a##b\n#define xE\n";
        for text in [macros, "asm(S(C(x,", source] {
            texts.add(text.as_bytes()).expect("judged");
        }
        assert_eq!(texts.finish(), Err(Bypass::ReadsFile));
    }

    #[test]
    fn inline_assembly_whose_word_is_pasted_counts() {
        let paste = "#define C(a, b) a##b\n";
        let text = [paste, "C(__as, m__)(\".\" \"in\" \"cb\" \"in 'b'\");"];
        assert!(reads_a_file(&text.concat()));
        let other = "#define D C(x, y)\nint as, m; f(\".\");";
        assert!(!reads_a_file(&[paste, other].concat()));
        let others =
            "#define STEP(a, m, s) a = rotate(a + m, s)\nint y = C(x, 1); f(\"%d (all).\");";
        assert!(!reads_a_file(&[paste, others].concat()));
        let parameter = "#define D(a, s) a##sm s\nD(a, x)(\".\" \"incbin 'b'\");";
        assert!(reads_a_file(&[paste, parameter].concat()));
    }

    #[test]
    fn what_only_looks_like_one_does_not_count() {
        for text in [
            r#"asm("nop"); printf("done."); c = '.'; d = '\0';"#,
            r#"asm("nop"); printf("%s.\n", x); printf("ends. "  ); printf("and...");"#,
            r#"printf("%d.%03d", a, b); f(a ## b); // plasma"#,
            r#"printf("%s."); int disasm; // asm"#,
            r#"asm("nop"); printf("v%u.%u %f.\n", a, b, c);"#,
            r#"asm("nop"); p = "\05\05\04"; printf("\033[1m%d\x1b[0m \xe2\x82\xac", a);"#,
            "#define S(x) #x\nasm(S(nop)); t x = {.a = 1,.b = 2, .s0 = 3 };",
            r#"asm("mad.lo.cc.u32 %0, %1;" : "=r"(a) : "r"(b));"#,
            r#"asm("{.reg .pred p; setp.ne.b32 p, %0, 0; @p bra.uni d;}" :: "r"(x));"#,
            r#"asm("v_add_f32 %0, %1, %2" : "=v"(a) : "v"(b), "v"(c));"#,
            "#define S(x) #x\nasm(S(nop)); f(v.i, v.in); p->in = (x).s1 + 1.f; g(...);",
            "#define S(x) #x\nasm(S(nop)); f(arr[n + 0].i, arr[n + 1].i, to[i].in[k], a[b[i]].r);",
            "#define S(x) #x\n#define s0 x\nasm(S(nop)); (v).s0 = 1;",
            "#define S(x) #x\n#define F(W, x) W##y(arr[n].i)\nasm(S(nop));",
            "#define S(x) #x\n#define F(W, x) int f##W() { return v[x].a + x.b; }\nasm(S(nop));",
            "#define S(x) #x\n// plasma\nreturn p.incx*p.n;",
            "#define S(x) #x\nint disasm; t x = { .i /* asm */ = 1 };",
            "#define S(x) #x\n#define F(a) a.s0 + v.a\nasm(S(nop)); ",
        ] {
            let judged = reads_a_file(text);
            assert!(!judged, "{text}");
        }
    }
}
