//! `oclcache config`.

use std::fmt::Write;
use std::process::ExitCode;

use super::{Failure, print, say, tiers};
use crate::config::{Config, Name, SETTINGS, Source};
use crate::log::{os, path};
use crate::store::Store;
use crate::store::filesystem::FileSystem;

pub fn config() -> Result<ExitCode, Failure> {
    let config = Config::read();
    for complaint in &config.complaints {
        say(&format!("oclcache: {complaint}"));
    }
    if let Ok(directory) = config.directory()
        && let Err(error) = Store::open_existing(&directory)
    {
        say(&format!("oclcache: the cache is off: {error}"));
    }
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
    print(shown.as_bytes())
}
