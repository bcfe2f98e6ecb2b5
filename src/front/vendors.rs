//! Finds the drivers in the same places as ICD loaders.
//!
//! Measured on ocl-icd 2.3.1 and 2.3.3 and Khronos' loader: a vendors directory is read in the order of the directory, and
//! of an `.icd` file the first line is the library's path or name.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::config::{Config, Mode};
use crate::{log, regular_file, trust};

/// The directory that loaders read if no variable names another.
pub const DEFAULT_DIRECTORY: &str = "/etc/OpenCL/vendors";

/// A driver's library, as an `.icd` file or a variable names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vendor {
    /// The argument of dlopen.
    pub library: PathBuf,
    /// The loader opens it, too, and reports its platforms itself.
    pub loaded_by_loader: bool,
}

/// The identity of a named library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum VendorIdentity {
    /// This library, or a copy of it.
    Us,
    /// Another library. Two names of one library have the same number.
    Other(usize),
    /// It cannot be opened.
    Unknown,
}

/// Libraries, each with its identity.
type Identified = Vec<(PathBuf, VendorIdentity)>;

/// The drivers to load, in the loader's order.
///
/// `identify` opens a library, as the loader does. The loader itself loads the drivers that its own sources name. If these name
/// only us, the registered drivers are meant.
pub fn find(
    config: &Config,
    environment: &dyn Fn(&str) -> Option<OsString>,
    is_open: &dyn Fn(&Path) -> bool,
    identify: &dyn Fn(&Path) -> VendorIdentity,
) -> Vec<Vendor> {
    // Asked before any library is opened here.
    let wheels = wheel_libraries(environment)
        .into_iter()
        .filter(|library| is_open(library))
        .collect();
    // We and others.
    let apart = |libraries: Vec<PathBuf>| -> (Identified, Identified) {
        let identified = libraries.into_iter().map(|library| {
            let identity = identify(&library);
            (library, identity)
        });
        // A copy that cannot be opened may be for another architecture: a user's vendors directory has one for each machine that
        // shares the home.
        identified.partition(|(library, identity)| match identity {
            VendorIdentity::Us => true,
            VendorIdentity::Other(_) => false,
            VendorIdentity::Unknown => is_named_as_us(library),
        })
    };
    let others = |libraries| apart(libraries).1;
    let (us, loaders) = apart(libraries(&loader_sources(environment)));
    let wheels = others(wheels);
    let mut opened = loaders.iter().chain(&wheels);
    let is_alone =
        !us.is_empty() && !opened.any(|(_, identity)| matches!(identity, VendorIdentity::Other(_)));
    let mode = match config.mode() {
        // Otherwise the program would have no platform.
        Mode::Beside if is_alone => Mode::Auto,
        mode => mode,
    };
    // A source that names nothing but us is how we got here, as inside another `oclcache run`.
    let told = config.vendors().map(|sources| libraries(&sources));
    let told = told.map(|libraries| (libraries.is_empty(), others(libraries)));
    let wanted = match told {
        Some((nothing, found)) if nothing || !found.is_empty() => found,
        _ if !loaders.is_empty() => loaders.clone(),
        _ => others(libraries(&[PathBuf::from(DEFAULT_DIRECTORY)])),
    };
    let names_it = |library: &Path, identity: VendorIdentity| {
        loaders.iter().chain(&wheels).any(|(known, same)| {
            known == library || identity != VendorIdentity::Unknown && *same == identity
        })
    };
    let vendor = |(library, identity): (PathBuf, VendorIdentity)| Vendor {
        loaded_by_loader: match mode {
            Mode::Icd => false,
            Mode::Beside => true,
            Mode::Auto => names_it(&library, identity),
        },
        library,
    };
    let named: Vec<PathBuf> = wanted.iter().map(|(library, _)| library.clone()).collect();
    let more = wheels
        .iter()
        .filter(|(library, _)| !named.contains(library))
        .cloned();
    wanted.into_iter().chain(more).map(vendor).collect()
}

/// All libraries that the settings, the loaders' variables or the default directory name, each once. None is opened. This library
/// may be among them.
pub fn named(config: &Config, environment: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let mut sources = config.vendors().unwrap_or_default();
    sources.extend(loader_sources(environment));
    let mut named = libraries(&sources);
    named.extend(wheel_libraries(environment));
    named.extend(libraries(&[PathBuf::from(DEFAULT_DIRECTORY)]));
    let mut seen = std::collections::HashSet::new();
    named.retain(|library| seen.insert(library.clone()));
    named
}

