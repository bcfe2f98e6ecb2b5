//! The directories in which the dynamic linker looks for libraries (ld.so(8); elf/dl-load.c of glibc 2.36).
//!
//! What cannot be told here is not decided: a token that has another value on each system stands for all of its values, and
//! subdirectories for other processors are searched as well. So a search finds at least what the dynamic linker would find.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use memchr::memmem;

use super::files::children;
use super::linker_state;
use super::process_variables;
use super::real_paths::RealPaths;
use crate::cl::info::Number;
use crate::proc_file;
use crate::regular_file;

/// What the dynamic linker knows of where libraries are.
const LINKER_CACHE: &str = "/etc/ld.so.cache";

/// The processor as the dynamic linker names it.
const ARCH: &str = std::env::consts::ARCH;

/// What `$LIB` is. Each build of glibc has one: `lib` without a distribution's settings, `lib64` in Fedora, Debian's last one.
const LIBRARY_DIRECTORIES: [&str; 5] = ["lib", "lib64", "lib32", "libx32", "lib/ARCH-linux-gnu"];

/// What `$PLATFORM` is: AT_PLATFORM, or what glibc 2.26 to 2.36 takes from the features of the processor.
const PLATFORMS: [&str; 3] = [ARCH, "haswell", "xeon_phi"];

/// Subdirectories that glibc up to 2.36 searches first, also within each other (sysdeps/*/dl-procinfo.c).
const OLD_SUBDIRECTORIES: [&str; 6] = ["tls", ARCH, "haswell", "xeon_phi", "avx512_1", "atomics"];

/// Where glibc since 2.33 has a subdirectory for each level of a processor.
const NEW_SUBDIRECTORIES: &str = "glibc-hwcaps";

/// The directories of a value of LD_LIBRARY_PATH for programs in this directory.
pub fn of_variable(value: &OsStr, origin: &Path) -> Vec<PathBuf> {
    directories(value.as_bytes(), b":;", origin)
}

/// The directories of DT_RPATH or DT_RUNPATH of a file in this directory.
pub fn of_file(text: &[u8], origin: &Path) -> Vec<PathBuf> {
    directories(text, b":", origin)
}

fn directories(text: &[u8], separators: &[u8], origin: &Path) -> Vec<PathBuf> {
    if text.is_empty() {
        return Vec::new();
    }
    let parts = text.split(|byte| separators.contains(byte));
    parts.flat_map(|part| paths(part, origin)).collect()
}

/// The paths that a text may mean, as DT_NEEDED and LD_PRELOAD have them too. An empty one is the working directory.
pub fn paths(text: &[u8], origin: &Path) -> Vec<PathBuf> {
    let path = |text: Vec<u8>| PathBuf::from(OsString::from_vec(text));
    if text.is_empty() {
        return vec![PathBuf::from(".")];
    }
    if !text.contains(&b'$') {
        return vec![path(text.to_vec())];
    }
    let mut found = Vec::new();
    for library in LIBRARY_DIRECTORIES {
        let library = library.replace("ARCH", ARCH);
        for platform in PLATFORMS {
            let tokens: [(&[u8], &[u8]); 3] = [
                (b"ORIGIN", origin.as_os_str().as_bytes()),
                (b"LIB", library.as_bytes()),
                (b"PLATFORM", platform.as_bytes()),
            ];
            found.push(path(expanded(text, &tokens)));
        }
    }
    // Which names are tokens differs: `$LIBRARY` was one in glibc 2.26, and musl has only `$ORIGIN`, like every other.
    found.push(path(expanded(
        text,
        &[(b"ORIGIN", origin.as_os_str().as_bytes())],
    )));
    let mut seen = std::collections::HashSet::new();
    found.retain(|path| seen.insert(path.clone()));
    found
}

