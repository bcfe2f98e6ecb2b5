//! What a driver is: every library and file that changes what it compiles.
//!
//! Version strings alone do not do: drivers and their compiler libraries are updated without a change of them. So the key
//! has each library that the driver needs, as it is loaded, and the files that its profile names.
//!
//! Measured with strace on builds of PoCL 3.1, Intel's CPU runtime 2026.2 and rusticl 22.3: what their compilers open is in
//! the key by one of these ways, but for
//! * what is neutral, see `neutral`;
//! * PoCL: the C library's linker scripts and shared libraries, of which `ld` takes no code but only names, the
//!   descriptions of the distribution (/etc/os-release, /etc/debian_version), and the files of its own cache;
//! * Intel: /proc/self/environ, which has the variables, and descriptions of the machine in /proc and /sys;
//! * rusticl: the files of Mesa's shader cache, and clang's `opencl-c-base.h`, which is one of the headers of a program.

use std::collections::HashMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::Driver;
use super::files::{Found, RealPaths, Search, matches};
use super::loaded::{self, Object};
use super::neutral::is_neutral;
use super::profile::Files;
use crate::key::ingredients::{Ingredient, Kind};
use crate::stamp::Stamp;

/// The SHA-256 of a file's content.
pub type FileDigest<'a> = &'a dyn Fn(&Path) -> io::Result<[u8; 32]>;

/// How long what was seen of the driver's files is taken to hold: a look at each costs as much as a key. A
/// hit is then as if it had come by so much earlier, and nothing is stored without another look.
const HOLDS: Duration = Duration::from_millis(50);

/// The driver's part of a key.
pub type DriverIdentity = Arc<[Ingredient]>;

/// What was found at the first call, and what must stay as it was.
pub struct Identity {
    ingredients: DriverIdentity,
    files: Vec<Watched>,
    /// How many libraries had been loaded when they were last looked through.
    loads: AtomicU64,
    taken: Instant,
    /// When the files were last looked at, in milliseconds after `taken`.
    checked: AtomicU64,
    /// A file changed under the driver: of what it has in memory and what it reads anew nothing is known any more.
    broken: AtomicBool,
}

struct Watched {
    path: PathBuf,
    stamp: Stamp,
    digest: [u8; 32],
}

impl Driver {
    /// The driver's part of the key, taken at the first call; at later ones it is seen whether it still holds.
    ///
    /// None: a file could not be read or was replaced while the driver used it, so what compiles is not provable.
    pub fn identity(&self, digest: FileDigest) -> Option<DriverIdentity> {
        self.identity_at_most(HOLDS, digest)
    }

    /// The part of a key that the surroundings of this call are.
    pub fn surroundings(&self, digest: FileDigest) -> Option<Vec<Ingredient>> {
        self.surroundings_at_most(HOLDS, digest)
    }

    /// Whether the driver is what it was when a key was made of these ingredients, and what is around it: a variable or file that
    /// is gone by now is as good a reason not to trust the key as a new one.
    pub fn is_unchanged(&self, ingredients: &[Ingredient], digest: FileDigest) -> bool {
        let (Some(identity), Some(surroundings)) = (
            self.identity_at_most(Duration::ZERO, digest),
            self.surroundings_at_most(Duration::ZERO, digest),
        ) else {
            return false;
        };
        is_same(ingredients, &identity, &surroundings)
    }

    /// The identity as it was seen not longer ago than this.
    fn identity_at_most(&self, age: Duration, digest: FileDigest) -> Option<DriverIdentity> {
        let known = match self.identity.get() {
            Some(known) => known,
            None => {
                // Without a lock, since hashing can take a second. Two threads that both do it find the same.
                let taken = self.take_identity(digest);
                self.identity.get_or_init(|| Box::new(taken))
            }
        };
        let known = known.as_ref()?;
        if known.broken.load(Ordering::Relaxed) {
            return None;
        }
        let now = known.taken.elapsed().as_millis() as u64;
        let since = now.saturating_sub(known.checked.load(Ordering::Relaxed));
        if u128::from(since) < age.as_millis() {
            return Some(known.ingredients.clone());
        }
        if let Err(path) = self.still_holds(known, digest) {
            let file = crate::log::path(&path);
            tracing::warn!(%file, "this file changed while the driver used it: nothing is cached any more");
            known.broken.store(true, Ordering::Relaxed);
            return None;
        }
        known.checked.store(now, Ordering::Relaxed);
        Some(known.ingredients.clone())
    }

    fn still_holds(&self, known: &Identity, digest: FileDigest) -> Result<(), PathBuf> {
        for file in &known.files {
            if stamp_of(&file.path) != Some(file.stamp)
                && digest(&file.path).ok() != Some(file.digest)
            {
                return Err(file.path.clone());
            }
        }
        let by_name = |files: &Files| matches!(files, Files::Library(_));
        let loads = loaded::changes().loads;
        if known.loads.load(Ordering::Relaxed) != loads && self.profile.files.iter().any(by_name) {
            for object in loaded::objects() {
                let is_of_the_driver = self.profile.files.iter().any(|files| match files {
                    Files::Library(pattern) => object.is_named(|name| matches(pattern, name)),
                    _ => false,
                });
                let path = std::fs::canonicalize(&object.path).unwrap_or_default();
                if is_of_the_driver && !known.files.iter().any(|file| file.path == path) {
                    return Err(object.path);
                }
            }
            known.loads.store(loads, Ordering::Relaxed);
        }
        Ok(())
    }

