//! What `oclcache explain` reads: bounded, without texts where those are private, and written by all processes at once.

use std::fs;
use std::process::Stdio;

use crate::explain::{SOURCE, json, words};
use crate::support::{Sandbox, Way, copy_program, example};

pub fn journal(sandbox: &Sandbox) -> Vec<u8> {
    fs::read(sandbox.path("cache/v1/journal")).expect("a journal")
}

#[test]
fn clear_empties_the_journal_and_zeroed_statistics_leave_it() {
    let sandbox = Sandbox::stub();
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
    let mut sandbox = Sandbox::stub();
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    let before = journal(&sandbox);
    for variable in ["OCLCACHE_READONLY", "OCLCACHE_DISABLE"] {
        sandbox.set(variable, "1");
        sandbox.kernel(Way::Cached, SOURCE, "-DN=2").ok();
        sandbox.variables.remove(variable);
    }
    assert_eq!(journal(&sandbox), before);
}

/// A program that keeps binaries itself, as PyOpenCL does, compiles nothing: there is nothing to explain, and no disk to wait for.
#[test]
fn what_is_loaded_from_a_binary_is_counted_and_not_in_the_journal() {
    let sandbox = Sandbox::stub();
    let binary = sandbox.path("binary").display().to_string();
    let saved = sandbox.client(Way::Bare, &["time", "--kernels", "1", "--save", &binary]);
    saved.ok();
    for _ in 0..2 {
        let loaded = ["time", "--kernels", "1", "--binary", &binary];
        sandbox.client(Way::Cached, &loaded).ok();
    }
    assert_eq!(sandbox.stat("bypass_reasons/from_binary"), 2);
    assert!(!sandbox.path("cache/v1/journal").exists());
    let ran = sandbox.oclcache(&["explain"]).ok();
    let words = "`oclcache stats` counts those that loaded binaries of their own";
    assert!(ran.stderr.contains(words), "{}", ran.stderr);
}

#[test]
fn processes_that_write_at_once_lose_nothing() {
    let sandbox = Sandbox::stub();
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
    let is_of = |row: &&serde_json::Value, id: u32| row["process"] == u64::from(id);
    assert!(ids.iter().all(|id| list.iter().any(|row| is_of(&row, *id))));
}

#[test]
fn a_damaged_journal_tells_what_is_left_and_is_written_on() {
    let sandbox = Sandbox::stub();
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
    let sandbox = Sandbox::stub();
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
    let magic = b"oclcjrn2";
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
    let mut sandbox = Sandbox::stub();
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
    let mut sandbox = Sandbox::stub();
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
