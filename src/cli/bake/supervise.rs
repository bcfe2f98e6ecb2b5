//! Starts worker processes, up to a number at once. Each compiles recipes that need the same settings, one at a time.
//!
//! A driver that crashes or hangs costs one recipe and the worker. Each attempt is recorded before it begins, so that a recipe that
//! ends the baker itself is not tried for ever.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::super::worker::private_directory::PrivateDirectory;
use super::super::worker::process::{NoAnswer, Worker};
use super::super::worker::{CLOSED, READY, confinement};
use super::collect::{BakeItem, OwnCache, Work, WorkerSettings};
use super::replayer::{BakeTask, ReplayResult};
use super::sharing::{BakeSharing, Shared};
use crate::cache::RUN_VARIABLE;
use crate::config::{Config, Name, SETTINGS};
use crate::driver::profile;
use crate::store::Store;
use crate::store::bake_attempts::{BakeAttempts, OTHER_LIBRARY, UNUSED};

/// How long a worker may take for a recipe: a multiple of the time that the application took, within limits. On a busy machine a
/// worker gets little processor time.
const TIMES: u32 = 30;
const MIN_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_TIMEOUT: Duration = Duration::from_secs(3600);
/// The same for a recipe whose kernels never ran. To ask PoCL for a binary takes three times as long as the build (measured), unless
/// a kernel is very large: some take minutes.
const TIMES_UNUSED: u32 = 3;
const MIN_TIMEOUT_UNUSED: Duration = Duration::from_secs(10);
const MAX_TIMEOUT_UNUSED: Duration = Duration::from_secs(60);
/// Moves the caches of other drivers (Mesa, Intel's for GPUs).
const CACHES: &str = "XDG_CACHE_HOME";

/// Starts and supervises workers.
pub struct Supervisor<'a> {
    /// The cache.
    pub store: &'a Store,
    /// The settings.
    pub config: &'a Config,
    /// The user's time limit for a recipe.
    pub timeout: Option<Duration>,
    /// Whether entries of an older driver are recompiled.
    pub is_stale: bool,
    /// Whether recipes whose kernels never ran get little time.
    pub bounds_unused: bool,
    /// Set when the user has interrupted the work.
    pub stop: &'a AtomicBool,
    /// What other machines have baked, and are told.
    pub sharing: BakeSharing<'a>,
}

