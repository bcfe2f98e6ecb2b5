//! The first build in an empty cache directory, which the driver makes while it is identified.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::files_opened::{has_strace, opened};
use crate::functions::compile;
use crate::support::{Driver, Ran, Sandbox, Way, copy_program, example};

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 5; }\n";
/// What the log says of such a build.
pub const FIRST: &str = "a first build";
/// A driver whose files are younger is identified first.
pub const SETTLED: Duration = Duration::from_millis(2500);

const FAR_TOO_LONG: Duration = Duration::from_secs(60);

fn builder(sandbox: &Sandbox) -> Command {
    let source = sandbox.write("kernel.cl", SOURCE);
    let mut command = sandbox.command(Way::Cached, example("client"));
    command
        .args(["run", "--kernel", "f", "--source"])
        .arg(source);
    command
}

/// The key of each build, with its outcome.
fn outcomes(log: &str) -> Vec<(String, String)> {
    let field = |line: &str, name: &str| {
        let (_, rest) = line.split_once(&format!("{name}=\""))?;
        Some(rest.split_once('"')?.0.to_owned())
    };
    let builds = log.lines().filter(|line| line.contains("outcome="));
    let builds = builds.filter_map(|line| Some((field(line, "outcome")?, field(line, "key")?)));
    builds.collect()
}

/// Whether there was one build, and a hit.
fn is_one_hit(log: &str) -> bool {
    matches!(&outcomes(log)[..], [(how, _)] if how == "hit")
}

#[test]
fn the_first_build_serves_the_next_process_and_has_the_key_that_it_would_have_later() {
    for driver in Driver::ALL {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        sandbox.set("OCLCACHE_LOG", "debug");
        let ran = [(); 3].map(|()| sandbox.run(&mut builder(&sandbox)).ok());
        let [first, second, _] = &ran;
        assert!(
            first.stderr.contains(FIRST),
            "{driver:?}:\n{}",
            first.stderr
        );
        assert!(!second.stderr.contains(FIRST), "{driver:?}");
        let logs: Vec<_> = ran.iter().map(|ran| outcomes(&ran.stderr)).collect();
        let [(how, key)] = &logs[0][..] else {
            panic!("{driver:?}: {logs:?}");
        };
        assert_eq!(how, "miss", "{driver:?}");
        let hit = vec![("hit".to_owned(), key.clone())];
        assert_eq!(
            logs[1..],
            [hit.clone(), hit],
            "{driver:?}, log:\n{}",
            first.stderr
        );
        assert_eq!(first.stdout, second.stdout, "{driver:?}");
    }
}

/// What the log says of a driver whose files were read beside a call that took long.
const EARLY: &str = "the driver's files were read meanwhile";
/// For a driver that takes so long, and no busy machine longer, its files are read.
const LONG_MS: &str = "3000";

/// A sandbox with a variable that is in the key, and one that is in no key.
fn sandbox_with_variables() -> Sandbox {
    let mut sandbox = Sandbox::stub();
    sandbox.set("OCLCACHE_LOG", "debug");
    sandbox.set("STUB_CODE", "1");
    sandbox.set("MYJOB_NUMBER", "17");
    std::thread::sleep(SETTLED);
    sandbox
}

/// Builds first where the calls with these variables take long, and checks that the driver's files were read once before, all of them.
fn build_after_long(sandbox: &mut Sandbox, variables: &[&str]) -> Ran {
    for variable in variables {
        sandbox.set(variable, LONG_MS);
    }
    let first = sandbox.run(&mut builder(sandbox)).ok();
    let log = &first.stderr;
    // On a busy machine a call that is not slow may be read beside as well, for some milliseconds.
    assert_eq!(log.matches("is_complete=true").count(), 1, "{log}");
    assert!(log.contains(FIRST), "{log}");
    // By the first build, which is told of them.
    assert!(!log.contains("names of variables were"), "{log}");
    first
}

