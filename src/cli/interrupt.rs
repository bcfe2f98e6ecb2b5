//! Work that a person may stop: it is told of the signal, ends where everything is whole, and the process then ends by that signal,
//! so that a shell stops its loop as well.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::failure::Failure;
use super::run;

/// Whether it is to stop.
#[derive(Clone)]
pub struct Interrupt {
    stop: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// From now on a signal does not end this process, unless it comes twice. What is ignored, as under nohup, stays ignored.
    ///
    /// # Errors
    /// The system refuses a handler.
    pub fn listen() -> Result<Interrupt, Failure> {
        let interrupt = Interrupt {
            stop: Arc::default(),
            signal: Arc::default(),
        };
        let ignored = run::ignored_signals();
        let signals = [SIGINT, SIGTERM, SIGHUP].into_iter();
        for signal in signals.filter(|signal| ignored >> (signal - 1) & 1 == 0) {
            let (stop, number) = (interrupt.stop.clone(), interrupt.signal.clone());
            let registered = flag::register_conditional_default(signal, stop.clone())
                .and_then(|_| flag::register_usize(signal, number, signal as usize))
                .and_then(|_| flag::register(signal, stop));
            registered.map_err(|error| {
                Failure::new(format_args!("cannot be told of signals: {error}"))
            })?;
        }
        Ok(interrupt)
    }

    /// Whether it is to stop.
    pub fn came(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    /// The same for who asks often, or elsewhere.
    pub fn flag(&self) -> &AtomicBool {
        &self.stop
    }

    /// What becomes of the process, with these words, after it was stopped.
    pub fn failure(&self, words: &str) -> Failure {
        Failure {
            words: words.to_owned(),
            code: Failure::SIGNALED + self.signal.load(Ordering::Relaxed) as u8,
        }
    }
}
