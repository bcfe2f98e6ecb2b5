//! Programs that differ only in what does not matter share an entry. The stub makes other code of other bytes, so it is left out.

use std::os::unix::fs::symlink;

use super::{KERNEL, QUICK, Tree};
use crate::support::Driver;

/// What PyOpenCL puts at the end of each source that its own cache does not know.
fn defeat(digits: &str) -> String {
    format!("\n\n__constant int pyopencl_defeat_cache_{digits} = 0;")
}

const ONE: &str = "0123456789abcdef0123456789abcdef";
const OTHER: &str = "00000000ffffffff0000000012345678";
const SOURCE: &str = "#define V 5\n";

#[test]
fn digits_that_defeat_caches() {
    for tree in Tree::on(&QUICK) {
        let source = |end: &str| tree.source(&format!("{SOURCE}{KERNEL}{end}"), "");
        source(&defeat(ONE));
        tree.is_cached();
        source(&defeat(OTHER));
        tree.hits_again("other digits");
        // The words are the end, and they are the source's.
        source("");
        tree.misses("without them");
        source(&format!("\n{}", defeat(ONE)));
        tree.misses("a line more");
        source(&defeat(ONE)[1..]);
        tree.misses("a line less");
        tree.source(&format!("{SOURCE}{KERNEL} {}", defeat(ONE)), "");
        tree.misses("another source");
        tree.source(&format!("{SOURCE}{KERNEL}{}", defeat(OTHER)), "-DX");
        tree.misses("other options");
    }
}

#[test]
fn digits_that_are_something_else() {
    for tree in Tree::on(&[Driver::Intel]) {
        let ends: [fn(&str) -> String; 8] = [
            |digits| format!("{}\n", defeat(digits)),
            |digits| format!("{} ", defeat(digits)),
            |digits| format!("{}\n__constant int more = 1;", defeat(digits)),
            |digits| defeat(&digits[1..]),
            |digits| defeat(&format!("{digits}0")),
            |digits| defeat(&digits.to_uppercase()),
            |digits| defeat(digits).replace("= 0", "= 1"),
            |digits| defeat(digits).replace("__constant", "__constant const"),
        ];
        for (number, end) in ends.iter().enumerate() {
            for digits in [ONE, OTHER] {
                tree.source(&format!("{SOURCE}{KERNEL}{}", end(digits)), "");
                tree.misses(&format!("end {number}, {digits}"));
            }
        }
    }
}

/// A source that uses the variable, or whose last line is no declaration, reads the digits.
#[test]
fn digits_that_are_read() {
    for tree in Tree::on(&[Driver::Intel]) {
        let sources: [fn(&str) -> String; 4] = [
            |digits| format!("#define V 5\n{KERNEL}//{}", defeat(digits).trim_start()),
            |digits| format!("#define V 5\n{KERNEL}/*{}", defeat(digits)),
            |digits| {
                let name = format!("pyopencl_defeat_cache_{digits}");
                format!(
                    "#define {name} a; __constant int b\n#define V 5\n{KERNEL}{}",
                    defeat(digits)
                )
            },
            |digits| {
                let head =
                    "#define STR(x) #x\n#define NAME(x) STR(x)\n__constant char text[] = NAME(";
                let name = format!("pyopencl_defeat_cache_{digits}");
                let kernel = KERNEL.replace('V', "text[38]");
                format!("{head}{name});\n{kernel}{}", defeat(digits))
            },
        ];
        for source in sources {
            for digits in [ONE, OTHER] {
                tree.source(&source(digits), "");
                tree.is_right(digits);
                tree.is_right("again");
            }
        }
    }
}

/// Whatever else of a build may name the variable: an option, a header, a name that is pasted.
#[test]
fn digits_that_something_beside_the_source_reads() {
    const PICK: &str = "int pick(void);\n\
        __kernel void f(__global uint *out) { out[get_global_id(0)] = pick(); }\n\
        #define MADE(v) made = 0; int pick(void) { return v; } __constant int more\n";
    const NAME: &str = "pyopencl_defeat_cache_";
    for tree in Tree::on(&[Driver::Intel]) {
        let define = |digits: &str, value| format!("#define {NAME}{digits} MADE({value})\n");
        tree.write("names.h", define(ONE, 1) + &define(OTHER, 2));
        let options = format!("-D{NAME}{ONE}=MADE(1) -D{NAME}{OTHER}=MADE(2)");
        let headers = format!("#include \"names.h\"\n{PICK}");
        let spliced = format!(
            "#define pyopencl_def\\\neat_cache_{ONE} MADE(1)\n#define pyopencl_def??/\neat_cache_{OTHER} MADE(2)\n\
             #define pyopencl_def\\\neat_cache_{OTHER} MADE(2)\n{PICK}"
        );
        let declared = "#define PASTE(a, b) a##b\n#define IT(digits) PASTE(pyopencl_def, eat_cache_##digits)\n\
             extern __constant int IT(0123456789abcdef0123456789abcdef);\n\
             __kernel void f(__global uint *out) { out[get_global_id(0)] = 7; }\n";
        for (source, options) in [
            (PICK, options.as_str()),
            (headers.as_str(), ""),
            (spliced.as_str(), ""),
            (declared, ""),
            (declared, "-g"),
        ] {
            for digits in [ONE, OTHER] {
                tree.source(&format!("{source}{}", defeat(digits)), options);
                tree.is_right(digits);
                tree.is_right("again");
            }
        }
    }
}

