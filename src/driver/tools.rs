//! The programs that a driver runs: their content, the libraries that they load, and what is preloaded into them.
//!
//! Measured: PoCL 3.1 runs `ld` for each kernel. Where `ld` is a script (Nix, Spack), the programs that it runs link.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use object::read::elf::ElfFile64;
use object::{Object, ObjectSymbol};
use serde::{Deserialize, Serialize};

use super::files::{linker_path, needed_by};
use super::identity::{DriverNames, FileMemory, content_value, sha256_value};
use super::interchangeable::allocates;
use super::key_neutral;
use super::loaded;
use super::names::ScannedLibrary;
use super::real_paths::{RealPaths, WatchedPaths};
use super::search_memory;
use crate::key::ingredients::{Ingredient, Kind, sha256};

/// A script that names more programs than this is no linker's.
const MAX_PROGRAMS: usize = 64;
/// A larger script is none that somebody wrote around a linker.
const MAX_SCRIPT_BYTES: u64 = 1 << 20;
/// What the dynamic linker preloads into every program (ld.so(8)).
const PRELOAD_FILE: &str = "/etc/ld.so.preload";

/// The programs that a driver runs.
#[derive(Clone, Default)]
pub(super) struct Tools {
    /// The ingredients of the key.
    pub ingredients: Vec<Ingredient>,
    /// The names in the programs and in the libraries that they need.
    pub names: Arc<DriverNames>,
    /// The paths of the programs. Empty if a watched file could change unnoticed.
    paths: Vec<PathBuf>,
    /// The files whose change makes this outdated.
    watched: Arc<WatchedPaths>,
}

impl Tools {
    /// Finds the programs in the search path, what these run if they are scripts, and the libraries that they would load. Keeps
    /// earlier results.
    ///
    /// None: a file cannot be read, also that of what the system preloads, or a script names too many programs.
    pub fn find(tools: &[&str], before: &Tools, memory: &dyn FileMemory) -> Option<Tools> {
        let paths: Vec<PathBuf> = tools
            .iter()
            .filter_map(|tool| program(Path::new(tool)))
            .collect();
        if paths == before.paths && before.watched.hold() {
            return Some(before.clone());
        }
        let (found, watched) = FoundTools::of(&paths, memory)?;
        let FoundTools {
            ingredients,
            scanned,
        } = found;
        let names = match before.ingredients == ingredients {
            true => before.names.clone(),
            false => Arc::new(DriverNames::of(scanned, memory).ok()?),
        };
        Some(Tools {
            ingredients,
            names,
            paths: if watched.are_settled() {
                paths
            } else {
                Vec::new()
            },
            watched: Arc::new(watched),
        })
    }
}

/// What a search finds for the programs at some paths.
#[derive(Serialize, Deserialize)]
struct FoundTools {
    ingredients: Vec<Ingredient>,
    scanned: Vec<ScannedLibrary>,
}

impl FoundTools {
    /// Recalled, or found now. What a script names depends on PATH and on files that are not there, and what is preloaded depends on
    /// this process, so these are found in each process. A result that is kept depends on the state in which the system's file named
    /// nothing.
    fn of(paths: &[PathBuf], memory: &dyn FileMemory) -> Option<(FoundTools, WatchedPaths)> {
        let variable = linker_path();
        let inputs = paths.iter().map(|path| path.as_os_str());
        let inputs = [OsStr::new("tools"), OsStr::new(PRELOAD_FILE), &variable]
            .into_iter()
            .chain(inputs);
        let identity = search_memory::identity(inputs.map(OsStr::as_bytes));
        let list = std::env::var_os("LD_PRELOAD").unwrap_or_default();
        if list.is_empty()
            && let Some(recalled) = search_memory::recall(&identity, memory)
        {
            return Some(recalled);
        }
        let real = RealPaths::default();
        let file = preload_file(Path::new(PRELOAD_FILE), &real).ok()?;
        let preloads = preloads(list.as_bytes(), &file);
        let found = FoundTools::search(paths, &preloads, &real, memory)?;
        let watched = real.into_watched();
        let mut paths = paths.iter();
        if preloads.is_empty() && paths.all(|path| is_script(path) == Some(false)) {
            search_memory::remember(&identity, &found, &watched, memory);
        }
        Some((found, watched))
    }

    /// `preloads`: what is preloaded into the programs.
    fn search(
        paths: &[PathBuf],
        preloads: &[&[u8]],
        real: &RealPaths,
        memory: &dyn FileMemory,
    ) -> Option<FoundTools> {
        for path in paths {
            real.watch(path);
        }
        let programs = with_programs_of_scripts(paths)?;
        let needed = needed_by(&programs, &linker_path(), real, |_| false);
        let mut ingredients = Vec::new();
        let mut scanned = Vec::new();
        for path in &programs {
            real.watch(path)?;
            let tool = file(path, memory)?;
            scanned.push(ScannedLibrary {
                identity: tool.value.clone(),
                path: path.clone(),
            });
            ingredients.push(tool);
        }
        for (path, name) in needed.libraries {
            let identity = content_value(&memory.digest(&path).ok()?);
            if !key_neutral::is_neutral(name.as_bytes()) {
                ingredients.push(Ingredient::new(Kind::Driver, name, identity.as_slice()));
            }
            scanned.push(ScannedLibrary { identity, path });
        }
        if !programs.is_empty() {
            ingredients.extend(preloaded(preloads, &scanned, real, memory)?);
        }
        if !real.is_complete() {
            return None;
        }
        // Paths are not in the key.
        ingredients.sort_by(|one, other| (&one.name, &one.value).cmp(&(&other.name, &other.value)));
        ingredients.dedup();
        Some(FoundTools {
            ingredients,
            scanned,
        })
    }
}

