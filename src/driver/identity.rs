//! What a driver is: every library and file that changes what it compiles.
//!
//! Version strings alone do not do: drivers and their compiler libraries are updated without a change of them. So the key
//! has each library that the driver needs, as it is loaded, and the files that its profile names.
//!
//! Measured with strace on builds of PoCL 3.1, Intel's CPU runtime 2026.2 and rusticl 22.3: what their compilers open is in
//! the key by one of these ways, but for
//! * what is neutral, see `key_neutral`;
//! * PoCL: the C library's linker scripts and shared libraries, of which `ld` takes no code but only names, the
//!   descriptions of the distribution (/etc/os-release, /etc/debian_version), and the files of its own cache;
//! * Intel: /proc/self/environ, which has the variables, and descriptions of the machine in /proc and /sys;
//! * rusticl: the files of Mesa's shader cache, and clang's `opencl-c-base.h`, which is one of the headers of a program.

use std::cell::OnceCell;
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Driver;
use super::environment::Around;
use super::files::{FilesByPath, NamedFile, RealPaths, Search, matches, needed_by};
use super::key_neutral::is_neutral;
use super::late::Late;
use super::loaded::{self, Mappings, Object};
use super::names::{Names, Scanned};
use super::opened_by_name;
use super::profile::DriverFiles;
use crate::file_fingerprint::FileFingerprint;
use crate::fork_safety::Mutex;
pub use crate::key::ingredients::sha256_value;
use crate::key::ingredients::{Ingredient, Kind, sha256};

/// What is remembered of the files of drivers from process to process.
pub trait FileMemory {
    /// The SHA-256 of a file's content.
    ///
    /// # Errors
    /// The file cannot be read, or changes meanwhile.
    fn digest(&self, path: &Path) -> io::Result<[u8; 32]>;
    /// What was found in a list of libraries, as [`FileMemory::remember_facts`] got it.
    ///
    /// `identity`: that of what was looked for, and of the libraries. See [`list_identity`].
    fn facts(&self, identity: &[u8; 32]) -> Option<File>;
    /// Keeps what was found in a list of libraries.
    fn remember_facts(&self, identity: &[u8; 32], facts: &[u8]);
    /// Whether an administrator says that a library of this name may answer for functions of a driver's and changes nothing.
    fn is_neutral_library(&self, _name: &str) -> bool {
        false
    }
}

/// Identifies what is looked for in a list of libraries, and the libraries by their identities.
pub fn list_identity<'a>(wanted: &[u8], libraries: impl Iterator<Item = &'a [u8]>) -> [u8; 32] {
    let mut text = wanted.to_vec();
    for identity in libraries {
        text.extend((identity.len() as u32).to_le_bytes());
        text.extend(identity);
    }
    sha256(&text)
}

/// How long what was seen of the driver's files is taken to hold: a look at each costs as much as a key. A
/// hit is then as if it had come by so much earlier, and nothing is stored without another look.
const HOLDS: Duration = Duration::from_millis(50);

/// The driver's part of a key.
pub type DriverIdentity = Arc<[Ingredient]>;

/// What was found at the first call, and what must stay as it was.
pub struct KnownIdentity {
    files: Vec<Watched>,
    /// The real paths of all that is in it or neutral.
    paths: HashSet<PathBuf>,
    /// What came into the process later, with the ingredients as they are by now.
    late: Late,
    /// The names that occur in its libraries.
    names: DriverNames,
    /// The identities of libraries whose content was proven to be what is in memory, by what is added to the addresses in them.
    proven: HashMap<usize, Vec<u8>>,
    /// How many libraries had been unloaded before that.
    unloads: u64,
    taken: Instant,
    /// When the files were last looked at, in milliseconds after `taken`.
    checked: AtomicU64,
    /// A file changed under the driver: of what it has in memory and what it reads anew nothing is known any more.
    broken: AtomicBool,
}

#[derive(Clone)]
pub(super) struct Watched {
    /// As the driver may name it: a link in it can be pointed elsewhere.
    pub(super) path: PathBuf,
    /// What that led to.
    pub(super) real: PathBuf,
    stamp: FileFingerprint,
    pub(super) digest: [u8; 32],
}

impl KnownIdentity {
    /// Whether the library at this real path is in it from the start, or neutral.
    pub(super) fn has(&self, path: &Path) -> bool {
        self.paths.contains(path)
    }

