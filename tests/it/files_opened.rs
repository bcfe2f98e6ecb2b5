//! Which files are opened, and when: by system-call traces.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Stdio};

use crate::support::{Driver, SOURCE, Sandbox, Way, example, skipped};
pub fn has_strace(test: &str) -> bool {
    let mut command = Command::new("strace");
    let there = command.arg("-V").stdout(Stdio::null()).status().is_ok();
    if !there {
        skipped(format_args!("{test} (no strace)"));
    }
    there
}

/// The files that a run of the client opens, each as often as it does, with the whole path.
pub fn opened(sandbox: &Sandbox, way: Way, arguments: &[&str]) -> Vec<String> {
    opened_and_said(sandbox, way, arguments).0
}

/// The same, and what it writes to standard error.
fn opened_and_said(sandbox: &Sandbox, way: Way, arguments: &[&str]) -> (Vec<String>, String) {
    let trace = sandbox.path("trace");
    let mut command = sandbox.command(way, "strace");
    command
        .args([
            "-f",
            "-y",
            "-s",
            "4096",
            "-e",
            "trace=open,openat,openat2,creat",
            "-o",
        ])
        .arg(&trace)
        .arg(example("client"))
        .args(arguments)
        .env("OCLCACHE_LOG", "debug")
        .stdin(Stdio::null());
    let said = sandbox.run(&mut command).ok().stderr;
    let text = fs::read_to_string(&trace).expect("a trace");
    // ... openat(3</a>, "b", O_RDONLY) = 4</a/b>
    let opened = text.lines().filter_map(|line| {
        let (_, result) = line.rsplit_once(" = ")?;
        let (_, path) = result.split_once('<')?;
        Some(path.strip_suffix('>')?.to_owned())
    });
    (opened.collect(), said)
}

#[test]
fn what_a_process_has_built_before_is_built_again_without_a_file() {
    if !has_strace("a system-call trace of the second build") {
        return;
    }
    for driver in [Driver::Stub, Driver::Pocl, Driver::Intel] {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let source = sandbox.write("kernel.cl", SOURCE);
        let source = source.to_str().expect("a path");
        let of_store = |times: &str| {
            let arguments = [
                "keys",
                "--source",
                source,
                "--options",
                "-DN=3",
                "--times",
                times,
            ];
            let opened = opened(&sandbox, Way::Cached, &arguments);
            let entries = sandbox.path("cache").display().to_string();
            let is_ours = |path: &&String| path.starts_with(&entries) && path.contains("/entries");
            opened.iter().filter(is_ours).count()
        };
        // The first is a miss, the second load also notes that the driver takes the entry.
        of_store("2");
        let once = of_store("1");
        assert!(once > 0, "{driver:?}: nothing was looked up");
        assert_eq!(of_store("20"), once, "{driver:?}");
        assert_eq!(sandbox.stat("hits"), 1 + 1 + 20, "{driver:?}");
    }
}

/// A handler of a signal may end the process in the middle of malloc(3), which then waits for ever, so nothing may be opened at the end.
#[test]
fn what_a_kernel_tells_is_stored_at_a_release_and_not_at_the_end() {
    if !has_strace("a system-call trace of the end of a process") {
        return;
    }
    for (how, expected) in [("created", false), ("released", true)] {
        let sandbox = Sandbox::stub();
        let trace = sandbox.path("trace");
        let mut command = sandbox.command(Way::Cached, "strace");
        command
            .args(["-y", "-e", "trace=openat,write", "-o"])
            .arg(&trace);
        sandbox
            .run(command.arg(example("client")).args(["behind", how]))
            .ok();
        let text = fs::read_to_string(&trace).expect("a trace");
        let (_, behind) = text.split_once("kernel: code 0").expect("a kernel");
        let (before, end) = behind.split_once("the end").expect("an end");
        assert_eq!(before.contains("/entries/"), expected, "{how}: {before}");
        assert!(!end.contains("openat("), "{how}: {end}");
    }
}

#[test]
fn before_the_first_build_nothing_is_opened_but_the_drivers_and_what_names_them() {
    if !has_strace("a system-call trace of a process that builds nothing") {
        return;
    }
    for driver in [Driver::Stub, Driver::Pocl, Driver::Intel] {
        let Some(sandbox) = Sandbox::new(driver) else {
            continue;
        };
        fs::create_dir_all(sandbox.path("home/.config/oclcache")).expect("made");
        let config = sandbox.write("home/.config/oclcache/config.toml", "max_size = \"1G\"\n");
        let config = config.display().to_string();
        // It lists platforms and makes a context, and builds what standard input says.
        let opened = |way| {
            let (opened, said) = opened_and_said(&sandbox, way, &["turns"]);
            // PoCL tries whether it can write, with a file of a random name.
            let counts = |path: &String| {
                let is_of_process = path.starts_with("/proc/") && path != "/proc/self/cgroup";
                !(is_of_process || path.starts_with("/dev/") || path.contains("/tempfile_"))
            };
            let opened = opened.into_iter().filter(counts);
            (opened.collect::<BTreeSet<_>>(), said)
        };
        let (bare, _) = opened(Way::Bare);
        let used = sandbox.path("cache/v1/entries");
        for is_used in [false, true] {
            if is_used {
                fs::create_dir_all(&used).expect("made");
            }
            let (cached, said) = opened(Way::Cached);
            assert!(cached.contains(&config), "{driver:?}: {cached:?}");
            let more = cached.difference(&bare).filter(|path| {
                let names_drivers =
                    path.ends_with(".icd") || path.ends_with("/oclcache") || path.ends_with("/spy");
                !names_drivers && !path.ends_with("/liboclcache.so") && **path != config
            });
            // On a busy machine any driver may take long, and is then read meanwhile if nothing can be known of it.
            if is_used || !said.contains("the driver takes long") {
                assert_eq!(more.collect::<Vec<_>>(), [""; 0], "{driver:?}");
            }
            assert_eq!(sandbox.path("cache").exists(), is_used, "{driver:?}");
        }
        let entries = fs::read_dir(&used).expect("read");
        assert_eq!(entries.count(), 0, "{driver:?}");
    }
}
