//! Finds out which entries fit a driver of this machine. A child process opens each registered driver and reports the ingredients
//! that the driver adds to keys.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use clap::Args;
use serde::{Deserialize, Serialize};

use super::entry_view::devices;
use super::failure::Failure;
use super::interrupt::Interrupt;
use super::open::usable_store;
use super::other_caches::table::{CACHES, Cold};
use super::parse::parse_hex;
use super::worker::private_directory::PrivateDirectory;
use super::worker::process::Worker;
use super::worker::{CLOSED, streams};
use crate::config::Config;
use crate::driver::OpenError;
use crate::driver::file_memory::FileMemory;
use crate::front::driver_probe;
use crate::key::ingredients::{Ingredient, Key, Kind, hex, key};
use crate::store::Store;
use crate::store::digests::Digests;
use crate::store::entry::Meta;
use crate::store::library_facts;

/// How long a driver may take to open. Some hash hundreds of megabytes.
const LIMIT: Duration = Duration::from_secs(120);

/// Ingredients that select one of several devices (`cache::devices`).
const DEVICE_CHOICE: [&str; 2] = ["root of device", "only for device"];

/// Internal.
#[derive(Args)]
#[command(hide = true)]
pub struct DescribeDriverArgs {
    #[arg(long)]
    library: PathBuf,
}

/// The ingredients of one platform of a driver.
#[derive(Debug, Serialize, Deserialize)]
struct Platform {
    identity: Vec<Ingredient>,
    /// Programs and configuration files that the driver would use here.
    files: Vec<Ingredient>,
    devices: Vec<Vec<Ingredient>>,
}

/// The registered drivers. Each is probed when the first entry may fit it.
pub struct RegisteredDrivers<'a> {
    interrupt: &'a Interrupt,
    libraries: Vec<Library>,
}

struct Library {
    /// The path, as it is registered.
    path: PathBuf,
    /// The platforms, or why the driver cannot be opened; None if it was not probed yet.
    answer: Option<Result<Vec<Platform>, String>>,
}

/// What the store remembers about drivers. It is only read.
struct StoredMemory {
    store: Option<Store>,
    digests: Digests,
}

impl FileMemory for StoredMemory {
    fn digest(&self, path: &Path) -> io::Result<[u8; 32]> {
        self.digests.digest(self.store.as_ref(), path)
    }

    fn facts(&self, identity: &[u8; 32]) -> io::Result<Option<File>> {
        let store = self.store.as_ref();
        store.map_or(Ok(None), |store| library_facts::open(store, identity))
    }

    fn remember_facts(&self, _identity: &[u8; 32], _facts: &[u8]) {}
}

impl DescribeDriverArgs {
    /// Tells what a driver is, in a process that it may crash.
    pub fn run(self) -> Result<ExitCode, Failure> {
        let (_, mut answers) = streams().map_err(Failure::new)?;
        let mut answer = |line: &str| writeln!(answers, "{line}").map_err(Failure::new);
        let platforms = match driver_probe::open(&self.library) {
            Ok(platforms) => platforms,
            Err(why) => {
                answer(&format!("{CLOSED}{}", why.replace('\n', " ")))?;
                return Ok(ExitCode::SUCCESS);
            }
        };
        let memory = StoredMemory {
            store: usable_store(&Config::read()),
            digests: Digests::new(),
        };
        let mut found = Vec::new();
        for application in &platforms {
            let driver = application.hooked();
            let (Some(identity), Some(surroundings)) =
                (driver.identity(&memory), driver.surroundings(true, &memory))
            else {
                continue;
            };
            let devices = application.devices().unwrap_or_default();
            let devices = devices.into_iter().filter_map(|device| {
                let identity = driver.device_identities(&[device])?;
                Some(identity.first()?.to_vec())
            });
            let files = surroundings
                .ingredients
                .into_iter()
                .filter(|one| one.kind == Kind::Driver);
            found.push(Platform {
                identity: identity.to_vec(),
                files: files.collect(),
                devices: devices.collect(),
            });
        }
        answer(&hex(&postcard::to_stdvec(&found).map_err(Failure::new)?))?;
        Ok(ExitCode::SUCCESS)
    }
}

