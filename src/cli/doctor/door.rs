//! Checks whether a program started from this shell uses the cache, and by which door.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::drivers::{Registered, RegisteredAs};
use super::report::{DoctorReport, Fix};
use super::settings::unset;
use crate::cli::home;
use crate::cli::library::{is_of_python_package, typed};
use crate::cli::probe::prober::{LONGER, ProbeOutput, Prober};
use crate::cli::probe::worker::{ListedDriver, OurCopy, ProbeMessage};
use crate::cli::probe::{self, Features, Harm, LAYER_DIRECTORY, ProbedLibrary};
use crate::cli::start_files::overridden;
use crate::cli::worker::private_directory::PrivateDirectory;

use crate::cache::RUN_VARIABLE;
use crate::config::{Config, Mode, Name};
use crate::front::vendors::{DEFAULT_DIRECTORY, is_named_as_us};
use crate::log::path;

const ABOUT: &str = "programs";
const LAYERS: &str = "OPENCL_LAYERS";
const MODE: &str = "OCLCACHE_MODE";

/// A registration of a copy of us as a layer.
struct Layer {
    /// The `.lay` file; None if the variable registers it.
    file: Option<PathBuf>,
    library: PathBuf,
}

impl Layer {
    fn place(&self) -> String {
        match &self.file {
            Some(file) => path(file).to_string(),
            None => LAYERS.to_owned(),
        }
    }

    fn removal(&self) -> Fix {
        match &self.file {
            Some(file) => Fix::on("rm", file).by_who_may(file),
            None => Fix::command(format!("unset {LAYERS}")),
        }
    }
}

/// The results of earlier checks.
pub struct Known<'a> {
    /// The settings of this shell.
    pub config: &'a Config,
    /// What a probe found in this shell's environment.
    pub probed: &'a ProbeOutput,
    /// The features of the loader.
    pub features: &'a Features,
    /// The registered libraries.
    pub registered: &'a [Registered],
    /// The library beside this command.
    pub library: Option<&'a Path>,
}

pub fn examine(known: &Known, prober: &Prober, kept: &PrivateDirectory, report: &mut DoctorReport) {
    let layers = examine_layers(known.features, prober, kept, report);
    let ours: Vec<&Registered> = known
        .registered
        .iter()
        .filter(|one| one.by_loader && matches!(one.is, RegisteredAs::Us))
        .collect();
    for more in ours.iter().skip(1) {
        let text = format!(
            "{} registers oclcache again, in addition to {}",
            path(&more.place),
            path(&ours[0].place)
        );
        let fix = Fix::on("rm", &more.place)
            .by_who_may(&more.place)
            .because("one registration is enough");
        report.doubtful(ABOUT, text, fix);
    }
    if let (Some(icd), Some(layer)) = (ours.first(), layers.first()) {
        let text = format!(
            "oclcache is registered as a driver ({}) and as a layer ({}): it sees each call twice",
            path(&icd.place),
            layer.place()
        );
        report.doubtful(
            ABOUT,
            text,
            layer.removal().because("one registration is enough"),
        );
    }
    // After this message the probe builds, which another check reports.
    let lists = |message: &ProbeMessage| matches!(message, ProbeMessage::Platforms(_));
    if let Some(why) = &known.probed.silence
        && !known.probed.messages.iter().any(lists)
    {
        let words = match known.probed.is_cut_short {
            true => LONGER,
            false => {
                "see the findings about drivers; until then set OCL_ICD_VENDORS to a driver that works"
            }
        };
        let text = format!("a program that lists the platforms fails: {why}");
        return report.wrong(ABOUT, text, Fix::words(words));
    }
    let copies = copies(known.probed);
    match copies.first() {
        None => outside(&ours, report),
        Some(copy) => inside(copy, &ours, &layers, known, report),
    }
    examine_platforms(known, !copies.is_empty(), !layers.is_empty(), report);
}

fn copies(probed: &ProbeOutput) -> Vec<OurCopy> {
    let copies = probed.messages.iter().find_map(|message| match message {
        ProbeMessage::Copies(copies) => Some(copies.clone()),
        _ => None,
    });
    copies.unwrap_or_default()
}

