//! What identifies the driver and its environment in a key.

use std::sync::Arc;

use super::Draft;
use crate::cache::Cache;
use crate::driver::loaded_changes;
use crate::driver::look::Look;
use crate::driver::moment::Moment;
use crate::driver::variable_reads::Reads;
use crate::key::ingredients::Ingredient;
use crate::outcome::Bypass;
use crate::shadow::Base;

/// The identity of driver and surroundings.
pub(super) struct CallIdentity {
    /// The driver's files. These and the bindings are shared by all keys of the driver.
    pub(super) driver: Arc<[Ingredient]>,
    /// Libraries that answer for functions of the driver.
    pub(super) bindings: Arc<[Ingredient]>,
    /// Variables and files that the driver may read.
    pub(super) surroundings: Vec<Ingredient>,
    /// How many libraries had been loaded before.
    pub(super) loads: u64,
}

impl Cache {
    /// Identifies driver and surroundings, or tells why that is impossible. The driver is asked nothing. `moment`: the driver is
    /// identified by what was loaded then, unless it is identified, and the caller saves what was learned of its files.
    pub(super) fn call_identity(
        &self,
        draft: &Draft,
        moment: Option<&Moment>,
    ) -> Result<CallIdentity, Bypass> {
        let identity = self.find_identity(draft, moment);
        if moment.is_none() {
            self.remember_digests_of(draft.inputs.driver);
        }
        identity
    }

    fn find_identity(
        &self,
        draft: &Draft,
        moment: Option<&Moment>,
    ) -> Result<CallIdentity, Bypass> {
        let inputs = &draft.inputs;
        let driver = inputs.driver;
        let loads = moment.map_or_else(|| loaded_changes().loads, Moment::loads);
        self.keep_what_was_read_early(driver);
        let look = Look::new(self);
        if moment.is_some_and(|moment| !driver.identify_as_at(moment, &look)) {
            return Err(Bypass::UnidentifiedDriver);
        }
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
        let bindings = driver.bindings(moment, &look)?;
        look.keep();
        let reads_unknown = match surroundings.reads {
            Reads::Nothing => false,
            Reads::HeadersElsewhere => {
                !inputs.operation.headers().is_empty() || draft.text.closure.names_any()
            }
            Reads::Files | Reads::Compilers => true,
        };
        let is_compiled =
            matches!(inputs.base, Base::Source(_)) || surroundings.reads == Reads::Compilers;
        if is_compiled && reads_unknown {
            return Err(Bypass::OptionReadsFile);
        }
        Ok(CallIdentity {
            driver: files,
            bindings,
            surroundings: surroundings.ingredients,
            loads,
        })
    }
}
