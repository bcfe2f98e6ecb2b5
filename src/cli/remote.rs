//! `oclcache remote`: hands its arguments to the helper of the remote level, which is a program of its own.

use std::ffi::OsString;
use std::io::Write;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use clap::Args;

use super::failure::Failure;
use super::library::own_path;
use super::output::{plural, say};
use crate::cache::autobake::REMOTE_KEY;
use crate::companion::{self, REMOTE_HELPER};
use crate::config::{self, Config};
use crate::remote::local::LocalStore;
use crate::remote::protocol::{Answer, Request};
use crate::remote::settings::RemoteSettings;
use crate::remote::start;

/// How long `oclcache run` waits for what the program has left to be sent.
const FLUSH: Duration = Duration::from_secs(10);
/// How long the helper may take to answer beyond that.
const GRACE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

/// Share the cache between machines, by a store such as Redis
#[derive(Args)]
#[command(
    after_help = "Verbs: status; doctor; join -; invite [--public] [--name NAME]; trust NAME KEY [--system]; untrust KEY; key; key new [--ci]; push [--all]; pull; gc\n`oclcache remote VERB --help` describes a verb.\nExample: oclcache remote status\nExample: oclcache remote trust alice RWQ..."
)]
pub struct RemoteArgs {
    /// A verb of `oclcache-remote`, and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "VERB"
    )]
    arguments: Vec<OsString>,
}

impl RemoteArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        execute(&self.arguments)
    }
}

/// Executes the helper with these arguments in place of this process.
pub fn execute(arguments: &[OsString]) -> Result<ExitCode, Failure> {
    let helper = helper()?;
    let error = Command::new(&helper).args(arguments).exec();
    Err(Failure::new(format_args!(
        "cannot run `{}`: {error}",
        crate::log::path(&helper)
    )))
}

/// The helper.
///
/// # Errors
/// It is not installed, or others could have written it.
pub fn helper() -> Result<PathBuf, Failure> {
    let own = own_path()?;
    if companion::beside(&own, REMOTE_HELPER).is_none() {
        return Err(Failure::new(format_args!(
            "`{REMOTE_HELPER}` is not installed: install the package of this name, or build it from the source with `cargo build --release --manifest-path src/oclcache-remote/Cargo.toml` and put it beside this command"
        )));
    }
    let helper = companion::trusted(&own, REMOTE_HELPER).map_err(|why| {
        Failure::new(format_args!(
            "`{REMOTE_HELPER}` is not used: {why}; make it and its directories writable for you and root only"
        ))
    })?;
    Ok(helper.path)
}

/// Moves the password of a URL into a file that only the user can read. Returns the URL without it; None if it has none.
///
/// # Errors
/// The password cannot be moved. It must not get into a configuration file, which others may read.
pub fn without_password(url: &str, system: bool) -> Result<Option<String>, Failure> {
    if config::without_password(url) == url {
        return Ok(None);
    }
    if system {
        return Err(Failure::usage(
            "the system's file is read by all users, so it must have no password; give each user the password in `remote_credentials`",
        ));
    }
    let helper = helper()?;
    let mut command = Command::new(&helper);
    command.arg("credential").stdin(Stdio::piped());
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(Failure::new)?;
    // It goes through a pipe: anybody can read the arguments of a process.
    if let Some(mut stdin) = child.stdin.take() {
        writeln!(stdin, "{url}").map_err(Failure::new)?;
    }
    let output = child.wait_with_output().map_err(Failure::new)?;
    let without = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let is_without = !without.is_empty() && config::without_password(&without) == without;
    match output.status.success() && is_without {
        true => Ok(Some(without)),
        false => Err(Failure::new(
            "the password was not moved into a file of its own, so nothing is set",
        )),
    }
}

/// Has the helper make a secret key, and the directory that is the store, if there is none, and say what to type next. Without a helper
/// it says what is missing.
pub fn set_up() {
    let done = helper().and_then(|helper| {
        let done = Command::new(helper).arg("set-up").status();
        done.map_err(Failure::new)
    });
    if let Err(failure) = done {
        say(&format!("oclcache: {}", failure.message));
    }
}

/// What `oclcache run` does for the remote level: nothing without a remote store.
pub struct RunSharing(Option<SharedRun>);

struct SharedRun {
    store: LocalStore,
    /// How many entries were never sent before.
    withheld: u64,
}

impl RunSharing {
    /// Called before the program starts, which does not get the secret key: a helper that was started for it could sign nothing. So
    /// it is started here, in place of one that has no key.
    pub fn begin(config: &Config) -> RunSharing {
        let settings = RemoteSettings::of(config.clone());
        if settings.url.is_none() {
            return RunSharing(None);
        }
        let store = match LocalStore::open(&settings) {
            Ok(store) => store,
            Err(why) => {
                tracing::debug!(why, "the remote store is not used");
                return RunSharing(None);
            }
        };
        if std::env::var_os(REMOTE_KEY).is_some() {
            store.ask(&Request::Stop, GRACE);
            start::start();
        }
        let withheld = store.state().withheld;
        RunSharing((!settings.is_readonly).then_some(SharedRun { store, withheld }))
    }

    /// Called after the program has ended: waits until what it left was sent, but not for long, and says what is not.
    pub fn end(&self, quiet: bool) {
        let Some(SharedRun { store, withheld }) = &self.0 else {
            return;
        };
        let left = send(store);
        if quiet {
            return;
        }
        let left = left.unwrap_or_else(|why| {
            let why = crate::log::text(why.as_bytes());
            say(&format!("oclcache: nothing is sent to `remote`: {why}"));
            0
        });
        if left > 0 {
            let left = plural(left, "entry is", "entries are");
            say(&format!(
                "oclcache: {left} not sent to `remote` yet; `oclcache remote status` tells why, and the next program sends what is left"
            ));
        }
        let state = store.state();
        let withheld = state.withheld.saturating_sub(*withheld);
        if withheld > 0 {
            let withheld = plural(withheld, "entry is", "entries are");
            let why = crate::log::text(state.withheld_why.as_bytes());
            say(&format!(
                "oclcache: {withheld} never sent to `remote`: {why}"
            ));
        }
    }
}

/// Has the helper send what is in the outbox. Returns how many entries are left.
///
/// # Errors
/// For people: the outbox cannot be used.
fn send(store: &LocalStore) -> Result<u64, String> {
    if store.pending()?.is_empty() {
        return Ok(0);
    }
    let wait_ms = u32::try_from(FLUSH.as_millis()).unwrap_or(u32::MAX);
    let request = Request::Flush { wait_ms };
    let until = Instant::now() + GRACE;
    let mut answer = store.ask(&request, FLUSH + GRACE);
    let mut is_started = false;
    while answer.is_none() && Instant::now() < until {
        // This process may have started it a moment ago.
        if !is_started && !start::start() && !start::is_starting() {
            break;
        }
        is_started = true;
        std::thread::sleep(PAUSE);
        answer = store.ask(&request, FLUSH + GRACE);
    }
    match answer {
        Some(Answer::Left(left)) => Ok(u64::from(left)),
        _ => Ok(store.pending()?.len() as u64),
    }
}
