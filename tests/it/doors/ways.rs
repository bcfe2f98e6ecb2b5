//! Every way in with every loader: the application sees what it sees bare, and its second process compiles nothing.

use std::fs;
use std::path::PathBuf;

use super::{Loader, Name, SOURCE, loaders, register, text};
use crate::support::{self, Driver, Ran, Sandbox, example, library, some_of};

/// Drivers that execute what they compile.
const REAL: [Driver; 3] = [Driver::Pocl, Driver::Intel, Driver::Rusticl];

/// How a program comes to the driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Bare,
    /// We are registered alone, and report the drivers' platforms.
    Icd,
    /// We are registered beside the drivers.
    Beside,
    /// A layer of the loader.
    Layer,
    IcdAndLayer,
    BesideAndLayer,
}

impl Way {
    pub const CACHED: [Way; 5] = [
        Way::Icd,
        Way::Beside,
        Way::Layer,
        Way::IcdAndLayer,
        Way::BesideAndLayer,
    ];

    fn is_layer(self) -> bool {
        matches!(self, Way::Layer | Way::IcdAndLayer | Way::BesideAndLayer)
    }
}

/// A sandbox with a driver's library.
pub struct Setup {
    pub sandbox: Sandbox,
    source: PathBuf,
}

impl Setup {
    /// `driver` is what stands in its `.icd` file.
    pub fn new(sandbox: Sandbox, driver: &str) -> Setup {
        for directory in ["driver", "beside"] {
            fs::create_dir(sandbox.path(directory)).expect("made");
            register(&sandbox, &format!("{directory}/driver.icd"), driver);
        }
        register(&sandbox, "beside/oclcache.icd", library());
        let source = sandbox.write("kernel.cl", SOURCE);
        Setup { sandbox, source }
    }

    /// On the stub, with these variables.
    pub fn stub(variables: &[(&str, &str)]) -> Setup {
        let mut sandbox = Sandbox::stub();
        for (name, value) in variables {
            sandbox.set(name, value);
        }
        Setup::new(sandbox, &Driver::Stub.library().expect("the stub"))
    }

    /// Where the loader finds drivers and layers on this way.
    pub fn variables(&self, way: Way) -> Vec<(&'static str, PathBuf)> {
        let path = |name| self.sandbox.path(name);
        let directory = match way {
            Way::Bare | Way::Layer => "driver",
            Way::Icd | Way::IcdAndLayer => "oclcache",
            Way::Beside | Way::BesideAndLayer => "beside",
        };
        let mut variables = vec![("OCL_ICD_VENDORS", path(directory))];
        if directory == "oclcache" {
            variables.push(("OCLCACHE_VENDORS", path("driver")));
        }
        if way.is_layer() {
            variables.push(("OPENCL_LAYERS", library()));
        }
        variables
    }

    /// Builds and runs one kernel.
    pub fn run(&self, loader: &Loader, way: Way, more: &[(&str, &str)]) -> Ran {
        let source = self.source.to_str().expect("UTF-8");
        let arguments = ["run", "--kernel", "f", "--source", source];
        self.client(loader, way, more, &arguments)
    }

    /// A section of the client.
    pub fn client(
        &self,
        loader: &Loader,
        way: Way,
        more: &[(&str, &str)],
        section: &[&str],
    ) -> Ran {
        let mut command = self
            .sandbox
            .command(support::Way::Cached, example("client"));
        command
            .args(section)
            .env_remove("OCLCACHE_VENDORS")
            .envs(self.variables(way))
            .env("CLIENT_LOADER", &loader.path)
            .env("LOADER_LOG", self.sandbox.path("loader.log"))
            .envs(loader.variables())
            .envs(more.iter().copied());
        self.sandbox.run(&mut command).ok()
    }

    /// As a program that shows nothing of us but that its second run compiles nothing, as `compiled` counts.
    #[track_caller]
    pub fn is_cached(
        &self,
        loader: &Loader,
        way: Way,
        more: &[(&str, &str)],
        compiled: &dyn Fn(&Ran) -> usize,
    ) {
        let bare = self.run(loader, Way::Bare, more);
        assert!(bare.stdout.contains("run: result ["), "{}", bare.stdout);
        compiled(&bare);
        let _ = fs::remove_dir_all(self.sandbox.path("cache"));
        for builds in [1, 0] {
            let ran = self.run(loader, way, more);
            let log = &ran.stderr;
            assert_eq!(ran.stdout, bare.stdout, "{way:?}, {loader:?}, log:\n{log}");
            assert_eq!(compiled(&ran), builds, "{way:?}, {loader:?}, log:\n{log}");
        }
        let counted = ["misses", "hits", "bypassed", "failed"].map(|name| self.sandbox.stat(name));
        assert_eq!(counted, [1, 1, 0, 0], "{way:?}, {loader:?}: counted once");
    }

