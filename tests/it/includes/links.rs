//! What files are behind the names: links, directories, files that cannot be read.

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};

use super::{KERNEL, QUICK, Tree};
use crate::support::{Driver, Way, example, is_root, skipped};

/// `#pragma once` goes by what file it is, not by its name and content.
#[test]
fn the_same_file_under_two_names() {
    let once = "#pragma once\n#ifdef FIRST\n#define SECOND\n#else\n#define FIRST\n#define V VALUE\n#endif\n";
    let source = "#include \"a.h\"\n#include \"b.h\"\n#ifdef SECOND\n#define VALUE 2\n#else\n#define VALUE 1\n#endif\n";
    for tree in Tree::on(&QUICK) {
        tree.source(&format!("{source}{KERNEL}"), "");
        tree.write("a.h", once);
        tree.write("b.h", once);
        tree.is_cached();
        tree.remove("b.h");
        symlink("a.h", tree.path("b.h")).expect("linked");
        tree.misses("a symbolic link");
        tree.hits("a symbolic link, warm");
        tree.remove("b.h");
        fs::hard_link(tree.path("a.h"), tree.path("b.h")).expect("linked");
        tree.is_right("a hard link");
        tree.hits("a hard link, warm");
        tree.remove("b.h");
        tree.write("b.h", once);
        tree.hits_again("two files again");
    }
}

#[test]
fn links_that_lead_elsewhere() {
    for tree in Tree::on(&QUICK) {
        tree.source(&format!("#include \"h.h\"\n{KERNEL}"), "-I d1");
        tree.define("real/one.h");
        tree.define("real/two.h");
        fs::create_dir(tree.path("d1")).expect("made");
        symlink("../real/one.h", tree.path("d1/h.h")).expect("linked");
        tree.is_cached();
        tree.define("real/one.h");
        tree.misses("the file is edited");
        tree.remove("d1/h.h");
        symlink("../real/two.h", tree.path("d1/h.h")).expect("linked");
        tree.misses("the link is changed");
        tree.rename("d1", "d2");
        fs::create_dir(tree.path("d1")).expect("made");
        tree.define("d1/h.h");
        tree.misses("another directory");
        fs::remove_dir_all(tree.path("d1")).expect("removed");
        symlink("d2", tree.path("d1")).expect("linked");
        tree.hits_again("a link to the directory");
    }
}

/// clang warns of a name that differs from the file's in case only, and fails with `-Werror`.
#[test]
fn links_to_names_in_another_case() {
    for tree in Tree::on(&[Driver::Pocl, Driver::Intel]) {
        let source = format!("#include \"h.h\"\n{KERNEL}");
        tree.source(&source, "-I . -Werror");
        tree.define("h.h");
        tree.is_cached();
        tree.rename("h.h", "H.h");
        symlink("H.h", tree.path("h.h")).expect("linked");
        tree.is_right("a link, and warnings are errors");
        tree.source(&source, "-I .");
        tree.is_bypassed("reads_file");
        tree.source(&format!("#include \"d/h.h\"\n{KERNEL}"), "");
        tree.define("d/h.h");
        tree.is_cached();
        tree.rename("d", "D");
        symlink("D", tree.path("d")).expect("linked");
        tree.is_bypassed("reads_file");
    }
}

/// A header's own headers are beside the name by which it was included, on some drivers beside the file.
#[test]
fn headers_of_a_header_behind_a_link() {
    for tree in Tree::on(&QUICK) {
        tree.source(&format!("#include \"link/a.h\"\n{KERNEL}"), "");
        tree.write("real/a.h", "#include \"b.h\"\n");
        tree.define("real/b.h");
        fs::create_dir(tree.path("link")).expect("made");
        symlink("../real/a.h", tree.path("link/a.h")).expect("linked");
        tree.define("link/b.h");
        tree.is_cached();
        tree.define("link/b.h");
        tree.misses("beside the link");
        tree.define("real/b.h");
        tree.is_right("beside the file");
        tree.remove("link/b.h");
        tree.is_right("only beside the file");
    }
}

#[test]
fn a_directory_of_a_headers_name() {
    for tree in Tree::on(&QUICK) {
        tree.source(&format!("#include \"h.h\"\n{KERNEL}"), "-I d1");
        tree.define("d1/h.h");
        tree.is_right("cold");
        fs::create_dir(tree.path("h.h")).expect("made");
        tree.is_right("a directory before it");
        tree.is_right("a directory before it, warm");
        tree.define("d1/h.h");
        tree.is_right("edited");
        fs::remove_dir(tree.path("h.h")).expect("removed");
        tree.define("h.h");
        tree.is_right("a file in its place");
    }
}

