//! Real paths, and the states of all files and directories that a search for a driver's files has looked at.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsString;
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::path_map::PathMap;
use crate::file_fingerprint::FileFingerprint;

/// Finds real paths. Each component is looked at once: libraries are in few directories, and links are mostly within those. So it
/// is valid for one look at a driver, not for a later one.
#[derive(Default)]
pub struct RealPaths {
    parts: RefCell<HashMap<PathBuf, Part>>,
    watched: RefCell<HashMap<PathBuf, Option<FileFingerprint>>>,
}

/// The states of files and directories, each taken before something was read there. None: nothing is there.
///
/// While all states stay, so does what was read. A path is followed to its end, so a link above a file that is pointed elsewhere is
/// a change; a file that is added to a directory changes the state of the directory.
pub type WatchedPaths = PathMap<Option<FileFingerprint>>;

impl WatchedPaths {
    /// Whether all states are as they were.
    pub fn hold(&self) -> bool {
        self.iter()
            .all(|(path, state)| FileFingerprint::at(path) == *state)
    }

    /// Whether all states are so old that every later change shows in them.
    pub fn are_settled(&self) -> bool {
        let mut states = self.iter().filter_map(|(_, state)| state.as_ref());
        states.all(FileFingerprint::is_settled)
    }
}

/// A component of a path, whose parents are no links.
#[derive(Clone)]
enum Part {
    Nothing,
    Link(PathBuf),
    Other,
}

/// As in the kernel (path_resolution(7)).
const MAX_LINKS: usize = 40;

impl RealPaths {
    /// Notes the state of a file or directory that is going to be read. Returns the state.
    pub fn watch(&self, path: &Path) -> Option<FileFingerprint> {
        if let Some(known) = self.watched.borrow().get(path) {
            return *known;
        }
        let state = FileFingerprint::at(path);
        let mut watched = self.watched.borrow_mut();
        watched.insert(path.to_owned(), state);
        state
    }

    /// The same for one of many places where something may be. That nothing is there is not noted: the state of its directory tells.
    pub fn watch_place(&self, path: &Path) -> bool {
        if let Some(known) = self.watched.borrow().get(path) {
            return known.is_some();
        }
        let state = FileFingerprint::at(path);
        if state.is_some() {
            let mut watched = self.watched.borrow_mut();
            watched.insert(path.to_owned(), state);
        }
        state.is_some()
    }

    /// All states that were noted.
    pub fn into_watched(self) -> WatchedPaths {
        self.watched.into_inner().into_iter().collect()
    }

    /// The path without links, which is watched from now on. None if nothing is there.
    pub fn of(&self, path: &Path) -> Option<PathBuf> {
        self.watch(path)?;
        let mut real = PathBuf::new();
        if !path.is_absolute() {
            real = std::env::current_dir().ok()?;
        }
        let owned = |path: &Path| -> Vec<OsString> {
            let parts = path.components().rev();
            parts.map(|part| part.as_os_str().to_owned()).collect()
        };
        let mut rest = owned(path);
        let mut links = 0;
        while let Some(part) = rest.pop() {
            match part.as_bytes() {
                b"." => continue,
                b".." => {
                    real.pop();
                    continue;
                }
                // The root replaces all before it.
                _ => real.push(part),
            }
            match self.part(&real) {
                Part::Nothing => return None,
                Part::Other => {}
                Part::Link(_) if links == MAX_LINKS => return None,
                Part::Link(target) => {
                    links += 1;
                    real.pop();
                    rest.extend(owned(&target));
                }
            }
        }
        Some(real)
    }

    fn part(&self, place: &Path) -> Part {
        if let Some(known) = self.parts.borrow().get(place) {
            return known.clone();
        }
        let part = match std::fs::read_link(place) {
            Ok(target) => Part::Link(target),
            // It is no link.
            Err(error) if error.kind() == ErrorKind::InvalidInput => Part::Other,
            Err(_) => Part::Nothing,
        };
        let mut known = self.parts.borrow_mut();
        known.insert(place.to_owned(), part.clone());
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn real_paths_are_those_of_the_system() {
        use std::os::unix::fs::symlink;
        let root = tempfile::tempdir().expect("a temporary directory");
        let at = |name: &str| root.path().join(name);
        std::fs::create_dir_all(at("lib/deep/er")).expect("made");
        std::fs::write(at("lib/deep/libx.so.1.2"), "").expect("written");
        for (link, target) in [
            ("lib/deep/libx.so.1", "libx.so.1.2"),
            ("lib/deep/libx.so", "../deep/libx.so.1"),
            ("lib64", "lib/deep/er"),
            ("dangling", "nothing"),
            ("loop", "other-loop"),
            ("other-loop", "loop"),
        ] {
            symlink(target, at(link)).expect("linked");
        }
        symlink(at("lib/deep"), at("absolute")).expect("linked");
        let real = RealPaths::default();
        for name in [
            "",
            "lib",
            "lib/deep/libx.so.1.2",
            "lib/deep/libx.so",
            "./lib/./deep//libx.so.1",
            "lib64/../libx.so.1",
            "lib64/..",
            "absolute/libx.so",
            "absolute/er/../../deep/libx.so.1",
            "dangling",
            "loop",
            "nothing/../lib",
            "lib/nothing",
            "lib/deep/libx.so/below",
        ] {
            let path = at(name);
            assert_eq!(real.of(&path), std::fs::canonicalize(&path).ok(), "{name}");
        }
        for name in ["/", "/proc/self/exe", "/lib", ".", "src/../Cargo.toml"] {
            let path = Path::new(name);
            assert_eq!(real.of(path), std::fs::canonicalize(path).ok(), "{name}");
        }
    }

    #[test]
    fn what_was_looked_at_is_watched_to_the_end_of_its_links() {
        use std::os::unix::fs::symlink;
        let root = tempfile::tempdir().expect("a temporary directory");
        let at = |name: &str| root.path().join(name);
        for name in ["one", "other"] {
            std::fs::create_dir(at(name)).expect("made");
            std::fs::write(at(name).join("libx.so"), name).expect("written");
        }
        symlink("one", at("link")).expect("linked");
        let looked_at = [at("link/libx.so"), at("nothing")];
        let look = || {
            let real = RealPaths::default();
            looked_at.iter().for_each(|path| drop(real.of(path)));
            assert!(!real.watch_place(&at("no place")));
            real.into_watched()
        };
        let before = look();
        let paths: Vec<_> = before.iter().map(|(path, _)| path).collect();
        assert_eq!(paths, Vec::from_iter(&looked_at));
        assert_eq!(look(), before);
        std::fs::remove_file(at("link")).expect("removed");
        symlink("other", at("link")).expect("linked");
        let after = look();
        assert_ne!(after.get(&looked_at[0]), before.get(&looked_at[0]));
        std::fs::write(at("nothing"), "").expect("written");
        assert!(look().get(&looked_at[1]).is_some_and(Option::is_some));
    }
}
