//! Callbacks of builds that an application leaves by a C++ exception, or by the end of its thread: that passes as it does bare, and all
//! goes on.
//!
//! Intel's CPU runtime lets neither pass bare (measured), so nothing is asked of it.

use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{Driver, Ran, Sandbox, Way, library, skipped, some_of};

/// How the program of unwinding.cpp leaves its callbacks.
const LEFT: [&str; 3] = ["throw", "exit", "cancel"];

const COUNTERS: [&str; 8] = [
    "hits",
    "misses",
    "failed",
    "bypassed",
    "not_stored",
    "set_aside",
    "waited",
    "materialised",
];

fn counters(sandbox: &Sandbox) -> [u64; 8] {
    COUNTERS.map(|name| sandbox.stat(name))
}

/// The program of unwinding.cpp; None, said by name, if it cannot be made.
fn program(sandbox: &Sandbox) -> Option<PathBuf> {
    if !Path::new("/usr/include/CL/cl.h").exists() {
        skipped("exceptions in callbacks (no CL/cl.h: opencl-headers is not installed)");
        return None;
    }
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/unwinding.cpp");
    let program = sandbox.path("unwinding");
    let mut compiler = Command::new("c++");
    compiler.arg("-O1").arg("-o").arg(&program).arg(source);
    compiler.args(["-l:libOpenCL.so.1", "-lpthread"]);
    let flags = std::env::var("OCLCACHE_TEST_CXXFLAGS").unwrap_or_default();
    compiler.args(flags.split_whitespace());
    match compiler.status() {
        Ok(status) => assert!(status.success(), "unwinding.cpp does not compile"),
        Err(error) => {
            skipped(format_args!("exceptions in callbacks (c++: {error})"));
            return None;
        }
    }
    Some(program)
}

/// The program, under the tool that `ci/sanitize` names.
fn command(sandbox: &Sandbox, way: Way, program: &Path) -> Command {
    let tool = std::env::var("OCLCACHE_TEST_UNDER").unwrap_or_default();
    let mut words = tool.split_whitespace();
    match words.next() {
        None => sandbox.command(way, program),
        Some(first) => {
            let mut command = sandbox.command(way, first);
            command.args(words).arg(program);
            command
        }
    }
}

fn run(sandbox: &Sandbox, way: Way, program: &Path, how: &str, calls: &[&str]) -> Ran {
    let mut command = command(sandbox, way, program);
    sandbox.run(command.arg(how).args(calls)).ok()
}

/// What the application has left, by what it says: each callback but those that were never called.
#[track_caller]
fn were_left(ran: &Ran, how: &str) {
    let said = |word: &str| {
        ran.stdout
            .lines()
            .filter(|line| line.ends_with(word))
            .count()
    };
    let (left, told) = match how {
        "throw" => (said(" caught 42"), said(" data")),
        "exit" => (said(" thread ended"), said(" data")),
        _ => (said(" thread canceled"), said(" data")),
    };
    assert!(left > 0 && left == told, "{how}:\n{}", ran.stdout);
}

#[test]
fn an_exception_and_the_end_of_a_thread_pass_through_a_callback_as_they_do_bare() {
    for driver in some_of(&[Driver::Stub, Driver::Pocl, Driver::Rusticl]) {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let Some(program) = program(&sandbox) else {
            return;
        };
        let calls = match driver {
            // Bare PoCL 3.1 ends the process in builds of a link's result, if its binary was asked for.
            Driver::Pocl => &["build", "compile", "link", "over", "nested", "many"][..],
            _ => &[
                "build", "compile", "link", "over", "linked", "nested", "many",
            ],
        };
        let forget = || {
            let _ = std::fs::remove_dir_all(sandbox.path("cache"));
        };
        let cached = |how| {
            let ran = run(&sandbox, Way::Cached, &program, how, calls);
            (ran, counters(&sandbox))
        };
        let (_, usual) = cached("return");
        // Where cancelling is concerned, a driver is as good as another.
        for how in &LEFT[..if driver == Driver::Stub { 3 } else { 2 }] {
            forget();
            let bare = run(&sandbox, Way::Bare, &program, how, calls);
            were_left(&bare, how);
            let (cold, counted) = cached(how);
            assert_eq!(cold.stdout, bare.stdout, "{driver:?}, {}", cold.stderr);
            let mut expected = usual;
            if driver == Driver::Pocl {
                // It calls back for a build that it refuses, so nobody knows what has become of the program: it is not cached any
                // more, and another that is built like it is no hit.
                let [hits, misses, failed, bypassed, rest @ ..] = usual;
                let [a, b, c, d] = rest;
                expected = [hits - 1, misses, failed - 1, bypassed + 1, a, b, c, d];
            }
            assert_eq!(counted, expected, "{driver:?}, {how}: {COUNTERS:?}");
            let (warm, counted) = cached(how);
            assert_eq!(warm.stdout, bare.stdout, "{driver:?}, {}", warm.stderr);
            assert!(warm.compiler_runs() < bare.compiler_runs(), "{driver:?}");
            assert_eq!(counted[6], 0, "{driver:?}, {how}: something was waited for");
        }
    }
}

/// A build that the driver may refuse is judged by what the function returns, which it does not here.
#[test]
fn a_build_that_never_returned_is_not_recorded_and_nobody_waits_for_it() {
    for how in LEFT {
        let mut sandbox = Sandbox::stub();
        // It calls back for a build over a live kernel.
        sandbox.set("STUB_REBUILD", "permissive");
        let Some(program) = program(&sandbox) else {
            return;
        };
        let bare = run(&sandbox, Way::Bare, &program, how, &["over"]);
        were_left(&bare, how);
        let cold = run(&sandbox, Way::Cached, &program, how, &["over"]);
        assert_eq!(cold.stdout, bare.stdout, "{}", cold.stderr);
        // The first build and what two other programs want are recorded, and nothing of the program since: nobody knows what has
        // become of it.
        let expected = [0, 3, 0, 1, 0, 0, 0, 0];
        assert_eq!(counters(&sandbox), expected, "{how}: {COUNTERS:?}");
        assert_eq!(sandbox.entries().len(), 3);
        let warm = run(&sandbox, Way::Cached, &program, how, &["over"]);
        assert_eq!(warm.stdout, bare.stdout, "{}", warm.stderr);
        assert_eq!(sandbox.stat("waited"), 0, "{how}");
    }
}

#[test]
fn an_exception_passes_through_the_layer() {
    let sandbox = Sandbox::stub();
    let Some(program) = program(&sandbox) else {
        return;
    };
    let calls = ["build", "compile", "link", "over", "nested", "many"];
    for how in LEFT {
        let bare = run(&sandbox, Way::Bare, &program, how, &calls);
        for _ in ["cold", "warm"] {
            let mut command = command(&sandbox, Way::Cached, &program);
            command
                .env("OCL_ICD_VENDORS", sandbox.path("spy"))
                .env("OPENCL_LAYERS", library());
            let ran = sandbox.run(command.arg(how).args(calls)).ok();
            assert_eq!(ran.stdout, bare.stdout, "{how}: {}", ran.stderr);
        }
    }
    assert!(sandbox.stat("hits") > 0, "the layer was not used");
}
