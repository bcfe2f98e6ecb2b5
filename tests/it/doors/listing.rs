//! The door: through each loader the application sees the platforms and devices that it would see without us, once each,
//! whatever is registered beside us and however it is spelled.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;
use std::process::Command;

use super::{LIST, Loader, Name, SOURCE, loaders, register, text};
use crate::support::{
    Driver, Ran, Sandbox, Way, copy_program, example, given, library, python, skipped,
};
use crate::tiers::trusted_place;

/// A sandbox on the stub with a directory `drivers` in which the stub and all real drivers that are there are registered.
fn registered() -> Sandbox {
    let mut sandbox = Sandbox::stub();
    fs::create_dir(sandbox.path("drivers")).expect("made");
    for driver in Driver::ALL {
        if let Some(library) = driver.library() {
            sandbox.prepare_for(driver);
            register(&sandbox, &format!("drivers/{driver:?}.icd"), library);
        }
    }
    sandbox
}

/// What a loader lists if it is pointed at a directory, through us or not.
fn list(sandbox: &Sandbox, loader: &Loader, directory: &str, variables: &[(&str, &str)]) -> Ran {
    let mut command = sandbox.command(Way::Cached, python());
    command
        .args(["-c", LIST, &loader.path])
        .env("OCL_ICD_VENDORS", sandbox.path(directory))
        .env_remove("OCLCACHE_VENDORS");
    for (name, value) in loader.variables() {
        add_variable(&mut command, name, value.as_os_str());
    }
    for (name, value) in variables {
        add_variable(&mut command, name, OsStr::new(value));
    }
    sandbox.run(&mut command).ok()
}

/// Sets a variable, but adds to the directories of libraries: a driver, the loader and the test may each need some.
fn add_variable(command: &mut Command, name: &str, value: &OsStr) {
    let mut value = value.to_owned();
    let set = command.get_envs().find(|(set, _)| *set == name);
    if let Some((_, Some(earlier))) = set.filter(|_| name == "LD_LIBRARY_PATH") {
        value.push(":");
        value.push(earlier);
    }
    command.env(name, value);
}

/// The platforms' names in a list.
fn count(listed: &str, words: &str) -> usize {
    listed.lines().filter(|line| line.contains(words)).count()
}

#[test]
fn an_exclusive_directory_lists_the_bare_loaders_platforms_and_devices_in_its_order() {
    let sandbox = registered();
    for loader in loaders() {
        let bare = list(&sandbox, &loader, "drivers", &[]).stdout;
        assert_eq!(count(&bare, "platform Stub"), 1, "{loader:?}:\n{bare}");
        let drivers = text(sandbox.path("drivers"));
        let ours = list(
            &sandbox,
            &loader,
            "oclcache",
            &[("OCLCACHE_VENDORS", &drivers)],
        );
        assert_eq!(ours.stdout, bare, "{loader:?}, log:\n{}", ours.stderr);
    }
}

#[test]
fn beside_the_drivers_nothing_is_listed_twice_and_builds_are_cached() {
    for driver in [Driver::Stub, Driver::Pocl] {
        let sandbox = registered();
        let Some(name) = driver.library() else {
            continue;
        };
        for loader in loaders() {
            let bare = list(&sandbox, &loader, "drivers", &[]).stdout;
            register(&sandbox, "drivers/oclcache.icd", library());
            let beside = list(&sandbox, &loader, "drivers", &[]);
            assert_eq!(beside.stdout, bare, "{loader:?}, log:\n{}", beside.stderr);
            fs::remove_file(sandbox.path("drivers/oclcache.icd")).expect("removed");
            let _ = fs::remove_dir_all(sandbox.path("cache"));
            caches_beside(&sandbox, driver, &name, &loader, &[library()]);
        }
    }
}

