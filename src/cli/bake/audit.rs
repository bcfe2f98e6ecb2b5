//! Audits: compares an entry with what its driver compiles now. The entry is never changed.
//!
//! A false alarm would turn a user's cache off, so a difference counts only if three compilations agree on it: two in one worker,
//! since a driver may number its builds, and one in another process with another program name and directory. A worker compiles only
//! if all ingredients of the key are unchanged. A failed compilation proves nothing: the disk may be full.

use std::collections::BTreeSet;

use super::super::failure::Failure;
use super::super::worker::process::{NoAnswer, Worker};
use super::collect::{BakeItem, WorkerSettings};
use super::replayer::{BakeTask, RESULT, ReplayResult};
use super::supervise::{NotStarted, Supervisor};
use crate::cache::audit::differences;
use crate::key::ingredients::Key;
use crate::store::audit::AuditMark;
use crate::store::entry::Entry;
use crate::store::journal::now_ms;
use crate::store::recorder::Recorder;
use crate::store::stats::{Counter, CounterEvent, Labels};
use crate::store::tier::Tier;
use crate::store::{Lookup, Store};

/// The name of the program that confirms a difference, unless the driver reads that name.
const CONFIRMING_PROGRAM: &str = "oclcache-audit";

/// Why there is no result to compare.
enum NotCompiled {
    /// The worker is still usable.
    Verdict(ReplayResult),
    /// The worker has ended.
    Gone(ReplayResult),
    /// The user has interrupted the work.
    Stopped,
}

fn skip<T>(why: impl Into<String>) -> Result<T, NotCompiled> {
    Err(NotCompiled::Verdict(ReplayResult::Skipped(why.into())))
}

impl Supervisor<'_> {
    /// Audits an entry. Returns the result, unless the user interrupted it, and the worker, unless it has ended.
    pub(super) fn audit(
        &self,
        mut worker: Worker,
        item: &BakeItem,
        place: &WorkerSettings,
    ) -> (Option<ReplayResult>, Option<Worker>) {
        match self.compare(&mut worker, item, place) {
            Ok(verdict) | Err(NotCompiled::Verdict(verdict)) => (Some(verdict), Some(worker)),
            Err(NotCompiled::Gone(verdict)) => (Some(verdict), None),
            Err(NotCompiled::Stopped) => (None, None),
        }
    }

    fn compare(
        &self,
        worker: &mut Worker,
        item: &BakeItem,
        place: &WorkerSettings,
    ) -> Result<ReplayResult, NotCompiled> {
        let Some(stored) = self.stored(&item.key) else {
            return skip("it was removed");
        };
        let (identity, first) = self.compile(worker, item)?;
        if differences(&stored, &first).is_empty() {
            return Ok(ReplayResult::Agreed);
        }
        let (_, second) = self.compile(worker, item)?;
        let third = self.compile_elsewhere(item, place)?;
        let compiled = [first, second, third];
        let found = confirmed(&stored, &compiled);
        if found.is_empty() {
            return Ok(ReplayResult::Unstable);
        }
        if self
            .stored(&item.key)
            .is_none_or(|now| now.bytes() != stored.bytes())
        {
            return skip("it was replaced meanwhile");
        }
        let what = found.iter().cloned().collect::<Vec<_>>().join(", ");
        // The first finding stays: a bug report is about it.
        if !self.store.is_marked(&identity) {
            let mark = mark(item, &stored, found);
            let marked = self
                .store
                .mark(&identity, &mark, stored.bytes(), compiled[0].bytes());
            if let Err(error) = marked {
                return skip(format!(
                    "it differs ({what}), but that cannot be recorded: {error}"
                ));
            }
        }
        Ok(ReplayResult::Differed(what))
    }

    fn stored(&self, key: &Key) -> Option<Entry> {
        match self.store.look_up(key) {
            Lookup::Found(entry, _) => Some(*entry),
            _ => None,
        }
    }

    /// Compiles a recipe. Returns the driver's identity and the entry that would be stored.
    fn compile(&self, worker: &mut Worker, item: &BakeItem) -> Result<(Key, Entry), NotCompiled> {
        let limit = self.limit(item);
        let answer = worker.ask(&BakeTask::Audit.line(&item.key), limit, self.stop);
        let identity = match answer.map(|line| ReplayResult::parse(&line)) {
            Ok(Some(ReplayResult::Compiled(identity))) => identity,
            Ok(Some(verdict)) => return Err(NotCompiled::Verdict(verdict)),
            Ok(None) => {
                worker.kill();
                let why = "the worker's answer is invalid".to_owned();
                return Err(NotCompiled::Gone(ReplayResult::Failed(why)));
            }
            Err(NoAnswer::Stopped) => return Err(NotCompiled::Stopped),
            Err(silence) => {
                return Err(NotCompiled::Gone(ReplayResult::Failed(
                    silence.words(limit),
                )));
            }
        };
        let bytes = std::fs::read(worker.root().join(RESULT));
        let entry = bytes.map(|bytes| Entry::parse(bytes, Some(&item.key)));
        match entry {
            Ok(Ok(entry)) => Ok((identity, entry)),
            Ok(Err(defect)) => skip(format!("the result is damaged: {defect}")),
            Err(error) => skip(format!("the result cannot be read: {error}")),
        }
    }

    /// Compiles a recipe in another process.
    fn compile_elsewhere(
        &self,
        item: &BakeItem,
        place: &WorkerSettings,
    ) -> Result<Entry, NotCompiled> {
        let mut place = place.clone();
        place
            .executable
            .get_or_insert_with(|| CONFIRMING_PROGRAM.into());
        let mut worker = match self.start(&place) {
            Ok(worker) => worker,
            Err(NotStarted::Driver(why) | NotStarted::Trouble(why)) => {
                return skip(format!(
                    "it differs, but no other process can confirm it: {why}"
                ));
            }
        };
        match self.compile(&mut worker, item) {
            Ok((_, entry)) => {
                worker.end();
                Ok(entry)
            }
            // The first worker is still usable.
            Err(NotCompiled::Verdict(verdict) | NotCompiled::Gone(verdict)) => {
                worker.kill();
                Err(NotCompiled::Verdict(verdict))
            }
            Err(NotCompiled::Stopped) => Err(NotCompiled::Stopped),
        }
    }
}

