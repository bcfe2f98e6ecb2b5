//! What was counted is told apart by day, program, driver and device, and by why builds missed; and all of it adds up.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use crate::hostile_texts::{HOSTILE, assert_plain};
use crate::snapshots::assert_shown;
use crate::support::{Ran, SOURCE, Sandbox, Way, copy_program, example};
const WITH_TIME: &str = "constant char t[] = __TIME__;\n";

/// Builds a kernel by a program of this name.
pub fn build(sandbox: &Sandbox, program: &[u8], source: &str, options: &str) -> Ran {
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::process::CommandExt;
    let directory = sandbox.path("programs");
    fs::create_dir_all(&directory).expect("made");
    let path = directory.join(std::ffi::OsStr::from_bytes(program));
    if !path.exists() {
        // By a plain name first: `cp` would take some for options.
        let plain = sandbox.path("plain");
        copy_program(example("client"), &plain);
        fs::rename(plain, &path).expect("renamed");
    }
    let source = sandbox.write("kernel.cl", source);
    let mut command = sandbox.command(Way::Cached, path);
    // Its own arguments must be text.
    command.arg0("client");
    command.args(["run", "--kernel", "f", "--options", options, "--source"]);
    sandbox.run(command.arg(source))
}

/// The counts of reasons, each under its present name only.
pub fn counted_reasons(stats: &Value, name: &str) -> Vec<(String, u64)> {
    let reasons = stats[name].as_object().expect("an object");
    let reasons = reasons
        .iter()
        .filter(|(name, _)| stats["former_names"].get(name.as_str()).is_none());
    reasons
        .map(|(name, count)| (name.clone(), count.as_u64().expect("a number")))
        .collect()
}

pub fn stats(sandbox: &Sandbox, arguments: &[&str]) -> Value {
    let ran = sandbox
        .oclcache(&[&["stats", "--json"], arguments].concat())
        .ok();
    serde_json::from_str(&ran.stdout).expect("JSON")
}

/// As if this had been counted on a day before today.
pub fn plant(sandbox: &Sandbox, rows: &[(u64, &str, &str, &str, Value)]) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let today = now.expect("after 1970").as_secs() / (24 * 60 * 60);
    let rows = rows.iter().map(|(ago, program, driver, device, counters)| {
        json!({ "day": today - ago, "program": program, "driver": driver, "device": device, "counters": counters })
    });
    let total = json!({ "rows": rows.collect::<Vec<_>>() });
    fs::create_dir_all(sandbox.path("cache/v1/stats")).expect("made");
    for name in ["cache", "cache/v1", "cache/v1/stats"] {
        let mode = fs::Permissions::from_mode(0o700);
        fs::set_permissions(sandbox.path(name), mode).expect("set");
    }
    sandbox.write("cache/v1/stats/total.json", total.to_string());
}

/// Some days of some programs.
pub fn earlier() -> Vec<(u64, &'static str, &'static str, &'static str, Value)> {
    let second = 1_000_000_000_u64;
    let of_today = json!({
        "hits": 9, "misses": 1, "missed.absent": 1, "saved_ns": 4 * second, "compile_ns": second / 2, "stored": 1
    });
    let of_yesterday = json!({
        "hits": 30, "misses": 10, "missed.absent": 10, "saved_ns": 45 * second, "compile_ns": 9 * second, "stored": 10
    });
    let of_last_week = json!({
        "hits": 900, "misses": 100, "missed.absent": 99, "missed.not_baked": 1, "bypassed.reads_file": 3,
        "materialised": 2, "materialised.program_build_log": 2, "saved_ns": 1200 * second,
        "waited": 3, "wait_ns": 5 * second
    });
    let of_last_year = json!({ "hits": 1, "misses": 1, "missed.absent": 1 });
    vec![
        (0, "darktable", "intel-gpu", "Arc A770", of_today),
        (1, "darktable", "intel-gpu", "Arc A770", of_yesterday),
        (8, "hashcat", "pocl", "cpu", of_last_week),
        (300, "hashcat", "pocl", "cpu", of_last_year),
        (
            900,
            "hashcat",
            "pocl",
            "cpu",
            json!({ "hits": 1, "failed": 2 }),
        ),
    ]
}

fn number(value: &Value, name: &str) -> u64 {
    value[name].as_u64().unwrap_or(0)
}

