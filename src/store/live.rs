//! The live directory: on a file system in memory, for what a hit writes.
//!
//! A hit waits for no disk. To make a file waits for the journal of a busy disk, and for the server of a network file system
//! (measured on NEO 22.43 with a counter file in the cache directory: a first hit took 11 to 31 ms while the disk was busy, and 2.5
//! to 3 ms otherwise).
//!
//! ```text
//! <cache directory>/v1/live           a magic number and a random number
//! <place>/oclcache-<user>-<name>/     the live directory, for its owner only
//!     cache                           the path of <cache directory>/v1
//!     uses                            when entries were used, see `uses`
//!     <process>, sum-<...>, run-<...> counters, see `stats`
//!     locks                           excludes processes that merge counters or load an entry of a system directory
//!     <key>-<inode>                   loads of an entry of a system directory, see `load_guard`
//! ```
//!
//! The place is /dev/shm, or the user's directory for runtime files where that is in memory. The name is made of the random number,
//! so nobody can take it first, and of the identity of `v1`, so a copy of a cache has another one. What is in the live directory moves
//! to the cache directory with a miss now and then, and when the command reads or collects. The rest is lost when the system restarts, or
//! when a container ends that has a /dev/shm of its own.
//!
//! Where nothing is in memory, hits write nothing: counters and uses stay in the process, and are written when it misses and when
//! it exits.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::rand::{GetRandomFlags, getrandom};

use super::directory::Directory;
use super::leftovers::is_past;
use super::lock::Locks;
use super::stats::Statistics;
use super::{LOCKS, Store, TEMPORARY, VERSION_DIRECTORY, load_guard, uses};
use crate::key::ingredients::{hex, sha256};
use crate::one_call;

/// The file that has the random number.
pub(super) const NAME: &str = "live";
const MAGIC: &[u8] = b"oclclive";
const RANDOM_BYTES: usize = 32;
/// The bytes of a name, before they are written as hexadecimal digits.
const NAME_BYTES: usize = 16;
/// The file that has the path of the cache's directory.
const OF_CACHE: &str = "cache";
/// A live directory whose cache is gone is removed after this time.
const ABANDONED: Duration = Duration::from_secs(86400);
/// How many live directories are looked at for that when one is made.
const LOOKED_AT: usize = 16;

/// The directories that may be on a file system in memory, the preferred one first.
pub fn places() -> Vec<PathBuf> {
    let user = one_call::effective_user();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let runtime = runtime.unwrap_or_else(|| format!("/run/user/{user}").into());
    vec!["/dev/shm".into(), runtime]
}

fn prefix() -> String {
    format!("oclcache-{}-", one_call::effective_user())
}

/// An open live directory.
#[derive(Clone, Debug)]
pub struct Live {
    /// The directory.
    pub directory: Arc<Directory>,
    /// Its locks. A process has them once for each store.
    pub locks: Locks,
}

impl Store {
    /// The live directory; None if nothing is in memory here. It is made if it is missing, unless the store is only read.
    pub fn live(&self) -> Option<&Live> {
        let opened = self.live.get_or_init(|| {
            let opened = self.open_live();
            if opened.is_none() {
                tracing::debug!(
                    "no file system in memory can be used: counters are written at misses and at the end of the process"
                );
            }
            Box::new(opened.map(|directory| {
                let directory = Arc::new(directory);
                let locks = Locks::new(directory.clone());
                Live { directory, locks }
            }))
        });
        opened.as_ref()
    }

    fn open_live(&self) -> Option<Directory> {
        let places = self.root.places_in_memory();
        if places.is_empty() {
            return None;
        }
        let name = self.live_name()?;
        let open = |place: &PathBuf| self.root.open_in_memory(&place.join(&name));
        let make = |place: &PathBuf| self.make_live(place, &name);
        let found = places.iter().find_map(open);
        found.or_else(|| {
            self.limits?;
            places.iter().find_map(make)
        })
    }

    fn make_live(&self, place: &Path, name: &str) -> Option<Directory> {
        let made = self.root.make_in_memory(&place.join(name))?;
        let path = self.root.path().as_os_str().as_encoded_bytes();
        if let Err(error) = made.write_by_rename(&made, OF_CACHE, &[MAGIC, path].concat()) {
            tracing::debug!(%error, "a live directory cannot be used");
            made.remove_itself();
            return None;
        }
        // The name is as good as random.
        let number = name.bytes().fold(0, |number: usize, byte| {
            number.wrapping_mul(31).wrapping_add(byte.into())
        });
        remove_abandoned(&made, place, number);
        Some(made)
    }

