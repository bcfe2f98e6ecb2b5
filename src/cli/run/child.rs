//! Runs a program, passes signals on to it, and ends as it ended.

use std::ffi::OsStr;
use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus};

use rustix::io::Errno;
use rustix::process::{Pid, WaitOptions, getpid};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;

use crate::cli::failure::Failure;
use crate::cli::interrupt::{end_by, ignored_signals};
use crate::log::path;

/// The exit code if a program succeeded but compiled something with OCLCACHE_MUST_HIT=1, or may have:
/// nothing was built through the cache. Shells use 126 and 127.
const MISSED: u8 = 125;
fn spawn(command: &mut Command, name: &OsStr) -> Result<Child, Failure> {
    command.spawn().map_err(|error| {
        let name = path(Path::new(name)).to_string();
        // The codes of shells: 127 not found, 126 not executable.
        let (code, step) = match error.kind() {
            io::ErrorKind::NotFound if name.starts_with('-') => {
                (127, "run `oclcache run --help` for the options of `run`")
            }
            io::ErrorKind::NotFound => (127, "name a program in PATH, or give its path"),
            _ => (126, "check that it is a program and that you may run it"),
        };
        Failure {
            message: format!("cannot run `{name}`: {error}; {step}"),
            code,
        }
    })
}

/// Waits for the end of the program, of this number. As the first process of a container this one is the parent of all that have lost
/// theirs, and waits for them as well.
fn wait(child: &mut Child, pid: Option<Pid>) -> io::Result<ExitStatus> {
    if !getpid().is_init() {
        return child.wait();
    }
    loop {
        match rustix::process::wait(WaitOptions::empty()) {
            Ok(Some((ended, status))) if Some(ended) == pid => {
                return Ok(ExitStatus::from_raw(status.as_raw()));
            }
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Runs the program. Signals that are sent to this process are passed on; the program receives signals of the terminal itself.
pub fn run_to_end(command: &mut Command, name: &OsStr) -> Result<ExitStatus, Failure> {
    // Before the program starts: an early signal would end this process but not the program.
    let ignored = ignored_signals();
    let signals = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2]
        .into_iter()
        .filter(|signal| ignored >> (signal - 1) & 1 == 0);
    let signals = SignalsInfo::<WithOrigin>::new(signals)
        .map_err(|error| Failure::new(format_args!("cannot handle signals: {error}")));
    let mut signals = signals?;
    let handle = signals.handle();
    let mut child = spawn(command, name)?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let status = std::thread::scope(|scope| {
        scope.spawn(move || {
            for origin in signals.forever() {
                // Signals of the terminal come from the kernel and go to the whole process group.
                if let (Some(_), Some(pid), Some(signal)) = (
                    origin.process,
                    pid,
                    rustix::process::Signal::from_named_raw(origin.signal),
                ) {
                    let _ = rustix::process::kill_process(pid, signal);
                }
            }
        });
        let status = wait(&mut child, pid);
        handle.close();
        status
    });
    status.map_err(|error| Failure::new(format_args!("cannot wait for the program: {error}")))
}

/// Ends as the program ended: with its code or by its signal. A program's own failure takes precedence over `missed`.
pub fn exit_as(status: &ExitStatus, missed: bool) -> Result<ExitCode, Failure> {
    if missed && status.success() {
        return Ok(ExitCode::from(MISSED));
    }
    if let Some(signal) = status.signal() {
        // The program has left a core file already; ours is useless.
        let none = rustix::process::Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        let _ = rustix::process::setrlimit(rustix::process::Resource::Core, none);
        return Ok(end_by(signal));
    }
    Ok(ExitCode::from(
        status
            .code()
            .and_then(|code| u8::try_from(code).ok())
            .unwrap_or(1),
    ))
}