/// The text with these tokens replaced by their values, `$NAME` and `${NAME}`.
fn expanded(text: &[u8], tokens: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut found = Vec::new();
    let mut rest = text;
    while let [first, behind @ ..] = rest {
        let token = tokens.iter().find_map(|(name, value)| {
            let bare = behind.strip_prefix(*name);
            let bare = bare.filter(|behind| !behind.first().is_some_and(is_of_a_name));
            let in_braces = || {
                let behind = behind.strip_prefix(b"{")?.strip_prefix(*name)?;
                behind.strip_prefix(b"}")
            };
            Some((bare.or_else(in_braces)?, value))
        });
        match token {
            Some((behind, value)) if *first == b'$' => {
                found.extend_from_slice(value);
                rest = behind;
            }
            _ => {
                found.push(*first);
                rest = behind;
            }
        }
    }
    found
}

fn is_of_a_name(byte: &u8) -> bool {
    byte.is_ascii_alphanumeric() || *byte == b'_'
}

/// The directories of LD_LIBRARY_PATH as it is now, for a program in this directory: programs that are started have this value. The
/// dynamic linker of this process has those of [`library_path_at_start`].
pub fn library_path(origin: &Path) -> Vec<PathBuf> {
    let value = process_variables::value("LD_LIBRARY_PATH");
    value.map_or_else(Vec::new, |value| of_variable(&value, origin))
}

/// The directories of LD_LIBRARY_PATH as the dynamic linker of this process has them, and as the variable is now.
pub fn library_path_at_start() -> Vec<PathBuf> {
    let mut found = linker_state::search_path().unwrap_or_default();
    if process_variables::value("LD_LIBRARY_PATH").is_some() {
        let program = proc_file::running_program().unwrap_or_default();
        found.extend(library_path(directory(&program)));
    }
    found
}

/// The directory of a file.
pub fn directory(path: &Path) -> &Path {
    path.parent().unwrap_or(Path::new("/"))
}

/// The real paths of the directories in which the dynamic linker looks for a library that is opened by name, each once, in their
/// order: these first (of LD_LIBRARY_PATH), those in its cache, which is watched, and the usual ones.
pub fn linker_directories(first: &[PathBuf], real: &RealPaths) -> Vec<PathBuf> {
    let mut found = with_subdirectories(first, real);
    real.watch(Path::new(LINKER_CACHE));
    let cache = regular_file::read(Path::new(LINKER_CACHE));
    let cache = real.found(cache).flatten().unwrap_or_default();
    let usual = ["/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib"];
    let cached = cached_directories(&cache).into_iter().map(PathBuf::from);
    let others: Vec<PathBuf> = cached.chain(usual.map(PathBuf::from)).collect();
    add_new(&mut found, with_subdirectories(&others, real));
    found
}

/// The directories of the libraries in the linker's cache.
fn cached_directories(cache: &[u8]) -> Vec<&OsStr> {
    let (mut paths, is_complete) = cached_paths(cache).unwrap_or_default();
    if !is_complete {
        // An older form of the cache has the paths at its end, each behind a NUL. Numbers before them may look like paths.
        let strings = cache.split(|byte| *byte == 0);
        paths.extend(strings.filter(|string| string.starts_with(b"/")));
    }
    let directory = |path| Path::new(OsStr::from_bytes(path)).parent();
    let directories = paths.into_iter().filter_map(directory);
    let found: BTreeSet<&OsStr> = directories.map(Path::as_os_str).collect();
    found.into_iter().collect()
}

