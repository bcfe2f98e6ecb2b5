//! The recipe of a program's content: enough for the driver to make it again.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::sync::Arc;

use crate::cl::Device;
use crate::driver::BuildArguments;
use crate::key::include::Closure;
use crate::key::ingredients::Key;

/// A call after which the content of a program is known by a key.
pub struct Recipe {
    /// The key of the content.
    pub key: Key,
    /// What the program was made from.
    pub base: Base,
    /// Which function was called.
    pub operation: Operation,
    /// With which devices and options.
    pub arguments: BuildArguments,
    /// The recipe before the call, if devices that the call does not name keep that state.
    pub previous: Option<Arc<Recipe>>,
    /// The number of calls that repeat all of it.
    pub weight: usize,
    /// The length of the longest chain of calls that need one another.
    pub depth: usize,
    /// The header files that were read or looked for.
    pub closure: Closure,
    /// The directories in which headers were looked for, in all calls of the recipe. Their spelling is in no key.
    pub include_dirs: Vec<Vec<u8>>,
}

/// A source or module, as the driver gave it. Shared, since it may have megabytes.
pub type Text = Arc<Vec<u8>>;

/// What a program is made from.
#[derive(Clone)]
pub enum Base {
    /// OpenCL C, without a NUL.
    Source(Text),
    /// An intermediate language, with the specialization constants that were set before the call.
    Il(Text, Constants),
    /// Programs that were linked, in their order.
    Linked(Vec<Arc<Recipe>>),
}

impl Base {
    /// The programs that were linked.
    pub fn inputs(&self) -> &[Arc<Recipe>] {
        match self {
            Base::Linked(inputs) => inputs,
            _ => &[],
        }
    }
}

/// Values of specialization constants, by their `spec_id`.
pub type Constants = BTreeMap<u32, Vec<u8>>;

/// A function that changes what a program holds, or makes one.
#[derive(Clone, Debug)]
pub enum Operation {
    /// clBuildProgram.
    Build,
    /// clCompileProgram, with its headers in their order.
    Compile(Vec<Header>),
    /// clLinkProgram, in a context of these devices.
    Link(Vec<Device>),
}

impl Operation {
    /// The embedded headers of clCompileProgram.
    pub fn headers(&self) -> &[Header] {
        match self {
            Operation::Compile(headers) => headers,
            _ => &[],
        }
    }
}

/// An embedded header of clCompileProgram.
#[derive(Clone, Debug)]
pub struct Header {
    /// Its `header_include_names` element.
    pub name: CString,
    /// The source of its program at the time of the call.
    pub source: Text,
}

impl Recipe {
    /// The longest chain of calls for one device after another. Longer chains are left to the driver.
    pub const MAX_CHAIN: usize = 64;

    /// The largest number of calls that a link may need. A library in several libraries counts each time. Larger links are left to
    /// the driver.
    pub const MAX_WEIGHT: usize = 4096;

    /// The deepest nesting of libraries. Recipes are repeated and dropped by recursion, on the application's stack.
    pub const MAX_DEPTH: usize = 64;

    /// The calls of the recipe, the first one first.
    pub fn calls(&self) -> Vec<&Recipe> {
        let mut calls: Vec<&Recipe> =
            std::iter::successors(Some(self), |recipe| recipe.previous.as_deref()).collect();
        calls.reverse();
        calls
    }
}
