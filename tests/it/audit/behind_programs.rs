//! Audits in bakers that are started behind programs, or work while programs end.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{SOURCE, key, marks, run};
use crate::autobake::Behind;
use crate::support::{Sandbox, Way, example, skipped, tree};

const FAR_TOO_LONG: Duration = Duration::from_secs(40);

/// Programs that end while a baker audits start no other one.
#[test]
fn what_a_program_leaves_while_an_entry_is_audited_is_baked() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("STUB_HELD", sandbox.path("held"));
    run(&sandbox);
    let audited = key(&sandbox);
    // Left elsewhere, since no program can compile while the audit is held.
    sandbox.write("home/kernel.cl", SOURCE.replace("* 3", "* 5"));
    let mut command = sandbox.kernel_in(&sandbox.path("home"), "");
    command.env("OCLCACHE_DIR", sandbox.path("elsewhere"));
    sandbox.run(command.env("OCLCACHE_RECORD", "bake")).ok();
    let left = tree(&sandbox.path("elsewhere/v1/entries")).into_keys();
    let left = left.filter(|path| path.is_file()).collect::<Vec<_>>();
    let [left] = &left[..] else {
        panic!("one recipe: {left:?}");
    };
    let there = sandbox
        .path("cache")
        .join(left.strip_prefix(sandbox.path("elsewhere")).expect("below"));

    sandbox.write("held", "");
    let mut command = sandbox.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
    command.args(["bake", "--json", "--audit", &audited]);
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut baker = command.spawn().expect("started");
    let started = Instant::now();
    // The first two were those of the programs.
    while sandbox.compilations() < 3 {
        assert!(started.elapsed() < FAR_TOO_LONG, "it does not audit");
        std::thread::sleep(Duration::from_millis(5));
    }
    fs::create_dir_all(there.parent().expect("a directory")).expect("made");
    fs::rename(left, &there).expect("moved");
    fs::remove_file(sandbox.path("held")).expect("removed");
    let said = std::io::read_to_string(baker.stdout.take().expect("a pipe")).expect("text");
    assert!(baker.wait().expect("ended").success(), "{said}");
    let json: Value = serde_json::from_str(&said).expect("JSON");
    assert_eq!(json["audits"]["agreed"].as_array().map(Vec::len), Some(1));
    assert_eq!(json["baked"].as_array().map(Vec::len), Some(1), "{said}");
}

/// A program behind which a process may be started, with an entry of its own.
fn behind(test: &str, program: &Path) -> Option<Behind> {
    let mut behind = Behind::with(test, program)?;
    behind.sandbox.set("OCLCACHE_RECORD", "inline");
    let file = behind.sandbox.write("code", "then");
    behind.sandbox.set("STUB_CODE_FILE", file);
    run(&behind.sandbox);
    // One that gathers the names that were searched for.
    behind.let_go();
    Some(behind)
}

#[test]
fn a_program_that_only_hits_starts_one_baker_for_what_was_chosen() {
    let Some(mut behind) = behind("bakers for audits", &example("client")) else {
        return;
    };
    behind.sandbox.set("OCLCACHE_AUDIT", "1");
    let key = key(&behind.sandbox);
    let source = behind.sandbox.path("kernel.cl").display().to_string();
    let arguments = ["keys", "--source", &source, "--options", "", "--times", "3"];
    for (variables, expected) in [
        (&[][..], 1),
        (&[("OCLCACHE_AUDIT", "0")][..], 0),
        (&[("OCLCACHE_AUTOBAKE", "0")], 0),
        (&[("OCLCACHE_READONLY", "1")], 0),
        (&[("OCLCACHE_AUTOBAKE", "auto"), ("CI", "true")], 0),
    ] {
        let mut command = behind.sandbox.command(Way::Cached, example("client"));
        command.args(arguments).envs(variables.iter().copied());
        let ran = behind.sandbox.run(&mut command).ok();
        assert_eq!(ran.source_builds(), 0, "{variables:?}: {}", ran.stderr);
        assert_eq!(behind.running().len(), expected, "{variables:?}");
        if expected > 0 {
            let found = behind.found();
            let chosen = found.matches(&format!("--audit={key}")).count();
            assert_eq!(chosen, 3, "{found}");
        }
        behind.let_go();
    }
}

/// Of the calls that make, change or remove files, those that name one.
fn written(behind: &Behind) -> Vec<String> {
    let trace = behind.sandbox.path("trace");
    let mut command = behind.sandbox.command(Way::Cached, "strace");
    command
        .args(["-s", "4096", "-e", "trace=file,desc", "-o"])
        .arg(&trace)
        .arg(example("client"))
        .args(["run", "--kernel", "f", "--options", "", "--source"])
        .arg(behind.sandbox.path("kernel.cl"));
    let ran = behind.sandbox.run(&mut command).ok();
    assert_eq!(ran.source_builds(), 0, "{}", ran.stderr);
    let text = fs::read_to_string(trace).expect("a trace");
    let writes = |line: &&str| {
        let names = [
            "O_WRONLY",
            "O_RDWR",
            "O_CREAT",
            "mkdir",
            "rename",
            "unlink",
            "utime",
            "ftruncate",
        ];
        let is_device = line.contains("/dev/") || line.contains("/proc/");
        !is_device && names.iter().any(|name| line.contains(name))
    };
    // The process and the time are in names of files.
    let plain = |line: &str| {
        line.chars()
            .filter(|letter| !letter.is_ascii_hexdigit())
            .collect()
    };
    text.lines().filter(writes).map(plain).collect()
}

#[test]
fn a_hit_that_is_chosen_writes_no_more_than_another() {
    let test = "a system-call trace of a hit that is chosen";
    let has = Command::new("strace")
        .arg("-V")
        .stdout(Stdio::null())
        .status();
    if has.is_err() {
        return skipped(format_args!("{test} (no strace)"));
    }
    let Some(mut behind) = behind(test, &example("client")) else {
        return;
    };
    // The first load of an entry notes that the driver takes it.
    written(&behind);
    // Now and then a process also merges the counters of others, whatever it does.
    let is_of_a_merge = |line: &String| line.contains("totl.json") || line.contains("\"sum-");
    let merges = |written: &[String]| written.iter().any(is_of_a_merge);
    let [other, chosen] = ["0", "1"].map(|count| {
        behind.sandbox.set("OCLCACHE_AUDIT", count);
        let mut traces = (0..8).map(|_| {
            let written = written(&behind);
            behind.let_go();
            written
        });
        let usual = traces.find(|written| !merges(written));
        usual.expect("a process that merges nothing")
    });
    assert!(!other.is_empty());
    assert_eq!(chosen, other);
}

/// With nothing done by hand: the wrong hit is found behind the program that got it, and the next one is served by the driver.
#[test]
fn a_wrong_hit_is_found_behind_the_program() {
    let real = Path::new(env!("CARGO_BIN_EXE_oclcache"));
    let Some(mut behind) = behind("audits behind programs", real) else {
        return;
    };
    behind.sandbox.set("OCLCACHE_AUDIT", "1");
    run(&behind.sandbox);
    behind.ended();
    assert_eq!(behind.sandbox.stat("audited"), 1);
    assert!(marks(&behind.sandbox).is_empty());
    behind.sandbox.write("code", "now");
    // Not by what the driver compiled: the baker behind it may have begun by then.
    let log = run(&behind.sandbox).stderr;
    assert!(log.contains("outcome=\"hit\""), "{log}");
    behind.ended();
    assert_eq!(behind.sandbox.stat("audit_differed"), 1);
    assert_eq!(run(&behind.sandbox).source_builds(), 1);
    behind.ended();
}
