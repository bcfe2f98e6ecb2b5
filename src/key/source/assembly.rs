//! The parts of texts that inline assembly could read a file with.
//!
//! The compiler puts the text of inline assembly together from literals, of which `#x` makes some from code, and from operands. The
//! assembler reads a file if a statement in it begins with `.incbin` or `.include`; its macros could write that statement. So in a
//! program with inline assembly every period counts that could begin such a name, in whichever literal it stands: with the whole name
//! behind it, or with a first part of one, which may be empty, where something else can go on. To the assembler a period behind a letter
//! is within a name. Where `#x` may write the text, or where code itself is the text (`__asm { nop }`, which PoCL's clang takes), a period
//! in code counts in the same way.

use super::lexer::is_word;
use super::scan::holds_anywhere;

/// The assembler's directives that read files, those that write statements, and those that begin a section: LLVM's linker reads files
/// that the section `.deplibs` names. Clang's assembler takes them in capitals as well.
const DIRECTIVES: [&[u8]; 9] = [
    b"incbin",
    b"include",
    b"macro",
    b"irp",
    b"irpc",
    b"rept",
    b"rep",
    b"section",
    b"pushsection",
];

/// LLVM writes a name that begins with this byte without it, and without what the target puts before names. clang joins the name of a
/// function and that of a static variable in it with a period, so an operand may begin with one (measured on Intel's CPU runtime).
const BARE_NAME: u8 = 1;

/// The letters of the longest directive.
const MAX_LETTERS: usize = 11;

/// Whether inline assembly with this literal could read a file. Others may come before and behind the literal, unless it is a
/// character.
pub(super) fn could_name_a_file(literal: &[u8], is_character: bool) -> bool {
    let begins =
        |byte: u8, next: u8| (byte == b'.') | (byte == BARE_NAME) | begins_escape(byte, next);
    holds_anywhere(literal, begins, |rest| {
        if rest[0] == BARE_NAME {
            return true;
        }
        if rest[0] == b'\\' {
            return !is_character && is_escape(rest) && !is_plain_escape(rest);
        }
        let before = &literal[..literal.len() - rest.len()];
        !is_within_name(before)
            && may_be_directive(&rest[1..], |behind| match behind.is_empty() {
                true => !is_character,
                false => is_cut(behind),
            })
    })
}

/// Whether inline assembly could read a file with this span of code, which `#x` makes a literal of, or which is itself its text. Others
/// may come before and behind it. `may_be_other`: whether the word may be a macro, the parameter of one, or pasted to one.
///
/// A period counts unless it belongs to a name or number that stands before it whatever macros there are: what macros make of
/// parentheses, and which words they join behind a period, is not followed.
pub(super) fn code_could_name_a_file(code: &[u8], may_be_other: impl Fn(&[u8]) -> bool) -> bool {
    let begins = |byte: u8, next: u8| (byte == b'.') | begins_escape(byte, next);
    holds_anywhere(code, begins, |rest| {
        let (before, behind) = (&code[..code.len() - rest.len()], &rest[1..]);
        let word = last_word(before);
        let first = word.first();
        if rest[0] == b'\\' {
            return true;
        }
        if first.is_some_and(u8::is_ascii_digit) && is_whole(before, word) {
            // The digits may be the end of an operand (`%1`). Words in numbers are no macros.
            return may_be_directive(behind, |behind| {
                let next = behind.trim_ascii_start().first();
                is_cut(behind) || next.is_none_or(|next| b"),#%".contains(next))
            });
        }
        let is_number = behind.first().is_some_and(u8::is_ascii_digit);
        let is_ellipsis = before.ends_with(b".") || behind.starts_with(b".");
        let is_name = first.is_some() && is_whole(before, word) && !may_be_operand(before, word);
        !is_number && !is_ellipsis && (!is_name || may_be_other(word))
    })
}

/// Whether nothing joins the word that ends with this code: neither `##` nor a backslash, nor a sign that some compilers take for a
/// letter.
fn is_whole(code: &[u8], word: &[u8]) -> bool {
    let before = &code[..code.len() - word.len()];
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t' | b'\n');
    let last = before.iter().rfind(|byte| !is_blank(byte));
    last.is_some_and(|last| is_word(*last) || b"(){}[],;=+-*/<>&|^!~?.".contains(last))
}

/// Whether the word that ends with this code may be an operand of the assembly (`c0`), if macros or literals give the percent sign.
fn may_be_operand(code: &[u8], word: &[u8]) -> bool {
    let before = &code[..code.len() - word.len()];
    word.last().is_some_and(u8::is_ascii_digit) && !before.ends_with(b".")
}