    /// The name of the live directory. The first process of a cache chooses the number.
    fn live_name(&self) -> Option<String> {
        let choose = || {
            self.limits?;
            let mut content = [MAGIC, &[0; RANDOM_BYTES]].concat();
            let random = &mut content[MAGIC.len()..];
            if getrandom(random, GetRandomFlags::empty()) != Ok(RANDOM_BYTES) {
                return None;
            }
            let temporary = self.root.create(TEMPORARY).ok()?;
            // Of several processes and threads that choose at once, the first one is right: it may have counted already.
            let first = self.root.write_first(&temporary, NAME, &content);
            let name = first.ok().and_then(|()| name_of(&self.root));
            // What is there is damaged, or the file system knows no second names.
            name.or_else(|| {
                let written = self.root.write_by_rename(&temporary, NAME, &content);
                written.ok().and_then(|()| name_of(&self.root))
            })
        };
        let name = name_of(&self.root).or_else(choose)?;
        Some(format!("{}{name}", prefix()))
    }
}

/// The name that follows from a cache's directory, without the prefix; None if no number was chosen yet.
fn name_of(root: &Directory) -> Option<String> {
    let content = root.read_start(NAME, MAGIC.len() + RANDOM_BYTES)?;
    let random = content.strip_prefix(MAGIC)?;
    let (device, inode) = root.identity()?;
    let known = [random, &device.to_le_bytes(), &inode.to_le_bytes()].concat();
    (random.len() == RANDOM_BYTES).then(|| hex(&sha256(&known)[..NAME_BYTES]))
}

/// Removes some of this user's live directories of caches that are gone. `number`: of this directory, any number.
///
/// Where each job has a cache of its own there are hundreds, and each of them was looked at in a program's first build (measured: 20 ms
/// for 900).
fn remove_abandoned(own: &Directory, place: &Path, number: usize) {
    let prefix = prefix();
    let Ok(listed) = std::fs::read_dir(place) else {
        return;
    };
    let names = listed.flatten().map(|entry| entry.file_name());
    let names = names.filter_map(|name| name.into_string().ok());
    let names: Vec<String> = names.filter(|name| name.starts_with(&prefix)).collect();
    for name in some_of(&names, number) {
        if let Some(directory) = own.open_in_memory(&place.join(name))
            && is_abandoned(&directory, &name[prefix.len()..])
        {
            remove_files(&directory);
            directory.remove_itself();
        }
    }
}

/// The names that this number chooses. Each is chosen by some numbers.
fn some_of(names: &[String], number: usize) -> impl Iterator<Item = &String> {
    let (before, from_first) = names.split_at(number % names.len().max(1));
    from_first.iter().chain(before).take(LOOKED_AT)
}

/// Whether no cache has this name for its live directory any more, as far as this process sees. The cache may be in another
/// container, so it is not abandoned while somebody writes there.
fn is_abandoned(directory: &Directory, name: &str) -> bool {
    let Ok(Some(path)) = directory.read(OF_CACHE, 1 << 16) else {
        return false;
    };
    let Some(path) = path.strip_prefix(MAGIC) else {
        return false;
    };
    let path = Path::new(OsStr::from_bytes(path));
    let cache = Directory::open(path).ok().flatten();
    if cache.is_some_and(|cache| name_of(&cache).is_some_and(|own| own == name)) {
        return false;
    }
    let now = directory.now_ms();
    let names = directory.names().unwrap_or_default();
    let is_old = |name: &String| {
        let changed = directory.changed_ms(name);
        changed.is_none_or(|changed| is_past(changed, ABANDONED, now))
    };
    names.iter().all(is_old)
}

/// Moves what the live directory of a cache has to its disk, of more uses than [`uses::MAX_DATED`] only the times of some, and removes
/// the directory, unless programs still count there. Returns whether programs do.
pub fn leave(store: &Store) -> bool {
    let Ok(Some(statistics)) = store.statistics() else {
        return false;
    };
    let Some(live) = store.live().filter(|_| statistics.counted().is_ok()) else {
        return false;
    };
    store.date_uses(uses::MAX_DATED);
    let names = live.directory.names().unwrap_or_default();
    let counts = |name: &String| Statistics::names(name) || Statistics::names_run(name);
    let is_counted = names.iter().any(counts);
    if !is_counted {
        remove_files(&live.directory);
        live.directory.remove_itself();
    }
    is_counted
}

/// Removes the live directory of a cache that is going to be removed.
pub fn forget(cache: &Path) {
    let Ok(Some(root)) = Directory::open(&cache.join(VERSION_DIRECTORY)) else {
        return;
    };
    let Some(name) = name_of(&root) else {
        return;
    };
    for place in root.places_in_memory() {
        if let Some(live) = root.open_in_memory(&place.join(format!("{}{name}", prefix()))) {
            remove_files(&live);
            live.remove_itself();
        }
    }
}

/// Removes the files that the cache makes in a live directory.
fn remove_files(directory: &Directory) {
    for name in directory.names().unwrap_or_default() {
        let is_ours = Statistics::names(&name)
            || load_guard::is_ours(&name)
            || [OF_CACHE, uses::NAME, LOCKS].contains(&&*name);
        if is_ours {
            let _ = directory.remove(&name);
        } else if Statistics::names_run(&name)
            && let Ok(Some(run)) = directory.open_below(&name)
        {
            for name in run.names().unwrap_or_default() {
                if Statistics::names(&name) {
                    let _ = run.remove(&name);
                }
            }
            directory.remove_directory(&name);
        }
    }
}

#[cfg(test)]
mod tests;
