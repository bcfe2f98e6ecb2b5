//! Why something was compiled, as `oclcache explain` tells it without having been asked before.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::journal::journal;
use crate::support::{Driver, Sandbox, Way, example, skipped};

pub const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = N + 1; }\n";

/// The stub, PoCL and Intel's CPU runtime, as far as they are there.
fn sandboxes() -> impl Iterator<Item = Sandbox> {
    let drivers = [Driver::Stub, Driver::Pocl, Driver::Intel];
    drivers.into_iter().filter_map(Sandbox::new)
}

pub fn json(sandbox: &Sandbox, arguments: &[&str]) -> Value {
    let ran = sandbox
        .oclcache(&[&["explain", "--json"], arguments].concat())
        .ok();
    serde_json::from_str(&ran.stdout).expect("JSON")
}

/// The latest record.
#[track_caller]
pub fn latest(sandbox: &Sandbox) -> Value {
    let list = json(sandbox, &["--last", "1"]);
    list.get(0).cloned().expect("a record")
}

/// What the latest build was compiled for, a line each.
#[track_caller]
pub fn words(sandbox: &Sandbox) -> Vec<String> {
    let latest = latest(sandbox);
    let words = latest["words"].as_array().expect("a list").iter();
    words
        .map(|line| line.as_str().expect("a text").to_owned())
        .collect()
}

#[test]
fn a_changed_option_is_named_with_both_values() {
    for sandbox in sandboxes() {
        for options in ["-DN=64 -DK=1", "-DN=128 -DK=1", "-DK=1 -DN=128"] {
            sandbox.kernel(Way::Cached, SOURCE, options).ok();
        }
        let list = json(&sandbox, &[]);
        assert_eq!(list.as_array().map(Vec::len), Some(3));
        let expected = [
            (
                "changed",
                "order or spacing of options: `-DN=128 -DK=1` became `-DK=1 -DN=128`",
            ),
            ("changed", "option -DN=64 became -DN=128"),
            (
                "never_seen",
                "never seen: no entry of an earlier run has this source or these kernels",
            ),
        ];
        for (row, (reason, words)) in list.as_array().expect("a list").iter().zip(expected) {
            assert_eq!(
                (&row["reason"], &row["words"][0]),
                (&reason.into(), &words.into())
            );
            assert_eq!(row["words"].as_array().map(Vec::len), Some(1), "{row}");
            assert_eq!(row["program"], "client");
            assert_eq!(row["kernels"], serde_json::json!(["f"]));
            assert_eq!(
                (&row["outcome"], &row["kept"]),
                (&"miss".into(), &"entry".into())
            );
        }
        let [newest, older, oldest] = [0, 1, 2].map(|index| &list[index]);
        assert_eq!(newest["nearest"]["key"], older["key"]);
        assert_eq!(older["nearest"]["key"], oldest["key"]);
        let difference = &older["differences"][0];
        let fields = ["kind", "name", "before", "after"].map(|field| difference[field].as_str());
        assert_eq!(fields, ["options", "-DN", "-DN=64", "-DN=128"].map(Some));
        let text = sandbox.oclcache(&["explain", "--last", "2"]).ok().stdout;
        assert!(text.contains("option -DN=64 became -DN=128"), "{text}");
        assert!(!text.contains("never seen"), "{text}");
        let none = sandbox.oclcache(&["explain", "--last", "0"]).ok();
        assert_eq!((&*none.stdout, &*none.stderr), ("", ""));
        // A hit is no matter for the journal.
        let before = journal(&sandbox);
        sandbox.kernel(Way::Cached, SOURCE, "-DN=64 -DK=1").ok();
        assert_eq!(journal(&sandbox), before);
    }
}

#[test]
fn a_changed_source_is_known_by_its_kernels() {
    for sandbox in sandboxes() {
        sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
        let changed = SOURCE.replace("+ 1", "+ 2");
        sandbox.kernel(Way::Cached, &changed, "-DN=1").ok();
        assert_eq!(words(&sandbox), ["source changed (same kernels)"]);
        let other = SOURCE.replace("void f(", "void g(");
        sandbox.kernel(Way::Cached, &other, "-DN=1").ok();
        assert_eq!(latest(&sandbox)["reason"], "never_seen");
    }
}