    /// The stub's own log tells what it compiled since it was asked last.
    pub fn compilations(&self) -> usize {
        let log = self.sandbox.path("stub.log");
        let count = self.sandbox.compilations();
        let _ = fs::remove_file(log);
        count
    }
}

#[test]
fn each_way_through_each_loader_is_cached_on_a_driver_of_icd_1() {
    let setup = Setup::stub(&[]);
    for loader in loaders() {
        for way in Way::CACHED {
            setup.is_cached(&loader, way, &[], &|_| setup.compilations());
        }
    }
}

#[test]
fn each_way_through_each_loader_is_cached_on_a_driver_of_icd_2() {
    let setup = Setup::stub(&[("STUB_ICD2", "1")]);
    for loader in loaders() {
        for way in Way::CACHED {
            setup.is_cached(&loader, way, &[], &|_| setup.compilations());
        }
    }
}

/// Beside drivers of ICD 1.0, one of ICD 2.0: the loader asks the library once, and each is called as it wants.
#[test]
fn drivers_of_both_kinds_behind_us_are_all_listed_and_cached() {
    let Some(name) = Driver::Pocl.library() else {
        return;
    };
    let setup = Setup::stub(&[("STUB_ICD2", "1")]);
    register(&setup.sandbox, "driver/pocl.icd", &name);
    for loader in loaders() {
        let stub = [("CLIENT_PLATFORM", "Stub")];
        setup.is_cached(&loader, Way::Icd, &stub, &|_| setup.compilations());
        let pocl = [("CLIENT_PLATFORM", "Portable")];
        let bare = setup.run(&loader, Way::Bare, &pocl);
        for _ in 0..2 {
            let ran = setup.run(&loader, Way::Icd, &pocl);
            assert_eq!(ran.stdout, bare.stdout, "{loader:?}, log:\n{}", ran.stderr);
        }
        let counted = ["misses", "hits"].map(|name| setup.sandbox.stat(name));
        assert_eq!(counted, [2, 2], "{loader:?}");
    }
}

#[test]
fn real_drivers_are_cached_through_the_layer_and_through_us_alone() {
    for driver in some_of(&REAL) {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let setup = Setup::new(sandbox, &text(example("libspy.so")));
        for loader in loaders() {
            for way in [Way::Icd, Way::Layer, Way::IcdAndLayer] {
                setup.is_cached(&loader, way, &[], &Ran::source_builds);
            }
        }
    }
}

#[test]
fn what_real_drivers_show_is_the_same_through_the_layer() {
    for driver in some_of(&REAL) {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let setup = Setup::new(sandbox, &text(example("libspy.so")));
        let debian = &loaders()[0];
        for section in ["facts", "lifetime"] {
            let bare = setup.client(debian, Way::Bare, &[], &[section]);
            for _ in 0..2 {
                let ran = setup.client(debian, Way::Layer, &[], &[section]);
                assert_eq!(ran.stdout, bare.stdout, "{driver:?}, log:\n{}", ran.stderr);
            }
        }
        assert!(setup.sandbox.stat("hits") > 0, "{driver:?}");
    }
}

/// What is learnt on one way is found on the other: the loader is no part of the key.
#[test]
fn an_entry_that_came_in_through_one_door_is_found_through_the_others() {
    for driver in [Driver::Stub, Driver::Pocl] {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let setup = Setup::new(sandbox, &text(example("libspy.so")));
        let mut builds = Vec::new();
        // Where Khronos' loader finds its libraries PoCL finds one of another version, which it needs as well.
        let variables: Vec<_> = loaders().iter().flat_map(Loader::variables).collect();
        let same: Vec<_> = variables
            .iter()
            .map(|(name, value)| (*name, value.to_str().expect("UTF-8")))
            .collect();
        for loader in loaders() {
            let ran = Way::CACHED.map(|way| setup.run(&loader, way, &same).source_builds());
            builds.push(ran.iter().sum::<usize>());
        }
        assert_eq!(builds[0], 1, "{driver:?}");
        // A loader that brings mathematics of its own (Intel's needs libimf) has them answer for PoCL's libraries as well.
        let others = builds[1..].iter().all(|builds| *builds <= 1);
        let answers_alike = driver == Driver::Stub && builds.iter().sum::<usize>() == 1;
        assert!(
            others && (driver != Driver::Stub || answers_alike),
            "{driver:?} {builds:?}"
        );
    }
}

