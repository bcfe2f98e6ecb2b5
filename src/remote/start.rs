//! Starts the helper when nobody answers.
//!
//! It is the program beside this library, if nobody else can write it, and gets the environment of this process without what is
//! meant for the application alone: so it reads the same settings. Unlike the baker it is also started in batch jobs, by what a container
//! runs and below supervisors that adopt processes: where somebody would wait for its end, it ends with the programs that it serves.

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use super::protocol::{PROTOCOL, VERSION};
use crate::companion::{self, REMOTE_HELPER};
use crate::first_process::{NO_INIT, waits_for_orphans};
use crate::spawn_detached::{Program, Start};
use crate::store::stats::RUN_VARIABLE;
use crate::{proc_file, syscall_filters};

/// What the helper is called with.
pub const SERVE: &str = "serve";

/// A process starts the helper at most once in this time, in seconds: one that fails at once must not be started for each build.
const INTERVAL: u64 = 5;

/// When this process has tried to start the helper last, in seconds since 1970.
static TRIED: AtomicU64 = AtomicU64::new(0);
/// The same for the last time that succeeded.
static STARTED: AtomicU64 = AtomicU64::new(0);
/// Whether it was logged that it cannot be started: once is enough.
static IS_TOLD: AtomicBool = AtomicBool::new(false);

/// The helper, if it may be started.
///
/// # Errors
/// Why there is none, as a message.
fn helper() -> Result<Program, String> {
    // For the command the system gives no path that begins with a slash.
    let own = companion::own_library().filter(|path| path.is_absolute());
    let own = own.map(Path::to_owned);
    let own = own.or_else(|| proc_file::running_program().ok());
    let own = own.ok_or("the library's path is not known")?;
    companion::trusted(&own, REMOTE_HELPER)
}

/// Starts the helper, unless this process did so a moment ago. Returns whether it was started.
pub fn start() -> bool {
    let now = now();
    let last = TRIED.load(Ordering::Relaxed);
    if now.abs_diff(last) < INTERVAL
        || TRIED
            .compare_exchange(last, now, Ordering::Relaxed, Ordering::Relaxed)
            .is_err()
    {
        return false;
    }
    let began = Instant::now();
    let started = make_ready().and_then(|start| start.now().map_err(|why| why.to_string()));
    if let Err(why) = started {
        if !IS_TOLD.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                why,
                "the remote store is not used: no helper can be started"
            );
        }
        return false;
    }
    STARTED.store(now, Ordering::Relaxed);
    let us = began.elapsed().as_micros();
    tracing::debug!(us, "`oclcache-remote` is started");
    true
}

/// Whether a helper that this process has started may not listen yet.
pub fn is_starting() -> bool {
    now().abs_diff(STARTED.load(Ordering::Relaxed)) < INTERVAL
}

fn now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.map_or(0, |since| since.as_secs())
}

fn make_ready() -> Result<Start, String> {
    let helper = helper()?;
    if let Some(why) = syscall_filters::refusal() {
        return Err(why.into());
    }
    if !waits_for_orphans() {
        return Err(NO_INIT.into());
    }
    let arguments = vec![
        helper.path.clone().into(),
        SERVE.into(),
        PROTOCOL.into(),
        VERSION.to_string().into(),
    ];
    let environment = std::env::vars_os()
        .filter(|(name, _)| !companion::is_for_application(name) && name != RUN_VARIABLE);
    Start::new(helper, arguments, environment).ok_or("a variable has a NUL".into())
}
