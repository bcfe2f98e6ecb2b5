//! `oclcache doctor`: each planted fault is found, and what it says mends it.

mod arguments;
mod faults;
mod installations;
mod python;
mod shared;
mod single;

use std::path::PathBuf;
use std::process::{Command, Output};

use serde_json::Value;

use crate::hostile_texts::{HOSTILE, assert_plain};
use crate::snapshots::assert_shown;
use crate::support::{Ran, Sandbox, Way, copy_program, example, library};

/// A machine on which all is well: the stub is registered, and we beside it.
pub struct World {
    pub sandbox: Sandbox,
    /// What follows the verb.
    pub arguments: Vec<String>,
}

impl World {
    pub fn new() -> World {
        let mut sandbox = Sandbox::stub();
        std::fs::create_dir_all(sandbox.path("drivers")).expect("made");
        std::fs::create_dir_all(sandbox.path("bin")).expect("made");
        let world = |name: &str| sandbox.path(name);
        copy_program(env!("CARGO_BIN_EXE_oclcache"), &world("bin/oclcache"));
        let beside = world("bin/liboclcache.so");
        std::os::unix::fs::symlink(library(), &beside).expect("linked");
        std::fs::write(world("bin/sudo"), "#!/bin/sh\nexec \"$@\"\n").expect("written");
        let run = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(world("bin/sudo"), run).expect("changed");
        let path = std::env::var_os("PATH").unwrap_or_default();
        let mut path: Vec<PathBuf> = std::env::split_paths(&path).collect();
        path.insert(0, world("bin"));
        let path = std::env::join_paths(path).expect("a path");
        let (vendors, cache) = (world("drivers"), world("cache"));
        sandbox.set("PATH", path);
        sandbox.set("OCL_ICD_VENDORS", vendors);
        sandbox.set("OCLCACHE_DIR", cache);
        let world = World {
            sandbox,
            arguments: Vec::new(),
        };
        world.register("stub", &example("libstub_driver.so").display().to_string());
        world.register("oclcache", &beside.display().to_string());
        world
    }

    /// Registers a driver.
    pub fn register(&self, name: &str, library: &str) -> PathBuf {
        self.sandbox
            .write(&format!("drivers/{name}.icd"), format!("{library}\n"))
    }

    /// A library, or program, of this C source.
    pub fn compile(&self, name: &str, source: &str, options: &[&str]) -> PathBuf {
        let file = self.sandbox.write(&format!("{name}.c"), source);
        let built = self.sandbox.path(name);
        let mut compile = Command::new("cc");
        let compile = compile.args(options).arg("-o").arg(&built).arg(file);
        assert!(compile.status().expect("cc").success(), "{name}");
        built
    }

    /// The doctor, in a shell that does something before.
    pub fn shell(&self, before: &str, arguments: &[&str]) -> Ran {
        let mut command = self.sandbox.command(Way::Bare, "sh");
        for name in ["OCLCACHE_RECORD", "OCLCACHE_AUTOBAKE"] {
            command.env_remove(name);
        }
        command.current_dir(self.sandbox.path(""));
        let script = format!("{before}\nexec oclcache doctor \"$@\"");
        command
            .args(["-c", &script, "sh"])
            .args(arguments)
            .args(&self.arguments);
        self.sandbox.run(&mut command)
    }

    /// What it finds, if nothing is built.
    pub fn findings(&self, before: &str) -> Vec<Value> {
        let ran = self.shell(before, &["--json", "--no-build"]);
        let json: Value = serde_json::from_str(&ran.stdout)
            .unwrap_or_else(|_| panic!("{} {}", ran.stdout, ran.stderr));
        let findings = json["findings"].as_array().expect("a list").clone();
        let is_wrong = findings.iter().any(|found| found["state"] == "wrong");
        assert_eq!(ran.code, Some(i32::from(is_wrong)), "{}", ran.stdout);
        assert_eq!(json["well"], !is_wrong);
        findings
    }
}

/// The library under test as it is shown.
pub fn real_library() -> String {
    let real = library().canonicalize().expect("the library is built");
    real.display().to_string()
}

