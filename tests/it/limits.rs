//! What keeps the cache small: limits that programs hold while they store, and `oclcache gc`, which holds them at once.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use crate::copies::update;
use crate::support::{Driver, SOURCE, Sandbox, Way, copy_program, example, python, skipped, tree};
/// What an entry of these sources takes on the disk, in bytes.
const ENTRY: u64 = 4096;

/// Builds the program of this number, and tells whether it was compiled.
fn build(sandbox: &Sandbox, number: usize) -> bool {
    let before = sandbox.compilations();
    let options = format!("-DN={number}");
    sandbox.kernel(Way::Cached, SOURCE, &options).ok();
    sandbox.compilations() > before
}

fn age(path: &Path, age: Duration) {
    let file = fs::File::open(path).expect("opened");
    file.set_modified(SystemTime::now() - age).expect("dated");
}

const DAY: Duration = Duration::from_secs(86400);

#[test]
fn a_program_removes_what_was_not_used_for_longest_where_the_cache_is_full() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("OCLCACHE_MAX_SIZE", format!("{}B", 4 * ENTRY));
    sandbox.set("OCLCACHE_MIN_FREE", "0");
    for number in 0..4 {
        assert!(build(&sandbox, number));
    }
    for entry in sandbox.entries() {
        sandbox.was_used(&entry, DAY);
    }
    for number in 4..9 {
        // Used by every second program.
        assert!(!build(&sandbox, 0), "before {number}");
        assert!(build(&sandbox, number));
        assert!(sandbox.entries().len() <= 4);
    }
    assert!(!build(&sandbox, 8), "the last one");
    assert!(build(&sandbox, 1), "one that nobody uses");
    assert_eq!(sandbox.stat("evicted"), 6);
    assert_eq!(sandbox.stat("bytes"), 4 * ENTRY);
}

#[test]
fn a_program_stores_nothing_where_too_little_is_free_and_says_so() {
    let mut sandbox = Sandbox::stub();
    sandbox.kernel(Way::Cached, SOURCE, "-DN=0").ok();
    sandbox.set("OCLCACHE_MIN_FREE", "1000000T");
    let ran = sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    assert!(ran.stderr.contains("OCLCACHE_MIN_FREE"), "{}", ran.stderr);
    assert_eq!(sandbox.stat("not_stored"), 1);
    // The same where a recipe is to be stored.
    sandbox.set("OCLCACHE_RECORD", "bake");
    sandbox.kernel(Way::Cached, SOURCE, "-DN=2").ok();
    sandbox.set("OCLCACHE_RECORD", "auto");
    let explained = sandbox.oclcache(&["explain", "--last", "2"]).ok().stdout;
    let no_room = explained.matches("not stored: there is no room").count();
    assert_eq!(no_room, 2, "{explained}");
    sandbox.oclcache(&["gc"]).ok();
    // What is there cannot make up for it, and serves.
    assert_eq!(sandbox.entries().len(), 1);
    sandbox.kernel(Way::Cached, SOURCE, "-DN=0").ok();
    assert_eq!((sandbox.stat("hits"), sandbox.stat("evicted")), (1, 0));
}

/// On a file system in memory that is full, directories can be made, and no file can be filled.
#[test]
fn where_nothing_can_be_counted_a_run_names_the_full_disk() {
    let sandbox = Sandbox::stub();
    let source = sandbox.write("kernel.cl", SOURCE);
    let disk = sandbox.path("disk");
    fs::create_dir(&disk).expect("made");
    let script = "mount -t tmpfs -o size=200k,mode=700 none \"$1\" || exit 99; \
        cat /dev/zero > \"$1/filler\" 2> /dev/null; shift; exec \"$@\"";
    let mut command = sandbox.command(Way::Bare, "unshare");
    command
        .args(["-m", "--", "sh", "-c", script, "sh"])
        .arg(&disk)
        .arg(sandbox.installed())
        .arg("run")
        .arg(example("client"))
        .args(["run", "--kernel", "f", "--source"])
        .arg(source)
        .env("OCLCACHE_DIR", disk.join("cache"));
    let ran = sandbox.run(&mut command);
    if ran.code == Some(99) || ran.stderr.contains("unshare") {
        return skipped("a run on a full disk (it needs to mount one)");
    }
    let ran = ran.ok();
    assert_eq!(ran.source_builds(), 1, "{}", ran.stderr);
    for words in ["No space left on device", "make room there"] {
        assert!(ran.stderr.contains(words), "{}", ran.stderr);
    }
    assert!(!ran.stderr.contains("used the cache"), "{}", ran.stderr);
}

