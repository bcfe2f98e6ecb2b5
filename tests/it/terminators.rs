//! Sources whose lengths count the NUL that ends a string.

use crate::support::{Driver, Sandbox, Way};

const COUNTED: [&str; 4] = ["misses", "hits", "bypassed", "failed"];

/// Runs a case bare and through the cache. Both print the same; the cached run adds these to the counters.
#[track_caller]
fn adds(driver: Driver, sandbox: &Sandbox, case: &str, added: [u64; 4]) {
    let before = COUNTED.map(|name| sandbox.stat(name));
    let bare = sandbox.client(Way::Bare, &["terminators", case]).ok();
    let cached = sandbox.client(Way::Cached, &["terminators", case]).ok();
    let log = &cached.stderr;
    assert_eq!(cached.stdout, bare.stdout, "{driver:?} {case}, log:\n{log}");
    let after = COUNTED.map(|name| sandbox.stat(name));
    let difference: Vec<u64> = after
        .iter()
        .zip(before)
        .map(|(after, before)| after - before)
        .collect();
    assert_eq!(difference, added, "{driver:?} {case}, log:\n{log}");
}

fn sandboxes() -> impl Iterator<Item = (Driver, Sandbox)> {
    let drivers = Driver::ALL.into_iter();
    drivers.filter_map(|driver| Some((driver, Sandbox::new(driver)?)))
}

#[test]
fn a_counted_terminator_is_no_part_of_the_source() {
    for (driver, sandbox) in sandboxes() {
        adds(driver, &sandbox, "last", [1, 0, 0, 0]);
        for case in ["last", "only", "padded", "none"] {
            adds(driver, &sandbox, case, [0, 1, 0, 0]);
        }
    }
}

#[test]
fn an_embedded_header_may_count_its_terminator() {
    for (driver, sandbox) in sandboxes() {
        adds(driver, &sandbox, "header", [2, 0, 0, 0]);
        // On Intel's GPU driver the baker stores what was compiled.
        sandbox.oclcache(&["bake"]).ok();
        adds(driver, &sandbox, "header", [0, 2, 0, 0]);
    }
}

/// Drivers disagree about what follows: PoCL and Intel's CPU runtime compile nothing behind the NUL, rusticl goes on with the next
/// string (measured).
#[test]
fn a_nul_before_the_end_is_left_to_the_driver() {
    for (driver, sandbox) in sandboxes() {
        for case in ["first", "within", "first"] {
            adds(driver, &sandbox, case, [0, 0, 1, 0]);
        }
    }
}
