//! The recipe of a program's content: enough for the driver to make it again.

use std::sync::Arc;

use crate::cl::Device;
use crate::driver::{BuildArguments, FloatState};
use crate::key::include::Closure;
use crate::key::ingredients::Key;
pub use crate::store::recipe::{Constants, Header, Text};
use crate::store::recipe::{RecipeBase, RecipeOperation};

/// A call after which the content of a program is known by a key.
pub struct Recipe {
    /// The key of the content.
    pub key: Key,
    /// What the program was made from.
    pub base: Base,
    /// Which function was called.
    pub operation: Operation,
    /// With which devices and options. The devices are the program's own, which live as long as it does.
    pub arguments: BuildArguments,
    /// How the application named these devices.
    pub named: Vec<NamedDevice>,
    /// The floating-point state of the thread that called.
    pub float_state: FloatState,
    /// The recipe before the call, if devices that the call does not name keep that state.
    pub previous: Option<Arc<Recipe>>,
    /// The length of the sources, intermediate languages and embedded headers of all these calls, in bytes.
    pub texts: usize,
    /// The number of calls that repeat all of it.
    pub weight: usize,
    /// The length of the longest chain of calls that need one another.
    pub depth: usize,
    /// The header files that were read or looked for.
    pub closure: Closure,
    /// The directories in which headers were looked for, in all calls of the recipe. Their spelling is in no key.
    pub include_dirs: Vec<Vec<u8>>,
}

/// A device that the application has named in a call. The application may have released it since, so its handle is only compared: no
/// driver is given it.
pub struct NamedDevice {
    address: usize,
    /// The index of the program's device that it meant.
    index: usize,
}

impl NamedDevice {
    /// A device, and the index of the program's device that it means.
    pub fn new(device: Device, index: usize) -> NamedDevice {
        NamedDevice {
            address: device.raw() as usize,
            index,
        }
    }
}

/// What a program is made from.
pub type Base = RecipeBase<Arc<Recipe>>;

/// A function that changes what a program holds, or makes one. A link has the devices of its context.
pub type Operation = RecipeOperation<Vec<Device>>;

/// Drops what it was made from without recursion: the stack is the application's.
impl Drop for Recipe {
    fn drop(&mut self) {
        let mut earlier = Vec::new();
        self.take_earlier(&mut earlier);
        while let Some(one) = earlier.pop() {
            if let Some(mut last) = Arc::into_inner(one) {
                last.take_earlier(&mut earlier);
            }
        }
    }
}

impl Recipe {
    fn take_earlier(&mut self, earlier: &mut Vec<Arc<Recipe>>) {
        if let Base::Linked(inputs) = &mut self.base {
            earlier.append(inputs);
        }
        earlier.extend(self.previous.take());
    }

    /// The longest chain of calls for one device after another. Longer chains are left to the driver.
    pub const MAX_CHAIN: usize = 64;

    /// The largest number of calls that a link may need. A library in several libraries counts each time. Larger links are left to
    /// the driver.
    pub const MAX_WEIGHT: usize = 4096;

    /// The deepest nesting of libraries.
    pub const MAX_DEPTH: usize = 64;

    /// The index of the program's device that a handle meant in these calls.
    pub fn named_device(&self, device: Device) -> Option<usize> {
        let calls = self.calls();
        let mut named = calls.iter().rev().flat_map(|call| &call.named);
        let named = named.find(|named| named.address == device.raw() as usize);
        named.map(|named| named.index)
    }

    /// The calls of the recipe, the first one first.
    pub fn calls(&self) -> Vec<&Recipe> {
        let mut calls: Vec<&Recipe> =
            std::iter::successors(Some(self), |recipe| recipe.previous.as_deref()).collect();
        calls.reverse();
        calls
    }
}
