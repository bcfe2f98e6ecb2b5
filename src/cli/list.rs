//! `oclcache list`.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::entry_view::{row_as_json, row_as_text};
use super::failure::Failure;
use super::open::store;
use super::output::{print_json, printed, say};
use crate::store::entry::Meta;

/// List the entries
#[derive(Args)]
#[command(after_help = "Example: oclcache list | head")]
pub struct ListArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl ListArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let store = store()?;
        let entries = match &store {
            Some(store) => store.entries()?,
            None => Vec::new(),
        };
        let Some(store) = store.filter(|_| !entries.is_empty()) else {
            if self.json {
                return print_json(&json!([]));
            }
            say("oclcache: the cache is empty; `oclcache run PROGRAM` fills it");
            return Ok(ExitCode::SUCCESS);
        };
        let mut rows = entries.iter().map(|(key, file)| {
            let meta = store.read_meta(key);
            let given_up =
                meta.as_ref().is_some_and(Meta::is_pending) && store.given_up(key).is_some();
            (key, file.size, meta, given_up)
        });
        if self.json {
            return print_json(
                &rows
                    .map(|(key, bytes, meta, given_up)| {
                        row_as_json(key, bytes, meta.as_ref(), given_up)
                    })
                    .collect(),
            );
        }
        // Row by row: there may be a million, and `head` may read only a few.
        let mut output = io::stdout().lock();
        let written = rows.try_for_each(|(key, bytes, meta, given_up)| {
            output.write_all(row_as_text(key, bytes, meta.as_ref(), given_up).as_bytes())
        });
        printed(written)
    }
}
