//! Processes that do to one store what they like, at once: whatever the others do, each program computes what it must, and what
//! is left is good. These are small samples; `ci/store` does the same with many more.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::support::{Sandbox, Way, example};

const KEYS: &str = "60";

/// A sandbox, and what its programs compute by the bare driver.
fn stub(variables: &[(&str, &str)]) -> Sandbox {
    let mut sandbox = Sandbox::stub();
    for (name, value) in variables {
        sandbox.set(name, *value);
    }
    sandbox.set("OCLCACHE_MIN_FREE", "0");
    let words = sandbox.path("words");
    let words = words.to_str().expect("UTF-8");
    let bare = sandbox.client(Way::Bare, &["many", "--keys", KEYS, "--write", words]);
    bare.ok();
    fs::remove_file(sandbox.path("stub.log")).expect("what was compiled");
    sandbox
}

/// A process that is gone with the test, however that ends.
struct Running(Child);

impl Running {
    fn has_ended(&mut self) -> bool {
        self.0.try_wait().expect("a child").is_some()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(mut command: Command) -> Running {
    Running(command.spawn().expect("a client"))
}

/// A client that builds programs and checks what they compute.
fn client(sandbox: &Sandbox, arguments: &[&str]) -> Command {
    let errors = fs::File::options()
        .create(true)
        .append(true)
        .open(sandbox.path("errors"))
        .expect("made");
    let mut command = sandbox.command(Way::Cached, example("client"));
    command
        .args(["many", "--keys", KEYS, "--expect"])
        .arg(sandbox.path("words"))
        .args(arguments)
        .stdout(Stdio::null())
        .stderr(errors);
    command
}

#[track_caller]
fn ends_well(sandbox: &Sandbox, mut child: Running) {
    let status = child.0.wait().expect("a child");
    let errors = fs::read_to_string(sandbox.path("errors")).unwrap_or_default();
    assert!(status.success(), "{status}: {errors}");
}

/// Runs all programs twice; the second run finds all that the first one stored.
#[track_caller]
fn heals(sandbox: &Sandbox) {
    for _ in 0..2 {
        let before = sandbox.compilations();
        ends_well(sandbox, start(client(sandbox, &[])));
        if sandbox.compilations() == before {
            return;
        }
    }
    panic!("the second run compiled as well");
}

/// Random numbers, the same at each run.
struct Chance(u64);

impl Chance {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005);
        self.0 = self.0.wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % bound
    }

    fn entry(&mut self, sandbox: &Sandbox) -> Option<PathBuf> {
        let mut entries = sandbox.entries();
        if entries.is_empty() {
            return None;
        }
        let index = self.below(entries.len() as u64) as usize;
        Some(entries.swap_remove(index))
    }
}

/// What the entries take on the disk while these processes stand still, and what the largest one takes.
fn allocated(sandbox: &Sandbox, processes: &mut [Running]) -> (u64, u64) {
    let mut stopped = Vec::new();
    for process in processes {
        if !process.has_ended() {
            let id = Pid::from_child(&process.0);
            kill_process(id, Signal::STOP).expect("stopped");
            let how = WaitIdOptions::STOPPED | WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
            waitid(WaitId::Pid(id), how).expect("a child");
            stopped.push(id);
        }
    }
    let files = sandbox.entries();
    let sizes = files.iter().map(|path| path.metadata().expect("an entry"));
    let sizes: Vec<u64> = sizes.map(|metadata| metadata.blocks() * 512).collect();
    for id in stopped {
        let _ = kill_process(id, Signal::CONT);
    }
    (
        sizes.iter().sum(),
        sizes.iter().max().copied().unwrap_or_default(),
    )
}

