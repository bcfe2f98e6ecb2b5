//! `oclcache clear`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use super::entry_view::row_as_text;
use super::failure::Failure;
use super::find::{find_key, no_entry};
use super::open::store;
use super::output::{plural, print, say, size, width};
use super::parse::parse_age;
use crate::key::ingredients::Key;
use crate::log::text;
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
    /// Only entries that this program made: its file name, as `list` shows it
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
    /// Only entries of this driver, as `list` shows it
    #[arg(long, value_name = "NAME")]
    driver: Option<String>,
    /// Only entries unused for this time, such as 12h or 30d
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    older_than: Option<Duration>,
    /// List what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

impl ClearArgs {
    fn takes_all(&self) -> bool {
        let ClearArgs {
            key,
            program,
            driver,
            older_than,
            dry_run: _,
        } = self;
        key.is_none() && program.is_none() && driver.is_none() && older_than.is_none()
    }
}

impl ClearArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let Some(store) = store()? else {
            if let Some(digits) = &self.key {
                return Err(no_entry(digits));
            }
            say("oclcache: the cache is empty");
            return Ok(ExitCode::SUCCESS);
        };
        if self.takes_all() && !self.dry_run {
            return clear_all(&store);
        }
        let chosen = choose(&store, &self)?;
        let count = plural(chosen.len() as u64, "entry", "entries");
        let bytes: u64 = chosen.iter().map(|(_, file, _)| file.taken()).sum();
        if self.dry_run {
            let columns = width();
            let row = |(key, file, head): &(Key, FileFacts, Option<EntryHead>)| {
                row_as_text(key, file.taken(), head.as_ref(), false, columns)
            };
            let rows: String = chosen.iter().map(row).collect();
            let done = print(rows.as_bytes())?;
            say(&format!("oclcache: would remove {count} ({})", size(bytes)));
            return Ok(done);
        }
        let (mut removed, mut freed) = (0, 0);
        for (key, file, _) in &chosen {
            // Another process may have removed it meanwhile.
            if store.remove(key)? {
                removed += 1;
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
                plural(removed, "entry", "entries"),
                size(freed)
            )),
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// The entries that match all filters.
fn choose(
    store: &Store,
    arguments: &ClearArgs,
) -> Result<Vec<(Key, FileFacts, Option<EntryHead>)>, Failure> {
    let only = arguments.key.as_deref();
    let only = only.map(|digits| find_key(store, digits)).transpose()?;
    let (mut chosen, mut programs, mut drivers) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
    for (key, file) in store.entries()? {
        if only.is_some_and(|only| only != key) {
            continue;
        }
        if let Some(age) = arguments.older_than
            && u128::from(store.unused_ms(&file)) <= age.as_millis()
        {
            continue;
        }
        let head = store.read_meta(&key).map(EntryHead::of);
        let head_is = |is: &dyn Fn(&EntryHead) -> bool| head.as_ref().is_some_and(is);
        let is_of_program = |name: &String| head_is(&|head| head.executable == *name);
        let is_of_driver =
            |name: &String| head_is(&|head| head.driver_family.eq_ignore_ascii_case(name));
        if let Some(head) = &head {
            *programs.entry(head.executable.clone()).or_insert(0u64) += 1;
            *drivers.entry(head.driver_family.clone()).or_insert(0u64) += 1;
        }
        if arguments.program.as_ref().is_none_or(is_of_program)
            && arguments.driver.as_ref().is_none_or(is_of_driver)
        {
            chosen.push((key, file, head));
        }
    }
    for (what, name, known) in [
        ("program", &arguments.program, &programs),
        ("driver", &arguments.driver, &drivers),
    ] {
        if let Some(name) = name
            && !known.keys().any(|known| known.eq_ignore_ascii_case(name))
        {
            say_known_names(what, name, known);
        }
    }
    Ok(chosen)
}

/// Lists the names that entries have.
fn say_known_names(what: &str, name: &str, known: &BTreeMap<String, u64>) {
    const SHOWN: usize = 8;
    let mut known: Vec<(&String, &u64)> = known.iter().collect();
    known.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
    let shown = known.iter().take(SHOWN);
    let shown: Vec<String> = shown
        .map(|(name, count)| format!("{} ({count})", text(name.as_bytes())))
        .collect();
    let name = text(name.as_bytes());
    let there = match shown.as_slice() {
        [] => "the cache has no entries".to_owned(),
        shown => format!("there are entries of {}", shown.join(", ")),
    };
    say(&format!(
        "oclcache: no entry is of the {what} `{name}`; {there}"
    ));
}

/// Removes everything that the cache made.
fn clear_all(store: &Store) -> Result<ExitCode, Failure> {
    let cleared = store.clear()?;
    let files = |files| plural(files, "file", "files");
    say(&format!(
        "oclcache: removed {}, {}",
        files(cleared.files),
        size(cleared.bytes)
    ));
    if cleared.foreign > 0 {
        let path = crate::log::path(store.root().path()).to_string();
        return Err(Failure::new(format_args!(
            "did not remove {} in `{path}`: the cache did not make them",
            files(cleared.foreign)
        )));
    }
    Ok(ExitCode::SUCCESS)
}
