//! One real driver: its dispatch table before we patched it, the profile of its kind, and safe calls into it.
//!
//! A [`Driver`] represents one dispatch table. A library with several platforms on one table is one driver. Its files are never
//! unmapped after it was opened, and a registered driver lives as long as the process.

#![allow(unsafe_code)] // calls through the driver's function pointers; each block says why it is sound

mod additions;
mod application;
mod asked_names;
mod bindings;
mod calls;
pub mod cancel;
mod clang_driver;
pub mod device;
mod driver_names;
mod elf;
mod elf_image;
pub mod environment;
mod execution;
mod file_list;
pub mod file_memory;
mod file_recorder;
mod files;
pub mod float_registers;
mod float_state;
pub mod foreign_call;
pub mod identity;
mod imported_names;
mod include;
mod interchangeable;
mod key_neutral;
mod known_identity;
mod late;
pub mod layer;
pub mod left_names;
mod library;
mod library_texts;
mod linker_state;
mod loaded;
mod loader_tables;
pub mod look;
mod mappings;
pub mod moment;
mod name_beginnings;
mod name_bytes;
mod name_ends;
mod name_search;
mod name_traces;
mod names;
mod needed;
pub mod notify;
mod numbered_names;
mod opened_by_name;
mod patch;
mod path_map;
pub mod process_variables;
mod processor;
pub mod profile;
mod program_calls;
mod read_ahead;
mod real_paths;
pub mod reentrancy;
mod scanned_library;
mod scripts;
mod search_memory;
mod search_path;
mod tools;
pub mod variable_history;
pub mod variable_reads;
mod watched_functions;
mod watched_names;

use std::ffi::CStr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use once_cell::race::OnceBox;
use once_cell::sync::OnceCell;
use opencl_sys::cl_icd::cl_icd_dispatch;

use crate::cl::Platform;
use crate::cl::dispatch::{DispatchTable, Slot};
use crate::fork_safety::Mutex;
use crate::key::ingredients::Ingredient;
use crate::linker_lock;
use crate::own_threads;
pub use application::Application;
use bindings::Bindings;
pub use calls::{BuildArguments, NotifyTarget};
use environment::OpeningVariables;
pub use float_state::{FloatState, StartOfThreads};
pub use identity::{build_id_value, content_value};
use known_identity::KnownIdentity;
use late::EarlyLibraries;
pub use library::{DriverLibrary, OpenError, file_of, has_dispatch_data};
pub use loaded::{changes as loaded_changes, library_has, path_of, paths as loaded_paths};
pub use loader_tables::StaysTagged;
use loader_tables::Untagging;
use profile::measured::MeasuredBehavior;
use profile::{Behavior, Profile, Recognition};

/// The number of tables that can be hooked in one process. Each has its own hooks, which therefore know their driver without
/// reading the handle: a handle may be NULL, stale or foreign.
pub const MAX_DRIVERS: usize = 12;

static DRIVERS: [OnceCell<Driver>; MAX_DRIVERS] = [const { OnceCell::new() }; MAX_DRIVERS];

/// Taken while a driver is registered and patched; never while a driver is called.
static REGISTRATION: Mutex<()> = Mutex::new(());

/// Set when exit() runs its handlers. Ours was registered after those of the drivers, so it runs before them.
static ENDING: AtomicBool = AtomicBool::new(false);

extern "C" fn ending() {
    ENDING.store(true, Ordering::Relaxed);
}

/// Whether the drivers are being torn down. Then they are called only with the application's own calls. Measured: PoCL 3.1 mostly
/// crashes in such a build, and otherwise fetching the binary never ends.
pub fn is_ending() -> bool {
    ENDING.load(Ordering::Relaxed)
}

/// Reads and keeps the variables with which the process was started, and asks the dynamic linker what it may not be asked later, before a
/// driver is opened by us (20 us).
pub fn remember_start() {
    linker_lock::prepare();
    own_threads::prepare();
    // If they cannot be read, the first key tries again.
    let _ = process_variables::at_start();
}

