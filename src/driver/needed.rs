//! The libraries that files need, and those that these need in turn: what the dynamic linker would find for this processor.

use std::collections::{HashSet, VecDeque};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::elf::{Elf, ElfNeeds};
use super::real_paths::{RealPaths, may_be_of_library};
use super::search_path::{add_new, directory, of_file, paths, with_subdirectories};

/// The libraries that the dynamic linker would load.
#[derive(Default)]
pub struct Needed {
    /// The files that it could load or start.
    pub files: Vec<PathBuf>,
    /// The real paths of libraries, and the names by which they are needed. Those of one name are in the order of the directories.
    pub libraries: Vec<(PathBuf, String)>,
    /// The real paths of the directories in which each name was looked for, and of those in which only what the files themselves need
    /// was.
    pub directories: Vec<PathBuf>,
}

/// A search for libraries.
struct Search<'a, F> {
    real: &'a RealPaths,
    is_loaded: F,
    found: Needed,
    /// The real paths of the libraries that were found.
    known: HashSet<PathBuf>,
    /// The real paths of the directories in which each name is looked for.
    everywhere: Vec<PathBuf>,
    /// The names that are looked for there, for one processor each, since directories hold files for others as well.
    names: Vec<(u16, Vec<u8>)>,
    /// The places where names were looked for.
    looked_for: HashSet<(u16, PathBuf)>,
    /// The files whose needs are not known yet, with the directory that is `$ORIGIN` for them.
    queue: VecDeque<(PathBuf, PathBuf)>,
    /// All that were in the queue.
    queued: HashSet<(PathBuf, PathBuf)>,
}

/// The libraries that files need and that are not loaded yet, and the libraries that those need in turn, by name and real path. If a
/// name is in several directories, all of them are listed, since the order is not decided here. `is_loaded` tells the real paths that
/// this process has loaded; everything that those need is loaded.
///
/// A library is also looked for in DT_RPATH of what loads it, and of what loads that. Which library loads which first is not decided
/// here, so DT_RPATH of each file counts for all.
///
/// Each name is looked for once in each directory: almost everything that `ld` needs needs the C library, and there are a dozen
/// directories.
///
/// `directories`: the real paths of those in which the dynamic linker looks, apart from what the files say.
pub fn needed_by(
    files: &[PathBuf],
    directories: &[PathBuf],
    real: &RealPaths,
    is_loaded: impl Fn(&Path) -> bool,
) -> Needed {
    let mut search = Search {
        real,
        is_loaded,
        found: Needed::default(),
        known: HashSet::new(),
        everywhere: directories.to_vec(),
        names: Vec::new(),
        looked_for: HashSet::new(),
        queue: VecDeque::new(),
        queued: HashSet::new(),
    };
    for file in files {
        if (search.is_loaded)(file) {
            continue;
        }
        real.watch(file);
        if real.found(Elf::open(file)).flatten().is_some() {
            search.found.files.push(file.clone());
            search.enqueue(file, directory(file));
        }
    }
    while let Some((path, origin)) = search.queue.pop_front() {
        let elf = real.found(Elf::open(&path)).flatten();
        if let Some(elf) = elf
            && let Some(needs) = real.found(elf.needs())
        {
            search.follow(elf.machine(), &needs, &origin);
            if files.contains(&path) {
                let own = said(&needs.run_paths, &origin, real);
                add_new(&mut search.found.directories, own);
            }
        }
    }
    add_new(&mut search.found.directories, search.everywhere);
    search.found
}

/// The real paths of the directories that texts of a file mean.
fn said(texts: &[Vec<u8>], origin: &Path, real: &RealPaths) -> Vec<PathBuf> {
    let said = texts.iter().flat_map(|text| of_file(text, origin));
    with_subdirectories(&said.collect::<Vec<_>>(), real)
}

