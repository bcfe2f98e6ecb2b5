//! The findings of the doctor, and how they are shown.

use std::path::Path;

use serde_json::{Value, json};

use crate::cli::output::{self, quoted};
use crate::cli::replace_file::is_writable;
use crate::log;

/// How serious a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Severity {
    /// As it should be.
    Good,
    /// The cache works, but not as well or as one might expect.
    Doubtful,
    /// The cache does not work.
    Wrong,
}

impl Severity {
    fn word(self) -> &'static str {
        match self {
            Severity::Good => "ok",
            Severity::Doubtful => "warning",
            Severity::Wrong => "wrong",
        }
    }
}

/// How to fix what a finding is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fix {
    /// A sentence; empty if the command is enough.
    words: String,
    /// A command for a shell.
    command: Option<String>,
}

impl Fix {
    /// A fix without a command.
    pub fn words(words: impl Into<String>) -> Fix {
        Fix {
            words: words.into(),
            command: None,
        }
    }

    /// A command that fixes it.
    pub fn command(command: impl Into<String>) -> Fix {
        Fix {
            words: String::new(),
            command: Some(command.into()),
        }
    }

    /// A command on a path; in words if the path cannot be quoted.
    pub fn on(command: &str, path: &Path) -> Fix {
        match quoted(path) {
            Some(quoted) => Fix::command(format!("{command} {quoted}")),
            None => Fix::words(format!("{command} `{}`", log::path(path))),
        }
    }

    /// Adds a sentence before the command.
    pub fn because(mut self, words: impl Into<String>) -> Fix {
        self.words = words.into();
        self
    }

    /// With `sudo`, if this user cannot write to the directory of a path.
    pub fn by_who_may(self, path: &Path) -> Fix {
        self.by_owner(is_writable(path.parent().unwrap_or(path)))
    }

    /// With `sudo`, unless this user may do it.
    pub fn by_owner(mut self, is_own: bool) -> Fix {
        if !is_own {
            self.command = self.command.map(|command| format!("sudo {command}"));
        }
        self
    }
}

/// One finding.
#[derive(Clone, Debug)]
pub struct Finding {
    about: &'static str,
    state: Severity,
    text: String,
    fix: Option<Fix>,
}

/// All findings, in order.
#[derive(Default)]
pub struct DoctorReport {
    findings: Vec<Finding>,
}

impl DoctorReport {
    /// The text, here and below, must be plain (`log::text`).
    pub fn good(&mut self, about: &'static str, text: impl Into<String>) {
        self.add(about, Severity::Good, text.into(), None);
    }

    pub fn doubtful(&mut self, about: &'static str, text: impl Into<String>, fix: Fix) {
        self.add(about, Severity::Doubtful, text.into(), Some(fix));
    }

    pub fn wrong(&mut self, about: &'static str, text: impl Into<String>, fix: Fix) {
        self.add(about, Severity::Wrong, text.into(), Some(fix));
    }

    fn add(&mut self, about: &'static str, state: Severity, text: String, fix: Option<Fix>) {
        self.findings.push(Finding {
            about,
            state,
            text,
            fix,
        });
    }

    /// Whether anything is wrong.
    pub fn is_wrong(&self) -> bool {
        self.count(Severity::Wrong) > 0
    }

    fn count(&self, state: Severity) -> usize {
        let of_state = self.findings.iter().filter(|found| found.state == state);
        of_state.count()
    }

    /// One line for each finding, with the fix below it.
    pub fn shown(&self) -> String {
        self.in_width(output::width().unwrap_or(usize::MAX))
    }

    /// The same for a file.
    pub fn plain(&self) -> String {
        let shown = self.in_width(usize::MAX);
        console::strip_ansi_codes(&shown).into_owned()
    }

    fn in_width(&self, width: usize) -> String {
        let mut shown = String::new();
        let longest = self.findings.iter().map(|found| found.about.len()).max();
        let longest = longest.unwrap_or(0);
        for found in &self.findings {
            let word = format!("{:<7}", found.state.word());
            let word = match found.state {
                Severity::Good => output::good(word),
                Severity::Doubtful => output::doubtful(word),
                Severity::Wrong => output::bad(word),
            };
            let start = format!("{word}  {:<longest$}  ", found.about);
            shown += &output::wrapped(start, found.text.split(' '), width);
            let Some(fix) = &found.fix else {
                continue;
            };
            // A command is not broken into lines, so that it can be copied.
            let command = fix.command.as_ref().map(output::heading);
            let words = match (&command, fix.words.as_str()) {
                (Some(_), "") => String::new(),
                (Some(_), words) => format!("{words}:"),
                (None, words) => words.to_owned(),
            };
            let words = words.split(' ').filter(|word| !word.is_empty());
            let pieces = words.chain(command.as_deref());
            shown += &output::wrapped(format!("{:9}-> ", ""), pieces, width);
        }
        shown
    }

    /// All findings in one line.
    pub fn summary(&self) -> String {
        let warnings = match self.count(Severity::Doubtful) {
            0 => "no warnings".to_owned(),
            count => output::plural(count as u64, "warning", "warnings"),
        };
        match self.count(Severity::Wrong) {
            0 if self.count(Severity::Doubtful) == 0 => "everything is fine".to_owned(),
            0 => format!("nothing is wrong, {warnings}"),
            count => {
                let wrong = output::plural(count as u64, "thing is", "things are");
                format!("{wrong} wrong, {warnings}")
            }
        }
    }

    pub fn json(&self) -> Value {
        let one = |found: &Finding| {
            json!({
                "about": found.about,
                "state": found.state.word(),
                "text": found.text,
                "mend": found.fix.as_ref().map(|fix| json!({
                    "words": (!fix.words.is_empty()).then_some(&fix.words),
                    "command": fix.command,
                })),
            })
        };
        json!({
            "well": !self.is_wrong(),
            "findings": self.findings.iter().map(one).collect::<Vec<_>>(),
        })
    }
}
