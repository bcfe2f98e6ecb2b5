//! Qualifies one device: runs all sections, and puts together what they say.

use std::io;

use indicatif::ProgressBar;
use serde_json::{Value, json};

use super::message::{
    CachedBuild, Measurement, QualifiedDevice, QualifiedIdentity, Section, ShownAnswers,
};
use super::runner::{Runner, SectionCaches, SectionResult, has_caches};
use super::try_out;
use super::verdict::{self, Share};
use super::wording;
use crate::cli::doctor::report::{DoctorReport, Fix};
use crate::cli::failure::Failure;
use crate::cli::interrupt::Interrupt;
use crate::cli::worker::private_directory::PrivateDirectory;
use crate::driver::profile;
use crate::driver::profile::measured::MeasuredBehavior;
use crate::key::ingredients::Key;

/// The second run is a hit, unless the first was not stored because a library came that nobody knew.
const MAX_WARM_RUNS: u32 = 2;

/// What was found on a device.
pub struct DeviceReport {
    device: QualifiedDevice,
    /// The digest of the driver's identity.
    pub identity: Option<Key>,
    measured: MeasuredBehavior,
    /// Whether a program shows the same with oclcache as without it.
    is_same: bool,
    /// The names of the variables in the driver's keys.
    variables: Vec<String>,
}

impl DeviceReport {
    /// What the cache is to believe.
    pub fn kept(&self) -> Option<MeasuredBehavior> {
        let is_something = self.measured != MeasuredBehavior::default();
        (self.is_same && is_something).then_some(self.measured)
    }

    pub fn json(&self) -> Value {
        json!({
            "platform": self.device.platform,
            "device": self.device.name,
            "family": self.device.family,
            "version": self.device.version,
            "measured": self.measured,
            "kept": self.identity.is_some() && self.kept().is_some(),
            "variables": self.variables,
        })
    }
}

/// Runs the sections of a device.
struct Qualification<'a> {
    runner: &'a Runner<'a>,
    device: &'a QualifiedDevice,
    interrupt: &'a Interrupt,
    bar: &'a ProgressBar,
    report: &'a mut DoctorReport,
}

