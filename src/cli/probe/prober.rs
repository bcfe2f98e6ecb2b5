//! Starts probes and collects their messages. Each probe has private directories for the cache and for drivers' caches, so that it
//! changes nothing of the user's.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::super::other_caches::table::{CACHES, Cold};
use super::super::vendors::{LOADER_VARIABLES, vendors_directory};
use super::super::worker::private_directory::PrivateDirectory;
use super::super::worker::process::{NoAnswer, Worker};
use super::LIMIT;
use super::worker::{ProbeBuilds, ProbeMessage};
use crate::cache::RUN_VARIABLE;
use crate::config;
use crate::store::StoreError;
use crate::store::directory::Directory;

/// With these settings a probe's cache works, whatever the user has set.
const SETTINGS: [(&str, &str); 12] = [
    ("OCLCACHE_DISABLE", "0"),
    ("OCLCACHE_READONLY", "0"),
    ("OCLCACHE_RECACHE", "0"),
    ("OCLCACHE_VERIFY", "0"),
    ("OCLCACHE_MUST_HIT", "0"),
    ("OCLCACHE_RECORD", "inline"),
    ("OCLCACHE_AUTOBAKE", "0"),
    ("OCLCACHE_SYSTEM_DIRS", "none"),
    ("OCLCACHE_MAX_SIZE", "0"),
    ("OCLCACHE_MIN_FREE", "0"),
    ("OCLCACHE_LOG", "off"),
    ("OCLCACHE_REMOTE", "off"),
];

/// How a probe reaches drivers.
pub enum ProbeTarget<'a> {
    /// As a program started from this shell does.
    Shell,
    /// This driver, through us.
    Through { us: &'a Path, driver: &'a Path },
    /// This driver, without us.
    Bare { driver: &'a Path },
    /// The same, with its own caches in a private directory that several probes share.
    BareWithCache {
        driver: &'a Path,
        caches: &'a PrivateDirectory,
    },
    /// This driver, without a loader.
    Itself { driver: &'a Path },
}

/// What a probe found.
pub struct ProbeOutput {
    /// Its messages, in order.
    pub messages: Vec<ProbeMessage>,
    /// Why there are no more messages: it crashed or hangs.
    pub silence: Option<String>,
    /// It was given up after the time that the user has chosen, which may be too short.
    pub is_cut_short: bool,
}

/// What to do about a probe that was cut short.
pub const LONGER: &str = "try a longer `--timeout`";

/// Why a probe gives no more messages.
struct Silence {
    why: String,
    is_cut_short: bool,
}

/// Has a command use the cache in `kept`, and count in `root`. Returns `root`.
///
/// # Errors
/// A directory cannot be made.
pub fn use_private_cache(
    command: &mut Command,
    kept: &PrivateDirectory,
    root: &PrivateDirectory,
) -> io::Result<Directory> {
    let opened = Directory::create_all(root.path()).map_err(other)?;
    let run = opened.create("run").map_err(other)?;
    command
        .env("OCLCACHE_DIR", private_cache(kept))
        .env(RUN_VARIABLE, run.path())
        .envs(SETTINGS);
    Ok(opened)
}

/// The cache directory of probes that share a private directory.
pub fn private_cache(kept: &PrivateDirectory) -> PathBuf {
    kept.path().join("cache")
}

/// Has a command find the caches of drivers empty, or off: with a cache of its own, a driver may compile nothing.
pub fn make_drivers_caches_cold(command: &mut Command, root: &PrivateDirectory) {
    for cold in CACHES.iter().flat_map(|cache| cache.cold) {
        match cold {
            Cold::Set(variable, value) => command.env(variable, value),
            Cold::Move(variable) => command.env(variable, root.path().join(variable)),
            // Caches of programs, which do not run here.
            Cold::Hide(_) => &mut *command,
        };
    }
}

/// Has drivers keep their own caches in a private directory, as the user's settings have them kept elsewhere.
fn move_drivers_caches(command: &mut Command, caches: &PrivateDirectory) {
    command.env("XDG_CACHE_HOME", caches.path());
    for cold in CACHES.iter().flat_map(|cache| cache.cold) {
        if let Cold::Move(variable) = cold {
            command.env(variable, caches.path().join(variable));
        }
    }
}

fn other(error: StoreError) -> io::Error {
    io::Error::other(error.to_string())
}

/// Starts probes.
pub struct Prober<'a> {
    /// How long a probe may take for one message.
    limit: Duration,
    /// The user has chosen this time.
    is_limit_chosen: bool,
    /// Set when the user has interrupted the work.
    stop: &'a AtomicBool,
}

