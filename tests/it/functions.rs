//! Which functions answer the driver's calls, and how the thread rounds that builds: what changes the constants that a compiler
//! folds, or what it reads, without a change of any of its files.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Driver, Ran, Sandbox, Way, example, skipped};

mod between_libraries;
mod foreign_names;

/// A library that answers for getenv: PoCL hears of one more flag of its compiler.
pub const GETENV: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>
#include <stdlib.h>
#include <string.h>
char *getenv(const char *name) {
    static char *(*usual)(const char *);
    if (!usual) usual = (char *(*)(const char *))dlsym(RTLD_NEXT, "getenv");
    return strcmp(name, "POCL_EXTRA_BUILD_FLAGS") ? usual(name) : (char *)"-DV=7";
}
#ifdef UNSET
__attribute__((constructor)) static void unset(void) { unsetenv("LD_PRELOAD"); }
#endif
#ifdef HIDDEN
typedef int (*each_t)(struct dl_phdr_info *, size_t, void *);
struct call { each_t each; void *data; };
static int others(struct dl_phdr_info *info, size_t size, void *data) {
    struct call *call = data;
    return strstr(info->dlpi_name, "hidden") ? 0 : call->each(info, size, call->data);
}
int dl_iterate_phdr(each_t each, void *data) {
    static int (*usual)(each_t, void *);
    if (!usual) usual = (int (*)(each_t, void *))dlsym(RTLD_NEXT, "dl_iterate_phdr");
    struct call call = {each, data};
    return usual(others, &call);
}
#endif
"#;

/// One that answers for nothing that matters: an allocator.
const ALLOCATOR: &str = r"
#include <stddef.h>
void *__libc_malloc(size_t);
void __libc_free(void *);
void *malloc(size_t size) { return __libc_malloc(size); }
void free(void *memory) { __libc_free(memory); }
";

const EXP: &str = "double exp(double x) { (void)x; return 42.0; }\n";

/// One that the dynamic linker asks what to bind `getenv` to.
const AUDITOR: &str = r#"
#define _GNU_SOURCE
#include <link.h>
#include <stdlib.h>
#include <string.h>
static char *(*usual)(const char *);
static char *other(const char *name) {
    return strcmp(name, "POCL_EXTRA_BUILD_FLAGS") ? usual(name) : (char *)"-DV=7";
}
unsigned la_version(unsigned version) { unsetenv("LD_AUDIT"); return version; }
unsigned la_objopen(struct link_map *map, Lmid_t id, uintptr_t *cookie) {
    (void)map; (void)id; (void)cookie;
    return LA_FLG_BINDTO | LA_FLG_BINDFROM;
}
uintptr_t la_symbind64(Elf64_Sym *symbol, unsigned index, uintptr_t *from, uintptr_t *to, unsigned *flags, const char *name) {
    (void)index; (void)from; (void)to; (void)flags;
    if (strcmp(name, "getenv")) return symbol->st_value;
    usual = (char *(*)(const char *))symbol->st_value;
    return (uintptr_t)other;
}
"#;

const OPTION: &str =
    "#ifndef V\n#define V 1\n#endif\n__kernel void f(__global uint *out) { out[0] = V; }\n";

/// Constants that the host's mathematics folds.
const FOLDED: &str = "__kernel void f(__global double *out) {\n\
    out[0] = __builtin_sqrt(2.0); out[1] = __builtin_exp(0.7); out[2] = __builtin_sin(0.7);\n\
    out[3] = __builtin_sin(0x1.b2f7060e83af8p+2); }\n";

/// Compiles C; None, said by name, if there is no compiler.
pub fn compile(to: &Path, source: &Path, options: &[&str]) -> Option<()> {
    let mut compiler = Command::new("cc");
    compiler
        .arg("-O1")
        .arg("-o")
        .arg(to)
        .arg(source)
        .args(options);
    match compiler.status() {
        Ok(status) => assert!(status.success(), "{} does not compile", source.display()),
        Err(error) => {
            skipped(format_args!("{} (cc: {error})", to.display()));
            return None;
        }
    }
    Some(())
}