/// The path of the program that a name means (execvp(3)).
fn program(name: &Path) -> Option<PathBuf> {
    let directories = std::env::var_os("PATH")?;
    std::env::split_paths(&directories)
        .map(|directory| directory.join(name))
        .find(|path| is_program(path))
}

fn is_program(path: &Path) -> bool {
    let metadata = std::fs::metadata(path);
    metadata.is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

/// These programs, and those that they name in turn if they are scripts: by path, or by a name in the search path. Which of them a
/// script runs is not decided here, and names that it puts together from variables are not followed: all variables of a driver with
/// such a tool are in the key.
fn with_programs_of_scripts(paths: &[PathBuf]) -> Option<Vec<PathBuf>> {
    let mut found: Vec<PathBuf> = paths.to_vec();
    let mut seen: BTreeSet<PathBuf> = paths.iter().cloned().collect();
    let mut next = 0;
    while next < found.len() {
        for name in words_of_script(&found[next])? {
            let program = match name.is_absolute() {
                true => Some(name).filter(|path| is_program(path)),
                false => program(&name),
            };
            found.extend(program.filter(|program| seen.insert(program.clone())));
        }
        if found.len() > MAX_PROGRAMS {
            return None;
        }
        next += 1;
    }
    Some(found)
}

const SCRIPT: &[u8] = b"#!";

/// None: it cannot be read.
fn is_script(path: &Path) -> Option<bool> {
    let mut start = [0; SCRIPT.len()];
    let mut file = std::fs::File::open(path).ok()?;
    Some(file.read_exact(&mut start).is_ok() && start == *SCRIPT)
}

/// The words of a script that could name programs. Empty for a file that is no script. None: it cannot be read, or is too large.
fn words_of_script(path: &Path) -> Option<BTreeSet<PathBuf>> {
    if !is_script(path)? {
        return Some(BTreeSet::new());
    }
    let file = std::fs::File::open(path).ok()?;
    let mut text = Vec::new();
    file.take(MAX_SCRIPT_BYTES + 1)
        .read_to_end(&mut text)
        .ok()?;
    if text.len() as u64 > MAX_SCRIPT_BYTES {
        return None;
    }
    let is_of_a_name =
        |byte: &u8| byte.is_ascii_alphanumeric() || b"._+-/".contains(byte) || *byte >= 0x80;
    let words = text[SCRIPT.len()..].split(|byte| !is_of_a_name(byte));
    let names = words.filter(|word| !word.is_empty() && (word[0] == b'/' || !word.contains(&b'/')));
    Some(
        names
            .map(|word| PathBuf::from(OsStr::from_bytes(word)))
            .collect(),
    )
}

/// The libraries that are preloaded into the programs and answer calls of theirs. A program inherits LD_PRELOAD, whatever the
/// libraries do in this process. Allocators and libraries that answer nothing are left out, as in `bindings`.
///
/// `programs`: the programs with their libraries. None: a file cannot be read.
fn preloaded(
    preloads: &[&[u8]],
    programs: &[ScannedLibrary],
    real: &RealPaths,
    memory: &dyn FileMemory,
) -> Option<Vec<Ingredient>> {
    if preloads.is_empty() {
        return Some(Vec::new());
    }
    let objects = loaded::objects();
    let mut asked = None;
    let mut found = Vec::new();
    for name in preloads.iter().copied() {
        let path = Path::new(OsStr::from_bytes(name));
        let is_plain = path.is_absolute() && !name.contains(&b'$');
        let same_name = |object: &&loaded::Object| object.path.file_name() == path.file_name();
        let path = match is_plain {
            true => path.to_owned(),
            // The dynamic linker has found it here as it will find it there.
            false => match objects.iter().find(same_name) {
                Some(object) => object.path.clone(),
                None => {
                    found.push(Ingredient::new(
                        Kind::Driver,
                        in_programs(name),
                        sha256_value(&sha256(name)),
                    ));
                    continue;
                }
            },
        };
        // It has this process as well, and there its DT_SONAME is known.
        let is_it = |object: &&loaded::Object| object.path == path;
        let object = objects.iter().find(is_it);
        if object.is_some_and(|object| object.is_named(|name| memory.is_neutral_library(name))) {
            continue;
        }
        // The dynamic linker does without a library that it cannot load.
        let Some(place) = real.of(&path) else {
            continue;
        };
        // The system's own answers in any case.
        if programs.iter().any(|one| one.path == place) {
            continue;
        }
        let asked: &BTreeSet<Vec<u8>> = match &mut asked {
            Some(asked) => asked,
            none => none.insert(undefined_in(programs).ok()?),
        };
        let answers = |symbols: &Symbols| {
            symbols
                .defined
                .iter()
                .any(|name| asked.contains(name) && !allocates(name))
        };
        if symbols(&path).ok()?.as_ref().is_none_or(answers) {
            let name = path.file_name().unwrap_or_default();
            let value = content_value(&memory.digest(&path).ok()?);
            found.push(Ingredient::new(
                Kind::Driver,
                in_programs(name.as_bytes()),
                value,
            ));
        }
    }
    Some(found)
}

/// The names in the value of LD_PRELOAD and in the system's file, in the order in which the dynamic linker loads them.
fn preloads<'a>(variable: &'a [u8], file: &'a [u8]) -> Vec<&'a [u8]> {
    let variable = variable.split(|byte| b": ".contains(byte));
    let lines = file.split(|byte| *byte == b'\n');
    // The first part of a split is always there.
    let lines = lines.filter_map(|line| line.split(|byte| *byte == b'#').next());
    let file = lines.flat_map(|line| line.split(|byte| b": \t".contains(byte)));
    let names = variable.chain(file);
    names.filter(|name| !name.is_empty()).collect()
}

/// The content of the system's file, which is watched from now on. Empty if there is none.
///
/// # Errors
/// It may be there and cannot be read. The programs may have more rights than this process.
fn preload_file(path: &Path, real: &RealPaths) -> io::Result<Vec<u8>> {
    real.watch(path);
    match std::fs::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        content => content,
    }
}

