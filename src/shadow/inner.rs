//! P': the program made from recorded binaries that executes in place of the application's P.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::cl::{Context, Device, Program};
use crate::driver::{BuildArguments, Driver, notify};
use crate::fork::RwLock;
use crate::key::recipe::Key;
use crate::store::entry::{Entry, Facts};

/// An inner program. One belongs to one P only, since program-scope variables live in it.
///
/// Hooks clone the Arc before they call the driver; whoever drops the last clone releases the program, outside every lock.
pub struct Inner {
    driver: &'static Driver,
    program: Program,
    context: Context,
    devices: Vec<Device>,
    arguments: BuildArguments,
    key: Key,
    entry: Entry,
    facts: RwLock<Arc<Facts>>,
    materialised: AtomicBool,
    released: AtomicBool,
}

impl Inner {
    /// Takes over the reference to `program`.
    pub fn new(
        driver: &'static Driver,
        program: Program,
        context: Context,
        devices: Vec<Device>,
        arguments: BuildArguments,
        key: Key,
        mut entry: Entry,
    ) -> Inner {
        let facts = RwLock::new(Arc::new(std::mem::take(&mut entry.meta.facts)));
        Inner {
            driver,
            program,
            context,
            devices,
            arguments,
            key,
            entry,
            facts,
            materialised: AtomicBool::new(false),
            released: AtomicBool::new(false),
        }
    }

    /// The driver of P and P'.
    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// The handle of P'.
    pub fn program(&self) -> Program {
        self.program
    }

    /// The context of P and P'.
    pub fn context(&self) -> Context {
        self.context
    }

    /// The devices of P, in its order.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// With which arguments the application built P.
    pub fn arguments(&self) -> &BuildArguments {
        &self.arguments
    }

    /// The key of its entry.
    pub fn key(&self) -> Key {
        self.key
    }

    /// How long the driver took to build what was recorded, in nanoseconds.
    pub fn compile_ns(&self) -> u64 {
        self.entry.meta.compile_ns
    }

    /// The recorded binaries, one for each device.
    pub fn binaries(&self) -> Vec<&[u8]> {
        self.entry.binaries().collect()
    }

    /// What was recorded.
    pub fn facts(&self) -> Arc<Facts> {
        self.facts.read().clone()
    }

    /// Replaces what was recorded by what the driver said now.
    pub fn set_facts(&self, facts: Arc<Facts>) {
        *self.facts.write() = facts;
    }

    /// Gives our reference to P' back, once. Its kernels may still hold it.
    pub fn release(&self) {
        if !self.released.swap(true, Ordering::AcqRel) {
            // Releasing may run callbacks of the application's.
            notify::outside(|| self.driver.release_program(self.program));
        }
    }

    /// Whether P was built for real since.
    pub fn is_materialised(&self) -> bool {
        self.materialised.load(Ordering::Acquire)
    }

    /// Notes that P was built for real.
    pub fn set_materialised(&self) {
        self.materialised.store(true, Ordering::Release);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.release();
    }
}