impl Qualification<'_> {
    /// The driver as programs of this user identify it.
    fn identity(&mut self) -> Result<Option<QualifiedIdentity>, Failure> {
        Ok(match self.run(Section::Identity, SectionCaches::Users)? {
            Some(Measurement::Identity(identity)) => Some(identity),
            _ => None,
        })
    }

    /// Whether the driver is the one that was identified before it was measured. It may be updated meanwhile.
    fn is_still(&mut self, identity: Option<&QualifiedIdentity>) -> Result<bool, Failure> {
        let Some(identity) = identity else {
            return Ok(true); // nothing is kept, and the reason is in the report
        };
        let result = self.result(Section::Identity, SectionCaches::Users)?;
        if let SectionResult::Measured(Measurement::Identity(now)) = &result
            && now.key == identity.key
        {
            return Ok(true);
        }
        let text = "the driver, or what it loads, is not the one that was identified before it was measured: nothing is kept";
        let words = "measure it again when nothing updates it";
        self.report.doubtful("profile", text, Fix::words(words));
        Ok(false)
    }

    /// The measurement of a section. Without one, the reason is in the report.
    fn run(
        &mut self,
        section: Section,
        caches: SectionCaches<'_>,
    ) -> Result<Option<Measurement>, Failure> {
        let result = self.result(section, caches)?;
        Ok(self.judge(section, result))
    }

    fn result(
        &self,
        section: Section,
        caches: SectionCaches<'_>,
    ) -> Result<SectionResult, Failure> {
        let words = format!("{}: {}", self.device.name, section.name());
        self.bar.set_message(words);
        self.bar.tick();
        let result = self.runner.run(section, self.device, caches);
        self.interrupt.go_on()?;
        Ok(result)
    }

    fn judge(&mut self, section: Section, result: SectionResult) -> Option<Measurement> {
        let name = section.name();
        match result {
            SectionResult::Measured(measured) => return Some(measured),
            SectionResult::Untold(why) => {
                let text = format!("section `{name}` cannot tell anything here: {why}");
                self.report.good("unmeasured", text);
            }
            SectionResult::Failed(why) => {
                let words = "report it to the maker of the driver; oclcache goes by what other sections say";
                let text = format!("section `{name}`: {why}");
                self.report.wrong("driver", text, Fix::words(words));
            }
            SectionResult::Silent(why) | SectionResult::Ended(why) => {
                let words =
                    "report it to the maker of the driver: any program that does the same ends so";
                let text = format!("section `{name}`: {why}");
                self.report.wrong("driver", text, Fix::words(words));
            }
        }
        None
    }

    fn answer(&mut self, section: Section) -> Result<Option<bool>, Failure> {
        let measured = self.run(section, SectionCaches::Private)?;
        Ok(match measured {
            Some(Measurement::Is(answer)) => Some(answer),
            _ => None,
        })
    }

    /// Asks whether the driver survives a section.
    fn survives(&mut self, section: Section) -> Result<Option<bool>, Failure> {
        let result = self.result(section, SectionCaches::Private)?;
        let survives = match &result {
            SectionResult::Measured(_) => Some(true),
            SectionResult::Silent(_) | SectionResult::Ended(_) => Some(false),
            SectionResult::Untold(_) | SectionResult::Failed(_) => None,
        };
        self.judge(section, result);
        Ok(survives)
    }

    /// Times builds, and says whether hits gain anything.
    fn time(&mut self, measured: &mut MeasuredBehavior) -> Result<(), Failure> {
        let times = match self.run(Section::Times, SectionCaches::Private)? {
            Some(Measurement::Times(times)) => times,
            _ => Vec::new(),
        };
        let loading = match times.is_empty() {
            true => None,
            false => match self.run(Section::Loads, SectionCaches::Private)? {
                Some(Measurement::Loads(loads)) => verdict::loading(&times, &loads),
                _ => None,
            },
        };
        let gives_odd = self.survives(Section::OddPrograms)? == Some(true);
        let survives = self.survives(Section::UndefinedFunction)?;
        measured.record = verdict::record(&times, loading, gives_odd);
        measured.kernel_facts = verdict::kernel_facts(verdict::creating(&times), survives);
        match loading {
            Some(Share::Whole) => {
                let words = "nothing is wrong, but a cache gains little here; `oclcache stats` tells how much";
                self.report.doubtful(
                    "loading",
                    "loading a binary takes as long as a build: the driver compiles again",
                    Fix::words(words),
                );
            }
            Some(share) => self.report.good("loading", wording::loading(share)),
            None => {}
        }
        Ok(())
    }

    /// What a program keeps after it is released, if a kernel of it lives.
    fn released_program(&mut self) -> Result<Option<bool>, Failure> {
        let result = self.result(Section::ReleasedProgram, SectionCaches::Private)?;
        if let SectionResult::Ended(_) = result {
            // Its handle is dead: no fault of the driver's, who has said so.
            return Ok(Some(false));
        }
        Ok(match self.judge(Section::ReleasedProgram, result) {
            Some(Measurement::Is(answer)) => Some(answer),
            _ => None,
        })
    }

    fn copies_builds(&mut self) -> Result<Option<bool>, Failure> {
        let [here, elsewhere] = [private()?, private()?];
        let mut build = |place: &PrivateDirectory| -> Result<Option<Vec<CachedBuild>>, Failure> {
            let measured = self.run(Section::OwnCache, SectionCaches::OfDriver(place))?;
            Ok(match measured {
                Some(Measurement::OwnCache(built)) => Some(built),
                _ => None,
            })
        };
        let Some(first) = build(&here)? else {
            return Ok(None);
        };
        let built = (build(&here)?, build(&elsewhere)?);
        let (Some(second), Some(elsewhere)) = built else {
            return Ok(None);
        };
        Ok(Some(verdict::copies_builds(
            &first,
            &second,
            &elsewhere,
            has_caches(&here),
        )))
    }

    fn answers(&mut self, section: Section) -> Result<Option<ShownAnswers>, Failure> {
        let measured = self.run(section, SectionCaches::Private)?;
        Ok(match measured {
            Some(Measurement::Answers(answers)) => Some(answers),
            _ => None,
        })
    }

    /// Compares what a program shows without oclcache and through it, when it behaves as measured.
    fn compare(&mut self, measured: &MeasuredBehavior) -> Result<bool, Failure> {
        if let SectionResult::Measured(Measurement::Identity(of_private)) =
            self.result(Section::Identity, SectionCaches::Private)?
        {
            let tried = try_out(&self.runner.private_cache(), &of_private.key, measured);
            tried.map_err(Failure::new)?;
        }
        let [Some(bare), Some(again), Some(cold)] = [
            self.answers(Section::Bare)?,
            self.answers(Section::Bare)?,
            self.answers(Section::Cached)?,
        ] else {
            return Ok(false);
        };
        let mut warm = None;
        for _ in 0..MAX_WARM_RUNS {
            warm = self.answers(Section::Cached)?;
            if warm.as_ref().is_none_or(|warm| warm.hits > 0) {
                break;
            }
        }
        let Some(warm) = warm else {
            return Ok(false);
        };
        // Measured on Oclgrind 21.10: the attributes of a kernel have addresses.
        let unstable = differences(&bare, &again);
        let mut is_same = true;
        for (what, cached) in [("an empty cache", &cold), ("a full cache", &warm)] {
            let mut different = differences(&bare, cached);
            different.retain(|query| !unstable.contains(query));
            if !different.is_empty() {
                is_same = false;
                let text = format!(
                    "a program shows something else through oclcache with {what}: {}",
                    different.join(", ")
                );
                let fix = Fix::command("export OCLCACHE_DISABLE=1");
                let words = "this is a fault of oclcache; until it is mended";
                self.report.wrong("comparison", text, fix.because(words));
            }
        }
        if warm.hits == 0 {
            let why = match warm.bypassed.first() {
                Some(reason) => format!("it was bypassed ({reason})"),
                None => "the driver gives no binary, opens libraries that it has just made, or does not accept its own binary".to_owned(),
            };
            let words = "run a program with `OCLCACHE_LOG=debug oclcache run PROGRAM` to see why; only time is lost";
            let text = format!("no build of a program was a hit: {why}");
            self.report.wrong("comparison", text, Fix::words(words));
        } else if is_same {
            let text = "a program shows the same without oclcache, with an empty cache and with a full one";
            self.report.good("comparison", text);
        }
        Ok(is_same)
    }
}