impl<'a> Prober<'a> {
    /// `chosen`: how long the user lets a probe take for one message.
    pub fn new(chosen: Option<Duration>, stop: &'a AtomicBool) -> Prober<'a> {
        Prober {
            limit: chosen.unwrap_or(LIMIT),
            is_limit_chosen: chosen.is_some(),
            stop,
        }
    }

    /// Runs a probe. `kept` holds the cache, which several probes may share.
    pub fn probe(
        &self,
        way: &ProbeTarget,
        builds: ProbeBuilds,
        kept: &PrivateDirectory,
    ) -> ProbeOutput {
        let mut messages = Vec::new();
        let silence = match self.start(way, builds, kept) {
            Ok(worker) => self.listen(worker, &mut messages),
            Err(error) => {
                let why = format!("cannot start a process: {error}");
                messages.push(ProbeMessage::Failed(why));
                None
            }
        };
        let is_cut_short = silence.as_ref().is_some_and(|silence| silence.is_cut_short);
        let silence = silence.map(|silence| silence.why);
        ProbeOutput {
            messages,
            silence,
            is_cut_short,
        }
    }

    fn listen(&self, mut worker: Worker, messages: &mut Vec<ProbeMessage>) -> Option<Silence> {
        let silence = |why: String| {
            Some(Silence {
                why,
                is_cut_short: false,
            })
        };
        loop {
            match worker.answer(self.limit, self.stop) {
                Ok(line) => match serde_json::from_str(&line) {
                    Ok(ProbeMessage::End) => {
                        worker.end();
                        return None;
                    }
                    Ok(one) => messages.push(one),
                    Err(_) => {
                        worker.kill();
                        return silence("its answer is invalid".to_owned());
                    }
                },
                Err(slow @ NoAnswer::TooLong) if self.is_limit_chosen => {
                    return Some(Silence {
                        why: format!("no answer: {}", slow.words(self.limit)),
                        is_cut_short: true,
                    });
                }
                Err(slow @ NoAnswer::TooLong) => {
                    return silence(format!("it hangs: {}", slow.words(self.limit)));
                }
                Err(ended) => return silence(ended.words(self.limit)),
            }
        }
    }

    fn start(
        &self,
        way: &ProbeTarget,
        builds: ProbeBuilds,
        kept: &PrivateDirectory,
    ) -> io::Result<Worker> {
        let root = PrivateDirectory::new()?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("doctor-worker")
            .args(["--builds", &format!("{builds:?}").to_lowercase()]);
        let opened = use_private_cache(&mut command, kept, &root)?;
        match way {
            ProbeTarget::BareWithCache { caches, .. } => move_drivers_caches(&mut command, caches),
            _ => make_drivers_caches_cold(&mut command, &root),
        }
        if !matches!(way, ProbeTarget::Shell) {
            for variable in LOADER_VARIABLES {
                command.env_remove(variable);
            }
            command
                .env_remove("OPENCL_LAYERS")
                .env("OCLCACHE_MODE", "auto");
        }
        match way {
            ProbeTarget::Shell => {}
            ProbeTarget::Itself { driver } => {
                command.arg("--driver").arg(driver);
            }
            ProbeTarget::Through { us, driver } => {
                let vendors = vendors_directory(&opened, us).map_err(other)?;
                command.env("OCL_ICD_VENDORS", vendors);
                command.env("OCLCACHE_VENDORS", config::list(&[driver]));
            }
            ProbeTarget::Bare { driver } | ProbeTarget::BareWithCache { driver, .. } => {
                let vendors = vendors_directory(&opened, driver).map_err(other)?;
                command.env("OCL_ICD_VENDORS", vendors);
            }
        }
        command.stderr(Stdio::null());
        Worker::start(&mut command, root)
    }
}
