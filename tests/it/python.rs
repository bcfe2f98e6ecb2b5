//! The Python module in processes with PyOpenCL: `enable`, `disable` and `stats`.

use std::fs;
use std::path::Path;
use std::process::Command;

use crate::support::{
    Driver, Ran, Sandbox, Way, copy_program, given, is_root, library, python, skipped,
};

/// Builds one program. The first argument says where the cache is enabled, the second what else happens.
const PROGRAM: &str = r#"
import os, shutil, subprocess, sys
when, what = sys.argv[1:]
if when != "never":
    import oclcache
if when == "first":
    assert oclcache.enable() and oclcache.enable()
import pyopencl
if when == "imported":
    assert oclcache.enable()
if what == "child":
    sys.exit(subprocess.call([sys.executable, *sys.argv[:1], "never", "build"]))
if what == "orphan":
    shutil.rmtree(os.path.dirname(oclcache.__file__))
    sys.exit(subprocess.call([sys.executable, *sys.argv[:1], "never", "build"]))
if what == "disabled":
    oclcache.disable()
platforms = pyopencl.get_platforms()
print("platforms", [platform.name for platform in platforms])
if when == "late":
    try:
        oclcache.enable()
    except oclcache.Error as error:
        print("refused:", error)
context = pyopencl.Context(platforms[0].get_devices()[:1])
source = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 7; }"
program = pyopencl.Program(context, source).build("-DWHO=2")
print("kernels", [kernel.function_name for kernel in program.all_kernels()])
"#;

/// A sandbox with the module, as a wheel installs it, and no other registration of the library.
fn sandbox(driver: Driver) -> Option<Sandbox> {
    if given("OCLCACHE_TEST_PYTHON").is_none() {
        skipped("the Python module (OCLCACHE_TEST_PYTHON is not set)");
        return None;
    }
    let mut sandbox = Sandbox::new(driver)?;
    let package = sandbox.path("site/oclcache");
    fs::create_dir_all(&package).expect("made");
    let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("icd/python/oclcache/__init__.py");
    copy_program(module, &package.join("__init__.py"));
    copy_program(env!("CARGO_BIN_EXE_oclcache"), &package.join("oclcache"));
    copy_program(library(), &package.join("liboclcache.so"));
    sandbox.write("program.py", PROGRAM);
    sandbox.set("PYTHONPATH", sandbox.path("site"));
    sandbox.set("PYTHONDONTWRITEBYTECODE", "1");
    sandbox.set("PYOPENCL_NO_CACHE", "1");
    sandbox.set("OCLCACHE_DIR", sandbox.path("cache"));
    sandbox.set("OCLCACHE_SYSTEM_DIRS", "none");
    Some(sandbox)
}

fn command(sandbox: &Sandbox, arguments: &[&str]) -> Command {
    let mut command = sandbox.command(Way::Bare, python());
    command
        .args(["-W", "error::RuntimeWarning"])
        .args(arguments);
    command
}

fn run(sandbox: &Sandbox, when: &str, what: &str) -> Ran {
    let program = sandbox.path("program.py");
    let program = program.to_str().expect("UTF-8");
    sandbox
        .run(&mut command(sandbox, &[program, when, what]))
        .ok()
}

#[test]
fn a_process_that_enables_the_cache_is_served_as_by_oclcache_run() {
    for driver in [Driver::Stub, Driver::Pocl] {
        let Some(sandbox) = sandbox(driver) else {
            continue;
        };
        let bare = run(&sandbox, "never", "build");
        assert_eq!(bare.source_builds(), 1);
        assert_eq!(run(&sandbox, "first", "build").source_builds(), 1);
        // An imported module has not asked the loader for anything, and children inherit the setting.
        for (when, what) in [
            ("first", "build"),
            ("imported", "build"),
            ("first", "child"),
        ] {
            let warm = run(&sandbox, when, what);
            assert_eq!(warm.stdout, bare.stdout, "{driver:?}, {when}, {what}");
            assert_eq!(warm.source_builds(), 0, "{driver:?}, {when}, {what}");
        }
        let disabled = run(&sandbox, "first", "disabled");
        assert_eq!(disabled.source_builds(), 1, "{driver:?}, disabled");
    }
}

