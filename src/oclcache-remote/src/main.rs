//! The command `oclcache-remote`, which `oclcache remote` starts.

use std::process::ExitCode;

fn main() -> ExitCode {
    oclcache_remote::cli::run()
}
