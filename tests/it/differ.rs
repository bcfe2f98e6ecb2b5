//! What `ci/differ` has found and kept: cases in which the cache once answered otherwise than the bare driver.

use std::path::Path;

use crate::support::{Driver, built, is_long, plain_command, python, skipped};

/// Runs all cases of a driver bare and behind the cache, as `ci/differ --replay` does.
fn replay(driver: Driver) {
    let name = format!("{driver:?}").to_lowercase();
    let top = Path::new(env!("CARGO_MANIFEST_DIR"));
    let variable = format!("OCLCACHE_TEST_{}", name.to_uppercase());
    if driver.library().is_none() || !is_long(format_args!("the kept cases of {driver:?}")) {
        return;
    }
    let cases = std::fs::read_dir(top.join("tests/differ")).expect("the kept cases");
    let cases = cases.map(|case| case.expect("listed").path());
    let mut cases: Vec<_> = cases
        .filter(|case| {
            let file = case.file_name().unwrap_or_default().to_string_lossy();
            file.starts_with(&name) && file.ends_with(".json")
        })
        .collect();
    cases.sort();
    assert!(!cases.is_empty(), "no kept case of {name}");
    let preloads = cases.iter().any(|case| {
        let text = std::fs::read_to_string(case).expect("a case");
        text.contains("\"preload\"")
    });
    if preloads && plain_command("gcc").arg("--version").output().is_err() {
        skipped(format_args!("the kept cases of {driver:?} (no gcc)"));
        return;
    }
    let mut command = plain_command(python());
    command
        .arg("-B")
        .arg(top.join("ci/run_differ.py"))
        .args(["--driver", &name, "--built"])
        .arg(built())
        .arg("--replay")
        .args(cases)
        .env(&variable, std::env::var_os(&variable).unwrap_or_default());
    let output = command.output().expect("Python");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert_eq!(
        said.matches(": equal").count(),
        said.lines().count(),
        "{said}"
    );
}

#[test]
fn kept_cases_of_pocl() {
    replay(Driver::Pocl);
}

#[test]
fn kept_cases_of_intel() {
    replay(Driver::Intel);
}
