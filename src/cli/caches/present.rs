//! The directories of other caches that exist.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use indicatif::ProgressBar;

use super::walk::{WalkAction, WalkResult, through};
use crate::cli::other_caches::environment::{CacheEnvironment, OpenedCache, open};
use crate::cli::other_caches::table::{CachePath, CacheRoot, OtherCache};
use crate::cli::output::{ago, plural, size};
use crate::store::journal::now_ms;

/// An existing directory of a cache.
pub struct PresentCache {
    pub place: &'static CachePath,
    pub path: PathBuf,
    /// Its content, or why it was not examined.
    pub found: Result<(OpenedCache, WalkResult), String>,
}

impl PresentCache {
    /// Whether it is empty and chosen by the user, who may have made it.
    pub fn is_empty_elsewhere(&self) -> bool {
        let is_empty = |(_, found): &(OpenedCache, WalkResult)| found.files == 0;
        matches!(self.place.base, CacheRoot::Variable(_)) && self.found.as_ref().is_ok_and(is_empty)
    }

    /// Why nothing may be removed here; None if the cache may be removed.
    pub fn refusal(&self, cache: &OtherCache, precious: &[PathBuf]) -> Option<String> {
        let found = match &self.found {
            Ok((_, found)) => found,
            Err(why) => return Some(why.clone()),
        };
        let CacheRoot::Variable(variable) = self.place.base else {
            return None; // the cache's own place
        };
        let is_same = |other: &PathBuf| is_same_file(&self.path, other);
        if self.place.below.is_empty() && precious.iter().any(is_same) {
            return Some(format!(
                "{variable} names a directory that holds more than a cache"
            ));
        }
        (!found.is_recognized && found.files + found.foreign.len() as u64 > 0).then(|| {
            format!(
                "{variable} names it, but no file in it has a name of {}",
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

/// The existing directories of a cache, each once.
pub fn present(
    cache: &'static OtherCache,
    surroundings: &CacheEnvironment,
    bar: &ProgressBar,
) -> Vec<PresentCache> {
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
                through(&opened.fd, &path, place, WalkAction::Look, bar)
                    .map(|found| (opened, found))
            }
            Err(why) => Err(why),
        };
        present.push(PresentCache { place, path, found });
    }
    present
}

/// The size and age of the content.
pub fn summary(found: &WalkResult) -> String {
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
        words += &format!("; {} of other programs", plural(foreign, "file", "files"));
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
