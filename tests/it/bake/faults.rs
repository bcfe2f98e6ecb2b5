//! Drivers that crash or hang while they are baked for, and bakers that are killed.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{SOURCE, bake, misses, stub};
use crate::support::{Sandbox, Way, example};

/// A sandbox with recipes of a good program and of one that has this word, and the file in which the stub reads such a word.
fn recipes(variable: &str) -> (Sandbox, std::path::PathBuf) {
    let mut sandbox = stub();
    let file = sandbox.path("word");
    sandbox.set(variable, file.as_os_str());
    assert_eq!(misses(&sandbox), 1);
    let bad = SOURCE.replace("* 3", "* 5 /* bad */");
    assert_eq!(
        sandbox.kernel(Way::Cached, &bad, "").ok().source_builds(),
        1
    );
    (sandbox, file)
}

#[test]
fn a_crash_costs_one_recipe_which_is_not_tried_for_ever() {
    let (sandbox, file) = recipes("STUB_CRASH");
    fs::write(&file, "bad").expect("written");
    let crashed = "1 failed (1: the driver crashed (signal 6))";
    assert_eq!(
        bake(&sandbox, &[]),
        format!("1 baked, 0 skipped, {crashed}")
    );
    assert_eq!(misses(&sandbox), 0);
    assert_eq!(
        bake(&sandbox, &[]),
        format!("0 baked, 0 skipped, {crashed}")
    );
    let reason = "it failed 2 times (the driver crashed (signal 6))";
    assert_eq!(
        bake(&sandbox, &[]),
        format!("0 baked, 1 skipped (1: {reason}), 0 failed")
    );
    fs::remove_file(&file).expect("removed");
    assert_eq!(bake(&sandbox, &["--all"]), "1 baked, 0 skipped, 0 failed");
}

#[test]
fn a_hang_costs_one_recipe() {
    let (sandbox, file) = recipes("STUB_STUCK");
    fs::write(&file, "").expect("written");
    // Whichever is first finds the file and removes it.
    let said = bake(&sandbox, &["--timeout", "3s", "--jobs", "1"]);
    assert_eq!(
        said,
        "1 baked, 0 skipped, 1 failed (1: it took longer than 3.0 s)"
    );
    assert_eq!(bake(&sandbox, &[]), "1 baked, 0 skipped, 0 failed");
}

