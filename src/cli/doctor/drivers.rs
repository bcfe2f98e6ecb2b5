//! Checks which drivers are registered, and whether each loads and can be hooked.

use std::collections::BTreeSet;
use std::env;
use std::io::Read;
use std::path::{Path, PathBuf};

use super::installation::is_gone;
use super::program::machine;
use super::report::{DoctorReport, Fix};
use super::settings::{policy, unset};
use crate::cli::entry_filter::is_driver;
use crate::cli::library::typed;
use crate::cli::output::plural;
use crate::cli::probe::prober::{LONGER, Prober};
use crate::cli::probe::worker::ProbedPlatform;
use crate::cli::probe::{self, Features, Harm, ProbedLibrary};
use crate::cli::worker::private_directory::PrivateDirectory;
use crate::config::{Config, Name};
use crate::front::vendors::{self, DEFAULT_DIRECTORY, is_bare_name, is_named_as_us};
use crate::log::{path, text};
use crate::regular_file;

const ABOUT: &str = "driver";
const VARIABLES: [&str; 3] = ["OCL_ICD_FILENAMES", "OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"];

/// One registration.
pub struct Registered {
    /// The `.icd` file, or what a variable names.
    pub place: PathBuf,
    /// The library that it names.
    pub library: PathBuf,
    /// What the library is.
    pub is: RegisteredAs,
    /// Whether the loader reads it, or only we.
    pub by_loader: bool,
}

/// What a library is.
#[derive(Clone)]
pub enum RegisteredAs {
    /// A copy of ours.
    Us,
    /// A driver, with the number of its devices.
    Driver(usize),
    /// Not usable.
    Broken,
}

/// The result in short. A driver that the user has not asked about counts as one without devices.
fn is(told: &ProbedLibrary, is_wanted: bool) -> RegisteredAs {
    match told {
        ProbedLibrary::Us(_) => RegisteredAs::Us,
        ProbedLibrary::Driver { platforms, .. } if is_wanted => {
            RegisteredAs::Driver(platforms.iter().map(|one| one.devices).sum())
        }
        ProbedLibrary::Driver { .. } => RegisteredAs::Driver(0),
        ProbedLibrary::Broken(..) => RegisteredAs::Broken,
    }
}

/// Checks everything that is registered. Reports drivers with `wanted` in their names.
pub fn examine(
    config: &Config,
    features: Option<&Features>,
    wanted: Option<&str>,
    prober: &Prober,
    kept: &PrivateDirectory,
    report: &mut DoctorReport,
) -> Vec<Registered> {
    let environment = |name: &str| std::env::var_os(name);
    let of_loader = vendors::loader_sources(&environment);
    let of_us = config.vendors().unwrap_or_default();
    examine_variables(features, report);
    let mut registered: Vec<Registered> = Vec::new();
    let mut families = BTreeSet::new();
    let sources = of_loader.iter().map(|source| (source.as_path(), true));
    let sources = sources.chain(of_us.iter().map(|source| (source.as_path(), false)));
    let mut one = |source: &Path, by_loader: bool| {
        for listed in vendors::listed(source) {
            let library = match listed.library {
                Ok(library) => library,
                Err(why) => {
                    unusable(&listed.place, source, &why, report);
                    continue;
                }
            };
            let is_known = |known: &&Registered| is_same(&known.library, &library);
            let is = match registered.iter().find(is_known) {
                Some(known) => {
                    if by_loader && known.by_loader && matches!(known.is, RegisteredAs::Driver(_)) {
                        listed_twice(&listed.place, &known.place, report);
                    }
                    known.is.clone()
                }
                None => {
                    let told = probe::library(&library, prober, kept);
                    if let ProbedLibrary::Driver { platforms, .. } = &told {
                        families.extend(platforms.iter().map(|one| one.family.clone()));
                    }
                    let is_wanted = wanted
                        .is_none_or(|wanted| is_named(&told, &listed.place, &library, wanted));
                    if is_wanted {
                        tell(config, &listed.place, &library, &told, report);
                    }
                    is(&told, is_wanted)
                }
            };
            registered.push(Registered {
                place: listed.place,
                library,
                is,
                by_loader,
            });
        }
        registered
            .iter()
            .all(|one| matches!(one.is, RegisteredAs::Us))
    };
    let mut only_us = true;
    for (source, by_loader) in sources {
        only_us = one(source, by_loader);
    }
    // The library does the same if the loader sees nothing else.
    if only_us && config.vendors().is_none() {
        one(Path::new(DEFAULT_DIRECTORY), false);
    }
    let is_used = |one: &Registered| matches!(one.is, RegisteredAs::Driver(devices) if devices > 0);
    let by_setting = || registered.iter().filter(|one| !one.by_loader);
    if registered.iter().any(is_used) {
        // A setting that names nothing but us stands for the registered drivers.
        let is_us = |one: &Registered| matches!(one.is, RegisteredAs::Us);
        let names_only_us = by_setting().next().is_some() && by_setting().all(is_us);
        let names_none = !names_only_us && !by_setting().any(is_used);
        if config.vendors().is_some() && names_none && wanted.is_none() {
            let source = &config.value(Name::Vendors).1;
            let text = "the setting names no driver with a device: no driver is cached, and programs find none where oclcache is in front of the drivers";
            report.wrong("vendors", text, unset(Name::Vendors, source));
        }
    } else {
        let what = match wanted {
            Some(_) => "no driver of that name has a device",
            None => "no registered driver has a device, so OpenCL programs find nothing",
        };
        let install = "install the driver of your device, or one for any processor (pocl-opencl-icd in Debian and Ubuntu)";
        let mut choosing = ["OCLCACHE_VENDORS"].into_iter().chain(VARIABLES);
        let words = match choosing.find(|name| env::var_os(name).is_some()) {
            _ if wanted.is_some() && !families.is_empty() => {
                let families: Vec<&str> = families.iter().map(String::as_str).collect();
                let families = text(families.join(", ").as_bytes()).to_string();
                format!("there are these drivers: {families}")
            }
            Some(name) => format!("check whether {name} excludes your driver; otherwise {install}"),
            None => install.to_owned(),
        };
        report.wrong(ABOUT, what, Fix::words(words));
    }
    registered
}

fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().ok();
    one == other || !is_bare_name(one) && real(one).is_some() && real(one) == real(other)
}

/// Whether a library is for another kind of machine, which shares the home.
fn is_of_other_architecture(library: &Path) -> bool {
    let mut header = Vec::new();
    let opened = regular_file::open(library).ok().flatten();
    let read = opened.map(|(file, _)| file.take(64).read_to_end(&mut header));
    is_named_as_us(library) && matches!(read, Some(Ok(_))) && machine(&header) == Some(false)
}

fn is_named(told: &ProbedLibrary, place: &Path, library: &Path, wanted: &str) -> bool {
    let wanted = wanted.to_lowercase();
    let in_path = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.to_lowercase().contains(&wanted)
    };
    let in_platform = |one: &ProbedPlatform| {
        is_driver(&one.family, &wanted) || one.name.to_lowercase().contains(&wanted)
    };
    in_path(place)
        || in_path(library)
        || matches!(told, ProbedLibrary::Driver { platforms, .. } if platforms.iter().any(in_platform))
}

fn tell(
    config: &Config,
    place: &Path,
    library: &Path,
    told: &ProbedLibrary,
    report: &mut DoctorReport,
) {
    let shown = path(place).to_string();
    let (platforms, is_icd2) = match told {
        ProbedLibrary::Us(_) => return, // reported as a door
        ProbedLibrary::Broken(..) if is_gone(library) || is_of_other_architecture(library) => {
            return;
        }
        ProbedLibrary::Broken(why, Harm::Unknown) => {
            let text = format!("{shown} names {}: {why}", path(library));
            return report.wrong(ABOUT, text, Fix::words(LONGER));
        }
        ProbedLibrary::Broken(why, _) if is_named_as_us(library) => {
            let text = format!("{shown} registers oclcache as {}: {why}", path(library));
            let words = format!("register it again with `{} install`, or remove it", typed());
            return report.wrong("programs", text, removal(place, &words));
        }
        ProbedLibrary::Broken(why, harm) => {
            let text = format!("{shown} names {}: {why}", path(library));
            let fix = removal(place, "install the driver's package again, or remove it");
            return match harm {
                Harm::Left => report.doubtful(ABOUT, text, fix),
                _ => report.wrong(
                    ABOUT,
                    format!("{text}; every OpenCL program fails the same way"),
                    fix,
                ),
            };
        }
        ProbedLibrary::Driver {
            platforms, is_icd2, ..
        } => (platforms, is_icd2),
    };
    if platforms.is_empty() {
        return report.good(
            ABOUT,
            format!("{shown} loads but has no platform: it has no device"),
        );
    }
    let kind = if *is_icd2 { ", ICD 2.0" } else { "" };
    for platform in platforms {
        let devices = match platform.devices {
            0 => "no device".to_owned(),
            count => plural(count as u64, "device", "devices"),
        };
        let text = format!(
            "{} ({}), {devices}{kind}, {shown}",
            platform.name, platform.family
        );
        let nothing = "the driver works without the cache; only another version of the driver can change that";
        if !platform.has_version {
            let text = format!(
                "{text}: it does not tell its version of OpenCL, so its table of functions is unknown"
            );
            report.doubtful(ABOUT, text, Fix::words(nothing));
        } else if !platform.is_hooked {
            let text = format!("{text}: its table of functions cannot be written");
            report.doubtful(ABOUT, text, Fix::words(nothing));
        } else if platform.is_refused {
            let text = format!(
                "{text}: it claims ICD 2.0 but lacks a part of it, so loaders that check that ignore it"
            );
            report.doubtful(ABOUT, text, Fix::words(nothing));
        } else {
            if platform.devices == 0 {
                report.good(ABOUT, format!("{text}: nothing to cache"));
                continue;
            }
            report.good(ABOUT, format!("{text}: can be cached"));
            let library = library.to_string_lossy();
            let policy = policy(config, &platform.family, &library);
            let said = format!("{}: {policy}", platform.name);
            match policy.lacks_recipes() {
                true => {
                    let source = &config.value(Name::StoreSource).1;
                    report.doubtful("policy", said, unset(Name::StoreSource, source));
                }
                false => report.good("policy", said),
            }
        }
    }
}

