//! When a program that missed becomes an entry.

use super::Cache;
use crate::config;
use crate::driver::Driver;
use crate::driver::profile::Record;

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

impl Cache {
    /// What happens after a miss of this driver's.
    pub(super) fn policy(&self, driver: &Driver) -> Policy {
        match (self.config.record(), driver.profile.record) {
            (config::Record::Inline, _) => Policy::InMiss,
            (config::Record::Bake, _) => Policy::Baked,
            (config::Record::Off, _) => Policy::Off,
            (config::Record::Auto, Record::InMiss | Record::Measured) => Policy::InMiss,
            (config::Record::Auto, Record::Baked) => Policy::Baked,
        }
    }
}