/// What differs from machine to machine.
pub const VARYING: [&str; 5] = ["loader", "baker", "directory", "room", "python"];

/// Without what differs from machine to machine.
fn without(shown: &str, abouts: &[&str]) -> String {
    let mut is_left_out = false;
    let lines = shown.lines().filter(|line| {
        if let Some(about) = line
            .split_whitespace()
            .nth(1)
            .filter(|_| !line.contains("-> "))
        {
            is_left_out = abouts.contains(&about);
        }
        !is_left_out
    });
    let shown: String = lines.map(|line| format!("{line}\n")).collect();
    shown.replace(&real_library(), "[LIBRARY]")
}

#[test]
fn where_all_is_well_it_says_so_builds_and_leaves_nothing_behind() {
    let world = World::new();
    let before = crate::support::tree(&world.sandbox.path(""));
    let ran = world.shell("", &[]).ok();
    let mut after = crate::support::tree(&world.sandbox.path(""));
    // The stub's and the tests' own logs.
    after.retain(|path, _| {
        before.contains_key(path) || path.extension().is_none_or(|end| end != "log")
    });
    let changed: Vec<_> = after
        .keys()
        .filter(|path| !before.contains_key(*path))
        .collect();
    assert!(changed.is_empty(), "{changed:?}");
    let shown = without(&ran.stdout, &VARYING);
    assert_shown(&world.sandbox, "doctor", &shown);
    assert!(
        ran.stdout.contains(" cold, ") && !ran.stdout.contains("wrong"),
        "{}",
        ran.stdout
    );
    // One of the shell's own way, a cold one, and four without us, which look for a cache of the driver's own. The warm one compiles
    // nothing.
    assert_eq!(world.sandbox.compilations(), 6, "{}", ran.stdout);
}

#[test]
fn a_driver_that_cannot_build_is_blamed_for_it_and_one_whose_binaries_are_useless_is_named() {
    let mut world = World::new();
    let word = world.sandbox.write("word", "oclcache_doctor");
    world.sandbox.set("STUB_CRASH", &word);
    let ran = world.shell("", &[]);
    assert_eq!(ran.code, Some(1), "{}", ran.stdout);
    let words = "cannot build the program of this check, even without oclcache: the driver crashed (signal 6)";
    assert!(ran.stdout.contains(words), "{}", ran.stdout);
    let shown = without(&ran.stdout, &VARYING);
    assert_shown(&world.sandbox, "doctor-crash", &shown);
    world.sandbox.variables.remove("STUB_CRASH");
    world.sandbox.set("STUB_REFUSE_BINARIES", "1");
    let ran = world.shell("", &[]).ok();
    assert!(
        ran.stdout.contains("the second build was not a hit"),
        "{}",
        ran.stdout
    );
}

#[test]
fn as_json_it_says_the_same() {
    let mut world = World::new();
    world.sandbox.set("OCLCACHE_DISABLE", "1");
    let mut findings = world.findings("");
    findings.retain(|found| !VARYING.contains(&found["about"].as_str().expect("a text")));
    let shown = format!("{:#}", Value::from(findings));
    let shown = shown.replace(&real_library(), "[LIBRARY]");
    assert_shown(&world.sandbox, "doctor-json", &shown);
}