/// A driver that never opens the pipe must not wait for it because of us.
#[test]
fn a_pipe_of_a_headers_name() {
    for tree in Tree::on(&QUICK) {
        tree.source(&format!("#include \"h.h\"\n{KERNEL}"), "-I d1");
        fs::create_dir(tree.path("d1")).expect("made");
        let made = std::process::Command::new("mkfifo")
            .arg(tree.path("d1/h.h"))
            .status();
        assert!(made.expect("mkfifo").success());
        tree.define("h.h");
        tree.is_right("cold");
        tree.is_right("warm");
        tree.define("h.h");
        tree.is_right("edited");
        tree.remove("d1/h.h");
        tree.is_right("no pipe");
    }
}

#[test]
fn files_that_lead_nowhere() {
    for tree in Tree::on(&QUICK) {
        tree.source(&format!("#include \"h.h\"\n{KERNEL}"), "-I d1");
        tree.define("d1/h.h");
        for target in ["nothing", "h.h", "/dev/null"] {
            symlink(target, tree.path("h.h")).expect("linked");
            for when in ["cold", "warm"] {
                tree.is_right(&format!("a link to {target}, {when}"));
            }
            tree.define("d1/h.h");
            tree.is_right(&format!("a link to {target}, the other edited"));
            tree.remove("h.h");
        }
        symlink("nothing", tree.path("h.h")).expect("linked");
        tree.is_right("a link to nothing");
        tree.write("nothing", "#define V 1000\n");
        tree.misses("a link to something");
    }
}

#[test]
fn a_header_that_must_not_be_read() {
    if is_root() {
        skipped("a header that must not be read (root reads everything)");
        return;
    }
    for tree in Tree::on(&QUICK) {
        tree.source(&format!("#include \"h.h\"\n{KERNEL}"), "-I d1");
        tree.define("d1/h.h");
        tree.define("h.h");
        let allow = |mode| {
            let mode = fs::Permissions::from_mode(mode);
            fs::set_permissions(tree.path("h.h"), mode).expect("permitted");
        };
        allow(0o000);
        tree.is_right("cold");
        tree.is_right("warm");
        allow(0o644);
        tree.is_right("it may be read");
        tree.hits("and again");
    }
}

/// A header map of one name (clang's HeaderMap.cpp), which clang takes in the place of an include directory.
fn header_map(name: &str, directory: &str, file: &str) -> Vec<u8> {
    const BUCKETS: u32 = 8;
    let hash: u32 = name.bytes().map(|byte| u32::from(byte) * 13).sum();
    let mut strings = vec![0];
    let mut offset = |text: &str| {
        let start = strings.len() as u32;
        strings.extend(text.bytes().chain([0]));
        start
    };
    let bucket = [name, directory, file].map(&mut offset);
    let mut words = vec![0x686d_6170, 1, 24 + 12 * BUCKETS, 1, BUCKETS, 255];
    for index in 0..BUCKETS {
        words.extend(if index == hash % BUCKETS {
            bucket
        } else {
            [0; 3]
        });
    }
    let words = words.into_iter().flat_map(u32::to_le_bytes);
    words.chain(strings).collect()
}

/// What was compiled holds, whatever stands in the place of the directory when it is linked.
#[test]
fn a_map_that_takes_the_place_of_a_directory_between_compile_and_link() {
    // PoCL refuses these options of the linker.
    for tree in Tree::on(&[Driver::Intel]) {
        tree.write("kernel.cl", format!("#include <h.h>\n{KERNEL}"));
        tree.define("d1/h.h");
        tree.define("two.h");
        let directory = format!("{}/", tree.path("").display()).replace("//", "/");
        tree.write("a.map", header_map("h.h", &directory, "two.h"));
        let between = format!(
            "{}={}",
            tree.path("map").display(),
            tree.path("a.map").display()
        );
        let run = |way, link_options: &str| {
            let _ = fs::remove_file(tree.path("map"));
            fs::create_dir_all(tree.path("map")).expect("made");
            let mut command = tree.sandbox.command(way, example("client"));
            command.args(["linked", "--kernel", "f", "--source", "kernel.cl"]);
            command.args(["--options", "-I map -I d1", "--between", &between]);
            command.args(["--link-options", link_options]);
            tree.sandbox
                .run(command.current_dir(tree.path("")))
                .ok()
                .stdout
        };
        for options in ["", "-cl-denorms-are-zero", "-cl-fast-relaxed-math"] {
            let bare = run(Way::Bare, options);
            assert!(bare.contains("link: code 0"), "{bare}");
            assert_eq!(
                run(Way::Cached, options),
                bare,
                "{:?} {options}",
                tree.driver
            );
        }
    }
}

#[test]
fn a_map_in_the_place_of_a_directory() {
    for tree in Tree::on(&QUICK) {
        tree.source(&format!("#include <h.h>\n{KERNEL}"), "-I map");
        tree.define("one.h");
        tree.define("two.h");
        let directory = format!("{}/", tree.path("").display());
        for file in ["one.h", "two.h"] {
            tree.write(
                "map",
                header_map("h.h", &directory.replace("//", "/"), file),
            );
            tree.is_right(file);
            assert!(tree.works(), "{:?}", tree.driver);
            tree.define(file);
            tree.is_right("edited");
        }
    }
}
