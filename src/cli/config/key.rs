//! Keys of settings as people type them, and values as a configuration file has them.

use std::ffi::OsStr;

use toml_edit::Value;

use crate::config::{ObeyedFrom, RULES, SETTINGS, Setting, ValueKind, is_file_name, meant, truth};
use crate::log::{os, text};

/// Which line of a configuration file.
#[derive(Clone, Debug)]
pub enum SettingName {
    /// A setting.
    Setting(&'static Setting),
    /// A setting of one program.
    Rule {
        /// Its file name.
        program: String,
        /// Which.
        key: &'static str,
    },
}

impl SettingName {
    /// Which one was typed.
    ///
    /// # Errors
    /// There is none, and which may have been meant.
    pub fn parse(typed: &OsStr) -> Result<SettingName, String> {
        let shown = os(typed);
        let typed = typed.to_str().unwrap_or_default();
        if let Some(setting) = SETTINGS.iter().find(|setting| setting.key == typed) {
            return Ok(SettingName::Setting(setting));
        }
        // Names of programs have dots themselves.
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
                Some(_) => Err(format!("`{}` is no file's name", text(program.as_bytes()))),
                None => Err(format!(
                    "`{}` is no setting of a program{}",
                    text(last.as_bytes()),
                    meant(last, keys())
                )),
            };
        }
        let keys = SETTINGS.iter().map(|setting| setting.key);
        let meant = match meant(typed, keys) {
            meant if meant.is_empty() => "; `oclcache config` shows all".to_owned(),
            meant => meant,
        };
        Err(format!("`{shown}` is no setting{meant}"))
    }

    /// The tables of a file and the key in the last of them.
    pub fn path(&self) -> Vec<&str> {
        match self {
            SettingName::Setting(setting) => vec![setting.key],
            SettingName::Rule { program, key } => vec!["program", program, key],
        }
    }

    /// For messages.
    pub fn shown(&self) -> String {
        text(self.path().join(".").as_bytes()).to_string()
    }

    /// A value as it stands in a file.
    ///
    /// # Errors
    /// What is wanted.
    pub fn value(&self, typed: &str) -> Result<Value, String> {
        let kind = match self {
            SettingName::Setting(setting) => setting.kind,
            SettingName::Rule { .. } => ValueKind::Switch,
        };
        if !kind.accepts(OsStr::new(typed)) {
            return Err(format!(
                "`{}` is no value of `{}`: {} is wanted",
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

    /// Whether it is taken from the system's file only.
    pub fn is_of_system(&self) -> bool {
        matches!(self, SettingName::Setting(setting) if setting.obeyed_from == ObeyedFrom::System)
    }
}
