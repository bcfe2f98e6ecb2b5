//! Headers that include headers, and what stands around an include.

use super::{COMPILERS, KERNEL, QUICK, Tree, Verdict};
use crate::support::Driver;

#[test]
fn a_header_of_a_header_is_searched_beside_it_first() {
    for tree in Tree::on(&Driver::ALL) {
        tree.source(&format!("#include \"sub/a.h\"\n{KERNEL}"), "-I d1");
        tree.write("sub/a.h", "#include \"b.h\"\n");
        tree.define("d1/b.h");
        tree.is_cached();
        for place in ["b.h", "sub/b.h", "d1/b.h", "b.h", "sub/b.h"] {
            tree.define(place);
            tree.misses(place);
        }
        for place in ["sub/a.h", "sub/b.h", "d1/b.h", "b.h"] {
            tree.touch(place);
        }
        tree.hits("touched");
        tree.remove("sub/b.h");
        tree.misses("removed");
        // Whoever is found in place of the first header brings its own headers along.
        tree.write("d1/sub/a.h", "#include \"c.h\"\n");
        tree.define("d1/sub/c.h");
        tree.misses("another including header that may never be read");
        tree.remove("sub/a.h");
        tree.misses("now it is");
        tree.define("d1/sub/c.h");
        tree.misses("its own header");
        tree.hits("nothing more");
    }
}

#[test]
fn a_chain_of_directories() {
    for tree in Tree::on(&QUICK) {
        tree.source(&format!("#include \"a/1.h\"\n{KERNEL}"), "-I root");
        tree.write("root/a/1.h", "#include \"b/2.h\"\n");
        tree.write("root/a/b/2.h", "#include \"../../c/3.h\"\n");
        tree.write("root/c/3.h", "#include <deep.h>\n#include \"near.h\"\n");
        tree.write("root/deep.h", "#define V 1 + NEAR\n");
        tree.write("root/c/near.h", "#define NEAR 10\n");
        tree.is_cached();
        tree.write("root/c/near.h", "#define NEAR 20\n");
        tree.misses("the innermost");
        tree.write("root/deep.h", "#define V 2 + NEAR\n");
        tree.misses("an angled one below");
        tree.write("root/a/b/near.h", "#define NEAR 30\n");
        tree.is_right("beside another");
        tree.write("near.h", "#define NEAR 40\n");
        tree.misses("in the working directory");
    }
}

#[test]
fn imports() {
    for tree in Tree::on(&QUICK) {
        tree.source(
            &format!("#import \"h.h\"\n#import \"h.h\"\n{KERNEL}"),
            "-I d1",
        );
        tree.define("d1/h.h");
        tree.is_right("cold");
        tree.is_right("warm");
        if !tree.works() {
            continue;
        }
        tree.hits("warm");
        tree.define("d1/h.h");
        tree.misses("edited");
        tree.define("h.h");
        tree.misses("shadowed");
        tree.touch("h.h");
        tree.hits("touched");
    }
}

/// Conditionals are not evaluated, since a driver's own macros decide.
#[test]
fn includes_in_conditionals() {
    for tree in Tree::on(&QUICK) {
        let source = format!(
            "#ifdef USED\n#include \"used.h\"\n#else\n#include \"unused.h\"\n#endif\n{KERNEL}"
        );
        tree.source(&source, "-DUSED");
        tree.define("used.h");
        tree.is_cached();
        tree.define("unused.h");
        tree.is_right("the one that is not used");
        tree.hits("and again");
        tree.define("used.h");
        tree.misses("the one that is used");
        tree.source(&source, "");
        tree.misses("the other branch");
        tree.define("unused.h");
        tree.misses("the one that is used now");
        tree.hits("and again");
    }
}

#[test]
fn an_include_under_if_0() {
    for tree in Tree::on(&QUICK) {
        tree.source(
            &format!("#if 0\n#include \"never.h\"\n#include <nowhere/at/all.h>\n#endif\n#include \"h.h\"\n{KERNEL}"),
            "",
        );
        tree.define("h.h");
        tree.is_cached();
        tree.define("never.h");
        tree.is_right("it appears");
        tree.hits("and again");
        tree.define("h.h");
        tree.misses("the other one");
    }
}

/// An include in a comment or a string is none, and one is found however it is written.
#[test]
fn what_is_an_include() {
    for tree in Tree::on(&QUICK) {
        let source = "// #include \"no1.h\"\n/*\n#include \"no2.h\"\n*/\n__constant char text[] = \"\\\n#include <no3.h>\\n\";\n";
        tree.source(
            &format!("{source} /**/ # /**/ incl\\\nude /**/ \"h\\\n.h\" // end\n{KERNEL}"),
            "",
        );
        tree.define("h.h");
        tree.is_right("cold");
        assert!(tree.works(), "{:?}", tree.driver);
        tree.hits("warm");
        for other in ["no1.h", "no2.h", "no3.h"] {
            tree.define(other);
        }
        tree.hits("files that are not included");
        tree.define("h.h");
        tree.misses("edited");
    }
}

#[test]
fn has_include() {
    for tree in Tree::on(&COMPILERS) {
        for (name, options) in [("<opt.h>", "-I d1"), ("\"opt.h\"", "-I d1")] {
            for place in ["opt.h", "d1/opt.h"] {
                let _ = std::fs::remove_file(tree.path(place));
            }
            std::fs::create_dir_all(tree.path("d1")).expect("made");
            tree.source(
                &format!(
                    "#if __has_include({name})\n#define V 1\n#else\n#define V 2\n#endif\n{KERNEL}"
                ),
                options,
            );
            tree.misses("cold");
            if !tree.works() {
                continue;
            }
            tree.hits("warm");
            tree.define("opt.h");
            tree.misses("it is in the working directory");
            tree.define("d1/opt.h");
            tree.misses("it is in both");
            tree.remove("opt.h");
            tree.misses("it is in the include directory");
            tree.remove("d1/opt.h");
            tree.hits_again("it is nowhere again");
        }
    }
}

#[test]
fn the_clock_and_the_files_name_in_a_header() {
    for tree in Tree::on(&[Driver::Intel, Driver::Pocl]) {
        for word in ["__DATE__", "__TIME__", "__TIMESTAMP__", "__FILE__"] {
            tree.source(&format!("#include \"a.h\"\n{KERNEL}"), "");
            tree.write("a.h", "#include \"b.h\"\n");
            tree.write("b.h", format!("#define V (sizeof({word}) > 0)\n"));
            tree.is_bypassed("uses_time_or_file_name");
            tree.define("b.h");
            tree.is_cached();
        }
    }
}

/// A header that nobody may find by its name alone is still part of the program.
#[test]
fn a_header_that_fails_is_the_drivers_to_judge() {
    for tree in Tree::on(&QUICK) {
        tree.source(&format!("#include \"h.h\"\n{KERNEL}"), "");
        tree.write("h.h", "#error wrong\n");
        for _ in 0..2 {
            tree.expect(Verdict::Failed, "an error in a header", false);
        }
        tree.define("h.h");
        tree.is_cached();
        tree.write("h.h", "#error wrong\n");
        tree.expect(Verdict::Failed, "and again", false);
    }
}