    pub(super) fn late(&self) -> &Late {
        &self.late
    }

    pub(super) fn add_names(&self, library: Scanned, memory: &dyn FileMemory) {
        self.names.add(vec![library], memory);
    }
}

impl Watched {
    /// The file at a real path; None: it cannot be read.
    pub(super) fn of(path: &Path, memory: &dyn FileMemory) -> Option<Watched> {
        Some(Watched {
            path: path.to_owned(),
            real: path.to_owned(),
            stamp: FileFingerprint::at(path)?,
            digest: memory.digest(path).ok()?,
        })
    }

    pub(super) fn holds(&self, memory: &dyn FileMemory) -> bool {
        FileFingerprint::at(&self.path) == Some(self.stamp)
            || memory.digest(&self.path).ok() == Some(self.digest)
    }
}

impl Driver {
    /// The driver's part of the key, taken at the first call; at later ones it is seen whether it still holds.
    ///
    /// None: a file could not be read or was replaced while the driver used it, so what compiles is not provable.
    pub fn identity(&self, memory: &dyn FileMemory) -> Option<DriverIdentity> {
        self.identity_at_most(HOLDS, memory)
    }

    /// The part of a key that the surroundings of this call are.
    ///
    /// `is_il`: it is of a program that is made from an intermediate language.
    pub fn surroundings(&self, is_il: bool, memory: &dyn FileMemory) -> Option<Around> {
        self.surroundings_at_most(HOLDS, is_il, memory)
    }

