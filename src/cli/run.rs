//! `oclcache run`: runs one program through the cache, without installing it.
//!
//! The program gets a vendors directory with only us in it, and OCLCACHE_VENDORS with the drivers that the loader would have read. It is
//! a directory since all loaders accept one.

mod child;
mod cold;
mod run_directory;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use clap::{Args, ValueHint};

use super::bake::names;
use super::executable::{find_program, is_raised, is_static};
use super::failure::Failure;
use super::library::{library, own_path};
use super::open::{say_complaints, tiers, usable_store, write_something};
use super::output::{plural, say, seconds};
use super::own_caches::OwnCaches;
use super::remote::RunSharing;
use super::vendors::{LOADER_VARIABLES, vendors};
use crate::cache::RUN_VARIABLE;
use crate::cache::autobake::{self, REMOTE_KEY};
use crate::config::{Config, Name, paths, script_name};
use crate::first_process::is_about_to_end_with_ours;
use crate::front;
use crate::front::vendors::is_bare_name;
use crate::log::path;
use crate::outcome::Bypass;
use crate::store::StoreError;
use crate::store::library_facts::{FileStates, states};
use crate::store::stats::{Counter, RunCounts};
use child::{exit_as, run_to_end};
use run_directory::RunDirectory;

/// Run a program through the cache, without installing it
#[derive(Args)]
#[command(
    after_help = "Example: oclcache run -- python3 program.py\nExit code: the program's; 126 or 127 if it cannot be run; with OCLCACHE_MUST_HIT=1, 125 if it succeeded but something was compiled, or nothing was built through the cache"
)]
pub struct RunArgs {
    /// Print no summary
    #[arg(short, long)]
    quiet: bool,
    /// Compile the recipes that the program leaves, and wait for that; otherwise this happens in the background
    #[arg(long)]
    bake: bool,
    /// Run as if for the first time: neither this cache nor other caches of compiled kernels are used
    #[arg(long, conflicts_with = "bake")]
    cold: bool,
    /// The program and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM",
        value_hint = ValueHint::CommandWithArguments
    )]
    command: Vec<OsString>,
}

