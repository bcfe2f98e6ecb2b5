//! How the command explains itself: its verbs by what people want, for the help, the completions and the man pages.

use std::process::ExitCode;

use clap::builder::Styles;
use clap::{Command, CommandFactory};

use super::Arguments;
use super::output::{self, say};
use crate::log;

/// The verbs by what people want.
const GROUPS: [(&str, &[&str]); 5] = [
    ("Run programs", &["run", "bake"]),
    (
        "Look",
        &["stats", "report", "list", "show", "explain", "extract"],
    ),
    (
        "Set up and mend",
        &[
            "install",
            "uninstall",
            "doctor",
            "config",
            "completions",
            "man",
        ],
    ),
    ("Make room", &["gc", "clear", "path", "caches"]),
    ("Hand on", &["export", "import"]),
];

/// Where lines end that nobody's terminal breaks.
const WIDEST: usize = 100;

/// The command as people see it: without what is not for them, and with its verbs in groups.
pub fn definition() -> Command {
    let command = Arguments::command();
    // Where nothing is a terminal, clap would take the width of any that is open, or COLUMNS.
    let width = output::width().map_or(WIDEST, |width| width.min(WIDEST));
    let groups = as_text(&command, width);
    command
        .term_width(width)
        .mut_subcommands(|verb| match verb.has_subcommands() {
            true => verb
                .subcommand_value_name("VERB")
                .subcommand_help_heading("Verbs")
                .disable_help_subcommand(true),
            false => verb,
        })
        .help_template(format!(
            "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}\
             {header}Options:{header:#}\n{{options}}{{after-help}}",
            header = Styles::styled().get_header(),
        ))
        .subcommand_value_name("VERB")
        .disable_help_subcommand(true)
}

/// The same without verbs and options that are hidden, for what shows them all the same.
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

/// The groups, each with the verbs of it that there are.
pub fn groups(command: &Command) -> Vec<(&'static str, Vec<&Command>)> {
    let group = |(heading, names): &(&'static str, &[&str])| {
        let verbs = names
            .iter()
            .filter_map(|name| command.find_subcommand(name));
        (*heading, verbs.collect::<Vec<_>>())
    };
    let groups = GROUPS.iter().map(group);
    groups.filter(|(_, verbs)| !verbs.is_empty()).collect()
}

fn as_text(command: &Command, width: usize) -> String {
    let styles = Styles::styled();
    let (header, literal) = (styles.get_header(), styles.get_literal());
    let groups = groups(command);
    let names = groups.iter().flat_map(|(_, verbs)| verbs.iter());
    let longest = names.map(|verb| verb.get_name().len()).max().unwrap_or(0);
    let mut text = String::new();
    for (heading, verbs) in groups {
        text += &format!("{header}{heading}:{header:#}\n");
        for verb in verbs {
            let about = verb.get_about().map(ToString::to_string);
            let about = about.unwrap_or_default();
            let mut name = verb.get_name();
            for line in wrapped(&about, width.saturating_sub(longest + 4)) {
                text += &format!("  {literal}{name:<longest$}{literal:#}  {line}\n");
                name = "";
            }
        }
        text.push('\n');
    }
    text
}

/// The words in lines of this width; none is narrower than a word or a few.
fn wrapped(words: &str, width: usize) -> Vec<String> {
    const NARROWEST: usize = 20;
    let width = width.clamp(NARROWEST, WIDEST);
    let mut lines = vec![String::new()];
    for word in words.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() => line.push_str(word),
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// Says what is wrong with the arguments, or what was asked for by them: the help, the version.
pub fn refused(error: &clap::Error) -> ExitCode {
    let words = error.to_string();
    let is_plain = |character| character == '\n' || log::is_plain(character);
    if error.use_stderr() && !words.chars().all(is_plain) {
        // An argument that a terminal would obey.
        let lines = words.lines().map(|line| log::text(line.as_bytes()));
        let lines: Vec<String> = lines.map(|line| line.to_string()).collect();
        say(&lines.join("\n"));
    } else {
        // Nobody may read it any more.
        let _ = error.print();
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2))
}

/// What stands behind a verb's options, as `Example: oclcache run clpeak`: of each line what it is, and what it says.
pub fn notes(command: &Command) -> Vec<(String, String)> {
    let text = command.get_after_help().map(ToString::to_string);
    let lines = text.iter().flat_map(|text| text.lines());
    let notes = lines.filter_map(|line| line.split_once(": "));
    notes
        .map(|(what, words)| (what.to_owned(), words.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All verbs that people see, and those below them.
    fn verbs(command: &Command) -> Vec<Command> {
        let below = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        below
            .flat_map(|verb| [vec![verb.clone()], verbs(verb)].concat())
            .collect()
    }

    #[test]
    fn each_verb_stands_in_one_group() {
        let command = definition();
        let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
        let mut wanted: Vec<&str> = verbs.map(Command::get_name).collect();
        let groups = groups(&command);
        let found = groups.iter().flat_map(|(_, verbs)| verbs.iter());
        let mut found: Vec<&str> = found.map(|verb| verb.get_name()).collect();
        wanted.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, wanted);
    }

    /// What follows the command's name in a line for a shell, up to what ends it there.
    fn arguments(example: &str) -> Option<Vec<&str>> {
        let (_, command) = example.split_once("oclcache")?;
        let end = command.find(['|', '>', ')', ';', '&']);
        let command = &command[..end.unwrap_or(command.len())];
        Some(command.split_whitespace().collect())
    }

    #[test]
    fn each_verb_has_an_example_that_it_understands() {
        let command = definition();
        for verb in std::iter::once(command.clone()).chain(verbs(&command)) {
            let name = verb.get_name();
            let notes = notes(&verb);
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
    fn the_help_fits_a_terminal() {
        let command = Arguments::command();
        for width in [40, 80, 100] {
            let text = console::strip_ansi_codes(&as_text(&command, width)).into_owned();
            for line in text.lines() {
                assert!(line.len() <= width, "{line}");
            }
        }
        assert!(as_text(&command, 0).contains("stats"));
    }
}
