//! Real paths, and the states of all files and directories that a search for a driver's files has looked at.

mod watched_paths;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::fs::Metadata;
use std::io::{self, ErrorKind};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;

pub use watched_paths::{Mounts, WatchedPaths};

use super::path_map::PathMap;
use super::search_path;
use crate::file_fingerprint::{FileFingerprint, FileId, Seconds};

/// Finds real paths. Each component is looked at once: libraries are in few directories, and links are mostly within those. So it
/// is valid for one look at a driver, not for a later one.
#[derive(Default)]
pub struct RealPaths {
    /// Before any state was taken.
    begun: Seconds,
    parts: RefCell<HashMap<PathBuf, Part>>,
    watched: RefCell<HashMap<PathBuf, Option<FileFingerprint>>>,
    /// The directories in which real paths of files are.
    directories: RefCell<HashMap<PathBuf, Option<FileId>>>,
    /// Watched paths that lead to directories. A directory has no other name, so its state tells the way to it.
    are_directories: RefCell<HashSet<PathBuf>>,
    /// Whether no library is in these directories, whose paths are relative to the working directory.
    without_libraries: RefCell<HashMap<PathBuf, bool>>,
    /// Something could not be looked at.
    is_incomplete: Cell<bool>,
    /// What the driver may open by name could not be found out, and cannot be later either.
    is_incomplete_for_good: Cell<bool>,
    /// This process lacked a right. One with other rights may find more or less.
    was_denied: Cell<bool>,
}

/// Whether an error says that this process lacks a right.
fn is_denied(error: &io::Error) -> bool {
    error.kind() == ErrorKind::PermissionDenied
}

/// Whether an error says what is at a path: nothing, nothing that this user may read, or nothing of the wanted form. All others,
/// such as that no descriptor or memory is left, say nothing of it: what the driver finds there next is unknown.
pub fn says_what_is_there(error: &io::Error) -> bool {
    let Some(code) = error.raw_os_error() else {
        return error.kind() != ErrorKind::OutOfMemory;
    };
    matches!(
        Errno::from_raw_os_error(code),
        Errno::NOENT
            | Errno::NOTDIR
            | Errno::LOOP
            | Errno::NAMETOOLONG
            | Errno::ACCESS
            | Errno::PERM
            | Errno::ISDIR
            | Errno::INVAL
            | Errno::NXIO
            | Errno::NODEV
    )
}

/// A component of a path, whose parents are no links.
#[derive(Clone)]
enum Part {
    Nothing,
    Link(PathBuf),
    Other,
}

/// Whether a file of this name may be what the dynamic linker looks for, or a directory where it looks for more. In any case of its
/// letters, since there are file systems that ignore it; some have letters outside ASCII that stand for those of `.so`.
pub fn may_be_of_library(name: &[u8]) -> bool {
    !name.is_ascii()
        || name
            .windows(3)
            .any(|part| part.eq_ignore_ascii_case(b".so"))
        || search_path::is_subdirectory(name)
}

/// Bytes of a directory's names: about a thousand names, which every process lists again.
const MAX_LISTED: usize = 32 << 10;

/// Whether a directory is not there, or has no name of a library. False if it is too large to be listed in each process, or cannot be.
pub fn holds_no_library(directory: &Path) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = match rustix::fs::open(directory, flags, Mode::empty()) {
        Ok(opened) => opened,
        Err(error) => return matches!(error, Errno::NOENT | Errno::NOTDIR),
    };
    let mut buffer = [const { MaybeUninit::uninit() }; 4096];
    let mut entries = RawDir::new(opened, &mut buffer);
    let mut listed = 0;
    while let Some(entry) = entries.next() {
        let Ok(entry) = entry else {
            return false;
        };
        let name = entry.file_name().to_bytes();
        listed += name.len();
        if listed > MAX_LISTED || may_be_of_library(name) {
            return false;
        }
    }
    true
}

/// As in the kernel (path_resolution(7)).
const MAX_LINKS: usize = 40;

impl RealPaths {
    /// A time before any state was taken.
    pub fn begun(&self) -> Seconds {
        self.begun
    }

    /// Notes the state of a file or directory that is going to be read. Returns the state.
    pub fn watch(&self, path: &Path) -> Option<FileFingerprint> {
        if let Some(known) = self.watched.borrow().get(path) {
            return *known;
        }
        let state = self.state(path);
        let mut watched = self.watched.borrow_mut();
        watched.insert(path.to_owned(), state);
        state
    }

