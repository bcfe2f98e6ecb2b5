//! Libraries that came into the process after a driver's identity was taken, although nothing named them.
//!
//! What such a library does is in no key, so nothing is stored that was compiled while one came. It is added to the identity, and
//! remembered in the cache directory with the identity, so that each later process has it in its keys from the start. This holds
//! only for libraries that come in a compilation, whatever the cache does with it: a program opens libraries of its own at any time,
//! and they say nothing of the driver. One of another thread that comes just then is taken for the driver's, which costs a
//! compilation.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use super::Driver;
use super::file_memory::{FileMemory, list_identity};
use super::identity::DriverIdentity;
use super::key_neutral::is_neutral;
use super::known_identity::{KnownIdentity, Watched};
use super::loaded::{self, Changes, Object};
use super::opened_by_name::{checked, with_checksum};
use super::real_paths::{RealPaths, says_what_is_there};
use super::scanned_library::ScannedLibrary;
use crate::fork_safety::Mutex;
use crate::key::ingredients::{Ingredient, Kind, key};

const MAGIC: &[u8; 16] = b"oclcache late 01";
/// Where a driver opens more of them without naming them, the process stores nothing of it any more. Programs that open libraries of their
/// own in another thread must not change a driver's keys for ever.
const MAX_LIBRARIES: usize = 16;

/// What is known of libraries that came later.
pub struct Late {
    /// Which identity it is without them.
    identity: [u8; 32],
    state: Mutex<State>,
    /// See [`MAX_LIBRARIES`].
    are_too_many: AtomicBool,
}

/// Where libraries were loaded from which paths.
type Seen = HashSet<(usize, PathBuf)>;

struct State {
    ingredients: DriverIdentity,
    files: Vec<Watched>,
    seen: Seen,
    changes: Changes,
    arrivals: Vec<Arrival>,
}

/// What was loaded when a compilation began that is not going to be stored, or may not be.
pub struct LibraryWatch {
    loads: u64,
    /// Where the identity was not taken yet: taking it costs more than a bypass may.
    seen: Option<Arc<Seen>>,
}

/// What is known of compilations that began before the identity was taken.
#[derive(Default)]
pub struct EarlyLibraries {
    /// The paths, without links, of libraries that came in those that have ended.
    came: BTreeSet<PathBuf>,
    /// What was loaded when the others began.
    running: Vec<Weak<Seen>>,
}

struct Arrival {
    /// How many libraries had been loaded when it was seen.
    loads: u64,
    path: PathBuf,
    name: Vec<u8>,
    is_in_a_file: bool,
}

fn place(object: &Object) -> (usize, PathBuf) {
    (object.base, object.path.clone())
}

fn seen(objects: &[Object]) -> Seen {
    objects.iter().map(place).collect()
}

/// The paths, without links, of libraries of unknown meaning that were not there before.
fn came_since(before: &Seen, objects: &[Object]) -> Vec<PathBuf> {
    let real = RealPaths::default();
    let is_new = |object: &&Object| {
        !before.contains(&place(object)) && object.is_in_a_file() && !is_neutral(&object.name)
    };
    let new = objects.iter().filter(is_new);
    new.filter_map(|object| real.of(&object.path)).collect()
}

/// Tells whether a path without links is below this directory.
fn is_below(directory: Option<&Path>, real: &RealPaths) -> impl Fn(&PathBuf) -> bool + use<> {
    let directory = directory.and_then(|directory| real.of(directory));
    move |path| {
        directory
            .as_ref()
            .is_some_and(|directory| path.starts_with(directory))
    }
}

impl Late {
    /// Of an identity that was taken when these libraries were loaded.
    pub fn new(ingredients: DriverIdentity, changes: Changes, objects: &[Object]) -> Late {
        Late {
            identity: list_identity(MAGIC, [&key(&*ingredients).0[..]].into_iter()),
            state: Mutex::new(State {
                ingredients,
                files: Vec::new(),
                seen: seen(objects),
                changes,
                arrivals: Vec::new(),
            }),
            are_too_many: AtomicBool::new(false),
        }
    }

    /// The driver's part of the key.
    pub fn ingredients(&self) -> DriverIdentity {
        self.state.lock().ingredients.clone()
    }

    /// Whether no library came since [`Late::look`].
    pub fn is_current(&self) -> bool {
        // Without the lock: the linker is asked.
        let then = self.state.lock().changes;
        then == loaded::changes()
    }

