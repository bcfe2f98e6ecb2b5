//! `oclcache path`.

use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Args;
use serde_json::json;

use super::failure::Failure;
use super::open::directory;
use super::output::{print, print_json};
use crate::config::Config;

/// Print the cache directory
#[derive(Args)]
#[command(after_help = "Example: du -sh \"$(oclcache path)\"\nIn ccache: -k cache_dir")]
pub struct PathArgs {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl PathArgs {
    /// Prints the bytes of the path; on a terminal, which would obey some of them, as plain text.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let path = directory(&Config::read())?;
        if self.json {
            return print_json(&json!({ "path": path.to_string_lossy() }));
        }
        if io::stdout().is_terminal() {
            return print(format!("{}\n", crate::log::path(&path)).as_bytes());
        }
        print(&[path.as_os_str().as_bytes(), b"\n"].concat())
    }
}
