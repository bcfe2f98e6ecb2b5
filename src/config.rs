//! The settings: one table of names, variables, defaults and meanings, and where each value came from.
//!
//! The environment stands above the configuration files, and those above the default. What a file says of one program stands
//! above what any says of all, and otherwise the user's file above the system's.

mod file;
mod program;
mod table;
mod value;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::quantity;
pub use file::{is_file_name, meant, of_system, of_user};
pub use program::{RULES, Rule, executable};
use table::BUILT_DIR;
pub use table::{Name, SETTINGS, Setting};
pub use value::Kind;

/// What stands in the table, in bytes.
const DEFAULT_MAX_SIZE: u64 = 5 << 30;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Nobody set it.
    Default,
    /// The system's configuration file.
    SystemFile(PathBuf),
    /// The user's configuration file.
    File(PathBuf),
    /// The environment.
    Environment,
}

/// All values.
#[derive(Clone, Debug)]
pub struct Config {
    values: Vec<(OsString, Source)>,
    /// What the configuration files say of single programs, the system's first.
    rules: Vec<Rule>,
    /// What was wrong with the configuration files, for the log.
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

/// When binaries are recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Record {
    /// By the driver's profile, and by what was measured.
    Auto,
    /// Inside the miss.
    Inline,
    /// Later, by a baker.
    Bake,
    /// Never.
    Off,
}

impl Config {
    /// The settings of this process.
    pub fn read() -> Config {
        Config::read_with(&|_| None)
    }

    /// The settings of this process, where some variables have other values.
    pub fn read_with(given: &dyn Fn(&str) -> Option<OsString>) -> Config {
        let environment = |name: &str| given(name).or_else(|| std::env::var_os(name));
        Config::read_from(&environment, of_system().as_deref())
    }

    /// The settings that an environment and a configuration file of the system make. A cache that is disabled in the
    /// environment opens no configuration file.
    pub fn read_from(
        environment: &dyn Fn(&str) -> Option<OsString>,
        system_file: Option<&Path>,
    ) -> Config {
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
            rules: Vec::new(),
            complaints: Vec::new(),
            cache_home: directory("XDG_CACHE_HOME"),
            home: home.clone(),
        };
        let disabled_by_variable =
            variable("OCLCACHE_DISABLE").is_some_and(|value| truth(value.as_bytes()));
        if !disabled_by_variable {
            if let Some(file) = system_file {
                config.read_system_file(file);
            }
            if let Some(file) = of_user(directory("XDG_CONFIG_HOME"), home) {
                config.read_user_file(&file);
            }
        }
        config.apply_rules();
        for (index, setting) in SETTINGS.iter().enumerate() {
            if let Some(value) = setting.variable.and_then(variable) {
                config.values[index] = (value, Source::Environment);
            }
        }
        for setting in SETTINGS
            .iter()
            .filter(|setting| setting.kind.has_fallback())
        {
            let (value, source) = &config.values[setting.name as usize];
            if *source != Source::Default && !setting.kind.accepts(value) {
                let from = match source {
                    Source::SystemFile(file) | Source::File(file) => {
                        crate::log::path(file).to_string()
                    }
                    _ => setting.variable.unwrap_or_default().to_owned(),
                };
                let complaint = format!(
                    "`{from}`: `{}` is `{}`, which is not {}; {} is taken",
                    setting.key,
                    crate::log::os(value),
                    setting.kind.wanted(),
                    setting.default
                );
                config.complaints.push(complaint);
            }
        }
        config
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

    /// When binaries are recorded.
    pub fn record(&self) -> Record {
        match self.value(Name::Record).0.as_bytes() {
            b"inline" => Record::Inline,
            b"bake" => Record::Bake,
            b"off" => Record::Off,
            _ => Record::Auto,
        }
    }

    /// Whether a process that leaves something to bake starts a baker; None: by where it runs.
    pub fn autobake(&self) -> Option<bool> {
        (!self.is(Name::Autobake, "auto")).then(|| self.flag(Name::Autobake))
    }