    fn state(&self, path: &Path) -> Option<FileFingerprint> {
        let metadata = self.found(std::fs::metadata(path))?;
        self.note_kind(path, &metadata);
        Some(FileFingerprint::of(&metadata))
    }

    /// What was found. None: nothing is there, or it could not be looked at, which is noted.
    pub fn found<T>(&self, result: io::Result<T>) -> Option<T> {
        match result {
            Ok(found) => Some(found),
            Err(error) => {
                self.note(&error);
                None
            }
        }
    }

    /// Notes an error. See [`RealPaths::is_complete`].
    pub fn note(&self, error: &io::Error) {
        if !says_what_is_there(error) {
            tracing::debug!(%error, "the driver's files cannot be looked at");
            self.is_incomplete.set(true);
        } else if is_denied(error) {
            self.was_denied.set(true);
        }
    }

    /// What listing a directory gave, in which the driver opens files by name. None: no file can be opened in it, or it could not be
    /// listed, which is noted.
    ///
    /// A directory that may be entered but not listed (mode 0711) hides files from us that the driver finds. In one that may not be
    /// entered the driver finds nothing either.
    pub fn listed<T>(&self, directory: &Path, result: io::Result<T>) -> Option<T> {
        let error = match result {
            Ok(found) => return Some(found),
            Err(error) => error,
        };
        self.note(&error);
        let may_be_entered = || match std::fs::metadata(directory.join(".")) {
            Ok(_) => true,
            Err(error) => !is_denied(&error),
        };
        if is_denied(&error) && may_be_entered() {
            let directory = crate::log::path(directory);
            tracing::warn!(
                %directory, %error,
                "this directory of the driver's files may be entered but not listed: nothing is cached"
            );
            self.note_incomplete_for_good();
        }
        None
    }

    /// Whether everything that was wanted could be looked at. Otherwise the search has found less than there is.
    pub fn is_complete(&self) -> bool {
        !self.is_incomplete.get() && !self.is_incomplete_for_good()
    }

    /// Whether a later look is as incomplete: see [`RealPaths::note_incomplete_for_good`].
    pub fn is_incomplete_for_good(&self) -> bool {
        self.is_incomplete_for_good.get()
    }

    /// Notes that what the driver may open by name cannot be found out: a directory may not be listed, or there are too many names.
    pub fn note_incomplete_for_good(&self) {
        self.is_incomplete_for_good.set(true);
    }

    /// Whether a later process may use what was found: one that has other rights would find something else where this one lacked
    /// some.
    pub fn may_be_kept(&self) -> bool {
        self.is_complete() && !self.was_denied.get()
    }

    /// The same for one of many places where something may be. That nothing is there is not noted: the state of its directory tells.
    /// It does not tell that the target of a link comes, so a link that leads nowhere is noted.
    pub fn watch_place(&self, path: &Path) -> bool {
        if let Some(known) = self.watched.borrow().get(path) {
            return known.is_some();
        }
        // Asked first without following links: most places are empty, and this is the only system call for them.
        let Some(own) = self.found(std::fs::symlink_metadata(path)) else {
            return false;
        };
        if own.is_symlink() {
            return self.watch(path).is_some();
        }
        self.note_kind(path, &own);
        let mut watched = self.watched.borrow_mut();
        watched.insert(path.to_owned(), Some(FileFingerprint::of(&own)));
        true
    }

    /// Whether this directory holds no library for the dynamic linker to find. The path is relative to the working directory. If so,
    /// this answer is noted and not the directory's state, which is another one in each working directory and changes with each file
    /// that the program writes there.
    ///
    /// A library is recognised by its name ([`may_be_of_library`]). A library of another name can still be in such a directory, so a
    /// search for one has to try all of [`RealPaths::without_libraries`].
    pub fn holds_no_library(&self, directory: &Path) -> bool {
        let mut known = self.without_libraries.borrow_mut();
        match known.get(directory) {
            Some(known) => *known,
            None => {
                let is_without = holds_no_library(directory);
                known.insert(directory.to_owned(), is_without);
                is_without
            }
        }
    }

    /// The paths of directories, relative to the working directory, in which no library was found.
    pub fn without_libraries(&self) -> Vec<PathBuf> {
        let known = self.without_libraries.borrow();
        let without = known.iter().filter(|(_, is_without)| **is_without);
        without.map(|(path, _)| path.clone()).collect()
    }

