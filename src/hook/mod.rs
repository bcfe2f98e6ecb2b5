//! The functions that replace slots of drivers' tables. Macros make one set of them for each driver.
//!
//! Each has a panic guard that falls back to the driver's own function: if our part panics before the driver was called, the driver
//! is called unchanged; if later, the driver's verdict stands. Each set knows its driver by number, so no hook ever reads a handle.
//! A handle may be NULL, stale or foreign; the driver then gets the same call as without us.
//!
//! A hook that is entered from inside another on the same thread calls the function below unchanged (`driver::reentrancy`). The
//! application's callbacks run outside of hooks (`driver::notify`). Exceptions pass only through the hooks of builds
//! (`unwinding`) and contexts.

#![allow(unsafe_code)] // the C interface: pointers of the application's calls end here

mod build;
mod create;
mod extension;
mod kernel;
mod lifetime;
mod link;
mod query;
mod thread_starts;
mod unwinding;

use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::cl::dispatch::{SLOTS, Slot};
use crate::driver::cancel::Uncanceled;
use crate::driver::float_registers::{OwnWork, as_program};
use crate::driver::foreign_call;
use crate::driver::layer::{self, MAX_LAYERS};
use crate::driver::reentrancy::{self, HookEntry};
use crate::driver::{Driver, MAX_DRIVERS};
use crate::{cache, fork_safety};

/// The driver's own function with the application's own arguments, and its result.
pub(crate) struct Below<R, F> {
    function: F,
    verdict: Cell<Option<R>>,
}

impl<R: Copy, F: Fn() -> R> Below<R, F> {
    /// Calls the function.
    pub(crate) fn call(&self) -> R {
        self.instead(|| (self.function)())
    }

    /// Makes another call instead. Its result is the driver's verdict as well.
    pub(crate) fn instead(&self, call: impl FnOnce() -> R) -> R {
        let verdict = as_program(call);
        self.verdict.set(Some(verdict));
        verdict
    }
}

/// Runs `body`. If it panics, returns the driver's verdict. `has_cancellation_point`: `body` may read, write or sleep, so the
/// thread must not be canceled meanwhile.
#[inline]
fn guard<R: Copy, F: Fn() -> R>(
    entry: HookEntry,
    has_cancellation_point: bool,
    function: F,
    body: impl FnOnce(&Below<R, F>) -> R,
) -> R {
    let below = Below {
        function,
        verdict: Cell::new(None),
    };
    foreign_call::clean_up(std::ptr::from_ref(&below) as usize);
    let _uncanceled = has_cancellation_point.then(Uncanceled::enter);
    match catch_unwind(AssertUnwindSafe(|| {
        reentrancy::as_hook(entry, || {
            // What only counts computes nothing, and need not take twice as long (43 ns).
            let _work = has_cancellation_point.then(OwnWork::begin);
            body(&below)
        })
    })) {
        Ok(Some(verdict)) => verdict,
        Ok(None) => (below.function)(),
        Err(_) => below.verdict.get().unwrap_or_else(|| (below.function)()),
    }
}

/// Runs work of ours beside the driver's function, where no guard is. None: it panicked.
fn quietly<T>(work: impl FnOnce() -> T) -> Option<T> {
    let _uncanceled = Uncanceled::enter();
    let _work = OwnWork::begin();
    catch_unwind(AssertUnwindSafe(work)).ok()
}

/// One instance of a generic function for each driver.
macro_rules! for_each_driver {
    ($($function:ident)::+) => {
        [
            $($function)::+::<0>, $($function)::+::<1>, $($function)::+::<2>, $($function)::+::<3>,
            $($function)::+::<4>, $($function)::+::<5>, $($function)::+::<6>, $($function)::+::<7>,
            $($function)::+::<8>, $($function)::+::<9>, $($function)::+::<10>, $($function)::+::<11>,
        ]
    };
}
use for_each_driver;

/// The flag of a hook that neither reads, writes nor sleeps: retaining only counts.
macro_rules! has_cancellation_point {
    () => {
        true
    };
    (no_cancellation_point) => {
        false
    };
}
use has_cancellation_point;