impl<F: Fn(&Path) -> bool> Search<'_, F> {
    fn enqueue(&mut self, path: &Path, origin: &Path) {
        let one = (path.to_owned(), origin.to_owned());
        if self.queued.insert(one.clone()) {
            self.queue.push_back(one);
        }
    }

    /// Looks for all that a file needs.
    fn follow(&mut self, machine: u16, needs: &ElfNeeds, origin: &Path) {
        let own = said(&needs.run_paths, origin, self.real);
        for directory in said(&needs.handed_down, origin, self.real) {
            if self.everywhere.contains(&directory) {
                continue;
            }
            for (machine, name) in self.names.clone() {
                self.look(machine, directory.join(OsStr::from_bytes(&name)));
            }
            self.everywhere.push(directory);
        }
        for name in &needs.libraries {
            if name.contains(&b'/') {
                for place in paths(name, origin) {
                    self.real.watch(&place);
                    self.look(machine, place);
                }
                continue;
            }
            let of_name = OsStr::from_bytes(name);
            for directory in &own {
                self.look(machine, directory.join(of_name));
            }
            if !may_be_of_library(name) {
                for directory in self.real.without_libraries() {
                    let place = directory.join(of_name);
                    self.real.watch(&place);
                    self.look(machine, place);
                }
            }
            let one = (machine, name.clone());
            if !self.names.contains(&one) {
                for directory in self.everywhere.clone() {
                    self.look(machine, directory.join(of_name));
                }
                self.names.push(one);
            }
        }
    }

    /// Takes what is at this place, if it is a library for this processor.
    fn look(&mut self, machine: u16, place: PathBuf) {
        let real = self.real;
        if !self.looked_for.insert((machine, place.clone())) || !real.watch_place(&place) {
            return;
        }
        let Some(library) = real.of(&place) else {
            return;
        };
        if (self.is_loaded)(&library) {
            return;
        }
        let is_new = self.known.insert(library.clone());
        let is_for_it = |other: Elf| other.machine() == machine;
        if is_new
            && !real
                .found(Elf::open(&library))
                .flatten()
                .is_some_and(is_for_it)
        {
            self.known.remove(&library);
            return;
        }
        if is_new {
            let name = place.file_name().unwrap_or_default();
            let name = name.to_string_lossy().into_owned();
            self.found.libraries.push((library.clone(), name));
        }
        // The dynamic linker takes the directory of the link that it opens.
        self.enqueue(&library, directory(&library));
        self.enqueue(&library, directory(&place));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::driver::search_path::linker_directories;

    #[test]
    fn what_is_loaded_needs_nothing_more_and_other_files_are_no_libraries() {
        let real = RealPaths::default();
        let program = std::env::current_exe().expect("this program");
        let text = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
        let files = [program.clone(), text];
        let needed = needed_by(&files, &linker_directories(&[], &real), &real, |_| false);
        assert_eq!(needed.files, std::slice::from_ref(&program));
        assert!(
            needed
                .libraries
                .iter()
                .any(|(_, name)| name.starts_with("libc."))
        );
        let known = needed_by(&files, &linker_directories(&[], &real), &real, |path| {
            needed.libraries.iter().any(|one| one.0 == path)
        });
        assert!(known.libraries.is_empty(), "{:?}", known.libraries);
        let watched = real.into_watched();
        assert!(
            needed
                .libraries
                .iter()
                .all(|(path, _)| watched.get(path).is_some())
        );
        let real = RealPaths::default();
        let known = needed_by(&files, &[], &real, |path| path == program);
        assert!(known.files.is_empty() && real.into_watched().iter().count() == 1);
    }

    fn library(at: &Path, options: &[&str]) {
        let empty = at.with_file_name("empty.c");
        std::fs::create_dir_all(at.parent().expect("a directory")).expect("made");
        std::fs::write(&empty, "").expect("written");
        let mut compiler = std::process::Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-nostdlib", "-Wl,--no-as-needed", "-o"]);
        let status = compiler.arg(at).arg(&empty).args(options).status();
        assert!(status.expect("a C compiler").success(), "{options:?}");
    }

    #[test]
    fn a_library_is_found_where_what_loads_its_loader_says() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let root = root.path().canonicalize().expect("a path");
        let at = |name: &str| root.join(name);
        let text = |path: PathBuf| path.to_str().expect("UTF-8").to_owned();
        library(&at("below/glibc-hwcaps/any/libc1.so"), &[]);
        let search = [
            "-L",
            &text(at("below")),
            "-L",
            &text(at("below/glibc-hwcaps/any")),
        ];
        library(&at("below/libb1.so"), &[&search[..], &["-lc1"]].concat());
        library(&at("other/liba1.so"), &[&search[..], &["-lb1"]].concat());
        let program = at("program.so");
        let link = |way: &str| {
            let path = format!("-Wl,{way},-rpath,{}:$ORIGIN/other", text(at("below")));
            let own = [
                &path,
                "-Wl,--unresolved-symbols=ignore-all",
                "-L",
                &text(at("other")),
                "-la1",
            ];
            library(&program, &own);
        };
        let found = || {
            let real = RealPaths::default();
            let needed = needed_by(std::slice::from_ref(&program), &[], &real, |_| false);
            let mut names: Vec<_> = needed.libraries.into_iter().map(|one| one.1).collect();
            names.sort();
            names
        };
        link("--disable-new-dtags");
        assert_eq!(found(), ["liba1.so", "libb1.so", "libc1.so"]);
        // DT_RUNPATH counts for what the program itself needs.
        link("--enable-new-dtags");
        assert_eq!(found(), ["liba1.so"]);
        let below = [at("below/glibc-hwcaps/any"), at("below")];
        let real = RealPaths::default();
        let needed = needed_by(std::slice::from_ref(&program), &below, &real, |_| false);
        assert_eq!(needed.libraries.len(), 3);
    }
}
