//! Callbacks. The driver gets a callback of ours, which finishes our work and then calls the application's.
//!
//! All measured drivers call it on the calling thread before they return. But a driver may call it later, on a thread of its own,
//! or, after an error, never. So the pending work is kept in a table until the callback comes, and the driver only gets its number.
//! An application may leave its callback by an exception: see [`super::foreign_call`].

use std::collections::{BTreeMap, VecDeque};
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use opencl_sys::{CL_SUCCESS, cl_int};

use super::NotifyTarget;
use super::cancel::CancelState;
use super::float_registers::OwnWork;
use super::foreign_call::{self, Callee, ForeignCall};
use super::reentrancy::{self, HookEntry, ThreadState, this_thread};
use crate::cl::Program;
use crate::fork_safety::Mutex;

/// The work after a build. It gets the program, and the function's code if the function has returned. It is dropped if the function
/// never returns, because the application left its callback by an exception.
pub type Finish = Box<dyn FnOnce(Program, Option<cl_int>) + Send>;

/// A call of the driver in progress.
struct Pending {
    finish: Option<Finish>,
    target: NotifyTarget,
    /// The program that the application knows. None if the driver creates it.
    known_as: Option<Program>,
    /// The thread inside the function, if only the function's code tells whether the call was refused.
    judged_by: Option<usize>,
    /// Dropped once the driver has judged, before the application's callback.
    held: Option<HeldObject>,
    /// Dropped once the function has returned.
    kept: Option<HeldObject>,
    /// The driver has not called back.
    awaits_callback: bool,
    /// The function has not returned.
    is_running: bool,
}

/// Something that lives only while the driver judges a call.
pub type HeldObject = Box<dyn Send>;

/// How many failed calls are kept whose callback may still come. Intel's CPU runtime never calls back after an invalid option (measured),
/// and a program may try thousands.
const MAX_FAILED: usize = 256;

struct Waiting {
    last: usize,
    pending: BTreeMap<usize, Pending>,
    /// The numbers of calls that returned an error and had not called back, in order.
    failed: VecDeque<usize>,
}

static WAITING: Mutex<Waiting> = Mutex::new(Waiting {
    last: 0,
    pending: BTreeMap::new(),
    failed: VecDeque::new(),
});

impl Waiting {
    /// Removes a call that has returned and called back.
    fn forget_if_over(&mut self, number: usize) -> Option<Pending> {
        let is_over = |call: &Pending| !call.is_running && !call.awaits_callback;
        self.pending
            .get(&number)
            .is_some_and(is_over)
            .then(|| self.pending.remove(&number))?
    }

    /// Notes that a call has failed. Removes the oldest one of too many.
    fn fail(&mut self, number: usize) -> Option<Pending> {
        self.failed.push_back(number);
        let oldest = (self.failed.len() > MAX_FAILED).then(|| self.failed.pop_front());
        self.pending.remove(&oldest??)
    }
}

/// The next step of a hook of a function that takes a callback. It has no destructor: see [`foreign_call`].
#[derive(Clone, Copy)]
pub enum NextStep<Arguments> {
    /// Return this program and code.
    Return(Program, cl_int),
    /// Call the callback for this program, then return the program and CL_SUCCESS.
    Notify(NotifyTarget, Program),
    /// Call the driver with these instead of the application's own arguments.
    Call {
        /// The arguments.
        arguments: Arguments,
        /// The number of the call from [`begin_call`].
        number: Option<usize>,
        /// The call is the driver's alone: see [`reentrancy::outside`].
        is_outside: bool,
    },
}

/// A [`NextStep`] with its preparations done.
#[derive(Clone, Copy)]
pub enum PreparedStep<Arguments> {
    /// The driver is called with the application's own arguments.
    Unchanged,
    /// As [`NextStep::Return`].
    Return(Program, cl_int),
    /// As [`NextStep::Notify`]; [`callback_returned`] follows.
    Notify(ForeignCall, NotifyTarget, Program),
    /// As [`NextStep::Call`]; [`driver_returned`] follows.
    Call(ForeignCall, Arguments),
}

/// Does the work of a hook before it calls the driver or the application from the frame at this address.
///
/// The work before and after such a call has functions of its own: it must leave no frame on the stack (see [`foreign_call`]), and
/// the stack is the application's.
#[inline(never)]
pub fn prepared<Arguments>(
    entry: HookEntry,
    frame: usize,
    prepare: impl FnOnce() -> NextStep<Arguments>,
) -> PreparedStep<Arguments> {
    let _work = OwnWork::begin();
    foreign_call::clean_up(frame);
    let cancel = CancelState::disable();
    let Some(before) = reentrancy::enter(entry) else {
        cancel.restore();
        return PreparedStep::Unchanged;
    };
    match catch_unwind(AssertUnwindSafe(prepare)) {
        Ok(next) => prepare_step(next, frame, before, cancel),
        Err(_) => {
            before.restore();
            cancel.restore();
            PreparedStep::Unchanged
        }
    }
}

