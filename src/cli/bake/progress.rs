//! What a person who waits for a bake is told: what is compiled, and how much is left. On a terminal a bar, elsewhere some lines.

use std::io::IsTerminal;
use std::sync::Mutex;

use indicatif::ProgressBar;

use super::collect::{BakeItem, Work};
use super::locked;
use super::replayer::BakeTask;
use crate::cli::entry_view::kernels;
use crate::cli::output::{plural, say, seconds};
use crate::cli::progress::bar;
use crate::log::text;

/// How many lines tell of the progress where there is no terminal.
const MAX_LINES: usize = 10;

/// The progress of a bake.
pub struct BakeProgress {
    bar: ProgressBar,
    has_lines: bool,
    state: Mutex<State>,
}

struct State {
    /// How many items there are, without those that were put off: they are counted when their turn comes.
    count: usize,
    /// How many are done.
    done: usize,
    /// The time that applications took to compile what is left, in nanoseconds.
    left: u64,
}

impl BakeProgress {
    /// Says what will be compiled. `is_stale`: only what is not of the installed driver is. `is_told`: a person reads standard error.
    pub fn new(work: &Work, is_stale: bool, is_told: bool) -> BakeProgress {
        let count = work.items().count();
        let took = work
            .items()
            .fold(0u64, |sum, item| sum.saturating_add(item.compile_ns));
        if let Some(first) = work.items().next().filter(|_| is_told) {
            say(&format!(
                "oclcache: {}",
                headline(first.task, is_stale, count, took)
            ));
        }
        BakeProgress {
            bar: bar(count as u64, ""),
            has_lines: is_told && !std::io::stderr().is_terminal(),
            state: Mutex::new(State {
                count,
                done: 0,
                left: took,
            }),
        }
    }

    /// An item is being compiled.
    pub fn begun(&self, item: &BakeItem) {
        let left = seconds(locked(&self.state).left);
        let program = text(item.program.as_bytes());
        let kernels = kernels(&item.kernels);
        self.bar
            .set_message(format!("about {left} left: {program}: {kernels}"));
    }

    /// An item is done.
    pub fn ended(&self, item: &BakeItem) {
        let mut state = locked(&self.state);
        state.done += 1;
        state.left = state.left.saturating_sub(item.compile_ns);
        let State { count, done, left } = *state;
        if self.has_lines && is_told(done, count) {
            let left = seconds(left);
            say(&format!(
                "oclcache: {done} of {count} done, about {left} left"
            ));
        }
        self.bar.inc(1);
    }

    /// An item is left for later.
    pub fn put_off(&self, item: &BakeItem) {
        let mut state = locked(&self.state);
        state.count -= 1;
        state.left = state.left.saturating_sub(item.compile_ns);
        self.bar.set_length(state.count as u64);
    }

    /// Nothing is left.
    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

fn headline(task: BakeTask, is_stale: bool, count: usize, took: u64) -> String {
    let count = count as u64;
    let recipes = plural(count, "recipe", "recipes");
    let entries = plural(count, "entry", "entries");
    match task {
        _ if is_stale => format!("checking {entries}"),
        BakeTask::Bake | BakeTask::Again => {
            format!("compiling {recipes}, which took {} at first", seconds(took))
        }
        BakeTask::BakeUnused => format!("compiling {recipes} whose kernels never ran"),
        BakeTask::Audit => format!("auditing {entries}"),
    }
}

/// Whether to print a progress line once `done` of `count` recipes are compiled. After the last one the results follow instead.
fn is_told(done: usize, count: usize) -> bool {
    let tenth = |done: usize| done * MAX_LINES / count.max(1);
    (1..count).contains(&done) && tenth(done) != tenth(done - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_few_lines_however_much_is_compiled() {
        let told = |count| (1..=count).filter(|number| is_told(*number, count)).count();
        assert_eq!([0, 1, 2, 9, 10].map(told), [0, 0, 1, 8, 9]);
        assert_eq!([11, 99, 100_000].map(told), [9, 9, 9]);
    }
}
