//! Entries that end the process while the driver loads them, though their checksum is right.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::damage::with_garbage_for_the_driver;
use crate::support::{Driver, Ran, Sandbox, Way, example, skipped, tree};

const SOURCE: &str =
    "__kernel void f(__global uint *out) { out[get_global_id(0)] = N + (uint)get_global_id(0); }\n";
const OPTIONS: &str = "-DN=3";
/// The offset of the lock of statistics, as strace writes it. One process in 32 merges those in memory.
const LOCK_OF_STATISTICS: &str = "l_start=6917529027641081858,";

/// A cache with one entry that no driver has loaded.
struct Patient {
    sandbox: Sandbox,
    bare: String,
}

impl Patient {
    fn new(driver: Driver) -> Option<Patient> {
        Sandbox::new(driver).map(Patient::of)
    }

    fn of(mut sandbox: Sandbox) -> Patient {
        sandbox.set("STUB_LOAD", sandbox.path("load"));
        let bare = sandbox.kernel(Way::Bare, SOURCE, OPTIONS).ok().stdout;
        let patient = Patient { sandbox, bare };
        patient.compiles();
        assert!(!patient.is_proven());
        patient
    }

    fn stub() -> Patient {
        Patient::new(Driver::Stub).expect("the stub is built with the tests")
    }

    /// What the stub does where it loads a binary.
    fn driver_shall(&self, words: &str) {
        self.sandbox.write("load", words);
    }

    fn run(&self) -> Ran {
        self.sandbox.kernel(Way::Cached, SOURCE, OPTIONS)
    }

    #[track_caller]
    fn right(&self, source_builds: usize) {
        let ran = self.run().ok();
        assert_eq!(ran.stdout, self.bare, "log:\n{}", ran.stderr);
        assert_eq!(ran.source_builds(), source_builds, "log:\n{}", ran.stderr);
    }

    #[track_caller]
    fn hits(&self) {
        self.right(0);
    }

    #[track_caller]
    fn compiles(&self) {
        self.right(1);
    }

    #[track_caller]
    fn dies(&self, step: &str) {
        self.driver_shall(step);
        let ran = self.run();
        assert_eq!(ran.signal, Some(6), "log:\n{}", ran.stderr);
        self.driver_shall("");
    }

    /// Starts a program and waits until its driver loads the entry.
    fn begin(&self) -> Child {
        let loads = || {
            let log = fs::read_to_string(self.sandbox.path("stub.log")).unwrap_or_default();
            log.matches("load-binary").count()
        };
        let (before, until) = (loads(), Instant::now() + Duration::from_secs(60));
        let source = self.sandbox.write("kernel.cl", SOURCE);
        let mut command = self.sandbox.command(Way::Cached, example("client"));
        command.args(["run", "--kernel", "f", "--options", OPTIONS, "--source"]);
        command
            .arg(source)
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let child = command.spawn();
        while loads() == before {
            assert!(Instant::now() < until, "nothing is loaded");
            thread::sleep(Duration::from_millis(5));
        }
        child.expect("started")
    }

    #[track_caller]
    fn ends_well(&self, child: Child) {
        let output = child.wait_with_output().expect("waited for");
        assert!(output.status.success());
        assert_eq!(String::from_utf8_lossy(&output.stdout), self.bare);
    }

    fn entry(&self) -> PathBuf {
        let [path] = <[PathBuf; 1]>::try_from(self.sandbox.entries()).expect("one entry");
        path
    }

    fn is_proven(&self) -> bool {
        let metadata = fs::metadata(self.entry()).expect("an entry");
        metadata.permissions().readonly()
    }

    fn sentinel(&self) -> PathBuf {
        let key = self.entry().file_stem().expect("a key").to_owned();
        self.sandbox.path("cache/v1/loading").join(key)
    }

    /// Loads that have begun and not ended; None: there is no file.
    fn deaths(&self) -> Option<u64> {
        let key = self.entry().file_stem().expect("a key").to_owned();
        let key = key.into_string().expect("hexadecimal digits");
        let files = fs::read_dir(self.sandbox.path("cache/v1/loading")).ok()?;
        // On a network file system the host's name follows.
        let is_its = |file: &fs::DirEntry| file.file_name().to_string_lossy().starts_with(&key);
        let file = files.flatten().find(is_its)?;
        Some(file.metadata().ok()?.len())
    }
}

#[test]
fn an_entry_that_kills_twice_is_set_aside_and_its_successor_is_loaded_and_proven() {
    for step in ["die-create", "die-build"] {
        let patient = Patient::stub();
        patient.dies(step);
        assert_eq!(patient.deaths(), Some(1));
        patient.dies(step);
        assert_eq!(patient.deaths(), Some(2));
        // It would die if it were loaded.
        patient.driver_shall(step);
        patient.compiles();
        patient.driver_shall("");
        assert_eq!(patient.sandbox.stat("set_aside"), 1);
        assert_eq!(patient.deaths(), None);
        assert!(!patient.is_proven());
        patient.hits();
        assert!(patient.is_proven());
        assert_eq!(patient.deaths(), None);
    }
}