#[test]
fn processes_that_are_killed_at_any_moment_leave_whole_entries_and_nothing_that_stays() {
    const LIMIT: u64 = 300_000;
    let limit = format!("{LIMIT}B");
    let sandbox = stub(&[("OCLCACHE_MAX_SIZE", &limit), ("STUB_BINARY_BYTES", "9000")]);
    let mut chance = Chance(5);
    let user = |seed: u64| {
        let seed = seed.to_string();
        let arguments = ["--seed", &seed, "--hot", "5", "--seconds", "600"];
        start(client(&sandbox, &arguments))
    };
    let mut pool: Vec<Running> = (1..=3).map(user).collect();
    // On a busy machine most are killed before they have stored anything (measured: all of the first nine), so those are counted that
    // are killed while the cache is full, and all live longer where nothing is stored.
    let (mut killed_when_full, mut number, mut longest_ms, mut before) = (0, 0, 80, 0);
    while killed_when_full < 15 || number < 40 {
        sleep(Duration::from_millis(chance.below(longest_ms)));
        let mut victim = pool.swap_remove(chance.below(3) as usize);
        let ended = victim.0.try_wait().expect("a child");
        let errors = fs::read_to_string(sandbox.path("errors")).unwrap_or_default();
        assert!(ended.is_none(), "not by us: {ended:?}: {errors}");
        drop(victim);
        pool.push(user(number + 4));
        number += 1;
        let (bytes, entry) = allocated(&sandbox, &mut pool);
        let is_full = bytes + 2 * entry > LIMIT;
        killed_when_full += u32::from(is_full);
        longest_ms = match is_full || bytes > before {
            true => 80,
            false => 10_000.min(2 * longest_ms),
        };
        before = bytes;
        assert!(
            bytes <= LIMIT + 3 * entry,
            "{bytes} bytes, {entry} the largest"
        );
    }
    drop(pool);
    assert!(sandbox.stat("evicted") > 0);
    let listed = sandbox.oclcache(&["list", "--json"]).ok().stdout;
    assert!(!listed.contains("\"damaged\": true"), "{listed}");
    ends_well(&sandbox, start(client(&sandbox, &[])));

    // A sweep goes by age.
    let leftovers = || {
        let folders = ["cache/v1/tmp", "cache/v1/loading"].map(|name| sandbox.path(name));
        let files = folders.into_iter().flat_map(fs::read_dir).flatten();
        files.map(|file| file.expect("a file").path())
    };
    for path in leftovers() {
        let file = fs::File::open(path).expect("opened");
        let old = SystemTime::now() - Duration::from_secs(30 * 86400);
        file.set_modified(old).expect("dated");
    }
    sandbox.oclcache(&["gc"]).ok();
    let left: Vec<_> = leftovers()
        .map(|path| {
            let bytes = fs::read(&path).unwrap_or_default();
            let start = String::from_utf8_lossy(&bytes[..bytes.len().min(60)]).into_owned();
            (path, bytes.len(), start)
        })
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn whatever_others_do_to_the_store_programs_compute_what_they_must_and_the_next_one_is_served() {
    let sandbox = stub(&[]);
    let mut chance = Chance(7);
    let user = |seed, variable: Option<(&str, &str)>| {
        let mut command = client(&sandbox, &["--seed", seed, "--seconds", "3"]);
        command.envs(variable);
        start(command)
    };
    let users = [
        user("1", None),
        user("2", Some(("OCLCACHE_READONLY", "1"))),
        user("3", Some(("OCLCACHE_RECACHE", "1"))),
        user("4", Some(("OCLCACHE_MAX_SIZE", "100k"))),
    ];
    let mut users = Vec::from(users);
    let mut rounds = 0;
    while !users[0].has_ended() {
        rounds += 1;
        match chance.below(8) {
            0 => drop(fs::remove_dir_all(sandbox.path("cache"))),
            1 => drop(sandbox.oclcache(&["clear"])),
            2 => drop(sandbox.oclcache(&["gc"])),
            action => {
                let Some(path) = chance.entry(&sandbox) else {
                    continue;
                };
                let bad: &[u8] = match action {
                    3 => b"",
                    4 => b"oclcache, but not for long",
                    _ => {
                        let _ = fs::remove_file(path);
                        continue;
                    }
                };
                let other = sandbox.write("damaged", bad);
                let _ = fs::rename(other, path);
            }
        }
    }
    assert!(rounds > 4, "{rounds}");
    for user in users {
        ends_well(&sandbox, user);
    }
    heals(&sandbox);
}

#[test]
fn writers_exceed_the_limit_by_no_more_than_one_entry_each_and_what_is_used_stays() {
    const LIMIT: u64 = 3_000_000;
    const HOT: u32 = 5;
    let limit = format!("{LIMIT}B");
    let variables = [
        ("OCLCACHE_MAX_SIZE", limit.as_str()),
        ("STUB_BINARY_BYTES", "50000"),
        ("STUB_BUILD_MS", "20"),
    ];
    let sandbox = stub(&variables);
    let hot = HOT.to_string();
    let hot = ["--seed", "1", "--keys", hot.as_str()];
    let used = |seconds: [&str; 2]| client(&sandbox, &[&hot[..], &seconds].concat());
    ends_well(&sandbox, start(used(["--times", "50"])));
    let writer = |number: u32| {
        let first = (number * 1_000_000).to_string();
        let mut command = sandbox.command(Way::Cached, example("client"));
        command.args(["many", "--first", &first, "--keys", "60"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        start(command)
    };
    let mut processes: Vec<Running> = (1..=4).map(writer).collect();
    processes.push(start(used(["--seconds", "600"])));
    let (mut most, mut largest) = (0, 0);
    while !processes[..4].iter_mut().all(Running::has_ended) {
        let (bytes, entry) = allocated(&sandbox, &mut processes);
        (most, largest) = (most.max(bytes), largest.max(entry));
        sleep(Duration::from_millis(20));
    }
    let mut user = processes.pop().expect("the one that uses");
    assert!(!user.has_ended());
    drop(user);
    for writer in processes {
        ends_well(&sandbox, writer);
    }
    assert!(
        (LIMIT * 8 / 10..=LIMIT + 5 * largest).contains(&most),
        "{most} bytes, {largest} the largest"
    );
    let log = fs::read_to_string(sandbox.path("stub.log")).expect("what was compiled");
    let compiled = |key| {
        let option = format!("-DKEY={key}");
        log.lines()
            .filter(|line| line.starts_with("compile") && line.ends_with(&option))
            .count()
    };
    // Once each, but for moments in which their user did not run. Entries that go at random would have gone thrice each.
    let hot: Vec<usize> = (0..HOT).map(compiled).collect();
    assert!(hot.iter().sum::<usize>() <= 2 * HOT as usize, "{hot:?}");
}
