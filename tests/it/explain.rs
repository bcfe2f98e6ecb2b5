//! Why something was compiled, as `oclcache explain` tells it without having been asked before.

use std::fs;
use std::process::Stdio;

use serde_json::Value;

use crate::support::{Driver, Sandbox, Way, copy_program, example};

const SOURCE: &str = "__kernel void f(__global uint *out) { out[get_global_id(0)] = N + 1; }\n";

fn stub() -> Sandbox {
    Sandbox::new(Driver::Stub).expect("the stub is built with the tests")
}

/// The stub, PoCL and Intel's CPU runtime, as far as they are there.
fn sandboxes() -> impl Iterator<Item = Sandbox> {
    let drivers = [Driver::Stub, Driver::Pocl, Driver::Intel];
    drivers.into_iter().filter_map(Sandbox::new)
}

fn json(sandbox: &Sandbox, arguments: &[&str]) -> Value {
    let ran = sandbox
        .oclcache(&[&["explain", "--json"], arguments].concat())
        .ok();
    serde_json::from_str(&ran.stdout).expect("JSON")
}

/// The latest record.
#[track_caller]
fn latest(sandbox: &Sandbox) -> Value {
    let list = json(sandbox, &["--last", "1"]);
    list.get(0).cloned().expect("a record")
}

/// What the latest build was compiled for, a line each.
#[track_caller]
fn words(sandbox: &Sandbox) -> Vec<String> {
    let latest = latest(sandbox);
    let words = latest["words"].as_array().expect("a list").iter();
    words
        .map(|line| line.as_str().expect("a text").to_owned())
        .collect()
}

