//! Callbacks: the driver gets one of ours, which finishes our work and then calls the application's.
//!
//! All drivers measured call it on the calling thread before they return, but they may do so later, on a thread of their
//! own, or, after an error, never. So what is to be done is kept by number until the callback comes, and the driver has
//! the number only. An application may leave its callback by an exception: see [`super::foreign_call`].

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::panic::{AssertUnwindSafe, catch_unwind};

use opencl_sys::{CL_SUCCESS, cl_int};

use super::NotifyTarget;
use super::cancel::CancelState;
use super::foreign_call::{self, Callee, ForeignCall};
use super::reentrancy::{self, HookEntry, ThreadState, this_thread};
use crate::cl::Program;
use crate::fork_safety::Mutex;

/// What is to be done when a build has ended; it is told for which program, and what the function returned if that has
/// returned. Where that never happens, since the application left its callback by an exception, it is dropped.
pub type Finish = Box<dyn FnOnce(Program, Option<cl_int>) + Send>;

/// A call of the driver that the application has made.
struct Pending {
    finish: Option<Finish>,
    target: NotifyTarget,
    /// The program that the application knows, where the driver makes that.
    known_as: Option<Program>,
    /// The thread that is inside the function, if what has become of the call is known only when that returns.
    judged_by: Option<usize>,
    /// Dropped once the driver has judged, before the application hears of it.
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

struct Waiting {
    last: usize,
    pending: BTreeMap<usize, Pending>,
}

static WAITING: Mutex<Waiting> = Mutex::new(Waiting {
    last: 0,
    pending: BTreeMap::new(),
});

impl Waiting {
    /// Removes a call of which nothing is to come.
    fn forget_if_over(&mut self, number: usize) -> Option<Pending> {
        let is_over = |call: &Pending| !call.is_running && !call.awaits_callback;
        self.pending
            .get(&number)
            .is_some_and(is_over)
            .then(|| self.pending.remove(&number))?
    }
}

/// What the hook of a function that takes a callback does next. It has no destructor: see [`foreign_call`].
#[derive(Clone, Copy)]
pub enum NextStep<Arguments> {
    /// It returns this program and code.
    Return(Program, cl_int),
    /// It calls the callback for this program, and returns that and CL_SUCCESS.
    Notify(NotifyTarget, Program),
    /// It calls the driver with these in place of the application's own arguments.
    Call {
        /// See there.
        arguments: Arguments,
        /// What was [`begun`].
        number: Option<usize>,
        /// The call is the driver's alone: see [`reentrancy::outside`].
        is_outside: bool,
    },
}

/// What is left of [`NextStep`] when all is prepared for it.
#[derive(Clone, Copy)]
pub enum PreparedStep<Arguments> {
    /// We have no part in the call: the driver is called with the application's own arguments.
    Unchanged,
    /// As [`NextStep::Return`].
    Return(Program, cl_int),
    /// As [`NextStep::Notify`]; [`notified`] follows.
    Notify(ForeignCall, NotifyTarget, Program),
    /// As [`NextStep::Call`]; [`called`] follows.
    Call(ForeignCall, Arguments),
}

/// Does what a hook does before it calls the driver or the application, from the frame at this address.
///
/// What goes before and after such a call has functions of its own: nothing of it may be left on the stack (see [`foreign_call`]), and
/// the stack is the application's.
#[inline(never)]
pub fn prepared<Arguments>(
    entry: HookEntry,
    frame: usize,
    prepare: impl FnOnce() -> NextStep<Arguments>,
) -> PreparedStep<Arguments> {
    foreign_call::clean_up(frame);
    let cancel = CancelState::disable();
    let Some(before) = reentrancy::enter(entry) else {
        cancel.restore();
        return PreparedStep::Unchanged;
    };
    match catch_unwind(AssertUnwindSafe(prepare)) {
        Ok(next) => goes_on(next, frame, before, cancel),
        Err(_) => {
            before.restore();
            cancel.restore();
            PreparedStep::Unchanged
        }
    }
}

#[inline(never)] // what it keeps on the stack is not below the driver where that loads what is cached
fn goes_on<Arguments>(
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

/// The application's callback has returned, which a hook has called.
#[inline(never)]
pub fn notified(call: ForeignCall) {
    let cancel = CancelState::disable();
    if let Some((before, _)) = foreign_call::returned(call) {
        before.restore();
    }
    cancel.restore();
}

/// The driver's function has returned this.
#[inline(never)]
pub fn called(call: ForeignCall, program: Program, code: cl_int) {
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

/// A call of the driver is about to be made, with the callback that is returned, and `finish` is to be done before the application
/// hears of its end: when the driver calls back, or when the function has returned if there is no callback.
///
/// `known_as`: the program that the application hears of; None where the driver makes it. `refusable`: the driver may refuse the
/// call, and the program then keeps an earlier build. PoCL calls back in that case, too (measured), so a callback on this thread
/// proves nothing, and `finish` waits for what the function returns. `kept`: what lives until then.
pub fn begun(
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
                function: Some(arrived),
                user_data: number as *mut c_void,
            },
        ),
        false => (number, target),
    }
}

