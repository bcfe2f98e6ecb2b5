//! The `oclcache` command: parses, and gives each verb to a file of its own.
//!
//! Data goes to standard output, words go to standard error. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no such entry;
//! `run` passes on the program's, and has 125 to 127 of its own.

mod archive;
mod bake;
mod caches;
mod clear;
mod completions;
mod config;
mod doctor;
mod drivers;
mod entry_view;
mod executable;
mod explain;
mod export;
mod extract;
mod failure;
mod find;
mod gc;
mod help;
mod home;
mod import;
mod install;
mod interrupt;
mod library;
mod list;
mod man;
mod open;
mod other_caches;
mod output;
mod parse;
mod probe;
mod progress;
mod recipe_environment;
mod report;
mod run;
mod show;
mod stats;
mod summary;
mod vendors;
mod why;
mod worker;

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, FromArgMatches, Parser, Subcommand, ValueHint};

use crate::config::Config;
use failure::Failure;
use open::directory;
use output::{print, say};
use parse::{parse_age, parse_size};

/// A compiler cache for OpenCL: kernels are compiled once, not at every start.
#[derive(Parser)]
#[command(
    name = "oclcache",
    version,
    arg_required_else_help = true,
    args_conflicts_with_subcommands = true
)]
#[command(
    after_help = "New here: `oclcache run PROGRAM` needs no set-up, `oclcache install` makes it last, `oclcache stats` shows what it saved.\n`oclcache VERB --help` tells more of a verb, with an example.\n\nExample: oclcache run clpeak --kernel-latency\nExample: oclcache stats\nExit code: 0 done, 1 failed, 2 wrong usage, 3 no such entry; of `run` the program's"
)]
struct Arguments {
    #[command(flatten)]
    short: Short,
    #[command(subcommand)]
    verb: Option<Verb>,
}

/// The letters that people know from ccache.
#[derive(Args)]
struct Short {
    /// The same as `stats`
    #[arg(short = 's', long = "show-stats")]
    stats: bool,
    /// With -s: the same as `stats --verbose`
    #[arg(short = 'v', long = "verbose", requires = "stats")]
    verbose: bool,
    /// The same as `stats --zero`
    #[arg(short = 'z', long = "zero-stats")]
    zero: bool,
    /// The same as `clear`
    #[arg(short = 'C', long = "clear")]
    clear: bool,
    /// The same as `gc`
    #[arg(short = 'c', long = "cleanup")]
    cleanup: bool,
    /// The same as `config`
    #[arg(short = 'p', long = "show-config")]
    config: bool,
}

