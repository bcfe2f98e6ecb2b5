mod header_names;
mod pragmas;

use proptest::prelude::*;

use super::*;
use crate::key::work;

/// How many different headers a text names, or what is in the way.
type Verdict = Result<usize, Bypass>;

const NONE: Verdict = Ok(0);
const ONE: Verdict = Ok(1);
const FILE: Verdict = Err(Bypass::ReadsFile);
const UNRESOLVED: Verdict = Err(Bypass::UnresolvedInclude);
const NAME: Verdict = Err(Bypass::UsesTimeOrFileName);
const UNKNOWN: Verdict = Err(Bypass::UnknownDirective);

/// What the texts name, each once.
fn judge(texts: &[&[u8]]) -> Result<Vec<Operand>, Bypass> {
    let mut judged = Texts::default();
    let mut operands = Vec::new();
    for text in texts {
        operands.extend(judged.add(*text)?);
    }
    judged.finish()?;
    operands.sort();
    Ok(operands)
}

fn verdict(texts: &[&[u8]]) -> Verdict {
    judge(texts).map(|operands| operands.len())
}

#[track_caller]
fn check(cases: &[(&str, Verdict)]) {
    for (text, expected) in cases {
        assert_eq!(verdict(&[text.as_bytes()]), *expected, "{text:?}");
    }
}

/// Texts that name the header `a`, and nothing else.
#[track_caller]
fn names_a(texts: &[&str]) {
    for text in texts {
        let expected = Ok(vec![Operand::Name(b"a".to_vec())]);
        assert_eq!(judge(&[text.as_bytes()]), expected, "{text:?}");
    }
}

#[test]
fn only_the_digits_of_pyopencls_variable_are_left_out() {
    let named = |digits: &str| {
        format!("kernel void f() {{}}\n\n__constant int pyopencl_defeat_cache_{digits} = 0;")
    };
    let before = |text: &str| before_digits(text.as_bytes()).map(<[u8]>::to_vec);
    let (one, other) = ("0123456789abcdef".repeat(2), "f".repeat(32));
    assert!(before(&named(&one)).is_some_and(|text| text.ends_with(RANDOM_NAME)));
    assert_eq!(before(&named(&one)), before(&named(&other)));
    for text in [
        named(&one.to_uppercase()),
        named(&one[1..]),
        named(&format!("0{one}")),
        named(&one) + "\n",
        "kernel void f() {}".to_owned(),
    ] {
        assert_eq!(before(&text), None, "{text}");
    }
}

