//! What a new user meets in the first hour: each verb says what it did, refuses what it cannot mean, and removes nothing by surprise.

use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use crate::stats::{build, earlier, plant, stats};
use crate::support::{Driver, SOURCE, Sandbox, Way};

fn filled(entries: usize) -> Sandbox {
    let sandbox = Sandbox::stub();
    for number in 0..entries {
        build(&sandbox, b"wave", SOURCE, &format!("-DN={number}")).ok();
    }
    sandbox
}

fn json(sandbox: &Sandbox, arguments: &[&str]) -> Value {
    let ran = sandbox.oclcache(arguments).ok();
    serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.stdout))
}

#[test]
fn a_dry_run_of_gc_removes_nothing_and_says_what_would_go() {
    let sandbox = filled(3);
    let dry = sandbox
        .oclcache(&["gc", "--dry-run", "--max-size", "1B"])
        .ok();
    assert!(
        dry.stderr.contains("would remove 3 entries ("),
        "{}",
        dry.stderr
    );
    let told = json(&sandbox, &["gc", "--dry-run", "--max-size", "1B", "--json"]);
    assert_eq!(
        (&told["entries"], &told["dry_run"]),
        (&3.into(), &true.into())
    );
    assert_eq!(sandbox.entries().len(), 3);
    let told = json(&sandbox, &["gc", "--max-size", "1B", "--json"]);
    assert_eq!(
        (&told["entries"], &told["left_entries"]),
        (&3.into(), &0.into())
    );
    assert_eq!(sandbox.entries().len(), 0);
}

#[test]
fn what_gc_evicts_is_counted_and_explained() {
    let sandbox = filled(2);
    let key = json(&sandbox, &["list", "--json"])[0]["key"].clone();
    let key = key.as_str().expect("a key").to_owned();
    sandbox.oclcache(&["gc", "--max-size", "1B"]).ok();
    assert_eq!(sandbox.stat("evicted"), 2);
    let shown = sandbox.oclcache(&["stats", "-v"]).ok().stdout;
    let row = shown.lines().find(|line| line.contains("entries evicted"));
    assert!(row.is_some_and(|row| row.ends_with(" 2")), "{shown}");
    assert!(!shown.contains("(unknown)"), "{shown}");
    let explained = sandbox.oclcache(&["explain", &key]).ok().stdout;
    assert!(explained.contains("evicted "), "{explained}");
    for number in 0..2 {
        build(&sandbox, b"wave", SOURCE, &format!("-DN={number}")).ok();
    }
    let explained = || json(&sandbox, &["explain", "--last", "2", "--json"]);
    let before = explained();
    // Again, which does not change why they were compiled before.
    sandbox.oclcache(&["gc", "--max-size", "1B"]).ok();
    for record in [before, explained()]
        .iter()
        .flat_map(|list| list.as_array().expect("a list"))
    {
        assert_eq!(record["reason"], "evicted", "{record}");
    }
}

/// A recipe that nobody has baked is evicted as well.
#[test]
fn an_evicted_recipe_is_not_called_unbaked() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("OCLCACHE_RECORD", "bake");
    build(&sandbox, b"wave", SOURCE, "-DN=1").ok();
    sandbox.oclcache(&["gc", "--max-size", "1B"]).ok();
    let explained = sandbox.oclcache(&["explain"]).ok().stdout;
    assert!(explained.contains("evicted "), "{explained}");
    build(&sandbox, b"wave", SOURCE, "-DN=1").ok();
    let explained = json(&sandbox, &["explain", "--last", "1", "--json"]);
    assert_eq!(explained[0]["reason"], "evicted", "{explained}");
}

