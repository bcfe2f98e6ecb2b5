//! Reads large files on several threads at once, which takes half the time on two processors.
//!
//! The files of a driver have up to 330 MB, and the first process that uses a driver with a new cache directory reads them all. On two
//! processors Intel's CPU runtime is identified in 0.15 s, rusticl in 0.08 s.
//!
//! There are no threads for little data, and they end with the call. The calling thread reads as well, and waits only for threads that
//! have begun. A thread may not begin for long: it needs the dynamic linker's lock, which the caller holds if it is called from a
//! library's constructor.

#![allow(unsafe_code)] // lends a reference to the threads

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use crate::fork_generation::generation;
use crate::fork_safety::Signal;
use crate::own_threads::{self, DriverAtWork, LOOK_AGAIN};

/// More threads would wait for the memory.
const MAX_THREADS: usize = 8;
/// Less is read by the caller alone: starting threads takes as long as reading a megabyte.
const MIN_BYTES: u64 = 16 << 20;
/// What a thread needs: it reads into buffers from the heap.
const STACK: usize = 512 << 10;

/// Calls the function with each file or part of one, and returns what it returned, in their order. It may be called twice with one if
/// it panics. `size`: how many bytes it reads.
pub fn map<T: Sync, R: Send + Sync>(
    files: &[T],
    size: impl Fn(&T) -> u64,
    read: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let sizes: Vec<u64> = files.iter().map(size).collect();
    let bytes = sizes.iter().copied().fold(0, u64::saturating_add);
    if bytes < MIN_BYTES || files.len() < 2 {
        return files.iter().map(read).collect();
    }
    let most = (MAX_THREADS - 1).min(files.len() - 1);
    // The largest first, so that none is left for the end.
    let mut order: Vec<usize> = (0..files.len()).collect();
    order.sort_by_key(|index| std::cmp::Reverse(sizes[*index]));
    let results: Vec<OnceLock<R>> = files.iter().map(|_| OnceLock::new()).collect();
    with_helpers(
        &|| own_threads::useful_beside_drivers(most),
        order.len(),
        &|turn| {
            let index = order[turn];
            let _ = results[index].set(read(&files[index]));
        },
    );
    let results = results.into_iter().zip(files);
    let taken = results.map(|(result, file)| result.into_inner().unwrap_or_else(|| read(file)));
    taken.collect()
}

/// How many bytes a file has; 0: it cannot be looked at.
pub fn size(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}

/// What the caller and its helpers share.
struct Shared {
    /// The next turn that nobody has taken.
    next: AtomicUsize,
    turns: usize,
    /// How many helpers work, or look whether they may.
    working: AtomicUsize,
    /// Whether the caller takes its function back.
    is_over: AtomicBool,
    /// A helper has ended.
    ended: Signal,
    /// The process that has the helpers.
    generation: u64,
}

impl Shared {
    /// Takes the next turn; false: there is none.
    fn take_turn(&self, turn: &(dyn Fn(usize) + Sync)) -> bool {
        let next = self.next.fetch_add(1, Ordering::Relaxed);
        let is_there = next < self.turns;
        if is_there {
            turn(next);
        }
        is_there
    }
}

/// The caller's function, without the lifetime of what it borrows.
struct Lent(*const (dyn Fn(usize) + Sync));

// SAFETY: what it points to is `Sync`, and is used as `help` says.
unsafe impl Send for Lent {}

/// Calls the function once with each number below `turns`, in the caller and in helpers. A turn whose function panics in a helper
/// is lost. `useful`: how many helpers have a processor. That is asked again when a driver has begun or ended to compile: a helper that
/// takes its processor would make the program slower, and where the driver has ended, the program waits for us.
fn with_helpers(useful: &dyn Fn() -> usize, turns: usize, turn: &(dyn Fn(usize) + Sync)) {
    let shared = Arc::new(Shared {
        next: AtomicUsize::new(0),
        turns,
        working: AtomicUsize::new(0),
        is_over: AtomicBool::new(false),
        ended: Signal::new(),
        generation: generation(),
    });
    // SAFETY: only the lifetime changes. Helpers call the function while `working` counts them, and this call does not end before
    // that is zero, also if it panics: see `End`.
    let lent: &'static (dyn Fn(usize) + Sync) = unsafe { std::mem::transmute(turn) };
    let _end = End(&shared);
    let (mut started, mut at_work) = (0, None);
    loop {
        let now = DriverAtWork::count();
        if at_work.replace(now) != Some(now) {
            let useful = useful();
            while started < useful {
                let (shared, lent) = (shared.clone(), Lent(lent));
                // Without a thread, the caller does it all.
                let _ = own_threads::start(STACK, move || help(&shared, lent));
                started += 1;
            }
        }
        if !shared.take_turn(turn) {
            return;
        }
    }
}