#[test]
fn digits_that_something_else_could_spell_are_not_left_out() {
    const END: &str =
        "\n\n__constant int pyopencl_defeat_cache_0123456789abcdef0123456789abcdef = 0;";
    let spells = |source: &str, others: &[&str], words: &[&str]| {
        let source = format!("{source}{END}");
        let before = before_digits(source.as_bytes()).expect("digits").len() - RANDOM_NAME.len();
        let mut texts = Texts::default();
        texts.add(source.as_bytes()).expect("judged");
        for other in others {
            texts.add(other.as_bytes()).expect("judged");
        }
        let words = words.iter().map(|word| word.as_bytes());
        texts
            .could_spell_random_name((0, before), words)
            .expect("memory")
    };
    let usual = "#include <pyopencl-complex.h>\n#define C(a, b) a##b\n// A hope; a cache; no feat.\n\
        kernel void f(global int *p, int n) { int x_ = _n(p); char c = '\\n'; } // \\o";
    assert!(!spells(usual, &[], &["/tmp/x", "-DN=1"]));
    for (source, others, words) in [
        (format!("int x;{END}"), vec![], vec![]),
        ("int pyopencl_defeat_cache_0;".to_owned(), vec![], vec![]),
        (
            "int pyopencl_def\\\neat_cache_0;".to_owned(),
            vec![],
            vec![],
        ),
        (
            "int pyopencl_def??/\neat_cache_0;".to_owned(),
            vec![],
            vec![],
        ),
        (
            "int y;".to_owned(),
            vec!["#define pyopencl_defeat_cache_0 1"],
            vec![],
        ),
        (
            "int y;".to_owned(),
            vec!["pyopencl_defeat_cache_0=1"],
            vec![],
        ),
        (
            "int y;".to_owned(),
            vec![],
            vec!["-Dpyopencl_defeat_cache_0=1"],
        ),
        (
            "int y;".to_owned(),
            vec![],
            vec!["pyopencl_defeat_cache_0.h"],
        ),
        (
            "P(pyopencl_, defeat_cache_0)".to_owned(),
            vec!["#define P(x, y) x##y"],
            vec![],
        ),
        (
            "P(pyopencl, defeat, cache)".to_owned(),
            vec!["#define P(x, y, z) x##_##y##_##z##_##0"],
            vec![],
        ),
        (
            "P(p, yopencl_defeat, _, cache_0)".to_owned(),
            vec![],
            vec![],
        ),
        (
            "a(\"pyopencl_defeat\" \"_cache_0\")".to_owned(),
            vec![],
            vec![],
        ),
        (
            "a(\"x.pyopencl_\" S(defeat) \"_cache_0\")".to_owned(),
            vec![],
            vec![],
        ),
        (
            "a(\"\\x70yopencl_defeat_cache_0\")".to_owned(),
            vec![],
            vec![],
        ),
        ("a(\"\\160\")".to_owned(), vec![], vec![]),
        ("a(\"\\o{160}\")".to_owned(), vec![], vec![]),
        (
            "a(\"xp\" \"y\" \"o\" \"pencl_\" \"defeat_cach\")".to_owned(),
            vec!["#define e_9 1"],
            vec![],
        ),
    ] {
        assert!(
            spells(&source, &others, &words),
            "{source} {others:?} {words:?}"
        );
    }
}

/// However a text is made, it costs a number of steps that is linear in its length.
#[test]
fn no_text_costs_more_than_linear_time() {
    let pieces = [
        "__has_include(\"a\") || ",
        "__has_include(<a) ",
        "__has_include(<a",
        "(__has_include(\"a\"))",
        "#pragma a ",
        "#pragma /* */\n",
        "#define a __has_include(\"a\") ",
        "#define a b /* c */ 'd' \"e\"\n",
        "#define a \\\n b \\\n c\n",
        "#if (((((a)))))\n#endif\n",
        "((((",
        "#error a /*\n*/\n",
        "don't /*\n\\\r1'0 ??= *\\\n",
        "'\\'\\",
        "1'17",
        "a.a.1'",
        "_##__a ",
        "x_##_##y __a P _ ",
        "# /**/",
        "/**/",
        "#               \n",
        "\"\" asm #x ",
        "\"\\x .macr\" #x asm ",
        "x.y(.z)..q a##s##m #x\n",
        "#define a(x, y, z) x.y.z. asm #x\n",
        "_Pragma(\"a\") __ ___ ",
        "#include NAME /* a */\n",
        "#include \"a\"\n",
        "#define a 1'0' /*\n",
        "#define a 1'0' /*\n__has_include(\"a\")\n",
        "#include NAME 1'0' /*\n",
        "\\'",
        "R",
        "\\ \r\n",
        "\t\n",
    ];
    for head in [
        "",
        "??/ x\n\\ \nfoo *\\\n/ \r bar\n",
        "'lone\n 1'0\n",
        "'lone\n1'0 y##z\n#error ",
        "#define P(a, b) a##b #a asm(x) _Pragma(x)\n",
        "( __has_include\n",
    ] {
        for piece in pieces {
            let text = format!("{head}{}", piece.repeat((1 << 13) / piece.len()));
            let work = Work::default();
            let mut judged = Texts::new(work.clone());
            let _ = judged.add(text.as_bytes());
            let _ = judged.new_definitions(|_| Ok(()));
            let _ = judged.finish();
            let _ = judged.could_spell_random_name((0, text.len()), []);
            // The limit is checked before and after each pass over a text.
            let passes = 4 * 10 * text.len();
            let most = work::ALLOWED_ALWAYS + work::ALLOWED_FOR_BYTE * text.len() + passes;
            assert!(work.spent() < most, "{head:?} {piece:?}: {}", work.spent());
        }
    }
}

