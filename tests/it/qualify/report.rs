//! The report that is sent in: the same each time, without anything of this user or machine beside the device.

use super::slow_stub;
use crate::support::{Sandbox, example};

fn report(sandbox: &Sandbox, name: &str) -> String {
    let file = sandbox.path(name);
    let library = example("libstub_driver.so").display().to_string();
    let arguments = ["doctor", "--qualify", "--library", &library, "--report"];
    let file_name = file.display().to_string();
    sandbox
        .oclcache(&[&arguments[..], &[&file_name]].concat())
        .ok();
    std::fs::read_to_string(file).expect("written")
}

#[test]
fn two_reports_are_equal_and_name_no_path_and_no_value() {
    let mut sandbox = slow_stub();
    sandbox.set("STUB_CODE", "a-secret-value");
    let first = report(&sandbox, "first");
    assert_eq!(first, report(&sandbox, "second"));
    assert!(
        first.starts_with("A qualification by oclcache\noclcache "),
        "{first}"
    );
    for about in [
        "recording",
        "kernels",
        "rebuilds",
        "comparison",
        "STUB_CODE",
    ] {
        assert!(first.contains(about), "{about}: {first}");
    }
    let home = sandbox.path("").display().to_string();
    for secret in ["a-secret-value", "/", &home, "\u{1b}"] {
        assert!(!first.contains(secret), "{secret:?}: {first}");
    }
}

/// A driver may name in its texts what tells one board or user from others.
#[test]
fn what_a_driver_says_of_its_board_is_in_no_report() {
    let mut sandbox = slow_stub();
    let name = "Board GPU-8932f937-d72c-4106-c12f-20bd9faed9f6 at /dev/dri/card0 (0421618012345)";
    sandbox.set("STUB_DEVICE_NAME", name);
    let report = report(&sandbox, "report");
    for secret in ["8932f937", "20bd9faed9f6", "/dev", "card0", "0421618012345"] {
        assert!(!report.contains(secret), "{secret}: {report}");
    }
    assert!(report.contains("Board (removed) at (removed)"), "{report}");
}

#[test]
fn a_report_replaces_a_report_and_no_other_file() {
    let sandbox = slow_stub();
    report(&sandbox, "report");
    report(&sandbox, "report");
    sandbox.write("letter", "dear all");
    let before = sandbox.compilations();
    let letter = sandbox.path("letter").display().to_string();
    let ran = sandbox.oclcache(&["doctor", "--qualify", "--report", &letter]);
    assert_eq!(ran.code, Some(1));
    assert!(
        ran.stderr.contains("is not a report of oclcache"),
        "{}",
        ran.stderr
    );
    assert_eq!(sandbox.compilations(), before, "before any work");
    assert_eq!(std::fs::read_to_string(letter).expect("read"), "dear all");
}
