//! The command's other verbs: data on standard output, words on standard error, exit codes by meaning, and nothing that a
//! program or a user writes makes it touch or show what it should not.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;

use serde_json::Value;

use crate::stats::counted_reasons;
use crate::support::{Ran, SOURCE, Sandbox, Way, copy_program, example, tree};
/// A sandbox with so many entries.
fn filled(entries: usize) -> Sandbox {
    let sandbox = Sandbox::stub();
    for number in 0..entries {
        let options = format!("-DN={number}");
        sandbox.kernel(Way::Cached, SOURCE, &options).ok();
    }
    sandbox
}

fn json(sandbox: &Sandbox, arguments: &[&str]) -> Value {
    let ran = sandbox.oclcache(arguments).ok();
    assert_eq!(ran.stderr, "");
    serde_json::from_str(&ran.stdout).expect("JSON")
}

fn keys(sandbox: &Sandbox) -> Vec<String> {
    let list = json(sandbox, &["list", "--json"]);
    let keys = list.as_array().expect("a list").iter();
    keys.map(|row| row["key"].as_str().expect("a key").to_owned())
        .collect()
}

/// The file of an entry.
fn file_of(sandbox: &Sandbox, key: &str) -> PathBuf {
    let directory = sandbox.path("cache/v1/entries").join(&key[..2]);
    directory.join(format!("{key}.entry"))
}

/// Nothing in it moves a cursor, rings a bell or begins a line of its own.
#[track_caller]
fn is_plain(text: &str) {
    let odd =
        |character: &char| character.is_control() && *character != '\n' || *character == '\u{202e}';
    assert_eq!(text.chars().find(odd), None, "{text:?}");
}

#[test]
fn stats_counts_each_outcome_and_begins_anew_after_zero() {
    let sandbox = filled(2);
    sandbox.kernel(Way::Cached, SOURCE, "-DN=0").ok();
    sandbox.kernel(Way::Cached, "#error wrong\n", "");
    sandbox
        .kernel(
            Way::Cached,
            &format!("{SOURCE}// __DATE__ __TIME__\nconstant char t[] = __TIME__;\n"),
            "-DN=5",
        )
        .ok();
    let stats = json(&sandbox, &["stats", "--json"]);
    let number = |name: &str| {
        stats[name]
            .as_u64()
            .unwrap_or_else(|| panic!("{name}: {stats}"))
    };
    let counts = [
        "hits",
        "misses",
        "bypassed",
        "failed",
        "materialised",
        "entries",
    ];
    assert_eq!(counts.map(number), [1, 2, 1, 1, 0, 2]);
    let reasons = counted_reasons(&stats, "bypass_reasons");
    let sum: u64 = reasons.iter().map(|(_, count)| count).sum();
    assert_eq!((reasons.len(), sum), (1, 1), "{stats}");
    let sizes = sandbox
        .entries()
        .into_iter()
        .map(|path| fs::metadata(path).expect("an entry").blocks() * 512);
    assert_eq!(number("bytes"), sizes.sum::<u64>());
    assert!(number("compile_ns") > 0 && number("load_ns") > 0);
    number("saved_ns");
    let text = sandbox.oclcache(&["stats"]).ok().stdout;
    assert!(text.contains("hits") && text.contains("33.3 %"), "{text}");
    let zeroed = sandbox.oclcache(&["stats", "--zero"]).ok();
    assert_eq!(zeroed.stdout, "");
    let counts = ["hits", "misses", "bypassed", "failed"].map(|name| sandbox.stat(name));
    assert_eq!((counts, sandbox.stat("entries")), ([0; 4], 2));
    sandbox.kernel(Way::Cached, SOURCE, "-DN=0").ok();
    assert_eq!(sandbox.stat("hits"), 1);
}

