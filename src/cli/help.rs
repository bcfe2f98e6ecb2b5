//! The help of the command, which groups verbs by purpose, and what completions and man pages need of it.

use std::io::{self, Write};
use std::process::ExitCode;

use clap::builder::Styles;
use clap::{Args, Command};

use super::failure::Failure;
use super::output::{self, say};
use crate::config::meant;
use crate::log;

/// Verbs that belong together in the help.
pub struct Group {
    /// The purpose.
    pub heading: &'static str,
    /// The names of the variants in the enumeration of verbs.
    pub verbs: &'static [&'static str],
}

/// The width of the help where there is no terminal, and the most where there is.
const MAX_WIDTH: usize = 100;

/// The whole command, and its verbs in groups.
pub struct CommandDefinition {
    pub command: Command,
    pub groups: &'static [Group],
}

/// The definition of the command, with its verbs in groups.
pub fn define(command: Command, groups: &'static [Group]) -> CommandDefinition {
    // Without a terminal on standard output, clap would use the width of standard error or COLUMNS.
    let width = output::width().map_or(MAX_WIDTH, |width| width.min(MAX_WIDTH));
    let listed = in_groups(&command, groups, width);
    let command = command
        .term_width(width)
        .mut_subcommands(|verb| match verb.has_subcommands() {
            true => verb
                .subcommand_value_name("VERB")
                .subcommand_help_heading("Verbs")
                .disable_help_subcommand(true),
            false => verb,
        })
        .help_template(format!(
            "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{listed}\
             {header}Options:{header:#}\n{{options}}{{after-help}}",
            header = Styles::styled().get_header(),
        ))
        .subcommand_value_name("VERB")
        .disable_help_subcommand(true);
    CommandDefinition { command, groups }
}

/// The command without its hidden verbs and options, for completions and man pages, which would show them.
pub fn for_people(command: &Command) -> Command {
    let arguments = command.get_arguments().filter(|it| !it.is_hide_set());
    let verbs = command.get_subcommands().filter(|it| !it.is_hide_set());
    let mut shown = Command::new(command.get_name().to_owned())
        .args(arguments.cloned())
        .subcommands(verbs.map(for_people))
        .subcommand_value_name("VERB")
        .disable_help_subcommand(true);
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(notes) = command.get_after_help() {
        shown = shown.after_help(notes.clone());
    }
    if let Some(version) = command.get_version() {
        shown = shown.version(version.to_owned());
    }
    shown
}

/// The visible verbs of a group.
pub fn verbs<'a>(command: &'a Command, group: &Group) -> Vec<&'a Command> {
    let verbs = group.verbs.iter().map(|verb| verb.to_lowercase());
    let verbs = verbs.filter_map(|name| command.find_subcommand(name));
    verbs.filter(|verb| !verb.is_hide_set()).collect()
}

/// The verbs as the help lists them.
pub fn in_groups(command: &Command, groups: &[Group], width: usize) -> String {
    let styles = Styles::styled();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let groups = groups
        .iter()
        .map(|group| (group.heading, verbs(command, group)));
    let groups: Vec<_> = groups.filter(|(_, verbs)| !verbs.is_empty()).collect();
    let names = groups.iter().flat_map(|(_, verbs)| verbs.iter());
    let longest = names.map(|verb| verb.get_name().len()).max().unwrap_or(0);
    let mut text = String::new();
    for (heading, verbs) in groups {
        text += &format!("{header}{heading}:{header:#}\n");
        for verb in verbs {
            let about = verb.get_about().map(ToString::to_string);
            let about = about.unwrap_or_default();
            let start = format!("  {literal}{:<longest$}{literal:#}  ", verb.get_name());
            text += &output::wrapped(start, about.split(' '), width);
        }
        text.push('\n');
    }
    text
}

/// Print the help of the command, or of a verb
#[derive(Args)]
#[command(after_help = "Example: oclcache help stats\nExample: oclcache help config set")]
pub struct HelpArgs {
    /// The verb
    verb: Vec<String>,
}

impl HelpArgs {
    pub fn run(self, definition: CommandDefinition) -> Result<ExitCode, Failure> {
        let mut command = definition.command.clone();
        command.build();
        for name in &self.verb {
            let below = command.get_subcommands().filter(|verb| !verb.is_hide_set());
            let names: Vec<String> = below.map(|verb| verb.get_name().to_owned()).collect();
            let found = names.contains(name).then(|| command.find_subcommand(name));
            command = found.flatten().cloned().ok_or_else(|| {
                let meant = match meant(name, names.iter().map(String::as_str)) {
                    meant if meant.is_empty() => "; `oclcache --help` lists the verbs".to_owned(),
                    meant => meant,
                };
                let name = log::text(name.as_bytes());
                Failure::usage(format_args!("`{name}` is not a verb{meant}"))
            })?;
        }
        let name = definition.command.get_name().to_owned();
        let words = [name].into_iter().chain(self.verb).chain(["--help".into()]);
        let Err(help) = definition.command.try_get_matches_from(words) else {
            return Ok(ExitCode::SUCCESS);
        };
        let help = help.render();
        let shown = match console::colors_enabled() {
            true => help.ansi().to_string(),
            false => help.to_string(),
        };
        output::print(as_verbs(&shown).as_bytes())
    }
}

/// The project calls a verb a verb.
fn as_verbs(words: &str) -> String {
    words.replace("subcommand", "verb")
}

/// Prints an error in the arguments, or the help or version that they ask for.
pub fn refused(error: &clap::Error) -> ExitCode {
    let words = as_verbs(&error.to_string());
    let is_plain = |character| character == '\n' || log::is_plain(character);
    if error.use_stderr() && !words.chars().all(is_plain) {
        // An argument holds characters that could control a terminal.
        let lines = words.lines().map(|line| log::text(line.as_bytes()));
        let lines: Vec<String> = lines.map(|line| line.to_string()).collect();
        say(&lines.join("\n"));
    } else {
        let (mut out, mut err) = (io::stdout(), io::stderr());
        let (stream, is_colored): (&mut dyn Write, bool) = match error.use_stderr() {
            true => (&mut err, console::colors_enabled_stderr()),
            false => (&mut out, console::colors_enabled()),
        };
        let shown = match is_colored {
            true => as_verbs(&error.render().ansi().to_string()), // for a terminal
            false => words,
        };
        // A closed pipe is not a failure.
        let _ = stream.write_all(shown.as_bytes());
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// The notes after a verb's options, such as `Example: oclcache run clpeak`, as pairs of label and text.
pub fn notes(command: &Command) -> Vec<(String, String)> {
    let text = command.get_after_help().map(ToString::to_string);
    let lines = text.iter().flat_map(|text| text.lines());
    let notes = lines.filter_map(|line| line.split_once(": "));
    notes
        .map(|(what, words)| (what.to_owned(), words.to_owned()))
        .collect()
}
