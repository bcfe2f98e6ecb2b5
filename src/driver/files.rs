//! The files that a profile names, in addition to the libraries that a driver needs: how they are found, and watched for changes.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::elf::Elf;
use super::opened_by_name::linker_path_at_start;
use super::profile::DriverFiles;
use super::real_paths::RealPaths;

/// Finds the files of a profile.
pub struct FileSearch<'a> {
    real: &'a RealPaths,
    /// The directories of the libraries that hold the driver's functions, by the dynamic linker's path and by the real path:
    /// drivers look beside the first (measured: PoCL) or the second (Intel's CPU runtime).
    beside: Vec<PathBuf>,
    /// The directories above them, by both paths.
    above: Vec<PathBuf>,
    /// The names of libraries to find in all directories of the dynamic linker.
    patterns: Vec<&'static str>,
    /// The libraries that were found. Searched once, since the directories hold thousands of files.
    linked: OnceCell<Vec<(PathBuf, Vec<Entry>)>>,
}

/// Files by their real path.
pub type FilesByPath = BTreeMap<PathBuf, NamedFile>;

/// How a file was found.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NamedFile {
    /// The shortest name that leads to the file: `libx.so.1` stays when `libx.so.1.3` replaces `libx.so.1.2`.
    pub name: String,
    /// All paths that lead to the file, links included: each link may be changed.
    pub paths: BTreeSet<PathBuf>,
}

/// An entry of a directory.
struct Entry {
    name: OsString,
    /// It is a regular file.
    is_plain: bool,
}

impl<'a> FileSearch<'a> {
    /// Searches for these files. `libraries` are those that hold the driver's functions.
    pub fn new<'b>(
        files: &[DriverFiles],
        libraries: impl Iterator<Item = &'b Path>,
        real: &'a RealPaths,
    ) -> FileSearch<'a> {
        let mut named = BTreeSet::new();
        for library in libraries {
            let real = real.of(library);
            for path in [Some(library), real.as_deref()].into_iter().flatten() {
                named.extend(path.parent().map(Path::to_owned));
            }
        }
        let is_there = |path: &&PathBuf| real.of(path).is_some();
        FileSearch {
            real,
            beside: named.iter().filter(is_there).cloned().collect(),
            above: named
                .iter()
                .filter_map(|path| path.parent())
                .map(Path::to_owned)
                .collect(),
            patterns: files
                .iter()
                .filter_map(|files| match files {
                    DriverFiles::Library(pattern) => Some(*pattern),
                    _ => None,
                })
                .collect(),
            linked: OnceCell::new(),
        }
    }

    fn linked(&self) -> &[(PathBuf, Vec<Entry>)] {
        self.linked.get_or_init(|| {
            let mut directories = linker_directories(&linker_path_at_start(), self.real);
            directories.extend(self.above.iter().cloned());
            directories.extend(self.beside.iter().cloned());
            let real = directories.iter().filter_map(|path| self.real.of(path));
            let real: BTreeSet<PathBuf> = real.collect();
            let listed = real.into_iter().map(|path| {
                let entries = entries(&path, &self.patterns, self.real);
                (path, entries)
            });
            listed.collect()
        })
    }

    /// Adds the files of one line of a profile.
    pub fn add(&self, files: DriverFiles, found: &mut FilesByPath) {
        match files {
            DriverFiles::Beside(directory, pattern) | DriverFiles::PlugIns(directory, pattern) => {
                for base in &self.beside {
                    self.list(&base.join(directory), pattern, found);
                }
            }
            DriverFiles::At(directory, pattern) => {
                for directory in expand(Path::new(directory), self.real) {
                    self.list(&directory, pattern, found);
                }
            }
            DriverFiles::Gcc(name) => {
                let processor = std::env::consts::ARCH;
                for directory in gcc_directories(&GCC.map(Path::new), processor, self.real) {
                    self.list(&directory, name, found);
                }
            }
            DriverFiles::Library(pattern) => {
                for (directory, entries) in self.linked() {
                    for entry in entries {
                        self.take(directory, entry, pattern, found);
                    }
                }
            }
        }
    }

    fn list(&self, directory: &Path, pattern: &str, found: &mut FilesByPath) {
        self.real.watch(directory);
        for entry in entries(directory, &[pattern], self.real) {
            self.take(directory, &entry, pattern, found);
        }
    }

    /// Adds a file whose name matches.
    fn take(&self, place: &Path, entry: &Entry, pattern: &str, found: &mut FilesByPath) {
        let name = entry.name.to_string_lossy();
        if !matches(pattern, &name) {
            return;
        }
        let Some(directory) = self.real.of(place) else {
            return;
        };
        let named = place.join(&entry.name);
        let mut path = directory.join(&entry.name);
        if !entry.is_plain {
            match self.real.of(&path) {
                Some(real) if self.is_file(&real) => path = real,
                _ => return,
            }
        }
        let name = name.into_owned();
        let known = found.entry(path).or_insert_with(|| NamedFile {
            name: name.clone(),
            paths: BTreeSet::new(),
        });
        known.paths.insert(named);
        if (name.len(), &name) < (known.name.len(), &known.name) {
            known.name = name;
        }
    }

    fn is_file(&self, path: &Path) -> bool {
        let metadata = self.real.found(std::fs::metadata(path));
        metadata.is_some_and(|metadata| metadata.is_file())
    }
}

