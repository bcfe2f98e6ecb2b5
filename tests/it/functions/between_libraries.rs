//! A library of the program answers where one library of a driver calls another: the mathematics and the C library's functions that
//! read something are not all that changes a compilation.

use std::path::Path;

use super::{OPTION, State, each_has_its_own, program, run, shared};
use crate::support::{Driver, Sandbox, Way, example, python, skipped};

/// The stub calls it, and computes with what it gives.
const OF_STUB: &str = "long a64l(const char *text) { (void)text; return 7; }\n";

/// Clang's function that reads options, one of which is added. PoCL and rusticl call it.
const OF_CLANG: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#define NAME "_ZN5clang18CompilerInvocation14CreateFromArgsERS0_N4llvm8ArrayRefIPKcEERNS_17DiagnosticsEngineES5_"
typedef _Bool create_t(void *, const char *const *, size_t, void *, const char *);
create_t other __asm__(NAME);
_Bool other(void *made, const char *const *options, size_t count, void *diagnostics, const char *name) {
    const char *all[count + 1];
    for (size_t at = 0; at < count; at++) all[at] = options[at];
    all[count] = "-DV=7";
    create_t *usual = (create_t *)dlsym(dlopen("libclang-cpp.so.15", RTLD_LAZY | RTLD_NOLOAD), NAME);
    return usual(made, all, count + 1, diagnostics, name);
}
"#;

/// The compiler of Intel's CPU runtime, before which the source gets a line.
const OF_COMMON_CLANG: &str = r##"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
typedef int compile_t(const char *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *, void *);
int Compile(const char *source, void *a, void *b, void *c, void *d, void *e, void *f, void *g, void *h, void *i, void *j, void *k) {
    static char changed[1 << 16];
    snprintf(changed, sizeof changed, "#define V 7\n%s", source);
    void *library = dlopen("libcommon_clang.so.2026.22.10.0", RTLD_LAZY | RTLD_NOLOAD);
    return ((compile_t *)dlsym(library, "Compile"))(changed, a, b, c, d, e, f, g, h, i, j, k);
}
"##;

/// How libstdc++ writes a text to a stream: PoCL puts its compiler's options together with it.
const OF_STANDARD_LIBRARY: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>
#define NAME "_ZSt16__ostream_insertIcSt11char_traitsIcEERSt13basic_ostreamIT_T0_ES6_PKS3_l"
typedef void *insert_t(void *, const char *, long);
insert_t other __asm__(NAME);
void *other(void *stream, const char *text, long size) {
    insert_t *usual = (insert_t *)dlsym(dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD), NAME);
    const char begin[] = "-DPOCL_DEVICE_ADDRESS_BITS=";
    if (size >= (long)sizeof begin - 1 && !memcmp(text, begin, sizeof begin - 1)) usual(stream, "-DV=7 ", 6);
    return usual(stream, text, size);
}
"#;

/// A library that answers, for each driver, with what a program needs that is linked with it.
const ANSWERS: [(Driver, &str); 5] = [
    (Driver::Stub, OF_STUB),
    (Driver::Pocl, OF_CLANG),
    (Driver::Rusticl, OF_CLANG),
    (Driver::Intel, OF_COMMON_CLANG),
    (Driver::Pocl, OF_STANDARD_LIBRARY),
];

/// Options that link a program with a library of the sandbox, used or not.
fn linked_with(library: &Path) -> Vec<String> {
    let directory = library.parent().expect("a directory").display();
    let soname = library.with_extension("so.1");
    std::fs::copy(library, soname).expect("copied");
    vec![
        "-Wl,--no-as-needed".to_owned(),
        library.display().to_string(),
        format!("-Wl,-rpath,{directory}"),
    ]
}

