//! One build for many: processes and threads that want the same program at the same time.
//!
//! Nothing here is timed but by bounds that are far from both what is right, a moment, and what is wrong: a wait of a minute,
//! which is the bound where nothing is known of a build, or a build that [`stuck`] never ends.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::support::{Driver, Sandbox, Way, example, is_long, is_root, skipped};

/// Who takes so long has waited for what never ends.
const FAR_TOO_LONG: Duration = Duration::from_secs(40);

fn stub() -> Sandbox {
    let mut sandbox = Sandbox::stub();
    // The stub's variables are in the key, so they are the same for all that shall have the same.
    sandbox.set("STUB_STUCK", sandbox.path("stuck"));
    sandbox
}

/// A source of its own for each number.
fn source(sandbox: &Sandbox, number: usize) -> PathBuf {
    let text = format!(
        "__kernel void f(__global uint *out) {{ out[get_global_id(0)] = {number} + (uint)get_global_id(0); }}\n"
    );
    sandbox.write(&format!("{number}.cl"), text)
}

/// The client with these arguments and files.
fn client(sandbox: &Sandbox, arguments: &[&str], files: &[&Path]) -> Command {
    let mut command = sandbox.command(Way::Cached, example("client"));
    command.args(arguments).args(files);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

/// The client that builds a file once.
fn builder(sandbox: &Sandbox, file: &Path) -> Command {
    client(sandbox, &["keys", "--times", "1", "--source"], &[file])
}

/// A process that is killed if it has not ended.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    fn start(command: &mut Command) -> Running {
        Running(command.spawn().expect("the client"))
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        let stdout = self.0.stdout.as_mut().expect("a pipe");
        BufReader::new(stdout).read_line(&mut line).expect("a line");
        line
    }

    fn tell(&mut self) {
        let stdin = self.0.stdin.as_mut().expect("a pipe");
        stdin.write_all(b"\n").expect("told");
    }

    fn is_running(&mut self) -> bool {
        self.0.try_wait().expect("a child of ours").is_none()
    }

    /// What it said, once it has ended well.
    #[track_caller]
    fn ended(mut self) -> (String, String) {
        drop(self.0.stdin.take());
        let mut said = (String::new(), String::new());
        let (mut stdout, mut stderr) = (self.0.stdout.take(), self.0.stderr.take());
        std::thread::scope(|scope| {
            let read = scope.spawn(|| std::io::read_to_string(stderr.take().expect("a pipe")));
            said.0 = std::io::read_to_string(stdout.take().expect("a pipe")).expect("text");
            said.1 = read.join().expect("no panic").expect("text");
        });
        let status = self.0.wait().expect("a child of ours");
        assert!(status.success(), "{status}: {}\n{}", said.0, said.1);
        said
    }
}

/// Runs them all at once, and gives what they said.
#[track_caller]
fn all(commands: impl IntoIterator<Item = Command>) -> Vec<(String, String)> {
    let running: Vec<Running> = commands
        .into_iter()
        .map(|mut command| Running::start(&mut command))
        .collect();
    running.into_iter().map(Running::ended).collect()
}

fn log(sandbox: &Sandbox) -> String {
    std::fs::read_to_string(sandbox.path("stub.log")).unwrap_or_default()
}

#[track_caller]
fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < FAR_TOO_LONG, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A process that is in the driver with this command's first build, and stays there.
#[track_caller]
fn stuck(sandbox: &Sandbox, mut command: Command) -> Running {
    let before = sandbox.compilations();
    sandbox.write("stuck", "");
    let running = Running::start(&mut command);
    wait_until("a build", || sandbox.compilations() > before);
    wait_until("a stuck build", || !sandbox.path("stuck").exists());
    running
}

#[track_caller]
fn counted(sandbox: &Sandbox, hits: u64, misses: u64, failed: u64) {
    let names = ["hits", "misses", "failed", "bypassed", "set_aside"];
    let counted = names.map(|name| sandbox.stat(name));
    assert_eq!(counted, [hits, misses, failed, 0, 0], "{names:?}");
}

#[test]
fn of_64_processes_that_want_20_programs_one_compiles_each() {
    let mut sandbox = stub();
    sandbox.set("STUB_BUILD_MS", "30");
    let files: Vec<PathBuf> = (0..20).map(|number| source(&sandbox, number)).collect();
    let command = |process: usize| {
        let mut command = client(&sandbox, &["keys", "--times", "1"], &[]);
        // In an order of its own, but that many begin with the same.
        for place in 0..20 {
            let file = &files[(place + process / 8) % 20];
            command.arg("--source").arg(file);
        }
        command
    };
    all((0..64).map(command));
    assert_eq!(sandbox.compilations(), 20);
    counted(&sandbox, 64 * 20 - 20, 20, 0);
}

