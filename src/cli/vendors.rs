//! Directories of drivers for loaders (`OCL_ICD_VENDORS`), with only our library in them.

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::failure::Failure;
use crate::config;
use crate::log::path;
use crate::store::StoreError;
use crate::store::directory::{Directory, is_temporary};

/// The variables that tell loaders where drivers are.
pub const LOADER_VARIABLES: [&str; 3] =
    ["OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "OPENCL_VENDOR_PATH"];

const REGISTERED: &str = "oclcache.icd";
const PREFIX: &str = "vendors-";
/// The size of a registration, in bytes (PATH_MAX of Linux, and the end of the line).
const MAX_BYTES: u64 = 4096 + 2;
/// Another process may still be writing a younger file.
const MIN_LEFTOVER_AGE: Duration = Duration::from_secs(3600);

/// The drivers that the loader would have read, for OCLCACHE_VENDORS; None for the default directory, or if the user has set it.
pub fn vendors() -> Result<Option<OsString>, Failure> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(list) = variable("OCLCACHE_VENDORS") {
        for source in config::paths(&list) {
            absolute("OCLCACHE_VENDORS", source.as_os_str())?;
        }
        return Ok(None);
    }
    let mut sources: Vec<PathBuf> = Vec::new();
    // In the loader's list, no path can contain a colon.
    let files = variable("OCL_ICD_FILENAMES").unwrap_or_default();
    let files = files.as_bytes().split(|byte| *byte == b':');
    for file in files.filter(|file| !file.is_empty()) {
        sources.push(absolute("OCL_ICD_FILENAMES", OsStr::from_bytes(file))?);
    }
    let named = ["OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"]
        .into_iter()
        .find_map(|name| Some((name, variable(name)?)));
    match named {
        Some((name, source)) => sources.push(absolute(name, &source)?),
        None if sources.is_empty() => return Ok(None),
        // The loader reads these files in addition to the default directory.
        None => sources.push("/etc/OpenCL/vendors".into()),
    }
    Ok(Some(config::list(&sources)))
}

/// The source as an absolute path.
fn absolute(variable: &str, source: &OsStr) -> Result<PathBuf, Failure> {
    if !source.as_bytes().contains(&b'/') && !Path::new(source).exists() {
        return Ok(source.into()); // a library or a registered .icd file, by name
    }
    match Path::new(source).canonicalize() {
        Ok(absolute) => Ok(absolute),
        Err(error) => Err(Failure::new(format_args!(
            "{variable} names `{}`, which cannot be used: {error}; correct it or unset {variable}",
            path(Path::new(source))
        ))),
    }
}

/// Whether the vendors directory for a library exists.
pub fn is_made(place: &Directory, library: &Path) -> bool {
    let directory = place.open_below(&name_of(library)).ok().flatten();
    directory.is_some_and(|directory| directory.begins_with(REGISTERED, &registration(library)))
}

/// The vendors directory for a library, made in this directory.
///
/// # Errors
/// It cannot be made.
pub fn vendors_directory(place: &Directory, library: &Path) -> Result<PathBuf, StoreError> {
    let directory = place.create(&name_of(library))?;
    // Verified, since the loader loads whatever it names.
    directory.write_once(&directory, REGISTERED, &registration(library))?;
    Ok(directory.path().to_owned())
}

fn name_of(library: &Path) -> String {
    let digits = xxhash_rust::xxh3::xxh3_64(library.as_os_str().as_bytes());
    format!("{PREFIX}{digits:016x}")
}

fn registration(library: &Path) -> Vec<u8> {
    [library.as_os_str().as_bytes(), b"\n"].concat()
}

/// The vendors directories in a directory that are certainly ours, with the paths of their libraries: each contains only a
/// registration, and its name is the digest of the path in that.
pub fn made_vendors(place: &Directory) -> Vec<(String, PathBuf)> {
    let names = place.names().unwrap_or_default();
    let candidates = names.into_iter().filter(|name| name.starts_with(PREFIX));
    let of_library = |name: &String| {
        let directory = place.open_below(name).ok()??;
        let is_ours = |file: &String| file == REGISTERED || is_temporary(file);
        let content = directory.read(REGISTERED, MAX_BYTES).ok()??;
        let library = Path::new(std::ffi::OsStr::from_bytes(content.strip_suffix(b"\n")?));
        let is_ours = directory.names().ok()?.iter().all(is_ours) && *name == name_of(library);
        is_ours.then(|| library.to_owned())
    };
    let made = candidates.filter_map(|name| of_library(&name).map(|library| (name, library)));
    made.collect()
}

/// Removes vendors directories whose library is gone, and temporary files that killed processes have left in the others.
pub fn forget_vendors(place: &Directory) {
    for (name, library) in made_vendors(place) {
        let Ok(Some(directory)) = place.open_below(&name) else {
            continue;
        };
        let registration = registration(&library);
        for file in directory.names().unwrap_or_default() {
            let age = directory.modified_ms(&file);
            let age = age.map_or(0, |then| place.now_ms().saturating_sub(then));
            let start = directory.read_start(&file, registration.len());
            if is_temporary(&file)
                && u128::from(age) > MIN_LEFTOVER_AGE.as_millis()
                && start.is_some_and(|start| registration.starts_with(&start))
            {
                let _ = directory.remove(&file);
            }
        }
        let is_gone = library
            .symlink_metadata()
            .is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if is_gone && directory.remove(REGISTERED).is_ok() {
            place.remove_directory(&name);
        }
    }
}
