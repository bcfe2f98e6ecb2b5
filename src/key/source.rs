//! Judges whether the bytes of an OpenCL C source say everything about what it compiles to.
//!
//! A cache that is keyed by source bytes is right only if equal bytes give equal results. They do not when the
//! compiler reads something else: another file (`#include`, `__has_include`, `#embed`, `.incbin` in inline
//! assembly), the clock (`__DATE__`) or the name of the file being compiled, which drivers choose: a random
//! temporary path, a constant, or one character, depending on the driver. [`obstacle`] finds all of these.
//! Includes read from disk or from the working directory, in an order that differs per driver, so no include is
//! harmless here but of a header that the call itself brings ([`obstacle_beside_headers`]).
//!
//! OpenCL C takes its preprocessor from C99 (OpenCL C 3.0 specification, section 6.11 and the translation phases
//! of C99 5.1.1.2). Nearly every driver carries some version of clang, but not all do, and a source may be wrong C
//! that clang accepts. So no text is given a single meaning where lexers differ. Each known difference is a bit
//! of a *reading*; the text is judged in every combination of the differences that it really contains, and one
//! obstacle in one reading is enough. Texts without such oddities are read once.
//!
//! Conditionals are not evaluated: an `#include` under `#if 0` counts, since a driver's macros decide. Macros are
//! not expanded either; instead, once a text pastes tokens, any special name that could be put together from its
//! identifiers counts.
//!
//! Speed matters, as every build call pays for it: the scan jumps, in blocks that the compiler vectorises, to the
//! few byte pairs that can open a comment, a literal, a directive or a special name.

mod lexer;
mod pasting;

use lexer::{Lexer, READINGS, Token, contains, find, join_lines};
use pasting::{can_be_pasted, pieces};

use crate::outcome::Bypass;

/// Names which make a result depend on more than the text.
const SPECIAL: [(&[u8], Bypass); 14] = [
    (b"__has_include", Bypass::ReadsFile),
    (b"__has_include_next", Bypass::ReadsFile),
    (b"__has_embed", Bypass::ReadsFile),
    (b"__DATE__", Bypass::UsesTimeOrFileName),
    (b"__TIME__", Bypass::UsesTimeOrFileName),
    (b"__TIMESTAMP__", Bypass::UsesTimeOrFileName),
    (b"__FILE__", Bypass::UsesTimeOrFileName),
    (b"__BASE_FILE__", Bypass::UsesTimeOrFileName),
    (b"__FILE_NAME__", Bypass::UsesTimeOrFileName),
    (b"__builtin_FILE", Bypass::UsesTimeOrFileName),
    (b"__builtin_FILE_NAME", Bypass::UsesTimeOrFileName),
    (b"__builtin_source_location", Bypass::UsesTimeOrFileName),
    // These spell out types, and the name of an unnamed type holds the file's name.
    (b"__builtin_dump_struct", Bypass::UsesTimeOrFileName),
    (b"__PRETTY_FUNCTION__", Bypass::UsesTimeOrFileName),
];

/// Operators that run a pragma from anywhere in a line.
const PRAGMA_OPERATORS: [&[u8]; 2] = [b"_Pragma", b"__pragma"];

/// Words of the pragmas that read files: `GCC dependency`, `GCC pch_preprocess`, `clang module import` and others.
const PRAGMA_WORDS: [&[u8]; 3] = [b"dependency", b"pch_preprocess", b"module"];

/// Tells why `texts`, compiled together and with nothing else, could give a different result although their bytes
/// are equal; `None` if they cannot.
///
/// `texts` are the source and the macro definitions of the build options: each is lexed by itself, but a token
/// pasting operator in one sees the identifiers of all. The empty text is harmless.
pub fn obstacle(texts: &[&[u8]]) -> Option<Bypass> {
    obstacle_beside_headers(texts, &|_| false)
}

