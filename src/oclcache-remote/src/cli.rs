//! The verbs.

mod gc;
mod join;
mod key;
mod transfer;
mod trust;
mod view;

use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::{Parser, Subcommand};
use oclcache::remote::protocol::VERSION;
use oclcache::remote::settings::RemoteSettings;
use oclcache::remote::state::OtherVersion;
use oclcache::remote::{is_adopted_by_init, leave_raised};
use rustix::process::{Resource, Rlimit, Signal, getrlimit, setrlimit};
use tokio::signal::unix::{SignalKind, signal};

use crate::local::Local;
use crate::server::{IDLE, ServeOptions, Server};
use crate::session;
use crate::shared::now;

/// Variables that batch systems set in the jobs that they start.
const BATCH_VARIABLES: [&str; 3] = ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID"];

/// How long the threads of a verb that has ended may take to end.
const SHUTDOWN: Duration = Duration::from_secs(1);
/// How long no helper is started after one could not use the settings.
const UNUSABLE: Duration = Duration::from_secs(60);

/// Share the cache between machines
#[derive(Parser)]
#[command(name = "oclcache remote", version, disable_help_subcommand = true)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Show the store, whom this machine trusts, and what is wrong
    Status(view::StatusArgs),
    /// Use the store of an invitation, which is read from standard input
    #[command(after_help = "Example: oclcache remote invite | ssh b oclcache remote join -")]
    Join(join::JoinArgs),
    /// Write an invitation for another machine of yours, or for a colleague, to standard output
    #[command(after_help = "Example: oclcache remote invite | ssh b oclcache remote join -")]
    Invite(join::InviteArgs),
    /// Use what somebody else's machines have built
    #[command(after_help = "Example: oclcache remote trust alice RWQ...")]
    Trust(trust::TrustArgs),
    /// Delete what a key has signed, and use it no more
    Untrust(trust::UntrustArgs),
    /// Show the key of this user, or make one
    Key(key::KeyArgs),
    /// Send what this machine has built
    Push(transfer::PushArgs),
    /// Fetch what fits this version, for work without a network
    Pull(transfer::PullArgs),
    /// Delete objects that are older than `remote_ttl`, for stores that evict nothing
    Gc(gc::GcArgs),
    /// Check the store step by step
    Doctor(view::DoctorArgs),
    /// Move the password of a URL, which is read from standard input, into its file, and print the URL without it
    #[command(hide = true)]
    Credential(join::CredentialArgs),
    /// Make the key and the directory that the store of the settings needs, if they are missing
    #[command(hide = true)]
    SetUp(join::SetUpArgs),
    /// Serve the programs of this user; they start it themselves
    #[command(hide = true)]
    Serve(ServeArgs),
}

#[derive(clap::Args)]
struct ServeArgs {
    /// End after so many seconds without a client
    #[arg(long, value_name = "SECONDS")]
    idle: Option<u64>,
    /// The version of the messages of the program that starts the helper; none is given by hand
    #[arg(long, value_name = "VERSION")]
    protocol: Option<u8>,
}

/// The result of a verb. The error is a message for people.
type Done = Result<ExitCode, String>;

/// Runs the verb of the command line.
pub fn run() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.verb {
        Verb::Status(verb) => verb.run(),
        Verb::Join(verb) => verb.run(),
        Verb::Invite(verb) => verb.run(),
        Verb::Trust(verb) => verb.run(),
        Verb::Untrust(verb) => verb.run(),
        Verb::Key(verb) => verb.run(),
        Verb::Push(verb) => verb.run(),
        Verb::Pull(verb) => verb.run(),
        Verb::Gc(verb) => verb.run(),
        Verb::Doctor(verb) => verb.run(),
        Verb::Credential(verb) => verb.run(),
        Verb::SetUp(verb) => verb.run(),
        Verb::Serve(verb) => verb.run(),
    };
    done.unwrap_or_else(|why| {
        crate::say(&format!("error: {why}"));
        ExitCode::FAILURE
    })
}

