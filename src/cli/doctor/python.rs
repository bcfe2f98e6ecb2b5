//! Checks which OpenCL loader and drivers a Python has by itself. The wheel of PyOpenCL has a loader of its own, and `pip` installs
//! drivers that no other loader knows. Files are looked at, and no Python is executed.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::drivers::Registered;
use super::report::{DoctorReport, Fix};
use crate::cli::executable::find_program;
use crate::cli::library::typed;
use crate::config::{self, Config, Name};
use crate::front::driver_probe::is_same_library;
use crate::front::vendors::{DEFAULT_DIRECTORY, registered_in};
use crate::log::path;

const ABOUT: &str = "python";
/// Where a wheel of PyOpenCL has its libraries: the first in version 2026.1 (measured), the second where `auditwheel` puts those of
/// other wheels.
const LIBRARIES: [&str; 2] = ["pyopencl/.libs", "pyopencl.libs"];
/// The library of the package `intel-opencl-rt`, below the prefix of Python.
const INTEL: &str = "lib/libintelocl.so";

/// `program`: what the user has asked about.
pub fn examine(
    config: &Config,
    program: Option<&OsString>,
    registered: &[Registered],
    report: &mut DoctorReport,
) {
    let Some(prefixes) = python(program.map(OsString::as_os_str)).map(|file| prefixes(&file))
    else {
        return;
    };
    let libraries = prefixes.iter().flat_map(|prefix| packages(prefix));
    let libraries = libraries.flat_map(|packages| LIBRARIES.map(|name| packages.join(name)));
    let Some((libraries, loader)) = libraries
        .into_iter()
        .find_map(|libraries| Some((libraries.clone(), loader(&libraries)?)))
    else {
        return;
    };
    let text = format!(
        "PyOpenCL loads drivers by a loader of its own, `{}`, which uses oclcache if /etc/OpenCL/vendors or OCL_ICD_VENDORS registers it, in `oclcache run python script.py`, or after `oclcache.enable()` of the package `oclcache`",
        path(&loader)
    );
    report.good(ABOUT, text);
    for driver in registered_in(&libraries) {
        let text = format!("only PyOpenCL loads the driver `{}`", path(&driver));
        report.good(ABOUT, text);
    }
    let intel = prefixes.iter().map(|prefix| prefix.join(INTEL));
    let is_registered = |library: &PathBuf| {
        registered
            .iter()
            .any(|one| is_same_library(&one.library, library))
    };
    for library in intel.filter(|library| library.is_file() && !is_registered(library)) {
        let text = format!(
            "the driver `{}` is not registered, so no loader finds it",
            path(&library)
        );
        report.doubtful(ABOUT, text, add(config, library));
    }
}

/// How a library becomes one of the drivers that oclcache loads. A directory of its own in OCL_ICD_VENDORS would hide the others, and
/// oclcache where that is installed.
fn add(config: &Config, library: PathBuf) -> Fix {
    let mut sources = config::paths(&config.value(Name::Vendors).0);
    if sources.is_empty() {
        sources.push(DEFAULT_DIRECTORY.into());
    }
    sources.push(library);
    let command = format!("{} config set vendors", typed());
    Fix::on(&command, Path::new(&config::list(&sources)))
        .because("name it to oclcache, beside the other drivers")
}

/// The Python that is meant: the program, that of the active virtual environment, or the first in PATH.
fn python(program: Option<&OsStr>) -> Option<PathBuf> {
    let is_python = |program: &&OsStr| {
        let name = Path::new(program).file_name().unwrap_or_default();
        name.as_bytes().starts_with(b"python")
    };
    let active = std::env::var_os("VIRTUAL_ENV").filter(|value| !value.is_empty());
    let active = active.map(|place| Path::new(&place).join("bin/python"));
    let named = program.filter(is_python).and_then(find_program);
    let in_path = ["python3", "python"]
        .into_iter()
        .find_map(|name| find_program(OsStr::new(name)));
    let mut found = [named, active, in_path].into_iter().flatten();
    found.find(|file| file.is_file())
}

/// The directories below which a Python has its packages. That of a virtual environment is where it is, even as a link.
fn prefixes(python: &Path) -> Vec<PathBuf> {
    let prefix = |file: &Path| Some(file.parent()?.parent()?.to_owned());
    let is_environment = |place: &PathBuf| place.join("pyvenv.cfg").is_file();
    if let Some(environment) = prefix(python).filter(is_environment) {
        return vec![environment];
    }
    let real = python.canonicalize().ok().and_then(|file| prefix(&file));
    let of_user = std::env::var_os("HOME").map(|home| Path::new(&home).join(".local"));
    let local = (real.as_deref() == Some(Path::new("/usr"))).then(|| "/usr/local".into());
    of_user.into_iter().chain(local).chain(real).collect()
}

/// The directories of packages below a prefix.
fn packages(prefix: &Path) -> Vec<PathBuf> {
    let versions = fs::read_dir(prefix.join("lib"))
        .into_iter()
        .flatten()
        .flatten();
    let versions = versions.filter(|entry| entry.file_name().as_bytes().starts_with(b"python3"));
    let mut versions: Vec<PathBuf> = versions.map(|entry| entry.path()).collect();
    versions.sort();
    let names = ["site-packages", "dist-packages"];
    let packages = versions
        .iter()
        .flat_map(|version| names.map(|name| version.join(name)));
    packages.collect()
}

/// The loader in a directory of libraries.
fn loader(libraries: &Path) -> Option<PathBuf> {
    let entries = fs::read_dir(libraries).ok()?.flatten();
    let mut entries =
        entries.filter(|entry| entry.file_name().as_bytes().starts_with(b"libOpenCL"));
    entries.next().map(|entry| entry.path())
}
