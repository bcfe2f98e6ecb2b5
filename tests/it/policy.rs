//! When a miss is recorded: by the setting, by the driver's profile, and by what recording and loading took here.

use crate::copies::update;
use crate::support::{Driver, SOURCE, Sandbox, Way, copy_program, example};
/// The stub, which no profile knows, with times of its own.
fn stub(times: &[(&str, &str)]) -> Sandbox {
    let mut sandbox = Sandbox::stub();
    sandbox.set("OCLCACHE_RECORD", "auto");
    for (variable, milliseconds) in times {
        sandbox.set(variable, milliseconds);
    }
    sandbox
}

/// Runs a kernel that is made with this number; whether the driver built it.
fn builds(sandbox: &Sandbox, number: u32) -> bool {
    let ran = sandbox.kernel(Way::Cached, SOURCE, &format!("-DN={number}"));
    ran.ok().source_builds() > 0
}

/// What `oclcache config` says of the only driver.
fn policy(sandbox: &Sandbox) -> String {
    let shown = sandbox.oclcache(&["config"]).ok().stdout;
    let mut lines = shown
        .lines()
        .skip_while(|line| !line.starts_with("driver "));
    let driver = lines.next().expect("a driver");
    assert!(driver.starts_with("driver unknown, /"), "{driver}");
    let policy = lines.next().expect("its policy").trim().to_owned();
    assert_eq!(lines.next(), None);
    policy
}

#[track_caller]
fn says(sandbox: &Sandbox, words: &str) {
    let policy = policy(sandbox);
    assert!(policy.contains(words), "{policy}");
}

#[test]
fn a_driver_whose_binaries_are_dear_is_baked_after_some_builds_and_config_says_why() {
    let mut sandbox = stub(&[("STUB_FETCH_MS", "80")]);
    for number in 0..4 {
        assert!(builds(&sandbox, number));
        assert_eq!(sandbox.entries().len() as u32, number + 1);
        assert_eq!(sandbox.stat("recipes"), 0, "recorded inside the miss");
    }
    says(&sandbox, "baked: recording took ");
    says(&sandbox, " % of 4 builds");
    for number in 4..6 {
        assert!(builds(&sandbox, number));
    }
    assert_eq!((sandbox.stat("stored"), sandbox.stat("recipes")), (4, 2));
    assert!(!builds(&sandbox, 0), "what is there still serves");
    assert!(builds(&sandbox, 5), "a recipe does not serve");
    // The user knows better.
    sandbox.set("OCLCACHE_RECORD", "inline");
    says(&sandbox, "inside the miss: by the setting `record`");
    assert!(builds(&sandbox, 6));
    assert!(!builds(&sandbox, 6));
    assert_eq!(sandbox.stat("stored"), 5);
}

#[test]
fn a_driver_whose_hits_take_as_long_as_its_builds_is_left_alone() {
    let mut sandbox = stub(&[("STUB_LOAD_MS", "250")]);
    assert!(builds(&sandbox, 0));
    says(&sandbox, "inside the miss: recording took ");
    says(&sandbox, " % of 1 build");
    for _ in 0..8 {
        assert!(!builds(&sandbox, 0));
    }
    says(&sandbox, "off: a hit gains nothing, loading took ");
    says(&sandbox, " % of 8 builds; tried again in 14 days");
    let miss = sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    assert!(miss.stderr.contains("not stored"), "{}", miss.stderr);
    assert!(builds(&sandbox, 1), "it was not stored");
    assert_eq!((sandbox.stat("stored"), sandbox.stat("not_stored")), (1, 2));
    sandbox.set("OCLCACHE_RECORD", "inline");
    assert!(builds(&sandbox, 1));
    assert!(!builds(&sandbox, 1));
}

