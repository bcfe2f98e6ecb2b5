//! Builds a program on each device through us, cold and warm. If a build fails, it is tried without us to find the cause.

use std::path::Path;

use super::drivers::{Registered, RegisteredAs};
use super::report::{DoctorReport, Fix};
use crate::cli::output::seconds;
use crate::cli::probe::prober::{ProbeOutput, ProbeTarget, Prober};
use crate::cli::probe::worker::{ProbeBuild, ProbeBuilds, ProbeMessage};
use crate::cli::worker::private_directory::PrivateDirectory;
use crate::log::path;

const ABOUT: &str = "build";

pub fn examine(
    us: &Path,
    registered: &[Registered],
    prober: &Prober,
    report: &mut DoctorReport,
) -> std::io::Result<()> {
    let mut seen = std::collections::BTreeSet::new();
    for one in registered {
        if matches!(one.is, RegisteredAs::Driver(devices) if devices > 0)
            && seen.insert(&one.library)
        {
            examine_driver(us, one, prober, report)?;
        }
    }
    Ok(())
}

fn examine_driver(
    us: &Path,
    one: &Registered,
    prober: &Prober,
    report: &mut DoctorReport,
) -> std::io::Result<()> {
    let driver = one.library.as_path();
    let kept = PrivateDirectory::new()?;
    let through = ProbeTarget::Through { us, driver };
    let [cold, warm] = [(); 2].map(|()| prober.probe(&through, ProbeBuilds::All, &kept));
    let built = |probed: &ProbeOutput| {
        let failed = built(probed).find_map(|built| built.took_ns.as_ref().err().cloned());
        probed.silence.clone().or(failed).or_else(|| {
            let is_empty = built_any(probed);
            (!is_empty).then(|| "the driver lists no platform".to_owned())
        })
    };
    if let Some(why) = built(&cold).or_else(|| built(&warm)) {
        let bare = prober.probe(&ProbeTarget::Bare { driver }, ProbeBuilds::All, &kept);
        blame(one, &why, built(&bare), report);
        return Ok(());
    }
    for (cold, warm) in self::built(&cold).zip(self::built(&warm)) {
        let device = format!("{} ({})", cold.device, cold.platform);
        let [first, second] =
            [cold, warm].map(|built| seconds(*built.took_ns.as_ref().unwrap_or(&0)));
        let text = format!("{device}: {first} cold, {second} warm");
        if warm.counted.hits > 0 {
            report.good(ABOUT, text);
            continue;
        }
        let mut bypassed = cold.counted.bypassed.iter().chain(&warm.counted.bypassed);
        let why = match bypassed.next() {
            Some(reason) => format!("it was bypassed ({reason})"),
            None if cold.counted.misses == 0 => "it did not reach oclcache".to_owned(),
            None => "the driver gives no binary, or does not accept its own binary".to_owned(),
        };
        let words = "run a program with `OCLCACHE_LOG=debug oclcache run PROGRAM` to see why; only time is lost";
        report.doubtful(
            ABOUT,
            format!("{text}; the second build was not a hit: {why}"),
            Fix::words(words),
        );
    }
    Ok(())
}

fn built(probed: &ProbeOutput) -> impl Iterator<Item = &ProbeBuild> {
    probed.messages.iter().filter_map(|message| match message {
        ProbeMessage::Built(built) => Some(built),
        _ => None,
    })
}

fn built_any(probed: &ProbeOutput) -> bool {
    built(probed).next().is_some()
}

fn blame(one: &Registered, why: &str, bare: Option<String>, report: &mut DoctorReport) {
    let place = path(&one.place).to_string();
    match bare {
        Some(bare) => {
            let text = format!(
                "the driver of {place} cannot build the program of this check, even without oclcache: {bare}"
            );
            let words = "this is a fault of the driver: repair or update it";
            report.wrong(ABOUT, text, Fix::words(words));
        }
        None => {
            let text = format!(
                "the driver of {place} cannot build the program of this check through oclcache, but can without it: {why}"
            );
            let fix = Fix::command("export OCLCACHE_DISABLE=1");
            report.wrong(
                ABOUT,
                text,
                fix.because("this is a fault of oclcache, please report it; until then"),
            );
        }
    }
}
