//! What audits found, and for which drivers the cache is off therefore.

use super::report::{DoctorReport, Mend};
use crate::cache::autobake;
use crate::cli::drivers::Drivers;
use crate::cli::interrupt::Interrupt;
use crate::config::Config;
use crate::store::Store;

const ABOUT: &str = "audits";

pub fn examine(config: &Config, interrupt: &Interrupt, report: &mut DoctorReport) {
    let store = config.directory().ok();
    let store = store.and_then(|directory| Store::open_existing(&directory).ok().flatten());
    let marks = store.map_or(Ok(Vec::new()), |store| store.marks());
    let marks = match marks {
        Ok(marks) => marks,
        Err(error) => {
            let words = "let yourself read it, or `oclcache clear`";
            return report.doubtful(ABOUT, error.to_string(), Mend::words(words));
        }
    };
    if marks.is_empty() {
        let audited = match config.audit() {
            Some(_) if autobake::refusal(config, autobake::is_of_init()).is_some() => {
                "no hit is audited, since programs start no baker here".to_owned()
            }
            Some(count) => format!("one hit in {count} is audited"),
            None => "no hit is audited".to_owned(),
        };
        return report.good(ABOUT, format!("no difference was found; {audited}"));
    }
    let mut drivers = Drivers::new(config, interrupt);
    for marked in marks {
        if drivers.has(&marked.identity) {
            let mend = Mend::command("oclcache clear").because(
                "please report it with the files that are named; an update of the driver ends it, and so does",
            );
            let text = format!("the cache is off for this driver: {marked}");
            report.wrong(ABOUT, text, mend);
        } else {
            let mend =
                Mend::command("oclcache clear").because("please report it; it is forgotten by");
            let text = format!("{marked}; that driver is not registered any more");
            report.doubtful(ABOUT, text, mend);
        }
    }
}