#[test]
fn config_set_refuses_what_the_reader_refuses() {
    let sandbox = Sandbox::stub();
    for (key, values) in [
        ("dir", &["relative"][..]),
        ("disable", &["maybe", "2"]),
        ("record", &["sometimes"]),
        ("autobake", &["sometimes"]),
        ("verify", &["101", "half"]),
        ("audit", &["-1", "often"]),
        ("max_size", &["10", "much"]),
        ("min_free", &["10", "much"]),
        ("max_age", &["7", "long"]),
        ("system_dirs", &["relative", "/usr/share/oclcache:relative"]),
        ("mode", &["inside"]),
        ("log", &["loud", "info,loud"]),
    ] {
        for value in values {
            let ran = sandbox.oclcache(&["config", "set", key, value]);
            assert_eq!(ran.code, Some(2), "{key} {value}: {}", ran.stderr);
            assert!(
                ran.stderr.contains("expected"),
                "{key} {value}: {}",
                ran.stderr
            );
        }
    }
    for (key, value) in [
        ("disable", "off"),
        ("record", "bake"),
        ("verify", "5"),
        ("audit", "0"),
        ("max_size", "10G"),
        ("min_free", "auto"),
        ("max_age", "30d"),
        ("system_dirs", "none"),
        ("mode", "beside"),
        ("log", "oclcache::store=debug,warn"),
    ] {
        sandbox.oclcache(&["config", "set", key, value]).ok();
    }
    let config = json(&sandbox, &["config", "--json"]);
    assert_eq!(config["complaints"], Value::Array(Vec::new()), "{config}");
}

#[test]
fn a_time_is_an_age_or_a_date_for_each_verb() {
    let sandbox = filled(1);
    let today = stats(&sandbox, &[])["date"]
        .as_str()
        .expect("a date")
        .to_owned();
    let month = &today[..7];
    for since in ["1h", "7d", &today, month] {
        assert_eq!(stats(&sandbox, &["--since", since])["misses"], 1, "{since}");
        let listed = json(&sandbox, &["list", "--since", since, "--json"]);
        assert_eq!(listed.as_array().map(Vec::len), Some(1), "{since}");
        let archive = [
            "export",
            "--dry-run",
            "--since",
            since,
            "--json",
            "a.tar.zst",
        ];
        let keys = json_of_messages(&sandbox, &archive)["keys"].clone();
        assert_eq!(keys.as_array().map(Vec::len), Some(1), "{since}");
        let ran = sandbox
            .oclcache(&["clear", "--dry-run", "--since", since])
            .ok();
        assert!(
            ran.stderr.contains("would remove 1 entry"),
            "{}",
            ran.stderr
        );
    }
    for verb in [
        &["stats"][..],
        &["list"],
        &["clear"],
        &["export", "a.tar.zst"],
    ] {
        let ran = sandbox.oclcache(&[verb, &["--since", "yesterday"]].concat());
        assert_eq!(ran.code, Some(2), "{verb:?}");
    }
    let listed = sandbox.oclcache(&["list", "--since", "2100-01-01"]).ok();
    assert!(
        listed.stderr.contains("no entries match"),
        "{}",
        listed.stderr
    );
}

/// The JSON of a verb that also writes messages.
fn json_of_messages(sandbox: &Sandbox, arguments: &[&str]) -> Value {
    let ran = sandbox.oclcache(arguments).ok();
    serde_json::from_str(&ran.stdout).unwrap_or_else(|_| panic!("{}", ran.stdout))
}

#[test]
fn each_verb_that_returns_data_returns_json_with_the_version_of_its_form() {
    let sandbox = filled(1);
    let key = json(&sandbox, &["list", "--json"])[0]["key"].clone();
    let key = key.as_str().expect("a key");
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/commands.md");
    let page = std::fs::read_to_string(page).expect("the page");
    let archive = sandbox.path("a.tar.zst");
    let archive = archive.to_str().expect("UTF-8");
    for verb in [
        &["stats"][..],
        &["list"],
        &["show", key],
        &["explain"],
        &["explain", key],
        &["doctor", "--no-build"],
        &["config"],
        &["config", "get", "max_size"],
        &["path"],
        &["caches"],
        &["bake"],
        &["export", "--dry-run", archive],
        &["export", archive],
        &["import", "--dry-run", archive],
        &["gc"],
        &["clear", "--dry-run"],
        &["clear"],
    ] {
        let ran = sandbox.oclcache(&[verb, &["--json"]].concat());
        let told: Value = serde_json::from_str(&ran.stdout)
            .unwrap_or_else(|_| panic!("{verb:?}: {}{}", ran.stdout, ran.stderr));
        let objects = match &told {
            Value::Array(all) => all.iter().collect(),
            one => vec![one],
        };
        assert!(!objects.is_empty(), "{verb:?}");
        for one in objects {
            assert_eq!(one["version"], 1, "{verb:?}: {told}");
            for (field, value) in one.as_object().expect("an object") {
                let is_counter = verb[0] == "stats" && value.is_u64();
                let is_described = page.contains(&format!("`{field}`"));
                assert!(is_counter || is_described, "{verb:?}: {field}");
            }
        }
    }
}