fn in_programs(library: &[u8]) -> String {
    String::from_utf8_lossy(library).into_owned() + Ingredient::IN_TOOLS
}

/// The names of a library's dynamic symbols.
struct Symbols {
    defined: Vec<Vec<u8>>,
    undefined: Vec<Vec<u8>>,
}

/// What programs and their libraries look for in other libraries.
///
/// # Errors
/// A file cannot be read.
fn undefined_in(programs: &[ScannedLibrary]) -> io::Result<BTreeSet<Vec<u8>>> {
    let mut names = BTreeSet::new();
    for one in programs {
        let symbols = symbols(&one.path)?;
        names.extend(symbols.into_iter().flat_map(|symbols| symbols.undefined));
    }
    Ok(names)
}

/// None: the file is not of this processor's width and byte order.
///
/// # Errors
/// The file cannot be read, perhaps for lack of memory: nothing is known of it.
fn symbols(path: &Path) -> io::Result<Option<Symbols>> {
    let content = std::fs::read(path)?;
    let Ok(file) = ElfFile64::<object::NativeEndian>::parse(&*content) else {
        return Ok(None);
    };
    let names =
        |is_wanted: fn(&object::read::elf::ElfSymbol64<'_, '_, object::NativeEndian>) -> bool| {
            let symbols = file.dynamic_symbols().filter(is_wanted);
            symbols
                .filter_map(|symbol| Some(symbol.name_bytes().ok()?.to_vec()))
                .collect()
        };
    Ok(Some(Symbols {
        defined: names(|symbol| {
            symbol.is_definition() || symbol.is_weak() && !symbol.is_undefined()
        }),
        undefined: names(|symbol| symbol.is_undefined()),
    }))
}

/// The ingredient of a file's content.
pub(super) fn file(path: &Path, memory: &dyn FileMemory) -> Option<Ingredient> {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let value = content_value(&memory.digest(path).ok()?);
    Some(Ingredient::new(Kind::Driver, name, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_preloaded_is_named_by_the_variable_and_by_the_systems_file() {
        let file = b"# one /two.so\n/a.so:/b.so\t c.so#d.so\n\n: \n/e.so";
        let names = preloads(b"libf.so: /g.so", file);
        let names = names.into_iter().map(|name| str::from_utf8(name));
        let names: Vec<_> = names.map(|name| name.expect("UTF-8")).collect();
        let expected = ["libf.so", "/g.so", "/a.so", "/b.so", "c.so", "/e.so"];
        assert_eq!(names, expected);
        assert!(preloads(b"", b"# nothing\n").is_empty());
    }

    #[test]
    fn the_systems_file_is_watched_and_may_be_absent_and_must_be_readable() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("ld.so.preload");
        let real = RealPaths::default();
        let content = preload_file(&path, &real);
        assert_eq!(content.expect("absent"), b"");
        let watched = real.into_watched();
        assert!(watched.hold());
        std::fs::write(&path, "/a.so").expect("written");
        assert!(!watched.hold());
        let content = preload_file(&path, &RealPaths::default());
        assert_eq!(content.expect("readable"), b"/a.so");
        std::fs::remove_file(&path).expect("removed");
        std::fs::create_dir(&path).expect("made");
        assert!(preload_file(&path, &RealPaths::default()).is_err());
    }
}
