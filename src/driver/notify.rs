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

thread_local! {
    /// How deep this thread is inside our hooks; see `hook`.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
}

/// Tells this thread from all others that live. std's answer panics where a thread's local
/// variables are gone, as in handlers of atexit, which may build.
fn this_thread() -> usize {
    DEPTH.with(|depth| std::ptr::from_ref(depth) as usize)
}

/// Runs `body` one level deeper; None if this thread is inside a hook already.
pub fn at_first_depth<R>(body: impl FnOnce() -> R) -> Option<R> {
    if DEPTH.get() > 0 {
        return None;
    }
    DEPTH.set(1);
    let _restore = Restore(0);
    Some(body())
}

/// Runs the application's code, or a call that is the driver's alone, as if this thread were outside of our hooks.
pub fn outside<R>(body: impl FnOnce() -> R) -> R {
    let _restore = Restore(DEPTH.replace(0));
    body()
}

struct Restore(u32);

impl Drop for Restore {
    fn drop(&mut self) {
        DEPTH.set(self.0);
    }
}

/// Calls the driver through `below` and does `finish` before the application hears of the end: at once where there is no
/// callback, else when the driver calls back.
///
/// `refusable`: the driver may refuse the call, and the program then keeps an earlier build. PoCL calls back in that case,
/// too (measured), so a callback on this thread proves nothing, and `finish` waits for what the function returns.
pub fn wrapped(
    program: Program,
    notify: NotifyTarget,
    refusable: bool,
    held: Option<Held>,
    below: &dyn Fn(NotifyTarget) -> cl_int,
    finish: Finish,
) -> cl_int {
    if notify.function.is_none() {
        let code = below(notify);
        drop(held);
        finish(program, Some(code));
        return code;
    }
    let judged_by = refusable.then(this_thread);
    let (number, target) = wait(Pending {
        finish: Some(finish),
        target: notify,
        judged_by,
        held,
    });
    let code = below(target);
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
    code
}

/// A callback for a function that makes the program it calls back with: `arrive` is told of it first.
pub fn wrapped_for_new_program(notify: NotifyTarget, arrive: fn(Program)) -> NotifyTarget {
    match notify.function {
        None => notify,
        Some(_) => {
            let finish: Finish = Box::new(move |program, _| arrive(program));
            wait(Pending {
                finish: Some(finish),
                target: notify,
                judged_by: None,
                held: None,
            })
            .1
        }
    }
}

fn wait(pending: Pending) -> (usize, NotifyTarget) {
    let mut waiting = WAITING.lock();
    waiting.last += 1;
    let number = waiting.last;
    waiting.pending.insert(number, pending);
    (
        number,
        NotifyTarget {
            function: Some(arrived),
            user_data: number as *mut c_void,
        },
    )
}

impl NotifyTarget {
    /// Calls the application, outside of our hooks and with no lock held.
    pub fn call(self, program: Program) {
        if let Some(function) = self.function {
            // SAFETY: the application gave this function and this pointer for each other.
            outside(|| unsafe { function(program.raw(), self.user_data) });
        }
    }
}

unsafe extern "C" fn arrived(program: *mut c_void, user_data: *mut c_void) {
    let number = user_data as usize;
    let (target, held, finish) = {
        let mut waiting = WAITING.lock();
        let Some(pending) = waiting.pending.remove(&number) else {
            return;
        };
        if pending.judged_by == Some(this_thread()) {
            waiting.called_back.insert(number, pending.finish);
            (pending.target, pending.held, None)
        } else {
            (pending.target, pending.held, pending.finish)
        }
    };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(held)));
    if let Some(finish) = finish {
        let _ = catch_unwind(AssertUnwindSafe(|| finish(Program::new(program), None)));
    }
    target.call(Program::new(program));
}
