//! Checks that the content of the cache directory belongs to this user, and that only this user can write it. One file that root has
//! left there, or a directory restored with another mode, turns the cache off or keeps it from storing.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::report::{DoctorReport, Fix};
use crate::cli::output::{plural, size};
use crate::log::path;
use crate::store::{Store, VERSION_DIRECTORY};

const ABOUT: &str = "entries";
/// The depth of directories in the cache directory.
const MAX_DEPTH: u32 = 4;

/// What is wrong with a file or directory.
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
        let (words, fix) = described(fault, &at, &own);
        return report.wrong(ABOUT, format!("cannot use `{}`: {words}", path(&at)), fix);
    }
    let is_closed = directory
        .metadata()
        .is_ok_and(|found| found.mode() & 0o011 == 0);
    let readable = readable_below(&own, 0);
    if readable > 0 && !is_closed {
        let files = plural(readable, "file", "files");
        let text = format!("other users can read {files} in `{}`", path(&own));
        let fix = Fix::on("chmod -R go-rwx", &own)
            .because("entries contain sources and options; unless others should read them");
        report.doubtful(ABOUT, text, fix);
    }
    let totals = match Store::open_existing(directory) {
        Ok(Some(store)) => store.totals(),
        Ok(None) => return report.good(ABOUT, "none yet"),
        Err(error) => Err(error),
    };
    match totals {
        Ok(totals) => {
            let shown = format!("{}, {}", totals.entries, size(totals.taken));
            report.good(ABOUT, shown);
        }
        Err(error) => {
            let fix = Fix::command("export OCLCACHE_DIR=/path/to/a/directory")
                .because("check its file system, or use another directory");
            report.wrong(ABOUT, error.to_string(), fix);
        }
    }
}

/// A description of a fault, and how to fix it in the directory of this format: what is beside that may be somebody else's.
fn described(fault: Fault, at: &Path, own: &Path) -> (&'static str, Fix) {
    match fault {
        Fault::Foreign => {
            let user = rustix::process::geteuid().as_raw();
            let words = "only you may own and write the content of the cache; take ownership if you trust it";
            let fix = Fix::on(&format!("sudo chown -R {user}"), own);
            ("it belongs to another user", fix.because(words))
        }
        Fault::Writable => {
            let words = "remove the directory if you do not trust the users who could write it, or";
            let fix = Fix::on("chmod -R go-w", own);
            ("others may write it", fix.because(words))
        }
        Fault::Closed => (
            "you may not read or write it",
            Fix::on("chmod -R u+rwX", own),
        ),
        Fault::Link => {
            let words = "only the cache directory itself may be a link; remove the link, and move the whole directory instead, or set `dir`";
            ("it is a link", Fix::on("rm", at).because(words))
        }
    }
}

/// The first file or directory with a fault. Files that are removed meanwhile are ignored.
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

/// The number of files below a directory that other users can reach and read.
fn readable_below(at: &Path, depth: u32) -> u64 {
    let Ok(metadata) = at.symlink_metadata() else {
        return 0;
    };
    if metadata.is_file() {
        return u64::from(metadata.mode() & 0o044 != 0);
    }
    if !metadata.is_dir() || metadata.mode() & 0o011 == 0 || depth > MAX_DEPTH {
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
    // Entries need not be writable, even by their owner.
    let least = match (metadata.is_dir(), is_readonly) {
        (true, false) => 0o700,
        (true, true) => 0o500,
        (false, _) => 0o400,
    };
    (metadata.mode() & least != least).then_some(Fault::Closed)
}