#[test]
fn a_variable_that_changes_code_is_named_with_its_value_and_without() {
    let mut sandbox = Sandbox::stub();
    let run = |sandbox: &Sandbox| sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    run(&sandbox);
    sandbox.set("STUB_CODE", "vectorized");
    run(&sandbox);
    assert_eq!(
        words(&sandbox),
        ["environment STUB_CODE: was not set, is vectorized"]
    );
    sandbox.set("STUB_CODE", "");
    run(&sandbox);
    // The nearest is the newer of the two.
    assert_eq!(
        words(&sandbox),
        ["environment STUB_CODE: was vectorized, is empty"]
    );
    let Some(mut sandbox) = Sandbox::new(Driver::Pocl) else {
        return;
    };
    run(&sandbox);
    sandbox.set("POCL_WORK_GROUP_METHOD", "loopvec");
    run(&sandbox);
    assert_eq!(
        words(&sandbox),
        ["environment POCL_WORK_GROUP_METHOD: was not set, is loopvec"]
    );
}

#[test]
fn a_header_is_named_by_what_became_of_it_and_where() {
    let source = "#include \"common.h\"\n#include <h.h>\n\
        __kernel void f(__global uint *out) { out[get_global_id(0)] = N + M; }\n";
    for sandbox in sandboxes().take(2) {
        for directory in ["here", "inc"] {
            fs::create_dir(sandbox.path(directory)).expect("made");
        }
        sandbox.write("inc/common.h", "#define N 1\n");
        sandbox.write("inc/h.h", "#include \"deep.h\"\n");
        sandbox.write("inc/deep.h", "#define M 1\n");
        let file = sandbox.write("kernel.cl", source);
        let inc = sandbox.path("inc");
        let run = |options: &str| {
            let mut command = sandbox.command(Way::Cached, example("client"));
            command.current_dir(sandbox.path("here"));
            command.args(["run", "--kernel", "f", "--options", options, "--source"]);
            sandbox.run(command.arg(&file)).ok();
            words(&sandbox)
        };
        let options = format!("-I {}", inc.display());
        assert_eq!(
            run(&options),
            ["never seen: no entry of an earlier run has this source or these kernels"]
        );
        sandbox.write("inc/common.h", "#define N 2\n");
        assert_eq!(run(&options), ["header common.h changed"]);
        sandbox.write("inc/deep.h", "#define M 2\n");
        assert_eq!(run(&options), ["header deep.h changed"]);
        sandbox.write("here/h.h", "#define M 3\n");
        assert_eq!(
            run(&options),
            ["header h.h is new in the working directory"]
        );
        // The nearest is the one before that.
        fs::rename(sandbox.path("here/h.h"), inc.join("h.h")).expect("moved");
        let inc = inc.display().to_string();
        let expected = [
            "header h.h changed".to_owned(),
            format!("header deep.h in the include directory {inc} is no longer included"),
        ];
        assert_eq!(run(&options), expected);
        fs::remove_file(sandbox.path("inc/common.h")).expect("removed");
        sandbox.write("here/common.h", "#define N 2\n");
        let expected = [
            "header common.h is new in the working directory".to_owned(),
            format!("header common.h was removed from the include directory {inc}"),
        ];
        assert_eq!(run(&options), expected);
        fs::create_dir(sandbox.path("more")).expect("made");
        let more = sandbox.path("more");
        let wider = format!("{options} -I {}", more.display());
        let told = run(&wider);
        assert_eq!(told[0], format!("option -I{} was added", more.display()));
        assert!(told.len() < 8, "{told:?}");
    }
}

#[test]
fn another_device_is_named_and_an_equal_call_on_it_is_nearer_than_another_call() {
    let mut sandbox = Sandbox::stub();
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    sandbox.set("STUB_DEVICE_NAME", "another");
    sandbox.kernel(Way::Cached, SOURCE, "-DN=2").ok();
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    let words = words(&sandbox);
    let expected = [
        "environment STUB_DEVICE_NAME: was not set, is another",
        "device name: stub0 became another0",
    ];
    assert_eq!(words, expected);
}

#[test]
fn another_driver_is_one_line_and_not_a_hundred() {
    let (Some(pocl), Some(intel)) = (Driver::Pocl.library(), Driver::Intel.library()) else {
        return;
    };
    let mut sandbox = Sandbox::of_library(&pocl);
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    sandbox.set("SPY_DRIVER", intel);
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    assert_eq!(
        words(&sandbox),
        ["compiled by another driver (intel-cpu, was pocl)"]
    );
}