/// The paths in the linker's cache, in the form that it has since glibc 2.2 (`struct cache_file_new` in sysdeps/generic/dl-cache.h), which
/// may stand behind the older one, and whether each row has one. Since 2.33 a path may be the end of another. None: it has not this form.
fn cached_paths(cache: &[u8]) -> Option<(Vec<&[u8]>, bool)> {
    const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
    const HEADER: usize = 48;
    const ROW: usize = 24;
    /// Where in a row the place of the path is, which is counted from the magic number on.
    const PLACE: usize = 8;
    const MAX_LENGTH: usize = libc::PATH_MAX as usize;
    let number = |bytes: &[u8], at: usize| Some(u32::from_value(bytes.get(at..at + 4)?)? as usize);
    let cache = cache.get(memmem::find(cache, MAGIC)?..)?;
    let length = number(cache, MAGIC.len())?.checked_mul(ROW)?;
    let rows = cache.get(HEADER..)?.get(..length)?.chunks_exact(ROW);
    let path = |row| {
        let path = cache.get(number(row, PLACE)?..)?;
        let path = path.get(..MAX_LENGTH).unwrap_or(path);
        let path = &path[..memchr::memchr(0, path)?];
        path.starts_with(b"/").then_some(path)
    };
    let count = rows.len();
    let paths: Vec<&[u8]> = rows.filter_map(path).collect();
    let is_complete = paths.len() == count;
    Some((paths, is_complete))
}

/// The real paths of these directories, each once, in order, behind those of their subdirectories for some processors.
pub fn with_subdirectories(paths: &[PathBuf], real: &RealPaths) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for path in paths {
        // The working directory, where RUNPATH of Intel's CPU runtime has empty parts, and often LD_LIBRARY_PATH.
        if !path.is_absolute() && real.holds_no_library(path) {
            continue;
        }
        let Some(directory) = real.of(path).filter(|one| !found.contains(one)) else {
            continue;
        };
        let mut below = Vec::new();
        let levels = directory.join(NEW_SUBDIRECTORIES);
        if real.watch_place(&levels) {
            let mut levels: Vec<_> = children(&levels, real).collect();
            levels.sort();
            below.extend(levels.iter().filter_map(|level| real.of(level)));
        }
        add_old_subdirectories(&directory, real, &mut below);
        below.retain(|one| *one != directory);
        add_new(&mut found, below);
        add_new(&mut found, vec![directory]);
    }
    found
}

/// Whether the dynamic linker may look for libraries in a subdirectory of this name.
pub fn is_subdirectory(name: &[u8]) -> bool {
    let mut all = OLD_SUBDIRECTORIES
        .iter()
        .copied()
        .chain([NEW_SUBDIRECTORIES]);
    all.any(|one| name.eq_ignore_ascii_case(one.as_bytes()))
}

fn add_old_subdirectories(directory: &Path, real: &RealPaths, found: &mut Vec<PathBuf>) {
    for name in OLD_SUBDIRECTORIES {
        let place = directory.join(name);
        let below = real.watch_place(&place).then(|| real.of(&place)).flatten();
        if let Some(below) = below
            && !found.contains(&below)
        {
            found.push(below.clone());
            add_old_subdirectories(&below, real, found);
        }
    }
}

