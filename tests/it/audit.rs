//! Audits: the baker compiles again what was served, and a difference turns the cache off for that driver.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use serde_json::Value;

use crate::counting::Turns;
use crate::functions::{GETENV, shared};
use crate::support::{Driver, Ran, Sandbox, Way, example, library, some_of, tree};

mod behind_programs;

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = (uint)get_global_id(0) * 3 + 1; }\n";
const BYPASSED: &str = "bypass_reasons/audit_differed";

#[track_caller]
fn run(sandbox: &Sandbox) -> Ran {
    sandbox.kernel(Way::Cached, SOURCE, "").ok()
}

fn key(sandbox: &Sandbox) -> String {
    let entry = sandbox.entries().pop().expect("an entry");
    let key = entry.file_stem().expect("a name");
    key.to_string_lossy().into_owned()
}

/// What `bake --audit` says of the only entry.
#[track_caller]
fn audit(sandbox: &Sandbox) -> (Ran, Value) {
    audit_of(sandbox, &key(sandbox))
}

#[track_caller]
fn audit_of(sandbox: &Sandbox, key: &str) -> (Ran, Value) {
    let ran = sandbox.oclcache(&["bake", "--json", "--audit", key]);
    let json: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|error| {
        panic!("{error}: {}{}", ran.stdout, ran.stderr);
    });
    (ran, json["audits"].clone())
}

/// How many audits ended so: agreed, differed, unstable, skipped.
#[track_caller]
fn counts(sandbox: &Sandbox) -> [usize; 4] {
    let (_, audits) = audit(sandbox);
    ["agreed", "differed", "unstable", "skipped"]
        .map(|of| audits[of].as_array().expect("a list").len())
}

/// Why the only entry was not audited.
#[track_caller]
fn why_not(sandbox: &Sandbox, key: &str) -> String {
    let (_, audits) = audit_of(sandbox, key);
    let why = &audits["skipped"][0]["why"];
    why.as_str()
        .unwrap_or_else(|| panic!("it was audited: {audits}"))
        .to_owned()
}

fn marks(sandbox: &Sandbox) -> Vec<PathBuf> {
    tree(&sandbox.path("cache/v1/audit")).into_keys().collect()
}

/// A sandbox whose only entry is not what the driver compiles: the content of a file that the key knows nothing of is another.
fn wrong() -> Sandbox {
    let mut sandbox = Sandbox::stub();
    let file = sandbox.write("code", "then");
    sandbox.set("STUB_CODE_FILE", file);
    run(&sandbox);
    sandbox.write("code", "now");
    sandbox
}

#[test]
fn an_audit_that_agrees_changes_nothing() {
    for driver in some_of(&Driver::ALL) {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        if driver == Driver::Intel {
            // As in the tests of baking.
            sandbox.set("LD_PRELOAD", "libm.so.6");
        }
        run(&sandbox);
        run(&sandbox);
        let entry = sandbox.entries().pop().expect("an entry");
        let inode = || fs::metadata(&entry).expect("an entry").ino();
        let before = (fs::read(&entry).expect("read"), inode());
        assert_eq!(counts(&sandbox), [1, 0, 0, 0], "{driver:?}");
        let after = (fs::read(&entry).expect("read"), inode());
        assert!(before == after, "{driver:?}");
        assert!(marks(&sandbox).is_empty(), "{driver:?}");
        assert_eq!(sandbox.stat("audited"), 1);
        assert_eq!(sandbox.stat("audit_differed"), 0);
        assert_eq!(run(&sandbox).source_builds(), 0, "{driver:?}");
    }
}

/// Baked entries hold what PoCL makes for work-group sizes, and logs of warnings the names of its temporary files.
#[test]
fn what_drivers_change_between_two_builds_is_no_difference() {
    let source = format!("#warning seen\n{SOURCE}");
    for driver in [Driver::Pocl, Driver::Intel] {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        if driver == Driver::Intel {
            sandbox.set("LD_PRELOAD", "libm.so.6");
        }
        sandbox.set("OCLCACHE_RECORD", "bake");
        let own = sandbox.path("own");
        sandbox.set("POCL_CACHE_DIR", own);
        sandbox
            .kernel(Way::Cached, &source, "-cl-kernel-arg-info")
            .ok();
        sandbox.oclcache(&["bake"]).ok();
        let hit = sandbox.kernel(Way::Cached, &source, "-cl-kernel-arg-info");
        assert_eq!(hit.ok().source_builds(), 0, "{driver:?}");
        assert_eq!(counts(&sandbox), [1, 0, 0, 0], "{driver:?}");
    }
}