#[test]
fn a_loader_that_has_opened_its_drivers_is_refused_with_what_to_do() {
    let Some(sandbox) = sandbox(Driver::Stub) else {
        return;
    };
    let late = run(&sandbox, "late", "build");
    let expected = "call `oclcache.enable()` before the first OpenCL call, or start the program with `oclcache run`";
    assert!(late.stdout.contains(expected), "{}", late.stdout);
    assert_eq!(late.source_builds(), 1);
}

#[test]
fn children_find_the_drivers_after_the_package_was_removed() {
    let Some(sandbox) = sandbox(Driver::Stub) else {
        return;
    };
    let bare = run(&sandbox, "never", "build");
    let orphan = run(&sandbox, "first", "orphan");
    assert_eq!(orphan.stdout, bare.stdout);
    assert_eq!(orphan.source_builds(), 1);
    // What was made for it goes with the next clean-up.
    let made = || fs::read_dir(sandbox.path("home/.local/share/oclcache")).expect("read");
    assert_eq!(made().count(), 1);
    sandbox.oclcache(&["gc"]).ok();
    assert_eq!(made().count(), 0);
}

#[test]
fn a_directory_without_drivers_stays_without() {
    let Some(sandbox) = sandbox(Driver::Stub) else {
        return;
    };
    fs::create_dir(sandbox.path("none")).expect("made");
    let code = "import oclcache; oclcache.enable(); import pyopencl\n\
                try: print(pyopencl.get_platforms())\n\
                except pyopencl.LogicError as error: print('none')";
    let mut command = command(&sandbox, &["-c", code]);
    command.env("OCL_ICD_VENDORS", sandbox.path("none"));
    assert_eq!(sandbox.run(&mut command).ok().stdout, "none\n");
}

#[test]
fn stats_is_a_dictionary_of_all_programs() {
    let Some(sandbox) = sandbox(Driver::Stub) else {
        return;
    };
    run(&sandbox, "first", "build");
    run(&sandbox, "first", "build");
    let code = "import oclcache; found = oclcache.stats(); print(found['hits'], found['misses'])";
    let ran = sandbox.run(&mut command(&sandbox, &["-c", code])).ok();
    assert_eq!(ran.stdout, "1 1\n");
}

#[test]
fn a_process_with_raised_privileges_is_refused() {
    let Some(sandbox) = sandbox(Driver::Stub) else {
        return;
    };
    if !is_root() {
        return skipped("a process with raised privileges (the tests do not run as root)");
    }
    let code = "import os, oclcache; os.seteuid(65534)\n\
                try: oclcache.enable()\n\
                except oclcache.Error as error: print(error)\n\
                print(os.environ['OCL_ICD_VENDORS'])";
    let ran = sandbox.run(&mut command(&sandbox, &["-c", code])).ok();
    let vendors = sandbox.path("spy").display().to_string();
    assert!(ran.stdout.starts_with("this process has more privileges"));
    assert!(
        ran.stdout.ends_with(&format!("\n{vendors}\n")),
        "{}",
        ran.stdout
    );
}

#[test]
fn without_a_place_for_the_cache_the_program_runs_bare_and_is_told() {
    let Some(sandbox) = sandbox(Driver::Stub) else {
        return;
    };
    let program = sandbox.path("program.py");
    let code = "import sys, oclcache; sys.argv[1:] = ['never', 'build']\n\
                print(oclcache.enable()); exec(open('PROGRAM').read())";
    let code = code.replace("PROGRAM", program.to_str().expect("UTF-8"));
    let mut command = sandbox.command(Way::Bare, python());
    command.args(["-c", &code]);
    command.env_remove("HOME").env("OCLCACHE_DIR", "relative");
    let ran = sandbox.run(&mut command).ok();
    let warned = ran
        .stderr
        .contains("RuntimeWarning: oclcache is not enabled: ");
    assert!(
        warned && ran.stdout.starts_with("False\n"),
        "{}",
        ran.stderr
    );
    assert_eq!(ran.source_builds(), 1);
}
