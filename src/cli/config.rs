//! `oclcache config`.

mod editor;
mod setting_name;

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};

use super::failure::Failure;
use super::open::{directory_or_why, say_complaints, tiers};
use super::output::{print, print_json, say};
use super::remote;
use super::replace_file::is_writable;
use crate::cache::behavior;
use crate::cache::policy::decide;
use crate::config::{
    Config, Name, RULES, SETTINGS, Setting, ValueSource, of_system, of_user, shown,
};
use crate::filesystem::FileSystem;
use crate::log::{os, path, text};
use crate::store::Store;
use crate::store::driver_costs;
use editor::ConfigEditor;
use setting_name::SettingName;

/// Show all settings with their values and sources, or change one
#[derive(Args, Default)]
#[command(after_help = "Example: OCLCACHE_READONLY=1 oclcache config\nIn ccache: -p")]
pub struct ConfigArgs {
    #[command(subcommand)]
    what: Option<What>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Subcommand)]
enum What {
    /// Print the value of one setting
    #[command(after_help = "Example: oclcache config get max_size\nIn ccache: -k")]
    Get {
        /// The setting, such as `max_size` or `program.NAME.cache`
        #[arg(value_name = "SETTING")]
        key: OsString,
        /// Print JSON, with the source of the value
        #[arg(long)]
        json: bool,
    },
    /// Write a setting to the configuration file
    #[command(
        after_help = "Example: oclcache config set max_size 20Gi\nExample: oclcache config set program.darktable.store_source false\nIn ccache: -o"
    )]
    Set {
        /// The setting, such as `max_size` or `program.NAME.cache`
        #[arg(value_name = "SETTING")]
        key: OsString,
        /// The value
        #[arg(allow_hyphen_values = true)]
        value: OsString,
        /// Write the system's file, for all users
        #[arg(long)]
        system: bool,
    },
    /// Remove a setting from the configuration file
    #[command(after_help = "Example: oclcache config unset max_size")]
    Unset {
        /// The setting, such as `max_size` or `program.NAME.cache`
        #[arg(value_name = "SETTING")]
        key: OsString,
        /// Change the system's file
        #[arg(long)]
        system: bool,
    },
}

impl ConfigArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        match self.what {
            None => show(self.json),
            Some(What::Get { key, json }) => get(&parse(&key)?, json || self.json),
            Some(What::Set { key, value, system }) => set(&parse(&key)?, &value, system),
            Some(What::Unset { key, system }) => unset(&parse(&key)?, system),
        }
    }
}

fn parse(key: &OsStr) -> Result<SettingName, Failure> {
    SettingName::parse(key).map_err(Failure::usage)
}

/// The value of a setting, or why the cache is off.
fn value_of(config: &Config, setting: &Setting) -> Result<OsString, String> {
    match setting.name {
        Name::Dir => directory_or_why(config).map(PathBuf::into_os_string),
        name => Ok(shown(name, &config.value(name).0)),
    }
}

/// The source of a value, as a message.
fn source_of(setting: &Setting, source: &ValueSource) -> String {
    match source {
        ValueSource::Default => "default".to_owned(),
        ValueSource::Environment => {
            format!("environment, {}", setting.variable.unwrap_or_default())
        }
        ValueSource::SystemFile(file) | ValueSource::File(file) => path(file).to_string(),
    }
}

fn source_as_json(setting: &Setting, source: &ValueSource) -> Value {
    match source {
        ValueSource::Default => json!({ "kind": "default" }),
        ValueSource::Environment => json!({ "kind": "environment", "variable": setting.variable }),
        ValueSource::SystemFile(file) => {
            json!({ "kind": "system file", "file": file.to_string_lossy() })
        }
        ValueSource::File(file) => json!({ "kind": "file", "file": file.to_string_lossy() }),
    }
}

fn setting_as_json(config: &Config, setting: &Setting) -> Value {
    let source = source_as_json(setting, &config.value(setting.name).1);
    match value_of(config, setting) {
        Ok(value) => json!({ "value": value.to_string_lossy(), "from": source }),
        Err(why) => json!({ "value": null, "why": why, "from": source }),
    }
}