#[derive(Subcommand)]
enum Verb {
    /// Run a program through the cache, with no set-up
    #[command(
        after_help = "Example: oclcache run -- python3 program.py\nExit code: the program's; 126 or 127 if it cannot be run; with OCLCACHE_MUST_HIT=1, 125 if it ended well but something was compiled"
    )]
    Run {
        /// Say nothing at the end
        #[arg(short, long)]
        quiet: bool,
        /// Bake what the program leaves to be baked, and wait for it; otherwise it is baked behind the program
        #[arg(long)]
        bake: bool,
        /// As if it had never run: neither this cache nor another one of compiled kernels is read or written
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
    },
    /// Show what was served and what it saved
    #[command(
        after_help = "Example: oclcache stats --by program --since 7d\nIn ccache: -s, -sv, -z"
    )]
    Stats(stats::StatsArgs),
    /// Write what was saved, by day, program and device, as a page to look at in a browser
    #[command(after_help = "Example: oclcache report --open")]
    Report(report::ReportArgs),
    /// List the entries
    #[command(after_help = "Example: oclcache list | head")]
    List {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Show one entry: what its key was made of, and what it holds
    #[command(after_help = "Example: oclcache show 4f1d2a\nIn ccache: --inspect")]
    Show {
        /// The key, or as many of its first digits as make it clear
        key: String,
        /// As JSON
        #[arg(long)]
        json: bool,
        /// Only the program's source
        #[arg(long, conflicts_with = "json")]
        source: bool,
    },
    /// Tell why programs were compiled: the latest misses, bypasses and failures, or those of one key
    #[command(
        after_help = "Example: oclcache explain --last 1\nIn ccache: CCACHE_DEBUG, but nothing needs to be set before"
    )]
    Explain {
        /// Only this key, or as many of its first digits as make it clear
        key: Option<String>,
        /// How many are listed
        #[arg(long, value_name = "N", default_value_t = 20, conflicts_with = "key")]
        last: usize,
        /// As JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the cache directory
    #[command(after_help = "Example: du -sh \"$(oclcache path)\"\nIn ccache: -k cache_dir")]
    Path,
    /// Remove all entries, or some
    #[command(
        after_help = "Example: oclcache clear --program darktable --older-than 30d\nIn ccache: -C, --evict-older-than"
    )]
    Clear(clear::ClearArgs),
    /// Bring the cache within its limits, and clear away what nobody uses
    #[command(
        after_help = "Example: oclcache gc --max-size 500M\nIn ccache: -c, --evict-older-than"
    )]
    Gc {
        /// The size that the entries may take, as 500M or 5Gi, instead of OCLCACHE_MAX_SIZE
        #[arg(long, value_name = "SIZE", value_parser = parse_size)]
        max_size: Option<u64>,
        /// Entries go that were not used for this time, as 12h or 30d, instead of OCLCACHE_MAX_AGE
        #[arg(long, value_name = "TIME", value_parser = parse_age)]
        max_age: Option<Duration>,
    },
    /// Show the other caches of compiled kernels on this machine, or clear them
    #[command(after_help = "Example: oclcache caches\nExample: oclcache caches clear pocl mesa")]
    Caches(caches::CachesArgs),
    /// Make entries of what programs have left to be compiled again later, and of what an older driver has made
    #[command(after_help = "Example: oclcache bake --stale")]
    Bake(bake::BakeArgs),
    /// Write one entry as files to look at, and to compile again without its program
    #[command(
        after_help = "Example: oclcache extract 4f1d2a blur && blur/rebuild.sh\nIn ccache: --inspect"
    )]
    Extract(extract::ExtractArgs),
    /// Write entries into an archive, for another machine, user or container
    #[command(after_help = "Example: oclcache export --driver pocl --no-source kernels.tar.zst")]
    Export(export::ExportArgs),
    /// Take the entries of an archive into the cache, those that fit a driver of this machine
    #[command(
        after_help = "Example: oclcache import --trust kernels.tar.zst\nExit code: 1 if something was refused, or nothing of it can be used here"
    )]
    Import(import::ImportArgs),
    /// Not for people
    #[command(hide = true)]
    DescribeDriver(drivers::DescribeDriverArgs),
    /// Not for people
    #[command(hide = true)]
    BakeWorker(bake::BakeWorkerArgs),
    /// Tell whether everything is as it must be for the cache to work, and how to mend what is not
    #[command(
        after_help = "Example: oclcache doctor --driver pocl\nExit code: 0 if nothing is wrong, 1 if something is"
    )]
    Doctor(doctor::DoctorArgs),
    /// Not for people
    #[command(hide = true)]
    DoctorWorker(probe::worker::ProbeArgs),
    /// Register the library, so that programs are cached without `oclcache run`
    #[command(
        after_help = "Example: oclcache install --dry-run\nExample: eval \"$(oclcache install --user)\""
    )]
    Install(install::InstallArgs),
    /// Undo what `install` has done
    #[command(after_help = "Example: oclcache uninstall --dry-run")]
    Uninstall(install::Whose),
    /// Print the completions of verbs and options for a shell
    #[command(
        after_help = "Example: oclcache completions bash > ~/.local/share/bash-completion/completions/oclcache"
    )]
    Completions {
        /// The shell
        shell: completions::ShellName,
    },
    /// Write the man pages of this command and its verbs, or print that of the command
    #[command(
        after_help = "Example: oclcache man ~/.local/share/man/man1\nExample: oclcache man | man -l -"
    )]
    Man {
        /// Where the pages are written; without it, the command's own is printed
        directory: Option<PathBuf>,
    },
    /// Show each setting, its value and where it comes from, or change one
    #[command(after_help = "Example: OCLCACHE_READONLY=1 oclcache config\nIn ccache: -p")]
    Config(config::ConfigArgs),
}

