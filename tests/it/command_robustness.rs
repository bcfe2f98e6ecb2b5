//! What holds for all verbs: readers that go, disks that are full, homes and permissions that are missing, signals, and names and
//! texts that were chosen to do harm.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::Relaxed;

use serde_json::Value;

use crate::hostile_texts::{HOSTILE, assert_plain};
use crate::support::{
    Ran, SOURCE, Sandbox, Way, copy_program, example, plain_command, skipped, tree,
};
const RUN: &str = env!("CARGO_BIN_EXE_oclcache");

/// A command line or more of each verb, whether it writes data, and whether it does nothing without the cache. KEY is the key of
/// an entry, NEW a file that is not there, ARCHIVE one of the cache's own.
const LINES: [(&str, bool, bool); 33] = [
    ("help stats", true, false),
    ("stats", true, true),
    ("stats --verbose", true, true),
    ("stats --by program", true, true),
    ("stats --json", true, true),
    ("report -", true, true),
    ("list", true, true),
    ("list --json", true, true),
    ("show KEY", true, true),
    ("show KEY --json", true, true),
    ("show KEY --source", true, true),
    ("explain", true, true),
    ("explain KEY", true, true),
    ("explain --json", true, true),
    ("doctor --no-build", true, false),
    ("doctor --no-build --json", true, false),
    ("install --user --dry-run", false, false),
    ("uninstall --user --dry-run", false, false),
    ("config", true, false),
    ("config --json", true, false),
    ("config get max_size", true, false),
    ("completions bash", true, false),
    ("man", true, false),
    ("caches", true, false),
    ("caches --json", true, false),
    ("path", true, true),
    ("bake --json", true, true),
    ("bake", false, true),
    ("extract KEY NEW", false, true),
    ("export --dry-run --json NEW", true, true),
    ("import --all --json ARCHIVE", true, true),
    ("gc", false, true),
    ("run -q true", false, false),
];

/// A sandbox with an entry.
fn filled() -> Sandbox {
    let sandbox = Sandbox::stub();
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    let archive = sandbox.path("archive");
    let archive = archive.to_str().expect("UTF-8");
    sandbox.oclcache(&["export", archive]).ok();
    sandbox
}

/// Numbers names that nobody has.
static NEW: AtomicU32 = AtomicU32::new(0);

/// A line as arguments.
fn words(sandbox: &Sandbox, line: &str) -> Vec<OsString> {
    let entry = sandbox.entries().pop();
    let key = entry.as_deref().and_then(Path::file_stem);
    let word = |word: &str| match word {
        "KEY" => key.unwrap_or(OsStr::new("abcdef")).to_owned(),
        "NEW" => sandbox
            .path(&format!("new-{}", NEW.fetch_add(1, Relaxed)))
            .into(),
        "ARCHIVE" => sandbox.path("archive").into(),
        word => word.into(),
    };
    line.split(' ').map(word).collect()
}

/// The installed command, which finds its library.
fn command(sandbox: &Sandbox, line: &str) -> Command {
    let mut command = sandbox.command(Way::Cached, sandbox.installed());
    command.args(words(sandbox, line));
    command
}

fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).stderr(Stdio::piped());
    command.output().expect("run")
}

/// Nobody has forgotten a verb here.
#[test]
fn the_lines_are_of_all_verbs() {
    let sandbox = Sandbox::stub();
    let pages = sandbox.path("man");
    sandbox
        .oclcache(&["man", pages.to_str().expect("UTF-8")])
        .ok();
    let names = fs::read_dir(pages).expect("made").flatten();
    let names = names.map(|page| page.file_name().into_string().expect("UTF-8"));
    let verb = |name: String| Some(name.strip_suffix(".1")?.split('-').nth(1)?.to_owned());
    let wanted: BTreeSet<String> = names.filter_map(verb).collect();
    let verb = |line: &str| line.split(' ').next().map(str::to_owned);
    let mut tried: BTreeSet<String> = LINES.iter().filter_map(|(line, ..)| verb(line)).collect();
    // It removes what the others need, see below.
    tried.insert("clear".into());
    // Another program does its work.
    tried.insert("remote".into());
    assert_eq!(tried, wanted);
}

#[test]
fn a_reader_that_has_gone_is_quiet_and_a_full_disk_is_said_by_all_verbs() {
    let sandbox = filled();
    for (line, writes, _) in LINES {
        // What it finds wrong in a sandbox is another's business.
        let ends_well = |code: Option<i32>| code == Some(0) || line.starts_with("doctor");
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let gone = output(command(&sandbox, line).stdout(writer));
        let said = String::from_utf8_lossy(&gone.stderr);
        assert!(ends_well(gone.status.code()), "{line}: {said}");
        assert!(
            !said.contains("pipe") && !said.contains("panic"),
            "{line}: {said}"
        );
        let full = fs::File::options().write(true).open("/dev/full");
        let full = output(command(&sandbox, line).stdout(full.expect("opened")));
        let said = String::from_utf8_lossy(&full.stderr);
        let code = full.status.code();
        assert!(
            code == Some(1) || !writes && ends_well(code),
            "{line}: {said}"
        );
        assert_eq!(said.contains("standard output"), writes, "{line}: {said}");
    }
}