    /// Whether the driver is what it was when a key was made of these ingredients, and what is around it: a variable or file that
    /// is gone by now is as good a reason not to trust the key as a new one. So is a library that came meanwhile.
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
            && !self.has_opened_unknown(loads, memory)
            && self.has_bindings(ingredients, memory)
    }

    /// The identity as it was seen not longer ago than this.
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
        if let Err(path) = self.still_holds(known, memory) {
            let file = crate::log::path(&path);
            tracing::warn!(%file, "this file changed while the driver used it: nothing is cached any more");
            known.broken.store(true, Ordering::Relaxed);
            return None;
        }
        known.checked.store(now, Ordering::Relaxed);
        Some(known.late.ingredients())
    }

    pub(super) fn known_identity(&self, memory: &dyn FileMemory) -> Option<&KnownIdentity> {
        let known = match self.identity.get() {
            Some(known) => known,
            None => {
                // Without a lock, since hashing can take a second. Two threads that both do it find the same.
                let taken = self.take_identity(memory);
                self.identity.get_or_init(|| Box::new(taken))
            }
        };
        known.as_ref()
    }

    /// The names that occur in the driver's libraries.
    pub(super) fn names(&self, memory: &dyn FileMemory) -> Option<&DriverNames> {
        Some(&self.known_identity(memory)?.names)
    }

    /// The identities of libraries that were proven to be what is in memory, by what is added to the addresses in them. None: a
    /// library was unloaded since, and another one may be at its place.
    pub(super) fn proven_libraries(&self) -> Option<&HashMap<usize, Vec<u8>>> {
        let known = self.identity.get()?.as_ref()?;
        (known.unloads == loaded::changes().unloads).then_some(&known.proven)
    }

    fn still_holds(&self, known: &KnownIdentity, memory: &dyn FileMemory) -> Result<(), PathBuf> {
        if let Some(changed) = known.files.iter().find(|file| !file.holds(memory)) {
            return Err(changed.path.clone());
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
            self.add_names_of_late(known, objects, memory);
        }
        Ok(())
    }

    fn take_identity(&self, memory: &dyn FileMemory) -> Option<KnownIdentity> {
        let functions = self.functions();
        let own = |object: &Object| functions.iter().any(|function| object.contains(*function));
        let taken = Instant::now();
        // Counted first: what comes meanwhile is looked at later.
        let changes = loaded::changes();
        let objects = loaded::objects();
        let real = RealPaths::default();
        let places = objects.iter().map(|object| match object.is_in_a_file() {
            true => real.of(&object.path).unwrap_or_default(),
            false => PathBuf::new(),
        });
        let places: Vec<PathBuf> = places.collect();
        let libraries = objects.iter().filter(|object| own(object));
        let search = Search::new(
            self.profile.files,
            libraries.map(|object| object.path.as_path()),
            &real,
        );
        let (mut found, mut plug_ins) = (FilesByPath::new(), FilesByPath::new());
        for files in self.profile.files {
            match files {
                DriverFiles::PlugIns(..) => search.add(*files, &mut plug_ins),
                _ => search.add(*files, &mut found),
            }
        }
        // Of several layers that are ours, the functions below one may be those of another.
        let is_start = |index: usize| {
            let object = &objects[index];
            own(object) && !object.is_oclcache()
                || plug_ins.contains_key(&places[index])
                || self.layer.is_some() && object.is_layer_of_another()
        };
        let closure = loaded::closure_by_root(&objects, is_start);
        if closure.is_empty() {
            return None;
        }
        found.append(&mut plug_ins);

        let mappings = OnceCell::new();
        let mut ingredients = Vec::new();
        let mut files = Vec::new();
        let mut scanned = Vec::new();
        let mut proven = HashMap::new();
        for (index, _) in &closure {
            let object = &objects[*index];
            if !object.is_in_a_file() {
                continue;
            }
            if is_neutral(&object.name) || found.contains_key(&places[*index]) {
                // Only its names matter, so it may have been replaced.
                scanned.extend(scanned_object(object, memory));
                continue;
            }
            let value = match &object.build_id {
                Some(build_id) => build_id_value(build_id),
                None => sha256_value(&content(object, &object.path, &mappings, memory)?),
            };
            proven.insert(object.base, value.clone());
            scanned.push(Scanned {
                identity: value.clone(),
                path: object.path.clone(),
            });
            let name = String::from_utf8_lossy(&object.name);
            ingredients.push(Ingredient::new(Kind::Driver, name, value));
        }
        let opened_later: Vec<PathBuf> = found.keys().cloned().collect();
        let mut take = |found: FilesByPath| -> Option<()> {
            for (path, file) in found {
                let stamp = FileFingerprint::at(&path)?;
                let content = match places.iter().position(|place| *place == path) {
                    Some(index) => {
                        let object = &objects[index];
                        let content = content(object, &path, &mappings, memory)?;
                        proven.insert(object.base, sha256_value(&content));
                        content
                    }
                    None => read(&path, memory)?,
                };
                ingredients.push(Ingredient::new(
                    Kind::Driver,
                    file.name,
                    sha256_value(&content),
                ));
                files.extend(file.paths.into_iter().map(|named| Watched {
                    path: named,
                    real: path.clone(),
                    stamp,
                    digest: content,
                }));
            }
            Some(())
        };
        take(found)?;
        let mut paths: HashSet<PathBuf> = closure
            .iter()
            .map(|(index, _)| places[*index].clone())
            .collect();
        let needed = needed_by(&opened_later, &real, |path| paths.contains(path));
        for path in needed.files {
            let identity = sha256_value(&read(&path, memory)?);
            scanned.push(Scanned { identity, path });
        }
        paths.extend(opened_later);
        let loaded: Vec<&Object> = closure.iter().map(|(index, _)| &objects[*index]).collect();
        let is_known = |path: &Path| paths.contains(path);
        // What these files need is opened with them.
        let later =
            opened_by_name::all(&scanned, &loaded, needed.libraries, &real, is_known, memory);
        for (path, name) in later {
            let identity = sha256_value(&read(&path, memory)?);
            if !is_neutral(name.as_bytes()) {
                let file = NamedFile {
                    name,
                    paths: [path.clone()].into(),
                };
                take([(path.clone(), file)].into())?;
            }
            paths.insert(path.clone());
            scanned.push(Scanned { identity, path });
        }
        // The order of loading and of directory entries means nothing.
        ingredients.sort_by(|one, other| (&one.name, &one.value).cmp(&(&other.name, &other.value)));
        ingredients.dedup();
        let names = DriverNames::of(scanned, memory);
        let late = Late::new(ingredients, changes, &objects);
        let known = KnownIdentity {
            files,
            paths,
            late,
            names,
            proven,
            unloads: changes.unloads,
            taken,
            checked: AtomicU64::new(0),
            broken: AtomicBool::new(false),
        };
        known.late.recall(&known, memory);
        Some(known)
    }

    /// Libraries of the driver may have been opened since: those that it opens itself, and what they need.
    fn add_names_of_late(
        &self,
        known: &KnownIdentity,
        objects: Vec<Object>,
        memory: &dyn FileMemory,
    ) {
        let functions = self.functions();
        let real = RealPaths::default();
        let is_start = |object: &Object| {
            functions.iter().any(|function| object.contains(*function))
                || real
                    .of(&object.path)
                    .is_some_and(|path| known.files.iter().any(|file| file.real == path))
        };
        let closure = loaded::closure(objects, is_start);
        let late = closure.iter().filter(|object| object.is_in_a_file());
        let late = late.filter(|object| !known.names.has_path(&object.path));
        let late = late.filter_map(|object| scanned_object(object, memory));
        known.names.add(late.collect(), memory);
    }

    /// What translates an intermediate language for the driver.
    pub(super) fn il_files(&self, memory: &dyn FileMemory) -> Option<Vec<Ingredient>> {
        let files = self.profile.il_files;
        let real = RealPaths::default();
        let search = Search::new(files, std::iter::once(self.library.as_path()), &real);
        let mut found = FilesByPath::new();
        for files in files {
            search.add(*files, &mut found);
        }
        let ingredient = |(path, file): (PathBuf, NamedFile)| {
            let value = sha256_value(&read(&path, memory)?);
            Some(Ingredient::new(Kind::Driver, file.name, value))
        };
        found.into_iter().map(ingredient).collect()
    }
}