#[test]
fn without_a_cache_every_verb_answers_and_makes_nothing() {
    let sandbox = Sandbox::stub();
    let path = sandbox.path("cache").display().to_string();
    assert_eq!(sandbox.oclcache(&["path"]).ok().stdout, format!("{path}\n"));
    for verb in [
        &["stats"][..],
        &["stats", "--zero"],
        &["list"],
        &["explain"],
        &["clear"],
        &["config"],
    ] {
        sandbox.oclcache(verb).ok();
    }
    assert_eq!(
        json(&sandbox, &["list", "--json"]),
        Value::Array(Vec::new())
    );
    assert_eq!(json(&sandbox, &["stats", "--json"])["entries"], 0);
    for verb in [
        &["show", "ab"][..],
        &["explain", "ab"],
        &["clear", "--key", "ab"],
    ] {
        assert_eq!(sandbox.oclcache(verb).code, Some(3));
    }
    assert!(!sandbox.path("cache").exists());
}

#[test]
fn a_key_is_found_by_digits_that_make_it_clear_and_by_no_others() {
    let sandbox = filled(2);
    let [first, second] = <[String; 2]>::try_from(keys(&sandbox)).expect("two keys");
    let shared = first
        .bytes()
        .zip(second.bytes())
        .take_while(|(a, b)| a == b);
    let clear = shared.count() + 1;
    for digits in [clear, clear + 5, 64] {
        let shown = json(&sandbox, &["show", &first[..digits], "--json"]);
        assert_eq!(shown["key"], *first);
        assert_eq!(
            shown["path"],
            *file_of(&sandbox, &first).display().to_string()
        );
        assert_eq!(shown["kernels"][0], "f");
    }
    let source = sandbox.oclcache(&["show", &first, "--source"]).ok();
    assert_eq!(source.stdout, SOURCE);
    // A second key with the same first digits: a file's name is enough.
    let double = format!("{}{}", &first[..4], "0".repeat(60));
    fs::copy(file_of(&sandbox, &first), file_of(&sandbox, &double)).expect("copied");
    let ran = sandbox.oclcache(&["show", &first[..4]]);
    assert_eq!((ran.code, &*ran.stdout), (Some(3), ""));
    assert!(
        ran.stderr.contains("2 entries begin with"),
        "{}",
        ran.stderr
    );
    let rows = json(&sandbox, &["list", "--json"]);
    let rows = rows.as_array().expect("a list").iter();
    assert_eq!(rows.filter(|row| row["damaged"] == true).count(), 1);
    let ran = sandbox.oclcache(&["show", &double]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("damaged"), "{}", ran.stderr);
}

#[test]
fn no_key_leads_out_of_the_cache() {
    let sandbox = filled(1);
    let key = keys(&sandbox).pop().expect("a key");
    let before = tree(&sandbox.path(""));
    let entry = format!("../entries/{}/{key}", &key[..2]);
    let long = "a".repeat(100_000);
    let longer = format!("{key}0");
    for bad in [
        "../../x",
        &entry,
        "",
        "/etc/passwd",
        ".",
        "*",
        "zz",
        &long,
        &longer,
        "\x1b[2J\nforged",
        "ab\u{202e}",
        "00000000",
    ] {
        for verb in [
            &["show", "--"][..],
            &["show", "--json", "--"],
            &["explain", "--"],
            &["explain", "--json", "--"],
            &["clear", "--key"],
        ] {
            let ran = sandbox.oclcache(&[verb, &[bad]].concat());
            assert_eq!(
                (ran.code, &*ran.stdout),
                (Some(3), ""),
                "{verb:?} {bad:?}: {}",
                ran.stderr
            );
            assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.stderr);
            is_plain(&ran.stderr);
        }
    }
    let mut after = tree(&sandbox.path(""));
    after.retain(|path, _| before.contains_key(path) && !path.ends_with("spy.log"));
    let changed = after
        .into_iter()
        .filter(|(path, state)| !path.is_dir() && before[path] != *state);
    assert_eq!(changed.collect::<Vec<_>>(), []);
}

