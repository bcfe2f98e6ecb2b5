//! Completion of what is in the cache: keys, programs and drivers of entries, and names of settings.
//!
//! The scripts ask `oclcache complete-values` when the user presses the key. Shells evaluate the words that they complete, and names
//! of programs come from elsewhere, so only words without special characters are offered.

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::{Args, ValueEnum};

use super::ShellName;
use crate::cli::entry_view::SHOWN_DIGITS;
use crate::cli::failure::Failure;
use crate::cli::open::usable_store;
use crate::cli::output::print;
use crate::config::{Config, SETTINGS};
use crate::store::StoreError;

/// What is completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Completed {
    Keys,
    Programs,
    Drivers,
    Settings,
}

impl Completed {
    const ALL: [(Completed, &str); 4] = [
        (Completed::Keys, "keys"),
        (Completed::Programs, "programs"),
        (Completed::Drivers, "drivers"),
        (Completed::Settings, "settings"),
    ];

    fn name(self) -> &'static str {
        let found = Completed::ALL.iter().find(|(one, _)| *one == self);
        found.map_or("", |(_, name)| name)
    }
}

/// The options whose values are completed.
const OPTIONS: [(&str, Completed); 4] = [
    ("key", Completed::Keys),
    ("audit", Completed::Keys),
    ("program", Completed::Programs),
    ("driver", Completed::Drivers),
];

/// The verbs whose first argument is completed.
const VERBS: [(&str, Completed); 6] = [
    ("show", Completed::Keys),
    ("extract", Completed::Keys),
    ("explain", Completed::Keys),
    ("config get", Completed::Settings),
    ("config set", Completed::Settings),
    ("config unset", Completed::Settings),
];

/// Internal.
#[derive(Args)]
#[command(hide = true)]
pub struct CompleteValuesArgs {
    what: Completed,
}

impl CompleteValuesArgs {
    /// Prints the words, one a line.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let mut words = BTreeSet::new();
        let store = usable_store(&Config::read());
        match (self.what, store) {
            (Completed::Settings, _) => {
                words.extend(SETTINGS.iter().map(|setting| setting.key.to_owned()));
            }
            (_, None) => {}
            (Completed::Keys, Some(store)) => {
                let entries = store.entries()?.into_iter();
                words.extend(entries.map(|(key, _)| key.hex()[..SHOWN_DIGITS].to_owned()));
            }
            (what, Some(store)) => store.walk_heads(
                |heads| {
                    let heads = heads.entries.iter().filter_map(|(_, head)| head.as_ref());
                    let name = |head: &crate::store::heads::EntryHead| match what {
                        Completed::Programs => head.executable.clone(),
                        _ => head.driver_family.clone(),
                    };
                    heads.map(name).collect::<BTreeSet<String>>()
                },
                |names| {
                    words.extend(names);
                    Ok::<(), StoreError>(())
                },
            )?,
        }
        let words = words.into_iter().filter(|word| is_safe(word));
        print(words.map(|word| word + "\n").collect::<String>().as_bytes())
    }
}

/// Whether no shell takes a word for anything else.
fn is_safe(word: &str) -> bool {
    let is_safe = |letter: char| letter.is_ascii_alphanumeric() || "._+-".contains(letter);
    !word.is_empty() && !word.starts_with('-') && word.chars().all(is_safe)
}

fn command(what: Completed) -> String {
    format!("$(oclcache complete-values {} 2>/dev/null)", what.name())
}

/// The script, which asks for words.
pub fn complete(shell: ShellName, script: &str) -> String {
    match shell {
        ShellName::Bash => bash(script),
        ShellName::Zsh => zsh(script),
        ShellName::Fish => fish(script),
    }
}

