//! Whether a program that is started from this shell comes through us, and by which door.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::drivers::{Is, Registered};
use super::report::{DoctorReport, Mend};
use crate::cli::home;
use crate::cli::probe::prober::{ProbeOutput, Prober};
use crate::cli::probe::worker::{OurCopy, ProbeMessage};
use crate::cli::probe::{Features, LAYER_DIRECTORY, ProbedLibrary, ask, is_named_as_us};
use crate::cli::worker::root::Root;

use crate::cache::RUN_VARIABLE;
use crate::front::vendors::DEFAULT_DIRECTORY;
use crate::log::path;

const ABOUT: &str = "programs";
const LAYERS: &str = "OPENCL_LAYERS";
const MODE: &str = "OCLCACHE_MODE";

/// Where a copy of us is registered as a layer.
struct Layer {
    /// The `.lay` file; None: by the variable.
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

    fn removal(&self) -> Mend {
        match &self.file {
            Some(file) => Mend::on("rm", file).by_who_may(file),
            None => Mend::command(format!("unset {LAYERS}")),
        }
    }
}

/// What is known before.
pub struct Known<'a> {
    /// What a worker in this shell's environment said.
    pub probed: &'a ProbeOutput,
    /// What the loader can do.
    pub features: &'a Features,
    /// What is registered.
    pub registered: &'a [Registered],
    /// The library beside this command.
    pub library: Option<&'a Path>,
}

