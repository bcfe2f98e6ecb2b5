//! Decides whether and when a miss becomes an entry: by the setting, then by the driver's profile, then by measurements.

use std::fmt;
use std::time::Duration;

use super::bake::is_baker;
use super::plan::Plan;
use super::{Cache, nanoseconds};
use crate::config::{self, Config};
use crate::driver::Driver;
use crate::driver::profile::{NeverAsked, RecordTime};
use crate::key::ingredients::key;
use crate::shadow::Operation;
use crate::store::Store;
use crate::store::bake_attempts::{FetchAdmission, FetchGuard};
use crate::store::driver_costs::{AGAIN, CostSample, CostTimes, CostVerdict, DriverCosts};
use crate::store::journal::Kept;

/// What happens after a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// The program is recorded before the call returns.
    InMiss,
    /// The recipe is stored, for `oclcache bake`.
    Baked,
    /// Nothing is stored.
    Off,
}

/// A policy and the reason for it, shown in one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What happens after a miss.
    pub policy: Policy,
    why: Why,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Why {
    Setting,
    Profile,
    /// Baking needs a recipe, but sources are not stored. Fetching a binary compiles.
    NoRecipes,
    /// The same on a driver where fetching a binary costs nothing: no recipe is needed.
    NoRecipesNeeded,
    /// A later call would have another result if the program was asked for its binary.
    NeverAsked,
    /// Nothing was measured yet.
    Unknown,
    Recorded(CostTimes),
    /// The cost of loading, and the days until the next trial.
    Loaded(CostTimes, u32),
}

/// What happens after a miss of a driver.
pub fn decide(
    config: &Config,
    profile: RecordTime,
    measured: Option<&DriverCosts>,
    now_ms: u64,
) -> Decision {
    let (policy, why) = match (config.record(), profile, measured) {
        (config::RecordMode::Inline, ..) => (Policy::InMiss, Why::Setting),
        (config::RecordMode::Bake, ..) => (Policy::Baked, Why::Setting),
        (config::RecordMode::Off, ..) => (Policy::Off, Why::Setting),
        (config::RecordMode::Auto, RecordTime::InMiss, _) => (Policy::InMiss, Why::Profile),
        (config::RecordMode::Auto, RecordTime::Baked, _) => (Policy::Baked, Why::Profile),
        (config::RecordMode::Auto, RecordTime::Measured, Some(measured)) => {
            by_measures(measured, now_ms)
        }
        (config::RecordMode::Auto, RecordTime::Measured, None) => (Policy::InMiss, Why::Unknown),
    };
    match policy {
        Policy::Baked if !config.store_source() => match profile {
            RecordTime::InMiss => Decision {
                policy: Policy::InMiss,
                why: Why::NoRecipesNeeded,
            },
            RecordTime::Baked | RecordTime::Measured => Decision {
                policy: Policy::Off,
                why: Why::NoRecipes,
            },
        },
        _ => Decision { policy, why },
    }
}

fn by_measures(measured: &DriverCosts, now_ms: u64) -> (Policy, Why) {
    let recorded = Why::Recorded(measured.recorded);
    match measured.verdict(now_ms) {
        Some(CostVerdict::Dear) => (Policy::Baked, recorded),
        Some(CostVerdict::NoGain) => {
            let decided_ms = measured.decided_ms.unwrap_or(now_ms);
            let since = Duration::from_millis(now_ms.saturating_sub(decided_ms));
            let days = AGAIN.saturating_sub(since).as_secs().div_ceil(86400) as u32;
            (Policy::Off, Why::Loaded(measured.loaded, days))
        }
        None if measured.recorded.count == 0 => (Policy::InMiss, Why::Unknown),
        None => (Policy::InMiss, recorded),
    }
}

impl Decision {
    /// Whether nothing is stored because baking would need sources, which are not stored.
    pub fn lacks_recipes(&self) -> bool {
        matches!(self.why, Why::NoRecipes | Why::NeverAsked) && self.policy == Policy::Off
    }
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.policy {
            Policy::InMiss => "inside the miss: ",
            Policy::Baked => "baked: ",
            Policy::Off => "off: ",
        })?;
        match (self.why, self.policy) {
            (Why::Setting, _) => f.write_str("by the setting `record`"),
            (Why::Profile, Policy::InMiss) => {
                f.write_str("fetching a binary costs next to nothing (profile)")
            }
            (Why::Profile, _) => f.write_str("fetching a binary compiles every kernel (profile)"),
            (Why::NoRecipes, _) => {
                f.write_str("without sources (`store_source`) nothing can be baked, so nothing is stored")
            }
            (Why::NoRecipesNeeded, _) => {
                f.write_str("without sources (`store_source`) nothing can be baked, and fetching a binary costs next to nothing (profile)")
            }
            (Why::NeverAsked, _) => {
                f.write_str("the driver would treat the program otherwise if it was asked for its binary (profile)")
            }
            (Why::Unknown, _) => f.write_str("nothing is measured yet"),
            (Why::Recorded(times), _) => {
                let (percent, builds) = (times.percent(), number(times.count, "build"));
                write!(f, "recording took {percent} % of {builds}")
            }
            (Why::Loaded(times, days), _) => {
                let (percent, builds) = (times.percent(), number(times.count, "build"));
                let days = number(days, "day");
                write!(
                    f,
                    "a hit gains nothing, loading took {percent} % of {builds}; tried again in {days}"
                )
            }
        }
    }
}

