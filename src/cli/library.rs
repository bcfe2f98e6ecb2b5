//! Finds the library that belongs to this command.

use std::path::{Path, PathBuf};

use super::failure::Failure;
use crate::log::path;

/// The path of the library, if the package was built for one.
const BUILT_LIBRARY: Option<&str> = option_env!("OCLCACHE_DEFAULT_LIBRARY");
const LIBRARY: &str = "liboclcache.so";

pub fn own_path() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|error| Failure::new(format_args!("cannot find this command: {error}")))
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
