//! The counters in the text format of OpenMetrics 1.0, for the textfile directory of a node exporter.
//!
//! Days are left out: a collector has a clock of its own. The names are stable.

use std::fmt::Write;

use crate::cli::summary::CacheSummary;
use crate::store::stats::{Counter, Rows, Totals};

/// Labels and the sum that they belong to.
type Labeled = (String, Totals);

/// The sums of these rows, those with builds.
fn labeled(rows: &Rows) -> Vec<Labeled> {
    let sums = rows.by(|tag| {
        [
            ("program", tag.program.clone()),
            ("driver", tag.driver.clone()),
            ("device", tag.device.clone()),
        ]
        .map(|(name, value)| format!("{name}=\"{}\"", escaped(&value)))
        .join(",")
    });
    let sums = sums.into_iter();
    sums.filter(|(_, totals)| totals.builds() > 0).collect()
}

/// The text, for a summary with the counters as programs have counted: a counter must never fall, as what was saved may do when a
/// driver's own cache is measured.
pub fn render(mut all: CacheSummary) -> String {
    let sums = labeled(&all.counted.rows);
    let mut shown = String::new();
    family(
        &mut shown,
        "oclcache_builds",
        "counter",
        "",
        "Build calls by outcome.",
    );
    for (labels, totals) in &sums {
        for (outcome, count) in [
            ("hit", totals.get(Counter::Hits)),
            ("miss", totals.get(Counter::Misses)),
            ("bypassed", totals.bypassed()),
            ("failed", totals.get(Counter::Failed)),
        ] {
            let _ = writeln!(
                shown,
                "oclcache_builds_total{{outcome=\"{outcome}\",{labels}}} {count}"
            );
        }
    }
    family(
        &mut shown,
        "oclcache_bypasses",
        "counter",
        "",
        "Bypassed build calls by reason.",
    );
    for (labels, totals) in &sums {
        for (reason, count) in totals.bypasses() {
            let reason = reason.name();
            let _ = writeln!(
                shown,
                "oclcache_bypasses_total{{reason=\"{reason}\",{labels}}} {count}"
            );
        }
    }
    for (name, help, nanoseconds) in [
        (
            "oclcache_compile_served_seconds",
            "Compile time of the entries served, less the time to load them.",
            (|totals: &Totals| totals.get(Counter::SavedNs)) as fn(&Totals) -> u64,
        ),
        (
            "oclcache_compile_seconds",
            "Time that drivers spent in builds that did not hit.",
            Totals::compiled_ns as fn(&Totals) -> u64,
        ),
        (
            "oclcache_overhead_seconds",
            "What builds that did not hit took longer.",
            |totals: &Totals| totals.get(Counter::OverheadNs),
        ),
    ] {
        family(&mut shown, name, "counter", "seconds", help);
        for (labels, totals) in &sums {
            let seconds = nanoseconds(totals) as f64 / 1e9;
            let _ = writeln!(shown, "{name}_total{{{labels}}} {seconds}");
        }
    }
    all.own_caches.discount(&mut all.counted.rows);
    family(
        &mut shown,
        "oclcache_saved_seconds",
        "gauge",
        "seconds",
        "Compile time of the entries served, less the time to load them, and what the driver's own cache would have avoided, where that was measured.",
    );
    for (labels, totals) in labeled(&all.counted.rows) {
        let seconds = totals.saved_ns() as f64 / 1e9;
        let _ = writeln!(shown, "oclcache_saved_seconds{{{labels}}} {seconds}");
    }
    let evicted = all.counted.rows.total().get(Counter::Evicted);
    family(
        &mut shown,
        "oclcache_evictions",
        "counter",
        "",
        "Entries removed to make room.",
    );
    let _ = writeln!(shown, "oclcache_evictions_total {evicted}");
    for (name, unit, help, value) in [
        (
            "oclcache_entries",
            "",
            "Entries in the cache.",
            Some(all.totals.entries),
        ),
        (
            "oclcache_size_bytes",
            "bytes",
            "Disk space of the entries.",
            Some(all.totals.allocated),
        ),
        (
            "oclcache_max_size_bytes",
            "bytes",
            "Maximum size of the entries.",
            all.max_size,
        ),
    ] {
        if let Some(value) = value {
            family(&mut shown, name, "gauge", unit, help);
            let _ = writeln!(shown, "{name} {value}");
        }
    }
    shown + "# EOF\n"
}

fn family(shown: &mut String, name: &str, kind: &str, unit: &str, help: &str) {
    let _ = writeln!(shown, "# TYPE {name} {kind}");
    if !unit.is_empty() {
        let _ = writeln!(shown, "# UNIT {name} {unit}");
    }
    let _ = writeln!(shown, "# HELP {name} {help}");
}

/// The value of a label: control characters in a visible form, then the three escapes of the format.
fn escaped(value: &str) -> String {
    let plain = crate::log::text(value.as_bytes()).to_string();
    plain.replace('\\', "\\\\").replace('"', "\\\"")
}