/// [`obstacle`] of texts that may include, in any order, those names that `is_header` knows: the headers that
/// clCompileProgram is given, which stand in `texts` as well. Only names that are written out count.
pub fn obstacle_beside_headers(
    texts: &[&[u8]],
    is_header: &dyn Fn(&[u8]) -> bool,
) -> Option<Bypass> {
    // Reading 0 is clang's. Each scan adds the differences it met, so every combination of them comes up.
    let mut met = 0;
    (0..READINGS).find_map(|reading| {
        if reading & !met != 0 {
            return None;
        }
        judge(texts, is_header, reading, &mut met)
    })
}

/// [`obstacle_beside_headers`] in one reading.
fn judge(
    texts: &[&[u8]],
    is_header: &dyn Fn(&[u8]) -> bool,
    reading: u8,
    met: &mut u8,
) -> Option<Bypass> {
    let texts: Vec<_> = texts
        .iter()
        .map(|text| join_lines(text, reading, met))
        .collect();
    let (mut pastes, mut runs_pragmas, mut assembles) = (false, false, false);
    let mut code = Vec::new();
    for text in &texts {
        let mut lexer = Lexer::new(text, reading);
        while let Some(token) = lexer.next() {
            match token {
                Token::Name(name) => {
                    if let Some(reason) = special(name) {
                        return Some(reason);
                    }
                    runs_pragmas |= PRAGMA_OPERATORS.contains(&name);
                }
                Token::Directive {
                    name,
                    first_on_line,
                } => match directive(name) {
                    Known::Include
                        if included_name(lexer.rest_of_line()).is_some_and(is_header) => {}
                    Known::Include | Known::ReadsFile => return Some(Bypass::ReadsFile),
                    Known::Pragma => {
                        let line = lexer.rest_of_line();
                        if PRAGMA_WORDS.iter().any(|word| contains(line, word)) {
                            return Some(Bypass::ReadsFile);
                        }
                        // A comment can carry the directive on over line ends.
                        runs_pragmas |= contains(line, b"/*");
                    }
                    // Elsewhere in a line, `#` makes a string of a macro parameter.
                    Known::No if first_on_line => return Some(Bypass::UnknownDirective),
                    Known::Message if first_on_line => lexer.skip_message(),
                    Known::Message | Known::Harmless | Known::No => {}
                },
                Token::Paste => pastes = true,
                Token::Literal(literal) => assembles |= could_name_a_file(literal),
                // A raw string ends elsewhere, and undoes line splices, where the language has it.
                Token::RawString | Token::TooManyQuotes => return Some(Bypass::UnknownDirective),
                // clang refuses names like `__FIL\u0045__`; another compiler may not.
                Token::UniversalName => return Some(Bypass::UsesTimeOrFileName),
            }
        }
        *met |= lexer.met;
        code.push(lexer.code);
    }
    if pastes {
        let pieces = pieces(
            texts
                .iter()
                .zip(code)
                .flat_map(|(text, code)| code.into_iter().map(|span| &text[span])),
        );
        if let Some((_, reason)) = SPECIAL
            .iter()
            .find(|(name, _)| can_be_pasted(name, &pieces))
        {
            return Some(*reason);
        }
        runs_pragmas |= PRAGMA_OPERATORS
            .iter()
            .any(|name| can_be_pasted(name, &pieces));
    }
    let any_text_has = |word: &[u8]| texts.iter().any(|text| contains(text, word));
    // The operator's text can be made anywhere, by `#x` or in another text, so no place is left out.
    if runs_pragmas {
        if PRAGMA_WORDS.iter().any(|word| any_text_has(word)) {
            return Some(Bypass::ReadsFile);
        }
        if let Some(reason) = texts.iter().find_map(|text| mentions_special(text)) {
            return Some(reason);
        }
    }
    (assembles && (pastes || any_text_has(b"asm"))).then_some(Bypass::ReadsFile)
}

/// What the name of a directive says.
enum Known {
    Include,
    ReadsFile,
    Pragma,
    Message,
    Harmless,
    No,
}