#[test]
fn clear_removes_what_is_the_caches_and_says_what_it_leaves() {
    let sandbox = filled(3);
    let [first, second, third] = <[String; 3]>::try_from(keys(&sandbox)).expect("three keys");
    let cleared = sandbox.oclcache(&["clear", "--key", &first]).ok();
    assert!(cleared.stderr.contains(&first));
    assert!(!file_of(&sandbox, &first).exists() && file_of(&sandbox, &second).exists());
    // The user's own files and links, of any name, at any place.
    fs::create_dir(sandbox.path("precious")).expect("made");
    let precious = sandbox.write("precious/file", "oclcache, but mine");
    let entries = sandbox.path("cache/v1/entries");
    symlink(sandbox.path("precious"), entries.join("zz")).expect("linked");
    let linked = file_of(&sandbox, &format!("{}{}", &second[..2], "1".repeat(62)));
    symlink(&precious, &linked).expect("linked");
    let notes = file_of(&sandbox, &second).with_file_name("notes.txt");
    fs::write(&notes, "mine").expect("written");
    let own = sandbox.write("cache/own.txt", "mine");
    let ran = sandbox.oclcache(&["clear"]);
    assert_eq!((ran.code, &*ran.stdout), (Some(1), ""), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("did not remove 2 files"),
        "{}",
        ran.stderr
    );
    for key in [&second, &third] {
        assert!(!file_of(&sandbox, key).exists());
    }
    assert_eq!(fs::read(&precious).expect("read"), b"oclcache, but mine");
    assert!(linked.is_symlink() && notes.exists() && own.exists());
    fs::remove_file(linked).expect("removed");
    fs::remove_file(notes).expect("removed");
    let ran = sandbox.oclcache(&["clear"]).ok();
    assert!(ran.stderr.contains("removed 0 entries ("), "{}", ran.stderr);
    assert_eq!(
        sandbox
            .kernel(Way::Cached, SOURCE, "-DN=0")
            .ok()
            .source_builds(),
        1
    );
    assert_eq!(
        sandbox
            .kernel(Way::Cached, SOURCE, "-DN=0")
            .ok()
            .source_builds(),
        0
    );
}

#[test]
fn clear_leaves_a_directory_that_is_no_cache() {
    let mut sandbox = Sandbox::stub();
    fs::create_dir_all(sandbox.path("photos/v1/entries/ab")).expect("made");
    sandbox.write("photos/v1/entries/ab/notes.txt", "mine");
    sandbox.write(
        &format!("photos/v1/entries/ab/{}.entry", "ab".repeat(32)),
        "mine",
    );
    sandbox.write("photos/picture.entry", "mine");
    sandbox.set("OCLCACHE_DIR", sandbox.path("photos"));
    let before = tree(&sandbox.path("photos"));
    assert_eq!(sandbox.oclcache(&["clear"]).code, Some(1));
    assert_eq!(tree(&sandbox.path("photos")), before);
}

#[test]
fn config_tells_each_value_and_where_it_comes_from() {
    let mut sandbox = Sandbox::stub();
    fs::create_dir_all(sandbox.path("home/.config/oclcache")).expect("made");
    let text = "readonly = true\nlog_file = \"/x\\u001b[2J\"\nunheard_of = 1\n";
    let file = sandbox.write("home/.config/oclcache/config.toml", text);
    sandbox.set("OCLCACHE_RECACHE", "yes");
    let ran = sandbox.oclcache(&["config"]).ok();
    is_plain(&ran.stdout);
    let from = |setting: &str| {
        let mut lines = ran.stdout.lines();
        let line = lines.find(|line| line.starts_with(&format!("{setting} = ")));
        let line = line.unwrap_or_else(|| panic!("{setting}: {}", ran.stdout));
        let value = line.split_once(" = ").expect("a value").1.to_owned();
        let source = lines.next().expect("a source").rsplit("from: ").next();
        (value, source.expect("a source").to_owned())
    };
    let file = file.display().to_string();
    assert_eq!(from("readonly"), ("true".into(), file.clone()));
    assert_eq!(
        from("recache"),
        ("yes".into(), "environment, OCLCACHE_RECACHE".into())
    );
    assert_eq!(from("mode"), ("auto".into(), "default".into()));
    assert_eq!(from("dir").0, sandbox.path("cache").display().to_string());
    assert!(ran.stderr.contains("unheard_of") && ran.stderr.contains(&file));
    sandbox.write("home/.config/oclcache/config.toml", "this is = not [toml");
    let ran = sandbox.oclcache(&["config"]).ok();
    assert!(ran.stderr.contains(&file), "{}", ran.stderr);
}

