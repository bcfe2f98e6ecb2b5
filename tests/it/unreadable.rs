//! What cannot be looked at for now, since no descriptor is left or a disk fails, changes no key: the build has its usual key or none,
//! and later processes have theirs.

use std::collections::BTreeSet;
use std::process::Command;

use crate::functions::shared;
use crate::support::{Driver, Ran, Sandbox, Way, example, plain_command, skipped};

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 7; }\n";

/// How many of the calls of each kind fail, one in each process.
const TRIED: usize = 6;

fn client(sandbox: &Sandbox) -> Command {
    let mut command = sandbox.command(Way::Cached, example("client"));
    command
        .args(["run", "--kernel", "f", "--source"])
        .arg(sandbox.write("kernel.cl", SOURCE));
    command
}

/// The same under strace, with its options.
fn traced(sandbox: &Sandbox, options: &[&str]) -> Command {
    under_strace(sandbox, &client(sandbox), options)
}

fn under_strace(sandbox: &Sandbox, own: &Command, options: &[&str]) -> Command {
    let mut command = plain_command("strace");
    command.args(["-f", "-qq", "-o"]).arg(sandbox.path("trace"));
    command
        .args(options)
        .arg(own.get_program())
        .args(own.get_args());
    for (name, value) in own.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    command
}

/// The keys that the log names.
fn keys(ran: &Ran) -> BTreeSet<String> {
    let built = ran.stderr.lines().filter(|line| line.contains("outcome="));
    let keys = built.filter_map(|line| line.split("key=\"").nth(1)?.split('"').next());
    keys.filter(|key| !key.is_empty())
        .map(str::to_owned)
        .collect()
}

/// Forgets what searches for the driver's files found, and their digests, so that the next process looks at all of them. The names in
/// libraries take long to find.
fn forget(sandbox: &Sandbox) {
    let store = sandbox.path("cache/v1");
    let _ = std::fs::remove_dir_all(store.join("digests"));
    for file in std::fs::read_dir(store.join("names")).expect("listed") {
        let path = file.expect("a file").path();
        let content = std::fs::read(&path).expect("read");
        if content.starts_with(b"oclcsrch") {
            std::fs::remove_file(path).expect("removed");
        }
    }
}

#[test]
fn what_cannot_be_looked_at_for_now_makes_no_other_key() {
    if plain_command("strace").arg("-V").output().is_err() {
        return skipped("failing system calls (there is no strace)");
    }
    for driver in [Driver::Stub, Driver::Pocl] {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let first = sandbox.run(&mut client(&sandbox)).ok();
        let usual = keys(&first);
        assert_eq!(usual.len(), 1, "{driver:?}: {}", first.stderr);
        for (call, error) in [
            ("openat", "EMFILE"),
            ("openat", "EIO"),
            ("getdents64", "EIO"),
        ] {
            forget(&sandbox);
            let counted = sandbox.run(&mut traced(&sandbox, &["-e", &format!("trace={call}")]));
            assert_eq!(keys(&counted), usual, "{driver:?}: {}", counted.stderr);
            let trace = std::fs::read_to_string(sandbox.path("trace")).expect("a trace");
            let calls = trace.lines().count();
            let mut served = 0;
            for step in 0..TRIED.min(calls) {
                let number = calls - step * calls / TRIED.min(calls);
                let inject = format!("inject={call}:error={error}:when={number}");
                forget(&sandbox);
                let ran = sandbox.run(&mut traced(
                    &sandbox,
                    &["-e", &format!("trace={call}"), "-e", &inject],
                ));
                let about = format!("{driver:?}, {call} {number} of {calls} with {error}");
                // Where the driver itself fails it builds nothing.
                assert!(keys(&ran).is_subset(&usual), "{about}: {}", ran.stderr);
                served += usize::from(ran.source_builds() == 0 && ran.code == Some(0));
                let later = sandbox.run(&mut client(&sandbox)).ok();
                assert_eq!(keys(&later), usual, "after {about}: {}", later.stderr);
                assert_eq!(later.source_builds(), 0, "after {about}: {}", later.stderr);
            }
            assert!(
                calls == 0 || served > 0,
                "{driver:?}: each failing {call} was a miss"
            );
        }
    }
}

