//! OCLCACHE_MUST_HIT: reports on standard error what drivers compile, for machines where nothing should be compiled.
//!
//! Failed builds are not reported: they are never stored, so they would be reported forever, and the program gets their error code.
//! Programs from binaries are not reported either: there is nothing to compile.

use super::Cache;
use super::plan::Plan;
use crate::config::program_name;
use crate::log::{say, text};
use crate::outcome::{Bypass, Outcome};

impl Cache {
    /// Reports a build that was not a hit, if the setting asks for it.
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
            text(program_name()),
            text(&kernel_names.join(&b' '))
        ));
    }
}