/// Parses the arguments of the process and does what they say.
pub fn main() -> ExitCode {
    let matches = help::definition().try_get_matches();
    let arguments = matches.and_then(|matches| Arguments::from_arg_matches(&matches));
    let arguments = match arguments {
        Ok(arguments) => arguments,
        Err(error) => return help::refused(&error),
    };
    let verb = arguments.verb.unwrap_or(match arguments.short {
        Short { zero: true, .. } => Verb::Stats(stats::StatsArgs {
            zero: true,
            ..stats::StatsArgs::default()
        }),
        Short { clear: true, .. } => Verb::Clear(clear::ClearArgs::default()),
        Short { cleanup: true, .. } => Verb::Gc {
            max_size: None,
            max_age: None,
        },
        Short { config: true, .. } => Verb::Config(config::ConfigArgs::default()),
        Short { verbose, .. } => Verb::Stats(stats::StatsArgs {
            verbose,
            ..stats::StatsArgs::default()
        }),
    });
    let done = match verb {
        Verb::Run {
            quiet,
            cold: true,
            command,
            ..
        } => run::run_cold(quiet, &command),
        Verb::Run {
            quiet,
            bake,
            command,
            ..
        } => run::run(quiet, bake, &command),
        Verb::Stats(wanted) => stats::stats(&wanted),
        Verb::Report(wanted) => report::report(&wanted),
        Verb::List { json } => list::list(json),
        Verb::Show { key, json, source } => show::show(&key, json, source),
        Verb::Explain { key, last, json } => explain::explain(key.as_deref(), last, json),
        Verb::Path => path(),
        Verb::Clear(wanted) => clear::clear(&wanted),
        Verb::Gc { max_size, max_age } => gc::gc(max_size, max_age),
        Verb::Caches(wanted) => caches::caches(wanted),
        Verb::Bake(wanted) => bake::bake(&wanted),
        Verb::Extract(wanted) => extract::extract(&wanted),
        Verb::Export(wanted) => export::export(&wanted),
        Verb::Import(wanted) => import::import(&wanted),
        Verb::DescribeDriver(arguments) => drivers::describe(&arguments),
        Verb::BakeWorker(arguments) => bake::work(arguments),
        Verb::Doctor(wanted) => doctor::doctor(&wanted),
        Verb::DoctorWorker(arguments) => probe::worker::work(&arguments),
        Verb::Install(wanted) => install::install(&wanted),
        Verb::Uninstall(whose) => install::uninstall(&whose),
        Verb::Config(wanted) => config::config(wanted),
        Verb::Completions { shell } => completions::completions(shell),
        Verb::Man { directory } => man::man(directory.as_deref()),
    };
    done.unwrap_or_else(|failure| {
        say(&format!("oclcache: {}", failure.words));
        if let Some(signal @ 1..) = failure.code.checked_sub(Failure::SIGNALED) {
            let _ = signal_hook::low_level::emulate_default_handler(signal.into());
        }
        ExitCode::from(failure.code)
    })
}

/// The bytes as they are for who reads them, and what a person can read on a terminal.
fn path() -> Result<ExitCode, Failure> {
    let path = directory(&Config::read())?;
    if io::stdout().is_terminal() {
        return print(format!("{}\n", crate::log::path(&path)).as_bytes());
    }
    print(&[path.as_os_str().as_bytes(), b"\n"].concat())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definitions_of_the_command_are_consistent() {
        use clap::CommandFactory;
        Arguments::command().debug_assert();
    }
}
