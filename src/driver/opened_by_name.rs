//! Libraries that a driver may open later without any list naming them: those whose names occur in the text of its own libraries
//! and that the dynamic linker would find, and what these name and need in turn.
//!
//! Measured on Intel's CPU runtime 2026.2: libtbb opens libtbbbind, libtbbmalloc and libtcm by name, and libtbbbind needs libhwloc,
//! which reads variables. None of these is in the list of libraries that the driver needs.
//!
//! The names are made once for a list of libraries and then remembered in the cache directory, like those of variables.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use memchr::memmem;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::elf::{Elf, replace_origin};
use super::files::{LINKER_CACHE, RealPaths, linker_directories, needed_by};
use super::identity::{FileMemory, list_identity, sha256_value};
use super::key_neutral::is_neutral;
use super::loaded::Object;
use super::names::ScannedLibrary;
use crate::file_fingerprint::FileFingerprint;

const MAGIC: &[u8; 16] = b"oclcache opens 1";
const FOUND: &[u8; 16] = b"oclcache found 1";
/// No file of facts is larger.
const MAX_BYTES: u64 = 1 << 20;
/// Longer names are not those of libraries.
const MAX_LENGTH: usize = 96;
/// 30 are usual.
const MAX_NAMES: usize = 4096;
const EXTENSION: &[u8] = b".so";

type FileNames = BTreeSet<Vec<u8>>;

/// The names of libraries that occur in the data of these: remembered, or else read now and remembered.
///
/// # Errors
/// One cannot be read, or has more names than a library can have.
fn names(libraries: &[ScannedLibrary], memory: &dyn FileMemory) -> io::Result<FileNames> {
    let identity = list_identity(MAGIC, identities(libraries).into_iter());
    if let Some(names) = memory
        .facts(&identity)
        .and_then(|file| remembered(file, &identity))
    {
        return Ok(names);
    }
    let mut names = FileNames::new();
    for library in libraries {
        let elf = Elf::open(&library.path)?.ok_or(io::ErrorKind::InvalidData)?;
        let data = elf.data(&elf.sections()?);
        elf.each_chunk(&data, 2 * MAX_LENGTH, |chunk, _| {
            add_names(chunk, &mut names);
            match names.len() > MAX_NAMES {
                true => Err(io::ErrorKind::OutOfMemory.into()),
                false => Ok(()),
            }
        })?;
        library.is_in(&elf, memory)?;
    }
    let listed: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    memory.remember_facts(
        &identity,
        &with_checksum(MAGIC, &identity, &listed.join(&0)),
    );
    Ok(names)
}

/// None: the file is damaged, or not of these libraries.
fn remembered(file: File, identity: &[u8; 32]) -> Option<FileNames> {
    let names = checked(file, MAGIC, identity)?;
    let names = names
        .split(|byte| *byte == 0)
        .filter(|name| !name.is_empty());
    Some(names.map(<[u8]>::to_vec).collect())
}

/// A file of facts.
pub(super) fn with_checksum(magic: &[u8; 16], identity: &[u8; 32], content: &[u8]) -> Vec<u8> {
    let mut facts = [&magic[..], identity, content].concat();
    facts.extend(xxh3_64(&facts).to_le_bytes());
    facts
}

/// The content of such a file; None: it is damaged, or another one.
pub(super) fn checked(file: File, magic: &[u8; 16], identity: &[u8; 32]) -> Option<Vec<u8>> {
    let mut facts = Vec::new();
    file.take(MAX_BYTES).read_to_end(&mut facts).ok()?;
    let (facts, checksum) = facts.split_last_chunk::<8>()?;
    let content = facts.strip_prefix(magic)?.strip_prefix(identity)?;
    (xxh3_64(facts).to_le_bytes() == *checksum).then(|| content.to_vec())
}

const fn is_in_a_file_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'+' | b'.')
}

