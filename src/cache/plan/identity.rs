//! What identifies the driver, its devices and its environment in a key.

use std::sync::Arc;

use super::CallInputs;
use crate::cache::Cache;
use crate::driver::environment::Reads;
use crate::key::include::Closure;
use crate::key::ingredients::Ingredient;
use crate::outcome::Bypass;
use crate::shadow::Base;

/// The identity of driver, devices and surroundings.
pub(super) struct CallIdentity {
    /// One for each device. These, driver and bindings are shared by all keys of them.
    pub(super) devices: Vec<Arc<[Ingredient]>>,
    /// The driver's files.
    pub(super) driver: Arc<[Ingredient]>,
    /// Libraries that answer for functions of the driver.
    pub(super) bindings: Arc<[Ingredient]>,
    /// Variables and files that the driver may read.
    pub(super) surroundings: Vec<Ingredient>,
}

impl Cache {
    /// Identifies driver, devices and surroundings, or tells why that is impossible.
    pub(super) fn call_identity(
        &self,
        inputs: &CallInputs<'_>,
        closure: &Closure,
    ) -> Result<CallIdentity, Bypass> {
        let driver = inputs.driver;
        let devices = driver
            .device_identities(&inputs.devices)
            .ok_or(Bypass::UnidentifiedDevice)?;
        let files = driver.identity(self).ok_or(Bypass::UnidentifiedDriver)?;
        let is_il = matches!(inputs.base, Base::Il(..));
        let surroundings = driver
            .surroundings(is_il, self)
            .ok_or(Bypass::UnidentifiedDriver)?;
        let bindings = driver.bindings(self)?;
        self.remember_digests();
        let reads_unknown = match surroundings.reads {
            Reads::Nothing => false,
            Reads::HeadersElsewhere => {
                !inputs.operation.headers().is_empty() || closure.names_any()
            }
            Reads::Files => true,
        };
        if matches!(inputs.base, Base::Source(_)) && reads_unknown {
            return Err(Bypass::OptionReadsFile);
        }
        Ok(CallIdentity {
            devices,
            driver: files,
            bindings,
            surroundings: surroundings.ingredients,
        })
    }
}
