//! Long work that the user may interrupt: it stops at a consistent point, and the process then ends by the signal, so that a shell
//! stops its loop as well.

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::process::getpid;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::failure::Failure;

/// Notes SIGINT, SIGTERM and SIGHUP.
#[derive(Clone)]
pub struct Interrupt {
    stop: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// From now on only a second signal ends this process. Ignored signals, as under nohup, stay ignored.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub fn listen() -> Result<Interrupt, Failure> {
        let interrupt = Interrupt {
            stop: Arc::default(),
            signal: Arc::default(),
        };
        let ignored = ignored_signals();
        let signals = [SIGINT, SIGTERM, SIGHUP].into_iter();
        for signal in signals.filter(|signal| ignored >> (signal - 1) & 1 == 0) {
            let (stop, number) = (interrupt.stop.clone(), interrupt.signal.clone());
            let at_second = match getpid().is_init() {
                true => {
                    let code = i32::from(code_of(signal));
                    flag::register_conditional_shutdown(signal, code, stop.clone())
                }
                false => flag::register_conditional_default(signal, stop.clone()),
            };
            let registered = at_second
                .and_then(|_| flag::register_usize(signal, number, signal as usize))
                .and_then(|_| flag::register(signal, stop));
            registered
                .map_err(|error| Failure::new(format_args!("cannot handle signals: {error}")))?;
        }
        Ok(interrupt)
    }

    /// Whether a signal came.
    pub fn came(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// Set when a signal has come.
    pub fn flag(&self) -> &AtomicBool {
        &self.stop
    }

    /// Called before each step of long work.
    ///
    /// # Errors
    /// A signal came.
    pub fn go_on(&self) -> Result<(), Failure> {
        match self.came() {
            true => Err(self.failure("stopped")),
            false => Ok(()),
        }
    }

    /// A failure with this message, which ends the process by the signal.
    pub fn failure(&self, words: &str) -> Failure {
        Failure {
            message: words.to_owned(),
            code: Failure::SIGNALED + self.signal.load(Ordering::Relaxed) as u8,
        }
    }
}

/// Ends this process by a signal, or returns the code of one. The system ignores what the first process of a container sends to itself.
pub fn end_by(signal: i32) -> ExitCode {
    if !getpid().is_init() {
        let _ = signal_hook::low_level::emulate_default_handler(signal);
    }
    ExitCode::from(code_of(signal))
}

/// The code by which shells tell of a signal.
fn code_of(signal: i32) -> u8 {
    u8::try_from(i32::from(Failure::SIGNALED) + signal).unwrap_or(1)
}

/// The set of signals that this process ignores, as under nohup: bit N-1 for signal N.
pub fn ignored_signals() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|digits| u64::from_str_radix(digits.trim(), 16).ok())
        .unwrap_or(0)
}
