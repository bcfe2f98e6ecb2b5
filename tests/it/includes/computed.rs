//! Includes whose names are made of macros.

use super::{COMPILERS, KERNEL, QUICK, Tree};
use crate::support::Driver;

/// A header in a directory of `options` and in the working directory, named by macros in a way that the driver accepts.
#[track_caller]
fn follows(drivers: &[Driver], source: &str, options: &str) {
    for tree in Tree::on(drivers) {
        tree.source(&format!("{source}\n{KERNEL}"), options);
        tree.define("d1/h.h");
        tree.is_right("cold");
        if !tree.works() {
            continue;
        }
        tree.hits("warm");
        tree.define("d1/h.h");
        tree.misses("edited");
        tree.touch("d1/h.h");
        tree.hits("touched");
        tree.define("h.h");
        tree.is_right("perhaps shadowed");
        tree.define("h.h");
        tree.is_right("perhaps edited");
        tree.remove("d1/h.h");
        tree.misses("removed");
    }
}

#[test]
fn a_name_from_the_source() {
    follows(&QUICK, "#define HH \"h.h\"\n#include HH", "-I d1");
}

#[test]
fn a_name_in_two_steps() {
    follows(
        &QUICK,
        "#define GG <h.h>\n#define HH GG\n#include HH",
        "-I d1",
    );
}

#[test]
fn a_name_from_the_options() {
    follows(&COMPILERS, "#include HH", "-I d1 -DHH=<h.h>");
}

#[test]
fn a_name_from_another_header() {
    for tree in Tree::on(&QUICK) {
        tree.source(&format!("#include \"names.h\"\n#include HH\n{KERNEL}"), "");
        tree.write("names.h", "#define HH \"first.h\"\n");
        tree.define("first.h");
        tree.define("second.h");
        tree.is_cached();
        tree.define("first.h");
        tree.misses("edited");
        tree.write("names.h", "#define HH \"second.h\"\n");
        tree.misses("the name");
        tree.define("second.h");
        tree.misses("edited");
        tree.define("first.h");
        tree.is_right("no longer included");
    }
}

/// One of several definitions is in force: each may name the file.
#[test]
fn a_name_with_several_definitions() {
    for tree in Tree::on(&QUICK) {
        let source = "#ifdef OTHER\n#define HH \"second.h\"\n#else\n#define HH \"first.h\"\n#endif\n#include HH\n";
        for (options, used) in [("", "first.h"), ("-DOTHER", "second.h")] {
            tree.source(&format!("{source}{KERNEL}"), options);
            tree.define("first.h");
            tree.define("second.h");
            tree.is_cached();
            tree.define(used);
            tree.misses(used);
        }
    }
}

/// hashcat: options that define the macros which make a path of a directory and a name.
#[test]
fn a_path_that_is_made_a_string() {
    follows(
        &COMPILERS,
        "#include M2S(INCLUDE_PATH/h.h)",
        "-D XM2S(x)=#x -D M2S(x)=XM2S(x) -D INCLUDE_PATH=d1",
    );
    for tree in Tree::on(&QUICK) {
        let directory = tree.path("opencl");
        let directory = directory.to_str().expect("UTF-8");
        let options =
            format!("-D KERNEL_STATIC -D INCLUDE_PATH={directory} -D XM2S(x)=#x -D M2S(x)=XM2S(x)");
        tree.source(
            &format!("#ifdef KERNEL_STATIC\n#include M2S(INCLUDE_PATH/inc_vendor.h)\n#include M2S(INCLUDE_PATH/inc_types.h)\n#endif\n{KERNEL}"),
            &options,
        );
        tree.write("opencl/inc_vendor.h", "#define W 1\n");
        tree.write("opencl/inc_types.h", "#define V (W + 1)\n");
        tree.is_cached();
        tree.write("opencl/inc_vendor.h", "#define W 2\n");
        tree.misses("edited");
        tree.touch("opencl/inc_types.h");
        tree.hits("touched");
    }
}

/// A name that cannot be known is left to the driver.
#[test]
fn a_name_that_is_not_known() {
    for tree in Tree::on(&QUICK) {
        tree.define("1.h");
        tree.define("2.h");
        let source = "#define STR(x) #x\n#define NAME(x) STR(x.h)\n#define CAT(a, b) a##b\n#include NAME(CAT(__LINE, __))\n";
        tree.source(&format!("{source}{KERNEL}"), "");
        tree.is_right("cold");
        tree.is_right("warm");
        // `__LINE__` is 4 there.
        tree.define("4.h");
        tree.is_right("it is there");
        tree.is_right("warm");
        tree.define("4.h");
        tree.is_right("edited");
        tree.source(&format!("#include __COUNTER__\n{KERNEL}"), "");
        tree.is_right("no name at all");
    }
}
