//! The two configuration files: the system's, which root alone can write, and the user's.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use super::table::{BUILT_CONFIG_DIR, BUILT_SYSTEM_CONFIG_DIR};
use super::{Config, Name, SETTINGS, Source, expand_home};
use crate::log::{path, text};
use crate::trust;

const NAME: &str = "config.toml";
const ROOT: u32 = 0;
/// A larger file is no configuration, in bytes.
const LARGEST: u64 = 1 << 20;

/// Where the system's file is.
pub(super) fn of_system() -> Option<PathBuf> {
    let directory = BUILT_SYSTEM_CONFIG_DIR.unwrap_or("/etc/oclcache");
    (!directory.is_empty()).then(|| Path::new(directory).join(NAME))
}

/// Where the user's file is.
pub(super) fn of_user(config_home: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let directory = match BUILT_CONFIG_DIR {
        Some("") => return None,
        Some(built) => expand_home(built, home.as_deref())?,
        None => config_home
            .or_else(|| Some(home?.join(".config")))?
            .join("oclcache"),
    };
    Some(directory.join(NAME))
}

impl Config {
    /// Takes the settings of the system's file, if nobody but root can write it: it names whose programs are run.
    pub(super) fn read_system_file(&mut self, file: &Path) {
        match trust::open(file, trust::FILE, &[ROOT]) {
            Ok(None) => {}
            Ok(Some(opened)) => {
                let source = Source::SystemFile(file.to_owned());
                self.take(file, read(opened.into()), &source);
            }
            Err(why) => {
                let file = path(file);
                self.complaints.push(format!("`{file}` is not read: {why}"));
            }
        }
    }

    /// Takes the settings of the user's file.
    pub(super) fn read_user_file(&mut self, file: &Path) {
        // Without O_NONBLOCK, a FIFO would block the application.
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        let opened = File::options().read(true).custom_flags(flags).open(file);
        match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => {
                let source = Source::File(file.to_owned());
                self.take(file, opened.and_then(read), &source);
            }
        }
    }

    fn take(&mut self, file: &Path, content: io::Result<String>, source: &Source) {
        let shown = path(file);
        let content = match content {
            Ok(content) => content,
            Err(error) => {
                return self
                    .complaints
                    .push(format!("cannot read `{shown}`: {error}"));
            }
        };
        let table: toml::Table = match content.parse() {
            Ok(table) => table,
            Err(error) => {
                // It quotes the file, in several lines.
                let error: &toml::de::Error = &error;
                let before = error.span().and_then(|span| content.get(..span.start));
                let line = before.map_or(1, |before| before.matches('\n').count() + 1);
                let why = text(error.message().as_bytes());
                return self
                    .complaints
                    .push(format!("`{shown}` is not TOML: line {line}: {why}"));
            }
        };
        for (key, value) in table {
            match setting(&key, &value, source) {
                Ok((name, value)) => self.values[name as usize] = (value.into(), source.clone()),
                Err(why) => {
                    let key = text(key.as_bytes());
                    self.complaints.push(format!("`{shown}`: `{key}` {why}"));
                }
            }
        }
    }
}

fn read(file: File) -> io::Result<String> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut content = String::new();
    let read = file.take(LARGEST).read_to_string(&mut content)?;
    if read as u64 == LARGEST {
        return Err(io::Error::other("it is too large"));
    }
    Ok(content)
}

/// Which setting a line of a file makes, and its value; or what is wrong with it.
fn setting(
    key: &str,
    value: &toml::Value,
    source: &Source,
) -> Result<(Name, String), &'static str> {
    let setting = SETTINGS.iter().find(|setting| setting.key == key);
    let name = setting.ok_or("is no setting")?.name;
    let value = match (name, value) {
        (Name::TrustedOwners, _) if !matches!(source, Source::SystemFile(_)) => {
            return Err("is taken from the system's configuration file only");
        }
        (Name::TrustedOwners, value) => ids(value)
            .ok_or("must be a list of user ids as [1000, 1001]; names are not looked up")?,
        (_, toml::Value::String(text)) => text.clone(),
        (_, toml::Value::Boolean(truth)) => truth.to_string(),
        (_, toml::Value::Integer(number)) => number.to_string(),
        _ => return Err("must be a text, a number or true or false"),
    };
    Ok((name, value))
}

/// The ids of a list, with blanks between them.
fn ids(list: &toml::Value) -> Option<String> {
    let id = |value: &toml::Value| u32::try_from(value.as_integer()?).ok();
    let ids: Option<Vec<u32>> = list.as_array()?.iter().map(id).collect();
    let ids: Vec<String> = ids?.iter().map(u32::to_string).collect();
    Some(ids.join(" "))
}