/// What a helper does. The order of the two counters is Dekker's: either the caller sees the helper work and waits, or the helper sees
/// that it is over.
fn help(shared: &Shared, lent: Lent) {
    shared.working.fetch_add(1, Ordering::SeqCst);
    if !shared.is_over.load(Ordering::SeqCst) {
        // SAFETY: the caller waits until this helper is not counted any more, so what the function borrows is alive.
        let turn = unsafe { &*lent.0 };
        let _ = catch_unwind(AssertUnwindSafe(|| while shared.take_turn(turn) {}));
    }
    shared.working.fetch_sub(1, Ordering::SeqCst);
    shared.ended.notify();
}

/// Takes the function back from the helpers when the caller is done or panics. In a child that a signal handler of the caller's has
/// forked meanwhile, and that goes on here, there are no helpers.
struct End<'a>(&'a Shared);

impl Drop for End<'_> {
    fn drop(&mut self) {
        self.0.is_over.store(true, Ordering::SeqCst);
        loop {
            let seen = self.0.ended.now();
            if self.0.working.load(Ordering::SeqCst) == 0 || self.0.generation != generation() {
                return;
            }
            self.0.ended.wait(seen, Instant::now() + LOOK_AGAIN);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU32;
    use std::thread;
    use std::time::Duration;

    use super::*;
    use crate::own_threads::tests::end_of;

    #[test]
    fn each_turn_is_taken_once_by_whoever_comes() {
        for helpers in [0, 1, 7] {
            let taken: Vec<AtomicU32> = (0..100).map(|_| AtomicU32::new(0)).collect();
            with_helpers(&|| helpers, taken.len(), &|turn| {
                taken[turn].fetch_add(1, Ordering::Relaxed);
            });
            let taken = taken.iter().map(|count| count.load(Ordering::Relaxed));
            assert!(taken.into_iter().all(|count| count == 1), "{helpers}");
        }
    }

    #[test]
    fn the_results_have_the_order_of_the_paths_and_a_panic_in_a_helper_is_made_good() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let paths: Vec<_> = (0..20)
            .map(|number| {
                let path = directory.path().join(number.to_string());
                let file = std::fs::File::create(&path).expect("made");
                file.set_len(MIN_BYTES / 4 + number).expect("room");
                path
            })
            .collect();
        let paths: Vec<&Path> = paths.iter().map(|path| path.as_path()).collect();
        let caller = thread::current().id();
        let size = |path: &&Path| size(path);
        let lengths = map(&paths, size, |path| {
            assert!(thread::current().id() == caller || size(path).is_multiple_of(2));
            size(path)
        });
        let expected: Vec<u64> = (0..20).map(|number| MIN_BYTES / 4 + number).collect();
        assert_eq!(lengths, expected);
    }

    /// As a signal handler that forks does. The helper works on until the child has ended.
    #[test]
    fn a_child_that_goes_on_meanwhile_waits_for_no_helper() {
        let caller = thread::current().id();
        let [has_begun, may_end] = [AtomicBool::new(false), AtomicBool::new(false)];
        let ended = OnceLock::new();
        let until = |is: &AtomicBool| {
            while !is.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(1));
            }
        };
        let is_child = AtomicBool::new(false);
        with_helpers(&|| 1, 2, &|_| {
            if thread::current().id() != caller {
                has_begun.store(true, Ordering::SeqCst);
                return until(&may_end);
            }
            until(&has_begun);
            // SAFETY: the child calls what is tested, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                return is_child.store(true, Ordering::SeqCst);
            }
            let status = end_of(child);
            ended.set(status).expect("once");
            may_end.store(true, Ordering::SeqCst);
        });
        if is_child.load(Ordering::SeqCst) {
            // SAFETY: it ends the child.
            unsafe { libc::_exit(0) };
        }
        assert_eq!(ended.get(), Some(&0), "the child hung");
    }
}
