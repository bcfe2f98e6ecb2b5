//! The files that a profile names, beside the libraries that a driver needs: found, and watched for changes.

use std::cell::{OnceCell, RefCell};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, RawDir};
use rustix::io::Errno;

use super::profile::Files;

/// Finds the files of a profile.
pub struct Search<'a> {
    real: &'a RealPaths,
    /// The real directories of the libraries that hold functions of the driver, by the path that the dynamic linker used and by
    /// the real one: drivers look beside the first (measured: PoCL) or the second (Intel's CPU runtime).
    beside: Vec<PathBuf>,
    /// Those above them, by both paths as well.
    above: Vec<PathBuf>,
    /// The names of libraries that are wanted wherever the dynamic linker looks.
    patterns: Vec<&'static str>,
    /// Those that are there, looked for once: the directories hold thousands of files.
    linked: OnceCell<Vec<(PathBuf, Vec<Entry>)>>,
}

/// Files by their real path, with the shortest of the names that lead there: that of `libx.so.1` stays when `libx.so.1.2`
/// is followed by `libx.so.1.3`.
pub type Found = BTreeMap<PathBuf, String>;

/// What stands in a directory.
struct Entry {
    name: OsString,
    /// It is neither a link nor anything else but a file.
    is_plain: bool,
}

/// Finds real paths. Each directory is followed once: libraries stand together in few, and links mostly within them.
#[derive(Default)]
pub struct RealPaths(RefCell<HashMap<PathBuf, Option<PathBuf>>>);

impl RealPaths {
    /// The path without links; None if there is nothing.
    pub fn of(&self, path: &Path) -> Option<PathBuf> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return std::fs::canonicalize(path).ok();
        };
        let place = self.directory(parent)?.join(name);
        match std::fs::read_link(&place) {
            Ok(_) => std::fs::canonicalize(&place).ok(),
            // It is no link.
            Err(error) if error.kind() == ErrorKind::InvalidInput => Some(place),
            Err(_) => None,
        }
    }

    fn directory(&self, path: &Path) -> Option<PathBuf> {
        let known = self.0.borrow().get(path).cloned();
        known.unwrap_or_else(|| {
            // A name alone is one in the working directory.
            let named = if path.as_os_str().is_empty() {
                Path::new(".")
            } else {
                path
            };
            let real = std::fs::canonicalize(named).ok();
            self.0.borrow_mut().insert(path.to_owned(), real.clone());
            real
        })
    }
}

impl<'a> Search<'a> {
    /// For these files; `libraries` are those that hold functions of the driver.
    pub fn new<'b>(
        files: &[Files],
        libraries: impl Iterator<Item = &'b Path>,
        real: &'a RealPaths,
    ) -> Search<'a> {
        let mut named = BTreeSet::new();
        for library in libraries {
            let real = real.of(library);
            for path in [Some(library), real.as_deref()].into_iter().flatten() {
                named.extend(path.parent().map(Path::to_owned));
            }
        }
        let beside: BTreeSet<PathBuf> = named
            .iter()
            .filter_map(|path| real.directory(path))
            .collect();
        Search {
            real,
            beside: Vec::from_iter(beside),
            above: named
                .iter()
                .filter_map(|path| path.parent())
                .map(Path::to_owned)
                .collect(),
            patterns: files
                .iter()
                .filter_map(|files| match files {
                    Files::Library(pattern) => Some(*pattern),
                    _ => None,
                })
                .collect(),
            linked: OnceCell::new(),
        }
    }

    fn linked(&self) -> &[(PathBuf, Vec<Entry>)] {
        self.linked.get_or_init(|| {
            let mut directories = linker_directories();
            directories.extend(self.above.iter().cloned());
            directories.extend(self.beside.iter().cloned());
            let real = directories
                .iter()
                .filter_map(|path| self.real.directory(path));
            let real: BTreeSet<PathBuf> = real.collect();
            let listed = real.into_iter().map(|path| {
                let entries = entries(&path, &self.patterns);
                (path, entries)
            });
            listed.collect()
        })
    }

    /// Adds what one line of a profile means.
    pub fn add(&self, files: Files, found: &mut Found) {
        match files {
            Files::Beside(directory, pattern) | Files::PlugIns(directory, pattern) => {
                for base in &self.beside {
                    self.list(&base.join(directory), pattern, found);
                }
            }
            Files::At(directory, pattern) => {
                for directory in expand(Path::new(directory)) {
                    self.list(&directory, pattern, found);
                }
            }
            Files::Library(pattern) => {
                for (directory, entries) in self.linked() {
                    for entry in entries {
                        self.take(directory, entry, pattern, found);
                    }
                }
            }
        }
    }

    fn list(&self, directory: &Path, pattern: &str, found: &mut Found) {
        for entry in entries(directory, &[pattern]) {
            self.take(directory, &entry, pattern, found);
        }
    }

    /// Adds a file whose name matches.
    fn take(&self, directory: &Path, entry: &Entry, pattern: &str, found: &mut Found) {
        let name = entry.name.to_string_lossy();
        if !matches(pattern, &name) {
            return;
        }
        let Some(directory) = self.real.directory(directory) else {
            return;
        };
        let mut path = directory.join(&entry.name);
        if !entry.is_plain {
            match std::fs::canonicalize(&path) {
                Ok(real) if real.is_file() => path = real,
                _ => return,
            }
        }
        let name = name.into_owned();
        let known = found.entry(path).or_insert_with(|| name.clone());
        if (name.len(), &name) < (known.len(), known) {
            *known = name;
        }
    }
}

