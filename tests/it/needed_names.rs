//! Libraries that a driver needs by another name than their own: they are in the key like all others.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use crate::functions::compile;
use crate::support::{SOURCE, Sandbox, Way, example};

/// A driver that is the stub with one more library, which it needs by a name that is none of that library's.
struct NeedsByOtherName {
    directory: tempfile::TempDir,
    preloaded: Option<PathBuf>,
}

impl NeedsByOtherName {
    fn library(&self) -> PathBuf {
        self.directory.path().join("libneeded.so")
    }

    fn driver(&self) -> PathBuf {
        self.directory.path().join("libdriver.so")
    }

    /// Compiles the library with other content.
    fn make_library(&self, number: u32) -> Option<()> {
        let source = self.directory.path().join("needed.c");
        let content = format!("const int number_of_needed = {number};\n");
        std::fs::write(&source, content).expect("written");
        let made = self.directory.path().join("made.so");
        let options: &[&str] = match self.preloaded {
            Some(_) => &["-shared", "-fPIC", "-Wl,-soname,libown.so.1"],
            None => &["-shared", "-fPIC"],
        };
        compile(&made, &source, options)?;
        std::fs::rename(&made, self.library()).expect("replaced");
        Some(())
    }

    fn make_driver(&self, needed: &Path) -> Option<()> {
        let source = self.directory.path().join("driver.c");
        std::fs::write(&source, "int unused_of_driver;\n").expect("written");
        let run_path = format!("-Wl,-rpath,{}", self.directory.path().display());
        let [needed, stub] =
            [needed, &example("libstub_driver.so")].map(|path| path.display().to_string());
        let options = [
            "-shared",
            "-fPIC",
            "-Wl,--no-as-needed",
            &run_path,
            &needed,
            &stub,
        ];
        compile(&self.driver(), &source, &options)
    }

    /// Linked by its path, since it has no name of its own.
    fn by_path() -> Option<NeedsByOtherName> {
        let made = NeedsByOtherName {
            directory: tempfile::tempdir().expect("a temporary directory"),
            preloaded: None,
        };
        made.make_library(1)?;
        made.make_driver(&made.library())?;
        Some(made)
    }

    /// By a link, for which the dynamic linker takes what was loaded before under its own name.
    fn by_link() -> Option<NeedsByOtherName> {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let made = NeedsByOtherName {
            preloaded: Some(directory.path().join("libneeded.so")),
            directory,
        };
        let linked = made.directory.path().join("libother.so.1");
        let source = made.directory.path().join("other.c");
        std::fs::write(&source, "").expect("written");
        let name = ["-shared", "-fPIC", "-Wl,-soname,libother.so.1"];
        compile(&linked, &source, &name)?;
        made.make_driver(&linked)?;
        std::fs::remove_file(&linked).expect("removed");
        symlink("libneeded.so", &linked).expect("linked");
        made.make_library(1)?;
        Some(made)
    }
}

#[test]
fn a_library_that_is_needed_by_another_name_is_in_the_key() {
    for make in [NeedsByOtherName::by_path, NeedsByOtherName::by_link] {
        let Some(made) = make() else {
            return;
        };
        let mut sandbox = Sandbox::of_library(&made.driver().display().to_string());
        sandbox.set("OCLCACHE_VENDORS", made.driver());
        if let Some(library) = &made.preloaded {
            sandbox.set("LD_PRELOAD", library);
        }
        let source = sandbox.write("kernel.cl", SOURCE);
        let build = || {
            let mut command = sandbox.command(Way::Cached, example("client"));
            command
                .args(["run", "--kernel", "vadd", "--source"])
                .arg(&source);
            sandbox.run(&mut command).ok();
            ["misses", "hits"].map(|name| sandbox.stat(name))
        };
        assert_eq!([build(), build()], [[1, 0], [1, 1]], "{:?}", made.preloaded);
        made.make_library(2).expect("compiled before");
        assert_eq!(build(), [2, 1], "{:?}", made.preloaded);
    }
}

/// The dynamic linker opens no second library of a name, so the baker has the driver's own.
#[test]
fn a_program_with_another_library_of_the_drivers_is_told_that_no_baker_has_it() {
    let Some(made) = NeedsByOtherName::by_link() else {
        return;
    };
    let elsewhere = made.directory.path().join("elsewhere");
    std::fs::create_dir(&elsewhere).expect("made");
    made.make_library(2).expect("compiled before");
    std::fs::copy(made.library(), elsewhere.join("libother.so.1")).expect("copied");
    made.make_library(1).expect("compiled before");
    let mut sandbox = Sandbox::of_library(&made.driver().display().to_string());
    sandbox.set("OCLCACHE_VENDORS", made.driver());
    sandbox.set("OCLCACHE_RECORD", "bake");
    let source = sandbox.write("kernel.cl", SOURCE).display().to_string();
    let arguments = ["run", "--kernel", "vadd", "--source", &source];
    let counts = |sandbox: &Sandbox| {
        sandbox.client(Way::Cached, &arguments).ok();
        ["misses", "hits"].map(|name| sandbox.stat(name))
    };
    for misses in [1, 2] {
        sandbox.set("LD_LIBRARY_PATH", &elsewhere);
        assert_eq!(counts(&sandbox), [misses, 0]);
        sandbox.variables.remove("LD_LIBRARY_PATH");
        let baked = sandbox.oclcache(&["bake"]).ok().stderr;
        let why = "the driver had another library in the program than it has now (libown.so.1)";
        assert!(baked.contains(why), "{baked}");
        let json = sandbox.oclcache(&["explain", "--json", "--last", "1"]);
        let json = json.ok().stdout;
        assert!(json.contains("\"not_stored\": \"other_library\""), "{json}");
    }
    // What a baker has learned of the recipe itself is not forgotten for that.
    let attempts = std::fs::read_dir(sandbox.path("cache/v1/baking")).expect("listed");
    let attempts: Vec<_> = attempts.map(|one| one.expect("read").path()).collect();
    let crashed = "1 the driver crashed (signal 6)\n";
    std::fs::write(&attempts[0], crashed).expect("written");
    sandbox.oclcache(&["bake"]).ok();
    let left = std::fs::read_to_string(&attempts[0]).expect("read");
    assert_eq!((attempts.len(), left.as_str()), (1, crashed));
    // Whatever others have tried, a baker that has the program's library stores it.
    sandbox.set("LD_LIBRARY_PATH", &elsewhere);
    let baked = sandbox.oclcache(&["bake"]).ok().stderr;
    assert!(baked.contains("1 baked"), "{baked}");
    assert_eq!(counts(&sandbox), [2, 1]);
    sandbox.oclcache(&["clear"]).ok();
    sandbox.set("OCLCACHE_RECORD", "inline");
    assert_eq!([counts(&sandbox), counts(&sandbox)], [[3, 1], [3, 2]]);
}