/// With the spy in a directory beside one or more of us: the second run builds nothing.
#[track_caller]
fn caches_beside(sandbox: &Sandbox, driver: Driver, name: &str, loader: &Loader, us: &[PathBuf]) {
    let directory = tempfile::tempdir_in(sandbox.path("")).expect("a directory");
    let spy = format!("{}\n", example("libspy.so").display());
    fs::write(directory.path().join("spy.icd"), spy).expect("written");
    for (number, library) in us.iter().enumerate() {
        let file = directory.path().join(format!("oclcache{number}.icd"));
        fs::write(file, format!("{}\n", library.display())).expect("written");
    }
    let source = sandbox.write("kernel.cl", SOURCE);
    let run = |way| {
        let mut command = sandbox.command(way, example("client"));
        command
            .args(["run", "--kernel", "f", "--source"])
            .arg(&source)
            .env("SPY_DRIVER", name)
            .env("CLIENT_LOADER", &loader.path)
            .envs(loader.variables());
        if way == Way::Cached {
            command
                .env("OCL_ICD_VENDORS", directory.path())
                .env_remove("OCLCACHE_VENDORS");
        }
        sandbox.run(&mut command).ok()
    };
    let bare = run(Way::Bare);
    for builds in [1, 0] {
        let ran = run(Way::Cached);
        let log = ran.stderr.as_str();
        assert_eq!(
            ran.stdout, bare.stdout,
            "{driver:?}, {loader:?}, log:\n{log}"
        );
        assert_eq!(
            ran.source_builds(),
            builds,
            "{driver:?}, {loader:?}, log:\n{log}"
        );
    }
}

#[test]
fn a_link_to_us_and_a_copy_of_us_are_never_taken_for_drivers() {
    let sandbox = registered();
    let (link, copy) = (sandbox.path("liblink.so"), sandbox.path("libcopy.so"));
    symlink(library(), &link).expect("linked");
    fs::copy(library(), &copy).expect("copied");
    for loader in loaders() {
        let bare = list(&sandbox, &loader, "drivers", &[]).stdout;
        register(&sandbox, "drivers/link.icd", &link);
        register(&sandbox, "drivers/copy.icd", &copy);
        register(&sandbox, "drivers/us.icd", library());
        let drivers = text(sandbox.path("drivers"));
        let vendors = [("OCLCACHE_VENDORS", drivers.as_str())];
        let ours = list(&sandbox, &loader, "oclcache", &vendors);
        assert_eq!(ours.stdout, bare, "{loader:?}, log:\n{}", ours.stderr);
        let all = list(&sandbox, &loader, "drivers", &[]);
        assert_eq!(
            all.stdout, bare,
            "{loader:?}, all registered:\n{}",
            all.stderr
        );
        for name in ["link", "copy", "us"] {
            fs::remove_file(sandbox.path(&format!("drivers/{name}.icd"))).expect("removed");
        }
        let _ = fs::remove_dir_all(sandbox.path("cache"));
        let stub = Driver::Stub.library().expect("the stub");
        let us = [library(), link.clone(), copy.clone()];
        caches_beside(&sandbox, Driver::Stub, &stub, &loader, &us);
    }
}

#[test]
fn a_broken_driver_is_named_in_the_log_and_the_others_still_work() {
    let sandbox = registered();
    for loader in loaders() {
        let bare = list(&sandbox, &loader, "drivers", &[]).stdout;
        register(&sandbox, "drivers/gone.icd", "/nonexistent/libgone.so");
        register(
            &sandbox,
            "drivers/unfindable.icd",
            "libunfindable-driver.so.9",
        );
        register(&sandbox, "drivers/nodriver.icd", "libm.so.6");
        let text_file = sandbox.write("libtext.so", "not a library\n");
        register(&sandbox, "drivers/text.icd", text_file);
        sandbox.write("drivers/empty.icd", "");
        sandbox.write(
            "drivers/garbage.icd",
            b"\x7fELF\xff\x00\x01\x1b[2Jgarbage\n",
        );
        symlink("/nonexistent.icd", sandbox.path("drivers/dangling.icd")).expect("linked");
        fs::create_dir(sandbox.path("drivers/directory.icd")).expect("made");
        let drivers = text(sandbox.path("drivers"));
        let vendors = [("OCLCACHE_VENDORS", drivers.as_str())];
        let ours = list(&sandbox, &loader, "oclcache", &vendors);
        let log = ours.stderr.as_str();
        assert_eq!(ours.stdout, bare, "{loader:?}, log:\n{log}");
        let named = [
            "/nonexistent/libgone.so",
            "libunfindable-driver.so.9",
            "libm.so.6",
            "libtext.so",
            "empty.icd",
            "garbage",
            "dangling.icd",
            "directory.icd",
        ];
        for bad in named {
            assert!(log.contains(bad), "{bad} is not named, {loader:?}:\n{log}");
        }
        assert!(!log.contains('\x1b'), "a terminal sequence:\n{log}");
        for entry in fs::read_dir(sandbox.path("drivers")).expect("listed") {
            let path = entry.expect("an entry").path();
            let name = path.file_stem().expect("a name").to_string_lossy();
            if path.is_dir() {
                fs::remove_dir(&path).expect("removed");
            } else if name.starts_with(char::is_lowercase) {
                fs::remove_file(&path).expect("removed");
            }
        }
    }
}

