//! Who bakes is started behind the programs that left something to bake, and they notice nothing of it.
//!
//! In most tests the client stands in for the command: it says what it finds, and stays until it is let go.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::bake::never_inside::{DIED, RESULT, deadly};
use crate::support::{Driver, Ran, Sandbox, Way, copy_program, example, is_root, library, skipped};
use crate::tiers::{TrustedPlace, trusted_place};

const FAR_TOO_LONG: Duration = Duration::from_secs(40);
const SOMEBODY: u32 = 64_123;
/// What the client says of one good build.
pub const BUILT: &str = "create program: code 0\nbuild: code 0\n";

/// A sandbox, and a place of the library and the command that nobody untrusted can write.
pub struct Behind {
    pub sandbox: Sandbox,
    pub place: TrustedPlace,
}

impl Drop for Behind {
    fn drop(&mut self) {
        self.let_go();
    }
}

impl Behind {
    pub fn new(test: &str) -> Option<Behind> {
        Behind::with(test, &example("client"))
    }

    /// With this program in the command's place.
    pub fn with(test: &str, program: &Path) -> Option<Behind> {
        Behind::on(test, program, Driver::Stub)
    }

    /// On this driver.
    pub fn on(test: &str, program: &Path, driver: Driver) -> Option<Behind> {
        let place = trusted_place(test)?;
        let mut sandbox = Sandbox::new(driver)?;
        let library_there = place.path().join("liboclcache.so");
        copy_program(library(), &library_there);
        copy_program(program, &place.path().join("oclcache"));
        let registered = format!("{}\n", library_there.display());
        sandbox.write("oclcache/oclcache.icd", registered);
        sandbox.set("OCLCACHE_RECORD", "bake");
        // Wherever the tests run.
        sandbox.set("OCLCACHE_AUTOBAKE", "1");
        Some(Behind { sandbox, place })
    }

    pub fn client(&self, arguments: &[&str]) -> Command {
        let _ = fs::remove_dir_all(self.sandbox.path("cache"));
        let mut command = self.sandbox.command(Way::Cached, example("client"));
        command.args(arguments);
        command
    }

    /// The command, for a user who has only set a loader's variable.
    pub fn command(&self) -> Command {
        let command = self.place.path().join("oclcache");
        let mut command = self.sandbox.command(Way::Bare, command);
        command.env("OCLCACHE_DIR", self.sandbox.path("cache"));
        command
    }

    /// Those that stand behind programs now. They are there once the program has ended: it waits until they execute theirs.
    pub fn running(&self) -> Vec<PathBuf> {
        // Not the path: another root shows another one.
        let file = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
        let own = file(&self.place.path().join("oclcache"));
        let processes = fs::read_dir("/proc").expect("processes").flatten();
        let mut paths: Vec<PathBuf> = processes.map(|process| process.path()).collect();
        paths.retain(|path| own.is_some() && file(&path.join("exe")) == own);
        paths
    }

    /// What the one says that stands behind the program.
    #[track_caller]
    pub fn found(&self) -> String {
        let file = self.place.path().join("found");
        wait_until("a process behind the program", || file.exists());
        let found = fs::read_to_string(&file).expect("read");
        fs::remove_file(&file).expect("removed");
        found
    }