#[test]
fn a_driver_is_meant_by_each_name_that_is_shown_of_it() {
    let Some(sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    build(&sandbox, b"wave", SOURCE, "-DN=1").ok();
    let listed = sandbox.oclcache(&["list"]).ok().stdout;
    assert!(
        listed.contains(" PoCL ") || listed.contains(" pocl "),
        "{listed}"
    );
    for (driver, count) in [
        ("PoCL", 1),
        ("pocl", 1),
        ("Portable Computing Language", 1),
        ("rusticl", 0),
    ] {
        let listed = json(&sandbox, &["list", "--driver", driver, "--json"]);
        assert_eq!(listed.as_array().map(Vec::len), Some(count), "{driver}");
        let clear = ["clear", "--dry-run", "--json", "--driver", driver];
        let keys = json(&sandbox, &clear)["keys"].as_array().map(Vec::len);
        assert_eq!(keys, Some(count), "{driver}");
        let export = ["export", "--dry-run", "--driver", driver, "a.tar.zst"];
        let code = i32::from(count == 0);
        assert_eq!(sandbox.oclcache(&export).code, Some(code), "{driver}");
    }
    let doctor = ["doctor", "--no-build", "--json", "--driver", "PoCL"];
    let ran = sandbox.oclcache(&doctor).stdout;
    assert!(ran.contains("Portable Computing Language"), "{ran}");
}

#[test]
fn a_verb_is_called_a_verb_and_help_explains_it() {
    let sandbox = Sandbox::stub();
    for verb in [&["stats"][..], &["config", "set"], &[]] {
        let help = sandbox.oclcache(&[&["help"], verb].concat()).ok().stdout;
        let same = sandbox.oclcache(&[verb, &["--help"]].concat()).ok().stdout;
        assert_eq!(help, same, "{verb:?}");
        assert!(!help.contains("subcommand"), "{help}");
    }
    for wrong in [
        &["sats"][..],
        &["help", "sats"],
        &["config", "st"],
        &["run", "-x"],
        &["run"],
    ] {
        let ran = sandbox.oclcache(wrong);
        assert_eq!(ran.code, Some(2), "{wrong:?}: {}", ran.stderr);
        assert!(!ran.stderr.contains("subcommand"), "{}", ran.stderr);
    }
    let ran = sandbox.oclcache(&["help", "sats"]);
    assert!(
        ran.stderr.contains("did you mean `stats`?"),
        "{}",
        ran.stderr
    );
    assert_eq!(sandbox.oclcache(&["help", "bake-worker"]).code, Some(2));
    // The library is beside this one.
    let mut command = sandbox.command(Way::Cached, sandbox.installed());
    assert_eq!(
        sandbox.run(command.args(["run", "--", "-x"])).code,
        Some(127)
    );
}

#[test]
fn a_list_has_a_header_and_the_entry_that_was_used_last_on_top() {
    let sandbox = filled(3);
    let mut files = sandbox.entries();
    files.sort();
    for (index, file) in files.iter().enumerate() {
        sandbox.was_used(file, Duration::from_secs(3600 * (3 - index as u64)));
    }
    let listed = sandbox.oclcache(&["list"]).ok().stdout;
    let lines: Vec<&str> = listed.lines().collect();
    let heads: Vec<&str> = lines[0].split_whitespace().collect();
    let all = [
        "key", "unused", "age", "size", "compiled", "driver", "program", "kernels",
    ];
    assert_eq!(heads, all, "{listed}");
    let keys: Vec<&str> = lines[1..].iter().map(|line| &line[..16]).collect();
    let names = files
        .iter()
        .rev()
        .map(|file| file.file_name().expect("a name").to_string_lossy());
    let names: Vec<String> = names.map(|name| name[..16].to_owned()).collect();
    assert_eq!(keys, names, "{listed}");
    assert!(
        lines[1].contains(" 60 min ") && lines[3].contains(" 3 h "),
        "{listed}"
    );
    let by_key = sandbox.oclcache(&["list", "--sort", "key"]).ok().stdout;
    let mut sorted = names.clone();
    sorted.sort();
    let keys: Vec<&str> = by_key.lines().skip(1).map(|line| &line[..16]).collect();
    assert_eq!(keys, sorted);
    let old = json(&sandbox, &["list", "--older-than", "90m", "--json"]);
    assert_eq!(old.as_array().map(Vec::len), Some(2));
    let none = sandbox.oclcache(&["list", "--program", "sine"]).ok();
    assert!(
        none.stderr.contains("there are entries of wave (3)"),
        "{}",
        none.stderr
    );
}

#[test]
fn an_archive_is_not_replaced_without_asking() {
    let sandbox = filled(1);
    let archive = sandbox.path("kernels.tar.zst");
    let name = archive.to_str().expect("UTF-8");
    sandbox.oclcache(&["export", name]).ok();
    let before = std::fs::read(&archive).expect("read");
    build(&sandbox, b"wave", SOURCE, "-DN=7").ok();
    let ran = sandbox.oclcache(&["export", name]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("use `--yes`"), "{}", ran.stderr);
    assert_eq!(std::fs::read(&archive).expect("read"), before);
    sandbox.oclcache(&["export", "--yes", name]).ok();
    assert_ne!(std::fs::read(&archive).expect("read"), before);
}

#[test]
fn the_counters_are_openmetrics_for_machines() {
    let sandbox = Sandbox::stub();
    let mut rows = earlier();
    rows.push((
        0,
        "a\"b\\c\u{1b}[2J",
        "pocl",
        "cpu",
        serde_json::json!({ "hits": 5 }),
    ));
    plant(&sandbox, &rows);
    let shown = sandbox.oclcache(&["stats", "--openmetrics"]).ok().stdout;
    assert!(shown.ends_with("# EOF\n"), "{shown}");
    let told = stats(&sandbox, &[]);
    let (mut family, mut hits, mut seconds) = (String::new(), 0, 0.0);
    for line in shown.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            family = rest.split(' ').next().expect("a name").to_owned();
        }
        if line.starts_with('#') {
            continue;
        }
        assert!(line.starts_with(&family), "{line} is not of {family}");
        let (name, value) = line.rsplit_once(' ').expect("a value");
        let value: f64 = value.parse().expect("a number");
        if name.starts_with("oclcache_builds_total{outcome=\"hit\"") {
            hits += value as u64;
        }
        if name.starts_with("oclcache_compile_served_seconds_total") {
            seconds += value;
        }
    }
    assert_eq!(Some(hits), told["hits"].as_u64());
    let nanoseconds = told["saved_ns"].as_f64().expect("a number");
    assert!((seconds - nanoseconds / 1e9).abs() < 1e-6, "{seconds}");
    let hostile = r#"program="a\"b\\c\\u{1b}[2J""#;
    assert!(shown.contains(hostile), "{shown}");
}

