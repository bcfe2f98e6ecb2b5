//! The hooks of functions that take the callback of a build. An application may leave that callback by an exception, or end its
//! thread in it. Both unwind through these hooks to the application's own frames.
//!
//! The panic guard works as in the other hooks, but it ends before the driver is called and begins again afterwards: see
//! [`crate::driver::foreign_call`].

use std::mem::needs_drop;

use opencl_sys::{CL_SUCCESS, cl_int};

use crate::cl::Program;
use crate::driver::notify::{self, NextStep, PreparedStep};
use crate::driver::reentrancy::HookEntry;

/// Runs such a hook: first `prepare`, then the driver's function through `below` if the driver is to be called. `below(None)`
/// passes the application's own arguments. Returns the program and the code.
pub(super) fn hooked<Arguments: Copy, Prepare, Below>(
    entry: HookEntry,
    prepare: Prepare,
    below: Below,
) -> (Program, cl_int)
where
    Prepare: FnOnce() -> NextStep<Arguments>,
    Below: Fn(Option<Arguments>) -> (Program, cl_int),
{
    // Unwinding finds nothing to drop here.
    const { assert!(!needs_drop::<Prepare>() && !needs_drop::<Below>()) };
    let here = 0_u8;
    let frame = std::ptr::from_ref(&here) as usize;
    match notify::prepared(entry, frame, prepare) {
        PreparedStep::Unchanged => below(None),
        PreparedStep::Return(program, code) => (program, code),
        PreparedStep::Notify(call, target, program) => {
            target.call(program);
            notify::callback_returned(call);
            (program, CL_SUCCESS)
        }
        PreparedStep::Call(call, arguments) => {
            let (program, code) = below(Some(arguments));
            notify::driver_returned(call, program, code);
            (program, code)
        }
    }
}