#[test]
fn another_build_of_a_drivers_library_is_named_with_both_identities() {
    let mut sandbox = Sandbox::stub();
    let library = fs::read(example("libstub_driver.so")).expect("the stub");
    let note = b"\x03\0\0\0GNU\0";
    let mut windows = library.windows(note.len());
    let id = windows
        .position(|window| window == note)
        .expect("a build-id")
        + note.len();
    for (directory, change) in [("old", 0), ("new", 1)] {
        fs::create_dir(sandbox.path(directory)).expect("made");
        let mut library = library.clone();
        library[id] ^= change;
        let path = sandbox.write(&format!("{directory}/libdriver.so.1"), library);
        sandbox.set("SPY_DRIVER", path);
        sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    }
    let hex = |change: u8| -> String {
        let first = [&[library[id] ^ change], &library[id + 1..id + 4]].concat();
        first.iter().map(|byte| format!("{byte:02x}")).collect()
    };
    let expected = format!(
        "driver library libdriver.so.1 changed (build-id {}... became {}...)",
        hex(0),
        hex(1)
    );
    assert_eq!(words(&sandbox), [expected]);
}

#[test]
fn a_changed_file_of_pocl_is_named() {
    let Some(library) = Driver::Pocl.library() else {
        return;
    };
    let installed = Path::new("/usr/lib/x86_64-linux-gnu");
    let used = if Path::new(&library).is_absolute() {
        PathBuf::from(&library)
    } else {
        installed.join(&library)
    };
    // Debian's PoCL finds its files from where its library stands. Built-ins for processors that nobody has any more.
    let name = "kernel-x86_64-pc-linux-gnu-avx_fma4.bc";
    if !used.exists() || !Path::new("/usr/share/pocl").join(name).exists() {
        return skipped("a changed file of PoCL (it is not Debian's for x86-64)");
    }
    let mut sandbox = Sandbox::of_library(&library);
    let lib = sandbox.path("pocl/lib/x86_64-linux-gnu");
    let share = sandbox.path("pocl/share");
    fs::create_dir_all(&lib).expect("made");
    fs::create_dir_all(&share).expect("made");
    let copy = |from: &Path, to: &Path| {
        let copied = Command::new("cp").arg("-rL").arg(from).arg(to).status();
        assert!(copied.expect("cp").success(), "{}", from.display());
    };
    copy(&used, &lib.join("libpocl.so.2"));
    copy(&installed.join("pocl"), &lib);
    copy(Path::new("/usr/share/pocl"), &share);
    sandbox.set("SPY_DRIVER", lib.join("libpocl.so.2"));
    let run = || {
        sandbox
            .kernel(Way::Cached, SOURCE, "-DN=1")
            .ok()
            .source_builds()
    };
    assert_eq!(run(), 1);
    let changed = share.join("pocl").join(name);
    let mut bytes = fs::read(&changed).expect("read");
    // The same content at another time is the same.
    fs::write(&changed, &bytes).expect("written");
    assert_eq!(run(), 0);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&changed, &bytes).expect("written");
    assert_eq!(run(), 1);
    let told = words(&sandbox);
    let start = format!("driver file {name} changed (content ");
    assert!(told.len() == 1 && told[0].starts_with(&start), "{told:?}");
}

#[test]
fn a_bypass_says_its_reason_and_what_to_do_and_a_failure_that_it_failed() {
    for sandbox in sandboxes() {
        let source = format!("{SOURCE}// __TIME__\n__constant char t[] = __TIME__;\n");
        sandbox.kernel(Way::Cached, &source, "-DN=1").ok();
        let record = latest(&sandbox);
        assert_eq!(record["outcome"], "bypassed");
        assert_eq!(record["reason"], "uses_time_or_file_name");
        assert_eq!(record["kernels"], serde_json::json!(["f"]));
        assert_eq!(
            (&record["key"], &record["nearest"]),
            (&Value::Null, &Value::Null)
        );
        let text = sandbox.oclcache(&["explain"]).ok().stdout;
        assert!(
            text.contains("client") && text.contains("remove them"),
            "{text}"
        );
        sandbox.kernel(Way::Cached, "#error wrong\n", "");
        assert_eq!(latest(&sandbox)["reason"], "failed");
    }
}