/// A first build, whose driver is identified on a thread. Only that thread and those that help it read so often; strace counts the calls of
/// each.
#[test]
fn what_cannot_be_read_for_now_leaves_the_next_process_the_first() {
    if plain_command("strace").arg("-V").output().is_err() {
        return skipped("failing system calls (there is no strace)");
    }
    for (driver, reads) in [(Driver::Stub, 24), (Driver::Intel, 400)] {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        sandbox.set("OCLCACHE_LOG", "debug");
        let first = "a first build: the driver is identified meanwhile";
        let failing = format!("inject=pread64:error=EIO:when={reads}+");
        let options = ["-e", "trace=pread64", "-e", &failing];
        let ran = sandbox.run(&mut traced(&sandbox, &options));
        assert!(ran.stderr.contains(first), "{driver:?}: {}", ran.stderr);
        assert!(keys(&ran).is_empty(), "{driver:?}: {}", ran.stderr);
        assert_eq!(sandbox.stat("bypass_reasons/unidentified_driver"), 1);
        let next = sandbox.run(&mut client(&sandbox)).ok();
        assert!(next.stderr.contains(first), "{driver:?}: {}", next.stderr);
        let later = sandbox.run(&mut client(&sandbox)).ok();
        assert_eq!(later.source_builds(), 0, "{driver:?}: {}", later.stderr);
    }
}

/// It has opened libraries meanwhile that later processes have not when they look.
#[test]
fn a_driver_that_cannot_be_read_for_now_is_not_looked_at_again_while_it_builds() {
    if plain_command("strace").arg("-V").output().is_err() {
        return skipped("failing system calls (there is no strace)");
    }
    let mut sandbox = Sandbox::stub();
    sandbox.without_spy();
    let mut unidentified = 0;
    for reads in 16..40 {
        let _ = std::fs::remove_dir_all(sandbox.path("cache"));
        let failing = format!("inject=pread64:error=EIO:when={reads}");
        let options = ["-e", "trace=pread64", "-e", &failing];
        let ran = sandbox.run(&mut traced(&sandbox, &options)).ok();
        unidentified += usize::from(ran.stderr.contains("unidentified_driver"));
    }
    // What else is read is read again.
    assert!(unidentified > 0);
}

#[test]
fn a_library_that_answers_and_cannot_be_read_for_now_costs_one_build() {
    if plain_command("strace").arg("-V").output().is_err() {
        return skipped("failing system calls (there is no strace)");
    }
    let sandbox = Sandbox::stub();
    let text = "long a64l(const char *text) { (void)text; return 7; }\n";
    let Some(library) = shared(&sandbox, "answering", text, &["-Wl,--build-id=none"]) else {
        return;
    };
    // Not the first build, whose driver another thread identifies.
    sandbox.run(&mut client(&sandbox)).ok();
    let mut two = sandbox.command(Way::Cached, example("client"));
    two.args(["keys", "--times", "1"]);
    for (name, value) in [("one.cl", "8"), ("two.cl", "9")] {
        let source = sandbox.write(name, SOURCE.replace('7', value));
        two.arg("--source").arg(source);
    }
    let library = library.to_str().expect("UTF-8");
    let preloaded = format!("LD_PRELOAD={library}");
    // A read that fails is tried three times more.
    let failing = "inject=pread64:error=EIO:when=1..4";
    let options = [
        "-E",
        &preloaded,
        "-P",
        library,
        "-e",
        "trace=pread64",
        "-e",
        failing,
    ];
    let ran = sandbox
        .run(&mut under_strace(&sandbox, &two, &options))
        .ok();
    assert_eq!(sandbox.stat("bypass_reasons/unidentified_function"), 1);
    assert_eq!(keys(&ran).len(), 1, "{}", ran.stderr);
}