#[test]
fn of_8_processes_on_a_real_driver_one_compiles_each_program() {
    for driver in [Driver::Pocl, Driver::Intel] {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let files: Vec<PathBuf> = (0..2).map(|number| source(&sandbox, number)).collect();
        let command = |process: usize| {
            let mut command = client(&sandbox, &["keys", "--times", "1"], &[]);
            for place in 0..2 {
                let file = &files[(place + process) % 2];
                command.arg("--source").arg(file);
            }
            command
        };
        all((0..8).map(command));
        let spied = std::fs::read_to_string(sandbox.path("spy.log")).expect("the spy's log");
        assert_eq!(spied.matches("source-build").count(), 2, "{driver:?}");
        counted(&sandbox, 8 * 2 - 2, 2, 0);
    }
}

#[test]
fn of_16_threads_that_want_one_program_one_compiles() {
    let mut sandbox = stub();
    sandbox.set("STUB_BUILD_MS", "200");
    let file = source(&sandbox, 1);
    let mut command = builder(&sandbox, &file);
    command.args(["--threads", "16"]);
    all([command]);
    assert_eq!(sandbox.compilations(), 1);
    counted(&sandbox, 15, 1, 0);
}

#[test]
fn of_8_processes_that_compile_and_link_the_same_one_does_each() {
    let mut sandbox = stub();
    sandbox.set("STUB_BUILD_MS", "200");
    let file = source(&sandbox, 1);
    let arguments = ["linked", "--kernel", "f", "--source"];
    all((0..8).map(|_| client(&sandbox, &arguments, &[&file])));
    // A linked program needs its input made for real, in the process that links.
    let log = log(&sandbox);
    let count = |what| log.lines().filter(|line| line.starts_with(what)).count();
    assert_eq!(count("compile link"), 1, "{log}");
    assert!(count("compile compile") <= 2, "{log}");
    counted(&sandbox, 2 * 8 - 2, 2, 0);
}

/// Six processes wait for one that is killed. `with_child`: a child that it has forked lives on. Gives how many compile then.
#[track_caller]
fn compilations_after_a_kill(sandbox: &Sandbox, file: &Path, with_child: bool) -> usize {
    let mut holder = match with_child {
        false => stuck(sandbox, builder(sandbox, file)),
        true => stuck(sandbox, client(sandbox, &["waiting", "child"], &[file])),
    };
    let child = with_child.then(|| {
        holder.tell();
        let said = holder.line();
        let number = said.strip_prefix("forked ").expect("a child");
        PathBuf::from(format!("/proc/{}", number.trim()))
    });
    let before = sandbox.compilations();
    let started = Instant::now();
    let others: Vec<Running> = (0..6)
        .map(|_| Running::start(&mut builder(sandbox, file)))
        .collect();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(sandbox.compilations(), before, "the others wait");
    // Its standard input stays open, so the child lives on.
    holder.0.kill().expect("killed");
    for other in others {
        other.ended();
    }
    assert!(started.elapsed() < FAR_TOO_LONG);
    assert!(child.is_none_or(|child| child.exists()), "it has lived on");
    sandbox.compilations() - before
}

#[test]
fn if_the_one_that_compiles_is_killed_another_one_does_also_if_a_child_of_it_lives_on() {
    let sandbox = stub();
    for with_child in [false, true] {
        let file = source(&sandbox, with_child.into());
        let compiled = compilations_after_a_kill(&sandbox, &file, with_child);
        assert_eq!(compiled, 1, "with a child: {with_child}");
    }
    counted(&sandbox, 2 * 5, 2, 0);
    // Where no file can be locked it is a socket that the child inherits. Without the file nobody knows whether the holder
    // has ended for good, so all may compile.
    std::fs::remove_file(sandbox.path("cache/v1/locks")).expect("removed");
    std::fs::create_dir(sandbox.path("cache/v1/locks")).expect("made");
    let file = source(&sandbox, 2);
    assert_ne!(compilations_after_a_kill(&sandbox, &file, true), 0);
}

/// The most builds that were in the stub's compiler at once.
fn at_once(log: &str) -> usize {
    let mut now = 0_usize;
    let mut most = 0;
    for line in log.lines() {
        match line.split(' ').next() {
            Some("compile") => now += 1,
            Some("done") => now -= 1,
            _ => {}
        }
        most = most.max(now);
    }
    most
}

