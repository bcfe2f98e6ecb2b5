//! Installations of a user that point to nothing. Each is found, and mended as the doctor says.

use std::fs;

use super::World;
use super::faults::{Fault, WRONG, examine};

/// Installs for the user.
fn install(world: &World) {
    let script = "SHELL=/bin/sh oclcache install --user --yes >&2";
    world.shell(script, &["--no-build"]);
}

const FAULTS: [Fault; 4] = [
    Fault {
        about: "installed",
        state: WRONG,
        says: "/.local/lib/oclcache/",
        plant: |world| {
            install(world);
            let copies = world.sandbox.path("home/.local/lib/oclcache");
            fs::remove_dir_all(copies).expect("removed");
        },
        by_hand: None,
    },
    Fault {
        about: "installed",
        state: WRONG,
        // By a version that registered the build itself.
        says: "/oclcache/vendors/oclcache.icd registers oclcache as /cleaned/liboclcache.so",
        plant: |world| {
            install(world);
            let vendors = world.sandbox.path("home/.local/share/oclcache/vendors");
            fs::write(vendors.join("oclcache.icd"), "/cleaned/liboclcache.so\n").expect("written");
            world.sandbox.set("OCL_ICD_VENDORS", vendors);
        },
        by_hand: None,
    },
    Fault {
        about: "installed",
        state: WRONG,
        says: "but nothing is registered there",
        plant: |world| {
            install(world);
            let vendors = world.sandbox.path("home/.local/share/oclcache/vendors");
            fs::remove_dir_all(vendors).expect("removed");
        },
        by_hand: None,
    },
    Fault {
        about: "installed",
        state: WRONG,
        says: "/home/.profile needs ",
        plant: |world| {
            install(world);
            let profile = world.sandbox.path("home/.local/lib/oclcache/profile.sh");
            fs::remove_file(profile).expect("removed");
        },
        by_hand: None,
    },
];

#[test]
fn what_an_installation_lacks_is_told_and_mended() {
    for fault in &FAULTS {
        examine(&mut World::new(), fault);
    }
}

#[test]
fn an_installed_command_whose_library_is_gone_removes_the_rest() {
    let mut world = World::new();
    install(&world);
    let copies = world.sandbox.path("home/.local/lib/oclcache");
    for entry in fs::read_dir(copies).expect("listed").flatten() {
        let _ = fs::remove_file(entry.path().join("liboclcache.so"));
    }
    let path = std::env::var("PATH").expect("a path");
    let own = world.sandbox.path("home/.local/bin").display().to_string();
    world.sandbox.set("PATH", format!("{own}:{path}"));
    let fault = Fault {
        about: "installed",
        state: WRONG,
        says: "which does not exist",
        plant: |_| (),
        by_hand: None,
    };
    let findings = world.findings("");
    assert!(format!("{findings:?}").contains("oclcache uninstall --user"));
    // The command is gone afterwards, so another one looks again.
    let build = world.sandbox.path("bin").display().to_string();
    world.sandbox.set("PATH", format!("{own}:{build}:{path}"));
    examine(&mut world, &fault);
}

#[test]
fn a_whole_installation_is_found_in_order() {
    let world = World::new();
    install(&world);
    let findings = world.findings("eval \"$(oclcache install --user 2> said)\"");
    let about_it = findings.iter().find(|found| found["about"] == "installed");
    assert_eq!(about_it, None);
}
