//! Configuration files that cannot be read or written are told by the verbs that a user would try first.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use super::{NOBODY, config, file};
use crate::support::{SOURCE, Sandbox, Way, example, is_root, plain_command, skipped};

#[test]
fn a_file_that_cannot_be_read_is_told_by_run_and_get() {
    let sandbox = Sandbox::stub();
    let kernel = sandbox.write("kernel.cl", SOURCE);
    let path = file(&sandbox, "");
    for (content, why) in [
        (&b"max_size = \n"[..], "is not TOML: line 1: "),
        (b"dir = \"\xff\"\n", "stream did not contain valid UTF-8"),
    ] {
        fs::write(&path, content).expect("written");
        let told = |stderr: &str| stderr.lines().filter(|line| line.contains(why)).count();
        let run = |options: &[&str]| {
            let mut command = sandbox.command(Way::Bare, sandbox.installed());
            command.env("OCLCACHE_DIR", sandbox.path("cache"));
            command.arg("run").args(options).arg(example("client"));
            command.args(["run", "--kernel", "f", "--options", "-DN=1", "--source"]);
            sandbox.run(command.arg(&kernel)).ok().stderr
        };
        let shown = run(&[]);
        assert_eq!(told(&shown), 1, "{shown}");
        assert_eq!(run(&["--quiet"]), "");
        let ran = config(&sandbox, &["get", "max_size"]).ok();
        assert_eq!((told(&ran.stderr), ran.stdout.as_str()), (1, "5Gi\n"));
    }
}

/// The parser names what words that begin alike could be: `nan` for `no`.
#[test]
fn a_word_without_quotes_is_named_as_such() {
    let sandbox = Sandbox::stub();
    let said = |lines: &str| {
        file(&sandbox, &format!("# \n{lines}\n"));
        config(&sandbox, &["get", "verify"]).ok().stderr
    };
    for (lines, word) in [
        ("disable = no", "no"),
        ("disable = yes", "yes"),
        ("disable=off # for now", "off"),
        ("disable = True", "True"),
        ("mode = icd", "icd"),
        ("record = inline", "inline"),
        ("program.a.cache = no", "no"),
        ("[program.a]\ncache = no", "no"),
    ] {
        let number = 1 + lines.lines().count();
        let words = format!(
            "is not TOML: line {number}: `{word}` is neither `true` nor `false`, and a text needs quotes\n"
        );
        let said = said(lines);
        assert!(said.ends_with(&words), "{lines}: {said}");
    }
    for lines in [
        "disable = true\ndisable = true",
        "log = \"x",
        "log =",
        "max_size = 1 Gi",
    ] {
        let said = said(lines);
        let is_parsers = said.contains("is not TOML: line") && !said.contains("needs quotes");
        assert!(is_parsers, "{lines}: {said}");
    }
}

/// A script that reads a setting gets what is in force.
#[test]
fn what_is_not_a_value_is_shown_nowhere() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("OCLCACHE_MAX_SIZE", "3");
    let complaint = "oclcache: `OCLCACHE_MAX_SIZE`: `max_size` is `3`, which is not a size with a unit, such as 500M or 5Gi; using 5Gi\n";
    let ran = config(&sandbox, &["get", "max_size"]).ok();
    assert_eq!(
        (ran.stdout.as_str(), ran.stderr.as_str()),
        ("5Gi\n", complaint)
    );
    let json = config(&sandbox, &["get", "--json", "max_size"]).ok().stdout;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(
        (&json["value"], &json["from"]["kind"]),
        (&"5Gi".into(), &"default".into())
    );
    // What is written is not used either, and that is told with the reason.
    let ran = config(&sandbox, &["set", "max_size", "1Gi"]).ok();
    let words = format!("{complaint}oclcache: but `5Gi` is used here, from: default\n");
    assert!(ran.stderr.ends_with(&words), "{}", ran.stderr);
}

#[test]
fn who_may_not_write_the_systems_file_is_told_to_use_sudo() {
    if !is_root() {
        return skipped("the system's file by another user (not root)");
    }
    let sandbox = Sandbox::stub();
    let command = sandbox.installed();
    let open = PermissionsExt::from_mode(0o755);
    fs::set_permissions(sandbox.path(""), open).expect("changed");
    for arguments in [&["set", "verify", "1"][..], &["unset", "verify"]] {
        let mut command = plain_command(&command);
        command.arg("config").args(arguments).arg("--system");
        let ran = sandbox.run(command.uid(NOBODY).gid(NOBODY));
        let words = "oclcache: only root can write `/etc/oclcache/config.toml`; run this with `sudo`, or leave out `--system`\n";
        assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), words));
    }
}