    /// Everything that was noted.
    pub fn into_watched(self) -> WatchedPaths {
        let states: PathMap<_> = self.watched.into_inner().into_iter().collect();
        let is_told = |directory: &Path| matches!(states.get(directory), Some(Some(_)));
        let link = |(place, part): (PathBuf, Part)| match part {
            Part::Link(target) if !place.parent().is_some_and(is_told) => Some((place, target)),
            _ => None,
        };
        let links = self.parts.into_inner().into_iter().filter_map(link);
        let links: PathMap<_> = links.collect();
        let directories = self.directories.into_inner().into_iter();
        let directories = directories.filter(|one| !is_told(&one.0)).collect();
        // What a link of the root leads to, `/lib` to `usr/lib`, tells its state as well.
        let mut told: BTreeMap<PathBuf, Option<FileFingerprint>> = BTreeMap::new();
        for (path, state) in states.iter() {
            let target = links.get(path);
            let target = target.and_then(|target| watched_paths::below_root(path, target));
            let is_as_told = |target: &PathBuf| {
                let known = states.get(target).or_else(|| told.get(target));
                known.is_none_or(|known| known == state)
            };
            let target = target.filter(is_as_told);
            told.insert(target.unwrap_or_else(|| path.clone()), *state);
        }
        WatchedPaths {
            states: told.into_iter().collect(),
            links,
            directories,
            without_libraries: self
                .without_libraries
                .into_inner()
                .into_iter()
                .filter_map(|(path, is_without)| is_without.then_some(path))
                .collect(),
        }
    }

    /// The path without links, which is watched from now on. None if nothing is there.
    pub fn of(&self, path: &Path) -> Option<PathBuf> {
        self.watch(path)?;
        let real = self.now_of(path)?;
        if !self.are_directories.borrow().contains(path) {
            self.note_directory(&real);
        }
        Some(real)
    }