/// A number and its noun.
fn number(count: u32, of: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {of}{plural}")
}

impl Cache {
    /// The policy for a miss of this driver.
    pub(super) fn policy(&self, driver: &Driver) -> Decision {
        let store = self.written_store();
        let measured = store.and_then(|store| {
            let new = || self.unmeasured(driver);
            self.measures.of(store, driver.index(), new)
        });
        let now_ms = store.map_or(0, |store| store.root().now_ms());
        decide(
            &self.config,
            driver.behavior().record,
            measured.as_ref(),
            now_ms,
        )
    }

    /// The same, for a miss of this operation.
    pub(super) fn policy_of(&self, driver: &Driver, operation: &Operation) -> Decision {
        let decision = self.policy(driver);
        let is_never_asked = match driver.profile.never_asked {
            NeverAsked::Nothing => false,
            NeverAsked::Compiled => matches!(operation, Operation::Compile(_)),
            NeverAsked::Linked => matches!(operation, Operation::Link(_)),
        };
        match decision.policy {
            Policy::InMiss if is_never_asked && !is_baker() => Decision {
                policy: match self.config.store_source() {
                    true => Policy::Baked,
                    false => Policy::Off,
                },
                why: Why::NeverAsked,
            },
            _ => decision,
        }
    }

    /// Notes on disk that the driver is about to be asked for a binary. The driver may crash (measured: PoCL 3.1, for a kernel with
    /// a name of 255 characters), and must not be asked again after that. Not needed for drivers where fetching is known to be safe
    /// and free, nor in a baker, which its parent watches.
    ///
    /// # Errors
    /// The driver must not be asked.
    pub(super) fn begin_fetch<'a>(
        &self,
        store: &'a Store,
        driver: &Driver,
        plan: &Plan,
    ) -> Result<Option<FetchGuard<'a>>, Kept> {
        if is_baker() || driver.behavior().record == RecordTime::InMiss {
            return Ok(None);
        }
        match store.begin_fetch(&plan.key()) {
            Ok(FetchAdmission::Granted(fetching)) => Ok(Some(fetching)),
            Ok(FetchAdmission::Taken) => {
                self.not_stored(plan, &"another process or thread is storing it");
                Err(Kept::Nothing)
            }
            Ok(FetchAdmission::Refused(reason)) => {
                self.not_stored(plan, &reason.help());
                Err(Kept::not_bakeable(reason))
            }
            Err(error) => {
                self.not_stored(plan, &error);
                Err(Kept::Nothing)
            }
        }
    }

    /// Adds a sample: the times of a build and of its recording.
    pub(super) fn measure_recording(&self, driver: &Driver, build: Duration, recording: Duration) {
        let times = CostTimes::of(nanoseconds(build), nanoseconds(recording));
        self.measure(driver, CostSample::Recorded, times);
    }

    /// Adds a sample: the time of a build and of loading its binary.
    pub(super) fn measure_load(&self, driver: &Driver, build_ns: u64, load: Duration) {
        let times = CostTimes::of(build_ns, nanoseconds(load));
        self.measure(driver, CostSample::Loaded, times);
    }

    fn measure(&self, driver: &Driver, sample: CostSample, times: CostTimes) {
        if driver.behavior().record == RecordTime::Measured
            && self.config.record() == config::RecordMode::Auto
            && let Some(store) = self.written_store()
        {
            let new = || self.unmeasured(driver);
            self.measures.add(store, driver.index(), new, sample, times);
        }
    }

    /// Empty measurements of a driver. None if the driver cannot be identified.
    fn unmeasured(&self, driver: &Driver) -> Option<DriverCosts> {
        let identity = driver.identity(self)?;
        let library = driver.library().to_string_lossy().into_owned();
        Some(DriverCosts::new(
            driver.profile.family,
            library,
            key(identity.iter()),
        ))
    }
}
