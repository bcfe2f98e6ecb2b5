//! `oclcache config`.

use std::collections::HashSet;
use std::fmt::Write;
use std::process::ExitCode;

use super::output::{print, say};
use super::{Failure, tiers};
use crate::cache::policy::decide;
use crate::config::{Config, Name, SETTINGS, Source};
use crate::driver::profile;
use crate::log::{os, path, text};
use crate::store::Store;
use crate::store::filesystem::FileSystem;
use crate::store::measures;

pub fn config() -> Result<ExitCode, Failure> {
    let config = Config::read();
    for complaint in &config.complaints {
        say(&format!("oclcache: {complaint}"));
    }
    let opened = match config.directory() {
        Ok(directory) => Store::open_existing(&directory),
        Err(_) => Ok(None), // said below
    };
    let store = opened.unwrap_or_else(|error| {
        say(&format!("oclcache: the cache is off: {error}"));
        None
    });
    for tier in tiers(&config).all() {
        if let Err(why) = &tier.store {
            say(&format!(
                "oclcache: `{}` is not used: {why}",
                path(&tier.path)
            ));
        }
    }
    let mut shown = String::new();
    for setting in &SETTINGS {
        let (value, source) = config.value(setting.name);
        let value = match (setting.name, config.directory()) {
            (Name::Dir, Ok(directory)) => path(&directory).to_string(),
            (Name::Dir, Err(why)) => format!("(off: {why})"),
            _ => os(value).to_string(),
        };
        let source = match source {
            Source::Default => "default".to_owned(),
            Source::Environment => {
                format!("environment, {}", setting.variable.unwrap_or_default())
            }
            Source::SystemFile(file) | Source::File(file) => path(file).to_string(),
        };
        let _ = writeln!(
            shown,
            "{} = {value}\n    {}; from: {source}",
            setting.key, setting.help
        );
        if let (Name::Dir, Ok(directory)) = (setting.name, config.directory()) {
            let file_system = FileSystem::at(&directory).described();
            let _ = writeln!(shown, "    file system: {file_system}");
        }
    }
    if let Some(store) = store {
        shown.push_str(&drivers(&config, &store));
    }
    print(shown.as_bytes())
}

/// Each driver that was used with the cache, and when what it builds is recorded. Of one that was updated the latest counts.
fn drivers(config: &Config, store: &Store) -> String {
    let mut shown = String::new();
    let now_ms = store.root().now_ms();
    let mut seen = HashSet::new();
    for driver in measures::list(store) {
        if seen.insert((driver.family.clone(), driver.library.clone())) {
            let record = profile::named(&driver.family).record;
            let decision = decide(config, record, Some(&driver), now_ms);
            let (family, library) = (driver.family.as_bytes(), driver.library.as_bytes());
            let (family, library) = (text(family), text(library));
            let _ = writeln!(shown, "driver {family}, {library}\n    {decision}");
        }
    }
    shown
}
