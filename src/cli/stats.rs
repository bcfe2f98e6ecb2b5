//! `oclcache stats`.

use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::{Failure, directory, print, print_json, say, seconds, size, store};
use crate::config::Config;
use crate::store::filesystem::FileSystem;
use crate::store::stats::{Counter, Statistics, Totals};

pub fn stats(json: bool, zero: bool) -> Result<ExitCode, Failure> {
    let store = store()?;
    let mut totals = Totals::default();
    let mut entries = Vec::new();
    if let Some(store) = &store {
        if let Some(directory) = store.root().open_below("stats")? {
            let statistics = Statistics::new(&directory);
            if zero {
                statistics.zero()?;
            }
            totals = statistics.totals()?;
        }
        entries = store.entries()?;
    }
    if zero {
        say("oclcache: statistics zeroed");
        return Ok(ExitCode::SUCCESS);
    }
    let bytes: u64 = entries.iter().map(|(_, size)| size).sum();
    let directory = directory(&Config::read())?;
    if json {
        let file_system = FileSystem::at(&directory);
        print_json(&as_json(&totals, file_system, entries.len(), bytes))
    } else {
        print(as_text(&totals, &directory, entries.len(), bytes).as_bytes())
    }
}

fn as_json(totals: &Totals, file_system: FileSystem, entries: usize, bytes: u64) -> Value {
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
    object.insert("file_system".into(), file_system.to_string().into());
    object.insert("entries".into(), entries.into());
    object.insert("bytes".into(), bytes.into());
    json!(object)
}

fn as_text(totals: &Totals, directory: &Path, entries: usize, bytes: u64) -> String {
    let mut text = String::new();
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<34}{value}");
    };
    let looked_up = totals.get(Counter::Hits) + totals.get(Counter::Misses);
    let rate = totals.get(Counter::Hits) as f64 / looked_up.max(1) as f64 * 100.0;
    row("cache directory", crate::log::path(directory).to_string());
    row("file system", FileSystem::at(directory).described());
    row(
        "hits",
        format!("{} ({rate:.1} %)", totals.get(Counter::Hits)),
    );
    if totals.get(Counter::SystemHits) > 0 {
        let hits = totals.get(Counter::SystemHits);
        row("  from system directories", hits.to_string());
    }
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
    if totals.get(Counter::Evicted) > 0 {
        row("entries evicted", totals.get(Counter::Evicted).to_string());
    }
    if totals.get(Counter::Waited) > 0 {
        let waits = totals.get(Counter::Waited);
        let time = seconds(totals.get(Counter::WaitNs));
        row("waits for another's build", format!("{waits} ({time})"));
    }
    if totals.get(Counter::Verified) > 0 {
        let differed = totals.get(Counter::Differed);
        let verified = totals.get(Counter::Verified);
        row("hits verified", format!("{verified} ({differed} differed)"));
    }
    row("compilation avoided", seconds(totals.saved_ns()));
    row("compilation done", seconds(totals.get(Counter::CompileNs)));
    row("entries", format!("{entries} ({})", size(bytes)));
    text
}
