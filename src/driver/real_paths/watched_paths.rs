//! The states of everything that a search has looked at, to be compared later.

use std::collections::HashMap;
use std::path::{Component, Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::holds_no_library;
use crate::driver::path_map::PathMap;
use crate::file_fingerprint::{
    FileFingerprint, FileId, FileSystems, MountIdentity, Seconds, Validity,
};

/// What a search has looked at: the states of files and directories, each taken before something was read there, and how real paths
/// were found.
///
/// While all of it stays, so does what was read. A path is followed to its end, so a link above a file that is pointed elsewhere is
/// a change; a file that is added to a directory changes the state of the directory.
///
/// Where two names of one file are in different directories (hard links, as Nix, Conda and uv make them), the state is the same by
/// another way. What depends on the directory (`$ORIGIN`) is not. So the targets of links and the directories of real paths count as
/// well, unless the states tell them: few do not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchedPaths {
    /// None: nothing is there.
    pub(super) states: PathMap<Option<FileFingerprint>>,
    /// The targets of links in directories whose states do not tell.
    pub(super) links: PathMap<PathBuf>,
    /// Directories in which real paths of files are.
    pub(super) directories: PathMap<Option<FileId>>,
    /// Paths, relative to the working directory, of directories in which no library is.
    pub(super) without_libraries: Vec<PathBuf>,
}

/// The mounts of the file systems on which an image brought the times of its files along, each by a path on it.
pub type Mounts = Vec<(PathBuf, MountIdentity)>;

/// What a link of the root leads to, if its target is below the root by its text. Another text for the same path, such as `usr/lib/`, is
/// none: states are kept by bytes.
pub(super) fn below_root(link: &Path, target: &Path) -> Option<PathBuf> {
    let root = link.parent().filter(|above| above.parent().is_none())?;
    let is_name = |part| matches!(part, Component::Normal(_));
    let is_plain = target.components().collect::<PathBuf>().as_os_str() == target.as_os_str();
    let is_below = is_plain && target.components().all(is_name);
    is_below.then(|| root.join(target))
}

impl WatchedPaths {
    /// Whether everything is as it was.
    pub fn hold(&self) -> bool {
        let target_of = |path: &Path| std::fs::read_link(path).ok();
        self.changed(FileFingerprint::at, target_of).is_none()
    }

    /// The first path at which not everything is as it was, with functions that tell states and targets of links.
    pub fn changed(
        &self,
        state_of: impl Fn(&Path) -> Option<FileFingerprint>,
        target_of: impl Fn(&Path) -> Option<PathBuf>,
    ) -> Option<&Path> {
        let is_directory = |path: &Path| state_of(path).map(|state| state.file);
        let leads_to =
            |path: &Path, target: &PathBuf| target_of(path).is_some_and(|now| now == *target);
        let states = self
            .iter()
            .filter(|(path, state)| state_of(path) != **state);
        let links = self
            .links
            .iter()
            .filter(|(path, target)| !leads_to(path, target));
        let directories = self.directories.iter();
        let directories = directories.filter(|(path, known)| is_directory(path) != **known);
        let without = self.without_libraries.iter();
        let without = without.filter(|path| !holds_no_library(path));
        let changed = states
            .map(|(path, _)| path)
            .chain(links.map(|(path, _)| path));
        let changed = changed
            .chain(directories.map(|(path, _)| path))
            .chain(without);
        changed.map(PathBuf::as_path).next()
    }

    /// All states.
    pub fn iter(&self) -> impl Iterator<Item = (&PathBuf, &Option<FileFingerprint>)> {
        self.states.iter()
    }

    /// The state of a path.
    pub fn get(&self, path: &Path) -> Option<&Option<FileFingerprint>> {
        let of_target = || {
            let target = below_root(path, self.links.get(path)?)?;
            self.states.get(&target)
        };
        self.states.get(path).or_else(of_target)
    }

    /// The paths of what was read or listed, and the directories that only led there. None if some of that is below the working
    /// directory, but for directories in which no library is.
    pub fn absolute(&self) -> Option<[Vec<&Path>; 2]> {
        let states = self.states.iter().map(|(path, _)| path.as_path());
        let links = self.links.iter().map(|(path, _)| path.as_path());
        let read: Vec<&Path> = states.chain(links).collect();
        let directories = self.directories.iter().map(|(path, _)| path.as_path());
        let directories: Vec<&Path> = directories.collect();
        let mut all = read.iter().chain(&directories);
        all.all(|path| path.is_absolute())
            .then_some([read, directories])
    }

    /// Whether nothing was looked at.
    pub fn is_empty(&self) -> bool {
        self.states.is_empty()
    }

    /// How long every change of these shows in the states. For later processes: while these mounts last. None: they cannot tell.
    /// `seen`: when the states were taken, or before.
    pub fn validity(&self, seen: Seconds) -> (Validity, Option<Mounts>) {
        let mut systems = FileSystems::default();
        let (mut all, mut mounts) = (Validity::Lasting, HashMap::new());
        for (path, state) in self.iter() {
            let Some(state) = state else {
                continue;
            };
            let validity = state.validity(path, seen, &mut systems);
            all = all.min(validity);
            if validity == Validity::Mount {
                mounts.entry(state.file.0).or_insert(path);
            }
        }
        let mounts = (all >= Validity::Mount).then_some(mounts);
        let mounts = mounts.and_then(|mounts| {
            let mounts = mounts.into_values();
            let mounts = mounts.map(|path| Some((path.clone(), MountIdentity::at(path)?)));
            mounts.collect()
        });
        (all, mounts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_link_of_the_root_with_another_text_for_a_path_has_a_state_of_its_own() {
        let below_root = |target| super::below_root(Path::new("/lib"), Path::new(target));
        assert_eq!(below_root("usr/lib"), Some(PathBuf::from("/usr/lib")));
        for target in [
            "usr/lib/",
            "usr//lib",
            "./usr/lib",
            "usr/./lib",
            "usr/../lib",
            "/usr/lib",
        ] {
            assert_eq!(below_root(target), None, "{target}");
        }
    }
}
