//! Starts `oclcache bake` when this process ends, to bake the recipes of misses, to gather the names in a driver's libraries, and to audit
//! some hits.
//!
//! The command and its arguments are prepared when there is the first of these to do, since at the end of the process nothing may be
//! allocated. The destructor of the library (`front::exit`) only starts it. A process that ends by a signal, by `_exit` or by executing
//! another program runs no destructor; then the recipes wait for the next process that misses, or for the user. `oclcache run` starts the
//! baker once for all processes of the run.

use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use once_cell::race::OnceBox;

use super::RUN_VARIABLE;
use crate::companion;
use crate::config::{self, Config, Name, ValueSource};
use crate::driver::Driver;
use crate::first_process::{NO_INIT, is_about_to_end_with_ours, waits_for_orphans};
use crate::fork_generation::generation;
use crate::key::ingredients::Key;
use crate::spawn_detached::{Program, Start};
use crate::syscall_filters;

/// Variables that batch systems set in their jobs: sbatch(1) and srun(1) of Slurm, qsub(1B) of PBS and Torque, bsub(1) of LSF. When
/// the job's own processes have ended, the batch system kills the remaining ones, or charges for their time.
const JOBS: [&str; 3] = ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"];

/// GitHub, GitLab and most other build services set it to `true`. Their machines are discarded after the job.
const CI: &str = "CI";

/// Our own variables are not passed to the baker, beside those that are meant for the application: it gets settings as arguments.
const OWN_VARIABLES: &str = "OCLCACHE_";
/// Except those of the remote level, to which the baker sends what it stores.
const PASSED_ON: &str = "OCLCACHE_REMOTE";
/// The secret that signs what is sent. Only the helper reads it.
pub const REMOTE_KEY: &str = "OCLCACHE_REMOTE_KEY";

/// The option of `oclcache bake` for a baker in the background: nothing waits for it or reads its output.
pub const DETACHED: &str = "--detached";
/// The option for a baker that was asked for wherever it runs, also where a supervisor would wait for it.
pub const ANYWHERE: &str = "--anywhere";
/// The option of `oclcache bake` for a hit that is to be audited; its value is the key.
pub const AUDIT: &str = "--audit=";
/// The options of `oclcache bake` for settings. Two are handed over only where a variable of the program set them: it stands above the
/// files, which the baker reads itself, with all their rules and as they are by then.
pub const HANDED: [(&str, Name); 7] = [
    ("--dir", Name::Dir),
    ("--disable", Name::Disable),
    ("--readonly", Name::ReadOnly),
    ("--vendors", Name::Vendors),
    ("--max-size", Name::MaxSize),
    ("--min-free", Name::MinFree),
    ("--max-age", Name::MaxAge),
];

/// The process as it was when the library was loaded.
#[derive(Clone, Copy)]
struct Birth {
    generation: u64,
    /// Whether all processes may end with it.
    ends_all: bool,
}

static BIRTH: OnceBox<Birth> = OnceBox::new();
static READY: OnceBox<Option<Ready>> = OnceBox::new();

/// The prepared command, and the process that prepared it.
struct Ready {
    start: Start,
    generation: u64,
}

/// Records the state of the process when the library is loaded.
pub fn born() {
    companion::own_library();
    BIRTH.get_or_init(|| {
        Box::new(Birth {
            generation: generation(),
            ends_all: is_about_to_end_with_ours(),
        })
    });
}

/// Has a baker started when this process ends: there is a recipe to be baked, or there are names to be gathered.
pub fn request(config: &Config) {
    if env::var_os(RUN_VARIABLE).is_some() {
        return tracing::debug!("`oclcache run` has it done");
    }
    ready(config);
}

/// Notes a hit from the user's own entries, and may choose it for an audit. Each process chooses at random and in memory, so that
/// no program and no key is left out.
pub fn hit_served(config: &Config, key: &Key) {
    let is_chosen = |count| RandomState::new().hash_one(()).is_multiple_of(count);
    if config.audit().is_some_and(is_chosen)
        && let Some(ready) = ready(config)
        && let Ok(argument) = CString::new(format!("{AUDIT}{}", key.hex()))
    {
        ready.start.add(argument);
    }
}