    fn take_identity(&self, digest: FileDigest) -> Option<Identity> {
        let functions = self.functions();
        let own = |object: &Object| functions.iter().any(|function| object.contains(*function));
        let taken = Instant::now();
        let objects = loaded::objects();
        let loads = loaded::changes().loads;
        let real = RealPaths::default();
        let places: HashMap<PathBuf, PathBuf> = objects
            .iter()
            .map(|object| {
                (
                    object.path.clone(),
                    real.of(&object.path).unwrap_or_default(),
                )
            })
            .collect();
        let place = |object: &Object| &places[&object.path];
        let libraries = objects.iter().filter(|object| own(object));
        let search = Search::new(
            self.profile.files,
            libraries.map(|object| object.path.as_path()),
            &real,
        );
        let (mut found, mut plug_ins) = (Found::new(), Found::new());
        for files in self.profile.files {
            match files {
                Files::PlugIns(..) => search.add(*files, &mut plug_ins),
                _ => search.add(*files, &mut found),
            }
        }
        let preloaded = Preloaded::of_process();
        let is_start = |object: &Object| {
            own(object)
                || plug_ins.contains_key(place(object))
                || preloaded.has(object)
                || self.layer.is_some() && object.is_layer_of_another()
        };
        let closure = loaded::closure(objects, is_start);
        if closure.is_empty() {
            return None;
        }
        found.append(&mut plug_ins);

        let mut ingredients = Vec::new();
        let mut files = Vec::new();
        for object in closure.iter().filter(|object| object.is_in_a_file()) {
            if is_neutral(&object.name) || found.contains_key(place(object)) {
                continue;
            }
            let value = match &object.build_id {
                Some(build_id) => build_id_value(build_id),
                None => sha256_value(&self.content(object, &object.path, digest)?),
            };
            let name = String::from_utf8_lossy(&object.name);
            ingredients.push(Ingredient::new(Kind::Driver, name, value));
        }
        let objects = loaded::objects();
        for (path, name) in found {
            let stamp = stamp_of(&path)?;
            let is_it = |object: &&Object| places.get(&object.path) == Some(&path);
            let object = objects.iter().find(is_it);
            let content = match object {
                Some(object) => self.content(object, &path, digest)?,
                None => read(&path, digest)?,
            };
            ingredients.push(Ingredient::new(Kind::Driver, name, sha256_value(&content)));
            files.push(Watched {
                path,
                stamp,
                digest: content,
            });
        }
        // The order of loading and of directory entries means nothing.
        ingredients.sort_by(|one, other| (&one.name, &one.value).cmp(&(&other.name, &other.value)));
        ingredients.dedup();
        Some(Identity {
            ingredients: ingredients.into(),
            files,
            loads: AtomicU64::new(loads),
            taken,
            checked: AtomicU64::new(0),
            broken: AtomicBool::new(false),
        })
    }

    /// The content of a library, if what is at its path is what is in memory.
    fn content(&self, object: &Object, path: &Path, digest: FileDigest) -> Option<[u8; 32]> {
        if object.is_what_stands_at_its_path() {
            return read(path, digest);
        }
        let library = crate::log::path(&object.path);
        tracing::warn!(%library, "this library was replaced since it was loaded: nothing is cached");
        None
    }
}

/// Whether all that a key has of a driver and its surroundings is what there is now.
fn is_same(key: &[Ingredient], identity: &[Ingredient], surroundings: &[Ingredient]) -> bool {
    let is_of_them = |one: &&Ingredient| matches!(one.kind, Kind::Driver | Kind::Environment);
    let is_there = |one: &Ingredient| identity.contains(one) || surroundings.contains(one);
    surroundings.iter().all(|one| key.contains(one)) && key.iter().filter(is_of_them).all(is_there)
}

/// None: the file is not there.
fn stamp_of(path: &Path) -> Option<Stamp> {
    Some(Stamp::of(&std::fs::metadata(path).ok()?))
}

fn read(path: &Path, digest: FileDigest) -> Option<[u8; 32]> {
    digest(path)
        .inspect_err(|error| {
            tracing::warn!(file = %crate::log::path(path), %error, "a file of the driver cannot be read: nothing is cached");
        })
        .ok()
}

/// How the build-id of a library stands in a key.
pub fn build_id_value(build_id: &[u8]) -> Vec<u8> {
    [b"build-id ", build_id].concat()
}

/// How the content of a file stands in a key.
pub fn sha256_value(digest: &[u8; 32]) -> Vec<u8> {
    [b"sha256 ", digest.as_slice()].concat()
}

/// The libraries that were loaded before all others and may stand in for functions of any (ld.so(8)).
struct Preloaded(Vec<Vec<u8>>);

impl Preloaded {
    fn of_process() -> Preloaded {
        use std::os::unix::ffi::OsStringExt;
        let mut names = std::env::var_os("LD_PRELOAD")
            .unwrap_or_default()
            .into_vec();
        names.push(b':');
        names.extend(std::fs::read("/etc/ld.so.preload").unwrap_or_default());
        let names = names.split(|byte| byte.is_ascii_whitespace() || *byte == b':');
        Preloaded(
            names
                .filter(|name| !name.is_empty())
                .map(<[u8]>::to_vec)
                .collect(),
        )
    }

    fn has(&self, object: &Object) -> bool {
        use std::os::unix::ffi::OsStrExt;
        let path = object.path.as_os_str().as_bytes();
        let named = |name: &Vec<u8>| path == name.as_slice() || object.name == *name;
        self.0.iter().any(named)
    }
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
