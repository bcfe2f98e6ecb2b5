//! Where clang's driver looks for the linker that it runs and for GCC's libraries.
//!
//! From clang's Driver.cpp (GetProgramPath) and Gnu.cpp (GCCInstallationDetector), and measured with strace on PoCL 3.1 and clang 15.
//! Versions of clang differ in the order of these places, so none is decided here: the key has the linker of each.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use memchr::memmem;
use rustix::fs::{Access, AtFlags, CWD, accessat};
use serde::{Deserialize, Serialize};

use super::elf::Elf;
use super::files::{children, entries};
use super::process_variables;
use super::real_paths::RealPaths;
use super::search_path::add_new;

/// Every processor has a name of its own in triples.
const ARCH: &str = std::env::consts::ARCH;

/// How the path of clang ends in the text of a library that was built with it.
const CLANG: &[u8] = b"/bin/clang";
/// No path is longer.
const MAX_PATH: usize = 4096;

/// The directories where clang's driver may believe itself to be: those that a library names, and `bin` beside each library of clang's.
///
/// `own`: the libraries that have the driver's functions. `all`: those that it needs.
pub fn homes<'a>(
    own: impl Iterator<Item = &'a Path>,
    all: impl Iterator<Item = &'a Path>,
    real: &RealPaths,
) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = home_by_variable().into_iter().collect();
    for library in own {
        found.extend(real.found(named_homes(library)).unwrap_or_default());
    }
    let is_clangs = |path: &&Path| {
        let name = path.file_name().unwrap_or_default();
        name.as_bytes().starts_with(b"libclang")
    };
    for library in all.filter(is_clangs) {
        let paths = [real.of(library), Some(library.to_owned())];
        let beside = paths.iter().flatten().filter_map(|path| path.parent());
        found.extend(beside.map(|directory| directory.join("../bin")));
    }
    let mut places = Vec::new();
    add_new(&mut places, found);
    places
}

/// Names the clang that PoCL takes (pocl_runtime_config.c of later versions).
pub const CLANG_VARIABLE: &str = "POCL_PATH_CLANG";

fn home_by_variable() -> Option<PathBuf> {
    let path = PathBuf::from(process_variables::value(CLANG_VARIABLE)?);
    path.parent().map(Path::to_owned)
}

/// # Errors
/// The library cannot be read.
fn named_homes(library: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let Some(elf) = Elf::open(library)? else {
        return Ok(found);
    };
    let data = elf.data(&elf.sections()?);
    elf.each_chunk(&data, 2 * MAX_PATH, |chunk| {
        let text = chunk.bytes;
        for at in memmem::find_iter(text, CLANG) {
            let before = &text[at.saturating_sub(MAX_PATH)..at];
            let start = before.iter().rposition(|byte| *byte == 0);
            let prefix = start.map_or(before, |start| &before[start + 1..]);
            if prefix.is_empty() || prefix.starts_with(b"/") {
                found.push(Path::new(OsStr::from_bytes(prefix)).join("bin"));
            }
        }
        Ok(())
    })?;
    Ok(found)
}

/// The name that the directory of libraries may have, and that of a GCC's own below it. The last two of the first are for processors
/// whose code this one can also run.
const LIBRARIES: [&str; 4] = ["lib", "lib64", "lib32", "libx32"];
const GCC: [&str; 2] = ["gcc", "gcc-cross"];

/// Where Gentoo says which GCC is used.
pub const GCC_CHOICE: &str = "/etc/env.d/gcc";