    /// Waits until none is left.
    pub fn ended(&self) {
        let started = Instant::now();
        while !self.running().is_empty() && started.elapsed() < FAR_TOO_LONG {
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn let_go(&self) {
        let go = self.place.path().join("go");
        fs::write(&go, "").expect("written");
        self.ended();
        fs::remove_file(go).expect("removed");
        let _ = fs::remove_file(self.place.path().join("found"));
    }

    /// Runs a program, and tells how many stand behind it. The pipes that it writes to have ended by then, as in `PROGRAM | cat`.
    #[track_caller]
    pub fn run(&self, command: &mut Command) -> (Ran, usize) {
        let ran = self.sandbox.run(command);
        let running = self.running().len();
        self.let_go();
        (ran, running)
    }
}

#[track_caller]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < FAR_TOO_LONG, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn lines<'a>(found: &'a str, what: &str) -> Vec<&'a str> {
    found
        .lines()
        .filter_map(|line| line.strip_prefix(what)?.strip_prefix(' '))
        .collect()
}

#[test]
fn one_is_started_when_a_program_ends_that_has_left_something_and_not_when_it_is_cut_off() {
    let Some(behind) = Behind::new("the end of programs that leave something to bake") else {
        return;
    };
    for (arguments, expected) in [
        (&["exit", "return"][..], 1),
        (&["exit", "before"], 1),
        (&["exit", "destructor"], 1),
        (&["exit", "return", "2"], 1),
        (&["exit", "at-once"], 0),
        (&["exit", "quick"], 0),
        // Children of which every other ends by exit: theirs is the parent's.
        (&["forks", "1", "4", "2"], 1),
    ] {
        let (ran, running) = behind.run(&mut behind.client(arguments));
        assert_eq!(running, expected, "{arguments:?}: {}", ran.ok().stderr);
        assert!(!behind.sandbox.entries().is_empty());
    }
    // What was compiled needs nobody, but names were searched for. The second one knows them.
    let mut command = behind.client(&["exit", "return"]);
    command.env("OCLCACHE_RECORD", "inline");
    for expected in [1, 0] {
        let (ran, running) = behind.run(&mut command);
        assert_eq!(running, expected, "{}", ran.ok().stderr);
    }
}

/// Nothing of the program is left to it, and it is told what it needs by its arguments.
#[test]
fn what_is_started_holds_nothing_of_the_program() {
    let Some(behind) = Behind::new("what is left to a process behind a program") else {
        return;
    };
    for how in ["ignoring", "closed"] {
        let mut command = behind.client(&["behind", how]);
        command
            .env("OCLCACHE_MAX_SIZE", "7M")
            .env("LD_PRELOAD", "")
            .env("OPENCL_LAYERS", "")
            // What a driver reads enters keys, so the baker needs it as well.
            .env("OPENCL_PROGRAM_COMPILE_OPTIONS", "-DV=7")
            .env("KEPT", "this");
        behind.sandbox.run(&mut command).ok();
        let found = behind.found();
        let mut descriptors = lines(&found, "descriptor");
        descriptors.sort_unstable();
        let null = ["0 /dev/null", "1 /dev/null", "2 /dev/null"];
        assert_eq!(descriptors, null, "{how}: {found}");
        assert_eq!(lines(&found, "directory"), ["/"]);
        let cache = behind.sandbox.path("cache");
        let arguments = format!(
            "--detached --anywhere --dir {} --vendors {} --max-size 7M --min-free auto --max-age 0",
            cache.display(),
            example("libspy.so").display()
        );
        assert_eq!(lines(&found, "arguments"), [arguments]);
        assert!(found.contains("SigBlk:\t0000000000000000\n"), "{found}");
        // The client's own runtime ignores SIGPIPE, 13.
        assert!(found.contains("SigIgn:\t0000000000001000\n"), "{found}");
        // Of a PID namespace that a container began it may be 0, somebody's outside.
        let own = fs::read_to_string("/proc/self/stat").expect("read");
        let own = own
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.split(' ').nth(3));
        let own = own.expect("a session");
        assert!(found.contains(", leads it false\n"), "{found}");
        assert!(!found.contains(&format!("session {own},")), "{found}");
        let variables = lines(&found, "variable");
        let begins = |prefix: &str| {
            variables
                .iter()
                .any(|variable| variable.starts_with(prefix))
        };
        for kept in ["KEPT=this", "HOME=", "OPENCL_PROGRAM_COMPILE_OPTIONS=-DV=7"] {
            assert!(begins(kept), "{kept}: {found}");
        }
        for removed in ["OCLCACHE_", "OCL_ICD_", "OPENCL_LAYER", "LD_PRELOAD"] {
            assert!(!begins(removed), "{removed}: {found}");
        }
        behind.let_go();
    }
}

/// Everybody could write what the program writes, and shares on purpose.
#[test]
fn what_is_started_lets_others_write_nothing() {
    let Some(behind) = Behind::new("the umask of a process behind a program") else {
        return;
    };
    for (umask, expected) in [("000", "Umask:\t0002\n"), ("077", "Umask:\t0077\n")] {
        let script = format!("umask {umask}; exec \"$@\"");
        let _ = fs::remove_dir_all(behind.sandbox.path("cache"));
        let mut command = behind.sandbox.command(Way::Cached, "sh");
        command.args(["-c", &script, "sh"]).arg(example("client"));
        behind
            .sandbox
            .run(command.args(["behind", "ignoring"]))
            .ok();
        let found = behind.found();
        assert!(found.contains(expected), "{umask}: {found}");
        behind.let_go();
    }
}

#[test]
fn a_program_that_watches_its_children_sees_none() {
    let Some(behind) = Behind::new("programs that watch their children") else {
        return;
    };
    for how in ["watching", "ignoring"] {
        let (ran, running) = behind.run(&mut behind.client(&["behind", how]));
        let ran = ran.ok();
        assert_eq!((&*ran.stdout, running), (BUILT, 1), "{how}: {}", ran.stderr);
    }
}