/// The command that the end of this process will start, prepared by the first call. None: nothing will be started.
fn ready(config: &Config) -> Option<&'static Ready> {
    let made = READY.get_or_init(|| match make_ready(config) {
        Ok(ready) => Box::new(Some(ready)),
        Err(why) => {
            tracing::debug!(why, "no `oclcache bake` behind this process");
            Box::new(None)
        }
    });
    made.as_ref()
}

/// The command to start at the end of this process. Allocates nothing and takes no lock.
pub fn at_end() -> Option<&'static Start> {
    let ready = READY.get()?.as_ref()?;
    (ready.generation == generation()).then_some(&ready.start)
}

fn make_ready(config: &Config) -> Result<Ready, String> {
    let birth = BIRTH.get().ok_or("nobody has loaded the library")?;
    if birth.generation != generation() {
        return Err("this is a forked child".into());
    }
    if let Some(why) = refusal(config, birth.ends_all) {
        return Err(why);
    }
    let library = companion::own_library().ok_or("the library's path is not known")?;
    let command = companion::trusted(library, companion::COMMAND)?;
    Ok(Ready {
        start: bake(command, config, &config::list(&Driver::libraries()))?,
        generation: birth.generation,
    })
}

/// Starts the baker for the recipes that the children of `oclcache run` have left, on these drivers.
///
/// # Errors
/// Why nothing was started, as a message.
pub fn after_run(command: &Path, config: &Config, vendors: &OsStr) -> Result<(), String> {
    match refusal(config, is_about_to_end_with_ours()) {
        Some(why) => Err(why),
        None => {
            let start = bake(Program::at(command)?, config, vendors)?;
            start.now().map_err(|why| why.to_string())
        }
    }
}

/// Why this process starts no process that outlives it. `ends_all`: whether all processes may end with it.
pub fn refusal(config: &Config, ends_all: bool) -> Option<String> {
    match config.autobake() {
        Some(true) => return None,
        Some(false) => return Some("`autobake` is off".into()),
        None => {}
    }
    if env::var_os(CI).is_some_and(|value| config::truth(value.as_bytes())) {
        return Some(format!("{CI} is set"));
    }
    let is_set = |name: &&&str| env::var_os(name).is_some();
    if let Some(name) = JOBS.iter().find(is_set) {
        return Some(format!("{name} is set: this is a batch job"));
    }
    if ends_all {
        return Some("it would be killed with the container or the service".into());
    }
    if let Some(why) = syscall_filters::refusal() {
        return Some(why.into());
    }
    (!waits_for_orphans()).then(|| NO_INIT.into())
}

/// Prepares `oclcache bake` for this cache. It gets our settings as arguments only: the variables are meant for the application,
/// and some would turn the cache off.
fn bake(command: Program, config: &Config, vendors: &OsStr) -> Result<Start, String> {
    let own = [command.path.clone().into(), "bake".into(), DETACHED.into()];
    let is_asked_for = config.autobake() == Some(true);
    let own = own.into_iter().chain(is_asked_for.then(|| ANYWHERE.into()));
    let arguments = own.chain(handed(config, vendors)?).collect();
    let environment = env::vars_os().filter(|(name, _)| !is_removed(name));
    let start = Start::new(command, arguments, environment);
    start.ok_or("a setting or variable has a NUL".into())
}

/// The arguments of `oclcache bake` that pass on the settings of this process, and the drivers that it knows beside the registered
/// ones.
///
/// # Errors
/// There is no cache.
pub fn handed(config: &Config, vendors: &OsStr) -> Result<Vec<OsString>, String> {
    let mut arguments = Vec::new();
    for (option, name) in HANDED {
        let is_of_files = config.value(name).1 != ValueSource::Environment;
        let value = match name {
            Name::Disable | Name::ReadOnly if is_of_files => continue,
            Name::Dir => config.directory()?.into(),
            Name::Vendors => vendors.to_owned(),
            name => config.value(name).0.clone(),
        };
        arguments.extend([option.into(), value]);
    }
    Ok(arguments)
}

/// Whether a variable is not passed to the baker.
pub fn is_removed(name: &OsStr) -> bool {
    let bytes = name.as_bytes();
    let is_own = bytes.starts_with(OWN_VARIABLES.as_bytes());
    let is_passed_on = bytes.starts_with(PASSED_ON.as_bytes()) && name != REMOTE_KEY;
    is_own && !is_passed_on || companion::is_for_application(name)
}