#[test]
fn digits_beside_headers() {
    for tree in Tree::on(&QUICK) {
        tree.source(
            &format!("#include \"h.h\"\n{KERNEL}{}", defeat(ONE)),
            "-I d1",
        );
        tree.define("d1/h.h");
        tree.is_cached();
        tree.source(
            &format!("#include \"h.h\"\n{KERNEL}{}", defeat(OTHER)),
            "-I d1",
        );
        tree.hits_again("other digits");
        tree.define("d1/h.h");
        tree.misses("edited");
    }
}

/// Two installations of the same headers.
#[test]
fn the_same_headers_in_another_directory() {
    for tree in Tree::on(&QUICK) {
        let source = format!("#include \"h.h\"\n{KERNEL}");
        for place in ["first/lib/h.h", "second/place/h.h"] {
            tree.write(place, "#define V 1001\n");
        }
        tree.source(&source, "-I first/lib");
        tree.is_cached();
        tree.source(&source, "-I second/place");
        tree.hits_again("another directory");
        let absolute = tree.path("second/place");
        tree.source(&source, &format!("-I {}", absolute.display()));
        tree.hits_again("its absolute path");
        tree.define("second/place/h.h");
        tree.misses("other headers there");
        tree.source(&source, "-I first/lib");
        tree.hits_again("the first is as it was");
    }
}

/// Oclgrind writes the directories of headers, and the working directory, as debug information into each program.
#[test]
fn a_driver_that_always_writes_debug_information_shares_no_directories() {
    for tree in Tree::on(&[Driver::Oclgrind]) {
        let source = format!("#include \"h.h\"\n{KERNEL}");
        for place in ["first/h.h", "second/h.h"] {
            tree.write(place, "#define V 1001\n");
        }
        tree.source(&source, "-I first");
        tree.is_cached();
        tree.source(&source, "-I second");
        tree.misses("another directory");
        tree.hits("another directory, warm");
        tree.source(&format!("#define V 7\n{KERNEL}"), "");
        tree.is_cached();
        let moved = tree.sandbox.path("elsewhere");
        std::fs::rename(tree.path(""), &moved).expect("renamed");
        symlink(&moved, tree.sandbox.path("work")).expect("linked");
        tree.misses("another working directory");
    }
}

/// Each log of Intel's CPU runtime ends with a period.
#[test]
fn a_log_that_has_the_name_of_a_directory_as_a_part_of_words_fits_other_directories() {
    for tree in Tree::on(&[Driver::Intel]) {
        tree.source(&format!("#include \"h.h\"\n{KERNEL}"), "-I .");
        tree.define("h.h");
        tree.is_cached();
        let moved = tree.sandbox.path("elsewhere");
        std::fs::rename(tree.path(""), &moved).expect("renamed");
        symlink(&moved, tree.sandbox.path("work")).expect("linked");
        tree.hits_again("another working directory");
    }
}

/// Compilers show no working directory, but it may be where a directory begins that they show.
#[test]
fn a_log_that_has_a_directory_below_the_working_directory_fits_other_ones() {
    for tree in Tree::on(&[Driver::Pocl, Driver::Intel]) {
        let place = tree.path("inc");
        tree.write("inc/h.h", "#warning hello\n#define V 5\n");
        let source = format!("#include \"h.h\"\n{KERNEL}");
        tree.source(&source, &format!("-I {}", place.display()));
        tree.is_cached();
        let moved = tree.sandbox.path("elsewhere");
        std::fs::rename(tree.path(""), &moved).expect("renamed");
        symlink(&moved, tree.sandbox.path("work")).expect("linked");
        tree.hits_again("another working directory");
    }
}
