//! The language that options choose: OpenCL C or C++ for OpenCL.

/// Whether options could ask for C++ for OpenCL (`-cl-std=CLC++2021`, `-x clcpp`).
pub fn could_be_cpp(options: &[u8]) -> bool {
    // Drivers differ in what quotes and backslashes do within a word.
    let is_plain = |byte: &&u8| !b"\"'\\".contains(byte);
    let has = |word: &[u8], text: &[u8]| {
        (0..word.len()).any(|at| {
            let from = word[at..].iter().filter(is_plain).take(text.len());
            is_plain(&&word[at]) && from.map(u8::to_ascii_lowercase).eq(text.iter().copied())
        })
    };
    options
        .split(u8::is_ascii_whitespace)
        .any(|word| has(word, b"clcpp") || has(word, b"std=") && has(word, b"++"))
}

#[cfg(test)]
mod tests {
    use crate::key::source::Texts;
    use crate::outcome::Bypass;

    fn judge(options: &str, text: &str) -> Result<(), Bypass> {
        let mut texts = Texts::default().with_options(options.as_bytes());
        texts.add(text.as_bytes())?;
        texts.finish()
    }

    const CPP: [&str; 7] = [
        "-cl-std=CLC++",
        "-w -cl-std=clc++2021 -DN=1",
        "-cl-std=\"CLC++1.0\"",
        "-cl-std=CLC\\+\\+",
        "-cl-s't'd=CLC+\"+\"",
        "-x clcpp",
        "\t-xclcpp",
    ];
    const C: [&str; 5] = [
        "",
        "-cl-std=CL3.0",
        "-cl-std=CL2.0 -I/usr/include/c++/12",
        "-x cl -DA=b++",
        "-cl-std=CL1.2\t-Ic++",
    ];

    #[test]
    fn in_cpp_inline_assembly_may_compute_its_text() {
        let computes = "struct V { constexpr auto data() const { return T; } }; asm((V{}));";
        let pasted = "#define C(a, b) a##b\nC(as, m)((V{}));";
        for text in [computes, pasted] {
            for options in CPP {
                assert_eq!(judge(options, text), Err(Bypass::ReadsFile), "{options}");
            }
            for options in C {
                assert_eq!(judge(options, text), Ok(()), "{options}");
            }
        }
        assert_eq!(judge(CPP[0], "constexpr int asmx = 1;"), Ok(()));
    }

    #[test]
    fn in_cpp_the_name_of_a_function_may_hold_a_files_name() {
        for text in [
            "operator decltype(m)() { return __func__[k]; }",
            "return __FUNCTION__;",
            "return __builtin_FUNCTION();",
            "#define C(a, b) a##b\nC(__fu, nc__)",
            "_Pragma(\"message(__func__)\")",
        ] {
            for options in CPP {
                let judged = judge(options, text);
                assert_eq!(judged, Err(Bypass::UsesTimeOrFileName), "{options} {text}");
            }
            for options in C {
                assert_eq!(judge(options, text), Ok(()), "{options} {text}");
            }
        }
    }

    #[test]
    fn in_cpp_what_may_be_a_part_of_a_number_is_not_read() {
        for (text, reason) in [
            ("#define A 1é'0 // ' /*\n__TIME__", Bypass::UnknownDirective),
            ("#define B 1p+a'b/*'", Bypass::UnknownDirective),
            ("#define A 1.'0 '/*'", Bypass::UnknownDirective),
            ("#define B 1p+.'0 /*'", Bypass::UnknownDirective),
            ("#define H <a.h>\n#include H", Bypass::UnresolvedInclude),
        ] {
            assert_eq!(judge(CPP[0], text), Err(reason), "{text}");
        }
        let plain = "char c = 'a', d = L'b'; // don't\n";
        assert_eq!(judge(CPP[0], plain), Ok(()));
    }
}
