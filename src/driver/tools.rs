//! The programs that a driver runs: their content, the libraries that they load, and what is preloaded into them.
//!
//! Measured: PoCL 3.1 runs `ld` for each kernel. Where `ld` is a script (Nix, Spack), the programs that it runs link.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use memchr::memmem;
use object::read::elf::ElfFile64;
use object::{Object, ObjectSymbol};
use serde::{Deserialize, Serialize};

use super::clang_driver::{CLANG_VARIABLE, Candidate, candidates, runnable};
use super::driver_names::DriverNames;
use super::elf::Elf;
use super::file_memory::FileMemory;
use super::identity::{content_value, sha256_value};
use super::interchangeable::allocates;
use super::key_neutral;
use super::loaded;
use super::needed::{Needed, needed_by};
use super::numbered_names::NumberedNames;
use super::process_variables;
use super::real_paths::{RealPaths, WatchedPaths};
use super::scanned_library::ScannedLibrary;
use super::scripts::with_files_of_scripts;
use super::search_memory;
use super::search_path::{add_new, directory, library_path, linker_directories, paths};
use crate::file_fingerprint::Validity;
use crate::key::ingredients::{Ingredient, Kind, sha256};
use crate::regular_file;

/// What the dynamic linker preloads into every program (ld.so(8)).
const PRELOAD_FILE: &str = "/etc/ld.so.preload";

/// The programs that a driver runs.
#[derive(Clone, Default)]
pub(super) struct Tools {
    /// The ingredients of the key.
    pub ingredients: Vec<Ingredient>,
    /// The names in the programs and in the libraries that they need.
    pub names: Arc<DriverNames>,
    /// The texts of the scripts among them.
    pub scripts: Arc<Vec<Vec<u8>>>,
    /// All programs of the names. None if a watched file could change unnoticed.
    programs: Option<Programs>,
    /// The files whose change makes this outdated.
    watched: Arc<WatchedPaths>,
}

/// The programs of some names, in the places where clang's driver looks.
#[derive(Clone, Serialize, Deserialize)]
struct Programs {
    all: Vec<Candidate>,
    /// Those that this process may run.
    chosen: Vec<Candidate>,
}

impl Programs {
    /// Whether the same ones may run. The states of files do not tell that: so may another process, or a file system that was
    /// mounted otherwise.
    fn hold(&self) -> bool {
        let real = RealPaths::default();
        runnable(&self.all, &real) == self.chosen && real.is_complete()
    }
}

impl Tools {
    /// The files whose change makes this outdated.
    pub fn watched(&self) -> &WatchedPaths {
        &self.watched
    }

    /// What holds for other variables as well: what is known of the names in libraries, which may be found again.
    pub fn for_other_variables(&self) -> Tools {
        Tools {
            names: self.names.clone(),
            ..Tools::default()
        }
    }

    /// Finds the programs, what these run if they are scripts, and the libraries that they would load. Keeps earlier results of the
    /// same variables, and what holds for others as well.
    ///
    /// `compilers`: the directories where clang's driver may be.
    ///
    /// None: it is unknown what they do. A file cannot be read, also that of what the system preloads, a script names too many
    /// files or puts together which libraries are loaded, or a library would audit them.
    pub fn find(
        tools: &[&str],
        compilers: &[PathBuf],
        before: &Tools,
        memory: &dyn FileMemory,
    ) -> Option<Tools> {
        if tools.is_empty() {
            // The same names as before: what follows from them is not looked for again.
            return Some(before.clone());
        }
        if !variable("LD_AUDIT").is_empty() {
            tracing::warn!(
                "LD_AUDIT is set, so a library audits the programs that the driver runs, and may change what they do: nothing is cached"
            );
            return None;
        }
        let known = before.programs.as_ref();
        if known.is_some_and(Programs::hold) && before.watched.hold() {
            return Some(before.clone());
        }
        let (found, watched, validity) = FoundTools::of(tools, compilers, memory)?;
        let FoundTools {
            programs,
            ingredients,
            scanned,
            scripts,
        } = found;
        // No ingredient tells of the C library.
        let names = match before.names.are_of(&scanned) {
            true => before.names.clone(),
            false => Arc::new(DriverNames::of(scanned)),
        };
        Some(Tools {
            ingredients,
            names,
            scripts: Arc::new(scripts),
            programs: (validity > Validity::Moment).then_some(programs),
            watched: Arc::new(watched),
        })
    }
}

fn variable(name: &str) -> OsString {
    process_variables::value(name).unwrap_or_default()
}

/// The variables that decide what a search finds, apart from LD_PRELOAD.
const SEARCHED_BY: [&str; 6] = [
    "PATH",
    "COMPILER_PATH",
    CLANG_VARIABLE,
    "LD_LIBRARY_PATH",
    PROCESSOR_SETTINGS[0],
    PROCESSOR_SETTINGS[1],
];
/// The variables by which the dynamic linker of the programs takes the processor for another one, and other libraries for it.
const PROCESSOR_SETTINGS: [&str; 2] = ["LD_HWCAP_MASK", "GLIBC_TUNABLES"];