/// Adds the names that occur in a text. One that begins with `lib` may be the end of a longer text, because linkers merge texts, and
/// in Rust another text may follow it. Any other stands alone, or behind a directory.
fn add_names(text: &[u8], names: &mut FileNames) {
    for at in memmem::find_iter(text, EXTENSION) {
        let before = text[..at].iter().rev();
        let length = before
            .take(MAX_LENGTH)
            .take_while(|byte| is_in_a_file_name(**byte))
            .count();
        let start = at - length;
        let mut end = at + EXTENSION.len();
        while let [b'.', digit, ..] = &text[end..]
            && digit.is_ascii_digit()
        {
            let rest = &text[end + 1..];
            end += 1 + rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
        }
        if end - start > MAX_LENGTH {
            continue;
        }
        let name = &text[start..end];
        let is_whole = matches!(text.get(end), Some(0))
            && matches!(
                start.checked_sub(1).map(|before| text[before]),
                Some(0 | b'/')
            );
        // Dynamic linkers of other systems are named by clang, and opened by nobody.
        if is_whole && length > 0 && !name.starts_with(b"ld") {
            names.insert(name.to_vec());
        }
        for begin in memmem::find_iter(&name[..length], b"lib") {
            names.insert(name[begin..].to_vec());
        }
    }
}

fn identities(libraries: &[ScannedLibrary]) -> Vec<&[u8]> {
    let mut identities: Vec<&[u8]> = libraries.iter().map(|one| &*one.identity).collect();
    identities.sort_unstable();
    identities.dedup();
    identities
}

/// What was found in a list of directories, and what must stay for that to hold.
#[derive(Serialize, Deserialize)]
struct Found {
    libraries: Vec<(PathBuf, String)>,
    /// None: there was no file.
    watched: Vec<(PathBuf, Option<FileFingerprint>)>,
}

impl Found {
    fn still_holds(&self) -> bool {
        let mut watched = self.watched.iter();
        watched.all(|(path, stamp)| FileFingerprint::at(path) == *stamp)
    }

    fn is_settled(&self) -> bool {
        let stamps = self.watched.iter().filter_map(|(_, stamp)| stamp.as_ref());
        stamps.clone().count() > 0 && { stamps }.all(FileFingerprint::is_settled)
    }
}

/// The libraries that these name, and what those name and need in turn, by real path and name, but for those that are known.
///
/// They are remembered while nothing changes in the directories where they are looked for, since most names are in none of them: a
/// hit would pay some 300 system calls each time (measured with strace on Intel's CPU runtime).
///
/// `loaded`: what is loaded of them. `needed`: what they are known to need.
pub fn all(
    scanned: &[ScannedLibrary],
    loaded: &[&Object],
    needed: BTreeMap<PathBuf, String>,
    real: &RealPaths,
    is_known: impl Fn(&Path) -> bool,
    memory: &dyn FileMemory,
) -> Vec<(PathBuf, String)> {
    let beside = beside(scanned, loaded);
    let variable = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let given = beside.iter().map(|path| path.as_os_str().as_bytes());
    let needed_paths = needed.keys().map(|path| path.as_os_str().as_bytes());
    let all = identities(scanned).into_iter();
    let all = all
        .chain(given)
        .chain(needed_paths)
        .chain([variable.as_bytes()]);
    let identity = list_identity(FOUND, all);
    let remembered = || {
        let facts = checked(memory.facts(&identity)?, FOUND, &identity)?;
        postcard::from_bytes::<Found>(&facts)
            .ok()
            .filter(Found::still_holds)
    };
    if let Some(found) = remembered() {
        return found.libraries;
    }
    let mut directories = vec![PathBuf::from(LINKER_CACHE)];
    directories.extend(beside);
    // The cache of the linker names directories, so it is looked at before they are.
    let first = FileFingerprint::at(&directories[0]);
    directories.extend(linker_directories());
    let stamps = directories[1..]
        .iter()
        .map(|path| FileFingerprint::at(path));
    let stamps: Vec<_> = [first].into_iter().chain(stamps).collect();
    let watched = directories.iter().cloned().zip(stamps).collect();
    let mut places: Vec<PathBuf> = directories[1..]
        .iter()
        .filter_map(|path| real.of(path))
        .collect();
    let mut seen = HashSet::new();
    places.retain(|place| seen.insert(place.clone()));
    let mut found = Found {
        libraries: Vec::new(),
        watched,
    };
    // What the C library and its like open changes code as little as they do (measured: it names libidn2 and libnss_files).
    let names_matter = |library: &ScannedLibrary| {
        let name = library.path.file_name().unwrap_or_default();
        !is_neutral(name.as_bytes())
    };
    let mut fresh: Vec<ScannedLibrary> = scanned
        .iter()
        .filter(|one| names_matter(one))
        .cloned()
        .collect();
    let mut later = needed;
    let mut paths: HashSet<PathBuf> = HashSet::new();
    while !fresh.is_empty() || !later.is_empty() {
        // Every variable is in the key of a driver that cannot be read, and what it opens is seen when it comes: see `late`.
        let mut names = names(&fresh, memory).unwrap_or_default();
        names.retain(|name| !loaded.iter().any(|object| object.name == *name));
        let is_known = |path: &Path| is_known(path) || paths.contains(path);
        later.extend(find(&names, &places, real, is_known));
        fresh.clear();
        for (path, name) in std::mem::take(&mut later) {
            if !paths.insert(path.clone()) {
                continue;
            }
            if let Ok(digest) = memory.digest(&path) {
                let identity = sha256_value(&digest);
                fresh.push(ScannedLibrary {
                    identity,
                    path: path.clone(),
                });
            }
            found
                .watched
                .push((path.clone(), FileFingerprint::at(&path)));
            found.libraries.push((path, name));
        }
        fresh.retain(names_matter);
    }
    if found.is_settled()
        && let Ok(content) = postcard::to_stdvec(&found)
    {
        memory.remember_facts(&identity, &with_checksum(FOUND, &identity, &content));
    }
    found.libraries
}

