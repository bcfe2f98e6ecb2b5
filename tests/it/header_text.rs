//! Headers whose names are hard to read: each that clang reads is in the key.

use std::path::Path;

use crate::support::{Driver, Ran, Sandbox, Way, example, some_of};

const COMPILERS: [Driver; 3] = [Driver::Pocl, Driver::Intel, Driver::Rusticl];
const KERNEL: &str = "\n__kernel void f(__global uint *out) { out[get_global_id(0)] = VALUE; }\n";

/// Each includes `b.h`, and defines `VALUE` if that does not.
const SOURCES: [(&str, &str); 8] = [
    (
        "a digraph makes a string",
        "#if 0\n#define NAME \"a.h\"\n#else\n#define STRING(x) %:x\n#define NAME STRING(b.h)\n#endif\n#include NAME\n",
    ),
    (
        "a digraph pastes",
        "#define bname \"b.h\"\n#if 0\n#define NAME \"a.h\"\n#else\n#define PASTE(x, y) x%:%:y\n#define NAME PASTE(b, name)\n#endif\n#include NAME\n",
    ),
    (
        "a warning with the beginning of a comment",
        "#define NAME \"a.h\"\n#warning a /*\n#undef NAME\n#define NAME \"b.h\"\n/* */\n#include NAME\n",
    ),
    (
        "a macro has the name of a directive",
        "#define undef(x) x\n#if undef(__has_include(\"b.h\"))\n#define VALUE 7\n#else\n#define VALUE 8\n#endif\n",
    ),
    (
        "a parenthesis in a comment",
        "#if 0\n#define NAME \"a.h\"\n#else\n#define NAME(x) \"b.h\"\n#endif\n#if __has_include(NAME/*)*/(1))\n#define VALUE 7\n#else\n#define VALUE 8\n#endif\n",
    ),
    (
        "a parenthesis in a string",
        "#if 0\n#define NAME \"a.h\"\n#else\n#define NAME(x) \"b.h\"\n#endif\n#if __has_include(NAME(\")\"))\n#define VALUE 7\n#else\n#define VALUE 8\n#endif\n",
    ),
    (
        "a pragma pushes",
        "#define NAME \"b.h\"\n#pragma push_macro(\"NAME\")\n#undef NAME\n#pragma pop_macro(\"NAME\")\n#include NAME\n",
    ),
    ("a plain name", "#include \"b.h\"\n"),
];

/// The name of the header is expanded in arguments of a macro.
const IN_ARGUMENTS: (&str, &str) = (
    "a parenthesis in a string before",
    "#define F(x, y) y\n#define a b\n#if F(\")\", __has_include(<a.h>))\n#define VALUE 7\n#else\n#define VALUE 8\n#endif\n",
);

#[test]
fn each_header_that_clang_reads_is_in_the_key() {
    check(&SOURCES);
}

#[test]
fn a_header_that_is_asked_for_behind_a_parenthesis_in_a_string_is_in_the_key() {
    check(&[IN_ARGUMENTS]);
}

/// Runs the kernel of the file `kernel.cl` of a directory, there.
fn run_in(sandbox: &Sandbox, place: &Path, way: Way, options: &str) -> Ran {
    let mut command = sandbox.command(way, example("client"));
    command.args(["run", "--source", "kernel.cl", "--kernel", "f"]);
    command.args(["--options", options]);
    sandbox.run(command.current_dir(place))
}

