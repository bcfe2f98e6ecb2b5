//! Programs that know nothing of us: their second process compiles nothing and computes the same.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Driver, Ran, Sandbox, Way, example, given, python, skipped};

fn source(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/support")
        .join(name)
}

/// The driver and a sandbox on it, for those that execute kernels.
fn compilers() -> impl Iterator<Item = (Driver, Sandbox)> {
    [Driver::Pocl, Driver::Intel]
        .into_iter()
        .filter_map(|driver| Some((driver, Sandbox::new(driver)?)))
}

/// The program prints the same bare, cold and warm; warm, the driver builds nothing.
#[track_caller]
fn second_process_is_served(driver: Driver, sandbox: &Sandbox, run: &dyn Fn(Way) -> Ran) {
    let bare = run(Way::Bare).ok();
    assert!(bare.stdout.contains("OK\n"), "{driver:?}: {}", bare.stdout);
    let builds = bare.source_builds();
    assert!(builds > 0, "{driver:?}: the program builds nothing");
    let cold = run(Way::Cached).ok();
    assert_eq!(
        cold.stdout, bare.stdout,
        "{driver:?}, log:\n{}",
        cold.stderr
    );
    assert_eq!(cold.source_builds(), builds, "{driver:?}, cold");
    let counted = |names: [&str; 4]| names.map(|name| sandbox.stat(name));
    let names = ["misses", "hits", "bypassed", "failed"];
    assert_eq!(counted(names), [builds as u64, 0, 0, 0], "{driver:?}");
    for round in 1..=2 {
        let warm = run(Way::Cached).ok();
        let log = &warm.stderr;
        assert_eq!(warm.stdout, bare.stdout, "{driver:?}, log:\n{log}");
        assert_eq!(warm.source_builds(), 0, "{driver:?}, log:\n{log}");
        let (builds, hits) = (builds as u64, builds as u64 * round);
        assert_eq!(counted(names), [builds, hits, 0, 0], "{driver:?}");
    }
}

#[test]
fn a_pyopencl_program_is_served_in_its_second_process() {
    if given("OCLCACHE_TEST_PYTHON").is_none() {
        skipped("a PyOpenCL program (OCLCACHE_TEST_PYTHON is not set)");
        return;
    }
    for (driver, sandbox) in compilers() {
        let run = |way| {
            let mut command = sandbox.command(way, python());
            command
                .args(["-B", "-W", "ignore"])
                .arg(source("pyopencl_program.py"))
                .env("PYOPENCL_NO_CACHE", "1");
            sandbox.run(&mut command)
        };
        second_process_is_served(driver, &sandbox, &run);
    }
}

/// PyOpenCL writes another random name into each source that its own cache does not know, so that no other cache would know it.
#[test]
fn a_pyopencl_program_is_served_when_its_own_cache_is_emptied() {
    if given("OCLCACHE_TEST_PYTHON").is_none() {
        skipped("a PyOpenCL program with an empty cache (OCLCACHE_TEST_PYTHON is not set)");
        return;
    }
    for (driver, sandbox) in compilers() {
        let own = sandbox.path("own");
        let run = |way| {
            let _ = fs::remove_dir_all(&own);
            let mut command = sandbox.command(way, python());
            command
                .args(["-B", "-W", "ignore"])
                .arg(source("pyopencl_program.py"))
                .env("XDG_CACHE_HOME", &own)
                .env_remove("PYOPENCL_NO_CACHE");
            let ran = sandbox.run(&mut command);
            // PyOpenCL leaves it off on PoCL, which has one.
            let is_used = own.join("pyopencl").is_dir();
            assert_eq!(is_used, driver == Driver::Intel, "PyOpenCL's own cache");
            ran
        };
        second_process_is_served(driver, &sandbox, &run);
    }
}

/// A virtual environment with links to all packages of the given one, and a home and a working directory of its own.
struct Environment {
    python: PathBuf,
    home: PathBuf,
    directory: PathBuf,
    program: PathBuf,
}

