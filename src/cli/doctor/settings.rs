//! Checks the configuration: errors in its files, the source of each value, and settings that limit the cache.

use std::path::Path;
use std::time::Duration;

use super::report::{DoctorReport, Fix};
use crate::cache::RUN_VARIABLE;
use crate::cache::autobake::REMOTE_KEY;
use crate::cache::behavior;
use crate::cache::policy::{Decision, decide};
use crate::cli::open::{tiers, usable_store};
use crate::cli::output::quoted;
use crate::config::{Config, IGNORED, Name, RecordMode, SETTINGS, ValueSource, meant, shown};
use crate::driver::profile;
use crate::log::{os, path, text};
use crate::store::driver_costs;

const ABOUT: &str = "setting";
/// A smaller limit, in bytes, is probably a number without its `G`.
const MIN_SIZE: u64 = 1 << 20;
/// The time of an entry's last use is updated at most once in this time.
const MIN_AGE: Duration = Duration::from_secs(3600);

pub fn examine(config: &Config, report: &mut DoctorReport) {
    for complaint in &config.complaints {
        let is_unread = complaint.starts_with("cannot read") || complaint.contains("is not read:");
        let fix = Fix::words(if is_unread {
            "the file is ignored until you can read it and nobody else can write it"
        } else if complaint.contains(IGNORED) {
            "a setting that names code, files or directories is read only from a file of yours or root's that nobody else can write, in directories that nobody else can write"
        } else {
            "correct or remove it; run `oclcache config` to list the settings"
        });
        report.doubtful("configuration", complaint.clone(), fix);
    }
    examine_names(report);
    let mut is_default = true;
    for setting in &SETTINGS {
        let (value, source) = config.value(setting.name);
        let from = match source {
            ValueSource::Default => continue,
            ValueSource::Environment => setting.variable.unwrap_or_default().to_owned(),
            ValueSource::SystemFile(file) | ValueSource::File(file) => path(file).to_string(),
        };
        is_default = false;
        let value = shown(setting.name, value);
        let text = format!("{} = {} (from {from})", setting.key, os(&value));
        match limitation(config, setting.name) {
            None => report.good(ABOUT, text),
            Some((what, is_off)) => {
                let (text, fix) = (format!("{text}: {what}"), unset(setting.name, source));
                match is_off {
                    true => report.wrong(ABOUT, text, fix),
                    false => report.doubtful(ABOUT, text, fix),
                }
            }
        }
    }
    if is_default && config.complaints.is_empty() {
        report.good("configuration", "all settings have their defaults");
    }
    for tier in tiers(config).all() {
        let shown = path(&tier.path);
        match &tier.tier {
            Ok(_) => report.good("system_dirs", format!("{shown} is read")),
            Err(why) => {
                let words = "make it and its parents writable for root only, or remove it from `system_dirs`";
                report.wrong(
                    "system_dirs",
                    format!("{shown} is not used: {why}"),
                    Fix::words(words),
                );
            }
        }
    }
}

/// Reports variables that look like settings but are not.
fn examine_names(report: &mut DoctorReport) {
    let known = || SETTINGS.iter().filter_map(|setting| setting.variable);
    for (name, _) in std::env::vars_os() {
        let Some(name) = name.to_str().filter(|name| name.starts_with("OCLCACHE_")) else {
            continue;
        };
        // Variables of `run`, of builds and of tests.
        let is_other = [RUN_VARIABLE, REMOTE_KEY].contains(&name)
            || ["OCLCACHE_DEFAULT_", "OCLCACHE_TEST_"]
                .iter()
                .any(|others| name.starts_with(others));
        if is_other || known().any(|known| known == name) {
            continue;
        }
        let hint = meant(name, known());
        let shown = format!("`{}` is not a setting{hint}", text(name.as_bytes()));
        let fix = match quoted(Path::new(name)) {
            Some(name) => Fix::command(format!("unset {name}")),
            None => Fix::words("unset it"),
        };
        report.doubtful("variable", shown, fix);
    }
}

/// How a setting limits the cache, and whether it turns the cache off.
fn limitation(config: &Config, name: Name) -> Option<(&'static str, bool)> {
    match name {
        Name::Disable if config.disable() => Some(("the cache does nothing", true)),
        Name::ReadOnly if config.readonly() => Some(("nothing new is stored", false)),
        Name::Recache if config.recache() => Some(("nothing is served", false)),
        Name::Record if config.record() == RecordMode::Off => {
            Some(("nothing new is stored", false))
        }
        Name::MaxSize if config.max_size().is_some_and(|most| most < MIN_SIZE) => {
            Some(("hardly any entry fits", false))
        }
        Name::MaxAge if config.max_age().is_some_and(|most| most < MIN_AGE) => {
            Some(("entries in use are removed as well", false))
        }
        Name::Verify if config.verify() > 0 => Some(("hits are also compiled", false)),
        _ => None,
    }
}

pub(super) fn unset(name: Name, source: &ValueSource) -> Fix {
    let setting = &SETTINGS[name as usize];
    match source {
        ValueSource::Default | ValueSource::Environment => {
            Fix::command(format!("unset {}", setting.variable.unwrap_or_default()))
        }
        ValueSource::SystemFile(_) => Fix::command(format!(
            "sudo oclcache config unset {} --system",
            setting.key
        )),
        ValueSource::File(_) => Fix::command(format!("oclcache config unset {}", setting.key)),
    }
}

/// Reports the settings for one program.
pub fn examine_rules(config: &Config, program: &str, report: &mut DoctorReport) {
    for rule in config.rules().filter(|rule| rule.program == program) {
        let from = match &rule.source {
            ValueSource::SystemFile(file) | ValueSource::File(file) => path(file).to_string(),
            ValueSource::Default | ValueSource::Environment => continue,
        };
        let name = text(program.as_bytes());
        let text = format!("{name}: {} = {} (from {from})", rule.key, rule.value);
        if rule.key != "cache" || rule.value {
            report.good("rule", text);
            continue;
        }
        let fix = match (quoted(Path::new(program)), &rule.source) {
            (None, _) => Fix::words(format!("remove it from `{from}`")),
            (Some(name), ValueSource::SystemFile(_)) => Fix::command(format!(
                "sudo oclcache config unset program.{name}.cache --system"
            )),
            (Some(name), _) => Fix::command(format!("oclcache config unset program.{name}.cache")),
        };
        report.wrong("rule", format!("{text}: the cache is off for it"), fix);
    }
}

/// When builds of this driver are recorded, and why.
pub fn policy(config: &Config, family: &str, library: &str) -> Decision {
    let store = usable_store(config);
    let known = store.as_ref().map(driver_costs::list).unwrap_or_default();
    let measured = known
        .iter()
        .find(|one| one.family == family && one.library == library);
    let behavior = match (&store, measured) {
        (Some(store), Some(measured)) => behavior::of_used(store, measured),
        _ => profile::named(family).behavior(),
    };
    let now_ms = store.map_or(0, |store| store.root().now_ms());
    decide(config, behavior.record, measured, now_ms)
}
