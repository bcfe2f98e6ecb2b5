//! The functions that stand in drivers' tables: thin, all made by one macro, one set for each driver.
//!
//! Each has a panic guard whose fallback is the driver's own function: if our part fails before the driver was called, the
//! driver is called unchanged; if after, its verdict stands. Each set knows its driver by number, so that no handle is ever
//! read here: it may be NULL, stale or foreign, and then the driver gets what it would have got without us.
//!
//! A hook that is entered from inside another of ours on the same thread goes straight to the function below. The
//! application's callbacks run outside (`driver::notify`).

#![allow(unsafe_code)] // the C interface: pointers of the application's calls end here

mod build;
mod create;
mod extension;
mod kernel;
mod lifetime;
mod link;
mod query;

use std::cell::Cell;
use std::ffi::{CStr, c_void};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::cl::dispatch::Slot;
use crate::driver::{Driver, MOST_DRIVERS, notify};
use crate::{fork, shadow};

/// The driver's own function with the application's own arguments, and what it has said.
pub(crate) struct Below<R, F> {
    function: F,
    verdict: Cell<Option<R>>,
}

impl<R: Copy, F: Fn() -> R> Below<R, F> {
    /// Calls it.
    pub(crate) fn call(&self) -> R {
        self.instead(|| (self.function)())
    }

    /// Makes another call in its place, whose verdict is the driver's as well.
    pub(crate) fn instead(&self, call: impl FnOnce() -> R) -> R {
        let verdict = call();
        self.verdict.set(Some(verdict));
        verdict
    }
}

/// Runs `body`; where it cannot, the driver's verdict.
#[inline]
fn guard<R: Copy, F: Fn() -> R>(function: F, body: impl FnOnce(&Below<R, F>) -> R) -> R {
    let below = Below {
        function,
        verdict: Cell::new(None),
    };
    match catch_unwind(AssertUnwindSafe(|| notify::at_first_depth(|| body(&below)))) {
        Ok(Some(verdict)) => verdict,
        Ok(None) => (below.function)(),
        Err(_) => below.verdict.get().unwrap_or_else(|| (below.function)()),
    }
}

/// Declares hooks: the function of the table, its arguments, and what it does, which is given the driver, the call below and
/// the arguments by their names.
macro_rules! hooks {
    ($(
        $(#[$doc:meta])*
        $slot:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty = |$driver:ident, $below:ident| $body:expr;
    )*) => {
        $(
            $(#[$doc])*
            #[allow(non_snake_case)]
            unsafe extern "C" fn $slot<const DRIVER: usize>($($argument: $type),*) -> $result {
                let $driver = $crate::driver::Driver::at(DRIVER);
                let Some(function) = $driver.below().$slot else {
                    // Only slots that hold a function are ever replaced.
                    std::process::abort()
                };
                // SAFETY: the driver's own function, of the type of its slot, with the arguments of the application's call.
                let function = || unsafe { function($($argument),*) };
                $crate::hook::guard(function, |$below| $body)
            }
        )*

        /// The hooks of this file for one driver.
        pub(super) fn table<const DRIVER: usize>() -> Vec<$crate::hook::Hook> {
            vec![$($crate::hook::Hook {
                name: stringify!($slot),
                slot: $crate::cl::dispatch::Slot::$slot,
                function: $slot::<DRIVER> as *const () as usize,
            }),*]
        }
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

/// Everything that is made once for each driver.
struct Set {
    hooks: fn() -> Vec<Hook>,
    program_functions: fn() -> Vec<extension::ProgramFunction>,
}

const fn set<const DRIVER: usize>() -> Set {
    Set {
        hooks: hooks_of::<DRIVER>,
        program_functions: extension::program_functions::<DRIVER>,
    }
}

static SETS: [Set; MOST_DRIVERS] = [
    set::<0>(),
    set::<1>(),
    set::<2>(),
    set::<3>(),
    set::<4>(),
    set::<5>(),
    set::<6>(),
    set::<7>(),
    set::<8>(),
    set::<9>(),
    set::<10>(),
    set::<11>(),
];

fn hooks_of<const DRIVER: usize>() -> Vec<Hook> {
    let files = [
        create::table::<DRIVER>,
        build::table::<DRIVER>,
        link::table::<DRIVER>,
        query::table::<DRIVER>,
        kernel::table::<DRIVER>,
        lifetime::table::<DRIVER>,
        extension::table::<DRIVER>,
    ];
    files.into_iter().flat_map(|table| table()).collect()
}

/// The hooks for the driver with this number. From now on they may run, and take locks.
pub fn table(driver: usize) -> Vec<(Slot, usize)> {
    fork::prepare(shadow::forked);
    (SETS[driver].hooks)()
        .into_iter()
        .map(|hook| (hook.slot, hook.function))
        .collect()
}

/// Our function in place of the driver's function of this name.
pub fn by_name(driver: &Driver, name: &CStr) -> Option<*mut c_void> {
    let name = name.to_str().ok()?;
    let set = &SETS[driver.index()];
    let hook = (set.hooks)()
        .into_iter()
        .find(|hook| hook.name == name)
        .map(|hook| hook.function);
    let wrapper = || {
        (set.program_functions)()
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

    #[test]
    fn a_panic_before_the_driver_was_called_calls_it_and_one_after_keeps_its_verdict() {
        let calls = Cell::new(0);
        let driver = || {
            calls.set(calls.get() + 1);
            calls.get()
        };
        assert_eq!(guard(driver, |_| panic!("before")), 1);
        assert_eq!(
            guard(driver, |below| {
                below.call();
                panic!("after")
            }),
            2
        );
        assert_eq!(calls.get(), 2);
    }

    #[test]
    fn a_hook_inside_a_hook_goes_to_the_driver_and_a_callback_is_outside() {
        let nested = || guard(|| "driver", |_| "hook");
        assert_eq!(guard(|| "unused", |_| nested()), "driver");
        assert_eq!(guard(|| "unused", |_| notify::outside(nested)), "hook");
        assert_eq!(nested(), "hook");
    }

    #[test]
    fn no_hot_function_and_no_tagged_slot_is_hooked() {
        let hooked: Vec<_> = table(0).into_iter().map(|(slot, _)| slot).collect();
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
