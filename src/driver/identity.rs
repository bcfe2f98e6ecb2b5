//! The identity of a driver: every library and file that changes what it compiles.
//!
//! Version strings do not suffice: drivers and their compiler libraries are updated without a new version. So the key has each
//! library that the driver needs, as it is loaded, and the files that its profile names.
//!
//! Measured with strace on builds of PoCL 3.1, Intel's CPU runtime 2026.2 and rusticl 22.3: the key has everything that their
//! compilers open, except
//!
//! - what is neutral (`key_neutral`);
//! - PoCL: linker scripts and libraries of the C library, from which `ld` takes only names, descriptions of the distribution
//!   (`/etc/os-release`), and its own cache;
//! - Intel: `/proc/self/environ`, since variables are in the key anyway, and descriptions of the machine in /proc and /sys;
//! - rusticl: Mesa's shader cache, and clang's `opencl-c-base.h`, which is one of the program's headers.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use super::Driver;
use super::driver_names::DriverNames;
use super::environment::DriverSurroundings;
use super::file_list::ListedFiles;
use super::file_memory::FileMemory;
use super::files::{FileSearch, FilesByPath, NamedFile};
use super::key_neutral::is_neutral;
use super::known_identity::{KnownIdentity, Watched};
use super::late::Late;
use super::loaded::{self, LoadedObjects, Object};
use super::moment::Moment;
use super::numbered_names::NumberedNames;
use super::real_paths::{RealPaths, says_what_is_there};
use super::scanned_library::ScannedLibrary;
use crate::fork_safety::Mutex;
pub use crate::key::ingredients::sha256_value;
use crate::key::ingredients::{Ingredient, Kind};
use crate::linker_lock;

/// How long a look at the driver's files is trusted: a new look costs as much as a key. A hit may thus be served as if it came this
/// much earlier. Nothing is stored without a new look.
pub(super) const HOLDS: Duration = Duration::from_millis(50);
/// The same of what was searched for them: a look at that makes some 100 system calls. Until then a process does not see a file that comes
/// to those that the driver reads, such as another GCC (measured with PoCL: its next program is linked by that).
const SEARCH_HOLDS: Duration = Duration::from_secs(1);

/// The driver's part of a key.
pub type DriverIdentity = Arc<[Ingredient]>;

/// Why a driver has no identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unidentified {
    /// Something could not be looked at, perhaps for lack of descriptors or memory: the next call tries again.
    ForNow,
    /// A file cannot be read, or is not the one in memory; or what the driver opens by name cannot be found out.
    ForGood,
}

impl From<io::Error> for Unidentified {
    fn from(error: io::Error) -> Unidentified {
        match says_what_is_there(&error) {
            true => Unidentified::ForGood,
            false => Unidentified::ForNow,
        }
    }
}

/// How often a process looks at what it cannot identify for now. A look takes some milliseconds, and a fault of a disk stays.
pub(super) const MAX_LOOKS: u32 = 16;

impl Driver {
    /// The driver's part of the key. Taken at the first call; later calls check that it still holds.
    ///
    /// None if a file could not be read, or was replaced while the driver used it: then the compiler cannot be identified.
    pub fn identity(&self, memory: &dyn FileMemory) -> Option<DriverIdentity> {
        self.identity_at_most(HOLDS, memory)
    }

    /// The part of a key that tells the surroundings of this call.
    ///
    /// `is_il`: the program is made from an intermediate language.
    pub fn surroundings(&self, is_il: bool, memory: &dyn FileMemory) -> Option<DriverSurroundings> {
        self.surroundings_at_most(HOLDS, is_il, memory)
    }

    /// Whether the driver and its surroundings are as when a key was made of these ingredients. A variable or file that is gone
    /// makes the key as doubtful as a new one, and so does a library that came meanwhile.
    ///
    /// `loads`: how many libraries had been loaded when the key was made.
    pub fn is_unchanged(
        &self,
        ingredients: &[Ingredient],
        loads: u64,
        memory: &dyn FileMemory,
    ) -> bool {
        let is_il = ingredients.iter().any(|one| one.kind == Kind::Il);
        let (Some(identity), Some(surroundings)) = (
            self.identity_at_most(Duration::ZERO, memory),
            self.surroundings_at_most(Duration::ZERO, is_il, memory),
        ) else {
            return false;
        };
        is_same(ingredients, &identity, &surroundings.ingredients)
            && !surroundings.has_changed
            && !self.has_opened_unknown(loads, memory)
            && self.has_bindings(ingredients, memory)
    }

