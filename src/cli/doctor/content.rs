//! What stands in the cache directory: whether all of it is this user's, who alone may write it, and can. One file that root has
//! left there, or a directory that an archive has restored with another mode, and the cache is off or stores nothing.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::report::{DoctorReport, Mend};
use crate::cli::output::{plural, size};
use crate::log::path;
use crate::store::{Store, VERSION_DIRECTORY};

const ABOUT: &str = "entries";
/// Directories stand in each other no deeper: those of the entries are in one of the format's.
const MAX_DEPTH: u32 = 4;

/// What is the matter with a file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Foreign,
    Writable,
    Closed,
    Link,
}

pub fn examine(directory: &Path, is_readonly: bool, report: &mut DoctorReport) {
    let own = directory.join(VERSION_DIRECTORY);
    if let Some((fault, at)) = fault_below(&own, is_readonly, 0) {
        let (words, mend) = told(fault, &at, directory);
        return report.wrong(ABOUT, format!("cannot use `{}`: {words}", path(&at)), mend);
    }
    let readable = readable_below(directory, 0);
    if readable > 0 {
        let files = plural(readable, "file", "files");
        let text = format!("others can read {files} in `{}`", path(directory));
        let mend = Mend::on("chmod -R go-rwx", directory)
            .because("sources and options are in entries; unless they are meant for others");
        report.doubtful(ABOUT, text, mend);
    }
    let entries = match Store::open_existing(directory) {
        Ok(Some(store)) => store.entries(),
        Ok(None) => return report.good(ABOUT, "none yet"),
        Err(error) => Err(error),
    };
    match entries {
        Ok(entries) => {
            let bytes = entries.iter().map(|(_, facts)| facts.taken()).sum();
            report.good(ABOUT, format!("{}, {}", entries.len(), size(bytes)));
        }
        Err(error) => {
            let mend = Mend::command("export OCLCACHE_DIR=/path/to/a/directory")
                .because("look after its file system, or name a directory elsewhere");
            report.wrong(ABOUT, error.to_string(), mend);
        }
    }
}

/// What a person reads of a fault, and what mends it.
fn told(fault: Fault, at: &Path, directory: &Path) -> (&'static str, Mend) {
    match fault {
        Fault::Foreign => {
            let own = rustix::process::geteuid().as_raw();
            let words = "all that is in the cache must be yours, and yours alone to write; take it over if you trust it";
            let mend = Mend::on(&format!("sudo chown -R {own}"), directory);
            ("it belongs to another user", mend.because(words))
        }
        Fault::Writable => {
            let words = "remove the directory if you do not trust those who could write it, or";
            let mend = Mend::on("chmod -R go-w", directory);
            ("others may write it", mend.because(words))
        }
        Fault::Closed => (
            "you may not read or write it",
            Mend::on("chmod -R u+rwX", directory),
        ),
        Fault::Link => {
            let words = "a link may stand for the cache directory as a whole only; take it away, and move the whole, or set `dir`";
            ("it is a link", Mend::on("rm", at).because(words))
        }
    }
}

/// The first file or directory with which something is the matter. What is removed meanwhile was well.
fn fault_below(at: &Path, is_readonly: bool, depth: u32) -> Option<(Fault, PathBuf)> {
    let metadata = at.symlink_metadata().ok()?;
    if let Some(fault) = fault_of(&metadata, is_readonly) {
        return Some((fault, at.to_owned()));
    }
    if !metadata.is_dir() || depth == MAX_DEPTH {
        return None;
    }
    let mut names = std::fs::read_dir(at).ok()?.flatten();
    names.find_map(|name| fault_below(&name.path(), is_readonly, depth + 1))
}

/// How many files below a directory other users can read, if they can come to the directory itself.
fn readable_below(at: &Path, depth: u32) -> u64 {
    let Ok(metadata) = at.symlink_metadata() else {
        return 0;
    };
    if metadata.is_file() {
        return u64::from(metadata.mode() & 0o044 != 0);
    }
    // The cache directory itself may be a link to one.
    let is_directory = metadata.is_dir() || depth == 0 && at.is_dir();
    let mode = at.metadata().map_or(0, |metadata| metadata.mode());
    if !is_directory || mode & 0o011 == 0 || depth > MAX_DEPTH + 1 {
        return 0;
    }
    let names = std::fs::read_dir(at).into_iter().flatten().flatten();
    names
        .map(|name| readable_below(&name.path(), depth + 1))
        .sum()
}

fn fault_of(metadata: &Metadata, is_readonly: bool) -> Option<Fault> {
    if metadata.is_symlink() {
        return Some(Fault::Link);
    }
    if metadata.uid() != rustix::process::geteuid().as_raw() {
        return Some(Fault::Foreign);
    }
    if !metadata.is_dir() && !metadata.is_file() {
        return None;
    }
    if metadata.mode() & 0o022 != 0 {
        return Some(Fault::Writable);
    }
    // An entry that a driver has loaded is not written, even by its owner.
    let least = match (metadata.is_dir(), is_readonly) {
        (true, false) => 0o700,
        (true, true) => 0o500,
        (false, _) => 0o400,
    };
    (metadata.mode() & least != least).then_some(Fault::Closed)
}