/// Lines of views in about a minute: what is not among them does not come.
const MAX_LINES: usize = 3000;

#[test]
fn a_watch_shows_what_happens_until_it_is_interrupted() {
    let sandbox = filled(1);
    let mut command = sandbox.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
    command
        .args(["stats", "--watch=200"])
        .stdout(Stdio::piped());
    let wrong = sandbox.run(&mut command);
    assert_eq!(wrong.code, Some(2), "a time has a unit");
    let mut command = sandbox.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
    command
        .args(["stats", "--watch", "200ms"])
        .stdout(Stdio::piped());
    let mut child = command.spawn().expect("started");
    let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
    let mut wait_for = |words: &str| {
        let found = lines
            .by_ref()
            .map_while(Result::ok)
            .take(MAX_LINES)
            .find(|line| line.contains(words));
        assert!(found.is_some(), "{words}");
    };
    wait_for("nothing was built since then");
    wait_for("compiled last");
    wait_for("wave");
    build(&sandbox, b"sine", SOURCE, "-DN=8").ok();
    wait_for("  sine ");
    rustix::process::kill_process(
        rustix::process::Pid::from_child(&child),
        rustix::process::Signal::INT,
    )
    .expect("sent");
    let status = child.wait().expect("ended");
    let signal = std::os::unix::process::ExitStatusExt::signal(&status);
    assert_eq!(signal, Some(2), "{status}");
}
