//! What texts cost that were made to cost much.

use std::path::Path;

use super::*;
use crate::key::include::{Inputs, follow};
use crate::key::options;

/// The texts of a build.
#[derive(Default)]
struct Case {
    source: String,
    options: String,
    embedded: Vec<(String, String)>,
}

/// A kind of texts, of a given length.
struct Kind {
    name: &'static str,
    make: fn(usize) -> Case,
}

/// Something of which each next piece is known by its number, up to the given length.
fn lines(head: &str, bytes: usize, line: impl Fn(usize) -> String) -> Case {
    let mut source = head.to_owned();
    let mut number = 0;
    while source.len() < bytes {
        source += &line(number);
        number += 1;
    }
    source += "\nkernel void k(global int *o) { *o = 42; }\n";
    Case {
        source,
        ..Case::default()
    }
}

fn repeated(head: &str, bytes: usize, piece: &str) -> Case {
    lines(head, bytes, |_| piece.to_owned())
}

/// A line as kernels have them, with other names each time.
fn plain(number: usize) -> String {
    let name = number.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    format!("  float v{name:x} = in[{}] * w_{name:x};\n", number % 977)
}

/// Texts that no program has by chance cost no more than the limit allows.
const KINDS: &[Kind] = &[
    Kind {
        name: "all differences between compilers",
        make: |bytes| {
            let head =
                "#define P(a,b) a##b\n#if 0\n??/ x\n\\ \nfoo *\\\n/ \r bar \n 'lone\n 1'0 \n";
            lines(head, bytes, |number| {
                format!(
                    "  float __v{number:x} = in[{}] * 1'0; /* c */ 'q\n",
                    number % 977
                )
            })
        },
    },
    Kind {
        name: "macros that are used by no include",
        make: |bytes| {
            lines("", bytes, |number| {
                format!("#define D{number}(x,y) x y D{}(x y)\n", number + 1)
            })
        },
    },
    Kind {
        name: "macros, and includes that use some",
        make: |bytes| {
            let head: String = (0..64).map(|one| format!("#include H{one}\n")).collect();
            lines(&format!("#define H0 <h0.h>\n{head}"), bytes, |number| {
                format!("#define D{number}(x,y) x y D{}(x y)\n", number + 1)
            })
        },
    },
    Kind {
        name: "short macros",
        make: |bytes| {
            lines("#define N <n.h>\n#include N\n", bytes, |number| {
                format!("#define D{number:x}\n")
            })
        },
    },
    Kind {
        name: "definitions of one name",
        make: |bytes| {
            lines("#include N\n", bytes, |number| {
                format!("#define N \"{number}.h\"\n")
            })
        },
    },
    Kind {
        name: "long definitions of one name",
        make: |bytes| {
            let long = "x ".repeat(8000);
            lines("#include N\n", bytes, |number| {
                format!("#define N {long}{number}\n")
            })
        },
    },
    Kind {
        name: "computed includes",
        make: |bytes| {
            lines("", bytes, |number| {
                format!(
                    "#define H{number} <h{}.h>\n#include H{number}\n",
                    number % 100
                )
            })
        },
    },
    Kind {
        name: "computed includes of nothing",
        make: |bytes| lines("", bytes, |number| format!("#include H{number}\n")),
    },
    Kind {
        name: "computed includes in rounds",
        make: |bytes| {
            lines("#define S(x) #x\n#define T(x) S(x)\n", bytes, |number| {
                format!("#include T(a/H{number}/b{number}.h)\n")
            })
        },
    },
    Kind {
        name: "macros that double",
        make: |bytes| {
            lines("#include D0\n#include D1\n", bytes, |number| {
                format!("#define D{number} D{0} D{0}\n", number + 1)
            })
        },
    },
    Kind {
        name: "macros of one another",
        make: |bytes| {
            lines("#include D0\n", bytes, |number| {
                let (one, other) = (number % 20, (number * 7 + 3) % 20);
                format!("#define D{one} D{other} {number}\n")
            })
        },
    },
    Kind {
        name: "pasted words that grow",
        make: |bytes| {
            let long = "x".repeat(8000);
            let head = format!("#define P(a, b) a##b\n#define L(x) <P({long}, x)>\n");
            lines(&head, bytes, |number| format!("#include L(y{number})\n"))
        },
    },
    Kind {
        name: "strings of strings",
        make: |bytes| {
            let nested = format!("{}\"{}", "T(".repeat(12), ")".repeat(12));
            lines("#define S(x) #x\n#define T(x) S(x)\n", bytes, |number| {
                format!("#include T({number} {nested})\n")
            })
        },
    },
    Kind {
        name: "calls with many arguments",
        make: |bytes| {
            let many = "F(a, b), ".repeat(30);
            lines("#define F(x, y) <x y##x/y>\n", bytes, |number| {
                format!("#include F(F({many} {number}), b)\n")
            })
        },
    },
    Kind {
        name: "includes",
        make: |bytes| lines("", bytes, |number| format!("#include <h{number}.h>\n")),
    },
    Kind {
        name: "includes and include directories",
        make: |bytes| Case {
            options: "-I d ".repeat(20_000),
            ..lines("", bytes, |number| {
                format!("#include <h{}.h>\n", number % 50)
            })
        },
    },
    Kind {
        name: "a long name in many include directories",
        make: |bytes| Case {
            source: format!("#include <{}>\n", "x".repeat(bytes)),
            options: "-I d ".repeat(20_000),
            ..Case::default()
        },
    },
    Kind {
        name: "definitions in the options",
        make: |bytes| Case {
            options: (0..10_000).map(|one| format!("-DN{one}=1 ")).collect(),
            ..lines("#include N1\n", bytes, plain)
        },
    },
    Kind {
        name: "embedded headers",
        make: |bytes| Case {
            embedded: (0..bytes / 64)
                .map(|one| (format!("d{one}/h.h"), "#include \"x.h\"\n".to_owned()))
                .collect(),
            ..Case::default()
        },
    },
    Kind {
        name: "questions for headers",
        make: |bytes| repeated("#if ", bytes, "__has_include(\"a\") || "),
    },
    Kind {
        name: "questions in arguments",
        make: |bytes| repeated("#if ", bytes, "(__has_include(\"a\"))"),
    },
    Kind {
        name: "questions in a macro",
        make: |bytes| repeated("#define Q ", bytes, "__has_include(\"a\") "),
    },
    Kind {
        name: "names of headers behind open comments",
        make: |bytes| repeated("", bytes, "#include NAME 1'0' /*\n"),
    },
    Kind {
        name: "open comments in messages",
        make: |bytes| repeated("'lone\n1'0 y##z\n#error ", bytes, "#error a /* */\n"),
    },
    Kind {
        name: "unclosed quotes on one line",
        make: |bytes| repeated("", bytes, "'\\'\\"),
    },
    Kind {
        name: "unclosed quotes on many lines",
        make: |bytes| repeated("#define S(x) #x\n", bytes, "don't\n"),
    },
    Kind {
        name: "backslashes",
        make: |bytes| repeated("", bytes, "\\"),
    },
    Kind {
        name: "backslashes in a literal",
        make: |bytes| Case {
            source: format!("constant char *s = \"{}\";\n", "\\\\".repeat(bytes / 2)),
            ..Case::default()
        },
    },
    Kind {
        name: "blanks after backslashes",
        make: |bytes| repeated("", bytes, "\\ \r\n"),
    },
    Kind {
        name: "question marks",
        make: |bytes| repeated("", bytes, "?"),
    },
    Kind {
        name: "trigraphs",
        make: |bytes| repeated("", bytes, "??= ??/\n"),
    },
    Kind {
        name: "carriage returns",
        make: |bytes| repeated("", bytes, "\r"),
    },
    Kind {
        name: "separated digits",
        make: |bytes| repeated("", bytes, "1'1"),
    },
    Kind {
        name: "pieces of numbers",
        make: |bytes| repeated("", bytes, "a.a.1'"),
    },
    Kind {
        name: "parts of special names",
        make: |bytes| repeated("#define P(a, b) a##b\n", bytes, "_ __ __a INC DA "),
    },
    Kind {
        name: "underscores",
        make: |bytes| repeated("#define P(a, b) a##b _Pragma(#a)\n", bytes, "_"),
    },
    Kind {
        name: "parts of words of pragmas",
        make: |bytes| repeated("_Pragma(\"x\")\n", bytes, "pc mo de in "),
    },
    Kind {
        name: "pragmas",
        make: |bytes| repeated("", bytes, "#pragma a /* */\n"),
    },
    Kind {
        name: "assembly",
        make: |bytes| repeated("#define S(x) #x\n", bytes, "asm(S(c) \".inc.c\"); "),
    },
    Kind {
        name: "the end of PyOpenCL's sources",
        make: |bytes| {
            let mut case = repeated("", bytes, "e p_ cache e_ ");
            case.source +=
                "\n\n__constant int pyopencl_defeat_cache_0123456789abcdef0123456789abcdef = 0;";
            case
        },
    },
];

