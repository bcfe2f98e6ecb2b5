//! What a qualification's child processes measure, and how they say it: in lines of JSON.

use std::collections::BTreeMap;

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::driver::profile::Rebuild;
use crate::key::ingredients::Key;

/// One part of a qualification. Each runs in a process of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Section {
    /// Identifies the driver as programs do.
    Identity,
    /// Times builds, fetching binaries and creating kernels.
    Times,
    /// Times loading the binaries that `Times` has left.
    Loads,
    /// Fetches the binaries of unusual programs.
    OddPrograms,
    /// Creates a kernel that calls an undefined function.
    UndefinedFunction,
    /// Watches the reference count of a context.
    ContextCount,
    /// Uses a program that is released while a kernel of it lives.
    ReleasedProgram,
    /// Makes a program for a sub-device.
    SubDevices,
    /// Builds a program twice.
    Rebuild,
    /// Builds a program that the driver's own cache may have.
    OwnCache,
    /// Asks a program for everything that the API shows.
    Bare,
    /// The same through oclcache.
    Cached,
}

impl Section {
    /// Its name on the command line and in findings.
    pub fn name(self) -> String {
        let value = self.to_possible_value();
        value.map_or_else(String::new, |value| value.get_name().to_owned())
    }
}

/// A message of a child process, one line. All texts are plain (`log::text`).
#[derive(Debug, Serialize, Deserialize)]
pub enum QualifyMessage {
    /// All devices of the driver, if no section is wanted.
    Devices(Vec<QualifiedDevice>),
    /// A step is done, so that the time limit begins anew.
    Step,
    /// What follows ends the process on some drivers, which is then what was measured.
    MayEnd,
    Measured(Measurement),
    /// The section cannot tell anything on this device, and why.
    Untold(String),
    /// A call failed that works on a sound driver.
    Failed(String),
    /// The last message.
    End,
}

/// What a section measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Measurement {
    Identity(QualifiedIdentity),
    Times(Vec<BuildTimes>),
    /// The times of loading binaries, in nanoseconds.
    Loads(Vec<u64>),
    /// The unusual programs gave binaries or errors.
    Survived,
    /// The answer to the question of a section that has one.
    Is(bool),
    Rebuild(Rebuild),
    OwnCache(Vec<CachedBuild>),
    Answers(ShownAnswers),
}

/// A device of the driver.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QualifiedDevice {
    /// The numbers of its platform and of the device.
    pub place: [usize; 2],
    /// CL_PLATFORM_NAME.
    pub platform: String,
    /// CL_DEVICE_NAME.
    pub name: String,
    /// CL_DRIVER_VERSION.
    pub version: String,
    /// The family of the driver's row.
    pub family: String,
    /// Whether a program may take the device from its other users.
    pub is_accelerator: bool,
}

/// A driver as keys have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QualifiedIdentity {
    pub key: Key,
    /// The names of the variables in its keys now.
    pub variables: Vec<String>,
}

/// Times of a source, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildTimes {
    pub build: u64,
    pub fetch: u64,
    /// Of a build of another source.
    pub other_build: u64,
    /// Of creating all kernels of the other source.
    pub kernels: u64,
}

/// A build that the driver's own cache may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CachedBuild {
    /// The processor time of the build, in nanoseconds: on a busy machine all else takes longer.
    pub processor_ns: u64,
    /// The digest of the binary and of the build log.
    pub digest: u64,
}

/// The digests of what the API shows of a program, by query.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownAnswers {
    pub answers: BTreeMap<String, u64>,
    pub hits: u64,
    /// Names of the reasons for which oclcache did not cache it.
    pub bypassed: Vec<String>,
}