impl ServeArgs {
    fn run(self) -> Done {
        limit_memory();
        raise_limits();
        if self.protocol.is_some() {
            leave_raised();
        }
        // Linux before 6.14 shows the number of the descriptor by which the library executes it.
        let _ = std::fs::write("/proc/self/comm", env!("CARGO_PKG_NAME"));
        let settings = RemoteSettings::read();
        let local = Local::open(&settings)?;
        if let Some(version) = self.protocol.filter(|version| *version != VERSION) {
            let other = OtherVersion {
                version,
                asked: now(),
            };
            let _ = local
                .store()
                .change_state(|state| state.other_version = Some(other));
            return Err(view::sentence(other));
        }
        let listener = local
            .listen()
            .map_err(|error| format!("no socket can be made: {error}"))?;
        let Some(listener) = listener else {
            // Another helper serves.
            return Ok(ExitCode::SUCCESS);
        };
        let shared = session::open(&settings).inspect_err(|why| unusable(&local, why))?;
        let is_in_batch_job = || {
            let is_set = |name| std::env::var_os(name).is_some();
            BATCH_VARIABLES.into_iter().any(is_set)
        };
        // A supervisor that has adopted it, as those of batch systems do, waits for its end with that of the program.
        let is_waited_for = || self.protocol.is_some() && !is_adopted_by_init();
        let options = ServeOptions {
            idle: self.idle.map_or(IDLE, Duration::from_secs),
            ends_with_clients: is_in_batch_job() || is_waited_for(),
        };
        let served = run_to_end(async {
            // A file beyond a limit is an error then, and not the end of the helper.
            let _size = signal(SignalKind::from_raw(Signal::XFSZ.as_raw()))?;
            let acceptor = crate::server::Acceptor::new(listener)?;
            Server::new(shared, local).serve(acceptor, options).await
        })?;
        served.map_err(|error| format!("the helper ends: {error}"))?;
        Ok(ExitCode::SUCCESS)
    }
}

/// Says that the settings cannot be used, so that programs start no further helper for a while.
fn unusable(local: &Local, why: &str) {
    let _ = local.store().set_breaker(Some((UNUSABLE, why)));
    let _ = local
        .store()
        .change_state(|state| state.trouble = why.to_owned());
}

/// A server that lies about lengths can make the client of Redis read without end.
fn limit_memory() {
    const MAX_BYTES: u64 = 2 << 30;
    let old = getrlimit(Resource::Data);
    let current = old
        .current
        .map_or(MAX_BYTES, |current| current.min(MAX_BYTES));
    let new = Rlimit {
        current: Some(current),
        maximum: old.maximum,
    };
    let _ = setrlimit(Resource::Data, new);
}

/// The limits are those of the program that has started the helper, which serves others, too.
fn raise_limits() {
    for resource in [Resource::Fsize, Resource::Nofile] {
        let limit = getrlimit(resource);
        let raised = Rlimit {
            current: limit.maximum,
            maximum: limit.maximum,
        };
        let _ = setrlimit(resource, raised);
    }
}

/// Runs a future to its end. Threads that still wait then, such as for a file system that does not answer, are left behind.
fn run_to_end<T>(future: impl Future<Output = T>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| format!("no threads can be made: {error}"))?;
    let done = runtime.block_on(future);
    runtime.shutdown_timeout(SHUTDOWN);
    Ok(done)
}

/// Writes a line to standard output. A reader that has gone is no error.
fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}");
    let _ = out.flush();
}

/// Says how many directories of the store were not listed, if there are any.
fn print_hidden(count: u64) {
    if count > 0 {
        print(&format!(
            "directories of the store that are left out, since this user cannot list them: {count}"
        ));
    }
}

/// The command `oclcache`: beside this program, else by its name.
fn command() -> PathBuf {
    let beside = std::env::current_exe()
        .ok()
        .and_then(|own| Some(own.parent()?.join("oclcache")));
    beside
        .filter(|path| path.exists())
        .unwrap_or_else(|| "oclcache".into())
}

/// Writes a setting, or removes it if the value is empty, by the command that owns the files of settings.
fn set(key: &str, value: &str, is_system: bool) -> Result<(), String> {
    let mut command = Command::new(command());
    command.arg("config");
    command.arg(if value.is_empty() { "unset" } else { "set" });
    if is_system {
        command.arg("--system");
    }
    command.arg(key);
    if !value.is_empty() {
        command.arg(value);
    }
    command.stdout(std::process::Stdio::null());
    let status = command
        .status()
        .map_err(|error| format!("cannot start `oclcache config`: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("`oclcache config` could not write `{key}`")),
    }
}

/// Tells the helper of these settings to end, since they change, or what they name.
fn stop_helper(settings: &RemoteSettings) {
    if let Ok(local) = Local::open(settings) {
        let stop = oclcache::remote::protocol::Request::Stop;
        let _ = local.store().ask(&stop, Duration::from_secs(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_does_not_keep_the_command() {
        let (release, wait) = std::sync::mpsc::channel::<()>();
        let done = run_to_end(async {
            drop(tokio::task::spawn_blocking(move || wait.recv()));
        });
        assert_eq!(done, Ok(()));
        // It has waited until now.
        assert_eq!(release.send(()), Ok(()));
    }
}
