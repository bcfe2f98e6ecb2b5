//! Checks registrations of libraries that do not exist, in this shell's environment and out of it: of the user, of all users, and in
//! the start-up files of shells.

use std::path::{Path, PathBuf};

use super::drivers::removal;
use super::report::{DoctorReport, Fix};
use crate::cli::home::{Copies, Home};
use crate::cli::library::{library, own_path, typed};
use crate::cli::start_files::{with_line, zdotdir};
use crate::front::vendors::{
    DEFAULT_DIRECTORY, is_bare_name, is_named_as_us, listed, loader_sources,
};
use crate::log::path;

const ABOUT: &str = "installed";

/// Whether a path names our library, but there is no such file. Only this module reports such paths, so other checks skip them.
pub fn is_gone(library: &Path) -> bool {
    is_named_as_us(library) && !is_bare_name(library) && !library.exists()
}

pub fn examine(report: &mut DoctorReport) {
    let home = Home::find().ok();
    let own = home.as_ref().map(|home| home.vendors.clone());
    let mut sources: Vec<PathBuf> = loader_sources(&|name| std::env::var_os(name));
    sources.extend(own.clone());
    sources.push(DEFAULT_DIRECTORY.into());
    let mut seen = std::collections::HashSet::new();
    sources.retain(|source| seen.insert(source.clone()));
    for source in sources {
        for registration in listed(&source) {
            let Ok(library) = registration.library.as_ref() else {
                continue;
            };
            if !is_gone(library) {
                continue;
            }
            let place = &registration.place;
            let text = format!(
                "{} registers oclcache as {}, which does not exist",
                path(place),
                path(library)
            );
            let is_own = |home: &Home| [home.icd(), home.old_icd()].contains(place);
            let fix = match home.as_ref().is_some_and(is_own) {
                true => again(),
                false => removal(place, "install oclcache again, or remove the registration"),
            };
            report.wrong(ABOUT, text, fix);
        }
    }
    let (Some(home), Ok(copies)) = (home, Copies::find()) else {
        return;
    };
    examine_sessions(&home, &copies, report);
}

/// What sets variables in new sessions, and starts the command.
fn examine_sessions(home: &Home, copies: &Copies, report: &mut DoctorReport) {
    let is_registered = home.icd().exists() || home.old_icd().exists();
    let variables = std::fs::read_to_string(&home.variables).unwrap_or_default();
    if variables.contains("OCL_ICD_VENDORS=") && !is_registered {
        let text = format!(
            "{} makes programs of new sessions search {} for drivers, but nothing is registered there",
            path(&home.variables),
            path(&home.vendors)
        );
        report.wrong(ABOUT, text, again());
    }
    let needed = [copies.library(), copies.command(), copies.profile()];
    let is_layer = variables.contains("OPENCL_LAYERS=");
    let is_incomplete = needed.iter().any(|file| !file.exists());
    let lines = with_line(&copies.home, zdotdir().as_deref());
    let place = lines.first().cloned();
    let place = place.or_else(|| copies.launcher().is_file().then(|| copies.launcher()));
    let place = place.or_else(|| is_layer.then(|| home.variables.clone()));
    // The registration of a missing library is reported above.
    let is_reported = is_registered && !copies.library().exists();
    if let Some(place) = place.filter(|_| is_incomplete && !is_reported) {
        let missing = needed.iter().find(|file| !file.exists());
        let text = format!(
            "{} needs {}, which does not exist",
            path(&place),
            path(missing.unwrap_or(&copies.root))
        );
        report.wrong(ABOUT, text, again());
    }
}

/// Copies and registers the library again, and sets the variables of this shell. Without a library to copy, removes what is left.
fn again() -> Fix {
    let has_library = own_path().and_then(|own| library(&own)).is_ok();
    let (verb, words) = match has_library {
        true => ("install", "install it again"),
        false => (
            "uninstall",
            "run `install --user` of a build, or remove the rest of the installation",
        ),
    };
    Fix::command(format!("eval \"$({} {verb} --user)\"", typed())).because(words)
}