#[inline(never)] // its frame is gone when the driver loads an entry
fn prepare_step<Arguments>(
    next: NextStep<Arguments>,
    frame: usize,
    before: ThreadState,
    cancel: CancelState,
) -> PreparedStep<Arguments> {
    match next {
        NextStep::Return(program, code) => {
            before.restore();
            cancel.restore();
            PreparedStep::Return(program, code)
        }
        NextStep::Notify(NotifyTarget { function: None, .. }, program) => {
            before.restore();
            cancel.restore();
            PreparedStep::Return(program, CL_SUCCESS)
        }
        NextStep::Notify(target, program) => {
            reentrancy::enter_application();
            let callee = Callee::Callback {
                through_driver: false,
            };
            let call = foreign_call::begin(frame, before, callee);
            cancel.restore();
            PreparedStep::Notify(call, target, program)
        }
        NextStep::Call {
            arguments,
            number,
            is_outside,
        } => {
            if is_outside {
                reentrancy::enter_driver();
            }
            let callee = Callee::Driver { cancel, number };
            let call = foreign_call::begin(frame, before, callee);
            PreparedStep::Call(call, arguments)
        }
    }
}

/// Ends a callback that a hook has called.
#[inline(never)]
pub fn callback_returned(call: ForeignCall) {
    let cancel = CancelState::disable();
    if let Some((before, _)) = foreign_call::returned(call) {
        before.restore();
    }
    cancel.restore();
}

/// Ends a call of the driver's function.
#[inline(never)]
pub fn driver_returned(call: ForeignCall, program: Program, code: cl_int) {
    let _work = OwnWork::begin();
    let now = CancelState::disable();
    let Some((before, callee)) = foreign_call::returned(call) else {
        return now.restore();
    };
    if let Callee::Driver { cancel, number } = callee {
        if let Some(number) = number {
            let _ = catch_unwind(AssertUnwindSafe(|| returned(number, program, code)));
        }
        before.restore();
        cancel.restore();
    }
}

/// Begins a call of the driver, with the callback that is returned. `finish` runs before the application's callback: when the
/// driver calls back, or when the function has returned if there is no callback.
///
/// `known_as`: the program for the application's callback; None if the driver creates it. `refusable`: the driver may refuse the
/// call, and the program then keeps its earlier build. PoCL also calls back in that case (measured), so a callback on this thread
/// proves nothing, and `finish` waits for the function's code. `kept`: an object that lives until then.
pub fn begin_call(
    known_as: Option<Program>,
    target: NotifyTarget,
    refusable: bool,
    held: Option<HeldObject>,
    kept: Option<HeldObject>,
    finish: Finish,
) -> (usize, NotifyTarget) {
    let awaits_callback = target.function.is_some();
    let number = wait(Pending {
        finish: Some(finish),
        target,
        known_as,
        judged_by: refusable.then(this_thread),
        held,
        kept,
        awaits_callback,
        is_running: true,
    });
    match awaits_callback {
        true => (
            number,
            NotifyTarget {
                function: Some(on_callback),
                user_data: number as *mut c_void,
            },
        ),
        false => (number, target),
    }
}

/// Begins a call that is the driver's alone. `kept` lives until it ends.
pub fn begin_outside(kept: HeldObject) -> usize {
    wait(Pending {
        finish: None,
        target: NotifyTarget::NONE,
        known_as: None,
        judged_by: None,
        held: None,
        kept: Some(kept),
        awaits_callback: false,
        is_running: true,
    })
}

fn wait(call: Pending) -> usize {
    let mut waiting = WAITING.lock();
    waiting.last += 1;
    let number = waiting.last;
    waiting.pending.insert(number, call);
    number
}

fn returned(number: usize, program: Program, code: cl_int) {
    // The work remains to be done for calls without a callback, for calls that are judged by their code, and for errors without a
    // callback (measured: Intel's CPU runtime, for an invalid option). A driver that calls back later, after an error, still finds
    // the application's callback.
    let (finish, held, kept, _over, _oldest) = {
        let mut waiting = WAITING.lock();
        let Some(call) = waiting.pending.get_mut(&number) else {
            return;
        };
        call.is_running = false;
        let kept = call.kept.take();
        let has_failed = call.awaits_callback && code != CL_SUCCESS;
        let (mut finish, mut held) = (None, None);
        if call.awaits_callback && code == CL_SUCCESS {
            // The build goes on, so it was not refused. The build status decides on any thread.
            call.judged_by = None;
        } else {
            (finish, held) = (call.finish.take(), call.held.take());
        }
        let oldest = has_failed.then(|| waiting.fail(number)).flatten();
        (finish, held, kept, waiting.forget_if_over(number), oldest)
    };
    drop(held);
    if let Some(finish) = finish {
        finish(program, Some(code));
    }
    drop(kept);
}