/// The drivers that are named to a process for which we are the only registered driver, as far as this is known without opening a
/// library. `sources` are those of the setting.
pub fn drivers_of_run(
    sources: &[PathBuf],
    environment: &dyn Fn(&str) -> Option<OsString>,
) -> Vec<PathBuf> {
    let is_driver = |library: &PathBuf| !is_named_as_us(library);
    let told = libraries(sources);
    let mut named = [told.as_slice(), &wheel_libraries(environment)].concat();
    // As in `find`.
    if sources.is_empty() || !told.is_empty() && !told.iter().any(is_driver) {
        named.extend(libraries(&[PathBuf::from(DEFAULT_DIRECTORY)]));
    }
    named.retain(is_driver);
    named
}

/// The registered drivers, for a program with raised privileges, whose environment is not read. ocl-icd reads its own there
/// all the same, so whether the loader loads a driver is seen from `is_open`: ocl-icd opens all its drivers before it asks
/// the first. Khronos' loader asks one after the other but reads the default directory only, so it loads them all if that
/// names us.
pub fn registered(
    is_open: &dyn Fn(&Path) -> bool,
    identify: &dyn Fn(&Path) -> VendorIdentity,
) -> Vec<Vendor> {
    let all = libraries(&[PathBuf::from(DEFAULT_DIRECTORY)]);
    // Before any is opened here.
    let open: Vec<bool> = all.iter().map(|library| is_open(library)).collect();
    let identities: Vec<VendorIdentity> = all.iter().map(|library| identify(library)).collect();
    let names_us = identities.contains(&VendorIdentity::Us);
    let vendors = all.into_iter().zip(open).zip(identities);
    vendors
        .filter(|(_, identity)| *identity != VendorIdentity::Us)
        .map(|((library, open), _)| Vendor {
            library,
            loaded_by_loader: open || names_us,
        })
        .collect()
}

/// Drivers in PyOpenCL's own directory: the loader in its wheel (ocl-icd 2.3 with a patch, measured) loads them beside all
/// others, and opens all before it asks the first. `import pyopencl` sets the variable, which programs that it starts inherit;
/// a loader that does not know it has not opened them.
fn wheel_libraries(environment: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let home = environment("PYOPENCL_HOME").filter(|value| !value.is_empty());
    let libraries = home.map(|home| Path::new(&home).join(".libs"));
    libraries.map_or_else(Vec::new, |libraries| registered_in(&libraries))
}

/// The drivers in PyOpenCL's own directory of libraries, by their paths: the dynamic linker finds their names only while the loader has them open,
/// and the baker does not have them open.
pub fn registered_in(directory: &Path) -> Vec<PathBuf> {
    if !directory.is_dir() {
        return Vec::new();
    }
    let named = libraries(&[directory.to_owned()]).into_iter();
    let paths = named.map(|library| match directory.join(&library) {
        path if is_bare_name(&library) && path.exists() => path,
        _ => library,
    });
    paths.collect()
}

/// Whether a driver is registered in PyOpenCL's own directory of some environment, and nobody but these users can change that.
pub fn is_registered_in_wheel(library: &Path, owners: &[u32]) -> bool {
    library.parent().is_some_and(|directory| {
        directory.ends_with("pyopencl/.libs")
            && matches!(trust::open(library, trust::FILE, owners), Ok(Some(_)))
            && matches!(
                trust::open(directory, trust::DIRECTORY, owners),
                Ok(Some(_))
            )
            && registered_in(directory)
                .iter()
                .any(|known| known == library)
    })
}

/// The sources of drivers that variables name to the loader that called us. Variables that only one loader knows count for all
/// loaders: at worst, a driver is cached but not reported.
pub fn loader_sources(environment: &dyn Fn(&str) -> Option<OsString>) -> Vec<PathBuf> {
    let variable = |name: &str| {
        environment(name)
            .filter(|value| !value.is_empty())
            .map(PathBuf::from)
    };
    let mut sources: Vec<PathBuf> = Vec::new();
    if let Some(files) = variable("OCL_ICD_FILENAMES") {
        sources.extend(
            files
                .as_os_str()
                .as_bytes()
                .split(|byte| *byte == b':')
                .map(|part| OsStr::from_bytes(part).into()),
        );
    }
    let directory = variable("OCL_ICD_VENDORS").or_else(|| variable("OPENCL_VENDOR_PATH"));
    sources.push(directory.unwrap_or_else(|| DEFAULT_DIRECTORY.into()));
    sources
}