#[test]
fn limits_that_are_none_are_told_and_the_defaults_hold() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("OCLCACHE_MAX_SIZE", "much");
    sandbox.set("OCLCACHE_MIN_FREE", "5 %");
    sandbox.set("OCLCACHE_MAX_AGE", "old");
    let ran = sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    for key in ["max_size", "min_free", "max_age"] {
        assert!(
            ran.stderr.contains(&format!("`{key}` is `")),
            "{}",
            ran.stderr
        );
    }
    assert_eq!(sandbox.entries().len(), 1);
    let ran = sandbox.oclcache(&["gc", "--max-size", "much"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
}

/// ccache takes a bare number for GiB, other tools take it for bytes, and `gc --max-size 10` with ten bytes removes everything.
#[test]
fn a_size_without_a_unit_is_refused_with_what_may_be_meant() {
    let mut sandbox = Sandbox::stub();
    build(&sandbox, 0);
    let ran = sandbox.oclcache(&["gc", "--max-size", "10"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    for meant in ["10G", "10M", "10B"] {
        assert!(ran.stderr.contains(meant), "{meant}: {}", ran.stderr);
    }
    sandbox.set("OCLCACHE_MAX_SIZE", "10");
    sandbox.set("OCLCACHE_MIN_FREE", "10");
    let ran = sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    for key in ["max_size", "min_free"] {
        let said = format!("`{key}` is `10`, which is not");
        assert!(ran.stderr.contains(&said), "{}", ran.stderr);
    }
    assert_eq!(sandbox.entries().len(), 2, "the defaults hold");
    sandbox.oclcache(&["gc", "--max-size", "10B"]).ok();
    assert_eq!(sandbox.entries().len(), 0);
}

#[test]
fn gc_removes_what_is_cheap_to_build_again_before_what_is_dear() {
    let mut sandbox = Sandbox::stub();
    for number in 0..4 {
        build(&sandbox, number);
    }
    sandbox.set("STUB_BUILD_MS", "50");
    build(&sandbox, 100);
    sandbox.set("STUB_BUILD_MS", "0");
    for number in 4..8 {
        build(&sandbox, number);
    }
    let size = format!("{}B", 2 * ENTRY);
    let ran = sandbox.oclcache(&["gc", "--max-size", &size]).ok();
    assert!(
        ran.stderr
            .contains("removed 7 entries (28.0 KiB); left: 2 entries (8.0 KiB)"),
        "{}",
        ran.stderr
    );
    sandbox.set("STUB_BUILD_MS", "50");
    assert!(!build(&sandbox, 100), "the dear one");
    assert_eq!(sandbox.entries().len(), 2);
}

#[test]
fn gc_removes_entries_of_drivers_that_are_gone_or_others_now_first() {
    let mut sandbox = Sandbox::stub();
    let [gone, updated] = ["gone.so", "updated.so"].map(|name| sandbox.path(name));
    for (number, library) in [&gone, &updated].into_iter().enumerate() {
        copy_program(example("libstub_driver.so"), library);
        sandbox.set("OCLCACHE_VENDORS", library.as_os_str());
        build(&sandbox, number);
    }
    let library = example("libstub_driver.so");
    sandbox.set("OCLCACHE_VENDORS", library.as_os_str());
    build(&sandbox, 2);
    assert_eq!(sandbox.entries().len(), 3);
    fs::remove_file(gone).expect("removed");
    update(&updated);
    let ran = sandbox.oclcache(&["gc", "--max-size", "4096B"]).ok();
    assert!(ran.stderr.contains("removed 2 entries"), "{}", ran.stderr);
    assert!(!build(&sandbox, 2), "the one whose driver is there");
}

#[test]
fn gc_removes_what_was_not_used_for_the_age() {
    let sandbox = Sandbox::stub();
    for number in 0..3 {
        build(&sandbox, number);
    }
    sandbox.was_used(&sandbox.entries()[0], 40 * DAY);
    let ran = sandbox.oclcache(&["gc", "--max-age", "30d"]).ok();
    assert!(ran.stderr.contains("removed 1 entry "), "{}", ran.stderr);
    let before = tree(&sandbox.path("cache/v1/entries"));
    sandbox.oclcache(&["gc"]).ok();
    assert_eq!(tree(&sandbox.path("cache/v1/entries")), before);
}

/// The cache may be in a directory that its user has other things in, also where the cache would have its own.
#[test]
fn gc_removes_old_formats_and_leftovers_and_nothing_else() {
    let sandbox = Sandbox::stub();
    build(&sandbox, 0);
    let cache = sandbox.path("cache");
    let leave = |name: &str, content: &str, old: Option<Duration>| {
        let path = cache.join(name);
        fs::create_dir_all(path.parent().expect("a parent")).expect("made");
        fs::write(&path, content).expect("written");
        if let Some(old) = old {
            age(&path, old);
        }
    };
    let key = "ab".repeat(32);
    let entry = |format: &str| format!("{format}/entries/ab/{key}.entry");
    let ours = [
        (entry("v0"), "oclcache, of another version"),
        (format!("v0/aside/{key}.entry"), "oclcache"),
        ("v0/tmp/new-7-0".to_owned(), "oclcache"),
        ("v0/stats/total.json".to_owned(), ""),
        (
            "v0/archive-key".to_owned(),
            "a key of an archive, 32 bytes it",
        ),
        ("v5/sizes".to_owned(), "oclcsiz9"),
    ];
    let theirs = [
        "v2/entries/aa/x.entry",
        "v0/journal",
        "v0/drivers",
        "v0/locks",
        "v5/stats/total.json",
        "v5/archive-key",
        "v6/notes",
        "v8/entries/x",
        "v9/x",
        "mine/x",
        "v1x/x",
        "v1/aside/x.entry",
        "v1/aside/notes",
        "v1/stats/mine",
        "v1/stats/new-x",
        "v1/stats/new-3-4",
        "v1/tmp/new-plan.txt",
        "v1/tmp/new-3-4",
        "v1/entries/ab/notes.txt",
        "v1/entries/ab/new-chapter",
    ];
    for (name, content) in &ours {
        leave(name, content, Some(60 * DAY));
    }
    for name in theirs {
        leave(name, "precious", Some(60 * DAY));
    }
    // In a place where a key would have it, and with another content.
    let foreign = [
        format!("v1/loading/{key}"),
        format!("v1/baking/{key}"),
        format!("v0/loading/{key}"),
        format!("v0/baking/{key}"),
        format!("v0/names/{key}"),
        format!("v0/audit/{key}"),
    ];
    for name in &foreign {
        leave(name, "precious", Some(60 * DAY));
    }
    leave(&entry("v6"), "oclcache", None);
    leave(&entry("v7"), "oclcache", None);
    let precious = sandbox.write("precious", "mine");
    std::os::unix::fs::symlink(&precious, cache.join("v0/link")).expect("linked");
    for name in ["v0", "v2", "v5", "v6", "v8", "v9", "mine", "v1x"] {
        age(&cache.join(name), 31 * DAY);
    }
    leave("v1/tmp/new-1-1", "", Some(DAY));
    leave("v1/tmp/new-1-3", "oclcache", Some(DAY));
    leave("v1/tmp/new-1-2", "", None);
    leave(
        &format!("v1/loading/{}", "cd".repeat(32)),
        "+",
        Some(10 * DAY),
    );
    let ran = sandbox.oclcache(&["gc"]).ok();
    let words = "3 files left by killed processes";
    assert!(ran.stderr.contains(words), "{}", ran.stderr);
    let words = "7 files of old formats";
    assert!(ran.stderr.contains(words), "{}", ran.stderr);
    // A process that only builds removes no more.
    assert!(!build(&sandbox, 0));
    for (name, _) in &ours {
        assert!(!cache.join(name).exists(), "{name}");
    }
    for name in theirs.into_iter().chain(foreign.iter().map(String::as_str)) {
        let content = fs::read(cache.join(name));
        assert_eq!(content.ok().as_deref(), Some(&b"precious"[..]), "{name}");
    }
    for (name, there) in [
        ("v0/entries", false),
        ("v0/link", true),
        ("v5", true),
        (&*entry("v6"), false),
        (&*entry("v7"), true),
        ("v1/tmp/new-1-1", false),
        ("v1/tmp/new-1-2", true),
        ("v1/tmp/new-1-3", false),
    ] {
        assert_eq!(cache.join(name).symlink_metadata().is_ok(), there, "{name}");
    }
    assert_eq!(fs::read(precious).expect("read"), b"mine");
    sandbox.oclcache(&["clear"]);
    for name in theirs.into_iter().chain(foreign.iter().map(String::as_str)) {
        assert!(cache.join(name).exists(), "{name}");
    }
}

#[test]
fn a_program_sweeps_now_and_then() {
    let sandbox = Sandbox::stub();
    build(&sandbox, 0);
    let leftover = sandbox.path("cache/v1/tmp/new-1-1");
    fs::write(&leftover, "oclcache").expect("written");
    age(&leftover, DAY);
    build(&sandbox, 1);
    assert!(leftover.exists(), "swept a moment ago");
    age(&sandbox.path("cache/v1/swept"), DAY);
    build(&sandbox, 2);
    assert!(!leftover.exists());
}

/// Locks the byte that the file of locks has for whoever removes entries (`store::lock`), until its input ends.
const EVICTS: &str = "
import fcntl, sys
file = open(sys.argv[1], 'r+b')
fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 3 << 61)
print('locked', flush=True)
sys.stdin.read()
";

#[test]
fn nobody_waits_for_a_process_that_removes_entries_and_never_ends() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("OCLCACHE_MAX_SIZE", format!("{}B", 2 * ENTRY));
    sandbox.set("OCLCACHE_MIN_FREE", "0");
    build(&sandbox, 0);
    build(&sandbox, 1);
    let mut evictor = Command::new(python())
        .args(["-c", EVICTS])
        .arg(sandbox.path("cache/v1/locks"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("Python");
    let mut said = [0; 7];
    let mut output = evictor.stdout.take().expect("a pipe");
    output.read_exact(&mut said).expect("the lock");
    assert!(!build(&sandbox, 0) && !build(&sandbox, 1), "served");
    assert!(build(&sandbox, 2), "stored beyond the limit");
    assert_eq!(sandbox.entries().len(), 3);
    drop(evictor.stdin.take());
    evictor.wait().expect("ended");
    build(&sandbox, 3);
    assert_eq!(sandbox.entries().len(), 2);
}

#[test]
fn a_program_that_may_write_no_large_file_is_not_ended_for_ours() {
    let sandbox = Sandbox::stub();
    let source = sandbox.write("f.cl", SOURCE);
    for blocks in ["2", "20", "200"] {
        let mut limited = sandbox.command(Way::Cached, "sh");
        limited
            .args(["-c", "ulimit -f \"$0\" && exec \"$@\"", blocks])
            .arg(example("client"))
            .args(["keys", "--times", "2", "--options", "-DN=1", "--source"])
            .arg(&source);
        sandbox.run(&mut limited).ok();
    }
    assert!(
        !build(&sandbox, 1),
        "where there is room for it, it is stored"
    );
}

/// Ours stay open, and the driver needs some when it compiles.
#[test]
fn a_program_with_few_descriptors_left_gets_what_the_driver_gives_it() {
    let shared = |left: &str| vec![left.to_owned()];
    // Of a thread that shares none.
    let own = |left: &str| vec![left.to_owned(), "own".to_owned()];
    // A fresh cache takes some seconds on a real driver.
    let of_stub = ["0", "2", "4", "6", "8", "12", "20"];
    for (driver, cases) in [
        (Driver::Stub, of_stub.map(shared).to_vec()),
        (Driver::Stub, of_stub.map(own).to_vec()),
        (Driver::Pocl, vec![shared("2"), shared("8"), own("2")]),
        (Driver::Intel, vec![own("2")]),
    ] {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        for left in &cases {
            // The driver's own cache and ours are fresh each time.
            let run = |sandbox: &mut Sandbox, way| {
                let place = format!("{way:?}-{}", left.join("-"));
                for (name, of) in [("OCLCACHE_DIR", "ours"), ("POCL_CACHE_DIR", "pocl")] {
                    sandbox.set(name, sandbox.path(&format!("{of}-{place}")));
                }
                let arguments = ["few"].into_iter().chain(left.iter().map(String::as_str));
                sandbox.client(way, &arguments.collect::<Vec<_>>()).ok()
            };
            let bare = run(&mut sandbox, Way::Bare);
            let ran = run(&mut sandbox, Way::Cached);
            assert_eq!(
                ran.stdout, bare.stdout,
                "{driver:?}, {left:?}: {}",
                ran.stderr
            );
            let stored = sandbox.stat("misses");
            assert_eq!(stored, 1, "{driver:?}, {left:?}: {}", ran.stderr);
        }
    }
}

/// PoCL writes the files of a binary when it loads it. A process that may write no files, or small ones only, is ended by that, and
/// is not where the driver's own build fails.
#[test]
fn a_process_that_may_write_no_file_gets_what_the_driver_gives_it() {
    for driver in Driver::ALL {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let source = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 3; }\n";
        for _ in 0..2 {
            sandbox.kernel(Way::Cached, source, "").ok();
        }
        let hits = sandbox.stat("hits");
        assert!(hits > 0, "{driver:?}");
        // The spy would write a log.
        let real = sandbox.path("real");
        fs::create_dir(&real).expect("made");
        sandbox.write("real/driver.icd", driver.library().expect("it is there"));
        let source = sandbox.write("kernel.cl", source);
        let run = |way, blocks: u32| {
            let mut limited = sandbox.command(way, "sh");
            if way == Way::Bare {
                limited.env("OCL_ICD_VENDORS", &real);
            }
            limited
                .env("OCLCACHE_VENDORS", &real)
                .env_remove("STUB_LOG")
                .args(["-c", "ulimit -f \"$0\" && exec \"$@\""])
                .arg(blocks.to_string())
                .arg(example("client"))
                .args(["run", "--kernel", "f", "--options", "", "--source"])
                .arg(&source);
            let ran = sandbox.run(&mut limited);
            (ran.stdout, ran.code, ran.signal)
        };
        for blocks in [0, 1, 8] {
            let (bare, cached) = (run(Way::Bare, blocks), run(Way::Cached, blocks));
            assert_eq!(cached, bare, "{driver:?}, {blocks} blocks");
        }
    }
}