fn journal(sandbox: &Sandbox) -> Vec<u8> {
    fs::read(sandbox.path("cache/v1/journal")).expect("a journal")
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
                "never seen: no entry has this source or these kernels",
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
                (&row["outcome"], &row["stored"]),
                (&"miss".into(), &true.into())
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
    let mut sandbox = stub();
    let run = |sandbox: &Sandbox| sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    run(&sandbox);
    sandbox.set("STUB_CODE", "vectorised");
    run(&sandbox);
    assert_eq!(
        words(&sandbox),
        ["environment STUB_CODE: was not set, is vectorised"]
    );
    sandbox.set("STUB_CODE", "");
    run(&sandbox);
    // The nearest is the newer of the two.
    assert_eq!(
        words(&sandbox),
        ["environment STUB_CODE: was vectorised, is empty"]
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
fn another_device_is_named_and_an_equal_call_on_it_is_nearer_than_another_call() {
    let mut sandbox = stub();
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
    let mut sandbox = stub();
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
    let sandbox = stub();
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
    assert_eq!(all["records"][0]["words"][0], "option -DN=2 became -DN=3");
}

#[test]
fn clear_empties_the_journal_and_zeroed_statistics_leave_it() {
    let sandbox = stub();
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    sandbox.oclcache(&["stats", "--zero"]).ok();
    assert_eq!(json(&sandbox, &[]).as_array().map(Vec::len), Some(1));
    sandbox.oclcache(&["clear"]).ok();
    assert!(!sandbox.path("cache/v1/journal").exists());
    let ran = sandbox.oclcache(&["explain"]).ok();
    assert_eq!(ran.stdout, "");
    assert!(ran.stderr.contains("journal is empty"), "{}", ran.stderr);
}

#[test]
fn a_cache_that_is_only_read_or_off_has_no_journal() {
    let mut sandbox = stub();
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    let before = journal(&sandbox);
    for variable in ["OCLCACHE_READONLY", "OCLCACHE_DISABLE"] {
        sandbox.set(variable, "1");
        sandbox.kernel(Way::Cached, SOURCE, "-DN=2").ok();
        sandbox.variables.remove(variable);
    }
    assert_eq!(journal(&sandbox), before);
}

#[test]
fn processes_that_write_at_once_lose_nothing() {
    let sandbox = stub();
    let processes = 4;
    let children: Vec<_> = (0..processes)
        .map(|number| {
            let mut command = sandbox.command(Way::Cached, example("client"));
            command.args(["threads", "4", "8"]);
            command.env("STUB_CODE", number.to_string());
            command.stdout(Stdio::null()).stderr(Stdio::null());
            command.spawn().expect("run")
        })
        .collect();
    let ids: Vec<u32> = children.iter().map(|child| child.id()).collect();
    for mut child in children {
        assert!(child.wait().expect("waited for").success());
    }
    let list = json(&sandbox, &["--last", "1000"]);
    let list = list.as_array().expect("a list");
    let of_kind = |kind: &str| list.iter().filter(|row| row["outcome"] == kind).count() as u64;
    let counted = ["miss", "bypassed", "failed"].map(of_kind);
    let expected = ["misses", "bypassed", "failed"].map(|name| sandbox.stat(name));
    assert_eq!(counted, expected);
    assert!(expected[0] >= processes);
    let is_of = |row: &&Value, id: u32| row["process"] == u64::from(id);
    assert!(ids.iter().all(|id| list.iter().any(|row| is_of(&row, *id))));
}

#[test]
fn a_damaged_journal_tells_what_is_left_and_is_written_on() {
    let sandbox = stub();
    let run = |options: &str| sandbox.kernel(Way::Cached, SOURCE, options).ok();
    for options in ["-DN=1", "-DN=2", "-DN=3"] {
        run(options);
    }
    let path = sandbox.path("cache/v1/journal");
    let mut bytes = journal(&sandbox);
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x20;
    bytes.pop();
    fs::write(&path, bytes).expect("written");
    assert_eq!(json(&sandbox, &[]).as_array().map(Vec::len), Some(1));
    run("-DN=4");
    let words = words(&sandbox);
    assert!(words[0].ends_with(" became -DN=4"), "{words:?}");
    assert_eq!(json(&sandbox, &[]).as_array().map(Vec::len), Some(2));
    // Whatever else stands there, programs run and the command does not.
    fs::remove_file(&path).expect("removed");
    fs::create_dir(&path).expect("made");
    run("-DN=5");
    let ran = sandbox.oclcache(&["explain"]);
    assert_eq!((ran.code, &*ran.stdout), (Some(1), ""), "{}", ran.stderr);
    assert!(ran.stderr.contains("journal"), "{}", ran.stderr);
}

#[test]
fn the_journal_stays_bounded_and_keeps_the_latest() {
    let sandbox = stub();
    let bound = 1 << 20;
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    let one = journal(&sandbox);
    let path = sandbox.path("cache/v1/journal");
    // As many misses as it has room for, twice.
    for _ in 0..2 {
        fs::write(&path, one.repeat(bound / one.len() + 1)).expect("written");
        sandbox
            .oclcache(&["clear", "--key", &first_key(&sandbox)])
            .ok();
        sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    }
    let size = |name: &str| {
        let path = sandbox.path(&format!("cache/v1/{name}"));
        fs::metadata(path).expect("a file").len() as usize
    };
    assert!(size("journal") < 2 * one.len());
    assert!((bound..bound + one.len()).contains(&size("journal.old")));
    let names = fs::read_dir(sandbox.path("cache/v1")).expect("listed");
    let names = names.flatten().map(|entry| entry.file_name());
    let journals = names.filter(|name| name.to_string_lossy().starts_with("journal"));
    assert_eq!(journals.count(), 2);
    assert_eq!(json(&sandbox, &[]).as_array().map(Vec::len), Some(20));
    let cleared = sandbox.oclcache(&["clear"]).ok();
    assert!(cleared.stderr.contains("removed"), "{}", cleared.stderr);
    assert!(!path.exists() && !path.with_extension("old").exists());
}

fn first_key(sandbox: &Sandbox) -> String {
    let entry = sandbox.entries().pop().expect("an entry");
    let name = entry.file_stem().expect("a name");
    name.to_string_lossy().into_owned()
}

/// All bytes that the journal's records decompress to.
fn decompressed(journal: &[u8]) -> Vec<u8> {
    let magic = b"oclcjrn1";
    let starts = (0..journal.len()).filter(|at| journal[*at..].starts_with(magic));
    let body = |at: usize| {
        let length = journal[at + 8..at + 12].try_into().expect("four bytes");
        let length = u32::from_le_bytes(length) as usize;
        zstd::bulk::decompress(&journal[at + 12..at + 12 + length], 1 << 20).expect("a body")
    };
    starts.flat_map(body).collect()
}

#[test]
fn where_texts_are_private_the_journal_holds_none() {
    let mut sandbox = stub();
    let has = |bytes: &[u8], word: &str| {
        let mut windows = bytes.windows(word.len());
        windows.any(|window| window == word.as_bytes())
    };
    let source = format!("{SOURCE}// a-word-of-the-source\n");
    let run = |sandbox: &Sandbox, value: &str| {
        let options = format!("-DSECRET={value} -DN=1");
        sandbox.kernel(Way::Cached, &source, &options).ok();
    };
    run(&sandbox, "hidden-value");
    assert!(has(&decompressed(&journal(&sandbox)), "hidden-value"));
    sandbox.oclcache(&["clear"]).ok();
    sandbox.set("OCLCACHE_STORE_SOURCE", "0");
    run(&sandbox, "hidden-value");
    run(&sandbox, "hidden-other");
    sandbox.kernel(
        Way::Cached,
        &format!("#error {source}"),
        "-DSECRET=hidden-value",
    );
    let all = decompressed(&journal(&sandbox));
    assert!(has(&all, "-DSECRET=sha256:"));
    for word in ["hidden", "a-word-of-the-source", "get_global_id"] {
        assert!(!has(&all, word), "{word}");
    }
    // What differs is told all the same, also from entries whose texts are not private.
    let list = json(&sandbox, &[]);
    let told = list[1]["words"][0].as_str().expect("a text");
    assert!(told.starts_with("option -DSECRET=sha256:"), "{told}");
    sandbox.variables.remove("OCLCACHE_STORE_SOURCE");
    sandbox
        .kernel(Way::Cached, &source, "-DSECRET=hidden-other -DN=2")
        .ok();
    let words = words(&sandbox);
    assert_eq!(words.len(), 1, "{words:?}");
    assert!(words[0].starts_with("option -DN=sha256:"), "{words:?}");
}

#[test]
fn no_name_of_a_program_or_kernel_writes_to_the_terminal() {
    let mut sandbox = stub();
    let odd = "\x1b[2J\u{9b}31m\u{202e}";
    let program = sandbox.path(&format!("client{odd}"));
    copy_program(example("client"), &program);
    sandbox.set("STUB_DEVICE_NAME", odd);
    for value in ["1", odd] {
        sandbox.set("STUB_CODE", value);
        let name = format!("f{}", odd.replace('\x1b', "\x0b"));
        let source = SOURCE.replace("void f(", &format!("void {name}("));
        let file = sandbox.write("kernel.cl", source);
        let mut command = sandbox.command(Way::Cached, &program);
        let options = format!("-DN=1 -DX={value}");
        command.args(["run", "--kernel", "f", "--options", &options, "--source"]);
        sandbox.run(command.arg(file));
    }
    for arguments in [&["explain"][..], &["explain", "--json"]] {
        let shown = sandbox.oclcache(arguments).ok().stdout;
        let is_odd = |character: char| {
            character.is_control() && character != '\n' || character == '\u{202e}'
        };
        assert_eq!(shown.find(is_odd), None, "{shown:?}");
        assert!(shown.contains("u{1b}[2J"), "{shown}");
    }
}