/// Checks the variables that loaders read. Loaders differ in what they accept.
fn examine_variables(features: Option<&Features>, report: &mut DoctorReport) {
    let takes_files = features.is_none_or(|features| features.takes_files);
    for name in VARIABLES {
        let Some(value) = std::env::var_os(name).filter(|value| !value.is_empty()) else {
            continue;
        };
        let place = Path::new(&value);
        let shown = crate::log::os(&value);
        let unset = Fix::command(format!("unset {name}"));
        let text = format!("{name} = {shown}");
        match name {
            "OCL_ICD_VENDORS" if !takes_files && place.exists() && !place.is_dir() => {
                let text = format!("{text}, but this loader accepts only a directory there");
                report.wrong("variable", text, unset);
            }
            _ if name
                == if takes_files {
                    "OCL_ICD_FILENAMES"
                } else {
                    "OPENCL_VENDOR_PATH"
                } =>
            {
                let text = format!("{text}, but this loader does not read it");
                report.doubtful("variable", text, unset);
            }
            _ if place.exists() || is_bare_name(place) => report.good("variable", text),
            _ => {} // reported where it is read
        }
    }
}

fn unusable(place: &Path, source: &Path, why: &str, report: &mut DoctorReport) {
    let shown = path(place).to_string();
    let of_variable = VARIABLES
        .into_iter()
        .find(|name| std::env::var_os(name).is_some_and(|value| value == source));
    match of_variable {
        Some(name) if place == source => {
            let text = format!("{name} names {shown}: {why}, so programs find no driver");
            report.wrong("variable", text, Fix::command(format!("unset {name}")));
        }
        _ if place == Path::new(DEFAULT_DIRECTORY) => {} // reported if there is no driver
        _ => {
            let is_there = place.symlink_metadata().is_ok();
            let fix = match place.extension().is_some_and(|end| end == "icd") && is_there {
                true => removal(
                    place,
                    "write the path of the driver's library to it, or remove it",
                ),
                false => Fix::words(
                    "correct the setting that names it; run `oclcache config` to see where `vendors` is set",
                ),
            };
            report.doubtful(ABOUT, format!("{shown}: {why}"), fix);
        }
    }
}

pub fn removal(place: &Path, words: &str) -> Fix {
    let is_registration = place
        .extension()
        .is_some_and(|extension| extension == "icd");
    match (is_registration, place.is_dir()) {
        (false, _) => Fix::words(format!("{words}; a variable or a setting names it")),
        (true, true) => Fix::on("rmdir", place).by_who_may(place).because(words),
        (true, false) => Fix::on("rm", place).by_who_may(place).because(words),
    }
}

fn listed_twice(place: &Path, before: &Path, report: &mut DoctorReport) {
    let text = format!(
        "{} names the same driver as {}: some loaders list its platforms twice",
        path(place),
        path(before)
    );
    report.doubtful(ABOUT, text, removal(place, "one registration is enough"));
}
