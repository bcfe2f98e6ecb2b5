//! The settings of single programs in the configuration files.
//!
//! A program is the file that runs, or the script that an interpreter runs. A rule for the interpreter holds for all its scripts,
//! unless they have rules of their own.

use std::os::unix::ffi::OsStrExt;

use once_cell::race::OnceBox;

use super::script::own_script;
use super::{Config, Name, ValueSource};
use crate::proc_file;

/// A setting that a program can have.
pub struct RuleSetting {
    /// The key below `[program.NAME]`.
    pub key: &'static str,
    /// The setting for all programs that it overrides.
    name: Name,
    /// Whether its meaning is the opposite of that.
    is_contrary: bool,
    /// What it means.
    pub help: &'static str,
}

#[cfg(test)]
impl RuleSetting {
    /// The setting for all programs that it overrides.
    pub fn setting(&self) -> &'static super::Setting {
        &super::SETTINGS[self.name as usize]
    }
}

const CACHE: &str = "cache";

/// The settings that a program can have.
pub const RULES: [RuleSetting; 2] = [
    RuleSetting {
        key: CACHE,
        name: Name::Disable,
        is_contrary: true,
        help: "false: forward everything this program does to the drivers, as OCLCACHE_DISABLE",
    },
    RuleSetting {
        key: "store_source",
        name: Name::StoreSource,
        is_contrary: false,
        help: "keep this program's sources, macro values and build logs in entries",
    },
];

/// A setting of one program in a configuration file.
#[derive(Clone, Debug)]
pub struct Rule {
    /// The program's file name, as statistics show it.
    pub program: String,
    /// Which of [`RULES`].
    pub key: &'static str,
    /// Its value.
    pub value: bool,
    /// Which file.
    pub source: ValueSource,
}

impl Config {
    /// The settings of single programs, each once: the user's file overrides the system's.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        let is_last = |(index, rule): &(usize, &Rule)| {
            let mut later = self.rules[index + 1..].iter();
            !later.any(|other| (&other.program, other.key) == (&rule.program, rule.key))
        };
        let last = self.rules.iter().enumerate().filter(is_last);
        last.map(|(_, rule)| rule)
    }

    /// Whether no program is cached, as far as this process knows.
    pub fn disables_all(&self) -> bool {
        self.disable() && !self.rules().any(|rule| rule.key == CACHE && rule.value)
    }

    /// The name, of these two of a program, because of whose setting in a file it is not cached.
    pub fn disabled_name<'a>(
        &self,
        executable: &'a str,
        script: Option<&'a str>,
    ) -> Option<&'a str> {
        let cached = |name: &str| {
            let mut rules = self.rules();
            let rule = rules.find(|rule| rule.key == CACHE && rule.program == name)?;
            Some(rule.value)
        };
        let names = script.into_iter().chain([executable]);
        let mut named = names.filter_map(|name| Some((name, cached(name)?)));
        named
            .next()
            .and_then(|(name, is_cached)| (!is_cached).then_some(name))
    }

    /// Takes the settings of the running program: those of its script override those of its interpreter.
    pub(super) fn apply_rules(&mut self) {
        if self.rules.is_empty() {
            return;
        }
        let (own, shown) = (executable(), program_name());
        self.apply_rules_of(&String::from_utf8_lossy(own));
        if shown != own {
            self.apply_rules_of(&String::from_utf8_lossy(shown));
        }
    }

    fn apply_rules_of(&mut self, program: &str) {
        let rules = std::mem::take(&mut self.rules);
        for rule in rules.iter().filter(|rule| rule.program == program) {
            if let Some(setting) = RULES.iter().find(|setting| setting.key == rule.key) {
                let value = (rule.value != setting.is_contrary).to_string();
                self.values[setting.name as usize] = (value.into(), rule.source.clone());
            }
        }
        self.rules = rules;
    }
}

/// The name of the running program's file when a door was opened, even if that was replaced meanwhile. Empty while it cannot be read.
pub fn executable() -> &'static [u8] {
    static NAME: OnceBox<Vec<u8>> = OnceBox::new();
    let name = NAME.get_or_try_init(|| name_now().map(Box::new).ok_or(()));
    name.map_or(&[], Vec::as_slice)
}

/// The name of the running program for people and for rules: that of its script, or else [`executable`]. Never a part of a key.
pub fn program_name() -> &'static [u8] {
    static NAME: OnceBox<Option<Vec<u8>>> = OnceBox::new();
    let executable = executable();
    if executable.is_empty() {
        return executable;
    }
    // Read once: a program may change its arguments.
    let script = NAME.get_or_init(|| Box::new(own_script(executable)));
    script.as_deref().unwrap_or(executable)
}

/// [`executable`], if it is known and the file still has that name. A driver may read it at any time, so nobody knows which of two names it
/// has read.
pub fn lasting_executable() -> Option<&'static [u8]> {
    let name = executable();
    name_now().is_some_and(|now| now == name).then_some(name)
}