/// Whether the other user can run what the tests have built.
fn is_readable_by_others(file: &Path) -> bool {
    let mut command = Command::new("test");
    command.arg("-x").arg(file).uid(SOMEBODY).gid(SOMEBODY);
    command.status().is_ok_and(|status| status.success())
}

#[test]
fn where_no_process_can_be_started_the_program_ends_as_without() {
    use std::os::unix::fs::{PermissionsExt, chown};
    let test = "a program that may start no process";
    let Some(behind) = Behind::new(test) else {
        return;
    };
    let mut command = behind.sandbox.command(Way::Cached, "prlimit");
    if command
        .arg("--version")
        .stdout(Stdio::null())
        .status()
        .is_err()
    {
        return skipped(format_args!("{test} (no prlimit)"));
    }
    if is_root() {
        // Root may start more than the limit allows.
        if !is_readable_by_others(&example("client")) {
            return skipped(format_args!("{test} (others cannot run what is built)"));
        }
        for path in [behind.place.path(), &behind.sandbox.path("")] {
            fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("changed");
        }
        fs::create_dir(behind.sandbox.path("theirs")).expect("made");
        for name in ["spy.log", "stub.log"] {
            behind.sandbox.write(name, "");
        }
        for name in ["theirs", "home", "spy.log", "stub.log"] {
            let path = behind.sandbox.path(name);
            chown(path, Some(SOMEBODY), Some(SOMEBODY)).expect("given away");
        }
    }
    for (through, expected) in [(&["prlimit", "--nproc=1"][..], 0), (&["env"], 1)] {
        let mut command = behind.sandbox.command(Way::Cached, through[0]);
        command
            .args(&through[1..])
            .arg(example("client"))
            .args(["behind", "ignoring"]);
        if is_root() {
            command.uid(SOMEBODY).gid(SOMEBODY);
            command.env(
                "OCLCACHE_DIR",
                behind.sandbox.path(&format!("theirs/{expected}")),
            );
        } else {
            let _ = fs::remove_dir_all(behind.sandbox.path("cache"));
        }
        let (ran, running) = behind.run(&mut command);
        let ran = ran.ok();
        assert_eq!((&*ran.stdout, running), (BUILT, expected), "{}", ran.stderr);
    }
}

#[test]
fn none_is_started_in_a_batch_job_in_a_sandbox_or_where_the_setting_forbids_it() {
    let Some(behind) = Behind::new("batch jobs that leave something to bake") else {
        return;
    };
    for (how, variables, expected) in [
        ("ignoring", &[("OCLCACHE_AUTOBAKE", "0")][..], 0),
        ("ignoring", &[("OCLCACHE_AUTOBAKE", "auto")], 1),
        (
            "ignoring",
            &[("OCLCACHE_AUTOBAKE", "auto"), ("CI", "true")],
            0,
        ),
        (
            "ignoring",
            &[("OCLCACHE_AUTOBAKE", "auto"), ("CI", "false")],
            1,
        ),
        (
            "ignoring",
            &[("OCLCACHE_AUTOBAKE", "auto"), ("SLURM_JOB_ID", "7")],
            0,
        ),
        (
            "ignoring",
            &[("OCLCACHE_AUTOBAKE", "auto"), ("PBS_JOBID", "7.x")],
            0,
        ),
        ("ignoring", &[("CI", "true"), ("SLURM_JOB_ID", "7")], 1),
        // It would be killed.
        ("filtered", &[("OCLCACHE_AUTOBAKE", "auto")], 0),
        ("thread-filtered", &[("OCLCACHE_AUTOBAKE", "auto")], 0),
    ] {
        let mut command = behind.client(&["behind", how]);
        let (ran, running) = behind.run(command.envs(variables.iter().copied()));
        let ran = ran.ok();
        assert_eq!(
            (&*ran.stdout, running),
            (BUILT, expected),
            "{how} {variables:?}: {}",
            ran.stderr
        );
    }
}

/// Runs a program as the first process of a namespace.
pub const IN_NAMESPACE: [&str; 4] = ["unshare", "--pid", "--fork", "--mount-proc"];

/// Whether there are process namespaces here; says so of a test if not.
pub fn has_process_namespaces(test: &str) -> bool {
    let mut command = Command::new(IN_NAMESPACE[0]);
    let status = command.args(&IN_NAMESPACE[1..]).arg("true").status();
    let has = status.is_ok_and(|status| status.success());
    if !has {
        skipped(format_args!("{test} (no process namespace)"));
    }
    has
}