/// The verb says what it lacks and what to do, and neither crashes nor leaves anything.
#[track_caller]
fn is_refused(command: &mut Command, line: &str, wanted: &[&str]) {
    let output = output(command);
    let said = String::from_utf8_lossy(&output.stderr);
    let code = output
        .status
        .code()
        .unwrap_or_else(|| panic!("{line}: {said}"));
    assert!(code < 100, "{line}: {code}: {said}");
    assert_plain(&output.stderr);
    for words in wanted {
        assert!(said.contains(words), "{line}: {said}");
    }
}

#[test]
fn without_a_home_each_verb_says_what_to_set() {
    let sandbox = filled();
    let before = tree(&sandbox.path("cache"));
    for (line, _, needs_cache) in LINES {
        let wanted: &[&str] = if needs_cache { &["OCLCACHE_DIR"] } else { &[] };
        let mut command = command(&sandbox, line);
        command.env_remove("HOME").env_remove("OCLCACHE_DIR");
        is_refused(&mut command, line, wanted);
    }
    assert_eq!(tree(&sandbox.path("cache")), before);
}

#[test]
fn a_directory_that_others_may_write_is_named_and_left() {
    let sandbox = filled();
    let cache = sandbox.path("cache");
    fs::set_permissions(&cache, fs::Permissions::from_mode(0o777)).expect("set");
    let before = tree(&cache);
    for (line, _, needs_cache) in LINES {
        let name = [cache.to_str().expect("UTF-8")];
        let needs_cache = needs_cache && line != "path";
        let wanted: &[&str] = if needs_cache { &name } else { &[] };
        is_refused(&mut command(&sandbox, line), line, wanted);
    }
    assert_eq!(tree(&cache), before);
}

/// So many more entries that a signal comes while they are removed.
fn crowd(sandbox: &Sandbox) -> PathBuf {
    let entry = sandbox.entries().pop().expect("an entry");
    let entries = entry.parent().and_then(Path::parent).expect("the entries");
    for number in 0..4000_u32 {
        let shard = entries.join(format!("{:02x}", number % 256));
        fs::create_dir_all(&shard).expect("made");
        let name = format!("{:02x}{number:062x}.entry", number % 256);
        fs::hard_link(&entry, shard.join(name)).expect("linked");
    }
    entries.to_owned()
}

#[test]
fn a_signal_ends_a_collection_and_leaves_no_files() {
    // On a busy machine a collection may be over before the signal comes.
    assert!((0..10).any(|_| is_ended_by_a_signal(&filled())));
}

/// Interrupts a collection, and checks what it leaves. False: it had come to its end.
fn is_ended_by_a_signal(sandbox: &Sandbox) -> bool {
    let entries = crowd(sandbox);
    let count = || {
        let shards = fs::read_dir(&entries).expect("there").flatten();
        let files = shards.map(|shard| fs::read_dir(shard.path()).map_or(0, Iterator::count));
        files.sum::<usize>()
    };
    let before = count();
    assert!(before > 4000);
    let mut child = command(sandbox, "gc --max-size 1B");
    let mut child = child.stderr(Stdio::null()).spawn().expect("run");
    while count() == before && child.try_wait().expect("a child").is_none() {}
    if child.try_wait().expect("a child").is_none() {
        let pid = rustix::process::Pid::from_child(&child);
        rustix::process::kill_process(pid, rustix::process::Signal::INT).expect("sent");
    }
    let ended = child.wait().expect("ended");
    let left = count();
    if ended.success() {
        assert_eq!(left, 0);
        return false;
    }
    assert_eq!(ended.signal(), Some(2));
    assert!(left < before, "{left} of {before}");
    let temporary = tree(&sandbox.path("cache/v1/tmp"));
    assert!(temporary.is_empty(), "{temporary:?}");
    sandbox.oclcache(&["gc", "--max-size", "1B"]).ok();
    assert_eq!(sandbox.stat("entries"), 0);
    true
}