/// None if it cannot be read; no file has an empty name.
fn name_now() -> Option<Vec<u8>> {
    let path = proc_file::running_program().ok()?;
    let name = path.file_name()?.as_bytes();
    // proc(5): the kernel appends this to the path of a removed file.
    let name = name.strip_suffix(b" (deleted)").unwrap_or(name);
    (!name.is_empty()).then(|| name.to_vec())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// What a user's file with this text, and a variable, make of a program's settings: whether it is off, and whether it keeps
    /// sources; and what is wrong with the file.
    fn of(text: &str, disable: Option<&str>, program: &str) -> ((bool, bool), Vec<String>) {
        let home = tempfile::tempdir().expect("a temporary directory");
        std::fs::create_dir(home.path().join("oclcache")).expect("made");
        std::fs::write(home.path().join("oclcache/config.toml"), text).expect("written");
        let variable = |name: &str| match name {
            "XDG_CONFIG_HOME" => Some(home.path().into()),
            _ => None,
        };
        let mut config = Config::read_from(&variable, None);
        config.apply_rules_of(program);
        // As in `read_from`, where this process has a name of its own.
        if let Some(disable) = disable {
            config.values[Name::Disable as usize] = (disable.into(), ValueSource::Environment);
        }
        let settings = (config.disable(), config.store_source());
        (settings, config.complaints)
    }

    #[test]
    fn a_rule_holds_for_its_program_and_stands_above_what_holds_for_all() {
        let text = "disable = true\n[program.darktable]\ncache = true\nstore_source = false\n\
            [program.\"python3.11\"]\ncache = false\n";
        for (program, settings) in [
            ("darktable", (false, false)),
            ("python3.11", (true, true)),
            ("hashcat", (true, true)),
        ] {
            assert_eq!(of(text, None, program), (settings, vec![]), "{program}");
        }
        let text = "[program.\"python3.11\"]\ncache = false\n";
        assert_eq!(of(text, None, "python3.11").0, (true, true));
        assert_eq!(of(text, None, "python3").0, (false, true));
        assert_eq!(of(text, Some("0"), "python3.11").0, (false, true));
    }

    #[test]
    fn the_environment_stands_above_the_rule_of_the_running_program() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let own = String::from_utf8_lossy(executable()).into_owned();
        let text = format!("[program.'{own}']\ncache = false\nstore_source = false\n");
        std::fs::create_dir(home.path().join("oclcache")).expect("made");
        std::fs::write(home.path().join("oclcache/config.toml"), text).expect("written");
        let read = |disable: &str| {
            let variable = |name: &str| match name {
                "XDG_CONFIG_HOME" => Some(home.path().into()),
                "OCLCACHE_DISABLE" => Some(disable.into()),
                _ => None,
            };
            Config::read_from(&variable, None)
        };
        assert!(read("").disable() && !read("").store_source());
        assert!(!read("0").disable() && !read("0").store_source());
        assert!(matches!(
            read("").value(Name::Disable).1,
            ValueSource::File(_)
        ));
    }

    #[test]
    fn what_is_wrong_with_a_rule_is_said_and_the_rest_is_taken() {
        let good = "[program.good]\ncache = false\n";
        for (wrong, words) in [
            ("program = 1\n", "`program` must be a table"),
            ("program.x = 1\n", "`program.x` must be a table"),
            ("[program.x]\ncach = false\n", "did you mean `cache`?"),
            (
                "[program.x]\ncache = \"no\"\n",
                "`program.x.cache` must be true or false",
            ),
            (
                "[program.python3.11]\ncache = false\n",
                "write a name with dots in quotes",
            ),
            ("[program.'a/b']\ncache = false\n", "`program.a/b` must be"),
            ("[program.'']\ncache = false\n", "`program.` must be"),
            (
                "[program.\"\\u001b[2J\"]\nx = 1\n",
                "`program.\\u{1b}[2J.x` is not a setting",
            ),
            ("stroe_source = false\n", "did you mean `store_source`?"),
            ("[programs.x]\ncache = false\n", "did you mean `program`?"),
        ] {
            let text = match wrong.starts_with("program =") {
                true => wrong.to_owned(),
                false => format!("{wrong}{good}"),
            };
            let ((is_off, _), complaints) = of(&text, None, "good");
            assert_eq!(is_off, text.contains(good), "{text}");
            assert!(complaints[0].contains(words), "{complaints:?}");
            assert_eq!(complaints.len(), 1, "{complaints:?}");
        }
    }

    #[test]
    fn a_file_that_everybody_can_write_is_not_read() {
        let home = tempfile::tempdir().expect("a temporary directory");
        let file = home.path().join("oclcache/config.toml");
        std::fs::create_dir(home.path().join("oclcache")).expect("made");
        std::fs::write(&file, "readonly = true\n").expect("written");
        let variable = |name: &str| (name == "XDG_CONFIG_HOME").then(|| home.path().into());
        for (mode, is_read) in [(0o600, true), (0o664, true), (0o666, false), (0o602, false)] {
            let permissions = PermissionsExt::from_mode(mode);
            std::fs::set_permissions(&file, permissions).expect("changed");
            let config = Config::read_from(&variable, None);
            assert_eq!(config.readonly(), is_read, "{mode:o}");
            let said = config
                .complaints
                .iter()
                .any(|said| said.contains("chmod o-w"));
            assert_eq!(said, !is_read, "{:?}", config.complaints);
        }
    }
}