/// One item that a source names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VendorList {
    /// The `.icd` file that names the library, or what else was named.
    pub place: PathBuf,
    /// The argument of dlopen, or why there is none, for people.
    pub library: Result<PathBuf, String>,
}

/// The libraries that a list of directories, `.icd` files and libraries names.
fn libraries(sources: &[PathBuf]) -> Vec<PathBuf> {
    let named = sources.iter().flat_map(|source| listed(source));
    let known = named.filter_map(|listed| {
        listed
            .library
            .inspect_err(|why| tracing::warn!(path = %log::path(&listed.place), "{why}"))
            .ok()
    });
    known.collect()
}

/// The items that a directory, an `.icd` file or a library path names, in the loaders' order.
pub fn listed(source: &Path) -> Vec<VendorList> {
    let registered = Path::new(DEFAULT_DIRECTORY).join(source);
    let one = |place: &Path, library| {
        vec![VendorList {
            place: place.to_owned(),
            library,
        }]
    };
    if source.as_os_str().is_empty() {
        Vec::new()
    } else if is_bare_name(source) && is_icd_file(source) {
        one(&registered, first_line(&registered))
    } else if source.is_dir() {
        match std::fs::read_dir(source) {
            Ok(entries) => {
                let files = entries.flatten().map(|entry| entry.path());
                let files = files.filter(|path| is_icd_file(path));
                let listed = files.map(|place| VendorList {
                    library: first_line(&place),
                    place,
                });
                listed.collect()
            }
            Err(error) => one(
                source,
                Err(format!("this vendors directory cannot be read: {error}")),
            ),
        }
    } else if is_icd_file(source) {
        one(source, first_line(source))
    } else if !is_bare_name(source) && !source.exists() {
        one(source, Err("this vendors path does not exist".to_owned()))
    } else {
        one(source, Ok(source.to_owned()))
    }
}

/// Whether a path has no directory: the name of a registered `.icd` file (ocl-icd), or of a library that the dynamic linker finds.
pub fn is_bare_name(path: &Path) -> bool {
    !path.as_os_str().as_bytes().contains(&b'/')
}

/// Whether a library has our name.
pub fn is_named_as_us(library: &Path) -> bool {
    let name = library.file_name().unwrap_or_default().as_bytes();
    name.starts_with(b"liboclcache")
}

fn is_icd_file(path: &Path) -> bool {
    path.as_os_str().as_bytes().ends_with(b".icd")
}