/// A row may have more extra time of misses than time that was served.
#[test]
fn the_time_served_by_rows_makes_up_the_total() {
    let sandbox = Sandbox::stub();
    let second = 1_000_000_000_u64;
    let served = json!({
        "hits": 9, "misses": 1, "missed.absent": 1, "saved_ns": 2 * second, "overhead_ns": second / 4
    });
    let began = json!({ "misses": 1, "missed.absent": 1, "overhead_ns": second });
    plant(
        &sandbox,
        &[
            (0, "one", "intel-cpu", "cpu", served),
            (1, "two", "pocl", "cpu", began),
        ],
    );
    let counted = stats(&sandbox, &[]);
    for group in ["by_day", "by_driver", "by_device", "by_program", "rows"] {
        let groups = counted[group].as_array().expect("a list");
        let sum: u64 = groups.iter().map(|one| number(one, "saved_ns")).sum();
        assert_eq!(
            (sum, number(&counted, "saved_ns")),
            (2 * second, 2 * second),
            "{group}"
        );
    }
    let shown = sandbox.oclcache(&["stats"]).ok().stdout;
    let row = shown
        .lines()
        .find(|line| line.contains("time that misses took longer"));
    assert!(row.is_some_and(|row| row.ends_with(" 1.2 s")), "{shown}");
}

#[test]
fn builds_are_told_apart_by_program_and_device_and_add_up() {
    let mut sandbox = Sandbox::stub();
    build(&sandbox, b"one", SOURCE, "-DN=1");
    build(&sandbox, b"one", SOURCE, "-DN=1");
    build(&sandbox, b"two", SOURCE, "-DN=1");
    build(&sandbox, b"two", "#error wrong\n", "");
    build(&sandbox, b"two", &format!("{SOURCE}{WITH_TIME}"), "-DN=1");
    sandbox.set("STUB_DEVICE_NAME", "other");
    build(&sandbox, b"two", SOURCE, "-DN=1");
    sandbox.client(Way::Cached, &["rebuild"]).ok();
    sandbox.client(Way::Cached, &["rebuild"]).ok();
    let stats = stats(&sandbox, &[]);
    for group in ["by_day", "by_driver", "by_device", "by_program", "rows"] {
        let groups = stats[group].as_array().expect("a list");
        for name in ["hits", "misses", "bypassed", "failed", "materialised"] {
            let sum: u64 = groups.iter().map(|one| number(one, name)).sum();
            assert_eq!(sum, number(&stats, name), "{group} {name}");
        }
    }
    assert_eq!(stats["by_day"][0]["day"], stats["date"]);
    assert_eq!(number(&stats["today"], "hits"), number(&stats, "hits"));
    let of = |group: &str, field: &str, name: &str| {
        let groups = stats[group].as_array().expect("a list").iter();
        let mut found = groups.filter(|one| one[field] == name);
        found
            .next()
            .unwrap_or_else(|| panic!("{name} in {stats}"))
            .clone()
    };
    let counts =
        |one: &Value| ["hits", "misses", "bypassed", "failed"].map(|name| number(one, name));
    assert_eq!(counts(&of("by_program", "program", "one")), [1, 1, 0, 0]);
    // Of a driver that is not known the program is in the key.
    assert_eq!(counts(&of("by_program", "program", "two")), [0, 2, 1, 1]);
    assert_eq!(counts(&of("by_device", "device", "stub0")), [1, 2, 1, 1]);
    let reasons = |name: &str| {
        let reasons = counted_reasons(&stats, name).into_iter();
        reasons.map(|(_, count)| count).sum::<u64>()
    };
    assert_eq!(reasons("miss_reasons"), number(&stats, "misses"));
    assert_eq!(reasons("bypass_reasons"), number(&stats, "bypassed"));
    assert_eq!(
        reasons("materialised_queries"),
        number(&stats, "materialised")
    );
    assert!(
        number(&stats["materialised_queries"], "rebuild") > 0,
        "{stats}"
    );
}

#[test]
fn each_miss_is_counted_with_its_reason() {
    let mut sandbox = Sandbox::stub();
    let entry = |sandbox: &Sandbox| sandbox.entries().pop().expect("an entry");
    let missed = |sandbox: &Sandbox, reason: &str| {
        build(sandbox, b"app", SOURCE, "-DN=1");
        let reasons = &stats(sandbox, &[])["miss_reasons"];
        assert_eq!(number(reasons, reason), 1, "{reason}: {reasons}");
    };
    sandbox.set("STUB_LOAD", sandbox.path("load"));
    sandbox.set("OCLCACHE_RECORD", "bake");
    missed(&sandbox, "new");
    let told = stats(&sandbox, &[]);
    assert_eq!(told["former_names"]["absent"], "new");
    assert_eq!(told["miss_reasons"]["absent"], 1, "the former name counts");
    missed(&sandbox, "not_baked");
    sandbox.set("OCLCACHE_RECORD", "inline");
    sandbox.set("OCLCACHE_RECACHE", "1");
    missed(&sandbox, "recache");
    sandbox.variables.remove("OCLCACHE_RECACHE");
    let path = entry(&sandbox);
    let mut bytes = fs::read(&path).expect("read");
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    fs::remove_file(&path).expect("removed");
    fs::write(&path, bytes).expect("written");
    missed(&sandbox, "damaged");
    sandbox.write("load", "refuse");
    missed(&sandbox, "refused");
    sandbox.write("load", "");
    build(&sandbox, b"app", SOURCE, "-DN=1");
    assert_eq!([sandbox.stat("hits"), sandbox.stat("misses")], [1, 5]);
    assert_eq!(sandbox.stat("materialised_queries/rebuild"), 0);
}

