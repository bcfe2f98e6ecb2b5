//! The identity of a driver that was taken, and whether it still holds.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use super::Driver;
use super::driver_names::DriverNames;
use super::file_memory::FileMemory;
use super::files::matches;
use super::identity::{DriverIdentity, Unidentified};
use super::late::Late;
use super::loaded::{self, LoadedObjects, Object};
use super::path_map::PathMap;
use super::profile::DriverFiles;
use super::real_paths::{RealPaths, WatchedPaths, says_what_is_there};
use super::scanned_library::ScannedLibrary;
use crate::file_fingerprint::{FileFingerprint, FileId};
use crate::fork_safety::Mutex;
use crate::linker_lock;
use crate::stop::Stop;

/// The identity from the first call, and the files that must not change.
pub struct KnownIdentity {
    pub(super) files: Vec<Watched>,
    /// The directories of these files by the paths by which the driver finds them.
    pub(super) directories: BTreeMap<PathBuf, FileId>,
    /// The real paths of all that is in it or neutral.
    pub(super) paths: HashSet<PathBuf>,
    /// Those of them that the program has loaded from elsewhere, and that are neutral as far as they do what their name says.
    pub(super) of_program: HashSet<PathBuf>,
    /// Those of libraries that the driver had opened by name, by the paths by which the dynamic linker found them.
    pub(super) opened: PathMap<PathBuf>,
    /// The directories where clang's driver may be, for a driver that runs it.
    pub(super) compilers: Vec<PathBuf>,
    /// What came into the process later, with the ingredients as they are by now.
    pub(super) late: Late,
    /// The names that occur in its libraries.
    pub(super) names: DriverNames,
    /// The identities of libraries whose files were proven to be what is in memory, by where the library begins.
    pub(super) proven: HashMap<usize, Vec<u8>>,
    /// The number of unloaded libraries before that.
    pub(super) unloads: u64,
    /// What it was taken from, without what came later.
    pub(super) loaded: Arc<LoadedObjects>,
    pub(super) base: DriverIdentity,
    /// What was looked at to find its files.
    pub(super) watched: Mutex<Arc<WatchedPaths>>,
    pub(super) taken: Instant,
    /// The time of the last look at the files, in milliseconds after `taken`, and at what was searched.
    pub(super) checked: AtomicU64,
    pub(super) searched: AtomicU64,
    /// A file changed under the driver. What the driver has in memory and what it will read is unknown from now on.
    pub(super) broken: AtomicBool,
}

#[derive(Clone)]
pub(super) struct Watched {
    /// The path by which the driver may name it: a link in it can be changed.
    pub(super) path: PathBuf,
    /// The file at this path.
    pub(super) real: PathBuf,
    pub(super) stamp: FileFingerprint,
    pub(super) identity: Vec<u8>,
}

impl KnownIdentity {
    /// The path of a file of it that is found by this path, with its state.
    pub(super) fn state(&self, path: &Path) -> Option<(&Path, Option<FileFingerprint>)> {
        let file = self.files.iter().find(|file| file.path == path)?;
        Some((file.path.as_path(), Some(file.stamp)))
    }

    /// Whether the library at this real path is in it from the start, or neutral.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.paths.contains(path)
    }

    /// The real path of a library that is loaded.
    pub(super) fn real_path(&self, object: &Object) -> Option<PathBuf> {
        match self.opened.get(&object.path) {
            Some(path) => Some(path.clone()),
            None if self.has(&object.path) => Some(object.path.clone()),
            None => RealPaths::default().of(&object.path),
        }
    }

    /// Whether the library at this real path is the driver's: it is in the identity, or it is neutral and the driver would find it.
    pub(super) fn is_own(&self, path: &Path) -> bool {
        self.has(path) && !self.of_program.contains(path) || self.late.has(path)
    }

    /// What was looked at to find its files.
    pub(super) fn watched(&self) -> Arc<WatchedPaths> {
        self.watched.lock().clone()
    }

    pub(super) fn late(&self) -> &Late {
        &self.late
    }

    pub(super) fn add_names(&self, library: ScannedLibrary) {
        self.names.add(vec![library]);
    }

    /// Gives up the identity for this process: something that belongs to it is not known.
    pub(super) fn give_up(&self) {
        self.broken.store(true, Ordering::Relaxed);
    }
}

impl Watched {
    /// The file at a real path.
    ///
    /// # Errors
    /// It cannot be read.
    pub(super) fn of(path: &Path, memory: &dyn FileMemory) -> io::Result<Watched> {
        Ok(Watched {
            path: path.to_owned(),
            real: path.to_owned(),
            stamp: FileFingerprint::of(&std::fs::metadata(path)?),
            identity: memory.identity(path)?,
        })
    }