#[test]
fn a_driver_that_takes_long_before_a_first_build_is_read_meanwhile_and_has_the_key_that_it_would_have_later()
 {
    for variable in ["STUB_DEVICES_MS", "STUB_CONTEXT_MS"] {
        let mut sandbox = sandbox_with_variables();
        let first = build_after_long(&mut sandbox, &[variable]);
        let second = sandbox.run(&mut builder(&sandbox)).ok();
        // Where nothing may be looked up, nothing is read early.
        let mut without = builder(&sandbox);
        without.env("OCLCACHE_DIR", sandbox.path("another"));
        without.env("OCLCACHE_RECACHE", "1");
        let without = sandbox.run(&mut without).ok();
        for ran in [&second, &without] {
            assert!(!ran.stderr.contains(EARLY), "{}", ran.stderr);
        }
        let ran = [&first, &second, &without].map(|ran| outcomes(&ran.stderr));
        let outcomes: Vec<_> = ran.iter().flatten().map(|(how, _)| how.as_str()).collect();
        assert_eq!(outcomes, ["miss", "hit", "miss"], "{}", first.stderr);
        assert!(ran.iter().all(|one| one[0].1 == ran[0][0].1), "{ran:?}");
    }
}

#[test]
fn a_driver_that_was_read_while_it_looked_for_devices_is_not_read_again_for_its_context() {
    let mut sandbox = sandbox_with_variables();
    build_after_long(&mut sandbox, &["STUB_DEVICES_MS", "STUB_CONTEXT_MS"]);
}

/// What is complete by then is kept, and nothing else.
#[test]
fn a_driver_whose_calls_end_before_all_is_read_has_the_key_that_it_would_have_later() {
    let mut sandbox = sandbox_with_variables();
    let mut keys = BTreeSet::new();
    for milliseconds in 9..20 {
        sandbox.set("STUB_DEVICES_MS", milliseconds.to_string());
        sandbox.set("STUB_CONTEXT_MS", milliseconds.to_string());
        sandbox.set(
            "OCLCACHE_DIR",
            sandbox.path(&format!("cache-{milliseconds}")),
        );
        let first = sandbox.run(&mut builder(&sandbox)).ok();
        let second = sandbox.run(&mut builder(&sandbox)).ok();
        assert!(is_one_hit(&second.stderr), "{}", second.stderr);
        let mut without = builder(&sandbox);
        without.env(
            "OCLCACHE_DIR",
            sandbox.path(&format!("other-{milliseconds}")),
        );
        without.env("OCLCACHE_RECACHE", "1");
        let without = sandbox.run(&mut without).ok();
        let of_all = [&first, &second, &without].map(|ran| outcomes(&ran.stderr)[0].1.clone());
        assert!(of_all.iter().all(|key| *key == of_all[0]), "{of_all:?}");
        keys.insert(of_all[0].clone());
    }
    // The variable is in the key.
    assert_eq!(keys.len(), 11);
}

#[test]
fn a_program_that_only_looks_for_devices_leaves_no_cache_directory() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("OCLCACHE_LOG", "debug");
    sandbox.set("STUB_DEVICES_MS", LONG_MS);
    sandbox.set("OCLCACHE_DIR", sandbox.path("unused"));
    let mut command = sandbox.command(Way::Cached, example("client"));
    // It ends when it has its devices.
    let ran = sandbox.run(command.args(["run", "--kernel", "f", "--source", "/nowhere"]));
    assert!(ran.stderr.contains(EARLY), "{}", ran.stderr);
    assert!(!sandbox.path("unused").exists());
}

#[test]
fn where_nothing_can_be_stored_nothing_is_read_early() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("OCLCACHE_LOG", "debug");
    sandbox.set("STUB_DEVICES_MS", "100");
    let mut command = builder(&sandbox);
    // Below a file.
    command.env("OCLCACHE_DIR", sandbox.path("kernel.cl/oclcache"));
    let ran = sandbox.run(&mut command).ok();
    assert!(!ran.stderr.contains(EARLY), "{}", ran.stderr);
}

/// Reading takes processor time, in a process that perhaps builds nothing.
#[test]
fn where_processor_time_is_limited_nothing_is_read_early() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("OCLCACHE_LOG", "debug");
    sandbox.set("STUB_DEVICES_MS", "100");
    let source = sandbox.write("kernel.cl", SOURCE);
    let mut command = sandbox.command(Way::Cached, "sh");
    command.args(["-c", "ulimit -t 1000 && exec \"$@\"", "sh"]);
    command.arg(example("client"));
    command
        .args(["run", "--kernel", "f", "--source"])
        .arg(source);
    let ran = sandbox.run(&mut command).ok();
    assert!(!ran.stderr.contains(EARLY), "{}", ran.stderr);
    assert!(ran.stderr.contains(FIRST), "{}", ran.stderr);
}

