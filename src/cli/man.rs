//! `oclcache man`: a page for the command and one for each verb, made from their definitions and the table of settings.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

use super::failure::Failure;
use super::help::{self, CommandDefinition, Group};
use super::output::{print, say};
use crate::config::SETTINGS;
use crate::log::path;

/// Files that the command reads and writes, in addition to those that settings name.
const FILES: [(&str, &str); 4] = [
    ("~/.config/oclcache/config.toml", "The settings of a user"),
    ("/etc/oclcache/config.toml", "The settings of the system"),
    ("~/.cache/oclcache", "The cache"),
    (
        "/etc/OpenCL/vendors/oclcache.icd",
        "Registers the library with loaders",
    ),
];

/// Print the man page of the command, or write all man pages into a directory
#[derive(Args)]
#[command(
    after_help = "Example: oclcache man ~/.local/share/man/man1\nExample: oclcache man | man -l -"
)]
pub struct ManArgs {
    /// Where to write the pages; without it, the command's own page is printed
    directory: Option<PathBuf>,
}

impl ManArgs {
    /// Prints the command's own page, or writes all into a directory.
    pub fn run(self, definition: CommandDefinition) -> Result<ExitCode, Failure> {
        let mut command = help::for_people(&definition.command);
        command.build();
        let Some(directory) = self.directory.as_deref() else {
            return print(&page(&command, &command, definition.groups).map_err(Failure::new)?);
        };
        std::fs::create_dir_all(directory).map_err(|error| failed("make", directory, &error))?;
        let written = write(&command, &command, definition.groups, directory)?;
        say(&format!(
            "oclcache: wrote {written} pages; read one with: man -l {}",
            path(&directory.join("oclcache.1"))
        ));
        Ok(ExitCode::SUCCESS)
    }
}

/// Writes the pages of a command and of the verbs below it. Returns how many.
fn write(
    root: &Command,
    command: &Command,
    groups: &[Group],
    directory: &Path,
) -> Result<usize, Failure> {
    let file: PathBuf = directory.join(Man::new(command.clone()).get_filename());
    let page = page(root, command, groups).map_err(Failure::new)?;
    std::fs::write(&file, page).map_err(|error| failed("write", &file, &error))?;
    let below = command.get_subcommands();
    let pages = below.map(|verb| write(root, verb, groups, directory));
    Ok(1 + pages.sum::<Result<usize, Failure>>()?)
}

fn failed(what: &str, place: &Path, error: &io::Error) -> Failure {
    Failure::new(format_args!(
        "cannot {what} `{}`: {error}; name a directory that you can write",
        path(place)
    ))
}

fn page(root: &Command, command: &Command, groups: &[Group]) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    let man = Man::new(command.clone());
    let title = command.get_display_name().unwrap_or("oclcache");
    let version = root.get_version().unwrap_or_default();
    // `render_title` omits an empty date, so that the next argument takes its place (clap_mangen 0.3.3).
    writeln!(
        text,
        ".TH {} 1 \"\" \"oclcache {version}\" \"User Commands\"",
        title.to_uppercase()
    )?;
    man.render_name_section(&mut text)?;
    man.render_synopsis_section(&mut text)?;
    man.render_description_section(&mut text)?;
    let is_root = command.get_name() == root.get_name();
    if is_root {
        for group in groups {
            let verbs = help::verbs(command, group);
            if !verbs.is_empty() {
                section(group.heading, verbs.into_iter().map(named)).to_writer(&mut text)?;
            }
        }
    } else if command.has_subcommands() {
        section("VERBS", command.get_subcommands().map(named)).to_writer(&mut text)?;
    }
    if command.get_arguments().next().is_some() {
        man.render_options_section(&mut text)?;
    }
    if is_root {
        let settings = SETTINGS.iter().filter_map(|setting| {
            let words = format!(
                "In the file: {}. Default: {}. Meaning: {}.",
                setting.key,
                if setting.default.is_empty() {
                    "nothing"
                } else {
                    setting.default
                },
                setting.help
            );
            Some((setting.variable?.to_owned(), words))
        });
        section("ENVIRONMENT", settings).to_writer(&mut text)?;
        let files = FILES.map(|(file, what)| (file.to_owned(), format!("{what}.")));
        section("FILES", files.into_iter()).to_writer(&mut text)?;
    }
    let notes = help::notes(command);
    for (what, heading) in [
        ("Exit code", "EXIT STATUS"),
        ("In ccache", "CCACHE"),
        ("Example", "EXAMPLES"),
    ] {
        let mut found = notes.iter().filter(|note| note.0 == what).peekable();
        if found.peek().is_none() {
            continue;
        }
        let mut roff = Roff::new();
        roff.control("SH", [heading]);
        for (index, (_, words)) in found.enumerate() {
            if index > 0 {
                roff.control("PP", []);
            }
            roff.text([if what == "Example" {
                bold(words)
            } else {
                roman(words)
            }]);
        }
        roff.to_writer(&mut text)?;
    }
    let mut roff = Roff::new();
    roff.control("SH", ["SEE ALSO"]);
    let others = if is_root {
        "ccache(1), clinfo(1)"
    } else {
        "oclcache(1)"
    };
    roff.text([roman(others)]);
    roff.to_writer(&mut text)?;
    // clap_mangen puts two breaks above a list of possible values, and mandoc warns about them.
    let text = String::from_utf8_lossy(&text).replace("\n.br\n\n.br\n", "\n.sp\n");
    Ok(text.into_bytes())
}

/// The name of a verb's page, and what the verb does.
fn named(verb: &Command) -> (String, String) {
    let name = verb.get_display_name().unwrap_or_else(|| verb.get_name());
    let about = verb.get_about().map(ToString::to_string);
    (
        format!("{name}(1)"),
        format!("{}.", about.unwrap_or_default()),
    )
}

/// A section with rows of name and description.
fn section(heading: &str, rows: impl Iterator<Item = (String, String)>) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [heading.to_uppercase().as_str()]);
    for (name, words) in rows {
        roff.control("TP", []);
        roff.text([bold(name)]);
        roff.text([roman(words)]);
    }
    roff
}