#[test]
fn a_difference_turns_the_cache_off_for_the_driver_and_keeps_both_results() {
    let sandbox = wrong();
    let key = key(&sandbox);
    assert_eq!(run(&sandbox).source_builds(), 0, "a wrong hit");
    let stored = fs::read(sandbox.entries().pop().expect("an entry")).expect("read");
    let (ran, audits) = audit(&sandbox);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("oclcache doctor"), "{}", ran.stderr);
    assert_eq!(audits["differed"][0]["key"], key.as_str(), "{audits}");
    let now = fs::read(sandbox.entries().pop().expect("an entry")).expect("read");
    assert_eq!(now, stored, "the entry is overwritten");

    let bare = sandbox.kernel(Way::Bare, SOURCE, "").ok();
    for number in 1..=2 {
        let ran = run(&sandbox);
        assert_eq!(ran.stdout, bare.stdout, "{}", ran.stderr);
        assert_eq!(ran.source_builds(), 1, "{}", ran.stderr);
        assert_eq!(sandbox.stat(BYPASSED), number);
    }
    let files = marks(&sandbox);
    let of = |suffix: &str| {
        let file = files
            .iter()
            .find(|file| file.to_string_lossy().ends_with(suffix));
        fs::read(file.expect("a result")).expect("read")
    };
    assert_eq!(files.len(), 3, "{files:?}");
    assert_eq!(of(".stored"), stored);
    assert!(of(".built").starts_with(b"oclcache") && of(".built") != stored);

    let told = |arguments: &[&str], words: &[&str]| {
        let ran = sandbox.oclcache(arguments);
        for words in words {
            assert!(
                ran.stdout.contains(words),
                "{arguments:?}, {words}: {}",
                ran.stdout
            );
        }
        ran.code
    };
    let differs = format!("the entry {} of client", &key[..16]);
    let off = "the cache is off for this driver";
    let results = format!("{}", sandbox.path("cache/v1/audit").display());
    assert_eq!(
        told(
            &["doctor", "--no-build"],
            &[off, &differs, &results, "oclcache clear"]
        ),
        Some(1)
    );
    assert_eq!(
        told(&["stats"], &["hits audited", "1 (1 differed)"]),
        Some(0)
    );
    assert_eq!(told(&["report", "-"], &[&differs, &results]), Some(0));
    assert_eq!(
        told(&["explain", "--last", "1"], &["audit_differed"]),
        Some(0)
    );
    // An archive tells nobody.
    let archive = sandbox.path("archive").display().to_string();
    sandbox.oclcache(&["export", &archive]).ok();
    let other = Sandbox::stub();
    other.oclcache(&["import", "--trust", &archive]);
    assert_eq!((other.entries().len(), marks(&other).len()), (1, 0));
    // What is audited again is not compiled: the driver is not cached.
    assert!(why_not(&sandbox, &key).contains("audit_differed"));

    sandbox.oclcache(&["clear"]).ok();
    assert!(marks(&sandbox).is_empty());
    assert_eq!(run(&sandbox).source_builds(), 1);
    assert_eq!(run(&sandbox).source_builds(), 0);
    let ran = sandbox.oclcache(&["doctor", "--no-build"]);
    assert!(
        ran.stdout.contains("no difference was found"),
        "{}",
        ran.stdout
    );
}

/// Another driver, and the same one after an update, is another identity.
#[test]
fn another_driver_is_served_as_before() {
    let sandbox = wrong();
    let (ran, _) = audit(&sandbox);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let library = example("libstub_driver.so").display().to_string();
    let other = sandbox.path("libstub_driver.so");
    fs::copy(library, &other).expect("copied");
    let mut bytes = fs::read(&other).expect("read");
    bytes.push(0);
    fs::write(&other, bytes).expect("written");
    let mut sandbox = sandbox;
    sandbox.write("oclcache-other.icd", format!("{}\n", other.display()));
    let vendors = sandbox.path("oclcache-other.icd");
    sandbox.set("OCLCACHE_VENDORS", vendors);
    // The spy does not see it.
    run(&sandbox);
    run(&sandbox);
    assert_eq!(sandbox.stat(BYPASSED), 0);
    assert_eq!(sandbox.stat("hits"), 1);
    let ran = sandbox.oclcache(&["doctor", "--no-build"]);
    assert!(
        ran.stdout.contains("no longer registered"),
        "{}",
        ran.stdout
    );
}

