//! Where a driver keeps compiled kernels itself, what it would have kept is not counted as avoided, once the doctor has measured it.
//! Before that, nothing is called avoided.

use serde_json::Value;

use crate::stats::stats;
use crate::support::{Ran, SOURCE, Sandbox, Way, example};

/// A driver with a cache of its own, or without one, and a program that was served twice.
fn served(has_own_cache: bool) -> Sandbox {
    let mut sandbox = Sandbox::stub();
    sandbox.set("STUB_BUILD_MS", "600");
    if has_own_cache {
        sandbox.set("STUB_OWN_CACHE", "1");
    }
    for _ in 0..3 {
        sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    }
    sandbox
}

fn doctor(sandbox: &Sandbox, arguments: &[&str]) -> Ran {
    let mut command = sandbox.command(Way::Cached, sandbox.installed());
    sandbox.run(command.arg("doctor").args(arguments)).ok()
}

#[track_caller]
fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_else(|| panic!("{value}"))
}

/// What is avoided if a build takes this long from the driver's own cache, in nanoseconds.
fn avoided(counted: &Value, own_load_ns: u64) -> u64 {
    let [hits, load_ns] = ["hits", "load_ns"].map(|name| number(&counted[name]));
    (hits * own_load_ns).saturating_sub(load_ns)
}

/// What `stats` and `report` call the compile time of the entries that were served.
#[track_caller]
fn is_called(sandbox: &Sandbox, expected: &str) {
    for verb in [&["stats"][..], &["report", "-"]] {
        let shown = sandbox.oclcache(verb).ok().stdout.to_lowercase();
        for name in ["compile time served", "compilation avoided"] {
            assert_eq!(shown.contains(name), name == expected, "{verb:?}: {shown}");
        }
    }
}

#[test]
fn what_a_driver_would_have_kept_is_not_counted_as_avoided() {
    let sandbox = served(true);
    let before = stats(&sandbox, &[]);
    assert!(number(&before["saved_ns"]) > 1_000_000_000, "{before}");
    is_called(&sandbox, "compile time served");
    assert_eq!(before["own_caches"], serde_json::json!([]));
    let told = doctor(&sandbox, &[]);
    assert!(
        told.stdout.contains("from the driver's own warm cache"),
        "{}",
        told.stdout
    );
    let after = stats(&sandbox, &[]);
    let own = &after["own_caches"][0];
    assert_eq!(
        (&own["driver"], &own["device"]),
        (&"unknown".into(), &"stub0".into())
    );
    // The counters themselves are as they were.
    for name in ["hits", "misses", "load_ns", "overhead_ns", "compile_ns"] {
        assert_eq!(after[name], before[name], "{name}");
    }
    is_called(&sandbox, "compilation avoided");
    let own_load_ns = number(&own["load_ns"]);
    let expected = avoided(&after, own_load_ns);
    assert_eq!(number(&after["saved_ns"]), expected);
    assert!(expected < number(&before["saved_ns"]));
    for rows in ["by_program", "by_driver", "by_device", "by_day"] {
        assert_eq!(after[rows][0]["saved_ns"], after["saved_ns"], "{rows}");
    }
    let note = sandbox.oclcache(&["stats"]).ok().stdout;
    let note = note.split_whitespace().collect::<Vec<_>>().join(" ");
    let words = "A build for stub0 (unknown) counts only as the time that the driver";
    assert!(note.contains(words), "{note}");
    let report = sandbox.oclcache(&["report", "-"]).ok().stdout;
    let saved = format!("<data class=\"saved_ns\" value=\"{expected}\">");
    assert!(
        report.contains(words) && report.contains(&saved),
        "{report}"
    );
}

#[test]
fn a_run_counts_as_avoided_what_stats_does() {
    let sandbox = served(true);
    let source = sandbox.path("kernel.cl");
    let ran = |sandbox: &Sandbox| {
        let mut command = sandbox.command(Way::Cached, sandbox.installed());
        command.args(["run", "--"]).arg(example("client"));
        command.args(["run", "--kernel", "f", "--options", "-DN=1", "--source"]);
        let ran = sandbox.run(command.arg(&source)).ok();
        let summary = ran.stderr.lines().rfind(|line| line.contains("1 hit"));
        summary
            .unwrap_or_else(|| panic!("{}", ran.stderr))
            .to_owned()
    };
    let unmeasured = ran(&sandbox);
    assert!(
        unmeasured.ends_with(" of compile time served"),
        "{unmeasured}"
    );
    doctor(&sandbox, &[]);
    let before = stats(&sandbox, &[]);
    let summary = ran(&sandbox);
    let after = stats(&sandbox, &[]);
    assert!(summary.contains("1 hit, 0 misses"), "{summary}");
    let load_ns = number(&after["load_ns"]) - number(&before["load_ns"]);
    let own_load_ns = number(&after["own_caches"][0]["load_ns"]);
    let milliseconds = own_load_ns.saturating_sub(load_ns) as f64 / 1e6;
    let words = format!("{milliseconds:.1} ms of compilation avoided");
    assert!(summary.contains(&words), "{summary} {words}");
}

#[test]
fn a_driver_without_a_cache_of_its_own_avoids_nothing() {
    let mut sandbox = served(false);
    let before = stats(&sandbox, &[]);
    doctor(&sandbox, &[]);
    let after = stats(&sandbox, &[]);
    assert_eq!(after["saved_ns"], before["saved_ns"]);
    is_called(&sandbox, "compilation avoided");
    let none = serde_json::json!([{ "driver": "unknown", "device": "stub0", "load_ns": null }]);
    assert_eq!(after["own_caches"], none);
    // What was measured last counts.
    sandbox.set("STUB_OWN_CACHE", "1");
    doctor(&sandbox, &[]);
    assert!(number(&stats(&sandbox, &[])["own_caches"][0]["load_ns"]) > 0);
}

#[test]
fn monitoring_has_a_counter_that_never_falls_and_what_was_saved() {
    let sandbox = served(true);
    let sums = || {
        let shown = sandbox.oclcache(&["stats", "--openmetrics"]).ok().stdout;
        [
            "oclcache_compile_served_seconds_total{",
            "oclcache_saved_seconds{",
        ]
        .map(|name| {
            let rows = shown.lines().filter(|line| line.starts_with(name));
            let values = rows.filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok());
            values.sum::<f64>()
        })
    };
    let [avoided_before, saved_before] = sums();
    assert!(saved_before > 1.0 && saved_before <= avoided_before);
    doctor(&sandbox, &[]);
    let [avoided_after, saved_after] = sums();
    assert_eq!(avoided_after, avoided_before);
    let told = number(&stats(&sandbox, &[])["saved_ns"]) as f64 / 1e9;
    assert!((saved_after - told).abs() < 1e-6, "{saved_after} {told}");
}

#[test]
fn a_doctor_without_a_cache_or_for_a_read_only_one_keeps_nothing() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("STUB_OWN_CACHE", "1");
    doctor(&sandbox, &[]);
    assert!(!sandbox.path("cache").exists());
    let mut sandbox = served(true);
    sandbox.set("OCLCACHE_READONLY", "1");
    doctor(&sandbox, &[]);
    assert_eq!(stats(&sandbox, &[])["own_caches"], serde_json::json!([]));
}
