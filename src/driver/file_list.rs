//! The list of a driver's files: what a search in the file system finds for the libraries that are loaded.
//!
//! The list is kept in the cache directory (see `search_memory`) and holds while nothing changes that the search has looked at. It
//! depends on the libraries that may be the driver's, and on the value of LD_LIBRARY_PATH. What else the program has loaded is
//! compared with the list in each process.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::Driver;
use super::clang_driver;
use super::file_memory::FileMemory;
use super::file_recorder::FileRecorder;
use super::files::{FileSearch, FilesByPath, matches};
use super::identity::Unidentified;
use super::library_texts::LibraryTexts;
use super::loaded::{self, Object};
use super::mappings::Mappings;
use super::needed::needed_by;
use super::opened_by_name::{self, OpenedByName, said_by};
use super::path_map::PathMap;
use super::process_variables;
use super::profile::DriverFiles;
use super::real_paths::{RealPaths, WatchedPaths};
use super::scanned_library::ScannedLibrary;
use super::search_memory;
use super::search_path::{add_new, library_path_at_start, linker_directories, with_subdirectories};
use crate::file_fingerprint::FileFingerprint;
use crate::linker_lock;

/// The files of a driver, all by their real paths.
#[derive(Serialize, Deserialize)]
pub(super) struct DriverFileList {
    /// The paths of the libraries that may be the driver's, in the order of their indices.
    places: Vec<PathBuf>,
    /// The files that the profile names.
    pub(super) files: FilesByPath,
    /// Those of them that are plug-ins, open when the driver is.
    plug_ins: BTreeSet<PathBuf>,
    /// Those of them that are libraries or programs and not loaded yet.
    pub(super) to_be_opened: Vec<PathBuf>,
    /// The directories where clang's driver may be, for a driver that runs it.
    pub(super) compilers: Vec<PathBuf>,
    /// Libraries that are opened by name.
    pub(super) by_name: OpenedByName,
    /// The identities of files.
    identities: PathMap<Vec<u8>>,
    /// The real paths of libraries that the driver had opened by name, by the paths by which the dynamic linker found them.
    pub(super) opened: PathMap<PathBuf>,
}

/// The list of a driver, and what it was made from.
pub(super) struct ListedFiles<'a> {
    objects: &'a [Object],
    pub(super) list: DriverFileList,
    /// The real paths of the objects that are compared with the list, by index. Empty for others.
    pub(super) places: Vec<PathBuf>,
    /// The driver's libraries that are loaded, by index.
    pub(super) closure: Vec<usize>,
    pub(super) mappings: Mappings,
    pub(super) watched: WatchedPaths,
    /// What was found in the libraries that were read for the list.
    pub(super) texts: LibraryTexts,
    /// When the first of the states was taken.
    pub(super) taken: Instant,
}

