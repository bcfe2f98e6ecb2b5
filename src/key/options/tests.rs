use proptest::prelude::*;

use super::*;

fn accepted(options: &str) -> Options {
    parse(options.as_bytes()).unwrap_or_else(|reason| panic!("{options:?}: {reason:?}"))
}

#[test]
fn harmless_options_stay_byte_for_byte() {
    for options in [
        "",
        " \t ",
        "  -cl-mad-enable   -w ",
        "-D A -DB=2 -D C=3 -U D -UE",
        "-cl-std=CL1.2 -cl-fast-relaxed-math -Werror -Wno-unused -Werror=implicit -O3 -O -Os",
        "-fno-strict-aliasing -ffast-math -x cl -xspir -spir-std=1.2",
        "-create-library -enable-link-options",
        "-cl-nv-maxrregcount=32 -cl-nv-maxrregcount 32 -cl-nv-verbose",
        "-ze-opt-large-register-file -cl-intel-256-GRF-per-thread",
        "-DX=\"a\" -D'Y=1' -DZ=\\\"z\\\"",
    ] {
        let parsed = accepted(options);
        assert_eq!(parsed.normalized, options.as_bytes());
        assert!(!parsed.debug);
    }
}

#[test]
fn include_directories_are_cut_out() {
    let one = accepted("-I /home/a/lib -DX=1 -I/opt/x ");
    assert_eq!(one.normalized, b"-I \0I -DX=1 -I\0I ");
    assert_eq!(
        one.include_dirs,
        [b"/home/a/lib".to_vec(), b"/opt/x".to_vec()]
    );
    assert_eq!(one.normalized, accepted("-I /b -DX=1 -I. ").normalized);
    assert_ne!(one.normalized, accepted("-I /b -DX=1 -I . ").normalized);
    assert_ne!(one.normalized, accepted("-I /b -I. -DX=1 ").normalized);
    assert_ne!(accepted("-I /a").normalized, accepted("").normalized);
}

#[test]
fn include_directories_stay_where_they_may_matter() {
    for options in [
        "-g -I /a",
        "-I /a -g",
        "-I\t/a",
        "-I \"/a\"",
        "-I /a -DX='1'",
        "-I /a -cl-kernel-debug-enable",
    ] {
        let parsed = accepted(options);
        assert_eq!(parsed.normalized, options.as_bytes());
        assert!(parsed.include_dirs.contains(&b"/a".to_vec()));
    }
}

/// PoCL, Intel's GPU driver and rusticl look for some options in the whole text.
#[test]
fn a_directory_in_whose_name_a_driver_may_see_an_option_stays() {
    for name in [
        "/y-cl-std=CL1.1",
        "build-cl-fast-relaxed-math/include",
        "a/x-create-library",
        "a--cl-opt-disable",
        "x-spir-std=1.2",
        "x-nv-verbose",
    ] {
        let options = format!("-I {name} -w -I /a");
        assert_eq!(accepted(&options).normalized, options.as_bytes(), "{name}");
        assert!(!accepted(&options).debug, "{name}");
    }
    for name in [
        "/usr/lib/python-3.11/site-packages",
        "my-work",
        "x86_64-linux-gnu",
        "opencl-include",
        "a-git/b-Wrapper/c-g/d-O2",
        "cl-headers",
    ] {
        let options = format!("-cl-std=CL1.2 -I {name} -DX=-cl-mad-enable");
        let cut = b"-cl-std=CL1.2 -I \0I -DX=-cl-mad-enable";
        assert_eq!(accepted(&options).normalized, cut, "{name}");
        assert!(!accepted(&options).debug, "{name}");
    }
}

#[test]
fn debug_information_that_a_driver_sees_inside_a_word_is_noticed() {
    for options in [
        "-I /y-gline-tables-only",
        "-I a-gline-tables-only/include -w",
        "-DX=y-gline-tables-only",
        "-DX=-cl-kernel-debug-enable -I /a",
        "-DX=\"a-gline-directives-only\"",
        "-I a-cl-intel-debug-info",
    ] {
        assert!(accepted(options).debug, "{options}");
        assert_eq!(accepted(options).normalized, options.as_bytes());
    }
}

#[test]
fn debug_information_is_noticed() {
    for options in [
        "-g",
        "-g2",
        "-gline-tables-only",
        "-cl-opt-disable -g",
        "-nv-line-info",
    ] {
        assert!(accepted(options).debug, "{options}");
    }
}

#[test]
fn options_that_read_files_are_refused() {
    for options in [
        "-includea.h",
        "-include-pch a",
        "-isystem/a",
        "-isysroot a",
        "-iprefix a",
        "--sysroot=/a",
        "-B/a",
        "-fplugin=a",
        "-load a",
        "-Xclang -include -Xclang a",
        "@file",
        "-g -s a.cl",
        "-cl-mad-enable \"@file\"",
        "\\-includea",
        "-DA=1 -fmodules",
    ] {
        assert_eq!(
            parse(options.as_bytes()),
            Err(Bypass::OptionReadsFile),
            "{options}"
        );
    }
}