#[test]
fn the_letters_of_ccache_do_what_they_do_there() {
    let sandbox = filled(1);
    let same = |short: &str, long: &[&str]| {
        let (short, long) = (sandbox.oclcache(&[short]).ok(), sandbox.oclcache(long).ok());
        assert_eq!((short.stdout, short.stderr), (long.stdout, long.stderr));
    };
    same("-s", &["stats"]);
    same("-p", &["config"]);
    sandbox.oclcache(&["-c"]).ok();
    sandbox.oclcache(&["-z"]).ok();
    assert_eq!([sandbox.stat("misses"), sandbox.stat("entries")], [0, 1]);
    sandbox.oclcache(&["-C"]).ok();
    assert_eq!(sandbox.stat("entries"), 0);
    let version = format!("oclcache {}\n", env!("CARGO_PKG_VERSION"));
    assert_eq!(sandbox.oclcache(&["--version"]).ok().stdout, version);
    let help = sandbox.oclcache(&["--help"]).ok().stdout;
    for verb in [
        "run", "stats", "list", "show", "explain", "path", "clear", "config",
    ] {
        assert!(help.contains(&format!("\n  {verb} ")), "{help}");
        let help = sandbox.oclcache(&[verb, "--help"]).ok().stdout;
        assert!(help.contains("Usage: oclcache"), "{help}");
    }
    for wrong in [&["--nonsense"][..], &["stat"], &["show"], &[]] {
        let ran = sandbox.oclcache(wrong);
        assert_eq!((ran.code, &*ran.stdout), (Some(2), ""), "{wrong:?}");
        assert!(!ran.stderr.is_empty());
    }
}

#[test]
fn a_reader_that_has_gone_is_no_failure_and_a_full_disk_is_one() {
    let sandbox = filled(1);
    let key = keys(&sandbox).pop().expect("a key");
    for verb in [
        &["list"][..],
        &["list", "--json"],
        &["stats"],
        &["stats", "--json"],
        &["show", &key],
        &["explain"],
        &["explain", &key],
        &["path"],
        &["config"],
        &["--help"],
        &["--version"],
    ] {
        let command = || {
            let mut command = sandbox.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
            command.args(verb).stderr(Stdio::piped());
            command
        };
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let output = command().stdout(writer).output().expect("run");
        let words = String::from_utf8_lossy(&output.stderr);
        assert_eq!((output.status.code(), &*words), (Some(0), ""), "{verb:?}");
        let full = fs::File::options()
            .write(true)
            .open("/dev/full")
            .expect("opened");
        let output = command().stdout(full).output().expect("run");
        if !verb[0].starts_with("--") {
            let words = String::from_utf8_lossy(&output.stderr);
            assert_eq!(output.status.code(), Some(1), "{verb:?}");
            assert!(words.contains("standard output"), "{words}");
        }
    }
}