pub fn examine(known: &Known, prober: &Prober, kept: &Root, report: &mut DoctorReport) {
    let layers = examine_layers(known.features, prober, kept, report);
    let ours: Vec<&Registered> = known
        .registered
        .iter()
        .filter(|one| one.by_loader && matches!(one.is, Is::Us))
        .collect();
    for more in ours.iter().skip(1) {
        let text = format!(
            "{} registers oclcache once more, beside {}",
            path(&more.place),
            path(&ours[0].place)
        );
        let mend = Mend::on("rm", &more.place)
            .by_who_may(&more.place)
            .because("one is enough");
        report.doubtful(ABOUT, text, mend);
    }
    if let (Some(icd), Some(layer)) = (ours.first(), layers.first()) {
        let text = format!(
            "oclcache is registered as a driver ({}) and as a layer ({}): each call comes by twice",
            path(&icd.place),
            layer.place()
        );
        report.doubtful(ABOUT, text, layer.removal().because("one is enough"));
    }
    // Later it was building, of which more is said.
    let lists = |message: &ProbeMessage| matches!(message, ProbeMessage::Platforms(_));
    if let Some(why) = &known.probed.silence
        && !known.probed.messages.iter().any(lists)
    {
        let words =
            "see what is said of the drivers; until then name one that works in OCL_ICD_VENDORS";
        let text = format!("a program that lists the platforms does not live: {why}");
        return report.wrong(ABOUT, text, Mend::words(words));
    }
    let copies = copies(known.probed);
    match copies.first() {
        None => outside(&ours, report),
        Some(copy) => inside(copy, &ours, &layers, known, report),
    }
    examine_platforms(known, !copies.is_empty(), report);
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
    let is_alone = !known
        .registered
        .iter()
        .any(|one| one.by_loader && matches!(one.is, Is::Driver(_)));
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
        format!("a program that is started from this shell comes through oclcache, {door}"),
    );
    let version = env!("CARGO_PKG_VERSION");
    if copy.version != version {
        let text = format!(
            "programs load {}, which is version {}, and this command is {version}",
            path(&copy.path),
            copy.version
        );
        report.wrong(
            "library",
            text,
            Mend::command("oclcache install")
                .because("register the library that belongs to this command"),
        );
    } else if let Some(library) = known.library
        && copy.path.canonicalize().ok().as_deref() != Some(library)
    {
        let text = format!(
            "programs load {}, and {} belongs to this command",
            path(&copy.path),
            path(library)
        );
        report.doubtful(
            "library",
            text,
            Mend::command("oclcache install")
                .because("register that one, or use the command that belongs to the other"),
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
    let text = "a program that is started from this shell does not come through oclcache";
    if let Some(vendors) = home::of_user().filter(|_| ours.is_empty()) {
        let text = format!(
            "{text}: it is registered for you, and OCL_ICD_VENDORS is not {} here",
            path(&vendors)
        );
        let mend = Mend::command("eval \"$(oclcache install --user)\"");
        return report.wrong(
            ABOUT,
            text,
            mend.because("begin a new session, or for this shell"),
        );
    }
    match (registered, variable, ours.first()) {
        (_, _, Some(ours)) => {
            let text = format!("{text}, though {} registers it", path(&ours.place));
            let mend = Mend::command("oclcache install").because("register it anew");
            report.wrong(ABOUT, text, mend);
        }
        (Some(registered), Some(name), None) => {
            let text = format!(
                "{text}: {} registers it, but {name} points elsewhere",
                path(&registered.place)
            );
            report.wrong(ABOUT, text, Mend::command(format!("unset {name}")));
        }
        _ => report.doubtful(
            ABOUT,
            format!("{text}: it is registered nowhere that the loader reads"),
            Mend::command("oclcache install")
                .because("start programs with `oclcache run PROGRAM`, or register it"),
        ),
    }
}

/// The layers of ours that the loader is told of, and what keeps it from taking them.
fn examine_layers(
    features: &Features,
    prober: &Prober,
    kept: &Root,
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
    layers.retain(|layer| match ask(&layer.library, prober, kept) {
        ProbedLibrary::Us(copy) => takes(features, layer, &copy, report),
        // Others' layers are no drivers either.
        ProbedLibrary::Driver { .. } => false,
        ProbedLibrary::Broken(why, is_fatal) => {
            if is_fatal || is_named_as_us(&layer.library) {
                let text = format!("{} names {}: {why}", layer.place(), path(&layer.library));
                report.wrong(
                    ABOUT,
                    text,
                    layer
                        .removal()
                        .because("take it out, or put the library there"),
                );
            }
            false
        }
    });
    layers
}

/// Whether the loader takes a copy of ours as a layer.
fn takes(features: &Features, layer: &Layer, copy: &OurCopy, report: &mut DoctorReport) -> bool {
    let place = layer.place();
    let instead = Mend::command("oclcache install").because("register it as a driver instead");
    if !features.layers || layer.file.is_some() && !features.layer_directory {
        let text =
            format!("{place} registers oclcache as a layer, and this loader reads no such layers");
        report.wrong(ABOUT, text, instead);
        return false;
    }
    let [old, new] = copy.is_layer;
    if features.needs_properties && !new || !features.needs_properties && !old {
        let text = format!(
            "{place} registers {} (version {}), which this loader refuses as a layer: it lacks what the loader asks layers for",
            path(&copy.path),
            copy.version
        );
        report.wrong(
            ABOUT,
            text,
            layer
                .removal()
                .because("take it out, and put the library of this command there"),
        );
        return false;
    }
    true
}

/// Drivers work, and a program sees none of them.
fn none_is_listed(report: &mut DoctorReport) {
    let set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let vendors = ["OCL_ICD_VENDORS", "OPENCL_VENDOR_PATH"];
    let is_missing =
        |name: &&str| std::env::var_os(name).is_some_and(|at| !Path::new(&at).exists());
    if vendors.iter().filter(|name| set(name)).any(is_missing) {
        return; // said where it is read
    }
    let mut names = [MODE].into_iter().chain(vendors);
    let mend = match names.find(set) {
        Some(name) => Mend::command(format!("unset {name}")),
        None => Mend::words(
            "`mode = beside` lists none where the loader opens oclcache alone; else see what is said of the drivers",
        ),
    };
    let text = "a program that is started from this shell finds none, though there are drivers";
    report.wrong("platforms", text, mend);
}

fn examine_platforms(known: &Known, is_inside: bool, report: &mut DoctorReport) {
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
        let mend = match std::env::var_os(MODE) {
            Some(_) => Mend::command(format!("unset {MODE}")),
            None => Mend::words("take out one of the two registrations of its driver"),
        };
        report.wrong("platforms", format!("`{name}` is listed twice"), mend);
    }
    let names: Vec<&str> = platforms
        .iter()
        .map(|platform| platform.name.as_str())
        .collect();
    if !names.is_empty() && again.is_empty() {
        report.good(
            "platforms",
            format!("each is listed once: {}", names.join(", ")),
        );
    }
    let is_usable = |one: &Registered| matches!(one.is, Is::Driver(devices) if devices > 0);
    if is_told && names.is_empty() && known.registered.iter().any(is_usable) {
        none_is_listed(report);
    }
    for message in &known.probed.messages {
        let ProbeMessage::Built(built) = message else {
            continue;
        };
        let counted = &built.counted;
        if is_inside
            && built.took_ns.is_ok()
            && counted.hits + counted.misses == 0
            && counted.bypassed.is_empty()
        {
            let text = format!(
                "builds on `{}` do not come through oclcache: the loader calls its driver through a table of its own",
                built.platform
            );
            let mend = match known.features.layer_directory {
                true => Mend::command("sudo oclcache install --system --layer"),
                false => Mend::command("oclcache install --user"),
            };
            report.wrong(
                ABOUT,
                text,
                mend.because("register oclcache so that the loader reaches drivers through it"),
            );
        }
    }
}
