//! `oclcache explain`: why builds were not hits.

mod remote;

use std::fmt::Write;
use std::process::ExitCode;

use clap::Args;
use serde_json::{Value, json};

use super::entry_view::{SHOWN_DIGITS, kernels};
use super::failure::Failure;
use super::find::{choose_key, no_entry};
use super::open::store;
use super::output::{ago, print, print_json, say};
use super::parse::{Since, parse_since};
use super::why::{self, BuildHistory, MissExplanation, words};
use crate::key::ingredients::Key;
use crate::log::text;
use crate::outcome::{FormerName, NotBakeable};
use crate::store::journal::{self, BuildResult, JournalRecord, Kept};
use remote::RemoteFacts;

/// How many builds are listed if nothing else is asked for.
const LISTED: usize = 20;
/// How many differences of one kind are shown in a list.
const SHOWN_OF_A_KIND: usize = 4;

/// Explain the latest misses, bypasses and failures, or those of one key
#[derive(Args)]
#[command(
    after_help = "Example: oclcache explain --last 1\nExample: oclcache explain --since 7d\nIn ccache: CCACHE_DEBUG, but nothing needs to be set in advance"
)]
pub struct ExplainArgs {
    /// Explain only this key; enough of its first digits will do
    key: Option<String>,
    /// How many to list; by default 20, or with --since all
    #[arg(long, value_name = "N", conflicts_with = "key")]
    last: Option<usize>,
    /// Only those since this day (2026-11-21), month (2026-11) or time ago (7d); days are in UTC
    #[arg(long, value_name = "TIME", value_parser = parse_since, conflicts_with = "key")]
    since: Option<Since>,
    /// Also tell which entries came from other machines, and which other machines get
    #[arg(long)]
    remote: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ExplainArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let past = store()?.map(BuildHistory::read).transpose()?;
        let remote = self.remote.then(RemoteFacts::read).transpose()?;
        let remote = remote.as_ref();
        if let Some(trouble) = remote.and_then(RemoteFacts::trouble) {
            say(&format!("oclcache: {trouble}"));
        }
        match (past, &self.key) {
            (None, Some(digits)) => Err(no_entry(digits)),
            (Some(past), Some(digits)) => {
                let key = choose_key(past.keys(), digits, "explain")?;
                of_key(&past, &key, remote, self.json)
            }
            (past, None) => {
                let most = match (self.last, self.since) {
                    (Some(last), _) => last,
                    (None, Some(_)) => usize::MAX,
                    (None, None) => LISTED,
                };
                let first_ms = self.since.map_or(0, |since| since.in_ms(journal::now_ms()));
                let records = past.iter().flat_map(|past| {
                    let newest = past.records.iter().rev();
                    let newest = newest.filter(move |record| record.time_ms >= first_ms);
                    let newest = newest.take(most);
                    newest.map(move |record| (record, past.why(record)))
                });
                if self.json {
                    let rows = records.map(|(record, why)| {
                        let mut row = as_json(record, &why);
                        if let (Some((remote, past)), Some(build)) =
                            (remote.zip(past.as_ref()), &record.build)
                        {
                            row["remote"] = remote.as_json(&build.key, past.entry(&build.key));
                        }
                        row
                    });
                    return print_json(&rows.collect());
                }
                let rows = records.map(|(record, why)| {
                    let mut rows = as_text(record, &why, SHOWN_OF_A_KIND);
                    if let (Some((remote, past)), Some(build)) =
                        (remote.zip(past.as_ref()), &record.build)
                    {
                        let words = remote.words(&build.key, past.entry(&build.key));
                        add_row(&mut rows, &format!("remote: {words}"));
                    }
                    rows
                });
                let rows: Vec<String> = rows.collect();
                if past.as_ref().is_none_or(|past| past.records.is_empty()) {
                    let but = match past {
                        None => "",
                        Some(_) => {
                            ", or none since `oclcache clear`; `oclcache stats` counts those that loaded binaries of their own"
                        }
                    };
                    say(&format!(
                        "oclcache: the journal is empty: no program was compiled yet{but}"
                    ));
                } else if rows.is_empty() && self.since.is_some() && most > 0 {
                    say("oclcache: nothing was compiled since then");
                }
                print(rows.concat().as_bytes())
            }
        }
    }
}

