//! Programs made from recorded binaries: P', which executes in place of the application's P, or the result of a link.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::Recipe;
use crate::cl::{Context, Device, Program};
use crate::driver::Driver;
use crate::driver::foreign_call::{self, OwnReference};
use crate::fork_safety::RwLock;
use crate::key::ingredients::Key;
use crate::store::entry::{Entry, Facts};

/// The owner of a program that was made from binaries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The cache: the program is a P' beside the application's P, and the reference is ours.
    Cache,
    /// The application, which got it as the result of clLinkProgram and owns all its references.
    Application,
}

/// The facts of a program. They do not change while this lives.
pub enum KnownFacts {
    /// As the entry records them.
    Recorded(Arc<Entry>),
    /// As the driver answered since.
    Fresh(Arc<Facts>),
}

impl Deref for KnownFacts {
    type Target = Facts;

    fn deref(&self) -> &Facts {
        match self {
            KnownFacts::Recorded(entry) => &entry.meta.facts,
            KnownFacts::Fresh(facts) => facts,
        }
    }
}

/// A program made from recorded binaries. It belongs to exactly one program of the application, since program-scope variables live
/// in it.
///
/// Hooks clone the Arc before they call the driver. The drop of the last clone releases our reference, outside every lock.
pub struct CachedProgram {
    driver: &'static Driver,
    program: Program,
    owner: Owner,
    context: Context,
    devices: Vec<Device>,
    recipe: Arc<Recipe>,
    /// Shared by all programs of its key.
    entry: Arc<Entry>,
    /// The driver's later answers, which replace the recorded ones.
    fresh: RwLock<Option<Arc<Facts>>>,
    materialized: AtomicBool,
    released: AtomicBool,
    /// The handle of the twin that the driver linked for queries. 0 if there is none.
    twin: AtomicUsize,
    /// A call has changed the twin, so no recorded answer is valid.
    changed: AtomicBool,
    /// One of these calls failed, or has left no kernels.
    lost_kernels: AtomicBool,
}

impl CachedProgram {
    /// A program of an entry of the recipe's key. `devices` are those of the application's program.
    pub fn new(
        driver: &'static Driver,
        program: Program,
        owner: Owner,
        context: Context,
        devices: Vec<Device>,
        recipe: Arc<Recipe>,
        entry: Arc<Entry>,
    ) -> CachedProgram {
        CachedProgram {
            driver,
            program,
            owner,
            context,
            devices,
            recipe,
            entry,
            fresh: RwLock::new(None),
            materialized: AtomicBool::new(false),
            released: AtomicBool::new(false),
            twin: AtomicUsize::new(0),
            changed: AtomicBool::new(false),
            lost_kernels: AtomicBool::new(false),
        }
    }

    /// The driver.
    pub fn driver(&self) -> &'static Driver {
        self.driver
    }

    /// The handle.
    pub fn program(&self) -> Program {
        self.program
    }

    /// Whether it is a P'.
    pub fn is_inner(&self) -> bool {
        self.owner == Owner::Cache
    }

    /// The program in its context that the application does not know.
    pub fn hidden_program(&self) -> Option<Program> {
        if self.is_inner() {
            Some(self.program)
        } else {
            self.twin()
        }
    }

    /// The context.
    pub fn context(&self) -> Context {
        self.context
    }

    /// The devices of the application's program, in its order.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// The recipe of its content.
    pub fn recipe(&self) -> &Arc<Recipe> {
        &self.recipe
    }

    /// The key of its entry.
    pub fn key(&self) -> Key {
        self.recipe.key
    }

    /// Whether its entry is from a system directory.
    pub fn is_of_system(&self) -> bool {
        self.entry.is_of_system
    }

    /// How long the driver took to build the recorded program, in nanoseconds.
    pub fn compile_ns(&self) -> u64 {
        self.entry.meta.compile_ns
    }

    /// The devices that have a binary, by their index.
    pub fn built(&self) -> Vec<usize> {
        let built = self.entry.meta.built.iter();
        built.map(|index| *index as usize).collect()
    }

    /// The recorded binaries as CL_PROGRAM_BINARIES lists them: one for each device, empty if it has none. Some drivers list only
    /// the devices that have one.
    pub fn binaries(&self) -> Vec<&[u8]> {
        if self.entry.meta.only_built_listed {
            return self.entry.binaries().collect();
        }
        let mut all = vec![[].as_slice(); self.devices.len()];
        for (index, binary) in self.entry.meta.built.iter().zip(self.entry.binaries()) {
            if let Some(place) = all.get_mut(*index as usize) {
                *place = binary;
            }
        }
        all
    }

    /// The recorded facts, or the driver's later answers.
    pub fn facts(&self) -> KnownFacts {
        match &*self.fresh.read() {
            Some(fresh) => KnownFacts::Fresh(fresh.clone()),
            None => KnownFacts::Recorded(self.entry.clone()),
        }
    }

    /// Replaces the recorded facts by the driver's current answers.
    pub fn set_facts(&self, facts: Arc<Facts>) {
        let old = self.fresh.write().replace(facts);
        drop(old);
    }

    /// Releases our reference to P', once. Kernels of P' may still hold it.
    pub fn release(&self) {
        if self.is_inner() && !self.released.swap(true, Ordering::AcqRel) {
            foreign_call::give_back(self.driver, OwnReference::Program(self.program));
        }
    }

    /// Whether P was built for real since.
    pub fn is_materialized(&self) -> bool {
        self.materialized.load(Ordering::Acquire)
    }

    /// Notes that P was built for real.
    pub fn set_materialized(&self) {
        self.materialized.store(true, Ordering::Release);
    }

    /// The twin, if the driver has linked one.
    pub fn twin(&self) -> Option<Program> {
        let twin = Program::new(self.twin.load(Ordering::Acquire) as *mut _);
        (!twin.is_null()).then_some(twin)
    }

    /// The twin, if a call has changed it. It answers for the application's program from then on.
    pub fn changed_twin(&self) -> Option<Program> {
        self.twin().filter(|_| self.changed.load(Ordering::Acquire))
    }

    /// The program to link instead of the application's: a changed twin, or this one.
    pub fn in_place(&self) -> Program {
        self.changed_twin().unwrap_or(self.program)
    }

    /// Notes that a call has changed the twin. `lost_kernels`: the kernels of the link are no longer its kernels.
    pub fn set_changed(&self, lost_kernels: bool) {
        self.lost_kernels.fetch_or(lost_kernels, Ordering::AcqRel);
        self.changed.store(true, Ordering::Release);
    }

    /// Whether the twin has lost the kernels of the link. Then kernels are created from the twin, if there are any.
    pub fn has_lost_kernels(&self) -> bool {
        self.lost_kernels.load(Ordering::Acquire)
    }

    /// Keeps a twin, whose reference is ours. If two threads linked one, the first wins.
    pub fn keep_twin(&self, program: Program) -> Program {
        let handle = program.raw() as usize;
        let kept = self
            .twin
            .compare_exchange(0, handle, Ordering::AcqRel, Ordering::Acquire);
        match kept {
            Ok(_) => program,
            Err(earlier) => {
                self.driver.release_program(program);
                Program::new(earlier as *mut _)
            }
        }
    }
}

impl Drop for CachedProgram {
    fn drop(&mut self) {
        self.release();
        if let Some(twin) = self.twin() {
            foreign_call::give_back(self.driver, OwnReference::Program(twin));
        }
    }
}
