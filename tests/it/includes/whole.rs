//! Programs that are compiled and linked of several files, with embedded headers beside files.

use super::{KERNEL, QUICK, Tree, Verdict, verdicts};
use crate::support::{Driver, Way};

/// All but rusticl, which does not link separately compiled sources as these are.
const LINKERS: [Driver; 3] = [Driver::Stub, Driver::Pocl, Driver::Intel];

#[test]
fn objects_of_sources_with_headers() {
    for tree in Tree::on(&LINKERS) {
        tree.write("one.cl", format!("#include \"h.h\"\n{KERNEL}"));
        tree.write(
            "two.cl",
            "#include \"g.h\"\n__kernel void g(__global uint *out) { out[0] = W; }\n",
        );
        let section = [
            "linked", "--source", "one.cl", "--source", "two.cl", "--kernel", "f",
        ];
        tree.section(&section, "-I d1");
        tree.define("d1/h.h");
        tree.write("g.h", "#define W 1\n");
        tree.expect(Verdict::Miss, "cold", false);
        tree.hits("warm");
        tree.define("d1/h.h");
        let (seen, _) = tree.judged("the first object's header", false);
        assert_eq!(
            seen,
            [Verdict::Miss, Verdict::Hit, Verdict::Miss],
            "{:?}",
            tree.driver
        );
        tree.write("g.h", "#define W 2\n");
        let (seen, _) = tree.judged("the second object's header", false);
        assert_eq!(
            seen,
            [Verdict::Hit, Verdict::Miss, Verdict::Miss],
            "{:?}",
            tree.driver
        );
        tree.touch("g.h");
        tree.hits("touched");
        tree.define("h.h");
        let (seen, _) = tree.judged("a header that shadows", false);
        assert_eq!(
            seen,
            [Verdict::Miss, Verdict::Hit, Verdict::Miss],
            "{:?}",
            tree.driver
        );
    }
}

#[test]
fn embedded_headers_beside_files() {
    for tree in Tree::on(&Driver::ALL) {
        tree.write(
            "one.cl",
            format!("#include \"embedded.h\"\n#include \"file.h\"\n{KERNEL}"),
        );
        tree.write("text1", "#define V (FILE + 100)\n");
        tree.write("text2", "#define V (FILE + 200)\n");
        tree.write("d1/file.h", "#define FILE 1\n");
        let section = |text: &str| {
            let header = format!("embedded.h={text}");
            tree.section(
                &[
                    "linked", "--source", "one.cl", "--header", &header, "--kernel", "f",
                ],
                "-I d1",
            );
        };
        section("text1");
        tree.expect(Verdict::Miss, "cold", false);
        tree.hits("warm");
        tree.write("d1/file.h", "#define FILE 2\n");
        tree.misses("the file is edited");
        section("text2");
        tree.misses("the embedded header is another");
        tree.hits("warm");
        tree.touch("d1/file.h");
        tree.hits("touched");
        tree.write("file.h", "#define FILE 3\n");
        tree.misses("the file is shadowed");
        // Drivers differ in whether an embedded header or a file of its name is read.
        tree.write("embedded.h", "#define V (FILE + 300)\n");
        tree.is_right("a file of the embedded header's name");
        tree.write("embedded.h", "#define V (FILE + 400)\n");
        tree.is_right("that is edited");
        tree.remove("embedded.h");
        tree.hits_again("no such file");
    }
}

/// An embedded header that includes a file, and a file that includes an embedded header.
#[test]
fn embedded_headers_and_files_include_each_other() {
    for tree in Tree::on(&QUICK) {
        tree.write("one.cl", format!("#include \"e1.h\"\n{KERNEL}"));
        tree.write("text1", "#include \"file.h\"\n");
        tree.write("text2", "#define V 7\n");
        tree.write("d1/file.h", "#include \"e2.h\"\n");
        let section = [
            "linked",
            "--source",
            "one.cl",
            "--kernel",
            "f",
            "--header",
            "e1.h=text1",
        ];
        tree.section(
            &[&section[..], &["--header", "e2.h=text2"]].concat(),
            "-I d1",
        );
        tree.is_right("cold");
        if tree.works() {
            tree.hits("warm");
        }
        tree.define("d1/file.h");
        tree.is_right("edited");
        tree.define("d1/e2.h");
        tree.is_right("a file beside the file");
        tree.write("d1/file.h", "#include \"e2.h\"\n// changed\n");
        tree.is_right("which includes it");
        tree.define("d1/e2.h");
        tree.is_right("and is edited");
    }
}

/// A header is gone when the objects are linked, and another is there: what is linked is what was compiled.
#[test]
fn a_library_keeps_what_its_headers_were() {
    for tree in Tree::on(&LINKERS) {
        tree.write("one.cl", format!("#include \"h.h\"\n{KERNEL}"));
        tree.section(&["linked", "--source", "one.cl", "--kernel", "f"], "");
        tree.define("h.h");
        tree.expect(Verdict::Miss, "cold", false);
        tree.remove("h.h");
        tree.is_right("removed");
        assert!(!tree.works(), "{:?}", tree.driver);
        tree.define("h.h");
        let ran = tree.ran(Way::Cached).ok();
        assert!(
            !verdicts(&ran.stderr).contains(&Verdict::Hit),
            "{:?}",
            tree.driver
        );
        tree.hits_again("warm");
    }
}
