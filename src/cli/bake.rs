//! `oclcache bake`: compiles pending recipes into entries, and recompiles entries of an older driver.
//!
//! Worker processes compile the recipes (`supervise`), each for one driver and one environment. A worker repeats the API calls of a
//! recipe (`replayer`) through our own hooks, so that they are planned and recorded as those of an application. The resulting key must
//! be that of the recipe.
//!
//! It also audits hits that programs have chosen (`audit`), and gathers what processes with new variables would search for (`names`).

mod audit;
mod collect;
mod headers;
pub mod names;
mod order;
mod progress;
mod replayer;
mod sharing;
mod supervise;
mod worker;
mod worker_args;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Mutex;
use std::time::Duration;

use clap::Args;
use rustix::thread::set_name;
use serde_json::json;

use super::entry_view::{SHOWN_DIGITS, kernels};
use super::failure::Failure;
use super::find::find_key;
use super::interrupt::Interrupt;
use super::open::{directory, refuse_readonly, refused};
use super::output::{print_json, say};
use super::parse::parse_age;
use super::worker::private_directory;
use crate::first_process::is_adopted_by_init;
use crate::key::ingredients::Key;
use crate::log::text;
use crate::priority;
use crate::store::lock::{LockAttempt, Purpose};
use crate::store::{Limits, Store};
use collect::{BakeFilter, BakeItem, Work, collect, collect_audits};
use progress::BakeProgress;
use replayer::{BakeTask, ReplayResult};
use sharing::BakeSharing;
use supervise::{Supervisor, WorkerEvent};
use worker_args::WorkerArgs;

/// How often to look whether another baker has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Compile pending recipes into entries, or recompile entries of an older driver
#[derive(Args)]
#[command(after_help = "Example: oclcache bake --stale")]
pub struct BakeArgs {
    #[command(flatten)]
    filter: BakeFilter,
    /// How many processes compile at once; by default half as many as there are processors
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Also compile this entry again and compare it with what is stored; if they differ, the cache is turned off for its driver (OCLCACHE_AUDIT does this with some hits)
    #[arg(long, value_name = "KEY", conflicts_with = "stale")]
    audit: Vec<String>,
    /// Give up on a recipe after this time, such as 90s or 10m; by default 30 times as long as its program took to build, from one minute to one hour
    #[arg(long, value_name = "TIME", value_parser = parse_age)]
    timeout: Option<Duration>,
    /// If another process is baking, leave the recipes to it instead of waiting for its end
    #[arg(long)]
    no_wait: bool,
    /// List what was skipped and what failed
    #[arg(short, long)]
    verbose: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    handed: WorkerArgs,
}

/// Internal.
#[derive(Args)]
#[command(hide = true)]
pub struct BakeWorkerArgs {
    #[arg(long)]
    library: PathBuf,
    #[arg(long)]
    root: PathBuf,
    #[arg(long)]
    own_cache: Option<PathBuf>,
    #[arg(long)]
    stale: bool,
    #[arg(long)]
    confined: bool,
    #[arg(long, requires = "confined")]
    readable: Vec<PathBuf>,
}

impl BakeWorkerArgs {
    /// Compiles recipes as a worker process.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let readable = self.confined.then_some(self.readable.as_slice());
        worker::work(
            &self.library,
            &self.root,
            self.own_cache,
            self.stale,
            readable,
        )
    }
}

