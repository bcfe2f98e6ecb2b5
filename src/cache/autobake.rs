//! Who bakes what misses have left, and audits some hits: `oclcache bake`, started when this process ends.
//!
//! What it takes is made ready when the first recipe is written or the first hit is chosen for an audit, while anything may be looked at and allocated. At the end of the
//! process, in the destructor of the library (`front::exit`), it is only started. A process that ends by a signal, by `_exit`
//! or by executing another program runs no destructor: then the recipes wait for the next that misses, or for a person.
//! `oclcache run` starts it itself, once for all processes of the run.

use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::hash::{BuildHasher, RandomState};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use once_cell::race::OnceBox;
use rustix::fs::{FileType, OFlags, fstat};
use rustix::process::{geteuid, getpid, getppid};

use super::RUN_VARIABLE;
use crate::config::{self, Config, Name};
use crate::driver::{Driver, path_of};
use crate::fork_generation::generation;
use crate::key::ingredients::Key;
use crate::spawn_detached::Start;
use crate::{log, trust};

/// Where the command stands, if the package was built for a place of its own.
const BUILT_COMMAND: Option<&str> = option_env!("OCLCACHE_DEFAULT_COMMAND");
const COMMAND: &str = "oclcache";

/// What each job of a batch system finds in its environment: sbatch(1) and srun(1) of Slurm, qsub(1B) of PBS and Torque, bsub(1)
/// of LSF. When the job's own processes have ended, they kill what is left of it, or count its time.
const JOBS: [&str; 3] = ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"];

/// Set to `true` by GitHub's, GitLab's and most other services that run builds, whose machines are gone afterwards.
const CI: &str = "CI";

/// Variables that do not reach who bakes: ours, those of the ICD loaders, and what would load into it what was meant for the
/// application. Drivers have others that begin with `OPENCL_` (Intel's CPU runtime: OPENCL_PROGRAM_COMPILE_OPTIONS).
const REMOVED: [&str; 5] = [
    "OCLCACHE_*",
    "OCL_ICD_*",
    "OPENCL_LAYER*",
    "LD_PRELOAD",
    "LD_AUDIT",
];

/// The option of `oclcache bake` for who is started here: nobody waits for it, or reads what it says.
pub const DETACHED: &str = "--detached";
/// Its option for a hit that is to be audited; the key stands behind it.
pub const AUDIT: &str = "--audit=";
/// Its options for settings.
pub const HANDED: [(&str, Name); 5] = [
    ("--dir", Name::Dir),
    ("--vendors", Name::Vendors),
    ("--max-size", Name::MaxSize),
    ("--min-free", Name::MinFree),
    ("--max-age", Name::MaxAge),
];

/// What the process was when this library began to work in it.
#[derive(Clone, Copy)]
struct Birth {
    generation: u64,
    /// Whether it is the first of its system or container, or was started by that one, and whose end may be that of the whole.
    is_of_init: bool,
}

static BIRTH: OnceBox<Birth> = OnceBox::new();
static READY: OnceBox<Option<Ready>> = OnceBox::new();

/// What will be started, and by which process.
struct Ready {
    start: Start,
    generation: u64,
}

/// The library begins to work.
pub fn born() {
    BIRTH.get_or_init(|| {
        Box::new(Birth {
            generation: generation(),
            is_of_init: is_of_init(),
        })
    });
}

/// A recipe was written that somebody has to bake.
pub fn recipe_written(config: &Config) {
    if env::var_os(RUN_VARIABLE).is_some() {
        return tracing::debug!("`oclcache run` has it baked");
    }
    ready(config);
}

/// A hit was served from the user's own entries: one in so many is to be audited. The choice is made in memory, at random, and by
/// each process anew, so that no program and no key is left out.
pub fn hit_served(config: &Config, key: &Key) {
    let is_chosen = |count| RandomState::new().hash_one(()).is_multiple_of(count);
    if config.audit().is_some_and(is_chosen)
        && let Some(ready) = ready(config)
        && let Ok(argument) = CString::new(format!("{AUDIT}{}", key.hex()))
    {
        ready.start.add(argument);
    }
}

/// What will be started at the end of this process, made ready by the first call; None: nothing is.
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

/// What is to be started at the end of this process. Allocates nothing and takes no lock.
pub fn at_end() -> Option<&'static Start> {
    let ready = READY.get()?.as_ref()?;
    (ready.generation == generation()).then_some(&ready.start)
}

fn make_ready(config: &Config) -> Result<Ready, String> {
    let birth = BIRTH.get().ok_or("nobody has loaded the library")?;
    if birth.generation != generation() {
        return Err("this is a forked child".into());
    }
    if let Some(why) = refusal(config, birth.is_of_init) {
        return Err(why);
    }
    let library = path_of(born as fn() as usize).ok_or("the library's path is not known")?;
    let command = command(&library)?;
    Ok(Ready {
        start: bake(&command, config, &config::list(&Driver::libraries()))?,
        generation: birth.generation,
    })
}

