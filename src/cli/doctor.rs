//! `oclcache doctor`: checks everything the cache needs, one line each, and tells how to fix what is wrong.
//!
//! Loaders and drivers may crash or hang, so that child processes load them (`cli::probe`). Nothing is left behind but what was
//! measured on the drivers' own caches, in a cache that is there and may be written.

mod audit;
mod baker;
mod builds;
mod content;
mod directory;
mod door;
mod drivers;
mod installation;
mod loader;
mod program;
mod python;
pub mod qualify;
mod remote;
mod report;
mod settings;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Command, ValueHint};
use indicatif::ProgressBar;

use super::failure::Failure;
use super::interrupt::Interrupt;
use super::library;
use super::output::{print, print_json, say};
use super::probe::prober::{LONGER, ProbeTarget, Prober};
use super::probe::worker::ProbeBuilds;
use super::probe::{self, Harm, LIMIT, ProbedLibrary};
use super::worker::private_directory::PrivateDirectory;
use crate::config::{Config, script_name};
use crate::log::path;
use qualify::QualifyArgs;
use report::{DoctorReport, Fix};

/// Check everything the cache needs, and tell how to fix what is wrong
#[derive(Args)]
#[command(
    after_help = "Example: oclcache doctor --driver pocl\nExample: oclcache doctor python3 script.py\nExit code: 0 if nothing is wrong, 1 if something is"
)]
pub struct DoctorArgs {
    /// Also check whether this program can use the cache; what follows it are its own arguments, as for `oclcache run`
    #[arg(
        value_name = "PROGRAM",
        trailing_var_arg = true,
        value_hint = ValueHint::CommandWithArguments
    )]
    program: Vec<OsString>,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Build no program
    #[arg(long)]
    no_build: bool,
    /// Only check drivers with this in their names, such as `pocl`
    #[arg(long, value_name = "DRIVER")]
    driver: Option<String>,
    /// Give up on a driver after this time, such as 10s or 5m; by default a minute
    #[arg(long, value_name = "TIME", value_parser = super::parse::parse_age)]
    timeout: Option<Duration>,
    /// Check the store that machines share, by `oclcache-remote`
    #[arg(long, conflicts_with_all = ["program", "no_build", "driver", "timeout"])]
    remote: bool,
    #[command(flatten)]
    qualify: QualifyArgs,
}

impl DoctorArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        if self.remote {
            let json = self.json.then(|| OsString::from("--json"));
            let arguments = [OsString::from("doctor")].into_iter().chain(json);
            return super::remote::execute(&arguments.collect::<Vec<_>>());
        }
        if let Some(option) = self.option_of_program() {
            say(&format!(
                "oclcache: `{option}` went to the program; options of `doctor` come before it"
            ));
        }
        let interrupt = Interrupt::listen()?;
        if let Some(wanted) = &self.qualify.qualify {
            let limit = self.timeout.unwrap_or(LIMIT);
            return self
                .qualify
                .run(wanted.as_deref(), limit, self.json, &interrupt);
        }
        let bar = ProgressBar::new_spinner();
        let prober = Prober::new(self.timeout, interrupt.flag());
        let mut report = DoctorReport::default();
        let config = Config::read();
        if let [program, arguments @ ..] = self.program.as_slice() {
            program::examine(program, &mut report);
            let name = Path::new(program).file_name().unwrap_or_default();
            let arguments = arguments.iter().map(|argument| argument.as_bytes());
            let script = script_name(name.as_bytes(), arguments);
            let script = script.map(|script| String::from_utf8_lossy(&script).into_owned());
            for name in [name.to_string_lossy().into_owned()]
                .into_iter()
                .chain(script)
            {
                settings::examine_rules(&config, &name, &mut report);
            }
        }
        installation::examine(&mut report);
        let library = match PrivateDirectory::new() {
            Ok(kept) => examine(&self, &config, &prober, &kept, &bar, &mut report)?,
            Err(error) => {
                let words = "set TMPDIR to a directory that you can write";
                let fix = match std::env::var_os("TMPDIR") {
                    Some(_) => Fix::command("unset TMPDIR").because(words),
                    None => Fix::command("export TMPDIR=/path/to/a/directory").because(words),
                };
                let text =
                    format!("no temporary directory can be made, so no driver is checked: {error}");
                report.wrong("temporary", text, fix);
                None
            }
        };
        directory::examine(&config, &mut report);
        settings::examine(&config, &mut report);
        baker::examine(&config, library.as_deref(), &mut report);
        remote::examine(&config, &mut report);
        audit::examine(&config, &interrupt, &mut report);
        bar.finish_and_clear();
        if interrupt.came() {
            return Err(interrupt.failure("stopped"));
        }
        match self.json {
            true => print_json(&report.json())?,
            false => print(report.shown().as_bytes())?,
        };
        if !self.json {
            say(&format!("oclcache: {}", report.summary()));
        }
        Ok(ExitCode::from(u8::from(report.is_wrong())))
    }
}