/// A thread for which there is no memory ends the process (glibc).
#[test]
fn a_program_whose_memory_is_limited_has_no_thread_of_ours() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("OCLCACHE_LOG", "debug");
    let mut command = sandbox.command(Way::Cached, "sh");
    let source = sandbox.write("kernel.cl", SOURCE);
    // 64 GiB, in KiB.
    command.args(["-c", "ulimit -d 67108864 && exec \"$@\"", "sh"]);
    command.arg(example("client"));
    command
        .args(["run", "--kernel", "f", "--source"])
        .arg(source);
    let ran = [(); 2].map(|()| sandbox.run(&mut command).ok());
    assert!(!ran[0].stderr.contains(FIRST), "{}", ran[0].stderr);
    assert!(is_one_hit(&ran[1].stderr), "{}", ran[1].stderr);
}

/// Below `oclcache run`, a program has opened the cache when it has loaded the library.
#[test]
fn a_program_with_few_descriptors_left_leaves_them_to_the_driver() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("OCLCACHE_LOG", "debug");
    let oclcache = sandbox.installed();
    std::thread::sleep(SETTLED);
    for (left, is_first) in [("12", false), ("64", true)] {
        sandbox.set("OCLCACHE_DIR", sandbox.path(&format!("cache-{left}")));
        let mut command = sandbox.command(Way::Cached, &oclcache);
        command.arg("run").arg(example("client"));
        let ran = sandbox.run(command.args(["few", left])).ok();
        assert_eq!(ran.stderr.contains(FIRST), is_first, "{}", ran.stderr);
    }
}

/// The stub alone in a directory, in a build that does not end.
struct Held {
    sandbox: Sandbox,
    /// What has the directory.
    home: TempDir,
    directory: PathBuf,
    build: Child,
}

impl Drop for Held {
    fn drop(&mut self) {
        let _ = self.build.kill();
        let _ = self.build.wait();
    }
}

impl Held {
    fn new() -> Held {
        let home = tempfile::tempdir().expect("a temporary directory");
        let directory = home.path().join("lib");
        fs::create_dir(&directory).expect("made");
        let library = directory.join("libstub.so");
        copy_program(example("libstub_driver.so"), &library);
        let mut sandbox = Sandbox::of_library(library.to_str().expect("UTF-8"));
        sandbox.without_spy();
        sandbox.set("OCLCACHE_LOG", "debug");
        sandbox.set("STUB_HELD", sandbox.path("held"));
        sandbox.write("held", "");
        std::thread::sleep(SETTLED);
        let mut command = builder(&sandbox);
        command.env("OCLCACHE_LOG_FILE", sandbox.path("log"));
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let build = command.spawn().expect("the client");
        let held = Held {
            sandbox,
            home,
            directory,
            build,
        };
        let started = Instant::now();
        // What changes now is not looked at any more.
        while held.sandbox.compilations() == 0 || !held.log().contains("looked for what identifies")
        {
            assert!(started.elapsed() < FAR_TOO_LONG, "{}", held.log());
            std::thread::sleep(Duration::from_millis(5));
        }
        held
    }

    /// What its process has logged by now.
    fn log(&self) -> String {
        fs::read_to_string(self.sandbox.path("log")).unwrap_or_default()
    }

    /// Lets the build end, and gives its log and how the next two processes get the program.
    #[track_caller]
    fn end(mut self) -> (String, Vec<String>) {
        fs::remove_file(self.sandbox.path("held")).expect("removed");
        let is_built = self.build.wait().expect("a child of ours").success();
        let log = self.log();
        assert!(is_built, "{log}");
        assert!(log.contains(FIRST), "{log}");
        let later = [(); 2].map(|()| self.sandbox.run(&mut builder(&self.sandbox)).ok());
        let later = later.iter().flat_map(|ran| outcomes(&ran.stderr));
        (log, later.map(|(how, _)| how).collect())
    }
}

