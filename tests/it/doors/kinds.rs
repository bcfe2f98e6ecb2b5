//! Kinds of drivers and of programs: short tables, several platforms, one driver under several names, plug-ins.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;

use super::ways::{Setup, Way};
use super::{LIST, Loader, loaders, register, text};
use crate::support::{self, Driver, Ran, Sandbox, copy_program, example, python, skipped};

fn list(setup: &Setup, loader: &Loader, way: Way) -> Ran {
    let mut command = setup.sandbox.command(support::Way::Cached, python());
    command
        .args(["-c", LIST, &loader.path])
        .env_remove("OCLCACHE_VENDORS")
        .envs(setup.variables(way))
        .envs(loader.variables());
    setup.sandbox.run(&mut command).ok()
}

/// Behind the last slot nothing can be read.
#[test]
fn a_driver_with_the_table_of_opencl_1_1_is_cached() {
    for icd2 in ["0", "1"] {
        let setup = Setup::stub(&[("STUB_SHORT_TABLE", "1"), ("STUB_ICD2", icd2)]);
        for loader in loaders() {
            for way in [Way::Icd, Way::Layer, Way::BesideAndLayer] {
                setup.is_cached(&loader, way, &[], &|_| setup.compilations());
            }
        }
    }
}

#[test]
fn each_platform_of_a_driver_is_listed_and_cached() {
    for variables in [
        [("STUB_OWN_TABLES", "0"), ("STUB_ICD2", "0")],
        [("STUB_OWN_TABLES", "1"), ("STUB_ICD2", "0")],
        [("STUB_OWN_TABLES", "0"), ("STUB_ICD2", "1")],
        [("STUB_OWN_TABLES", "1"), ("STUB_ICD2", "1")],
    ] {
        let setup = Setup::stub(&[&variables[..], &[("STUB_PLATFORMS", "2")]].concat());
        for loader in loaders() {
            let bare = list(&setup, &loader, Way::Bare).stdout;
            assert!(bare.contains("platform Stub 2"), "{bare}");
            for way in [Way::Icd, Way::Layer] {
                let listed = list(&setup, &loader, way);
                assert_eq!(
                    listed.stdout, bare,
                    "{way:?}, {loader:?}:\n{}",
                    listed.stderr
                );
                for name in ["Stub", "Stub 2"] {
                    let more = [("CLIENT_PLATFORM", name)];
                    setup.is_cached(&loader, way, &more, &|_| setup.compilations());
                }
            }
        }
    }
}

/// Loaders that know of ICD 2.0 leave it out, the others use it.
#[test]
fn a_driver_with_the_tags_of_icd_2_and_without_its_functions_is_listed_as_without_us() {
    let setup = Setup::stub(&[("STUB_ICD2", "tag")]);
    for loader in loaders() {
        let bare = list(&setup, &loader, Way::Bare).stdout;
        assert_eq!(
            bare.contains("platform Stub"),
            !loader.knows_icd2(),
            "{loader:?}"
        );
        for way in Way::CACHED {
            let listed = list(&setup, &loader, way);
            assert_eq!(
                listed.stdout, bare,
                "{way:?}, {loader:?}, log:\n{}",
                listed.stderr
            );
        }
    }
}

/// A link to a driver is the same library, of which Khronos' loader lists the platform once and ocl-icd twice. A copy is
/// another library with platforms of its own.
#[test]
fn a_driver_that_is_opened_twice_is_cached() {
    for icd2 in ["0", "1"] {
        let setup = Setup::stub(&[("STUB_ICD2", icd2)]);
        let stub = example("libstub_driver.so");
        let (link, copy) = (
            setup.sandbox.path("liblink.so"),
            setup.sandbox.path("libcopy.so"),
        );
        symlink(&stub, &link).expect("linked");
        copy_program(&stub, &copy);
        for (second, different) in [(&stub, false), (&link, false), (&copy, true)] {
            register(&setup.sandbox, "driver/second.icd", second);
            register(&setup.sandbox, "beside/second.icd", second);
            for loader in loaders() {
                for way in Way::CACHED {
                    setup.is_cached(&loader, way, &[], &|_| setup.compilations());
                }
                let count = |way| {
                    list(&setup, &loader, way)
                        .stdout
                        .matches("platform Stub")
                        .count()
                };
                let expected = if different { 2 } else { 1 };
                assert_eq!(count(Way::Icd), expected, "{second:?}, {loader:?}");
            }
        }
    }
}

/// A program that knows nothing of OpenCL loads a plug-in for itself alone, which is linked to a loader.
#[test]
fn a_plug_in_that_is_loaded_locally_is_served_in_its_second_process() {
    if !Path::new("/usr/include/CL/cl.h").exists() {
        skipped("a plug-in (no CL/cl.h: opencl-headers is not installed)");
        return;
    }
    let Some(sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    let plug_in = sandbox.path("libplugin.so");
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/support/vadd.c");
    let mut compiler = Command::new("cc");
    compiler.args(["-O1", "-shared", "-fPIC", "-Dmain=plugged_in", "-o"]);
    compiler.arg(&plug_in).arg(source).arg("-l:libOpenCL.so.1");
    match compiler.status() {
        Ok(status) => assert!(status.success(), "vadd.c does not compile"),
        Err(error) => {
            skipped(format_args!("a plug-in (cc: {error})"));
            return;
        }
    }
    let script = "import ctypes, sys\n\
        plug_in = ctypes.CDLL(sys.argv[1], mode=ctypes.RTLD_LOCAL)\n\
        sys.exit(plug_in.plugged_in())";
    let setup = Setup::new(sandbox, &text(example("libspy.so")));
    let run = |way| {
        let mut command = setup.sandbox.command(support::Way::Cached, python());
        command
            .args(["-c", script])
            .arg(&plug_in)
            .env_remove("OCLCACHE_VENDORS")
            .envs(setup.variables(way));
        setup.sandbox.run(&mut command).ok()
    };
    let bare = run(Way::Bare);
    assert!(bare.stdout.contains("OK\n"), "{}", bare.stdout);
    for way in [Way::Icd, Way::Beside, Way::Layer] {
        let _ = fs::remove_dir_all(setup.sandbox.path("cache"));
        for builds in [bare.source_builds(), 0] {
            let ran = run(way);
            assert_eq!(ran.stdout, bare.stdout, "{way:?}, log:\n{}", ran.stderr);
            assert_eq!(ran.source_builds(), builds, "{way:?}, log:\n{}", ran.stderr);
        }
    }
}
