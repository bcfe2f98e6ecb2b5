//! The configuration: what its files are refused for, where each value that is not the default comes from, and what is turned off.

use std::path::Path;
use std::time::Duration;

use super::report::{DoctorReport, Mend};
use crate::cache::RUN_VARIABLE;
use crate::cache::policy::{Decision, decide};
use crate::cli::open::tiers;
use crate::cli::output::quoted;
use crate::config::{Config, IGNORED, Name, RecordMode, SETTINGS, ValueSource, meant};
use crate::driver::profile;
use crate::log::{os, path, text};
use crate::store::Store;
use crate::store::driver_costs;

const ABOUT: &str = "setting";
/// What is less holds no program's kernels, in bytes: a number without its `G` is meant otherwise.
const MIN_SIZE: u64 = 1 << 20;
/// When an entry was last used is written at most once in this time.
const MIN_AGE: Duration = Duration::from_secs(3600);

pub fn examine(config: &Config, report: &mut DoctorReport) {
    for complaint in &config.complaints {
        let is_unread = complaint.starts_with("cannot read") || complaint.contains("is not read:");
        let mend = Mend::words(if is_unread {
            "until it is a file that you can read and nobody else can write, nothing of it holds"
        } else if complaint.contains(IGNORED) {
            "what names code, files or directories is taken only from a file that is yours or root's, and that nobody else can write, nor a directory above it"
        } else {
            "correct it there, or take it out; the names are those of `oclcache config`"
        });
        report.doubtful("configuration", complaint.clone(), mend);
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
        let text = format!("{} = {} (from {from})", setting.key, os(value));
        match hindrance(config, setting.name) {
            None => report.good(ABOUT, text),
            Some((what, true)) => {
                report.wrong(
                    ABOUT,
                    format!("{text}: {what}"),
                    unset(setting.name, source),
                );
            }
            Some((what, false)) => {
                report.doubtful(
                    ABOUT,
                    format!("{text}: {what}"),
                    unset(setting.name, source),
                );
            }
        }
    }
    if is_default && config.complaints.is_empty() {
        report.good(
            "configuration",
            "nothing is set, all is as it is by default",
        );
    }
    for tier in tiers(config).all() {
        let shown = path(&tier.path);
        match &tier.store {
            Ok(_) => report.good("system_dirs", format!("{shown} is read")),
            Err(why) => {
                let words =
                    "let only root write it and its parents, or leave it out of `system_dirs`";
                report.doubtful(
                    "system_dirs",
                    format!("{shown} is not used: {why}"),
                    Mend::words(words),
                );
            }
        }
    }
}

/// Variables that are named as ours, and that nobody reads.
fn examine_names(report: &mut DoctorReport) {
    let known = || SETTINGS.iter().filter_map(|setting| setting.variable);
    for (name, _) in std::env::vars_os() {
        let Some(name) = name.to_str().filter(|name| name.starts_with("OCLCACHE_")) else {
            continue;
        };
        // Of `run`, and of those who build or test it.
        let is_other = name == RUN_VARIABLE
            || ["OCLCACHE_DEFAULT_", "OCLCACHE_TEST_"]
                .iter()
                .any(|others| name.starts_with(others));
        if is_other || known().any(|known| known == name) {
            continue;
        }
        let hint = meant(name, known());
        let shown = format!("`{}` is no setting{hint}", text(name.as_bytes()));
        let mend = match quoted(Path::new(name)) {
            Some(name) => Mend::command(format!("unset {name}")),
            None => Mend::words("unset it"),
        };
        report.doubtful("variable", shown, mend);
    }
}

/// What a setting keeps from the cache, and whether that is all of it.
fn hindrance(config: &Config, name: Name) -> Option<(&'static str, bool)> {
    match name {
        Name::Disable if config.disable() => Some(("the cache does nothing", true)),
        Name::ReadOnly if config.readonly() => Some(("nothing new is stored", false)),
        Name::Recache if config.recache() => Some(("nothing is served", false)),
        Name::Record if config.record() == RecordMode::Off => {
            Some(("nothing new is stored", false))
        }
        Name::MaxSize if config.max_size().is_some_and(|most| most < MIN_SIZE) => {
            Some(("hardly an entry fits", false))
        }
        Name::MaxAge if config.max_age().is_some_and(|most| most < MIN_AGE) => {
            Some(("entries that are in use go as well", false))
        }
        Name::Verify if config.verify() > 0 => Some(("hits are compiled as well", false)),
        _ => None,
    }
}

pub(super) fn unset(name: Name, source: &ValueSource) -> Mend {
    let setting = &SETTINGS[name as usize];
    match source {
        ValueSource::Default | ValueSource::Environment => {
            Mend::command(format!("unset {}", setting.variable.unwrap_or_default()))
        }
        ValueSource::SystemFile(_) => Mend::command(format!(
            "sudo oclcache config unset {} --system",
            setting.key
        )),
        ValueSource::File(_) => Mend::command(format!("oclcache config unset {}", setting.key)),
    }
}

/// What the configuration files say of a program.
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
        let mend = match (quoted(Path::new(program)), &rule.source) {
            (None, _) => Mend::words(format!("take it out of `{from}`")),
            (Some(name), ValueSource::SystemFile(_)) => Mend::command(format!(
                "sudo oclcache config unset program.{name}.cache --system"
            )),
            (Some(name), _) => Mend::command(format!("oclcache config unset program.{name}.cache")),
        };
        report.wrong(
            "rule",
            format!("{text}: the cache does nothing for it"),
            mend,
        );
    }
}

/// When what a driver of this family builds is recorded, and why.
pub fn policy(config: &Config, family: &str, library: &str) -> Decision {
    let store = config.directory().ok();
    let store = store.and_then(|directory| Store::open_existing(&directory).ok().flatten());
    let known = store.as_ref().map(driver_costs::list).unwrap_or_default();
    let measured = known
        .iter()
        .find(|one| one.family == family && one.library == library);
    let now_ms = store.map_or(0, |store| store.root().now_ms());
    decide(config, profile::named(family).record, measured, now_ms)
}
