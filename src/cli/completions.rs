//! `oclcache completions`.

mod live;

use std::process::ExitCode;

use clap::{Args, ValueEnum};
use clap_complete::Shell;

use super::failure::Failure;
use super::help::{self, CommandDefinition};
use super::output::print;

pub use live::CompleteValuesArgs;

/// A shell that has completions.
#[derive(Clone, Copy, ValueEnum)]
pub enum ShellName {
    /// In ~/.bashrc: source <(oclcache completions bash)
    Bash,
    /// As _oclcache in a directory of $fpath
    Zsh,
    /// As ~/.config/fish/completions/oclcache.fish
    Fish,
}

/// Print the completions for a shell
#[derive(Args)]
#[command(
    after_help = "Example: oclcache completions bash > ~/.local/share/bash-completion/completions/oclcache"
)]
pub struct CompletionsArgs {
    /// The shell
    shell: ShellName,
}

impl CompletionsArgs {
    pub fn run(self, definition: CommandDefinition) -> Result<ExitCode, Failure> {
        let shell = match self.shell {
            ShellName::Bash => Shell::Bash,
            ShellName::Zsh => Shell::Zsh,
            ShellName::Fish => Shell::Fish,
        };
        let mut script = Vec::new();
        clap_complete::generate(
            shell,
            &mut help::for_people(&definition.command),
            "oclcache",
            &mut script,
        );
        let script = String::from_utf8(script).map_err(Failure::new)?;
        print(live::complete(self.shell, &script).as_bytes())
    }
}
