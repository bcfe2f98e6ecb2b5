//! Versions side by side: what another version of the library, the baker or the command has left in a cache directory harms nobody,
//! and is not harmed. Two libraries that really are of different versions run in `ci/store versions`.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};

use xxhash_rust::xxh3::xxh3_128;

use crate::support::{Sandbox, Way, copy_program, example, library, tree};

const SOURCE: &str =
    "__kernel void f(__global uint *out) { out[get_global_id(0)] = (uint)get_global_id(0) + 5; }\n";

/// Where an entry names its version and its key, as the grammar in `store::entry` has it, and how long its checksum is.
const VERSION: usize = 8;
const KEY: std::ops::Range<usize> = 12..44;
const CHECKSUM: usize = 16;

/// Runs the program, which must compute what it does bare, and tells how often the driver compiled.
#[track_caller]
fn misses(sandbox: &Sandbox) -> usize {
    let bare = sandbox.kernel(Way::Bare, SOURCE, "").ok();
    let cached = sandbox.kernel(Way::Cached, SOURCE, "").ok();
    assert_eq!(cached.stdout, bare.stdout, "log:\n{}", cached.stderr);
    cached.source_builds()
}

/// The same entry under another key, as a version with other ingredients would have made it, and of another grammar if `version` is
/// given. It lies where that version looks for it.
fn of_another_version(entry: &Path, version: Option<u8>) -> PathBuf {
    let mut bytes = fs::read(entry).expect("an entry");
    for byte in &mut bytes[KEY] {
        *byte = !*byte;
    }
    if let Some(version) = version {
        bytes[VERSION] = version;
    }
    let end = bytes.len() - CHECKSUM;
    let checksum = xxh3_128(&bytes[..end]).to_le_bytes();
    bytes[end..].copy_from_slice(&checksum);
    let key: String = bytes[KEY]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect();
    let shards = entry.parent().and_then(Path::parent).expect("a shard");
    let shard = shards.join(&key[..2]);
    fs::create_dir_all(&shard).expect("made");
    let path = shard.join(format!("{key}.entry"));
    fs::write(&path, bytes).expect("written");
    fs::set_permissions(&path, fs::metadata(entry).expect("an entry").permissions())
        .expect("permitted");
    path
}

/// What every version does with a directory, in the background or when it is told to.
#[track_caller]
fn use_all(sandbox: &Sandbox) {
    for arguments in [
        &["list"][..],
        &["stats"],
        &["gc"],
        &["bake"],
        &["bake", "--all"],
        &["bake", "--stale"],
        &["explain"],
    ] {
        let ran = sandbox.oclcache(arguments);
        assert_eq!(ran.signal, None, "{arguments:?}: {}", ran.stderr);
    }
}

#[test]
fn entries_with_other_keys_and_of_another_grammar_stay_as_they_are() {
    for version in [None, Some(3), Some(200)] {
        let sandbox = Sandbox::stub();
        assert_eq!((misses(&sandbox), misses(&sandbox)), (1, 0));
        let other = of_another_version(&sandbox.entries()[0], version);
        let before = fs::read(&other).expect("the entry");
        use_all(&sandbox);
        assert_eq!(fs::read(&other).expect("the entry"), before, "{version:?}");
        assert_eq!(misses(&sandbox), 0, "{version:?}");
        assert_eq!(sandbox.stat("set_aside"), 0, "{version:?}");
    }
}

#[test]
fn a_recipe_of_another_version_is_baked_or_left_and_never_tried_for_ever() {
    let mut sandbox = Sandbox::stub();
    sandbox.set("OCLCACHE_RECORD", "bake");
    assert_eq!(misses(&sandbox), 1);
    let ours = sandbox.entries()[0].clone();
    of_another_version(&ours, None);
    let first = sandbox.oclcache(&["bake"]);
    assert_eq!(first.signal, None, "{}", first.stderr);
    assert_eq!(misses(&sandbox), 0, "{}", first.stderr);
    // What it could not bake stays said, and costs no compilation at each start of the baker.
    for _ in 0..3 {
        sandbox.oclcache(&["bake"]);
    }
    let before = sandbox.compilations();
    let last = sandbox.oclcache(&["bake"]);
    assert_eq!(sandbox.compilations(), before, "{}", last.stderr);
    assert_eq!(misses(&sandbox), 0);
}

