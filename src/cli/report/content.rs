//! What the report shows in addition to the counters, from the metadata of entries and from the journal.

use std::collections::BTreeMap;

use crate::cli::entry_view::kernels;
use crate::cli::failure::Failure;
use crate::cli::progress::bar;
use crate::cli::summary::CacheSummary;
use crate::cli::why::{BuildHistory, words};
use crate::store::Store;
use crate::store::journal::{BuildResult, now_ms};
use crate::store::stats::DAY_MS;

/// How many of the costliest builds and latest misses are shown.
const COSTLIEST: usize = 10;
const MISSES: usize = 25;
/// How many differences of one kind are shown.
const OF_A_KIND: usize = 3;

/// The groups of ages, in days, with their names.
const AGES: [(u64, &str); 6] = [
    (1, "less than a day"),
    (7, "less than a week"),
    (30, "less than a month"),
    (90, "less than three months"),
    (365, "less than a year"),
    (u64::MAX, "older"),
];

/// An entry that took long to compile.
pub struct CostlyEntry {
    /// Nanoseconds of compilation.
    pub compile_ns: u64,
    /// The disk space.
    pub bytes: u64,
    /// The first kernels.
    pub kernels: String,
    /// The program that built it.
    pub program: String,
    /// The driver's family.
    pub driver: String,
    /// The key.
    pub key: String,
}

/// A miss.
pub struct MissedProgram {
    /// How many milliseconds ago.
    pub ago_ms: u64,
    /// The reason in one word.
    pub reason: &'static str,
    /// The explanation.
    pub words: Vec<String>,
    /// The program.
    pub program: String,
    /// The driver's family.
    pub driver: String,
    /// The first kernels.
    pub kernels: String,
    /// Nanoseconds of compilation.
    pub compile_ns: u64,
}

/// Bytes and number of entries, by name.
pub type Space = BTreeMap<String, (u64, u64)>;

/// What was found.
#[derive(Default)]
pub struct ReportContent {
    /// The costliest entries, in order.
    pub costliest: Vec<CostlyEntry>,
    /// Disk space by driver.
    pub by_driver: Space,
    /// Disk space by program.
    pub by_program: Space,
    /// Disk space by age, the youngest first.
    pub by_age: Vec<(&'static str, (u64, u64))>,
    /// The latest misses, the last one first.
    pub misses: Vec<MissedProgram>,
}

impl ReportContent {
    /// Reads the metadata of all entries, and the journal.
    ///
    /// # Errors
    /// A directory or the journal cannot be read.
    pub fn read(gathered: &CacheSummary) -> Result<ReportContent, Failure> {
        let Some(store) = &gathered.store else {
            return Ok(ReportContent::default());
        };
        let mut found = ReportContent {
            by_age: AGES.map(|(_, name)| (name, (0, 0))).to_vec(),
            ..ReportContent::default()
        };
        let entries = store.entries()?;
        let bar = bar(entries.len() as u64, "reading");
        for (key, file) in &entries {
            bar.inc(1);
            // A damaged entry takes space, too.
            let meta = store.read_meta(key);
            let (driver, program) = meta.as_ref().map_or_else(
                || ("(damaged)".to_owned(), "(damaged)".to_owned()),
                |meta| (meta.driver_family.clone(), meta.executable.clone()),
            );
            let add = |sum: &mut (u64, u64)| *sum = (sum.0 + file.allocated, sum.1 + 1);
            add(found.by_driver.entry(driver.clone()).or_default());
            add(found.by_program.entry(program.clone()).or_default());
            let created_ms = meta
                .as_ref()
                .map_or(file.modified_ms, |meta| meta.created.saturating_mul(1000));
            let days = now_ms().saturating_sub(created_ms) / DAY_MS;
            let age = AGES.iter().position(|(most, _)| days < *most);
            add(&mut found.by_age[age.unwrap_or(AGES.len() - 1)].1);
            if let Some(meta) = meta {
                found.costliest.push(CostlyEntry {
                    compile_ns: meta.compile_ns,
                    bytes: file.allocated,
                    kernels: kernels(&meta.facts.kernel_names),
                    program,
                    driver,
                    key: key.hex(),
                });
            }
            if found.costliest.len() >= 2 * COSTLIEST {
                found.sort_costliest();
            }
        }
        found.sort_costliest();
        bar.finish_and_clear();
        if let Some(store) = Store::open_existing(&gathered.directory)? {
            found.misses = misses(&BuildHistory::read(store)?);
        }
        Ok(found)
    }

    fn sort_costliest(&mut self) {
        self.costliest
            .sort_by_key(|one| std::cmp::Reverse(one.compile_ns));
        self.costliest.truncate(COSTLIEST);
    }
}

fn misses(past: &BuildHistory) -> Vec<MissedProgram> {
    let newest = past.records.iter().rev();
    let misses = newest.filter(|record| matches!(record.ended, BuildResult::Miss { .. }));
    let missed = misses.take(MISSES).map(|record| {
        let why = past.why(record);
        MissedProgram {
            ago_ms: now_ms().saturating_sub(record.time_ms),
            reason: why.reason,
            words: words(&why, OF_A_KIND),
            program: record.executable.clone(),
            driver: record.driver_family.clone(),
            kernels: kernels(&record.kernel_names),
            compile_ns: record.compile_ns,
        }
    });
    missed.collect()
}