    /// The identity, from a look at most this old.
    fn identity_at_most(&self, age: Duration, memory: &dyn FileMemory) -> Option<DriverIdentity> {
        let known = self.known_identity(memory)?;
        if known.broken.load(Ordering::Relaxed) {
            return None;
        }
        let now = known.taken.elapsed().as_millis() as u64;
        let since = now.saturating_sub(known.checked.load(Ordering::Relaxed));
        if known.late.is_current() && u128::from(since) < age.as_millis() {
            return Some(known.late.ingredients());
        }
        let searched = now.saturating_sub(known.searched.load(Ordering::Relaxed));
        let is_search_due = age.is_zero() || u128::from(searched) >= SEARCH_HOLDS.as_millis();
        let holds = match self.still_holds(known, memory) {
            Ok(()) if is_search_due => self.is_found_again(known, now, memory)?,
            holds => holds,
        };
        if let Err(path) = holds {
            let file = crate::log::path(&path);
            tracing::warn!(%file, "this file changed while the driver used it: nothing is cached any more");
            known.broken.store(true, Ordering::Relaxed);
            return None;
        }
        known.checked.store(now, Ordering::Relaxed);
        Some(known.late.ingredients())
    }

    /// Takes the identity from what was loaded at a moment, unless it was taken. Libraries that the driver opens when it builds are
    /// thus in it as in all later processes, which take it before they build. Returns whether there is one: while the driver builds,
    /// none may be taken from what is loaded then.
    pub fn identify_as_at(&self, moment: &Moment, memory: &dyn FileMemory) -> bool {
        self.known_identity_at(Some(moment), memory).is_some()
    }

    pub(super) fn known_identity(&self, memory: &dyn FileMemory) -> Option<&KnownIdentity> {
        self.known_identity_at(None, memory)
    }

    fn known_identity_at(
        &self,
        moment: Option<&Moment>,
        memory: &dyn FileMemory,
    ) -> Option<&KnownIdentity> {
        let known = match self.identity.get() {
            Some(known) => known,
            None => {
                let now;
                let loaded = match moment {
                    Some(moment) => &moment.loaded,
                    None => {
                        now = Arc::new(LoadedObjects::now());
                        &now
                    }
                };
                // Without a lock, since hashing can take a second. Two threads get the same result.
                let taken = linker_lock::complete(|| self.take_identity(loaded, memory));
                let taken = match taken? {
                    Err(Unidentified::ForNow) if self.may_look_again() => return None,
                    taken => taken.ok(),
                };
                let known = self.identity.get_or_init(|| Box::new(taken));
                // A compilation may have ended meanwhile.
                if let Some(known) = known {
                    self.learn_early(known, &loaded.objects, memory);
                }
                known
            }
        };
        known.as_ref()
    }

    /// Whether something may be looked at again that could not be looked at for now.
    pub(super) fn may_look_again(&self) -> bool {
        self.looks.fetch_add(1, Ordering::Relaxed) < MAX_LOOKS
    }

    /// Whether the identity was taken, or cannot be.
    pub fn has_identity(&self) -> bool {
        self.identity.get().is_some()
    }

    /// The names that occur in the driver's libraries.
    pub(super) fn names(&self, memory: &dyn FileMemory) -> Option<&DriverNames> {
        Some(&self.known_identity(memory)?.names)
    }

    /// The identities of libraries whose files were proven to be what is in memory, by where they begin. None if a library was unloaded
    /// since: another one may be at its address.
    pub(super) fn proven_libraries(&self) -> Option<&HashMap<usize, Vec<u8>>> {
        let known = self.identity.get()?.as_ref()?;
        (known.unloads == loaded::changes().unloads).then_some(&known.proven)
    }

    fn take_identity(
        &self,
        loaded: &Arc<LoadedObjects>,
        memory: &dyn FileMemory,
    ) -> Result<KnownIdentity, Unidentified> {
        let known = self.identity_of(loaded, memory)?;
        known.late.recall(&known, memory)?;
        self.learn_early(&known, &loaded.objects, memory);
        Ok(known)
    }

