//! Counters, log lines and journal records of builds.

use std::sync::atomic::Ordering;
use std::time::Duration;

use rustix::fs::{Access, access};

use super::attribution::Attribution;
use super::plan::Plan;
use super::{Cache, autobake};
use crate::driver::Driver;
use crate::key::ingredients::Key;
use crate::log::text;
use crate::outcome::{Bypass, Outcome};
use crate::shadow::CachedProgram;
use crate::store::Store;
use crate::store::journal::{BuildResult, Kept};
use crate::store::stats::{Counter, CounterEvent, Labels};

/// How long a build took that was not served.
#[derive(Clone, Copy, Default)]
pub(super) struct BuildTime {
    /// Before the driver was called: the key, the look-up, and the wait for a build of another process.
    pub before: Duration,
    /// In the driver.
    pub driver: Duration,
}

impl Cache {
    /// Counts events for a driver and a device. A cache that is switched off counts nothing.
    pub(super) fn count(&self, place: Labels<'_>, events: &[CounterEvent]) {
        if self.switch.was_off() {
            return;
        }
        if let Some(recorder) = self.opened.recorder() {
            recorder.record(place, events);
        }
    }

    /// Counts and logs a hit. `elapsed`: the whole call, its key included.
    pub(super) fn count_hit(&self, inner: &CachedProgram, elapsed: Duration) {
        let load_ns = nanoseconds(elapsed);
        let events = [
            Counter::Hits.by(1),
            Counter::SystemHits.by(inner.is_of_system().into()),
            Counter::LoadNs.by(load_ns),
            Counter::SavedNs.by(inner.compile_ns().saturating_sub(load_ns)),
        ];
        self.count(Attribution::inner(inner).place(), &events);
        if let Some(client) = &self.remote {
            client.saw(Duration::from_nanos(inner.compile_ns()));
        }
        log_build(
            Outcome::Hit,
            Some(inner.key()),
            &inner.facts().kernel_names,
            elapsed,
        );
        self.have_names_gathered();
        // A system entry's recipe belongs to another user.
        if self.written_store().is_some() && !inner.is_of_system() {
            autobake::hit_served(&self.config, &inner.key());
        }
    }

    /// Counts and logs a build of a program that is not known here, since it was made from a binary.
    ///
    /// The journal gets no record: nothing is compiled. A program with a cache of its own, as each that uses PyOpenCL, would write to the
    /// disk at each start, and push out what was compiled.
    #[inline(never)] // its frame is gone when the driver loads it
    pub(super) fn count_from_binary(&self) {
        let reason = Bypass::FromBinary;
        self.count(Attribution::default().place(), &[reason.into()]);
        log_build(Outcome::Bypassed(reason), None, &[], Duration::ZERO);
    }

    /// Counts, logs and journals a miss.
    pub(super) fn count_miss(
        &self,
        driver: &Driver,
        plan: &Plan,
        names: Vec<Vec<u8>>,
        kept: Kept,
        time: BuildTime,
    ) {
        let events = [
            Counter::Misses.by(1),
            Counter::CompileNs.by(nanoseconds(time.driver)),
            Counter::OverheadNs.by(nanoseconds(time.before)),
            plan.missed().into(),
        ];
        self.count(plan.place(), &events);
        self.note_compile_time(time.driver);
        log_build(Outcome::Miss, Some(plan.key()), &names, time.driver);
        self.must_have_hit(Outcome::Miss, Some(plan), &names);
        let recache = self.config.recache();
        let ended = BuildResult::Miss { kept, recache };
        self.note(Some(driver), Some(plan), names, ended, time.driver);
        self.have_names_gathered();
    }

    /// Leaves names that nobody has gathered to a baker, so that the next new variable needs no search.
    fn have_names_gathered(&self) {
        if !self.lacks_names.swap(false, Ordering::Relaxed) {
            return;
        }
        // On a file system that is read-only every process would start one, for nothing.
        let is_writable = |store: &Store| access(store.root().path(), Access::WRITE_OK).is_ok();
        if self.written_store().is_some_and(is_writable) {
            autobake::request(&self.config);
        }
    }

    /// Counts, logs and journals a bypass.
    pub(super) fn count_bypass(
        &self,
        of: &Attribution,
        reason: Bypass,
        names: Vec<Vec<u8>>,
        time: BuildTime,
    ) {
        let place = of.place();
        let events = [
            reason.into(),
            Counter::BypassedNs.by(nanoseconds(time.driver)),
            Counter::OverheadNs.by(nanoseconds(time.before)),
        ];
        self.count(place, &events);
        log_build(Outcome::Bypassed(reason), None, &names, time.driver);
        self.must_have_hit(Outcome::Bypassed(reason), None, &names);
        self.note(
            of.driver,
            None,
            names,
            BuildResult::bypassed(reason),
            time.driver,
        );
        self.have_names_gathered();
    }

    /// Counts, logs and journals a build that failed.
    pub(super) fn count_failed(&self, of: &Attribution, plan: Option<&Plan>, time: BuildTime) {
        let place = plan.map_or_else(|| of.place(), Plan::place);
        let events = [
            Counter::Failed.by(1),
            Counter::FailedNs.by(nanoseconds(time.driver)),
            Counter::OverheadNs.by(nanoseconds(time.before)),
        ];
        self.count(place, &events);
        log_build(Outcome::Failed, plan.map(Plan::key), &[], time.driver);
        let ended = BuildResult::Failed;
        self.note(of.driver, plan, Vec::new(), ended, time.driver);
        self.have_names_gathered();
    }
}

/// A duration as it is counted.
pub(super) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// Writes one line for each build call.
fn log_build(outcome: Outcome, key: Option<Key>, kernel_names: &[Vec<u8>], elapsed: Duration) {
    if !tracing::enabled!(tracing::Level::INFO) {
        return;
    }
    let reason = match outcome {
        Outcome::Bypassed(reason) => reason.name(),
        _ => "",
    };
    let key = key.map(|key| key.hex()[..16].to_owned());
    let key = key.unwrap_or_default();
    let kernels = kernel_names.join(&b' ');
    let (ms, us) = (elapsed.as_millis(), elapsed.as_micros() % 1000);
    tracing::info!(outcome = outcome.name(), reason, key, kernels = %text(&kernels), ms = format_args!("{ms}.{us:03}"), "build");
}