impl RunArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        refuse_option(&self.command[0])?;
        let config = Config::read();
        // A run inside another one leaves what it compiled to that.
        let is_outer = std::env::var_os(RUN_VARIABLE).is_none();
        if is_outer && !self.quiet {
            say_complaints(&config);
            say_refused_tiers(&config);
        }
        if self.cold && config.must_hit() {
            return Err(Failure::usage(
                "`--cold` has everything compiled, and `must_hit` allows nothing to be; set OCLCACHE_MUST_HIT=0 for a cold run",
            ));
        }
        if self.cold {
            return cold::run(self.quiet, &self.command);
        }
        let own = own_path()?;
        let library = library(&own)?;
        let vendors = vendors()?;
        let place = match RunDirectory::open(&config, &library) {
            Ok(place) => place,
            Err(why) => {
                say(&format!("oclcache: running without the cache: {why}"));
                let mut program = Command::new(&self.command[0]);
                program.args(&self.command[1..]).env_remove(REMOTE_KEY);
                let status = run_to_end(&mut program, &self.command[0])?;
                return exit_as(&status, config.must_hit());
            }
        };
        let mut program = Command::new(&self.command[0]);
        program.args(&self.command[1..]);
        for variable in LOADER_VARIABLES {
            program.env_remove(variable);
        }
        program
            .env("OCL_ICD_VENDORS", &place.vendors)
            .env(RUN_VARIABLE, place.run.path());
        if let Some(vendors) = &vendors {
            program.env("OCLCACHE_VENDORS", vendors);
        }
        program.env_remove(REMOTE_KEY);
        let may_start =
            is_outer && autobake::refusal(&config, is_about_to_end_with_ours()).is_none();
        let known = || match usable_store(&config) {
            Some(store) => states(&store).ok(),
            None => Some(FileStates::new()),
        };
        let before = may_start.then(known).flatten();
        let sharing = is_outer.then(|| RunSharing::begin(&config));
        let ended = run_to_end(&mut program, &self.command[0]);
        let run = place.finish();
        let status = ended?;
        let totals = run.as_ref().ok().map(|run| run.rows.total());
        let compiled = totals.as_ref().is_none_or(|totals| totals.compiled() > 0);
        // What drivers compile in processes without the cache, nobody sees.
        let is_unseen = totals.as_ref().is_some_and(|totals| totals.builds() == 0);
        let missed = config.must_hit() && (compiled || is_unseen);
        let vendors = vendors.unwrap_or_else(|| config.value(Name::Vendors).0.clone());
        let drivers =
            || front::vendors::drivers_of_run(&paths(&vendors), &|name| std::env::var_os(name));
        let summary = |run: &RunCounts, own_caches: &OwnCaches| {
            summary(run, own_caches, &config, &self.command, &drivers)
        };
        match run {
            Ok(run) if missed && is_unseen && status.success() => {
                let words = summary(&run, &OwnCaches::default());
                say(&format!("oclcache: OCLCACHE_MUST_HIT: {words}"));
            }
            Ok(_) if self.quiet => {}
            Ok(mut run) => {
                let store = usable_store(&config);
                let own_caches = store.as_ref().map(OwnCaches::read).unwrap_or_default();
                own_caches.discount(&mut run.rows);
                let words = summary(&run, &own_caches);
                say(&format!("oclcache: {words}"));
            }
            // A failure to read the counters does not change the exit code.
            Err(failure) => say(&format!("oclcache: {}", failure.message)),
        }
        let recipes = totals.map_or(0, |totals| totals.get(Counter::Recipes));
        let may_store = !(is_unseen || config.readonly() || config.disables_all());
        let store = may_store.then(|| usable_store(&config)).flatten();
        let names_are_left = || match (&store, &before) {
            (Some(store), Some(before)) => names::are_left_since(store, before),
            _ => false,
        };
        // A user who has interrupted the program does not want to wait.
        if self.bake && status.signal().is_none() {
            if recipes > 0 {
                bake_now(&own, self.quiet, &config, &vendors);
            } else if let Some(store) = &store {
                names::gather(store);
            }
        } else if is_outer
            && (recipes > 0 || names_are_left())
            && let Err(why) = autobake::after_run(&own, &config, &vendors)
            && recipes > 0
            && !self.quiet
        {
            say(&format!(
                "oclcache: run `oclcache bake` to store what was compiled; it was not started in the background: {why}"
            ));
        }
        if let Some(sharing) = sharing.filter(|_| status.signal().is_none()) {
            sharing.end(self.quiet);
        }
        exit_as(&status, missed)
    }
}

/// Says which system directories are not used: the library ignores them silently.
fn say_refused_tiers(config: &Config) {
    for directory in tiers(config).all() {
        if let Err(why) = &directory.tier {
            let directory = path(&directory.path);
            say(&format!(
                "oclcache: the system directory `{directory}` is not used: {why}"
            ));
        }
    }
}

/// Fails if the program is written like an option, unless it follows `--`.
fn refuse_option(program: &OsStr) -> Result<(), Failure> {
    let mut before = std::env::args_os().take_while(|argument| argument != program);
    if !program.as_bytes().starts_with(b"-") || before.any(|argument| argument == "--") {
        return Ok(());
    }
    let shown = crate::log::os(program);
    Err(Failure::usage(format_args!(
        "`{shown}` is not an option of `run`; `oclcache help run` lists them, and `oclcache run -- {shown}` runs a program of that name"
    )))
}

/// Bakes what the program has left. A failure does not change the exit code.
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
    if !quiet {
        say("oclcache: `--bake`: waiting for `oclcache bake`");
    }
    // It writes no data, and must not read the input of the program.
    bake.stdin(Stdio::null()).stdout(Stdio::null());
    if let Err(failure) = run_to_end(&mut bake, command.as_os_str()) {
        say(&format!("oclcache: {}", failure.message));
    }
}

