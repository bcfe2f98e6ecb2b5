//! Libraries that a driver may open later without any list naming them: those whose names occur in the text of its own libraries
//! and that the dynamic linker would find, and what these name and need in turn.
//!
//! Measured on Intel's CPU runtime 2026.2: libtbb opens libtbbbind, libtbbmalloc and libtcm by name, and libtbbbind needs libhwloc,
//! which reads variables. None of these is in the list of libraries that the driver needs.
//!
//! The names are made once for a list of libraries and then remembered in the cache directory, like those of variables.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use memchr::memmem;
use serde::{Deserialize, Serialize};
use xxhash_rust::xxh3::xxh3_64;

use super::elf::{Chunk, Elf};
use super::file_memory::{FileMemory, list_identity};
use super::file_recorder::FileRecorder;
use super::key_neutral::is_neutral;
use super::loaded::Object;
use super::needed::needed_by;
use super::real_paths::RealPaths;
use super::scanned_library::{ScannedLibrary, read_parts};
use super::search_path::{add_new, directory, of_file, with_subdirectories};
use crate::key::ingredients::Ingredient;
use crate::proc_file;

const MAGIC: &[u8; 16] = b"oclcache opens 2";
/// No file of facts is larger.
const MAX_BYTES: u64 = 1 << 20;
/// Most files of facts are smaller. Without room, the standard library reads in steps that begin with 32 bytes.
const READ_AT_ONCE: usize = 16 << 10;
/// Longer names are not those of libraries.
const MAX_LENGTH: usize = 96;
/// How much of a chunk of data must lie before its new bytes: a name, and what a name has before its extension once more.
pub(super) const OVERLAP: usize = 2 * MAX_LENGTH;
/// A driver whose files have more of them is not cached, nor one if the libraries that these open have more. 30 are usual.
const MAX_NAMES: usize = 4096;
const EXTENSION: &[u8] = b".so";

/// Names of files.
pub(super) type FileNames = BTreeSet<Vec<u8>>;

/// The names of libraries that occur in the data of these: remembered, or else read now and remembered. None: they are more than a driver
/// can have, which is remembered as well.
///
/// # Errors
/// One cannot be read.
pub(super) fn names(
    libraries: &[ScannedLibrary],
    recorder: &FileRecorder<'_>,
) -> io::Result<Option<FileNames>> {
    let memory: &dyn FileMemory = recorder;
    let identity = list_identity(MAGIC, identities(libraries).into_iter());
    let known = memory.facts(&identity).ok().flatten();
    let names = match known.and_then(|file| remembered(file, &identity)) {
        Some(names) => names,
        None => {
            let names = names_now(libraries, recorder)?;
            let listed: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
            memory.remember_facts(
                &identity,
                &with_checksum(MAGIC, &identity, &listed.join(&0)),
            );
            names
        }
    };
    Ok((names.len() <= MAX_NAMES).then_some(names))
}

/// The same from the files, but of too many names only one more than a driver can have.
fn names_now(libraries: &[ScannedLibrary], recorder: &FileRecorder<'_>) -> io::Result<FileNames> {
    let memory: &dyn FileMemory = recorder;
    // If not all can be read, their data may.
    let _ = recorder.texts.read(libraries, memory);
    let mut names = FileNames::new();
    let mut unread = Vec::new();
    for library in libraries {
        match recorder.texts.files_in(library) {
            Some(files) => names.extend(files),
            None => unread.push(library.clone()),
        }
    }
    let of_each = read_parts(&unread, memory, |part| {
        let mut names = FileNames::new();
        part.each_chunk_of_data(OVERLAP, |chunk| {
            add_names(&chunk, &mut names);
            Ok(())
        })?;
        Ok(names)
    })?;
    names.extend(of_each.into_iter().flat_map(|(_, names)| names));
    Ok(names.into_iter().take(MAX_NAMES + 1).collect())
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
    let mut facts = Vec::with_capacity(READ_AT_ONCE);
    file.take(MAX_BYTES).read_to_end(&mut facts).ok()?;
    let (facts, checksum) = facts.split_last_chunk::<8>()?;
    let content = facts.strip_prefix(magic)?.strip_prefix(identity)?;
    (xxh3_64(facts).to_le_bytes() == *checksum).then(|| content.to_vec())
}

