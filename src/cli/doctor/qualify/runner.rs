//! Starts the child processes of a qualification and collects what they measured.

use std::io;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;

use super::message::{Measurement, QualifiedDevice, QualifyMessage, Section};
use crate::cli::other_caches::table::{CACHES, CacheRoot};
use crate::cli::probe::prober::{make_drivers_caches_cold, private_cache, use_private_cache};
use crate::cli::worker::private_directory::{MARK, PrivateDirectory};
use crate::cli::worker::process::{NoAnswer, Worker};

/// What became of a section.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SectionResult {
    Measured(Measurement),
    /// It cannot tell anything on this device, and why.
    Untold(String),
    /// A call failed.
    Failed(String),
    /// The process crashed, hung or was killed.
    Silent(String),
    /// The same where the section expected that.
    Ended(String),
}

/// Which caches a section uses.
#[derive(Clone, Copy)]
pub enum SectionCaches<'a> {
    /// A private one of oclcache; those of the driver are empty or off.
    Private,
    /// The user's of oclcache; those of the driver are empty or off.
    Users,
    /// Those of the driver, in this directory.
    OfDriver(&'a PrivateDirectory),
}

const NO_ANSWER: &str = "it gives no answer";

/// Why there are no more messages.
struct Silence {
    why: String,
    /// The driver itself ended the process.
    is_of_driver: bool,
}

impl Silence {
    fn of(silence: &NoAnswer, limit: Duration) -> Silence {
        let why = silence.words(limit);
        match silence {
            NoAnswer::TooLong => Silence {
                why: format!("it hangs: {why}"),
                is_of_driver: false,
            },
            NoAnswer::Ended(status) => Silence {
                why,
                is_of_driver: status.signal() != Some(Signal::KILL.as_raw()),
            },
            NoAnswer::Stopped | NoAnswer::Unknown(_) => Silence {
                why,
                is_of_driver: false,
            },
        }
    }
}

/// Runs the sections of one driver.
pub struct Runner<'a> {
    library: PathBuf,
    limit: Duration,
    stop: &'a AtomicBool,
    salt: u64,
    kept: PrivateDirectory,
}

