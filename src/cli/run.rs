//! `oclcache run`: one program through the cache, with no set-up.
//!
//! The program gets a vendors directory that holds nothing but us, and what the loader would have read otherwise as
//! OCLCACHE_VENDORS. It is a directory since that is what all loaders take.

pub mod cold;
mod place;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};

use object::elf::{FileHeader64, PT_INTERP, ProgramType};
use object::read::elf::{FileHeader, ProgramHeader};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;

use super::failure::Failure;
use super::output::{plural, say, seconds};
use crate::cache::{RUN_VARIABLE, autobake};
use crate::config::{self, Config, Name};
use crate::log::path;
use crate::store::stats::{Counter, RunCounts};
use place::RunDirectory;
pub(super) use place::{forget_vendors, made_vendors, vendors_directory};

/// Where the library stands, if the package was built for a place of its own.
const BUILT_LIBRARY: Option<&str> = option_env!("OCLCACHE_DEFAULT_LIBRARY");
const LIBRARY: &str = "liboclcache.so";
/// The exit code of a program that ended well and should have compiled nothing, beside 126 and 127 as shells have them.
const MISSED: u8 = 125;
/// The variables by which loaders find drivers.
pub(super) const LOADER_VARIABLES: [&str; 3] =
    ["OCL_ICD_VENDORS", "OCL_ICD_FILENAMES", "OPENCL_VENDOR_PATH"];

pub fn run(quiet: bool, bake: bool, command: &[OsString]) -> Result<ExitCode, Failure> {
    let own = own_path()?;
    let library = library(&own)?;
    let vendors = vendors()?;
    let config = Config::read();
    let place = match RunDirectory::open(&config, &library) {
        Ok(place) => place,
        Err(why) => {
            say(&format!("oclcache: running without the cache: {why}"));
            let mut program = Command::new(&command[0]);
            let status = run_to_end(program.args(&command[1..]), &command[0])?;
            return exit_as(&status, config.must_hit());
        }
    };
    let mut program = Command::new(&command[0]);
    program.args(&command[1..]);
    for variable in LOADER_VARIABLES {
        program.env_remove(variable);
    }
    program
        .env("OCL_ICD_VENDORS", &place.vendors)
        .env(RUN_VARIABLE, place.run.path());
    if let Some(vendors) = &vendors {
        program.env("OCLCACHE_VENDORS", vendors);
    }
    let ended = run_to_end(&mut program, &command[0]);
    let run = place.finish();
    let status = ended?;
    let compiled = !run.as_ref().is_ok_and(|run| run.totals.compiled() == 0);
    match &run {
        Ok(_) if quiet => {}
        Ok(run) => say(&format!("oclcache: {}", summary(run, &config, &command[0]))),
        // The program has ended as it has, whatever becomes of its counters.
        Err(failure) => say(&format!("oclcache: {}", failure.words)),
    }
    let recipes = run.map_or(0, |run| run.totals.get(Counter::Recipes));
    // Inside another run, which counts them as its own.
    let is_outer = std::env::var_os(RUN_VARIABLE).is_none();
    let vendors = vendors.unwrap_or_else(|| config.value(Name::Vendors).0.clone());
    // Who has stopped the program waits for nothing more.
    if recipes > 0 && bake && status.signal().is_none() {
        bake_now(&own, quiet, &config, &vendors);
    } else if recipes > 0
        && is_outer
        && let Err(why) = autobake::after_run(&own, &config, &vendors)
        && !quiet
    {
        say(&format!(
            "oclcache: run `oclcache bake` to store what was compiled; it is not started here: {why}"
        ));
    }
    exit_as(&status, config.must_hit() && compiled)
}

/// Bakes what the program has left. It ended as it has, whatever becomes of that.
fn bake_now(command: &Path, quiet: bool, config: &Config, vendors: &OsStr) {
    let arguments = match autobake::handed(config, vendors) {
        Ok(arguments) => arguments,
        Err(why) => return say(&format!("oclcache: nothing is baked: {why}")),
    };
    let mut bake = Command::new(command);
    bake.arg("bake").args(arguments);
    if quiet {
        bake.stderr(Stdio::null());
    }
    // It writes no data, and the program's input is none of its own.
    bake.stdin(Stdio::null()).stdout(Stdio::null());
    if let Err(failure) = run_to_end(&mut bake, command.as_os_str()) {
        say(&format!("oclcache: {}", failure.words));
    }
}

