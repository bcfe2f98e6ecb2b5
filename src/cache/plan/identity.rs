//! What identifies the driver, its devices and its environment in a key.

use std::sync::Arc;

use super::CallInputs;
use crate::cache::Cache;
use crate::driver::environment::Reads;
use crate::driver::loaded_changes;
use crate::driver::look::Look;
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
    /// How many libraries had been loaded before.
    pub(super) loads: u64,
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
        let loads = loaded_changes().loads;
        let look = Look::new(self);
        let files = driver.identity(&look).ok_or(Bypass::UnidentifiedDriver)?;
        // Before there is a P', which lives by it.
        self.behavior(driver);
        let is_il = matches!(inputs.base, Base::Il(..));
        let surroundings = driver
            .surroundings(is_il, &look)
            .ok_or(Bypass::UnidentifiedDriver)?;
        if surroundings.has_changed {
            return Err(Bypass::ChangedVariables);
        }
        let bindings = driver.bindings(&look)?;
        look.keep();
        self.remember_digests();
        let reads_unknown = match surroundings.reads {
            Reads::Nothing => false,
            Reads::HeadersElsewhere => {
                !inputs.operation.headers().is_empty() || closure.names_any()
            }
            Reads::Files | Reads::Compilers => true,
        };
        let is_compiled =
            matches!(inputs.base, Base::Source(_)) || surroundings.reads == Reads::Compilers;
        if is_compiled && reads_unknown {
            return Err(Bypass::OptionReadsFile);
        }
        Ok(CallIdentity {
            devices,
            driver: files,
            bindings,
            surroundings: surroundings.ingredients,
            loads,
        })
    }
}