#[test]
fn what_was_there_before_and_is_gone_is_told_by_how_it_went() {
    let mut sandbox = Sandbox::stub();
    let run = |sandbox: &Sandbox| sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    run(&sandbox);
    let key = latest(&sandbox)["key"].as_str().expect("a key").to_owned();
    sandbox.oclcache(&["clear", "--key", &key]).ok();
    run(&sandbox);
    assert_eq!(latest(&sandbox)["reason"], "gone");
    let entry = sandbox.entries().pop().expect("an entry");
    fs::write(entry, "damaged").expect("written");
    run(&sandbox);
    assert_eq!(latest(&sandbox)["reason"], "set_aside");
    sandbox.set("OCLCACHE_RECACHE", "1");
    run(&sandbox);
    assert_eq!(latest(&sandbox)["reason"], "recache");
    let all = json(&sandbox, &[&key]);
    let reasons = all["records"].as_array().expect("a list").iter();
    let reasons: Vec<_> = reasons.map(|row| row["reason"].as_str()).collect();
    let expected = ["recache", "set_aside", "gone", "never_seen"];
    assert_eq!(reasons, expected.map(Some));
    assert_eq!(
        (&all["key"], &all["entry"]),
        (&key.as_str().into(), &true.into())
    );
}

#[test]
fn a_key_is_explained_by_its_first_digits_with_and_without_a_journal() {
    let sandbox = Sandbox::stub();
    for options in ["-DN=1", "-DN=2"] {
        sandbox.kernel(Way::Cached, SOURCE, options).ok();
    }
    let key = latest(&sandbox)["key"].as_str().expect("a key").to_owned();
    let text = sandbox.oclcache(&["explain", &key[..16]]).ok().stdout;
    assert!(text.contains("option -DN=1 became -DN=2"), "{text}");
    // An entry is enough, and a miss without its entry as well.
    fs::remove_file(sandbox.path("cache/v1/journal")).expect("removed");
    let text = sandbox.oclcache(&["explain", &key]).ok().stdout;
    assert!(text.contains("option -DN=1 became -DN=2"), "{text}");
    sandbox.kernel(Way::Cached, SOURCE, "-DN=3").ok();
    let key = latest(&sandbox)["key"].as_str().expect("a key").to_owned();
    sandbox.oclcache(&["clear", "--key", &key]).ok();
    let all = json(&sandbox, &[&key]);
    assert_eq!(all["entry"], false);
    let told = all["records"][0]["words"][0].as_str().expect("a text");
    assert!(told.ends_with(" became -DN=3"), "{told}");
}

#[test]
fn a_period_has_all_that_was_compiled_in_it() {
    let sandbox = Sandbox::stub();
    for number in 0..22 {
        let options = format!("-DN={number}");
        sandbox.kernel(Way::Cached, SOURCE, &options).ok();
    }
    for (arguments, expected) in [
        (&[][..], 20),
        (&["--since", "2020-01"], 22),
        (&["--since", "52w"], 22),
        (&["--since", "2020-01-01", "--last", "3"], 3),
        (&["--since", "2130-01-01"], 0),
    ] {
        let found = json(&sandbox, arguments);
        assert_eq!(
            found.as_array().map(Vec::len),
            Some(expected),
            "{arguments:?}"
        );
    }
    let none = sandbox.oclcache(&["explain", "--since", "2130-01-01"]).ok();
    let words = "oclcache: nothing was compiled since then\n";
    assert_eq!((&*none.stdout, &*none.stderr), ("", words));
    let key = json(&sandbox, &["--last", "1"])[0]["key"].clone();
    let key = key.as_str().expect("a key");
    for wrong in [&["--since", "yesterday"][..], &["--since", "7d", key]] {
        let ran = sandbox.oclcache(&[&["explain"], wrong].concat());
        assert_eq!(ran.code, Some(2), "{wrong:?}");
    }
}

/// The journal goes with the entries: that it is empty does not say that nothing was compiled.
#[test]
fn an_emptied_cache_is_not_called_unused() {
    let sandbox = Sandbox::stub();
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    sandbox.oclcache(&["clear"]).ok();
    let ran = sandbox.oclcache(&["explain"]).ok();
    let words = "oclcache: the journal is empty: no program was compiled yet, or none since `oclcache clear`; `oclcache stats`";
    assert!(ran.stderr.starts_with(words), "{}", ran.stderr);
}

#[test]
fn counters_that_are_reset_leave_what_explain_reads() {
    let sandbox = Sandbox::stub();
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    let before = json(&sandbox, &[]);
    let zeroed = sandbox.oclcache(&["stats", "--zero"]).ok();
    let words = "oclcache: all counters are reset; entries, and the journal that `oclcache explain` reads, are kept\n";
    assert_eq!(zeroed.stderr, words);
    assert_eq!(json(&sandbox, &[]), before);
    let help = sandbox.oclcache(&["stats", "--help"]).ok().stdout;
    let help = help.split_whitespace().collect::<Vec<_>>().join(" ");
    let words = "Reset all counters; entries, and the journal that `explain` reads, are kept";
    assert!(help.contains(words), "{help}");
}
