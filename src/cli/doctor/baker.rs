//! Pending recipes, and whether programs can start the baker.

use std::path::Path;

use super::report::{DoctorReport, Fix};
use crate::cache::autobake;
use crate::cli::open::usable_store;
use crate::cli::output::plural;
use crate::companion;
use crate::config::Config;
use crate::first_process::is_about_to_end_with_ours;

const ABOUT: &str = "baker";

pub fn examine(config: &Config, library: Option<&Path>, report: &mut DoctorReport) {
    let pending = pending(config);
    let left = plural(pending as u64, "recipe is pending", "recipes are pending");
    let by_hand = || Fix::command("oclcache bake").because("bake manually");
    if let Some(library) = library
        && let Err(why) = companion::trusted(library, companion::COMMAND)
    {
        let fix = companion::beside(library, companion::COMMAND)
            .and_then(|command| tighten(&command))
            .unwrap_or_else(by_hand);
        let text = format!("{left}; programs cannot start the baker: {why}");
        return report.doubtful(ABOUT, text, fix);
    }
    match autobake::refusal(config, is_about_to_end_with_ours()) {
        None if pending == 0 => report.good(ABOUT, format!("{left}; programs start the baker when needed")),
        None => report.good(
            ABOUT,
            format!("{left}; the next program that leaves a recipe starts the baker, or run `oclcache bake`"),
        ),
        Some(why) if pending == 0 => report.good(
            ABOUT,
            format!("{left}; programs do not start the baker here: {why}"),
        ),
        Some(why) => {
            let text = format!("{left}; programs do not start the baker here: {why}");
            report.doubtful(ABOUT, text, by_hand());
        }
    }
}

/// The number of pending recipes that a baker would store: it has not given them up, has the program's libraries, and their kernels ran or
/// need little time.
fn pending(config: &Config) -> usize {
    let Some(store) = usable_store(config) else {
        return 0;
    };
    let entries = store.entries().unwrap_or_default();
    let is_left = |key| {
        store.read_meta(key).is_some_and(|meta| meta.is_pending())
            && store
                .attempts(key)
                .is_none_or(|attempts| attempts.given_up().is_none() && attempts.is_failure())
    };
    entries.iter().filter(|(key, _)| is_left(key)).count()
}

/// How to make a path safe: a fix for its first part that other users can write.
fn tighten(path: &Path) -> Option<Fix> {
    use std::os::unix::fs::MetadataExt;
    let own = rustix::process::geteuid().as_raw();
    let places: Vec<&Path> = path.ancestors().collect();
    places.into_iter().rev().find_map(|place| {
        let metadata = std::fs::symlink_metadata(place).ok()?;
        if ![0, own].contains(&metadata.uid()) {
            return Some(elsewhere(place));
        }
        (metadata.mode() & 0o022 != 0).then(|| match metadata.mode() & 0o1000 {
            0 => Fix::on("chmod go-w", place).by_owner(metadata.uid() == own),
            _ => elsewhere(place),
        })
    })
}

fn elsewhere(place: &Path) -> Fix {
    Fix::words(format!(
        "install the command in a place that only you and root can write, not below `{}`",
        crate::log::path(place)
    ))
}