fn directive(name: &[u8]) -> Known {
    match name {
        b"include" => Known::Include,
        b"include_next" | b"import" | b"embed" | b"__include_macros" => Known::ReadsFile,
        b"pragma" => Known::Pragma,
        b"error" | b"warning" => Known::Message,
        b"define" | b"undef" | b"if" | b"ifdef" | b"ifndef" | b"elif" | b"elifdef"
        | b"elifndef" | b"else" | b"endif" | b"line" | b"ident" => Known::Harmless,
        // The null directive, and line markers, which name a file and a line but read nothing.
        b"" => Known::Harmless,
        _ if name[0].is_ascii_digit() => Known::Harmless,
        _ => Known::No,
    }
}

/// The name between the quotes or angle brackets of an include directive that has nothing else on its line, but for a comment.
fn included_name(rest_of_line: &[u8]) -> Option<&[u8]> {
    let rest = rest_of_line.trim_ascii();
    let close = match rest.first()? {
        b'"' => b'"',
        b'<' => b'>',
        _ => return None,
    };
    let end = rest[1..].iter().position(|byte| *byte == close)? + 1;
    let behind = rest[end + 1..].trim_ascii_start();
    let is_nothing = behind.is_empty()
        || behind.starts_with(b"//")
        || behind.starts_with(b"/*") && find(&behind[2..], b"*/") == behind.len().checked_sub(4);
    is_nothing.then_some(&rest[1..end])
}

fn special(name: &[u8]) -> Option<Bypass> {
    // Also the spellings of old compilers, such as `__has_include__`.
    if name.starts_with(b"__has_include") || name.starts_with(b"__has_embed") {
        return Some(Bypass::ReadsFile);
    }
    SPECIAL
        .iter()
        .find(|(special, _)| *special == name)
        .map(|(_, reason)| *reason)
}

/// What the first special name anywhere in the text, be it in a comment or a literal, gives reason for.
fn mentions_special(text: &[u8]) -> Option<Bypass> {
    let mut rest = text;
    while let Some(at) = find(rest, b"__") {
        rest = &rest[at..];
        if let Some((_, reason)) = SPECIAL.iter().find(|(name, _)| rest.starts_with(name)) {
            return Some(*reason);
        }
        rest = &rest[1..];
    }
    None
}

