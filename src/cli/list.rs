//! `oclcache list`.

use std::cmp::Reverse;
use std::io::{self, Write};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde_json::json;

use super::entry_filter::{EntryFilter, KnownNames};
use super::entry_view::{EntryColumns, EntryRow};
use super::failure::Failure;
use super::open::{entries_of_system, store};
use super::output::{add_version, plain, print, print_json, printed, say, width};
use crate::config::Config;
use crate::store::heads::{EntryHead, ShardHeads};
use crate::store::{ListedEntry, Store, StoreError};

/// List the entries, those used last first
#[derive(Args)]
#[command(
    after_help = "Example: oclcache list | head\nExample: oclcache list --program darktable --sort time"
)]
pub struct ListArgs {
    #[command(flatten)]
    filter: EntryFilter,
    /// The order: by last use unless this is given, and JSON by key
    #[arg(long, value_enum, value_name = "ORDER")]
    sort: Option<Order>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The order of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Order {
    /// Those used last first
    Use,
    /// The newest first
    Age,
    /// The largest first
    Size,
    /// Those that took longest to compile first
    Time,
    /// By key, without waiting until all are read
    Key,
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

/// The rows of a shard, each with what it is sorted by, and the names of all entries.
struct ShardRows {
    rows: Vec<(u64, String)>,
    known: KnownNames,
}

impl ListArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let Some(store) = store()? else {
            return self.end(0);
        };
        let columns = EntryColumns::new(width());
        let order = self.sort.unwrap_or(match self.json {
            true => Order::Key,
            false => Order::Use,
        });
        let header = columns.header();
        let mut output = io::stdout().lock();
        let mut count = 0;
        let mut write = |rows: &[(u64, String)]| {
            for (_, row) in rows {
                let before: &str = match (self.json, count) {
                    (true, 0) => "[\n",
                    (true, _) => ",\n",
                    (false, 0) => &header,
                    (false, _) => "",
                };
                output.write_all(before.as_bytes())?;
                output.write_all(row.as_bytes())?;
                count += 1;
            }
            Ok::<(), io::Error>(())
        };
        let mut all = Vec::new();
        let mut known = KnownNames::default();
        let view = |heads: &ShardHeads| self.rows(&store, heads, order, columns);
        // Shard by shard: there may be a million rows, and `head` may read only a few.
        let walked = store.walk_heads(
            view,
            |ShardRows {
                 mut rows,
                 known: of_shard,
             }| {
                known.merge(of_shard);
                match order {
                    Order::Key => write(&rows).map_err(Unwritten::Output),
                    _ => {
                        all.append(&mut rows);
                        Ok(())
                    }
                }
            },
        );
        all.sort_by_key(|(value, _)| Reverse(*value));
        match walked.and_then(|()| write(&all).map_err(Unwritten::Output)) {
            Ok(()) => {}
            Err(Unwritten::Unread(error)) => return Err(error.into()),
            Err(Unwritten::Output(error)) => return printed(Err(error)),
        }
        drop(output);
        if !self.json {
            self.filter.say_unknown_names(&known);
        }
        self.end(count)
    }

    /// What is printed after so many rows.
    fn end(&self, count: usize) -> Result<ExitCode, Failure> {
        match (self.json, count) {
            (true, 0) => print_json(&json!([])),
            (true, _) => print(b"\n]\n"),
            (false, 0) if self.filter.takes_all() => {
                let of_system = entries_of_system(&Config::read());
                say(&format!(
                    "oclcache: the cache is empty; `oclcache run PROGRAM` fills it{of_system}"
                ));
                Ok(ExitCode::SUCCESS)
            }
            (false, 0) => {
                say("oclcache: no entries match");
                Ok(ExitCode::SUCCESS)
            }
            (false, _) => printed(io::stdout().flush()),
        }
    }

    /// The rows of a shard.
    fn rows(
        &self,
        store: &Store,
        heads: &ShardHeads,
        order: Order,
        columns: EntryColumns,
    ) -> ShardRows {
        let mut known = KnownNames::default();
        let row = |(entry, head): &(ListedEntry, Option<EntryHead>)| {
            let head = head.as_ref();
            if let Some(head) = head {
                known.add(head);
            }
            if !self.filter.takes_file(store, &entry.file) || !self.filter.takes_head(head) {
                return None;
            }
            let is_pending = head.is_some_and(|head| head.is_pending);
            let row = EntryRow {
                key: &entry.key,
                bytes: entry.file.size,
                used_ms: entry.file.modified_ms,
                unused_ms: store.unused_ms(&entry.file),
                head,
                given_up: is_pending && store.given_up(&entry.key).is_some(),
            };
            let value = match order {
                Order::Use => entry.file.modified_ms,
                Order::Age => head.map_or(0, |head| head.created),
                Order::Size => entry.file.size,
                Order::Time => head.map_or(0, |head| head.compile_ns),
                Order::Key => 0,
            };
            let shown = match self.json {
                true => {
                    let mut json = row.as_json();
                    add_version(&mut json);
                    element(&plain(&json))
                }
                false => columns.row(&row),
            };
            Some((value, shown))
        };
        let rows = heads.entries.iter().filter_map(row).collect();
        ShardRows { rows, known }
    }
}

/// A value as an element of a list: no string in it has a line break.
fn element(json: &str) -> String {
    let lines = json.lines().map(|line| format!("  {line}"));
    lines.collect::<Vec<_>>().join("\n")
}