#[test]
fn an_entry_that_kills_once_and_is_then_loaded_is_proven() {
    let patient = Patient::stub();
    patient.dies("die-create");
    patient.hits();
    assert!(patient.is_proven());
    assert_eq!(patient.deaths(), None);
    // It is not watched any more, so one that kills later kills as the driver does.
    patient.dies("die-create");
    patient.dies("die-create");
    patient.dies("die-create");
    assert_eq!(patient.deaths(), None);
}

#[test]
fn a_refused_entry_is_set_aside_at_once_and_leaves_nothing() {
    let patient = Patient::stub();
    patient.driver_shall("refuse");
    patient.compiles();
    assert_eq!(patient.sandbox.stat("set_aside"), 1);
    assert_eq!(patient.deaths(), None);
    assert!(!patient.is_proven());
}

/// As on a machine where the driver cannot write its own cache, or lacks a library: the entry is not to blame.
#[test]
fn a_refused_entry_stays_where_the_driver_cannot_compile_either() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("STUB_CODE_FILE", sandbox.path("code"));
    let patient = Patient::of(sandbox);
    let fails = || {
        patient.driver_shall("refuse");
        patient.sandbox.write("code", "#error");
        let ran = patient.run();
        assert_ne!(ran.stdout, patient.bare, "log:\n{}", ran.stderr);
        patient.driver_shall("");
        patient.sandbox.write("code", "");
        assert_eq!(patient.sandbox.stat("set_aside"), 0);
    };
    fails();
    assert!(!patient.is_proven());
    patient.hits();
    assert!(patient.is_proven());
    fails();
    fails();
    assert!(patient.is_proven());
    patient.hits();
    // It compiles again, and still refuses the entry.
    patient.driver_shall("refuse");
    patient.compiles();
    assert_eq!(patient.sandbox.stat("set_aside"), 1);
    assert!(!patient.is_proven());
}

#[test]
fn a_proven_entry_costs_no_file_and_no_lock() {
    let patient = Patient::stub();
    if Command::new("strace").arg("-V").output().is_err() {
        return skipped("a system-call trace of a hit (no strace)");
    }
    let traced = || {
        let trace = patient.sandbox.path("trace");
        let source = patient.sandbox.write("kernel.cl", SOURCE);
        let mut command = patient.sandbox.command(Way::Cached, "strace");
        command.args(["-f", "-s", "4096", "-o"]).arg(&trace);
        command.arg(example("client"));
        command.args(["run", "--kernel", "f", "--options", OPTIONS, "--source"]);
        let ran = patient.sandbox.run(command.arg(source)).ok();
        assert_eq!(ran.source_builds(), 0, "log:\n{}", ran.stderr);
        let trace = fs::read_to_string(trace).expect("a trace");
        let locks = |line: &str| line.contains("F_SETLK") && !line.contains(LOCK_OF_STATISTICS);
        let ours = |line: &&str| line.contains("\"loading") || locks(line);
        let calls: Vec<String> = trace.lines().filter(ours).map(str::to_owned).collect();
        calls
    };
    let first = traced();
    assert!(
        first.len() >= 3,
        "not a lock, and a file that is made and removed: {first:#?}"
    );
    let before = tree(&patient.sandbox.path("cache/v1/loading"));
    assert_eq!(traced(), [] as [String; 0]);
    assert_eq!(tree(&patient.sandbox.path("cache/v1/loading")), before);
}

#[test]
fn two_processes_load_an_entry_at_once() {
    let patient = Patient::stub();
    patient.driver_shall("wait");
    let (first, second) = (patient.begin(), patient.begin());
    assert_eq!(patient.deaths(), Some(1));
    patient.driver_shall("");
    patient.ends_well(first);
    patient.ends_well(second);
    assert_eq!(patient.sandbox.stat("hits"), 2);
    assert!(patient.is_proven());
    assert_eq!(patient.deaths(), None);
}

#[test]
fn while_one_tries_an_entry_that_has_killed_the_others_compile() {
    let patient = Patient::stub();
    patient.dies("die-create");
    patient.driver_shall("wait");
    let mut first = patient.begin();
    patient.compiles();
    first.kill().expect("killed");
    first.wait().expect("waited for");
}

