//! Drivers of ICD 2.0 beside us, under loaders that know of it: what was tagged is cached, or the log says why not.

use super::ways::{Setup, Way};
use super::{Loader, Name, loaders, text};
use crate::support::{self, Driver, Ran, Sandbox, example, library, python, some_of};

/// What the log says of a driver that stays tagged: its library, and the two ways that are left.
const NOT_CACHED: [&str; 4] = [
    "WARN",
    "libstub_driver.so",
    "OCLCACHE_VENDORS",
    "OPENCL_LAYERS",
];

fn lines_with<'a>(ran: &'a Ran, words: &[&str]) -> Vec<&'a str> {
    let lines = ran.stderr.lines();
    lines
        .filter(|line| words.iter().all(|word| line.contains(word)))
        .collect()
}

/// The loader opens the libraries in the order of the variable.
fn in_order(first: &str, second: &str) -> [(&'static str, String); 2] {
    [
        ("OCL_ICD_FILENAMES", format!("{first}:{second}")),
        ("OCL_ICD_VENDORS", "/nonexistent".to_owned()),
    ]
}

fn both_orders(driver: &str) -> [[(&'static str, String); 2]; 2] {
    let us = text(library());
    [in_order(driver, &us), in_order(&us, driver)]
}

fn with_icd2() -> impl Iterator<Item = Loader> {
    loaders().into_iter().filter(Loader::knows_icd2)
}

fn borrowed<'a>(variables: &'a [(&'static str, String)]) -> Vec<(&'static str, &'a str)> {
    let variables = variables.iter();
    variables
        .map(|(name, value)| (*name, value.as_str()))
        .collect()
}

#[test]
fn beside_a_driver_of_icd_2_each_order_of_opening_is_cached() {
    let stub = Driver::Stub.library().expect("the stub");
    for protection in ["0", "1"] {
        let variables = [("STUB_ICD2", "1"), ("STUB_READONLY_TABLE", protection)];
        let setup = Setup::stub(&variables);
        for loader in with_icd2() {
            for order in both_orders(&stub) {
                for asks in [None, Some(("LOADER_ASKS_LATE", "1"))] {
                    let mut more = borrowed(&order);
                    more.extend(asks);
                    setup.is_cached(&loader, Way::Beside, &more, &|_| setup.compilations());
                }
            }
        }
    }
}

/// All that the API shows is the same as bare, in each order, cold and warm.
#[test]
fn beside_a_driver_of_icd_2_the_api_answers_as_without_us() {
    let stub = Driver::Stub.library().expect("the stub");
    let setup = Setup::stub(&[("STUB_ICD2", "1")]);
    for loader in with_icd2() {
        for section in [
            "facts",
            "lifetime",
            "rebuild",
            "failing",
            "callback",
            "compilelink",
        ] {
            let bare = setup.client(&loader, Way::Bare, &[], &[section]);
            for order in both_orders(&stub) {
                for _ in 0..2 {
                    let ran = setup.client(&loader, Way::Beside, &borrowed(&order), &[section]);
                    let log = &ran.stderr;
                    assert_eq!(
                        ran.stdout, bare.stdout,
                        "{section}, {loader:?}, log:\n{log}"
                    );
                }
            }
        }
        assert!(setup.sandbox.stat("hits") > 0, "{loader:?}");
    }
}

/// Calls functions that the driver lacks, in its table only or also by name.
const MISSING: &str = r#"
import ctypes, sys
cl = ctypes.CDLL(sys.argv[1])
P, U, S = ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t
for name in ("clCreateContext", "clCreateProgramWithSource", "clCreateKernel", "clCloneKernel", "clCreateBuffer"):
    getattr(cl, name).restype = P
platform, device, code, result = P(), P(), ctypes.c_int(77), ctypes.c_int()
assert cl.clGetPlatformIDs(1, ctypes.byref(platform), None) == 0
assert cl.clGetDeviceIDs(platform, ctypes.c_ulong(0xffffffff), 1, ctypes.byref(device), None) == 0
context = P(cl.clCreateContext(None, 1, ctypes.byref(device), None, None, None))
lines = (ctypes.c_char_p * 1)(b"__kernel void f(__global uint *out) { out[0] = 7; }")
program = P(cl.clCreateProgramWithSource(context, 1, lines, None, None))
print("build", cl.clBuildProgram(program, 0, None, None, None, None))
kernel = P(cl.clCreateKernel(program, b"f", None))
clone = cl.clCloneKernel(kernel, ctypes.byref(code))
print("clone", clone is None, code.value)
print("clone without a place", cl.clCloneKernel(kernel, None) is None)
print("compile", cl.clCompileProgram(program, 0, None, None, 0, None, None, None, None))
print("argument", cl.clGetKernelArgInfo(kernel, 0, 0x119A, S(0), None, None))
print("retain", cl.clRetainProgram(program))
"#;

#[test]
fn a_function_that_a_driver_of_icd_2_lacks_fails_as_without_us() {
    let stub = Driver::Stub.library().expect("the stub");
    for missing in ["STUB_NULL_SLOTS", "STUB_ABSENT"] {
        let functions = match missing {
            "STUB_NULL_SLOTS" => "clSetKernelArg clFinish", // see the next test for functions that are hooked
            _ => "clCloneKernel clCompileProgram clGetKernelArgInfo clRetainProgram",
        };
        let setup = Setup::stub(&[("STUB_ICD2", "1"), (missing, functions)]);
        for loader in with_icd2() {
            let run = |way, more: &[(&str, &str)]| {
                let mut command = setup.sandbox.command(support::Way::Cached, python());
                command
                    .args(["-c", MISSING, &loader.path])
                    .env_remove("OCLCACHE_VENDORS")
                    .envs(setup.variables(way))
                    .envs(loader.variables())
                    .envs(more.iter().copied());
                setup.sandbox.run(&mut command).ok()
            };
            let bare = run(Way::Bare, &[]).stdout;
            let fails = bare.contains("clone True -59");
            assert_eq!(fails, missing == "STUB_ABSENT", "{missing}: {bare}");
            for order in both_orders(&stub) {
                let ran = run(Way::Beside, &borrowed(&order));
                assert_eq!(
                    ran.stdout, bare,
                    "{missing}, {loader:?}, log:\n{}",
                    ran.stderr
                );
            }
            assert_eq!(run(Way::Icd, &[]).stdout, bare, "{missing}, {loader:?}");
        }
    }
}

/// A table may end before the last slot that a loader calls, or be in memory that nobody can write: then the driver stays as it
/// is, and the log says so, whichever of the two the loader opens first.
#[test]
fn beside_a_driver_that_stays_tagged_the_log_says_that_it_is_not_cached() {
    let stub = Driver::Stub.library().expect("the stub");
    let newest = "clGetKernelSuggestedLocalWorkSize";
    for (variable, value, says) in [
        ("STUB_SHORT_TABLE", "1", "93 functions"),
        ("STUB_ABSENT", newest, "149 functions"),
        (
            "STUB_NULL_SLOTS",
            "clCompileProgram",
            "lacks clCompileProgram",
        ),
        ("STUB_READONLY_TABLE", "forever", "cannot be patched"),
    ] {
        let setup = Setup::stub(&[("STUB_ICD2", "1"), (variable, value)]);
        for loader in with_icd2() {
            let bare = setup.run(&loader, Way::Bare, &[]);
            for order in both_orders(&stub) {
                let order = borrowed(&order);
                setup.compilations();
                for _ in 0..2 {
                    let ran = setup.run(&loader, Way::Beside, &order);
                    let log = &ran.stderr;
                    assert_eq!(
                        ran.stdout, bare.stdout,
                        "{variable}, {loader:?}, log:\n{log}"
                    );
                    assert_eq!(
                        setup.compilations(),
                        1,
                        "{variable}, {loader:?}, log:\n{log}"
                    );
                    assert_eq!(
                        lines_with(&ran, &["WARN", says]).len(),
                        1,
                        "{variable}, {loader:?}, log:\n{log}"
                    );
                    let named = lines_with(&ran, &NOT_CACHED).len();
                    assert_eq!(
                        named,
                        usize::from(value != "forever"),
                        "{variable}, log:\n{log}"
                    );
                }
            }
        }
    }
}

/// A loader of ICD 1.0 calls what is in the table, whatever the driver gives by name: nothing is changed for it alone.
#[test]
fn under_an_older_loader_alone_a_driver_of_icd_2_keeps_its_tag() {
    let setup = Setup::stub(&[("STUB_ICD2", "1"), ("STUB_UNNAMED", "clGetKernelArgInfo")]);
    let loaders = loaders();
    let older = loaders.iter().find(|loader| !loader.knows_icd2());
    let older = older.expect("Debian's loader");
    let bare = setup.client(older, Way::Bare, &[], &["facts"]);
    for way in [Way::Beside, Way::Icd] {
        let ran = setup.client(older, way, &[], &["facts"]);
        assert_eq!(ran.stdout, bare.stdout, "{way:?}, log:\n{}", ran.stderr);
    }
}

/// Programs that run in other threads while the tag goes: a second loader, of ICD 2.0, comes to a driver that is in use.
#[test]
fn a_loader_of_icd_2_that_comes_while_another_is_in_use_harms_nobody() {
    let setup = Setup::stub(&[("STUB_ICD2", "1")]);
    let loaders = loaders();
    let older = loaders.iter().find(|loader| !loader.knows_icd2());
    let older = older.expect("Debian's loader").path.clone();
    for loader in with_icd2() {
        let run = |way| {
            let mut command = setup.sandbox.command(support::Way::Cached, python());
            command
                .args(["-c", MEANWHILE, &older, &loader.path])
                .env_remove("OCLCACHE_VENDORS")
                .envs(setup.variables(way))
                .envs(loader.variables());
            setup.sandbox.run(&mut command).ok()
        };
        let bare = run(Way::Bare).stdout;
        assert!(bare.contains("second 0"), "{bare}");
        let ran = run(Way::Beside);
        assert_eq!(ran.stdout, bare, "{loader:?}, log:\n{}", ran.stderr);
    }
}

const MEANWHILE: &str = r#"
import ctypes, sys, threading
P, U, S = ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t
def build(path, rounds):
    cl = ctypes.CDLL(path)
    for name in ("clCreateContext", "clCreateProgramWithSource", "clCreateKernel"):
        getattr(cl, name).restype = P
    platform, device, codes = P(), P(), set()
    codes.add(cl.clGetPlatformIDs(1, ctypes.byref(platform), None))
    codes.add(cl.clGetDeviceIDs(platform, ctypes.c_ulong(0xffffffff), 1, ctypes.byref(device), None))
    context = P(cl.clCreateContext(None, 1, ctypes.byref(device), None, None, None))
    for number in range(rounds):
        lines = (ctypes.c_char_p * 1)(b"__kernel void f(__global uint *out) { out[0] = 7; }")
        program = P(cl.clCreateProgramWithSource(context, 1, lines, None, None))
        codes.add(cl.clBuildProgram(program, 0, None, b"-DN=%d" % (number % 7), None, None))
        kernel = P(cl.clCreateKernel(program, b"f", None))
        codes.add(0 if kernel.value else 1)
        codes.add(cl.clReleaseKernel(kernel) | cl.clReleaseProgram(program))
    return codes
started = threading.Event()
found = []
def first():
    build(sys.argv[1], 1)
    started.set()
    found.append(build(sys.argv[1], 200))
threads = [threading.Thread(target=first) for _ in range(3)]
for thread in threads: thread.start()
started.wait()
print("second", *build(sys.argv[2], 20))
for thread in threads: thread.join()
print("first", *set().union(*found))
"#;

/// The spy in front of a driver of ICD 2.0 hides nothing of it and misses nothing, whether the loader calls functions that it got by
/// name or those of the driver's table.
#[test]
fn the_spy_counts_what_a_driver_of_icd_2_compiles() {
    for null in ["", "clBuildProgram clCreateProgramWithSource"] {
        let variables = [("STUB_ICD2", "1"), ("STUB_NULL_SLOTS", null)];
        let mut sandbox = Sandbox::stub();
        for (name, value) in variables {
            sandbox.set(name, value);
        }
        let setup = Setup::new(sandbox, &text(example("libspy.so")));
        for loader in with_icd2() {
            let ran = setup.run(&loader, Way::Bare, &[]);
            let counted = (ran.source_builds(), setup.compilations());
            assert_eq!(counted, (1, 1), "{null:?}, {loader:?}");
            if loader.name == Name::Own {
                let log = std::fs::read_to_string(setup.sandbox.path("loader.log"));
                let log = log.expect("the loader's steps");
                assert!(log.lines().any(|line| line == "tagged"), "{log}");
            }
            let ways = if null.is_empty() {
                &Way::CACHED[..]
            } else {
                &[]
            };
            for way in ways {
                setup.is_cached(&loader, *way, &[], &|ran| {
                    let builds = ran.source_builds();
                    assert_eq!(setup.compilations(), builds, "{way:?}, {loader:?}");
                    builds
                });
            }
        }
        // The driver's table with the spy's functions is called once the tag is gone.
        if null.is_empty() {
            for loader in loaders() {
                setup.is_cached(&loader, Way::Beside, &[], &Ran::source_builds);
            }
        }
    }
}

/// Real drivers behind the spy: see `real_drivers_are_cached_through_the_layer_and_through_us_alone` for the other ways.
#[test]
fn beside_real_drivers_of_this_machine_each_loader_is_cached() {
    for driver in some_of(&[Driver::Pocl, Driver::Intel, Driver::Rusticl]) {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let setup = Setup::new(sandbox, &text(example("libspy.so")));
        for loader in loaders() {
            setup.is_cached(&loader, Way::Beside, &[], &Ran::source_builds);
        }
    }
}
