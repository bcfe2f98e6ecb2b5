//! `oclcache run --cold`: runs a program as if for the first time. It uses no cache of compiled kernels, ours or another.
//!
//! Caches are turned off where possible; others are replaced with an empty directory that is removed after the run. For caches that
//! only XDG_CACHE_HOME moves, that is set to a directory of links to everything else, such as downloaded models.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use rustix::fs::{StatVfsMountFlags, statvfs};
use tempfile::TempDir;

use super::child::{exit_as, run_to_end};
use crate::cache::autobake::REMOTE_KEY;
use crate::cli::failure::Failure;
use crate::cli::other_caches::environment::CacheEnvironment;
use crate::cli::other_caches::table::{CACHES, CacheRoot, Cold, OtherCache};
use crate::cli::output::say;

pub fn run(quiet: bool, command: &[OsString]) -> Result<ExitCode, Failure> {
    let surroundings = CacheEnvironment::read();
    let cannot = |error| Failure::new(format_args!("cannot make an empty cache: {error}"));
    let temporary = temporary(&surroundings).map_err(cannot)?;
    let mut program = Command::new(&command[0]);
    program.args(&command[1..]);
    program.env("OCLCACHE_DISABLE", "1").env_remove(REMOTE_KEY);
    let mut hidden = Vec::new();
    let (mut off, mut replaced, mut left) = (vec!["oclcache"], vec![], vec![]);
    for cache in &CACHES {
        for cold in cache.cold {
            match cold {
                Cold::Set(variable, value) => {
                    program.env(variable, value);
                }
                Cold::Move(variable) => {
                    let directory = temporary.path().join(cache.name);
                    fs::create_dir_all(&directory).map_err(cannot)?;
                    program.env(variable, directory);
                }
                Cold::Hide(name) => hidden.push(*name),
            }
        }
        let is_replaced = |cold: &Cold| !matches!(cold, Cold::Set(..));
        match cache.cold {
            [] if is_there(cache, &surroundings) => left.push(cache.name),
            [] => {}
            // The cache of hashcat in ~/.hashcat.
            cold if is_hidden(cold) && is_in_home(cache, &surroundings) => left.push(cache.name),
            cold if cold.iter().all(is_replaced) => replaced.push(cache.name),
            _ => off.push(cache.name),
        }
    }
    if let Some(cache_home) = surroundings.cache_home() {
        let other = temporary.path().join("cache-home");
        link_all_but(&cache_home, &other, &hidden).map_err(cannot)?;
        program.env("XDG_CACHE_HOME", other);
    }
    if !quiet {
        let mut words = format!(
            "oclcache: cold run: turned off the caches of {}; for this run only, empty ones replace those of {}",
            off.join(", "),
            replaced.join(", ")
        );
        if !left.is_empty() {
            words += &format!("; cannot turn off {}", left.join(", "));
        }
        say(&words);
    }
    let ended = run_to_end(&mut program, &command[0]);
    drop(temporary);
    exit_as(&ended?, false)
}

/// Whether a cache exists.
fn is_there(cache: &OtherCache, surroundings: &CacheEnvironment) -> bool {
    let mut places = cache.places.iter();
    places.any(|place| surroundings.path(place).is_some_and(|path| path.exists()))
}

fn is_hidden(cold: &[Cold]) -> bool {
    cold.iter().all(|cold| matches!(cold, Cold::Hide(_)))
}

/// Whether a cache exists that XDG_CACHE_HOME does not move.
fn is_in_home(cache: &OtherCache, surroundings: &CacheEnvironment) -> bool {
    let mut places = cache.places.iter();
    places.any(|place| {
        let path = surroundings
            .path(place)
            .filter(|_| place.base == CacheRoot::Home);
        path.is_some_and(|path| path.exists())
    })
}

/// A directory for this run on a file system that allows execution: PoCL loads kernels from its cache.
fn temporary(surroundings: &CacheEnvironment) -> std::io::Result<TempDir> {
    let is_executable = |place: &PathBuf| {
        let found = statvfs(place);
        found.is_ok_and(|found| !found.f_flag.contains(StatVfsMountFlags::NOEXEC))
    };
    let usual = tempfile::env::temp_dir();
    let mut places = [Some(usual.clone()), surroundings.cache_home()]
        .into_iter()
        .flatten();
    let place = places.find(is_executable).unwrap_or(usual);
    tempfile::Builder::new()
        .prefix("oclcache-cold-")
        .tempdir_in(place)
}

/// Makes a directory of links to the content of another one, except for some names.
fn link_all_but(of: &Path, directory: &Path, hidden: &[&str]) -> std::io::Result<()> {
    fs::create_dir(directory)?;
    // If it does not exist or cannot be read, the program would find nothing either.
    for entry in fs::read_dir(of).into_iter().flatten().flatten() {
        let name = entry.file_name();
        if !hidden.iter().any(|hidden| name == *hidden) {
            symlink(entry.path(), directory.join(&name))?;
        }
    }
    Ok(())
}
