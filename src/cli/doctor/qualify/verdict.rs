//! From what was measured to how a driver behaves. Where times decide, the gap between two claims is wide: a busy machine makes a claim
//! impossible, not wrong.

use std::time::Duration;

use super::message::{BuildTimes, CachedBuild};
use crate::driver::profile::{KernelFactsTime, RecordTime};
use crate::store::driver_costs::{DEAR_SHARE, GAIN_SHARE, MIN_NS};

/// Up to this share of a build, in percent, something costs next to nothing.
const LITTLE: f64 = 5.0;
/// From this share on, in percent, something compiles: as for drivers whose costs are measured while they are used.
const DEAR: f64 = 100.0 / DEAR_SHARE as f64;
/// From this share on, in percent, a hit gains nothing: as for drivers whose costs are measured while they are used.
const NO_GAIN: f64 = 100.0 - 100.0 / GAIN_SHARE as f64;
/// Shorter builds decide nothing: they are mostly noise.
const MIN_BUILD: Duration = Duration::from_millis(4);
const MIN_SAMPLES: usize = 3;
/// A build of less processor time is not told from a copy: the first one of a process takes longer (measured: 10 ms and 2.5 ms with
/// rusticl 22.3).
const MIN_COMPILED: Duration = Duration::from_millis(20);

/// What something costs, compared with a build.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Share {
    /// Next to nothing.
    Little,
    /// Neither.
    Part,
    /// So much that it compiles.
    Dear,
    /// As much as a build, about.
    Whole,
}

/// The share of the median. None: there are too few samples, or the builds are too short.
fn share(samples: &[(u64, u64)]) -> Option<Share> {
    let median = |mut numbers: Vec<f64>| {
        numbers.sort_by(f64::total_cmp);
        numbers.get(numbers.len() / 2).copied()
    };
    let build = median(samples.iter().map(|(_, build)| *build as f64).collect())?;
    let is_long = build >= MIN_BUILD.as_nanos() as f64;
    if samples.len() < MIN_SAMPLES || !is_long {
        return None;
    }
    let percents = samples
        .iter()
        .map(|(part, build)| *part as f64 * 100.0 / (*build).max(1) as f64);
    let percent = median(percents.collect())?;
    Some(match percent {
        _ if percent <= LITTLE => Share::Little,
        _ if percent < DEAR => Share::Part,
        _ if percent < NO_GAIN => Share::Dear,
        _ => Share::Whole,
    })
}

/// What fetching a binary costs.
pub fn fetching(times: &[BuildTimes]) -> Option<Share> {
    let samples: Vec<_> = times.iter().map(|one| (one.fetch, one.build)).collect();
    share(&samples)
}

/// What loading a binary costs.
pub fn loading(times: &[BuildTimes], loads: &[u64]) -> Option<Share> {
    let builds = times.iter().map(|one| one.build);
    let samples: Vec<_> = loads.iter().copied().zip(builds).collect();
    share(&samples)
}

/// What creating the kernels of a program costs.
pub fn creating(times: &[BuildTimes]) -> Option<Share> {
    let samples: Vec<_> = times
        .iter()
        .map(|one| (one.kernels, one.other_build))
        .collect();
    share(&samples)
}

/// When binaries are recorded. `is_safe`: the driver also gave the binaries of unusual programs.
pub fn record(times: &[BuildTimes], loading: Option<Share>, is_safe: bool) -> Option<RecordTime> {
    let sum = times
        .iter()
        .map(|one| one.fetch)
        .fold(0, u64::saturating_add);
    // Whether a hit gains anything is decided while the driver is used, if that is in doubt.
    let gains = !matches!(loading, None | Some(Share::Whole));
    Some(match fetching(times)? {
        Share::Little if is_safe && gains => RecordTime::InMiss,
        Share::Dear | Share::Whole if sum >= MIN_NS && gains => RecordTime::Baked,
        _ => RecordTime::Measured,
    })
}

/// When the facts of kernels are recorded. `is_safe`: the driver survives that kernels are created which nobody needs.
pub fn kernel_facts(creating: Option<Share>, is_safe: Option<bool>) -> Option<KernelFactsTime> {
    match (creating, is_safe) {
        (_, Some(false)) | (Some(Share::Dear | Share::Whole), _) => {
            Some(KernelFactsTime::WhenCreated)
        }
        (Some(Share::Little), Some(true)) => Some(KernelFactsTime::AfterBuild),
        _ => None,
    }
}