impl BakeArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        if self.handed.detached {
            // Linux before 6.14 shows the number of a descriptor.
            let _ = set_name(c"oclcache");
            if !self.handed.anywhere && !is_adopted_by_init() {
                return Ok(ExitCode::SUCCESS);
            }
            // Before anything is started: processes and threads inherit it. A person who asked for a bake waits for it.
            priority::lower();
        }
        let config = self.handed.config();
        if config.disables_all() {
            return Err(refused("nothing is baked", "disable"));
        }
        refuse_readonly(&config, "nothing is baked")?;
        let path = directory(&config)?;
        if Store::open_existing(&path)?.is_none() {
            return finish(&self, &Report::default());
        }
        // Enforce the limits. The second store has none, so that reading an entry here does not count as a use of it.
        drop(Store::open(&path, Limits::of(&config))?);
        let Some(store) = Store::open_existing(&path)? else {
            return finish(&self, &Report::default());
        };
        let audited: Vec<Key> = (self.audit.iter())
            .map(|digits| Key::from_hex(digits).map_or_else(|| find_key(&store, digits), Ok))
            .collect::<Result<_, _>>()?;
        if !self.json {
            self.filter.say_unknown_driver(&store)?;
        }
        let interrupt = Interrupt::listen()?;
        let mut lock = match self.lock(&store, &interrupt)? {
            LockAttempt::Taken => {
                let report = Report {
                    is_busy: true,
                    ..Report::default()
                };
                return finish(&self, &report);
            }
            attempt => Some(attempt),
        };
        private_directory::clear_leftovers();
        let report = Mutex::new(Report::default());
        let supervisor = Supervisor {
            store: &store,
            config: &config,
            timeout: self.timeout,
            is_stale: self.filter.stale,
            bounds_unused: !self.filter.all,
            stop: interrupt.flag(),
            sharing: BakeSharing::new(&store, &config),
        };
        let is_told = !self.json && !self.handed.detached;
        let run = |work: Work| {
            let progress = BakeProgress::new(&work, self.filter.stale, is_told);
            let put_off = supervisor.run(work, jobs(&self), &|event| match event {
                WorkerEvent::Begun(item) => progress.begun(item),
                WorkerEvent::PutOff(item) => progress.put_off(item),
                WorkerEvent::Ended(item, verdict) => {
                    progress.ended(&item);
                    locked(&report).add(&store, item, verdict);
                }
                WorkerEvent::Trouble(why) => {
                    locked(&report).trouble.get_or_insert(why);
                }
            });
            progress.finish();
            put_off
        };
        let mut tried = BTreeSet::new();
        // Recipes whose kernels never ran. They wait until nothing else is left.
        let mut unused = Work::default();
        let is_once = self.filter.stale || self.filter.all;
        let mut is_told = false;
        // Hits are audited when nothing else is left. Then comes what programs have left meanwhile.
        let mut is_audited = false;
        loop {
            names::gather(&store);
            let mut work = Work::default();
            if tried.is_empty() || !is_once {
                work = match collect(&store, &config, &self.filter) {
                    Ok(work) => work,
                    Err(failure) if tried.is_empty() && !is_audited => return Err(failure),
                    Err(failure) => {
                        locked(&report).trouble.get_or_insert(failure.message);
                        break;
                    }
                };
                if let Some(why) = work
                    .unconfined()
                    .filter(|_| !std::mem::replace(&mut is_told, true))
                {
                    say(&format!(
                        "oclcache: recipes of archives are compiled in a process that is not confined: {why}"
                    ));
                }
                // Programs that ended meanwhile have started no other baker: they found this one.
                work.retain_new(&mut tried);
                locked(&report).skipped.append(&mut work.skipped);
            }
            if work.is_empty() {
                work = std::mem::take(&mut unused);
            }
            if !work.is_empty() {
                if lock.is_none() {
                    lock = match store.locks().try_lock(Purpose::Bake) {
                        LockAttempt::Taken => break,
                        attempt => Some(attempt),
                    };
                }
                unused.append(run(work));
            } else {
                let mut audits = Work::default();
                if !std::mem::replace(&mut is_audited, true) {
                    audits = collect_audits(&store, &config, &self.filter, &audited);
                    for (item, why) in audits.skipped.drain(..) {
                        locked(&report).add(&store, item, ReplayResult::Skipped(why));
                    }
                }
                if !audits.is_empty() {
                    run(audits);
                } else if lock.take().is_none() {
                    // Nothing was left when the lock was free: the baker of a program that has left something since then gets it.
                    break;
                }
            }
            if interrupt.came() {
                if let Err(failure) = finish(&self, &locked(&report)) {
                    say(&format!("oclcache: {}", failure.message));
                }
                return Err(interrupt
                    .failure("interrupted; what was baked is stored, the rest is still pending"));
            }
        }
        if let Ok(Some(statistics)) = store.statistics() {
            statistics.keep();
        }
        finish(&self, &locked(&report))
    }

    /// Becomes the only baker of the cache, when another one has ended. One in the background leaves the recipes to that one.
    fn lock(&self, store: &Store, interrupt: &Interrupt) -> Result<LockAttempt, Failure> {
        let mut is_told = false;
        loop {
            let attempt = store.locks().try_lock(Purpose::Bake);
            let waits = !(self.no_wait || self.handed.detached);
            if !waits || !matches!(attempt, LockAttempt::Taken) {
                return Ok(attempt);
            }
            if !std::mem::replace(&mut is_told, true) {
                say("oclcache: waiting until another process has baked");
            }
            interrupt.go_on()?;
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|error| error.into_inner())
}

fn jobs(arguments: &BakeArgs) -> usize {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let half = (processors / 2).max(1);
    arguments.jobs.map_or(half, usize::from)
}

/// The results.
#[derive(Default)]
struct Report {
    baked: Vec<BakeItem>,
    /// The baked ones whose kernels never ran.
    unused: Vec<Key>,
    known: Vec<BakeItem>,
    /// Entries of `--stale` that are of the installed driver already.
    current: Vec<BakeItem>,
    skipped: Vec<(BakeItem, String)>,
    failed: Vec<(BakeItem, String)>,
    audited: Audited,
    /// A failure that no recipe or driver caused.
    trouble: Option<String>,
    /// Another process is baking, so nothing was tried.
    is_busy: bool,
}

/// The results of audits.
#[derive(Default)]
struct Audited {
    agreed: Vec<BakeItem>,
    differed: Vec<(BakeItem, String)>,
    unstable: Vec<BakeItem>,
    skipped: Vec<(BakeItem, String)>,
}

