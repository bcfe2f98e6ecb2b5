//! How a program came to hold what it holds: enough for the driver to do it again.

use std::sync::Arc;

use crate::cl::Device;
use crate::driver::BuildArguments;
use crate::key::include::Closure;
use crate::key::ingredients::Key;
pub use crate::store::recipe::{Constants, Header, Text};
use crate::store::recipe::{RecipeBase, RecipeOperation};

/// A call that left a program in a state which is known by a key.
pub struct Recipe {
    /// The key of that state.
    pub key: Key,
    /// What the program was made from.
    pub base: Base,
    /// Which function was called.
    pub operation: Operation,
    /// With which devices and options.
    pub arguments: BuildArguments,
    /// The state before it, if devices that the call does not name keep what that left them.
    pub previous: Option<Arc<Recipe>>,
    /// How many calls it takes to do all of it again.
    pub weight: usize,
    /// How many of them need one another.
    pub depth: usize,
    /// The header files that were read, or looked for.
    pub closure: Closure,
    /// The directories in which headers were looked for, in all calls that led here. Their spelling is in no key.
    pub include_dirs: Vec<Vec<u8>>,
}

/// What a program is made from.
pub type Base = RecipeBase<Arc<Recipe>>;

/// A function that changes what a program holds, or makes one. A link has the devices of its context.
pub type Operation = RecipeOperation<Vec<Device>>;

impl Recipe {
    /// How long a chain of calls for one device after another may be, before it is left to the driver.
    pub const MAX_CHAIN: usize = 64;

    /// How many calls a link may stand for, before it is left to the driver. What several libraries hold counts in each.
    pub const MAX_WEIGHT: usize = 4096;

    /// How deep libraries of libraries may be, before they are left to the driver. They are repeated and dropped by recursion, on
    /// a stack of the application's.
    pub const MAX_DEPTH: usize = 64;

    /// The calls that led here, the first one first.
    pub fn calls(&self) -> Vec<&Recipe> {
        let mut calls: Vec<&Recipe> =
            std::iter::successors(Some(self), |recipe| recipe.previous.as_deref()).collect();
        calls.reverse();
        calls
    }
}
