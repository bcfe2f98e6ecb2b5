//! The settings: one table of names, variables, defaults and meanings, and where each value came from.
//!
//! The environment overrides the configuration files, and these override the defaults. A setting for one program overrides one for
//! all programs. Otherwise the user's file overrides the system's.

mod file;
mod program;
mod remote;
mod script;
mod site_switch;
mod table;
mod value;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::quantity;
pub use file::{IGNORED, is_file_name, meant, of_system, of_user};
pub use program::{RULES, Rule, lasting_executable, program_name};
pub use remote::{RemoteContent, shown, without_password};
pub use script::script_name;
pub use site_switch::SiteSwitch;
use table::BUILT_DIR;
pub use table::{Name, ObeyedFrom, SETTINGS, Setting};
pub use value::ValueKind;

/// The default that the table of settings shows, in bytes.
const DEFAULT_MAX_SIZE: u64 = 5 << 30;
/// The default that the table of settings shows.
const DEFAULT_AUDIT: u64 = 1000;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueSource {
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
    values: Vec<(OsString, ValueSource)>,
    /// The settings of single programs in the configuration files, those of the system first.
    rules: Vec<Rule>,
    /// Errors in the configuration files, for the log.
    pub complaints: Vec<String>,
    home: Option<PathBuf>,
    cache_home: Option<PathBuf>,
    config_home: Option<PathBuf>,
    state_home: Option<PathBuf>,
    /// The signers that the system's file names.
    system_trust: OsString,
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
pub enum RecordMode {
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

    /// The settings of this process, with other values for some variables.
    pub fn read_with(given: &dyn Fn(&str) -> Option<OsString>) -> Config {
        let environment = |name: &str| given(name).or_else(|| std::env::var_os(name));
        Config::read_from(&environment, of_system().as_deref())
    }

    /// The settings from an environment and a configuration file of the system. If the environment disables the cache, no
    /// configuration file is opened.
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
                .map(|setting| (setting.default.into(), ValueSource::Default))
                .collect(),
            rules: Vec::new(),
            complaints: Vec::new(),
            cache_home: directory("XDG_CACHE_HOME"),
            config_home: directory("XDG_CONFIG_HOME"),
            state_home: directory("XDG_STATE_HOME"),
            system_trust: OsString::new(),
            home: home.clone(),
        };
        let disabled_by_variable =
            variable("OCLCACHE_DISABLE").is_some_and(|value| truth(value.as_bytes()));
        if !disabled_by_variable {
            if let Some(file) = system_file {
                config.read_system_file(file);
                config.system_trust = config.value(Name::RemoteTrust).0.clone();
            }
            if let Some(file) = of_user(directory("XDG_CONFIG_HOME"), home) {
                config.read_user_file(&file);
            }
        }
        config.apply_rules();
        for (index, setting) in SETTINGS.iter().enumerate() {
            if let Some(value) = setting.variable.and_then(variable) {
                config.values[index] = (value, ValueSource::Environment);
            }
        }
        config.add_system_trust();
        for setting in SETTINGS
            .iter()
            .filter(|setting| setting.kind.has_fallback())
        {
            let (value, source) = &config.values[setting.name as usize];
            if *source != ValueSource::Default && !setting.kind.accepts(value) {
                let from = match source {
                    ValueSource::SystemFile(file) | ValueSource::File(file) => {
                        crate::log::path(file).to_string()
                    }
                    _ => setting.variable.unwrap_or_default().to_owned(),
                };
                let complaint = format!(
                    "`{from}`: `{}` is `{}`, which is not {}; using {}",
                    setting.key,
                    crate::log::os(value),
                    setting.kind.wanted(),
                    setting.default
                );
                config.complaints.push(complaint);
                config.values[setting.name as usize] =
                    (setting.default.into(), ValueSource::Default);
            }
        }
        config
    }

    /// The value as it was written, and where.
    pub fn value(&self, name: Name) -> &(OsString, ValueSource) {
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

    /// Whether nothing is looked up.
    pub fn recache(&self) -> bool {
        self.flag(Name::Recache)
    }

    /// Whether texts are kept.
    pub fn store_source(&self) -> bool {
        self.flag(Name::StoreSource)
    }

    /// When binaries are recorded.
    pub fn record(&self) -> RecordMode {
        match self.value(Name::Record).0.as_bytes() {
            b"inline" => RecordMode::Inline,
            b"bake" => RecordMode::Bake,
            b"off" => RecordMode::Off,
            _ => RecordMode::Auto,
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

    /// One in this many hits is audited; None: no hit is.
    pub fn audit(&self) -> Option<u64> {
        let text = self.value(Name::Audit).0.to_str();
        let count = text.and_then(value::count).unwrap_or(DEFAULT_AUDIT);
        (count > 0).then_some(count)
    }

    /// Whether what is compiled is reported.
    pub fn must_hit(&self) -> bool {
        self.flag(Name::MustHit)
    }

    /// The maximum size of all entries, in bytes; None: no limit.
    pub fn max_size(&self) -> Option<u64> {
        let limit = self.size(Name::MaxSize).unwrap_or(DEFAULT_MAX_SIZE);
        (limit > 0).then_some(limit)
    }

    /// The space to keep free, in bytes; None: by the size of the file system.
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

    /// The system directories, in order. Relative paths are ignored.
    pub fn system_dirs(&self) -> Vec<PathBuf> {
        let dirs = paths(&self.value(Name::SystemDirs).0);
        dirs.into_iter().filter(|path| path.is_absolute()).collect()
    }

    /// The users who may own system directories, beside root and the effective user.
    pub fn trusted_owners(&self) -> Vec<u32> {
        let ids = self.value(Name::TrustedOwners).0.to_string_lossy();
        ids.split(' ').filter_map(|id| id.parse().ok()).collect()
    }

    /// Whether a library of this name may answer for functions of drivers without being in keys.
    pub fn is_neutral_library(&self, name: &str) -> bool {
        let names = self.value(Name::NeutralLibraries).0.to_string_lossy();
        names.split_whitespace().any(|known| known == name)
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

    /// The log's filter and file, if there is to be a log.
    pub fn log(&self) -> Option<(String, Option<PathBuf>)> {
        let filter = self.value(Name::Log).0.to_string_lossy().into_owned();
        let wanted = !matches!(filter.as_str(), "" | "off" | "0");
        wanted.then(|| (filter, self.text(Name::LogFile).map(PathBuf::from)))
    }

    /// The cache directory.
    ///
    /// # Errors
    /// For people: why there is none.
    pub fn directory(&self) -> Result<PathBuf, String> {
        let (value, source) = self.value(Name::Dir);
        if *source != ValueSource::Default {
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
        if BUILT_DIR == Some("") {
            return Err("this build has no default directory; set OCLCACHE_DIR".into());
        }
        let default = self
            .default_directory()
            .ok_or("neither OCLCACHE_DIR nor XDG_CACHE_HOME nor HOME is set to an absolute path; set OCLCACHE_DIR")?;
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
                    "{}`{}` belongs to another user than the one who runs this program; set OCLCACHE_DIR to a directory of yours",
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

    /// The default cache directory, if it belongs to another user, but the directory around it to this one alone, as after root has
    /// restored it there.
    pub fn foreign_directory(&self) -> Option<PathBuf> {
        let own = rustix::process::geteuid().as_raw();
        let is_default = self.value(Name::Dir).1 == ValueSource::Default;
        let default = self.default_directory().filter(|_| is_default)?;
        let around = self.cache_home.as_ref().or(self.home.as_ref())?;
        let around = std::fs::metadata(around).ok()?;
        let is_own_alone = around.uid() == own && around.mode() & 0o022 == 0;
        let is_foreign = std::fs::metadata(&default).ok()?.uid() != own;
        (is_own_alone && is_foreign).then_some(default)
    }

    fn default_directory(&self) -> Option<PathBuf> {
        match (BUILT_DIR, &self.cache_home, &self.home) {
            (Some(built), ..) => expand_home(built, self.home.as_deref()),
            (None, Some(cache_home), _) => Some(cache_home.join("oclcache")),
            (None, None, Some(home)) => Some(home.join(".cache/oclcache")),
            (None, None, None) => None,
        }
    }
}

/// The paths of a list separated by colons. A backslash escapes a colon or a backslash; before anything else it is a plain
/// character.
pub fn paths(list: &OsStr) -> Vec<PathBuf> {
    let mut paths = vec![Vec::new()];
    let mut bytes = list.as_bytes().iter().copied().peekable();
    while let Some(byte) = bytes.next() {
        let escaped = bytes.next_if(|next| byte == b'\\' && matches!(next, b':' | b'\\'));
        match (escaped, paths.last_mut()) {
            (None, _) if byte == b':' => paths.push(Vec::new()),
            (escaped, Some(path)) => path.push(escaped.unwrap_or(byte)),
            (_, None) => {}
        }
    }
    paths.retain(|path| !path.is_empty());
    paths
        .into_iter()
        .map(|path| OsString::from_vec(path).into())
        .collect()
}

/// A list of these paths, with escapes.
pub fn list<P: AsRef<Path>>(paths: &[P]) -> OsString {
    let escaped = paths.iter().map(|path| {
        let bytes = path.as_ref().as_os_str().as_bytes().iter();
        let escaped = bytes.flat_map(|byte| match byte {
            b':' | b'\\' => vec![b'\\', *byte],
            _ => vec![*byte],
        });
        escaped.collect()
    });
    OsString::from_vec(escaped.collect::<Vec<Vec<u8>>>().join(&b':'))
}

/// `0`, `false`, `no`, `off` and the empty text are false; everything else is true.
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
mod tests;