/// Texts as programs have them.
const USUAL: &[Kind] = &[
    Kind {
        name: "lines of code",
        make: |bytes| lines("", bytes, plain),
    },
    Kind {
        name: "lines of code, and macros that paste and make strings",
        make: |bytes| {
            lines("#define P(a, b) a##b\n#define S(a) #a\n", bytes, |number| {
                format!("/* {number} */ {}", plain(number))
            })
        },
    },
    Kind {
        name: "a macro that names a header",
        make: |bytes| lines("#define N <n.h>\n#include N\n", bytes, plain),
    },
    Kind {
        name: "constants",
        make: |bytes| {
            lines("", bytes, |number| {
                format!("#define N{number} ({number}.0f)\n")
            })
        },
    },
    Kind {
        name: "conditions",
        make: |bytes| repeated("", bytes, "#if 1 && (defined(A) || B > 2)\n#else\n#endif\n"),
    },
    Kind {
        name: "conditions in conditions",
        make: |bytes| {
            let deep = bytes / 13;
            Case {
                source: format!("{}{}", "#if 1\n".repeat(deep), "#endif\n".repeat(deep)),
                ..Case::default()
            }
        },
    },
    Kind {
        name: "a long condition",
        make: |bytes| repeated("#if 1", bytes, " && (A + 1 > B)"),
    },
    Kind {
        name: "joined lines",
        make: |bytes| repeated("#define A \\\n", bytes, "  a = b + c; \\\n"),
    },
    Kind {
        name: "comments",
        make: |bytes| repeated("", bytes, "/* why */ // and how\n"),
    },
    Kind {
        name: "an open comment",
        make: |bytes| repeated("/*", bytes, " # __DATE__ \" ' "),
    },
    Kind {
        name: "a long literal",
        make: |bytes| Case {
            source: format!("constant char *s = \"{}\";\n", "abc.".repeat(bytes / 4)),
            ..Case::default()
        },
    },
    Kind {
        name: "a table of numbers",
        make: |bytes| repeated("constant uchar t[] = {", bytes, "0x1f, 3, "),
    },
    Kind {
        name: "a table of characters",
        make: |bytes| repeated("constant char t[] = {", bytes, "'a', '\\n', "),
    },
    Kind {
        name: "blanks after hashes",
        make: |bytes| {
            let blank = format!("#{}\n", " ".repeat(2000));
            lines("", bytes, move |_| blank.clone())
        },
    },
    Kind {
        name: "lines that end in carriage return and line feed",
        make: |bytes| repeated("", bytes, "int x;\r\n"),
    },
];