/// The content of a library, if what is at its path is what is in memory.
fn content(
    object: &Object,
    path: &Path,
    mappings: &OnceCell<Mappings>,
    memory: &dyn FileMemory,
) -> Option<[u8; 32]> {
    if object.is_what_stands_at_its_path(mappings.get_or_init(Mappings::now)) {
        return read(path, memory);
    }
    let library = crate::log::path(&object.path);
    tracing::warn!(%library, "this library was replaced since it was loaded: nothing is cached");
    None
}

/// The names that occur in a driver's libraries, and in those that it opened later.
#[derive(Default)]
pub struct DriverNames(Mutex<Vec<(Vec<Scanned>, Names)>>);

impl DriverNames {
    /// Those of these libraries.
    pub(super) fn of(libraries: Vec<Scanned>, memory: &dyn FileMemory) -> DriverNames {
        let names = DriverNames::default();
        names.add(libraries, memory);
        names
    }

    /// Adds the names of libraries, but for those that are known.
    fn add(&self, mut libraries: Vec<Scanned>, memory: &dyn FileMemory) {
        libraries.retain(|library| !self.has_library(library));
        libraries.sort();
        libraries.dedup();
        if !libraries.is_empty() {
            let names = Names::of(&libraries, memory);
            self.0.lock().push((libraries, names));
        }
    }

    fn has_library(&self, library: &Scanned) -> bool {
        let known = self.0.lock();
        let mut known = known.iter().flat_map(|(libraries, _)| libraries);
        known.any(|one| one.identity == library.identity)
    }

    fn has_path(&self, path: &Path) -> bool {
        let known = self.0.lock();
        let mut known = known.iter().flat_map(|(libraries, _)| libraries);
        known.any(|one| one.path == path)
    }

    /// Whether the name may be one that the driver asks for.
    pub fn has(&self, name: &[u8]) -> bool {
        self.0.lock().iter().any(|(_, names)| names.has(name))
    }

    /// How often libraries were added.
    pub fn changes(&self) -> usize {
        self.0.lock().len()
    }
}

/// Whether all that a key has of a driver and its surroundings is what there is now.
fn is_same(key: &[Ingredient], identity: &[Ingredient], surroundings: &[Ingredient]) -> bool {
    let is_of_them = |one: &&Ingredient| matches!(one.kind, Kind::Driver | Kind::Environment);
    let is_there = |one: &Ingredient| identity.contains(one) || surroundings.contains(one);
    surroundings.iter().all(|one| key.contains(one)) && key.iter().filter(is_of_them).all(is_there)
}

/// None: it cannot be read.
fn scanned_object(object: &Object, memory: &dyn FileMemory) -> Option<Scanned> {
    let identity = match &object.build_id {
        Some(build_id) => build_id_value(build_id),
        None => sha256_value(&memory.digest(&object.path).ok()?),
    };
    let path = object.path.clone();
    Some(Scanned { identity, path })
}

fn read(path: &Path, memory: &dyn FileMemory) -> Option<[u8; 32]> {
    memory
        .digest(path)
        .inspect_err(|error| {
            tracing::warn!(file = %crate::log::path(path), %error, "a file of the driver cannot be read: nothing is cached");
        })
        .ok()
}

/// How the build-id of a library stands in a key.
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
    }
}
