//! The baker loads once what it has stored, so that no application has to be watched while it loads that for the first time: the
//! watch writes to the disk (see `store::load_guard`).

use std::sync::Arc;

use super::record::Miss;
use super::restore::restore;
use super::{Cache, bake};
use crate::shadow::Owner;
use crate::store::tier::Tier;
use crate::store::{Lookup, Store};

impl Cache {
    /// Loads the entry of a build, in the baker. An entry that the driver does not take stays unproven: what the application loads it
    /// with may differ from this, such as its directories of headers.
    pub(super) fn prove_baked(&self, store: &Store, miss: &Miss<'_>) {
        if !bake::is_baker() {
            return;
        }
        let key = miss.plan.key();
        if let Lookup::Found(entry, origin) = store.look_up(&key) {
            let entry = Arc::from(entry);
            let loaded = restore(miss.driver, miss.context, Owner::Cache, miss.plan, &entry);
            if loaded.is_ok() {
                store.prove(&key, &origin);
            }
        }
    }
}
