//! The directories in which a driver's compiler looks for headers, apart from the working directory and those of the options.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::files::children;
use super::process_variables;
use super::profile::IncludeDir;
use super::real_paths::RealPaths;
use super::{Driver, loaded};

impl Driver {
    /// The directories, whether they exist or not, each once and always in the same order. Relative ones are relative to
    /// the working directory. None: they cannot be found out.
    pub fn include_dirs(&self) -> Option<Vec<PathBuf>> {
        let mut found: Vec<PathBuf> = Vec::new();
        for directory in self.profile.include_dirs {
            match directory {
                IncludeDir::At(path) => found.push(path.into()),
                IncludeDir::ClangResources => found.extend(self.clang_resources()?),
                IncludeDir::PoclCache => {
                    found.push(pocl_cache(|name| {
                        process_variables::value(name).map(PathBuf::from)
                    }));
                }
            }
        }
        let mut seen = std::collections::HashSet::new();
        found.retain(|directory| seen.insert(directory.clone()));
        Some(found)
    }

    /// The directory of the driver's own cache, if it is known to have one. If that cache is off, PoCL removes its files when a
    /// program is released (pocl_runtime_config.c: a value that does not begin with `1` is off; measured).
    pub fn own_cache(&self) -> Option<PathBuf> {
        let is_off = process_variables::value("POCL_KERNEL_CACHE")
            .is_some_and(|value| !value.as_bytes().starts_with(b"1"));
        self.program_dir().filter(|_| !is_off)
    }

    /// The directory where the driver writes programs that it opens as libraries, if it is known to do so. Where its cache is off,
    /// they are there as well.
    pub(super) fn program_dir(&self) -> Option<PathBuf> {
        (self.profile.keeps_a_cache())
            .then(|| pocl_cache(|name| process_variables::value(name).map(PathBuf::from)))
    }

    /// The directories of clang's own headers, for the libraries that are loaded now. Found again after a library was loaded.
    pub fn clang_resources(&self) -> Option<Vec<PathBuf>> {
        let loads = loaded::changes().loads;
        if let Some((_, known)) =
            (self.clang_resources.lock().as_ref()).filter(|(at, _)| *at == loads)
        {
            return Some(known.clone());
        }
        let found = clang_resources(&loaded::paths())?;
        *self.clang_resources.lock() = Some((loads, found.clone()));
        Some(found)
    }
}

/// pocl_cache.c; measured on PoCL 3.1. An empty POCL_CACHE_DIR counts as set, an empty XDG_CACHE_HOME does not.
fn pocl_cache(variable: impl Fn(&str) -> Option<PathBuf>) -> PathBuf {
    let below = |directory: PathBuf| directory.join("pocl/kcache");
    variable("POCL_CACHE_DIR")
        .or_else(|| {
            let xdg = variable("XDG_CACHE_HOME").filter(|path| !path.as_os_str().is_empty());
            xdg.map(below)
        })
        .or_else(|| variable("HOME").map(|home| below(home.join(".cache"))))
        .unwrap_or_else(|| below("/tmp".into()))
}

/// The directories of headers that belong to a library of clang: `clang/<version>/include` beside its real path (clang's
/// Driver::GetResourcesPath; measured on rusticl 22.3), or in the `lib` next to a `lib64`. None: something cannot be looked at, and
/// clang may find headers in it.
fn clang_resources(libraries: &[PathBuf]) -> Option<Vec<PathBuf>> {
    let real = RealPaths::default();
    let mut found = Vec::new();
    for library in libraries {
        let name = library.file_name().map(OsStr::as_bytes).unwrap_or_default();
        if !name.starts_with(b"libclang") {
            continue;
        }
        let Some(library) = real.now_of(library) else {
            continue;
        };
        let Some(beside) = library.parent() else {
            continue;
        };
        let lib = beside.parent().unwrap_or(beside).join("lib");
        let mut places = vec![beside.join("clang"), lib.join("clang")];
        places.dedup();
        for clang in places {
            found.extend(children(&clang, &real).map(|version| version.join("include")));
        }
    }
    found.sort();
    found.dedup();
    real.is_complete().then_some(found)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use super::*;
    use crate::regular_file::tests::without_rights;

    #[test]
    fn the_cache_of_pocl_is_where_its_variables_say() {
        let cache = |set: &[(&str, &str)]| {
            pocl_cache(|name| {
                let (_, value) = set.iter().find(|(known, _)| *known == name)?;
                Some(value.into())
            })
        };
        let home = ("HOME", "/home/u");
        assert_eq!(cache(&[home]), Path::new("/home/u/.cache/pocl/kcache"));
        assert_eq!(
            cache(&[home, ("XDG_CACHE_HOME", "/x")]),
            Path::new("/x/pocl/kcache")
        );
        assert_eq!(
            cache(&[home, ("XDG_CACHE_HOME", "")]),
            Path::new("/home/u/.cache/pocl/kcache")
        );
        assert_eq!(
            cache(&[home, ("XDG_CACHE_HOME", "/x"), ("POCL_CACHE_DIR", "/p")]),
            Path::new("/p")
        );
        assert_eq!(cache(&[]), Path::new("/tmp/pocl/kcache"));
    }

    #[test]
    fn the_headers_of_clang_are_found_beside_the_real_path_of_its_library() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let root = root.path().canonicalize().expect("a path");
        let headers = root.join("llvm/lib/clang/15.0.6/include");
        std::fs::create_dir_all(&headers).expect("made");
        std::fs::write(root.join("llvm/lib/libclang-cpp.so.15"), "").expect("written");
        let link = root.join("libclang-cpp.so.15");
        std::os::unix::fs::symlink("llvm/lib/libclang-cpp.so.15", &link).expect("linked");
        let other = root.join("libother.so");
        let found = clang_resources(&[other.clone(), link]);
        assert_eq!(found, Some(vec![headers]));
        assert_eq!(clang_resources(&[other]), Some(Vec::new()));
    }

    #[test]
    fn headers_of_clang_in_a_directory_that_cannot_be_listed_are_unknown() {
        let root = tempfile::tempdir().expect("a temporary directory");
        let root = root.path().canonicalize().expect("a path");
        std::fs::create_dir_all(root.join("clang/15.0.6/include")).expect("made");
        let library = root.join("libclang-cpp.so.15");
        std::fs::write(&library, "").expect("written");
        let found = |mode| {
            let permissions = std::fs::Permissions::from_mode(mode);
            std::fs::set_permissions(root.join("clang"), permissions).expect("changed");
            without_rights(|| clang_resources(std::slice::from_ref(&library)))
        };
        assert_eq!(found(0o300), None);
        // Clang finds nothing either.
        assert_eq!(found(0o000), Some(Vec::new()));
        assert_eq!(found(0o500).map(|found| found.len()), Some(1));
        std::fs::set_permissions(root.join("clang"), PermissionsExt::from_mode(0o700))
            .expect("changed");
    }
}