/// One driver, known by its dispatch table.
pub struct Driver {
    index: usize,
    table: DispatchTable,
    below: cl_icd_dispatch,
    /// The driver's own functions. They are those below our hooks unless a loader is in between.
    own: cl_icd_dispatch,
    /// The layer through which the driver is seen. None if the hooks are in its own table.
    layer: Option<usize>,
    /// Functions of layers between us and the driver.
    between: Vec<usize>,
    library: PathBuf,
    platforms: Vec<Platform>,
    /// The profile of drivers of this kind.
    pub profile: &'static Profile,
    /// How it behaves, once measurements were looked for.
    measured: OnceBox<Behavior>,
    suffix: Vec<u8>,
    identity: OnceBox<Option<KnownIdentity>>,
    /// How often it could not be identified for now.
    looks: AtomicU32,
    early: Mutex<EarlyLibraries>,
    /// Variables and configuration files when the driver was opened.
    opened_in: OpeningVariables,
    /// The directories of its library, if its configuration is there.
    origin: Vec<PathBuf>,
    /// The configuration files there.
    beside: OnceBox<Vec<Ingredient>>,
    /// The floating-point state of the thread that opened or first saw the driver: the driver's own threads may have inherited it.
    opened_with: FloatState,
    bindings: Bindings,
    /// See [`environment::KnownVariables`].
    variables: environment::KnownVariables,
    devices: Mutex<device::Devices>,
    /// The directories of clang's own headers, and how many libraries had been loaded when they were found.
    clang_resources: Mutex<Option<(u64, Vec<PathBuf>)>>,
    context_counts: AtomicU8,
    /// All functions of the driver were handed out through us.
    from_the_start: bool,
    hooked: AtomicBool,
}

impl Driver {
    fn new(
        index: usize,
        table: DispatchTable,
        below: cl_icd_dispatch,
        own: cl_icd_dispatch,
        library: PathBuf,
        platforms: Vec<Platform>,
        recognition: &Recognition,
    ) -> Driver {
        let profile = profile::of(recognition);
        let origin = environment::origin(
            profile,
            own.clBuildProgram.map_or(0, |function| function as usize),
        );
        Driver {
            index,
            table,
            below,
            own,
            layer: None,
            between: Vec::new(),
            library,
            platforms,
            profile,
            measured: OnceBox::new(),
            suffix: recognition.suffix.clone(),
            identity: OnceBox::new(),
            looks: AtomicU32::new(0),
            early: Mutex::default(),
            opened_in: OpeningVariables::now(profile, &origin),
            origin,
            beside: OnceBox::new(),
            opened_with: FloatState::of_thread(),
            bindings: Bindings::default(),
            variables: environment::KnownVariables::default(),
            devices: Mutex::default(),
            clang_resources: Mutex::default(),
            context_counts: AtomicU8::new(0),
            from_the_start: false,
            hooked: AtomicBool::new(false),
        }
    }

    /// The same driver with the functions that are in its table now.
    fn through_hooks(&self) -> Driver {
        Driver {
            index: self.index,
            table: self.table,
            below: self.table.copy(),
            own: self.own,
            layer: None,
            between: Vec::new(),
            library: self.library.clone(),
            platforms: self.platforms.clone(),
            profile: self.profile,
            measured: OnceBox::new(),
            suffix: self.suffix.clone(),
            identity: OnceBox::new(),
            looks: AtomicU32::new(0),
            early: Mutex::default(),
            opened_in: self.opened_in.clone(),
            origin: self.origin.clone(),
            beside: OnceBox::new(),
            opened_with: self.opened_with,
            bindings: Bindings::default(),
            variables: environment::KnownVariables::default(),
            devices: Mutex::default(),
            clang_resources: Mutex::default(),
            context_counts: AtomicU8::new(0),
            from_the_start: self.from_the_start,
            hooked: AtomicBool::new(true),
        }
    }

