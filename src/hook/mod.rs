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
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::cl::dispatch::Slot;
use crate::driver::{MOST_DRIVERS, notify};
pub use extension::by_name;

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

/// Declares hooks: the function of the table, its arguments, and the function here that does the work. That is given the
/// driver, the call below, and the arguments.
macro_rules! hooks {
    ($($(#[$doc:meta])* $slot:ident($($argument:ident: $type:ty),* $(,)?) -> $result:ty = $body:path;)*) => {
        $(
            $(#[$doc])*
            #[allow(non_snake_case)]
            unsafe extern "C" fn $slot<const DRIVER: usize>($($argument: $type),*) -> $result {
                let driver = $crate::driver::Driver::at(DRIVER);
                let Some(function) = driver.below().$slot else {
                    // Only slots that hold a function are ever replaced.
                    std::process::abort()
                };
                // SAFETY: the driver's own function, of the type of its slot, with the arguments of the application's call.
                let function = || unsafe { function($($argument),*) };
                $crate::hook::guard(function, |below| $body(driver, below, $($argument),*))
            }
        )*

        /// The hooks of this file for one driver, with the slots that they are for.
        pub(super) fn table<const DRIVER: usize>() -> Vec<($crate::cl::dispatch::Slot, usize)> {
            vec![$(($crate::cl::dispatch::Slot::$slot, $slot::<DRIVER> as *const () as usize)),*]
        }

        /// The names of the hooks of this file.
        pub(super) const NAMES: &[(&str, $crate::cl::dispatch::Slot)] =
            &[$((stringify!($slot), $crate::cl::dispatch::Slot::$slot)),*];
    };
}
use hooks;

fn all<const DRIVER: usize>() -> Vec<(Slot, usize)> {
    [
        create::table::<DRIVER>(),
        build::table::<DRIVER>(),
        link::table::<DRIVER>(),
        query::table::<DRIVER>(),
        kernel::table::<DRIVER>(),
        lifetime::table::<DRIVER>(),
        extension::table::<DRIVER>(),
    ]
    .concat()
}

/// The hooks for the driver with this number.
pub fn table(driver: usize) -> Vec<(Slot, usize)> {
    const TABLES: [fn() -> Vec<(Slot, usize)>; MOST_DRIVERS] = [
        all::<0>, all::<1>, all::<2>, all::<3>, all::<4>, all::<5>, all::<6>, all::<7>, all::<8>,
        all::<9>, all::<10>, all::<11>,
    ];
    TABLES[driver]()
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
