//! Where fetching a binary makes the driver compile, no program's driver is asked for one: PoCL dies of some programs then, and
//! others are not what they were.

use super::{bake, sandbox};
use crate::support::{Driver, Ran, Sandbox, Way};
use crate::verify_and_must_hit::plant_for;

/// What the client says that PoCL computes.
pub const RESULT: &str = "run: result [7, 7,";

/// Two kernels. PoCL dies when it is asked for the binary of the second one, whose name makes the name of a file that is too long;
/// the program runs the first.
pub fn deadly() -> String {
    let long = "n".repeat(300);
    format!(
        "__kernel void f(__global uint *out) {{ out[get_global_id(0)] = 7; }}\n\
         __kernel void {long}(__global uint *out) {{ out[get_global_id(0)] = 8; }}\n"
    )
}

/// PoCL with a cache of its own that all programs of the test share.
fn pocl(variables: &[(&str, &str)]) -> Option<Sandbox> {
    let mut sandbox = sandbox(Driver::Pocl)?;
    let own = sandbox.path("own");
    sandbox.set("POCL_CACHE_DIR", own.as_os_str());
    for (name, value) in variables {
        sandbox.set(name, value);
    }
    Some(sandbox)
}

#[track_caller]
fn explained(sandbox: &Sandbox) -> String {
    sandbox.oclcache(&["explain", "--last", "1"]).ok().stdout
}

#[track_caller]
fn says(sandbox: &Sandbox, words: &str) {
    let explained = explained(sandbox);
    assert!(explained.contains(words), "{words}:\n{explained}");
}

pub const DIED: &str = "not stored: the driver died when it was asked for its binary";

/// With a baker behind it: `autobake::a_driver_that_dies_behind_a_program_is_left_alone`.
#[test]
fn a_program_of_whose_binary_the_driver_dies_lives_whatever_is_set() {
    for variables in [
        &[("OCLCACHE_RECORD", "auto"), ("OCLCACHE_AUTOBAKE", "0")][..],
        &[("OCLCACHE_RECORD", "bake")],
        &[("OCLCACHE_RECORD", "auto"), ("OCLCACHE_STORE_SOURCE", "0")],
    ] {
        let Some(sandbox) = pocl(variables) else {
            return;
        };
        let bare = sandbox.kernel(Way::Bare, &deadly(), "").ok().stdout;
        assert!(bare.contains(RESULT), "{bare}");
        for number in 0..10 {
            let ran = sandbox.kernel(Way::Cached, &deadly(), "");
            let (signal, stderr) = (ran.signal, &ran.stderr);
            assert_eq!(signal, None, "{variables:?}, run {number}: {stderr}");
            assert_eq!(ran.ok().stdout, bare, "{variables:?}, run {number}");
        }
    }
}

#[test]
fn what_killed_the_baker_is_known_to_everybody() {
    let Some(sandbox) = pocl(&[]) else {
        return;
    };
    let run = || sandbox.kernel(Way::Cached, &deadly(), "").ok();
    run();
    for tried in [
        ", which will be tried once more)",
        "(the driver crashed (signal 6))",
    ] {
        let crashed = "0 baked, 0 skipped, 1 failed (1: the driver crashed (signal 6))";
        assert_eq!(bake(&sandbox, &[]), crashed);
        says(&sandbox, DIED);
        says(&sandbox, tried);
    }
    let listed = sandbox.oclcache(&["list"]).ok().stdout;
    assert!(listed.contains("given up"), "{listed}");
    let third = run();
    assert!(third.stderr.contains("not stored"), "{}", third.stderr);
    says(&sandbox, DIED);
    assert_eq!(sandbox.stat("not_stored"), 1);
    let json = sandbox.oclcache(&["explain", "--json"]).ok().stdout;
    assert!(json.contains("\"not_stored\": \"driver_died\""), "{json}");
}

