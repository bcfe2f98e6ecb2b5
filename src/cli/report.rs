//! `oclcache report`: writes one self-contained HTML file without scripts.
//!
//! The file has mode 0600, since it contains names of programs, kernels and options. It is written to the working directory, since
//! confined browsers, such as those of Snap, cannot read `~/.cache` or `/tmp`.

mod charts;
mod content;
mod html;
mod page;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use super::failure::Failure;
use super::output::{print, say};
use super::replace_file::{may_replace, replace};
use super::summary::CacheSummary;
use crate::log::path;
use content::ReportContent;

const NAME: &str = "oclcache-report.html";
/// The beginning of each report. Other files are not overwritten.
const MARK: &str = "<!DOCTYPE html>\n<!-- a report of oclcache -->\n";
/// A browser that cannot be started fails within this time.
const MAX_START_TIME: Duration = Duration::from_secs(2);

/// Write the statistics by day, program and device as an HTML page
#[derive(Args)]
#[command(after_help = "Example: oclcache report --open")]
pub struct ReportArgs {
    /// Open it in the browser: $BROWSER, or the one that `xdg-open` finds
    #[arg(long)]
    open: bool,
    /// The file, or `-` for standard output; by default oclcache-report.html in the working directory
    #[arg(value_name = "FILE", default_value = NAME, hide_default_value = true)]
    file: PathBuf,
}

impl ReportArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let is_printed = self.file == Path::new("-");
        if is_printed && self.open {
            return Err(Failure::new("--open needs a file; `-` is standard output"));
        }
        // Before the work, which may take long.
        if !is_printed {
            may_replace(&self.file, MARK)?;
        }
        let gathered = CacheSummary::read()?;
        let found = ReportContent::read(&gathered)?;
        let page = format!("{MARK}{}", page::render(&gathered, &found));
        if is_printed {
            return print(page.as_bytes());
        }
        replace(&self.file, page.as_bytes(), Some(0o600)).map_err(|error| {
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

/// Opens a file in a browser.
fn open(file: &Path) -> Result<(), Failure> {
    let by_hand = |why: String| {
        let file = path(file);
        Failure::new(format_args!("{why}; open `{file}` in a browser"))
    };
    let variable = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty());
    let browser = variable("BROWSER");
    if browser.is_none()
        && ["DISPLAY", "WAYLAND_DISPLAY"]
            .iter()
            .all(|name| variable(name).is_none())
    {
        return Err(by_hand("there is no display".into()));
    }
    // BROWSER is a list of commands, as in xdg-open(1). The first is used.
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
    let until = Instant::now() + MAX_START_TIME;
    while Instant::now() < until {
        match child.try_wait() {
            Ok(Some(status)) if status.success() => return Ok(()),
            Ok(Some(status)) => {
                return Err(by_hand(format!("`{}` failed ({status})", path(&first))));
            }
            _ => std::thread::sleep(Duration::from_millis(20)),
        }
    }
    Ok(())
}