    /// Whether the files that came later are what they were; else the path of one that is not.
    pub fn still_holds(&self, memory: &dyn FileMemory) -> Result<(), PathBuf> {
        let files: Vec<Watched> = self.state.lock().files.clone();
        let changed = files.iter().find(|file| !file.holds(memory));
        changed.map_or(Ok(()), |file| Err(file.path.clone()))
    }

    /// Sees what came, and gives all that is loaded.
    pub fn look(&self) -> Vec<Object> {
        // Counted first: what comes meanwhile is looked at again.
        let changes = loaded::changes();
        let objects = loaded::objects();
        let loads = loaded::changes().loads;
        let mut state = self.state.lock();
        if state.changes.loads <= changes.loads {
            for object in &objects {
                if !state.seen.contains(&place(object)) {
                    state.arrivals.push(Arrival {
                        loads,
                        path: object.path.clone(),
                        name: object.name.clone(),
                        is_in_a_file: object.is_in_a_file(),
                    });
                }
            }
            state.seen = seen(&objects);
            state.changes = changes;
        }
        objects
    }

    /// Adds libraries that came in compilations which began before the identity was taken. `paths`: without links.
    fn learn(
        &self,
        paths: &BTreeSet<PathBuf>,
        known: &KnownIdentity,
        programs: Option<&Path>,
        memory: &dyn FileMemory,
    ) {
        let is_program = is_below(programs, &RealPaths::default());
        let new = paths.iter().filter(|path| {
            !known.has(path)
                && !self.has(path)
                && !is_program(path)
                && path.try_exists().unwrap_or(true)
        });
        let new: Vec<PathBuf> = new.cloned().collect();
        self.add_unknown(&new, known, memory);
    }

    /// Adds libraries that nothing names, for this process and later ones.
    fn add_unknown(&self, paths: &[PathBuf], known: &KnownIdentity, memory: &dyn FileMemory) {
        if paths.is_empty() {
            return;
        }
        for path in paths {
            tracing::info!(library = %crate::log::path(path), "the driver opened a library that nothing names");
        }
        let added = self.remembered(memory).and_then(|remembered| {
            let new = paths.iter().filter(|path| !remembered.contains(path));
            if remembered.len() + new.count() > MAX_LIBRARIES {
                self.are_too_many.store(true, Ordering::Relaxed);
                return Ok(());
            }
            self.add(paths, known, memory)?;
            self.remember(remembered, paths, memory);
            Ok(())
        });
        if let Err(error) = added {
            tracing::warn!(%error, "this library cannot be read for now: nothing of the driver is cached any more");
            known.give_up();
        }
    }

    /// The libraries of unknown meaning that came since so many had been loaded. None: one came and went.
    ///
    /// `programs`: what the driver opens in this directory it has made of programs.
    fn unknown(
        &self,
        loads: u64,
        known: &KnownIdentity,
        programs: Option<&Path>,
    ) -> Option<Vec<PathBuf>> {
        let real = RealPaths::default();
        let is_program = is_below(programs, &real);
        let state = self.state.lock();
        let arrivals = || state.arrivals.iter().filter(|one| one.loads > loads);
        let gone = state.changes.loads.saturating_sub(loads) > arrivals().count() as u64;
        if gone && programs.is_none() {
            return None;
        }
        let is_unknown = |one: &&Arrival| one.is_in_a_file && !is_neutral(&one.name);
        let paths = arrivals()
            .filter(is_unknown)
            .filter_map(|one| real.of(&one.path));
        let is_late = |path: &PathBuf| state.files.iter().any(|file| file.real == *path);
        let mut paths: Vec<PathBuf> = paths
            .filter(|path| !known.has(path) && !is_late(path) && !is_program(path))
            .collect();
        paths.sort();
        paths.dedup();
        Some(paths)
    }

    pub(super) fn has(&self, path: &Path) -> bool {
        self.state
            .lock()
            .files
            .iter()
            .any(|file| file.real == *path)
    }