/// The values of an option are in a `case` of its name, the positional arguments of a verb in its list of words.
fn bash(script: &str) -> String {
    let (mut shown, mut option, mut verb) = (String::new(), None, None);
    for line in script.lines() {
        let word = line.trim();
        let label = word.strip_suffix(')').filter(|label| !label.contains('('));
        if let Some(label) = label {
            option = OPTIONS
                .iter()
                .find(|(name, _)| label == format!("--{name}"))
                .map(|(_, what)| *what);
            if label.starts_with("oclcache__") {
                let is = |name: &str| {
                    let parts: Vec<&str> =
                        label.split("__").filter(|part| *part != "subcmd").collect();
                    parts[1..].join(" ") == name
                };
                verb = VERBS
                    .iter()
                    .find(|(name, _)| is(name))
                    .map(|(_, what)| *what);
            }
        }
        let line = match (option, verb) {
            (Some(what), _) if word.starts_with("COMPREPLY=($(compgen -f") => {
                option = None;
                let words = command(what);
                line.replace("compgen -f", &format!("compgen -W \"{words}\" --"))
            }
            (_, Some(what)) if word.starts_with("opts=\"") => {
                verb = None;
                let words = line.trim_end_matches('"');
                format!("{words} {}\"", command(what))
            }
            _ => line.to_owned(),
        };
        shown += &line;
        shown.push('\n');
    }
    shown
}

/// The last part of a specification of `_arguments` is the function that completes.
fn zsh(script: &str) -> String {
    let mut shown = String::new();
    for (index, line) in script.lines().enumerate() {
        let word = line.trim();
        let option = OPTIONS.iter().find(|(name, _)| {
            let start = [format!("'--{name}="), format!("'*--{name}=")];
            start.iter().any(|start| word.starts_with(start))
        });
        let name = word
            .strip_prefix("':")
            .map(|rest| rest.trim_start_matches(':'));
        let positional = match name {
            Some(name) if name.starts_with("key -- The setting") => Some(Completed::Settings),
            Some(name) if name.starts_with("key --") => Some(Completed::Keys),
            _ => None,
        };
        let what = option.map(|(_, what)| *what).or(positional);
        let line = match (what, line.rfind(":_default'")) {
            (Some(what), Some(at)) => {
                let (start, rest) = line.split_at(at);
                let rest = rest.trim_start_matches(":_default'");
                format!("{start}:_oclcache_{}'{rest}", what.name())
            }
            _ => line.to_owned(),
        };
        shown += &line;
        shown.push('\n');
        if index == 0 {
            for (what, name) in Completed::ALL {
                shown += &format!(
                    "\n_oclcache_{name}() {{\n    local -a words\n    words=(${{(f)\"{}\"}})\n    compadd -a words\n}}\n",
                    command(what)
                );
            }
        }
    }
    shown
}

/// Each option is a command with `-l NAME`. Positional arguments are commands that are added.
fn fish(script: &str) -> String {
    let ask = |what: Completed| {
        format!(
            "-f -a \"({})\"",
            command(what).trim_start_matches("$(").trim_end_matches(')')
        )
    };
    let mut shown = String::new();
    for line in script.lines() {
        let option = OPTIONS
            .iter()
            .find(|(name, _)| line.contains(&format!(" -l {name} ")));
        shown += line;
        if let Some((_, what)) = option
            && line.ends_with(" -r")
        {
            shown += &format!(" {}", ask(*what));
        }
        shown.push('\n');
    }
    for (verb, what) in VERBS {
        let seen = verb
            .split(' ')
            .map(|word| format!("__fish_seen_subcommand_from {word}"));
        let seen = seen.collect::<Vec<_>>().join("; and ");
        shown += &format!("complete -c oclcache -n \"{seen}\" {}\n", ask(what));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_is_offered_that_a_shell_would_evaluate() {
        for word in ["wave.py", "python3.11", "a_b+c-d"] {
            assert!(is_safe(word), "{word}");
        }
        for word in [
            "",
            "-rf",
            "$(reboot)",
            "`reboot`",
            "a b",
            "a;b",
            "a\nb",
            "ä",
            "*",
        ] {
            assert!(!is_safe(word), "{word}");
        }
    }
}
