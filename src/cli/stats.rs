//! `oclcache stats`.

use std::fmt::Write;
use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::{Failure, directory, print, print_json, say, seconds, size, store};
use crate::config::Config;
use crate::store::STATISTICS;
use crate::store::stats::{Counter, Statistics, Totals};

pub fn stats(json: bool, zero: bool) -> Result<ExitCode, Failure> {
    let store = store()?;
    let mut totals = Totals::default();
    let mut entries = Vec::new();
    if let Some(store) = &store {
        let directory = store.root().create(STATISTICS)?;
        let statistics = Statistics::new(&directory);
        if zero {
            statistics.zero()?;
        }
        totals = statistics.totals()?;
        entries = store.entries()?;
    }
    if zero {
        say("oclcache: statistics zeroed");
        return Ok(ExitCode::SUCCESS);
    }
    let bytes: u64 = entries.iter().map(|(_, file)| file.allocated).sum();
    if json {
        print_json(&as_json(&totals, entries.len(), bytes))
    } else {
        print(as_text(&totals, entries.len(), bytes)?.as_bytes())
    }
}

fn as_json(totals: &Totals, entries: usize, bytes: u64) -> Value {
    let mut object: Map<String, Value> = totals
        .named()
        .map(|(name, number)| (name.to_owned(), number.into()))
        .collect();
    let reasons: Map<String, Value> = totals
        .bypasses()
        .map(|(reason, count)| (reason.name().to_owned(), count.into()))
        .collect();
    object.insert("bypassed".into(), totals.bypassed().into());
    object.insert("saved_ns".into(), totals.saved_ns().into());
    object.insert("bypass_reasons".into(), reasons.into());
    object.insert("entries".into(), entries.into());
    object.insert("bytes".into(), bytes.into());
    json!(object)
}

fn as_text(totals: &Totals, entries: usize, bytes: u64) -> Result<String, Failure> {
    let mut text = String::new();
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<34}{value}");
    };
    let looked_up = totals.get(Counter::Hits) + totals.get(Counter::Misses);
    let rate = totals.get(Counter::Hits) as f64 / looked_up.max(1) as f64 * 100.0;
    row(
        "cache directory",
        crate::log::path(&directory(&Config::read())?).to_string(),
    );
    row(
        "hits",
        format!("{} ({rate:.1} %)", totals.get(Counter::Hits)),
    );
    row("misses", totals.get(Counter::Misses).to_string());
    row("bypassed", totals.bypassed().to_string());
    for (reason, count) in totals.bypasses() {
        row(&format!("  {}", reason.name()), count.to_string());
    }
    row("failed builds", totals.get(Counter::Failed).to_string());
    row(
        "built again to answer a query",
        totals.get(Counter::Materialised).to_string(),
    );
    row(
        "entries set aside",
        totals.get(Counter::SetAside).to_string(),
    );
    row(
        "entries not stored",
        totals.get(Counter::NotStored).to_string(),
    );
    if totals.get(Counter::Verified) > 0 {
        let differed = totals.get(Counter::Differed);
        let verified = totals.get(Counter::Verified);
        row("hits verified", format!("{verified} ({differed} differed)"));
    }
    row("compilation avoided", seconds(totals.saved_ns()));
    row("compilation done", seconds(totals.get(Counter::CompileNs)));
    row("entries", format!("{entries} ({})", size(bytes)));
    Ok(text)
}