pub(super) fn own_path() -> Result<PathBuf, Failure> {
    std::env::current_exe()
        .map_err(|error| Failure::new(format_args!("cannot find this command: {error}")))
}

/// The library, beside the command, in `../lib`, or where the build put it.
pub(super) fn library(command: &Path) -> Result<PathBuf, Failure> {
    let beside = command.parent().unwrap_or(Path::new("/"));
    let mut places = vec![beside.join(LIBRARY), beside.join("../lib").join(LIBRARY)];
    places.extend(
        BUILT_LIBRARY
            .filter(|built| !built.is_empty())
            .map(PathBuf::from),
    );
    let found = places.iter().find_map(|place| place.canonicalize().ok());
    found.ok_or_else(|| {
        let places: Vec<_> = places
            .iter()
            .map(|place| format!("`{}`", path(place)))
            .collect();
        Failure::new(format_args!(
            "{LIBRARY} is not at {}; install it beside this command",
            places.join(" nor ")
        ))
    })
}

/// What the loader would have read, for OCLCACHE_VENDORS; None: the default directory, or the user has said already.
pub(super) fn vendors() -> Result<Option<OsString>, Failure> {
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    if let Some(list) = variable("OCLCACHE_VENDORS") {
        for source in config::paths(&list) {
            absolute("OCLCACHE_VENDORS", source.as_os_str())?;
        }
        return Ok(None);
    }
    let mut sources: Vec<PathBuf> = Vec::new();
    // The loader's own list, in which no path can have a colon.
    let files = variable("OCL_ICD_FILENAMES").unwrap_or_default();
    let files = files.as_bytes().split(|byte| *byte == b':');
    for file in files.filter(|file| !file.is_empty()) {
        sources.push(absolute("OCL_ICD_FILENAMES", OsStr::from_bytes(file))?);
    }
    let named = ["OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"]
        .into_iter()
        .find_map(|name| Some((name, variable(name)?)));
    match named {
        Some((name, source)) => sources.push(absolute(name, &source)?),
        None if sources.is_empty() => return Ok(None),
        // Files come in addition to the default directory.
        None => sources.push("/etc/OpenCL/vendors".into()),
    }
    Ok(Some(config::list(&sources)))
}

/// The source with a path that holds in any working directory.
fn absolute(variable: &str, source: &OsStr) -> Result<PathBuf, Failure> {
    if !source.as_bytes().contains(&b'/') && !Path::new(source).exists() {
        return Ok(source.into()); // a library, or a registered .icd file, by its name
    }
    match Path::new(source).canonicalize() {
        Ok(absolute) => Ok(absolute),
        Err(error) => Err(Failure::new(format_args!(
            "{variable} names `{}`, which cannot be used: {error}; correct it or unset {variable}",
            path(Path::new(source))
        ))),
    }
}

fn spawn(command: &mut Command, name: &OsStr) -> Result<Child, Failure> {
    command.spawn().map_err(|error| {
        let name = path(Path::new(name)).to_string();
        // As shells have it: 127 not found, 126 not runnable.
        let (code, step) = match error.kind() {
            std::io::ErrorKind::NotFound if name.starts_with('-') => {
                (127, "the options of `run` stand in `oclcache run --help`")
            }
            std::io::ErrorKind::NotFound => (127, "name a program of PATH, or one by its path"),
            _ => (126, "is it a program, and may you run it?"),
        };
        Failure {
            words: format!("cannot run `{name}`: {error}; {step}"),
            code,
        }
    })
}

/// Runs the program. Signals that are sent to this process go to it; those of the terminal it gets by itself.
fn run_to_end(command: &mut Command, name: &OsStr) -> Result<ExitStatus, Failure> {
    // Before the program runs: a signal that comes at once would end this process and not the program.
    let ignored = ignored_signals();
    let signals = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2]
        .into_iter()
        .filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let signals = SignalsInfo::<WithOrigin>::new(signals)
        .map_err(|error| Failure::new(format_args!("cannot pass signals on: {error}")));
    let mut signals = signals?;
    let handle = signals.handle();
    let mut child = spawn(command, name)?;
    let pid = i32::try_from(child.id())
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    let status = std::thread::scope(|scope| {
        scope.spawn(move || {
            for origin in signals.forever() {
                // Signals of the terminal come from the kernel, and go to the whole process group.
                if let (Some(_), Some(pid), Some(signal)) = (
                    origin.process,
                    pid,
                    rustix::process::Signal::from_named_raw(origin.signal),
                ) {
                    let _ = rustix::process::kill_process(pid, signal);
                }
            }
        });
        let status = child.wait();
        handle.close();
        status
    });
    status.map_err(|error| Failure::new(format_args!("cannot wait for the program: {error}")))
}