/// The directories of the newest complete GCC for this processor and each name of its target, in each place where one may be installed.
/// Others are for other processors or older, and change nothing. Clang does not know all names of targets, and passes over a newer GCC
/// for one that it does not know. Versions that differ only behind the first number are all given: which one is newer is not decided
/// here. Where the system has a choice of its own, all are given.
pub fn gcc_directories(homes: &[PathBuf], real: &RealPaths) -> Vec<PathBuf> {
    let mut prefixes: Vec<PathBuf> = homes.iter().map(|home| home.join("..")).collect();
    for toolset in sorted_children(Path::new("/opt/rh"), real) {
        prefixes.push(toolset.join("root/usr"));
    }
    prefixes.push("/usr".into());
    let takes_newest = real.watch(Path::new(GCC_CHOICE)).is_none();
    let of_prefix = |prefix: &PathBuf| gcc_below(prefix, ARCH, takes_newest, real);
    let mut found = Vec::new();
    add_new(&mut found, prefixes.iter().flat_map(of_prefix).collect());
    found
}

fn gcc_below(prefix: &Path, processor: &str, takes_newest: bool, real: &RealPaths) -> Vec<PathBuf> {
    // Its state tells which of the directories below are there. That of the root changes when a container is made or copies something up.
    let is_root = real
        .now_of(prefix)
        .is_some_and(|real| real == Path::new("/"));
    if !is_root {
        real.watch(prefix);
    }
    let is_there = |library: &&PathBuf| match is_root {
        true => real.watch(library).is_some(),
        false => real.watch_place(library),
    };
    let mut found = Vec::new();
    let libraries = LIBRARIES.map(|name| prefix.join(name));
    for library in libraries.iter().filter(is_there) {
        for root in GCC.map(|name| library.join(name)) {
            if !real.watch_place(&root) {
                continue;
            }
            for target in sorted_children(&root, real) {
                let mut versions = complete_versions(&target, processor, real);
                let newest = versions.iter().map(|(version, _)| *version).max();
                versions.retain(|one| !takes_newest || Some(one.0) == newest);
                found.extend(versions.into_iter().map(|(_, path)| path));
            }
        }
    }
    found
}

/// The complete GCCs for one name of a target.
fn complete_versions(target: &Path, processor: &str, real: &RealPaths) -> Vec<(u32, PathBuf)> {
    let mut found = Vec::new();
    let Some(subdirectories) = subdirectories(target, processor) else {
        return found;
    };
    for gcc in sorted_children(target, real) {
        let Some(version) = version(&gcc) else {
            continue;
        };
        real.watch(&gcc);
        for below in subdirectories {
            let at = match below.is_empty() {
                true => gcc.clone(),
                false => gcc.join(below),
            };
            // The state of its directory tells when the file comes.
            if real.watch_place(&at) && real.watch_place(&at.join("crtbegin.o")) {
                found.push((version, at));
            }
        }
    }
    found
}

/// The subdirectories of a GCC in which the libraries for this processor may be. None: it has none.
fn subdirectories(target: &Path, processor: &str) -> Option<&'static [&'static str]> {
    let name = target.file_name()?.to_str()?;
    let (of, rest) = name.split_once('-')?;
    let is_narrow = of.len() == 4 && of.starts_with('i') && of.ends_with("86");
    match rest.contains("linux") {
        true if of == processor => Some(&["", "64"]),
        true if processor == "x86_64" && is_narrow => Some(&["64"]),
        _ => None,
    }
}

fn version(gcc: &Path) -> Option<u32> {
    let name = gcc.file_name()?.to_str()?;
    let end = name.find(|character: char| !character.is_ascii_digit());
    name[..end.unwrap_or(name.len())].parse().ok()
}

/// In an order that is the same at each look.
fn sorted_children(directory: &Path, real: &RealPaths) -> Vec<PathBuf> {
    real.watch(directory);
    let mut found: Vec<PathBuf> = children(directory, real).collect();
    found.sort();
    found
}

/// What distributions build clang for.
const TRIPLES: [&str; 8] = [
    "alpine-linux-musl",
    "conda-linux-gnu",
    "linux-gnu",
    "pc-linux-gnu",
    "redhat-linux",
    "redhat-linux-gnu",
    "suse-linux",
    "unknown-linux-gnu",
];

