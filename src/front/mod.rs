//! The doors: the ways by which loaders call this library.

#![allow(unsafe_code)] // exported C functions

mod copies;
pub mod driver_probe;
mod enumeration;
mod exit;
mod icd;
mod layer;
pub mod loader;
pub mod vendors;

use std::ffi::{CStr, c_char, c_int};
use std::sync::atomic::{AtomicBool, Ordering};

use once_cell::sync::OnceCell;

use crate::config::{Config, program_name};
use crate::driver::float_registers::OwnWork;
use crate::{cache, driver, log};

/// The settings of the process, read when the first door is opened. None: the environment must not be read.
static CONFIG: OnceCell<Option<Config>> = OnceCell::new();

/// Whether a door was opened.
static ACTIVE: AtomicBool = AtomicBool::new(false);

/// The version, as a C string. Also the mark by which a copy of this library is recognized.
#[unsafe(no_mangle)]
extern "C" fn oclcache_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("the version has a NUL"),
        };
    VERSION.as_ptr()
}

/// Whether this copy of the library is the active one in this process. The other copies forward calls to it.
#[unsafe(no_mangle)]
extern "C" fn oclcache_active() -> c_int {
    ACTIVE.load(Ordering::Acquire).into()
}

/// Prepares the process. Each door calls it first. None: the program has raised privileges.
fn open() -> Option<&'static Config> {
    ACTIVE.store(true, Ordering::Release);
    let config = CONFIG.get_or_init(|| {
        let _work = OwnWork::begin();
        quiet_panics();
        if is_secure() {
            return None;
        }
        let config = Config::read();
        if let Some((filter, file)) = config.log() {
            log::start(&filter, file.as_deref());
        }
        for complaint in &config.complaints {
            tracing::warn!("{complaint}");
        }
        if !config.disable() {
            cache::autobake::born();
            driver::remember_start();
            // Drivers read it as early.
            let _ = program_name();
            cache::set_up(&config);
            cache::announce();
        }
        Some(config)
    });
    config.as_ref()
}

/// Whether the program runs with privileges that its caller does not have (setuid, setgid, file capabilities).
fn is_secure() -> bool {
    // SAFETY: getauxval has no preconditions.
    unsafe { libc::getauxval(libc::AT_SECURE) != 0 }
}

/// Sends panics to the log, because standard error belongs to the application.
fn quiet_panics() {
    std::panic::set_hook(Box::new(|panic| {
        let words = panic.to_string();
        tracing::error!(panic = %log::text(words.as_bytes()), "a fault of oclcache; the driver is called instead");
    }));
}
