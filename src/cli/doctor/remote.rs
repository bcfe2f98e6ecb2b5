//! Whether the remote level can be used: one line, where it is configured. `oclcache doctor --remote` has the helper check the store.

use std::process::{Command, Stdio};

use super::report::{DoctorReport, Fix};
use crate::cli::remote::helper;
use crate::config::{Config, without_password};
use crate::log::text;
use crate::remote::LIBRARY_VERSION;

const ABOUT: &str = "remote";

pub fn examine(config: &Config, report: &mut DoctorReport) {
    let Some(url) = config.remote() else {
        return;
    };
    let url = without_password(&url);
    let shown = text(url.as_bytes()).to_string();
    let helper = match helper() {
        Ok(helper) => helper,
        Err(failure) => {
            let fix = Fix::words("install it, or unset `remote`");
            return report.wrong(ABOUT, format!("{shown}: {}", failure.message), fix);
        }
    };
    let mut command = Command::new(&helper);
    command.arg("--version").stdin(Stdio::null());
    let output = command.stderr(Stdio::null()).output();
    let version = output.ok().filter(|output| output.status.success());
    let version = version.and_then(|output| String::from_utf8(output.stdout).ok());
    let version = version
        .as_deref()
        .and_then(|line| line.split_whitespace().last());
    let path = crate::log::path(&helper).to_string();
    match version {
        Some(version) if version != LIBRARY_VERSION => {
            let version = text(version.as_bytes());
            let fix = Fix::words("install the helper and oclcache of one version");
            report.wrong(
                ABOUT,
                format!(
                    "{shown}: {path} has version {version}, and this is oclcache {LIBRARY_VERSION}, so the helper refuses to work for it"
                ),
                fix,
            );
        }
        Some(_) => {
            let checks = "`oclcache doctor --remote` checks the store";
            report.good(
                ABOUT,
                format!("{shown}, oclcache-remote {LIBRARY_VERSION}, {path}; {checks}"),
            );
        }
        None => {
            let fix = Fix::words("install the helper of this version again");
            report.wrong(
                ABOUT,
                format!("{shown}: {path} does not tell its version"),
                fix,
            );
        }
    }
}
