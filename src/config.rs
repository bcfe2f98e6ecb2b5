//! The settings: one table of names, variables, defaults and meanings, and where each value came from.
//!
//! The environment stands above the configuration file, the file above the default.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Which setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// The cache directory.
    Dir,
    /// Forward everything, touch nothing.
    Disable,
    /// Serve, never write.
    ReadOnly,
    /// Build and overwrite.
    Recache,
    /// Keep sources and other texts in entries.
    StoreSource,
    /// Which share of the hits is built from source as well.
    Verify,
    /// Report what is compiled.
    MustHit,
    /// Which drivers to load.
    Vendors,
    /// Whether platforms are reported.
    Mode,
    /// What is logged.
    Log,
    /// Where to.
    LogFile,
}

/// One row of the table.
pub struct Setting {
    /// Which.
    pub name: Name,
    /// The key in the configuration file.
    pub key: &'static str,
    /// The environment variable.
    pub variable: &'static str,
    /// The value if it is set nowhere.
    pub default: &'static str,
    /// What it means.
    pub help: &'static str,
}

/// The directory that was chosen when the package was built; `Some("")` means that the cache is off by default.
const BUILT_DIR: Option<&str> = option_env!("OCLCACHE_DEFAULT_DIR");
/// Where the configuration file is looked for, chosen likewise; `Some("")` means that there is none.
const BUILT_CONFIG_DIR: Option<&str> = option_env!("OCLCACHE_DEFAULT_CONFIG_DIR");

/// The table. Its order is that of [`Name`].
pub const SETTINGS: [Setting; 11] = [
    Setting {
        name: Name::Dir,
        key: "dir",
        variable: "OCLCACHE_DIR",
        default: match BUILT_DIR {
            Some(built) => built,
            None => "$XDG_CACHE_HOME/oclcache or $HOME/.cache/oclcache",
        },
        help: "the cache directory",
    },
    Setting {
        name: Name::Disable,
        key: "disable",
        variable: "OCLCACHE_DISABLE",
        default: "false",
        help: "forward everything to the drivers and touch nothing",
    },
    Setting {
        name: Name::ReadOnly,
        key: "readonly",
        variable: "OCLCACHE_READONLY",
        default: "false",
        help: "serve from the cache, never write",
    },
    Setting {
        name: Name::Recache,
        key: "recache",
        variable: "OCLCACHE_RECACHE",
        default: "false",
        help: "build everything and overwrite what is stored",
    },
    Setting {
        name: Name::StoreSource,
        key: "store_source",
        variable: "OCLCACHE_STORE_SOURCE",
        default: "true",
        help: "keep sources, macro values and build logs in entries; otherwise digests of them",
    },
    Setting {
        name: Name::Verify,
        key: "verify",
        variable: "OCLCACHE_VERIFY",
        default: "0",
        help: "percent of the hits that are also built from source and compared",
    },
    Setting {
        name: Name::MustHit,
        key: "must_hit",
        variable: "OCLCACHE_MUST_HIT",
        default: "false",
        help: "say on standard error what is compiled; `oclcache run` then ends with 125",
    },
    Setting {
        name: Name::Vendors,
        key: "vendors",
        variable: "OCLCACHE_VENDORS",
        default: "",
        help: "the real drivers: directories, .icd files or libraries, separated by colons; empty: the registered ones",
    },
    Setting {
        name: Name::Mode,
        key: "mode",
        variable: "OCLCACHE_MODE",
        default: "auto",
        help: "icd: report the drivers' platforms; beside: only cache; auto: report what the loader does not load itself",
    },
    Setting {
        name: Name::Log,
        key: "log",
        variable: "OCLCACHE_LOG",
        default: "off",
        help: "a level (error, warn, info, debug, trace) or filter",
    },
    Setting {
        name: Name::LogFile,
        key: "log_file",
        variable: "OCLCACHE_LOG_FILE",
        default: "",
        help: "appended to instead of standard error",
    },
];

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
        if config.percent().is_none() {
            let value = crate::log::os(&config.value(Name::Verify).0).to_string();
            config.complaints.push(format!(
                "`verify` is `{value}`, which is no whole number from 0 to 100; 0 is taken"
            ));
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

    /// The drivers to load; None: the registered ones.
    pub fn vendors(&self) -> Option<Vec<PathBuf>> {
        let list = self.text(Name::Vendors)?.as_bytes();
        let parts = list
            .split(|byte| *byte == b':')
            .filter(|part| !part.is_empty());
        Some(
            parts
                .map(|part| PathBuf::from(OsString::from_vec(part.to_vec())))
                .collect(),
        )
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