#[test]
fn earlier_days_are_shown_and_left_out_where_that_is_wanted() {
    let sandbox = Sandbox::stub();
    plant(&sandbox, &earlier()[1..]);
    build(&sandbox, b"one", SOURCE, "-DN=1");
    build(&sandbox, b"one", SOURCE, "-DN=1");
    let all = stats(&sandbox, &[]);
    assert_eq!(
        [number(&all, "hits"), number(&all["today"], "hits")],
        [933, 1]
    );
    let days = all["by_day"].as_array().expect("a list");
    let first = |index: usize| days[index]["day"].as_str().map(str::len);
    assert_eq!(
        (days.len(), first(0), first(1)),
        (5, None, Some("2026-01".len()))
    );
    let since = |time: &str| number(&stats(&sandbox, &["--since", time]), "hits");
    let yesterday = days[3]["day"].as_str().expect("a day");
    assert_eq!(
        [since("0"), since("1d"), since(yesterday), since("1w")],
        [1, 31, 31, 31]
    );
    assert_eq!(
        [since("8d"), since("52w"), since("2001-02-03")],
        [931, 932, 932]
    );
    for wrong in ["2001-02-30", "soon", "7"] {
        assert_eq!(sandbox.oclcache(&["stats", "--since", wrong]).code, Some(2));
    }
    sandbox.oclcache(&["stats", "--zero"]).ok();
    let zeroed = stats(&sandbox, &[]);
    assert_eq!(
        (number(&zeroed, "hits"), zeroed["zeroed"].is_u64()),
        (0, true)
    );
    assert_eq!(zeroed["rows"], json!([]));
}

#[test]
fn counters_that_cannot_be_reset_are_not_said_to_be() {
    let sandbox = Sandbox::stub();
    build(&sandbox, b"one", SOURCE, "-DN=1");
    // In the way of the new total.
    let total = sandbox.path("cache/v1/stats/total.json");
    let _ = fs::remove_file(&total);
    fs::create_dir_all(&total).expect("made");
    let ran = sandbox.oclcache(&["stats", "--zero"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let words = "oclcache: cannot reset the counters: ";
    assert!(ran.stderr.contains(words), "{}", ran.stderr);
    assert_eq!(sandbox.stat("misses"), 1);
    fs::remove_dir(&total).expect("removed");
    sandbox.oclcache(&["stats", "--zero"]).ok();
    assert_eq!(sandbox.stat("misses"), 0);
}

#[test]
fn people_see_what_matters_first_and_then_where_it_comes_from() {
    let sandbox = Sandbox::stub();
    let shown = |name: &str, arguments: &[&str]| {
        let shown = sandbox
            .oclcache(&[&["stats"], arguments].concat())
            .ok()
            .stdout;
        // Not the same on all machines.
        let shown = shown
            .lines()
            .filter(|line| !line.starts_with("file system"));
        assert_shown(&sandbox, name, &shown.collect::<Vec<_>>().join("\n"));
    };
    shown("stats-of-nothing", &[]);
    plant(&sandbox, &earlier());
    shown("stats", &[]);
    shown("stats-verbose", &["--verbose"]);
    shown("stats-by-device", &["--by", "device"]);
    shown("stats-since", &["--since", "3d"]);
    let short = sandbox.oclcache(&["-sv"]).ok().stdout;
    assert_eq!(short, sandbox.oclcache(&["stats", "-v"]).ok().stdout);
}

#[test]
fn names_chosen_to_do_harm_are_counted_as_they_are_and_shown_tame() {
    let sandbox = Sandbox::stub();
    for name in HOSTILE.into_iter().filter(|name| *name != b"..") {
        build(&sandbox, name, SOURCE, "-DN=1").ok();
    }
    for arguments in [&[][..], &["--verbose"], &["--by", "program"], &["--json"]] {
        let arguments = [&["stats"], arguments].concat();
        assert_plain(sandbox.oclcache(&arguments).ok().stdout.as_bytes());
    }
    let stats = stats(&sandbox, &[]);
    let programs = stats["by_program"].as_array().expect("a list").iter();
    let mut programs: Vec<&str> = programs.filter_map(|one| one["program"].as_str()).collect();
    programs.sort_unstable();
    let mut names: Vec<_> = HOSTILE
        .iter()
        .map(|name| String::from_utf8_lossy(name))
        .collect();
    names.retain(|name| name != "..");
    names.sort_unstable();
    for (program, name) in programs.iter().zip(&names) {
        assert_eq!(program, name);
    }
    assert_eq!(programs.len(), names.len());
}