/// The entries of a directory whose names match a pattern. Of thousands of names few are looked at closely, and only matches are
/// copied: this is most of the cost of a process's first build.
fn entries(directory: &Path, patterns: &[&str], real: &RealPaths) -> Vec<Entry> {
    let is_wanted = |name: &[u8]| {
        let mut patterns = patterns.iter().filter(|pattern| {
            let prefix = pattern.split('*').next().unwrap_or_default();
            name.starts_with(prefix.as_bytes())
        });
        patterns.any(|pattern| matches(pattern, &String::from_utf8_lossy(name)))
    };
    let mut found = Vec::new();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let opened = rustix::fs::open(directory, flags, Mode::empty());
    let Some(opened) = real.found(opened.map_err(io::Error::from)) else {
        return found;
    };
    let mut buffer = Vec::with_capacity(32 << 10);
    let mut entries = RawDir::new(opened, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(Errno::INTR) => continue,
            Err(error) => {
                real.note(&error.into());
                break;
            }
        };
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." && is_wanted(name) {
            found.push(Entry {
                name: OsStr::from_bytes(name).to_owned(),
                is_plain: entry.file_type() == FileType::RegularFile,
            });
        }
    }
    found
}

/// Where clang's driver looks for a GCC.
const GCC: [&str; 2] = ["/usr/lib/gcc", "/usr/lib64/gcc"];

/// The directories of the newest GCC for this processor that is complete (clang's Gnu.cpp, GCCInstallationDetector; measured with
/// strace on PoCL 3.1 and clang 15). Others are for other processors or older, and change nothing. Versions that differ only behind
/// the first number are all given: which one is newer is not decided here.
fn gcc_directories(roots: &[&Path], processor: &str, real: &RealPaths) -> Vec<PathBuf> {
    let below = |path: &Path| -> Vec<PathBuf> {
        real.watch(path);
        children(path, real).collect()
    };
    let is_for_processor = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.split_once('-')
            .is_some_and(|(first, rest)| first == processor && rest.contains("linux"))
    };
    let version = |path: &Path| -> Option<u32> {
        let name = path.file_name()?.to_str()?;
        name.split('.').next()?.parse().ok()
    };
    let targets = roots.iter().flat_map(|root| below(root));
    let all = targets
        .filter(is_for_processor)
        .flat_map(|path| below(&path));
    let complete = all.filter(|path| {
        real.watch(path);
        real.watch_place(&path.join("crtbegin.o"))
    });
    let versions: Vec<_> = complete
        .filter_map(|path| Some((version(&path)?, path)))
        .collect();
    let newest = versions.iter().map(|(version, _)| *version).max();
    let newest = versions
        .into_iter()
        .filter(|(version, _)| Some(*version) == newest);
    newest.map(|(_, path)| path).collect()
}

/// The directories that match a path in which `*` stands for any component.
fn expand(path: &Path, real: &RealPaths) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::new()];
    for component in path.components() {
        if component != Component::Normal(OsStr::new("*")) {
            found.iter_mut().for_each(|path| path.push(component));
            continue;
        }
        let below = |path: PathBuf| {
            real.watch(&path);
            children(&path, real)
        };
        found = found.into_iter().flat_map(below).collect();
    }
    found
}

/// The paths of what is in a directory.
fn children<'a>(directory: &Path, real: &'a RealPaths) -> impl Iterator<Item = PathBuf> + use<'a> {
    let entries = real.found(std::fs::read_dir(directory)).into_iter();
    let entries = entries.flatten().filter_map(|entry| real.found(entry));
    entries.map(|entry| entry.path())
}

/// The libraries that the dynamic linker would load.
#[derive(Default)]
pub struct Needed {
    /// The files that it could load or start.
    pub files: Vec<PathBuf>,
    /// The real paths of libraries, and the names by which they are needed.
    pub libraries: BTreeMap<PathBuf, String>,
}

