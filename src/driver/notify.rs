//! Callbacks: the driver gets one of ours, which finishes our work and then calls the application's.
//!
//! All drivers measured call it on the calling thread before they return, but they may do so later, on a thread of their
//! own, or, after an error, never. So what is to be done is kept by number until the callback comes, and the driver has
//! the number only.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use opencl_sys::{CL_SUCCESS, cl_int};

use super::NotifyTarget;
use crate::cl::Program;
use crate::fork::Mutex;

/// What is to be done when a build has ended; it is told for which program, and what the function returned if that has
/// returned.
pub type Finish = Box<dyn FnOnce(Program, Option<cl_int>) + Send>;

struct Pending {
    finish: Option<Finish>,
    target: NotifyTarget,
    /// The program that the application knows, where the driver makes that.
    known_as: Option<Program>,
    /// The thread that is inside the function, if what has become of the call is known only when that returns.
    judged_by: Option<usize>,
    /// Dropped once the driver has judged, before the application hears of it.
    held: Option<Held>,
}

/// Something that lives only while the driver judges a call.
pub type Held = Box<dyn Send>;

struct Waiting {
    last: usize,
    pending: BTreeMap<usize, Pending>,
    /// What is still to be done when the function returns, of calls that were called back meanwhile.
    called_back: BTreeMap<usize, Option<Finish>>,
}

static WAITING: Mutex<Waiting> = Mutex::new(Waiting {
    last: 0,
    pending: BTreeMap::new(),
    called_back: BTreeMap::new(),
});

/// A call that has come to one of our hooks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The function's name.
    pub function: &'static str,
    /// Its first argument.
    pub object: usize,
    /// The number of the hooks.
    pub driver: usize,
}

/// Where a thread is.
#[derive(Clone, Copy)]
enum Place {
    /// In the application's code.
    Outside,
    /// In a hook.
    Inside(Entry),
    /// In the driver's code, with the application's own call, during which the driver may call the application back.
    Below(Entry),
}

