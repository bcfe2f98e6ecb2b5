//! Starts the doctor's workers, and hears what they say. Each has a private directory for the cache and for what drivers keep, so
//! that nothing of the user's is touched.

use std::io;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::super::other_caches::table::{CACHES, Cold};
use super::super::vendors::{LOADER_VARIABLES, vendors_directory};
use super::super::worker::process::{Silence, Worker};
use super::super::worker::root::Root;
use super::worker::{ProbeBuilds, ProbeMessage};
use crate::cache::RUN_VARIABLE;
use crate::config;
use crate::store::directory::Directory;

/// With these a worker's cache does what it can, whatever the user has set.
const SETTINGS: [(&str, &str); 11] = [
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
];

/// How a worker comes to drivers.
pub enum ProbeTarget<'a> {
    /// As a program that is started from this shell.
    Shell,
    /// Through us, to this driver.
    Through { us: &'a Path, driver: &'a Path },
    /// To this driver, without us.
    Bare { driver: &'a Path },
    /// It opens a driver itself, without a loader.
    Itself { driver: &'a Path },
}

/// What a worker said.
pub struct ProbeOutput {
    /// In its order.
    pub messages: Vec<ProbeMessage>,
    /// Why it messages no more: it has crashed, or hangs.
    pub silence: Option<String>,
}

/// Those who start workers.
pub struct Prober<'a> {
    /// How long a worker may take for one line.
    pub limit: Duration,
    /// Set when the user wants no more.
    pub stop: &'a AtomicBool,
}

impl Prober<'_> {
    /// Has a worker do its work. `kept` has the cache of several.
    pub fn probe(&self, way: &ProbeTarget, builds: ProbeBuilds, kept: &Root) -> ProbeOutput {
        let mut messages = Vec::new();
        let silence = match self.start(way, builds, kept) {
            Ok(worker) => self.listen(worker, &mut messages),
            Err(error) => {
                let why = format!("no process can be started for it: {error}");
                messages.push(ProbeMessage::Failed(why));
                None
            }
        };
        ProbeOutput { messages, silence }
    }

    fn listen(&self, mut worker: Worker, messages: &mut Vec<ProbeMessage>) -> Option<String> {
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
                        return Some("it answers nonsense".to_owned());
                    }
                },
                Err(silence @ Silence::TooLong) => {
                    return Some(format!("it hangs: {}", silence.words(self.limit)));
                }
                Err(silence) => return Some(silence.words(self.limit)),
            }
        }
    }

    fn start(&self, way: &ProbeTarget, builds: ProbeBuilds, kept: &Root) -> io::Result<Worker> {
        let other = |error: crate::store::StoreError| io::Error::other(error.to_string());
        let root = Root::new()?;
        let mut command = Command::new(std::env::current_exe()?);
        command
            .arg("doctor-worker")
            .args(["--builds", name(builds)]);
        let opened = Directory::create_all(root.path()).map_err(other)?;
        let run = opened.create("run").map_err(other)?;
        command
            .env("OCLCACHE_DIR", kept.path().join("cache"))
            .env(RUN_VARIABLE, run.path())
            .envs(SETTINGS);
        // A driver whose own cache answers compiles nothing that could be measured.
        for cold in CACHES.iter().flat_map(|cache| cache.cold) {
            match cold {
                Cold::Set(variable, value) => command.env(variable, value),
                Cold::Move(variable) => command.env(variable, root.path().join(variable)),
                // Of programs, which are not run here.
                Cold::Hide(_) => &mut command,
            };
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
            ProbeTarget::Bare { driver } => {
                let vendors = vendors_directory(&opened, driver).map_err(other)?;
                command.env("OCL_ICD_VENDORS", vendors);
            }
        }
        command.stderr(Stdio::null());
        Worker::start(&mut command, root)
    }
}

fn name(builds: ProbeBuilds) -> &'static str {
    match builds {
        ProbeBuilds::None => "none",
        ProbeBuilds::First => "first",
        ProbeBuilds::All => "all",
    }
}
