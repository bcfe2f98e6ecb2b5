//! The cost of a key, counted in steps.
//!
//! No build may wait long for its key. So the texts of a build may cost a number of steps that is linear in their length, whatever they
//! contain; texts that would cost more are left to the driver. No clock decides that: equal texts get equal verdicts, on a busy machine
//! as on an idle one.
//!
//! A step is what takes about a nanosecond. Each loop that runs as long as a text says counts its steps. The limit is checked between
//! passes over a text, and in what is not linear by itself; a pass costs a constant number of steps for each byte.

use std::cell::Cell;
use std::rc::Rc;

use crate::outcome::Bypass;

/// Steps that any texts may cost.
pub const ALLOWED_ALWAYS: usize = 8 << 20;
/// Steps that each byte of the texts may cost besides.
pub const ALLOWED_FOR_BYTE: usize = 10;

/// Bytes that a search looks at in one step.
const BYTES_AT_ONCE: usize = 8;

/// The steps of one key. Clones share their counts.
#[derive(Clone, Debug, Default)]
pub struct Work(Rc<Counts>);

#[derive(Debug, Default)]
struct Counts {
    spent: Cell<usize>,
    /// The length of the texts.
    bytes: Cell<usize>,
}

impl Work {
    /// Allows for a text of so many bytes.
    pub fn allow_for(&self, bytes: usize) {
        let counts = &self.0;
        counts.bytes.set(counts.bytes.get().saturating_add(bytes));
    }

    /// Allows for texts that are read once more from the beginning.
    pub fn allow_again(&self) {
        self.allow_for(ALLOWED_ALWAYS / ALLOWED_FOR_BYTE);
    }

    /// Counts steps.
    #[inline]
    pub fn count(&self, steps: usize) {
        let counts = &self.0;
        counts.spent.set(counts.spent.get().saturating_add(steps));
    }

    /// Counts a search through so many bytes.
    #[inline]
    pub fn count_search(&self, bytes: usize) {
        self.count(bytes / BYTES_AT_ONCE + 1);
    }

    /// The steps so far.
    pub fn spent(&self) -> usize {
        self.0.spent.get()
    }

    /// The steps that are left.
    pub fn left(&self) -> usize {
        let bytes = self.0.bytes.get();
        let allowed = bytes
            .saturating_mul(ALLOWED_FOR_BYTE)
            .saturating_add(ALLOWED_ALWAYS);
        allowed.saturating_sub(self.spent())
    }

    /// Whether no step is left.
    pub fn is_used_up(&self) -> bool {
        self.left() == 0
    }

    /// Whether so many more steps may be taken.
    ///
    /// # Errors
    /// They may not.
    pub fn check(&self, more: usize) -> Result<(), Bypass> {
        match more >= self.left() {
            true => Err(Bypass::CostlyText),
            false => Ok(()),
        }
    }

    /// Counts steps, if so many may be taken.
    ///
    /// # Errors
    /// They may not.
    pub fn spend(&self, steps: usize) -> Result<(), Bypass> {
        self.check(steps)?;
        self.count(steps);
        Ok(())
    }
}

#[cfg(test)]
mod tests;
