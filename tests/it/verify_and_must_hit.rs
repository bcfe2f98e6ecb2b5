//! OCLCACHE_VERIFY finds a wrong entry and nothing else; OCLCACHE_MUST_HIT names what is compiled.

use std::fs;
use std::path::{Path, PathBuf};

use xxhash_rust::xxh3::xxh3_128;

use crate::differential::SETUPS;
use crate::support::{Driver, Ran, Sandbox, Way, example, some_of};

const RIGHT: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 41; }\n";
/// The same kernel for all who ask.
const OTHER_CODE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 7; }\n";
const OTHER_KERNELS: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = 7; }\n\
    __kernel void g(__global float *out, int n) { out[n] = 1; }\n";

/// Writes the entry of another program in a program's place, as a wrong key would have it: all else about it is right.
fn plant(sandbox: &Sandbox, wrong: &str) {
    sandbox.kernel(Way::Cached, RIGHT, "").ok();
    plant_for(sandbox, wrong);
}

/// The same in place of the only entry.
pub fn plant_for(sandbox: &Sandbox, wrong: &str) {
    let known = |entries: &[PathBuf], path: &Path| entries.iter().any(|known| known == path);
    let [right] = <[PathBuf; 1]>::try_from(sandbox.entries()).expect("one entry");
    sandbox.kernel(Way::Cached, wrong, "").ok();
    let mut entries = sandbox.entries();
    entries.retain(|path| !known(std::slice::from_ref(&right), path));
    let key = 12..44;
    let own = fs::read(&right).expect("read");
    let mut planted = fs::read(&entries[0]).expect("read");
    planted[key.clone()].copy_from_slice(&own[key]);
    let body = planted.len() - 16;
    let checksum = xxh3_128(&planted[..body]).to_le_bytes();
    planted[body..].copy_from_slice(&checksum);
    fs::write(&right, planted).expect("written");
}

const COUNTERS: [&str; 4] = ["verified", "differed", "set_aside", "hits"];

fn counted(sandbox: &Sandbox) -> [u64; 4] {
    COUNTERS.map(|name| sandbox.stat(name))
}

fn is_found(driver: Driver, wrong: &str, named: &str) {
    let Some(mut sandbox) = Sandbox::new(driver) else {
        return;
    };
    let bare = sandbox.kernel(Way::Bare, RIGHT, "").ok();
    plant(&sandbox, wrong);
    let fooled = sandbox.kernel(Way::Cached, RIGHT, "").ok();
    assert_ne!(
        fooled.stdout, bare.stdout,
        "{driver:?}: the planted entry does nothing"
    );
    assert_eq!(counted(&sandbox), [0, 0, 0, 1], "{driver:?}");
    sandbox.set("OCLCACHE_VERIFY", "100");
    sandbox.set("OCLCACHE_LOG", "off");
    let found = sandbox.kernel(Way::Cached, RIGHT, "").ok();
    assert_eq!(found.stdout, bare.stdout, "{driver:?}: {}", found.stderr);
    let lines: Vec<_> = found
        .stderr
        .lines()
        .filter(|line| line.starts_with("oclcache: "))
        .collect();
    assert_eq!(lines.len(), 1, "{driver:?}: {}", found.stderr);
    let words = ["OCLCACHE_VERIFY", "kernels: f", named];
    assert!(
        words.iter().all(|word| lines[0].contains(word)),
        "{driver:?}: {}",
        lines[0]
    );
    assert_eq!(counted(&sandbox), [1, 1, 1, 1], "{driver:?}");
    let healed = sandbox.kernel(Way::Cached, RIGHT, "").ok();
    assert_eq!(healed.stdout, bare.stdout, "{driver:?}: {}", healed.stderr);
    assert_eq!(counted(&sandbox), [2, 1, 1, 2], "{driver:?}");
    assert!(!healed.stderr.contains("OCLCACHE_VERIFY"), "{driver:?}");
    let text = sandbox.oclcache(&["stats"]).ok().stdout;
    assert!(text.contains("2 (1 differed)"), "{text}");
}

#[test]
fn a_planted_entry_with_other_code_is_found_set_aside_and_replaced() {
    // Where nothing is executed, the entry shows in nothing.
    let executing = Driver::ALL.into_iter().filter(|driver| driver.executes());
    for driver in some_of(&executing.collect::<Vec<_>>()) {
        is_found(driver, OTHER_CODE, "binary 0");
    }
}

#[test]
fn a_planted_entry_with_other_kernels_is_found_set_aside_and_replaced() {
    for driver in some_of(&Driver::ALL) {
        is_found(driver, OTHER_KERNELS, "kernel names");
    }
}