/// What a search finds for the programs of some names.
#[derive(Serialize, Deserialize)]
struct FoundTools {
    programs: Programs,
    ingredients: Vec<Ingredient>,
    scanned: Vec<ScannedLibrary>,
    /// The texts of scripts. A result with some is not kept.
    #[serde(skip)]
    scripts: Vec<Vec<u8>>,
}

impl FoundTools {
    /// Recalled, or found now. What a script names depends on files that are not there, and what is preloaded depends on this process,
    /// so these are found in each process. A result that is kept depends on the state in which the system's file named nothing.
    fn of(
        tools: &[&str],
        compilers: &[PathBuf],
        memory: &dyn FileMemory,
    ) -> Option<(FoundTools, WatchedPaths, Validity)> {
        let variables = SEARCHED_BY.map(variable);
        let inputs = [OsStr::new("tools"), OsStr::new(PRELOAD_FILE)].into_iter();
        let inputs = inputs
            .chain(variables.iter().map(OsString::as_os_str))
            .chain(tools.iter().map(OsStr::new))
            .chain(compilers.iter().map(|path| path.as_os_str()));
        let identity = search_memory::identity(inputs.map(OsStr::as_bytes), memory);
        let list = variable("LD_PRELOAD");
        if list.is_empty()
            && let Some((found, watched)) = search_memory::recall::<FoundTools>(&identity, memory)
            && found.programs.hold()
        {
            return Some((found, watched, Validity::Lasting));
        }
        let real = RealPaths::default();
        let file = preload_file(Path::new(PRELOAD_FILE), &real).ok()?;
        let preloads = preloads(list.as_bytes(), &file);
        let all = tools
            .iter()
            .flat_map(|tool| candidates(tool, compilers, &real));
        let all: Vec<Candidate> = all.collect();
        let programs = Programs {
            chosen: runnable(&all, &real),
            all,
        };
        let found = FoundTools::search(programs, &preloads, &real, memory)?;
        let mut chosen = found.programs.chosen.iter();
        let may_be_kept =
            preloads.is_empty() && chosen.all(|one| is_script(&one.path) == Some(false));
        let begun = real.begun();
        let watched = match may_be_kept {
            true => search_memory::remember(&identity, &found, real, memory),
            false => real.into_watched(),
        };
        let (validity, _) = watched.validity(begun);
        Some((found, watched, validity))
    }

    /// `preloads`: what is preloaded into the programs.
    fn search(
        programs: Programs,
        preloads: &[&[u8]],
        real: &RealPaths,
        memory: &dyn FileMemory,
    ) -> Option<FoundTools> {
        let mut names = NumberedNames::default();
        let mut ingredients = Vec::new();
        let mut scanned = Vec::new();
        let mut library_path_of_all = Vec::new();
        let mut paths: Vec<PathBuf> = Vec::new();
        let variable = |name: &str| variable(name).into_encoded_bytes();
        let tools = with_files_of_scripts(&programs.chosen, &variable, real)?;
        for (label, path) in tools.files {
            real.watch(&path)?;
            let place = real.of(&path)?;
            let known = scanned
                .iter()
                .find(|one: &&ScannedLibrary| one.path == place);
            let identity = match known {
                Some(known) => known.identity.clone(),
                None => content_value(&memory.digest(&place).ok()?),
            };
            let label = names.next(&label);
            ingredients.push(Ingredient::new(Kind::Driver, label, identity.as_slice()));
            if !paths.contains(&place) {
                add_new(&mut library_path_of_all, library_path(directory(&place)));
                paths.push(place.clone());
                scanned.push(ScannedLibrary {
                    identity,
                    path: place,
                });
            }
        }
        let needed = match paths.is_empty() {
            true => Needed::default(),
            false => {
                add_new(&mut library_path_of_all, tools.directories);
                let directories = linker_directories(&library_path_of_all, real);
                needed_by(&paths, &directories, real, |_| false)
            }
        };
        for (path, name) in needed.libraries {
            let identity = content_value(&memory.digest(&path).ok()?);
            if !key_neutral::is_neutral(name.as_bytes()) {
                let name = names.next(&name);
                ingredients.push(Ingredient::new(Kind::Driver, name, identity.as_slice()));
            }
            scanned.push(ScannedLibrary { identity, path });
        }
        if !paths.is_empty() {
            let places = preload_places(preloads, &paths, &needed.directories, real)?;
            ingredients.extend(preloaded(places, &scanned, real, memory)?);
            ingredients.extend(processor_settings());
        }
        if !real.is_complete() {
            return None;
        }
        // Paths are not in the key.
        ingredients.sort_by(|one, other| (&one.name, &one.value).cmp(&(&other.name, &other.value)));
        ingredients.dedup();
        Some(FoundTools {
            programs,
            ingredients,
            scanned,
            scripts: tools.texts,
        })
    }
}

