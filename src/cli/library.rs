//! Finds the library that belongs to this command.

use std::path::{Path, PathBuf};

use super::executable::find_program;
use super::failure::Failure;
use super::home::{Copies, LIBRARY};
use super::output::quoted;
use crate::log::path;

/// The path of the library, if the package was built for one.
const BUILT_LIBRARY: Option<&str> = option_env!("OCLCACHE_DEFAULT_LIBRARY");

pub fn own_path() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|error| Failure::new(format_args!("cannot find this command: {error}")))
}

/// Whether this command belongs to the Python package, whose module is beside it. `pip` installs it for no shell, and it needs none.
pub fn is_of_python_package() -> bool {
    let own = own_path().unwrap_or_default();
    own.with_file_name("__init__.py").is_file()
}

/// What to type for this command in a shell.
pub fn typed() -> String {
    const NAME: &str = "oclcache";
    let own = own_path().unwrap_or_default();
    let found = find_program(NAME.as_ref()).and_then(|found| found.canonicalize().ok());
    let is_launcher = |found: &Path| {
        let copies = Copies::find().ok();
        copies.is_some_and(|copies| {
            copies.launcher().canonicalize().ok().as_deref() == Some(found)
                && copies.command().canonicalize().ok() == Some(own.clone())
        })
    };
    // The script of a Python package starts the command under the script's own name.
    let is_started_as = |found: &Path| {
        let name = std::env::args_os().next().map(PathBuf::from);
        let name = name.filter(|name| name.is_absolute());
        name.and_then(|name| name.canonicalize().ok()).as_deref() == Some(found)
    };
    match found {
        Some(found) if found == own || is_launcher(&found) || is_started_as(&found) => {
            NAME.to_owned()
        }
        _ => quoted(&own).unwrap_or_else(|| NAME.to_owned()),
    }
}

/// The library beside the command, in `../lib`, or where the package was built to have it.
pub fn library(command: &Path) -> Result<PathBuf, Failure> {
    let beside = command.parent().unwrap_or(Path::new("/"));
    let mut places = vec![beside.join(LIBRARY), beside.join("../lib").join(LIBRARY)];
    places.extend(
        BUILT_LIBRARY
            .filter(|built| !built.is_empty())
            .map(PathBuf::from),
    );
    let found = places.iter().find_map(|place| place.canonicalize().ok());
    found.ok_or_else(|| {
        let places: Vec<_> = places
            .iter()
            .map(|place| format!("`{}`", path(place)))
            .collect();
        Failure::new(format_args!(
            "{LIBRARY} is not at {}; install it beside this command",
            places.join(" nor ")
        ))
    })
}