/// The real paths of directories, each once, in order: a link to a directory leads to the same libraries.
fn real_directories(paths: &[PathBuf], real: &RealPaths) -> Vec<PathBuf> {
    let mut found: Vec<PathBuf> = Vec::new();
    for path in paths {
        let directory = real.of(path);
        found.extend(directory.filter(|directory| !found.contains(directory)));
    }
    found
}

/// The libraries that files need and that are not loaded yet, and the libraries that those need in turn, by name and real path:
/// what the dynamic linker would find for this processor. If a name is in several of its directories, all of them are listed, since
/// the order is not decided here. `is_loaded` tells the real paths that this process has loaded; everything that those need is
/// loaded. `linker_path`: LD_LIBRARY_PATH as the dynamic linker has it, of this process or of those that it starts.
///
/// Each name is looked for once in each directory: almost everything that `ld` needs needs the C library, and there are a dozen
/// directories.
pub fn needed_by(
    files: &[PathBuf],
    linker_path: &OsStr,
    real: &RealPaths,
    is_loaded: impl Fn(&Path) -> bool,
) -> Needed {
    let mut found = Needed::default();
    let mut usual: Option<Vec<PathBuf>> = None;
    // Directories are searched for one processor, since they hold files for others as well.
    let mut looked_for: HashSet<(u16, PathBuf)> = HashSet::new();
    let mut queue: VecDeque<PathBuf> = files.iter().cloned().collect();
    let mut of_files = files.len();
    while let Some(path) = queue.pop_front() {
        let is_given = of_files > 0;
        of_files = of_files.saturating_sub(1);
        if is_loaded(&path) {
            continue;
        }
        real.watch(&path);
        let Some(elf) = real.found(Elf::open(&path)).flatten() else {
            continue;
        };
        if is_given {
            found.files.push(path.clone());
        }
        let Some(needs) = real.found(elf.needs(&path)) else {
            continue;
        };
        let own = real_directories(&needs.directories, real);
        let usual = usual
            .get_or_insert_with(|| real_directories(&linker_directories(linker_path, real), real));
        for name in needs.libraries {
            let name = OsStr::from_bytes(&name);
            for directory in own.iter().chain(&*usual) {
                let place = directory.join(name);
                if !looked_for.insert((elf.machine(), place.clone())) || !real.watch_place(&place) {
                    continue;
                }
                let Some(library) = real.of(&place) else {
                    continue;
                };
                let is_for_it = |other: Elf| other.machine() == elf.machine();
                if !is_loaded(&library)
                    && !found.libraries.contains_key(&library)
                    && real
                        .found(Elf::open(&library))
                        .flatten()
                        .is_some_and(is_for_it)
                {
                    let name = name.to_string_lossy().into_owned();
                    found.libraries.insert(library.clone(), name);
                    queue.push_back(library);
                }
            }
        }
    }
    found
}

/// What the dynamic linker knows of where libraries are.
const LINKER_CACHE: &str = "/etc/ld.so.cache";

/// The directories that LD_LIBRARY_PATH names now: programs that are started have them. The dynamic linker of this process has those of
/// [`linker_path_at_start`].
pub fn linker_path() -> OsString {
    std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default()
}

/// The directories in which the dynamic linker looks for a library that is opened by name (ld.so(8)): those of a value of
/// LD_LIBRARY_PATH, those in its cache, which is watched, and the default ones.
pub fn linker_directories(variable: &OsStr, real: &RealPaths) -> Vec<PathBuf> {
    real.watch(Path::new(LINKER_CACHE));
    let mut found: Vec<PathBuf> = std::env::split_paths(variable).collect();
    // The end of the cache has paths of libraries as NUL-terminated strings. Other strings name no directory.
    let cache = real.found(std::fs::read(LINKER_CACHE)).unwrap_or_default();
    let strings = cache.split(|byte| *byte == 0);
    let mut cached: Vec<&OsStr> = Vec::new();
    for string in strings.filter(|string| string.starts_with(b"/")) {
        // A thousand libraries are in few directories, in sequence.
        let directory = Path::new(OsStr::from_bytes(string)).parent();
        let directory = directory.map(Path::as_os_str);
        cached
            .extend(directory.filter(|directory| !cached.iter().rev().any(|one| one == directory)));
    }
    cached.sort();
    found.extend(cached.into_iter().map(PathBuf::from));
    let defaults = ["/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib"];
    found.extend(defaults.map(PathBuf::from));
    found
}

