//! A library of the program answers where one library of a driver calls another: the mathematics and the C library's functions that
//! read something are not all that changes a compilation.

use std::path::Path;

use super::{OPTION, State, each_has_its_own, program, shared};
use crate::support::{Driver, Sandbox};

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
