//! `oclcache caches clear`.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use rustix::fs::AtFlags;

use super::present::{PresentCache, present, summary};
use super::walk::{WalkAction, WalkResult, through};
use crate::cli::confirm::confirm;
use crate::cli::failure::Failure;
use crate::cli::other_caches::environment::{CacheEnvironment, OpenedCache};
use crate::cli::other_caches::table::{CACHES, CacheRoot, OtherCache};
use crate::cli::output::{plural, print, say, size};
use crate::cli::progress;
use crate::log::{os, path};

/// How many foreign files are listed.
const MAX_LISTED: usize = 10;

/// Remove the files of other caches, and nothing else
#[derive(Args)]
#[command(
    after_help = "Example: oclcache caches clear pocl pyopencl\nExample: oclcache caches clear --all --dry-run"
)]
pub struct CachesClearArgs {
    /// The caches, by the names that `oclcache caches` shows
    #[arg(value_name = "NAME", required_unless_present = "all")]
    names: Vec<OsString>,
    /// All known caches
    #[arg(long, conflicts_with = "names")]
    all: bool,
    /// Do not ask for confirmation
    #[arg(long, short)]
    yes: bool,
    /// List what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
}

/// A directory to clear.
struct Chosen {
    cache: &'static OtherCache,
    present: PresentCache,
}

impl CachesClearArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let surroundings = CacheEnvironment::read();
        let precious = surroundings.precious();
        let caches: Vec<&'static OtherCache> = match self.all {
            true => CACHES.iter().collect(),
            false => self
                .names
                .iter()
                .map(|name| named(name))
                .collect::<Result<_, _>>()?,
        };
        let (mut chosen, mut refused) = (Vec::new(), 0);
        let bar = progress::counter();
        for cache in caches {
            for present in present(cache, &surroundings, &bar) {
                let shown = path(&present.path).to_string();
                if let Some(why) = present.refusal(cache, &precious) {
                    bar.suspend(|| say(&format!("oclcache: `{shown}` is not cleared: {why}")));
                    refused += 1;
                } else if !present.is_empty_elsewhere() {
                    chosen.push(Chosen { cache, present });
                }
            }
        }
        bar.finish_and_clear();
        let (plan, files, bytes) = plan(&chosen);
        if self.dry_run {
            print(plan.as_bytes())?;
            say(&format!(
                "oclcache: would remove {} ({})",
                plural(files, "file", "files"),
                size(bytes)
            ));
        } else if chosen.is_empty() {
            say("oclcache: there is nothing to remove");
        } else {
            if !self.yes {
                say(plan.trim_end());
                ask(files, bytes)?;
            }
            refused += remove(&chosen, files);
        }
        match refused {
            0 => Ok(ExitCode::SUCCESS),
            _ => Err(Failure::new(
                "not everything was removed; see the messages above",
            )),
        }
    }
}

/// What would be removed, as a message, with the number of files and their size.
fn plan(chosen: &[Chosen]) -> (String, u64, u64) {
    let (mut words, mut files, mut bytes) = (String::new(), 0, 0);
    for one in chosen {
        if let Ok((_, found)) = &one.present.found {
            files += found.files;
            bytes += found.bytes;
            let shown = path(&one.present.path);
            words += &format!("{}: {shown}: {}\n", one.cache.name, summary(found));
        }
    }
    (words, files, bytes)
}

/// Asks for confirmation.
fn ask(files: u64, bytes: u64) -> Result<(), Failure> {
    let question = format!(
        "Remove {} ({})?",
        plural(files, "file", "files"),
        size(bytes)
    );
    match confirm(&question) {
        Some(true) => Ok(()),
        Some(false) => Err(Failure::new("nothing was removed")),
        None => Err(Failure::usage(
            "nothing was removed: without a terminal, confirm with --yes",
        )),
    }
}

/// Clears the directories. Returns the number of failures.
fn remove(chosen: &[Chosen], files: u64) -> u64 {
    let bar = progress::bar(files, "");
    let mut failures = 0;
    for one in chosen {
        let Ok((opened, _)) = &one.present.found else {
            continue;
        };
        bar.set_message(one.cache.name);
        let place = one.present.place;
        let path = &one.present.path;
        let removed = through(&opened.fd, path, place, WalkAction::Remove, &bar);
        bar.suspend(|| match removed {
            Ok(found) => {
                failures += found.failed.len() as u64;
                report(one, &found, remove_directories(opened));
            }
            Err(why) => {
                failures += 1;
                let path = crate::log::path(path);
                say(&format!("oclcache: `{path}` is not cleared: {why}"));
            }
        });
    }
    bar.finish_and_clear();
    failures
}

/// Removes a cache's directory and those above it that belong to it, if they are empty. Returns whether the cache's directory is gone.
fn remove_directories(opened: &OpenedCache) -> bool {
    let mut gone = opened.above.iter().rev().map(|(above, name)| {
        rustix::fs::unlinkat(above, name.as_os_str(), AtFlags::REMOVEDIR).is_ok()
    });
    let is_gone = gone.next().unwrap_or(false);
    if is_gone {
        let _ = gone.take_while(|gone| *gone).count();
    }
    is_gone
}

fn report(one: &Chosen, found: &WalkResult, is_gone: bool) {
    let shown = path(&one.present.path).to_string();
    say(&format!(
        "oclcache: {}: removed {} ({}) from `{shown}`",
        one.cache.name,
        plural(found.files, "file", "files"),
        size(found.bytes)
    ));
    let left = |paths: &[PathBuf], why: &str| {
        for path in paths.iter().take(MAX_LISTED) {
            let path = crate::log::path(path);
            say(&format!("oclcache: left `{path}`: {why}"));
        }
        if let more @ 1.. = paths.len().saturating_sub(MAX_LISTED) {
            say(&format!("oclcache: left {more} more there: {why}"));
        }
    };
    left(
        &found.foreign,
        &format!("it does not belong to {}", one.cache.name),
    );
    for (path, error) in found.failed.iter().take(MAX_LISTED) {
        let path = crate::log::path(path);
        say(&format!("oclcache: cannot remove `{path}`: {error}"));
    }
    if is_gone && let CacheRoot::Variable(variable @ "NEO_CACHE_DIR") = one.present.place.base {
        say(&format!(
            "oclcache: make `{shown}` again or unset {variable}: without the directory, the driver has no cache"
        ));
    }
}

/// The cache with a name.
fn named(name: &OsStr) -> Result<&'static OtherCache, Failure> {
    let known = CACHES.iter().find(|cache| name == cache.name);
    known.ok_or_else(|| {
        let names: Vec<&str> = CACHES.iter().map(|cache| cache.name).collect();
        let (name, names) = (os(name), names.join(", "));
        Failure {
            message: format!("`{name}` is not a known cache; the known ones are {names}"),
            code: 2,
        }
    })
}
