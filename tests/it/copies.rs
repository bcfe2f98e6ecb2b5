//! Copies of real drivers in a sandbox, of which a test may change any file.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, SystemTime};

use crate::support::{Driver, Sandbox};

/// A driver whose files stand in a directory of the test's own.
pub struct DriverCopy {
    root: PathBuf,
    /// The library, for `SPY_DRIVER`.
    pub library: PathBuf,
}

impl DriverCopy {
    /// Copies PoCL with its built-in libraries, headers and plug-ins, Intel's CPU runtime with all that stands beside it, or
    /// the one library of rusticl, whose other files are at a place that is compiled in. None: the driver is not there.
    pub fn new(sandbox: &Sandbox, driver: Driver, name: &str) -> Option<DriverCopy> {
        let original = find(&driver.library()?);
        let root = sandbox.path(name);
        let beside = root.join("lib/drivers");
        fs::create_dir_all(&beside).expect("made");
        let library = beside.join(original.file_name().expect("a name"));
        let origin = original.parent().expect("a directory");
        match driver {
            Driver::Pocl => {
                put_tree(&origin.join("pocl"), &beside.join("pocl"));
                let share = ["../share/pocl", "../../share/pocl"].map(|path| origin.join(path));
                let share = share.into_iter().find(|path| path.exists());
                put_tree(&share.expect("PoCL's files"), &root.join("share/pocl"));
                put(&original, &library);
            }
            Driver::Intel => put_tree(origin, &beside),
            _ => put(&original, &library),
        }
        Some(DriverCopy { root, library })
    }

    /// Lets programs of the sandbox use it.
    pub fn use_in(&self, sandbox: &mut Sandbox) {
        sandbox.set("SPY_DRIVER", self.library.as_os_str());
    }

    /// Its files with names that end so.
    pub fn files(&self, end: &str) -> Vec<PathBuf> {
        let mut found: Vec<_> = crate::support::tree(&self.root).into_keys().collect();
        found.retain(|path| path.is_file() && path.to_string_lossy().ends_with(end));
        assert!(!found.is_empty(), "no {end} in {}", self.root.display());
        found
    }
}

/// Another build of a library of the system in a directory of its own, for LD_LIBRARY_PATH.
pub fn other_build(sandbox: &Sandbox, library: &str, directory: &str) -> PathBuf {
    let directory = sandbox.path(directory);
    fs::create_dir_all(&directory).expect("made");
    let copy = directory.join(library);
    put(&find(library), &copy);
    update(&copy);
    directory
}

/// Makes another build of a library: one with another build-id, or without one with another content.
pub fn update(library: &Path) {
    let file = fs::read(library).expect("read");
    let note = b"\x03\0\0\0GNU\0";
    let id = file.windows(note.len()).position(|window| window == note);
    change_byte(library, id.map_or(file.len() - 1, |note| note + 8));
}

/// Changes the last byte of a file: of a library one that nobody reads, of code that LLVM has written one of padding.
pub fn change_last_byte(file: &Path) {
    let size = fs::metadata(file).expect("what is there").len();
    change_byte(file, size as usize - 1);
}

fn change_byte(file: &Path, at: usize) {
    let mut content = fs::read(file).expect("read");
    content[at] ^= 1;
    replace(file, &content);
}

/// Puts a file in the place of another, as an installation does. What was there may be a link to the original.
pub fn replace(file: &Path, content: &[u8]) {
    let new = file.with_extension("new");
    fs::write(&new, content).expect("written");
    fs::rename(&new, file).expect("replaced");
}

/// Gives a file other times and another inode, and the same content.
pub fn touch(file: &Path) {
    replace(file, &fs::read(file).expect("read"));
    let old = SystemTime::now() - Duration::from_secs(24 * 3600);
    let opened = fs::File::options().write(true).open(file).expect("opened");
    opened.set_modified(old).expect("dated");
}

/// The real path of a library that the dynamic linker finds by its name.
pub fn find(library: &str) -> PathBuf {
    let listed = Command::new("/sbin/ldconfig").arg("-p").output();
    let listed = String::from_utf8(listed.expect("ldconfig").stdout).expect("UTF-8");
    let known = listed.lines().filter_map(|line| line.split(" => ").nth(1));
    let beside = known.filter_map(|path| Some(Path::new(path).parent()?.join(library)));
    let mut candidates = [PathBuf::from(library)].into_iter().chain(beside);
    let found = candidates.find(|path| path.is_absolute() && path.exists());
    fs::canonicalize(found.unwrap_or_else(|| panic!("{library} is not found"))).expect("a path")
}

/// Copies a directory.
pub fn put_tree(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("a directory").flatten() {
        let path = entry.path();
        let target = to.join(entry.file_name());
        if path.is_dir() {
            put_tree(&path, &target);
        } else {
            put(&fs::canonicalize(&path).expect("a path"), &target);
        }
    }
}

/// A link to a copy of the tests' own where that is possible, and else a copy. A link to the file itself would change its state, so that
/// other tests, which use the driver at the same time, could not tell whether that has changed.
fn put(from: &Path, to: &Path) {
    let linked = original(from).and_then(|original| fs::hard_link(original, to));
    if linked.is_err() {
        fs::copy(from, to).expect("copied");
    }
}

/// The tests' own copy of a file, which is made once.
fn original(of: &Path) -> io::Result<PathBuf> {
    let metadata = fs::metadata(of)?;
    // Not beside a driver or the parents of its directory, which other tests' first builds find unchanged, or store nothing.
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("originals");
    fs::create_dir_all(&directory)?;
    let state = (of, metadata.len(), metadata.modified()?);
    let mut hash = DefaultHasher::new();
    state.hash(&mut hash);
    let place = directory.join(format!("{:016x}", hash.finish()));
    if !place.exists() {
        let new = tempfile::NamedTempFile::new_in(&directory)?;
        fs::copy(of, new.path())?;
        new.persist(&place)?;
    }
    Ok(place)
}
