//! `oclcache list`.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::entry_view::{row_as_json, row_as_text};
use super::failure::Failure;
use super::open::store;
use super::output::{plain, print, print_json, printed, say, width};
use crate::store::heads::{EntryHead, ShardHeads};
use crate::store::{ListedEntry, Store, StoreError};

/// List the entries
#[derive(Args)]
#[command(after_help = "Example: oclcache list | head")]
pub struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Why not all rows are written.
enum Unwritten {
    Unread(StoreError),
    Output(io::Error),
}

impl From<StoreError> for Unwritten {
    fn from(error: StoreError) -> Unwritten {
        Unwritten::Unread(error)
    }
}

impl ListArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let mut is_empty = true;
        if let Some(store) = store()? {
            let columns = width();
            let rows = |heads: &ShardHeads| rows_of(&store, heads, self.json, columns);
            let mut output = io::stdout().lock();
            // Shard by shard: there may be a million rows, and `head` may read only a few.
            let written = store.walk_heads(rows, |rows| {
                let between = match (self.json, is_empty) {
                    _ if rows.is_empty() => return Ok(()),
                    (false, _) => "",
                    (true, true) => "[\n",
                    (true, false) => ",\n",
                };
                is_empty = false;
                let mut write = |text: &str| output.write_all(text.as_bytes());
                write(between)
                    .and_then(|()| write(&rows))
                    .map_err(Unwritten::Output)
            });
            match written {
                Ok(()) => {}
                Err(Unwritten::Unread(error)) => return Err(error.into()),
                Err(Unwritten::Output(error)) => return printed(Err(error)),
            }
        }
        match (self.json, is_empty) {
            (true, true) => print_json(&json!([])),
            (true, false) => print(b"\n]\n"),
            (false, true) => {
                say("oclcache: the cache is empty; `oclcache run PROGRAM` fills it");
                Ok(ExitCode::SUCCESS)
            }
            (false, false) => printed(io::stdout().flush()),
        }
    }
}

/// The rows of a shard.
fn rows_of(store: &Store, heads: &ShardHeads, as_json: bool, columns: Option<usize>) -> String {
    let row = |(entry, head): &(ListedEntry, Option<EntryHead>)| {
        let (key, bytes, head) = (&entry.key, entry.file.size, head.as_ref());
        let given_up = head.is_some_and(|head| head.is_pending) && store.given_up(key).is_some();
        match as_json {
            true => element(&plain(&row_as_json(key, bytes, head, given_up))),
            false => row_as_text(key, bytes, head, given_up, columns),
        }
    };
    let rows: Vec<String> = heads.entries.iter().map(row).collect();
    rows.join(if as_json { ",\n" } else { "" })
}

/// A value as an element of a list: no string in it has a line break.
fn element(json: &str) -> String {
    let lines = json.lines().map(|line| format!("  {line}"));
    lines.collect::<Vec<_>>().join("\n")
}