/// Statistics, journal, digests and all other small files are of another encoding, as a later version may write them.
#[test]
fn small_files_of_another_version_are_no_obstacle() {
    for kind in ["magic", "longer", "empty"] {
        let sandbox = Sandbox::stub();
        assert_eq!((misses(&sandbox), misses(&sandbox)), (1, 0));
        let files: Vec<PathBuf> = tree(&sandbox.path("cache"))
            .into_keys()
            .filter(|path| path.is_file() && path.extension().is_none_or(|name| name != "entry"))
            .collect();
        assert!(!files.is_empty());
        for path in &files {
            let mut bytes = fs::read(path).expect("a file");
            match kind {
                "magic" => bytes.iter_mut().take(8).for_each(|byte| *byte ^= 1),
                "longer" => bytes.extend(b"what a later version adds"),
                _ => bytes.clear(),
            }
            fs::write(path, bytes).expect("written");
        }
        use_all(&sandbox);
        assert_eq!(misses(&sandbox), 0, "{kind}");
        use_all(&sandbox);
        assert_eq!(misses(&sandbox), 0, "{kind}");
    }
}

#[test]
fn a_directory_of_another_format_is_left_alone() {
    let sandbox = Sandbox::stub();
    assert_eq!((misses(&sandbox), misses(&sandbox)), (1, 0));
    let (ours, other) = (sandbox.path("cache/v1"), sandbox.path("cache/v2"));
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .args([&ours, &other])
        .status();
    assert!(copied.expect("cp").success());
    let before = tree(&other);
    use_all(&sandbox);
    assert_eq!(misses(&sandbox), 0);
    assert_eq!(tree(&other), before);
    sandbox.oclcache(&["clear"]).ok();
    assert_eq!(tree(&other), before);
}

/// A client that does what each line says.
struct Turns(Child, BufReader<std::process::ChildStdout>);

impl Turns {
    fn start(sandbox: &Sandbox) -> Turns {
        let mut command = sandbox.command(Way::Cached, example("client"));
        command
            .arg("turns")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().expect("started");
        let output = child.stdout.take().expect("piped");
        Turns(child, BufReader::new(output))
    }

    #[track_caller]
    fn says(&mut self, line: &str, answer: &str) {
        let input = self.0.stdin.as_mut().expect("piped");
        writeln!(input, "{line}").expect("told");
        let mut said = String::new();
        self.1.read_line(&mut said).expect("an answer");
        assert_eq!(said.trim_end(), answer, "{line}");
    }
}

/// An upgrade puts other files in the place of the library and the command while programs run.
#[test]
fn a_program_goes_on_while_it_is_upgraded() {
    let sandbox = Sandbox::stub();
    let (bin, place) = (sandbox.path("lib"), sandbox.path("lib/liboclcache.so"));
    fs::create_dir(&bin).expect("made");
    copy_program(library(), &place);
    sandbox.write("oclcache/oclcache.icd", format!("{}\n", place.display()));
    let mut old = Turns::start(&sandbox);
    old.says("build 0 3", "built 3");
    let upgrade = || {
        copy_program(library(), &bin.join("new"));
        fs::rename(bin.join("new"), &place).expect("in its place");
    };
    upgrade();
    let mut new = Turns::start(&sandbox);
    new.says("build 0 6", "built 6");
    old.says("build 3 9", "built 6");
    use_all(&sandbox);
    new.says("build 6 12", "built 6");
    fs::remove_file(&place).expect("removed");
    old.says("build 9 12", "built 3");
    new.says("build 12 13", "built 1");
    for mut turns in [old, new] {
        drop(turns.0.stdin.take());
        assert!(turns.0.wait().expect("ended").success());
    }
    // Each was compiled once, whichever of them was first.
    assert_eq!(sandbox.compilations(), 13);
}
