//! Differences that audits found, and the drivers for which the cache is off because of them.

use super::report::{DoctorReport, Fix};
use crate::cache::autobake;
use crate::cli::interrupt::Interrupt;
use crate::cli::open::usable_store;
use crate::cli::registered_drivers::RegisteredDrivers;
use crate::config::Config;
use crate::first_process::is_about_to_end_with_ours;

const ABOUT: &str = "audits";

pub fn examine(config: &Config, interrupt: &Interrupt, report: &mut DoctorReport) {
    let marks = usable_store(config).map_or(Ok(Vec::new()), |store| store.marks());
    let marks = match marks {
        Ok(marks) => marks,
        Err(error) => {
            let words = "make it readable for you, or run `oclcache clear`";
            return report.doubtful(ABOUT, error.to_string(), Fix::words(words));
        }
    };
    if marks.is_empty() {
        let audited = match config.audit() {
            Some(_) if autobake::refusal(config, is_about_to_end_with_ours()).is_some() => {
                "no hit is audited, since programs do not start the baker here".to_owned()
            }
            Some(count) => format!("one hit in {count} is audited"),
            None => "no hit is audited".to_owned(),
        };
        return report.good(ABOUT, format!("no difference was found; {audited}"));
    }
    let mut drivers = RegisteredDrivers::new(config, interrupt);
    for marked in marks {
        if drivers.has(&marked.identity) {
            let fix = Fix::command("oclcache clear").because(
                "keep the files named above, which show the difference; an update of the driver turns the cache on again, and so does",
            );
            let text = format!("the cache is off for this driver: {marked}");
            report.wrong(ABOUT, text, fix);
        } else {
            let fix = Fix::command("oclcache clear").because("to forget it");
            let text =
                format!("{marked}; that driver is no longer registered, or its keys have changed");
            report.doubtful(ABOUT, text, fix);
        }
    }
}
