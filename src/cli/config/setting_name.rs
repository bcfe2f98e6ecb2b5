//! Names of settings on the command line, and their values in a configuration file.

use std::ffi::OsStr;

use toml_edit::Value;

use crate::config::{ObeyedFrom, RULES, SETTINGS, Setting, ValueKind, is_file_name, meant, truth};
use crate::log::{os, text};

/// The name of a setting.
#[derive(Clone, Debug)]
pub enum SettingName {
    /// A setting.
    Setting(&'static Setting),
    /// A setting for one program.
    Rule {
        /// The file name of the program.
        program: String,
        /// The setting.
        key: &'static str,
    },
}

impl SettingName {
    /// Parses a name.
    ///
    /// # Errors
    /// There is no such setting. The message suggests one.
    pub fn parse(typed: &OsStr) -> Result<SettingName, String> {
        let shown = os(typed);
        let typed = typed.to_str().unwrap_or_default();
        if let Some(setting) = SETTINGS.iter().find(|setting| setting.key == typed) {
            return Ok(SettingName::Setting(setting));
        }
        // Names of programs may contain dots.
        if let Some((program, last)) = typed
            .strip_prefix("program.")
            .and_then(|rest| rest.rsplit_once('.'))
        {
            let program = program.trim_matches('"');
            let keys = || RULES.iter().map(|rule| rule.key);
            return match keys().find(|key| *key == last) {
                Some(key) if is_file_name(program) => Ok(SettingName::Rule {
                    program: program.to_owned(),
                    key,
                }),
                Some(_) => Err(format!("`{}` is not a file name", text(program.as_bytes()))),
                None => Err(format!(
                    "`{}` is not a setting of a program{}",
                    text(last.as_bytes()),
                    meant(last, keys())
                )),
            };
        }
        let keys = SETTINGS.iter().map(|setting| setting.key);
        let meant = match meant(typed, keys) {
            meant if meant.is_empty() => "; run `oclcache config` to list all".to_owned(),
            meant => meant,
        };
        Err(format!("`{shown}` is not a setting{meant}"))
    }

    /// The tables in the file, and the key in the last one.
    pub fn path(&self) -> Vec<&str> {
        match self {
            SettingName::Setting(setting) => vec![setting.key],
            SettingName::Rule { program, key } => vec!["program", program, key],
        }
    }

    /// The name in messages.
    pub fn shown(&self) -> String {
        text(self.path().join(".").as_bytes()).to_string()
    }

    /// A value as it is written to a file.
    ///
    /// # Errors
    /// The value is not valid. The message says what is expected.
    pub fn value(&self, typed: &str) -> Result<Value, String> {
        let kind = match self {
            SettingName::Setting(setting) => setting.kind,
            SettingName::Rule { .. } => ValueKind::Switch,
        };
        if !kind.accepts(OsStr::new(typed)) {
            return Err(format!(
                "`{}` is not a value of `{}`: expected {}",
                text(typed.as_bytes()),
                self.shown(),
                kind.wanted()
            ));
        }
        Ok(match kind {
            ValueKind::SwitchOrAuto if typed == "auto" => typed.into(),
            ValueKind::Switch | ValueKind::SwitchOrAuto => truth(typed.as_bytes()).into(),
            ValueKind::Percent | ValueKind::Count => {
                typed.parse::<i64>().map_or(typed.into(), Value::from)
            }
            ValueKind::Ids => typed
                .split(' ')
                .filter_map(|id| id.parse::<i64>().ok())
                .collect(),
            _ => typed.into(),
        })
    }

    /// Whether it is read from the system's file only.
    pub fn is_of_system(&self) -> bool {
        matches!(self, SettingName::Setting(setting) if setting.obeyed_from == ObeyedFrom::System)
    }
}