#[test]
fn a_vendors_path_that_does_not_exist_is_named_in_the_log_and_the_others_still_work() {
    let sandbox = registered();
    for loader in loaders() {
        let bare = list(&sandbox, &loader, "drivers", &[]).stdout;
        let vendors = format!("/nonexistent/vendors:{}", text(sandbox.path("drivers")));
        let vendors = [("OCLCACHE_VENDORS", vendors.as_str())];
        let ours = list(&sandbox, &loader, "oclcache", &vendors);
        assert_eq!(ours.stdout, bare, "{loader:?}, log:\n{}", ours.stderr);
        assert!(ours.stderr.contains("/nonexistent/vendors"));
    }
}

#[test]
fn the_mode_decides_whether_platforms_are_reported() {
    let sandbox = registered();
    let drivers = text(sandbox.path("drivers"));
    let vendors = ("OCLCACHE_VENDORS", drivers.as_str());
    for loader in loaders() {
        let bare = list(&sandbox, &loader, "drivers", &[]).stdout;
        let icd = [vendors, ("OCLCACHE_MODE", "icd")];
        let listed = list(&sandbox, &loader, "oclcache", &icd).stdout;
        assert_eq!(listed, bare, "{loader:?}");
        // A program would have no platform otherwise.
        let beside = [vendors, ("OCLCACHE_MODE", "beside")];
        let listed = list(&sandbox, &loader, "oclcache", &beside).stdout;
        assert_eq!(listed, bare, "{loader:?}");
    }
    register(&sandbox, "drivers/oclcache.icd", library());
    for loader in loaders() {
        let told = |mode| {
            let listed = list(&sandbox, &loader, "drivers", &[("OCLCACHE_MODE", mode)]);
            count(&listed.stdout, "platform Stub")
        };
        assert_eq!(
            [told("auto"), told("beside"), told("icd")],
            [1, 1, 2],
            "{loader:?}"
        );
    }
}