fn cost(case: &Case) -> (Result<(), Bypass>, usize) {
    let options = options::parse(case.options.as_bytes()).expect("options");
    let embedded: Vec<(&[u8], &[u8])> = case
        .embedded
        .iter()
        .map(|(name, text)| (name.as_bytes(), text.as_bytes()))
        .collect();
    let inputs = Inputs {
        source: case.source.as_bytes(),
        embedded: &embedded,
        options: Some(&options),
        working_directory: Path::new("/nowhere"),
        driver_dirs: &[],
        implicit: &[],
    };
    let work = Work::default();
    let followed = follow(&inputs, &work);
    (followed.map(|_| ()), work.spent())
}

/// The length of all texts.
fn length(case: &Case) -> usize {
    let embedded = case.embedded.iter();
    let embedded: usize = embedded.map(|(name, text)| name.len() + text.len()).sum();
    case.source.len() + case.options.len() + embedded
}

/// Steps that a pass over texts may cost for each byte: the limit is checked between passes.
const STEPS_OF_PASS: usize = 10;

#[test]
fn no_texts_cost_more_steps_than_a_multiple_of_their_length() {
    for kind in KINDS.iter().chain(USUAL) {
        for bytes in [1 << 13, 1 << 16, 1 << 19] {
            let case = (kind.make)(bytes);
            let (verdict, spent) = cost(&case);
            let most = ALLOWED_ALWAYS + (ALLOWED_FOR_BYTE + STEPS_OF_PASS) * length(&case);
            assert!(spent < most, "{}, {bytes}: {spent}, {verdict:?}", kind.name);
        }
    }
}

#[test]
fn usual_texts_are_never_too_costly_and_their_cost_is_linear() {
    for kind in USUAL {
        let costs = [1 << 13, 1 << 16, 1 << 19].map(|bytes| {
            let case = (kind.make)(bytes);
            let (verdict, spent) = cost(&case);
            assert_eq!(verdict, Ok(()), "{}, {bytes}", kind.name);
            spent as f64 / length(&case) as f64
        });
        let [short, .., long] = costs;
        assert!(
            long < 1.1 * short + 0.1,
            "{}: {costs:?} steps a byte",
            kind.name
        );
        assert!(long < 6.0, "{}: {costs:?} steps a byte", kind.name);
    }
}

#[test]
fn a_text_of_many_readings_is_given_up_after_the_first() {
    let case = (KINDS[0].make)(2 << 20);
    let (verdict, spent) = cost(&case);
    assert_eq!(verdict, Err(Bypass::CostlyText));
    assert!(spent < STEPS_OF_PASS * case.source.len(), "{spent}");
}

#[test]
fn equal_texts_get_equal_verdicts_for_equal_steps() {
    for kind in KINDS.iter().chain(USUAL) {
        let case = (kind.make)(1 << 14);
        assert_eq!(cost(&case), cost(&case), "{}", kind.name);
    }
}