/// A text of which compilers make 64 different things is read as often only if it is short.
#[test]
fn a_long_text_of_many_readings_is_given_up() {
    let odd = "??/ x\n\\ \nfoo *\\\n/ \r bar \n 'lone\n 1'0 \n";
    let text = |length: usize| format!("{odd}{}", "int x;\n".repeat(length / 7));
    assert_eq!(verdict(&[text(10_000).as_bytes()]), NONE);
    let long = text(2 << 20);
    assert_eq!(verdict(&[long.as_bytes()]), Err(Bypass::CostlyText));
}

#[test]
fn headers_are_found_in_every_spelling() {
    names_a(&[
        "#include <a>",
        "int x;\n \t# \t include \"a\"",
        "#include_next <a>\n",
        "#import <a>\n",
        "#embed <a> limit(4)\n",
        "#if 0\n#include <a>\n#endif",
        "/**/ # /**/ include <a>",
        "/*\n*/#/*\n*/include <a>",
        "#include /* why */ <a> // why",
        "#include \"a\" /* why\n*/",
        "??=include <a>",
        "%:include <a>",
        "%\\\n:include <a>",
        "#\\\ninclude <a>",
        "#\\\r\ninclude <a>",
        "#inc\\\nlude <a>",
        "// comment\r#include <a>",
        "\u{FEFF}#include <a>",
        "\0#include <a>",
        "'\\''\n#include <a>",
        "#if __has_include(<a>)\n#endif",
        "#if defined(__has_include) && __has_include ( \"a\" )\n#endif",
        "#if __has_embed(<a> limit(1))\n#endif",
        "#if __has_include(\"a\") && (1 || __has_include(<a>))\n#endif",
        "#if undef __has_include(\"a\")\n#endif",
        "#ifdef __has_include\n#if __has_include_next(<a>)\n#endif\n#endif",
        "#include <a>\nasm(\"nop\");",
    ]);
}

#[test]
fn a_directive_that_some_compilers_do_not_know_counts() {
    check(&[
        ("#inc\\ \t\r\nlude <a>", UNKNOWN),
        ("#inc??/\nlude <a>", UNKNOWN),
        ("#inc\\\n\\\n\\\rlude <a>", UNKNOWN),
    ]);
}

#[test]
fn names_that_macros_make_are_given_as_they_stand() {
    let computed = |text: &str| Ok(vec![Operand::Computed(text.as_bytes().to_vec())]);
    for (text, expected) in [
        ("#include NAME\n", "NAME"),
        ("#include S(DIR/a.h) // why\nint x;", "S(DIR/a.h)"),
        ("#include S(a /* b\n*/ c)\n", "S(a /* b\n*/ c)"),
        ("#if __has_include(NAME(x))\n#endif", "NAME(x)"),
    ] {
        assert_eq!(judge(&[text.as_bytes()]), computed(expected), "{text:?}");
    }
}

#[test]
fn assembly_that_reads_a_file_in_disguise_counts() {
    check(&[
        ("#define S(x) #x\nasm(S(.incbin) \" 'b'\");", FILE),
        ("#define S(x) #x\nasm(S(.inc) S(bin) \" 'b'\");", FILE),
        ("#define S(x) #x\nasm(\"nop\"); S(x.inc);", NONE),
        ("asm(\".INCBIN 'b'\");", FILE),
        ("asm(\".inc\\x62in 'b'\");", FILE),
        ("asm(\".irp x,bin\\n.in\\\\x 'b'\\n.endr\");", FILE),
        ("x.incbin = 1;", NONE),
    ]);
}

