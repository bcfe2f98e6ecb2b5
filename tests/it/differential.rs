//! Nobody can tell: each section of the client prints the same bytes bare, cold and warm, on each driver.

use crate::support::{Driver, Sandbox, Way};

/// How many source builds a warm run of a section needs, by the spy: those that only the driver can judge.
fn expected_warm_builds(driver: Driver, section: &str) -> usize {
    match (driver, section) {
        // An unknown query of an argument (clGetKernelArgInfo with param_name 0).
        (_, "facts") => 1,
        // Failing builds and what follows one, builds with live kernels, and real builds before them. Intel's CPU runtime
        // and rusticl keep something of earlier builds, so more of these are theirs.
        (Driver::Rusticl, "rebuild") => 16,
        (Driver::Intel, "rebuild") => 14,
        (_, "rebuild") => 7,
        (_, "failing") => 10,
        (Driver::Rusticl, "callback") => 9,
        (Driver::Intel, "callback") => 8,
        (_, "callback") => 5,
        (Driver::Rusticl, "compilelink") => 4,
        (Driver::Intel, "compilelink") => 3,
        (_, "compilelink") => 2,
        (Driver::Rusticl, "two-programs") => 2,
        _ => 0,
    }
}

#[track_caller]
fn same_in_all_ways(section: &[&str]) {
    for driver in Driver::ALL {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let bare = sandbox.client(Way::Bare, section).ok();
        let cold = sandbox.client(Way::Cached, section).ok();
        let warm = sandbox.client(Way::Cached, section).ok();
        assert!(
            bare.source_builds() > 0,
            "{driver:?}: the section builds nothing"
        );
        assert_eq!(
            cold.stdout, bare.stdout,
            "{driver:?}, cold, log:\n{}",
            cold.stderr
        );
        assert_eq!(
            warm.stdout, bare.stdout,
            "{driver:?}, warm, log:\n{}",
            warm.stderr
        );
        let expected = expected_warm_builds(driver, section[0]);
        assert_eq!(
            warm.source_builds(),
            expected,
            "{driver:?}, warm, log:\n{}",
            warm.stderr
        );
    }
}

#[test]
fn facts() {
    same_in_all_ways(&["facts"]);
}

#[test]
fn facts_with_options() {
    same_in_all_ways(&["facts", " -cl-kernel-arg-info  -DX=1 "]);
}

#[test]
fn run() {
    same_in_all_ways(&["run"]);
}

#[test]
fn lifetime() {
    same_in_all_ways(&["lifetime"]);
}

#[test]
fn rebuild() {
    same_in_all_ways(&["rebuild"]);
}

#[test]
fn failing() {
    same_in_all_ways(&["failing"]);
}

#[test]
fn callback() {
    same_in_all_ways(&["callback"]);
}

#[test]
fn compile_and_link() {
    same_in_all_ways(&["compilelink"]);
}

#[test]
fn two_programs() {
    same_in_all_ways(&["two-programs"]);
}

#[test]
fn threads() {
    same_in_all_ways(&["threads", "4", "6"]);
}
