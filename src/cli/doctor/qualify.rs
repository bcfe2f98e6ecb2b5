//! `oclcache doctor --qualify`: measures how a driver behaves on this machine, and has the cache believe it.
//!
//! A row of `driver::profile` is knowledge about the drivers of a family; most drivers have none, or one that nobody could verify. Here
//! each section asks one question of the driver in a process of its own, so that a driver that crashes or hangs gives a finding and the
//! other sections still run. Last, a program is compared without oclcache, and through it with an empty and a full cache; only if nothing
//! differs, the measurements are kept (`store::measured_profiles`).

mod device;
mod message;
mod redact;
mod runner;
mod sections;
mod sources;
mod verdict;
mod wording;
mod worker;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;
use indicatif::ProgressBar;
use serde_json::Value;

use super::report::{DoctorReport, Fix};
use crate::cli::confirm::confirm;
use crate::cli::failure::Failure;
use crate::cli::interrupt::Interrupt;
use crate::cli::open::directory;
use crate::cli::output::{plural, print, print_json, say};
use crate::cli::replace_file::{may_replace, replace};
use crate::config::Config;
use crate::driver::OpenError;
use crate::driver::profile::measured::MeasuredBehavior;
use crate::front::driver_probe;
use crate::key::ingredients::Key;
use crate::log::path;
use crate::store::{Limits, Store, measured_profiles};
use device::{DeviceReport, qualify_device};
use message::QualifiedDevice;
use redact::redacted;
use runner::Runner;
pub use worker::QualifyWorkerArgs;

/// How a report begins. Other files are not overwritten.
const MARK: &str = "A qualification by oclcache\n";
const ABOUT: &str = "driver";
/// About how long a device takes, in seconds. Measured on two cores: 21 s with PoCL 3.1, 12 s with Intel's drivers, 3 s with Oclgrind.
const USUAL_SECONDS: u64 = 15;

/// The options of `oclcache doctor --qualify`.
#[derive(Args)]
pub struct QualifyArgs {
    /// Measure how drivers behave, those with this in their names or all, and have the cache use it
    #[arg(
        long,
        value_name = "DRIVER",
        num_args = 0..=1,
        conflicts_with_all = ["program", "no_build", "driver"]
    )]
    pub qualify: Option<Option<String>>,
    /// With --qualify: measure this driver, which need not be registered
    #[arg(long, value_name = "FILE", requires = "qualify")]
    library: Option<PathBuf>,
    /// With --qualify: also write a report that can be sent in; it names the device and the driver, no paths and no values
    #[arg(long, value_name = "FILE", requires = "qualify")]
    report: Option<PathBuf>,
    /// With --qualify: do not ask before an accelerator is used
    #[arg(long, short = 'y', requires = "qualify")]
    yes: bool,
}

/// One driver that is to be measured.
struct Candidate<'a> {
    runner: Runner<'a>,
    devices: Vec<QualifiedDevice>,
}

impl QualifyArgs {
    /// Measures the drivers with `wanted` in their names. A section may take `limit` for each step.
    pub fn run(
        &self,
        wanted: Option<&str>,
        limit: Duration,
        is_json: bool,
        interrupt: &Interrupt,
    ) -> Result<ExitCode, Failure> {
        // Before the work, which takes long.
        if let Some(file) = &self.report {
            may_replace(file, MARK)?;
        }
        let store = writable_store()?;
        let mut report = DoctorReport::default();
        let candidates = self.candidates(wanted, limit, interrupt, &mut report)?;
        interrupt.go_on()?;
        announce(&candidates, limit);
        let bar = ProgressBar::new_spinner();
        let mut shown = Vec::new();
        for candidate in &candidates {
            let mut of_driver: BTreeMap<Key, Option<MeasuredBehavior>> = BTreeMap::new();
            for device in &candidate.devices {
                if !self.may_use(device, &mut report) {
                    continue;
                }
                bar.set_message(device.name.clone());
                let measured =
                    qualify_device(&candidate.runner, device, interrupt, &bar, &mut report)?;
                let kept = measured.kept();
                if let Some(key) = measured.identity {
                    let known = of_driver.entry(key).or_insert(kept);
                    *known = known.zip(kept).map(|(one, other)| one.common(&other));
                }
                shown.push(measured);
            }
            save(&store, &of_driver, &mut report)?;
        }
        bar.finish_and_clear();
        let mut file = self.report.as_deref();
        if shown.is_empty() && !report.is_wrong() {
            let words = "see the warnings above";
            report.wrong(ABOUT, "no device was measured", Fix::words(words));
            file = None;
        }
        show(&report, &shown, file, is_json)?;
        Ok(ExitCode::from(u8::from(report.is_wrong())))
    }

