//! The files that a profile names, in addition to the libraries that a driver needs: how they are found, and watched for changes.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::clang_driver::gcc_directories;
use super::profile::DriverFiles;
use super::real_paths::RealPaths;
use super::search_path::{library_path_at_start, linker_directories};

/// Finds the files of a profile.
pub struct FileSearch<'a> {
    real: &'a RealPaths,
    /// The directories of the libraries that hold the driver's functions.
    own: Vec<PathBuf>,
    /// All libraries that may be the driver's.
    libraries: Vec<PathBuf>,
    /// The directories where clang's driver may be.
    compilers: Vec<PathBuf>,
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
    /// All paths that lead to the file from real directories, links included: each link may be changed.
    pub paths: BTreeSet<PathBuf>,
    /// The other paths of these directories by which a driver finds them: each link in these may be changed, too. While they lead to
    /// the same directories, what is in these need not be looked at once more.
    pub directories: BTreeSet<PathBuf>,
}

/// An entry of a directory.
pub struct Entry {
    /// Its name.
    pub name: OsString,
    /// It is a regular file.
    is_plain: bool,
}

impl<'a> FileSearch<'a> {
    /// Searches for these files. `own` are the libraries that hold the driver's functions, `libraries` all that may be the driver's,
    /// `compilers` the directories where clang's driver may be.
    pub fn new<'b>(
        files: &[DriverFiles],
        own: impl Iterator<Item = &'b Path>,
        libraries: impl Iterator<Item = &'b Path>,
        compilers: &[PathBuf],
        real: &'a RealPaths,
    ) -> FileSearch<'a> {
        FileSearch {
            real,
            own: directories_of(own, real),
            libraries: libraries.map(Path::to_owned).collect(),
            compilers: compilers.to_vec(),
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
            let mut directories = linker_directories(&library_path_at_start(), self.real);
            directories.extend(
                self.own
                    .iter()
                    .filter_map(|own| own.parent())
                    .map(Path::to_owned),
            );
            directories.extend(self.own.iter().cloned());
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
                self.list_beside(&self.own, directory, pattern, found);
            }
            DriverFiles::BesideLibrary(name, directory, pattern) => {
                let is_named = |library: &&Path| {
                    let own = library.file_name().unwrap_or_default();
                    matches(name, &own.to_string_lossy())
                };
                let libraries = self.libraries.iter().map(PathBuf::as_path).filter(is_named);
                let bases = directories_of(libraries, self.real);
                self.list_beside(&bases, directory, pattern, found);
            }
            DriverFiles::At(directory, pattern) => {
                for directory in expand(Path::new(directory), self.real) {
                    self.list(&directory, pattern, found);
                }
            }
            DriverFiles::Gcc(name) => {
                for directory in gcc_directories(&self.compilers, self.real) {
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

    fn list_beside(
        &self,
        bases: &[PathBuf],
        directory: &str,
        pattern: &str,
        found: &mut FilesByPath,
    ) {
        for base in bases {
            for directory in expand(&base.join(directory), self.real) {
                self.list(&directory, pattern, found);
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
        let named = directory.join(&entry.name);
        let mut path = named.clone();
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
            directories: BTreeSet::new(),
        });
        known.paths.insert(named);
        if place != directory {
            known.directories.insert(place.to_owned());
        }
        if (name.len(), &name) < (known.name.len(), &known.name) {
            known.name = name;
        }
    }

    fn is_file(&self, path: &Path) -> bool {
        let metadata = self.real.found(std::fs::metadata(path));
        metadata.is_some_and(|metadata| metadata.is_file())
    }
}

/// The directories of libraries, by the dynamic linker's path and by the real path: drivers look beside the first (measured: PoCL) or
/// the second (Intel's CPU runtime).
fn directories_of<'b>(libraries: impl Iterator<Item = &'b Path>, real: &RealPaths) -> Vec<PathBuf> {
    let mut named = BTreeSet::new();
    for library in libraries {
        let real = real.of(library);
        for path in [Some(library), real.as_deref()].into_iter().flatten() {
            named.extend(path.parent().map(Path::to_owned));
        }
    }
    named.retain(|path| real.of(path).is_some());
    named.into_iter().collect()
}