/// The directories of these libraries, and those that they say.
fn beside(libraries: &[ScannedLibrary], loaded: &[&Object]) -> BTreeSet<PathBuf> {
    let directory = |path: &Path| path.parent().unwrap_or(Path::new("/")).to_owned();
    let own = libraries.iter().map(|one| directory(&one.path));
    let said = loaded.iter().flat_map(|object| {
        let texts = object.run_paths.split(|byte| *byte == b':');
        let texts = texts.filter(|text| !text.is_empty());
        texts.map(|text| replace_origin(text, &directory(&object.path)))
    });
    own.chain(said).collect()
}

/// The libraries of these names in these directories and what they need, by name and real path, but for those that are known.
fn find(
    names: &FileNames,
    directories: &[PathBuf],
    real: &RealPaths,
    is_known: impl Fn(&Path) -> bool + Copy,
) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for name in names {
        let name = OsStr::from_bytes(name);
        for place in directories.iter().map(|directory| directory.join(name)) {
            // Most names are nowhere.
            let is_there = rustix::fs::access(&place, rustix::fs::Access::EXISTS).is_ok();
            let Some(library) = is_there.then(|| real.of(&place)).flatten() else {
                continue;
            };
            if !is_known(&library) && matches!(Elf::open(&library), Ok(Some(_))) {
                found.insert(library, name.to_string_lossy().into_owned());
            }
        }
    }
    let paths: Vec<PathBuf> = found.keys().cloned().collect();
    let needed = needed_by(&paths, real, is_known);
    for (path, name) in needed.libraries {
        found.entry(path).or_insert(name);
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_in(text: &[u8]) -> Vec<String> {
        let mut names = FileNames::new();
        add_names(text, &mut names);
        let texts = names.iter().map(|name| String::from_utf8_lossy(name));
        texts.map(|name| name.into_owned()).collect()
    }

    #[test]
    fn names_of_libraries_are_told_from_other_text() {
        for (text, expected) in [
            (&b"\0libx.so\0"[..], &["libx.so"][..]),
            (b"\0libx-1+y.so.12.3\0", &["libx-1+y.so.12.3"]),
            (b"a text with /usr/lib/libx.so.1 in it", &["libx.so.1"]),
            // Merged with the end of another text, and followed by one of Rust.
            (b"\0mylibx.so\0", &["libx.so", "mylibx.so"]),
            (
                b"libx.solibz.so.2and",
                &["libx.so", "libx.solibz.so.2", "libz.so.2"],
            ),
            (b"\0plug_in.so\0", &["plug_in.so"]),
            (b"\0/opt/plug_in.so\0", &["plug_in.so"]),
            (
                b"\0llvm.amdgcn.sopp\0 %s.so\0 \0/lib/ld-musl-arm.so.1\0 \0.so\0",
                &[],
            ),
        ] {
            let found = names_in(text);
            assert_eq!(found, expected, "{}", String::from_utf8_lossy(text));
        }
        let long = [&[0][..], &[b'a'; MAX_LENGTH], b".so\0"].concat();
        assert_eq!(names_in(&long), [] as [&str; 0]);
    }
}