#[test]
fn a_header_whose_name_is_not_clear_counts() {
    check(&[
        (
            "#define x \"b\"\n#define ASK(x) __has_include(x)\n#if ASK(<a>)\n#endif",
            UNRESOLVED,
        ),
        ("#define ASK(x) __has_include(<x>)\n", UNRESOLVED),
        ("#if ID(__has_include(<a>))\n#endif", UNRESOLVED),
        ("#if F(\")\", __has_include(<a>))\n#endif", UNRESOLVED),
        ("#if F(/*)\n*/ __has_include(<a>))\n#endif", UNRESOLVED),
        ("#if F/**/(__has_include(<a>))\n#endif", UNRESOLVED),
        ("#if F(x)(__has_include(<a>))\n#endif", UNRESOLVED),
        (
            "#define O F(\n#if O __has_include(<a>))\n#endif",
            UNRESOLVED,
        ),
        ("#if (A(1) && (__has_include(<a>)))\n#endif", ONE),
        ("#include", UNRESOLVED),
        ("#include \"a\" \"b\"", UNRESOLVED),
        ("#include <a> x", UNRESOLVED),
        ("#include \"a\" /", UNRESOLVED),
        ("#embed NAME\n", UNRESOLVED),
        ("f(#include)", UNRESOLVED),
        (
            "#define ASK __has_include\n#if ASK(<a>)\n#endif",
            UNRESOLVED,
        ),
        ("x = __has_embed;", UNRESOLVED),
        (
            "#ifndef __has_include\n#define __has_include(x) 0\n#endif",
            NONE,
        ),
        ("#if defined __has_include // x\n#endif", NONE),
        ("#define __has_include(x) x\n", UNRESOLVED),
        ("#if __has_includeX(<a>)\n#endif", UNRESOLVED),
        ("#define S(embed) F(#embed <, __TIME__, >)\n", UNRESOLVED),
        ("#include éA\n", UNKNOWN),
        ("\u{A0}#include <a>", UNKNOWN),
        ("#define X M(1\né # include <, __TIME__, >\n", UNKNOWN),
        ("#define M z##defined __has_include\n", UNRESOLVED),
        ("#if P(defined __has_include) (<a>)\n#endif", UNRESOLVED),
        ("#if $defined(__has_include,) (<a>)\n#endif", UNRESOLVED),
        ("#if $defined(__has_include(<a>))\n#endif", UNRESOLVED),
        ("/* *\\\0\n/ __TIME__ /* */", UNKNOWN),
        ("#if defined(__has_include(<a>))\n#endif", ONE),
    ]);
}

#[test]
fn comments_and_literals_hide_what_they_hold() {
    check(&[
        ("", NONE),
        (
            "// #include <a>\n/* #include <a>\n#include __FILE__ */ int x;",
            NONE,
        ),
        ("// still \\\n#include <a>", NONE),
        ("// still \\\r\n#include <a>", NONE),
        ("/* a *\\\n/ int x;", NONE),
        (
            "constant char *s = \"#include <a> __FILE__ /*\";\nint x; // */",
            NONE,
        ),
        ("constant char *s = \"\\\"#include <a>\\\\\";", NONE),
        ("char c = '\"'; char d = '#';\n", NONE),
        ("/\\\n/ #include <a>", NONE),
        ("/\\\n* #include <a> */", NONE),
    ]);
}

#[test]
fn comments_and_literals_end_where_they_end() {
    check(&[
        ("/* \"*/\n#include <a>\n// \"", ONE),
        ("/*/ */\n#include <a>", ONE),
        ("/**//**/#include <a>", ONE),
        ("\"/*\"\n#include <a> /* */", ONE),
        ("\"//\\\n\" \n#include <a>", ONE),
        ("'//'\n#include <a>", ONE),
        ("char c = '\\\\';\n#include <a>\n';'", ONE),
    ]);
}