    /// The identity by the libraries that are loaded, without what came into the process otherwise.
    pub(super) fn identity_of(
        &self,
        loaded: &Arc<LoadedObjects>,
        memory: &dyn FileMemory,
    ) -> Result<KnownIdentity, Unidentified> {
        let LoadedObjects { objects, changes } = &**loaded;
        let listed = ListedFiles::of(self, objects, memory)?;
        let mut ingredients = Vec::new();
        let mut files = Vec::new();
        let mut scanned = Vec::new();
        let mut proven = HashMap::new();
        for (index, object) in listed.libraries() {
            if is_neutral(&object.name) || listed.has(&listed.places[index]) {
                // Only its names matter, so a replaced file does no harm.
                let identity = |path: &Path| listed.identity(path, memory);
                match ScannedLibrary::of(object, identity).map_err(Unidentified::from) {
                    Ok(library) => scanned.push(library),
                    Err(Unidentified::ForGood) => {}
                    Err(for_now) => return Err(for_now),
                }
                continue;
            }
            let value = match &object.build_id {
                Some(build_id) => build_id_value(build_id),
                None => loaded_identity(object, &object.path, &listed, memory)?,
            };
            proven.extend(object.start().map(|at| (at, value.clone())));
            scanned.push(ScannedLibrary {
                identity: value.clone(),
                path: object.path.clone(),
            });
            let name = String::from_utf8_lossy(&object.name);
            ingredients.push(Ingredient::new(Kind::Driver, name, value));
        }
        let mut take = |path: &PathBuf, name: &str, paths: &BTreeSet<PathBuf>| {
            let stamp = listed.state(path).ok_or(Unidentified::ForGood)?;
            let identity = match listed.index_of(path) {
                Some(index) => {
                    let object = &objects[index];
                    let identity = loaded_identity(object, path, &listed, memory)?;
                    proven.extend(object.start().map(|at| (at, identity.clone())));
                    identity
                }
                None => read(path, &listed, memory)?,
            };
            ingredients.push(Ingredient::new(Kind::Driver, name, identity.as_slice()));
            files.extend(paths.iter().map(|named| Watched {
                path: named.clone(),
                real: path.clone(),
                stamp,
                identity: identity.clone(),
            }));
            Ok::<(), Unidentified>(())
        };
        let mut directories = BTreeMap::new();
        for (path, file) in &listed.list.files {
            take(path, &file.name, &file.paths)?;
            for directory in &file.directories {
                let state = listed.state(directory).ok_or(Unidentified::ForGood)?;
                directories.insert(directory.clone(), state.file);
            }
        }
        let closure = listed.closure.iter();
        let mut paths: HashSet<PathBuf> =
            closure.map(|index| listed.places[*index].clone()).collect();
        for path in &listed.list.to_be_opened {
            let identity = read(path, &listed, memory)?;
            let path = path.clone();
            scanned.push(ScannedLibrary { identity, path });
        }
        paths.extend(listed.list.files.keys().cloned());
        let of_program = listed.of_program(|path| paths.contains(path));
        let mut neutral_of_program = HashSet::new();
        let mut names = NumberedNames::default();
        for (path, name) in listed.list.by_name.libraries.iter().chain(&of_program) {
            let identity = read(path, &listed, memory)?;
            if !is_neutral(name.as_bytes()) {
                take(path, &names.next(name), &[path.clone()].into())?;
            } else if name.ends_with(Ingredient::OF_PROGRAM) {
                neutral_of_program.insert(path.clone());
            }
            paths.insert(path.clone());
            let path = path.clone();
            scanned.push(ScannedLibrary { identity, path });
        }
        // The order of loading and of directory entries has no meaning.
        ingredients.sort_by(|one, other| (&one.name, &one.value).cmp(&(&other.name, &other.value)));
        ingredients.dedup();
        let names = DriverNames::after_reading(scanned, listed.texts);
        let base: DriverIdentity = ingredients.into();
        let late = Late::new(base.clone(), *changes, objects);
        Ok(KnownIdentity {
            files,
            directories,
            paths,
            of_program: neutral_of_program,
            opened: listed.list.opened,
            compilers: listed.list.compilers,
            late,
            names,
            proven,
            unloads: changes.unloads,
            loaded: loaded.clone(),
            base,
            watched: Mutex::new(Arc::new(listed.watched)),
            taken: listed.taken,
            checked: AtomicU64::new(0),
            searched: AtomicU64::new(0),
            broken: AtomicBool::new(false),
        })
    }

