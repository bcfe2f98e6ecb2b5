//! `oclcache doctor --qualify`: a driver is measured where it runs, and the library behaves as it was measured.

mod faults;
mod profiles;
mod quirks;
mod report;

use serde_json::Value;

use crate::support::{Driver, Ran, Sandbox, example};

/// What a qualification printed.
pub struct Qualified {
    pub ran: Ran,
    pub json: Value,
}

/// Qualifies a library with these options.
pub fn qualify_library(sandbox: &Sandbox, library: &str, options: &[&str]) -> Qualified {
    let arguments = ["doctor", "--qualify", "--json", "--library", library];
    let ran = sandbox.oclcache(&[&arguments, options].concat());
    let json = serde_json::from_str(&ran.stdout);
    let json = json.unwrap_or_else(|_| panic!("{} {}", ran.stdout, ran.stderr));
    Qualified { ran, json }
}

/// Qualifies the stub driver.
pub fn qualify_stub(sandbox: &Sandbox) -> Qualified {
    let library = example("libstub_driver.so");
    qualify_library(sandbox, library.to_str().expect("UTF-8"), &[])
}

/// The stub driver with builds that take long enough to be timed.
pub fn slow_stub() -> Sandbox {
    let mut sandbox = Sandbox::stub();
    sandbox.set("STUB_BUILD_MS", "20");
    sandbox
}

impl Qualified {
    /// A measurement of the first device.
    pub fn measured(&self, name: &str) -> &Value {
        &self.json["devices"][0]["measured"][name]
    }

    /// What is wrong.
    pub fn faults(&self) -> Vec<String> {
        let findings = self.json["findings"].as_array().expect("a list").iter();
        let wrong = findings.filter(|found| found["state"] == "wrong");
        wrong
            .map(|found| found["text"].as_str().expect("a text").to_owned())
            .collect()
    }

    /// Whether the cache got a profile.
    pub fn is_kept(&self) -> bool {
        self.json["devices"][0]["kept"] == true
    }
}

/// The fields of a driver's row, with all values that a measurement may have: on a busy machine, times may decide nothing.
type Row = [(&'static str, &'static [Option<&'static str>]); 7];

const IN_MISS: &[Option<&str>] = &[Some("in_miss"), Some("measured"), None];
const BAKED: &[Option<&str>] = &[Some("baked"), Some("measured")];
const AFTER_BUILD: &[Option<&str>] = &[Some("after_build"), None];
const WHEN_CREATED: &[Option<&str>] = &[Some("when_created"), None];
const YES: &[Option<&str>] = &[Some("true")];
const NO: &[Option<&str>] = &[Some("false")];
/// The device cannot be divided, or its kernels compute nothing.
const UNTOLD: &[Option<&str>] = &[None];

const ROWS: [(Driver, Row, &[&str]); 5] = [
    (
        Driver::Pocl,
        [
            ("record", BAKED),
            ("kernel_facts", AFTER_BUILD),
            ("context_counts_programs", YES),
            ("kernels_keep_program", YES),
            ("sub_devices_are_their_root", YES),
            ("rebuild", &[Some("fresh")]),
            ("copies_builds", YES),
        ],
        // Measured on 3.1: a kernel with a name of 255 characters. Nobody knows that the libraries which it opens are kernels.
        &[
            "section `odd-programs`: the driver crashed",
            "no build of a program was a hit",
        ],
    ),
    (
        Driver::Intel,
        [
            ("record", IN_MISS),
            ("kernel_facts", AFTER_BUILD),
            ("context_counts_programs", NO),
            ("kernels_keep_program", NO),
            ("sub_devices_are_their_root", NO),
            ("rebuild", &[Some("keeps_variables")]),
            ("copies_builds", NO),
        ],
        &[],
    ),
    (
        Driver::Rusticl,
        [
            ("record", IN_MISS),
            ("kernel_facts", WHEN_CREATED),
            ("context_counts_programs", YES),
            ("kernels_keep_program", YES),
            ("sub_devices_are_their_root", UNTOLD),
            ("rebuild", &[Some("keeps_kernels")]),
            ("copies_builds", NO),
        ],
        &[],
    ),
    (
        Driver::Oclgrind,
        [
            ("record", IN_MISS),
            ("kernel_facts", WHEN_CREATED),
            ("context_counts_programs", YES),
            ("kernels_keep_program", YES),
            ("sub_devices_are_their_root", UNTOLD),
            ("rebuild", &[Some("fresh"), None]),
            ("copies_builds", NO),
        ],
        &["section `undefined-function`: the driver"],
    ),
    (
        Driver::IntelGpu,
        [
            ("record", IN_MISS),
            ("kernel_facts", AFTER_BUILD),
            ("context_counts_programs", NO),
            ("kernels_keep_program", YES),
            ("sub_devices_are_their_root", UNTOLD),
            ("rebuild", UNTOLD),
            ("copies_builds", YES),
        ],
        &[],
    ),
];

/// Each driver is measured behind the spy, which gives it texts that no row recognizes.
#[test]
fn what_is_measured_on_an_unrecognized_driver_is_what_the_row_of_its_family_says() {
    for (driver, row, faults) in ROWS {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        sandbox.set("SPY_RENAME", "1");
        let spy = example("libspy.so");
        // Oclgrind calls its device an accelerator.
        let qualified = qualify_library(&sandbox, spy.to_str().expect("UTF-8"), &["--yes"]);
        let stdout = &qualified.ran.stdout;
        let device = &qualified.json["devices"][0];
        assert_eq!(device["family"], "unknown", "{driver:?}: {stdout}");
        for (name, allowed) in row {
            let found = match qualified.measured(name) {
                Value::Null => None,
                Value::String(text) => Some(text.clone()),
                other => Some(other.to_string()),
            };
            let is_allowed = allowed.contains(&found.as_deref());
            assert!(is_allowed, "{driver:?}: {name} is {found:?}: {stdout}");
        }
        let found = qualified.faults();
        for fault in &found {
            let is_known = faults.iter().any(|known| fault.contains(known));
            assert!(is_known, "{driver:?}: {fault}");
        }
        assert_eq!(
            found.is_empty(),
            qualified.ran.code == Some(0),
            "{driver:?}"
        );
        assert!(qualified.is_kept(), "{driver:?}: {stdout}");
    }
}
