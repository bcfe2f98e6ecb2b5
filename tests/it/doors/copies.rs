//! Several of everything in one process: copies of the library, names of one copy, loaders, and loaders that come and go.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use super::ways::{Setup, Way};
use super::{LIST, Loader, Name, loaders, register, text};
use crate::support::{self, Ran, copy_program, library, python};

/// A setup on the stub with a copy of the library at another path.
fn with_copy(variables: &[(&str, &str)]) -> Setup {
    let setup = Setup::stub(variables);
    copy_program(library(), &setup.sandbox.path("libcopy.so"));
    setup
}

/// Runs a script with a loader's variables, and these.
fn script(setup: &Setup, script: &str, loaders: &[&Loader], more: &[(&str, &str)]) -> Ran {
    let mut command = setup.sandbox.command(support::Way::Cached, python());
    command.env_remove("OCLCACHE_VENDORS").arg("-c").arg(script);
    command.args(loaders.iter().map(|loader| &loader.path));
    for loader in loaders {
        command.envs(loader.variables());
    }
    let ran = setup.sandbox.run(command.envs(more.iter().copied()));
    ran.ok()
}

#[test]
fn a_library_that_is_registered_twice_lists_each_platform_once_and_serves_each_build_once() {
    let setup = with_copy(&[]);
    let path = |name: &str| text(setup.sandbox.path(name));
    symlink(library(), path("liblink.so")).expect("linked");
    let driver = path("driver");
    for second in [text(library()), path("liblink.so"), path("libcopy.so")] {
        let _ = fs::remove_dir_all(path("twice"));
        fs::create_dir(path("twice")).expect("made");
        register(&setup.sandbox, "twice/first.icd", library());
        register(&setup.sandbox, "twice/second.icd", &second);
        let twice = path("twice");
        let more = [
            ("OCL_ICD_VENDORS", twice.as_str()),
            ("OCLCACHE_VENDORS", driver.as_str()),
        ];
        for loader in loaders() {
            let bare = script(&setup, LIST, &[&loader], &[("OCL_ICD_VENDORS", &driver)]);
            let ours = script(&setup, LIST, &[&loader], &more);
            let log = &ours.stderr;
            assert_eq!(
                ours.stdout, bare.stdout,
                "{second}, {loader:?}, log:\n{log}"
            );
            let _ = fs::remove_dir_all(path("cache"));
            setup.compilations();
            for builds in [1, 0] {
                let ran = setup.run(&loader, Way::Icd, &more);
                let log = &ran.stderr;
                assert_eq!(
                    setup.compilations(),
                    builds,
                    "{second}, {loader:?}, log:\n{log}"
                );
            }
            let counted = ["misses", "hits"].map(|name| setup.sandbox.stat(name));
            assert_eq!(counted, [1, 1], "{second}, {loader:?}");
        }
    }
}

#[test]
fn a_copy_as_a_layer_over_another_serves_each_build_once() {
    for icd2 in ["0", "1"] {
        let setup = with_copy(&[("STUB_ICD2", icd2)]);
        let copy = text(setup.sandbox.path("libcopy.so"));
        let both = format!("{copy}:{}", text(library()));
        for loader in loaders() {
            for (way, layers) in [
                (Way::IcdAndLayer, &copy),
                (Way::BesideAndLayer, &copy),
                (Way::Layer, &both),
                (Way::IcdAndLayer, &both),
            ] {
                // `run` is given more variables than the way has, and they win.
                let layers = [("OPENCL_LAYERS", layers.as_str())];
                setup.is_cached(&loader, way, &layers, &|_| setup.compilations());
            }
        }
    }
}

/// Builds and runs one program through each loader that is named, each with variables of its own.
const EACH: &str = r#"
import _ctypes, ctypes, json, os, sys
SOURCE = b"__kernel void f(__global uint *out) { out[get_global_id(0)] = 7; }"
P, U = ctypes.c_void_p, ctypes.c_uint
for number, path in enumerate(sys.argv[1:]):
    for name, value in json.loads(os.environ["EACH"])[number].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    cl = ctypes.CDLL(path)
    for name in ("clCreateContext", "clCreateProgramWithSource", "clCreateKernel"):
        getattr(cl, name).restype = P
    platforms, device, code, count = (P * 16)(), P(), ctypes.c_int(), U()
    cl.clGetPlatformIDs(16, platforms, ctypes.byref(count))
    print("platforms", count.value)
    assert cl.clGetDeviceIDs(P(platforms[0]), ctypes.c_ulong(0xffffffff), 1, ctypes.byref(device), None) == 0
    context = P(cl.clCreateContext(None, 1, ctypes.byref(device), None, None, ctypes.byref(code)))
    lines = (ctypes.c_char_p * 1)(SOURCE)
    program = P(cl.clCreateProgramWithSource(context, 1, lines, None, ctypes.byref(code)))
    unload = "UNLOAD" in os.environ
    print("build", cl.clBuildProgram(program, 0, None, b"-DWHO=%d" % (0 if unload else number), None, None))
    kernel = P(cl.clCreateKernel(program, b"f", ctypes.byref(code)))
    print("kernel", code.value)
    print("release", cl.clReleaseKernel(kernel), cl.clReleaseProgram(program), cl.clReleaseContext(context))
    if unload:
        _ctypes.dlclose(cl._handle)
        print("driver in memory:", "libstub_driver" in open("/proc/self/maps").read(), file=sys.stderr)
"#;