#[test]
fn options_of_unknown_effect_are_refused() {
    for options in [
        "file.cl",
        "-",
        "-save-temps",
        "-save-temps=/a",
        "-mllvm -x",
        "-Wp,-include,a",
        "-Wl,a",
        "-gsplit-dwarf",
        "-ftime-trace",
        "-fpreprocessed",
        "-Dx -I",
        "-D",
        "-D -include",
        "-I -g",
        "-I-",
        "-D X = 1",
        "-x c-header",
        "-dump-opt-llvm=/a",
        "-cl-mad-enable 5",
        "-cl-what=/a",
        "-I \"a b",
        "-include",
        "-include -w",
        "-DX=\"a -I\" b",
        "-DX=\"\\\" -w\"",
        "-DX='a -w'",
        "-DX=/*",
        "-DX=a//b",
        "-o a",
        "-v",
        "-target x",
    ] {
        assert_eq!(
            parse(options.as_bytes()),
            Err(Bypass::UnknownOption),
            "{options}"
        );
    }
}

#[test]
fn where_drivers_read_quotes_differently_each_reading_counts() {
    let names = |list: &[&str]| -> Vec<Vec<u8>> {
        list.iter().map(|name| name.as_bytes().to_vec()).collect()
    };
    for (options, directories) in [
        ("-I \"a b\"", names(&["a b", " a b ", "\"a"])),
        (
            "-I\"/usr/share/darktable/kernels\"",
            names(&[
                "/usr/share/darktable/kernels",
                " /usr/share/darktable/kernels ",
                "\"/usr/share/darktable/kernels\"",
            ]),
        ),
        ("-I a\\ b", names(&["a b", "a\\"])),
        ("-I 'a b'", names(&["a b", "'a"])),
        (
            "-isystem a -iquote b -idirafter c -I d -I a",
            names(&["a", "b", "c", "d", "a"]),
        ),
    ] {
        let parsed = accepted(options);
        assert_eq!(parsed.include_dirs, directories, "{options}");
    }
    assert_eq!(
        accepted("-D\"X=1\"").definitions,
        names(&["X=1", " X=1 ", "\"X=1\""])
    );
    assert_eq!(
        accepted("-DX=LE__ -DHEADER=<a.h>").definitions,
        names(&["X=LE__", "HEADER=<a.h>"])
    );
    assert_eq!(accepted("-DX=\\ -w").definitions, names(&["X= -w", "X=\\"]));
    assert_eq!(
        accepted("-include a.h -imacros \"b.h\"").forced_includes,
        names(&["a.h", "b.h", " b.h ", "\"b.h\""])
    );
    for (options, directories) in [
        ("-I\ta", names(&["a", "\ta"])),
        ("-Ia\t-Db -w", names(&["a", "a\t-Db"])),
        ("-Ia\n-w\t-Ib", names(&["a", "b", "a\n-w", "a\n-w\t-Ib"])),
    ] {
        assert_eq!(accepted(options).include_dirs, directories, "{options:?}");
    }
    // What a driver that splits at spaces only refuses is cached for those that split here.
    for options in [
        "-w\n",
        "-O3\t-w",
        "-Werror\r\n-DX=1\n",
        "-include\ta.h",
        "-isystem\td\n",
        "-DX=1\n-I/a//b",
        "-x cl\n-w",
    ] {
        assert!(parse(options.as_bytes()).is_ok(), "{options:?}");
    }
    assert_eq!(accepted("-isystem a").normalized, b"-isystem \0I");
}

/// A driver that parts words at spaces only hands all of these on.
#[test]
fn an_argument_that_may_be_more_than_that_counts_in_each_reading() {
    let defines = |options: &str, text: &str| {
        let definitions = accepted(options).definitions;
        assert!(
            definitions.contains(&text.as_bytes().to_vec()),
            "{options:?}"
        );
    };
    defines("-DX=1\t-I/__TIME__//", "X=1\t-I/__TIME__//");
    defines("-D X=1\x0C-I/a//b", "X=1\x0C-I/a//b");
    for options in [
        "-DX=1\t-I/a/*b",
        "-DX=1\x0C-I/a/* -DZ='\"*/__TIME__\"'",
        "-UX\n#define\tY\t__TIME__",
        "-UX\r-w",
        "-UX\t-I/a/*",
        "-UX/*",
        "-include\ta.h\"\n#define\tY\t__TIME__\n//\"",
    ] {
        let judged = parse(options.as_bytes());
        assert_eq!(judged, Err(Bypass::UnknownOption), "{options:?}");
    }
}