/// Declares such hooks: the slot, its arguments, and the body, which gets the driver, its function, the entry and the arguments by
/// their names.
macro_rules! unwinding_hooks {
    ($(
        $(#[$doc:meta])*
        $slot:ident($first:ident: $first_type:ty $(, $argument:ident: $type:ty)* $(,)?) -> $result:ty = |$driver:ident, $function:ident, $entry:ident| $body:expr;
    )*) => {
        $(
            $(#[$doc])*
            #[allow(non_snake_case)]
            unsafe extern "C-unwind" fn $slot<const DRIVER: usize>($first: $first_type $(, $argument: $type)*) -> $result {
                // One instance for all drivers, as in `numbered`.
                #[inline(never)]
                #[allow(clippy::too_many_arguments)] // as many as the function has
                unsafe fn of_driver(number: usize, $first: $first_type $(, $argument: $type)*) -> $result {
                    type Function = unsafe extern "C-unwind" fn($first_type $(, $type)*) -> $result;
                    let $driver = $crate::driver::Driver::at(number);
                    let Some(function) = $driver.below().$slot else {
                        // Only slots that hold a function are ever replaced.
                        std::process::abort()
                    };
                    // SAFETY: the function's own type, but that an exception may leave it.
                    let $function = unsafe { std::mem::transmute::<*const (), Function>(function as *const ()) };
                    let $entry = $crate::driver::reentrancy::HookEntry {
                        function: stringify!($slot),
                        object: $first as usize,
                        driver: number,
                    };
                    $body
                }
                // SAFETY: the arguments of the application's call.
                unsafe { of_driver(DRIVER, $first $(, $argument)*) }
            }
        )*

        /// The hooks of this file for one driver.
        pub(in crate::hook) fn table<const DRIVER: usize>() -> Vec<$crate::hook::Hook> {
            vec![$($crate::hook::Hook {
                name: stringify!($slot),
                slot: $crate::cl::dispatch::Slot::$slot,
                function: $slot::<DRIVER> as *const () as usize,
            }),*]
        }

        $crate::hook::in_layer! {"C-unwind" $(
            $slot($first: $first_type $(, $argument: $type)*) -> $result;
        )*}
    };
}
pub(super) use unwinding_hooks;

#[cfg(test)]
mod tests {
    use std::ffi::c_void;
    use std::hint::black_box;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::Arc;

    use super::*;
    use crate::driver::{NotifyTarget, reentrancy};

    const ENTRY: HookEntry = HookEntry {
        function: "clBuildProgram",
        object: 1,
        driver: 1,
    };

    fn program() -> Program {
        Program::new(std::ptr::dangling_mut())
    }

    /// What a hook finds: whether it is one, and is nested.
    #[inline(never)]
    fn found() -> Option<bool> {
        let nested = std::cell::Cell::new(None);
        let prepare = || {
            nested.set(Some(reentrancy::is_nested()));
            NextStep::<()>::Return(program(), 0)
        };
        hooked(ENTRY, prepare, |_| (program(), 0));
        nested.get()
    }

    #[test]
    fn a_panic_before_the_driver_was_called_calls_it_unchanged_and_one_after_keeps_its_verdict() {
        let below = |changed: Option<()>| (program(), changed.map_or(1, |()| 2));
        assert_eq!(hooked(ENTRY, || panic!("before"), below).1, 1);
        let prepare = || {
            let finish = Box::new(|_, _| panic!("after"));
            let (number, _) =
                notify::begin_call(None, NotifyTarget::NONE, false, None, None, finish);
            NextStep::Call {
                arguments: (),
                number: Some(number),
                is_outside: false,
            }
        };
        assert_eq!(hooked(ENTRY, prepare, below).1, 2);
        assert_eq!(found(), Some(false));
    }

    #[test]
    fn a_hook_inside_a_hook_goes_to_the_driver_and_a_callback_is_outside() {
        let next = |is_outside| NextStep::Call {
            arguments: (),
            number: None,
            is_outside,
        };
        let prepare = || next(false);
        hooked(ENTRY, prepare, |_| {
            assert_eq!(found(), None);
            (program(), 0)
        });
        let prepare = || next(true);
        hooked(ENTRY, prepare, |_| {
            assert_eq!(found(), Some(true));
            (program(), 0)
        });
    }

    unsafe extern "C-unwind" fn leave(_: *mut c_void, _: *mut c_void) {
        resume_unwind(Box::new("left"))
    }

    /// A call whose driver is as deep in the stack as drivers are, and calls back, if it was given a callback; then it is left.
    #[inline(never)]
    fn left(function: Option<crate::cl::Notify>, is_judged: bool, alive: &Arc<()>) {
        let prepare = || {
            let target = NotifyTarget {
                function,
                user_data: std::ptr::null_mut(),
            };
            let alive = alive.clone();
            let finish = Box::new(move |_, _| drop(alive));
            let (number, arguments) =
                notify::begin_call(Some(program()), target, is_judged, None, None, finish);
            NextStep::Call {
                arguments,
                number: Some(number),
                is_outside: false,
            }
        };
        let driver = |target: Option<NotifyTarget>| {
            let frame = black_box([0_u8; 64 << 10]);
            target.expect("a callback").call(program());
            resume_unwind(Box::new(frame[0]))
        };
        let caught = catch_unwind(AssertUnwindSafe(|| hooked(ENTRY, prepare, driver)));
        assert!(caught.is_err());
    }

    /// As deep in the stack as an application is that calls from another function.
    #[inline(never)]
    fn deeper() -> Option<bool> {
        let frame = black_box([0_u8; 16 << 10]);
        found().filter(|_| frame[0] == 0)
    }

    #[test]
    fn what_a_call_left_that_never_returned_is_cleaned_up_by_the_next_hook() {
        for (function, is_judged) in [
            (None, false),
            (Some(leave as _), false),
            (Some(leave as _), true),
        ] {
            let alive = Arc::new(());
            left(function, is_judged, &alive);
            let is_finished = function.is_some() && !is_judged;
            assert_eq!(Arc::strong_count(&alive), if is_finished { 1 } else { 2 });
            let next = if function.is_some() {
                deeper()
            } else {
                found()
            };
            assert_eq!(next, Some(false), "{is_judged}");
            assert_eq!(Arc::strong_count(&alive), 1, "{is_judged}");
        }
    }

    #[test]
    fn what_a_call_left_that_never_returned_is_cleaned_up_at_the_end_of_its_thread() {
        let alive = Arc::new(());
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| left(Some(leave), true, &alive));
            // Not before the thread has ended.
            thread.join().expect("no panic");
        });
        assert_eq!(Arc::strong_count(&alive), 1);
    }

    #[test]
    fn a_callback_that_returns_leaves_the_call_as_it_was() {
        unsafe extern "C-unwind" fn look(_: *mut c_void, data: *mut c_void) {
            // SAFETY: the test's variable, which outlives the call.
            unsafe { data.cast::<Option<bool>>().write(found()) };
        }
        let mut seen = None;
        let target = NotifyTarget {
            function: Some(look),
            user_data: (&raw mut seen).cast(),
        };
        hooked(
            ENTRY,
            || NextStep::<()>::Notify(target, program()),
            |_| (program(), 0),
        );
        assert_eq!(seen.take(), Some(true));
        let prepare = || {
            let (number, arguments) = notify::begin_call(
                Some(program()),
                target,
                false,
                None,
                None,
                Box::new(|_, _| ()),
            );
            NextStep::Call {
                arguments,
                number: Some(number),
                is_outside: false,
            }
        };
        hooked(ENTRY, prepare, |target| {
            target.expect("a callback").call(program());
            assert_eq!(found(), None);
            (program(), 0)
        });
        assert_eq!(seen, Some(true));
        assert_eq!(found(), Some(false));
    }
}