#[track_caller]
fn check(sources: &[(&str, &str)]) {
    let mut failed = Vec::new();
    for driver in some_of(&COMPILERS) {
        for (what, source) in sources {
            let Some(sandbox) = Sandbox::new(driver) else {
                continue;
            };
            let place = sandbox.path("place");
            std::fs::create_dir(&place).expect("made");
            std::fs::write(place.join("kernel.cl"), [*source, KERNEL].concat()).expect("written");
            std::fs::write(place.join("a.h"), "#define VALUE 3\n").expect("written");
            let header = place.join("b.h");
            let run = |way| run_in(&sandbox, &place, way, "-I .");
            std::fs::write(&header, "#define VALUE 5\n").expect("written");
            for _ in 0..2 {
                run(Way::Cached);
            }
            match source.contains("__has_include") {
                true => std::fs::remove_file(&header).expect("removed"),
                false => std::fs::write(&header, "#define VALUE 6\n").expect("written"),
            }
            let (bare, cached) = (run(Way::Bare), run(Way::Cached));
            if bare.stdout != cached.stdout {
                failed.push(format!("{driver:?}, {what}"));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Each has the time in it, which the driver reads.
const TIMES: [(&str, &str); 2] = [
    (
        "a warning with the beginning of a comment",
        "#define PASTE(x, y) x##y\n#warning /*\n#define TIME PASTE(__TI, ME__)\n/* */\n",
    ),
    (
        "a name over the end of a line of two characters",
        "#define TIME __TI\\\n\rME__\n",
    ),
];

#[test]
fn what_reads_the_clock_is_not_kept() {
    let mut failed = Vec::new();
    for driver in some_of(&COMPILERS) {
        for (what, source) in TIMES {
            let Some(sandbox) = Sandbox::new(driver) else {
                continue;
            };
            let kernel = "__kernel void f(__global uint *out) { out[get_global_id(0)] = TIME[7] + 10 * TIME[6]; }\n";
            let source = [source, kernel].concat();
            let bare = sandbox.kernel(Way::Bare, &source, "").ok();
            assert!(bare.stdout.contains("result ["), "{}", bare.stdout);
            let builds = [(); 2].map(|()| {
                sandbox
                    .kernel(Way::Cached, &source, "")
                    .ok()
                    .source_builds()
            });
            if builds != [1, 1] {
                failed.push(format!("{driver:?}, {what}"));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

/// Includes a header unless macros are defined that all drivers define (OpenCL C 3.0, section 6.11).
const OF_THE_HOST: &str = "#ifndef __OPENCL_C_VERSION__ /* the host */
#include \"host.h\"
#endif
#ifdef __OPENCL_VERSION__
#define CL
#endif
#if defined(CL)
#define VALUE 4
#else // the host
#include \"host.h\"
#define VALUE 5
#endif
";

#[test]
fn a_header_that_only_the_host_reads_is_neither_judged_nor_in_the_key() {
    for driver in COMPILERS.into_iter().chain([Driver::Oclgrind]) {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let home = sandbox.path("home");
        let header = home.join("host.h");
        std::fs::write(home.join("kernel.cl"), [OF_THE_HOST, KERNEL].concat()).expect("written");
        let run = |way| run_in(&sandbox, &home, way, "");
        std::fs::write(&header, "#define FILE __FILE__\n").expect("written");
        let bare = run(Way::Bare);
        let cold = run(Way::Cached);
        assert_eq!(cold.stdout, bare.stdout, "{driver:?}");
        std::fs::write(&header, "#error is not read\n").expect("written");
        let warm = run(Way::Cached);
        assert_eq!(warm.stdout, bare.stdout, "{driver:?}");
        assert!(bare.stdout.contains("result [4"), "{}", bare.stdout);
        let builds = [cold, warm].map(|ran| ran.source_builds());
        assert_eq!(builds, [1, 0], "{driver:?}");
    }
}

/// Mesa's own cache, which is on, gives what it had before.
#[test]
fn what_rusticls_own_cache_may_have_kept_of_an_older_header_is_not_stored() {
    let Some(sandbox) = Sandbox::new(Driver::Rusticl) else {
        return;
    };
    let home = sandbox.path("home");
    let source = ["#include \"value.h\"", KERNEL].concat();
    std::fs::write(home.join("kernel.cl"), source).expect("written");
    std::fs::write(home.join("value.h"), "#define VALUE 4\n").expect("written");
    for (options, expected) in [("", [1, 1]), ("-I.", [1, 0])] {
        let builds = [(); 2].map(|()| {
            let ran = run_in(&sandbox, &home, Way::Cached, options);
            assert!(ran.stdout.contains("result [4"), "{}", ran.stdout);
            ran.source_builds()
        });
        assert_eq!(builds, expected, "{options}");
    }
}