/// Whether a build may be a copy of an earlier one. `first` and `second` are builds of the same sources with the same caches of the
/// driver, which hold something if `has_caches`, and `elsewhere` had others.
pub fn copies_builds(
    first: &[CachedBuild],
    second: &[CachedBuild],
    elsewhere: &[CachedBuild],
    has_caches: bool,
) -> bool {
    let mut digests = first.iter().zip(second).zip(elsewhere);
    let is_noticed = digests.all(|((first, second), elsewhere)| {
        let is_copy = first.digest == second.digest && first.digest != elsewhere.digest;
        // Measured on NEO 22.43: what comes from its cache has no warnings in its build log.
        let is_other = first.digest == elsewhere.digest && first.digest != second.digest;
        is_copy || is_other
    });
    let compiled = first.iter().chain(elsewhere).map(|one| one.processor_ns);
    let compiled = compiled.min().unwrap_or(0);
    let copied = second.iter().map(|one| one.processor_ns).max();
    let is_fast = compiled >= MIN_COMPILED.as_nanos() as u64
        && copied.is_some_and(|copied| copied <= compiled / DEAR_SHARE);
    has_caches && !first.is_empty() && (is_noticed || is_fast)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn times(build: u64, fetch: u64, kernels: u64) -> Vec<BuildTimes> {
        let one = BuildTimes {
            build: build * MS,
            fetch: fetch * MS,
            other_build: build * MS,
            kernels: kernels * MS,
        };
        vec![one; 5]
    }

    #[test]
    fn recording_follows_the_cost_of_fetching_if_hits_gain_something() {
        let little = Some(Share::Little);
        for (build, fetch, loading, is_safe, expected) in [
            (100, 1, little, true, Some(RecordTime::InMiss)),
            (100, 1, little, false, Some(RecordTime::Measured)),
            (100, 1, None, true, Some(RecordTime::Measured)),
            (100, 1, Some(Share::Whole), true, Some(RecordTime::Measured)),
            (100, 1, Some(Share::Dear), true, Some(RecordTime::InMiss)),
            (100, 10, little, true, Some(RecordTime::Measured)),
            (100, 300, little, true, Some(RecordTime::Baked)),
            // Nobody notices the time.
            (10, 30, little, true, Some(RecordTime::Measured)),
            (1, 0, little, true, None),
        ] {
            let found = record(&times(build, fetch, 0), loading, is_safe);
            assert_eq!(found, expected, "{build} {fetch} {loading:?} {is_safe}");
        }
        assert_eq!(record(&times(100, 1, 0)[..2], little, true), None);
    }

    #[test]
    fn one_disturbed_sample_decides_nothing() {
        let mut samples = times(100, 1, 1);
        (samples[0].fetch, samples[3].kernels) = (900 * MS, 900 * MS);
        assert_eq!(fetching(&samples), Some(Share::Little));
        assert_eq!(creating(&samples), Some(Share::Little));
    }

    #[test]
    fn kernels_are_asked_for_after_the_build_only_if_that_is_cheap_and_safe() {
        use KernelFactsTime::{AfterBuild, WhenCreated};
        for (share, is_safe, expected) in [
            (Some(Share::Little), Some(true), Some(AfterBuild)),
            (Some(Share::Little), Some(false), Some(WhenCreated)),
            (Some(Share::Little), None, None),
            (Some(Share::Part), Some(true), None),
            (Some(Share::Dear), Some(true), Some(WhenCreated)),
            (None, Some(true), None),
            (None, Some(false), Some(WhenCreated)),
        ] {
            assert_eq!(
                kernel_facts(share, is_safe),
                expected,
                "{share:?} {is_safe:?}"
            );
        }
    }

    #[test]
    fn loads_are_compared_with_builds() {
        let builds = times(100, 1, 1);
        let of = |load: u64| loading(&builds, &[load * MS; 5]);
        let shares = [1, 20, 60, 95].map(of);
        let expected = [Share::Little, Share::Part, Share::Dear, Share::Whole].map(Some);
        assert_eq!(shares, expected);
    }

    #[test]
    fn a_copy_is_told_by_what_it_shares_or_by_its_time() {
        let built = |ms: u64, digest| CachedBuild {
            processor_ns: ms * MS,
            digest,
        };
        let copies = |second: CachedBuild, elsewhere: CachedBuild| {
            copies_builds(&[built(100, 1); 3], &[second; 3], &[elsewhere; 3], true)
        };
        assert!(copies(built(100, 1), built(100, 2)), "a name");
        assert!(copies(built(100, 2), built(100, 1)), "a log");
        assert!(copies(built(10, 1), built(100, 1)), "fast");
        assert!(!copies(built(100, 1), built(100, 1)), "equal everywhere");
        assert!(!copies(built(100, 2), built(100, 3)), "all differ");
        assert!(!copies(built(10, 1), built(10, 1)), "one was slow");
        let one_slow = [built(10, 1), built(10, 1), built(90, 1)];
        let slow = [built(100, 1); 3];
        assert!(!copies_builds(&slow, &one_slow, &slow, true), "not all");
        let copy = [built(10, 1); 3];
        assert!(!copies_builds(&slow, &copy, &slow, false), "no cache");
        let short = [built(10, 1); 3];
        assert!(!copies_builds(&short, &[built(1, 1); 3], &short, true));
    }
}
