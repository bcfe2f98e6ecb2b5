//! `oclcache doctor`: everything that must be true for the cache to work, one line each, and how to mend what is not.
//!
//! What may crash or hang, which is a loader or a driver, is loaded in processes of their own (`children`, `worker`). Nothing is made
//! that stays, and the user's cache is not written.

mod audit;
mod baker;
mod builds;
mod children;
mod content;
mod directory;
mod door;
mod drivers;
mod loader;
mod program;
mod report;
mod settings;
mod worker;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;

use super::failure::Failure;
use super::interrupt::Interrupt;
use super::output::{print, print_json, say};
use super::run;
use super::worker::root::Root;
use crate::config::Config;
use crate::front::vendors;
use crate::log::path;
use children::{Children, Way};
pub use door::LAYER_DIRECTORY;
use drivers::Told;
pub use report::quoted;
use report::{DoctorReport, Mend};
use worker::Builds;
pub use worker::{DoctorWorkerArgs, work};

/// How long a driver may take for one step.
const LIMIT: Duration = Duration::from_secs(60);

/// What is to be looked at.
#[derive(Args)]
pub struct DoctorArgs {
    /// Also whether this program can come through the cache
    program: Option<OsString>,
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Build nothing
    #[arg(long)]
    no_build: bool,
    /// Only drivers with this in their names, as `pocl`
    #[arg(long, value_name = "NAME")]
    driver: Option<String>,
    /// Give a driver up after this time, as 10s or 5m, instead of a minute
    #[arg(long, value_name = "TIME", value_parser = super::parse::parse_age)]
    timeout: Option<Duration>,
}

pub fn doctor(wanted: &DoctorArgs) -> Result<ExitCode, Failure> {
    let interrupt = Interrupt::listen()?;
    let bar = ProgressBar::new_spinner();
    let children = Children {
        limit: wanted.timeout.unwrap_or(LIMIT),
        stop: interrupt.flag(),
    };
    let mut report = DoctorReport::default();
    let config = Config::read();
    if let Some(program) = &wanted.program {
        program::examine(program, &mut report);
        let name = Path::new(program).file_name().unwrap_or_default();
        settings::examine_rules(&config, &name.to_string_lossy(), &mut report);
    }
    let library = match Root::new() {
        Ok(kept) => examine(wanted, &config, &children, &kept, &bar, &mut report)?,
        Err(error) => {
            let mend = Mend::command("unset TMPDIR")
                .because("let TMPDIR name a directory that you can write");
            let text =
                format!("no temporary directory can be made, so no driver is looked at: {error}");
            report.wrong("temporary", text, mend);
            None
        }
    };
    directory::examine(&config, &mut report);
    settings::examine(&config, &mut report);
    baker::examine(&config, library.as_deref(), &mut report);
    audit::examine(&config, &interrupt, &mut report);
    bar.finish_and_clear();
    if interrupt.came() {
        return Err(interrupt.failure("stopped"));
    }
    match wanted.json {
        true => print_json(&report.json())?,
        false => print(report.shown().as_bytes())?,
    };
    if !wanted.json {
        say(&format!("oclcache: {}", report.summary()));
    }
    Ok(ExitCode::from(u8::from(report.is_wrong())))
}

/// What takes processes of their own. Gives the library of this command.
fn examine(
    wanted: &DoctorArgs,
    config: &Config,
    children: &Children,
    kept: &Root,
    bar: &ProgressBar,
    report: &mut DoctorReport,
) -> Result<Option<PathBuf>, Failure> {
    bar.set_message("the library");
    let library = examine_library(children, kept, report)?;
    bar.set_message("the loader");
    let builds = match wanted.no_build {
        true => Builds::None,
        false => Builds::First,
    };
    let heard = children.hear(&Way::Shell, builds, kept);
    let features = loader::examine(&heard, report);
    bar.set_message("the drivers");
    let registered = drivers::examine(
        config,
        features.as_ref(),
        wanted.driver.as_deref(),
        children,
        kept,
        report,
    );
    let Some(features) = features else {
        return Ok(library);
    };
    let known = door::Known {
        heard: &heard,
        features: &features,
        registered: &registered,
        library: library.as_deref(),
    };
    door::examine(&known, children, kept, report);
    if let Some(library) = library.as_deref().filter(|_| !wanted.no_build) {
        bar.set_message("builds");
        builds::examine(library, &registered, children, report).map_err(Failure::new)?;
    }
    Ok(library)
}

/// The library that belongs to this command, if it can be loaded.
fn examine_library(
    children: &Children,
    kept: &Root,
    report: &mut DoctorReport,
) -> Result<Option<PathBuf>, Failure> {
    const ABOUT: &str = "library";
    let version = env!("CARGO_PKG_VERSION");
    let command = run::own_path()?;
    let again = || {
        Mend::words("install the command and the library together, from one build or one package")
    };
    let library = match run::library(&command) {
        Ok(library) => library,
        Err(failure) => {
            report.wrong(ABOUT, failure.words, again());
            return Ok(None);
        }
    };
    let shown = path(&library).to_string();
    match drivers::ask(&library, children, kept) {
        Told::Us(copy) if copy.version == version => {
            report.good(ABOUT, format!("oclcache {version}, {shown}"));
            return Ok(Some(library));
        }
        Told::Us(copy) => {
            let text = format!(
                "{shown} is version {}, and this command is {version}",
                copy.version
            );
            report.wrong(ABOUT, text, again());
            return Ok(Some(library));
        }
        Told::Driver { .. } => {
            report.wrong(ABOUT, format!("{shown} is a driver, not oclcache"), again())
        }
        Told::Broken(why, _) => report.wrong(ABOUT, format!("{shown}: {why}"), again()),
    }
    Ok(None)
}

/// What `oclcache install` has to know of this machine.
#[derive(Default)]
pub struct Machine {
    /// The loader takes layers by a variable.
    pub layers: bool,
    /// And from a directory.
    pub layer_directory: bool,
    /// It calls a driver through a table of its own.
    pub needs_layer: bool,
}

/// Looks at this machine's loader and drivers.
///
/// # Errors
/// No process can be started for that.
pub fn look(stop: &AtomicBool) -> std::io::Result<Machine> {
    let kept = Root::new()?;
    let children = Children { limit: LIMIT, stop };
    let heard = children.hear(&Way::Shell, Builds::None, &kept);
    let Some(features) = loader::examine(&heard, &mut DoctorReport::default()) else {
        return Ok(Machine::default());
    };
    let sources = vendors::loader_sources(&|name| std::env::var_os(name));
    let mut libraries = sources
        .iter()
        .flat_map(|source| vendors::listed(source))
        .filter_map(|listed| listed.library.ok());
    let is_icd2 = |library: PathBuf| {
        let told = drivers::ask(&library, &children, &kept);
        matches!(told, Told::Driver { platforms, is_icd2: true } if !platforms.is_empty())
    };
    Ok(Machine {
        layers: features.layers,
        layer_directory: features.layer_directory,
        needs_layer: features.icd2 && libraries.any(is_icd2),
    })
}

/// Whether a library, by its name or path, is a copy of ours.
pub fn is_ours(library: &Path) -> bool {
    let stop = AtomicBool::new(false);
    let children = Children {
        limit: LIMIT,
        stop: &stop,
    };
    Root::new().is_ok_and(|kept| matches!(drivers::ask(library, &children, &kept), Told::Us(_)))
}