/// Bytes that would begin a line, clear the screen or reverse the text, in all that a program can name.
#[test]
fn no_byte_of_a_program_forges_a_line_of_the_log_or_of_the_command() {
    let forged = "2026-01-01T00:00:00.000000Z  WARN oclcache: forged";
    let odd = format!("\x1b[2J\x07\n{forged}\r\u{202e}");
    let mut sandbox = Sandbox::stub();
    let log = sandbox.path("log");
    sandbox.set("OCLCACHE_LOG", "trace");
    sandbox.set("OCLCACHE_LOG_FILE", &log);
    sandbox.set("STUB_DEVICE_NAME", odd.as_str());
    sandbox.set("STUB_CODE", odd.as_str());
    let vendors = format!("{}:/nonexistent/{odd}", sandbox.path("spy").display());
    sandbox.set("OCLCACHE_VENDORS", vendors);
    fs::create_dir_all(sandbox.path("home/.config/oclcache")).expect("made");
    let key = odd.replace(['\x1b', '\x07', '\n', '\r'], "\\u001b");
    sandbox.write(
        "home/.config/oclcache/config.toml",
        format!("\"{key}\" = 1\nlog = \"{key}\"\n"),
    );
    let program = sandbox.path(&format!("client{odd}"));
    copy_program(example("client"), &program);
    let run = |source: &str, options: &str| -> Ran {
        let file = sandbox.write("kernel.cl", source);
        let mut command = sandbox.command(Way::Cached, &program);
        command
            .args(["run", "--kernel", "f", "--options", options, "--source"])
            .arg(file);
        sandbox.run(&mut command)
    };
    let kernel = format!(
        "__kernel void f{}(__global uint *out) {{}}\n",
        odd.replace('\n', "\x0b")
    );
    for source in [
        SOURCE.to_owned(),
        format!("// {odd}\n{SOURCE}"),
        kernel,
        format!("#error {odd}\n"),
        format!("#{odd}\n{SOURCE}"),
    ] {
        for options in [
            "-DN=1",
            &format!("-DN=1 -DX={odd}"),
            &format!("-D{odd}"),
            &format!("-bad{odd}"),
        ] {
            run(&source, options);
        }
    }
    // Damaged entries are named as well.
    for entry in sandbox.entries() {
        fs::write(entry, &odd).expect("written");
    }
    run(SOURCE, "-DN=1");
    // What is said without a log.
    let mut command = sandbox.command(Way::Cached, &program);
    command
        .env("OCLCACHE_MUST_HIT", "1")
        .args(["run", "--kernel", "f", "--source"]);
    command
        .arg(sandbox.path("kernel.cl"))
        .arg("--options")
        .arg(format!("-DN=9 -DX={odd}"));
    let said = sandbox.run(&mut command).ok().stderr;
    assert!(said.starts_with("oclcache: OCLCACHE_MUST_HIT: "), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    is_plain(&said);
    let text = fs::read_to_string(&log).expect("a log");
    assert!(text.lines().count() > 20, "{text}");
    is_plain(&text);
    for line in text.lines() {
        let stamp = line.as_bytes();
        let starts = stamp.len() > 30 && stamp[0].is_ascii_digit() && stamp[10] == b'T';
        assert!(starts && !line.starts_with(forged), "{line:?}");
    }
    assert!(
        text.contains("\\u{1b}[2J"),
        "the log shows nothing odd: {text}"
    );
    let shown = text + &sandbox.oclcache(&["list"]).ok().stdout;
    assert!(
        shown.contains("client\\u{1b}[2J"),
        "shown, but tame: {shown}"
    );
    assert!(sandbox.stat("entries") > 0);
    for verb in [
        &["list"][..],
        &["stats"],
        &["config"],
        &["list", "--json"],
        &["explain", "--last", "1000"],
        &["explain", "--last", "1000", "--json"],
    ] {
        is_plain(&sandbox.oclcache(verb).ok().stdout);
    }
    for key in keys(&sandbox) {
        for verb in [&["show", &key][..], &["show", &key, "--json"]] {
            is_plain(&sandbox.oclcache(verb).stdout);
        }
    }
    assert!(Path::new(&program).exists());
}