    /// The same for a caller that asks again in each process: nothing is watched.
    pub fn now_of(&self, path: &Path) -> Option<PathBuf> {
        let mut real = PathBuf::new();
        if !path.is_absolute() {
            real = self.found(std::env::current_dir())?;
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

    fn note_kind(&self, path: &Path, metadata: &Metadata) {
        if metadata.is_dir() {
            self.are_directories.borrow_mut().insert(path.to_owned());
        }
    }

    /// Notes which directory has this real path.
    fn note_directory(&self, real: &Path) {
        let Some(directory) = real.parent() else {
            return;
        };
        let mut known = self.directories.borrow_mut();
        if !known.contains_key(directory) {
            let found = self.found(std::fs::metadata(directory));
            let file = found.map(|metadata| FileFingerprint::of(&metadata).file);
            known.insert(directory.to_owned(), file);
        }
    }

    fn part(&self, place: &Path) -> Part {
        if let Some(known) = self.parts.borrow().get(place) {
            return known.clone();
        }
        let part = match std::fs::read_link(place) {
            Ok(target) => Part::Link(target),
            // It is no link.
            Err(error) if error.kind() == ErrorKind::InvalidInput => Part::Other,
            Err(error) => {
                self.note(&error);
                Part::Nothing
            }
        };
        let mut known = self.parts.borrow_mut();
        known.insert(place.to_owned(), part.clone());
        part
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regular_file::tests::without_rights;

    #[test]
    fn names_of_libraries_are_told_in_any_case() {
        for name in [
            "liba.so",
            "LIBA.SO",
            "liba.So.1",
            "libé",
            "TLS",
            "glibc-HWCAPS",
        ] {
            assert!(may_be_of_library(name.as_bytes()), "{name}");
        }
        for name in ["so", "a.s", "a.o", "notes.txt", ".s.o"] {
            assert!(!may_be_of_library(name.as_bytes()), "{name}");
        }
    }

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
    fn a_link_of_the_root_is_told_by_where_it_leads_and_what_is_there() {
        let links = ["/lib", "/bin", "/lib64"].map(Path::new);
        let below_root = |link| watched_paths::below_root(link, &std::fs::read_link(link).ok()?);
        let found = links
            .into_iter()
            .find_map(|link| Some((link, below_root(link)?)));
        let Some((link, target)) = found else {
            eprintln!("skipped: links of the root (it has none)");
            return;
        };
        let real = RealPaths::default();
        assert_eq!(real.of(link), link.canonicalize().ok());
        let watched = real.into_watched();
        assert!(watched.iter().all(|(path, _)| path != link));
        for path in [link, &target] {
            assert_eq!(watched.get(path), Some(&FileFingerprint::at(link)));
        }
        assert!(watched.hold());
        let elsewhere = |_: &Path| Some(PathBuf::from("elsewhere"));
        assert_eq!(watched.changed(FileFingerprint::at, elsewhere), Some(link));
        let target_of = |path: &Path| std::fs::read_link(path).ok();
        assert_eq!(watched.changed(|_| None, target_of), Some(&*target));
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

    #[test]
    fn another_way_to_the_same_file_is_a_change() {
        use std::os::unix::fs::symlink;
        let root = tempfile::tempdir().expect("a temporary directory");
        let at = |name: &str| root.path().join(name);
        for name in ["v1", "v2"] {
            std::fs::create_dir(at(name)).expect("made");
        }
        std::fs::write(at("v1/tool"), "").expect("written");
        std::fs::hard_link(at("v1/tool"), at("v2/tool")).expect("linked");
        symlink("v1", at("current")).expect("linked");
        symlink("current/tool", at("tool")).expect("linked");
        let look = || {
            let real = RealPaths::default();
            let found = real.of(&at("tool")).expect("found");
            (found, real.into_watched())
        };
        let (place, before) = look();
        assert!(before.hold());
        std::fs::remove_file(at("current")).expect("removed");
        symlink("v2", at("current")).expect("linked");
        assert!(!before.hold(), "a link");
        assert_ne!(look().0, place);
        std::fs::remove_file(at("current")).expect("removed");
        symlink("v1", at("current")).expect("linked");
        assert!(before.hold());
        std::fs::rename(at("v1"), at("v0")).expect("renamed");
        symlink("v2", at("v1")).expect("linked");
        assert!(!before.hold(), "a directory");
    }

    #[test]
    fn a_link_to_nothing_is_a_place_where_something_may_come() {
        use std::os::unix::fs::symlink;
        let root = tempfile::tempdir().expect("a temporary directory");
        let at = |name: &str| root.path().join(name);
        for (link, target) in [("link", "target"), ("far", "link"), ("loop", "loop")] {
            symlink(target, at(link)).expect("linked");
        }
        let real = RealPaths::default();
        let places = ["link", "far", "loop", "nothing"].map(at);
        assert!(!places.iter().any(|place| real.watch_place(place)));
        let watched = real.into_watched();
        assert_eq!(watched.iter().count(), 3, "all but `nothing`");
        assert!(watched.hold());
        std::fs::write(at("target"), "").expect("written");
        assert!(!watched.hold());
        let real = RealPaths::default();
        let found = places.each_ref().map(|place| real.watch_place(place));
        assert_eq!(found, [true, true, false, false]);
        let watched = real.into_watched();
        let state = FileFingerprint::at(&at("target"));
        assert_eq!(watched.get(&places[0]), Some(&state));
    }

    /// Lists a directory of this mode, without the right to list and enter all directories.
    fn list(directory: &Path, mode: u32) -> RealPaths {
        use std::os::unix::fs::PermissionsExt;
        let set = |mode| {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(directory, permissions).expect("changed");
        };
        set(mode);
        let real = without_rights(|| {
            let real = RealPaths::default();
            let _ = real.listed(directory, std::fs::read_dir(directory));
            real.of(&directory.join("file"));
            real
        });
        set(0o700);
        real
    }

    #[test]
    fn a_directory_that_may_be_entered_but_not_listed_leaves_a_search_incomplete() {
        let root = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(root.path().join("file"), "").expect("written");
        for (mode, is_complete, may_be_kept) in [
            (0o500, true, true),
            (0o300, false, false),
            (0o100, false, false),
            // Nobody finds anything in these: what cannot be entered is as empty for the driver.
            (0o000, true, false),
            (0o400, true, false),
        ] {
            let real = list(root.path(), mode);
            assert_eq!(real.is_complete(), is_complete, "{mode:o}");
            assert_eq!(real.is_incomplete_for_good(), !is_complete, "{mode:o}");
            assert_eq!(real.may_be_kept(), may_be_kept, "{mode:o}");
        }
        let nothing = list(root.path(), 0o700);
        let absent = root.path().join("absent");
        let _ = nothing.listed(&absent, std::fs::read_dir(&absent));
        assert!(nothing.may_be_kept());
    }
}