impl Environment {
    fn new(sandbox: &Sandbox, name: &str) -> Environment {
        let root = sandbox.path(name);
        let (home, directory) = (root.join("home"), root.join("work"));
        for made in [&home, &directory] {
            fs::create_dir_all(made).expect("made");
        }
        let venv = root.join("venv");
        let mut command = Command::new(python());
        let made = command
            .args(["-m", "venv", "--without-pip"])
            .arg(&venv)
            .status();
        assert!(made.expect("Python").success(), "no virtual environment");
        let packages = |python: &Path| {
            let words = "import sysconfig; print(sysconfig.get_path('purelib'))";
            let output = Command::new(python).args(["-c", words]).output();
            let path = String::from_utf8(output.expect("Python").stdout).expect("UTF-8");
            PathBuf::from(path.trim())
        };
        let python = venv.join("bin/python");
        let ours = packages(&python);
        for entry in fs::read_dir(packages(&crate::support::python())).expect("packages") {
            let entry = entry.expect("a package");
            symlink(entry.path(), ours.join(entry.file_name())).expect("linked");
        }
        let program = directory.join("program.py");
        fs::copy(source("pyopencl_program.py"), &program).expect("copied");
        Environment {
            python,
            home,
            directory,
            program,
        }
    }

    fn run(&self, sandbox: &Sandbox, way: Way) -> Ran {
        let mut command = sandbox.command(way, &self.python);
        command
            .args(["-B", "-W", "ignore"])
            .arg(&self.program)
            .env("HOME", &self.home)
            .env("PYOPENCL_NO_CACHE", "1")
            .current_dir(&self.directory);
        sandbox.run(&mut command).ok()
    }
}

/// PyOpenCL adds its package's directory to the options as an include directory, though the program includes nothing.
#[test]
fn a_pyopencl_program_hits_from_another_virtual_environment_home_and_directory() {
    if given("OCLCACHE_TEST_PYTHON").is_none() {
        skipped("two virtual environments (OCLCACHE_TEST_PYTHON is not set)");
        return;
    }
    for (driver, sandbox) in compilers() {
        let first = Environment::new(&sandbox, "first");
        let second = Environment::new(&sandbox, "second/elsewhere");
        let bare = first.run(&sandbox, Way::Bare);
        assert!(bare.stdout.contains("OK\n"), "{driver:?}: {}", bare.stdout);
        let cold = first.run(&sandbox, Way::Cached);
        assert_eq!(cold.stdout, bare.stdout, "{driver:?}");
        let entries = sandbox.stat("entries");
        assert_eq!(entries, bare.source_builds() as u64, "{driver:?}");
        for (name, environment) in [("second", &second), ("first", &first)] {
            let warm = environment.run(&sandbox, Way::Cached);
            let log = &warm.stderr;
            assert_eq!(warm.stdout, bare.stdout, "{driver:?}, {name}, log:\n{log}");
            assert_eq!(warm.source_builds(), 0, "{driver:?}, {name}, log:\n{log}");
        }
        let counted = ["misses", "entries", "bypassed", "hits"].map(|name| sandbox.stat(name));
        let expected = [entries, entries, 0, 2 * entries];
        assert_eq!(counted, expected, "{driver:?}");
    }
}

#[test]
fn a_c_program_on_debians_loader_is_served_in_its_second_process() {
    if !Path::new("/usr/include/CL/cl.h").exists() {
        skipped("a C program (no CL/cl.h: opencl-headers is not installed)");
        return;
    }
    for (driver, sandbox) in compilers() {
        let program = sandbox.path("vadd");
        let mut compiler = Command::new("cc");
        compiler.args(["-O1", "-o"]).arg(&program);
        compiler.arg(source("vadd.c")).arg("-l:libOpenCL.so.1");
        match compiler.status() {
            Ok(status) => assert!(status.success(), "vadd.c does not compile"),
            Err(error) => {
                skipped(format_args!("a C program (cc: {error})"));
                return;
            }
        }
        let run = |way| sandbox.run(&mut sandbox.command(way, &program));
        second_process_is_served(driver, &sandbox, &run);
    }
}

#[test]
fn a_rust_program_on_cl3_is_served_in_its_second_process() {
    for (driver, sandbox) in compilers() {
        let run = |way| sandbox.run(&mut sandbox.command(way, example("cl3_program")));
        second_process_is_served(driver, &sandbox, &run);
    }
}
