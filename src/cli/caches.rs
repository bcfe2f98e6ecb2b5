//! `oclcache caches`: the other caches of compiled kernels on this machine.

mod clear;
mod place;
mod structure;
pub mod table;
mod walk;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::{Map, Value, json};

use super::failure::Failure;
use super::output::{
    Column, TextTable, ago, doubtful, faint, heading, plural, print, print_json, size, width,
};
use crate::log::{os, path};
pub use place::Surroundings;
use place::{Opened, open};
use table::{CACHES, CachePath, CacheRoot, OtherCache};
use walk::{Action, WalkResult, through};

/// What is wanted of the other caches.
#[derive(Args)]
pub struct CachesArgs {
    #[command(subcommand)]
    what: Option<What>,
    /// As JSON
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum What {
    /// Remove what other caches have stored, and nothing else
    #[command(
        after_help = "Example: oclcache caches clear pocl pyopencl\nExample: oclcache caches clear --all --dry-run"
    )]
    Clear(clear::CachesClearArgs),
}

pub fn caches(wanted: CachesArgs) -> Result<ExitCode, Failure> {
    match wanted.what {
        Some(What::Clear(wanted)) => clear::clear(&wanted),
        None => list(wanted.json),
    }
}

/// A directory of a cache that is there.
struct Present {
    place: &'static CachePath,
    path: PathBuf,
    /// What is in it, or why nobody looks.
    found: Result<(Opened, WalkResult), String>,
}

impl Present {
    /// Whether it is a directory of the user's choice that has nothing in it, which he may have made himself.
    fn is_empty_elsewhere(&self) -> bool {
        let is_empty = |(_, found): &(Opened, WalkResult)| found.files == 0;
        matches!(self.place.base, CacheRoot::Variable(_)) && self.found.as_ref().is_ok_and(is_empty)
    }

    /// Why nothing is to be removed here, for people; None: the cache may be removed.
    fn refusal(&self, cache: &OtherCache, precious: &[PathBuf]) -> Option<String> {
        let found = match &self.found {
            Ok((_, found)) => found,
            Err(why) => return Some(why.clone()),
        };
        let CacheRoot::Variable(variable) = self.place.base else {
            return None; // what is at its own place is the cache's
        };
        let is_same = |other: &PathBuf| is_same_file(&self.path, other);
        if self.place.below.is_empty() && precious.iter().any(is_same) {
            return Some(format!(
                "{variable} names a directory that holds more than a cache"
            ));
        }
        (!found.is_recognized && found.files + found.foreign.len() as u64 > 0).then(|| {
            format!(
                "{variable} names it, but nothing in it is as {} names its files",
                cache.name
            )
        })
    }
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let id = |path: &Path| {
        let metadata = path.metadata().ok()?;
        Some((metadata.dev(), metadata.ino()))
    };
    id(one).is_some_and(|found| id(other) == Some(found))
}

/// The directories of a cache that are there, each once.
fn present(
    cache: &'static OtherCache,
    surroundings: &Surroundings,
    bar: &ProgressBar,
) -> Vec<Present> {
    let mut seen = HashSet::new();
    let mut present = Vec::new();
    for place in cache.places {
        let Some((base, path)) = surroundings.base(place.base).zip(surroundings.path(place)) else {
            continue;
        };
        let found = match open(&base, place.below) {
            Ok(None) => continue,
            Ok(Some(opened)) => {
                let stat = rustix::fs::fstat(&opened.fd);
                if stat.is_ok_and(|stat| !seen.insert((stat.st_dev, stat.st_ino))) {
                    continue;
                }
                through(&opened.fd, &path, place, Action::Look, bar).map(|found| (opened, found))
            }
            Err(why) => Err(why),
        };
        present.push(Present { place, path, found });
    }
    present
}

/// The variables of a cache that are set, with their values.
fn set_now(cache: &OtherCache, surroundings: &Surroundings) -> Vec<(&'static str, OsString)> {
    let variables = cache.variables.iter();
    variables
        .filter_map(|name| Some((*name, (surroundings.variable)(name)?)))
        .collect()
}

fn now_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_millis() as u64)
}

/// How many files were seen, for people who wait.
fn looking() -> ProgressBar {
    let bar = ProgressBar::new_spinner();
    if let Ok(style) = ProgressStyle::with_template("{spinner} files: {pos}") {
        bar.set_style(style);
    }
    bar
}