    /// The driver whose hooks have this number. It is registered before its first hook is in a table.
    #[inline]
    pub fn at(index: usize) -> &'static Driver {
        DRIVERS[index]
            .get()
            .expect("a hook runs only after its driver was registered")
    }

    fn all() -> impl Iterator<Item = &'static Driver> {
        DRIVERS.iter().map_while(|driver| driver.get())
    }

    /// The libraries of all known drivers, separated by colons as in the setting `vendors`.
    pub fn libraries() -> Vec<&'static Path> {
        let mut libraries: Vec<&Path> = Driver::all().map(|one| one.library.as_path()).collect();
        libraries.dedup();
        libraries
    }

    /// The number that selects this driver's hooks.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The functions below our hooks: the driver's own, as they were before the table was patched, or those of the loader
    /// below a layer.
    #[inline]
    pub fn below(&self) -> &cl_icd_dispatch {
        &self.below
    }

    /// The library's path as it was opened.
    pub fn library(&self) -> &Path {
        &self.library
    }

    /// How the driver behaves: as measured, if measurements were found, else by its profile.
    pub fn behavior(&self) -> Behavior {
        let measured = self.measured.get().copied();
        measured.unwrap_or_else(|| self.profile.behavior())
    }

    /// Whether measurements of it were looked for.
    pub fn has_settled_behavior(&self) -> bool {
        self.measured.get().is_some()
    }

    /// Settles how the driver behaves in this process, by what was measured on it. Only the first call counts: objects are
    /// remembered by it.
    pub fn settle_behavior(&self, measured: MeasuredBehavior) {
        let row = self.profile.behavior();
        self.measured.get_or_init(|| Box::new(measured.over(row)));
    }

    /// Whether specialization constants can be set only through us. If the driver was open before us, applications may have its own
    /// setter by address.
    pub fn sees_constants(&self) -> bool {
        self.from_the_start && self.below.clSetProgramSpecializationConstant.is_some()
    }

    /// The driver of a platform, if its own table is hooked.
    pub fn of_platform(platform: Platform) -> Option<&'static Driver> {
        Driver::all().find(|driver| {
            driver.layer.is_none()
                && driver.platforms.contains(&platform)
                && driver.hooked.load(Ordering::Acquire)
        })
    }

    /// Whether all loaders call the driver through the hooked table. A loader that knows ICD 2.0 has a table of its own for a
    /// tagged driver, which has our hooks only if it got the driver through us: see [`loader_tables`].
    fn is_reached_by_every_call(&self) -> bool {
        self.hooked.load(Ordering::Acquire) && !self.table.is_tagged()
    }

    /// Registers the driver of a table, seen through a layer or not, unless it is registered.
    fn register(
        table: DispatchTable,
        layer: Option<usize>,
        driver: impl FnOnce(usize) -> Driver,
    ) -> Option<&'static Driver> {
        let _registration = REGISTRATION.lock();
        let known = Driver::all()
            .find(|driver| driver.table.address() == table.address() && driver.layer == layer);
        if known.is_some() {
            return known;
        }
        let index = DRIVERS.iter().position(|driver| driver.get().is_none())?;
        let driver = DRIVERS[index].get_or_init(|| driver(index));
        // SAFETY: the function only sets a flag. Once for each driver, so that it runs before the first is torn down.
        unsafe { libc::atexit(ending) };
        Some(driver)
    }

    /// Registers each table of the library that is not known yet and patches it.
    ///
    /// `hooks` gives the functions for the driver with a number; it is called before anything is patched.
    /// Returns the number of tables that are hooked now.
    pub fn hook(library: &DriverLibrary, hooks: impl Fn(usize) -> Vec<(Slot, usize)>) -> usize {
        let mut hooked = 0;
        for group in library.tables() {
            let table = group.table;
            let from_the_start = library.is_ours_from_the_start();
            let driver = Driver::register(table, None, |index| {
                let own = table.copy();
                let library = library.path().to_owned();
                let platforms = group.platforms.clone();
                Driver {
                    from_the_start,
                    ..Driver::new(
                        index,
                        table,
                        own,
                        own,
                        library,
                        platforms,
                        &group.recognition,
                    )
                }
            });
            let Some(driver) = driver else {
                tracing::warn!(driver = %crate::log::path(library.path()), "too many drivers: this one is not cached");
                continue;
            };
            let _registration = REGISTRATION.lock();
            if driver.hooked.load(Ordering::Acquire) {
                hooked += 1;
                continue;
            }
            // SAFETY: `hooks` pairs each slot with a function of its type, and this library is linked with -z nodelete.
            match unsafe { patch::install(table, &hooks(driver.index)) } {
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

    /// Leads the calls of loaders with ICD 2.0 through the tables of a library that are hooked: see [`loader_tables`]. Nothing
    /// is done for tables that are not tagged. `hooks` is that of [`Driver::hook`].
    ///
    /// # Errors
    /// Why loaders with ICD 2.0 still call the driver through tables of their own, for the first table where they do.
    pub fn lead_loaders_through(
        library: &DriverLibrary,
        hooks: impl Fn(usize) -> Vec<(Slot, usize)>,
    ) -> Result<(), StaysTagged> {
        let mut led = Ok(());
        for group in library.tables() {
            let platform = group.platforms[0];
            let is_tagged = || library.is_dispatched_by_loader(platform);
            let Some(driver) = Driver::of_platform(platform).filter(|_| is_tagged()) else {
                continue;
            };
            let by_name = |name: &CStr| library.function_for_platform(platform, name) as usize;
            let hooks = hooks(driver.index);
            let plan = Untagging::plan(group.table, &by_name, library.platform_ids(), &hooks);
            let _registration = REGISTRATION.lock();
            if !is_tagged() {
                continue; // another thread has done it
            }
            match plan.and_then(|plan| plan.carry_out()) {
                Ok(()) => tracing::debug!(
                    driver = %crate::log::path(library.path()),
                    "loaders with ICD 2.0 come through its own table"
                ),
                Err(why) => led = led.and(Err(why)),
            }
        }
        led
    }
}