#[test]
fn the_setting_overrides_what_is_measured_and_nothing_is_measured_then() {
    let mut sandbox = stub(&[("STUB_FETCH_MS", "80")]);
    sandbox.set("OCLCACHE_RECORD", "bake");
    assert!(builds(&sandbox, 0));
    says(&sandbox, "baked: by the setting `record`");
    assert_eq!((sandbox.stat("stored"), sandbox.stat("recipes")), (0, 1));
    sandbox.set("OCLCACHE_RECORD", "inline");
    assert!(builds(&sandbox, 1));
    sandbox.set("OCLCACHE_RECORD", "off");
    says(&sandbox, "off: by the setting `record`");
    assert!(!builds(&sandbox, 1), "what is there still serves");
    for number in [2, 2] {
        assert!(builds(&sandbox, number));
    }
    assert_eq!((sandbox.stat("stored"), sandbox.stat("misses")), (1, 4));
    // Nobody knows what fetching would take here, and nobody wants it inside.
    sandbox.set("OCLCACHE_RECORD", "bake");
    sandbox.set("OCLCACHE_STORE_SOURCE", "0");
    says(
        &sandbox,
        "off: without sources (`store_source`) nothing can be baked",
    );
    assert!(builds(&sandbox, 3) && builds(&sandbox, 3));
    sandbox.variables.remove("OCLCACHE_STORE_SOURCE");
    sandbox.set("OCLCACHE_RECORD", "auto");
    says(&sandbox, "inside the miss: nothing is measured yet");
    sandbox.set("OCLCACHE_RECORD", "sometimes");
    let ran = sandbox.oclcache(&["config"]).ok();
    let mistake =
        "`record` is `sometimes`, which is not one of auto, inline, bake, off; using auto";
    assert!(ran.stderr.contains(mistake), "{}", ran.stderr);
}

#[test]
fn damaged_measurements_are_as_none_and_an_updated_driver_is_measured_anew() {
    let sandbox = stub(&[("STUB_FETCH_MS", "80")]);
    for number in 0..4 {
        assert!(builds(&sandbox, number));
    }
    says(&sandbox, "baked");
    let file = sandbox.path("cache/v1/driver_costs");
    let whole = std::fs::read(&file).expect("measurements");
    let mut damaged = whole.clone();
    *damaged.last_mut().expect("a byte") ^= 1;
    // The first could be another program's file, which stays.
    for bad in [vec![0xff; 4096], damaged, Vec::new(), whole[..20].to_vec()] {
        std::fs::write(&file, bad).expect("written");
        let shown = sandbox.oclcache(&["config"]).ok().stdout;
        assert!(!shown.contains("\ndriver "), "{shown}");
    }
    assert!(builds(&sandbox, 4));
    says(&sandbox, "inside the miss: recording took");
    // What was known is of another driver than the one that is there now.
    std::fs::write(&file, whole).expect("written");
    let mut updated = sandbox;
    let copy = updated.path("libstub_driver.so");
    copy_program(example("libstub_driver.so"), &copy);
    update(&copy);
    updated.set("SPY_DRIVER", copy);
    assert!(builds(&updated, 5));
    says(&updated, "inside the miss: recording took");
}

#[test]
fn a_profile_says_when_the_drivers_that_were_measured_are_recorded() {
    for (driver, family, words) in [
        (
            Driver::Pocl,
            "pocl",
            "baked: fetching a binary compiles every kernel (profile)",
        ),
        (
            Driver::Intel,
            "intel-cpu",
            "inside the miss: fetching a binary costs next to nothing (profile)",
        ),
    ] {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        sandbox.set("OCLCACHE_RECORD", "auto");
        sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
        let shown = sandbox.oclcache(&["config"]).ok().stdout;
        let (_, rest) = shown
            .split_once(&format!("\ndriver {family}, /"))
            .expect("the driver");
        let said = rest.lines().nth(1).unwrap_or_default().trim();
        assert_eq!(said, words, "{driver:?}");
        assert_eq!(sandbox.stat("recipes"), u64::from(driver == Driver::Pocl));
    }
}
