//! A script is counted, listed and ruled under its own name; keys have that of its interpreter.

use std::fs;

use serde_json::Value;

use crate::stats::{build, stats};
use crate::support::{SOURCE, Sandbox};

/// The client as an interpreter, whose script its first argument names: see `stats::build`.
const INTERPRETER: &[u8] = b"python3.11";
const SCRIPT: &str = "run";

fn json(sandbox: &Sandbox, arguments: &[&str]) -> Value {
    let ran = sandbox.oclcache(arguments).ok();
    serde_json::from_str(&ran.stdout).expect("JSON")
}

fn configure(sandbox: &Sandbox, text: &str) {
    let directory = sandbox.path("home/.config/oclcache");
    fs::create_dir_all(&directory).expect("made");
    fs::write(directory.join("config.toml"), text).expect("written");
}

#[test]
fn each_verb_shows_the_script_and_the_key_has_the_interpreter() {
    let sandbox = Sandbox::stub();
    build(&sandbox, INTERPRETER, SOURCE, "-DN=1").ok();
    build(&sandbox, INTERPRETER, SOURCE, "-DN=1").ok();
    build(&sandbox, b"other", SOURCE, "-DN=2").ok();
    let programs = &stats(&sandbox, &[])["by_program"];
    assert_eq!(programs[0]["program"], SCRIPT, "{programs}");
    assert_eq!(programs[0]["hits"], 1, "{programs}");
    let listed = json(&sandbox, &["list", "--program", SCRIPT, "--json"]);
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    let explained = json(&sandbox, &["explain", "--json"]);
    assert_eq!(explained[1]["program"], SCRIPT, "{explained}");
    let report = sandbox.oclcache(&["report", "-"]).ok().stdout;
    // Differences between keys name the interpreter.
    assert!(report.contains("<bdi>run</bdi>") && !report.contains("<bdi>python3.11</bdi>"));
    // The stub's driver is not known, so it may read the name of the file that runs.
    let key = listed[0]["key"].as_str().expect("a key");
    let shown = json(&sandbox, &["show", key, "--json"]);
    assert_eq!(shown["program"], SCRIPT);
    let ingredients = shown["ingredients"].as_array().expect("a list");
    let executable = ingredients.iter().find(|one| one["kind"] == "executable");
    let executable = executable.expect("an ingredient");
    assert_eq!(executable["value"], "python3.11", "{executable}");
    sandbox.oclcache(&["clear", "--program", SCRIPT]).ok();
    assert_eq!(sandbox.stat("entries"), 1);
}

#[test]
fn rules_of_a_script_override_those_of_its_interpreter() {
    let sandbox = Sandbox::stub();
    let mut number = 0;
    for (rules, is_cached) in [
        ("[program.run]\ncache = false\n", false),
        ("[program.\"python3.11\"]\ncache = false\n", false),
        (
            "[program.\"python3.11\"]\ncache = false\n[program.run]\ncache = true\n",
            true,
        ),
        ("[program.other]\ncache = false\n", true),
    ] {
        configure(&sandbox, rules);
        number += 1;
        let before = sandbox.entries().len();
        build(&sandbox, INTERPRETER, SOURCE, &format!("-DN={number}")).ok();
        assert_eq!(sandbox.entries().len() > before, is_cached, "{rules}");
    }
}