fn get(key: &SettingName, json: bool) -> Result<ExitCode, Failure> {
    let config = Config::read();
    say_complaints(&config);
    let value = match key {
        SettingName::Setting(setting) if json => {
            return print_json(&setting_as_json(&config, setting));
        }
        SettingName::Setting(setting) => value_of(&config, setting)
            .map_err(|why| Failure::new(format_args!("the cache is off: {why}")))?,
        SettingName::Rule { program, key } => {
            let mut rules = config.rules();
            let rule = rules.find(|rule| rule.program == *program && rule.key == *key);
            let rule = rule.ok_or_else(|| {
                let program = text(program.as_bytes());
                Failure::no_such_entry(format_args!(
                    "no configuration file sets `{key}` for `{program}`: the setting for all programs applies"
                ))
            })?;
            if json {
                let file = match &rule.source {
                    ValueSource::SystemFile(file) | ValueSource::File(file) => {
                        Some(file.to_string_lossy())
                    }
                    _ => None,
                };
                return print_json(&json!({ "value": rule.value, "file": file }));
            }
            rule.value.to_string().into()
        }
    };
    print(format!("{}\n", os(&value)).as_bytes())
}

/// The file to write.
fn file(system: bool) -> Result<PathBuf, Failure> {
    if system {
        let file = of_system()
            .ok_or_else(|| Failure::new("this build has no system configuration file"))?;
        return match may_write(&file) {
            true => Ok(file),
            false => Err(Failure::new(format_args!(
                "only root can write `{}`; run this with `sudo`, or leave out `--system`",
                path(&file)
            ))),
        };
    }
    let directory = |name| {
        let value = std::env::var_os(name).map(PathBuf::from);
        value.filter(|path| path.is_absolute())
    };
    of_user(directory("XDG_CONFIG_HOME"), directory("HOME")).ok_or_else(|| {
        Failure::new(
            "the place of the user's configuration file is unknown; set HOME or XDG_CONFIG_HOME to an absolute path, or write the system's with --system",
        )
    })
}

/// Whether this user may write a file of the system, or make it. Root's failures are told by the editor.
fn may_write(file: &Path) -> bool {
    let there = file.ancestors().skip(1).find(|place| place.exists());
    rustix::process::geteuid().is_root() || there.is_none_or(is_writable)
}

fn set(key: &SettingName, value: &OsStr, system: bool) -> Result<ExitCode, Failure> {
    if key.is_of_system() && !system {
        return Err(Failure::usage(format_args!(
            "`{}` is read from the system's configuration file only; use --system",
            key.shown()
        )));
    }
    let typed = value.to_str().ok_or_else(|| {
        let value = os(value);
        Failure::usage(format_args!(
            "`{value}` is not UTF-8, but a configuration file must be"
        ))
    })?;
    let is_remote = matches!(key, SettingName::Setting(setting) if setting.name == Name::Remote);
    let without = match is_remote {
        true => remote::without_password(typed, system)?,
        false => None,
    };
    let value = key.value(without.as_deref().unwrap_or(typed));
    let value = value.map_err(Failure::usage)?;
    let file = file(system)?;
    editor::make_place(&file)?;
    let mut edited = ConfigEditor::open(&file)?;
    let shown = value.to_string();
    edited.set(&key.path(), value)?;
    edited.write()?;
    let (name, shown) = (key.shown(), text(shown.as_bytes()));
    say(&format!("oclcache: {name} = {shown} in `{}`", path(&file)));
    say_what_overrides(key, &file);
    if is_remote && !system {
        remote::set_up();
    }
    Ok(ExitCode::SUCCESS)
}

fn unset(key: &SettingName, system: bool) -> Result<ExitCode, Failure> {
    let file = file(system)?;
    let mut edited = ConfigEditor::open(&file)?;
    let (name, shown) = (key.shown(), path(&file));
    if !edited.unset(&key.path()) {
        say(&format!("oclcache: {name} is not in `{shown}`"));
        return Ok(ExitCode::SUCCESS);
    }
    edited.write()?;
    say(&format!("oclcache: {name} is removed from `{shown}`"));
    if let SettingName::Setting(setting) = key {
        let config = Config::read();
        let (value, source) = config.value(setting.name);
        let source = source_of(setting, source);
        let value = match value.is_empty() {
            true => "empty".to_owned(),
            false => format!("`{}`", os(value)),
        };
        say(&format!("oclcache: {name} is now {value}, from: {source}"));
    }
    Ok(ExitCode::SUCCESS)
}