/// The word or number that ends with this code.
fn last_word(code: &[u8]) -> &[u8] {
    let length = code.iter().rev().take_while(|byte| is_word(**byte)).count();
    &code[code.len() - length..]
}

/// Whether the name of a directive stands behind a period, or the beginning of one that can go on.
fn may_be_directive(text: &[u8], may_go_on: impl Fn(&[u8]) -> bool) -> bool {
    let (name, behind) = text.split_at(letters(text));
    is_directive(name) || begins_a_directive(name) && may_go_on(behind)
}

/// Whether an escape that begins here means a byte that is neither a period nor a backslash nor [`BARE_NAME`].
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
        !b".\\\x01".contains(&(value as u8))
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
fn begins_a_directive(part: &[u8]) -> bool {
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

/// Whether inline assembly with this literal may have an operand there.
pub(super) fn may_have_operand(literal: &[u8]) -> bool {
    let begins = |byte: u8, next: u8| (byte == b'%') | begins_escape(byte, next);
    holds_anywhere(literal, begins, |rest| {
        rest[0] == b'\\' || is_operand(&rest[1..])
    })
}

/// What all words that begin inline assembly have.
pub(super) const ASM_LETTERS: &[u8] = b"asm";

/// Whether code has the word that begins inline assembly.
pub(super) fn has_asm(code: &[u8]) -> bool {
    word_begins_asm(code) || holds_anywhere(code, begins_word, |rest| word_begins_asm(&rest[1..]))
}

/// Whether the word that stands first begins inline assembly.
pub(super) fn word_begins_asm(code: &[u8]) -> bool {
    let strip = |word: &[u8]| word.iter().take_while(|byte| **byte == b'_').count();
    let word = &code[strip(code)..];
    let rest = word.strip_prefix(ASM_LETTERS);
    rest.is_some_and(|rest| {
        rest[strip(rest)..]
            .first()
            .is_none_or(|next| !is_word(*next))
    })
}

/// A word that may begin inline assembly begins behind the byte.
pub(super) fn begins_word(byte: u8, next: u8) -> bool {
    !is_word(byte) & ((next == b'a') | (next == b'_'))
}

/// Whether a literal may be a name of a symbol, or a part of one, that begins no statement.
pub(super) fn is_symbol(literal: &[u8]) -> bool {
    let is_of_name = |byte: &u8| is_word(*byte) || *byte == b'.';
    literal.iter().all(is_of_name)
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
            r#"static int g(void) __asm__("\1"); asm("%c0" :: "i"(&incbin));"#,
            r#"static int g(void) __asm__("\x1"); asm("%c0" :: "i"(&incbin));"#,
            "static int g(void) __asm__(\"\x01\"); asm(\"%c0\" :: \"i\"(&incbin));",
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
    fn code_as_the_text_counts() {
        for text in [
            "void f(void) { __asm { mov eax, ebx } }",
            "void f(void) { __asm {\n nop\n .INCLUDE \"b\"\n } }",
            "void f(void) { __asm .incbin \"b\"\n }",
            "void f(void) { __asm volatile \"x\" { nop } }",
            "asm \"nop\";",
            "asm",
            "_asm_ { nop }",
            "__asm nop",
            "#define A __asm\nvoid f(void) { A { nop } }",
            "#define A asm // why\nvoid f(void) { A { nop } }",
            "#define A(x) __asm x\nvoid f(void) { A({ nop }) }",
        ] {
            assert!(reads_a_file(text), "{text}");
        }
        let paste = "#define C(a, b) a##b\n";
        let reads = |(definitions, text): &(&str, &str)| {
            let text = format!("{paste}{definitions}\nvoid f(void) {{ C(__as, m) {{ {text} }} }}");
            reads_a_file(&text)
        };
        for case in [
            ("", ".incbin \"b\""),
            ("", ".pushsection .deplibs"),
            ("", ".rept 1\n nop\n .endr"),
            ("#define D .", "D\\\nincbin \"b\""),
            ("#define D(x) x", "D(. )incbin \"b\""),
            ("#define X incbin", ".X \"b\""),
            ("#define E", "E.incbin \"b\""),
            ("#define E", ".E()incbin \"b\""),
            ("#define D()", "D().incbin \"b\""),
            ("#define D(x)", "D ((y)).incbin \"b\""),
            ("#define D(x) F\n#define F(x)", "D(1)(2).incbin \"b\""),
            ("#define D(x) .x", "D(incbin) \"b\""),
            ("#define D(x) x.incbin", "D() \"b\""),
            ("#define ab incbin\n#define Q .a##b", "Q \"b\""),
            ("#define ab incbin\n#define Q(x) .a##x", "Q(b) \"b\""),
            ("#define ab\n#define Q a##b.incbin", "Q \"b\""),
            ("#define ab\n#define Q a ## /**/ b.incbin", "Q \"b\""),
            ("#define ab\n#define Q(x) x##b.incbin", "Q(a) \"b\""),
            ("#define ab", "C(a, b.incbin) \"b\""),
            ("", "C(__REGISTER_, PREFIX__.incbin) \"b\""),
            ("", "C(CLANG_HAS_RW_IMA, GES.incbin) \"b\""),
            ("", "C(cl_khr_depth_i, mages.incbin) \"b\""),
            ("#define D(x)", "D\x0b(y).incbin \"b\""),
            ("#define D(x)", "D\n#if 1\n(y).incbin \"b\"\n#endif"),
            ("#define Q .in%:%:cbin", "Q \"b\""),
            ("", "nop\\n.incbin \"b\""),
            ("", "nop\\n.in\"cbin 'b'\""),
            ("", "%c0.incbin"),
            ("int g(void) asm(\"; \");", "mov eax, incbin"),
        ] {
            assert!(reads(&case), "{case:?}");
        }
        for case in [
            ("", "a.in, b.r, x + c.m"),
            ("#define E 1", "1.f, 2.E, .5f, a.x"),
            ("#define V(x, ...) x", "a.s0.x"),
        ] {
            assert!(!reads(&case), "{case:?}");
        }
        for text in [
            "void f(void) { asm(\"nop\"); t x = { .incbin = 1, .y = 2. }; g(2.); }",
            "#define V(...) asm(\"nop\")\nv.s0 = V();",
        ] {
            assert!(!reads_a_file(text), "{text}");
        }
    }

    const STRINGS: &str = "#define S2(x) #x\n#define S(x) S2(x)\n#define C(a, b) a##b\n";

    #[test]
    fn a_text_that_may_be_made_of_code_counts() {
        const NAMES_A_FILE: &str = "#define INCBIN .incbin \"b\"\n";
        for text in [
            "asm(S(.in) S(cb) S(in) \" 'b'\");",
            "asm(\"nop\" S(\n.incbin \"b\"));",
            "asm volatile (\"\" /* */\n S(.incbin \"b\") : : );",
            "asm(S(\\056incbin) \" 'b'\");",
            "#define S3(pragma) #pragma\nasm(S3(.incbin \"b\"));",
            "asm(\n#ifdef A\n\"nop\"\n#endif\n);",
            "asm(L\"nop\");",
            "asm((\"nop\"));",
            "int f(int) __asm__(S(f));",
            "#define A asm\nA (S(.incbin \"b\"));",
            "#define A __asm volatile (\"nop\"\nA S(.incbin \"b\"));",
            "#define A(x) asm(x)\nA(S(.incbin \"b\"));",
            "#define asm(x) __asm__(#x)\nasm(.incbin \"b\")",
            "#define volatile (S(.incbin \"b\")); asm\nasm volatile (\"nop\");",
            "#define __volatile__ (S(.incbin \"b\")); asm\n__asm__ __volatile__(\"nop\");",
            "#define a$b ' /* \nasm volatile (\"nop\");",
            "int x __attribute__((weakref(S(.incbin)))); asm(\"%c0\" :: \"i\"(&x));",
            "int x __attribute__((C(weak, ref)(S(.incbin)))); asm(\"%c0\" :: \"i\"(&x));",
            "C(as, m)(S(.incbin \"b\"));",
            "C(__as, m__) volatile (S(.incbin \"b\"));",
        ] {
            let names = reads_a_file(&[STRINGS, NAMES_A_FILE, text].concat());
            assert!(names, "{text}");
        }
        // No code could name a file here.
        for text in [
            "; asm(\"nop\" S(x) S(; a.in));",
            "; asm(\n#ifdef A\n\"nop\"\n#endif\n);",
            "; asm(L\"nop\");",
            "#define F(X) { asm(\"\\n\" X \" %2\" : \"=r\"(b)); }",
        ] {
            assert!(!reads_a_file(&[STRINGS, text].concat()), "{text}");
        }
        for definition in ["A=asm", "A(x)=__asm__(x)", "A=asm(\"nop\""] {
            let mut texts = Texts::default();
            texts.add_definition(definition.as_bytes()).expect("judged");
            let rest = [STRINGS, NAMES_A_FILE].concat();
            texts.add(rest.into_bytes()).expect("judged");
            assert_eq!(texts.finish(), Err(Bypass::ReadsFile), "{definition}");
        }
    }

    #[test]
    fn a_text_of_literals_alone_does_not_count() {
        for text in [
            "asm(\"nop\"); f(E.in, .in); int y = C(x, y); g(S(.in));",
            "asm volatile(\"a\" \"b\"\n\"c\" /* S(.incbin) */ : \"=v\"(r.se) : \"v\"(S(.in)));",
            "__asm__ __volatile__ goto (\"nop\" : : : : label);",
            "#define MAD(a, b) asm (\"mad \" \\\n \"%0;\" : \"=r\"(a.i) : C(x, b)); a.in\nMAD(c, d.in)",
            "#if 0\r\nasm\r\n(\"nop\"\r\n);\r\n#endif",
            "asm(\"\"); asm(\"x\");asm (\"y\");",
            "int f(int) __asm__(\"f\"); int disasm(x), asmx, my_asm; // asm",
        ] {
            assert!(!reads_a_file(&[STRINGS, text].concat()), "{text}");
        }
    }

    #[test]
    fn a_label_that_is_no_name_counts() {
        const OPERAND: &str = "\nvoid f(void) { asm(\"%c0\" : : \"i\"(&incbin)); }";
        for (text, expected) in [
            (r#"int f(int) __asm__(";");"#, true),
            (r#"int f(int) asm("nop" /**/ "\n") { return 1; }"#, true),
            (r#"int x[2] asm("a b");"#, true),
            ("int f(int) // why\n__asm__(\"\\t\");", true),
            ("int f(int) __asm__ volatile(\";\");", true),
            ("#define L asm(\";\")\nint f(int) L;", true),
            ("#define L \";\"\nint f(int) asm(L);", true),
            ("#define A __asm__\nint f(int) A(\";\");", true),
            (
                "#define LABEL(x) __asm__(x)\nint f(int) LABEL(\";\");",
                true,
            ),
            (
                "#define NOP \"nop\"\nint x; asm(NOP); int f(int) asm(\";\");",
                true,
            ),
            (
                "#define C(a, b) a##b\nint f(int) C(__as, m__)(\";\");",
                true,
            ),
            ("int f(int)\n#define Z \"x\"\n__asm__(\";\");", true),
            ("int f(int)\n#define Z ;\n__asm__(\";\");", true),
            ("int f(int)\n%:define Z /*\n*/ ;\n__asm__(\";\");", true),
            ("int f(int)\n#define Z \"x\" ;\n__asm__(\";\");", true),
            ("#define ID(x) x\nint f(int) ID(__asm__(\";\"));", true),
            ("#if 1\nint x;\n#endif\nint y; asm(\"a;\");", false),
            (r#"int f(int) __asm__("_Z1f.x");"#, false),
            (
                "#define F(W, X) int f##W(int a) { int b; __asm__(\"\\n\" X \" %2\" : \"=r\"(b)); return b; }",
                false,
            ),
            ("#define F(X) x = 1; asm(X)\nF(\"a;\");", false),
            ("#define A(X) int f(int) /* */ asm(X)\nA(\";\");", true),
            ("#define E(x) #x\nint f(int) asm(E(;));", true),
            (
                "#define E(x) #x\nint f(int) asm(\";\"); void g(void) { asm(E(%c0)); }",
                true,
            ),
            (
                "#define E(x) #x\nvoid g(int a) { int b; asm(N \"%0\" : \"=r\"(b)); }",
                false,
            ),
            (
                r#"printf("a b"); asm("nop; nop"); { asm("a;"); } // why
                asm("b;"); if (x) asm volatile ("c;" : : ); if (x) asm("%0;" : : "r"(x));"#,
                false,
            ),
        ] {
            assert_eq!(reads_a_file(&[text, OPERAND].concat()), expected, "{text}");
        }
        // Nothing writes the symbol.
        let without = "int f(int) __asm__(\";\"); asm(\"nop\"); printf(\"%d %s.\\n\");";
        assert!(!reads_a_file(without));
    }

    #[test]
    fn a_text_that_begins_in_a_header_counts() {
        for (header, rest) in [("asm(", "S(.in))"), ("asm", "(S(.in))")] {
            let mut texts = Texts::default();
            for text in [STRINGS, header, &format!("#include <a.h>\n{rest}")] {
                texts.add(text.as_bytes().to_vec()).expect("judged");
            }
            assert_eq!(texts.finish(), Err(Bypass::ReadsFile), "{header}");
        }
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
            r#"asm("mad.lo.cc.u32 %0, %1;" : "=r"(a) : "r"(b));"#,
            r#"asm("{.reg .pred p; setp.ne.b32 p, %0, 0; @p bra.uni d;}" :: "r"(x));"#,
            r#"asm("v_add_f32 %0, %1, %2" : "=v"(a) : "v"(b), "v"(c));"#,
            "#define S(x) #x\n// plasma\nreturn p.incx*p.n;",
            "#define S(x) #x\nint disasm; t x = { .i /* asm */ = 1 };",
        ] {
            let judged = reads_a_file(text);
            assert!(!judged, "{text}");
        }
    }
}