/// A library of a text. It has a DT_SONAME that is not the name of its file.
pub fn shared(sandbox: &Sandbox, name: &str, text: &str, options: &[&str]) -> Option<PathBuf> {
    let source = sandbox.write(&format!("{name}.c"), text);
    let library = sandbox.path(&format!("lib{name}.so"));
    let soname = format!("-Wl,-soname,lib{name}.so.1");
    let options = [&["-shared", "-fPIC", "-ldl", &soname], options].concat();
    compile(&library, &source, &options)?;
    Some(library)
}

/// The program of folding.c.
pub fn program(sandbox: &Sandbox, name: &str, options: &[&str]) -> Option<PathBuf> {
    if !Path::new("/usr/include/CL/cl.h").exists() {
        skipped("a program that folds (no CL/cl.h: opencl-headers is not installed)");
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/folding.c");
    let program = sandbox.path(name);
    let options = [
        &["-Wno-deprecated-declarations"],
        options,
        &["-l:libOpenCL.so.1", "-lm"],
    ]
    .concat();
    compile(&program, &source, &options)?;
    Some(program)
}

/// One state of a process: the program, and the variables that make the state.
struct State<'a> {
    program: PathBuf,
    variables: &'a [(&'a str, String)],
}

fn run(sandbox: &Sandbox, way: Way, state: &State, source: &str) -> Ran {
    let file = sandbox.write("kernel.cl", source);
    let mut command = sandbox.command(way, &state.program);
    if state.program == example("client") {
        command.args(["run", "--kernel", "f", "--source"]);
    }
    command.arg(file).envs(state.variables.iter().cloned());
    sandbox.run(&mut command).ok()
}

/// What the driver compiles for A, and then for B, with what A has stored: each computes what it does bare, and each is compiled
/// once, if the state tells. Gives whether bare results differ.
#[track_caller]
fn each_has_its_own(sandbox: &Sandbox, a: &State, b: &State, source: &str) -> bool {
    let [bare_a, bare_b] = [a, b].map(|state| run(sandbox, Way::Bare, state, source).stdout);
    for (state, bare, compiled) in [
        (a, &bare_a, 1),
        (b, &bare_b, 1),
        (a, &bare_a, 0),
        (b, &bare_b, 0),
    ] {
        let cached = run(sandbox, Way::Cached, state, source);
        assert_eq!(&cached.stdout, bare, "log:\n{}", cached.stderr);
        assert_eq!(
            cached.source_builds(),
            compiled,
            "{:?}, log:\n{}",
            state.variables,
            cached.stderr
        );
    }
    bare_a != bare_b
}