#[test]
fn a_first_build_is_stored_if_nothing_changes_meanwhile() {
    let held = Held::new();
    // Others make files beside what leads to the driver.
    fs::write(held.home.path().join("other"), "").expect("written");
    let (log, later) = held.end();
    assert_eq!(later, ["hit", "hit"], "log:\n{log}");
}

#[test]
fn a_first_build_is_not_stored_if_what_identifies_the_driver_changes_meanwhile() {
    type Change = fn(&Path);
    let changes: [(&str, Change); 3] = [
        ("the library's rights", |directory| {
            use std::os::unix::fs::PermissionsExt;
            let rights = fs::Permissions::from_mode(0o700);
            fs::set_permissions(directory.join("libstub.so"), rights).expect("changed");
        }),
        ("a library that comes and goes", |directory| {
            let library = directory.join("libhelper.so");
            copy_program(example("libhelper.so"), &library);
            fs::remove_file(library).expect("removed");
        }),
        ("a directory that is moved away and back", |directory| {
            let away = directory.with_extension("away");
            fs::rename(directory, &away).expect("moved");
            fs::rename(away, directory).expect("moved back");
        }),
    ];
    for (what, change) in changes {
        let held = Held::new();
        let directory = held.directory.clone();
        change(&directory);
        let (log, later) = held.end();
        assert_eq!(later, ["miss", "hit"], "{what}, log:\n{log}");
        let why = ", which identifies the driver, may have changed";
        let named = ["", "/libstub.so"].map(|file| format!("{}{file}{why}", directory.display()));
        let is_named = named.iter().any(|named| log.contains(named));
        assert!(
            log.contains("not stored") && is_named,
            "{what}, log:\n{log}"
        );
    }
}

/// The C library puts that on the stack of each thread.
#[test]
fn a_program_with_megabytes_of_thread_local_data_is_identified_meanwhile_as_well() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("OCLCACHE_LOG", "debug");
    let source = "__thread char data[4 << 20]; char *get(int place) { return data + place; }\n";
    let source = sandbox.write("data.c", source);
    // Apart, since other files come and go beside the source.
    fs::create_dir(sandbox.path("lib")).expect("made");
    let library = sandbox.path("lib/libdata.so");
    let Some(()) = compile(&library, &source, &["-shared", "-fPIC"]) else {
        return;
    };
    std::thread::sleep(SETTLED);
    let ran = || {
        sandbox
            .run(builder(&sandbox).env("LD_PRELOAD", &library))
            .ok()
    };
    let first = ran();
    assert!(first.stderr.contains(FIRST), "{}", first.stderr);
    assert!(is_one_hit(&ran().stderr));
}

/// Nobody can tell afterwards what was in the working directory.
#[test]
fn a_driver_that_may_find_libraries_in_the_working_directory_is_identified_first() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("OCLCACHE_LOG", "debug");
    let working = sandbox.path("working");
    fs::create_dir(&working).expect("made");
    fs::write(working.join("some.so.txt"), "").expect("written");
    let ran = || {
        let mut command = builder(&sandbox);
        command
            .env("LD_LIBRARY_PATH", "/nowhere:")
            .current_dir(&working);
        sandbox.run(&mut command).ok()
    };
    let first = ran();
    assert!(!first.stderr.contains(FIRST), "{}", first.stderr);
    assert!(is_one_hit(&ran().stderr));
}

/// A cache stays empty if nothing can be stored in it.
#[test]
fn what_an_empty_cache_cannot_store_is_read_once() {
    if !has_strace("a system-call trace of a program that cannot be stored") {
        return;
    }
    let sandbox = Sandbox::stub();
    let header = sandbox.write("there.h", "#ifdef OFF\n#include NAME\n#endif\n");
    let source = format!("#include \"{}\"\n{SOURCE}", header.display());
    let source = sandbox.write("kernel.cl", &source);
    let source = source.to_str().expect("a path");
    let times = |way| {
        let files = opened(&sandbox, way, &["run", "--kernel", "f", "--source", source]);
        let times = files.iter().filter(|file| Path::new(file) == header);
        times.count()
    };
    let by_driver = times(Way::Bare);
    for process in 0..2 {
        assert_eq!(times(Way::Cached), by_driver + 1, "process {process}");
    }
    assert_eq!(sandbox.stat("bypassed"), 2);
}