    /// How many of a hundred hits are built from source as well.
    pub fn verify(&self) -> u8 {
        let text = self.value(Name::Verify).0.to_str();
        text.and_then(value::percent).unwrap_or(0)
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

    /// Users beside root and the effective one whose directories of entries are taken.
    pub fn trusted_owners(&self) -> Vec<u32> {
        let ids = self.value(Name::TrustedOwners).0.to_string_lossy();
        ids.split(' ').filter_map(|id| id.parse().ok()).collect()
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
                    "the setting `dir` is `{}`, which is not an absolute path; `oclcache config` shows where it is set",
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
        let default = default
            .ok_or("neither OCLCACHE_DIR nor XDG_CACHE_HOME nor HOME is set; set OCLCACHE_DIR")?;
        // Under sudo HOME may still be the caller's, in whose directories root must leave no files.
        let parent = default
            .ancestors()
            .find_map(|parent| Some((parent, std::fs::metadata(parent).ok()?)));
        match parent {
            Some((_, metadata)) if metadata.uid() == rustix::process::geteuid().as_raw() => {
                Ok(default)
            }
            Some((parent, _)) => {
                let base = self.cache_home.as_ref().or(self.home.as_ref());
                let missing = base.filter(|base| !base.exists());
                let missing =
                    missing.map(|base| format!("`{}` is not there, and ", crate::log::path(base)));
                Err(format!(
                    "{}`{}` belongs to another user than the one who runs this program; set OCLCACHE_DIR",
                    missing.unwrap_or_default(),
                    crate::log::path(parent)
                ))
            }
            None => Err(format!(
                "`{}` has no existing parent; make one, or set OCLCACHE_DIR",
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
pub fn truth(value: &[u8]) -> bool {
    !["", "0", "false", "no", "off"]
        .iter()
        .any(|no| value.eq_ignore_ascii_case(no.as_bytes()))
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
        let find = |name: &str| {
            let found = variables.iter().find(|(known, _)| known == name);
            found.map(|(_, value)| value.clone())
        };
        Config::read_from(&find, None)
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
    fn a_word_that_is_none_of_a_settings_is_a_mistake_and_auto() {
        for (value, record) in [
            ("auto", Record::Auto),
            ("inline", Record::Inline),
            ("bake", Record::Bake),
            ("off", Record::Off),
        ] {
            let config = config(&[("OCLCACHE_RECORD", value)]);
            assert_eq!((config.record(), config.complaints.len()), (record, 0));
        }
        let config = config(&[("OCLCACHE_RECORD", "0"), ("OCLCACHE_MODE", "layer")]);
        assert_eq!((config.record(), config.mode()), (Record::Auto, Mode::Auto));
        assert!(config.complaints[0].contains("`record` is `0`"));
        assert!(config.complaints[1].contains("`mode` is `layer`"));
    }

    #[test]
    fn a_baker_is_started_or_not_only_if_that_is_said() {
        let said = |value| config(&[("OCLCACHE_AUTOBAKE", value)]).autobake();
        assert_eq!(said(""), None);
        for (value, decided) in [("auto", None), ("0", Some(false)), ("1", Some(true))] {
            assert_eq!(said(value), decided, "{value}");
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
            config.complaints[0].contains("`nonsense` is no setting"),
            "{:?}",
            config.complaints
        );
    }

    /// The settings that a system's and a user's file make; None if no file can be made that only root can write.
    fn of_files(system: &str, user: &str) -> Option<Config> {
        let place = crate::trust::tests::place()?;
        let file = place.path().join("config.toml");
        std::fs::write(&file, system).expect("written");
        let home = tempfile::tempdir().expect("a temporary directory");
        let directory = home.path().join(".config/oclcache");
        std::fs::create_dir_all(&directory).expect("made");
        std::fs::write(directory.join("config.toml"), user).expect("written");
        let find = |name: &str| match name {
            "HOME" => Some(home.path().into()),
            "OCLCACHE_RECACHE" => Some("0".into()),
            _ => None,
        };
        let is_root = rustix::process::geteuid().is_root();
        is_root.then(|| Config::read_from(&find, Some(&file)))
    }

    #[test]
    fn the_users_file_stands_above_the_systems_and_only_the_systems_says_who_is_trusted() {
        let system =
            "readonly = true\nstore_source = false\nrecache = true\ntrusted_owners = [1000, 7]\n";
        let user = "store_source = true\ntrusted_owners = [4242]\n";
        let Some(config) = of_files(system, user) else {
            return crate::trust::tests::skipped("a configuration file of the system");
        };
        assert!(config.readonly() && config.store_source() && !config.recache());
        let source = |name| &config.value(name).1;
        assert!(matches!(source(Name::ReadOnly), Source::SystemFile(_)));
        assert!(matches!(source(Name::StoreSource), Source::File(_)));
        assert_eq!(config.trusted_owners(), [1000, 7]);
        let [complaint] = config.complaints.as_slice() else {
            panic!("{:?}", config.complaints)
        };
        assert!(complaint.ends_with("is taken from the system's configuration file only"));
        for wrong in ["\"root\"", "[\"root\"]", "[-1]", "[4294967296]", "1000"] {
            let system = format!("readonly = true\ntrusted_owners = {wrong}\n");
            let config = of_files(&system, "").expect("a file of the system");
            assert_eq!(
                (config.trusted_owners(), config.complaints.len()),
                (vec![], 1)
            );
        }
    }

    #[test]
    fn no_variable_says_who_is_trusted() {
        let config = config(&[("OCLCACHE_TRUSTED_OWNERS", "1000"), ("", "1000")]);
        assert_eq!(config.trusted_owners(), [0; 0]);
    }

    #[test]
    fn a_file_of_the_system_that_others_can_write_is_not_read() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("config.toml");
        let read = |file: &Path| Config::read_from(&|_| None, Some(file));
        assert_eq!(read(&file).complaints, [""; 0]);
        std::fs::write(&file, "readonly = true\n").expect("written");
        std::fs::set_permissions(&file, std::os::unix::fs::PermissionsExt::from_mode(0o666))
            .expect("changed");
        let config = read(&file);
        assert!(!config.readonly());
        assert!(config.complaints[0].contains("is not read: `/"));
    }

    #[test]
    fn what_is_no_plain_text_in_a_files_place_is_said_in_one_line_and_hangs_nothing() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let file = home.path().join("oclcache/config.toml");
        std::fs::create_dir(home.path().join("oclcache")).expect("made");
        let complaints = || {
            let home = home.path().to_str().expect("UTF-8");
            config(&[("XDG_CONFIG_HOME", home)]).complaints
        };
        let fifo = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mkfifoat(rustix::fs::CWD, &file, fifo).expect("a FIFO");
        assert!(complaints()[0].ends_with("it is not a regular file"));
        std::fs::remove_file(&file).expect("removed");
        std::fs::write(&file, "log = 1\n\u{1b}[2J\"x\u{202e}\n = 2").expect("written");
        let said = complaints();
        assert!(said[0].contains("is not TOML: line 2"), "{said:?}");
        assert!(!said[0].contains(['\n', '\u{1b}', '\u{202e}']), "{said:?}");
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