/// A call of the driver's alone is about to be made, until the end of which this lives.
pub fn begun_outside(kept: HeldObject) -> usize {
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
    // What is left is to be done for calls without a callback; for those that were judged by what they return; and for errors
    // without a callback (measured: Intel's CPU runtime, for an invalid option). A driver that calls back after an error, later,
    // still finds the application's callback.
    let (finish, held, kept, _over) = {
        let mut waiting = WAITING.lock();
        let Some(call) = waiting.pending.get_mut(&number) else {
            return;
        };
        call.is_running = false;
        let kept = call.kept.take();
        let (mut finish, mut held) = (None, None);
        if call.awaits_callback && code == CL_SUCCESS {
            // The build goes on, so it was not refused: whichever thread calls back, the status tells.
            call.judged_by = None;
        } else {
            (finish, held) = (call.finish.take(), call.held.take());
        }
        (finish, held, kept, waiting.forget_if_over(number))
    };
    drop(held);
    if let Some(finish) = finish {
        finish(program, Some(code));
    }
    drop(kept);
}

/// The function will never return. The driver may call back all the same, later.
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
    /// Calls the application, which may leave by an exception.
    ///
    /// To be called outside of our hooks, with no lock held, and from frames as [`foreign_call`] says.
    pub fn call(self, program: Program) {
        if let Some(function) = self.function {
            // SAFETY: the application gave this function and this pointer for each other.
            unsafe { function(program.raw(), self.user_data) };
        }
    }
}

unsafe extern "C-unwind" fn arrived(program: *mut c_void, user_data: *mut c_void) {
    let here = 0_u8;
    let frame = std::ptr::from_ref(&here) as usize;
    if let Some((call, target, program)) =
        finished(Program::new(program), user_data as usize, frame)
    {
        target.call(program);
        heard(call);
    }
}

/// The driver calls back. Gives the application's callback and for which program it is to be called; None if it was already.
#[inline(never)]
fn finished(
    program: Program,
    number: usize,
    frame: usize,
) -> Option<(ForeignCall, NotifyTarget, Program)> {
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
    // A thread of the driver's own is in no call of the application's.
    let cancel = foreign_call::cancel_state(|state| *state).unwrap_or(cancel);
    let callee = Callee::Callback {
        through_driver: true,
    };
    let call = foreign_call::begin(frame, before, callee);
    cancel.restore();
    Some((call, target, program))
}

/// The application's callback has returned, which the driver has called through us.
#[inline(never)]
fn heard(call: ForeignCall) {
    let now = CancelState::disable();
    if let Some((before, _)) = foreign_call::returned(call) {
        before.restore();
    }
    // What the application has set in its callback holds when its call has returned.
    if foreign_call::cancel_state(|state| *state = now).is_none() {
        now.restore();
    }
}