/// Whether a name matches a pattern. `*` stands for anything.
pub fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => name == pattern,
        Some((prefix, rest)) => name.strip_prefix(prefix).is_some_and(|name| {
            (0..=name.len())
                .filter(|&at| name.is_char_boundary(at))
                .any(|at| matches(rest, &name[at..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_choose_the_files_that_the_profiles_mean() {
        assert!(matches("*", "anything"));
        assert!(matches("cl.cfg", "cl.cfg"));
        assert!(!matches("cl.cfg", "cl.cfg.old"));
        assert!(matches("*.rtl", "clbltfnz0.rtl"));
        assert!(!matches("*.rtl", "rtl.so"));
        assert!(matches("libnvidia-nvvm*.so*", "libnvidia-nvvm.so.4"));
        assert!(!matches("libnvidia-nvvm*.so*", "libnvidia-ml.so.1"));
    }

    #[test]
    fn a_library_with_several_names_is_found_once_by_the_one_that_stays() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let root = root.path().canonicalize().expect("a path");
        std::fs::create_dir_all(root.join("gcc/x86/12")).expect("made");
        std::fs::write(root.join("gcc/x86/12/libx.so.1.2"), "").expect("written");
        let link = root.join("gcc/x86/12/libx.so.1");
        std::os::unix::fs::symlink("libx.so.1.2", link).expect("linked");
        let mut found = FilesByPath::new();
        let real = RealPaths::default();
        let search = FileSearch::new(
            &[],
            [root.join("lib/libdriver.so").as_path()].into_iter(),
            &real,
        );
        search.add(DriverFiles::Beside("../gcc/x86/12", "libx.so*"), &mut found);
        assert!(
            found.is_empty(),
            "there is no directory `lib` to go up from"
        );
        for directory in expand(&root.join("gcc/*/*"), &real) {
            search.list(&directory, "libx.so*", &mut found);
        }
        let paths = ["libx.so.1", "libx.so.1.2"].map(|name| root.join("gcc/x86/12").join(name));
        let expected = NamedFile {
            name: "libx.so.1".to_owned(),
            paths: paths.clone().into(),
        };
        assert_eq!(Vec::from_iter(found), [(paths[1].clone(), expected)]);
    }

    #[test]
    fn the_gcc_is_the_newest_one_for_this_processor_that_is_complete() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let at = |name: &str| root.path().join(name);
        for (name, is_complete) in [
            ("x86_64-linux-gnu/11", true),
            ("x86_64-linux-gnu/12", true),
            ("x86_64-linux-gnu/13", false),
            ("x86_64-linux-gnu/9", true),
            ("x86_64-redhat-linux/12.2.1", true),
            ("x86_64-w64-mingw32/14-posix", true),
            ("x86_64-w64-mingw32/14", true),
            ("aarch64-linux-gnu/14", true),
            ("avr/14", true),
        ] {
            std::fs::create_dir_all(at(name)).expect("made");
            if is_complete {
                std::fs::write(at(name).join("crtbegin.o"), "").expect("written");
            }
        }
        let nothing = at("nothing");
        let real = RealPaths::default();
        let mut found = gcc_directories(&[root.path(), &nothing], "x86_64", &real);
        found.sort();
        let expected = ["x86_64-linux-gnu/12", "x86_64-redhat-linux/12.2.1"];
        assert_eq!(found, expected.map(at));
        assert_eq!(
            gcc_directories(&[root.path()], "aarch64", &real),
            [at("aarch64-linux-gnu/14")]
        );
    }

    #[test]
    fn what_is_loaded_needs_nothing_more_and_other_files_are_no_libraries() {
        let real = RealPaths::default();
        let program = std::env::current_exe().expect("this program");
        let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let files = [program.clone(), text];
        let needed = needed_by(&files, &linker_path(), &real, |_| false);
        assert_eq!(needed.files, std::slice::from_ref(&program));
        assert!(
            needed
                .libraries
                .values()
                .any(|name| name.starts_with("libc."))
        );
        let known = needed_by(&files, &linker_path(), &real, |path| {
            needed.libraries.contains_key(path)
        });
        assert!(known.libraries.is_empty(), "{:?}", known.libraries);
        let watched = real.into_watched();
        assert!(
            needed
                .libraries
                .keys()
                .all(|path| watched.get(path).is_some())
        );
        let real = RealPaths::default();
        let known = needed_by(&files, &linker_path(), &real, |path| path == program);
        assert!(known.files.is_empty() && real.into_watched().iter().count() == 1);
    }
}
