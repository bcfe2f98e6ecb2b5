//! A Python whose PyOpenCL has a loader of its own, which no program outside it uses.

use std::fs;
use std::path::PathBuf;

use serde_json::Value;

use super::World;
use crate::support::copy_program;

const LOADER: &str = "libOpenCL-5519dec5.so.1.0.0";

/// A virtual environment with this loader of PyOpenCL's wheel. Its Python leaves a file if it is executed.
fn environment(world: &World, name: &str, loader: &str) -> PathBuf {
    let place = world.sandbox.path(name);
    let loader = place.join("lib/python3.11/site-packages").join(loader);
    fs::create_dir_all(loader.parent().expect("a directory")).expect("made");
    fs::write(&loader, "").expect("written");
    fs::create_dir_all(place.join("bin")).expect("made");
    fs::write(place.join("pyvenv.cfg"), "home = /usr/bin\n").expect("written");
    let executed = world.sandbox.path("executed");
    let script = format!("#!/bin/sh\necho > {}\n", executed.display());
    let script = world.sandbox.write("script", script);
    fs::set_permissions(&script, std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("changed");
    for name in ["python", "python3", "python3.11"] {
        copy_program(&script, &place.join("bin").join(name));
    }
    place
}

/// What is said about Python.
fn told(world: &World) -> Vec<Value> {
    let findings = world.findings("").into_iter();
    let told = findings.filter(|found| found["about"] == "python");
    assert!(!world.sandbox.path("executed").exists(), "it was executed");
    told.collect()
}

#[track_caller]
fn has(told: &[Value], words: &str) {
    let has = |found: &Value| {
        found["text"]
            .as_str()
            .is_some_and(|text| text.contains(words))
    };
    assert!(told.iter().any(has), "{words}: {told:#?}");
}

#[test]
fn a_loader_in_pyopencls_wheel_is_named_with_how_the_cache_reaches_it() {
    for loader in ["pyopencl/.libs", "pyopencl.libs"] {
        let mut world = World::new();
        let loader = format!("{loader}/{LOADER}");
        let place = environment(&world, "venv", &loader);
        world.sandbox.set("VIRTUAL_ENV", &place);
        let told = told(&world);
        let file = place.join("lib/python3.11/site-packages").join(&loader);
        has(&told, &format!("`{}`", file.display()));
        has(&told, "`oclcache run python script.py`");
        assert_eq!(
            (told.len(), &told[0]["state"]),
            (1, &"ok".into()),
            "{told:#?}"
        );
    }
}

#[test]
fn the_python_is_that_of_the_program_then_of_the_environment_then_of_the_path() {
    let mut world = World::new();
    let loader = format!("pyopencl/.libs/{LOADER}");
    let [program, active, path] =
        ["program", "active", "path"].map(|name| environment(&world, name, &loader));
    let old = world.sandbox.variables["PATH"].clone();
    let paths = std::iter::once(path.join("bin")).chain(std::env::split_paths(&old));
    world
        .sandbox
        .set("PATH", std::env::join_paths(paths).expect("a path"));
    has(&told(&world), &path.display().to_string());
    world.sandbox.set("VIRTUAL_ENV", &active);
    has(&told(&world), &active.display().to_string());
    let python = program.join("bin/python3");
    world.arguments = vec![python.display().to_string(), "script.py".to_owned()];
    has(&told(&world), &program.display().to_string());
}

#[test]
fn drivers_from_pip_are_named_registered_or_not() {
    let mut world = World::new();
    let place = environment(&world, "venv", &format!("pyopencl/.libs/{LOADER}"));
    world.sandbox.set("VIRTUAL_ENV", &place);
    let libraries = place.join("lib/python3.11/site-packages/pyopencl/.libs");
    fs::write(libraries.join("pocl.icd"), "libpocl.so.2\n").expect("written");
    fs::write(libraries.join("libpocl.so.2"), "").expect("written");
    let intel = place.join("lib/libintelocl.so");
    fs::write(&intel, "").expect("written");
    let before = told(&world);
    has(
        &before,
        &format!("`{}`", libraries.join("libpocl.so.2").display()),
    );
    let words = format!("`{}` is not registered", intel.display());
    has(&before, &words);
    let warned = before.iter().find(|found| found["state"] == "warning");
    let mend = &warned.expect("a warning")["mend"]["command"];
    let mend = mend.as_str().expect("a command");
    // The driver comes beside the others, whose directory stays.
    let list = format!("/vendors:{}", intel.display());
    assert!(mend.contains("oclcache config set vendors /"), "{mend}");
    assert!(mend.ends_with(&list), "{mend}");
    world.register("intel", &intel.display().to_string());
    let after = told(&world);
    assert!(
        after.iter().all(|found| found["state"] == "ok"),
        "{after:#?}"
    );
}

#[test]
fn a_python_without_a_loader_of_its_own_is_not_mentioned() {
    let mut world = World::new();
    let place = environment(&world, "venv", "pyopencl/version.py");
    world.sandbox.set("VIRTUAL_ENV", &place);
    assert_eq!(told(&world), Vec::<Value>::new());
}

#[test]
fn the_python_package_needs_no_installation() {
    let world = World::new();
    fs::remove_file(world.sandbox.path("drivers/oclcache.icd")).expect("removed");
    let about_programs = |world: &World| {
        let findings = world.findings("").into_iter();
        let about = findings.filter(|found| found["about"] == "programs");
        let [found] = <[Value; 1]>::try_from(about.collect::<Vec<_>>()).expect("one finding");
        found
    };
    let found = about_programs(&world);
    has(&[found], "it is not installed for this shell");
    fs::write(world.sandbox.path("bin/__init__.py"), "").expect("written");
    let found = [about_programs(&world)];
    assert_eq!(found[0]["state"], "ok");
    has(&found, "`oclcache run PROGRAM`");
    has(&found, "`oclcache.enable()`");
    // A registration that does not work is a fault of this shell all the same.
    world.register("oclcache", "/nowhere/liboclcache.so");
    let found = world.findings("");
    assert!(
        found.iter().any(|found| found["state"] == "wrong"),
        "{found:#?}"
    );
}
