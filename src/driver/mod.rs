//! One real driver: its dispatch table as it was before we patched it, what is known of its kind, and safe calls into it.
//!
//! A [`Driver`] stands for one dispatch table. A library with several platforms on one table is one driver; its files are
//! never unmapped once it was opened, and a registered driver lives for the life of the process.

#![allow(unsafe_code)] // calls through the driver's function pointers; each block says why it is sound

mod calls;
pub mod identity;
mod library;
mod loaded;
pub mod notify;
mod patch;
pub mod profile;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use once_cell::race::OnceBox;
use once_cell::sync::OnceCell;
use opencl_sys::cl_icd::cl_icd_dispatch;

use crate::cl::Platform;
use crate::cl::dispatch::{Slot, Table};
use crate::fork::Mutex;
pub use calls::{BuildArguments, NotifyTarget};
use identity::DriverIdentity;
pub use library::{Library, OpenError};
use profile::Profile;

/// How many tables can be hooked in one process. Each has hooks of its own, which therefore know their driver without
/// reading the handle: a handle may be NULL, stale or foreign.
pub const MOST_DRIVERS: usize = 12;

static DRIVERS: [OnceCell<Driver>; MOST_DRIVERS] = [const { OnceCell::new() }; MOST_DRIVERS];

/// Taken while a driver is registered and patched; never while a driver is called.
static REGISTRATION: Mutex<()> = Mutex::new(());

/// Set when exit() runs its handlers: ours was registered after those of the drivers, so it runs before them.
static ENDING: AtomicBool = AtomicBool::new(false);

extern "C" fn ending() {
    ENDING.store(true, Ordering::Relaxed);
}

/// Whether the drivers are being torn down, so that they are called for nothing but what the application wants of them.
/// Measured: PoCL 3.1 mostly crashes in a build then, but if it does not, fetching the binary goes on for ever.
pub fn is_ending() -> bool {
    ENDING.load(Ordering::Relaxed)
}

/// One driver, known by its dispatch table.
pub struct Driver {
    index: usize,
    table: Table,
    below: cl_icd_dispatch,
    library: PathBuf,
    platforms: Vec<Platform>,
    /// What is known of drivers of this kind.
    pub profile: &'static Profile,
    suffix: Vec<u8>,
    identity: OnceBox<Option<DriverIdentity>>,
    devices: Mutex<identity::Devices>,
    context_counts: AtomicU8,
    hooked: AtomicBool,
}

impl Driver {
    /// The driver whose hooks have this number. It is registered before the first of them stands in a table.
    #[inline]
    pub fn at(index: usize) -> &'static Driver {
        DRIVERS[index]
            .get()
            .expect("a hook runs only after its driver was registered")
    }

    /// The number that selects this driver's hooks.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The driver's own functions, as they were before the table was patched.
    #[inline]
    pub fn below(&self) -> &cl_icd_dispatch {
        &self.below
    }

    /// The library's path as it was opened.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// CL_PLATFORM_ICD_SUFFIX_KHR of the first platform, without the NUL.
    pub fn suffix(&self) -> &[u8] {
        &self.suffix
    }

    /// The hooked driver of a library's first platform.
    pub fn of_library(library: &Library) -> Option<&'static Driver> {
        let platform = library.platforms().first()?;
        DRIVERS
            .iter()
            .map_while(|driver| driver.get())
            .find(|driver| {
                driver.platforms.contains(platform) && driver.hooked.load(Ordering::Acquire)
            })
    }

    /// The registered driver whose objects point to `table`.
    fn of_table(table: Table) -> Option<&'static Driver> {
        DRIVERS
            .iter()
            .map_while(|driver| driver.get())
            .find(|driver| driver.table.address() == table.address())
    }

    /// Registers each table of the library that is not known yet and patches it.
    ///
    /// `hooks` gives the functions for the driver with a number; it is called before anything is patched.
    /// Returns the number of tables that are hooked now.
    pub fn hook(library: &Library, hooks: impl Fn(usize) -> Vec<(Slot, usize)>) -> usize {
        let mut hooked = 0;
        for group in library.tables() {
            let table = group.table;
            let _registration = REGISTRATION.lock();
            if Driver::of_table(table).is_some() {
                hooked += 1;
                continue;
            }
            let Some(index) = DRIVERS.iter().position(|driver| driver.get().is_none()) else {
                tracing::warn!(driver = %crate::log::path(library.path()), "too many drivers: this one is not cached");
                continue;
            };
            let driver = DRIVERS[index].get_or_init(|| Driver {
                index,
                table,
                below: table.copy(),
                library: library.path().to_owned(),
                platforms: group.platforms.clone(),
                profile: profile::of(&group.recognition),
                suffix: group.recognition.suffix.clone(),
                identity: OnceBox::new(),
                devices: Mutex::default(),
                context_counts: AtomicU8::new(0),
                hooked: AtomicBool::new(false),
            });
            // SAFETY: the function only sets a flag. Once for each driver, so that it runs before the first is torn down.
            unsafe { libc::atexit(ending) };
            match patch::install(table, &hooks(index)) {
                Ok(slots) => {
                    driver.hooked.store(true, Ordering::Release);
                    hooked += 1;
                    tracing::debug!(
                        driver = %crate::log::path(&driver.library), profile = driver.profile.family, slots, "hooked"
                    );
                }
                Err(error) => tracing::warn!(
                    driver = %crate::log::path(&driver.library), %error, "the dispatch table cannot be patched: not cached"
                ),
            }
        }
        hooked
    }
}