/// What the workers report.
pub enum WorkerEvent<'e> {
    /// A recipe is being compiled.
    Begun(&'e BakeItem),
    /// The kernels of a recipe never ran, so the others come first.
    PutOff(&'e BakeItem),
    /// The result of a recipe.
    Ended(BakeItem, ReplayResult),
    /// A failure that no recipe or driver caused.
    Trouble(String),
}

impl Supervisor<'_> {
    /// Compiles everything, with at most `jobs` workers at once. Returns the recipes whose kernels never ran, which are left.
    pub fn run(&self, work: Work, jobs: usize, tell: &(dyn Fn(WorkerEvent) + Sync)) -> Work {
        let mut queues: Vec<(WorkerSettings, Vec<BakeItem>)> = work.places.into_iter().collect();
        for (_, items) in &mut queues {
            items.reverse(); // taken from the end
        }
        let jobs = jobs.min(queues.iter().map(|(_, items)| items.len()).sum());
        let queues = Mutex::new(queues);
        let put_off = Mutex::default();
        std::thread::scope(|scope| {
            for _ in 0..jobs {
                scope.spawn(|| self.work(&queues, &put_off, tell));
            }
        });
        put_off
            .into_inner()
            .unwrap_or_else(|error| error.into_inner())
    }

    /// Compiles what is left, one group of recipes after the other. A worker keeps to its group, since starting one takes as long as
    /// opening the driver.
    fn work(
        &self,
        queues: &Mutex<Vec<(WorkerSettings, Vec<BakeItem>)>>,
        put_off: &Mutex<Work>,
        tell: &(dyn Fn(WorkerEvent) + Sync),
    ) {
        let lock = || queues.lock().unwrap_or_else(|error| error.into_inner());
        loop {
            let next_group = {
                let queues = lock();
                let queues = queues.iter().enumerate();
                let first = |(index, (place, items)): (usize, &(WorkerSettings, Vec<BakeItem>))| {
                    Some((items.last()?.rank, index, place.clone()))
                };
                queues.filter_map(first).min_by_key(|(rank, ..)| *rank)
            };
            let Some((_, index, place)) = next_group else {
                return;
            };
            let next = || match self.is_stopped() {
                false => lock()[index].1.pop(),
                true => None,
            };
            if self.is_stopped() {
                return;
            }
            let mut worker = None;
            while let Some(item) = next() {
                tell(WorkerEvent::Begun(&item));
                let running = match worker.take().map_or_else(|| self.start(&place), Ok) {
                    Ok(running) => running,
                    Err(_) if self.is_stopped() => return,
                    // The others of this group need the same driver.
                    Err(NotStarted::Driver(why)) => {
                        let items = [item].into_iter().chain(std::iter::from_fn(next));
                        let why =
                            ReplayResult::Skipped(format!("its driver cannot be used: {why}"));
                        items.for_each(|item| tell(WorkerEvent::Ended(item, why.clone())));
                        break;
                    }
                    Err(NotStarted::Trouble(why)) => {
                        tell(WorkerEvent::Trouble(why));
                        lock()[index].1.clear();
                        break;
                    }
                };
                let (verdict, still_running) = match item.task {
                    BakeTask::Audit => self.audit(running, &item, &place),
                    BakeTask::Bake | BakeTask::BakeUnused | BakeTask::Again => {
                        self.bake(running, &item, tell)
                    }
                };
                worker = still_running;
                match verdict {
                    Some(ReplayResult::PutOff) => {
                        tell(WorkerEvent::PutOff(&item));
                        let mut put_off = put_off.lock().unwrap_or_else(|error| error.into_inner());
                        put_off.add_unused(&place, item);
                    }
                    Some(verdict) => tell(WorkerEvent::Ended(item, verdict)),
                    None => {}
                }
            }
            if let Some(worker) = worker {
                worker.end();
            }
        }
    }

    fn is_stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// How long a recipe may take.
    pub(super) fn limit(&self, item: &BakeItem) -> Duration {
        self.timeout.unwrap_or_else(|| {
            let took = Duration::from_nanos(item.compile_ns);
            match self.is_bounded(item) {
                true => took
                    .saturating_mul(TIMES_UNUSED)
                    .clamp(MIN_TIMEOUT_UNUSED, MAX_TIMEOUT_UNUSED),
                false => took.saturating_mul(TIMES).clamp(MIN_TIMEOUT, MAX_TIMEOUT),
            }
        })
    }

    /// Whether a recipe gets little time, since its kernels never ran. If that is too little, nothing is held against it.
    fn is_bounded(&self, item: &BakeItem) -> bool {
        item.task == BakeTask::BakeUnused && self.bounds_unused
    }

    /// Bakes a recipe. Returns the result, unless the user interrupted it, and the worker, unless it has ended.
    fn bake(
        &self,
        mut worker: Worker,
        item: &BakeItem,
        tell: &(dyn Fn(WorkerEvent) + Sync),
    ) -> (Option<ReplayResult>, Option<Worker>) {
        let lease = match self.sharing.ask(item, self.is_stale, self.stop) {
            Shared::Stored => return (Some(ReplayResult::Known), Some(worker)),
            Shared::Bake(lease) => lease,
        };
        let limit = self.limit(item);
        let before = self.store.attempts(&item.key);
        if let Err(error) = self.store.begin_attempt(&item.key) {
            tell(WorkerEvent::Trouble(error.to_string()));
            let why = "attempts cannot be recorded".to_owned();
            return (Some(ReplayResult::Skipped(why)), Some(worker));
        }
        let task = match self.is_stale {
            true => BakeTask::Bake,
            false => item.task,
        };
        let answer = worker.ask(&task.line(&item.key), limit, self.stop);
        let parsed = answer.map(|line| ReplayResult::parse(&line));
        let (verdict, worker) = match parsed {
            Ok(Some(verdict)) => (verdict, Some(worker)),
            Err(silence @ NoAnswer::TooLong) if self.is_bounded(item) => {
                let why = format!("{UNUSED}, and {}", silence.words(limit));
                return (Some(self.leave_unused(item, &why, tell)), None);
            }
            Ok(None) => {
                worker.kill();
                (
                    ReplayResult::Failed("the worker's answer is invalid".to_owned()),
                    None,
                )
            }
            Err(NoAnswer::Stopped) => {
                let _ = self.store.take_back_attempt(&item.key, before.as_ref());
                return (None, None);
            }
            Err(silence) => (ReplayResult::Failed(silence.words(limit)), None),
        };
        // A build tells whether its kernels have run since. It is cheap: the driver has it in its own cache.
        if verdict == ReplayResult::PutOff
            && self.bounds_unused
            && let Some(before) = before.as_ref().filter(|before| before.is_unused())
        {
            let verdict = self.leave_unused(item, &before.reason, tell);
            return (Some(verdict), worker);
        }
        self.sharing.ended(item, &verdict, lease);
        let written = match &verdict {
            ReplayResult::Failed(why) => self.store.attempt_failed(&item.key, why),
            ReplayResult::Skipped(why)
                if why.starts_with(OTHER_LIBRARY)
                    && !before.as_ref().is_some_and(BakeAttempts::is_failure) =>
            {
                self.store.attempt_failed(&item.key, why)
            }
            // What is known of the recipe stays.
            ReplayResult::Skipped(_) | ReplayResult::PutOff => {
                self.store.take_back_attempt(&item.key, before.as_ref())
            }
            _ => {
                self.store.forget_attempts(&item.key);
                Ok(())
            }
        };
        if let Err(error) = written {
            tell(WorkerEvent::Trouble(error.to_string()));
        }
        let verdict = match verdict {
            // The recipe was pending: the worker needed it for another one, or another process was faster.
            ReplayResult::Known if !self.is_stale => ReplayResult::Baked,
            verdict => verdict,
        };
        (Some(verdict), worker)
    }

    /// Leaves a recipe pending whose kernels never ran, and which takes too long for that.
    fn leave_unused(
        &self,
        item: &BakeItem,
        why: &str,
        tell: &(dyn Fn(WorkerEvent) + Sync),
    ) -> ReplayResult {
        if let Err(error) = self.store.attempt_failed(&item.key, why) {
            tell(WorkerEvent::Trouble(error.to_string()));
        }
        ReplayResult::Skipped(format!("{why}; `oclcache bake --all` compiles it"))
    }

    pub(super) fn start(&self, place: &WorkerSettings) -> Result<Worker, NotStarted> {
        let trouble =
            |error: io::Error| NotStarted::Trouble(format!("cannot start a worker: {error}"));
        let root = PrivateDirectory::new().map_err(trouble)?;
        let mut command = self.command(place, root.path()).map_err(trouble)?;
        let mut worker = Worker::start(&mut command, root).map_err(trouble)?;
        let limit = self.timeout.unwrap_or(MIN_TIMEOUT).max(MIN_TIMEOUT);
        match worker.answer(limit, self.stop) {
            Ok(line) if line == READY => Ok(worker),
            Ok(line) => {
                worker.end();
                let why = line.strip_prefix(CLOSED).unwrap_or("its answer is invalid");
                Err(NotStarted::Driver(why.to_owned()))
            }
            Err(silence) => Err(NotStarted::Driver(silence.words(limit))),
        }
    }

    fn command(&self, place: &WorkerSettings, root: &Path) -> io::Result<Command> {
        let mut program = std::env::current_exe()?;
        if let Some(name) = &place.executable {
            let directory = root.join("bin");
            std::fs::create_dir(&directory)?;
            let copy = directory.join(name);
            std::fs::copy(&program, &copy)?;
            program = copy;
        }
        let mut command = Command::new(program);
        command
            .arg("bake-worker")
            .arg("--library")
            .arg(&place.library)
            .arg("--root")
            .arg(root);
        command.env_clear().envs(&place.environment);
        command.env_remove(RUN_VARIABLE);
        let own_cache = match &place.own_cache {
            OwnCache::Empty => {
                let empty = root.join("own-cache");
                std::fs::create_dir(&empty)?;
                empty
            }
            OwnCache::Theirs(path) => {
                command.arg("--own-cache").arg(path);
                path.clone()
            }
        };
        for variables in profile::own_caches() {
            command.env(variables.directory, &own_cache);
            command.env_remove(variables.switch);
        }
        if place.is_private {
            let private = root.join("private-caches");
            std::fs::create_dir(&private)?;
            command.env(CACHES, private);
        }
        if self.is_stale {
            command.arg("--stale");
        }
        if place.is_confined {
            command.arg("--confined");
            for directory in confinement::of_driver(&place.library) {
                command.arg("--readable").arg(directory);
            }
            for name in ["HOME", "TMPDIR"] {
                command.env(name, root);
            }
        }
        for (name, value) in self.settings() {
            command.env(name, value);
        }
        // Who has a terminal can type into it.
        let log = self.config.log().is_some() && !place.is_confined;
        command
            .current_dir(root)
            .stderr(if log { Stdio::inherit() } else { Stdio::null() });
        Ok(command)
    }

    /// The worker's settings: those of this command, with all off that would prevent baking.
    fn settings(&self) -> Vec<(&'static str, std::ffi::OsString)> {
        let variable = |name: Name| SETTINGS[name as usize].variable.unwrap_or_default();
        let mut settings = Vec::new();
        for name in [
            Name::Disable,
            Name::ReadOnly,
            Name::Recache,
            Name::Verify,
            Name::MustHit,
            Name::Autobake,
        ] {
            settings.push((variable(name), "0".into()));
        }
        // This process asks other machines, and sends them what the worker stores.
        settings.push((variable(Name::Remote), "off".into()));
        settings.push((variable(Name::Record), "inline".into()));
        for name in [Name::MaxSize, Name::MinFree, Name::MaxAge] {
            settings.push((variable(name), self.config.value(name).0.clone()));
        }
        // Entries of system directories must not replace the user's own.
        settings.push((variable(Name::SystemDirs), "none".into()));
        let directory = self.config.directory().unwrap_or_default();
        settings.push((variable(Name::Dir), directory.into()));
        settings
    }
}

/// Why there is no worker.
pub(super) enum NotStarted {
    /// The driver cannot be opened.
    Driver(String),
    /// A failure that the driver did not cause.
    Trouble(String),
}