/// The variables of a way as JSON, with another library in our place.
fn variables(setup: &Setup, way: Way, us: &Path) -> serde_json::Value {
    let names = ["OCL_ICD_VENDORS", "OCLCACHE_VENDORS", "OPENCL_LAYERS"];
    let mut object: serde_json::Map<_, _> = names
        .iter()
        .map(|name| ((*name).to_owned(), serde_json::Value::Null))
        .collect();
    for (name, value) in setup.variables(way) {
        let value = match text(value) {
            value if value == text(library()) => text(us.to_owned()),
            value => value,
        };
        object.insert(name.to_owned(), value.into());
    }
    // The settings of a process are read once.
    let drivers = text(setup.sandbox.path("driver"));
    object.insert("OCLCACHE_VENDORS".to_owned(), drivers.into());
    object.into()
}

/// Each loader finds a library of its own, at the first door or at another: the one that works serves both.
#[test]
fn two_loaders_with_a_copy_each_both_list_the_platforms_and_hit() {
    for icd2 in ["0", "1"] {
        let setup = with_copy(&[("STUB_ICD2", icd2)]);
        let copy = setup.sandbox.path("libcopy.so");
        fs::create_dir(setup.sandbox.path("copy")).expect("made");
        register(&setup.sandbox, "copy/copy.icd", &copy);
        let loaders = loaders();
        for (first, second) in [(0, 1), (1, 0)] {
            let pair = [&loaders[first], &loaders[second]];
            let run = |ways: [Way; 2]| {
                let mut each = vec![
                    variables(&setup, ways[0], &library()),
                    variables(&setup, ways[1], &copy),
                ];
                if ways[1] == Way::Icd {
                    each[1]["OCL_ICD_VENDORS"] = text(setup.sandbox.path("copy")).into();
                }
                let each = serde_json::Value::from(each).to_string();
                script(&setup, EACH, &pair, &[("EACH", &each)])
            };
            let bare = run([Way::Bare, Way::Bare]);
            assert_eq!(setup.compilations(), 2, "{}", bare.stdout);
            for ways in [
                [Way::Icd, Way::Icd],
                [Way::Icd, Way::Layer],
                [Way::Layer, Way::Icd],
                [Way::Layer, Way::Layer],
            ] {
                let _ = fs::remove_dir_all(setup.sandbox.path("cache"));
                for builds in [2, 0] {
                    let ran = run(ways);
                    let log = &ran.stderr;
                    assert_eq!(ran.stdout, bare.stdout, "{ways:?}, {pair:?}, log:\n{log}");
                    assert_eq!(
                        setup.compilations(),
                        builds,
                        "{ways:?}, {pair:?}, log:\n{log}"
                    );
                }
                let counted = ["misses", "hits"].map(|name| setup.sandbox.stat(name));
                assert_eq!(counted, [2, 2], "{ways:?}, {pair:?}: counted once");
            }
        }
    }
}

/// A driver that may be unloaded is unloaded with the loader unless something holds it. It compiles for the first loader only.
#[test]
fn a_loader_that_is_unloaded_and_loaded_again_has_the_platforms_again() {
    for (unloadable, icd2) in [("0", "0"), ("1", "0"), ("1", "1")] {
        let setup = Setup::stub(&[("STUB_UNLOADABLE", unloadable), ("STUB_ICD2", icd2)]);
        for loader in loaders() {
            let run = |way| {
                let each = vec![variables(&setup, way, &library()); 3];
                let each = serde_json::Value::from(each).to_string();
                let more = [("EACH", each.as_str()), ("UNLOAD", "1")];
                let ran = script(&setup, EACH, &[&loader; 3], &more);
                (setup.compilations(), ran.stdout, ran.stderr)
            };
            let (_, bare, told) = run(Way::Bare);
            assert_eq!(bare.matches("platforms 1").count(), 3, "{loader:?}");
            let unloads = loader.name == Name::Own && unloadable == "1";
            let gone = told.matches("driver in memory: False").count();
            assert!(!unloads || gone == 3, "the loader does not unload it");
            for way in [Way::Icd, Way::Layer, Way::IcdAndLayer] {
                let _ = fs::remove_dir_all(setup.sandbox.path("cache"));
                let (compiled, stdout, log) = run(way);
                assert_eq!(
                    (compiled, &stdout),
                    (1, &bare),
                    "{way:?}, {loader:?}:\n{log}"
                );
                let gone = log.contains("driver in memory: False");
                assert!(!gone, "{way:?}, {loader:?}");
            }
        }
    }
}

/// What loaders close, beside a driver or at their end, stays in memory: hooks in the driver's table are called afterwards.
#[test]
fn a_loader_that_closes_us_does_no_harm() {
    for (variable, icd2) in [("0", "0"), ("1", "0"), ("0", "1"), ("1", "1")] {
        let setup = Setup::stub(&[("STUB_UNLOADABLE", variable), ("STUB_ICD2", icd2)]);
        let log = setup.sandbox.path("loader.log");
        for loader in loaders().iter().filter(|loader| loader.knows_icd2()) {
            for way in Way::CACHED {
                let _ = fs::remove_file(&log);
                setup.is_cached(loader, way, &[], &|_| setup.compilations());
                if loader.name != Name::Own {
                    continue;
                }
                let log = fs::read_to_string(&log).expect("the loader's log");
                let has = |line: &str| log.lines().any(|each| each.starts_with(line));
                assert_eq!(has("unloaded"), variable == "1", "{way:?}:\n{log}");
                let layer = matches!(way, Way::Layer | Way::IcdAndLayer | Way::BesideAndLayer);
                assert_eq!(has("deinit 0"), layer, "{way:?}:\n{log}");
                let beside = matches!(way, Way::Beside | Way::BesideAndLayer);
                let closed = format!("closed {}", library().display());
                assert_eq!(has(&closed), beside, "{way:?}:\n{log}");
            }
        }
    }
}
