//! How drivers behave: as they were measured on this machine, else by the rows of their families.

use super::Cache;
use crate::driver::Driver;
use crate::driver::profile::measured::MeasuredBehavior;
use crate::driver::profile::{self, Behavior};
use crate::key::ingredients::{Key, key};
use crate::store::driver_costs::DriverCosts;
use crate::store::{Store, measured_profiles};

impl Cache {
    /// How a driver behaves. Looks once for measurements: only in a cache that is the user's own and may be written, and only for the
    /// driver as it is identified now.
    pub(super) fn behavior(&self, driver: &Driver) -> Behavior {
        if !driver.has_settled_behavior()
            && let Some(store) = self.written_store()
            && let Some(identity) = driver.identity(self)
        {
            let measured = measured(store, &key(identity.iter()));
            if let Some(measured) = &measured {
                tracing::debug!(driver = %crate::log::path(driver.library()), ?measured, "by measurements");
            }
            driver.settle_behavior(measured.unwrap_or_default());
        }
        driver.behavior()
    }
}

/// What was measured on the driver with this identity.
pub fn measured(store: &Store, identity: &Key) -> Option<MeasuredBehavior> {
    MeasuredBehavior::decode(&measured_profiles::read(store, identity)?, identity)
}

/// How a driver behaves that was used with a store.
pub fn of_used(store: &Store, used: &DriverCosts) -> Behavior {
    let row = profile::named(&used.family).behavior();
    measured(store, &used.identity).map_or(row, |measured| measured.over(row))
}
