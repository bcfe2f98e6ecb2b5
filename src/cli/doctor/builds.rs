//! Builds a program on each device through us, cold and warm. If a build fails, it is tried without us to find the cause. Drivers'
//! own caches are measured as well, and the cache keeps the result for [`crate::cli::own_caches`].

use std::path::Path;

use super::drivers::{Registered, RegisteredAs};
use super::report::{DoctorReport, Fix};
use crate::cli::open::usable_store;
use crate::cli::output::seconds;
use crate::cli::probe::prober::{LONGER, ProbeOutput, ProbeTarget, Prober, private_cache};
use crate::cli::probe::worker::{ProbeBuild, ProbeBuilds, ProbeMessage};
use crate::cli::worker::private_directory::PrivateDirectory;
use crate::config::Config;
use crate::log::path;
use crate::store::Store;
use crate::store::driver_costs::{self, OwnCache};

const ABOUT: &str = "build";

pub fn examine(
    config: &Config,
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
            examine_driver(config, us, one, prober, report)?;
        }
    }
    Ok(())
}

fn examine_driver(
    config: &Config,
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
        if cold.is_cut_short || warm.is_cut_short {
            let text = format!("the driver of {}: {why}", path(&one.place));
            report.wrong(ABOUT, text, Fix::words(LONGER));
            return Ok(());
        }
        let bare = prober.probe(&ProbeTarget::Bare { driver }, ProbeBuilds::All, &kept);
        blame(one, &why, built(&bare), report);
        return Ok(());
    }
    let own = own_cache(driver, prober, &kept)?;
    if let Some(own) = &own {
        note(config, &kept, &cold, own);
    }
    let has_no_store = usable_store(config).is_none();
    for (index, (cold, warm)) in self::built(&cold).zip(self::built(&warm)).enumerate() {
        let device = format!("{} ({})", cold.device, cold.platform);
        let [first, second] =
            [cold, warm].map(|built| seconds(*built.took_ns.as_ref().unwrap_or(&0)));
        let text = format!("{device}: {first} cold, {second} warm");
        if warm.counted.hits > 0 {
            report.good(ABOUT, text);
            if let Some(own) = own.as_ref().and_then(|own| own.get(index)) {
                let mut gain = gain(&device, *own, &second);
                if has_no_store {
                    gain += "; not kept for `oclcache stats`: there is no cache yet";
                }
                report.good("gain", gain);
            }
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

/// A driver has a cache of its own if the second process builds in less than this share of the time, and so much faster. A busy
/// machine alone does neither.
const OWN_CACHE_SHARE: u64 = 3;
const MIN_OWN_CACHE_GAIN_NS: u64 = 20_000_000;
/// How often a build is timed that finds the driver's cache warm. The least counts: one time alone was 25 to 108 ms in a dozen runs.
const WARM_BUILDS: usize = 3;

/// For each device: how long a build takes from the driver's own warm cache, in nanoseconds; None if it has none. Nothing if the
/// driver cannot build.
fn own_cache(
    driver: &Path,
    prober: &Prober,
    kept: &PrivateDirectory,
) -> std::io::Result<Option<Vec<Option<u64>>>> {
    let caches = PrivateDirectory::new()?;
    let caches = &caches;
    let target = ProbeTarget::BareWithCache { driver, caches };
    let times = || -> Option<Vec<u64>> {
        let probed = prober.probe(&target, ProbeBuilds::All, kept);
        let times = built(&probed).map(|built| built.took_ns.as_ref().ok().copied());
        times.collect()
    };
    let (cold, warm) = (times(), [(); WARM_BUILDS].map(|()| times()));
    let own = cold
        .into_iter()
        .flatten()
        .enumerate()
        .map(|(device, cold)| {
            let warm = warm.iter().map(|times| times.as_ref()?.get(device));
            let warm = *warm.min().flatten()?;
            Some(is_cached(cold, warm).then_some(warm))
        });
    Ok(own.collect())
}

/// Has the user's cache keep what was measured on the driver's own caches. The private cache knows the driver, which has built there.
fn note(config: &Config, kept: &PrivateDirectory, cold: &ProbeOutput, own: &[Option<u64>]) {
    let private = Store::open_existing(&private_cache(kept));
    let (Ok(Some(private)), Some(store), false) =
        (private, usable_store(config), config.readonly())
    else {
        return;
    };
    let labels = built(cold).map(|built| built.counted.labels.as_ref());
    let measured: Vec<(String, OwnCache)> = labels
        .zip(own)
        .filter_map(|(labels, load_ns)| {
            // A build that was bypassed may be counted for an unknown device.
            let (family, device) = labels.filter(|(_, device)| !device.is_empty())?.clone();
            let load_ns = *load_ns;
            Some((family, OwnCache { device, load_ns }))
        })
        .collect();
    for driver in driver_costs::list(&private) {
        let caches = measured
            .iter()
            .filter(|(family, _)| *family == driver.family);
        let caches: Vec<OwnCache> = caches.map(|(_, cache)| cache.clone()).collect();
        if caches.is_empty() {
            continue;
        }
        if let Err(error) = driver_costs::note_own_caches(&store, &driver, &caches) {
            tracing::debug!(%error, "what was measured on the driver's own cache is not kept");
        }
    }
}

fn is_cached(cold_ns: u64, warm_ns: u64) -> bool {
    warm_ns < cold_ns / OWN_CACHE_SHARE && cold_ns - warm_ns > MIN_OWN_CACHE_GAIN_NS
}

/// Who gains, in two sentences.
fn gain(device: &str, own_ns: Option<u64>, hit: &str) -> String {
    match own_ns {
        Some(own) => format!(
            "{device}: {} from the driver's own warm cache, {hit} from oclcache; gains are large where the driver's cache starts empty (containers, CI, new nodes, after an update) and small where it is warm",
            seconds(own)
        ),
        None => format!(
            "{device}: the driver has no cache of its own here, so each new process gains; a program that keeps its own binaries, or PyOpenCL with a warm cache, gains little"
        ),
    }
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
                fix.because("this is a fault of oclcache; until it is mended"),
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_much_faster_and_not_by_chance() {
        for (cold_ms, warm_ms, is_one) in [
            (800, 20, true),
            (800, 300, false),
            (10, 1, false),
            (0, 0, false),
            (1, 500, false),
        ] {
            let found = is_cached(cold_ms * 1_000_000, warm_ms * 1_000_000);
            assert_eq!(found, is_one, "{cold_ms} {warm_ms}");
        }
    }

    #[test]
    fn who_gains_is_said_for_both_kinds_of_drivers() {
        let own = gain("cpu (PoCL)", Some(25_000_000), "11.6 ms");
        assert!(own.contains("25.0 ms from the driver's own warm cache, 11.6 ms from oclcache"));
        assert!(gain("cpu (Intel)", None, "1.0 ms").contains("no cache of its own"));
    }
}