#[test]
fn arguments_that_are_wrong_are_named_with_what_was_meant() {
    let sandbox = Sandbox::stub();
    let ran = sandbox.oclcache(&["sats"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("'stats'"), "{}", ran.stderr);
    for text in HOSTILE {
        let text = OsStr::from_bytes(text);
        for before in [
            &[][..],
            &["gc", "--max-size"],
            &["show", "KEY"],
            &["explain", "--last"],
        ] {
            let mut command = sandbox.command(Way::Cached, RUN);
            let ran = output(command.args(before).arg(text));
            assert_plain(&ran.stderr);
            assert_plain(&ran.stdout);
            assert!(ran.status.code().is_some_and(|code| code < 100));
        }
    }
}

/// Everything that a program, a person or a file can choose, chosen to do harm.
struct Hostile {
    sandbox: Sandbox,
    program: PathBuf,
}

impl Hostile {
    fn new(text: &[u8]) -> Hostile {
        let mut sandbox = Sandbox::stub();
        let text = OsStr::from_bytes(text);
        let below = |sandbox: &Sandbox, name: &str| {
            sandbox.path(name).join(match text.as_bytes() {
                b".." => OsStr::new("..."),
                _ => text,
            })
        };
        for name in ["caches", "programs"] {
            fs::create_dir(sandbox.path(name)).expect("made");
        }
        let program = below(&sandbox, "programs");
        copy_program(example("client"), &program);
        let cache = below(&sandbox, "caches");
        sandbox.set("OCLCACHE_DIR", cache);
        let spy = sandbox.path("spy").into_os_string().into_vec();
        let vendors = [&spy[..], b":/nonexistent/", text.as_bytes()].concat();
        sandbox.set("OCLCACHE_VENDORS", OsString::from_vec(vendors));
        sandbox.set("OCLCACHE_SYSTEM_DIRS", below(&sandbox, "tiers"));
        sandbox.set("OCLCACHE_LOG", "trace");
        sandbox.set("OCLCACHE_LOG_FILE", sandbox.path("log"));
        sandbox.set("OCLCACHE_RECORD", text);
        sandbox.set("STUB_DEVICE_NAME", text);
        sandbox.set("STUB_CODE", text);
        let folder = sandbox.path("home/.config/oclcache");
        fs::create_dir_all(&folder).expect("made");
        let quoted = |character: char| format!("\\U{:08x}", u32::from(character));
        let quoted: String = text.to_string_lossy().chars().map(quoted).collect();
        let file = format!("log = \"{quoted}\"\nmax_age = \"{quoted}\"\n\"{quoted}\" = 1\n");
        fs::write(folder.join("config.toml"), file).expect("written");
        Hostile { sandbox, program }
    }

    /// Builds what the text can stand in: a comment, a header's name, a macro, an option, a source that fails.
    fn build(&self, text: &[u8]) {
        let comment = [b"/* ".as_slice(), text, b" */\n", SOURCE.as_bytes()].concat();
        let name: Vec<u8> = text
            .iter()
            .copied()
            .filter(|byte| !b"\"\n\r\\".contains(byte))
            .collect();
        let header = self.sandbox.path("headers").join(OsStr::from_bytes(&name));
        let include = [b"#include \"".as_slice(), &name, b"\"\n", SOURCE.as_bytes()].concat();
        let _ = fs::create_dir(self.sandbox.path("headers"));
        if name != b".." {
            fs::write(header, "/* a header */\n").expect("written");
        }
        let folder = self.sandbox.path("headers").into_os_string().into_vec();
        let with_folder = [b"-DN=3 -I ".as_slice(), &folder].concat();
        let with_macro = [b"-DN=1 -DX=".as_slice(), text].concat();
        let failing = [b"#error ".as_slice(), text, b"\n"].concat();
        for (source, options) in [
            (&comment, &b"-DN=2"[..]),
            (&comment, &with_macro),
            (&comment, text),
            (&include, &with_folder),
            (&failing, b"-DN=4"),
        ] {
            self.run(source, options);
        }
    }

    fn run(&self, source: &[u8], options: &[u8]) -> Ran {
        let file = self.sandbox.write("kernel.cl", source);
        let mut command = self.sandbox.command(Way::Cached, &self.program);
        command.args(["run", "--kernel", "f", "--source"]).arg(file);
        command.arg("--options").arg(OsStr::from_bytes(options));
        self.sandbox.run(&mut command)
    }

    /// What a verb writes, which is plain.
    fn shown(&self, arguments: &[&str]) -> Output {
        let mut command = self.sandbox.command(Way::Cached, RUN);
        let output = output(command.args(arguments));
        assert_plain(&output.stdout);
        assert_plain(&output.stderr);
        output
    }

    fn json(&self, arguments: &[&str]) -> Value {
        serde_json::from_slice(&self.shown(arguments).stdout).expect("JSON")
    }
}

#[test]
fn no_text_leaves_its_place_in_any_output() {
    let mut macros = 0;
    for text in HOSTILE {
        let hostile = Hostile::new(text);
        hostile.build(text);
        let list = hostile.json(&["list", "--json"]);
        let list = list.as_array().expect("a list");
        assert!(!list.is_empty(), "{}", text.escape_ascii());
        // Equal values come back, as far as JSON can hold them.
        let name = hostile
            .program
            .file_name()
            .expect("a name")
            .to_string_lossy();
        let names = list.iter().map(|row| row["program"].as_str());
        assert!(names.into_iter().all(|it| it == Some(&*name)), "{list:?}");
        let options = list.iter().filter_map(|row| row["options"].as_str());
        for options in options.filter(|options| options.starts_with("-DN=1 ")) {
            let macro_value = String::from_utf8_lossy(text);
            assert_eq!(options, format!("-DN=1 -DX={macro_value}"));
            macros += 1;
        }
        for (line, ..) in LINES {
            let is_of_data = !["completions", "man", "run", "path", "doctor"]
                .iter()
                .any(|it| line.starts_with(it));
            if is_of_data && !line.contains("KEY") && !line.contains("ARCHIVE") {
                let arguments: Vec<&str> = line.split(' ').collect();
                let shown = hostile.shown(&arguments);
                if line.ends_with("--json") {
                    serde_json::from_slice::<Value>(&shown.stdout).expect("JSON");
                }
            }
        }
        // For `$(oclcache path)`.
        let mut path = hostile.sandbox.command(Way::Cached, RUN);
        let path = output(path.arg("path")).stdout;
        let wanted = hostile.sandbox.variables["OCLCACHE_DIR"].as_bytes();
        assert_eq!(path, [wanted, b"\n"].concat());
        let explained = hostile.shown(&["explain", "--last", "1000"]).stdout;
        let lines = String::from_utf8(explained).expect("UTF-8");
        let heads = lines.lines().filter(|line| !line.starts_with(' ')).count();
        assert_eq!(
            heads,
            hostile
                .json(&["explain", "--last", "1000", "--json"])
                .as_array()
                .expect("a list")
                .len()
        );
        for row in list {
            let key = row["key"].as_str().expect("a key");
            hostile.shown(&["show", key]);
            hostile.shown(&["explain", key]);
            hostile.json(&["show", key, "--json"]);
            hostile.json(&["explain", key, "--json"]);
        }
        let log = fs::read(hostile.sandbox.path("log")).expect("a log");
        assert_plain(&log);
        for line in String::from_utf8(log).expect("UTF-8").lines() {
            assert!(line.len() > 30 && line.as_bytes()[10] == b'T', "{line}");
        }
        assert!(!hostile.sandbox.path("pwned").exists() && !Path::new("pwned").exists());
        hostile.shown(&["clear"]);
        assert_eq!(hostile.json(&["list", "--json"]), serde_json::json!([]));
    }
    // The others are no options that a driver takes.
    assert!(macros >= 3, "{macros}");
}

/// A terminal obeys what it is shown, so it gets no byte as it is; a file gets each.
#[test]
fn no_verb_writes_what_a_terminal_obeys() {
    if Command::new("script").arg("--version").output().is_err() {
        return skipped("what verbs write to a terminal (no `script`)");
    }
    let is_obeyed = |text: &&[u8]| !text.is_ascii() || text.contains(&b'\x1b');
    for text in HOSTILE.into_iter().filter(is_obeyed) {
        let hostile = Hostile::new(text);
        hostile.build(text);
        let list = hostile.json(&["list", "--json"]);
        let mut rows = list.as_array().expect("a list").iter();
        let row = rows.find(|row| row["options"] == "-DN=2").expect("a row");
        let key = row["key"].as_str().expect("a key");
        let left_out = ["ARCHIVE", "completions", "man", "run", "gc"];
        for (line, ..) in LINES {
            if left_out.iter().any(|word| line.contains(word)) {
                continue;
            }
            let line = line.replace("KEY", key).replace("NEW", "new");
            let is_source = line.ends_with("--source");
            // Colors and bars are the command's own; of bars, which are on standard error, a file has none.
            let line = format!("NO_COLOR=1 {RUN} {line} 2>err");
            let own = hostile.sandbox.command(Way::Cached, RUN);
            let own = own
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?)));
            let mut script = plain_command("script");
            script.args(["-qec", &line, "/dev/null"]).envs(own);
            script.current_dir(hostile.sandbox.path(""));
            let shown = String::from_utf8(output(&mut script).stdout).expect("UTF-8");
            let shown = shown.replace("\r\n", "\n").replace('\t', " ");
            assert_plain(shown.as_bytes());
            assert_plain(&fs::read(hostile.sandbox.path("err")).expect("read"));
            assert!(!is_source || shown.contains("*/\n__kernel"), "{shown}");
        }
        let mut show = hostile.sandbox.command(Way::Cached, RUN);
        let source = output(show.args(["show", key, "--source"])).stdout;
        // As the client reads it.
        let text = String::from_utf8_lossy(text);
        assert_eq!(source, format!("/* {text} */\n{SOURCE}").as_bytes());
    }
}
