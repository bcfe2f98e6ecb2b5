//! The kinds of values of settings, and their checks.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use super::paths;
use crate::log::is_filter;
use crate::quantity;

/// The kind of a setting's values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueKind {
    /// Yes or no.
    Switch,
    /// Yes, no, or automatic.
    SwitchOrAuto,
    /// One of these words, of which the first is the default.
    Word(&'static [&'static str]),
    /// A whole number from 0 to 100.
    Percent,
    /// A whole number.
    Count,
    /// A number of bytes.
    Size,
    /// A number of bytes, or automatic.
    SizeOrAuto,
    /// A time.
    Age,
    /// One directory or file.
    Directory,
    /// Directories, separated by colons, or `none`.
    Directories,
    /// A filter of the log.
    LogFilter,
    /// Ids of users, separated by blanks.
    Ids,
    /// Anything.
    Text,
}

/// What is written for yes and no. `truth` accepts more.
const SWITCHES: [&str; 8] = ["true", "false", "yes", "no", "on", "off", "1", "0"];

impl ValueKind {
    /// Whether a text is such a value.
    pub fn accepts(self, value: &OsStr) -> bool {
        let text = value.to_str();
        let is = |word: &str| text.is_some_and(|text| text == word);
        match self {
            ValueKind::Switch => SWITCHES
                .iter()
                .any(|switch| value.eq_ignore_ascii_case(switch)),
            ValueKind::SwitchOrAuto => is("auto") || ValueKind::Switch.accepts(value),
            ValueKind::Word(words) => words.iter().any(|word| is(word)),
            ValueKind::Percent => text.and_then(percent).is_some(),
            ValueKind::Count => text.and_then(count).is_some(),
            ValueKind::Size => text.and_then(quantity::bytes).is_some(),
            ValueKind::SizeOrAuto => is("auto") || ValueKind::Size.accepts(value),
            ValueKind::Age => text.and_then(quantity::duration).is_some(),
            ValueKind::Directory => Path::new(value).is_absolute(),
            ValueKind::Directories => {
                is("none") || paths(value).iter().all(|path| path.is_absolute())
            }
            ValueKind::LogFilter => text.is_some_and(is_filter),
            ValueKind::Ids => text.is_some_and(|text| text.split(' ').all(is_id)),
            ValueKind::Text => !value.as_bytes().contains(&0),
        }
    }

    /// Whether an invalid value counts as the default. Any text but a "no" is a "yes", and an invalid directory is refused where it
    /// is used.
    pub fn has_fallback(self) -> bool {
        matches!(
            self,
            ValueKind::Word(_)
                | ValueKind::Percent
                | ValueKind::Count
                | ValueKind::Size
                | ValueKind::SizeOrAuto
                | ValueKind::Age
        )
    }

    /// The expected form, for people.
    pub fn wanted(self) -> String {
        match self {
            ValueKind::Switch => "true or false (or yes, no, on, off, 1, 0)".to_owned(),
            ValueKind::SwitchOrAuto => "auto, true or false (or yes, no, on, off, 1, 0)".to_owned(),
            ValueKind::Word(words) => format!("one of {}", words.join(", ")),
            ValueKind::Percent => "a whole number from 0 to 100".to_owned(),
            ValueKind::Count => "a whole number".to_owned(),
            ValueKind::Size => "a size with a unit, such as 500M or 5Gi".to_owned(),
            ValueKind::SizeOrAuto => "auto or a size with a unit, such as 500M or 5Gi".to_owned(),
            ValueKind::Age => "a time such as 12h or 30d, or 0".to_owned(),
            ValueKind::Directory => "an absolute path".to_owned(),
            ValueKind::Directories => "absolute paths separated by colons, or none".to_owned(),
            ValueKind::LogFilter => {
                "a level (off, error, warn, info, debug or trace) or targets such as oclcache::store=debug"
                    .to_owned()
            }
            ValueKind::Ids => "user ids such as \"1000 1001\"".to_owned(),
            ValueKind::Text => "a text".to_owned(),
        }
    }
}

/// Parses a percentage.
pub fn percent(text: &str) -> Option<u8> {
    text.parse().ok().filter(|percent| *percent <= 100)
}

/// Parses a count.
pub fn count(text: &str) -> Option<u64> {
    text.parse().ok()
}

fn is_id(text: &str) -> bool {
    text.parse::<u32>().is_ok()
}
