//! The settings: one table of names, variables, defaults and meanings, and where each value came from.
//!
//! The environment stands above the configuration file, the file above the default.

mod table;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::quantity;
use table::{BUILT_CONFIG_DIR, BUILT_DIR};
pub use table::{Name, SETTINGS};

/// What stands in the table, in bytes.
const DEFAULT_MAX_SIZE: u64 = 5 << 30;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody set it.
    Default,
    /// The configuration file.
    File(PathBuf),
    /// The environment.
    Environment,
}

/// All values.
#[derive(Clone, Debug)]
pub struct Config {
    values: Vec<(OsString, Source)>,
    /// What was wrong with the configuration file, for the log.
    pub complaints: Vec<String>,
    home: Option<PathBuf>,
    cache_home: Option<PathBuf>,
}

/// Whether platforms are reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// As an ICD: the real drivers' platforms are ours.
    Icd,
    /// Beside the drivers: nothing is reported, their tables are patched.
    Beside,
    /// Each driver by whether the loader loads it as well.
    Auto,
}

impl Config {
    /// The settings of this process.
    pub fn read() -> Config {
        Config::read_from(&|name| std::env::var_os(name))
    }

    /// The settings that an environment makes. A cache that is disabled there opens no configuration file.
    pub fn read_from(environment: &dyn Fn(&str) -> Option<OsString>) -> Config {
        let variable = |name: &str| environment(name).filter(|value| !value.is_empty());
        // Only absolute paths, by the XDG base directory specification.
        let directory = |name: &str| {
            variable(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        let home = directory("HOME");
        let mut config = Config {
            values: SETTINGS
                .iter()
                .map(|setting| (setting.default.into(), Source::Default))
                .collect(),
            complaints: Vec::new(),
            cache_home: directory("XDG_CACHE_HOME"),
            home: home.clone(),
        };
        let disabled_by_variable =
            variable("OCLCACHE_DISABLE").is_some_and(|value| truth(value.as_bytes()));
        if !disabled_by_variable && let Some(file) = config_file(directory("XDG_CONFIG_HOME"), home)
        {
            config.read_file(&file);
        }
        for (index, setting) in SETTINGS.iter().enumerate() {
            if let Some(value) = variable(setting.variable) {
                config.values[index] = (value, Source::Environment);
            }
        }
        if !matches!(
            config.value(Name::Mode).0.as_bytes(),
            b"icd" | b"beside" | b"auto"
        ) {
            let mode = crate::log::os(&config.value(Name::Mode).0).to_string();
            config.complaints.push(format!(
                "`mode` is `{mode}`, which is none of icd, beside and auto; auto is taken"
            ));
        }
        let wrong: [(Name, bool, &str); 4] = [
            (
                Name::Verify,
                config.percent().is_none(),
                "no whole number from 0 to 100; 0 is taken",
            ),
            (
                Name::MaxSize,
                config.size(Name::MaxSize).is_none(),
                "no size as 500M or 5Gi; 5Gi is taken",
            ),
            (
                Name::MinFree,
                config.size(Name::MinFree).is_none() && !config.is(Name::MinFree, "auto"),
                "neither auto nor a size as 500M or 5Gi; auto is taken",
            ),
            (
                Name::MaxAge,
                config.age().is_none(),
                "no time as 12h or 30d; 0 is taken",
            ),
        ];
        for (name, is_wrong, what) in wrong {
            if is_wrong {
                let value = crate::log::os(&config.value(name).0).to_string();
                let key = SETTINGS[name as usize].key;
                config
                    .complaints
                    .push(format!("`{key}` is `{value}`, which is {what}"));
            }
        }
        config
    }

    fn read_file(&mut self, file: &Path) {
        let text = match std::fs::read_to_string(file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return,
            Err(error) => {
                return self
                    .complaints
                    .push(format!("cannot read `{}`: {error}", crate::log::path(file)));
            }
        };
        let table: toml::Table = match text.parse() {
            Ok(table) => table,
            Err(error) => {
                return self
                    .complaints
                    .push(format!("`{}` is not TOML: {error}", crate::log::path(file)));
            }
        };
        for (key, value) in table {
            let value = match value {
                toml::Value::String(text) => text,
                toml::Value::Boolean(truth) => truth.to_string(),
                toml::Value::Integer(number) => number.to_string(),
                _ => {
                    let (file, key) = (crate::log::path(file), crate::log::text(key.as_bytes()));
                    self.complaints.push(format!(
                        "`{file}`: `{key}` must be a text, a number or true or false"
                    ));
                    continue;
                }
            };
            match SETTINGS.iter().position(|setting| setting.key == key) {
                Some(index) => self.values[index] = (value.into(), Source::File(file.to_owned())),
                None => {
                    let (file, key) = (crate::log::path(file), crate::log::text(key.as_bytes()));
                    self.complaints
                        .push(format!("`{file}`: there is no setting `{key}`"));
                }
            }
        }
    }

    /// The value as it was written, and where.
    pub fn value(&self, name: Name) -> &(OsString, Source) {
        &self.values[name as usize]
    }

    fn text(&self, name: Name) -> Option<&OsString> {
        Some(&self.value(name).0).filter(|value| !value.is_empty())
    }

    fn flag(&self, name: Name) -> bool {
        truth(self.value(name).0.as_bytes())
    }

    /// Whether everything is forwarded.
    pub fn disable(&self) -> bool {
        self.flag(Name::Disable)
    }

    /// Whether nothing is written.
    pub fn readonly(&self) -> bool {
        self.flag(Name::ReadOnly)
    }

    /// Whether look-ups are left out.
    pub fn recache(&self) -> bool {
        self.flag(Name::Recache)
    }

    /// Whether texts are kept.
    pub fn store_source(&self) -> bool {
        self.flag(Name::StoreSource)
    }

    /// How many of a hundred hits are built from source as well.
    pub fn verify(&self) -> u8 {
        self.percent().unwrap_or(0)
    }

    fn percent(&self) -> Option<u8> {
        let percent = self.value(Name::Verify).0.to_str()?.parse().ok()?;
        (percent <= 100).then_some(percent)
    }

    /// Whether what is compiled is reported.
    pub fn must_hit(&self) -> bool {
        self.flag(Name::MustHit)
    }

    /// How much the entries may take, in bytes; None: no limit.
    pub fn max_size(&self) -> Option<u64> {
        let limit = self.size(Name::MaxSize).unwrap_or(DEFAULT_MAX_SIZE);
        (limit > 0).then_some(limit)
    }

    /// How much stays free, in bytes; None: as much as fits the file system.
    pub fn min_free(&self) -> Option<u64> {
        self.size(Name::MinFree)
    }

    /// How long an entry is kept unused; None: always.
    pub fn max_age(&self) -> Option<Duration> {
        self.age().filter(|age| !age.is_zero())
    }

    fn size(&self, name: Name) -> Option<u64> {
        quantity::bytes(self.value(name).0.to_str()?)
    }

    fn age(&self) -> Option<Duration> {
        quantity::duration(self.value(Name::MaxAge).0.to_str()?)
    }

    fn is(&self, name: Name, word: &str) -> bool {
        self.value(name).0 == word
    }

    /// The directories that are only read, in order. Those that are no absolute paths are none.
    pub fn system_dirs(&self) -> Vec<PathBuf> {
        let dirs = paths(&self.value(Name::SystemDirs).0);
        dirs.into_iter().filter(|path| path.is_absolute()).collect()
    }

    /// The drivers to load; None: the registered ones.
    pub fn vendors(&self) -> Option<Vec<PathBuf>> {
        self.text(Name::Vendors).map(|list| paths(list))
    }

    /// Whether platforms are reported.
    pub fn mode(&self) -> Mode {
        match self.value(Name::Mode).0.as_bytes() {
            b"icd" => Mode::Icd,
            b"beside" => Mode::Beside,
            _ => Mode::Auto,
        }
    }

    /// The log's filter and file, if a log is wanted.
    pub fn log(&self) -> Option<(String, Option<PathBuf>)> {
        let filter = self.value(Name::Log).0.to_string_lossy().into_owned();
        let wanted = !matches!(filter.as_str(), "" | "off" | "0");
        wanted.then(|| (filter, self.text(Name::LogFile).map(PathBuf::from)))
    }

    /// The cache directory.
    ///
    /// # Errors
    /// Why there is none, for people.
    pub fn directory(&self) -> Result<PathBuf, String> {
        let (value, source) = self.value(Name::Dir);
        if *source != Source::Default {
            let path = PathBuf::from(value);
            return if path.is_absolute() {
                Ok(path)
            } else {
                Err(format!(
                    "the setting `dir` is `{}`, which is not an absolute path",
                    crate::log::path(&path)
                ))
            };
        }
        let default = match BUILT_DIR {
            Some("") => {
                return Err("it is so by default in this build; set OCLCACHE_DIR".into());
            }
            Some(built) => expand_home(built, self.home.as_deref()),
            None => match (&self.cache_home, &self.home) {
                (Some(cache_home), _) => Some(cache_home.join("oclcache")),
                (None, Some(home)) => Some(home.join(".cache/oclcache")),
                (None, None) => None,
            },
        };
        let default = default.ok_or("neither OCLCACHE_DIR nor XDG_CACHE_HOME nor HOME is set")?;
        // Under sudo HOME may still be the caller's, in whose directories root must leave no files.
        let parent = default
            .ancestors()
            .find_map(|parent| Some((parent, std::fs::metadata(parent).ok()?)));
        match parent {
            Some((_, metadata)) if metadata.uid() == rustix::process::geteuid().as_raw() => {
                Ok(default)
            }
            Some((parent, _)) => Err(format!(
                "`{}` belongs to another user than the one who runs this program; set OCLCACHE_DIR",
                crate::log::path(parent)
            )),
            None => Err(format!(
                "`{}` has no existing parent",
                crate::log::path(&default)
            )),
        }
    }
}

/// The paths of a list that colons separate.
fn paths(list: &OsStr) -> Vec<PathBuf> {
    let parts = list.as_bytes().split(|byte| *byte == b':');
    let parts = parts.filter(|part| !part.is_empty());
    parts
        .map(|part| PathBuf::from(OsStr::from_bytes(part)))
        .collect()
}

/// `0`, `false`, `no`, `off` and nothing are false, all else is true.
fn truth(value: &[u8]) -> bool {
    !["", "0", "false", "no", "off"]
        .iter()
        .any(|no| value.eq_ignore_ascii_case(no.as_bytes()))
}

fn config_file(config_home: Option<PathBuf>, home: Option<PathBuf>) -> Option<PathBuf> {
    let directory = match BUILT_CONFIG_DIR {
        Some("") => return None,
        Some(built) => expand_home(built, home.as_deref())?,
        None => config_home
            .or_else(|| Some(home?.join(".config")))?
            .join("oclcache"),
    };
    Some(directory.join("config.toml"))
}

fn expand_home(path: &str, home: Option<&Path>) -> Option<PathBuf> {
    match path.strip_prefix("~/") {
        Some(rest) => Some(home?.join(rest)),
        None => Some(PathBuf::from(path)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(variables: &[(&str, &str)]) -> Config {
        let variables: Vec<(String, OsString)> = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), value.into()))
            .collect();
        Config::read_from(&|name| {
            variables
                .iter()
                .find(|(known, _)| known == name)
                .map(|(_, value)| value.clone())
        })
    }

    #[test]
    fn the_table_stands_in_the_order_of_its_names() {
        for (index, setting) in SETTINGS.iter().enumerate() {
            assert_eq!(setting.name as usize, index);
        }
    }

    #[test]
    fn switches_are_off_by_zero_false_no_off_and_nothing() {
        for off in ["", "0", "false", "no", "off", "OFF"] {
            assert!(!config(&[("OCLCACHE_DISABLE", off)]).disable(), "{off}");
        }
        assert!(config(&[("OCLCACHE_DISABLE", "1")]).disable());
        assert!(config(&[("OCLCACHE_STORE_SOURCE", "")]).store_source());
        assert!(!config(&[("OCLCACHE_STORE_SOURCE", "0")]).store_source());
    }

    #[test]
    fn a_share_is_a_whole_number_of_percent_and_all_else_is_a_mistake_and_none() {
        for (value, share) in [("0", 0), ("7", 7), ("100", 100)] {
            let config = config(&[("OCLCACHE_VERIFY", value)]);
            assert_eq!((config.verify(), config.complaints.len()), (share, 0));
        }
        for mistake in ["101", "-1", "50%", "half", "1.5", "300"] {
            let config = config(&[("OCLCACHE_VERIFY", mistake)]);
            assert_eq!(config.verify(), 0, "{mistake}");
            assert!(config.complaints[0].contains("`verify`"), "{mistake}");
        }
    }

    #[test]
    fn the_environment_stands_above_the_file_and_the_file_above_the_default() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(directory.path().join("oclcache")).expect("made");
        let file = directory.path().join("oclcache/config.toml");
        std::fs::write(
            &file,
            "readonly = true\ndisable = true\nlog = \"info\"\nnonsense = 1\n",
        )
        .expect("written");
        let home = directory.path().to_str().expect("UTF-8");
        let config = config(&[("XDG_CONFIG_HOME", home), ("OCLCACHE_DISABLE", "0")]);
        assert!(config.readonly() && !config.disable() && !config.recache());
        assert_eq!(config.value(Name::ReadOnly).1, Source::File(file));
        assert_eq!(config.value(Name::Disable).1, Source::Environment);
        assert!(
            config.complaints[0].contains("no setting `nonsense`"),
            "{:?}",
            config.complaints
        );
    }

    #[test]
    fn the_directory_is_chosen_in_the_documented_order() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let home = home.path().to_str().expect("UTF-8");
        let cache = format!("{home}/c");
        let variables = [
            ("OCLCACHE_DIR", "/x/y"),
            ("XDG_CACHE_HOME", cache.as_str()),
            ("HOME", home),
        ];
        assert_eq!(config(&variables).directory(), Ok("/x/y".into()));
        assert_eq!(
            config(&variables[1..]).directory(),
            Ok(format!("{cache}/oclcache").into())
        );
        assert_eq!(
            config(&variables[2..]).directory(),
            Ok(format!("{home}/.cache/oclcache").into())
        );
        assert!(config(&[]).directory().is_err());
        assert!(config(&[("OCLCACHE_DIR", "relative")]).directory().is_err());
    }

    #[test]
    fn vendors_are_separated_by_colons() {
        assert_eq!(
            config(&[("OCLCACHE_VENDORS", "/a:/b/c.icd:")]).vendors(),
            Some(vec!["/a".into(), "/b/c.icd".into()])
        );
        assert_eq!(config(&[]).vendors(), None);
    }
}