/// The set of signals that this process ignores, as under nohup: bit N-1 for signal N.
pub(super) fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok())
        .unwrap_or(0)
}

/// Ends as the program ended: with its code, or by its signal. Only where it ended well can it be said by the code that it has
/// not done so without compiling: a caller who looks at the code learns of the program's own failure first.
fn exit_as(status: &ExitStatus, missed: bool) -> Result<ExitCode, Failure> {
    if missed && status.success() {
        return Ok(ExitCode::from(MISSED));
    }
    if let Some(signal) = status.signal() {
        // The program has left its core already; ours would tell nothing.
        let none = rustix::process::Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
        let _ = signal_hook::low_level::emulate_default_handler(signal);
        return Ok(ExitCode::from(u8::try_from(128 + signal).unwrap_or(1)));
    }
    Ok(ExitCode::from(
        status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(1),
    ))
}

fn summary(run: &RunCounts, config: &Config, program: &OsStr) -> String {
    if run.processes == 0 {
        let file = find_program(program).and_then(|file| file.canonicalize().ok());
        let name = file.as_deref().and_then(Path::file_name);
        let name = name.map(|name| name.to_string_lossy().into_owned());
        let why = if config.disables_all() {
            "the cache is disabled".to_owned()
        } else if let Some(name) = name.filter(|name| config.disables_only(name)) {
            let name = crate::log::text(name.as_bytes());
            format!("a configuration file says `cache = false` of the program `{name}`")
        } else {
            why_not_loaded(program)
        };
        return format!("no process used the cache: {why}");
    }
    let totals = &run.totals;
    let builds =
        [Counter::Hits, Counter::Misses, Counter::Failed].map(|counter| totals.get(counter));
    if builds.iter().all(|count| *count == 0) && totals.bypassed() == 0 {
        return "no program was built".into();
    }
    let reasons: Vec<String> = totals
        .bypasses()
        .map(|(reason, count)| format!("{} {count}", reason.name()))
        .collect();
    let mut parts = vec![
        plural(totals.get(Counter::Hits), "hit", "hits"),
        plural(totals.get(Counter::Misses), "miss", "misses"),
        match reasons.as_slice() {
            [] => "0 bypassed".to_owned(),
            reasons => format!("{} bypassed ({})", totals.bypassed(), reasons.join(", ")),
        },
    ];
    if totals.get(Counter::Failed) > 0 {
        parts.push(format!("{} failed", totals.get(Counter::Failed)));
    }
    parts.push(format!(
        "{} of compilation avoided",
        seconds(totals.saved_ns())
    ));
    parts.join(", ")
}

/// Why a program may not have loaded the library.
fn why_not_loaded(program: &OsStr) -> String {
    let Some(file) = find_program(program) else {
        return "the program was not found".into();
    };
    let shown = path(&file).to_string();
    if is_raised(&file) {
        return format!(
            "`{shown}` runs with raised privileges (setuid, setgid or file capabilities), so its environment is ignored"
        );
    }
    if is_static(&file) {
        return format!("`{shown}` is statically linked, so it can load no driver");
    }
    "neither the program nor a child of it asked an OpenCL loader for platforms, or it sets OCL_ICD_VENDORS itself".into()
}

pub(super) fn find_program(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(program.into());
    }
    let runnable = |file: &PathBuf| {
        std::fs::metadata(file)
            .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
    };
    std::env::split_paths(&std::env::var_os("PATH")?)
        .map(|directory| directory.join(program))
        .find(runnable)
}

/// Whether a program runs with rights that its caller has not.
pub(super) fn is_raised(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|metadata| metadata.mode() & 0o6000 != 0)
        || rustix::fs::getxattr(file, "security.capability", &mut [0u8; 64]).is_ok()
}

/// Whether a file is a program that needs no dynamic linker.
pub(super) fn is_static(file: &Path) -> bool {
    let Ok(bytes) = std::fs::read(file) else {
        return false;
    };
    let headers = FileHeader64::<object::Endianness>::parse(&*bytes).and_then(|header| {
        let endian = header.endian()?;
        let headers = header.program_headers(endian, &*bytes)?;
        Ok(headers
            .iter()
            .any(|header| ProgramType(header.p_type(endian).0) == PT_INTERP))
    });
    headers == Ok(false)
}
