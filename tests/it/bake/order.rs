//! Which recipe is baked first, and how long one may take whose kernels never ran.

use std::fs;
use std::path::PathBuf;

use super::{SOURCE, bake, sandbox, stub};
use crate::functions::compile;
use crate::support::{Driver, Sandbox, Way};

/// A kernel that no test runs.
const UNUSED: &str = "__kernel void unused(__global uint *out) { out[get_global_id(0)] = 5; }\n";

/// What `oclcache bake --json` says.
#[track_caller]
fn baked(sandbox: &Sandbox, arguments: &[&str]) -> serde_json::Value {
    let arguments = [&["bake", "--json", "--jobs", "1"], arguments].concat();
    let ran = sandbox.oclcache(&arguments).ok();
    serde_json::from_str(&ran.stdout).expect("JSON")
}

/// The first kernels of these keys.
#[track_caller]
fn kernels(sandbox: &Sandbox, keys: &serde_json::Value) -> Vec<String> {
    let ran = sandbox.oclcache(&["list", "--json"]).ok();
    let listed: serde_json::Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let kernel = |key: &serde_json::Value| {
        let mut rows = listed.as_array().expect("a list").iter();
        let row = rows.find(|row| row["key"] == *key).expect("an entry");
        row["kernels"][0].as_str().expect("a name").to_owned()
    };
    keys.as_array()
        .expect("a list")
        .iter()
        .map(kernel)
        .collect()
}

#[test]
fn what_was_used_last_is_baked_first() {
    let sandbox = stub();
    let run = |kernel: &str| {
        let source = SOURCE.replace(" f(", &format!(" {kernel}("));
        sandbox
            .kernel(Way::Cached, &source, "")
            .ok()
            .source_builds()
    };
    for kernel in ["one", "two", "three", "four", "one"] {
        assert_eq!(run(kernel), 1);
    }
    let said = baked(&sandbox, &[]);
    assert_eq!(
        kernels(&sandbox, &said["baked"]),
        ["one", "four", "three", "two"]
    );
}

/// Runs the linker, but never ends while there is a file.
const SLOW_LINKER: &str = "#include <unistd.h>
int main(int count, char **words) {
    if (!access(SLOW, F_OK))
        sleep(600);
    execv(LINKER, words);
    return 127;
}
";

/// A sandbox of PoCL with a cache of PoCL's own.
fn pocl() -> Option<Sandbox> {
    let mut sandbox = sandbox(Driver::Pocl)?;
    let own = sandbox.path("own");
    sandbox.set("POCL_CACHE_DIR", own.as_os_str());
    Some(sandbox)
}

/// The same, where PoCL links kernels by a linker that never ends while this file is there.
fn slow_linker() -> Option<(Sandbox, PathBuf)> {
    let mut sandbox = pocl()?;
    let slow = sandbox.path("slow");
    let path = std::env::var("PATH").expect("PATH");
    let mut linkers = std::env::split_paths(&path).map(|directory| directory.join("ld"));
    let linker = linkers
        .find(|linker| linker.exists())
        .expect("PoCL needs one");
    let source = sandbox.write("linker.c", SLOW_LINKER);
    fs::create_dir(sandbox.path("tools")).expect("made");
    let [slow_file, linker] = [("SLOW", &slow), ("LINKER", &linker)]
        .map(|(name, path)| format!("-D{name}=\"{}\"", path.display()));
    compile(&sandbox.path("tools/ld"), &source, &[&slow_file, &linker])?;
    let tools = sandbox.path("tools").display().to_string();
    sandbox.set("PATH", format!("{tools}:{path}"));
    Some((sandbox, slow))
}

/// PoCL compiles each kernel when it is asked for a binary, also kernels that no program runs.
#[test]
fn what_never_ran_is_baked_last_and_told() {
    let Some((sandbox, _)) = slow_linker() else {
        return;
    };
    assert_eq!(
        sandbox.kernel(Way::Cached, SOURCE, "").ok().source_builds(),
        1
    );
    // The client finds no kernel `f` to run.
    let ran = sandbox.kernel(Way::Cached, UNUSED, "").ok();
    assert_eq!(ran.source_builds(), 1);
    let said = baked(&sandbox, &[]);
    assert_eq!(kernels(&sandbox, &said["baked"]), ["f", "unused"]);
    assert_eq!(kernels(&sandbox, &said["never_ran"]), ["unused"]);
    let again = sandbox.kernel(Way::Cached, UNUSED, "").ok();
    assert_eq!((again.source_builds(), again.stdout), (0, ran.stdout));
}

/// They are looked at once and put off, which is no progress.
#[test]
fn the_progress_counts_what_never_ran_once() {
    let Some(sandbox) = pocl() else {
        return;
    };
    for number in 0..3 {
        let options = format!("-DN={number}");
        let ran = sandbox.kernel(Way::Cached, UNUSED, &options).ok();
        assert_eq!(ran.source_builds(), 1);
    }
    let said = sandbox.oclcache(&["bake"]).ok().stderr;
    let numbers: Vec<&str> = said
        .lines()
        .filter_map(|line| line.strip_prefix("oclcache: ")?.split_once(", about "))
        .map(|(number, _)| number)
        .collect();
    assert_eq!(numbers, ["1 of 3 done", "2 of 3 done"], "{said}");
}

#[test]
fn what_never_ran_and_takes_long_is_left_until_it_ran_or_all_is_asked_for() {
    for asks_for_all in [false, true] {
        let Some((sandbox, slow)) = slow_linker() else {
            return;
        };
        assert_eq!(
            sandbox.kernel(Way::Cached, UNUSED, "").ok().source_builds(),
            1
        );
        fs::write(&slow, "").expect("written");
        let left = "0 baked, 1 skipped (1: its kernels never ran, and it took longer than 5.0 s; \
            `oclcache bake --all` compiles it), 0 failed";
        assert_eq!(bake(&sandbox, &["--timeout", "5s"]), left);
        // It is not tried again: that would take the usual ten seconds, not five.
        for _ in 0..3 {
            assert_eq!(bake(&sandbox, &[]), left);
        }
        fs::remove_file(&slow).expect("removed");
        if asks_for_all {
            let said = "1 baked (1 never ran), 0 skipped, 0 failed";
            assert_eq!(bake(&sandbox, &["--all"]), said);
        } else {
            let source = sandbox.path("kernel.cl").display().to_string();
            let arguments = [
                "run",
                "--source",
                &source,
                "--options",
                "",
                "--kernel",
                "unused",
            ];
            let ran = sandbox.client(Way::Cached, &arguments).ok();
            assert_eq!(ran.source_builds(), 1, "{}", ran.stderr);
            assert_eq!(bake(&sandbox, &[]), "1 baked, 0 skipped, 0 failed");
        }
    }
}