#[test]
fn a_layer_that_is_given_a_table_of_another_length_works() {
    let setup = Setup::stub(&[]);
    let own = &loaders()[1];
    for entries in ["108", "149", "150", "160"] {
        let more = [("LOADER_ENTRIES", entries)];
        setup.is_cached(own, Way::Layer, &more, &|_| setup.compilations());
    }
}

#[test]
fn a_disabled_layer_does_nothing() {
    let setup = Setup::stub(&[]);
    for loader in loaders() {
        let bare = setup.run(&loader, Way::Bare, &[]);
        setup.compilations();
        for _ in 0..2 {
            let ran = setup.run(&loader, Way::Layer, &[("OCLCACHE_DISABLE", "1")]);
            assert_eq!(ran.stdout, bare.stdout, "{loader:?}");
            assert_eq!(setup.compilations(), 1, "{loader:?}");
        }
        assert!(!setup.sandbox.path("cache").exists());
    }
}

/// All that the API shows, and what is compiled for it, is the same through two doors at once as through one.
#[test]
fn a_call_that_comes_by_twice_is_served_once() {
    let loaders = loaders();
    for (icd2, loader) in [("0", &loaders[0]), ("1", &loaders[1])] {
        let setup = Setup::stub(&[("STUB_ICD2", icd2)]);
        for section in [
            &["facts"][..],
            &["lifetime"],
            &["rebuild"],
            &["failing"],
            &["callback"],
            &["compilelink"],
            &["two-programs"],
        ] {
            let bare = setup.client(loader, Way::Bare, &[], section);
            let twice = |way| {
                let _ = fs::remove_dir_all(setup.sandbox.path("cache"));
                setup.compilations();
                [(); 2].map(|()| {
                    let ran = setup.client(loader, way, &[], section);
                    let log = &ran.stderr;
                    assert_eq!(ran.stdout, bare.stdout, "{section:?}, {way:?}, log:\n{log}");
                    let counted = ["misses", "hits", "bypassed", "failed"];
                    (
                        setup.compilations(),
                        counted.map(|name| setup.sandbox.stat(name)),
                    )
                })
            };
            let once = twice(Way::Icd);
            for way in [Way::Layer, Way::IcdAndLayer, Way::BesideAndLayer] {
                assert_eq!(twice(way), once, "{section:?}, {way:?}, {loader:?}");
            }
        }
    }
}

/// Threads whose first programs all come before the driver is known.
#[test]
fn threads_that_all_begin_through_a_layer_are_served() {
    let setup = Setup::stub(&[]);
    let section = ["threads", "8", "6"];
    for loader in loaders() {
        let bare = setup.client(&loader, Way::Bare, &[], &section);
        for builds in [true, false] {
            setup.compilations();
            let ran = setup.client(&loader, Way::Layer, &[], &section);
            assert_eq!(ran.stdout, bare.stdout, "{loader:?}, log:\n{}", ran.stderr);
            assert_eq!(setup.compilations() > 0, builds, "{loader:?}");
        }
        let _ = fs::remove_dir_all(setup.sandbox.path("cache"));
    }
}

/// The loader asks the driver whose suffix ends the name. Beside the drivers it asks them past us, and ocl-icd reads memory there that
/// it has freed, as it does where any driver has no platform (measured on 2.3.1).
#[test]
fn a_function_of_an_extension_finds_a_served_program_built() {
    let Some(sandbox) = Sandbox::new(Driver::Intel) else {
        return;
    };
    let setup = Setup::new(sandbox, &text(example("libspy.so")));
    // The own loader has no such lookup.
    for loader in loaders().iter().filter(|loader| loader.name != Name::Own) {
        let bare = setup.client(loader, Way::Bare, &[], &["by-name"]);
        let found = "without: pointer: code 0 size 4 NULL false";
        assert!(bare.stdout.contains(found), "{}", bare.stdout);
        for way in [Way::Icd, Way::Layer, Way::IcdAndLayer] {
            for _ in 0..2 {
                let ran = setup.client(loader, way, &[], &["by-name"]);
                let log = &ran.stderr;
                assert_eq!(ran.stdout, bare.stdout, "{way:?}, {loader:?}, log:\n{log}");
            }
        }
    }
    assert!(setup.sandbox.stat("hits") > 0);
}
