//! `oclcache completions`.

use std::process::ExitCode;

use clap::ValueEnum;
use clap_complete::Shell;

use super::failure::Failure;
use super::help;
use super::output::print;

/// A shell that can be told what there is to be typed.
#[derive(Clone, Copy, ValueEnum)]
pub enum ShellName {
    /// In ~/.bashrc: source <(oclcache completions bash)
    Bash,
    /// As _oclcache in a directory of $fpath
    Zsh,
    /// As ~/.config/fish/completions/oclcache.fish
    Fish,
}

pub fn completions(wanted: ShellName) -> Result<ExitCode, Failure> {
    let shell = match wanted {
        ShellName::Bash => Shell::Bash,
        ShellName::Zsh => Shell::Zsh,
        ShellName::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(
        shell,
        &mut help::for_people(&help::definition()),
        "oclcache",
        &mut script,
    );
    print(&script)
}
