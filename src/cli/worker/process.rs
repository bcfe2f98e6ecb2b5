//! The parent's side of a worker process.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::super::output::seconds;
use super::private_directory::PrivateDirectory;
use crate::store::bake_attempts::CRASHED;
use rustix::process::{Pid, Signal, kill_process_group};

/// How long a worker may take to exit. Drivers clean up at exit, and some hang.
const MAX_EXIT_TIME: Duration = Duration::from_secs(10);
/// How long a worker may wait for a processor, in addition to its time limit.
const MAX_STARVED: Duration = Duration::from_secs(3600);
/// How often to check whether the user has interrupted the work.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// How often the start of a program that was just copied is tried: a child that another thread forked meanwhile may still have the
/// file open for writing.
const MAX_BUSY_TRIES: u32 = 50;

/// A worker process.
pub struct Worker {
    child: Child,
    keys: Option<ChildStdin>,
    answers: Receiver<String>,
    /// Removed when the worker is dropped.
    root: PrivateDirectory,
}

/// Why a worker did not answer.
pub enum NoAnswer {
    TooLong,
    Stopped,
    Ended(ExitStatus),
    Unknown(io::Error),
}

impl Worker {
    /// Starts a worker in a process group of its own; `root` is its private directory.
    ///
    /// # Errors
    /// The process cannot be started.
    pub fn start(command: &mut Command, root: PrivateDirectory) -> io::Result<Worker> {
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0);
        let mut child = spawn(command)?;
        let (tell, answers) = channel();
        let output = child.stdout.take();
        std::thread::spawn(move || {
            let lines = output.map(|output| BufReader::new(output).lines());
            for line in lines.into_iter().flatten().map_while(Result::ok) {
                if tell.send(line).is_err() {
                    return;
                }
            }
        });
        Ok(Worker {
            keys: child.stdin.take(),
            child,
            answers,
            root,
        })
    }

    /// The private directory.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// Sends a request and waits for the answer. Without an answer the worker has been killed.
    pub fn ask(
        &mut self,
        line: &str,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<String, NoAnswer> {
        // A worker that has ended is detected by its answer.
        let _ = self.keys.as_mut().map(|keys| writeln!(keys, "{line}"));
        self.answer(limit, stop)
    }

    /// Waits for an answer, as [`Worker::ask`] does. Time that the worker waits for a processor does not count: on a busy machine it
    /// waits long, and a hanging driver does not wait for a processor.
    pub fn answer(&mut self, limit: Duration, stop: &AtomicBool) -> Result<String, NoAnswer> {
        let started = Instant::now();
        let before = self.starved();
        let silence = loop {
            let starved = self.starved().saturating_sub(before).min(MAX_STARVED);
            let left = (limit.saturating_add(starved)).saturating_sub(started.elapsed());
            match self.answers.recv_timeout(left.min(POLL_INTERVAL)) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => {
                    break NoAnswer::Stopped;
                }
                Err(RecvTimeoutError::Timeout) if left <= POLL_INTERVAL => break NoAnswer::TooLong,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    // Also kill the processes that it started.
                    self.kill_group();
                    let ended = ended_within(&mut self.child, MAX_EXIT_TIME);
                    return Err(ended.map_or_else(NoAnswer::Unknown, NoAnswer::Ended));
                }
            }
        };
        self.kill();
        Err(silence)
    }

    /// The longest time that one of its threads was ready to run and got no processor.
    fn starved(&self) -> Duration {
        let tasks = std::fs::read_dir(format!("/proc/{}/task", self.child.id()));
        let waits = tasks.into_iter().flatten().flatten().filter_map(|task| {
            let text = std::fs::read_to_string(task.path().join("schedstat"));
            starved(&text.ok()?)
        });
        waits.max().unwrap_or_default()
    }

    fn kill_group(&self) {
        let group = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw);
        if let Some(group) = group {
            let _ = kill_process_group(group, Signal::KILL);
        }
    }

    /// Kills the worker and its process group. Does not wait for ever: nothing ends a process that waits in the kernel for a device
    /// that hangs.
    pub fn kill(&mut self) {
        self.kill_group();
        let _ = ended_within(&mut self.child, MAX_EXIT_TIME);
    }

    /// Lets the worker exit, and kills it if it takes too long.
    pub fn end(mut self) {
        self.keys = None;
        if ended_within(&mut self.child, MAX_EXIT_TIME).is_err() {
            self.kill();
        }
    }
}

/// Waits for the end of a process.
///
/// # Errors
/// It goes on for longer.
fn ended_within(child: &mut Child, limit: Duration) -> io::Result<ExitStatus> {
    let started = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(status);
        }
        if started.elapsed() >= limit {
            return Err(io::Error::other("it cannot be ended"));
        }
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Starts a command, and tries again while its file is busy.
fn spawn(command: &mut Command) -> io::Result<Child> {
    for _ in 0..MAX_BUSY_TRIES {
        match command.spawn() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                std::thread::sleep(Duration::from_millis(20));
            }
            spawned => return spawned,
        }
    }
    command.spawn()
}

/// The second of three numbers is nanoseconds in a run queue (Linux, Documentation/scheduler/sched-stats.rst).
fn starved(schedstat: &str) -> Option<Duration> {
    let number = schedstat.split_ascii_whitespace().nth(1)?;
    number.parse().ok().map(Duration::from_nanos)
}

impl NoAnswer {
    /// The reason as a message.
    pub fn words(&self, limit: Duration) -> String {
        match self {
            NoAnswer::TooLong => {
                let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
                format!("it took longer than {}", seconds(limit))
            }
            NoAnswer::Stopped => "it was interrupted".to_owned(),
            NoAnswer::Ended(status) => match status.signal() {
                Some(signal) => format!("{CRASHED} (signal {signal})"),
                None => format!("the driver ended the process ({status})"),
            },
            NoAnswer::Unknown(error) => format!("the worker process does not answer: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_goes_on_is_not_waited_for_longer_than_allowed() {
        let mut child = Command::new("sleep").arg("600").spawn().expect("started");
        let goes_on = ended_within(&mut child, Duration::from_millis(5));
        assert!(goes_on.is_err());
        child.kill().expect("killed");
        let ended = ended_within(&mut child, MAX_EXIT_TIME).expect("ended");
        assert_eq!(ended.signal(), Some(Signal::KILL.as_raw()));
    }

    #[test]
    fn what_a_thread_waited_for_a_processor_is_known_where_the_kernel_tells_it() {
        assert_eq!(starved("3 2000 7\n"), Some(Duration::from_micros(2)));
        assert_eq!(starved(""), None);
        if let Ok(own) = std::fs::read_to_string("/proc/self/schedstat") {
            assert!(starved(&own).is_some(), "{own}");
        }
    }
}
