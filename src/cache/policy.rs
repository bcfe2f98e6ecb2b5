//! When a program that missed becomes an entry: by the setting, else by the driver's profile, else by what was measured.

use std::fmt;
use std::time::Duration;

use super::bake::is_baker;
use super::plan::Plan;
use super::{Cache, nanoseconds};
use crate::config::{self, Config};
use crate::driver::Driver;
use crate::driver::profile::RecordTime;
use crate::key::ingredients::key;
use crate::store::Store;
use crate::store::bake_attempts::{FetchAdmission, FetchGuard};
use crate::store::driver_costs::{AGAIN, CostSample, CostTimes, CostVerdict, DriverCosts};
use crate::store::journal::Kept;

/// What happens after a miss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Policy {
    /// It is recorded before the application hears of it.
    InMiss,
    /// Its recipe is stored, for `oclcache bake`.
    Baked,
    /// Nothing is stored.
    Off,
}

/// A policy, and what it follows from; shown in one line.
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
    /// What would be baked has no recipe, since sources are not stored, and fetching a binary compiles.
    NoRecipes,
    /// The same where fetching a binary costs nothing: then nobody needs a recipe.
    NoRecipesNeeded,
    /// Nobody has measured anything yet.
    Unknown,
    Recorded(CostTimes),
    /// It is tried again after so many days.
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
    /// Whether nothing is stored because sources are not, which what would be stored is baked from.
    pub fn lacks_recipes(&self) -> bool {
        self.why == Why::NoRecipes
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

/// So many of something, in words.
fn number(count: u32, of: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {of}{plural}")
}

impl Cache {
    /// What happens after a miss of this driver's.
    pub(super) fn policy(&self, driver: &Driver) -> Decision {
        let store = self.written_store();
        let measured = store.and_then(|store| {
            let new = || self.unmeasured(driver);
            self.measures.of(store, driver.index(), new)
        });
        let now_ms = store.map_or(0, |store| store.root().now_ms());
        decide(
            &self.config,
            driver.profile.record,
            measured.as_ref(),
            now_ms,
        )
    }

    /// Writes down that the driver is asked for a binary: it may die of that (measured: PoCL 3.1, of a kernel with a name of 255
    /// characters), and must not do so twice. Where fetching is known to cost nothing there is nothing to fear, and a baker is
    /// watched by who started it.
    ///
    /// # Errors
    /// It is not to be asked.
    pub(super) fn begin_fetch<'a>(
        &self,
        store: &'a Store,
        driver: &Driver,
        plan: &Plan,
    ) -> Result<Option<FetchGuard<'a>>, Kept> {
        if is_baker() || driver.profile.record == RecordTime::InMiss {
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

    /// A program was built and then recorded in this time.
    pub(super) fn measure_recording(&self, driver: &Driver, build: Duration, recording: Duration) {
        let times = CostTimes::of(nanoseconds(build), nanoseconds(recording));
        self.measure(driver, CostSample::Recorded, times);
    }

    /// A program whose build took so long was loaded in this time.
    pub(super) fn measure_load(&self, driver: &Driver, build_ns: u64, load: Duration) {
        let times = CostTimes::of(build_ns, nanoseconds(load));
        self.measure(driver, CostSample::Loaded, times);
    }

    fn measure(&self, driver: &Driver, sample: CostSample, times: CostTimes) {
        if driver.profile.record == RecordTime::Measured
            && self.config.record() == config::RecordMode::Auto
            && let Some(store) = self.written_store()
        {
            let new = || self.unmeasured(driver);
            self.measures.add(store, driver.index(), new, sample, times);
        }
    }

    /// None: nobody knows what it is.
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