fn client<'a>(variables: &'a [(&'a str, String)]) -> State<'a> {
    State {
        program: example("client"),
        variables,
    }
}

#[test]
fn a_preloaded_library_that_answers_is_in_the_key_however_it_is_named() {
    let Some(sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let Some(plain) = shared(&sandbox, "plain", GETENV, &[]) else {
        return;
    };
    let unset = shared(&sandbox, "unset", GETENV, &["-DUNSET"]).expect("compiled");
    let token = shared(&sandbox, "token", GETENV, &["-DTOKEN"]).expect("compiled");
    let arch = format!("lib/{}-linux-gnu", std::env::consts::ARCH);
    for place in ["lib", "lib64", &arch] {
        std::fs::create_dir_all(sandbox.path(place)).expect("made");
        std::fs::copy(&token, sandbox.path(place).join("libtoken.so")).expect("copied");
    }
    let directory = sandbox.path("").display().to_string();
    for (name, variables) in [
        ("plain", vec![("LD_PRELOAD", plain.display().to_string())]),
        (
            "token",
            vec![("LD_PRELOAD", format!("{directory}/$LIB/libtoken.so"))],
        ),
        ("unset", vec![("LD_PRELOAD", unset.display().to_string())]),
        (
            "by its name",
            vec![
                ("LD_PRELOAD", "libplain.so".to_owned()),
                ("LD_LIBRARY_PATH", directory.clone()),
            ],
        ),
    ] {
        let _ = std::fs::remove_dir_all(sandbox.path("cache"));
        assert!(
            each_has_its_own(&sandbox, &client(&[]), &client(&variables), OPTION),
            "{name}"
        );
    }
    let shown = sandbox.oclcache(&["explain", "--last", "1"]).ok().stdout;
    let words = "libplain.so.1 replaces functions of the driver: getenv";
    assert!(shown.contains(words), "{shown}");
}

#[test]
fn a_library_that_answers_for_nothing_is_in_no_key() {
    let Some(sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let Some(empty) = shared(&sandbox, "empty", "", &[]) else {
        return;
    };
    let allocator = shared(&sandbox, "allocator", ALLOCATOR, &[]).expect("compiled");
    for source in [OPTION, FOLDED] {
        assert_eq!(
            run(&sandbox, Way::Cached, &client(&[]), source).source_builds(),
            1
        );
        for library in [&empty, &allocator] {
            let preloaded = [("LD_PRELOAD", library.display().to_string())];
            let ran = run(&sandbox, Way::Cached, &client(&preloaded), source);
            assert_eq!(
                ran.source_builds(),
                0,
                "{}, log:\n{}",
                library.display(),
                ran.stderr
            );
        }
    }
}

/// Python's modules match the names of PoCL's plug-ins, and some take their mathematics from the program's.
#[test]
fn a_library_that_is_named_like_a_plug_in_and_is_elsewhere_is_none() {
    let Some(sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let text = "double tgamma(double); double of_module(double x) { return tgamma(x); }\n";
    let Some(module) = shared(&sandbox, "module", text, &["-fno-builtin"]) else {
        return;
    };
    let without = [("LD_PRELOAD", "libm.so.6".to_owned())];
    let with = [("LD_PRELOAD", format!("libm.so.6 {}", module.display()))];
    let builds = [&without, &with]
        .map(|variables| run(&sandbox, Way::Cached, &client(variables), OPTION).source_builds());
    assert_eq!(builds, [1, 0]);
}

/// One that passes everything on unchanged, as the tools of sites do.
const PASSING: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
char *getenv(const char *name) {
    static char *(*usual)(const char *);
    if (!usual) usual = (char *(*)(const char *))dlsym(RTLD_NEXT, "getenv");
    return usual(name);
}
"#;

/// One that answers for what tells the time and the machine.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*usual)(clockid_t, struct timespec *);
    if (!usual) usual = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    return usual(clock, now);
}
"#;

#[test]
fn a_library_that_answers_for_the_clock_is_in_the_key() {
    let Some(sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let Some(clock) = shared(&sandbox, "clock", CLOCK, &[]) else {
        return;
    };
    let preloaded = [("LD_PRELOAD", clock.display().to_string())];
    assert!(!each_has_its_own(
        &sandbox,
        &client(&[]),
        &client(&preloaded),
        OPTION
    ));
}

#[test]
fn a_library_that_the_systems_file_calls_neutral_is_in_no_key() {
    let Some(sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let Some(passing) = shared(&sandbox, "passing", PASSING, &[]) else {
        return;
    };
    let mut can = Command::new("unshare");
    let can = can.args(["--mount", "true"]).output();
    if !can.is_ok_and(|ran| ran.status.success()) {
        return skipped("neutral_libraries of /etc/oclcache/config.toml (no mount namespace)");
    }
    let preloaded = [("LD_PRELOAD", passing.display().to_string())];
    let misses = |state: &State| run(&sandbox, Way::Cached, state, OPTION).source_builds();
    assert_eq!(misses(&client(&[])), 1);
    // Nobody but the administrator may say it.
    let line = "neutral_libraries = \"libpassing.so.1 libother.so\"\n";
    std::fs::create_dir_all(sandbox.path("home/.config/oclcache")).expect("made");
    sandbox.write("home/.config/oclcache/config.toml", line);
    let by_variable = [
        preloaded[0].clone(),
        ("OCLCACHE_NEUTRAL_LIBRARIES", "libpassing.so.1".to_owned()),
    ];
    let ran = run(&sandbox, Way::Cached, &client(&by_variable), OPTION);
    assert_eq!(ran.source_builds(), 1, "{}", ran.stderr);
    let etc = sandbox.path("etc");
    std::fs::create_dir(&etc).expect("made");
    let source = sandbox.write("kernel.cl", OPTION);
    let mut command = sandbox.command(Way::Cached, "unshare");
    let script = "mount -t tmpfs -o mode=755 none \"$1\" && cp -a /etc/. \"$1\" && \
        mkdir -p \"$1/oclcache\" && printf %s \"$2\" >\"$1/oclcache/config.toml\" && \
        mount --bind \"$1\" /etc && shift 2 && LD_PRELOAD=$1 && shift && export LD_PRELOAD && exec \"$@\"";
    command.args(["--mount", "sh", "-c", script, "sh"]);
    command
        .arg(&etc)
        .arg(line)
        .arg(&passing)
        .arg(example("client"));
    command
        .args(["run", "--kernel", "f", "--source"])
        .arg(source);
    let ran = sandbox.run(&mut command).ok();
    assert_eq!(ran.source_builds(), 0, "{}", ran.stderr);
}

/// Code in no library that the dynamic linker tells of, or that was bound by an auditor, may be any.
#[test]
fn where_nobody_knows_what_answers_nothing_is_cached() {
    let Some(sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let Some(hidden) = shared(&sandbox, "hidden", GETENV, &["-DHIDDEN"]) else {
        return;
    };
    let auditor = shared(&sandbox, "auditor", AUDITOR, &[]).expect("compiled");
    for (variable, library) in [("LD_PRELOAD", hidden), ("LD_AUDIT", auditor)] {
        let variables = [(variable, library.display().to_string())];
        let (usual, other) = (client(&[]), client(&variables));
        let _ = std::fs::remove_dir_all(sandbox.path("cache/v1/entries"));
        let bare = run(&sandbox, Way::Bare, &usual, OPTION).stdout;
        let bare_other = run(&sandbox, Way::Bare, &other, OPTION).stdout;
        assert_ne!(bare, bare_other, "{variable}");
        for (state, bare, compiled) in [
            (&usual, &bare, 1),
            (&other, &bare_other, 1),
            (&other, &bare_other, 1),
            (&usual, &bare, 0),
        ] {
            let ran = run(&sandbox, Way::Cached, state, OPTION);
            assert_eq!(&ran.stdout, bare, "{variable}, log:\n{}", ran.stderr);
            assert_eq!(
                ran.source_builds(),
                compiled,
                "{variable}, log:\n{}",
                ran.stderr
            );
        }
    }
    assert_eq!(sandbox.stat("bypass_reasons/unidentified_function"), 4);
}

#[test]
fn a_program_with_mathematics_of_its_own_is_told_from_others() {
    let Some(sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let Some(usual) = program(&sandbox, "usual", &[]) else {
        return;
    };
    let own =
        program(&sandbox, "own", &["-DOWN_EXP", "-fno-builtin", "-rdynamic"]).expect("compiled");
    let library = shared(&sandbox, "exp", EXP, &["-fno-builtin"]).expect("compiled");
    let directory = sandbox.path("").display().to_string();
    let linked = [
        "-Wl,--no-as-needed",
        "-L",
        &directory,
        "-lexp",
        "-Wl,-rpath",
        &directory,
    ];
    std::fs::copy(library, sandbox.path("libexp.so.1")).expect("copied");
    let linked = program(&sandbox, "linked", &linked).expect("compiled");
    let state = |program: &PathBuf| State {
        program: program.clone(),
        variables: &[],
    };
    for other in [own, linked] {
        let _ = std::fs::remove_dir_all(sandbox.path("cache"));
        assert!(each_has_its_own(
            &sandbox,
            &state(&usual),
            &state(&other),
            FOLDED
        ));
    }
    let shown = sandbox.oclcache(&["explain", "--last", "1"]).ok().stdout;
    let words = "libexp.so.1 replaces functions of the driver: exp";
    assert!(shown.contains(words), "{shown}");
}

/// Without PIE, all libraries get the address of an entry of the program's linkage table for a function whose address the program takes.
/// What the entry calls answers, before the program has called it and after.
#[test]
fn a_program_with_a_fixed_address_has_the_functions_that_its_linkage_table_calls() {
    let Some(sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let options = ["-DFIXED_ADDRESS", "-no-pie", "-fno-pie", "-fno-builtin"];
    let library = shared(&sandbox, "exp", EXP, &["-fno-builtin"]).expect("compiled");
    let preloaded = [("LD_PRELOAD", library.display().to_string())];
    for (name, binding) in [("lazy", "-Wl,-z,lazy"), ("now", "-Wl,-z,now")] {
        let _ = std::fs::remove_dir_all(sandbox.path("cache"));
        let Some(fixed) = program(&sandbox, name, &[&options[..], &[binding]].concat()) else {
            return;
        };
        let state = |variables| State {
            program: fixed.clone(),
            variables,
        };
        let Some(usual) = program(&sandbox, "usual", &[]) else {
            return;
        };
        let usual = State {
            program: usual,
            variables: &[],
        };
        run(&sandbox, Way::Cached, &usual, FOLDED);
        let ran = run(&sandbox, Way::Cached, &state(&[]), FOLDED);
        assert_eq!(ran.source_builds(), 0, "{name}, log:\n{}", ran.stderr);
        let _ = std::fs::remove_dir_all(sandbox.path("cache"));
        assert!(
            each_has_its_own(&sandbox, &state(&[]), &state(&preloaded), FOLDED),
            "{name}"
        );
        let shown = sandbox.oclcache(&["explain", "--last", "1"]).ok().stdout;
        let words = "libexp.so.1 replaces functions of the driver: exp";
        assert!(shown.contains(words), "{shown}");
    }
}

/// Intel's runtime needs libimf before libm, but what an application is linked with comes before both.
#[test]
fn a_program_that_is_linked_with_the_c_librarys_mathematics_is_told_from_one_that_is_not_on_intel()
{
    let Some(sandbox) = Sandbox::new(Driver::Intel) else {
        return;
    };
    let functions = [
        "exp", "log", "sin", "cos", "tan", "exp2", "log10", "sinh", "tanh", "acos",
    ];
    let terms = (0..400).map(|at| {
        let argument = f64::from(at).mul_add(0.002_37, 0.013);
        let function = functions[at as usize % functions.len()];
        format!("bits = as_ulong(__builtin_{function}({argument})); sum = sum * 31 + bits;\n")
    });
    let terms: String = terms.collect();
    let source = format!(
        "__kernel void f(__global ulong *out) {{ ulong bits, sum = 0;\n{terms}out[0] = sum; }}\n"
    );
    let linked = [("LD_PRELOAD", "libm.so.6".to_owned())];
    let differ = each_has_its_own(&sandbox, &client(&[]), &client(&linked), &source);
    assert!(differ, "the two libraries round alike");
}

#[test]
fn variants_that_the_c_library_chooses_by_glibc_tunables_are_told_apart() {
    let Some(sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let tunables = "glibc.cpu.hwcaps=-AVX2,-FMA,-AVX2_Usable,-FMA_Usable".to_owned();
    let variables = [("GLIBC_TUNABLES", tunables)];
    let (usual, other) = (client(&[]), client(&variables));
    let [bare, bare_other] =
        [&usual, &other].map(|state| run(&sandbox, Way::Bare, state, FOLDED).stdout);
    if bare == bare_other {
        skipped("GLIBC_TUNABLES: this processor has no variants of the mathematical functions");
        return;
    }
    assert!(each_has_its_own(&sandbox, &usual, &other, FOLDED));
    let shown = sandbox.oclcache(&["explain", "--last", "1"]).ok().stdout;
    assert!(shown.contains("variants of its functions"), "{shown}");
}

#[test]
fn how_the_thread_rounds_that_builds_is_in_the_key() {
    let Some(sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let Some(program) = program(&sandbox, "folding", &[]) else {
        return;
    };
    let state = |variables| State {
        program: program.clone(),
        variables,
    };
    let down = [("FOLDING_ROUND", "down".to_owned())];
    assert!(each_has_its_own(
        &sandbox,
        &state(&[]),
        &state(&down),
        FOLDED
    ));
    let shown = sandbox.oclcache(&["explain", "--last", "1"]).ok().stdout;
    let words = "floating-point state, MXCSR: was the default, is 0x3f80";
    assert!(
        cfg!(not(target_arch = "x86_64")) || shown.contains(words),
        "{shown}"
    );
    // Flags of what has happened are no part of it.
    let flags = [("FOLDING_ROUND", "flags".to_owned())];
    let ran = run(&sandbox, Way::Cached, &state(&flags), FOLDED);
    assert_eq!(ran.source_builds(), 0, "{}", ran.stderr);
    // Threads that the driver starts when it is opened may build.
    let opening = [("FOLDING_ROUND", "opening".to_owned())];
    each_has_its_own(&sandbox, &state(&down), &state(&opening), OPTION);
}

/// Results that show how the thread rounded that folded a constant, or that executes.
const ROUNDED: &str = "__kernel void f(__global uint *out) {
    out[0] = (uint)as_ulong(sqrt(2.0));
    out[1] = (uint)as_ulong(sqrt((double)get_local_size(0) + 2.0));
}\n";

/// Drivers start their threads where devices are asked for, contexts are made or a first program is built. Measured: those of Intel's
/// CPU runtime fold constants, and round as the thread did that made the first context. Those of PoCL compile at enqueues, where the
/// size of the work-group becomes a constant, and round as the thread did that first asked for devices.
#[test]
fn how_the_threads_round_that_make_contexts_and_devices_is_in_the_key_where_code_depends_on_it() {
    for driver in [Driver::Intel, Driver::Pocl] {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let Some(program) = program(&sandbox, "folding", &[]) else {
            return;
        };
        let ran = |way, when: &str| {
            let variables = [("FOLDING_ROUND", when.to_owned())];
            let (program, variables) = (program.clone(), &variables[..]);
            run(&sandbox, way, &State { program, variables }, ROUNDED)
        };
        let whens = ["none", "context", "devices", "first"];
        let bare: HashMap<_, _> = whens.map(|when| (when, ran(Way::Bare, when).stdout)).into();
        for [one, other] in [
            ["none", "context"],
            ["context", "none"],
            ["devices", "none"],
            ["none", "devices"],
            ["none", "first"],
        ] {
            let _ = std::fs::remove_dir_all(sandbox.path("cache"));
            for when in [one, other, one, other] {
                let cached = ran(Way::Cached, when);
                let log = &cached.stderr;
                assert_eq!(cached.stdout, bare[when], "{driver:?} {when}: {log}");
            }
        }
        // Nobody knows which of the threads compiles.
        let log = ran(Way::Cached, "second").stderr;
        assert!(log.contains("floating_point_state"), "{log}");
    }
}
