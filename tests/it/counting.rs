//! Statistics: each event of each process is counted once, however the process ends, and counting does no harm.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitStatus, Stdio};

use crate::privilege::Disk;
use crate::support::{Driver, Sandbox, Way, example, is_root, live_directories, skipped, tree};

/// A client that does what it is told, line by line.
pub struct Turns {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Turns {
    pub fn begin(sandbox: &Sandbox) -> Turns {
        Turns::of(sandbox, &example("client"))
    }

    /// The client is a copy of that one.
    pub fn of(sandbox: &Sandbox, client: &Path) -> Turns {
        let mut command = sandbox.command(Way::Cached, client);
        command.arg("turns").env_remove("OCLCACHE_LOG");
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = piped.spawn().expect("started");
        Turns {
            input: child.stdin.take().expect("a pipe"),
            output: BufReader::new(child.stdout.take().expect("a pipe")),
            child,
        }
    }

    fn tell(&mut self, line: &str) {
        writeln!(self.input, "{line}").expect("it reads");
    }

    /// Tells it to do something, and waits until that is done.
    #[track_caller]
    pub fn turn(&mut self, line: &str, answer: &str) {
        self.tell(line);
        let mut said = String::new();
        self.output.read_line(&mut said).expect("it answers");
        assert_eq!(said.trim_end(), answer, "{line}");
    }

    pub fn end(mut self, how: Option<&str>) -> ExitStatus {
        if let Some(how) = how {
            self.tell(how);
        }
        drop(self.input);
        self.child.wait().expect("it ends")
    }