/// Starts who bakes what the child of `oclcache run` has left, on these drivers.
///
/// # Errors
/// Why not, for people.
pub fn after_run(command: &Path, config: &Config, vendors: &OsStr) -> Result<(), String> {
    match refusal(config, is_of_init()) {
        Some(why) => Err(why),
        None => bake(command, config, vendors).map(|start| start.now()),
    }
}

/// Whether this process is the first of its system or container, or was started by that one.
pub fn is_of_init() -> bool {
    getpid().is_init() || getppid().is_some_and(|parent| parent.is_init())
}

/// Why no process is left behind here.
pub fn refusal(config: &Config, is_of_init: bool) -> Option<String> {
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
    if is_of_init {
        return Some("it would be killed with the container or the service".into());
    }
    is_confined().then(|| "system calls are filtered".into())
}

/// Whether the process has filters of system calls that its parent has not. It has put them up itself, as browsers do, and one
/// that kills who starts a program would kill it at its end.
fn is_confined() -> bool {
    let filters = |process: &str| {
        let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
        let lines = status.lines().filter(|line| line.starts_with("Seccomp"));
        Some(lines.map(str::to_owned).collect::<Vec<_>>())
    };
    let Some(own) = filters("self") else {
        return true;
    };
    if own.iter().any(|line| line == "Seccomp:\t0") {
        return false;
    }
    let parent = getppid().map(|parent| parent.as_raw_nonzero().to_string());
    // Only since Linux 5.9 their number is told, too.
    own.len() < 2 || parent.and_then(|parent| filters(&parent)) != Some(own)
}

/// The command that belongs to a library, whoever may have put it there: beside it, in `../bin`, or where the build put it.
pub fn beside(library: &Path) -> Option<PathBuf> {
    let mut places = Vec::new();
    // What the loader was told may be relative, to a directory of that moment.
    if let Some(real) = library
        .is_absolute()
        .then(|| library.canonicalize().ok())
        .flatten()
        && let Some(directory) = real.parent()
    {
        places.push(directory.join(COMMAND));
        places.push(directory.join("../bin").join(COMMAND));
    }
    let built = BUILT_COMMAND.map(PathBuf::from);
    places.extend(built.filter(|built| built.is_absolute()));
    places.iter().find_map(|place| place.canonicalize().ok())
}

/// The command that belongs to a library, if nobody untrusted can write it.
///
/// # Errors
/// Why there is none, for people.
pub fn command(library: &Path) -> Result<PathBuf, String> {
    let command = beside(library).ok_or("there is no command beside the library")?;
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let owners = [0, geteuid().as_raw()];
    let shown = log::path(&command).to_string();
    match trust::open(&command, flags, &owners)? {
        Some(file) => {
            let is_program = fstat(&file).is_ok_and(|stat| {
                FileType::from_raw_mode(stat.st_mode).is_file() && stat.st_mode & 0o111 != 0
            });
            let is_program = is_program.then_some(());
            is_program.ok_or(format!("`{shown}` is no program"))?;
        }
        None => return Err(format!("`{shown}` is gone")),
    }
    Ok(command)
}

/// `oclcache bake` for this cache, detached. Nothing of our settings reaches it but by its arguments: they are those of the
/// application, and some would turn it off.
fn bake(command: &Path, config: &Config, vendors: &OsStr) -> Result<Start, String> {
    let own = [command.into(), "bake".into(), DETACHED.into()];
    let arguments = own.into_iter().chain(handed(config, vendors)?).collect();
    let environment = env::vars_os().filter(|(name, _)| !is_removed(name));
    let start = Start::new(command.into(), arguments, environment);
    start.ok_or("a setting or variable has a NUL".into())
}

/// The arguments of `oclcache bake` that stand for the settings of this process, and for the drivers that it knows beside the
/// registered ones.
///
/// # Errors
/// There is no cache.
pub fn handed(config: &Config, vendors: &OsStr) -> Result<Vec<OsString>, String> {
    let mut arguments = Vec::new();
    for (option, name) in HANDED {
        let value = match name {
            Name::Dir => config.directory()?.into(),
            Name::Vendors => vendors.to_owned(),
            name => config.value(name).0.clone(),
        };
        arguments.extend([option.into(), value]);
    }
    Ok(arguments)
}

/// Whether a variable does not reach who bakes.
pub fn is_removed(name: &OsStr) -> bool {
    let name = name.as_bytes();
    REMOVED
        .iter()
        .any(|removed| match removed.strip_suffix('*') {
            Some(prefix) => name.starts_with(prefix.as_bytes()),
            None => name == removed.as_bytes(),
        })
}