#[test]
fn private_options_show_no_values() {
    assert_eq!(accepted("-I /a  -w").private(), b"-I /a  -w");
    let shown = accepted("-DKEY=abc -D N -D M= -g").private();
    let shown = String::from_utf8(shown).unwrap();
    assert_eq!(
        shown,
        "-DKEY=sha256:ba7816bf8f01cfea -D N -D M=sha256:e3b0c44298fc1c14 -g"
    );
    let shown = accepted("-DKEY=\"secret word\" -w").private();
    assert!(
        !String::from_utf8(shown).unwrap().contains("secret"),
        "a value of two words"
    );
}

proptest! {
    #[test]
    fn any_bytes_are_parsed(options in proptest::collection::vec(any::<u8>(), 0..60)) {
        let _ = parse(&options);
    }

    #[test]
    fn keys_are_equal_only_if_the_options_are_but_for_directories(
        one in "(-I ?[ab] |-D[XY]=[12] | |-w |-g ){0,4}",
        other in "(-I ?[ab] |-D[XY]=[12] | |-w |-g ){0,4}",
    ) {
        let (a, b) = (accepted(&one), accepted(&other));
        let blind = |text: &str| text.replace("-Ib", "-Ia").replace("-I b", "-I a");
        let same = one == other || !a.debug && !b.debug && blind(&one) == blind(&other);
        prop_assert_eq!(a.normalized == b.normalized, same);
    }
}

#[test]
fn what_drivers_write_before_the_source_is_one_line_each() {
    for options in [
        "-DX\n#include<a=b.h>",
        "-DX\n#define\x0BH=<a.h>",
        "-DX/\n* -DZ=*/<a.h>",
        "-D \"X\n#include<a=b.h>\"",
        "-DX(define)=??/ -DY=",
        "-DH=<a??-h>",
        "-include a??-h",
        "-Ua??/",
    ] {
        assert_eq!(
            parse(options.as_bytes()),
            Err(Bypass::UnknownOption),
            "{options:?}"
        );
    }
    for options in ["-DX\n-DY=1\n", "-DX=\n-DY\n-DZ=2", "-DX=a??b -DY=?"] {
        accepted(options);
    }
}

#[test]
fn a_quote_between_other_characters_may_part_words() {
    for (options, name) in [
        ("-DX\"-include\"a.h", "a.h"),
        ("-DX=1\"\"-include\" a b\"", " a b"),
    ] {
        let parsed = accepted(options);
        assert!(
            parsed.forced_includes.contains(&name.into()),
            "{options:?}: {parsed:?}"
        );
        assert_eq!(parsed.normalized, options.as_bytes());
    }
    let parsed = accepted("-DX\"-I\"d");
    assert!(parsed.include_dirs.contains(&b"d".to_vec()), "{parsed:?}");
    accepted("-I \"a b\" -DX=\"c\"");
}

#[test]
fn a_backslash_joins_a_definition_with_the_next_line() {
    for (options, joined) in [
        ("-DX(define)=\\ -DY=<a.h>", "X(define)=#define Y <a.h>"),
        ("-DX=a\\\n -I. -D Y", "X=a#define Y"),
        ("-DX=\\\"x\\\" -UY", "X=\\x#undef Y"),
        (
            "-DC(a,define)=a#\\\t -DY=b=c",
            "C(a,define)=a##define Y b=c",
        ),
        ("-DX=a\\ -DY=b\\ -DZ=c", "X=a#define Y b#define Z c"),
        ("-DX=a\\ -DY=b\\\t", "X=a#define Y b#define _"),
    ] {
        let parsed = accepted(options);
        let mut definitions = parsed.judged_definitions();
        assert!(
            definitions.any(|one| one == joined.as_bytes()),
            "{options:?}: {parsed:?}"
        );
    }
    // Many are not read once for each that is joined with them.
    let many = accepted(&"-DX=a\\ ".repeat(100));
    assert!(many.joined.len() < 3, "{:?}", many.joined);
    let plain = accepted("-DX=a\\b -DY\\ -DZ");
    assert_eq!(plain.judged_definitions().count(), plain.definitions.len());
    let long = format!("-DX=\\ -DY={}\\ -DZ", "y".repeat(MAX_JOINED_BYTES));
    assert_eq!(parse(long.as_bytes()), Err(Bypass::UnknownOption));
}

/// Intel's GPU driver takes it out, and its compiler reads `y/h.h`.
#[test]
fn an_option_that_a_driver_takes_out_of_another_word_is_refused() {
    for options in [
        "-I /p/y-Wno-recompiled-from-ir",
        "-DH=h-Wno-recompiled-from-ir.h",
        "-DX=__TI-Wno-recompiled-from-irME__",
        "\"-Wno-recompiled-from-ir\"",
        "-I \"/p/y -Wno-recompiled-from-ir z\"",
        "-DX=-dump-opt-llvm=/f",
        "-I /p/x-dump-opt-llvm=/f",
    ] {
        let refused = parse(options.as_bytes()).err();
        assert_eq!(refused, Some(Bypass::UnknownOption), "{options}");
    }
    assert!(parse(b"-w -Wno-recompiled-from-ir -DX=1").is_ok());
}