/// What stands in a directory under names that match a pattern. Of thousands of names few are looked at closely, and none is
/// copied that does not match: this is most of what a process pays at its first build.
fn entries(directory: &Path, patterns: &[&str]) -> Vec<Entry> {
    let is_wanted = |name: &[u8]| {
        let mut patterns = patterns.iter().filter(|pattern| {
            let prefix = pattern.split('*').next().unwrap_or_default();
            name.starts_with(prefix.as_bytes())
        });
        patterns.any(|pattern| matches(pattern, &String::from_utf8_lossy(name)))
    };
    let mut found = Vec::new();
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(opened) = rustix::fs::open(directory, flags, Mode::empty()) else {
        return found;
    };
    let mut buffer = Vec::with_capacity(32 << 10);
    let mut entries = RawDir::new(opened, buffer.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = match entry {
            Ok(entry) => entry,
            Err(Errno::INTR) => continue,
            Err(_) => break,
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

/// The directories that a path means in which `*` stands for any component.
fn expand(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::new()];
    for component in path.components() {
        if component != Component::Normal(OsStr::new("*")) {
            found.iter_mut().for_each(|path| path.push(component));
            continue;
        }
        let below = |path: PathBuf| std::fs::read_dir(path).into_iter().flatten().flatten();
        let entries = found.into_iter().flat_map(below);
        found = entries.map(|entry| entry.path()).collect();
    }
    found
}

/// Where the dynamic linker looks for a library that is opened by its name (ld.so(8)): LD_LIBRARY_PATH, the directories in
/// its cache, and the default ones.
fn linker_directories() -> Vec<PathBuf> {
    let variable = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
    let mut found: Vec<PathBuf> = std::env::split_paths(&variable).collect();
    // Paths of libraries as NUL-terminated strings stand at the end of the cache; whatever is not one names no directory.
    let cache = std::fs::read("/etc/ld.so.cache").unwrap_or_default();
    let strings = cache.split(|byte| *byte == 0);
    let mut cached: Vec<&Path> = strings
        .filter(|string| string.starts_with(b"/"))
        .filter_map(|string| Path::new(OsStr::from_bytes(string)).parent())
        .collect();
    cached.sort();
    cached.dedup();
    found.extend(cached.into_iter().map(Path::to_owned));
    let defaults = ["/lib", "/usr/lib", "/lib64", "/usr/lib64", "/usr/local/lib"];
    found.extend(defaults.map(PathBuf::from));
    found
}

/// Whether a name matches a pattern, in which `*` stands for anything.
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
        let mut found = Found::new();
        let real = RealPaths::default();
        let search = Search::new(
            &[],
            [root.join("lib/libdriver.so").as_path()].into_iter(),
            &real,
        );
        search.add(Files::Beside("../gcc/x86/12", "libx.so*"), &mut found);
        assert!(
            found.is_empty(),
            "there is no directory `lib` to go up from"
        );
        for directory in expand(&root.join("gcc/*/*")) {
            search.list(&directory, "libx.so*", &mut found);
        }
        let expected = (root.join("gcc/x86/12/libx.so.1.2"), "libx.so.1".to_owned());
        assert_eq!(Vec::from_iter(found), [expected]);
    }
}
