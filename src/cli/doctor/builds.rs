//! A real build on each device, through us: cold and warm. Where one fails, it is tried without us, so that the blame is right.

use std::path::Path;

use super::drivers::{Is, Registered};
use super::report::{DoctorReport, Mend};
use crate::cli::output::seconds;
use crate::cli::probe::prober::{ProbeOutput, ProbeTarget, Prober};
use crate::cli::probe::worker::{ProbeBuild, ProbeBuilds, ProbeMessage};
use crate::cli::worker::root::Root;
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
        if matches!(one.is, Is::Driver(devices) if devices > 0) && seen.insert(&one.library) {
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
    let kept = Root::new()?;
    let through = ProbeTarget::Through { us, driver };
    let [cold, warm] = [(); 2].map(|()| prober.probe(&through, ProbeBuilds::All, &kept));
    let built = |probed: &ProbeOutput| {
        let failed = built(probed).find_map(|built| built.took_ns.as_ref().err().cloned());
        probed.silence.clone().or(failed).or_else(|| {
            let is_empty = built_any(probed);
            (!is_empty).then(|| "no platform is listed".to_owned())
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
            None if cold.counted.misses == 0 => "it did not come through oclcache".to_owned(),
            None => "the driver gives no binary, or none that it takes back".to_owned(),
        };
        let words = "run a program with `OCLCACHE_LOG=debug oclcache run PROGRAM`, which says why; nothing is lost but time";
        report.doubtful(
            ABOUT,
            format!("{text}; the second was no hit: {why}"),
            Mend::words(words),
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
                "with the driver of {place} nothing can be built, without oclcache either: {bare}"
            );
            let words = "it is the driver's own fault: mend or update that";
            report.wrong(ABOUT, text, Mend::words(words));
        }
        None => {
            let text = format!(
                "with the driver of {place} nothing can be built through oclcache, and without it all is well: {why}"
            );
            let mend = Mend::command("export OCLCACHE_DISABLE=1");
            report.wrong(
                ABOUT,
                text,
                mend.because("this is a fault of oclcache's, please report it; until then"),
            );
        }
    }
}