/// A program that may be run for a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Candidate {
    /// The kind of the place where it was found, and the program's name. Of each kind the first that can be run is run.
    pub label: String,
    /// Its path.
    pub path: PathBuf,
    /// Whether every clang looks there.
    is_certain: bool,
}

/// All files of this name, with and without a triple for this processor, in the places where clang's driver looks for programs, in
/// their order. Whether they can be run is not decided here: see [`runnable`].
///
/// `homes`: where clang's driver may be.
pub fn candidates(name: &str, homes: &[PathBuf], real: &RealPaths) -> Vec<Candidate> {
    let mut found = Vec::new();
    let variable = |name| process_variables::value(name).unwrap_or_default();
    let compiler_path = variable("COMPILER_PATH");
    for prefix in compiler_path.as_bytes().split(|byte| *byte == b':') {
        if compiler_path.is_empty() {
            break;
        }
        let directory = Path::new(OsStr::from_bytes(prefix));
        add(directory, name, " in COMPILER_PATH", true, real, &mut found);
        // What is no directory is the beginning of a path.
        let path = [prefix, name.as_bytes()].concat();
        let path = PathBuf::from(OsStr::from_bytes(&path));
        if real.watch(&path).is_some() {
            let label = format!("{name} by COMPILER_PATH");
            found.push(Candidate {
                label,
                path,
                is_certain: true,
            });
        }
    }
    let mut homes = homes.to_vec();
    // The program may have set it since.
    add_new(&mut homes, home_by_variable().into_iter().collect());
    for home in &homes {
        add(home, name, " beside clang", false, real, &mut found);
    }
    for gcc in gcc_directories(&homes, real) {
        // PREFIX/lib/gcc/TRIPLE/VERSION
        let mut above = gcc
            .ancestors()
            .filter(|path| path.file_name() != Some(OsStr::new("64")));
        let (Some(target), Some(prefix)) = (above.nth(1), above.nth(2)) else {
            continue;
        };
        let target = target.file_name().unwrap_or_default();
        let directory = prefix.join(target).join("bin");
        add(&directory, name, " beside GCC", false, real, &mut found);
    }
    for directory in std::env::split_paths(&variable("PATH")) {
        // Some programs look for an empty one in the working directory, some nowhere.
        let is_certain = !directory.as_os_str().is_empty();
        add(&directory, name, "", is_certain, real, &mut found);
    }
    found
}

fn add(
    directory: &Path,
    name: &str,
    kind: &str,
    is_certain: bool,
    real: &RealPaths,
    found: &mut Vec<Candidate>,
) {
    let directory = match directory.as_os_str().is_empty() {
        true => Path::new("."),
        false => directory,
    };
    let Some(state) = real.watch(directory) else {
        return;
    };
    for name in names_in(directory, state.size(), name, real) {
        let path = directory.join(&name);
        if real.watch(&path).is_some() {
            found.push(Candidate {
                label: name.to_string_lossy().into_owned() + kind,
                path,
                is_certain,
            });
        }
    }
}

/// The size up to which a directory in a search path is listed, in bytes: some ten thousand names. Each process would list a longer one.
const MAX_LISTED_BYTES: u64 = 256 << 10;

/// The names of a program in a directory of this size. Where that may be entered but not listed, or is long, those with the usual
/// triples are tried. The caller watches each, so one that comes is noticed.
fn names_in(directory: &Path, size: u64, name: &str, real: &RealPaths) -> Vec<OsString> {
    let is_listed = size <= MAX_LISTED_BYTES
        && accessat(CWD, directory, Access::READ_OK, AtFlags::EACCESS).is_ok();
    let mut names: Vec<OsString> = match is_listed {
        true => {
            let pattern = format!("{ARCH}-*linux*-{name}");
            let entries = entries(directory, &[name, &pattern], real);
            entries.into_iter().map(|entry| entry.name).collect()
        }
        false => {
            let named = TRIPLES.map(|triple| format!("{ARCH}-{triple}-{name}").into());
            named.into_iter().chain([name.into()]).collect()
        }
    };
    names.sort();
    names
}