    /// The drivers to measure, with one device of each kind.
    fn candidates<'a>(
        &self,
        wanted: Option<&str>,
        limit: Duration,
        interrupt: &'a Interrupt,
        report: &mut DoctorReport,
    ) -> Result<Vec<Candidate<'a>>, Failure> {
        let libraries = match &self.library {
            Some(library) => vec![std::path::absolute(library).unwrap_or_else(|_| library.clone())],
            None => driver_probe::registered(&Config::read()),
        };
        let mut candidates: Vec<Candidate> = Vec::new();
        for library in libraries {
            let runner = Runner::new(&library, limit, interrupt.flag()).map_err(Failure::new)?;
            let mut devices = match runner.devices() {
                Ok(devices) => devices,
                Err(why) if why == OpenError::Ourselves.to_string() => continue,
                Err(why) => {
                    // It has paths, so it is in no report.
                    say(&format!("oclcache: {}: {why}", path(&library)));
                    let text = format!("{} cannot be used as a driver", file_name(&library));
                    let words = "repair it, or name another driver";
                    report.wrong(ABOUT, text, Fix::words(words));
                    continue;
                }
            };
            devices.retain(|device| wanted.is_none_or(|wanted| is_named(device, &library, wanted)));
            let mut kinds = Vec::new();
            devices.retain(|device| {
                let kind = (device.place[0], device.name.clone());
                let is_new = !kinds.contains(&kind);
                kinds.push(kind);
                is_new
            });
            if !devices.is_empty() {
                candidates.push(Candidate { runner, devices });
            }
        }
        if candidates.is_empty() && !report.is_wrong() {
            let text = match wanted {
                Some(_) => "no driver of that name has a device",
                None => "no driver has a device",
            };
            let fix = Fix::command("oclcache doctor").because("see which drivers are registered");
            report.wrong(ABOUT, text, fix);
        }
        Ok(candidates)
    }

    /// Whether a device may be used: to run on an accelerator can take the board from other programs.
    fn may_use(&self, device: &QualifiedDevice, report: &mut DoctorReport) -> bool {
        if !device.is_accelerator || self.yes {
            return true;
        }
        let question = format!(
            "{} is an accelerator: a program on it may take it from other programs. Use it?",
            device.name
        );
        if confirm(&question) == Some(true) {
            return true;
        }
        let text = format!(
            "{}: an accelerator is not used without consent",
            device.name
        );
        let words = "if nobody else needs it, add `--yes`";
        report.doubtful(ABOUT, text, Fix::words(words));
        false
    }
}

/// Shows what was found, and writes it to a file.
fn show(
    report: &DoctorReport,
    shown: &[DeviceReport],
    file: Option<&Path>,
    is_json: bool,
) -> Result<(), Failure> {
    if let Some(file) = file {
        let version = env!("CARGO_PKG_VERSION");
        let found = redacted(&report.plain());
        let text = format!("{MARK}oclcache {version}\n\n{found}");
        let written = replace(file, text.as_bytes(), Some(0o600));
        written.map_err(|error| {
            Failure::new(format_args!(
                "cannot write `{}`: {error}; name another file",
                path(file)
            ))
        })?;
        say(&format!("oclcache: written to `{}`", path(file)));
    }
    if is_json {
        let mut json = report.json();
        json["devices"] = shown.iter().map(DeviceReport::json).collect::<Value>();
        print_json(&json)?;
        return Ok(());
    }
    print(report.shown().as_bytes())?;
    say(&format!("oclcache: {}", report.summary()));
    Ok(())
}

fn file_name(library: &Path) -> String {
    let name = library.file_name().unwrap_or_default();
    crate::log::os(name).to_string()
}

fn is_named(device: &QualifiedDevice, library: &Path, wanted: &str) -> bool {
    let wanted = wanted.to_lowercase();
    device.family == wanted
        || device.platform.to_lowercase().contains(&wanted)
        || file_name(library).to_lowercase().contains(&wanted)
}

/// The cache that is to have the measurements: the user's own.
fn writable_store() -> Result<Store, Failure> {
    let config = Config::read();
    if config.readonly() {
        return Err(Failure::new(
            "the cache is read-only, so nothing that is measured could be kept; unset OCLCACHE_READONLY",
        ));
    }
    let directory = directory(&config)?;
    Ok(Store::open(&directory, Limits::default())?)
}

/// Says what is going to happen, and how long it takes.
fn announce(candidates: &[Candidate<'_>], limit: Duration) {
    let devices: usize = candidates.iter().map(|one| one.devices.len()).sum();
    if devices == 0 {
        return;
    }
    let names = candidates.iter().flat_map(|one| &one.devices);
    let names: Vec<&str> = names.map(|device| device.name.as_str()).collect();
    say(&format!(
        "oclcache: {} ({}): some small programs are compiled and run, in about {} s; a driver that hangs is given up {} s after its last step",
        plural(devices as u64, "device", "devices"),
        names.join(", "),
        USUAL_SECONDS * devices as u64,
        limit.as_secs()
    ));
}

/// Has the cache use what was measured on a driver.
fn save(
    store: &Store,
    measured: &BTreeMap<Key, Option<MeasuredBehavior>>,
    report: &mut DoctorReport,
) -> Result<(), Failure> {
    for (identity, measured) in measured {
        let Some(measured) = measured else {
            continue;
        };
        let bytes = measured.encode(identity).map_err(Failure::new)?;
        measured_profiles::save(store, identity, &bytes)?;
        let text = "the cache of this user behaves accordingly from now on, until the driver or oclcache is updated";
        report.good("profile", text);
    }
    Ok(())
}

/// Has the private cache of a qualification use what was measured.
///
/// # Errors
/// It cannot be written.
fn try_out(cache: &Path, identity: &Key, measured: &MeasuredBehavior) -> io::Result<()> {
    let other = |error: crate::store::StoreError| io::Error::other(error.to_string());
    let store = Store::open(cache, Limits::default()).map_err(other)?;
    let bytes = measured.encode(identity)?;
    measured_profiles::save(&store, identity, &bytes).map_err(other)
}