    /// Adds libraries to the identity. Those that are not there any more, or may not be read, are left out.
    ///
    /// # Errors
    /// One cannot be read for now.
    fn add(
        &self,
        paths: &[PathBuf],
        known: &KnownIdentity,
        memory: &dyn FileMemory,
    ) -> io::Result<()> {
        for path in paths {
            if known.has(path) || self.has(path) {
                continue;
            }
            let file = match Watched::of(path, memory) {
                Ok(file) => file,
                Err(error) if says_what_is_there(&error) => continue,
                Err(error) => return Err(error),
            };
            let identity = file.identity.clone();
            known.add_names(ScannedLibrary {
                identity: identity.clone(),
                path: path.clone(),
            });
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let mut state = self.state.lock();
            let mut ingredients = state.ingredients.to_vec();
            ingredients.push(Ingredient::new(Kind::Driver, name, identity));
            ingredients
                .sort_by(|one, other| (&one.name, &one.value).cmp(&(&other.name, &other.value)));
            ingredients.dedup();
            state.ingredients = ingredients.into();
            state.files.push(file);
        }
        Ok(())
    }

    /// Adds those that earlier processes saw.
    ///
    /// # Errors
    /// One cannot be read for now, or which they are.
    pub fn recall(&self, known: &KnownIdentity, memory: &dyn FileMemory) -> io::Result<()> {
        self.add(&self.remembered(memory)?, known, memory)
    }

    fn remembered(&self, memory: &dyn FileMemory) -> io::Result<Vec<PathBuf>> {
        let file = memory.facts(&self.identity)?;
        let paths = file.and_then(|file| checked(file, MAGIC, &self.identity));
        let paths = paths.unwrap_or_default();
        let paths = paths
            .split(|byte| *byte == 0)
            .filter(|path| !path.is_empty());
        Ok(paths.map(|path| OsStr::from_bytes(path).into()).collect())
    }

    fn remember(&self, mut paths: Vec<PathBuf>, new: &[PathBuf], memory: &dyn FileMemory) {
        paths.extend(new.iter().cloned());
        paths.sort();
        paths.dedup();
        let paths: Vec<&[u8]> = paths
            .iter()
            .map(|path| path.as_os_str().as_bytes())
            .collect();
        let facts = with_checksum(MAGIC, &self.identity, &paths.join(&0));
        memory.remember_facts(&self.identity, &facts);
    }
}

impl Driver {
    /// Whether a library of unknown meaning came since so many had been loaded. Later keys have it.
    pub(super) fn has_opened_unknown(&self, loads: u64, memory: &dyn FileMemory) -> bool {
        let Some(known) = self.known_identity(memory) else {
            return true;
        };
        let late = known.late();
        late.look();
        let Some(paths) = late.unknown(loads, known, self.program_dir().as_deref()) else {
            tracing::info!("a library was opened and closed while the driver compiled");
            return true;
        };
        late.add_unknown(&paths, known, memory);
        !paths.is_empty() || late.are_too_many.load(Ordering::Relaxed)
    }

    /// Begins to watch which libraries come.
    pub fn watch_libraries(&self) -> LibraryWatch {
        let loads = loaded::changes().loads;
        let seen = (!self.has_identity()).then(|| Arc::new(seen(&loaded::objects())));
        if let Some(seen) = &seen {
            let running = &mut self.early.lock().running;
            running.retain(|seen| seen.strong_count() > 0);
            running.push(Arc::downgrade(seen));
        }
        LibraryWatch { loads, seen }
    }

    /// Notes the libraries that came since, at the end of a compilation.
    pub fn note_libraries(&self, watch: &LibraryWatch, memory: &dyn FileMemory) {
        if loaded::changes().loads == watch.loads {
            return;
        }
        if let Some(seen) = &watch.seen {
            let came = came_since(seen, &loaded::objects());
            self.early.lock().came.extend(came);
            // Another thread may have taken the identity while this one compiled.
            if let Some(known) = self.identity.get().and_then(Option::as_ref) {
                self.learn_early(known, &[], memory);
            }
        }
        if self.has_identity() {
            self.has_opened_unknown(watch.loads, memory);
        }
    }

    /// Adds the libraries that came in compilations which began before the identity was taken: in those that have ended, and in the
    /// others, if they are among these objects. The identity would have them as loaded from the start.
    pub(super) fn learn_early(
        &self,
        known: &KnownIdentity,
        objects: &[Object],
        memory: &dyn FileMemory,
    ) {
        let (mut paths, running) = {
            let early = self.early.lock();
            let running: Vec<_> = early.running.iter().filter_map(Weak::upgrade).collect();
            (early.came.clone(), running)
        };
        for seen in running {
            paths.extend(came_since(&seen, objects));
        }
        if !paths.is_empty() {
            let late = known.late();
            late.learn(&paths, known, self.program_dir().as_deref(), memory);
        }
    }
}