/// Declares functions for the slots of a driver's table: the slot, its arguments, an optional flag, and the body, which gets the
/// driver, the call below and the arguments by their names.
macro_rules! numbered {
    ($(
        $(#[$doc:meta])*
        $slot:ident($first:ident: $first_type:ty $(, $argument:ident: $type:ty)* $(,)?) -> $result:ty = $($flag:ident)? |$driver:ident, $below:ident| $body:expr;
    )*) => {
        $(
            $(#[$doc])*
            #[allow(non_snake_case)]
            unsafe extern "C" fn $slot<const DRIVER: usize>($first: $first_type $(, $argument: $type)*) -> $result {
                // One instance for all drivers: a copy for each was a sixth of the library.
                #[inline(never)]
                #[allow(clippy::too_many_arguments)] // as many as the function has
                unsafe fn of_driver(number: usize, $first: $first_type $(, $argument: $type)*) -> $result {
                    let $driver = $crate::driver::Driver::at(number);
                    let Some(function) = $driver.below().$slot else {
                        // Only slots that hold a function are ever replaced.
                        std::process::abort()
                    };
                    // SAFETY: the driver's own function, of the type of its slot, with the arguments of the application's call.
                    let function = || unsafe { function($first $(, $argument)*) };
                    let entry = $crate::driver::reentrancy::HookEntry {
                        function: stringify!($slot),
                        object: $first as usize,
                        driver: number,
                    };
                    let has_cancellation_point = $crate::hook::has_cancellation_point!($($flag)?);
                    $crate::hook::guard(entry, has_cancellation_point, function, |$below| $body)
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
    };
}
use numbered;

/// The kind of an argument, by its name.
macro_rules! first {
    (context) => {
        $crate::driver::layer::FirstArgument::Context
    };
    (platform) => {
        $crate::driver::layer::FirstArgument::Platform
    };
    ($other:ident) => {
        $crate::driver::layer::FirstArgument::Other
    };
}
use first;

/// Declares the functions of a layer's table for hooks of one ABI. They find the driver by the first argument.
macro_rules! in_layer {
    ($abi:literal $(
        $slot:ident($first:ident: $first_type:ty $(, $argument:ident: $type:ty)*) -> $result:ty;
    )*) => {
        pub(super) mod in_layer {
            use super::*;

            $(
                #[allow(non_snake_case)]
                unsafe extern $abi fn $slot<const LAYER: usize>($first: $first_type $(, $argument: $type)*) -> $result {
                    type Function = unsafe extern $abi fn($first_type $(, $type)*) -> $result;
                    const HOOKS: [Function; $crate::driver::MAX_DRIVERS] = $crate::hook::for_each_driver!(super::$slot);
                    // SAFETY: the loader reads the first word of this object once it is called, as it would be without us.
                    let driver = unsafe {
                        $crate::driver::layer::driver_of(LAYER, $first, $crate::hook::first!($first))
                    };
                    match (driver, $crate::driver::layer::below(LAYER).$slot) {
                        // SAFETY: a function of the same type, with the arguments of the application's call.
                        (Some(driver), _) if driver.below().$slot.is_some() => unsafe { HOOKS[driver.index()]($first $(, $argument)*) },
                        (_, Some(function)) => {
                            // SAFETY: the function's own type, but that an exception may leave it.
                            let function = unsafe { std::mem::transmute::<*const (), Function>(function as *const ()) };
                            // SAFETY: as above.
                            unsafe { function($first $(, $argument)*) }
                        }
                        // Only slots that hold a function are ever replaced.
                        (_, None) => std::process::abort(),
                    }
                }
            )*

            /// The functions of this file for one layer.
            pub(in $crate::hook) fn table<const LAYER: usize>() -> Vec<$crate::hook::Hook> {
                vec![$($crate::hook::Hook {
                    name: stringify!($slot),
                    slot: $crate::cl::dispatch::Slot::$slot,
                    function: $slot::<LAYER> as *const () as usize,
                }),*]
            }
        }
    };
}
use in_layer;

/// Declares the hooks of drivers' tables as `numbered` does, and those of a layer.
macro_rules! hooks {
    ($(
        $(#[$doc:meta])*
        $slot:ident($first:ident: $first_type:ty $(, $argument:ident: $type:ty)* $(,)?) -> $result:ty = $($flag:ident)? |$driver:ident, $below:ident| $body:expr;
    )*) => {
        $crate::hook::numbered! {$(
            $(#[$doc])*
            $slot($first: $first_type $(, $argument: $type)*) -> $result = $($flag)? |$driver, $below| $body;
        )*}

        $crate::hook::in_layer! {"C" $(
            $slot($first: $first_type $(, $argument: $type)*) -> $result;
        )*}
    };
}
use hooks;

/// A function for a slot of a table.
pub struct Hook {
    /// The function's name.
    pub name: &'static str,
    /// The slot that it is for.
    pub slot: Slot,
    /// Its address.
    pub function: usize,
}

static HOOKS: [fn() -> Vec<Hook>; MAX_DRIVERS] = for_each_driver!(hooks_of);

static PROGRAM_FUNCTIONS: [fn() -> Vec<extension::ProgramFunction>; MAX_DRIVERS] =
    for_each_driver!(extension::program_functions);

static LAYER_HOOKS: [fn() -> Vec<Hook>; MAX_LAYERS] = [
    layer_hooks_of::<0>,
    layer_hooks_of::<1>,
    layer_hooks_of::<2>,
    layer_hooks_of::<3>,
];

fn hooks_of<const DRIVER: usize>() -> Vec<Hook> {
    let files = [
        thread_starts::table::<DRIVER>,
        create::table::<DRIVER>,
        build::table::<DRIVER>,
        link::table::<DRIVER>,
        query::table::<DRIVER>,
        kernel::table::<DRIVER>,
        lifetime::table::<DRIVER>,
        extension::table::<DRIVER>,
        extension::without_platform::table::<DRIVER>,
    ];
    files.into_iter().flat_map(|table| table()).collect()
}

/// The hooks of a layer.
fn layer_hooks_of<const LAYER: usize>() -> Vec<Hook> {
    let files = [
        thread_starts::in_layer::table::<LAYER>,
        create::in_layer::table::<LAYER>,
        build::in_layer::table::<LAYER>,
        link::in_layer::table::<LAYER>,
        query::in_layer::table::<LAYER>,
        kernel::in_layer::table::<LAYER>,
        lifetime::in_layer::table::<LAYER>,
        extension::in_layer::table::<LAYER>,
        extension::without_platform::in_layer::table::<LAYER>,
    ];
    files.into_iter().flat_map(|table| table()).collect()
}

/// The hooks for the driver with this number. Once they are in a table, other threads may run them.
pub fn table(driver: usize) -> Vec<(Slot, usize)> {
    fork_safety::prepare(cache::forked);
    HOOKS[driver]()
        .into_iter()
        .map(|hook| (hook.slot, hook.function))
        .collect()
}

/// The table of the layer with this number: our hooks, and NULL for functions that are passed through. See [`table`].
pub fn layer_table(layer: usize) -> [usize; SLOTS] {
    fork_safety::prepare(cache::forked);
    let mut table = [0; SLOTS];
    for hook in LAYER_HOOKS[layer]() {
        if hook.slot.is_in(layer::below(layer)) {
            table[hook.slot.index()] = hook.function;
        }
    }
    table
}

/// Our replacement of the driver's function of this name.
pub fn by_name(driver: &Driver, name: &CStr) -> Option<*mut c_void> {
    let name = name.to_str().ok()?;
    let hook = HOOKS[driver.index()]()
        .into_iter()
        .find(|hook| hook.name == name && hook.slot.is_in(driver.below()))
        .map(|hook| hook.function);
    let wrapper = || {
        PROGRAM_FUNCTIONS[driver.index()]()
            .into_iter()
            .find(|(known, _)| *known == name)
            .map(|(_, function)| function)
    };
    hook.or_else(wrapper)
        .map(|function| function as *mut c_void)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENTRY: HookEntry = HookEntry {
        function: "clBuildProgram",
        object: 1,
        driver: 1,
    };

    #[test]
    fn a_panic_before_the_driver_was_called_calls_it_and_one_after_keeps_its_verdict() {
        let calls = Cell::new(0);
        let driver = || {
            calls.set(calls.get() + 1);
            calls.get()
        };
        assert_eq!(guard(ENTRY, true, driver, |_| panic!("before")), 1);
        assert_eq!(
            guard(ENTRY, true, driver, |below| {
                below.call();
                panic!("after")
            }),
            2
        );
        assert_eq!(calls.get(), 2);
    }

    #[test]
    fn a_hook_inside_a_hook_goes_to_the_driver_and_a_callback_is_outside() {
        let nested = || guard(ENTRY, true, || "driver", |_| "hook");
        assert_eq!(guard(ENTRY, true, || "unused", |_| nested()), "driver");
        let outside = || reentrancy::outside(nested);
        assert_eq!(guard(ENTRY, true, || "unused", |_| outside()), "hook");
        assert_eq!(nested(), "hook");
    }

    #[test]
    fn the_same_call_at_a_door_below_goes_to_the_driver_and_another_does_not() {
        let below = |entry| {
            let inner = || guard(entry, true, || "driver", |_| "hook");
            guard(ENTRY, true, || "unused", |_| reentrancy::outside(inner))
        };
        assert_eq!(below(HookEntry { driver: 2, ..ENTRY }), "driver");
        let object = HookEntry {
            driver: 2,
            object: 2,
            ..ENTRY
        };
        assert_eq!(below(object), "hook");
        let function = HookEntry {
            driver: 2,
            function: "clReleaseProgram",
            ..ENTRY
        };
        assert_eq!(below(function), "hook");
    }

    #[test]
    fn no_hot_function_and_no_tagged_slot_is_hooked() {
        let hooked: Vec<_> = table(0).into_iter().map(|(slot, _)| slot).collect();
        let through_layer: Vec<_> = LAYER_HOOKS[0]().into_iter().map(|hook| hook.slot).collect();
        assert!(through_layer.iter().all(|slot| hooked.contains(slot)));
        assert_eq!(through_layer.len(), hooked.len());
        for index in [0, 31, 38, 59, 60, 134, 135, 149] {
            assert!(
                !hooked.iter().any(|slot| slot.index() == index),
                "slot {index}"
            );
        }
        let mut indexes: Vec<_> = hooked.iter().map(|slot| slot.index()).collect();
        indexes.sort_unstable();
        indexes.dedup();
        assert_eq!(indexes.len(), hooked.len(), "a slot is hooked twice");
    }
}
