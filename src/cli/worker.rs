//! Worker processes: children that open a driver on behalf of a verb, so that a driver that crashes or hangs ends a child only.
//!
//! The verb writes requests to the child's standard input and reads answers, one a line, from its standard output. The child works
//! in a private directory ([`private_directory::PrivateDirectory`]).

pub mod confinement;
pub mod private_directory;
pub mod process;

use std::fs::File;
use std::os::fd::OwnedFd;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, Rlimit, Signal};

/// The first answer of a worker that is ready.
pub const READY: &str = "ready";
/// The first answer of a worker that cannot work begins with this; the reason follows.
pub const CLOSED: &str = "closed ";

/// Makes this process a worker. Returns the streams for requests and answers, which a driver that prints cannot reach: its standard
/// input and output are `/dev/null`.
pub fn streams() -> std::io::Result<(File, File)> {
    // The worker ends with the process that started it, and a crash of the driver leaves no core file.
    let _ = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let none = Rlimit {
        current: Some(0),
        maximum: Some(0),
    };
    let _ = rustix::process::setrlimit(Resource::Core, none);
    let nothing = File::options().read(true).write(true).open("/dev/null")?;
    let keys: OwnedFd = fcntl_dupfd_cloexec(rustix::stdio::stdin(), 3)?;
    let answers: OwnedFd = fcntl_dupfd_cloexec(rustix::stdio::stdout(), 3)?;
    rustix::stdio::dup2_stdin(&nothing)?;
    rustix::stdio::dup2_stdout(&nothing)?;
    Ok((keys.into(), answers.into()))
}