/// Everything known about one key.
fn of_key(
    past: &BuildHistory,
    key: &Key,
    remote: Option<&RemoteFacts>,
    json: bool,
) -> Result<ExitCode, Failure> {
    let is_its =
        |record: &&JournalRecord| record.build.as_ref().is_some_and(|build| build.key == *key);
    let mut records: Vec<&JournalRecord> = past.records.iter().rev().filter(is_its).collect();
    let entry = past.entry(key);
    // The entry may be older than the journal.
    let first = entry.map(|meta| why::record_of_entry(key, meta));
    if records.is_empty() {
        records.extend(&first);
    }
    let records = records.into_iter();
    let records = records.map(|record| (record, past.why(record)));
    if json {
        let rows = records.map(|(record, why)| as_json(record, &why));
        let rows: Vec<Value> = rows.collect();
        let mut all = json!({ "key": key.hex(), "entry": entry.is_some(), "records": rows });
        if let Some(remote) = remote {
            all["remote"] = remote.as_json(key, entry);
        }
        return print_json(&all);
    }
    let rows = records.map(|(record, why)| as_text(record, &why, usize::MAX));
    let mut rows = rows.collect::<String>();
    if let Some(remote) = remote {
        add_row(&mut rows, &format!("remote: {}", remote.words(key, entry)));
    }
    print(rows.as_bytes())
}

fn outcome(ended: &BuildResult) -> &'static str {
    match ended {
        BuildResult::Miss { .. } => "miss",
        BuildResult::Bypassed(_) => "bypassed",
        BuildResult::Failed => "failed",
    }
}

fn as_json(record: &JournalRecord, why: &MissExplanation) -> Value {
    let shown = |bytes: &[u8]| text(bytes).to_string();
    let differences = why.differences.iter().map(|difference| {
        json!({
            "kind": difference.kind,
            "name": difference.name,
            "before": difference.before,
            "after": difference.after,
            "words": difference.words,
        })
    });
    let nearest = why.nearest.map(|(key, meta)| {
        json!({
            "key": key.hex(),
            "created": meta.created,
            "program": shown(meta.executable.as_bytes()),
        })
    });
    let kept = match record.ended {
        BuildResult::Miss { kept, .. } => Some(match kept {
            Kept::Entry => "entry",
            Kept::Recipe => "recipe",
            Kept::Nothing | Kept::NotBakeable(_) => "nothing",
        }),
        _ => None,
    };
    let build = record.build.as_ref();
    json!({
        "time": record.time_ms / 1000,
        "time_ms": record.time_ms,
        "compile_ns": record.compile_ns,
        "program": shown(record.executable.as_bytes()),
        "process": (record.process > 0).then_some(record.process),
        "driver": shown(record.driver_family.as_bytes()),
        "kernels": record.kernel_names.iter().map(|name| shown(name)).collect::<Vec<_>>(),
        "outcome": outcome(&record.ended),
        "kept": kept,
        "not_stored": why.not_stored.as_ref().map(|why| why.reason.map_or("unknown", NotBakeable::name)),
        "key": build.map(|build| build.key.hex()),
        "options": build.and_then(|build| build.options.as_deref()).map(shown),
        "reason": why.reason,
        "former_reason": record.ended.reason().and_then(FormerName::former_name),
        "evicted_ms": why.evicted_ms,
        "words": words(why, usize::MAX),
        "nearest": nearest,
        "differences": differences.collect::<Vec<_>>(),
    })
}

/// A head line, and the explanation in lines below it.
fn as_text(record: &JournalRecord, why: &MissExplanation, of_a_kind: usize) -> String {
    let now = journal::now_ms();
    let age = ago(now.saturating_sub(record.time_ms));
    let process = match record.process {
        0 => String::new(),
        process => format!(" ({process})"),
    };
    let mut shown = format!(
        "{:<9} {age:<12} {}{process}",
        outcome(&record.ended),
        text(record.executable.as_bytes()),
    );
    if !record.kernel_names.is_empty() {
        let _ = write!(shown, ", kernels {}", kernels(&record.kernel_names));
    }
    shown.push('\n');
    for words in words(why, of_a_kind) {
        add_row(&mut shown, &words);
    }
    if let Some(build) = &record.build {
        let mut words = format!("key {}", &build.key.hex()[..SHOWN_DIGITS]);
        if let Some((key, meta)) = why.nearest {
            let _ = write!(
                words,
                ", compared with {} ({}, {})",
                &key.hex()[..SHOWN_DIGITS],
                text(meta.executable.as_bytes()),
                ago(now.saturating_sub(meta.created.saturating_mul(1000))),
            );
        }
        add_row(&mut shown, &words);
    }
    shown
}

/// Adds a line below a head line.
fn add_row(shown: &mut String, words: &str) {
    let _ = writeln!(shown, "{:<10}{words}", "");
}