#[test]
fn a_driver_that_compiles_something_else_each_time_is_no_finding() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("STUB_VARY", "1");
    run(&sandbox);
    assert_eq!(counts(&sandbox), [0, 0, 1, 0]);
    assert!(marks(&sandbox).is_empty());
    assert_eq!(sandbox.stat("audit_unstable"), 1);
    assert_eq!(run(&sandbox).source_builds(), 0);
}

/// A driver that dies or is gone says nothing of the entry, and neither does what cannot be made as it was.
#[test]
fn what_cannot_be_compiled_as_it_was_is_not_audited() {
    type Spoil = fn(&mut Sandbox);
    let cases: [(&str, Spoil, &str); 6] = [
        (
            "a variable is another",
            |sandbox| sandbox.set("STUB_CODE", "now"),
            "STUB_CODE has another value",
        ),
        (
            "the driver dies",
            |sandbox| {
                sandbox.write("word", "__kernel");
            },
            "the driver crashed",
        ),
        (
            "the driver does not compile it any more",
            |sandbox| {
                sandbox.write("code", "#error");
            },
            "the driver does not build it",
        ),
        (
            "the driver is gone",
            |sandbox| sandbox.set("OCLCACHE_VENDORS", "/nowhere"),
            "is not registered",
        ),
        (
            "the entry is damaged",
            |sandbox| {
                let entry = sandbox.entries().pop().expect("an entry");
                let mut bytes = fs::read(&entry).expect("read");
                let last = bytes.len() - 1;
                bytes[last] ^= 1;
                fs::remove_file(&entry).expect("removed");
                fs::write(entry, bytes).expect("written");
            },
            "it was removed or is damaged",
        ),
        (
            "the entry is gone",
            |sandbox| {
                let shard = sandbox.entries().pop().expect("an entry");
                fs::rename(&shard, sandbox.path("moved")).expect("moved");
            },
            "it was removed",
        ),
    ];
    for (what, spoil, expected) in cases {
        let mut sandbox = Sandbox::stub();
        let [code, word] = ["code", "word"].map(|name| sandbox.write(name, "nothing"));
        sandbox.set("STUB_CODE_FILE", code);
        sandbox.set("STUB_CRASH", word);
        sandbox.set("STUB_CODE", "then");
        run(&sandbox);
        let key = key(&sandbox);
        // Were it compiled, it would differ.
        sandbox.write("code", "now");
        spoil(&mut sandbox);
        let why = why_not(&sandbox, &key);
        assert!(why.contains(expected), "{what}: {why}");
        assert!(marks(&sandbox).is_empty(), "{what}");
        assert_eq!(sandbox.stat("not_audited"), 1, "{what}");
    }
}