const fn is_in_a_file_name(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'+' | b'.')
}

/// Adds the names that occur in a chunk of data, unless there are too many already. One that begins with `lib` may be the end of a longer
/// text, since linkers merge texts, and in Rust another text may follow it. Any other stands alone, or behind a directory.
///
/// Of the chunks of a section, each name is in just one, however the section is cut: in that which has the second byte behind it.
pub(super) fn add_names(chunk: &Chunk<'_>, names: &mut FileNames) {
    let text = chunk.bytes;
    for at in memmem::find_iter(text, EXTENSION) {
        if names.len() > MAX_NAMES {
            return;
        }
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
        let is_here = end + 1 >= chunk.new && (end + 1 < text.len() || chunk.is_last);
        if end - start > MAX_LENGTH || !is_here {
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

/// The libraries that a driver may open by name.
#[derive(Default, Serialize, Deserialize)]
pub struct OpenedByName {
    /// By real path and name. Those of one name are in the order in which the dynamic linker may look.
    pub libraries: Vec<(PathBuf, String)>,
    /// All names that were looked for, or by which libraries are needed.
    names: FileNames,
}

/// The libraries that these name, and what those name and need in turn, but for those that are known.
///
/// `loaded`: what of the driver is loaded. `directories`: the real paths of those in which the dynamic linker looks for all of these.
/// `needed`: what the driver's files are known to need.
pub fn all(
    scanned: &[ScannedLibrary],
    loaded: &[&Object],
    directories: &[PathBuf],
    needed: Vec<(PathBuf, String)>,
    is_known: impl Fn(&Path) -> bool,
    recorder: &FileRecorder<'_>,
) -> OpenedByName {
    let real = recorder.real;
    let own = scanned.iter().map(|one| directory(&one.path).to_owned());
    let mut beside = Vec::new();
    add_new(&mut beside, own.collect());
    let mut places = with_subdirectories(&beside, real);
    add_new(&mut places, directories.to_vec());
    let mut found = OpenedByName::default();
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
        let names = real.found(names(&fresh, recorder));
        let Some(mut names) = names.unwrap_or_else(|| Some(FileNames::new())) else {
            tracing::warn!(
                "the driver's files name more than {MAX_NAMES} libraries: nothing is cached"
            );
            real.note_incomplete_for_good();
            break;
        };
        names.retain(|name| !loaded.iter().any(|object| object.name == *name));
        found.names.extend(names.iter().cloned());
        let is_known = |path: &Path| is_known(path) || paths.contains(path);
        later.extend(find(&names, &places, directories, real, is_known));
        fresh.clear();
        later.retain(|(path, _)| paths.insert(path.clone()));
        let places: Vec<&Path> = later.iter().map(|(path, _)| path.as_path()).collect();
        recorder.read_ahead(&places);
        for (path, name) in std::mem::take(&mut later) {
            if let Some(identity) = real.found(recorder.identity(&path)) {
                fresh.push(ScannedLibrary {
                    identity,
                    path: path.clone(),
                });
            }
            found.names.insert(name.clone().into_bytes());
            found.libraries.push((path, name));
        }
        fresh.retain(names_matter);
    }
    found
}

impl OpenedByName {
    /// The libraries that the program has loaded under names that were looked for, but from other places: the dynamic linker opens
    /// no second library of a name.
    ///
    /// `others`: what is loaded and not the driver's.
    pub fn of_program<'o>(
        &self,
        others: impl Iterator<Item = &'o Object>,
        is_known: impl Fn(&Path) -> bool,
    ) -> Vec<(PathBuf, String)> {
        let real = RealPaths::default();
        let is_new = |path: &PathBuf| !is_known(path) && !self.has(path);
        let others = others.filter(|object| {
            object.is_in_a_file() && self.is_looked_for(object) && is_new(&object.path)
        });
        let others = others.filter_map(|object| {
            let path = real.of(&object.path).filter(is_new)?;
            let name = String::from_utf8_lossy(&object.name).into_owned() + Ingredient::OF_PROGRAM;
            Some((path, name))
        });
        others.collect()
    }

    /// Whether the library at this real path is one of them.
    pub fn has(&self, path: &Path) -> bool {
        self.libraries.iter().any(|(found, _)| found == path)
    }

    /// Whether the driver looks for a library of this name.
    pub fn is_looked_for(&self, object: &Object) -> bool {
        let file = object.path.file_name().unwrap_or_default().as_bytes();
        self.names.contains(&object.name) || self.names.contains(file)
    }
}

/// The directories that a library or the program says. They only count if it says them by DT_RPATH, but DT_RUNPATH is not told from
/// that here.
pub fn said_by(object: &Object) -> Vec<PathBuf> {
    match object.run_paths.is_empty() {
        true => Vec::new(),
        false => of_file(&object.run_paths, directory(&path_of(object))),
    }
}

/// The program itself has no path here.
fn path_of(object: &Object) -> PathBuf {
    match object.path.as_os_str().is_empty() {
        true => proc_file::running_program().unwrap_or_default(),
        false => object.path.clone(),
    }
}

/// The libraries of these names in these places, and what they need in the directories of the dynamic linker, by name and real path,
/// but for those that are known.
fn find(
    names: &FileNames,
    places: &[PathBuf],
    directories: &[PathBuf],
    real: &RealPaths,
    is_known: impl Fn(&Path) -> bool + Copy,
) -> Vec<(PathBuf, String)> {
    let mut found: Vec<(PathBuf, String)> = Vec::new();
    for name in names {
        let name = OsStr::from_bytes(name);
        for place in places.iter().map(|place| place.join(name)) {
            // Most names are nowhere.
            let is_there = real.watch_place(&place);
            let Some(library) = is_there.then(|| real.of(&place)).flatten() else {
                continue;
            };
            if !is_known(&library) && real.found(Elf::open(&library)).flatten().is_some() {
                let name = name.to_string_lossy().into_owned();
                match found.iter_mut().find(|one| one.0 == library) {
                    Some(known) => known.1 = name,
                    None => found.push((library, name)),
                }
            }
        }
    }
    let paths: Vec<PathBuf> = found.iter().map(|one| one.0.clone()).collect();
    let needed = needed_by(&paths, directories, real, is_known);
    found.extend(needed.libraries);
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names_in(text: &[u8]) -> Vec<String> {
        let mut names = FileNames::new();
        let chunk = Chunk {
            bytes: text,
            new: 0,
            place: 0,
            is_last: true,
        };
        add_names(&chunk, &mut names);
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

    #[test]
    fn a_name_is_found_whole_in_whatever_chunks_the_data_come() {
        let long = "a".repeat(MAX_LENGTH);
        let text = format!(
            "\0/opt/plug_in.so\0libx.so.12.3\0mylibx.solibz.so.2.and\0{long}.so\0lib{long}.so\0libend.so.4"
        );
        let text = text.as_bytes();
        let whole = names_in(text);
        assert!(whole.contains(&"libend.so.4".to_owned()));
        for size in 1..text.len() {
            let mut names = FileNames::new();
            for new in (0..text.len()).step_by(size) {
                let first = new.saturating_sub(OVERLAP);
                let chunk = Chunk {
                    bytes: &text[first..text.len().min(new + size)],
                    new: new - first,
                    place: first as u64,
                    is_last: new + size >= text.len(),
                };
                add_names(&chunk, &mut names);
            }
            let names: Vec<_> = names
                .iter()
                .map(|name| String::from_utf8_lossy(name))
                .collect();
            assert_eq!(names, whole, "{size}");
        }
    }
}
