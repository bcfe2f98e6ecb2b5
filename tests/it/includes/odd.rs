//! More headers than anybody has, and headers that never end.

use std::fmt::Write;
use std::os::unix::fs::symlink;

use super::{KERNEL, QUICK, Tree};
use crate::support::Driver;

#[test]
fn headers_that_include_each_other() {
    for tree in Tree::on(&QUICK) {
        tree.source(&format!("#include \"a.h\"\n{KERNEL}"), "");
        tree.write("a.h", "#ifndef A\n#define A\n#include \"b.h\"\n#endif\n");
        tree.write(
            "b.h",
            "#ifndef B\n#define B\n#include \"a.h\"\n#include \"sub/../b.h\"\n#include \"v.h\"\n#endif\n",
        );
        std::fs::create_dir(tree.path("sub")).expect("made");
        tree.define("v.h");
        tree.is_cached();
        tree.define("v.h");
        tree.misses("edited");
    }
}

#[test]
fn a_header_that_includes_itself_without_end() {
    for tree in Tree::on(&Driver::ALL) {
        tree.source(&format!("#include \"a.h\"\n{KERNEL}"), "");
        tree.write("a.h", "#include \"a.h\"\n");
        tree.is_right("cold");
        assert!(!tree.works(), "{:?}", tree.driver);
        tree.is_right("warm");
    }
}

/// Every name is a new one, and each leads to the same file.
#[test]
fn names_that_grow() {
    for tree in Tree::on(&QUICK) {
        tree.source(&format!("#include \"a/h.h\"\n{KERNEL}"), "-I a");
        symlink(".", tree.path("a")).expect("linked");
        let guarded = |value: u32| {
            format!(
                "#ifndef H\n#define H\n#include \"a/h.h\"\n#include \"./h.h\"\n#endif\n#undef V\n#define V {value}\n"
            )
        };
        tree.write("h.h", guarded(1));
        tree.is_right("cold");
        assert!(tree.works(), "{:?}", tree.driver);
        tree.is_right("warm");
        tree.write("h.h", guarded(2));
        tree.is_right("edited");
    }
}

#[test]
fn a_long_chain() {
    for tree in Tree::on(&QUICK) {
        // clang allows 200.
        for depth in [50, 190, 300] {
            tree.source(&format!("// {depth}\n#include \"1.h\"\n{KERNEL}"), "");
            for number in 1..depth {
                tree.write(
                    &format!("{number}.h"),
                    format!("#include \"{}.h\"\n", number + 1),
                );
            }
            tree.define(&format!("{depth}.h"));
            tree.is_right("cold");
            if depth == 50 {
                tree.hits("warm");
            }
            tree.define(&format!("{depth}.h"));
            tree.is_right("edited");
        }
    }
}

#[test]
fn very_many_headers() {
    for tree in Tree::on(&[Driver::Stub, Driver::Intel]) {
        let (mut source, count) = (String::new(), 3000);
        for number in 0..count {
            let _ = writeln!(source, "#include \"many/{number}.h\"");
            tree.write(
                &format!("many/{number}.h"),
                format!("#define M{number} 1\n"),
            );
        }
        let directories: String = (0..30).map(|number| format!("-I d{number} ")).collect();
        tree.source(&format!("{source}#include \"h.h\"\n{KERNEL}"), &directories);
        tree.define("h.h");
        tree.is_right("cold");
        tree.is_right("warm");
        tree.define("h.h");
        tree.is_right("edited");
    }
}

#[test]
fn a_large_header() {
    for tree in Tree::on(&[Driver::Intel]) {
        tree.source(&format!("#include \"h.h\"\n{KERNEL}"), "");
        let padding = "// nothing of any concern to anybody\n".repeat(1 << 18);
        for value in 1..3 {
            tree.write("h.h", format!("{padding}#define V {value}\n"));
            tree.is_right("cold");
            tree.is_right("warm");
        }
    }
}

/// Definitions whose expansion would be larger than any memory.
#[test]
fn names_that_explode() {
    for tree in Tree::on(&[Driver::Stub, Driver::Intel]) {
        let mut source = String::from("#define X0 a\n");
        for number in 1..64 {
            let _ = writeln!(source, "#define X{number} X{0} X{0}", number - 1);
        }
        source += "#if 0\n#include X63\n#endif\n#define V 3\n";
        tree.source(&format!("{source}{KERNEL}"), "");
        tree.is_right("cold");
        tree.is_right("warm");
    }
}