/// Builds, compiles, links and IL of all kinds, whose hits are all built from source as well: none differs, and neither the
/// verification nor what it makes shows in anything that the program is told.
#[test]
fn nothing_is_found_in_a_clean_cache_and_nothing_shows() {
    let sections: [&[&str]; 4] = [&["ways"], &["facts"], &["compilelink"], &["il"]];
    let mut faults = Vec::new();
    for setup in SETUPS {
        for section in sections {
            // Two devices are another way to build, and no more.
            if setup.devices > 1 && section != ["ways"] {
                continue;
            }
            let Some(mut sandbox) = setup.sandbox() else {
                break;
            };
            sandbox.set("OCLCACHE_VERIFY", "100");
            let bare = sandbox.client(Way::Bare, section);
            for run in ["cold", "warm"] {
                let ran = sandbox.client(Way::Cached, section);
                if (ran.code, &ran.stdout) != (bare.code, &bare.stdout)
                    || ran.stderr.contains("OCLCACHE_VERIFY")
                {
                    let log = ran.stderr;
                    faults.push(format!("{setup:?} {section:?} {run}:\n{log}"));
                }
            }
            let [verified, differed, set_aside, hits] = counted(&sandbox);
            if verified == 0 && hits > 0 || differed + set_aside > 0 {
                let counted = [verified, differed, set_aside, hits];
                faults.push(format!("{setup:?} {section:?}: {COUNTERS:?} {counted:?}"));
            }
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

#[test]
fn a_share_of_none_builds_nothing_and_what_is_no_share_is_a_mistake() {
    let mut sandbox = Sandbox::stub();
    plant(&sandbox, OTHER_CODE);
    for share in ["0", "-3", "most"] {
        sandbox.set("OCLCACHE_VERIFY", share);
        let ran = sandbox.kernel(Way::Cached, RIGHT, "").ok();
        assert_eq!(ran.source_builds(), 0, "{share}: {}", ran.stderr);
        let is_mistake = ran.stderr.contains("not a whole number from 0 to 100");
        assert_eq!(is_mistake, share != "0", "{share}: {}", ran.stderr);
    }
}

/// `oclcache run` of a shell script, with no more set than a user sets.
fn run(sandbox: &Sandbox, must_hit: &str, script: &str) -> Ran {
    let mut command = sandbox.command(Way::Bare, sandbox.installed());
    command
        .args(["run", "-q", "sh", "-c", script])
        .env("OCLCACHE_DIR", sandbox.path("cache"))
        .env("OCLCACHE_MUST_HIT", must_hit);
    sandbox.run(&mut command)
}

/// The words for a shell that run a kernel of a source with options.
fn client(sandbox: &Sandbox, source: &str, options: &str) -> String {
    let file = sandbox.write("kernel.cl", source).display().to_string();
    let client = example("client").display().to_string();
    format!("{client} run --kernel f --options '{options}' --source {file}")
}

#[track_caller]
fn reported(ran: &Ran) -> Vec<&str> {
    let lines = ran.stderr.lines();
    lines
        .filter(|line| line.starts_with("oclcache: OCLCACHE_MUST_HIT: "))
        .collect()
}

#[test]
fn what_is_compiled_is_named_and_the_exit_code_of_a_run_says_so() {
    let sandbox = Sandbox::stub();
    let good = client(&sandbox, RIGHT, "-DN=1");
    let unset = run(&sandbox, "0", &good);
    assert_eq!((unset.code, reported(&unset).len()), (Some(0), 0));
    let hit = run(&sandbox, "1", &good);
    assert_eq!((hit.code, &*hit.stderr), (Some(0), ""));
    let other = client(&sandbox, RIGHT, "-DN=2");
    let missed = run(&sandbox, "1", &format!("{other} && {good}"));
    assert_eq!(missed.code, Some(125), "{}", missed.stderr);
    let lines = reported(&missed);
    assert_eq!(lines.len(), 1, "{}", missed.stderr);
    for words in ["miss, key ", "program client", "kernels: f"] {
        assert!(lines[0].contains(words), "{}", lines[0]);
    }
    let listed = sandbox.oclcache(&["list"]).ok().stdout;
    let key = lines[0].split("key ").nth(1).expect("a key");
    let key = key.split(',').next().expect("a key");
    assert!(listed.contains(&key[..12]), "{key} is none of\n{listed}");
    assert_eq!(run(&sandbox, "1", &other).code, Some(0), "it hits now");
}

#[test]
fn a_run_in_which_the_cache_saw_no_build_is_no_proof_that_nothing_was_compiled() {
    let sandbox = Sandbox::stub();
    let good = client(&sandbox, RIGHT, "-DN=1");
    assert_eq!(run(&sandbox, "0", &good).code, Some(0));
    let devices = format!("{} turns </dev/null", example("client").display());
    let elsewhere = format!("{devices}; OCL_ICD_VENDORS=/nowhere {good}; true");
    for (script, why) in [
        (devices, "such as clinfo"),
        (elsewhere, "such as clinfo"),
        ("true".to_owned(), "an OpenCL loader"),
        (
            format!("OCL_ICD_VENDORS=/nowhere {good}; true"),
            "OCL_ICD_VENDORS",
        ),
        (format!("OCLCACHE_DISABLE=1 {good}"), "an OpenCL loader"),
    ] {
        let passed = run(&sandbox, "0", &script);
        assert_eq!((passed.code, reported(&passed).len()), (Some(0), 0));
        let ran = run(&sandbox, "1", &script);
        assert_eq!(ran.code, Some(125), "{script}: {}", ran.stderr);
        let lines = reported(&ran);
        assert_eq!(lines.len(), 1, "{script}: {}", ran.stderr);
        assert!(lines[0].contains(why), "{script}: {}", lines[0]);
        // Its own failure is the program's.
        let failed = run(&sandbox, "1", &format!("{script}; false"));
        assert_eq!((failed.code, reported(&failed).len()), (Some(1), 0));
    }
}

#[test]
fn a_bypass_that_compiles_is_named_and_a_build_that_fails_is_not() {
    let sandbox = Sandbox::stub();
    let timed = format!("{RIGHT}__constant char t[] = __TIME__;\n");
    let bypassed = run(&sandbox, "1", &client(&sandbox, &timed, ""));
    assert_eq!(bypassed.code, Some(125), "{}", bypassed.stderr);
    let lines = reported(&bypassed);
    assert_eq!(lines.len(), 1, "{}", bypassed.stderr);
    for words in ["uses_time_or_file_name, key none", "kernels: f"] {
        assert!(lines[0].contains(words), "{}", lines[0]);
    }
    let failing = client(&sandbox, RIGHT, "-bad");
    let failed = run(&sandbox, "1", &format!("{failing}; true"));
    assert_eq!((failed.code, reported(&failed).len()), (Some(0), 0));
    // Programs made from binaries, too: everything else in this section hits.
    let facts = format!("{} facts", example("client").display());
    run(&sandbox, "0", &facts).ok();
    let from_binaries = run(&sandbox, "1", &facts);
    assert_eq!(from_binaries.code, Some(0), "{}", from_binaries.stderr);
    assert_eq!(reported(&from_binaries).len(), 0);
    assert!(sandbox.stat("bypass_reasons/from_binary") > 0);
}

#[test]
fn a_programs_own_failure_is_what_its_exit_code_says() {
    let sandbox = Sandbox::stub();
    for (number, end, code, signal) in [
        (1, "exit 3", Some(3), None),
        (2, "exit 127", Some(127), None),
        (3, "kill -TERM $$", None, Some(15)),
        (4, "exit 0", Some(125), None),
    ] {
        let missing = client(&sandbox, RIGHT, &format!("-DN={number}"));
        let ran = run(&sandbox, "1", &format!("{missing}; {end}"));
        assert_eq!((ran.code, ran.signal), (code, signal), "{end}");
        assert_eq!(reported(&ran).len(), 1, "{end}: {}", ran.stderr);
    }
}

#[test]
fn a_program_that_runs_without_the_cache_cannot_be_vouched_for() {
    let sandbox = Sandbox::stub();
    sandbox.write("cache", "a file");
    for (must_hit, code) in [("0", 0), ("1", 125)] {
        let ran = run(&sandbox, must_hit, "exit 0");
        assert_eq!(ran.code, Some(code), "{}", ran.stderr);
        assert!(ran.stderr.contains("without the cache"), "{}", ran.stderr);
    }
}

#[test]
fn a_run_whose_cache_was_removed_says_so_and_cannot_be_vouched_for() {
    let sandbox = Sandbox::stub();
    let cache = sandbox.path("cache").display().to_string();
    for (must_hit, code) in [("0", 0), ("1", 125)] {
        sandbox.disable_memory();
        let script = format!("{} && rm -rf '{cache}'", client(&sandbox, RIGHT, ""));
        let ran = run(&sandbox, must_hit, &script);
        assert_eq!(ran.code, Some(code), "{}", ran.stderr);
        let says_so = ran.stderr.contains("the cache directory was removed");
        assert!(says_so, "{}", ran.stderr);
    }
}
