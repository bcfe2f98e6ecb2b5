//! The known kernels, and a lock-free test that a kernel is not among them.
//!
//! clRetainKernel and clReleaseKernel come here for every kernel of every program. Most are the driver's alone.

use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{KernelState, Map};
use crate::cl::Kernel;

const PLACES: usize = 1024;

/// The number of known kernels for each hash. Changes together with the map, under its lock.
static PLACE_COUNTS: [AtomicU32; PLACES] = [const { AtomicU32::new(0) }; PLACES];

/// Two kernels may have the same place.
fn place(kernel: Kernel) -> &'static AtomicU32 {
    // The upper bits of the product depend on all bits of the address (Fibonacci hashing).
    let product = (kernel.raw() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    &PLACE_COUNTS[(product >> 32) as usize % PLACES]
}

/// Whether the kernel may be known. A thread that has the handle got it from the call that made it known, so it sees that write.
#[inline]
pub fn may_be_known(kernel: Kernel) -> bool {
    place(kernel).load(Ordering::Relaxed) > 0
}

pub struct Kernels(Map<Kernel, KernelState>);

impl Kernels {
    pub const fn new() -> Kernels {
        Kernels(Map::with_hasher(BuildHasherDefault::new()))
    }

    pub fn get(&self, kernel: &Kernel) -> Option<&KernelState> {
        self.0.get(kernel)
    }

    pub fn get_mut(&mut self, kernel: &Kernel) -> Option<&mut KernelState> {
        self.0.get_mut(kernel)
    }

    pub fn values(&self) -> impl Iterator<Item = &KernelState> {
        self.0.values()
    }

    /// Remembers a kernel of which nothing is remembered.
    pub fn insert(&mut self, kernel: Kernel, state: KernelState) {
        if self.0.insert(kernel, state).is_none() {
            place(kernel).fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn remove(&mut self, kernel: &Kernel) -> Option<KernelState> {
        let known = self.0.remove(kernel);
        if known.is_some() {
            place(*kernel).fetch_sub(1, Ordering::Relaxed);
        }
        known
    }
}