fn inside(
    copy: &OurCopy,
    ours: &[&Registered],
    layers: &[Layer],
    known: &Known,
    report: &mut DoctorReport,
) {
    let is_alone = is_alone(known);
    let door = match (ours.first(), layers.first()) {
        _ if std::env::var_os(RUN_VARIABLE).is_some() => "inside `oclcache run`".to_owned(),
        (Some(icd), _) if is_alone => format!(
            "as the only driver that the loader sees ({})",
            path(&icd.place)
        ),
        (Some(icd), _) => format!("beside the drivers ({})", path(&icd.place)),
        (None, Some(layer)) => format!("as a layer ({})", layer.place()),
        (None, None) => path(&copy.path).to_string(),
    };
    report.good(
        ABOUT,
        format!("a program started from this shell uses oclcache, {door}"),
    );
    if is_alone && known.config.mode() == Mode::Beside {
        let text = "`mode = beside` counts as `auto`: the loader opens no driver but oclcache";
        let (_, source) = known.config.value(Name::Mode);
        report.doubtful("platforms", text, unset(Name::Mode, source));
    }
    let version = env!("CARGO_PKG_VERSION");
    if copy.version != version {
        let text = format!(
            "programs load {}, which is version {}, but this command is version {version}",
            path(&copy.path),
            copy.version
        );
        report.wrong(
            "library",
            text,
            Fix::command(format!("{} install", typed()))
                .because("register the library that belongs to this command"),
        );
    } else if let Some(library) = known.library
        && copy.path.canonicalize().ok().as_deref() != Some(library)
    {
        let text = format!(
            "programs load {}, but {} belongs to this command",
            path(&copy.path),
            path(library)
        );
        report.doubtful(
            "library",
            text,
            Fix::command(format!("{} install", typed())).because(
                "register the library of this command, or use the command of the other library",
            ),
        );
    }
}

fn outside(ours: &[&Registered], report: &mut DoctorReport) {
    let elsewhere = crate::front::vendors::listed(Path::new(DEFAULT_DIRECTORY));
    let registered = elsewhere.into_iter().find(|one| {
        one.library
            .as_ref()
            .is_ok_and(|library| is_named_as_us(library))
    });
    let variable = ["OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"]
        .into_iter()
        .find(|name| std::env::var_os(name).is_some_and(|value| !value.is_empty()));
    let text = "a program started from this shell does not use oclcache";
    let is_set = |vendors: &PathBuf| {
        std::env::var_os("OCL_ICD_VENDORS").is_some_and(|value| *vendors == Path::new(&value))
    };
    if let Some(vendors) = home::of_user().filter(|vendors| ours.is_empty() && !is_set(vendors)) {
        let text = format!(
            "{text}: it is registered for you, but OCL_ICD_VENDORS is not {} here",
            path(&vendors)
        );
        let copies = home::Copies::find().ok();
        let other = copies.and_then(|copies| overridden("OCL_ICD_VENDORS", &copies.home));
        let fix = match other {
            Some((file, line)) => Fix::words(format!(
                "remove `{}` from `{}`, name its drivers by `oclcache config set vendors DRIVERS`, and begin a new session",
                crate::log::text(line.as_bytes()),
                path(&file)
            )),
            None => Fix::command(format!("eval \"$({} install --user)\"", typed()))
                .because("begin a new session, or run this in the shell"),
        };
        return report.wrong(ABOUT, text, fix);
    }
    match (registered, variable, ours.first()) {
        (_, _, Some(ours)) => {
            let text = format!("{text}, though {} registers it", path(&ours.place));
            let fix = Fix::command(format!("{} install", typed())).because("register it again");
            report.wrong(ABOUT, text, fix);
        }
        (Some(registered), Some(name), None) => {
            let text = format!(
                "{text}: {} registers it, but {name} points elsewhere",
                path(&registered.place)
            );
            report.wrong(ABOUT, text, Fix::command(format!("unset {name}")));
        }
        _ if is_of_python_package() => report.good(
            ABOUT,
            "the Python package needs no installation: programs use oclcache in `oclcache run PROGRAM`, or after `oclcache.enable()`",
        ),
        _ => report.doubtful(
            ABOUT,
            format!("{text}: it is not installed for this shell"),
            Fix::command(format!("{} install", typed()))
                .because("start programs with `oclcache run PROGRAM`, or install it"),
        ),
    }
}

/// The registrations of us as a layer that the loader accepts. Reports the others.
fn examine_layers(
    features: &Features,
    prober: &Prober,
    kept: &PrivateDirectory,
    report: &mut DoctorReport,
) -> Vec<Layer> {
    let mut layers = Vec::new();
    let variable = std::env::var_os(LAYERS).unwrap_or_default();
    for part in variable
        .as_bytes()
        .split(|byte| *byte == b':')
        .filter(|part| !part.is_empty())
    {
        layers.push(Layer {
            file: None,
            library: OsStr::from_bytes(part).into(),
        });
    }
    let files = std::fs::read_dir(LAYER_DIRECTORY)
        .into_iter()
        .flatten()
        .flatten();
    for file in files.map(|entry| entry.path()) {
        if file.extension().is_some_and(|extension| extension == "lay")
            && let Ok(text) = std::fs::read_to_string(&file)
        {
            layers.push(Layer {
                library: text.lines().next().unwrap_or_default().into(),
                file: Some(file),
            });
        }
    }
    layers.retain(|layer| match probe::library(&layer.library, prober, kept) {
        ProbedLibrary::Us(copy) => accepts(features, layer, &copy, report),
        // A layer of somebody else's.
        ProbedLibrary::Driver { .. } => false,
        ProbedLibrary::Broken(why, harm) => {
            let fix = match harm {
                Harm::Unknown => Fix::words(LONGER),
                Harm::Left | Harm::Fatal => layer
                    .removal()
                    .because("remove it, or put the library there"),
            };
            if harm != Harm::Left || is_named_as_us(&layer.library) {
                let text = format!("{} names {}: {why}", layer.place(), path(&layer.library));
                report.wrong(ABOUT, text, fix);
            }
            false
        }
    });
    layers
}