/// One after another they would take as long as all together.
#[test]
fn what_cannot_be_had_from_the_cache_is_built_by_all_at_the_same_time() {
    let mut sandbox = stub();
    sandbox.set("STUB_BUILD_MS", "1500");
    let failing = sandbox.write("failing.cl", "#error told to fail\n");
    let arguments = ["run", "--kernel", "f", "--source"];
    all((0..8).map(|_| client(&sandbox, &arguments, &[&failing])));
    assert_eq!(sandbox.compilations(), 8);
    assert!(at_once(&log(&sandbox)) >= 4, "{}", log(&sandbox));
    counted(&sandbox, 0, 0, 8);
    // No disk has as much left.
    sandbox.set("OCLCACHE_MIN_FREE", "1000000T");
    std::fs::remove_file(sandbox.path("stub.log")).expect("removed");
    let file = source(&sandbox, 1);
    all((0..8).map(|_| builder(&sandbox, &file)));
    assert_eq!(sandbox.compilations(), 8);
    assert!(at_once(&log(&sandbox)) >= 4, "{}", log(&sandbox));
    counted(&sandbox, 0, 8, 8);
}

/// Where a miss leaves a recipe there is nothing to serve after it. Who waited then builds, at the same time as all others: from the
/// driver's own cache, where it has one.
#[test]
fn what_is_left_to_be_baked_is_built_by_one_and_then_by_all_others_at_the_same_time() {
    let mut sandbox = stub();
    sandbox.set("OCLCACHE_RECORD", "bake");
    sandbox.set("STUB_BUILD_MS", "1500");
    let file = source(&sandbox, 1);
    for (hits, misses) in [(0, 8), (0, 16), (0, 24)] {
        let _ = std::fs::remove_file(sandbox.path("stub.log"));
        all((0..8).map(|_| builder(&sandbox, &file)));
        let log = log(&sandbox);
        let first: Vec<&str> = log.lines().take(2).collect();
        assert!(first[1].starts_with("done"), "{log}");
        assert_eq!(sandbox.compilations(), 8);
        assert!(at_once(&log) >= 4, "{log}");
        counted(&sandbox, hits, misses, 0);
    }
}

#[test]
fn nobody_waits_who_wants_another_program_or_no_entry() {
    let sandbox = stub();
    let (file, other) = (source(&sandbox, 1), source(&sandbox, 2));
    let mut holder = stuck(&sandbox, builder(&sandbox, &file));
    let mut commands = vec![builder(&sandbox, &other)];
    for setting in ["OCLCACHE_READONLY", "OCLCACHE_RECACHE"] {
        let mut command = builder(&sandbox, &file);
        command.env(setting, "1");
        commands.push(command);
    }
    let started = Instant::now();
    for command in commands {
        all([command]);
    }
    assert!(started.elapsed() < FAR_TOO_LONG);
    assert!(holder.is_running());
    assert_eq!(sandbox.compilations(), 4);
}

#[test]
fn a_build_that_never_ends_is_waited_for_until_the_bound() {
    if !is_long("a wait of a minute") {
        return;
    }
    let sandbox = stub();
    let file = source(&sandbox, 1);
    let mut holder = stuck(&sandbox, builder(&sandbox, &file));
    let started = Instant::now();
    all((0..4).map(|_| builder(&sandbox, &file)));
    let elapsed = started.elapsed().as_secs();
    assert!((60..90).contains(&elapsed), "{elapsed} s");
    assert!(holder.is_running());
    // Who gives up first may have been quick enough for the others.
    assert_eq!(sandbox.stat("hits") + sandbox.stat("misses"), 4);
}

/// In a callback the driver may hold locks, and the thread one of ours.
#[test]
fn a_build_in_a_callback_waits_for_nobody() {
    let mut sandbox = stub();
    let files = [1, 2].map(|number| source(&sandbox, number));
    for asynchronous in ["0", "1"] {
        sandbox.set("STUB_ASYNC", asynchronous);
        let mut holder = stuck(&sandbox, builder(&sandbox, &files[1]));
        let started = Instant::now();
        let command = client(&sandbox, &["waiting", "nested"], &[&files[0], &files[1]]);
        let (said, log) = all([command]).remove(0);
        assert!(
            said.ends_with("build: code 0\nnested: code Some(0)\n"),
            "{said}{log}"
        );
        assert!(started.elapsed() < FAR_TOO_LONG);
        assert!(holder.is_running());
    }
    // The outer one, and twice the inner one.
    assert_eq!(sandbox.compilations(), 2 * 3);
}

