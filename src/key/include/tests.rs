use std::time::{Duration, SystemTime};

use super::*;
use crate::key::ingredients::Ingredient;
use crate::key::options;

/// A directory with files, in which a source is compiled.
struct Tree(tempfile::TempDir);

impl Tree {
    fn new(files: &[(&str, &str)]) -> Tree {
        let tree = Tree(tempfile::tempdir().expect("a temporary directory"));
        for (name, text) in files {
            tree.write(name, text);
        }
        tree
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.path(name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        std::fs::write(path, text).expect("written");
    }

    fn closure(&self, source: &str, options: &str) -> Result<Closure, Bypass> {
        let options = options::parse(options.as_bytes())?;
        let inputs = Inputs {
            source: source.as_bytes(),
            embedded: &[],
            options: Some(&options),
            working_directory: self.0.path(),
            driver_dirs: &[],
            implicit: &[],
        };
        let followed = follow(&inputs, &Work::default());
        Ok(followed?.closure)
    }

    /// The places that were looked at; those where a file stands end in `!`.
    fn places(&self, source: &str, options: &str) -> Vec<String> {
        let closure = self.closure(source, options).expect("a closure");
        let is_there = |place: &Ingredient| if place.value.is_empty() { "" } else { "!" };
        closure
            .ingredients()
            .map(|place| format!("{}{}", place.name, is_there(&place)))
            .collect()
    }

    fn value(&self, source: &str, options: &str) -> Vec<Ingredient> {
        self.closure(source, options)
            .expect("a closure")
            .ingredients()
            .collect()
    }
}

#[test]
fn each_place_where_a_header_could_stand_is_looked_at() {
    let tree = Tree::new(&[("d1/h.h", ""), ("d2/h.h", "#include \"sub/i.h\"\n")]);
    assert_eq!(
        tree.places("#include <h.h>\n", "-I d1 -I d2 -isystem /nowhere"),
        [
            "cwd/h.h",
            "-I0/h.h!",
            "-I1/h.h!",
            "-I2/h.h",
            "-I1/sub/i.h",
            "cwd/sub/i.h",
            "-I0/sub/i.h",
            "-I2/sub/i.h"
        ]
    );
    assert!(
        tree.places("int x; // #include <h.h>\n", "-I d1")
            .is_empty()
    );
}

#[test]
fn what_an_included_file_includes_is_looked_for_beside_it() {
    let tree = Tree::new(&[("a/b/one.h", "#include \"../two.h\"\n"), ("a/two.h", "")]);
    let places = tree.places("#include \"a/b/one.h\"\n", "");
    assert_eq!(
        places,
        ["cwd/a/b/one.h!", "cwd/a/b/../two.h!", "cwd/../two.h"]
    );
}

#[test]
fn headers_that_include_themselves_come_to_an_end() {
    let tree = Tree::new(&[("a/h.h", "#include \"../a/h.h\"\n#include \"loop/h.h\"\n")]);
    std::os::unix::fs::symlink(".", tree.path("a/loop")).expect("linked");
    assert!(tree.places("#include \"a/h.h\"\n", "").len() < 12);
}

#[test]
fn computed_names_are_followed_also_when_a_header_defines_them() {
    let tree = Tree::new(&[
        ("names.h", "#define NEXT \"next.h\"\n"),
        ("next.h", "#define LAST <last.h>\n#include LAST\n"),
        ("last.h", ""),
    ]);
    let places = tree.places("#include \"names.h\"\n#include NEXT\n", "");
    assert_eq!(places, ["cwd/names.h!", "cwd/next.h!", "cwd/last.h!"]);
    let places = tree.places("#include NEXT\n#include NAME\n", "-DNAME=\"names.h\"");
    assert_eq!(places, ["cwd/names.h!", "cwd/next.h!", "cwd/last.h!"]);
    let places = tree.places("#include NAME\n", "-DNAME=<last.h>");
    assert_eq!(places, ["cwd/last.h!"]);
    let unresolved = tree
        .closure("#include NAME\n", "")
        .expect_err("nobody defines it");
    assert_eq!(unresolved, Bypass::UnresolvedInclude);
}

#[test]
fn what_is_found_counts_and_not_where_or_when() {
    let files = [("d/h.h", "#define V 1\n")];
    let (one, other) = (Tree::new(&files), Tree::new(&files));
    let source = "#include <h.h>\n";
    let before = one.value(source, "-I d");
    assert_eq!(
        before,
        other.value(source, &format!("-I {}", other.path("d").display()))
    );
    other.write("d/h.h", "#define V 2\n");
    assert_ne!(before, other.value(source, "-I d"));
    one.write("h.h", "#define V 1\n");
    assert_ne!(
        before,
        one.value(source, "-I d"),
        "it hides the other one on some drivers"
    );
}

#[test]
fn a_link_to_a_header_is_not_a_copy_of_it() {
    let files = [
        ("a.h", "#pragma once\nint x;\n"),
        ("b.h", "#pragma once\nint x;\n"),
    ];
    let (copies, links) = (Tree::new(&files), Tree::new(&files[..1]));
    std::fs::hard_link(links.path("a.h"), links.path("b.h")).expect("linked");
    let source = "#include \"a.h\"\n#include \"b.h\"\n";
    assert_ne!(copies.value(source, ""), links.value(source, ""));
}

#[test]
fn a_directory_that_is_searched_twice_is_not_two() {
    let copies = Tree::new(&[("a/h.h", "")]);
    std::fs::create_dir(copies.path("b")).expect("made");
    std::fs::hard_link(copies.path("a/h.h"), copies.path("b/h.h")).expect("linked");
    let links = Tree::new(&[("a/h.h", "")]);
    std::os::unix::fs::symlink("a", links.path("b")).expect("linked");
    let source = "#include <h.h>\n";
    assert_ne!(
        copies.value(source, "-I a -I b"),
        links.value(source, "-I a -I b")
    );
}

#[test]
fn a_file_in_a_directorys_place_counts() {
    let tree = Tree::new(&[("map", "pamh")]);
    let map = tree
        .closure("#include <h.h>\n", "-I map")
        .expect_err("a map");
    assert_eq!(map, Bypass::ReadsFile);
    assert!(tree.closure("int x;\n", "-I map").is_ok());
}

#[test]
fn a_backslash_in_a_name_is_the_drivers_to_read() {
    let tree = Tree::new(&[]);
    let quoted = tree
        .closure("#include \"a\\\"//b\"\n", "")
        .expect_err("unclear");
    assert_eq!(quoted, Bypass::UnresolvedInclude);
}

#[test]
fn all_texts_are_judged_together() {
    let tree = Tree::new(&[
        ("h.h", "#define C(a, b) a##b\n"),
        (
            "time.h",
            "int x = __LINE__; // __TIME__\n#define T __TIME__\n",
        ),
    ]);
    assert!(tree.closure("#include \"h.h\"\nC(__LI, NE__)", "").is_ok());
    let pasted = tree
        .closure("#include \"h.h\"\nC(__FI, LE__)", "")
        .expect_err("pasted");
    assert_eq!(pasted, Bypass::UsesTimeOrFileName);
    let time = tree
        .closure("#include \"time.h\"\n", "")
        .expect_err("the time");
    assert_eq!(time, Bypass::UsesTimeOrFileName);
    let option = tree.closure("", "-DX=__FILE__").expect_err("a file's name");
    assert_eq!(option, Bypass::UsesTimeOrFileName);
}

#[test]
fn what_is_no_plain_file_is_not_opened() {
    let tree = Tree::new(&[("dir/x", "")]);
    assert_eq!(tree.places("#include \"dir\"\n", ""), ["cwd/dir!"]);
    rustix::fs::mknodat(
        rustix::fs::CWD,
        tree.path("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .expect("made");
    let fifo = tree
        .closure("#include \"fifo\"\n", "")
        .expect_err("not read");
    assert_eq!(fifo, Bypass::ReadsFile);
}

#[test]
fn there_is_an_end_to_what_is_followed() {
    let tree = Tree::new(&[]);
    for index in 0..MAX_DEPTH + 2 {
        tree.write(
            &format!("{index}.h"),
            &format!("#include \"{}.h\"\n", index + 1),
        );
    }
    let deep = tree
        .closure("#include \"0.h\"\n", "")
        .expect_err("too deep");
    assert_eq!(deep, Bypass::TooManyHeaders);
    let many: String = (0..MAX_PLACES + 1)
        .map(|index| format!("#include <{index}>\n"))
        .collect();
    assert_eq!(
        tree.closure(&many, "").expect_err("too many"),
        Bypass::TooManyHeaders
    );
}

#[test]
fn what_stands_above_an_embedded_header_is_not_guessed() {
    let judged = |source: &str| {
        let inputs = Inputs {
            source: source.as_bytes(),
            embedded: &[(b"a.h", b"")],
            options: None,
            working_directory: Path::new("/nowhere"),
            driver_dirs: &[],
            implicit: &[],
        };
        follow(&inputs, &Work::default())
    };
    assert!(judged("#include \"a.h\"\n").is_ok());
    let above = judged("#include \"../a.h\"\n").expect_err("it depends on the driver");
    assert_eq!(above, Bypass::UnresolvedInclude);
}

/// The closure of a source that finds its headers in these directories.
fn closure_in(directories: &[PathBuf], source: &str) -> Closure {
    let options = directories
        .iter()
        .map(|path| format!("-I {} ", path.display()));
    let options: String = options.collect();
    let options = options::parse(options.as_bytes()).expect("options");
    let inputs = Inputs {
        source: source.as_bytes(),
        embedded: &[],
        options: Some(&options),
        working_directory: &std::env::current_dir().expect("a directory"),
        driver_dirs: &[],
        implicit: &[],
    };
    let followed = follow(&inputs, &Work::default());
    followed.expect("followed").closure
}

#[test]
fn a_closure_is_below_directories_if_all_its_files_are() {
    let tree = Tree::new(&[("clang/include/h.h", ""), ("own/own.h", "")]);
    let [clang, own] = ["clang/include", "own"].map(|name| tree.path(name));
    let directories = [clang.clone(), own.clone()];
    let of = |source: &str| closure_in(&directories, source);
    let compilers = of("#include <h.h>\n");
    assert!(compilers.is_below(std::slice::from_ref(&clang)));
    assert!(!compilers.is_below(&[own]) && !compilers.is_below(&[]));
    assert!(!of("#include <h.h>\n#include <own.h>\n").is_below(std::slice::from_ref(&clang)));
    let around = [clang.join("../../own")];
    let around = closure_in(&around, "#include <own.h>\n");
    assert!(
        !around.is_below(&[clang]),
        "its path begins so and leads elsewhere"
    );
}

#[test]
fn the_states_of_files_tell_whether_a_closure_is_as_it_was() {
    let tree = Tree::new(&[("d1/h.h", "1"), ("d2/i.h", "")]);
    let directories = ["d1", "d2"].map(|name| tree.path(name));
    let of_header = || {
        let closure = closure_in(&directories, "#include <h.h>\n");
        assert!(closure.has_same_states());
        let now = SystemTime::now();
        assert!(!closure.is_settled(now), "it may change again unnoticed");
        assert!(closure.is_settled(now + Duration::from_secs(9)));
        closure
    };
    let closure = of_header();
    tree.write("d1/h.h", "12");
    assert!(!closure.has_same_states(), "a file was written");
    let closure = of_header();
    tree.write("d2/h.h", "");
    assert!(!closure.has_same_states(), "a file came");
    let closure = of_header();
    std::fs::rename(tree.path("d1"), tree.path("d3")).expect("renamed");
    assert!(!closure.has_same_states(), "a file went");
    std::os::unix::fs::symlink("d3", tree.path("d1")).expect("linked");
    assert!(closure.has_same_states(), "it is in the same directory");
    std::fs::remove_file(tree.path("d1")).expect("removed");
    tree.write("d1", "");
    assert!(!closure.has_same_states(), "a directory became a file");
}

/// Compilers skip a directory that they have searched under another name.
#[test]
fn that_one_directory_is_another_counts_where_several_files_are_found() {
    use std::os::unix::fs::symlink;
    let tree = Tree::new(&[("y/sub/h.h", "#include_next <sub/h.h>"), ("y/one.h", "")]);
    let (source, options) = ("#include <sub/h.h>", "-I x -I y");
    symlink("y", tree.path("x")).expect("linked");
    let same = tree.closure(source, options).expect("a closure");
    let only_one = tree.value("#include \"one.h\"", "-I y -I z");
    std::fs::remove_file(tree.path("x")).expect("removed");
    std::fs::create_dir(tree.path("x")).expect("made");
    symlink("../y/sub", tree.path("x/sub")).expect("linked");
    let other = tree.closure(source, options).expect("a closure");
    assert!(
        !same.is_like(&other),
        "the files are the same, and the directories are not"
    );
    assert!(!base::repeat_alike(same.counted_bases()));
    assert!(base::repeat_alike(other.counted_bases()));
    assert_eq!(tree.value("#include \"one.h\"", "-I y -I a"), only_one);
}

/// clang warns of it by default, so the log differs from that of a plain file.
#[test]
fn a_link_to_a_name_in_another_case_is_the_drivers_to_judge() {
    use std::os::unix::fs::symlink;
    let judge = |real: &str, links: &[(&str, &str)], source: &str, options: &str| {
        let tree = Tree::new(&[(real, "")]);
        for (name, target) in links {
            symlink(target, tree.path(name)).expect("linked");
        }
        tree.closure(source, options)
            .map(|closure| closure.files().count())
    };
    let (own, deep) = ("#include \"a.h\"\n", "#include <sub/b/a.h>\n");
    for (real, link, source, options) in [
        ("A.h", ("a.h", "A.h"), own, ""),
        ("real/A.H", ("a.h", "real/A.H"), own, "-I ."),
        ("SUB/b/a.h", ("sub", "SUB"), deep, ""),
        (
            "r/sub/A.h",
            ("a.h", "r/sub/A.h"),
            "#include \"r/../a.h\"\n",
            "",
        ),
        (
            "r/sub/x/b",
            ("Sub", "r/sub"),
            "#include \"Sub/x/../x/b\"\n",
            "",
        ),
        // Its own name is what is not spelled so.
        (
            "r/sub/x/b",
            ("sub", "r/sub/x"),
            "#include \"sub/../x/b\"\n",
            "",
        ),
        // The same directory is one of the options as well.
        ("Sub/b/a.h", ("sub", "Sub"), deep, "-I sub"),
    ] {
        let judged = judge(real, &[link], source, options);
        assert_eq!(judged, Err(Bypass::ReadsFile), "{link:?} {options}");
    }
    // The directory of the including file is not part of the name.
    let tree = Tree::new(&[("real/a.h", "#include \"../b.h\"\n"), ("b.h", "")]);
    symlink("real", tree.path("lib")).expect("linked");
    let linked = |source: &str| tree.closure(source, "").map(|found| found.files().count());
    assert_eq!(linked("#include \"lib/a.h\"\n"), Ok(2));
    let both = "#include \"lib/a.h\"\n#include \"lib/../b.h\"\n";
    assert_eq!(linked(both), Err(Bypass::ReadsFile));
    let links = [("b.h", "x.h"), ("X.h", "b.h"), ("a.h", "X.h")];
    assert_eq!(judge("x.h", &links, own, ""), Ok(1), "two links back");
    for (real, link, source, options) in [
        ("b.h", ("a.h", "b.h"), own, ""),
        ("real/a.h", ("a.h", "real/a.h"), own, ""),
        ("A.H/b/x.h", ("a.h", "A.H/b/x.h"), own, ""),
        (
            "r/A.H/a.h",
            ("a.h", "r/A.H/a.h"),
            "#include \"r/../a.h\"\n",
            "",
        ),
        ("other/b/a.h", ("sub", "other"), deep, ""),
        // clang does not look at the directory in which it searches.
        ("DIR/a.h", ("dir", "DIR"), "#include <a.h>\n", "-I dir"),
        ("DIR/sub/b/a.h", ("dir", "DIR"), deep, "-I dir"),
    ] {
        assert_eq!(judge(real, &[link], source, options), Ok(1), "{link:?}");
    }
}

#[test]
fn a_header_that_only_the_host_reads_is_no_input() {
    let tree = Tree::new(&[
        ("host.h", "#define FILE __FILE__\n#include <more.h>\n"),
        ("undefines.h", "#undef CL\n"),
        ("blank.h", "#undef \u{c}CL\n"),
        ("restores.h", "#pragma pop_macro(\"CL\")\n"),
    ]);
    let source = "#ifdef __OPENCL_VERSION__\n#define CL\n#endif\n#ifdef CL\n#else\n#include \"host.h\"\n#endif\n";
    assert!(tree.places(source, "-DX").is_empty());
    for (before, options) in [
        ("#include \"undefines.h\"\n", ""),
        ("#include \"restores.h\"\n", ""),
        ("#include \"in_memory/of_driver.h\"\n", ""),
        ("", "-U__OPENCL_VERSION__"),
        ("#undef CL\n", ""),
        ("#undef /**/ CL\n", ""),
        ("#undef CL.\n", ""),
        ("#include \"blank.h\"\n", ""),
        ("", "\"-\"UCL"),
        ("_Pragma(\"unroll\")\n", ""),
    ] {
        let closure = tree.closure(&[before, source].concat(), options);
        let reason = closure.map(|_| ()).expect_err(before);
        assert_eq!(reason, Bypass::UsesTimeOrFileName, "{before}{options}");
    }
    assert!(
        tree.places("#if 0\n#include HOST\n#include \"host.h\"\n#endif\n", "")
            .is_empty()
    );
    let pasted = "#define C(a, b) a##b\nint C(_Pra, gma);\n";
    let closure = tree.closure(&[pasted, source].concat(), "");
    assert_eq!(closure.map(|_| ()), Err(Bypass::UsesTimeOrFileName));
    // What may be read after all costs as before.
    let mut many: String = (0..900)
        .map(|number| format!("#include \"{number}.h\"\n"))
        .collect();
    many += "_Pragma(\"unroll\")\n#ifndef __OPENCL_VERSION__\n#include <stdio.h>\n#endif\n";
    assert!(
        tree.places(&many, "-Ia -Ib -Ic")
            .contains(&"-I2/899.h".to_owned())
    );
    // PyOpenCL appends a variable, whose name must still be found at the source's end.
    let digits = "0".repeat(32);
    let random = format!("{source}\n\n__constant int pyopencl_defeat_cache_{digits} = 0;");
    let options = options::parse(b"").expect("parsed");
    let inputs = Inputs {
        source: random.as_bytes(),
        embedded: &[],
        options: Some(&options),
        working_directory: tree.0.path(),
        driver_dirs: &[],
        implicit: &[],
    };
    let followed = follow(&inputs, &Work::default()).expect("followed");
    assert!(!followed.spells_random_name);
}
