//! The `oclcache` command: parses the arguments and runs a verb.
//!
//! Data goes to standard output, messages go to standard error. Exit codes: 0 success, 1 failure, 2 wrong usage, 3 no such key.
//! `run` exits with its program's code, or with 125 to 127.

mod archive;
mod bake;
mod caches;
mod clear;
mod completions;
mod config;
mod confirm;
mod doctor;
mod entry_filter;
mod entry_view;
mod environment;
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
mod own_caches;
mod parse;
mod path;
mod probe;
mod progress;
mod recipe_environment;
mod refused_directory;
mod registered_drivers;
mod remote;
mod replace_file;
mod report;
mod run;
mod show;
mod start_files;
mod stats;
mod summary;
mod vendors;
mod why;
mod worker;

use std::process::ExitCode;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};

use failure::Failure;
use help::{CommandDefinition, Group};
use output::say;

/// A compiler cache for OpenCL: kernels are compiled once, not at every start.
#[derive(Parser)]
#[command(
    name = "oclcache",
    version,
    arg_required_else_help = true,
    args_conflicts_with_subcommands = true
)]
#[command(
    after_help = "New here? `oclcache run PROGRAM` needs no installation, `oclcache install` makes it permanent, `oclcache stats` shows what was served.\n`oclcache VERB --help` describes a verb, with an example.\n\nExample: oclcache run clpeak --kernel-latency\nExample: oclcache stats\nExit code: 0 success, 1 failure, 2 wrong usage, 3 no such key; `run` exits as its program does"
)]
struct Arguments {
    #[command(flatten)]
    short: Short,
    #[command(subcommand)]
    verb: Option<Verb>,
}

/// The short options of ccache.
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

/// Makes the enumeration of verbs, their dispatch and the groups of the help from one table. `with definition` passes the
/// definition of the whole command to the verb.
macro_rules! verbs {
    ($($heading:literal { $($verb:ident($args:ty)$(with $definition:ident)?,)* })*) => {
        #[derive(Subcommand)]
        enum Verb {
            $($($verb($args),)*)*
        }

        impl Verb {
            fn run(self) -> Result<ExitCode, Failure> {
                match self {
                    $($(Verb::$verb(arguments) => arguments.run($($definition())?),)*)*
                }
            }
        }

        /// The verbs by purpose.
        const GROUPS: &[Group] = &[$(Group {
            heading: $heading,
            verbs: &[$(stringify!($verb)),*],
        }),*];
    };
}

// A verb's file defines its arguments, with their help, and its `run`.
verbs! {
    "Run programs" {
        Run(run::RunArgs),
        Bake(bake::BakeArgs),
    }
    "Inspect" {
        Stats(stats::StatsArgs),
        Report(report::ReportArgs),
        List(list::ListArgs),
        Show(show::ShowArgs),
        Explain(explain::ExplainArgs),
        Extract(extract::ExtractArgs),
    }
    "Set up and repair" {
        Install(install::InstallArgs),
        Uninstall(install::UninstallArgs),
        Doctor(doctor::DoctorArgs),
        Config(config::ConfigArgs),
        Completions(completions::CompletionsArgs) with definition,
        Man(man::ManArgs) with definition,
        Help(help::HelpArgs) with definition,
    }
    "Make room" {
        Gc(gc::GcArgs),
        Clear(clear::ClearArgs),
        Path(path::PathArgs),
        Caches(caches::CachesArgs),
    }
    "Share" {
        Export(export::ExportArgs),
        Import(import::ImportArgs),
        Remote(remote::RemoteArgs),
    }
    "Internal" {
        BakeWorker(bake::BakeWorkerArgs),
        DoctorWorker(probe::worker::ProbeArgs),
        QualifyWorker(doctor::qualify::QualifyWorkerArgs),
        DescribeDriver(registered_drivers::DescribeDriverArgs),
        Environment(environment::EnvironmentArgs),
        CompleteValues(completions::CompleteValuesArgs),
    }
}

/// The definition of the command, with the verbs in groups.
fn definition() -> CommandDefinition {
    help::define(Arguments::command(), GROUPS)
}

/// Parses the arguments of the process and runs the verb.
pub fn main() -> ExitCode {
    let matches = definition().command.try_get_matches();
    let arguments = matches.and_then(|matches| Arguments::from_arg_matches(&matches));
    let arguments = match arguments {
        Ok(arguments) => arguments,
        Err(error) => return help::refused(&error),
    };
    let verb = arguments.verb.unwrap_or_else(|| arguments.short.verb());
    verb.run().unwrap_or_else(|failure| {
        say(&format!("oclcache: {}", failure.message));
        if let Some(signal @ 1..) = failure.code.checked_sub(Failure::SIGNALED) {
            return interrupt::end_by(signal.into());
        }
        ExitCode::from(failure.code)
    })
}

impl Short {
    fn verb(&self) -> Verb {
        match self {
            Short { zero: true, .. } => Verb::Stats(stats::StatsArgs {
                zero: true,
                ..stats::StatsArgs::default()
            }),
            Short { clear: true, .. } => Verb::Clear(clear::ClearArgs::default()),
            Short { cleanup: true, .. } => Verb::Gc(gc::GcArgs::default()),
            Short { config: true, .. } => Verb::Config(config::ConfigArgs::default()),
            Short { verbose, .. } => Verb::Stats(stats::StatsArgs {
                verbose: *verbose,
                ..stats::StatsArgs::default()
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All visible verbs, and those below them.
    fn verbs(command: &clap::Command) -> Vec<clap::Command> {
        let below = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        below
            .flat_map(|verb| [vec![verb.clone()], verbs(verb)].concat())
            .collect()
    }

    /// The arguments of the command in a line of shell.
    fn arguments(example: &str) -> Option<Vec<&str>> {
        let (_, command) = example.split_once("oclcache")?;
        let end = command.find(['|', '>', ')', ';', '&']);
        let command = &command[..end.unwrap_or(command.len())];
        Some(command.split_whitespace().collect())
    }

    #[test]
    fn each_verb_has_an_example_that_it_understands() {
        let command = definition().command;
        for verb in std::iter::once(command.clone()).chain(verbs(&command)) {
            let name = verb.get_name();
            let notes = help::notes(&verb);
            let mut examples = notes.iter().filter(|(what, _)| what == "Example");
            let mut seen = 0;
            for (_, example) in &mut examples {
                let given = arguments(example).unwrap_or_else(|| panic!("{name}: {example}"));
                let all = ["oclcache"].into_iter().chain(given.iter().copied());
                if let Err(error) = command.clone().try_get_matches_from(all) {
                    panic!("{name}: {example}: {error}");
                }
                assert!(name == "oclcache" || given.contains(&name), "{example}");
                seen += 1;
            }
            assert!(seen > 0, "{name} has no example");
        }
    }

    #[test]
    fn the_help_lists_each_verb_and_fits_a_terminal() {
        let command = definition().command;
        for width in [40, 80, 100] {
            let text = help::in_groups(&command, GROUPS, width);
            let text = console::strip_ansi_codes(&text).into_owned();
            for line in text.lines() {
                assert!(line.len() <= width, "{line}");
            }
            for verb in command.get_subcommands() {
                let is_listed = text.contains(&format!("\n  {} ", verb.get_name()));
                assert_eq!(is_listed, !verb.is_hide_set(), "{text}");
            }
        }
        assert!(help::in_groups(&command, GROUPS, 0).contains("stats"));
    }

    #[test]
    fn the_definitions_of_the_command_are_consistent() {
        definition().command.debug_assert();
    }
}