thread_local! {
    static PLACE: Cell<Place> = const { Cell::new(Place::Outside) };
    /// Hooks, and callbacks of drivers for our calls, that this thread is in.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Whether the hook that is running was entered from inside another one, or from a callback: whoever is further out may hold
/// locks.
pub fn is_nested() -> bool {
    DEPTH.get() > 1
}

struct Deeper;

impl Deeper {
    fn enter() -> Deeper {
        DEPTH.set(DEPTH.get() + 1);
        Deeper
    }
}

impl Drop for Deeper {
    fn drop(&mut self) {
        DEPTH.set(DEPTH.get() - 1);
    }
}

/// Whether this thread is inside a hook.
pub fn is_inside() -> bool {
    matches!(PLACE.get(), Place::Inside(_))
}

/// Tells this thread from all others that live. std's answer panics where a thread's local
/// variables are gone, as in handlers of atexit, which may build.
fn this_thread() -> usize {
    PLACE.with(|place| std::ptr::from_ref(place) as usize)
}

/// Runs `body` as a hook. None if this call is that of a hook of ours already: that one is running on this thread, or has handed
/// the application's call down, past hooks of another number, as where a layer stands before a table that is hooked.
pub fn as_hook<R>(entry: Entry, body: impl FnOnce() -> R) -> Option<R> {
    let seen = match PLACE.get() {
        Place::Outside => false,
        Place::Inside(_) => true,
        Place::Below(above) => {
            entry.driver != above.driver
                && entry.object == above.object
                && entry.function == above.function
        }
    };
    if seen {
        return None;
    }
    let _restore = (
        Deeper::enter(),
        Restore(PLACE.replace(Place::Inside(entry))),
    );
    Some(body())
}

/// Makes a call that is the driver's alone, during which the application may be called back, as if this thread were outside of
/// our hooks.
pub fn outside<R>(body: impl FnOnce() -> R) -> R {
    let place = match PLACE.get() {
        Place::Inside(entry) => Place::Below(entry),
        other => other,
    };
    let _restore = Restore(PLACE.replace(place));
    body()
}

struct Restore(Place);

impl Drop for Restore {
    fn drop(&mut self) {
        PLACE.set(self.0);
    }
}

/// Calls the driver through `below`, which gives the program and the error code, and does `finish` before the application
/// hears of the end: at once where there is no callback, else when the driver calls back.
///
/// `known_as`: the program that the application hears of; None where the driver makes it. `refusable`: the driver may refuse the call, and the program then keeps an earlier build. PoCL calls back in that case,
/// too (measured), so a callback on this thread proves nothing, and `finish` waits for what the function returns.
pub fn wrapped(
    known_as: Option<Program>,
    notify: NotifyTarget,
    refusable: bool,
    held: Option<Held>,
    below: &dyn Fn(NotifyTarget) -> (Program, cl_int),
    finish: Finish,
) -> (Program, cl_int) {
    if notify.function.is_none() {
        let (program, code) = below(notify);
        drop(held);
        finish(program, Some(code));
        return (program, code);
    }
    let judged_by = refusable.then(this_thread);
    let (number, target) = wait(finish, notify, known_as, judged_by, held);
    let (program, code) = below(target);
    returned(number, program, code);
    (program, code)
}

// What goes before and after the driver's call has functions of its own: their frames are gone while that runs, on a stack that
// is the application's.

#[inline(never)]
fn wait(
    finish: Finish,
    target: NotifyTarget,
    known_as: Option<Program>,
    judged_by: Option<usize>,
    held: Option<Held>,
) -> (usize, NotifyTarget) {
    let mut waiting = WAITING.lock();
    waiting.last += 1;
    let number = waiting.last;
    let pending = Pending {
        finish: Some(finish),
        target,
        known_as,
        judged_by,
        held,
    };
    waiting.pending.insert(number, pending);
    (
        number,
        NotifyTarget {
            function: Some(arrived),
            user_data: number as *mut c_void,
        },
    )
}

/// The function has returned.
#[inline(never)]
fn returned(number: usize, program: Program, code: cl_int) {
    // Who is left: calls that were judged by what they return; and errors without a callback (measured: Intel's CPU runtime,
    // for an invalid option). A driver that calls back after an error, later, still finds the application's callback.
    let (finish, held) = {
        let mut waiting = WAITING.lock();
        let called_back = waiting.called_back.remove(&number);
        match (called_back, waiting.pending.get_mut(&number)) {
            (Some(finish), _) => (finish, None),
            (None, Some(pending)) if code != CL_SUCCESS => {
                (pending.finish.take(), pending.held.take())
            }
            (None, Some(pending)) => {
                // The build goes on, so it was not refused: whichever thread calls back, the status tells.
                pending.judged_by = None;
                (None, None)
            }
            (None, None) => (None, None),
        }
    };
    drop(held);
    if let Some(finish) = finish {
        finish(program, Some(code));
    }
}

impl NotifyTarget {
    /// Calls the application, outside of our hooks and with no lock held.
    pub fn call(self, program: Program) {
        if let Some(function) = self.function {
            let _restore = Restore(PLACE.replace(Place::Outside));
            // SAFETY: the application gave this function and this pointer for each other.
            unsafe { function(program.raw(), self.user_data) };
        }
    }
}

unsafe extern "C" fn arrived(program: *mut c_void, user_data: *mut c_void) {
    let _deeper = Deeper::enter();
    let number = user_data as usize;
    let (known_as, target, held, finish) = {
        let mut waiting = WAITING.lock();
        let Some(pending) = waiting.pending.remove(&number) else {
            return;
        };
        let mut finish = pending.finish;
        if pending.judged_by == Some(this_thread()) {
            waiting.called_back.insert(number, finish.take());
        }
        (pending.known_as, pending.target, pending.held, finish)
    };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(held)));
    let program = known_as.unwrap_or(Program::new(program));
    if let Some(finish) = finish {
        let _ = catch_unwind(AssertUnwindSafe(|| finish(program, None)));
    }
    target.call(program);
}