    fn maps(&self) -> String {
        fs::read_to_string(format!("/proc/{}/maps", self.child.id())).expect("it lives")
    }
}

fn fresh() -> Sandbox {
    Sandbox::stub()
}

#[track_caller]
fn assert_counts(sandbox: &Sandbox, hits: u64, misses: u64) {
    assert_eq!(
        [sandbox.stat("hits"), sandbox.stat("misses")],
        [hits, misses]
    );
}

/// The files of processes that nobody has merged yet.
fn files(sandbox: &Sandbox) -> usize {
    let places = live_directories(&sandbox.path("cache")).into_iter();
    let places = places.chain([sandbox.path("cache/v1/stats")]);
    let listed = places.flat_map(|place| fs::read_dir(place).expect("listed"));
    let names = listed.map(|entry| entry.expect("read").file_name());
    names
        .filter(|name| name.to_string_lossy().split('-').count() == 4)
        .count()
}

#[test]
fn each_event_is_in_the_file_at_once_and_stays_there_whatever_becomes_of_the_process() {
    let sandbox = fresh();
    for (ends, signal) in [(None, None), (Some("exit"), None), (Some("kill"), Some(9))] {
        sandbox.oclcache(&["clear"]).ok();
        sandbox.oclcache(&["stats", "--zero"]).ok();
        let mut turns = Turns::begin(&sandbox);
        turns.turn("build 0 3", "built 3");
        assert_counts(&sandbox, 0, 3);
        turns.turn("build 0 3", "built 3");
        assert_counts(&sandbox, 3, 3);
        // The same process goes on in the same files: one for misses, and one for all else.
        turns.tell("execute");
        turns.turn("build 0 2", "built 2");
        assert_eq!(files(&sandbox), 2);
        assert_counts(&sandbox, 5, 3);
        // A child has files of its own, and leaves its parent's alone.
        turns.turn("fork 0 4", "child 0");
        assert_eq!(files(&sandbox), 4);
        assert_counts(&sandbox, 8, 4);
        assert_eq!(files(&sandbox), 2, "the child's are merged");
        turns.turn("build 3 4", "built 1");
        assert_counts(&sandbox, 9, 4);
        assert_eq!(turns.end(ends).signal(), signal);
        for _ in 0..2 {
            assert_counts(&sandbox, 9, 4);
        }
        assert_eq!(files(&sandbox), 0);
    }
}

/// Who touches a mapped file beyond its end is ended by SIGBUS, so none is mapped.
#[test]
fn a_process_survives_that_all_its_files_are_cut() {
    for driver in [Driver::Stub, Driver::Pocl, Driver::Intel] {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let mut turns = Turns::begin(&sandbox);
        turns.turn("build 0 2", "built 2");
        let live = live_directories(&sandbox.path("cache"));
        let files = live.iter().cloned().chain([sandbox.path("cache/v1")]);
        let files = files.flat_map(|place| tree(&place).into_keys());
        let cut = |path: &std::path::PathBuf| {
            let file = fs::File::options().write(true).open(path);
            file.and_then(|file| file.set_len(0)).expect("cut");
        };
        // Whoever cuts the file that leads to the live directory takes the counters from the command.
        files
            .filter(|path| path.is_file() && !path.ends_with("v1/live"))
            .for_each(|path| cut(&path));
        let maps = turns.maps();
        for place in ["/cache/v1/", "/dev/shm/oclcache-"] {
            assert!(!maps.contains(place), "{driver:?}: {maps}");
        }
        turns.turn("build 0 4", "built 4");
        turns.turn("build 0 4", "built 4");
        // Of what was in memory nothing is lost.
        let all = sandbox.stat("hits") + sandbox.stat("misses");
        assert_eq!(all, 2 + 4 + 4, "{driver:?}");
        assert!(turns.end(None).success(), "{driver:?}");
        // Nothing says any more what they are of.
        for live in live {
            fs::remove_dir_all(live).expect("removed");
        }
    }
}

#[test]
fn removing_the_files_under_a_process_does_it_no_harm() {
    let sandbox = fresh();
    let mut turns = Turns::begin(&sandbox);
    turns.turn("build 0 1", "built 1");
    fs::remove_dir_all(sandbox.path("cache")).expect("removed");
    turns.turn("build 0 2", "built 2");
    turns.turn("fork 0 2", "child 0");
    assert!(turns.end(None).success());
}

/// `sh -c SCRIPT` by `oclcache run`, where `$client` reads its turns.
fn run(sandbox: &Sandbox, script: &str) -> String {
    let mut command: Command = sandbox.command(Way::Bare, sandbox.installed());
    command
        .args(["run", "sh", "-c", script])
        .env("OCLCACHE_DIR", sandbox.path("cache"))
        .env("client", example("client"));
    sandbox.run(&mut command).ok().stderr
}

#[test]
fn a_run_loses_nothing_of_processes_that_end_at_once_or_are_killed() {
    let sandbox = fresh();
    for (how, hits, misses) in [("exit", 0, 4), ("kill", 4, 0)] {
        let script = format!("printf 'build 0 4\\n{how}\\n' | $client turns >&2; exit 0");
        let said = run(&sandbox, &script);
        let line = format!(
            "oclcache: {hits} hits, {misses} {}, 0 bypassed",
            if misses == 1 { "miss" } else { "misses" }
        );
        assert!(said.contains(&line), "{how}:\n{said}");
    }
    assert_counts(&sandbox, 4, 4);
}

#[test]
fn what_outlives_the_run_counts_on() {
    let sandbox = fresh();
    let [input, output] = ["in", "out"].map(|name| sandbox.path(name));
    let made = Command::new("mkfifo").arg(&input).status();
    assert!(made.expect("it runs").success());
    // Opened both ways, which waits for nobody.
    let open = fs::File::options().read(true).write(true).open(&input);
    let mut open = open.expect("opened");
    writeln!(open, "build 0 1").expect("written");
    let files = format!("<{} >{} 2>/dev/null", input.display(), output.display());
    let script = format!(
        "$client turns {files} & until grep -q built {}; do sleep 0.02; done",
        output.display()
    );
    let said = run(&sandbox, &script);
    assert!(said.contains("oclcache: 0 hits, 1 miss, "), "{said}");
    writeln!(open, "build 0 1\nfork 0 2\nexecute").expect("written");
    writeln!(open, "build 0 3\nkill").expect("written");
    let lines = || fs::read_to_string(&output).expect("read").lines().count();
    for _ in 0..1500 {
        if lines() == 4 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert_eq!(lines(), 4);
    assert_counts(&sandbox, 1 + 1 + 2, 1 + 1 + 1);
}

#[test]
fn sixty_four_processes_at_once_are_summed_exactly() {
    let sandbox = fresh();
    let script = "for _ in $(seq 64); do printf 'build 0 10\\nfork 5 15\\n' | $client turns >/dev/null & done; wait";
    let said = run(&sandbox, script);
    let numbers: Vec<u64> = said
        .split(|letter: char| !letter.is_ascii_digit())
        .filter_map(|number| number.parse().ok())
        .collect();
    let [hits, misses, bypassed, ..] = numbers[..] else {
        panic!("{said}");
    };
    assert_eq!((hits + misses, bypassed), (64 * 20, 0), "{said}");
    assert_eq!(misses, sandbox.compilations() as u64);
    for _ in 0..2 {
        assert_counts(&sandbox, hits, misses);
    }
    assert_eq!(files(&sandbox), 0);
}

#[test]
fn a_program_stores_and_counts_on_after_its_cache_was_removed() {
    let sandbox = fresh();
    let cache = sandbox.path("cache");
    let mut turns = Turns::begin(&sandbox);
    turns.turn("build 0 2", "built 2");
    fs::remove_dir_all(&cache).expect("removed");
    turns.turn("build 0 3", "built 3");
    assert_counts(&sandbox, 0, 3);
    let mut later = Turns::begin(&sandbox);
    later.turn("build 0 4", "built 4");
    assert_counts(&sandbox, 3, 3 + 1);
    // What other programs have stored there since is found.
    turns.turn("build 3 4", "built 1");
    assert_counts(&sandbox, 3 + 1, 4);
    // A child opens it for itself.
    fs::remove_dir_all(&cache).expect("removed");
    turns.turn("fork 0 1", "child 0");
    turns.turn("build 0 2", "built 2");
    assert_counts(&sandbox, 1, 1 + 1);
    // What stands in its way for a time does not turn the cache off for good.
    fs::remove_dir_all(&cache).expect("removed");
    fs::write(&cache, "a file").expect("written");
    turns.turn("build 5 6", "built 1");
    fs::remove_file(&cache).expect("removed");
    turns.turn("build 6 8", "built 2");
    assert_counts(&sandbox, 0, 2);
    // Whoever goes on removing it has the last word, and the programs go on, too. What is built is always new: a hit opens nothing.
    let mut opened = 0;
    for number in 10..30 {
        fs::remove_dir_all(&cache).expect("removed");
        turns.turn(&format!("build {number} {}", number + 1), "built 1");
        if !cache.exists() {
            break;
        }
        opened += 1;
    }
    assert_eq!(opened, 16 - 4, "four times before");
    assert!(!cache.exists());
    turns.turn("build 0 4", "built 4");
    assert_eq!(turns.end(None).signal(), None);
}

#[test]
fn a_full_disk_neither_ends_a_process_that_counts_nor_makes_it_count_wrong() {
    let sandbox = fresh();
    let disk = is_root()
        .then(|| Disk::mount(sandbox.path("cache")))
        .flatten();
    let Some(disk) = disk else {
        skipped("counting on a full disk (only root can mount one, and not everywhere)");
        return;
    };
    // Written, then full, with no entry that could make room.
    let mut turns = Turns::begin(&sandbox);
    turns.turn("build 0 2", "built 2");
    fs::remove_dir_all(sandbox.path("cache/v1/entries")).expect("removed");
    disk.fill("ballast");
    turns.turn("build 0 20", "built 20");
    assert_counts(&sandbox, 0, 2 + 20);
    // Full from the start: counters are in memory.
    let mut late = Turns::begin(&sandbox);
    late.turn("build 0 20", "built 20");
    turns.turn("fork 0 20", "child 0");
    let counted = 2 + 20 + 20 + 20;
    assert_counts(&sandbox, 0, counted);
    // From now on they can be merged.
    fs::remove_file(sandbox.path("cache/ballast")).expect("removed");
    late.turn("build 0 1", "built 1");
    assert_counts(&sandbox, 0, counted + 1);
    assert_eq!(turns.end(None).signal(), None);
    assert_eq!(late.end(Some("kill")).signal(), Some(9));
    assert_counts(&sandbox, 0, counted + 1);
}