#[test]
fn where_compilers_differ_one_reading_with_an_obstacle_is_enough() {
    check(&[
        // A blank between backslash and line end.
        ("// still \\ \n#include <a>", ONE),
        // Trigraphs off.
        ("// still ??/\n#include <a>", ONE),
        ("\"??/\" __FILE__ \"\"", NAME),
        // A lone carriage return.
        ("// a\rint x;\n", NONE),
        ("// a\r__FILE__\n", NAME),
        // Quotes that are not closed.
        ("#if 0\ndon't /*\n#include <a>\n*/\n#endif", ONE),
        ("don't /*\n/*/ __FILE__ /* */", NAME),
        ("don't __FILE__\n", NAME),
        ("don't do this\nint x;", NONE),
        ("\"open\n#include <a>\n\"", ONE),
        // Digit separators.
        ("1'000 + __FILE__ + 1'0;", NAME),
        ("1é.'0 '/*' */ __FILE__ //'", NAME),
        ("1éu'0 '/*' */ __FILE__ //'", NAME),
        ("1e+'0 /*' */ __FILE__ //'", NAME),
        ("1'0a don't/*don't //';\n#include <a>", ONE),
        ("L'a' + u8'b';\n", NONE),
        ("1'000; /*' */ __FILE__ '", NAME),
        // Messages.
        ("#error a /*\n#include <a>\n*/", UNKNOWN),
        ("#warning \"*/\" /*\"\n", UNKNOWN),
        ("#if 0\n#error R\"(\n#endif\n/*\n)\"\n", UNKNOWN),
        ("#error \"please define VENDOR\"\n", NONE),
        (
            "#error please #include \"a\" and don't use __FILE__\n",
            NONE,
        ),
        ("#error /* */ a's\n__FILE__\n", NAME),
        // A comment's end in two pieces.
        ("/* *\\\n/ int x; /* */", NONE),
        ("/* *\\\n\\\n/ __FILE__ /* */", NAME),
        ("/* *\\\n/ /* */ __FILE__ */", NAME),
        // Raw strings.
        ("R\"(\n)\" x", UNKNOWN),
        ("u8R\"x(\n)x\" x", UNKNOWN),
        ("FOUR\"text\"", NONE),
    ]);
}

#[test]
fn directives_must_be_known() {
    check(&[
        (
            "#define A 1\n#undef A\n#if A\n#elif 1\n#else\n#endif\n",
            NONE,
        ),
        (
            "#ifdef A\n#elifdef B\n#elifndef C\n#endif\n#ifndef A\n#endif",
            NONE,
        ),
        (
            "#line 3 \"x\"\n# 12 \"x\" 2\n#\n# // nothing\n#ident \"x\"\n#pragma unroll\n",
            NONE,
        ),
        ("#warning careful\n", NONE),
        ("#assert machine(x)\n", UNKNOWN),
        ("#!shebang\n", UNKNOWN),
        ("# \"x\"\n", UNKNOWN),
        ("/* */ #foo", UNKNOWN),
        ("\r\n #foo", UNKNOWN),
        ("#define TEXT(x) #x\n#define F(a) #a /* */ #a\n", NONE),
        ("#define LONG(a) \\\n  #a\n", NONE),
    ]);
}

#[test]
fn special_names_count_outside_of_comments_and_strings() {
    for &(name, reason) in special_names(false) {
        let name = std::str::from_utf8(name).unwrap();
        check(&[
            (name, Err(reason)),
            (&format!("int x = f({name});"), Err(reason)),
            (&format!("#define X {name}\n"), Err(reason)),
            (&format!("{}\\\n{}", &name[..4], &name[4..]), Err(reason)),
            (
                &format!("// {name}\n\"{name}\" x{name} 1{name} {name}x /* {name} */"),
                special_of_longer(name),
            ),
        ]);
    }
    check(&[
        ("#__FILE__", UNKNOWN),
        ("f(#__FILE__)", NAME),
        ("__LINE__ __COUNTER__ __func__", NONE),
        ("__CLFN_X(F, ME__, a, __TI, b)", NAME),
    ]);
    check(&[
        ("__FI\\u004CE__", NAME),
        ("int \\\nu = 1;", NONE),
        ("\"\\u004C\"", NONE),
    ]);
}