impl<'a> Runner<'a> {
    /// For a driver's library. A section may take `limit` for each step.
    ///
    /// # Errors
    /// A private directory cannot be made.
    pub fn new(library: &Path, limit: Duration, stop: &'a AtomicBool) -> io::Result<Runner<'a>> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH);
        let now = now.unwrap_or_default().as_nanos() as u64;
        Ok(Runner {
            library: library.to_owned(),
            limit,
            stop,
            salt: now ^ u64::from(std::process::id()) << 32,
            kept: PrivateDirectory::new()?,
        })
    }

    /// The cache directory of [`SectionCaches::Private`].
    pub fn private_cache(&self) -> PathBuf {
        private_cache(&self.kept)
    }

    /// The driver's devices.
    ///
    /// # Errors
    /// Why it cannot be opened, for people.
    pub fn devices(&self) -> Result<Vec<QualifiedDevice>, String> {
        let started = self.start(None, &[], SectionCaches::Private);
        let heard = started.map(|worker| self.listen(worker));
        let (messages, silence) = heard.map_err(|error| error.to_string())?;
        for message in messages {
            match message {
                QualifyMessage::Devices(devices) => return Ok(devices),
                QualifyMessage::Failed(why) => return Err(why),
                _ => {}
            }
        }
        Err(silence.map_or_else(|| NO_ANSWER.to_owned(), |silence| silence.why))
    }

    /// Runs a section on a device.
    pub fn run(
        &self,
        section: Section,
        device: &QualifiedDevice,
        caches: SectionCaches<'_>,
    ) -> SectionResult {
        let numbers = device.place.map(|number| number.to_string());
        let device = ["--device", &numbers[0], &numbers[1]];
        let (messages, silence) = match self.start(Some(section), &device, caches) {
            Ok(worker) => self.listen(worker),
            Err(error) => return SectionResult::Untold(error.to_string()),
        };
        let mut may_end = false;
        for message in messages {
            match message {
                QualifyMessage::Measured(measured) => return SectionResult::Measured(measured),
                QualifyMessage::Untold(why) => return SectionResult::Untold(why),
                QualifyMessage::Failed(why) => return SectionResult::Failed(why),
                QualifyMessage::MayEnd => may_end = true,
                QualifyMessage::Step => may_end = false,
                QualifyMessage::Devices(_) | QualifyMessage::End => {}
            }
        }
        let Some(silence) = silence else {
            return SectionResult::Silent(NO_ANSWER.to_owned());
        };
        match may_end && silence.is_of_driver {
            true => SectionResult::Ended(silence.why),
            false => SectionResult::Silent(silence.why),
        }
    }

    /// All messages up to the last one, or why there are no more.
    fn listen(&self, mut worker: Worker) -> (Vec<QualifyMessage>, Option<Silence>) {
        let mut messages = Vec::new();
        loop {
            let line = match worker.answer(self.limit, self.stop) {
                Ok(line) => line,
                Err(silence) => return (messages, Some(Silence::of(&silence, self.limit))),
            };
            match serde_json::from_str(&line) {
                Ok(QualifyMessage::End) => {
                    worker.end();
                    return (messages, None);
                }
                Ok(message) => messages.push(message),
                Err(_) => {
                    worker.kill();
                    let why = "its answer is invalid".to_owned();
                    let is_of_driver = false;
                    return (messages, Some(Silence { why, is_of_driver }));
                }
            }
        }
    }

    fn start(
        &self,
        section: Option<Section>,
        arguments: &[&str],
        caches: SectionCaches<'_>,
    ) -> io::Result<Worker> {
        let root = PrivateDirectory::new()?;
        // Binaries of another device would be none of this one's.
        let place = self
            .kept
            .path()
            .join(format!("device{}", arguments.join("-")));
        std::fs::create_dir_all(&place)?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("qualify-worker")
            .arg("--library")
            .arg(&self.library)
            .args(["--salt", &self.salt.to_string()])
            .arg("--place")
            .arg(&place)
            .args(arguments)
            .stderr(Stdio::null());
        if let Some(section) = section {
            command.args(["--section", &section.name()]);
        }
        match caches {
            SectionCaches::Private => {
                use_private_cache(&mut command, &self.kept, &root)?;
                make_drivers_caches_cold(&mut command, &root);
            }
            SectionCaches::Users => make_drivers_caches_cold(&mut command, &root),
            SectionCaches::OfDriver(place) => {
                use_private_cache(&mut command, &self.kept, &root)?;
                use_caches_of_driver(&mut command, place.path())?;
            }
        }
        Worker::start(&mut command, root)
    }
}

/// Moves the caches of drivers to a directory, wherever a driver may have one: where a variable says, in the home, and in the working
/// directory (measured: NEO 22.43, if there is one).
fn use_caches_of_driver(command: &mut Command, place: &Path) -> io::Result<()> {
    for cache in &CACHES {
        for root in cache.places.iter().map(|place| place.base) {
            if let CacheRoot::Variable(name) = root {
                let directory = place.join(name);
                // NEO has a cache only where there is a directory.
                std::fs::create_dir_all(&directory)?;
                command.env(name, directory);
            }
        }
    }
    for directory in ["home", "cl_cache"] {
        std::fs::create_dir_all(place.join(directory))?;
    }
    command
        .env("HOME", place.join("home"))
        .env("XDG_CACHE_HOME", place.join("cache"))
        .current_dir(place);
    Ok(())
}

/// Whether the driver has written anything to its caches in this directory.
pub fn has_caches(place: &PrivateDirectory) -> bool {
    fn has_files(directory: &Path) -> bool {
        let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
        entries.into_iter().any(|entry| {
            let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
            let is_mark = entry.file_name() == MARK;
            !is_mark && (!is_directory || has_files(&entry.path()))
        })
    }
    has_files(place.path())
}