/// The differences between an entry and all compilations that do not also occur between two compilations.
fn confirmed(stored: &Entry, compiled: &[Entry]) -> BTreeSet<String> {
    let mut found = differences(stored, &compiled[0]);
    for one in compiled {
        let from_stored = differences(stored, one);
        found.retain(|what| from_stored.contains(what));
        for other in compiled {
            for unstable in differences(one, other) {
                found.remove(&unstable);
            }
        }
    }
    found
}

fn mark(item: &BakeItem, stored: &Entry, found: BTreeSet<String>) -> AuditMark {
    let kernels = String::from_utf8_lossy(&item.kernels.join(&b' ')).into_owned();
    AuditMark {
        family: stored.meta.driver_family.clone(),
        library: stored.meta.driver_library.clone(),
        key: item.key.hex(),
        program: item.program.clone(),
        kernels,
        differences: found.into_iter().collect(),
        found_ms: now_ms(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
    }
}

/// Counts an audit for the program and device of its entry. A failure to count is ignored.
pub(super) fn count(store: &Store, item: &BakeItem, verdict: &ReplayResult) {
    let counters: &[Counter] = match verdict {
        ReplayResult::Agreed => &[Counter::Audited],
        ReplayResult::Differed(_) => &[Counter::Audited, Counter::AuditDiffered],
        ReplayResult::Unstable => &[Counter::Audited, Counter::AuditUnstable],
        _ => &[Counter::NotAudited],
    };
    let events: Vec<CounterEvent> = counters.iter().map(|counter| counter.by(1)).collect();
    let labels = Labels {
        driver: &item.driver,
        device: &item.device,
    };
    let places = store.counting_places();
    Recorder::new(item.program.as_bytes(), None, Some(places)).record(labels, &events);
}

/// The failure of a command that found differences.
pub(super) fn failure(count: usize) -> Failure {
    let entries = match count {
        1 => "1 entry differs".to_owned(),
        count => format!("{count} entries differ"),
    };
    Failure::new(format_args!(
        "{entries} from what the driver compiles, so the cache is off for that driver; run `oclcache doctor`"
    ))
}
