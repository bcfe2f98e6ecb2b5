//! What is missed through any door is baked by command, however the driver's `.icd` file names its library.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::register;
use super::ways::{Setup, Way};
use crate::support::{Driver, Sandbox, example};

/// A miss through this door leaves a recipe, `oclcache bake` finds the driver for it, and the next process hits.
#[track_caller]
fn is_baked(mut sandbox: Sandbox, driver: &str, way: Way, about: &str) {
    sandbox.set("OCLCACHE_RECORD", "bake");
    let mut setup = Setup::new(sandbox, driver);
    for (name, value) in setup.variables(way) {
        setup.sandbox.set(name, value);
    }
    let debian = &super::loaders()[0];
    setup.run(debian, way, &[]);
    let baked = setup.sandbox.oclcache(&["bake"]).ok().stderr;
    assert!(
        baked.contains("1 baked, 0 skipped, 0 failed"),
        "{about}, {way:?}: {baked}"
    );
    let ran = setup.run(debian, way, &[]);
    let log = &ran.stderr;
    assert_eq!(
        setup.sandbox.stat("hits"),
        1,
        "{about}, {way:?}, log:\n{log}"
    );
}

#[test]
fn each_door_bakes_what_it_missed_however_the_driver_is_named() {
    let stub = example("libstub_driver.so");
    let directory = stub.parent().expect("a directory").to_owned();
    for way in Way::CACHED {
        for named in ["path", "name", "link"] {
            let mut sandbox = Sandbox::stub();
            let driver = match named {
                "name" => {
                    sandbox.set("LD_LIBRARY_PATH", &directory);
                    Path::new("libstub_driver.so").to_owned()
                }
                "link" => {
                    let link = sandbox.path("liblink.so");
                    symlink(&stub, &link).expect("linked");
                    link
                }
                _ => stub.clone(),
            };
            is_baked(sandbox, driver.to_str().expect("UTF-8"), way, named);
        }
    }
}

/// Debian's file has a name without a directory.
#[test]
fn pocl_is_baked_through_each_door_by_its_own_registration() {
    for way in Way::CACHED {
        let (Some(sandbox), Some(driver)) = (Sandbox::new(Driver::Pocl), Driver::Pocl.library())
        else {
            return;
        };
        is_baked(sandbox, &driver, way, "PoCL");
    }
}

/// Another library of the same name is another driver.
#[test]
fn a_library_of_the_same_name_elsewhere_is_not_taken_for_the_driver() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("OCLCACHE_RECORD", "bake");
    let stub = example("libstub_driver.so");
    let mut setup = Setup::new(sandbox, stub.to_str().expect("UTF-8"));
    let debian = &super::loaders()[0];
    for (name, value) in setup.variables(Way::Layer) {
        setup.sandbox.set(name, value);
    }
    setup.run(debian, Way::Layer, &[]);
    let elsewhere = setup.sandbox.path("elsewhere");
    fs::create_dir(&elsewhere).expect("made");
    let copy = elsewhere.join("libstub_driver.so");
    crate::support::copy_program(&stub, &copy);
    register(&setup.sandbox, "driver/driver.icd", &copy);
    let baked = setup.sandbox.oclcache(&["bake"]).ok().stderr;
    assert!(baked.contains("is not registered"), "{baked}");
}
