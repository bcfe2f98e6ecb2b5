//! `oclcache clear`.

use std::cmp::Reverse;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::entry_filter::{EntryFilter, KnownNames};
use super::entry_view::{EntryColumns, EntryRow};
use super::failure::Failure;
use super::find::{find_key, no_entry};
use super::open::{existing_store, refuse_readonly};
use super::output::{plural, print, print_json, say, size, width};
use crate::config::Config;
use crate::key::ingredients::Key;
use crate::store::Store;
use crate::store::directory::FileFacts;
use crate::store::heads::EntryHead;

/// Remove all entries, or some of them
#[derive(Args, Default)]
#[command(
    after_help = "Example: oclcache clear --program darktable --older-than 30d\nIn ccache: -C, --evict-older-than"
)]
pub struct ClearArgs {
    /// Only this entry: the key, or enough of its first digits
    #[arg(long, value_name = "KEY")]
    key: Option<String>,
    #[command(flatten)]
    filter: EntryFilter,
    /// List what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON: the keys, and whether they were removed
    #[arg(long)]
    json: bool,
}

impl ClearArgs {
    fn takes_all(&self) -> bool {
        self.key.is_none() && self.filter.takes_all()
    }

    /// Lists what would be removed, in the order of `oclcache list`.
    fn list(&self, store: &Store, chosen: &[Chosen]) -> Result<ExitCode, Failure> {
        if self.json || chosen.is_empty() {
            return Ok(ExitCode::SUCCESS);
        }
        let mut chosen: Vec<&Chosen> = chosen.iter().collect();
        chosen.sort_by_key(|(_, file, _)| Reverse(file.modified_ms));
        let columns = EntryColumns::new(width());
        let row = |(key, file, head): &&Chosen| {
            columns.row(&EntryRow {
                key,
                bytes: file.taken(),
                used_ms: file.modified_ms,
                unused_ms: store.unused_ms(file),
                head: head.as_ref(),
                given_up: false,
            })
        };
        let rows: String = chosen.iter().map(row).collect();
        print((columns.header() + &rows).as_bytes())
    }

    fn print_json(&self, keys: &[String], bytes: u64) -> Result<ExitCode, Failure> {
        match self.json {
            false => Ok(ExitCode::SUCCESS),
            true => print_json(&json!({ "dry_run": self.dry_run, "keys": keys, "bytes": bytes })),
        }
    }

    pub fn run(self) -> Result<ExitCode, Failure> {
        let config = Config::read();
        if !self.dry_run {
            refuse_readonly(&config, "nothing is removed")?;
        }
        let Some(store) = existing_store(&config)? else {
            if let Some(digits) = &self.key {
                return Err(no_entry(digits));
            }
            say("oclcache: the cache is empty");
            return self.print_json(&[], 0);
        };
        if self.takes_all() && !self.dry_run {
            let entries = store.entries()?;
            let keys: Vec<String> = entries.iter().map(|(key, _)| key.hex()).collect();
            let bytes = clear_all(&store, keys.len() as u64)?;
            return self.print_json(&keys, bytes);
        }
        let chosen = choose(&store, &self)?;
        let count = plural(chosen.len() as u64, "entry", "entries");
        let bytes: u64 = chosen.iter().map(|(_, file, _)| file.taken()).sum();
        if self.dry_run {
            let done = self.list(&store, &chosen)?;
            say(&format!("oclcache: would remove {count} ({})", size(bytes)));
            let keys: Vec<String> = chosen.iter().map(|(key, ..)| key.hex()).collect();
            self.print_json(&keys, bytes)?;
            return Ok(done);
        }
        let (mut removed, mut freed) = (Vec::new(), 0);
        for (key, file, _) in &chosen {
            // Another process may have removed it meanwhile.
            if store.remove(key)? {
                removed.push(key.hex());
                freed += file.taken();
            }
        }
        match (&self.key, chosen.as_slice()) {
            (Some(_), [(key, ..)]) => say(&format!(
                "oclcache: removed {} ({})",
                key.hex(),
                size(freed)
            )),
            _ => say(&format!(
                "oclcache: removed {} ({})",
                plural(removed.len() as u64, "entry", "entries"),
                size(freed)
            )),
        }
        self.print_json(&removed, freed)
    }
}

/// An entry to remove. No head: it is damaged.
type Chosen = (Key, FileFacts, Option<EntryHead>);

/// The entries that match all filters.
fn choose(store: &Store, arguments: &ClearArgs) -> Result<Vec<Chosen>, Failure> {
    let only = arguments.key.as_deref();
    let only = only.map(|digits| find_key(store, digits)).transpose()?;
    let filter = &arguments.filter;
    let (mut chosen, mut known) = (Vec::new(), KnownNames::default());
    for (key, file) in store.entries()? {
        if only.is_some_and(|only| only != key) || !filter.takes_file(store, &file) {
            continue;
        }
        let head = store.read_meta(&key).map(EntryHead::of);
        if let Some(head) = &head {
            known.add(head);
        }
        if filter.takes_head(head.as_ref()) {
            chosen.push((key, file, head));
        }
    }
    filter.say_unknown_names(&known);
    Ok(chosen)
}

/// Removes everything that the cache made, with so many entries. Returns how many bytes that were.
fn clear_all(store: &Store, entries: u64) -> Result<u64, Failure> {
    let cleared = store.clear()?;
    let files = |files| plural(files, "file", "files");
    say(&format!(
        "oclcache: removed {} ({})",
        plural(entries, "entry", "entries"),
        size(cleared.bytes)
    ));
    if cleared.foreign > 0 {
        let path = crate::log::path(store.root().path()).to_string();
        return Err(Failure::new(format_args!(
            "did not remove {} in `{path}`: the cache did not make them",
            files(cleared.foreign)
        )));
    }
    Ok(cleared.bytes)
}
