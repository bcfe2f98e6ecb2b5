//! The child process of a probe: loads a loader or a driver, and reports what it finds in lines of JSON.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use super::super::failure::Failure;
use super::super::worker::streams;
use crate::cache::RUN_VARIABLE;
use crate::front::driver_probe;
use crate::front::loader::{self, Loader};
use crate::log;
use crate::store::directory::Directory;
use crate::store::stats::{Counter, Statistics, run_directory};

/// A program that takes longer to compile than to load.
const SOURCE: &CStr = c"
__kernel void oclcache_doctor(__global float *out, int count)
{
    size_t item = get_global_id(0);
    float4 sum = (float4)(0.0f);
    for (int i = 0; i < count; i++) {
        float4 part = (float4)(sin((float)i), cos((float)i), sqrt((float)i), exp(-(float)i));
        sum = fma(part, (float4)(1.0f / (i + 1)), sum);
    }
    out[item] = dot(sum, (float4)(1.0f));
}
";
const KERNEL: &CStr = c"oclcache_doctor";

/// Internal.
#[derive(Args)]
#[command(hide = true)]
pub struct ProbeArgs {
    /// The driver to probe; otherwise the loader is probed
    #[arg(long)]
    driver: Option<PathBuf>,
    /// On which devices to build
    #[arg(long, value_enum, default_value_t = ProbeBuilds::None)]
    builds: ProbeBuilds,
}

/// On which devices to build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ProbeBuilds {
    None,
    /// The first device of each platform.
    First,
    All,
}

/// A message of a probe, one line. All texts are plain (`log::text`).
#[derive(Debug, Serialize, Deserialize)]
pub enum ProbeMessage {
    /// The file of the loader.
    Loader(Option<PathBuf>),
    /// The loader's name and version.
    Words(String, String),
    /// The platforms that the loader lists.
    Platforms(Vec<ListedDriver>),
    /// The copies of our library that were loaded.
    Copies(Vec<OurCopy>),
    /// The result of a build.
    Built(ProbeBuild),
    /// The driver's platforms.
    Driver {
        platforms: Vec<ProbedPlatform>,
        is_icd2: bool,
        stays_tagged: bool,
    },
    /// The probe cannot go on.
    Failed(String),
    /// The last message.
    End,
}

/// A platform that the loader lists.
#[derive(Debug, Serialize, Deserialize)]
pub struct ListedDriver {
    pub name: String,
    /// It is in the list twice.
    pub is_again: bool,
    /// The loader calls its driver through the loader's own table.
    pub is_of_loaders_table: bool,
}

/// A copy of our library (`front::loader::Copy`).
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct OurCopy {
    pub path: PathBuf,
    pub version: String,
    pub is_layer: [bool; 2],
}

/// A build on one device.
#[derive(Debug, Serialize, Deserialize)]
pub struct ProbeBuild {
    pub platform: String,
    pub device: String,
    /// How long it took, in nanoseconds, or what failed.
    pub took_ns: Result<u64, String>,
    pub counted: BuildCounts,
}

/// What we counted for a build.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuildCounts {
    /// The driver's family and the name of the device in the counters. They are not plain.
    pub labels: Option<(String, String)>,
    pub hits: u64,
    pub misses: u64,
    /// Names of reasons.
    pub bypassed: Vec<String>,
}

/// A platform of a driver (`front::driver_probe::ExaminedPlatform`).
#[derive(Debug, Serialize, Deserialize)]
pub struct ProbedPlatform {
    pub name: String,
    pub family: String,
    pub devices: usize,
    pub is_hooked: bool,
    pub has_version: bool,
    pub is_refused: bool,
}

impl ProbeArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let (_, mut answers) = streams().map_err(Failure::new)?;
        let mut say = |message: &ProbeMessage| {
            let line = serde_json::to_string(message).map_err(Failure::new)?;
            writeln!(answers, "{line}").map_err(Failure::new)
        };
        match &self.driver {
            Some(library) => say(&examine(library))?,
            None => {
                if let Err(why) = use_loader(self.builds, &mut say)? {
                    say(&ProbeMessage::Failed(why))?;
                }
            }
        }
        say(&ProbeMessage::End)?;
        Ok(ExitCode::SUCCESS)
    }
}

fn plain(text: impl AsRef<[u8]>) -> String {
    log::text(text.as_ref()).to_string()
}