#[test]
fn a_kill_from_outside_counts_as_a_death_also_where_a_child_of_the_driver_lives_on() {
    for words in ["wait", "wait fork"] {
        let patient = Patient::stub();
        patient.driver_shall(words);
        for deaths in [1, 2] {
            let mut child = patient.begin();
            child.kill().expect("killed");
            child.wait().expect("waited for");
            assert_eq!(patient.deaths(), Some(deaths), "{words}");
        }
        patient.compiles();
        assert_eq!(patient.sandbox.stat("set_aside"), 1);
        patient.driver_shall("");
        patient.hits();
        assert!(patient.is_proven());
        end_left_children(&patient.sandbox);
    }
}

fn end_left_children(sandbox: &Sandbox) {
    let log = fs::read_to_string(sandbox.path("stub.log")).expect("the stub's log");
    for child in log
        .lines()
        .filter_map(|line| line.strip_prefix("left-child "))
    {
        let ended = Command::new("kill").args(["-9", child]).status();
        assert!(ended.expect("kill").success(), "the child {child} lives");
    }
}

#[test]
fn what_is_left_over_or_stands_in_the_way_does_no_harm() {
    let patient = Patient::stub();
    let (loading, sentinel) = (patient.sandbox.path("cache/v1/loading"), patient.sentinel());
    let recached = || {
        let mut command = patient.sandbox.command(Way::Cached, example("client"));
        command.env("OCLCACHE_RECACHE", "1");
        command.args(["run", "--kernel", "f", "--options", OPTIONS, "--source"]);
        let source = patient.sandbox.write("kernel.cl", SOURCE);
        let ran = patient.sandbox.run(command.arg(source)).ok();
        assert_eq!(ran.source_builds(), 1);
        assert!(!patient.is_proven());
    };
    type Put<'a> = &'a dyn Fn(&Path);
    let in_the_way: [(&str, Put); 4] = [
        ("a directory", &|path| fs::create_dir(path).expect("made")),
        ("a link", &|path| {
            let elsewhere = patient.sandbox.write("elsewhere", "mine");
            std::os::unix::fs::symlink(elsewhere, path).expect("linked");
        }),
        ("a FIFO", &|path| {
            let made = Command::new("mkfifo").arg(path).status();
            assert!(made.expect("mkfifo").success());
        }),
        ("another name of a file", &|path| {
            let elsewhere = patient.sandbox.write("elsewhere", "mine");
            fs::hard_link(elsewhere, path).expect("linked");
        }),
    ];
    for (what, make) in in_the_way {
        fs::create_dir_all(&loading).expect("made");
        make(&sentinel);
        patient.hits();
        assert!(patient.is_proven(), "{what}");
        fs::remove_dir_all(&loading).expect("removed");
        make(&loading);
        recached();
        patient.hits();
        assert!(patient.is_proven(), "{what}");
        let _ = fs::remove_file(&loading);
        recached();
    }
    let elsewhere = fs::read(patient.sandbox.path("elsewhere"));
    assert_eq!(elsewhere.expect("read"), b"mine");
    // Deaths of an entry are not those of its successor.
    fs::create_dir_all(&loading).expect("made");
    fs::write(&sentinel, "++").expect("written");
    recached();
    assert_eq!(patient.deaths(), None);
    patient.hits();
    // Nobody looks at those of an entry that was proven meanwhile.
    fs::write(&sentinel, "++").expect("written");
    patient.hits();
    assert_eq!(patient.sandbox.stat("set_aside"), 0);
    patient.sandbox.oclcache(&["clear"]).ok();
    assert!(tree(&loading).is_empty());
}

#[test]
fn a_cache_that_is_only_read_is_loaded_and_left_alone() {
    let mut patient = Patient::stub();
    let before = tree(&patient.sandbox.path("cache"));
    patient.sandbox.set("OCLCACHE_READONLY", "1");
    patient.hits();
    assert_eq!(tree(&patient.sandbox.path("cache")), before);
}

/// PoCL 3.1 aborts where the bitcode in its binary is damaged. What Intel's CPU runtime takes it takes alive, and dies when
/// the kernel runs, if at all (measured, with 80 damaged binaries for each).
#[test]
fn an_entry_of_a_real_driver_that_kills_twice_is_set_aside_and_heals() {
    let Some(patient) = Patient::new(Driver::Pocl) else {
        return;
    };
    let path = patient.entry();
    let garbage = with_garbage_for_the_driver(&fs::read(&path).expect("read"));
    fs::write(&path, garbage).expect("written");
    for deaths in [1, 2] {
        let ran = patient.run();
        assert_eq!(ran.signal, Some(6), "log:\n{}", ran.stderr);
        assert_eq!(patient.deaths(), Some(deaths));
    }
    patient.compiles();
    assert_eq!(patient.sandbox.stat("set_aside"), 1);
    patient.hits();
    assert!(patient.is_proven());
}