/// All that is in a key is the baker's as well, or nothing is compared: one case for each kind that it has not.
#[test]
fn what_was_recorded_in_another_state_is_not_audited() {
    type Prepare = fn(&Sandbox) -> Option<Vec<(&'static str, PathBuf)>>;
    let cases: [(&str, Prepare, &str); 4] = [
        (
            "without its source",
            |_| Some(vec![("OCLCACHE_STORE_SOURCE", "0".into())]),
            "store_source",
        ),
        (
            "with a library that answers for functions of the driver",
            |sandbox| {
                let answering = shared(sandbox, "getenv", GETENV, &[])?;
                Some(vec![("LD_PRELOAD", answering)])
            },
            "replaced functions of the driver",
        ),
        (
            "with a variable that the baker does not inherit",
            |_| Some(vec![("OCL_ICD_OF_A_DRIVER", "1".into())]),
            "OCL_ICD_OF_A_DRIVER",
        ),
        (
            "with a layer of the loader",
            |sandbox| {
                let layers = [example("libother_layer.so"), library()];
                let layers = std::env::join_paths(layers).expect("paths");
                Some(vec![
                    ("OCL_ICD_VENDORS", sandbox.path("spy")),
                    ("OPENCL_LAYERS", layers.into()),
                ])
            },
            "",
        ),
    ];
    for (what, prepare, expected) in cases {
        let sandbox = wrong();
        let Some(variables) = prepare(&sandbox) else {
            continue;
        };
        sandbox.oclcache(&["clear"]).ok();
        sandbox.write("code", "then");
        let source = sandbox.write("kernel.cl", SOURCE);
        let mut command = sandbox.command(Way::Cached, example("client"));
        command
            .args(["run", "--kernel", "f", "--source"])
            .arg(source)
            .envs(variables);
        sandbox.run(&mut command).ok();
        sandbox.write("code", "now");
        let why = why_not(&sandbox, &key(&sandbox));
        assert!(why.contains(expected), "{what}: {why}");
        assert!(marks(&sandbox).is_empty(), "{what}");
    }
}

/// Intel's CPU runtime computes with the program's libm where there is one, which the baker has and the client has not (measured).
#[test]
fn another_library_of_functions_is_no_difference() {
    let Some(sandbox) = Sandbox::new(Driver::Intel) else {
        return;
    };
    let source = "__kernel void f(__global float *out) { out[get_global_id(0)] = exp(out[1]); }\n";
    sandbox.kernel(Way::Cached, source, "").ok();
    let why = why_not(&sandbox, &key(&sandbox));
    assert!(why.contains("functions of the driver"), "{why}");
    assert!(marks(&sandbox).is_empty());
}

/// Headers, links and what was built for some devices are compiled again as they were.
#[test]
fn programs_that_are_made_in_any_way_are_audited() {
    for (driver, sections) in [
        (Driver::Stub, &["link", "headers", "compilelink"][..]),
        (Driver::Pocl, &["compilelink"]),
        (Driver::Intel, &["compilelink"]),
    ] {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        if driver == Driver::Intel {
            sandbox.set("LD_PRELOAD", "libm.so.6");
        }
        sandbox.set("OCLCACHE_LOG", "warn");
        for section in sections {
            sandbox.client(Way::Cached, &[section]).ok();
        }
        let keys = sandbox.entries().into_iter().map(|entry| {
            let key = entry.file_stem().expect("a name").to_string_lossy();
            format!("--audit={key}")
        });
        // Each takes Intel's CPU runtime some seconds.
        let most = if driver == Driver::Intel {
            6
        } else {
            usize::MAX
        };
        let keys: Vec<String> = keys.take(most).collect();
        let arguments = ["bake", "-v"].into_iter();
        let arguments = arguments.chain(keys.iter().map(String::as_str));
        let ran = sandbox.oclcache(&arguments.collect::<Vec<_>>()).ok();
        let said = &ran.stderr;
        let skipped = said.lines().filter(|line| line.starts_with("not audited "));
        let skipped: Vec<&str> = skipped.collect();
        // The client changes some of its headers.
        for line in &skipped {
            assert!(line.contains("has changed"), "{driver:?}: {said}");
        }
        // Intel's CPU runtime numbers its modules, which shows in compiled objects: they have no machine code yet (measured).
        let unstable = |count: &usize| {
            let compared = keys.len() - skipped.len();
            let agreed = compared - count;
            said.contains(&format!(
                "audits: {agreed} agreed, 0 differed, {count} not reproducible, "
            ))
        };
        let most = if driver == Driver::Intel { 6 } else { 0 };
        assert!(keys.len() > skipped.len() + 1, "{driver:?}: {said}");
        assert!(
            (0..=most).any(|count| unstable(&count)),
            "{driver:?}: {said}"
        );
    }
}

/// A process that built before an audit found anything looks again.
#[test]
fn a_running_program_notices_and_starts_to_bypass() {
    let mut sandbox = Sandbox::stub();
    let file = sandbox.write("code", "then");
    sandbox.set("STUB_CODE_FILE", file);
    let mut running = Turns::begin(&sandbox);
    running.turn("build 1 2", "built 1");
    running.turn("build 1 2", "built 1");
    assert_eq!(sandbox.stat("hits"), 1);
    sandbox.write("code", "now");
    assert_eq!(counts(&sandbox), [0, 1, 0, 0]);
    while sandbox.stat(BYPASSED) == 0 {
        running.turn("build 1 2", "built 1");
    }
    let hits = sandbox.stat("hits");
    // For as long as it runs, whatever is cleared: it may have the entry in memory.
    sandbox.oclcache(&["clear"]).ok();
    running.turn("build 1 2", "built 1");
    assert_eq!(sandbox.stat("hits"), hits);
    running.end(None);
}