#[test]
fn processes_that_build_two_programs_in_opposite_order_from_callbacks_do_not_block_each_other() {
    let mut sandbox = stub();
    sandbox.set("STUB_BUILD_MS", "200");
    let files = [1, 2].map(|number| source(&sandbox, number));
    for asynchronous in ["0", "1"] {
        sandbox.set("STUB_ASYNC", asynchronous);
        let command = |process: usize| {
            let (outer, inner) = (&files[process % 2], &files[(process + 1) % 2]);
            client(&sandbox, &["waiting", "nested"], &[outer, inner])
        };
        let started = Instant::now();
        for (said, log) in all((0..8).map(command)) {
            assert!(
                said.ends_with("build: code 0\nnested: code Some(0)\n"),
                "{said}{log}"
            );
        }
        assert!(started.elapsed() < FAR_TOO_LONG);
    }
}

#[test]
fn a_thread_that_is_canceled_while_it_waits_ends_no_process() {
    let sandbox = stub();
    let file = source(&sandbox, 1);
    let holder = stuck(&sandbox, builder(&sandbox, &file));
    let mut waiting = Running::start(&mut client(&sandbox, &["waiting", "canceled"], &[&file]));
    // It has its turn when the other is gone, whether it waits by now or not.
    std::thread::sleep(Duration::from_millis(300));
    waiting.tell();
    assert_eq!(waiting.line(), "canceled\n");
    drop(holder);
    let (said, log) = waiting.ended();
    assert_eq!(said, "build: code 0\n", "{log}");
}

/// PoCL and Intel's CPU runtime hold a reference of their own while they build.
#[test]
fn a_program_that_is_released_while_its_build_waits_is_built_and_goes_then() {
    let sandbox = stub();
    let file = source(&sandbox, 1);
    let holder = stuck(&sandbox, builder(&sandbox, &file));
    let mut waiting = Running::start(&mut client(&sandbox, &["waiting", "released"], &[&file]));
    assert_eq!(waiting.line(), "released: code 0\n");
    drop(holder);
    let (said, log) = waiting.ended();
    assert_eq!(said, "build: code 0\n", "{log}");
}

#[test]
fn a_forked_child_is_served_with_what_its_parent_was_building() {
    let mut sandbox = stub();
    sandbox.set("STUB_BUILD_MS", "1500");
    let file = source(&sandbox, 1);
    let mut parent = Running::start(&mut client(&sandbox, &["waiting", "fork"], &[&file]));
    wait_until("a build", || sandbox.compilations() == 1);
    parent.tell();
    let (said, log) = parent.ended();
    assert_eq!(said, "child: build 0 exit 0\nbuild: code 0\n", "{log}");
    assert_eq!(sandbox.compilations(), 1, "{log}");
    counted(&sandbox, 1, 1, 0);
}

/// It is neither waited for nor written, and a socket is the lock then.
#[test]
fn one_process_compiles_whatever_is_in_the_place_of_the_file_of_locks() {
    let mut sandbox = stub();
    sandbox.set("STUB_BUILD_MS", "300");
    let precious = sandbox.write("precious", "mine");
    std::fs::create_dir_all(sandbox.path("cache/v1")).expect("made");
    let locks = sandbox.path("cache/v1/locks");
    let fifo = || {
        let made = Command::new("mkfifo").arg(&locks).status();
        assert!(made.expect("mkfifo").success());
    };
    let mut places: Vec<Box<dyn Fn()>> = vec![
        Box::new(fifo),
        Box::new(|| std::fs::create_dir(&locks).expect("made")),
        Box::new(|| std::os::unix::fs::symlink(&precious, &locks).expect("made")),
        Box::new(|| std::fs::hard_link(&precious, &locks).expect("made")),
    ];
    if is_root() {
        places.push(Box::new(|| {
            std::fs::write(&locks, "another's").expect("written");
            std::os::unix::fs::chown(&locks, Some(12345), None).expect("given away");
        }));
    } else {
        skipped("a file of locks of another user: this is not root");
    }
    let started = Instant::now();
    for (number, place) in places.iter().enumerate() {
        place();
        let file = source(&sandbox, number);
        all((0..3).map(|_| builder(&sandbox, &file)));
        assert_eq!(sandbox.entries().len(), number + 1);
        assert_eq!(sandbox.compilations(), number + 1);
        let _ = std::fs::remove_file(&locks);
        let _ = std::fs::remove_dir(&locks);
    }
    assert!(started.elapsed() < FAR_TOO_LONG);
    assert_eq!(std::fs::read(&precious).expect("read"), b"mine");
}
