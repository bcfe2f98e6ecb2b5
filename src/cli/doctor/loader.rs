//! Checks the loader that programs get, and reports what it supports.

use super::report::{DoctorReport, Fix};
use crate::cli::probe::prober::{LONGER, ProbeOutput};
use crate::cli::probe::worker::ProbeMessage;
use crate::cli::probe::{self, Features};
use crate::log::path;

const ABOUT: &str = "loader";

/// Returns the loader's features; None if there is no loader.
pub fn examine(probed: &ProbeOutput, report: &mut DoctorReport) -> Option<Features> {
    let words = probed.messages.iter().find_map(|message| match message {
        ProbeMessage::Words(name, version) => Some((name, version)),
        _ => None,
    });
    let Some((file, features)) = probe::loader(probed) else {
        let why = probed.messages.iter().find_map(|message| match message {
            ProbeMessage::Failed(why) => Some(why.as_str()),
            _ => None,
        });
        let why = why
            .or(probed.silence.as_deref())
            .unwrap_or("the reason is unknown");
        let fix = Fix::words(match probed.is_cut_short {
            true => LONGER,
            false => {
                "install a loader (ocl-icd-libopencl1 in Debian and Ubuntu), and check that LD_LIBRARY_PATH names no broken one"
            }
        });
        report.wrong(
            ABOUT,
            format!("no program can load libOpenCL.so.1: {why}"),
            fix,
        );
        return None;
    };
    let name = match words {
        // ocl-icd gives another name.
        Some((_, version)) if features.takes_files => format!("ocl-icd {version}"),
        Some((name, version)) => format!("{name} {version}"),
        None => "of an unknown kind".to_owned(),
    };
    let place = file.map_or_else(|| "(no file)".to_owned(), |file| path(&file).to_string());
    report.good(ABOUT, format!("{name}, {place}: {}", features.words()));
    Some(features)
}
