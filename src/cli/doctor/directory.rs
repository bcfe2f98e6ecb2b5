//! Checks the cache directory: its owner, who may write it, and whether anything can be stored there. Leaves nothing behind.

use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use rustix::fs::statvfs;
use rustix::io::Errno;

use super::content;
use super::report::{DoctorReport, Fix};
use crate::cli::open::{bytes_taken, tiers, write_something};
use crate::cli::output::{quoted, size};
use crate::cli::refused_directory::Remedy;
use crate::cli::replace_file::is_writable;
use crate::config::Config;
use crate::filesystem::FileSystem;
use crate::log::path;
use crate::store::directory::Directory;
use crate::store::{Limits, Store};

const ABOUT: &str = "directory";

pub fn examine(config: &Config, report: &mut DoctorReport) {
    let directory = match (config.directory(), config.foreign_directory()) {
        (Ok(directory), _) | (Err(_), Some(directory)) => directory,
        (Err(why), None) => {
            let fix = Fix::command("export OCLCACHE_DIR=/path/to/a/directory")
                .because("use a directory of yours");
            return report.wrong(ABOUT, format!("there is no cache directory: {why}"), fix);
        }
    };
    let shown = path(&directory).to_string();
    let metadata = match std::fs::metadata(&directory) {
        Ok(metadata) => metadata,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            return examine_missing(config, &directory, report);
        }
        Err(error) => {
            let fix = match error.kind() {
                ErrorKind::PermissionDenied => {
                    Fix::words(format!("make the parents of `{shown}` accessible for you"))
                }
                _ => Fix::command("export OCLCACHE_DIR=/path/to/a/directory")
                    .because("use another directory"),
            };
            return report.wrong(ABOUT, format!("{shown} cannot be examined: {error}"), fix);
        }
    };
    let mode = metadata.permissions().mode() & 0o7777;
    let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
    if metadata.is_dir() && is_own && mode & 0o500 != 0o500 {
        let text = format!("{shown} has mode {mode:04o}: its owner may not read it");
        return report.wrong(ABOUT, text, Fix::on("chmod u+rwx", &directory));
    }
    if let Err(error) = Directory::open(&directory) {
        let error = error.to_string();
        return report.wrong(ABOUT, error, fix(&directory));
    }
    let file_system = FileSystem::at(&directory).described();
    let whose = format!("{shown}: yours, mode {mode:04o}, on {file_system}");
    if config.readonly() {
        report.good(ABOUT, whose);
        return content::examine(&directory, config.readonly(), report);
    }
    if mode & 0o200 == 0 {
        let text = format!(
            "{shown} has mode {mode:04o}: its owner may not write it, so nothing is stored"
        );
        return report.wrong(ABOUT, text, Fix::on("chmod u+w", &directory));
    }
    if let Err(error) = write_something(&directory) {
        let fix = match Errno::from_io_error(&error) {
            Some(Errno::NOSPC | Errno::DQUOT) => full(&directory),
            Some(Errno::ROFS) => Fix::words(
                "its file system is read-only: mount it for writing, set OCLCACHE_DIR to another directory, or set `readonly = true`",
            ),
            _ => Fix::on("chmod u+rwx", &directory),
        };
        let text = format!("{shown}: nothing can be written there: {error}");
        return report.wrong(ABOUT, text, fix);
    }
    report.good(ABOUT, whose);
    examine_room(config, &directory, &directory, report);
    content::examine(&directory, config.readonly(), report);
}

/// Checks whether the first miss can make the directory.
fn examine_missing(config: &Config, directory: &Path, report: &mut DoctorReport) {
    let shown = path(directory);
    if config.readonly() {
        let text = format!("{shown} does not exist, and `readonly` forbids to make it");
        if tiers(config).used().next().is_some() {
            return report.good(ABOUT, text);
        }
        let fix = Fix::words(
            "run a program once without `readonly`, or set OCLCACHE_DIR to a directory with a cache",
        );
        return report.wrong(ABOUT, format!("{text}, so nothing is cached"), fix);
    }
    let parent = directory.ancestors().skip(1).find(|parent| parent.exists());
    let parent = parent.unwrap_or(Path::new("/"));
    if parent.is_dir() && is_writable(parent) {
        let file_system = FileSystem::at(directory).described();
        let text = format!("{shown}: made at the first miss, on {file_system}");
        report.good(ABOUT, text);
        return examine_room(config, directory, parent, report);
    }
    let text = format!(
        "{shown} does not exist and cannot be made: `{}` is not writable",
        path(parent)
    );
    let fix = Fix::command("export OCLCACHE_DIR=/path/to/a/directory")
        .because("use another directory, or make this one writable for you");
    report.wrong(ABOUT, text, fix);
}

/// How to fix what [`Directory::open`] refuses.
fn fix(directory: &Path) -> Fix {
    let remedy = directory.is_dir().then(|| Remedy::of(directory)).flatten();
    let below = match remedy {
        Some(Remedy::Command(command)) => return Fix::command(command).because(
            "make it yours if you trust its content, or set OCLCACHE_DIR to a directory of yours",
        ),
        Some(Remedy::Below(below)) => quoted(&below),
        Some(Remedy::Elsewhere) | None => None,
    };
    match below {
        Some(below) => Fix::command(format!("export OCLCACHE_DIR={below}"))
            .because("use a directory of yours below it"),
        None => Fix::command("export OCLCACHE_DIR=/path/to/a/directory")
            .because("use a directory of yours"),
    }
}

fn full(directory: &Path) -> Fix {
    let words = format!(
        "make room on the file system of `{}`, or set OCLCACHE_DIR to a directory on another one",
        path(directory)
    );
    let store = Store::open_existing(directory).ok().flatten();
    match store.map_or(0, |store| bytes_taken(&store) / 2) >> 20 {
        0 => Fix::words(words),
        half => Fix::command(format!("oclcache gc --max-size {half}Mi"))
            .because(format!("{words}; to remove half of the cache")),
    }
}

fn examine_room(config: &Config, directory: &Path, existing: &Path, report: &mut DoctorReport) {
    const ABOUT: &str = "room";
    let Ok(found) = statvfs(existing) else {
        return; // some file systems do not say
    };
    let bytes = |blocks: u64| blocks.saturating_mul(found.f_frsize);
    let (free, all) = (bytes(found.f_bavail), bytes(found.f_blocks));
    if all == 0 {
        return;
    }
    let least = Limits::of(config).free_of(all);
    let text = format!("{} of {} are free", size(free), size(all));
    if free >= least {
        return report.good(ABOUT, text);
    }
    let store = Store::open_existing(directory).ok().flatten();
    let effect = match store.is_some_and(|store| bytes_taken(&store) >= least - free) {
        true => "the next miss removes entries",
        false => "nothing is stored",
    };
    let text = format!(
        "{text}, less than the {} that `min_free` requires, so {effect}",
        size(least)
    );
    let fix = match config.min_free() {
        Some(_) => {
            Fix::command("export OCLCACHE_MIN_FREE=auto").because("make room, or require less")
        }
        None => full(directory),
    };
    report.wrong(ABOUT, text, fix);
}
