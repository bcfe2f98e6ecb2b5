//! The `oclcache` command.

use std::process::ExitCode;

fn main() -> ExitCode {
    oclcache::cli::main()
}