/// There the program is a child of the first process, with which all others end.
#[test]
fn none_is_started_by_what_a_container_runs() {
    let test = "what a container runs";
    let Some(behind) = Behind::new(test).filter(|_| has_process_namespaces(test)) else {
        return;
    };
    let list = "; for process in /proc/[0-9]*; do readlink $process/exe; done; true";
    let script = format!("\"$0\" behind ignoring{list}");
    let command = behind.place.path().join("oclcache").display().to_string();
    for (setting, expected) in [("1", true), ("auto", false)] {
        let _ = fs::remove_dir_all(behind.sandbox.path("cache"));
        let mut run = behind.sandbox.command(Way::Cached, IN_NAMESPACE[0]);
        run.args(&IN_NAMESPACE[1..])
            .args(["sh", "-c", &script])
            .arg(example("client"));
        run.env("OCLCACHE_AUTOBAKE", setting);
        let ran = behind.sandbox.run(&mut run).ok();
        assert!(ran.stdout.starts_with(BUILT), "{}", ran.stderr);
        assert_eq!(
            ran.stdout.contains(&command),
            expected,
            "{setting} {script}"
        );
    }
}

/// A server waits for its own children, and would leave ours as a zombie.
#[test]
fn none_is_started_below_a_first_process_that_is_no_init() {
    let test = "what a server starts in a container";
    let Some(behind) = Behind::new(test).filter(|_| has_process_namespaces(test)) else {
        return;
    };
    let script =
        "\"$0\" behind ignoring; for process in /proc/[0-9]*; do readlink $process/exe; done; true";
    let command = behind.place.path().join("oclcache").display().to_string();
    for (first, expected) in [
        (&["sh", "-c", "\"$@\"; true", "sh"][..], true),
        (&["timeout", "60"], false),
    ] {
        let _ = fs::remove_dir_all(behind.sandbox.path("cache"));
        let mut run = behind.sandbox.command(Way::Cached, IN_NAMESPACE[0]);
        run.args(&IN_NAMESPACE[1..]).args(first);
        run.args(["sh", "-c", script]).arg(example("client"));
        run.env("OCLCACHE_AUTOBAKE", "auto");
        let ran = behind.sandbox.run(&mut run).ok();
        assert!(ran.stdout.starts_with(BUILT), "{}", ran.stderr);
        assert_eq!(ran.stdout.contains(&command), expected, "{first:?}");
    }
}

/// What somebody types there is a child of the first process as well, which goes on.
#[test]
fn one_is_started_by_what_is_typed_in_the_shell_of_a_container() {
    let test = "what is typed in the shell of a container";
    let Some(behind) = Behind::new(test) else {
        return;
    };
    let has = |program: &str, arguments: &[&str]| {
        let can = Command::new(program).args(arguments).output();
        can.is_ok_and(|ran| ran.status.success())
    };
    let is_namespace = ["--pid", "--fork", "--mount-proc", "true"];
    if !has("unshare", &is_namespace) || !has("script", &["--version"]) {
        return skipped(format_args!(
            "{test} (no process namespace, or no `script`)"
        ));
    }
    let typed = format!(
        "{} behind ignoring; for process in /proc/[0-9]*; do readlink $process/exe; done; exit\n",
        example("client").display()
    );
    let command = behind.place.path().join("oclcache").display().to_string();
    let mut run = behind.sandbox.command(Way::Cached, "script");
    run.args(["-qec", "unshare --pid --fork --mount-proc sh", "/dev/null"]);
    run.env("OCLCACHE_AUTOBAKE", "auto");
    run.stdin(fs::File::open(behind.sandbox.write("typed", typed)).expect("opened"));
    // The shell ends with an error, since it has lost its terminal by then.
    let said = behind.sandbox.run(&mut run).stdout.replace('\r', "");
    let Some((_, behind_it)) = said.rsplit_once("build: code 0\n") else {
        panic!("{said}");
    };
    assert!(behind_it.contains(&command), "{said}");
}

/// A command that others can write is not run, and one that is missing is not missed.
#[test]
fn a_command_that_others_can_write_is_not_started() {
    use std::os::unix::fs::PermissionsExt;
    let Some(behind) = Behind::new("commands that others can write") else {
        return;
    };
    let command = behind.place.path().join("oclcache");
    for (path, mode, expected) in [
        (command.as_path(), 0o777, 0),
        (behind.place.path(), 0o777, 0),
        (command.as_path(), 0o644, 0),
        (command.as_path(), 0o755, 1),
    ] {
        fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("changed");
        let (ran, running) = behind.run(&mut behind.client(&["behind", "ignoring"]));
        assert_eq!(running, expected, "{mode:o}: {}", ran.ok().stderr);
        fs::set_permissions(path, PermissionsExt::from_mode(0o755)).expect("changed");
    }
    fs::remove_file(command).expect("removed");
    let (ran, running) = behind.run(&mut behind.client(&["behind", "ignoring"]));
    assert_eq!(running, 0, "{}", ran.ok().stderr);
}