/// `__has_includex` counts too.
fn special_of_longer(name: &str) -> Verdict {
    match name.starts_with("__has") {
        true => UNRESOLVED,
        false => NONE,
    }
}

#[test]
fn names_that_can_be_pasted_count() {
    check(&[
        ("#define C(a, b) a##b\nC(__FI, LE__)", NAME),
        ("#define C(a, b) a%:%:b\nC(__FI, LE__)", NAME),
        ("#define C(a, b) a??=??=b\nC(__FI, LE__)", NAME),
        ("#define C(a, b) a#\\\n#b\nC(_, _DATE__)", NAME),
        ("#define C(a, b) __##a##__\nC(TIME)", NAME),
        ("#define C(a, b) a##b\nC(__has_, include)", UNRESOLVED),
        ("#define F(name, type) name##_##type\nF(sum, float)", NONE),
        // Nothing pastes these, but that takes an expansion to see.
        ("#define F(name, type) name##_##type\nF(FILE, DATE)", NAME),
        ("#define C(a, b) a##b\nC(__FI, LE) // __\n", NONE),
        ("C(__FI, LE__)", NONE),
        ("#define C(a, b) a##__FILE__", NAME),
    ]);
    let source = b"#define C(a, b) a##b\nC(__FI, X)";
    assert_eq!(verdict(&[source]), NONE);
    assert_eq!(verdict(&[source, b"#define X LE__"]), NAME);
}

#[test]
fn inline_assembly_that_reads_files_counts() {
    check(&[
        ("asm(\".incbin \\\"a\\\"\");", FILE),
        ("__asm__ volatile(\".include \\\"a\\\"\");", FILE),
        ("asm(\".inc\" \"bin \\\"a\\\"\");", FILE),
        (
            "asm(\"mov.b32 %0, %1;\" : \"=r\"(a) : \"r\"(b), \"n\"(1), \"i\"(2));",
            NONE,
        ),
        ("; asm(\"atom.global.inc.u32 %0, [%1], %2;\");", NONE),
        ("printf(\".incbin\");", NONE),
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
        "1'17",
        "__has_include (\"a\" ",
        "__has_include(/**/\"a\") || ",
        "#pragma a ",
        "__has_include(<a>)",
        "#define a ",
        "#define a __has_include(\"a\") ",
        "don't /*\n\\\r1'0 ??= *\\\n",
    ];
    for text in texts {
        let text = text.repeat((1 << 15) / text.len());
        let start = cpu_seconds();
        let mut judged = Texts::default();
        let _ = judged.add(text.as_bytes());
        let _ = judged.new_definitions(|_| Ok(()));
        let _ = judged.finish();
        assert!(cpu_seconds() - start < 5, "{:?}", &text[..8]);
    }
}

/// What this thread has worked, whatever else the machine does.
fn cpu_seconds() -> i64 {
    rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime).tv_sec
}

proptest! {
    #[test]
    fn any_bytes_are_judged(
        texts in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..80), 0..3),
    ) {
        let texts: Vec<_> = texts.iter().map(Vec::as_slice).collect();
        let _ = judge(&texts);
    }

    #[test]
    fn text_of_many_pieces_is_judged(
        text in "([\"'/*#%:?=\\\\\r\n a_PR1<>.()-]|include|__FILE__|error|\\*/|//|/\\*){0,40}",
    ) {
        let _ = judge(&[text.as_bytes()]);
    }

    #[test]
    fn a_directive_on_a_line_of_its_own_is_found(
        before in "([ -!#-&(-.0-\\[\\]-~]|//[ -\\[\\]-~]*\n|/\\*[ -)+-.0-~\n]*\\*/|\"[ !#-\\[\\]-~]*\"|\n){0,30}",
        after in "[ -~\n]{0,60}",
        directive in "( |/\\* \\*/)?(#|%:|\\?\\?=)( |/\\* \\*/)?(include|import|embed) <a>",
    ) {
        let text = format!("{before}\n{directive}\n{after}");
        prop_assert!(verdict(&[text.as_bytes()]) != NONE, "{:?}", text);
    }
}
