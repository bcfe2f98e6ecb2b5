//! The child process of one section: opens the driver without a loader, and reports what it measured in lines of JSON.

use std::cell::RefCell;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use opencl_sys::*;

use super::message::{
    Measurement, QualifiedDevice, QualifiedIdentity, QualifyMessage, Section, ShownAnswers,
};
use super::sections::{Measured, NoMeasurement, Subject};
use crate::cache::{Cache, RUN_VARIABLE, audit};
use crate::cl::Device;
use crate::cl::info::Number;
use crate::cli::failure::Failure;
use crate::cli::worker::streams;
use crate::driver::{Application, Driver};
use crate::front::driver_probe;
use crate::key::ingredients::Kind;
use crate::log;
use crate::store::stats::{Counter, Statistics, run_directory};

/// Internal.
#[derive(Args)]
#[command(hide = true)]
pub struct QualifyWorkerArgs {
    /// The driver
    #[arg(long)]
    library: PathBuf,
    /// What to measure; without it, the devices are listed
    #[arg(long, value_enum)]
    section: Option<Section>,
    /// The numbers of the platform and of the device
    #[arg(long, num_args = 2, default_values_t = [0, 0])]
    device: Vec<usize>,
    /// Makes sources differ from those of other runs
    #[arg(long, default_value_t = 0)]
    salt: u64,
    /// A directory that sections share
    #[arg(long, default_value = ".")]
    place: PathBuf,
}

impl QualifyWorkerArgs {
    pub fn run(self) -> Result<ExitCode, Failure> {
        let (_, answers) = streams().map_err(Failure::new)?;
        let answers = RefCell::new(answers);
        let say = |message: &QualifyMessage| tell(&answers, message);
        let message = match (driver_probe::open(&self.library), self.section) {
            (Err(why), _) => QualifyMessage::Failed(plain(why)),
            (Ok(platforms), None) => QualifyMessage::Devices(devices(&platforms)),
            (Ok(platforms), Some(section)) => match self.measure(section, &platforms, &say) {
                Ok(measured) => QualifyMessage::Measured(measured),
                Err(NoMeasurement::Untold(why)) => QualifyMessage::Untold(plain(why)),
                Err(NoMeasurement::Failed(why)) => QualifyMessage::Failed(plain(why)),
            },
        };
        say(&message);
        say(&QualifyMessage::End);
        Ok(ExitCode::SUCCESS)
    }

    fn measure(
        &self,
        section: Section,
        platforms: &[Application],
        say: &dyn Fn(&QualifyMessage),
    ) -> Measured {
        let missing = || NoMeasurement::Failed("the device is not there any more".to_owned());
        let application = platforms.get(self.device[0]).ok_or_else(missing)?;
        let devices = application.devices().unwrap_or_default();
        let device = *devices.get(self.device[1]).ok_or_else(missing)?;
        let create_context = |device: Device| application.create_context(&[device]);
        let context = create_context(device)
            .map_err(|code| NoMeasurement::Failed(format!("clCreateContext fails with {code}")))?;
        let subject = |driver| Subject {
            driver,
            context,
            device,
            salt: self.salt,
            place: &self.place,
            say,
        };
        // Past our hooks.
        let bare = subject(application.hooked());
        match section {
            Section::Identity => identify(application.hooked(), &bare),
            Section::Times => bare.times(),
            Section::Loads => bare.loads(),
            Section::OddPrograms => bare.odd_programs(),
            Section::UndefinedFunction => bare.undefined_function(),
            Section::ContextCount => bare.context_count(),
            Section::ReleasedProgram => bare.released_program(),
            Section::SubDevices => bare.sub_devices(create_context),
            Section::Rebuild => bare.rebuild(),
            Section::OwnCache => bare.own_cache(),
            Section::Bare => Ok(Measurement::Answers(ShownAnswers {
                answers: bare.answers()?,
                hits: 0,
                bypassed: Vec::new(),
            })),
            Section::Cached => cached(&subject(application)),
        }
    }
}

fn plain(text: impl AsRef<[u8]>) -> String {
    log::text(text.as_ref()).to_string()
}

/// Says something to the parent. If it has gone, this process ends with it.
fn tell(answers: &RefCell<File>, message: &QualifyMessage) {
    let line = serde_json::to_string(message).unwrap_or_default();
    let _ = writeln!(answers.borrow_mut(), "{line}");
}

fn devices(platforms: &[Application]) -> Vec<QualifiedDevice> {
    let mut found = Vec::new();
    for (number, platform) in platforms.iter().enumerate() {
        for (index, device) in platform.devices().unwrap_or_default().iter().enumerate() {
            let text = |query| {
                let value = platform.device_info(*device, query).unwrap_or_default();
                plain(value.strip_suffix(b"\0").unwrap_or(&value))
            };
            let kind = platform.device_info(*device, CL_DEVICE_TYPE);
            let kind: cl_device_type = kind
                .ok()
                .and_then(|kind| Number::from_value(&kind))
                .unwrap_or(0);
            found.push(QualifiedDevice {
                place: [number, index],
                platform: plain(platform.name()),
                name: text(CL_DEVICE_NAME),
                version: text(CL_DRIVER_VERSION),
                family: platform.hooked().profile.family.to_owned(),
                is_accelerator: kind & CL_DEVICE_TYPE_ACCELERATOR != 0,
            });
        }
    }
    found
}

/// Identifies the driver as a program does that has built with it before: libraries that came in the build are part of it.
fn identify(driver: &'static Driver, subject: &Subject<'_>) -> Measured {
    let unidentified = || {
        NoMeasurement::Failed("the driver cannot be identified, so nothing is cached".to_owned())
    };
    let memory = Cache::get();
    driver.identity(memory).ok_or_else(unidentified)?;
    let watch = driver.watch_libraries();
    subject.warm_up()?;
    driver.note_libraries(&watch, memory);
    let key = audit::identity(driver).ok_or_else(unidentified)?;
    let surroundings = driver.surroundings(false, memory);
    let surroundings = surroundings.ok_or_else(unidentified)?.ingredients;
    let variables = surroundings.into_iter();
    let variables = variables.filter(|one| one.kind == Kind::Environment);
    let variables = variables.map(|one| plain(&one.name)).collect();
    Ok(Measurement::Identity(QualifiedIdentity { key, variables }))
}

/// Compares through oclcache, and counts what it did.
fn cached(subject: &Subject<'_>) -> Measured {
    let answers = subject.answers()?;
    let run = std::env::var_os(RUN_VARIABLE).and_then(|path| run_directory(Path::new(&path)));
    let counts = run.and_then(|run| Statistics::read_run(&run).ok());
    let totals = counts.unwrap_or_default().rows.total();
    let bypassed = totals.bypasses();
    Ok(Measurement::Answers(ShownAnswers {
        answers,
        hits: totals.get(Counter::Hits),
        bypassed: bypassed
            .map(|(reason, _)| reason.name().to_owned())
            .collect(),
    }))
}