#[test]
fn vendors_may_be_a_directory_a_file_and_a_library_and_each_driver_is_listed_once() {
    let sandbox = registered();
    let stub = example("libstub_driver.so");
    let search = text(stub.parent().expect("a directory").to_owned());
    fs::create_dir(sandbox.path("one")).expect("made");
    register(&sandbox, "one/stub.icd", &stub);
    let mut vendors = text(sandbox.path("one"));
    for driver in Driver::ALL {
        if driver != Driver::Stub && driver.library().is_some() {
            vendors += &format!(
                ":{}",
                text(sandbox.path(&format!("drivers/{driver:?}.icd")))
            );
        }
    }
    for loader in loaders() {
        let once = |vendors: &str| {
            let variables = [
                ("OCLCACHE_VENDORS", vendors),
                ("LD_LIBRARY_PATH", search.as_str()),
                ("OCL_ICD_PLATFORM_SORT", "none"),
            ];
            list(&sandbox, &loader, "oclcache", &variables).stdout
        };
        let expected = once(&vendors);
        let others = Driver::ALL.into_iter().filter_map(Driver::library).count();
        assert!(count(&expected, "platform ") >= others, "{expected}");
        assert_eq!(count(&expected, "platform Stub"), 1);
        // The stub again, by its name, by its path, by a file and by a directory.
        for again in [
            "libstub_driver.so".to_owned(),
            text(stub.clone()),
            text(sandbox.path("drivers/Stub.icd")),
            text(sandbox.path("drivers")),
        ] {
            let listed = once(&format!("{vendors}:{again}:"));
            assert_eq!(listed, expected, "{loader:?}: again as {again}");
        }
        // The loader has it by name, we have it by path: it is the loader's to report.
        register(&sandbox, "drivers/Stub.icd", "libstub_driver.so");
        register(&sandbox, "drivers/oclcache.icd", library());
        let variables = [
            ("OCLCACHE_VENDORS", stub.to_str().expect("UTF-8")),
            ("LD_LIBRARY_PATH", search.as_str()),
        ];
        let listed = list(&sandbox, &loader, "drivers", &variables).stdout;
        assert_eq!(count(&listed, "platform Stub"), 1, "{loader:?}:\n{listed}");
        register(&sandbox, "drivers/Stub.icd", &stub);
        fs::remove_file(sandbox.path("drivers/oclcache.icd")).expect("removed");
    }
}

/// `pip install pyopencl[pocl]` puts a driver where only the wheel's loader looks.
#[test]
fn a_driver_in_the_wheels_own_directory_is_listed_once_and_cached() {
    let mut loaders = loaders().into_iter();
    let Some(wheel) = loaders.find(|loader| loader.name == Name::Wheel) else {
        return;
    };
    let sandbox = Sandbox::stub();
    for name in ["package", "package/.libs", "none"] {
        fs::create_dir(sandbox.path(name)).expect("made");
    }
    register(&sandbox, "package/.libs/driver.icd", example("libspy.so"));
    let source = sandbox.write("kernel.cl", SOURCE);
    let package = text(sandbox.path("package"));
    let spy = text(sandbox.path("spy"));
    for vendors in ["", spy.as_str()] {
        let variables = [
            ("PYOPENCL_HOME", package.as_str()),
            ("OCLCACHE_VENDORS", vendors),
        ];
        let listed = list(&sandbox, &wheel, "oclcache", &variables).stdout;
        assert_eq!(count(&listed, "platform Stub"), 1, "{vendors}:\n{listed}");
        let run = || {
            let mut command = sandbox.command(Way::Cached, example("client"));
            command
                .args(["run", "--kernel", "f", "--source"])
                .arg(&source)
                .env("CLIENT_LOADER", &wheel.path)
                .env("CLIENT_PLATFORM", "Stub")
                .envs(variables);
            sandbox.run(&mut command).ok()
        };
        run();
        let warm = run();
        assert_eq!(warm.source_builds(), 0, "{vendors}, log:\n{}", warm.stderr);
    }
}

/// Its `.icd` file has a name without a directory, which only the loader finds, and the baker is not told where the package is.
#[test]
fn a_driver_in_the_wheels_own_directory_is_baked() {
    let mut loaders = loaders().into_iter();
    let Some(wheel) = loaders.find(|loader| loader.name == Name::Wheel) else {
        return;
    };
    let Some(place) = trusted_place("a driver in a wheel is baked") else {
        return;
    };
    let sandbox = Sandbox::stub();
    let libraries = place.path().join("pyopencl/.libs");
    fs::create_dir_all(&libraries).expect("made");
    fs::create_dir(sandbox.path("none")).expect("made");
    copy_program(example("libstub_driver.so"), &libraries.join("libwheel.so"));
    fs::write(libraries.join("driver.icd"), "libwheel.so\n").expect("written");
    let source = sandbox.write("kernel.cl", SOURCE);
    let home = format!("PYOPENCL_HOME={}", text(place.path().join("pyopencl")));
    // In the wheel, the RPATH of the module that loads the loader.
    let path = format!("LD_LIBRARY_PATH={}", text(libraries.clone()));
    let run = || {
        let mut command = sandbox.command(Way::Cached, sandbox.installed());
        command
            .args(["run", "--bake", "env", &home, &path])
            .arg(example("client"))
            .args(["run", "--kernel", "f", "--source"])
            .arg(&source)
            .env("CLIENT_LOADER", &wheel.path)
            .env("CLIENT_PLATFORM", "Stub")
            .env("OCL_ICD_VENDORS", sandbox.path("none"))
            .env("OCLCACHE_VENDORS", "")
            .env("OCLCACHE_RECORD", "bake");
        sandbox.run(&mut command).ok()
    };
    run();
    let said = run().stderr;
    assert_eq!(
        (sandbox.stat("hits"), sandbox.stat("misses")),
        (1, 1),
        "{said}"
    );
}

