//! Calls of the driver and of the application's callbacks that may never return to us.
//!
//! In the callback of a build an application may throw a C++ exception or end its thread, and drivers let that unwind to the
//! application's own frames. So do we: while a driver builds, compiles or links for the application, and while a callback runs, no
//! frame of ours on the stack has a destructor or a catch_unwind. (The end of a thread unwinds its stack by force, which Rust does
//! not define for frames with destructors, and catch_unwind ends the process when it meets an exception of another language.)
//!
//! The state to undo is kept here, with the address of the calling frame. Stacks grow downwards: once the thread enters a hook at
//! that address or above it, the frame is gone, and its state is cleaned up. Until then the thread counts as being in the callback,
//! so that it waits for no other build. When the thread ends, the rest is cleaned up without a call of the driver. If an
//! application switches stacks in a callback, a running call may be cleaned up; then it is not recorded.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Driver;
use super::cancel::CancelState;
use super::float_registers::OwnWork;
use super::notify;
use super::reentrancy::{self, ThreadState};
use crate::cl::{Kernel, Program};
use crate::fork_safety::Mutex;
use crate::linker_lock;

/// A call that has begun.
#[derive(Clone, Copy, Debug)]
pub struct ForeignCall(u64);

/// The called party.
#[derive(Clone, Copy)]
pub enum Callee {
    /// The driver, with the application's call. The thread is not canceled meanwhile.
    Driver {
        /// The application's setting.
        cancel: CancelState,
        /// See [`notify::begin_call`].
        number: Option<usize>,
    },
    /// A callback of the application.
    Callback {
        /// The driver has called us, from inside the outer call if that is on the same thread.
        through_driver: bool,
    },
}

struct Record {
    /// An address in the frame that makes the call.
    frame: usize,
    /// The state of the thread before the hook, or the callback of ours, that makes the call.
    before: ThreadState,
    callee: Callee,
    /// The call on the same thread inside which this one is made. 0: there is none.
    outer: u64,
}

struct Records {
    last: u64,
    by_number: BTreeMap<u64, Record>,
}

static RECORDS: Mutex<Records> = Mutex::new(Records {
    last: 0,
    by_number: BTreeMap::new(),
});

thread_local! {
    /// Without a destructor, since it is read until the very end of the thread and of the process.
    static INNERMOST: Cell<u64> = const { Cell::new(0) };
    static IS_ENDING: Cell<bool> = const { Cell::new(false) };
    static IS_REGISTERED: Cell<bool> = const { Cell::new(false) };
    static AT_END: AtEnd = const { AtEnd };
}

struct AtEnd;

impl Drop for AtEnd {
    fn drop(&mut self) {
        IS_ENDING.set(true);
        clean_up(usize::MAX);
        IS_ENDING.set(false);
    }
}

/// Begins a call from the frame at this address. `before`: the state of the thread before.
pub fn begin(frame: usize, before: ThreadState, callee: Callee) -> ForeignCall {
    register_end();
    let mut records = RECORDS.lock();
    records.last += 1;
    let number = records.last;
    let outer = INNERMOST.replace(number);
    let record = Record {
        frame,
        before,
        callee,
        outer,
    };
    records.by_number.insert(number, record);
    ForeignCall(number)
}

/// Registers the destructor that runs when the thread ends, unless the thread is ending. The dynamic linker notes it: where another thread
/// keeps that waiting, what a thread that ends in this call leaves stays.
fn register_end() {
    if !IS_REGISTERED.get() && !linker_lock::is_busy_for_long() {
        IS_REGISTERED.set(true);
        let _ = AT_END.try_with(|_| ());
    }
}

/// Ends a call, and abandons calls inside it that have not returned. Returns what the call was begun with. None if it was abandoned
/// already, which happens to an application that switches stacks in a callback.
pub fn returned(call: ForeignCall) -> Option<(ThreadState, Callee)> {
    while INNERMOST.get() > call.0 {
        abandon_innermost();
    }
    if INNERMOST.get() != call.0 {
        return None;
    }
    let record = take_innermost()?;
    Some((record.before, record.callee))
}

/// Cleans up calls whose frames are gone because a frame at this address is entered.
#[inline]
pub fn clean_up(frame: usize) {
    if INNERMOST.get() != 0 {
        clean_up_calls(frame);
    }
}

#[cold]
fn clean_up_calls(frame: usize) {
    let _work = OwnWork::begin();
    let mut state = CancelState::disable();
    let is_gone = |record: &mut Record| record.frame <= frame;
    // An exception of the driver has left the thread uncancelable. In a callback the application's setting holds.
    if innermost(is_gone) == Some(true) {
        state = cancel_state(|state| *state).unwrap_or(state);
    }
    while innermost(is_gone) == Some(true) {
        let callee = abandon_innermost();
        // An exception that left the callback has left the driver, whose frames are above ours.
        if let Some(Callee::Callback {
            through_driver: true,
        }) = callee
            && cancel_state(|_| ()).is_some()
        {
            abandon_innermost();
        }
    }
    state.restore();
}

/// The application's setting for a thread in a call of the driver. `change` may change it.
pub fn cancel_state<R>(change: impl FnOnce(&mut CancelState) -> R) -> Option<R> {
    innermost(|record| match &mut record.callee {
        Callee::Driver { cancel, .. } => Some(change(cancel)),
        Callee::Callback { .. } => None,
    })
    .flatten()
}

fn innermost<R>(read: impl FnOnce(&mut Record) -> R) -> Option<R> {
    let mut records = RECORDS.lock();
    records.by_number.get_mut(&INNERMOST.get()).map(read)
}

fn take_innermost() -> Option<Record> {
    let record = RECORDS.lock().by_number.remove(&INNERMOST.get());
    INNERMOST.set(record.as_ref().map_or(0, |record| record.outer));
    record
}

fn abandon_innermost() -> Option<Callee> {
    let record = take_innermost()?;
    record.before.restore();
    if let Callee::Driver {
        number: Some(number),
        ..
    } = record.callee
    {
        notify::abandoned(number);
    }
    Some(record.callee)
}

/// A reference that we hold to an object of a driver.
#[derive(Clone, Copy)]
pub enum OwnReference {
    /// To a program.
    Program(Program),
    /// To a kernel.
    Kernel(Kernel),
}

/// References that ending threads held.
static LEFT: Mutex<Vec<(&'static Driver, OwnReference)>> = Mutex::new(Vec::new());
static IS_ANY_LEFT: AtomicBool = AtomicBool::new(false);

/// Releases a reference. If this thread is ending, another hook does it later, since drivers may have freed their data of the
/// thread. A release may run callbacks of the application.
pub fn give_back(driver: &'static Driver, reference: OwnReference) {
    if IS_ENDING.get() {
        LEFT.lock().push((driver, reference));
        IS_ANY_LEFT.store(true, Ordering::Release);
        return;
    }
    reentrancy::outside(|| match reference {
        OwnReference::Program(program) => driver.release_program(program),
        OwnReference::Kernel(kernel) => driver.release_kernel(kernel),
    });
}

/// Releases the references that ending threads held.
#[inline]
pub fn give_back_what_is_left() {
    if IS_ANY_LEFT.load(Ordering::Relaxed) && !super::is_ending() {
        give_back_all();
    }
}

#[cold]
fn give_back_all() {
    let _work = OwnWork::begin();
    IS_ANY_LEFT.store(false, Ordering::Relaxed);
    let left = std::mem::take(&mut *LEFT.lock());
    for (driver, reference) in left {
        give_back(driver, reference);
    }
}