fn first_line(file: &Path) -> Result<PathBuf, String> {
    let content = regular_file::read(file);
    let content = content.and_then(|content| content.ok_or_else(regular_file::is_none));
    let content = content.map_err(|error| format!("this .icd file cannot be read: {error}"))?;
    let line = content
        .split(|byte| *byte == b'\n')
        .next()
        .unwrap_or_default();
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    if line.is_empty() {
        return Err("this .icd file names no library".to_owned());
    }
    Ok(OsStr::from_bytes(line).into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vendors(variables: &[(&str, &str)]) -> Vec<(String, bool)> {
        let variables: Vec<(String, String)> = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let environment = move |name: &str| {
            variables
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, value)| OsString::from(value))
        };
        let config = Config::read_from(&environment, None);
        let identify = |library: &Path| match library.to_string_lossy().as_ref() {
            ours if ours.ends_with("liboclcache.so") => VendorIdentity::Us,
            "liba.so" | "/lib/liba.so" => VendorIdentity::Other(1),
            _ => VendorIdentity::Unknown,
        };
        let found = find(&config, &environment, &|_| false, &identify);
        found
            .into_iter()
            .map(|vendor| {
                (
                    vendor.library.display().to_string(),
                    vendor.loaded_by_loader,
                )
            })
            .collect()
    }

    fn directory(files: &[(&str, &str)]) -> tempfile::TempDir {
        let directory = tempfile::tempdir().expect("a temporary directory");
        for (name, content) in files {
            std::fs::write(directory.path().join(name), content).expect("written");
        }
        directory
    }

    #[test]
    fn beside_the_drivers_nothing_is_reported_twice() {
        let both = directory(&[
            ("oclcache.icd", "/x/liboclcache.so\n"),
            ("a.icd", "liba.so\nsecond line\n"),
            ("notes", ""),
        ]);
        let both = both.path().to_str().expect("UTF-8");
        assert_eq!(
            vendors(&[("OCL_ICD_VENDORS", both)]),
            [("liba.so".to_owned(), true)]
        );
        let icd = vendors(&[("OCL_ICD_VENDORS", both), ("OCLCACHE_MODE", "icd")]);
        assert_eq!(icd, [("liba.so".to_owned(), false)]);
    }

    #[test]
    fn one_driver_under_two_names_is_reported_once() {
        let both = directory(&[
            ("oclcache.icd", "/x/liboclcache.so\n"),
            ("a.icd", "liba.so\n"),
        ]);
        let both = both.path().to_str().expect("UTF-8");
        let named = directory(&[("b.icd", "/lib/liba.so\n")]);
        let list = named.path().join("b.icd");
        let found = vendors(&[
            ("OCL_ICD_VENDORS", both),
            ("OCLCACHE_VENDORS", list.to_str().expect("UTF-8")),
        ]);
        assert_eq!(found, [("/lib/liba.so".to_owned(), true)]);
    }

    /// A loader that has opened none would have no platform, and one whose directories are not known may have opened some.
    #[test]
    fn no_driver_is_reported_beside_those_that_the_loader_opens() {
        let ours = directory(&[("oclcache.icd", "/x/liboclcache.so\n")]);
        let broken = directory(&[
            ("oclcache.icd", "/x/liboclcache.so\n"),
            ("gone.icd", "/lib/libgone.so\n"),
        ]);
        let both = directory(&[
            ("oclcache.icd", "/x/liboclcache.so\n"),
            ("a.icd", "liba.so\n"),
        ]);
        let elsewhere = directory(&[]);
        for (loader, is_beside) in [
            (&ours, false),
            (&broken, false),
            (&both, true),
            (&elsewhere, true),
        ] {
            let found = vendors(&[
                ("OCL_ICD_VENDORS", loader.path().to_str().expect("UTF-8")),
                ("OCLCACHE_VENDORS", "libb.so"),
                ("OCLCACHE_MODE", "beside"),
            ]);
            assert_eq!(found, [("libb.so".to_owned(), is_beside)], "{loader:?}");
        }
    }

    #[test]
    fn a_copy_for_another_architecture_hides_no_driver() {
        let ours = directory(&[("oclcache-a.icd", "/x/liboclcache.so\n")]);
        let both = directory(&[
            ("oclcache-a.icd", "/x/liboclcache.so\n"),
            ("oclcache-b.icd", "/x/liboclcache.so.b\n"),
            ("none.icd", ""),
        ]);
        let found = |directory: &tempfile::TempDir| {
            vendors(&[("OCL_ICD_VENDORS", directory.path().to_str().expect("UTF-8"))])
        };
        // The registered drivers of this machine, if there are any.
        assert_eq!(found(&both), found(&ours));
    }

    #[test]
    fn drivers_that_only_we_were_told_of_are_reported() {
        let ours = directory(&[("oclcache.icd", "/x/liboclcache.so\n")]);
        let ours = ours.path().to_str().expect("UTF-8");
        let theirs = directory(&[("a.icd", "liba.so")]);
        let list = format!("{}:libdirect.so", theirs.path().join("a.icd").display());
        let found = vendors(&[("OCL_ICD_VENDORS", ours), ("OCLCACHE_VENDORS", &list)]);
        assert_eq!(
            found,
            [
                ("liba.so".to_owned(), false),
                ("libdirect.so".to_owned(), false)
            ]
        );
    }

    #[test]
    fn a_source_that_names_nothing_but_us_means_what_the_loader_would_read() {
        let ours = directory(&[("oclcache.icd", "/x/liboclcache.so\n")]);
        let ours = ours.path().to_str().expect("UTF-8");
        let theirs = directory(&[("a.icd", "liba.so\n")]);
        let theirs = theirs.path().to_str().expect("UTF-8");
        let found = vendors(&[("OCL_ICD_VENDORS", theirs), ("OCLCACHE_VENDORS", ours)]);
        assert_eq!(found, [("liba.so".to_owned(), true)]);
    }

    #[test]
    fn a_path_that_does_not_exist_is_left_out() {
        assert_eq!(
            vendors(&[("OCLCACHE_VENDORS", "/does/not/exist.so:/does/not/exist.icd")]),
            []
        );
    }
}
