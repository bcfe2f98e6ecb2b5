//! `oclcache report`: one HTML file that needs nothing else, holds no script, and may be looked at anywhere.
//!
//! It is written into a file of the user's own (mode 0600), since it has names of programs, kernels and options in it, in the
//! working directory: browsers that are confined, as those of Snap, see neither `~/.cache` nor `/tmp`.

mod charts;
mod found;
mod html;
mod page;

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use super::failure::Failure;
use super::output::{print, say};
use super::summary::CacheSummary;
use crate::log::path;
use found::Findings;

const NAME: &str = "oclcache-report.html";
/// With this each report begins, and nothing else: what does not is not written over.
const MARK: &str = "<!DOCTYPE html>\n<!-- a report of oclcache -->\n";
/// A browser that could not be started has said so by then.
const PATIENCE: Duration = Duration::from_secs(2);

/// Write what was saved, by day, program and device, as a page to look at in a browser
#[derive(Args)]
#[command(after_help = "Example: oclcache report --open")]
pub struct ReportArgs {
    /// Show it in the browser: $BROWSER, or what `xdg-open` finds
    #[arg(long)]
    open: bool,
    /// The file, `-` is standard output; otherwise oclcache-report.html in the working directory
    #[arg(value_name = "FILE", default_value = NAME, hide_default_value = true)]
    file: PathBuf,
}

impl ReportArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let is_printed = self.file == Path::new("-");
        if is_printed && self.open {
            return Err(Failure::new("--open needs a file, and `-` is none"));
        }
        // Before the work: whose file it is does not change by it.
        if !is_printed {
            may_replace(&self.file)?;
        }
        let gathered = CacheSummary::read()?;
        let found = Findings::read(&gathered)?;
        let page = format!("{MARK}{}", page::render(&gathered, &found));
        if is_printed {
            return print(page.as_bytes());
        }
        write(&self.file, page.as_bytes()).map_err(|error| {
            let file = path(&self.file);
            Failure::new(format_args!(
                "cannot write `{file}`: {error}; name another file"
            ))
        })?;
        let file = std::path::absolute(&self.file).unwrap_or_else(|_| self.file.clone());
        say(&format!("oclcache: written to `{}`", path(&file)));
        if self.open {
            open(&file)?;
        }
        Ok(ExitCode::SUCCESS)
    }
}

/// Whether there is nothing of the name, or an earlier report.
fn may_replace(file: &Path) -> Result<(), Failure> {
    let shown = path(file);
    let is_plain = match file.symlink_metadata() {
        Ok(found) => found.is_file(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => {
            return Err(Failure::new(format_args!(
                "cannot look at `{shown}`: {error}; name another file"
            )));
        }
    };
    let mut start = Vec::new();
    let opened = is_plain.then(|| File::open(file)).and_then(Result::ok);
    let read = opened.map(|opened| opened.take(MARK.len() as u64).read_to_end(&mut start));
    match read {
        Some(Ok(_)) if start == MARK.as_bytes() => Ok(()),
        _ => Err(Failure::new(format_args!(
            "`{shown}` exists and is no report of oclcache, so it is left alone; name another file"
        ))),
    }
}

/// By a new file that takes the name, so that nobody sees half a report, and no link is followed.
fn write(file: &Path, content: &[u8]) -> io::Result<()> {
    let directory = match file.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    };
    // Made with mode 0600.
    let mut temporary = tempfile::Builder::new()
        .prefix(".oclcache-report-")
        .tempfile_in(directory)?;
    temporary.write_all(content)?;
    temporary.persist(file).map_err(|failure| failure.error)?;
    Ok(())
}

/// Shows a file in a browser.
fn open(file: &Path) -> Result<(), Failure> {
    let by_hand = |why: String| {
        let file = path(file);
        Failure::new(format_args!("{why}; open `{file}` in a browser yourself"))
    };
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let browser = variable("BROWSER");
    if browser.is_none()
        && ["DISPLAY", "WAYLAND_DISPLAY"]
            .iter()
            .all(|name| variable(name).is_none())
    {
        return Err(by_hand("there is no display here".into()));
    }
    // A list of commands as xdg-open(1) has it, of which the first is taken.
    let browser = browser.unwrap_or_else(|| "xdg-open".into());
    let first = std::env::split_paths(&browser).next().unwrap_or_default();
    let started = Command::new(&first)
        .arg(file)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    let mut child =
        started.map_err(|error| by_hand(format!("cannot run `{}`: {error}", path(&first))))?;
    // Some browsers stay in the foreground.
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                return Err(by_hand(format!(
                    "`{}` showed nothing ({status})",
                    path(&first)
                )));
            }
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    Ok(())
}