fn summary(
    run: &RunCounts,
    own_caches: &OwnCaches,
    config: &Config,
    command: &[OsString],
    drivers: &dyn Fn() -> Vec<PathBuf>,
) -> String {
    if run.processes == 0 {
        let why = if config.disables_all() {
            "the cache is disabled".to_owned()
        } else if let Some(name) = disabled_name(config, command) {
            let name = crate::log::text(name.as_bytes());
            format!("a configuration file sets `cache = false` for the program `{name}`")
        } else if let Some(why) = why_uncounted(config) {
            return format!("it is unknown what was compiled: {why}");
        } else {
            why_not_loaded(&command[0])
        };
        return format!("no process used the cache: {why}");
    }
    let totals = run.rows.total();
    if totals.builds() == 0 {
        return why_nothing_compiled(&drivers());
    }
    let from_binary = totals.bypassed_by(Bypass::FromBinary);
    if from_binary == totals.builds() {
        return format!(
            "nothing to do: the program loaded {} from a cache of its own and compiled nothing",
            plural(from_binary, "binary", "binaries")
        );
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
        "{} of {}",
        seconds(totals.saved_ns()),
        own_caches.served_time(&run.rows).name()
    ));
    parts.join(", ")
}

/// Why the drivers of a run have compiled nothing. Whether one can be loaded is known to the doctor only; one that is gone is seen here.
fn why_nothing_compiled(drivers: &[PathBuf]) -> String {
    let is_gone = |library: &&PathBuf| !is_bare_name(library) && !library.exists();
    let gone = drivers.iter().filter(is_gone);
    let gone: Vec<String> = gone.map(|library| format!("`{}`", path(library))).collect();
    if gone.len() == drivers.len() {
        let why = match gone.is_empty() {
            true => "no OpenCL driver is registered".to_owned(),
            false => format!(
                "the registered OpenCL drivers do not exist: {}",
                gone.join(", ")
            ),
        };
        return format!("no kernel was compiled: {why}; run `oclcache doctor`");
    }
    let left_out = match gone.is_empty() {
        true => String::new(),
        false => format!("; left out, since they do not exist: {}", gone.join(", ")),
    };
    // A process of the run may have reached its drivers in another way, which nothing here can see.
    format!(
        "no kernel was compiled through the cache{left_out}; programs that only list devices, such as clinfo, compile none; if this one compiles, run `oclcache doctor`"
    )
}

/// The name of the program, or of the script that it runs, if a file turns the cache off for that.
fn disabled_name(config: &Config, command: &[OsString]) -> Option<String> {
    let file = find_program(&command[0])?.canonicalize().ok()?;
    let executable = file.file_name()?;
    let arguments = command[1..].iter().map(|argument| argument.as_bytes());
    let script = script_name(executable.as_bytes(), arguments);
    let script = script.map(|script| String::from_utf8_lossy(&script).into_owned());
    let executable = executable.to_string_lossy();
    let name = config.disabled_name(&executable, script.as_deref())?;
    Some(name.to_owned())
}

/// Why processes cannot have counted anything, and what to do; None if they can. On a full file system directories may still be made,
/// so that the run has begun.
fn why_uncounted(config: &Config) -> Option<String> {
    if config.readonly() {
        return None;
    }
    let path = config.directory().ok()?;
    let error = write_something(&path).err()?;
    let error = StoreError {
        action: "write to",
        path,
        error,
    };
    error.is_full().then(|| Failure::from(error).message)
}

/// Why a program has probably not loaded the library.
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
    "neither the program nor its children used an OpenCL loader, or they set OCL_ICD_VENDORS themselves".into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::stats::{CounterEvent, RowTag, Totals};

    fn summary_of(events: &[CounterEvent]) -> String {
        let mut totals = Totals::default();
        for CounterEvent(index, amount) in events {
            totals.0[*index] += amount;
        }
        let mut run = RunCounts {
            processes: 1,
            ..RunCounts::default()
        };
        run.rows.add(RowTag::default(), &totals);
        let config = Config::read_from(&|_| None, None);
        let command = ["program".into()];
        let drivers = || vec!["libdriver.so".into()];
        summary(&run, &OwnCaches::default(), &config, &command, &drivers)
    }

    #[test]
    fn a_program_that_needs_no_cache_is_told_so_in_plain_words() {
        let binary = CounterEvent::from(Bypass::FromBinary);
        assert_eq!(
            summary_of(&[binary, binary]),
            "nothing to do: the program loaded 2 binaries from a cache of its own and compiled nothing"
        );
        let some = summary_of(&[binary, Counter::Misses.by(1)]);
        assert!(
            some.starts_with("0 hits, 1 miss, 1 bypassed (from_binary 1), "),
            "{some}"
        );
        assert!(summary_of(&[]).contains("such as clinfo, compile none"));
    }
}