impl DoctorArgs {
    /// An option of `doctor` that is the last argument of the program and its only option: it was probably meant for `doctor`.
    fn option_of_program(&self) -> Option<&str> {
        let (last, before) = self.program.get(1..)?.split_last()?;
        let option = last.to_str()?;
        let command = DoctorArgs::augment_args(Command::new("doctor"));
        let is_ours = command
            .get_arguments()
            .filter_map(|argument| argument.get_long())
            .any(|long| option.strip_prefix("--") == Some(long));
        let has_others = before.iter().any(|word| word.as_bytes().starts_with(b"-"));
        (is_ours && !has_others).then_some(option)
    }
}

/// The checks that need child processes. Returns the library of this command.
fn examine(
    arguments: &DoctorArgs,
    config: &Config,
    prober: &Prober,
    kept: &PrivateDirectory,
    bar: &ProgressBar,
    report: &mut DoctorReport,
) -> Result<Option<PathBuf>, Failure> {
    bar.set_message("the library");
    let library = examine_library(prober, kept, report)?;
    bar.set_message("the loader");
    let builds = match arguments.no_build {
        true => ProbeBuilds::None,
        false => ProbeBuilds::First,
    };
    let probed = prober.probe(&ProbeTarget::Shell, builds, kept);
    let features = loader::examine(&probed, report);
    bar.set_message("the drivers");
    let registered = drivers::examine(
        config,
        features.as_ref(),
        arguments.driver.as_deref(),
        prober,
        kept,
        report,
    );
    python::examine(config, arguments.program.first(), &registered, report);
    let Some(features) = features else {
        return Ok(library);
    };
    let known = door::Known {
        config,
        probed: &probed,
        features: &features,
        registered: &registered,
        library: library.as_deref(),
    };
    door::examine(&known, prober, kept, report);
    if let Some(library) = library.as_deref().filter(|_| !arguments.no_build) {
        bar.set_message("builds");
        builds::examine(config, library, &registered, prober, report).map_err(Failure::new)?;
    }
    Ok(library)
}

/// Checks the library that belongs to this command. Returns it if it can be loaded.
fn examine_library(
    prober: &Prober,
    kept: &PrivateDirectory,
    report: &mut DoctorReport,
) -> Result<Option<PathBuf>, Failure> {
    const ABOUT: &str = "library";
    let version = env!("CARGO_PKG_VERSION");
    let command = library::own_path()?;
    let again = || {
        Fix::words("install the command and the library together, from one build or one package")
    };
    let library = match library::library(&command) {
        Ok(library) => library,
        Err(failure) => {
            report.wrong(ABOUT, failure.message, again());
            return Ok(None);
        }
    };
    let shown = path(&library).to_string();
    match probe::library(&library, prober, kept) {
        ProbedLibrary::Us(copy) if copy.version == version => {
            report.good(ABOUT, format!("oclcache {version}, {shown}"));
            return Ok(Some(library));
        }
        ProbedLibrary::Us(copy) => {
            let text = format!(
                "{shown} is version {}, but this command is version {version}",
                copy.version
            );
            report.wrong(ABOUT, text, again());
            return Ok(Some(library));
        }
        ProbedLibrary::Driver { .. } => {
            report.wrong(ABOUT, format!("{shown} is a driver, not oclcache"), again())
        }
        ProbedLibrary::Broken(why, harm) => {
            let fix = match harm {
                Harm::Unknown => Fix::words(LONGER),
                Harm::Left | Harm::Fatal => again(),
            };
            report.wrong(ABOUT, format!("{shown}: {why}"), fix);
        }
    }
    Ok(None)
}