fn list(json: bool) -> Result<ExitCode, Failure> {
    let surroundings = Surroundings::read();
    let precious = surroundings.precious();
    let bar = looking();
    let all: Vec<(&'static OtherCache, Vec<Present>)> = CACHES
        .iter()
        .map(|cache| (cache, present(cache, &surroundings, &bar)))
        .collect();
    bar.finish_and_clear();
    if json {
        let all = all.iter();
        return print_json(
            &all.map(|(cache, present)| as_json(cache, present, &precious, &surroundings))
                .collect(),
        );
    }
    let mut shown = String::new();
    let mut total = 0;
    let mut absent = TextTable::new(&[Column::Left, Column::Left, Column::Cut]);
    for (cache, present) in &all {
        let set = set_now(cache, &surroundings);
        if present.is_empty() && set.is_empty() {
            let places = cache.places.iter();
            let places = places.filter(|place| !matches!(place.base, CacheRoot::Variable(_)));
            let usual = places.filter_map(|place| surroundings.path(place)).next();
            absent.row([
                cache.name.to_owned(),
                usual.map_or_else(String::new, |usual| path(&usual).to_string()),
                faint(cache.what),
            ]);
            continue;
        }
        shown += &format!("{}  {}\n", heading(cache.name), cache.what);
        if present.is_empty() {
            shown += "    there is none\n";
        }
        for one in present {
            shown += &format!("    {}\n", path(&one.path));
            shown += &match &one.found {
                Ok((_, found)) => {
                    total += found.bytes;
                    format!("        {}\n", summary(found))
                }
                Err(why) => format!("        {}\n", doubtful(why)),
            };
            if one.found.is_ok()
                && let Some(why) = one.refusal(cache, &precious)
            {
                shown += &format!("        {}\n", doubtful(format_args!("not cleared: {why}")));
            }
        }
        shown += &faint(format_args!(
            "    off: {}; moved: {}",
            cache.off, cache.moved
        ));
        shown.push('\n');
        if !set.is_empty() {
            let set: Vec<String> = set
                .iter()
                .map(|(name, value)| format!("{name}={}", os(value)))
                .collect();
            shown += &format!("    set now: {}\n", set.join(", "));
        }
    }
    if !absent.is_empty() {
        shown += &format!("{}\n", heading("not there"));
        shown += &absent.render(4, width());
    }
    shown += &format!("all together: {}\n", size(total));
    // Many look at it; that is said once.
    if let Some(cache_home) = (surroundings.variable)("XDG_CACHE_HOME") {
        shown += &format!("set now: XDG_CACHE_HOME={}\n", os(&cache_home));
    }
    print(shown.as_bytes())
}

/// How much there is and how old it is.
fn summary(found: &WalkResult) -> String {
    let mut words = format!(
        "{} in {}",
        size(found.bytes),
        plural(found.files, "file", "files")
    );
    let now = now_ms();
    if let (Some(newest), Some(oldest)) = (found.newest, found.oldest) {
        let since = |written: u64| ago(now.saturating_sub(written));
        words += &format!(", written {}", since(newest));
        if since(oldest) != since(newest) {
            words += &format!(" to {}", since(oldest));
        }
    }
    let foreign = found.foreign.len() as u64;
    if foreign > 0 {
        words += &format!("; {} of others", plural(foreign, "thing", "things"));
    }
    let unread = found.failed.len() as u64;
    if unread > 0 {
        words += &format!(
            "; {} cannot be read",
            plural(unread, "directory", "directories")
        );
    }
    words
}

fn as_json(
    cache: &OtherCache,
    present: &[Present],
    precious: &[PathBuf],
    surroundings: &Surroundings,
) -> Value {
    let places: Vec<Value> = present
        .iter()
        .map(|one| {
            let named_by = match one.place.base {
                CacheRoot::Variable(name) => Some(name),
                _ => None,
            };
            let refusal = one.refusal(cache, precious);
            let found = one.found.as_ref().ok().map(|(_, found)| found);
            json!({
                "path": one.path.to_string_lossy(),
                "variable": named_by,
                "bytes": found.map(|found| found.bytes),
                "files": found.map(|found| found.files),
                "newest_ms": found.and_then(|found| found.newest),
                "oldest_ms": found.and_then(|found| found.oldest),
                "foreign": found.map(|found| found.foreign.len()),
                "not_cleared": refusal,
            })
        })
        .collect();
    let usual: Vec<String> = cache
        .places
        .iter()
        .filter_map(|place| surroundings.path(place))
        .map(|path| path.to_string_lossy().into_owned())
        .collect();
    let set: Map<String, Value> = set_now(cache, surroundings)
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_string_lossy().into()))
        .collect();
    json!({
        "name": cache.name,
        "what": cache.what,
        "places": places,
        "looked_at": usual,
        "off": cache.off,
        "moved": cache.moved,
        "variables": cache.variables,
        "set": set,
    })
}

/// The cache of a name.
fn named(name: &OsStr) -> Result<&'static OtherCache, Failure> {
    let known = CACHES.iter().find(|cache| name == cache.name);
    known.ok_or_else(|| {
        let names: Vec<&str> = CACHES.iter().map(|cache| cache.name).collect();
        let (name, names) = (os(name), names.join(", "));
        Failure {
            words: format!("`{name}` is no cache that is known; there are {names}"),
            code: 2,
        }
    })
}
