//! Whether what is left to be baked can be, and what is.

use std::path::Path;

use super::report::{DoctorReport, Mend};
use crate::cache::autobake;
use crate::config::Config;
use crate::store::Store;

const ABOUT: &str = "baker";

pub fn examine(config: &Config, library: Option<&Path>, report: &mut DoctorReport) {
    let pending = pending(config);
    let left = match pending {
        0 => "nothing is left to be baked".to_owned(),
        1 => "1 program is left to be baked".to_owned(),
        count => format!("{count} programs are left to be baked"),
    };
    let by_hand = || Mend::command("oclcache bake").because("bake by hand");
    if let Some(library) = library
        && let Err(why) = autobake::command(library)
    {
        let mend = autobake::beside(library)
            .and_then(|command| tighten(&command))
            .unwrap_or_else(by_hand);
        let text = format!("{left}; programs start no baker: {why}");
        return report.doubtful(ABOUT, text, mend);
    }
    match autobake::refusal(config, autobake::is_of_init()) {
        None if pending == 0 => report.good(ABOUT, format!("{left}; programs start it as needed")),
        None => report.good(
            ABOUT,
            format!("{left}; the next program that leaves something starts it, or `oclcache bake`"),
        ),
        Some(why) if pending == 0 => report.good(
            ABOUT,
            format!("{left}; programs start no baker here: {why}"),
        ),
        Some(why) => {
            let text = format!("{left}; programs start no baker here: {why}");
            report.doubtful(ABOUT, text, by_hand());
        }
    }
}

/// How many recipes wait for a baker that would try them.
fn pending(config: &Config) -> usize {
    let store = config.directory().ok();
    let store = store.and_then(|directory| Store::open_existing(&directory).ok().flatten());
    let Some(store) = store else {
        return 0;
    };
    let entries = store.entries().unwrap_or_default();
    let is_left = |key| {
        store.read_meta(key).is_some_and(|meta| meta.is_pending()) && store.given_up(key).is_none()
    };
    entries.iter().filter(|(key, _)| is_left(key)).count()
}

/// What makes a path one that nobody else can write: the first part of it that others can.
fn tighten(path: &Path) -> Option<Mend> {
    use std::os::unix::fs::MetadataExt;
    let own = rustix::process::geteuid().as_raw();
    let places: Vec<&Path> = path.ancestors().collect();
    places.into_iter().rev().find_map(|place| {
        let metadata = std::fs::symlink_metadata(place).ok()?;
        if ![0, own].contains(&metadata.uid()) {
            let words = "keep the command where only you and root can write; take it over, or install it elsewhere";
            return Some(Mend::on(&format!("sudo chown {own}"), place).because(words));
        }
        (metadata.mode() & 0o022 != 0).then(|| match metadata.mode() & 0o1000 {
            0 => Mend::on("chmod go-w", place).by_owner(metadata.uid() == own),
            _ => Mend::words(format!(
                "install the command where only you and root can write, not below `{}`",
                crate::log::path(place)
            )),
        })
    })
}