/// Those of these that may be run: of each label all up to the first of which it is certain.
pub fn runnable(candidates: &[Candidate], real: &RealPaths) -> Vec<Candidate> {
    let mut decided: HashSet<&str> = HashSet::new();
    let mut found = Vec::new();
    for candidate in candidates {
        if decided.contains(&*candidate.label) {
            continue;
        }
        let Some(is_certain) = can_run(&candidate.path, real) else {
            continue;
        };
        found.push(candidate.clone());
        if is_certain && candidate.is_certain {
            decided.insert(&candidate.label);
        }
    }
    found
}

/// Whether this process can run a file for certain: clang wants to read it as well. None: it cannot, or there is no file.
pub fn can_run(path: &Path, real: &RealPaths) -> Option<bool> {
    let may = |access| {
        let asked = accessat(CWD, path, access, AtFlags::EACCESS);
        real.found(asked.map_err(io::Error::from)).is_some()
    };
    let is_certain = may(Access::EXEC_OK | Access::READ_OK);
    if !is_certain && !may(Access::EXEC_OK) {
        return None;
    }
    // Directories can be entered.
    let metadata = real.found(std::fs::metadata(path))?;
    metadata.is_file().then_some(is_certain)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn write(path: &Path, mode: u32) {
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        std::fs::write(path, "").expect("written");
        let mode = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(path, mode).expect("set");
    }

    #[test]
    fn the_state_of_the_root_tells_nothing_of_gcc() {
        for (prefix, is_root) in [("/", true), ("/usr/..", true), ("/usr", false)] {
            let real = RealPaths::default();
            let prefix = Path::new(prefix);
            let _ = gcc_below(prefix, ARCH, true, &real);
            let watched = real.into_watched();
            assert_eq!(watched.get(prefix).is_none(), is_root, "{prefix:?}");
            for place in LIBRARIES.map(|name| prefix.join(name)) {
                let is_told = watched.get(&place).is_some();
                assert!(is_told || !is_root && !place.exists(), "{place:?}");
            }
        }
    }

    #[test]
    fn the_gcc_is_the_newest_one_of_each_target_that_is_complete() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let at = |name: &str| root.path().join(name);
        for (name, is_complete) in [
            ("lib/gcc/x86_64-linux-gnu/11", true),
            ("lib64/gcc/x86_64-linux-gnu/12", true),
            ("lib/gcc/x86_64-linux-gnu/13", false),
            ("lib/gcc/x86_64-linux-gnu/9", true),
            ("lib/gcc-cross/x86_64-redhat-linux/12.2.1", true),
            ("lib/gcc/i686-linux-gnu/12-posix/64", true),
            ("lib/gcc/i686-linux-gnu/13", true),
            ("lib/gcc/x86_64-w64-mingw32/14", true),
            ("lib/gcc/aarch64-linux-gnu/14", true),
            ("lib/gcc/avr/14", true),
            ("lib/other/x86_64-linux-gnu/15", true),
        ] {
            std::fs::create_dir_all(at(name)).expect("made");
            if is_complete {
                write(&at(name).join("crtbegin.o"), 0o644);
            }
        }
        let real = RealPaths::default();
        let found = |processor, takes_newest| {
            let mut found = gcc_below(root.path(), processor, takes_newest, &real);
            found.sort();
            found
        };
        let newest = [
            "lib/gcc/i686-linux-gnu/12-posix/64",
            "lib/gcc/x86_64-linux-gnu/11",
            "lib/gcc-cross/x86_64-redhat-linux/12.2.1",
            "lib64/gcc/x86_64-linux-gnu/12",
        ];
        assert_eq!(found("x86_64", true), newest.map(at));
        assert_eq!(found("aarch64", true), [at("lib/gcc/aarch64-linux-gnu/14")]);
        let all = found("x86_64", false);
        assert_eq!(all.len(), 5, "{all:?}");
        let watched = real.into_watched();
        std::fs::create_dir(at("lib32")).expect("made");
        assert!(!watched.hold(), "another directory of libraries");
        let real = RealPaths::default();
        std::fs::create_dir(at("lib/gcc/x86_64-linux-gnu/13/64")).expect("made");
        gcc_below(root.path(), "x86_64", true, &real);
        let watched = real.into_watched();
        assert!(watched.hold());
        write(&at("lib/gcc/x86_64-linux-gnu/13/64/crtbegin.o"), 0o644);
        assert!(!watched.hold(), "another GCC is complete");
    }

    #[test]
    fn a_long_directory_is_not_listed() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let real = RealPaths::default();
        let odd = format!("{ARCH}-odd-linux-ld");
        write(&root.path().join(&odd), 0o755);
        let names = |size| names_in(root.path(), size, "ld", &real);
        assert_eq!(names(MAX_LISTED_BYTES), [OsString::from(odd)]);
        let tried = names(MAX_LISTED_BYTES + 1);
        assert_eq!(tried.len(), TRIPLES.len() + 1);
        assert!(tried.contains(&"ld".into()));
    }

    #[test]
    fn of_each_place_all_up_to_the_first_that_certainly_runs_may_run() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let at = |name: &str| root.path().join(name);
        let triple = format!("{ARCH}-any-linux-gnu-ld");
        write(&at("none/ld"), 0o644);
        write(&at("one/ld"), 0o755);
        write(&at("two/ld"), 0o755);
        write(&at(&format!("two/{triple}")), 0o755);
        write(&at(&format!("two/{ARCH}-mingw32-ld")), 0o755);
        std::fs::create_dir_all(at("directory/ld")).expect("made");
        let real = RealPaths::default();
        let mut all = Vec::new();
        for directory in ["directory", "none", "absent", "one", "two"] {
            add(&at(directory), "ld", "", true, &real, &mut all);
        }
        add(&at("two"), "ld", " beside clang", false, &real, &mut all);
        let found = runnable(&all, &real);
        let found = found
            .iter()
            .map(|one| (one.label.as_str(), one.path.clone()));
        let beside = format!("{triple} beside clang");
        let expected = [
            ("ld", at("one/ld")),
            (triple.as_str(), at("two").join(&triple)),
            ("ld beside clang", at("two/ld")),
            (beside.as_str(), at("two").join(&triple)),
        ];
        let by_name = |one: &(&str, PathBuf)| (one.0.to_owned(), one.1.clone());
        let mut found: Vec<_> = found.map(|one| by_name(&one)).collect();
        let mut expected: Vec<_> = expected.iter().map(by_name).collect();
        found.sort();
        expected.sort();
        assert_eq!(found, expected);
        let watched = real.into_watched();
        write(&at("none/other"), 0o644);
        assert!(
            !watched.hold(),
            "another file in a directory that is searched"
        );
    }

    #[test]
    fn a_library_names_the_place_of_its_clang() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let (source, library) = (root.path().join("a.c"), root.path().join("liba.so"));
        let text = "const char *of[] = {\"/opt/llvm/bin/clang-15\", \"no/bin/clang\", \"/include/clang\"};";
        std::fs::write(&source, format!("{text} int code(void) {{ return 1; }}")).expect("written");
        let mut compiler = std::process::Command::new("cc");
        compiler
            .args(["-shared", "-fPIC", "-o"])
            .arg(&library)
            .arg(&source);
        assert!(compiler.status().expect("a C compiler").success());
        let libclang = root.path().join("lib/libclang-cpp.so.1");
        write(&libclang, 0o644);
        let real = RealPaths::default();
        let found = homes(
            [library.as_path()].into_iter(),
            [libclang.as_path()].into_iter(),
            &real,
        );
        assert!(found.contains(&"/opt/llvm/bin".into()), "{found:?}");
        assert!(found.contains(&root.path().join("lib/../bin")), "{found:?}");
        assert!(!found.contains(&"no/bin".into()), "{found:?}");
    }
}