    pub(super) fn holds(&self, memory: &dyn FileMemory) -> bool {
        FileFingerprint::at(&self.path) == Some(self.stamp)
            || memory
                .identity(&self.path)
                .is_ok_and(|now| now == self.identity)
    }
}

/// A memory for a search that is made again: it begins no snapshot anew, in which the names and bindings would be missing that the
/// process knows by now.
struct Again<'a>(&'a dyn FileMemory);

impl FileMemory for Again<'_> {
    fn digest(&self, path: &Path) -> io::Result<[u8; 32]> {
        self.0.digest(path)
    }

    fn facts(&self, identity: &[u8; 32]) -> io::Result<Option<File>> {
        self.0.facts(identity)
    }

    fn remember_facts(&self, identity: &[u8; 32], facts: &[u8]) {
        self.0.remember_facts(identity, facts);
    }

    fn stop(&self) -> Stop {
        self.0.stop()
    }
}

impl Driver {
    /// Whether the files are what they were; else the path of one that is not.
    pub(super) fn still_holds(
        &self,
        known: &KnownIdentity,
        memory: &dyn FileMemory,
    ) -> Result<(), PathBuf> {
        if let Some(changed) = known.files.iter().find(|file| !file.holds(memory)) {
            return Err(changed.path.clone());
        }
        let leads_there = |(path, id): &(&PathBuf, &FileId)| {
            FileFingerprint::at(path).is_some_and(|state| state.file == **id)
        };
        if let Some((changed, _)) = known.directories.iter().find(|one| !leads_there(one)) {
            return Err(changed.clone());
        }
        known.late.still_holds(memory)?;
        if !known.late.is_current() {
            let objects = known.late.look();
            let is_of_the_driver = |object: &&Object| {
                self.profile.files.iter().any(|files| match files {
                    DriverFiles::Library(pattern) => object.is_named(|name| matches(pattern, name)),
                    _ => false,
                })
            };
            for object in objects.iter().filter(is_of_the_driver) {
                let path = std::fs::canonicalize(&object.path).unwrap_or_default();
                if !known.files.iter().any(|file| file.real == path) {
                    return Err(object.path.clone());
                }
            }
            // It is not looked for again: what came is seen once.
            if self.add_names_of_late(known, objects, memory).is_err() {
                return Err(self.library.clone());
            }
        }
        Ok(())
    }

    /// Whether a search would find the same files; else where something has changed. If something has changed where they were looked for,
    /// it is made again. None: it cannot be made for now.
    pub(super) fn is_found_again(
        &self,
        known: &KnownIdentity,
        now: u64,
        memory: &dyn FileMemory,
    ) -> Option<Result<(), PathBuf>> {
        let watched = known.watched();
        let target_of = |path: &Path| std::fs::read_link(path).ok();
        if let Some(changed) = watched.changed(FileFingerprint::at, target_of) {
            let memory = Again(memory);
            match linker_lock::complete(|| self.identity_of(&known.loaded, &memory))? {
                Ok(again) if again.base == known.base => {
                    *known.watched.lock() = again.watched();
                    self.looks.store(0, Ordering::Relaxed);
                }
                Err(Unidentified::ForNow) if self.may_look_again() => return None,
                _ => return Some(Err(changed.to_owned())),
            }
        }
        known.searched.store(now, Ordering::Relaxed);
        Some(Ok(()))
    }

    /// The driver may have opened libraries since: its own and what those need.
    fn add_names_of_late(
        &self,
        known: &KnownIdentity,
        objects: Vec<Object>,
        memory: &dyn FileMemory,
    ) -> io::Result<()> {
        let is_own = self.is_own_library();
        let real = RealPaths::default();
        let is_start = |object: &Object| {
            is_own(object)
                || real
                    .of(&object.path)
                    .is_some_and(|path| known.files.iter().any(|file| file.real == path))
        };
        let closure = loaded::closure(objects, is_start);
        let late = closure.iter().filter(|object| object.is_in_a_file());
        let late = late.filter(|object| !known.names.has_path(&object.path));
        let mut libraries = Vec::new();
        for object in late {
            match ScannedLibrary::of(object, |path| memory.identity(path)) {
                Ok(library) => libraries.push(library),
                Err(error) if says_what_is_there(&error) => {}
                Err(error) => return Err(error),
            }
        }
        known.names.add(libraries);
        Ok(())
    }
}
