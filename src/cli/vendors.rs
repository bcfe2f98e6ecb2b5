//! Directories of drivers for loaders (`OCL_ICD_VENDORS`), with only our library in them, or with our library beside the drivers.

use std::ffi::{OsStr, OsString};
use std::fs::{Permissions, ReadDir};
use std::io::{ErrorKind, Write as _};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::failure::Failure;
use crate::config;
use crate::front::vendors::DEFAULT_DIRECTORY;
use crate::log::path;
use crate::store::StoreError;
use crate::store::directory::{Directory, is_temporary};

/// The variables that tell loaders where drivers are.
pub const LOADER_VARIABLES: [&str; 3] =
    ["OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "OPENCL_VENDOR_PATH"];

const REGISTERED: &str = "oclcache.icd";
/// What the file says in packages that can be unpacked anywhere: the library's name, until a first run replaces it by the path.
const UNPLACED: &[u8] = b"liboclcache.so\n";
const PREFIX: &str = "vendors-";
const BESIDE_PREFIX: &str = "beside-";
/// The size of a registration, in bytes (PATH_MAX of Linux, and the end of the line).
const MAX_BYTES: u64 = 4096 + 2;
/// Another process may still be writing a younger file.
const MIN_LEFTOVER_AGE: Duration = Duration::from_secs(3600);

/// The drivers that the loader would have read, for OCLCACHE_VENDORS; None for the default directory, or if the user has set it.
pub fn vendors() -> Result<Option<OsString>, Failure> {
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
    match directory_of_loader()? {
        Some(source) => sources.push(source),
        None if sources.is_empty() => return Ok(None),
        // The loader reads these files in addition to the default directory.
        None => sources.push(DEFAULT_DIRECTORY.into()),
    }
    Ok(Some(config::list(&sources)))
}

/// The directory, `.icd` file or library that a variable names to the loader in place of the default directory.
pub fn directory_of_loader() -> Result<Option<PathBuf>, Failure> {
    let named = ["OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"]
        .into_iter()
        .find_map(|name| Some((name, variable(name)?)));
    named
        .map(|(name, source)| absolute(name, &source))
        .transpose()
}

fn variable(name: &str) -> Option<OsString> {
    std::env::var_os(name).filter(|value| !value.is_empty())
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

/// The vendors directory that was installed with a library, so that nothing has to be written in a home. None if no package has brought
/// one, or if it names a library elsewhere and cannot be changed.
///
/// It is trusted as the library beside it is.
pub fn installed_vendors(library: &Path) -> Option<PathBuf> {
    let beside = library.parent()?;
    let mut places = [beside.join("vendors"), beside.join("oclcache/vendors")].into_iter();
    places.find(|place| {
        let file = place.join(REGISTERED);
        let Ok(content) = std::fs::read(&file) else {
            return false;
        };
        if content == UNPLACED && place_registration(place, library).is_err() {
            return false;
        }
        let named = std::fs::read(&file).unwrap_or_default();
        let named = named.strip_suffix(b"\n").map(OsStr::from_bytes);
        let is_ours = named.is_some_and(|named| {
            Path::new(named).is_absolute()
                && Path::new(named).canonicalize().ok().as_deref() == Some(library)
        });
        // A loader would open whatever else is registered there.
        let is_registration = |name: &OsStr| name.as_bytes().ends_with(b".icd");
        let count = |entries: ReadDir| {
            let names = entries.flatten().map(|entry| entry.file_name());
            names.filter(|name| is_registration(name)).count()
        };
        is_ours && std::fs::read_dir(place).map(count).ok() == Some(1)
    })
}

/// Replaces the file of a package that could not know where it would be. All users may read it, as they may the library.
fn place_registration(place: &Path, library: &Path) -> std::io::Result<()> {
    let mut file = tempfile::NamedTempFile::new_in(place)?;
    file.write_all(&registration(library))?;
    file.as_file()
        .set_permissions(Permissions::from_mode(0o644))?;
    file.persist(place.join(REGISTERED))?;
    Ok(())
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

/// The directory that names us and these drivers, made in this directory. Programs that find it after our library was removed
/// still find the drivers. It has the drivers in their order, because programs choose them by number.
///
/// None: the file system lists names in no order that can be had here.
///
/// # Errors
/// It cannot be made.
pub fn beside_directory(
    place: &Directory,
    library: &Path,
    drivers: &[PathBuf],
) -> Result<Option<PathBuf>, StoreError> {
    let drivers: Vec<Vec<u8>> = drivers.iter().map(|driver| registration(driver)).collect();
    let library = registration(library);
    let directory = place.create(&name_beside(&library, &drivers))?;
    let has_all = || {
        let names = registered_names(&directory);
        let mut pairs = names.iter().zip(&drivers);
        names.len() == drivers.len()
            && pairs.all(|(name, driver)| directory.begins_with(name, driver))
            && directory.begins_with(REGISTERED, &library)
    };
    if !has_all() {
        let mut names = Vec::new();
        for driver in &drivers {
            if !put_last(&directory, &mut names, driver)? {
                for name in &names {
                    directory.remove(name)?;
                }
                place.remove_directory(&name_beside(&library, &drivers));
                return Ok(None);
            }
        }
        directory.write_once(&directory, REGISTERED, &library)?;
    }
    Ok(has_all().then(|| directory.path().to_owned()))
}

/// Writes the next file under a name that the directory lists behind the earlier ones. Some file systems list names in the order of
/// a hash, so several names are tried; two processes that do this at once come to the same name.
fn put_last(
    directory: &Directory,
    names: &mut Vec<String>,
    content: &[u8],
) -> Result<bool, StoreError> {
    for letter in 'a'..='z' {
        let name = format!("{:02}{letter}.icd", names.len());
        directory.write_once(directory, &name, content)?;
        names.push(name.clone());
        let mut listed = registered_names(directory);
        listed.retain(|name| names.contains(name));
        if listed == *names {
            return Ok(true);
        }
        names.pop();
        directory.remove(&name)?;
    }
    Ok(false)
}

/// The files that register drivers, in the order in which loaders read them.
fn registered_names(directory: &Directory) -> Vec<String> {
    let mut names = directory.names().unwrap_or_default();
    names.retain(|name| name != REGISTERED && name.ends_with(".icd"));
    names
}

fn name_beside(library: &[u8], drivers: &[Vec<u8>]) -> String {
    let all = [library, &drivers.concat()].concat();
    format!("{BESIDE_PREFIX}{:016x}", xxhash_rust::xxh3::xxh3_64(&all))
}

/// A directory that was made here.
pub struct MadeVendors {
    pub name: String,
    /// The library that it names.
    pub library: PathBuf,
    /// Its files, without unfinished ones.
    pub files: Vec<String>,
}

/// The vendors directories in a directory that are certainly ours: each contains only registrations, and its name is the digest of
/// the paths in those.
pub fn made_vendors(place: &Directory) -> Vec<MadeVendors> {
    let names = place.names().unwrap_or_default();
    let made = names.into_iter().filter_map(|name| {
        if !name.starts_with(PREFIX) && !name.starts_with(BESIDE_PREFIX) {
            return None;
        }
        let directory = place.open_below(&name).ok()??;
        let read = |file: &str| directory.read(file, MAX_BYTES).ok()?;
        let content = read(REGISTERED)?;
        let library = PathBuf::from(OsStr::from_bytes(content.strip_suffix(b"\n")?));
        let mut files = directory.names().ok()?;
        files.retain(|file| !is_temporary(file));
        let beside = registered_names(&directory);
        let drivers: Option<Vec<Vec<u8>>> = beside.iter().map(|file| read(file)).collect();
        let expected = match beside.as_slice() {
            [] if name.starts_with(PREFIX) => name_of(&library),
            _ => name_beside(&content, &drivers?),
        };
        (name == expected && files.len() == beside.len() + 1).then_some(MadeVendors {
            name,
            library,
            files,
        })
    });
    made.collect()
}

/// Removes vendors directories whose library is gone, and temporary files that killed processes have left in the others.
pub fn forget_vendors(place: &Directory) {
    for made in made_vendors(place) {
        let Ok(Some(directory)) = place.open_below(&made.name) else {
            continue;
        };
        let lines = made.files.iter().filter_map(|file| {
            let line = directory.read(file, MAX_BYTES).ok()?;
            line.filter(|line| !line.is_empty())
        });
        let lines: Vec<Vec<u8>> = lines.collect();
        for file in directory.names().unwrap_or_default() {
            let age = directory.modified_ms(&file);
            let age = age.map_or(0, |then| place.now_ms().saturating_sub(then));
            let start = directory.read_start(&file, MAX_BYTES as usize);
            if is_temporary(&file)
                && u128::from(age) > MIN_LEFTOVER_AGE.as_millis()
                && start.is_some_and(|start| lines.iter().any(|line| line.starts_with(&start)))
            {
                let _ = directory.remove(&file);
            }
        }
        let is_gone = made
            .library
            .symlink_metadata()
            .is_err_and(|error| error.kind() == ErrorKind::NotFound);
        if is_gone {
            // Ours last: without it, the directory would no longer be known as ours.
            let drivers = made.files.iter().filter(|file| *file != REGISTERED);
            for file in drivers.map(String::as_str).chain([REGISTERED]) {
                let _ = directory.remove(file);
            }
            place.remove_directory(&made.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::front::vendors::listed;

    #[test]
    fn the_drivers_stay_in_their_order_beside_us_and_are_forgotten_with_us() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let place = Directory::create_all(&directory.path().join("data")).expect("made");
        let library = directory.path().join("liboclcache.so");
        std::fs::write(&library, "").expect("written");
        let drivers: Vec<PathBuf> = (0..6).map(|it| format!("/d/lib{it}.so").into()).collect();
        for number in [1, 6] {
            let drivers = &drivers[..number];
            let make = || beside_directory(&place, &library, drivers).expect("made");
            let Some(made) = make() else {
                // A file system that lists the newest name first.
                assert!(number > 1);
                continue;
            };
            let found = listed(&made).into_iter().filter_map(|it| it.library.ok());
            let found: Vec<PathBuf> = found.filter(|it| *it != library).collect();
            assert_eq!(found, drivers);
            let before = std::fs::metadata(&made).and_then(|it| it.modified()).ok();
            assert_eq!(make().as_ref(), Some(&made));
            let after = std::fs::metadata(&made).and_then(|it| it.modified()).ok();
            assert_eq!(after, before, "written twice");
        }
        forget_vendors(&place);
        assert!(!place.names().expect("names").is_empty());
        std::fs::remove_file(&library).expect("removed");
        forget_vendors(&place);
        assert_eq!(place.names().expect("names"), Vec::<String>::new());
    }
}