fn state<'a>(program: &Path, variables: &'a [(&'a str, String)]) -> State<'a> {
    State {
        program: program.to_owned(),
        variables,
    }
}

/// A program that is linked with the library, one into which it is preloaded, and one that has opened it for all others before the
/// driver came: none is served what a plain program has stored.
#[test]
fn a_library_that_answers_calls_between_the_drivers_libraries_is_in_the_key() {
    for (driver, answers) in ANSWERS {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let Some(usual) = program(&sandbox, "usual", &[]) else {
            return;
        };
        let library = shared(&sandbox, "answers", answers, &[]).expect("compiled");
        let options = linked_with(&library);
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let linked = program(&sandbox, "linked", &options).expect("compiled");
        let library = library.display().to_string();
        let preloaded = [("LD_PRELOAD", library.clone())];
        let opened = [("FOLDING_OPEN", library)];
        let mut others = vec![state(&linked, &[]), state(&usual, &preloaded)];
        // What is opened later comes behind the C library, which each program has.
        if driver != Driver::Stub {
            others.push(state(&usual, &opened));
        }
        for other in others {
            let _ = std::fs::remove_dir_all(sandbox.path("cache"));
            assert!(
                each_has_its_own(&sandbox, &state(&usual, &[]), &other, OPTION),
                "{driver:?}: {} {:?}",
                other.program.display(),
                other.variables
            );
        }
        let shown = sandbox.oclcache(&["explain", "--last", "1"]).ok().stdout;
        let words = "libanswers.so.1 replaces functions of the driver: ";
        assert!(shown.contains(words), "{driver:?}: {shown}");
    }
}

/// The dynamic linker takes it for the driver's own, whose identity is in no key.
#[test]
fn a_library_that_has_the_name_of_a_neutral_one_and_more_functions_is_in_the_key() {
    let Some(sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    // LLVM's line editing, of which compilers call nothing.
    let options = ["-Wl,-soname,libedit.so.2"];
    let functions = [
        "el_end",
        "el_get",
        "el_gets",
        "el_init",
        "el_insertstr",
        "el_line",
        "el_push",
        "el_set",
        "history",
        "history_end",
        "history_init",
    ];
    let functions = functions.map(|name| format!("void {name}(void) {{}}\n"));
    let text = OF_CLANG.to_owned() + &functions.concat();
    let Some(library) = shared(&sandbox, "named", &text, &options) else {
        return;
    };
    let preloaded = [("LD_PRELOAD", library.display().to_string())];
    let client = example("client");
    let (usual, other) = (state(&client, &[]), state(&client, &preloaded));
    assert!(each_has_its_own(&sandbox, &usual, &other, OPTION));
}

/// Uses much of the C++ standard library, whose functions the linker exports where a library has them as well, and the system's zlib.
const IN_CPP: &str = r#"
#include <algorithm>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <regex>
#include <sstream>
#include <string>
#include <unordered_map>
#include <vector>
extern "C" unsigned long crc32(unsigned long, const unsigned char *, unsigned);
static int of_cpp() {
    std::vector<std::string> words;
    std::map<std::string, std::vector<int>> lists;
    std::unordered_map<std::string, int> counts;
    for (int at = 0; at < 100; at++) {
        std::ostringstream out;
        out << at * 0.5 << std::hex << at;
        words.push_back(out.str());
        lists[words.back()].push_back(at);
        counts[words.back()]++;
    }
    std::sort(words.begin(), words.end());
    std::function<bool(const std::string &)> is_word = [](const std::string &word) {
        return std::regex_match(word, std::regex("[0-9]+"));
    };
    auto shared = std::make_shared<std::string>(words[0].begin(), words[0].end());
    auto later = std::async([&] { return is_word(*shared); });
    unsigned char byte = static_cast<unsigned char>(later.get());
    std::cerr << std::string(static_cast<size_t>(crc32(0, &byte, 1) & 1), ' ');
    return 0;
}
static int at_start = of_cpp();
"#;

/// The same library of the system answers whether a program is linked with it or not, and what a program in C++ has of the standard
/// library is what each has.
#[test]
fn what_is_the_systems_or_of_the_standard_library_splits_no_keys() {
    // To compile C++ takes longer than a driver does.
    let programs = Sandbox::stub();
    // The name of a program is in the keys of some drivers.
    let named = |directory: &str, options: &[&str]| {
        std::fs::create_dir(programs.path(directory)).expect("made");
        program(&programs, &format!("{directory}/folding"), options)
    };
    let Some(usual) = named("usual", &[]) else {
        return;
    };
    let source = programs.write("in_cpp.cpp", IN_CPP).display().to_string();
    let in_cpp = |name, options: &[&str]| {
        let object = programs.path("in_cpp.o").display().to_string();
        let compiled = [&["-c"], options].concat();
        super::compile(Path::new(&object), Path::new(&source), &compiled).expect("compiled");
        let linked = [object.as_str(), "-lstdc++", "-l:libz.so.1"];
        named(name, &[options, &linked].concat()).expect("compiled")
    };
    let plain = in_cpp("plain", &[]);
    let exporting = in_cpp("exporting", &["-rdynamic"]);
    let fixed = in_cpp("fixed", &["-rdynamic", "-no-pie", "-fno-pie"]);
    for driver in [
        Driver::Pocl,
        Driver::Intel,
        Driver::Rusticl,
        Driver::IntelGpu,
    ] {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        sandbox.set("OCLCACHE_LOG", "debug");
        let preloaded = [(
            "LD_PRELOAD",
            "libstdc++.so.6 libgcc_s.so.1 libz.so.1".to_owned(),
        )];
        let opened = [("FOLDING_OPEN", "libstdc++.so.6".to_owned())];
        let of_client = [("LD_PRELOAD", preloaded[0].1.clone() + " libm.so.6")];
        let mut states = vec![
            state(&usual, &[]),
            state(&plain, &[]),
            state(&exporting, &[]),
            state(&fixed, &[]),
            state(&usual, &preloaded),
            state(&usual, &opened),
            state(&example("client"), &[]),
        ];
        // Intel's own mathematics stands behind the C library's where a program is linked with that.
        if driver != Driver::Intel {
            states.push(state(&example("client"), &of_client));
        }
        let mut builds = [&usual, &example("client")].map(|program| (program.clone(), 1));
        for other in states {
            let ran = run(&sandbox, Way::Cached, &other, OPTION);
            let name = other.program.display();
            let mut own = builds
                .iter_mut()
                .filter(|(first, _)| *first == other.program);
            let expected = own.next().map_or(0, |(_, left)| std::mem::take(left));
            assert_eq!(
                ran.source_builds(),
                expected,
                "{driver:?} {name}: {}",
                ran.stderr
            );
            let answers = |line: &&str| line.contains("answers for functions of the driver");
            let mut answers = ran.stderr.lines().filter(answers);
            let is_known = |line: &str| driver == Driver::Intel && line.contains("libm.so.6");
            assert!(answers.all(is_known), "{driver:?} {name}: {}", ran.stderr);
        }
    }
}

/// Modules of Python have parts of the C++ standard library, and what needs a module may be searched before a library's own.
#[test]
fn the_modules_of_a_python_program_are_in_no_key() {
    for driver in Driver::ALL {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        sandbox.set("OCLCACHE_LOG", "debug");
        sandbox.set("PYOPENCL_CTX", "0");
        let mut command = sandbox.command(Way::Cached, python());
        command
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/pyopencl_program.py"));
        let ran = sandbox.run(&mut command);
        if ran.stderr.contains("ModuleNotFoundError") {
            return skipped("modules of Python (there is no PyOpenCL)");
        }
        let looked = |line: &&str| line.contains("looked up which functions answer the driver");
        assert!(
            ran.stderr.lines().any(|line| looked(&line)),
            "{driver:?}: {}",
            ran.stderr
        );
        let answers = |line: &&str| line.contains("answers for functions of the driver");
        let mut answers = ran.stderr.lines().filter(answers);
        let is_known = |line: &str| driver == Driver::Intel && line.contains("libm.so.6");
        assert!(answers.all(is_known), "{driver:?}: {}", ran.stderr);
    }
}

/// Loaders open the drivers of a machine one after the other. The first leaves its traces: libraries that the second needs as well have
/// variables and type information of the first, and PoCL sets a variable.
#[test]
fn another_driver_that_was_opened_before_splits_no_keys() {
    // Of a driver that is not known, as the stub, headers of any compiler in the process may be.
    let known = |driver: &Driver| *driver != Driver::Stub;
    for driver in Driver::ALL.into_iter().filter(known) {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        for other in Driver::ALL {
            sandbox.prepare_for(other);
        }
        sandbox.set("OCLCACHE_LOG", "debug");
        std::fs::create_dir(sandbox.path("both")).expect("made");
        let us = crate::support::library().display().to_string();
        sandbox.write("both/2.icd", us);
        let both = [(
            "OCL_ICD_VENDORS",
            sandbox.path("both").display().to_string(),
        )];
        let first = run(
            &sandbox,
            Way::Cached,
            &state(&example("client"), &[]),
            OPTION,
        );
        assert_eq!(first.source_builds(), 1, "{driver:?}: {}", first.stderr);
        for other in Driver::ALL {
            let Some(library) = other.library().filter(|_| other != driver) else {
                continue;
            };
            sandbox.write("both/1.icd", library);
            let later = run(
                &sandbox,
                Way::Cached,
                &state(&example("client"), &both),
                OPTION,
            );
            let why = sandbox.oclcache(&["explain", "--last", "1"]).stdout;
            let (builds, log) = (later.source_builds(), &later.stderr);
            assert_eq!(builds, 0, "{driver:?} behind {other:?}: {why}{log}");
        }
    }
}