/// Says if another value overrides the one that was written, or if the file is not read.
fn say_what_overrides(key: &SettingName, file: &Path) {
    let config = Config::read();
    let is_written = |source: &ValueSource| matches!(source, ValueSource::File(from) | ValueSource::SystemFile(from) if from == file);
    let shown = path(file).to_string();
    // Of a variable as well: another value than the file's is then used.
    let variable = match key {
        SettingName::Setting(setting) => setting.variable,
        SettingName::Rule { .. } => None,
    };
    let variable = variable.map(|variable| format!("`{variable}`: "));
    let is_told = |complaint: &&String| {
        let of_variable = variable
            .as_ref()
            .is_some_and(|it| complaint.starts_with(it));
        of_variable || complaint.contains(&shown)
    };
    for complaint in config.complaints.iter().filter(is_told) {
        say(&format!("oclcache: {complaint}"));
    }
    let disabling = SETTINGS[Name::Disable as usize]
        .variable
        .unwrap_or_default();
    match key {
        SettingName::Setting(setting) => {
            let (value, source) = config.value(setting.name);
            if !is_written(source) {
                let (value, source) = (os(value), source_of(setting, source));
                say(&format!(
                    "oclcache: but `{value}` is used here, from: {source}"
                ));
            }
        }
        SettingName::Rule { program, key } => {
            let mut rules = config.rules();
            let rule = rules.find(|rule| rule.program == *program && rule.key == *key);
            if std::env::var_os(disabling).is_some_and(|value| !value.is_empty()) {
                say(&format!(
                    "oclcache: but {disabling} is set here and overrides it"
                ));
            } else if rule.is_some_and(|rule| !is_written(&rule.source)) {
                say("oclcache: but the user's configuration file overrides it");
            }
        }
    }
}

/// All settings as JSON.
fn all_as_json(config: &Config) -> Value {
    let settings = SETTINGS.iter();
    let settings: Map<String, Value> = settings
        .map(|setting| (setting.key.to_owned(), setting_as_json(config, setting)))
        .collect();
    let mut programs = Map::new();
    for rule in config.rules() {
        let program = programs.entry(rule.program.clone()).or_insert(json!({}));
        program[rule.key] = rule.value.into();
    }
    json!({ "settings": settings, "programs": programs, "complaints": config.complaints })
}

/// The settings for single programs.
fn programs(config: &Config) -> String {
    let mut shown = String::new();
    for rule in config.rules() {
        let help = RULES.iter().find(|setting| setting.key == rule.key);
        let file = match &rule.source {
            ValueSource::SystemFile(file) | ValueSource::File(file) => path(file).to_string(),
            _ => String::new(),
        };
        let _ = writeln!(
            shown,
            "program.{}.{} = {}\n    {}; from: {file}",
            text(rule.program.as_bytes()),
            rule.key,
            rule.value,
            help.map_or("", |setting| setting.help)
        );
    }
    shown
}

fn show(json: bool) -> Result<ExitCode, Failure> {
    let config = Config::read();
    if json {
        return print_json(&all_as_json(&config));
    }
    say_complaints(&config);
    let opened = match config.directory() {
        Ok(directory) => Store::open_existing(&directory),
        Err(_) => Ok(None), // shown below
    };
    let store = opened.unwrap_or_else(|error| {
        let why = Failure::from(error).message;
        say(&format!("oclcache: the cache is off: {why}"));
        None
    });
    for tier in tiers(&config).all() {
        if let Err(why) = &tier.tier {
            say(&format!(
                "oclcache: `{}` is not used: {why}",
                path(&tier.path)
            ));
        }
    }
    let mut shown = String::new();
    for setting in &SETTINGS {
        let value = value_of(&config, setting);
        let value = value.map_or_else(
            |why| format!("(off: {why})"),
            |value| os(&value).to_string(),
        );
        let source = source_of(setting, &config.value(setting.name).1);
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
    shown.push_str(&programs(&config));
    if let Some(store) = store {
        shown.push_str(&drivers(&config, &store));
    }
    print(shown.as_bytes())
}

/// The drivers that were used with the cache, and when their builds are recorded. Only the latest version of a driver is listed.
fn drivers(config: &Config, store: &Store) -> String {
    let mut shown = String::new();
    let now_ms = store.root().now_ms();
    let mut seen = HashSet::new();
    for driver in driver_costs::list(store) {
        if seen.insert((driver.family.clone(), driver.library.clone())) {
            let record = behavior::of_used(store, &driver).record;
            let decision = decide(config, record, Some(&driver), now_ms);
            let (family, library) = (driver.family.as_bytes(), driver.library.as_bytes());
            let (family, library) = (text(family), text(library));
            let _ = writeln!(shown, "driver {family}, {library}\n    {decision}");
        }
    }
    shown
}
