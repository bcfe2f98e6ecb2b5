//! What people see of each verb, kept as files: help, tables, words at the end, and what is said where something is wrong.

use std::path::Path;

use crate::snapshots::assert_shown;
use crate::support::{Sandbox, Way, example};

const SOURCE: &str = "__kernel void blur(__global uint *out) { out[get_global_id(0)] = N; }\n";

/// What stands on the terminal after a line, with that line and the exit code.
fn shown(sandbox: &Sandbox, arguments: &[&str]) -> String {
    let mut command = sandbox.command(Way::Cached, sandbox.installed());
    let ran = sandbox.run(command.args(arguments).env("OCLCACHE_LOG", "off"));
    let line = arguments.join(" ");
    let code = ran.code.expect("a code");
    let code = if code == 0 {
        String::new()
    } else {
        format!("exit code {code}\n")
    };
    // Columns are as wide as what stands in them, which another machine's paths and times change.
    let squeeze = |text: String| {
        let lines = text.lines().map(|line| {
            let words = line.split("  ").map(str::trim);
            let words: Vec<&str> = words.filter(|word| !word.is_empty()).collect();
            let indent = if line.starts_with("  ") { "  " } else { "" };
            format!("{indent}{}\n", words.join("  "))
        });
        lines.collect::<String>()
    };
    format!(
        "$ oclcache {line}\n{}{}{code}",
        squeeze(ran.stdout),
        squeeze(ran.stderr)
    )
}

fn build(sandbox: &Sandbox, options: &str) {
    let file = sandbox.write("kernel.cl", SOURCE);
    let mut command = sandbox.command(Way::Cached, example("client"));
    command.args(["run", "--kernel", "blur", "--options", options]);
    sandbox.run(command.arg("--source").arg(file)).ok();
}

/// The help of each verb that has a page, and of those below it.
#[test]
fn the_help_of_each_verb() {
    let sandbox = Sandbox::stub();
    let pages = sandbox.path("man");
    sandbox
        .oclcache(&["man", pages.to_str().expect("UTF-8")])
        .ok();
    let pages = std::fs::read_dir(pages).expect("made").flatten();
    for page in pages.map(|page| page.file_name()) {
        let name = Path::new(&page)
            .file_stem()
            .expect("a name")
            .to_str()
            .expect("UTF-8");
        let verbs = name.split('-').skip(1);
        let arguments: Vec<&str> = verbs.chain(["--help"]).collect();
        let help = sandbox.oclcache(&arguments).ok().stdout;
        assert_shown(&sandbox, &format!("help-{name}"), &help);
    }
    // Who types nothing is shown the same.
    let ran = sandbox.oclcache(&[]);
    assert_eq!(ran.stderr, sandbox.oclcache(&["--help"]).ok().stdout);
}

#[test]
fn an_empty_cache() {
    let sandbox = Sandbox::stub();
    let lines = [
        &["list"][..],
        &["list", "--json"],
        &["explain"],
        &["explain", "--json"],
        &["path"],
        &["gc"],
        &["clear"],
        &["bake"],
        &["show", "4f1d"],
        &["explain", "4f1d"],
    ];
    let all = lines.map(|line| shown(&sandbox, line));
    assert_shown(&sandbox, "an-empty-cache", &all.concat());
}

#[test]
fn two_runs_and_what_they_left() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("OCLCACHE_RECORD", "bake");
    let client = example("client");
    let file = sandbox.write("kernel.cl", SOURCE);
    let run = [
        "run",
        client.to_str().expect("UTF-8"),
        "run",
        "--kernel",
        "blur",
        "--source",
    ];
    let run = [
        &run[..],
        &[file.to_str().expect("UTF-8"), "--options", "-DN=7"],
    ]
    .concat();
    // The program's own words are none of ours.
    let last = |text: String| {
        let ours = text.lines().filter(|line| line.starts_with("oclcache: "));
        ours.map(|line| format!("{line}\n")).collect::<String>()
    };
    let mut all = last(shown(&sandbox, &run));
    all += &shown(&sandbox, &["list"]);
    all += &shown(&sandbox, &["list", "--json"]);
    all += &shown(&sandbox, &["bake"]);
    all += &last(shown(&sandbox, &run));
    build(&sandbox, "-DN=8");
    all += &shown(&sandbox, &["explain", "--last", "1"]);
    all += &shown(&sandbox, &["bake", "--json"]);
    all += &shown(&sandbox, &["list"]);
    all += &shown(&sandbox, &["gc"]);
    all += &shown(&sandbox, &["clear"]);
    assert_shown(&sandbox, "two-runs", &all);
}

#[test]
fn one_entry() {
    let sandbox = Sandbox::stub();
    build(&sandbox, "-DN=7");
    let entry = sandbox.entries().pop().expect("an entry");
    let key = entry.file_stem().expect("a name").to_str().expect("UTF-8");
    let lines = [
        &["show", key][..],
        &["show", key, "--source"],
        &["explain", key],
    ];
    let all = lines.map(|line| shown(&sandbox, line)).concat();
    // What the machine and the compiler of the tests have made of it is another's business.
    let of_machine = ["include", "environment", "processor", "driver  lib"];
    let is_of_machine = |line: &&str| of_machine.iter().any(|word| line.starts_with(word));
    let lines = all.lines().filter(|line| !is_of_machine(line));
    let all: String = lines.map(|line| format!("{line}\n")).collect();
    assert_shown(&sandbox, "one-entry", &all);
}

#[test]
fn what_is_wrong_is_named_with_the_next_step() {
    let mut sandbox = Sandbox::stub();
    build(&sandbox, "-DN=7");
    build(&sandbox, "-DN=8");
    let mut all = String::new();
    for line in [
        &["sats"][..],
        &["show"],
        &["show", "xyz"],
        &["show", ""],
        &["gc", "--max-size", "much"],
        &["bake", "--jobs", "0"],
        &["run", "/nonexistent/program"],
        &["run", "--verbose", "program"],
        &["run", "/"],
        &["man", "/dev/null"],
        &["completions", "tcsh"],
    ] {
        all += &shown(&sandbox, line);
    }
    sandbox.set("OCLCACHE_READONLY", "1");
    all += &shown(&sandbox, &["bake"]);
    sandbox.set("OCLCACHE_READONLY", "0");
    sandbox.set("OCLCACHE_DIR", "relative");
    all += &shown(&sandbox, &["list"]);
    let file = sandbox.write("file", "mine");
    sandbox.set("OCLCACHE_DIR", file);
    all += &shown(&sandbox, &["list"]);
    assert_shown(&sandbox, "what-is-wrong", &all);
}