impl Audited {
    fn add(&mut self, item: BakeItem, verdict: ReplayResult) {
        match verdict {
            ReplayResult::Differed(what) => self.differed.push((item, what)),
            ReplayResult::Unstable => self.unstable.push(item),
            ReplayResult::Skipped(why) | ReplayResult::Failed(why) => {
                self.skipped.push((item, why))
            }
            _ => self.agreed.push(item),
        }
    }

    fn is_empty(&self) -> bool {
        self.agreed.is_empty()
            && self.differed.is_empty()
            && self.unstable.is_empty()
            && self.skipped.is_empty()
    }

    fn words(&self) -> String {
        let (agreed, unstable) = (self.agreed.len(), self.unstable.len());
        format!(
            "audits: {agreed} agreed, {}, {unstable} not reproducible, {}",
            with_reasons("differed", &self.differed),
            with_reasons("not possible", &self.skipped)
        )
    }
}

impl Report {
    fn add(&mut self, store: &Store, item: BakeItem, verdict: ReplayResult) {
        if item.task == BakeTask::Audit {
            audit::count(store, &item, &verdict);
            return self.audited.add(item, verdict);
        }
        match verdict {
            ReplayResult::Baked => {
                if item.task == BakeTask::BakeUnused {
                    self.unused.push(item.key);
                }
                self.baked.push(item);
            }
            ReplayResult::Known => self.known.push(item),
            ReplayResult::Current => self.current.push(item),
            ReplayResult::PutOff
            | ReplayResult::Compiled(_)
            | ReplayResult::Agreed
            | ReplayResult::Differed(_)
            | ReplayResult::Unstable => {}
            ReplayResult::Skipped(why) => self.skipped.push((item, why)),
            ReplayResult::Failed(why) => self.failed.push((item, why)),
        }
    }

    fn line(&self) -> String {
        if self.is_busy {
            return "another process is baking".to_owned();
        }
        let mut words = format!("{} baked", self.baked.len());
        if !self.unused.is_empty() {
            words += &format!(" ({} never ran)", self.unused.len());
        }
        if !self.known.is_empty() {
            words += &format!(", {} already stored", self.known.len());
        }
        if !self.current.is_empty() {
            words += &format!(", {} current", self.current.len());
        }
        words += &format!(", {}", with_reasons("skipped", &self.skipped));
        words += &format!(", {}", with_reasons("failed", &self.failed));
        if !self.audited.is_empty() {
            words += &format!("; {}", self.audited.words());
        }
        words
    }
}

/// The number of items, with their reasons.
fn with_reasons(what: &str, items: &[(BakeItem, String)]) -> String {
    let mut reasons = BTreeMap::new();
    for (_, why) in items {
        *reasons.entry(why).or_insert(0) += 1;
    }
    let named = reasons
        .iter()
        .map(|(why, count)| format!("{count}: {}", text(why.as_bytes())));
    let named: Vec<String> = named.collect();
    match named.is_empty() {
        true => format!("0 {what}"),
        false => format!("{} {what} ({})", items.len(), named.join("; ")),
    }
}

fn finish(arguments: &BakeArgs, report: &Report) -> Result<ExitCode, Failure> {
    if arguments.json {
        let keys = |items: &[BakeItem]| -> Vec<String> {
            items.iter().map(|item| item.key.hex()).collect()
        };
        let reasons = |items: &[(BakeItem, String)]| -> Vec<serde_json::Value> {
            let item =
                |(item, why): &(BakeItem, String)| json!({ "key": item.key.hex(), "why": why });
            items.iter().map(item).collect()
        };
        print_json(&json!({
            "busy": report.is_busy,
            "baked": keys(&report.baked),
            "never_ran": report.unused.iter().map(Key::hex).collect::<Vec<_>>(),
            "known": keys(&report.known),
            "current": keys(&report.current),
            "skipped": reasons(&report.skipped),
            "failed": reasons(&report.failed),
            "audits": {
                "agreed": keys(&report.audited.agreed),
                "differed": reasons(&report.audited.differed),
                "unstable": keys(&report.audited.unstable),
                "skipped": reasons(&report.audited.skipped),
            },
        }))?;
    } else {
        let listed = [
            ("skipped", &report.skipped),
            ("failed", &report.failed),
            ("not audited", &report.audited.skipped),
            ("differs", &report.audited.differed),
        ];
        let listed = listed.into_iter().filter(|_| arguments.verbose);
        for (what, items) in listed {
            for (item, why) in items {
                let why = text(why.as_bytes());
                say(&format!("{what} {}: {why}", named(item)));
            }
        }
        say(&format!("oclcache: {}", report.line()));
    }
    match &report.trouble {
        None if report.audited.differed.is_empty() => Ok(ExitCode::SUCCESS),
        None => Err(audit::failure(report.audited.differed.len())),
        Some(why) => Err(Failure::new(format_args!(
            "not all recipes were tried: {why}"
        ))),
    }
}

/// An item as a row of a list.
fn named(item: &BakeItem) -> String {
    let key = &item.key.hex()[..SHOWN_DIGITS];
    let program = text(item.program.as_bytes());
    format!("{key}  {program}  {}", kernels(&item.kernels))
}
