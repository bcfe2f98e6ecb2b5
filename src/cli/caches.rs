//! `oclcache caches`: lists other caches of compiled kernels on this machine.

mod clear;
mod present;
mod walk;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::failure::Failure;
use super::other_caches::environment::CacheEnvironment;
use super::other_caches::table::{CACHES, CacheRoot, OtherCache};
use super::output::{Column, TextTable, doubtful, faint, heading, print, print_json, size, width};
use super::progress;
use crate::log::{os, path};
use present::{PresentCache, present, summary};

/// Show or clear the other caches of compiled kernels on this machine
#[derive(Args)]
#[command(after_help = "Example: oclcache caches\nExample: oclcache caches clear pocl mesa")]
pub struct CachesArgs {
    #[command(subcommand)]
    what: Option<What>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum What {
    Clear(clear::CachesClearArgs),
}

impl CachesArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        match self.what {
            Some(What::Clear(arguments)) => arguments.run(),
            None => list(self.json),
        }
    }
}

/// The variables of a cache that are set, with their values.
fn set_now(cache: &OtherCache, surroundings: &CacheEnvironment) -> Vec<(&'static str, OsString)> {
    let variables = cache.variables.iter();
    variables
        .filter_map(|name| Some((*name, (surroundings.variable)(name)?)))
        .collect()
}

fn list(json: bool) -> Result<ExitCode, Failure> {
    let surroundings = CacheEnvironment::read();
    let precious = surroundings.precious();
    let bar = progress::counter();
    let all: Vec<(&'static OtherCache, Vec<PresentCache>)> = CACHES
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
            shown += "    not found\n";
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
        shown += &format!("{}\n", heading("not found"));
        shown += &absent.render(4, width());
    }
    shown += &format!("total: {}\n", size(total));
    // Many caches read this variable.
    if let Some(cache_home) = (surroundings.variable)("XDG_CACHE_HOME") {
        shown += &format!("set now: XDG_CACHE_HOME={}\n", os(&cache_home));
    }
    print(shown.as_bytes())
}

fn as_json(
    cache: &OtherCache,
    present: &[PresentCache],
    precious: &[PathBuf],
    surroundings: &CacheEnvironment,
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