/// The client's kernel by `oclcache run` with these options, for a user who has only set a loader's variable.
fn run_command(behind: &Behind, options: &[&str], script: &str) -> Ran {
    let client = example("client").display().to_string();
    let mut command = behind.command();
    let program = ["sh", "-c", script, &client];
    behind
        .sandbox
        .run(command.arg("run").args(options).args(program))
}

#[test]
fn what_one_process_missed_the_next_one_hits_with_nothing_else_done() {
    let real = Path::new(env!("CARGO_BIN_EXE_oclcache"));
    let Some(behind) = Behind::with("baking behind programs", real) else {
        return;
    };
    // By the library, then by `oclcache run`, which leaves what its program ended with as it was.
    behind
        .sandbox
        .run(&mut behind.client(&["behind", "watching"]))
        .ok();
    behind.ended();
    let mut again = behind.sandbox.command(Way::Cached, example("client"));
    let ran = behind.sandbox.run(again.args(["behind", "watching"])).ok();
    assert_eq!(
        (&*ran.stdout, ran.source_builds()),
        (BUILT, 0),
        "{}",
        ran.stderr
    );

    let script = "\"$0\" behind ignoring; exit 7";
    let _ = fs::remove_dir_all(behind.sandbox.path("cache"));
    let ran = run_command(&behind, &["-q"], script);
    assert_eq!((&*ran.stdout, &*ran.stderr, ran.code), (BUILT, "", Some(7)));
    behind.ended();
    let ran = run_command(&behind, &["-q"], script);
    assert_eq!(
        (ran.source_builds(), ran.code),
        (0, Some(7)),
        "{}",
        ran.stderr
    );

    let _ = fs::remove_dir_all(behind.sandbox.path("cache"));
    let ran = run_command(&behind, &["--bake"], script);
    assert_eq!((&*ran.stdout, ran.code), (BUILT, Some(7)), "{}", ran.stderr);
    assert!(
        ran.stderr
            .ends_with("oclcache: 1 baked, 0 skipped, 0 failed\n"),
        "{}",
        ran.stderr
    );
    assert_eq!(behind.running().len(), 0);
    let ran = run_command(&behind, &["-q"], script);
    assert_eq!(
        (ran.source_builds(), ran.code),
        (0, Some(7)),
        "{}",
        ran.stderr
    );
}

/// With nothing set: the baker dies twice, nobody else does, and then there is none any more.
#[test]
fn a_driver_that_dies_behind_a_program_is_left_alone() {
    let real = Path::new(env!("CARGO_BIN_EXE_oclcache"));
    let Some(mut behind) = Behind::on("bakers that die", real, Driver::Pocl) else {
        return;
    };
    let own = behind.sandbox.path("own");
    behind.sandbox.set("POCL_CACHE_DIR", own);
    behind.sandbox.set("OCLCACHE_RECORD", "auto");
    for number in 0..10 {
        let ran = behind.sandbox.kernel(Way::Cached, &deadly(), "");
        let stderr = &ran.stderr;
        assert_eq!(ran.signal, None, "run {number}: {stderr}");
        assert!(ran.stdout.contains(RESULT), "run {number}: {stderr}");
        let left = behind.running().len();
        assert_eq!(left > 0, number < 2, "run {number}: {left} bakers");
        behind.ended();
    }
    let explained = behind.sandbox.oclcache(&["explain"]).ok().stdout;
    assert!(explained.contains(DIED), "{explained}");
}

/// `oclcache run` says where nobody will bake what was left.
#[test]
fn a_run_that_may_leave_nobody_behind_says_what_is_left_to_do() {
    let real = Path::new(env!("CARGO_BIN_EXE_oclcache"));
    let Some(mut behind) = Behind::with("runs that bake nothing", real) else {
        return;
    };
    behind.sandbox.set("OCLCACHE_AUTOBAKE", "auto");
    behind.sandbox.set("CI", "true");
    let ran = run_command(&behind, &[], "\"$0\" behind ignoring").ok();
    assert_eq!(behind.running().len(), 0);
    let last = ran.stderr.lines().last().unwrap_or_default();
    assert!(
        last.starts_with("oclcache: run `oclcache bake` "),
        "{}",
        ran.stderr
    );
    assert!(last.ends_with("CI is set"), "{}", ran.stderr);
}