impl<'a> ListedFiles<'a> {
    /// The files of a driver: recalled, or found now and kept.
    ///
    /// # Errors
    /// None of these objects is the driver's, or something could not be looked at.
    pub(super) fn of(
        driver: &Driver,
        objects: &'a [Object],
        memory: &dyn FileMemory,
    ) -> Result<ListedFiles<'a>, Unidentified> {
        // Complete: what is found while the dynamic linker answers nothing is kept by nobody.
        let found = linker_lock::complete(|| {
            let candidates = Candidates::of(driver, objects);
            let identity = candidates.search_identity(memory);
            memory.begin(&identity);
            let taken = Instant::now();
            if let Some((list, watched)) = search_memory::recall(&identity, memory) {
                let found = (list, LibraryTexts::default());
                return Ok::<_, Unidentified>((candidates, taken, found, Ok(watched)));
            }
            let taken = Instant::now();
            let real = RealPaths::default();
            let found = candidates.search(&real, memory)?;
            Ok((candidates, taken, found, Err((identity, real))))
        });
        let (candidates, taken, (list, texts), states) = found.ok_or(Unidentified::ForNow)??;
        let watched = states.unwrap_or_else(|(identity, real)| {
            search_memory::remember(&identity, &list, real, memory)
        });
        let mappings = Mappings::now();
        let places = list.places_of(&candidates, &watched, &mappings);
        let places = places.ok_or(Unidentified::ForGood)?;
        let closure = candidates.closure(&places, &list.plug_ins);
        if closure.is_empty() {
            return Err(Unidentified::ForGood);
        }
        Ok(ListedFiles {
            objects,
            list,
            places,
            closure,
            mappings,
            watched,
            texts,
            taken,
        })
    }

    /// The driver's libraries that are loaded from files.
    pub(super) fn libraries(&self) -> impl Iterator<Item = (usize, &'a Object)> {
        let objects = self.objects;
        let loaded = self.closure.iter().map(|index| (*index, &objects[*index]));
        loaded.filter(|(_, object)| object.is_in_a_file())
    }

    /// The index of the object that was loaded from a file, by its real path.
    pub(super) fn index_of(&self, path: &Path) -> Option<usize> {
        // A comparison of paths takes them to pieces.
        let mut places = self.places.iter();
        places.position(|place| place.as_os_str() == path.as_os_str())
    }

    /// Whether the driver reads or opens this file.
    pub(super) fn has(&self, place: &Path) -> bool {
        self.list.files.contains_key(place)
    }

    /// The state of a file when it was listed.
    pub(super) fn state(&self, path: &Path) -> Option<FileFingerprint> {
        match self.watched.get(path) {
            Some(state) => *state,
            None => FileFingerprint::at(path),
        }
    }

    /// The identity of a file.
    pub(super) fn identity(&self, path: &Path, memory: &dyn FileMemory) -> io::Result<Vec<u8>> {
        let known = self.list.identities.get(path);
        known.map_or_else(|| memory.identity(path), |known| Ok(known.clone()))
    }

    /// What the program has loaded under names that the driver opens, from other places.
    pub(super) fn of_program(&self, is_known: impl Fn(&Path) -> bool) -> Vec<(PathBuf, String)> {
        let own: HashSet<usize> = self.closure.iter().copied().collect();
        let others = self.objects.iter().enumerate();
        let others = others.filter(|(index, _)| !own.contains(index));
        let is_known = |path: &Path| self.list.opened.get(path).is_some() || is_known(path);
        self.list
            .by_name
            .of_program(others.map(|(_, object)| object), is_known)
    }
}

impl DriverFileList {
    /// The real paths of the candidates, and of all other objects that may be files of the list: by name, by inode, or replaced since
    /// they were loaded. None if the list is of other candidates.
    fn places_of(
        &self,
        candidates: &Candidates,
        watched: &WatchedPaths,
        mappings: &Mappings,
    ) -> Option<Vec<PathBuf>> {
        let files = self.files.iter();
        let paths = files.flat_map(|(path, file)| file.paths.iter().chain([path]));
        let paths = paths.chain(self.by_name.libraries.iter().map(|(path, _)| path));
        let mut names: HashSet<&OsStr> = HashSet::new();
        let mut inodes = HashSet::new();
        for path in paths {
            names.extend(path.file_name());
            let state = watched.get(path).copied().flatten();
            inodes.extend(state.map(|state| state.file.1));
        }
        let may_be_listed = |object: &Object| {
            let has_inode = || {
                object
                    .inode(mappings)
                    .is_none_or(|inode| inodes.contains(&inode))
            };
            object
                .path
                .file_name()
                .is_some_and(|name| names.contains(name))
                || names.contains(OsStr::from_bytes(&object.name))
                || has_inode()
        };
        if self.places.len() != candidates.indices.len() {
            return None;
        }
        let known: HashMap<usize, &PathBuf> = candidates
            .indices
            .iter()
            .copied()
            .zip(&self.places)
            .collect();
        // While the states that are watched stay, these are real paths.
        let by_name = self.by_name.libraries.iter().map(|(path, _)| path);
        let are_real: HashSet<&PathBuf> = self.files.keys().chain(by_name).collect();
        let real = RealPaths::default();
        let place = |(index, object): (usize, &Object)| {
            let known = known.get(&index).copied();
            match known.or_else(|| self.opened.get(&object.path)) {
                Some(place) => place.clone(),
                None if are_real.contains(&object.path) => object.path.clone(),
                None if object.is_in_a_file() && may_be_listed(object) => {
                    real.of(&object.path).unwrap_or_default()
                }
                None => PathBuf::new(),
            }
        };
        let objects = candidates.objects.iter().enumerate();
        Some(objects.map(place).collect())
    }
}