/// Adds those that are not there yet.
pub fn add_new(found: &mut Vec<PathBuf>, others: Vec<PathBuf>) {
    for one in others {
        if !found.contains(&one) {
            found.push(one);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_value(value: &str) -> Vec<String> {
        let found = of_variable(OsStr::new(value), Path::new("/o"));
        let found = found.iter().map(|path| path.display().to_string());
        found.collect()
    }

    #[test]
    fn parts_are_separated_as_the_dynamic_linker_does() {
        for (value, expected) in [
            ("", &[][..]),
            (":", &[".", "."]),
            ("/a:/b", &["/a", "/b"]),
            ("/a;/b:", &["/a", "/b", "."]),
            ("a::/b", &["a", ".", "/b"]),
        ] {
            assert_eq!(of_value(value), expected, "{value}");
        }
        let found = of_file(b"/a;/b:$ORIGIN/../c", Path::new("/o"));
        assert_eq!(found, ["/a;/b", "/o/../c"].map(PathBuf::from));
    }

    #[test]
    fn tokens_stand_for_all_their_values() {
        let debian = format!("/t/lib/{ARCH}-linux-gnu/x");
        for value in ["/t/$LIB/x", "/t/${LIB}/x"] {
            let found = of_value(value);
            for expected in ["/t/lib/x", "/t/lib64/x", &debian, value] {
                assert!(found.iter().any(|one| one == expected), "{found:?}");
            }
        }
        assert!(of_value("${ORIGIN}/x$PLATFORM").contains(&format!("/o/x{ARCH}")));
        let found = of_value("$ORIGIN/$LIB");
        for expected in ["/o/lib64", "/o/$LIB"] {
            assert!(found.iter().any(|one| one == expected), "{found:?}");
        }
        for value in ["/$", "/$ORIGINAL", "/$OTHER", "/${LIB", "/LIB"] {
            assert_eq!(of_value(value), [value], "{value}");
        }
    }

    #[test]
    fn subdirectories_for_some_processors_are_searched_first() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let root = root.path().canonicalize().expect("a path");
        let levels = ["glibc-hwcaps/one", "glibc-hwcaps/two"].map(|name| root.join(name));
        let old = [format!("tls/{ARCH}"), "haswell".to_owned()].map(|name| root.join(name));
        for path in levels.iter().chain(&old).chain([&root.join("other")]) {
            std::fs::create_dir_all(path).expect("made");
        }
        // It leads back.
        std::os::unix::fs::symlink("..", root.join("tls/tls")).expect("linked");
        let real = RealPaths::default();
        let mut found = with_subdirectories(&[root.clone(), root.join("other/..")], &real);
        assert_eq!(found.pop(), Some(root.clone()));
        let mut expected = [&levels[..], &old, &[root.join("tls")]].concat();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
        let watched = real.into_watched();
        std::fs::create_dir(root.join("glibc-hwcaps/three")).expect("made");
        assert!(!watched.hold());
    }

    /// A cache with these strings and the places of paths in them.
    fn cache_of(strings: &[u8], places: &[u32]) -> Vec<u8> {
        let mut cache = b"ld.so-1.7.0\0\0\0\0\0glibc-ld.so.cache1.1".to_vec();
        let begin = 16;
        cache.extend((places.len() as u32).to_value());
        cache.resize(begin + 48, 0);
        let strings_at = (48 + 24 * places.len()) as u32;
        for place in places {
            // `/` and another byte, as numbers may be.
            cache.extend([3, 0, 0, 0, 0, b'/', b'd', 0]);
            cache.extend((strings_at + place).to_value());
            cache.extend([0; 12]);
        }
        cache.extend(strings);
        cache
    }

    #[test]
    fn the_directories_of_the_linkers_cache_are_those_of_its_paths() {
        let strings = b"/usr/lib/a/libx.so\0/opt/named\0/not/listed/liby.so\0";
        let expected = ["/lib/a", "/opt", "/usr/lib/a"].map(OsStr::new);
        let cache = cache_of(strings, &[0, 4, 19]);
        assert_eq!(cached_directories(&cache), expected);
        // Of one that is damaged, all that begins as a path as well.
        for places in [&[0, 1][..], &[0, 1000], &[]] {
            let mut cache = cache_of(strings, places);
            if places.is_empty() {
                cache.splice(16..16, *b"older");
                cache.drain(21..41);
            }
            let found = cached_directories(&cache);
            assert!(found.contains(&OsStr::new("/not/listed")), "{found:?}");
        }
        let own = std::fs::read(LINKER_CACHE);
        let listed = std::process::Command::new("/sbin/ldconfig")
            .arg("-p")
            .output();
        let (Ok(own), Ok(listed)) = (own, listed) else {
            eprintln!("skipped: the linker's cache of this system (it has none)");
            return;
        };
        assert!(cached_paths(&own).is_some_and(|(_, is_complete)| is_complete));
        let listed = String::from_utf8(listed.stdout).expect("UTF-8");
        let paths = listed.lines().filter_map(|line| line.split_once(" => "));
        let mut directories: Vec<&OsStr> = paths
            .filter_map(|(_, path)| Path::new(path).parent())
            .map(Path::as_os_str)
            .collect();
        directories.sort();
        directories.dedup();
        assert_eq!(cached_directories(&own), directories);
    }
}