pub(super) fn wait_for(what: &str, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// A baker of these recipes whose driver never returns. `file`: in which the stub reads its word.
fn stuck_baker(sandbox: &Sandbox, file: &Path) -> Child {
    fs::write(file, "").expect("written");
    let mut baker: Command = sandbox.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
    baker.args(["bake", "--jobs", "1"]).stderr(Stdio::null());
    let baker = baker.spawn().expect("a baker");
    wait_for("the baker is stuck", || !file.exists());
    baker
}

#[test]
fn one_baker_works_at_a_time_and_one_that_is_killed_leaves_a_trace() {
    let (mut sandbox, file) = recipes("STUB_STUCK");
    let temporary = sandbox.path("tmp");
    fs::create_dir(&temporary).expect("made");
    sandbox.set("TMPDIR", temporary.as_os_str());
    let mut first = stuck_baker(&sandbox, &file);
    assert_eq!(bake(&sandbox, &["--no-wait"]), "another process is baking");
    let told = sandbox.oclcache(&["bake", "--no-wait", "--json"]);
    let told = told.ok().stdout;
    assert!(told.contains("\"busy\": true"), "{told}");
    assert!(!crate::support::tree(&temporary).is_empty());
    first.kill().expect("killed");
    first.wait().expect("ended");
    let traces = || {
        let files = fs::read_dir(sandbox.path("cache/v1/baking")).expect("a directory");
        let texts = files.map(|file| fs::read_to_string(file.expect("a file").path()));
        texts.collect::<Result<Vec<_>, _>>().expect("read")
    };
    assert_eq!(traces(), ["1 the baker was killed\n"]);
    assert_eq!(bake(&sandbox, &[]), "2 baked, 0 skipped, 0 failed");
    assert!(traces().is_empty());
    assert!(crate::support::tree(&temporary).is_empty());
}

/// A baker in the background may take long, and may not know of what the program has left.
#[test]
fn whoever_asks_for_a_bake_waits_for_another_baker() {
    let (sandbox, file) = recipes("STUB_STUCK");
    let mut first = stuck_baker(&sandbox, &file);
    let mut second: Command = sandbox.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
    second.arg("bake").stderr(Stdio::piped());
    let mut second = second.spawn().expect("a baker");
    let lines = BufReader::new(second.stderr.take().expect("a pipe")).lines();
    let mut lines = lines.map(|line| line.expect("read"));
    let told = lines.next().expect("a line");
    assert_eq!(told, "oclcache: waiting until another process has baked");
    first.kill().expect("killed");
    first.wait().expect("ended");
    let last = lines.last().expect("a line");
    assert_eq!(last, "oclcache: 2 baked, 0 skipped, 0 failed");
    assert!(second.wait().expect("ended").success());
}

#[test]
fn a_run_that_bakes_waits_for_another_baker_and_bakes_the_rest() {
    let (sandbox, file) = recipes("STUB_STUCK");
    let mut first = stuck_baker(&sandbox, &file);
    let source = sandbox.path("kernel.cl");
    let mut run: Command = sandbox.command(Way::Cached, sandbox.installed());
    run.args(["run", "--bake"]).arg(example("client"));
    run.args(["run", "--kernel", "f", "--options", "-DN=9", "--source"]);
    run.arg(source).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut run = run.spawn().expect("a run");
    let lines = BufReader::new(run.stderr.take().expect("a pipe")).lines();
    let mut lines = lines.map(|line| line.expect("read"));
    let mut until = |words: &str| {
        let found = lines.find(|line| line.starts_with(words));
        found.unwrap_or_else(|| panic!("{words}"))
    };
    until("oclcache: 0 hits, 1 miss, ");
    until("oclcache: `--bake`: waiting for `oclcache bake`");
    until("oclcache: waiting until another process has baked");
    first.kill().expect("killed");
    first.wait().expect("ended");
    let headline = until("oclcache: compiling ");
    assert!(
        headline.starts_with("oclcache: compiling 3 recipes, which took "),
        "{headline}"
    );
    until("oclcache: 1 of 3 done, about ");
    until("oclcache: 2 of 3 done, about ");
    until("oclcache: 3 baked, 0 skipped, 0 failed");
    assert!(run.wait().expect("ended").success());
}

/// The priority of a process, and that of the first process that it started.
fn priorities(process: u32) -> (i64, Option<i64>) {
    let facts = |process: &str| {
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
        let (_, behind_name) = stat.rsplit_once(") ")?;
        let number = |index: usize| behind_name.split(' ').nth(index)?.parse::<i64>().ok();
        // Fields 4 and 19 of proc(5); the first one behind the name is field 3.
        Some((number(1)?, number(16)?))
    };
    let listed = fs::read_dir("/proc").expect("processes").flatten();
    let mut others = listed.filter_map(|entry| facts(&entry.file_name().to_string_lossy()));
    let started = others.find(|(parent, _)| *parent == i64::from(process));
    let (_, own) = facts(&process.to_string()).expect("it runs");
    (own, started.map(|(_, nice)| nice))
}

#[test]
fn only_a_baker_for_which_nobody_waits_has_the_lowest_priority() {
    let (own, _) = priorities(std::process::id());
    for (arguments, expected) in [
        (&["bake", "-v"][..], own),
        (&["bake", "--detached", "--anywhere"], 19),
    ] {
        let (sandbox, file) = recipes("STUB_STUCK");
        fs::write(&file, "").expect("written");
        let mut baker: Command = sandbox.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
        baker.args(arguments).args(["--jobs", "1"]);
        let mut baker = baker.stderr(Stdio::null()).spawn().expect("a baker");
        wait_for("the worker is stuck", || !file.exists());
        let found = priorities(baker.id());
        baker.kill().expect("killed");
        baker.wait().expect("ended");
        assert_eq!(found, (expected, Some(expected)), "{arguments:?}");
    }
}

/// The user ends it, or the session is over: nothing is held against what was being baked, and nothing is left behind.
#[test]
fn a_baker_that_is_asked_to_end_does_and_clears_away() {
    let (mut sandbox, file) = recipes("STUB_STUCK");
    let temporary = sandbox.path("temporary");
    fs::create_dir(&temporary).expect("made");
    sandbox.set("TMPDIR", temporary.as_os_str());
    fs::write(&file, "").expect("written");
    let mut baker: Command = sandbox.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
    baker.args(["bake", "--jobs", "1"]).stderr(Stdio::null());
    let mut baker = baker.spawn().expect("a baker");
    wait_for("the baker is stuck", || !file.exists());
    assert!(fs::read_dir(&temporary).expect("listed").next().is_some());
    let pid = rustix::process::Pid::from_child(&baker);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("asked");
    // By the signal, so that a shell stops its loop as well.
    assert_eq!(baker.wait().expect("ended").signal(), Some(2));
    let left: Vec<_> = fs::read_dir(&temporary).expect("listed").collect();
    assert!(left.is_empty(), "{left:?}");
    let attempts = fs::read_dir(sandbox.path("cache/v1/baking")).expect("listed");
    assert_eq!(attempts.count(), 0);
    assert_eq!(bake(&sandbox, &[]), "2 baked, 0 skipped, 0 failed");
}
