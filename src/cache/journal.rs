//! Writes the journal, which `oclcache explain` reads.

use std::time::Duration;

use super::bake;
use super::facts::kernel_names;
use super::plan::Plan;
use super::{Cache, nanoseconds};
use crate::cl::Program;
use crate::config::program_name;
use crate::driver::{self, Driver};
use crate::outcome::Bypass;
use crate::store::journal::{self, Build, BuildResult, JournalRecord};

impl Plan {
    /// The build options as other users may see them. None is NULL.
    pub fn shown_options(&self, private: bool) -> Option<Vec<u8>> {
        let options = self.options.as_ref()?;
        match &self.recipe.arguments.options {
            Some(written) if !private => Some(written.as_bytes().to_vec()),
            _ => Some(options.private()),
        }
    }
}

impl Cache {
    /// Records a build that was not a hit. A cache that is read-only or switched off has no journal.
    pub(super) fn note(
        &self,
        driver: Option<&Driver>,
        plan: Option<&Plan>,
        kernel_names: Vec<Vec<u8>>,
        ended: BuildResult,
        elapsed: Duration,
    ) {
        let Some(store) = self.written_store() else {
            return;
        };
        if bake::is_baker() {
            return;
        }
        let private = !self.config.store_source();
        let build = plan.map(|plan| Build {
            key: plan.key(),
            ingredients: plan.ingredients(),
            options: plan.shown_options(private),
        });
        let record = JournalRecord {
            time_ms: journal::now_ms(),
            compile_ns: nanoseconds(elapsed),
            executable: String::from_utf8_lossy(program_name()).into_owned(),
            process: std::process::id(),
            driver_family: driver.map_or("", |driver| driver.profile.family).to_owned(),
            kernel_names,
            ended,
            build,
        };
        journal::append(store.root(), record);
    }
}

/// The kernels of a program that was built after a bypass. A program that another thread may be building is not asked.
pub fn kernel_names_after(driver: &Driver, program: Program, reason: Bypass) -> Vec<Vec<u8>> {
    if reason == Bypass::ConcurrentBuild || driver::is_ending() {
        return Vec::new();
    }
    kernel_names(driver, program)
}
