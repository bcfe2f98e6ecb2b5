//! The two configuration files: that of the system, which only root may write, and that of the user.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::table::{BUILT_CONFIG_DIR, BUILT_SYSTEM_CONFIG_DIR};
use super::{Config, Name, ObeyedFrom, RULES, Rule, SETTINGS, ValueSource, expand_home};
use crate::file_fingerprint::FileId;
use crate::log::{path, text};
use crate::trust;

const NAME: &str = "config.toml";
const ROOT: u32 = 0;
/// Larger files are not read.
const MAX_BYTES: u64 = 1 << 20;

/// The part of a complaint about settings that another user may have written, between their names and the reason.
pub const IGNORED: &str = "ignored because";

/// Suggest names that are more alike than this.
const LIKE: f64 = 0.8;

/// Where the system's file is.
pub fn of_system() -> Option<PathBuf> {
    let directory = BUILT_SYSTEM_CONFIG_DIR.unwrap_or("/etc/oclcache");
    (!directory.is_empty()).then(|| Path::new(directory).join(NAME))
}

/// Where the user's file is.
pub fn of_user(config_home: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
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
    /// Takes the settings of the system's file, if nobody but root can write it: it names the users whose entries are executed.
    pub(super) fn read_system_file(&mut self, file: &Path) {
        match trust::open(file, trust::FILE, &[ROOT]) {
            Ok(None) => {}
            Ok(Some(opened)) => {
                let source = ValueSource::SystemFile(file.to_owned());
                self.take(file, read(opened.into()), &source, &|| None);
            }
            Err(why) => {
                let file = path(file);
                self.complaints.push(format!("`{file}` is not read: {why}"));
            }
        }
    }

    /// Takes the settings of the user's file. HOME may be that of another user, as under sudo: settings that name code, files or
    /// hosts are taken only if nobody else can have written them.
    pub(super) fn read_user_file(&mut self, file: &Path) {
        // Without O_NONBLOCK, a FIFO would block the application.
        let flags = libc::O_CLOEXEC | libc::O_NONBLOCK | libc::O_NOCTTY;
        let opened = File::options().read(true).custom_flags(flags).open(file);
        match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => {
                let source = ValueSource::File(file.to_owned());
                let opened = opened.and_then(own);
                let id = opened.as_ref().map_or((0, 0), |(_, id)| *id);
                let content = opened.and_then(|(opened, _)| read(opened));
                // Checked only if it matters: most files have no such setting.
                let distrust = || trust::distrust_of_own_file(file, id);
                self.take(file, content, &source, &distrust);
            }
        }
    }

    /// `distrust` says why a file is not trusted, if it is not.
    fn take(
        &mut self,
        file: &Path,
        content: io::Result<String>,
        source: &ValueSource,
        distrust: &dyn Fn() -> Option<String>,
    ) {
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
                let word = content.lines().nth(line - 1).and_then(unquoted);
                let why = match word {
                    Some(word) => {
                        format!("`{word}` is neither `true` nor `false`, and a text needs quotes")
                    }
                    None => text(error.message().as_bytes()).to_string(),
                };
                return self
                    .complaints
                    .push(format!("`{shown}` is not TOML: line {line}: {why}"));
            }
        };
        let mut guarded = Vec::new();
        for (key, value) in table {
            if key == "program" {
                self.take_rules(file, &value, source);
                continue;
            }
            match setting(&key, &value, source) {
                Ok((name, value)) => match SETTINGS[name as usize].obeyed_from {
                    ObeyedFrom::Own => guarded.push((name, value)),
                    _ => self.values[name as usize] = (value.into(), source.clone()),
                },
                Err(why) => {
                    let key = text(key.as_bytes());
                    self.complaints.push(format!("`{shown}`: `{key}` {why}"));
                }
            }
        }
        if guarded.is_empty() {
            return;
        }
        if let Some(why) = distrust() {
            let keys = guarded.iter().map(|(name, _)| {
                let key = SETTINGS[*name as usize].key;
                format!("`{key}`")
            });
            let keys: Vec<String> = keys.collect();
            let are = if keys.len() == 1 { "is" } else { "are" };
            let keys = keys.join(", ");
            let complaint = format!("`{shown}`: {keys} {are} {IGNORED} {why}");
            return self.complaints.push(complaint);
        }
        for (name, value) in guarded {
            self.values[name as usize] = (value.into(), source.clone());
        }
    }

    /// Takes the settings of single programs: `[program.NAME]`.
    fn take_rules(&mut self, file: &Path, programs: &toml::Value, source: &ValueSource) {
        let shown = path(file);
        let mut complain = |what: &str, why: &str| {
            let what = text(what.as_bytes());
            self.complaints.push(format!("`{shown}`: `{what}` {why}"));
        };
        let Some(programs) = programs.as_table() else {
            return complain(
                "program",
                "must be a table for each program: [program.NAME]",
            );
        };
        for (program, settings) in programs {
            let whole = format!("program.{program}");
            let Some(settings) = settings.as_table().filter(|_| is_file_name(program)) else {
                complain(&whole, "must be a table of a program's file name");
                continue;
            };
            for (key, value) in settings {
                let whole = format!("{whole}.{key}");
                let known = RULES.iter().find(|rule| rule.key == key);
                match (known, value) {
                    (Some(known), toml::Value::Boolean(value)) => self.rules.push(Rule {
                        program: program.clone(),
                        key: known.key,
                        value: *value,
                        source: source.clone(),
                    }),
                    (Some(_), _) => complain(&whole, "must be true or false"),
                    // The rest of a name with dots.
                    (None, toml::Value::Table(_)) => complain(
                        &whole,
                        "is not a setting of a program; write a name with dots in quotes, such as [program.\"python3.11\"]",
                    ),
                    (None, _) => {
                        let keys = RULES.iter().map(|rule| rule.key);
                        complain(
                            &whole,
                            &format!("is not a setting of a program{}", meant(key, keys)),
                        );
                    }
                }
            }
        }
    }
}

