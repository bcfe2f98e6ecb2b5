//! Long work that can be stopped: it is told of a signal and ends where everything is whole.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressStyle};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use super::super::{Failure, run};

/// Whether the user wants no more.
#[derive(Clone)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on a signal does not end this process, unless it comes twice.
    pub fn listen() -> Result<Interrupt, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let ignored = run::ignored_signals();
        let signals = [SIGINT, SIGTERM, SIGHUP].into_iter();
        for signal in signals.filter(|signal| ignored >> (signal - 1) & 1 == 0) {
            flag::register_conditional_default(signal, stop.clone()).map_err(Failure::new)?;
            flag::register(signal, stop.clone()).map_err(Failure::new)?;
        }
        Ok(Interrupt(stop))
    }

    pub fn came(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// # Errors
    /// It came.
    pub fn check(&self) -> Result<(), Failure> {
        match self.came() {
            true => Err(Failure::new("it was stopped")),
            false => Ok(()),
        }
    }

    /// For who asks a worker.
    pub fn flag(&self) -> &AtomicBool {
        &self.0
    }
}

/// A bar on a terminal, and nothing elsewhere. What is done at each step stands behind it.
pub fn bar(steps: u64, doing: &'static str) -> ProgressBar {
    let bar = ProgressBar::new(steps);
    if let Ok(style) = ProgressStyle::with_template("{msg} {pos}/{len} {wide_bar}") {
        bar.set_style(style);
    }
    bar.set_message(doing);
    bar
}