/// The loaded libraries that may be a driver's: its own, those that are named like its plug-ins and files, layers, and all that these
/// need.
struct Candidates<'a> {
    driver: &'a Driver,
    objects: &'a [Object],
    /// Ascending.
    indices: Vec<usize>,
    /// Where the driver's own libraries begin.
    own: Vec<usize>,
}

impl<'a> Candidates<'a> {
    fn of(driver: &'a Driver, objects: &'a [Object]) -> Candidates<'a> {
        let is_own = driver.is_own_library();
        let own = objects.iter().filter(|object| is_own(object));
        let mut candidates = Candidates {
            driver,
            objects,
            indices: Vec::new(),
            own: own.filter_map(Object::start).collect(),
        };
        let is_named_like = |object: &Object, files: &DriverFiles| {
            let (DriverFiles::PlugIns(_, pattern) | DriverFiles::Library(pattern)) = files else {
                return false;
            };
            object.is_named(|name| matches(pattern, name))
        };
        let may_be_start = |index: usize| {
            let object = &objects[index];
            let mut files = driver.profile.files.iter();
            candidates.is_own(object)
                || files.any(|files| is_named_like(object, files))
                || driver.layer.is_some() && object.is_layer_of_another()
        };
        let reached = loaded::closure_by_root(objects, may_be_start);
        candidates.indices = reached.into_iter().map(|(index, _)| index).collect();
        candidates.indices.sort_unstable();
        candidates
    }

    /// Whether it is one of the driver's own libraries.
    fn is_own(&self, object: &Object) -> bool {
        object.start().is_some_and(|at| self.own.contains(&at))
    }

    /// Directories that libraries and the program say. The program itself has no path.
    fn said(&self) -> Vec<PathBuf> {
        let libraries = self.indices.iter().map(|index| &self.objects[*index]);
        let is_program = |object: &&Object| object.path.as_os_str().is_empty();
        let program = self.objects.iter().filter(is_program);
        libraries.chain(program).flat_map(said_by).collect()
    }

    fn search_identity(&self, memory: &dyn FileMemory) -> [u8; 32] {
        let profile = format!(
            "{} {:?}",
            self.driver.profile.family, self.driver.profile.files
        );
        let clang = process_variables::value(clang_driver::CLANG_VARIABLE).unwrap_or_default();
        let directories = [library_path_at_start(), self.said()];
        let is_own = |object| match self.is_own(object) {
            true => &b"own"[..],
            false => b"",
        };
        let objects = self.indices.iter().map(|index| &self.objects[*index]);
        let objects = objects.flat_map(|object| object.description().chain([is_own(object)]));
        let directories = directories.iter().flat_map(|list| {
            let list = list.iter().map(|path| path.as_os_str().as_bytes());
            list.chain([&b"\n"[..]])
        });
        let texts = [profile.as_bytes(), clang.as_bytes()].into_iter();
        search_memory::identity(texts.chain(objects).chain(directories), memory)
    }

    /// The libraries that are the driver's: its own, plug-ins and layers, with all that they need.
    fn closure(&self, places: &[PathBuf], plug_ins: &BTreeSet<PathBuf>) -> Vec<usize> {
        // If several layers are ours, the functions below one may be those of another.
        let is_start = |index: usize| {
            let object = &self.objects[index];
            self.is_own(object) && !object.is_oclcache()
                || plug_ins.contains(&places[index])
                || self.driver.layer.is_some() && object.is_layer_of_another()
        };
        let reached = loaded::closure_by_root(self.objects, is_start);
        reached.into_iter().map(|(index, _)| index).collect()
    }

    /// The list, and what was found in the libraries that were read for it.
    ///
    /// # Errors
    /// Something could not be looked at.
    fn search(
        &self,
        real: &RealPaths,
        memory: &dyn FileMemory,
    ) -> Result<(DriverFileList, LibraryTexts), Unidentified> {
        let mut places = vec![PathBuf::new(); self.objects.len()];
        for index in &self.indices {
            let object = &self.objects[*index];
            if object.is_in_a_file() {
                places[*index] = real.of(&object.path).unwrap_or_default();
            }
        }
        let texts = match memory.knows_no_driver() {
            true => LibraryTexts::looking_for(self.driver.names_of_variables()),
            false => LibraryTexts::default(),
        };
        let recorder = FileRecorder::new(memory, real, texts);
        let own = self.objects.iter().filter(|object| self.is_own(object));
        let own = own.map(|object| object.path.as_path());
        let all = self.indices.iter().map(|index| &*self.objects[*index].path);
        let compilers = match self.driver.profile.tools.is_empty() {
            true => Vec::new(),
            false => clang_driver::homes(own.clone(), all.clone(), real),
        };
        let files = self.driver.profile.files;
        let search = FileSearch::new(files, own, all, &compilers, real);
        let (mut found, mut plug_ins) = (FilesByPath::new(), FilesByPath::new());
        for files in files {
            match files {
                DriverFiles::PlugIns(..) => search.add(*files, &mut plug_ins),
                _ => search.add(*files, &mut found),
            }
        }
        let plug_in_paths: BTreeSet<PathBuf> = plug_ins.keys().cloned().collect();
        found.append(&mut plug_ins);
        let closure = self.closure(&places, &plug_in_paths);
        let loaded: Vec<&Object> = closure.iter().map(|index| &self.objects[*index]).collect();
        let has_no_build_id =
            |object: &&&Object| object.is_in_a_file() && object.build_id.is_none();
        let without_build_id = loaded.iter().filter(has_no_build_id);
        let to_be_opened: Vec<PathBuf> = found.keys().cloned().collect();
        let is_loaded = |path: &Path| closure.iter().any(|index| places[*index] == path);
        let mut directories = with_subdirectories(&self.said(), real);
        let usual = linker_directories(&library_path_at_start(), real);
        add_new(&mut directories, usual);
        let needed = needed_by(&to_be_opened, &directories, real, is_loaded);
        let read = found
            .keys()
            .chain(needed.libraries.iter().map(|(path, _)| path))
            .chain(without_build_id.map(|object| &object.path));
        recorder.read_ahead(&read.map(PathBuf::as_path).collect::<Vec<_>>());
        for (path, file) in &found {
            for path in file.paths.iter().chain([path]) {
                real.watch(path);
            }
            // What cannot be read is noticed when the list is used.
            let _ = recorder.identity(path);
        }
        let mut scanned: Vec<ScannedLibrary> = loaded
            .iter()
            .filter(|object| object.is_in_a_file())
            .filter_map(|object| ScannedLibrary::of(object, |path| recorder.identity(path)).ok())
            .collect();
        for path in &needed.files {
            scanned.extend(ScannedLibrary::of_file(path, |path| {
                recorder.identity(path)
            }));
        }
        let is_known = |path: &Path| is_loaded(path) || found.contains_key(path);
        let libraries = needed.libraries;
        let by_name = opened_by_name::all(
            &scanned,
            &loaded,
            &directories,
            libraries,
            is_known,
            &recorder,
        );
        // What the program has loaded from elsewhere is no matter of the driver's, and is not watched.
        let is_one = |path: &PathBuf| found.contains_key(path) || by_name.has(path);
        let others = self.objects.iter().filter(|object| {
            object.path.is_absolute()
                && by_name.is_looked_for(object)
                && RealPaths::default()
                    .of(&object.path)
                    .is_some_and(|path| is_one(&path))
        });
        let opened = others.filter_map(|object| {
            let path = real.of(&object.path).filter(is_one)?;
            Some((object.path.clone(), path))
        });
        let opened = opened.collect();
        let places = self.indices.iter().map(|index| places[*index].clone());
        let (identities, texts) = recorder.end();
        let list = DriverFileList {
            places: places.collect(),
            files: found,
            plug_ins: plug_in_paths,
            to_be_opened: needed.files,
            compilers,
            by_name,
            identities: identities.into_iter().collect(),
            opened,
        };
        match (real.is_complete(), real.is_incomplete_for_good()) {
            (true, _) => Ok((list, texts)),
            (false, true) => Err(Unidentified::ForGood),
            (false, false) => Err(Unidentified::ForNow),
        }
    }
}