/// Builds and runs one kernel through Debian's loader, called by ctypes, and one through PyOpenCL, in one process.
const TWO_LOADERS: &str = r#"
import ctypes, sys
import numpy, pyopencl
SOURCE = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 7; }"
P, U, S = ctypes.c_void_p, ctypes.c_uint, ctypes.c_size_t
def debian():
    cl = ctypes.CDLL("libOpenCL.so.1")
    for name in ("clCreateContext", "clCreateProgramWithSource", "clCreateKernel"):
        getattr(cl, name).restype = P
    platforms, device, code = (P * 16)(), P(), ctypes.c_int()
    count = U()
    cl.clGetPlatformIDs(16, platforms, ctypes.byref(count))
    print("Debian's loader:", count.value, "platforms")
    assert cl.clGetDeviceIDs(P(platforms[0]), ctypes.c_ulong(0xffffffff), 1, ctypes.byref(device), None) == 0
    context = P(cl.clCreateContext(None, 1, ctypes.byref(device), None, None, ctypes.byref(code)))
    lines = (ctypes.c_char_p * 1)(SOURCE.encode())
    program = P(cl.clCreateProgramWithSource(context, 1, lines, None, ctypes.byref(code)))
    print("build", cl.clBuildProgram(program, 0, None, b"-DWHO=1", None, None))
    kernel = cl.clCreateKernel(program, b"f", ctypes.byref(code))
    print("kernel", code.value)
def wheel():
    platforms = pyopencl.get_platforms()
    print("PyOpenCL's loader:", len(platforms), "platforms")
    context = pyopencl.Context(platforms[0].get_devices()[:1])
    program = pyopencl.Program(context, SOURCE).build("-DWHO=2")
    print("kernels", [kernel.function_name for kernel in program.all_kernels()])
for each in (debian, wheel) if sys.argv[1] == "debian" else (wheel, debian):
    each()
"#;

#[test]
fn two_loaders_in_one_process_both_list_the_platforms_and_hit() {
    if given("OCLCACHE_TEST_PYTHON").is_none() {
        skipped("two loaders in one process (OCLCACHE_TEST_PYTHON is not set)");
        return;
    }
    for driver in [Driver::Stub, Driver::Pocl] {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        fs::create_dir(sandbox.path("beside")).expect("made");
        register(&sandbox, "beside/spy.icd", example("libspy.so"));
        register(&sandbox, "beside/oclcache.icd", library());
        for first in ["debian", "wheel"] {
            let run = |way, directory: Option<&str>| {
                let mut command = sandbox.command(way, python());
                command.args(["-c", TWO_LOADERS, first]);
                command.env("PYOPENCL_NO_CACHE", "1");
                if let Some(directory) = directory {
                    command.env("OCL_ICD_VENDORS", sandbox.path(directory));
                }
                sandbox.run(&mut command).ok()
            };
            let bare = run(Way::Bare, None);
            assert_eq!(bare.source_builds(), 2);
            let _ = fs::remove_dir_all(sandbox.path("cache"));
            run(Way::Cached, None);
            for directory in [None, Some("beside")] {
                let warm = run(Way::Cached, directory);
                let log = warm.stderr.as_str();
                assert_eq!(warm.stdout, bare.stdout, "{driver:?}, log:\n{log}");
                assert_eq!(warm.source_builds(), 0, "{driver:?}, {first}, log:\n{log}");
            }
        }
    }
}
