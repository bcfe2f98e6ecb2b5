//! OCLCACHE_MUST_HIT: what drivers compile is said on standard error, for machines where nothing should be compiled.
//!
//! Builds that fail are not: they are never stored, so they would be said for ever, and the program has its error code. Nor is
//! a program that was made from a binary, of which there is nothing to compile.

use super::Cache;
use super::plan::{Plan, executable};
use crate::log::{say, text};
use crate::outcome::{Bypass, Outcome};

impl Cache {
    /// Says that the driver has built what was no hit, if that is wanted.
    pub(super) fn must_have_hit(
        &self,
        outcome: Outcome,
        plan: Option<&Plan>,
        kernel_names: &[Vec<u8>],
    ) {
        let reason = match outcome {
            Outcome::Miss => outcome.name(),
            Outcome::Bypassed(reason) if reason != Bypass::FromBinary => reason.name(),
            _ => return,
        };
        if !self.config.must_hit() {
            return;
        }
        let key = plan.map(Plan::key_prefix);
        say(&format!(
            "OCLCACHE_MUST_HIT: compiled: {reason}, key {}, program {}, kernels: {}",
            key.as_deref().unwrap_or("none"),
            text(&executable()),
            text(&kernel_names.join(&b' '))
        ));
    }
}
