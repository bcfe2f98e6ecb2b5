//! One worker process, as it is talked to.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use super::super::output::seconds;
use super::root::Root;
use crate::store::bake_attempts::CRASHED;
use rustix::process::{Pid, Signal, kill_process_group};

/// How long it may take to end when there is nothing more to do.
const ENDING: Duration = Duration::from_secs(10);
/// How long it may be without a processor beside that.
const MAX_STARVED: Duration = Duration::from_secs(3600);
/// How often it is looked whether the user wants no more.
const LOOK: Duration = Duration::from_millis(100);

/// How often the start of a program that was just copied is tried: a child that another thread forked meanwhile may still have the
/// file open for writing.
const MAX_BUSY_TRIES: u32 = 50;

/// A worker process.
pub struct Worker {
    child: Child,
    keys: Option<ChildStdin>,
    answers: Receiver<String>,
    /// Removed with it.
    root: Root,
}

/// Why there is no answer.
pub enum Silence {
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
    pub fn start(command: &mut Command, root: Root) -> io::Result<Worker> {
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

    /// Its directory.
    pub fn root(&self) -> &Path {
        self.root.path()
    }

    /// Gives it a line, and waits for its answer. It is gone if there is none.
    pub fn ask(
        &mut self,
        line: &str,
        limit: Duration,
        stop: &AtomicBool,
    ) -> Result<String, Silence> {
        // One that has ended is found by its answer.
        let _ = self.keys.as_mut().map(|keys| writeln!(keys, "{line}"));
        self.answer(limit, stop)
    }

    /// Waits for an answer, as [`Worker::ask`] does. What the worker waits for a processor is not held against it: on a busy
    /// machine it gets next to nothing, and a driver that hangs wants none.
    pub fn answer(&mut self, limit: Duration, stop: &AtomicBool) -> Result<String, Silence> {
        let started = Instant::now();
        let before = self.starved();
        let silence = loop {
            let starved = self.starved().saturating_sub(before).min(MAX_STARVED);
            let left = (limit.saturating_add(starved)).saturating_sub(started.elapsed());
            match self.answers.recv_timeout(left.min(LOOK)) {
                Ok(line) => return Ok(line),
                Err(RecvTimeoutError::Timeout) if stop.load(Ordering::Relaxed) => {
                    break Silence::Stopped;
                }
                Err(RecvTimeoutError::Timeout) if left <= LOOK => break Silence::TooLong,
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    // What it has started goes with it.
                    self.kill_group();
                    let ended = self.child.wait();
                    return Err(ended.map_or_else(Silence::Unknown, Silence::Ended));
                }
            }
        };
        self.kill();
        Err(silence)
    }

    /// How long its thread that has waited longest was ready to run and got no processor.
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

    /// It is done for.
    pub fn kill(&mut self) {
        self.kill_group();
        let _ = self.child.wait();
    }

    /// There is nothing more to do. Drivers clear away when a process ends, and some hang then.
    pub fn end(mut self) {
        self.keys = None;
        let started = Instant::now();
        while started.elapsed() < ENDING {
            match self.child.try_wait() {
                Ok(None) => std::thread::sleep(Duration::from_millis(5)),
                _ => return,
            }
        }
        self.kill();
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

/// The second of three numbers: nanoseconds in a run queue (Linux, Documentation/scheduler/sched-stats.rst).
fn starved(schedstat: &str) -> Option<Duration> {
    let number = schedstat.split_ascii_whitespace().nth(1)?;
    number.parse().ok().map(Duration::from_nanos)
}

impl Silence {
    /// For people.
    pub fn words(&self, limit: Duration) -> String {
        match self {
            Silence::TooLong => {
                let limit = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
                format!("it took longer than {}", seconds(limit))
            }
            Silence::Stopped => "it was stopped".to_owned(),
            Silence::Ended(status) => match status.signal() {
                Some(signal) => format!("{CRASHED} (signal {signal})"),
                None => format!("the driver ended the process ({status})"),
            },
            Silence::Unknown(error) => format!("the worker is gone: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_waited_for_a_processor_is_known_where_the_kernel_tells_it() {
        assert_eq!(starved("3 2000 7\n"), Some(Duration::from_micros(2)));
        assert_eq!(starved(""), None);
        if let Ok(own) = std::fs::read_to_string("/proc/self/schedstat") {
            assert!(starved(&own).is_some(), "{own}");
        }
    }
}