    /// The files that translate an intermediate language for the driver.
    pub(super) fn il_files(&self, memory: &dyn FileMemory) -> Option<Vec<Ingredient>> {
        let files = self.profile.il_files;
        let real = RealPaths::default();
        let own = || std::iter::once(self.library.as_path());
        let search = FileSearch::new(files, own(), own(), &[], &real);
        let mut found = FilesByPath::new();
        for files in files {
            search.add(*files, &mut found);
        }
        if !real.is_complete() {
            return None;
        }
        let ingredient = |(path, file): (PathBuf, NamedFile)| {
            let value = readable(&path, memory.identity(&path)).ok()?;
            Some(Ingredient::new(Kind::Driver, file.name, value))
        };
        found.into_iter().map(ingredient).collect()
    }
}

/// The identity of a library, if the file at its path is what is in memory.
fn loaded_identity(
    object: &Object,
    path: &Path,
    listed: &ListedFiles<'_>,
    memory: &dyn FileMemory,
) -> Result<Vec<u8>, Unidentified> {
    let state = listed.state(&object.path);
    if state.is_some_and(|state| object.is_file(state.file.1, &listed.mappings)) {
        return read(path, listed, memory);
    }
    let library = crate::log::path(&object.path);
    tracing::warn!(%library, "this library was replaced since it was loaded: nothing is cached");
    Err(Unidentified::ForGood)
}

/// Whether a key has all ingredients of a driver and its surroundings, and no others.
fn is_same(key: &[Ingredient], identity: &[Ingredient], surroundings: &[Ingredient]) -> bool {
    let is_of_them = |one: &&Ingredient| matches!(one.kind, Kind::Driver | Kind::Environment);
    let is_there = |one: &Ingredient| identity.contains(one) || surroundings.contains(one);
    let mut all = identity.iter().chain(surroundings);
    all.all(|one| key.contains(one)) && key.iter().filter(is_of_them).all(is_there)
}

fn read(
    path: &Path,
    listed: &ListedFiles<'_>,
    memory: &dyn FileMemory,
) -> Result<Vec<u8>, Unidentified> {
    readable(path, listed.identity(path, memory))
}

fn readable(path: &Path, identity: io::Result<Vec<u8>>) -> Result<Vec<u8>, Unidentified> {
    let identity = identity.inspect_err(|error| {
        tracing::warn!(file = %crate::log::path(path), %error, "a file of the driver cannot be read: nothing is cached");
    });
    Ok(identity?)
}

/// The digest of a file of the driver as it is in a key.
pub fn content_value(digest: &[u8; 32]) -> Vec<u8> {
    [b"content ", digest.as_slice()].concat()
}

/// A library's build-id as it is in a key.
pub fn build_id_value(build_id: &[u8]) -> Vec<u8> {
    [b"build-id ", build_id].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_or_file_that_came_changed_or_went_is_a_change() {
        let one = |kind, name: &str, value: &str| Ingredient::new(kind, name, value);
        let identity = [one(Kind::Driver, "libx.so", "1")];
        let around = [
            one(Kind::Environment, "A", "1"),
            one(Kind::Driver, "cl.cfg", "2"),
        ];
        let source = [one(Kind::Source, "", "3")];
        let key = [&source[..], &around, &identity].concat();
        assert!(is_same(&key, &identity, &around));
        assert!(!is_same(&key, &identity, &around[1..]), "a variable went");
        assert!(!is_same(&key, &identity, &around[..1]), "a file went");
        let [_, file] = around.clone();
        let changed = [one(Kind::Environment, "A", "4"), file];
        assert!(!is_same(&key, &identity, &changed));
        let without = [&source[..], &around[1..], &identity].concat();
        assert!(!is_same(&without, &identity, &around), "a variable came");
        let with = [&identity[..], &[one(Kind::Driver, "liby.so", "1")]].concat();
        assert!(!is_same(&key, &with, &around), "a library came");
    }
}
