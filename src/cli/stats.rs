//! `oclcache stats`.

use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Map, Value, json};

use super::output::{print, print_json, say, seconds, size};
use super::{Failure, directory, store, tiers};
use crate::config::Config;
use crate::log::path;
use crate::store::STATISTICS;
use crate::store::filesystem::FileSystem;
use crate::store::stats::{Counter, Statistics, Totals};
use crate::store::tiers::Tiers;

pub fn stats(json: bool, zero: bool) -> Result<ExitCode, Failure> {
    let store = store()?;
    let mut totals = Totals::default();
    let mut entries = Vec::new();
    if let Some(store) = &store {
        if let Some(directory) = store.root().open_below(STATISTICS)? {
            let statistics = Statistics::new(&directory);
            if zero {
                statistics.zero()?;
            }
            totals = statistics.counted()?.rows.total();
        }
        entries = store.entries()?;
    }
    if zero {
        say("oclcache: statistics zeroed");
        return Ok(ExitCode::SUCCESS);
    }
    let config = Config::read();
    let state = State {
        directory: directory(&config)?,
        entries: entries.len(),
        bytes: entries.iter().map(|(_, file)| file.allocated).sum(),
        max_size: config.max_size(),
        tiers: tiers(&config),
    };
    if json {
        print_json(&as_json(&totals, &state))
    } else {
        print(as_text(&totals, &state).as_bytes())
    }
}

/// What there is now, beside what was counted.
struct State {
    directory: PathBuf,
    entries: usize,
    /// On the disk.
    bytes: u64,
    max_size: Option<u64>,
    tiers: Tiers,
}

impl State {
    fn file_system(&self) -> FileSystem {
        FileSystem::at(&self.directory)
    }

    /// The directories of the system that are there: how many entries each has, or why it is not used.
    fn tiers(&self) -> impl Iterator<Item = (&Path, Result<usize, String>)> {
        self.tiers.all().iter().map(|tier| {
            let entries = tier.store.as_ref().map_err(Clone::clone).and_then(|store| {
                let entries = store.entries().map_err(|error| error.to_string())?;
                Ok(entries.len())
            });
            (tier.path.as_path(), entries)
        })
    }
}

fn as_json(totals: &Totals, state: &State) -> Value {
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
    object.insert("file_system".into(), state.file_system().to_string().into());
    object.insert("entries".into(), state.entries.into());
    object.insert("bytes".into(), state.bytes.into());
    object.insert("max_size".into(), state.max_size.into());
    let directories = state.tiers().map(|(directory, entries)| {
        let directory = directory.to_string_lossy();
        match entries {
            Ok(entries) => json!({ "path": directory, "entries": entries }),
            Err(why) => json!({ "path": directory, "not_used": why }),
        }
    });
    object.insert("system_directories".into(), directories.collect());
    json!(object)
}

fn as_text(totals: &Totals, state: &State) -> String {
    let mut text = String::new();
    let mut row = |name: &str, value: String| {
        let _ = writeln!(text, "{name:<34}{value}");
    };
    let [hits, misses] = [Counter::Hits, Counter::Misses].map(|counter| totals.get(counter) as f64);
    let rate = hits / (hits + misses).max(1.0) * 100.0;
    row("cache directory", path(&state.directory).to_string());
    row("file system", state.file_system().described());
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
    if totals.get(Counter::Recipes) > 0 {
        row("recipes stored", totals.get(Counter::Recipes).to_string());
    }
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
    let most = state
        .max_size
        .map_or(String::new(), |most| format!(" of {}", size(most)));
    row(
        "entries",
        format!("{} ({}{most})", state.entries, size(state.bytes)),
    );
    for (directory, entries) in state.tiers() {
        let words = match entries {
            Ok(entries) => format!("{}, {entries} entries", path(directory)),
            Err(why) => format!("{}, not used: {why}", path(directory)),
        };
        row("system directory", words);
    }
    text
}