fn ask(library: &Path, interrupt: &Interrupt) -> Result<Vec<Platform>, String> {
    let program = std::env::current_exe().map_err(|error| error.to_string())?;
    let root = PrivateDirectory::new().map_err(|error| error.to_string())?;
    let mut command = Command::new(program);
    command
        .args(["describe-driver", "--library"])
        .arg(library)
        .stderr(Stdio::null());
    // PoCL writes to its own cache as soon as it is opened.
    for cold in CACHES.iter().flat_map(|cache| cache.cold) {
        if let Cold::Move(variable) = cold {
            command.env(variable, root.path().join(variable));
        }
    }
    let started = Worker::start(&mut command, root);
    let mut worker = started.map_err(|error| error.to_string())?;
    let line = worker.answer(LIMIT, interrupt.flag());
    let line = line.map_err(|silence| silence.words(LIMIT))?;
    worker.end();
    if let Some(why) = line.strip_prefix(CLOSED) {
        return match why == OpenError::Ourselves.to_string() {
            true => Ok(Vec::new()),
            false => Err(why.to_owned()),
        };
    }
    let bytes = parse_hex(line.as_bytes());
    let platforms = bytes.and_then(|bytes| postcard::from_bytes(&bytes).ok());
    platforms.ok_or_else(|| "its answer is invalid".to_owned())
}

impl Platform {
    /// Whether this driver could make a key of these ingredients.
    fn fits(&self, ingredients: &[Ingredient]) -> bool {
        let of_kinds = |kinds: &[Kind]| {
            let kinds = kinds.to_vec();
            ingredients
                .iter()
                .filter(move |one| kinds.contains(&one.kind))
        };
        let is_driver = self.identity.iter().all(|one| ingredients.contains(one))
            && of_kinds(&[Kind::Driver])
                .all(|one| self.identity.contains(one) || self.files.contains(one));
        let mut there: BTreeSet<&[u8]> = BTreeSet::new();
        let present = self
            .devices
            .iter()
            .filter(|device| device.iter().all(|one| ingredients.contains(one)));
        let mut all: Vec<&Ingredient> = Vec::new();
        for device in present {
            there.insert(&device[0].value);
            all.extend(device);
        }
        is_driver
            && !there.is_empty()
            && of_kinds(&[Kind::Device, Kind::Processor])
                .filter(|one| !DEVICE_CHOICE.contains(&one.name.as_str()))
                .all(|one| all.contains(&one))
    }
}

impl<'a> RegisteredDrivers<'a> {
    pub fn new(config: &Config, interrupt: &'a Interrupt) -> RegisteredDrivers<'a> {
        let libraries = driver_probe::registered(config).into_iter();
        let libraries = libraries.map(|path| Library { path, answer: None });
        RegisteredDrivers {
            interrupt,
            libraries: libraries.collect(),
        }
    }

    /// The registered library that an entry fits. Libraries with the name of the one that made it are probed first.
    pub fn fitting(&mut self, meta: &Meta) -> Option<PathBuf> {
        let made_by = Path::new(&meta.driver_library);
        self.libraries.sort_by_key(|library| {
            (
                library.path != made_by,
                library.path.file_name() != made_by.file_name(),
            )
        });
        for library in &mut self.libraries {
            let ask = || ask(&library.path, self.interrupt);
            let answer = library.answer.get_or_insert_with(ask);
            let mut platforms = answer.iter().flatten();
            if platforms.any(|platform| platform.fits(&meta.ingredients)) {
                return Some(library.path.clone());
            }
        }
        None
    }

    /// Whether the driver of this identity is registered.
    pub fn has(&mut self, identity: &Key) -> bool {
        let interrupt = self.interrupt;
        self.libraries.iter_mut().any(|library| {
            let answer = library
                .answer
                .get_or_insert_with(|| ask(&library.path, interrupt));
            let mut platforms = answer.iter().flatten();
            platforms.any(|platform| key(&platform.identity) == *identity)
        })
    }

    /// The drivers that could not be opened, and why.
    pub fn silent(self) -> Vec<(PathBuf, String)> {
        let libraries = self.libraries.into_iter();
        let silent = libraries.filter_map(|library| Some((library.path, library.answer?.err()?)));
        silent.collect()
    }
}

/// What an entry is for, as a message.
pub fn purpose(meta: &Meta) -> String {
    format!(
        "made by {} ({}) for {}",
        meta.driver_family,
        meta.driver_library,
        devices(&meta.ingredients).join(", ")
    )
}