/// Whether inline assembly holding this literal could be told to read a file (`.incbin`, `.include`), perhaps
/// with the directive's name cut over several literals.
fn could_name_a_file(literal: &[u8]) -> bool {
    let start = literal
        .iter()
        .rposition(|byte| !byte.is_ascii_alphabetic())
        .map_or(0, |at| at + 1);
    let tail = &literal[start..];
    let opens = (start == 0 && tail.len() > 2)
        || (start > 0 && literal[start - 1] == b'.' && !tail.is_empty());
    contains(literal, b"cbin")
        || contains(literal, b"clude")
        || (opens
            && [&b"incbin"[..], b"include"]
                .iter()
                .any(|word| word.starts_with(&tail.to_ascii_lowercase())))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const FILE: Option<Bypass> = Some(Bypass::ReadsFile);
    const NAME: Option<Bypass> = Some(Bypass::UsesTimeOrFileName);
    const UNKNOWN: Option<Bypass> = Some(Bypass::UnknownDirective);

    fn check(cases: &[(&str, Option<Bypass>)]) {
        for (text, expected) in cases {
            assert_eq!(obstacle(&[text.as_bytes()]), *expected, "{text:?}");
        }
    }

    #[test]
    fn directives_that_read_files_are_found_in_every_spelling() {
        check(&[
            ("#include <a>", FILE),
            ("int x;\n \t# \t include \"a\"", FILE),
            ("#include_next <a>\n", FILE),
            ("#import <a>\n", FILE),
            ("#embed <a>\n", FILE),
            ("#if 0\n#include <a>\n#endif", FILE),
            ("/**/ # /**/ include <a>", FILE),
            ("/*\n*/#/*\n*/include <a>", FILE),
            ("??=include <a>", FILE),
            ("%:include <a>", FILE),
            ("%\\\n:include <a>", FILE),
            ("#\\\ninclude <a>", FILE),
            ("#\\\r\ninclude <a>", FILE),
            ("#inc\\\nlude <a>", FILE),
            ("#inc\\ \t\r\nlude <a>", FILE),
            ("#inc??/\nlude <a>", FILE),
            ("#inc\\\n\\\n\\\rlude <a>", FILE),
            ("// comment\r#include <a>", FILE),
            ("\u{FEFF}#include <a>", FILE),
            ("\u{A0}#include <a>", FILE),
            ("\0#include <a>", FILE),
            ("'\\'' #include <a>", FILE),
            ("#if __has_include(<a>)\n#endif", FILE),
            ("#if defined(__has_include_next)\n#endif", FILE),
            ("x = __has_embed;", FILE),
        ]);
    }

    #[test]
    fn only_headers_that_the_call_brings_may_be_included() {
        let is_header = |name: &[u8]| name == b"a.h" || name == b"sub/b.h";
        for (text, expected) in [
            ("#include \"a.h\"\n#include <sub/b.h>", None),
            (" # include\t<a.h>\t\n", None),
            ("#include \"a.h\" // why", None),
            ("#include \"a.h\"/* why */", None),
            ("#include \"a.h\" /* why */ x", FILE),
            ("#include \"a.h\" /* why\n*/", FILE),
            ("#include \"a.h\" /", FILE),
            ("#include \"b.h\"", FILE),
            ("#include \"a.h", FILE),
            ("#include <a.h\"", FILE),
            ("#include \"a.h\" \"b.h\"", FILE),
            ("#include NAME", FILE),
            ("#include", FILE),
            ("#import \"a.h\"", FILE),
            ("#include_next \"a.h\"", FILE),
            ("#if __has_include(\"a.h\")", FILE),
            ("#include \"a.h\"\n#include \"c.h\"", FILE),
        ] {
            let found = obstacle_beside_headers(&[text.as_bytes()], &is_header);
            assert_eq!(found, expected, "{text:?}");
        }
    }

    #[test]
    fn comments_and_literals_hide_what_they_hold() {
        check(&[
            ("", None),
            (
                "// #include <a>\n/* #include <a>\n#include __FILE__ */ int x;",
                None,
            ),
            ("// still \\\n#include <a>", None),
            ("// still \\\r\n#include <a>", None),
            ("/* a *\\\n/ int x;", None),
            (
                "constant char *s = \"#include <a> __FILE__ /*\";\nint x; // */",
                None,
            ),
            ("constant char *s = \"\\\"#include <a>\\\\\";", None),
            ("char c = '\"'; char d = '#';\n", None),
            ("/\\\n/ #include <a>", None),
            ("/\\\n* #include <a> */", None),
        ]);
    }

    #[test]
    fn comments_and_literals_end_where_they_end() {
        check(&[
            ("/* \"*/\n#include <a>\n// \"", FILE),
            ("/*/ */\n#include <a>", FILE),
            ("/**//**/#include <a>", FILE),
            ("\"/*\"\n#include <a> /* */", FILE),
            ("\"//\\\n\" \n#include <a>", FILE),
            ("'//'\n#include <a>", FILE),
            ("char c = '\\\\';\n#include <a>\n';'", FILE),
        ]);
    }

    #[test]
    fn where_compilers_differ_one_reading_with_an_obstacle_is_enough() {
        check(&[
            // A blank between backslash and line end.
            ("// still \\ \n#include <a>", FILE),
            // Trigraphs off.
            ("// still ??/\n#include <a>", FILE),
            ("\"??/\" __FILE__ \"\"", NAME),
            // A lone carriage return.
            ("// a\rint x;\n", None),
            ("// a\r__FILE__\n", NAME),
            // Quotes that are not closed.
            ("#if 0\ndon't /*\n#include <a>\n*/\n#endif", FILE),
            ("don't /*\n/*/ __FILE__ /* */", NAME),
            ("don't __FILE__\n", NAME),
            ("don't do this\nint x;", None),
            ("\"open\n#include <a>\n\"", FILE),
            // Digit separators.
            ("1'000 + __FILE__ + 1'0;", NAME),
            ("1e+'0 /*' */ __FILE__ //'", NAME),
            ("1'0a don't/*don't //';\n#include <a>", FILE),
            ("L'a' + u8'b';\n", None),
            ("1'000; /*' */ __FILE__ '", NAME),
            // Messages.
            ("#error a /*\n#include <a>\n*/", FILE),
            ("#error a /*\n#endif */\n", None),
            (
                "#error please #include \"a\" and don't use __FILE__\n",
                None,
            ),
            ("#error /* */ /*\n*/ __FILE__\n", NAME),
            // A comment's end in two pieces.
            ("/* *\\\n/ int x; /* */", None),
            ("/* *\\\n\\\n/ __FILE__ /* */", NAME),
            ("/* *\\\n/ /* */ __FILE__ */", NAME),
            // Raw strings.
            ("R\"(\n)\" x", UNKNOWN),
            ("u8R\"x(\n)x\" x", UNKNOWN),
            ("FOUR\"text\"", None),
        ]);
    }

    #[test]
    fn directives_must_be_known() {
        check(&[
            (
                "#define A 1\n#undef A\n#if A\n#elif 1\n#else\n#endif\n",
                None,
            ),
            (
                "#ifdef A\n#elifdef B\n#elifndef C\n#endif\n#ifndef A\n#endif",
                None,
            ),
            (
                "#line 3 \"x\"\n# 12 \"x\" 2\n#\n# // nothing\n#ident \"x\"\n#pragma unroll\n",
                None,
            ),
            ("#warning careful\n", None),
            ("#assert machine(x)\n", UNKNOWN),
            ("#!shebang\n", UNKNOWN),
            ("# \"x\"\n", UNKNOWN),
            ("/* */ #foo", UNKNOWN),
            ("\r\n #foo", UNKNOWN),
            ("#define TEXT(x) #x\n#define F(a) #a /* */ #a\n", None),
            ("#define LONG(a) \\\n  #a\n", None),
        ]);
    }

    #[test]
    fn special_names_count_outside_of_comments_and_strings() {
        for (name, reason) in SPECIAL {
            let name = std::str::from_utf8(name).unwrap();
            check(&[
                (name, Some(reason)),
                (&format!("int x = f({name});"), Some(reason)),
                (&format!("#define X {name}\n"), Some(reason)),
                (&format!("{}\\\n{}", &name[..4], &name[4..]), Some(reason)),
                (
                    &format!("// {name}\n\"{name}\" x{name} 1{name} {name}x /* {name} */"),
                    special_of_longer(name),
                ),
            ]);
        }
        check(&[
            ("#__FILE__", UNKNOWN),
            ("f(#__FILE__)", NAME),
            ("__LINE__ __COUNTER__ __func__", None),
        ]);
        check(&[
            ("__FI\\u004CE__", NAME),
            ("int \\\nu = 1;", None),
            ("\"\\u004C\"", None),
        ]);
    }

    /// `__has_includex` counts too.
    fn special_of_longer(name: &str) -> Option<Bypass> {
        name.starts_with("__has").then_some(Bypass::ReadsFile)
    }

    #[test]
    fn names_that_can_be_pasted_count() {
        check(&[
            ("#define C(a, b) a##b\nC(__FI, LE__)", NAME),
            ("#define C(a, b) a%:%:b\nC(__FI, LE__)", NAME),
            ("#define C(a, b) a??=??=b\nC(__FI, LE__)", NAME),
            ("#define C(a, b) a#\\\n#b\nC(_, _DATE__)", NAME),
            ("#define C(a, b) __##a##__\nC(TIME)", NAME),
            ("#define C(a, b) a##b\nC(__has_, include)", FILE),
            ("#define F(name, type) name##_##type\nF(sum, float)", None),
            // Nothing pastes these, but that takes an expansion to see.
            ("#define F(name, type) name##_##type\nF(FILE, DATE)", NAME),
            ("#define C(a, b) a##b\nC(__FI, LE) // __\n", None),
            ("C(__FI, LE__)", None),
            ("#define C(a, b) a##__FILE__", NAME),
        ]);
        let source = b"#define C(a, b) a##b\nC(__FI, X)";
        assert_eq!(obstacle(&[source]), None);
        assert_eq!(obstacle(&[source, b"X=LE__"]), NAME);
    }

    #[test]
    fn pragmas_that_read_files_count() {
        check(&[
            (
                "#pragma OPENCL EXTENSION cl_khr_fp64 : enable\n_Pragma(\"unroll\")",
                None,
            ),
            ("#pragma GCC dependency \"a\"\n", FILE),
            ("#pragma GCC /*\n*/ dependency \"a\"\n", FILE),
            ("#pragma clang module import a\n", FILE),
            ("_Pragma(\"GCC dependency \\\"a\\\"\")", FILE),
            ("#define P(x) _Pragma(#x)\nP(GCC dependency \"a\")", FILE),
            ("#define P(x) _Pra##gma(#x)\nP(GCC dependency \"a\")", FILE),
            ("_Pragma(\"message(__FILE__)\")", NAME),
            ("int dependency, module;", None),
        ]);
    }

    #[test]
    fn inline_assembly_that_reads_files_counts() {
        check(&[
            ("asm(\".incbin \\\"a\\\"\");", FILE),
            ("__asm__ volatile(\".include \\\"a\\\"\");", FILE),
            ("asm(\".inc\" \"bin \\\"a\\\"\");", FILE),
            (
                "asm(\"mov.b32 %0, %1;\" : \"=r\"(a) : \"r\"(b), \"n\"(1), \"i\"(2));",
                None,
            ),
            ("asm(\"atom.global.inc.u32 %0, [%1], %2;\");", None),
            ("printf(\".incbin\");", None),
        ]);
    }

    #[test]
    fn hostile_texts_take_little_time() {
        let texts = [
            "'\\'\\",
            "\"'",
            "#pragma /* */\n",
            "??/\n",
            "# /**/",
            "/*",
            "\\ \r",
            "_##__a",
            "don't /*\n\\\r1'0 ??= *\\\n",
        ];
        for text in texts {
            let text = text.repeat((1 << 16) / text.len());
            let start = std::time::Instant::now();
            let _ = obstacle(&[text.as_bytes()]);
            assert!(start.elapsed().as_secs() < 5, "{:?}", &text[..8]);
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_judged(
            texts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 0..3),
        ) {
            let texts: Vec<_> = texts.iter().map(Vec::as_slice).collect();
            let _ = obstacle(&texts);
        }

        #[test]
        fn text_of_many_pieces_is_judged(
            text in "([\"'/*#%:?=\\\\\r\n a_PR1<>.()-]|include|__FILE__|error|\\*/|//|/\\*){0,40}",
        ) {
            let _ = obstacle(&[text.as_bytes()]);
        }

        #[test]
        fn a_directive_on_a_line_of_its_own_is_found(
            before in "([ -!#-&(-.0-\\[\\]-~]|//[ -\\[\\]-~]*\n|/\\*[ -)+-.0-~\n]*\\*/|\"[ !#-\\[\\]-~]*\"|\n){0,30}",
            after in "[ -~\n]{0,60}",
            directive in "( |/\\* \\*/)?(#|%:|\\?\\?=)( |/\\* \\*/)?(include|import|embed) <a>",
        ) {
            let text = format!("{before}\n{directive}\n{after}");
            prop_assert!(obstacle(&[text.as_bytes()]).is_some(), "{:?}", text);
        }
    }
}
