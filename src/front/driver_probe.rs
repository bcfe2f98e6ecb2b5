//! The command's door: opens one registered driver directly, with our hooks in its tables.

use std::path::{Path, PathBuf};

use super::vendors;
use crate::cl::Platform;
use crate::config::Config;
use crate::driver::{
    Application, Driver, DriverLibrary, OpenError, file_of, has_dispatch_data, profile,
};
use crate::hook;

/// The libraries that are registered as drivers, as their `.icd` files name them. None is opened.
pub fn registered(config: &Config) -> Vec<PathBuf> {
    vendors::named(config, &|name| std::env::var_os(name))
}

/// Whether two paths or names lead to the same file. An `.icd` file may have a name without a directory, or a link.
pub fn is_same_library(one: &Path, other: &Path) -> bool {
    one == other || file_of(one).is_some_and(|file| file_of(other) == Some(file))
}

/// Opens a driver's library.
///
/// # Errors
/// Why it cannot be used, for people.
pub fn open(library: &Path) -> Result<Vec<Application>, String> {
    super::open().ok_or("this command runs with raised privileges")?;
    let library = DriverLibrary::open(library).map_err(|error| error.to_string())?;
    Driver::hook(&library, hook::table);
    let opened = Application::all_of(&library);
    if opened.is_empty() {
        return Err("it has no platform that can be used".to_owned());
    }
    Ok(opened)
}

/// Whether a loader with ICD 2.0 calls a platform through its own table.
pub fn is_called_through_a_loaders_table(platform: Platform) -> bool {
    has_dispatch_data(platform)
}

/// The findings about a driver's library.
pub struct Examined {
    /// Its platforms.
    pub platforms: Vec<ExaminedPlatform>,
    /// Whether it is a driver with ICD 2.0.
    pub is_icd2: bool,
    /// Whether loaders with ICD 2.0 call it through their own tables all the same: see [`Driver::lead_loaders_through`].
    pub stays_tagged: bool,
}

/// One platform of a driver.
pub struct ExaminedPlatform {
    /// CL_PLATFORM_NAME.
    pub name: Vec<u8>,
    /// The driver's profile.
    pub family: &'static str,
    /// The number of devices.
    pub devices: usize,
    /// Whether our hooks are in its table.
    pub is_hooked: bool,
    /// Whether it tells its version of OpenCL, from which the length of its table follows.
    pub has_version: bool,
    /// Whether loaders with ICD 2.0 refuse it.
    pub is_refused: bool,
}

/// Opens a driver's library and checks whether it can be hooked. None: it is this library.
///
/// # Errors
/// Why it cannot be used, for people.
pub fn examine(path: &Path) -> Result<Option<Examined>, String> {
    super::open().ok_or("this command runs with raised privileges")?;
    let library = match DriverLibrary::open(path) {
        Ok(library) => library,
        Err(OpenError::Ourselves) => return Ok(None),
        Err(error) => return Err(error.to_string()),
    };
    Driver::hook(&library, hook::table);
    let is_icd2 = library.is_icd2();
    let stays_tagged = Driver::lead_loaders_through(&library, hook::table).is_err();
    let applications = Application::all_of(&library);
    let groups = library.tables();
    let one = |platform: &Platform| {
        let group = groups
            .iter()
            .find(|group| group.platforms.contains(platform));
        let application = applications.iter().find(|one| one.is_of(*platform));
        let recognition = group.map(|group| &group.recognition);
        ExaminedPlatform {
            name: recognition.map_or_else(Vec::new, |recognition| recognition.name.clone()),
            family: recognition.map_or("unknown", |recognition| profile::of(recognition).family),
            devices: application.map_or(0, |one| one.devices().map_or(0, |devices| devices.len())),
            is_hooked: application.is_some(),
            has_version: recognition.is_some_and(|recognition| recognition.slots > 0),
            is_refused: library.is_refused_by_loader(*platform),
        }
    };
    Ok(Some(Examined {
        platforms: library.platforms().iter().map(one).collect(),
        is_icd2,
        stays_tagged,
    }))
}