/// The value of a line if it is a word that has no meaning in TOML: the parser takes `no` for a beginning of `nan`.
fn unquoted(line: &str) -> Option<&str> {
    let (_, value) = line.split_once('=')?;
    let word = value.split('#').next()?.trim();
    let is_word = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_alphabetic());
    let is_value = ["true", "false", "inf", "nan"].contains(&word);
    (is_word && !is_value).then_some(word)
}

/// Refuses a file that everybody can write, because settings name libraries to load.
fn own(file: File) -> io::Result<(File, FileId)> {
    let metadata = file.metadata()?;
    match metadata.mode() & 0o002 {
        0 => Ok((file, (metadata.dev(), metadata.ino()))),
        _ => Err(io::Error::other(
            "everybody can write it; `chmod o-w` it, since it names libraries that your programs run",
        )),
    }
}

fn read(file: File) -> io::Result<String> {
    if !file.metadata()?.is_file() {
        return Err(io::Error::other("it is not a regular file"));
    }
    let mut content = String::new();
    let read = file.take(MAX_BYTES).read_to_string(&mut content)?;
    if read as u64 == MAX_BYTES {
        return Err(io::Error::other("it is too large"));
    }
    Ok(content)
}

/// The setting and value of a line of a file; or the error in it.
fn setting(key: &str, value: &toml::Value, source: &ValueSource) -> Result<(Name, String), String> {
    let setting = SETTINGS.iter().find(|setting| setting.key == key);
    let keys = || {
        SETTINGS
            .iter()
            .map(|setting| setting.key)
            .chain(["program"])
    };
    let setting = setting.ok_or_else(|| format!("is not a setting{}", meant(key, keys())))?;
    let is_of_system = setting.obeyed_from == ObeyedFrom::System;
    if is_of_system && !matches!(source, ValueSource::SystemFile(_)) {
        return Err("is taken from the system's configuration file only".to_owned());
    }
    let name = setting.name;
    let value = match (name, value) {
        (Name::TrustedOwners, value) => ids(value)
            .ok_or("must be a list of user ids such as [1000, 1001]; names are not looked up")?,
        (Name::RemoteTrust, toml::Value::Array(keys)) => {
            let keys: Option<Vec<&str>> = keys.iter().map(toml::Value::as_str).collect();
            keys.ok_or("must be a text or a list of texts")?.join(" ")
        }
        (_, toml::Value::String(text)) => text.clone(),
        (_, toml::Value::Boolean(truth)) => truth.to_string(),
        (_, toml::Value::Integer(number)) => number.to_string(),
        _ => return Err("must be a text, a number or true or false".to_owned()),
    };
    Ok((name, value))
}

/// The user ids of a list, separated by blanks.
fn ids(list: &toml::Value) -> Option<String> {
    let id = |value: &toml::Value| u32::try_from(value.as_integer()?).ok();
    let ids: Option<Vec<u32>> = list.as_array()?.iter().map(id).collect();
    let ids: Vec<String> = ids?.iter().map(u32::to_string).collect();
    Some(ids.join(" "))
}

/// Whether a file can have this name.
pub fn is_file_name(name: &str) -> bool {
    !matches!(name, "" | "." | "..") && !name.contains(['/', '\0'])
}

/// A suggestion for an unknown name: the nearest known one, if it is near enough.
pub fn meant<'a>(key: &str, known: impl Iterator<Item = &'a str>) -> String {
    let near = known
        .map(|name| (strsim::jaro(key, name), name))
        .filter(|(likeness, _)| *likeness > LIKE);
    let nearest = near.max_by(|(one, _), (other, _)| one.total_cmp(other));
    nearest.map_or_else(String::new, |(_, name)| format!("; did you mean `{name}`?"))
}