#[test]
fn who_stops_it_waits_for_no_driver_and_finds_nothing_left() {
    let mut world = World::new();
    let temporary = world.sandbox.path("tmp");
    std::fs::create_dir(&temporary).expect("made");
    world.sandbox.set("TMPDIR", &temporary);
    let hung = world.sandbox.path("hung");
    world.sandbox.set("HUNG", &hung);
    let source = "#include <stdio.h>\n#include <stdlib.h>\n#include <unistd.h>\n\
        __attribute__((constructor)) static void hang(void) {\n\
        FILE *file = fopen(getenv(\"HUNG\"), \"w\"); fprintf(file, \"%d\\n\", getpid()); fclose(file); for (;;) pause(); }\n";
    let library = world.compile("libhang.so", source, &["-shared", "-fPIC"]);
    world.register("hang", &library.display().to_string());
    let mut doctor = world
        .sandbox
        .command(Way::Bare, world.sandbox.path("bin/oclcache"));
    doctor
        .arg("doctor")
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped());
    let mut doctor = doctor.spawn().expect("it runs");
    let child = loop {
        let text = std::fs::read_to_string(&hung).unwrap_or_default();
        if let Some(number) = text.strip_suffix('\n') {
            break number.to_owned();
        }
        assert!(
            doctor.try_wait().expect("its state").is_none(),
            "it has ended"
        );
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    let pid = rustix::process::Pid::from_child(&doctor);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("sent");
    let output = doctor.wait_with_output().expect("its end");
    let signal = std::os::unix::process::ExitStatusExt::signal(&output.status);
    assert_eq!((signal, output.stdout.len()), (Some(2), 0));
    assert_eq!(output.stderr, b"oclcache: stopped\n");
    assert_eq!(
        std::fs::read_dir(&temporary).expect("a directory").count(),
        0
    );
    let state = std::fs::read_to_string(format!("/proc/{child}/stat")).unwrap_or_default();
    assert!(!state.contains("(oclcache) S"), "{state}");
}

#[test]
fn only_the_drivers_that_are_asked_for_are_told_of() {
    let world = World::new();
    let crash = "__attribute__((constructor)) static void end(void) { __builtin_trap(); }\n";
    let crash = world.compile("libcrash.so", crash, &["-shared", "-fPIC"]);
    world.register("crash", &crash.display().to_string());
    let about = |arguments: &[&str]| {
        let ran = world.shell("", arguments);
        let lines = ran.stdout.lines().filter(|line| line.contains("  driver "));
        lines.map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(about(&["--no-build"]).len(), 2);
    let one = about(&["--no-build", "--driver", "Stub"]);
    assert!(one.len() == 1 && one[0].contains("stub.icd"), "{one:?}");
    let none = about(&["--no-build", "--driver", "nvidia"]);
    assert!(
        none.len() == 1 && none[0].contains("no driver of that name"),
        "{none:?}"
    );
    let none = world
        .shell("", &["--no-build", "--driver", "nvidia"])
        .stdout;
    let words = "-> there are these drivers: unknown\n";
    assert!(none.contains(words), "{none}");
}

#[test]
fn names_that_were_chosen_to_do_harm_harm_no_output() {
    use std::os::unix::ffi::OsStrExt;
    let world = World::new();
    for (number, name) in HOSTILE.iter().enumerate() {
        let name = [name, b".icd".as_slice()].concat();
        let file = world
            .sandbox
            .path("drivers")
            .join(std::ffi::OsStr::from_bytes(&name));
        let content: &[u8] = if number % 4 == 0 {
            b""
        } else {
            HOSTILE[number]
        };
        std::fs::write(file, content).expect("written");
    }
    let mut plain: Command = world
        .sandbox
        .command(Way::Bare, world.sandbox.path("bin/oclcache"));
    let hostile = std::ffi::OsStr::from_bytes(HOSTILE[2]);
    plain.env("OCLCACHE_LOG_FILE", hostile);
    plain.args(["doctor", "--no-build"]);
    let mut json = world
        .sandbox
        .command(Way::Bare, world.sandbox.path("bin/oclcache"));
    json.env("OCLCACHE_LOG_FILE", hostile);
    json.args(["doctor", "--no-build", "--json"]).arg(hostile);
    let Output { stdout, stderr, .. } = plain.arg(hostile).output().expect("it runs");
    assert_plain(&stdout);
    assert_plain(&stderr);
    let output = json.output().expect("it runs");
    assert_plain(&output.stdout);
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let findings = json["findings"].as_array().expect("a list");
    let broken = findings.iter().filter(|found| found["about"] == "driver");
    assert_eq!(broken.count(), HOSTILE.len() + 1);
    assert!(!world.sandbox.path("pwned").exists());
}