/// What the dynamic linker of the programs is told of the processor.
fn processor_settings() -> Vec<Ingredient> {
    let told = PROCESSOR_SETTINGS.map(|name| (name, variable(name)));
    // The other variable sets much that has nothing to do with processors.
    let is_setting = |name: &str, value: &OsString| match name {
        "LD_HWCAP_MASK" => !value.is_empty(),
        _ => memmem::find(value.as_bytes(), b"hwcap").is_some(),
    };
    let told = told.iter().filter(|(name, value)| is_setting(name, value));
    let ingredient = |(name, value): &(&str, OsString)| {
        let name = format!("{name} of the driver's tools");
        Ingredient::new(Kind::Driver, name, sha256_value(&sha256(value.as_bytes())))
    };
    told.map(ingredient).collect()
}

/// Whether a program is none of the processor's. None: it cannot be read.
fn is_script(path: &Path) -> Option<bool> {
    const ELF: &[u8] = b"\x7fELF";
    let mut start = [0; ELF.len()];
    let (mut file, _) = regular_file::open(path).ok()??;
    Some(file.read_exact(&mut start).is_err() || start != *ELF)
}

/// The files that these names of preloaded libraries mean for the programs, in the order in which they are loaded.
///
/// `programs`: their real paths. `directories`: where their dynamic linker looks. None: a name without a directory is in none of these.
fn preload_places(
    preloads: &[&[u8]],
    programs: &[PathBuf],
    directories: &[PathBuf],
    real: &RealPaths,
) -> Option<Vec<PathBuf>> {
    let mut found = Vec::new();
    let objects = match preloads.is_empty() {
        true => Vec::new(),
        false => loaded::objects(),
    };
    for name in preloads {
        let mut places = Vec::new();
        for program in programs {
            add_new(&mut places, paths(name, directory(program)));
        }
        if !name.contains(&b'/') {
            let named = |directory: &PathBuf| {
                let places = places.iter().map(|place| directory.join(place));
                places.collect::<Vec<_>>()
            };
            let mut everywhere: Vec<PathBuf> = directories.iter().flat_map(named).collect();
            // The dynamic linker passes over libraries for other processors.
            everywhere
                .retain(|place| real.watch_place(place) && !matches!(Elf::open(place), Ok(None)));
            let file = Path::new(OsStr::from_bytes(name)).file_name();
            // The dynamic linker may find it there as it has found it here.
            let same_name = objects
                .iter()
                .filter(|object| object.path.file_name() == file);
            add_new(
                &mut everywhere,
                same_name.map(|object| object.path.clone()).collect(),
            );
            if everywhere.is_empty() {
                let name = String::from_utf8_lossy(name);
                tracing::warn!(
                    %name,
                    "this preloaded library is in no directory where the programs look that the driver runs: nothing is cached"
                );
                return None;
            }
            places = everywhere;
        }
        found.extend(places);
    }
    Some(found)
}

/// The libraries that are preloaded into the programs and answer calls of theirs. A program inherits LD_PRELOAD, whatever the
/// libraries do in this process. Allocators and libraries that answer nothing are left out, as in `bindings`.
///
/// `programs`: the programs with their libraries. None: a file cannot be read.
fn preloaded(
    places: Vec<PathBuf>,
    programs: &[ScannedLibrary],
    real: &RealPaths,
    memory: &dyn FileMemory,
) -> Option<Vec<Ingredient>> {
    if places.is_empty() {
        return Some(Vec::new());
    }
    let objects = loaded::objects();
    let mut asked = None;
    let mut names = NumberedNames::default();
    let mut found = Vec::new();
    for path in places {
        // The dynamic linker does without a library that it cannot load.
        let Some(place) = real.of(&path) else {
            continue;
        };
        // It has this process as well, and there its DT_SONAME is known.
        let is_it = |object: &&loaded::Object| {
            let has_name = object.path.file_name() == path.file_name();
            has_name && real.of(&object.path).as_ref() == Some(&place)
        };
        let object = objects.iter().find(is_it);
        if object.is_some_and(|object| object.is_named(|name| memory.is_neutral_library(name))) {
            continue;
        }
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
            let name = names.next(&name.to_string_lossy()) + Ingredient::IN_TOOLS;
            found.push(Ingredient::new(Kind::Driver, name, value));
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
    match regular_file::read(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
        content => content?.ok_or_else(regular_file::is_none),
    }
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

/// None: the file is not of this processor's width and byte order, or no regular file.
///
/// # Errors
/// The file cannot be read, perhaps for lack of memory: nothing is known of it.
fn symbols(path: &Path) -> io::Result<Option<Symbols>> {
    let Some(content) = regular_file::read(path)? else {
        return Ok(None);
    };
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