/// Abandons a call whose function will never return. The driver may still call back later.
pub(super) fn abandoned(number: usize) {
    let left = {
        let mut waiting = WAITING.lock();
        let Some(call) = waiting.pending.get_mut(&number) else {
            return;
        };
        call.is_running = false;
        let left = (call.finish.take(), call.held.take(), call.kept.take());
        (left, waiting.forget_if_over(number))
    };
    let _ = catch_unwind(AssertUnwindSafe(|| drop(left)));
}

impl NotifyTarget {
    /// Calls the application's callback, which may leave by an exception.
    ///
    /// Must be called outside of our hooks, with no lock held, and from frames as [`foreign_call`] describes.
    pub fn call(self, program: Program) {
        if let Some(function) = self.function {
            // SAFETY: the application gave this function and this pointer for each other.
            unsafe { function(program.raw(), self.user_data) };
        }
    }
}

unsafe extern "C-unwind" fn on_callback(program: *mut c_void, user_data: *mut c_void) {
    let here = 0_u8;
    let frame = std::ptr::from_ref(&here) as usize;
    if let Some((call, target, program)) =
        begin_callback(Program::new(program), user_data as usize, frame)
    {
        target.call(program);
        returned_to_driver(call);
    }
}

/// Handles the driver's callback. Returns the application's callback and its program. None if it was called already.
#[inline(never)]
fn begin_callback(
    program: Program,
    number: usize,
    frame: usize,
) -> Option<(ForeignCall, NotifyTarget, Program)> {
    let _work = OwnWork::begin();
    foreign_call::clean_up(frame);
    let cancel = CancelState::disable();
    let before = ThreadState::now();
    let mut waiting = WAITING.lock();
    let call = waiting.pending.get_mut(&number);
    let Some(call) = call.filter(|call| call.awaits_callback) else {
        drop(waiting);
        cancel.restore();
        return None;
    };
    call.awaits_callback = false;
    let (known_as, target, held) = (call.known_as, call.target, call.held.take());
    let finish = match call.judged_by == Some(this_thread()) {
        true => None,
        false => call.finish.take(),
    };
    let over = waiting.forget_if_over(number);
    drop(waiting);
    before.deepen();
    let _ = catch_unwind(AssertUnwindSafe(|| drop((held, over))));
    let program = known_as.unwrap_or(program);
    if let Some(finish) = finish {
        let _ = catch_unwind(AssertUnwindSafe(|| finish(program, None)));
    }
    reentrancy::enter_application();
    // A thread of the driver's own is in no call of the application.
    let cancel = foreign_call::cancel_state(|state| *state).unwrap_or(cancel);
    let callee = Callee::Callback {
        through_driver: true,
    };
    let call = foreign_call::begin(frame, before, callee);
    cancel.restore();
    Some((call, target, program))
}

/// Ends a callback of the application that the driver has called through us.
#[inline(never)]
fn returned_to_driver(call: ForeignCall) {
    let now = CancelState::disable();
    if let Some((before, _)) = foreign_call::returned(call) {
        before.restore();
    }
    // A state that the application has set in its callback holds after its call.
    if foreign_call::cancel_state(|state| *state = now).is_none() {
        now.restore();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    unsafe extern "C-unwind" fn never(_program: *mut c_void, _user_data: *mut c_void) {}

    #[test]
    fn failed_calls_that_never_call_back_do_not_pile_up_and_the_last_ones_may() {
        let target = NotifyTarget {
            function: Some(never),
            user_data: std::ptr::null_mut(),
        };
        let fail = || {
            let finish = Box::new(|_: Program, _: Option<cl_int>| {});
            let (number, _) = begin_call(None, target, false, None, None, finish);
            returned(number, Program::new(std::ptr::null_mut()), -43);
            number
        };
        let numbers: Vec<usize> = (0..3 * MAX_FAILED).map(|_| fail()).collect();
        let waiting = WAITING.lock();
        let left = numbers
            .iter()
            .filter(|number| waiting.pending.contains_key(*number));
        let left: Vec<&usize> = left.collect();
        assert!(left.len() <= MAX_FAILED, "{}", left.len());
        assert_eq!(left.last(), Some(&numbers.last().expect("some")));
    }
}