fn private() -> Result<PrivateDirectory, Failure> {
    PrivateDirectory::new().map_err(|error: io::Error| Failure::new(error))
}

/// The queries that are answered differently.
fn differences(bare: &ShownAnswers, cached: &ShownAnswers) -> Vec<String> {
    let all = bare.answers.keys().chain(cached.answers.keys());
    let is_different = |query: &&String| bare.answers.get(*query) != cached.answers.get(*query);
    let mut different: Vec<String> = all.filter(is_different).cloned().collect();
    different.sort();
    different.dedup();
    different
}

/// Measures a device, and reports it.
pub fn qualify_device(
    runner: &Runner<'_>,
    device: &QualifiedDevice,
    interrupt: &Interrupt,
    bar: &ProgressBar,
    report: &mut DoctorReport,
) -> Result<DeviceReport, Failure> {
    report.good("device", wording::device(device));
    let mut of_device = Qualification {
        runner,
        device,
        interrupt,
        bar,
        report,
    };
    let identity = of_device.identity()?;
    let mut measured = MeasuredBehavior::default();
    of_device.time(&mut measured)?;
    measured.context_counts_programs = of_device.answer(Section::ContextCount)?;
    measured.kernels_keep_program = of_device.released_program()?;
    measured.sub_devices_are_their_root = of_device.answer(Section::SubDevices)?;
    measured.rebuild = match of_device.run(Section::Rebuild, SectionCaches::Private)? {
        Some(Measurement::Rebuild(rebuild)) => Some(rebuild),
        _ => None,
    };
    measured.copies_builds = of_device.copies_builds()?;
    for (about, text) in wording::behavior(&measured) {
        of_device.report.good(about, text);
    }
    if device.family != "unknown" {
        let row = profile::named(&device.family).behavior();
        for (about, text) in wording::contradictions(&measured, row) {
            let text = format!("{text}; the profile of {} says otherwise", device.family);
            let words =
                "what was measured is used; please send in a report, written with `--report FILE`";
            of_device.report.doubtful(about, text, Fix::words(words));
        }
    }
    let is_same = of_device.compare(&measured)?;
    let identity = match of_device.is_still(identity.as_ref())? {
        true => identity,
        false => None,
    };
    let (identity, variables) = identity.map_or((None, Vec::new()), |identity| {
        // Not those of the private caches.
        let mut variables = identity.variables;
        variables.retain(|name| std::env::var_os(name).is_some());
        (Some(identity.key), variables)
    });
    if !variables.is_empty() {
        let text = format!("in the driver's keys here: {}", variables.join(", "));
        report.good("variables", text);
    }
    Ok(DeviceReport {
        device: device.clone(),
        identity,
        measured,
        is_same,
        variables,
    })
}