fn examine(library: &Path) -> ProbeMessage {
    match driver_probe::examine(library) {
        Ok(Some(examined)) => ProbeMessage::Driver {
            is_icd2: examined.is_icd2,
            stays_tagged: examined.stays_tagged,
            platforms: examined
                .platforms
                .into_iter()
                .map(|platform| ProbedPlatform {
                    name: plain(platform.name),
                    family: platform.family.to_owned(),
                    devices: platform.devices,
                    is_hooked: platform.is_hooked,
                    has_version: platform.has_version,
                    is_refused: platform.is_refused,
                })
                .collect(),
        },
        Ok(None) => copies(),
        Err(why) => ProbeMessage::Failed(plain(why)),
    }
}

fn copies() -> ProbeMessage {
    let copies = loader::copies().into_iter().map(|copy| OurCopy {
        path: copy.path,
        version: plain(copy.version),
        is_layer: copy.is_layer,
    });
    ProbeMessage::Copies(copies.collect())
}

/// Lists platforms and builds through the loader. The inner result says why that ended early.
fn use_loader(
    builds: ProbeBuilds,
    say: &mut dyn FnMut(&ProbeMessage) -> Result<(), Failure>,
) -> Result<Result<(), String>, Failure> {
    let loader = match Loader::open() {
        Ok(loader) => loader,
        Err(why) => return Ok(Err(plain(why))),
    };
    // First, since everything else loads drivers.
    say(&ProbeMessage::Loader(loader.file()))?;
    let platforms = loader.platforms();
    let listed = platforms
        .iter()
        .enumerate()
        .map(|(index, platform)| ListedDriver {
            name: plain(loader.platform_name(*platform)),
            is_again: platforms[..index].contains(platform),
            is_of_loaders_table: driver_probe::is_called_through_a_loaders_table(*platform),
        });
    say(&ProbeMessage::Platforms(listed.collect()))?;
    say(&copies())?;
    if let Some((name, version)) = loader.words() {
        say(&ProbeMessage::Words(plain(name), plain(version)))?;
    }
    let run = std::env::var_os(RUN_VARIABLE).and_then(|path| run_directory(Path::new(&path)));
    let mut before = Counts::read(run.as_ref());
    for (index, platform) in platforms.iter().enumerate() {
        let wanted = match builds {
            _ if platforms[..index].contains(platform) => 0,
            ProbeBuilds::None => 0,
            ProbeBuilds::First => 1,
            ProbeBuilds::All => usize::MAX,
        };
        for device in loader.devices(*platform).into_iter().take(wanted) {
            let took = loader.build(device, SOURCE, KERNEL);
            let now = Counts::read(run.as_ref());
            say(&ProbeMessage::Built(ProbeBuild {
                platform: plain(loader.platform_name(*platform)),
                device: plain(loader.device_name(device)),
                took_ns: took.map(|took| u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)),
                counted: now.since(&before),
            }))?;
            before = now;
        }
    }
    Ok(Ok(()))
}

/// What we counted since the probe began.
#[derive(Default)]
struct Counts {
    /// The builds of each driver and device.
    builds: BTreeMap<(String, String), u64>,
    hits: u64,
    misses: u64,
    bypassed: Vec<(&'static str, u64)>,
}

impl Counts {
    fn read(run: Option<&Directory>) -> Counts {
        let Some(run) = run.and_then(|run| Statistics::read_run(run).ok()) else {
            return Counts::default();
        };
        let totals = run.rows.total();
        let builds = run.rows.by(|tag| (tag.driver.clone(), tag.device.clone()));
        let builds = builds.into_iter();
        let bypassed = totals.bypasses();
        Counts {
            builds: builds
                .map(|(labels, totals)| (labels, totals.builds()))
                .collect(),
            hits: totals.get(Counter::Hits),
            misses: totals.get(Counter::Misses) + totals.get(Counter::Failed),
            bypassed: bypassed
                .map(|(reason, count)| (reason.name(), count))
                .collect(),
        }
    }

    fn since(&self, before: &Counts) -> BuildCounts {
        let is_more = |(name, count): &&(&str, u64)| {
            let known = before.bypassed.iter().find(|(known, _)| known == name);
            known.is_none_or(|(_, known)| known < count)
        };
        let bypassed = self.bypassed.iter().filter(is_more);
        let has_built = |(labels, builds): &(&(String, String), &u64)| {
            before.builds.get(*labels).copied().unwrap_or(0) < **builds
        };
        BuildCounts {
            labels: self
                .builds
                .iter()
                .find(has_built)
                .map(|(labels, _)| labels.clone()),
            hits: self.hits.saturating_sub(before.hits),
            misses: self.misses.saturating_sub(before.misses),
            bypassed: bypassed.map(|(name, _)| (*name).to_owned()).collect(),
        }
    }
}