/// Whether the loader accepts a copy of ours as a layer.
fn accepts(features: &Features, layer: &Layer, copy: &OurCopy, report: &mut DoctorReport) -> bool {
    let place = layer.place();
    let instead =
        Fix::command(format!("{} install", typed())).because("register it as a driver instead");
    if !features.layers || layer.file.is_some() && !features.layer_directory {
        let text = format!(
            "{place} registers oclcache as a layer, but this loader does not read such layers"
        );
        report.wrong(ABOUT, text, instead);
        return false;
    }
    let [old, new] = copy.is_layer;
    if features.needs_properties && !new || !features.needs_properties && !old {
        let text = format!(
            "{place} registers {} (version {}), which this loader refuses as a layer: it lacks a function that the loader needs",
            path(&copy.path),
            copy.version
        );
        report.wrong(
            ABOUT,
            text,
            layer
                .removal()
                .because("remove it, and register the library of this command"),
        );
        return false;
    }
    true
}

/// Reports that drivers work but programs see none of them.
fn none_is_listed(report: &mut DoctorReport) {
    let set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let vendors = ["OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"];
    let is_missing =
        |name: &&str| std::env::var_os(name).is_some_and(|at| !Path::new(&at).exists());
    if vendors.iter().filter(|name| set(name)).any(is_missing) {
        return; // reported where it is read
    }
    let fix = match vendors.iter().find(|name| set(name)) {
        Some(name) => Fix::command(format!("unset {name}")),
        None => Fix::words("see the findings about drivers"),
    };
    let text = "a program started from this shell finds no platform, although there are drivers";
    report.wrong("platforms", text, fix);
}

fn examine_platforms(known: &Known, is_inside: bool, is_layer: bool, report: &mut DoctorReport) {
    let platforms = known
        .probed
        .messages
        .iter()
        .find_map(|message| match message {
            ProbeMessage::Platforms(platforms) => Some(platforms),
            _ => None,
        });
    let is_told = platforms.is_some();
    let platforms = platforms.map_or(&[][..], Vec::as_slice);
    let again: BTreeSet<&str> = platforms
        .iter()
        .filter(|platform| platform.is_again)
        .map(|platform| platform.name.as_str())
        .collect();
    for name in &again {
        let fix = match std::env::var_os(MODE) {
            Some(_) => Fix::command(format!("unset {MODE}")),
            None => Fix::words("remove one of the two registrations of its driver"),
        };
        report.wrong("platforms", format!("`{name}` is listed twice"), fix);
    }
    let names: Vec<&str> = platforms
        .iter()
        .map(|platform| platform.name.as_str())
        .collect();
    if !names.is_empty() && again.is_empty() {
        report.good(
            "platforms",
            format!("each platform is listed once: {}", names.join(", ")),
        );
    }
    let is_usable =
        |one: &Registered| matches!(one.is, RegisteredAs::Driver(devices) if devices > 0);
    if is_told && names.is_empty() && known.registered.iter().any(is_usable) {
        none_is_listed(report);
    }
    if is_inside {
        for name in unreached(known, platforms, is_layer) {
            let text = format!(
                "builds on `{name}` do not reach oclcache: the loader calls its driver through its own table"
            );
            let fix = match known.features.layer_directory {
                true => Fix::command(format!("sudo {} install --system --layer", typed())),
                false => Fix::command(format!("{} install --user", typed())),
            };
            report.wrong(
                ABOUT,
                text,
                fix.because("register oclcache so that the loader reaches drivers through it"),
            );
        }
    }
}

/// The platforms of which no call comes through us: by what the loader does with their drivers beside us, or because a build was
/// counted nowhere.
fn unreached<'a>(
    known: &'a Known,
    platforms: &'a [ListedDriver],
    is_layer: bool,
) -> BTreeSet<&'a str> {
    let is_beside = !is_layer && !is_alone(known);
    let called_past = platforms
        .iter()
        .filter(|platform| is_beside && platform.is_of_loaders_table)
        .map(|platform| platform.name.as_str());
    let uncounted = known.probed.messages.iter().filter_map(|message| {
        let ProbeMessage::Built(built) = message else {
            return None;
        };
        let counted = &built.counted;
        let is_uncounted = built.took_ns.is_ok()
            && counted.hits + counted.misses == 0
            && counted.bypassed.is_empty();
        is_uncounted.then_some(built.platform.as_str())
    });
    called_past.chain(uncounted).collect()
}

/// Whether the loader sees no driver but us.
fn is_alone(known: &Known) -> bool {
    let mut registered = known.registered.iter();
    !registered.any(|one| one.by_loader && matches!(one.is, RegisteredAs::Driver(_)))
}