/// Who wants it inside the miss gets it, and a driver that dies of it dies once.
#[test]
fn a_driver_that_dies_inside_a_miss_dies_once() {
    let Some(sandbox) = pocl(&[("OCLCACHE_RECORD", "inline")]) else {
        return;
    };
    let run = || sandbox.kernel(Way::Cached, &deadly(), "");
    assert_eq!(run().signal, Some(6));
    for _ in 0..3 {
        assert!(run().ok().stdout.contains(RESULT));
        says(&sandbox, DIED);
    }
    // Others are stored as ever.
    let other = deadly().replace(&"n".repeat(300), "n");
    let stored = || sandbox.kernel(Way::Cached, &other, "").ok().source_builds();
    assert_eq!((stored(), stored()), (1, 0));
    assert!(crate::support::tree(&sandbox.path("cache/v1/baking")).len() == 1);
}

/// A hit that is verified is built from source inside the application, and its binary must not be asked for either.
#[test]
fn a_driver_that_would_die_of_a_verification_lives() {
    let Some(mut sandbox) = pocl(&[("OCLCACHE_RECORD", "auto")]) else {
        return;
    };
    let bare = sandbox.kernel(Way::Bare, &deadly(), "").ok().stdout;
    // The recipe of the deadly program makes room for an entry that loads well.
    sandbox.kernel(Way::Cached, &deadly(), "").ok();
    sandbox.set("OCLCACHE_RECORD", "inline");
    plant_for(&sandbox, &deadly().replace(&"n".repeat(300), "n"));
    for (record, died) in [("auto", [false; 3]), ("inline", [true, false, false])] {
        sandbox.set("OCLCACHE_RECORD", record);
        sandbox.set("OCLCACHE_VERIFY", "100");
        for died in died {
            let ran = sandbox.kernel(Way::Cached, &deadly(), "");
            assert_eq!(ran.signal.is_some(), died, "{record}: {}", ran.stderr);
            if !died {
                assert_eq!(ran.ok().stdout, bare, "{record}");
            }
        }
    }
}

fn linked(sandbox: &Sandbox, way: Way, parts: &[&str]) -> Ran {
    let sources = parts.iter().flat_map(|part| ["--source", *part]);
    let arguments = ["linked", "--rebuild", "--kernel", "f"].into_iter();
    sandbox.client(way, &arguments.chain(sources).collect::<Vec<_>>())
}

/// PoCL aborts the build of a linked program that was asked for its binary.
#[test]
fn a_linked_program_can_be_built_again_whoever_has_seen_it_before() {
    for record in ["auto", "inline"] {
        let Some(sandbox) = pocl(&[("OCLCACHE_RECORD", record)]) else {
            return;
        };
        let source = sandbox.write("kernel.cl", super::SOURCE);
        let source = source.to_str().expect("UTF-8");
        let bare = linked(&sandbox, Way::Bare, &[source]).ok().stdout;
        for number in 0..4 {
            let ran = linked(&sandbox, Way::Cached, &[source]);
            let signal = ran.signal;
            assert_eq!(signal, None, "{record}, run {number}: {}", ran.stderr);
            assert_eq!(ran.ok().stdout, bare, "{record}, run {number}");
        }
    }
}

#[test]
fn without_sources_nothing_is_stored_where_it_would_be_baked_and_that_is_said() {
    let Some(sandbox) = pocl(&[("OCLCACHE_RECORD", "auto"), ("OCLCACHE_STORE_SOURCE", "0")]) else {
        return;
    };
    for _ in 0..4 {
        assert_eq!(super::misses(&sandbox), 1);
    }
    assert_eq!(sandbox.entries().len(), 0);
    assert_eq!((sandbox.stat("stored"), sandbox.stat("not_stored")), (0, 4));
    says(
        &sandbox,
        "not stored: sources are not kept (`store_source`)",
    );
    let said = "off: without sources (`store_source`) nothing can be baked, so nothing is stored";
    let config = sandbox.oclcache(&["config"]).ok().stdout;
    assert!(config.contains(said), "{config}");
    let doctor = sandbox.oclcache(&["doctor", "--no-build"]).stdout;
    assert!(doctor.contains(said), "{doctor}");
    // Where fetching costs nothing, nobody needs a recipe.
    let Some(mut sandbox) = super::sandbox(Driver::Intel) else {
        return;
    };
    sandbox.set("OCLCACHE_STORE_SOURCE", "0");
    assert_eq!((super::misses(&sandbox), super::misses(&sandbox)), (1, 0));
}