/// The entries of a directory whose names match a pattern. Of thousands of names few are looked at closely, and only matches are
/// copied: this is most of the cost of a process's first build.
pub fn entries(directory: &Path, patterns: &[&str], real: &RealPaths) -> Vec<Entry> {
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
    let Some(opened) = real.listed(directory, opened.map_err(io::Error::from)) else {
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
pub fn children(directory: &Path, real: &RealPaths) -> impl Iterator<Item = PathBuf> + use<> {
    let directory = directory.to_owned();
    let entries = entries(&directory, &["*"], real).into_iter();
    entries.map(move |entry| directory.join(entry.name))
}

/// Whether a name matches a pattern. `*` stands for anything.
pub fn matches(pattern: &str, name: &str) -> bool {
    // By bytes: a first key compares each loaded library with some patterns.
    fn fits(pattern: &[u8], name: &[u8]) -> bool {
        let Some(star) = pattern.iter().position(|byte| *byte == b'*') else {
            return name == pattern;
        };
        let (prefix, rest) = (&pattern[..star], &pattern[star + 1..]);
        name.strip_prefix(prefix).is_some_and(|name| {
            rest.is_empty() || (0..=name.len()).any(|at| fits(rest, &name[at..]))
        })
    }
    fits(pattern.as_bytes(), name.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::regular_file::tests::without_rights;

    /// Of a driver that is one library.
    fn search_beside<'a>(
        files: &[DriverFiles],
        library: &Path,
        real: &'a RealPaths,
    ) -> FileSearch<'a> {
        FileSearch::new(files, [library].into_iter(), [].into_iter(), &[], real)
    }

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
        let library = root.join("lib/libdriver.so");
        let find = |directory| {
            let real = RealPaths::default();
            let search = search_beside(&[], &library, &real);
            let mut found = FilesByPath::new();
            search.add(DriverFiles::Beside(directory, "libx.so*"), &mut found);
            found
        };
        assert!(
            find("../gcc/x86/12").is_empty(),
            "there is no directory `lib` to go up from"
        );
        std::fs::create_dir(root.join("lib")).expect("made");
        let found = find("../gcc/*/*");
        let paths = ["libx.so.1", "libx.so.1.2"].map(|name| root.join("gcc/x86/12").join(name));
        let expected = NamedFile {
            name: "libx.so.1".to_owned(),
            paths: paths.clone().into(),
            directories: [root.join("lib/../gcc/x86/12")].into(),
        };
        assert_eq!(Vec::from_iter(found), [(paths[1].clone(), expected)]);
    }

    #[test]
    fn each_directory_of_a_profile_must_be_listed_if_it_may_be_entered() {
        use std::os::unix::fs::PermissionsExt;
        let root = tempfile::tempdir().expect("a temporary directory");
        let root = root.path().canonicalize().expect("a path");
        for name in ["lib", "share"] {
            std::fs::create_dir_all(root.join(name)).expect("made");
        }
        let share = root.join("share");
        let is_complete = |look: fn(&Path, &RealPaths), mode| {
            let set = |mode| {
                let permissions = std::fs::Permissions::from_mode(mode);
                std::fs::set_permissions(&share, permissions).expect("changed");
            };
            set(mode);
            let is_complete = without_rights(|| {
                let real = RealPaths::default();
                look(&root, &real);
                real.is_complete()
            });
            set(0o700);
            is_complete
        };
        let looks: [fn(&Path, &RealPaths); 3] = [
            |root, real| {
                let library = root.join("lib/libdriver.so");
                let search = search_beside(&[], &library, real);
                let headers = DriverFiles::Beside("../share", "*.h");
                search.add(headers, &mut FilesByPath::new());
            },
            |root, real| {
                let library = DriverFiles::Library("libx.so*");
                let own = root.join("share/libdriver.so");
                let search = search_beside(&[library], &own, real);
                search.add(library, &mut FilesByPath::new());
            },
            |root, real| drop(expand(&root.join("share/*"), real)),
        ];
        for (number, look) in looks.into_iter().enumerate() {
            assert!(is_complete(look, 0o500), "{number}");
            assert!(!is_complete(look, 0o300), "{number}");
            assert!(is_complete(look, 0o000), "{number}");
        }
    }
}
