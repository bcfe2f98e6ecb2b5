//! A hostile cache directory: whatever stands in place of anything in it, the program computes what it would without a cache,
//! nothing hangs, and nothing foreign is followed, written or removed, by programs or by the command.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use xxhash_rust::xxh3::xxh3_64;

use crate::support::{Ran, SOURCE, Sandbox, Way, example, is_root, skipped, tree};
const NOBODY: u32 = 65534;

fn mode(bits: u32) -> fs::Permissions {
    PermissionsExt::from_mode(bits)
}

/// Puts something at a path; `mine` is a directory of things that nobody may touch. What cannot be put there says why.
type Put = fn(path: &Path, mine: &Path) -> Result<(), std::io::Error>;

const KINDS: [(&str, Put); 13] = [
    ("a link to a file", |path, mine| {
        symlink(mine.join("file"), path)
    }),
    ("a link to a directory", |path, mine| symlink(mine, path)),
    ("a link to nothing", |path, mine| {
        symlink(mine.join("missing"), path)
    }),
    ("a link to an endless device", |path, _| {
        symlink("/dev/zero", path)
    }),
    ("a link to itself", |path, _| symlink(path, path)),
    ("another name of a file", |path, mine| {
        fs::hard_link(mine.join("file"), path)
    }),
    ("a FIFO", |path, _| make(path, FileType::Fifo)),
    ("a socket", |path, _| {
        // A socket's path is short.
        let short = tempfile::Builder::new().prefix("s").tempdir_in("/tmp")?;
        drop(UnixListener::bind(short.path().join("s"))?);
        fs::rename(short.path().join("s"), path)
    }),
    ("an endless device", |path, _| {
        make(path, FileType::CharacterDevice)
    }),
    ("a file of 1 TiB", |path, _| {
        fs::File::create(path)?.set_len(1 << 40)
    }),
    ("a directory", |path, _| {
        fs::create_dir(path)?;
        fs::write(path.join("notes"), "mine")
    }),
    ("a file of another user", |path, _| {
        fs::write(path, "oclcache")?;
        chown(path, Some(NOBODY), Some(NOBODY))
    }),
    ("a file without permissions", |path, _| {
        fs::write(path, "oclcache")?;
        fs::set_permissions(path, mode(0))
    }),
];

fn make(path: &Path, kind: FileType) -> std::io::Result<()> {
    let zero = makedev(1, 5);
    Ok(mknodat(CWD, path, kind, Mode::from_raw_mode(0o600), zero)?)
}

/// What is below a directory, with digests of the contents.
fn state(directory: &Path) -> BTreeMap<PathBuf, (String, u64)> {
    let with_content = |(path, state): (PathBuf, String)| {
        let content = fs::read(&path).unwrap_or_default();
        (path, (state, xxh3_64(&content)))
    };
    tree(directory).into_iter().map(with_content).collect()
}

/// What the cache makes there, by how deep it stands; with names that it has only sometimes.
fn places(cache: &Path) -> BTreeMap<usize, BTreeSet<PathBuf>> {
    let sometimes = [
        "aside",
        "digests",
        "journal.old",
        "loading",
        "locks",
        "names",
        "stats/total.json",
    ];
    let sometimes = sometimes.map(|name| cache.join("v1").join(name));
    let mut places: BTreeMap<usize, BTreeSet<PathBuf>> = BTreeMap::new();
    for path in tree(cache).into_keys().chain(sometimes) {
        let below = path.strip_prefix(cache).expect("a path below").to_owned();
        places
            .entry(below.components().count())
            .or_default()
            .insert(below);
    }
    places
}

fn remove(path: &Path) {
    match path.symlink_metadata() {
        Ok(found) if found.is_dir() => fs::remove_dir_all(path).expect("removed"),
        Ok(_) => fs::remove_file(path).expect("removed"),
        Err(_) => {}
    }
}

/// The kernel through the cache, or bare: ended by its own, or with 124 after a time that nothing needs.
fn client(sandbox: &Sandbox, way: Way) -> Ran {
    let source = sandbox.write("kernel.cl", SOURCE);
    let mut command = sandbox.command(way, "timeout");
    command.arg("60").arg(example("client"));
    command.args(["run", "--kernel", "f", "--options", "-DN=3", "--source"]);
    sandbox.run(command.arg(source))
}

fn oclcache(sandbox: &Sandbox, verb: &str) -> Ran {
    let mut command = sandbox.command(Way::Cached, "timeout");
    command
        .arg("60")
        .arg(env!("CARGO_BIN_EXE_oclcache"))
        .arg(verb);
    sandbox.run(&mut command)
}

fn oclcache_run(sandbox: &Sandbox) -> Ran {
    let source = sandbox.write("kernel.cl", SOURCE);
    let mut command = sandbox.command(Way::Cached, "timeout");
    command
        .arg("60")
        .arg(sandbox.installed())
        .args(["run", "--"])
        .arg(example("client"));
    command.args(["run", "--kernel", "f", "--options", "-DN=3", "--source"]);
    sandbox.run(command.arg(source))
}

#[test]
fn nothing_in_place_of_anything_is_followed_written_or_waited_for() {
    let sandbox = Sandbox::stub();
    let (cache, filled, mine) = (
        sandbox.path("cache"),
        sandbox.path("filled"),
        sandbox.path("mine"),
    );
    let bare = client(&sandbox, Way::Bare).ok().stdout;
    // An entry that was set aside, and one that is used.
    client(&sandbox, Way::Cached).ok();
    fs::write(&sandbox.entries()[0], "damaged").expect("written");
    client(&sandbox, Way::Cached).ok();
    oclcache(&sandbox, "stats").ok();
    assert_eq!(oclcache_run(&sandbox).ok().stdout, bare);
    fs::rename(&cache, &filled).expect("moved");
    let places = places(&filled);
    assert!(places.len() >= 4, "{places:?}");

    fs::create_dir(&mine).expect("made");
    // What could be taken for the cache's own.
    for name in [
        "file",
        "journal",
        "new-1-1",
        &format!("{}.entry", "4f".repeat(32)),
    ] {
        fs::write(mine.join(name), "oclcache oclcjrn2 mine").expect("written");
    }
    for (kind, put) in KINDS {
        if kind == "a file of another user" && !is_root() {
            skipped(format_args!(
                "{kind} in the cache (only root can give one away)"
            ));
            continue;
        }
        if let Err(error) = put(&sandbox.path("trial"), &mine) {
            skipped(format_args!("{kind} in the cache ({error})"));
            continue;
        }
        remove(&sandbox.path("trial"));
        for (depth, names) in &places {
            let copied = Command::new("cp")
                .arg("-a")
                .arg(&filled)
                .arg(&cache)
                .status();
            assert!(copied.expect("cp").success());
            for name in names {
                remove(&cache.join(name));
                put(&cache.join(name), &mine).expect("put there");
            }
            let before = state(&mine);
            let foreign: Vec<PathBuf> = names.iter().map(|name| cache.join(name)).collect();
            for run in ["first", "second"] {
                let ran = client(&sandbox, Way::Cached);
                let what = format!("{kind} at depth {depth}, {run} run");
                assert_eq!(
                    (ran.code, &ran.stdout),
                    (Some(0), &bare),
                    "{what}:\n{}",
                    ran.stderr
                );
                assert_eq!(state(&mine), before, "{what}");
                if *depth == 1 && kind != "a directory" {
                    assert!(
                        ran.stderr.contains("the cache is off"),
                        "{what}:\n{}",
                        ran.stderr
                    );
                }
            }
            let ran = oclcache_run(&sandbox);
            let what = format!("{kind} at depth {depth}, oclcache run");
            assert_eq!(
                (ran.code, &ran.stdout),
                (Some(0), &bare),
                "{what}:\n{}",
                ran.stderr
            );
            for verb in ["stats", "list", "explain", "clear"] {
                let ran = oclcache(&sandbox, verb);
                let what = format!("{kind} at depth {depth}, {verb}");
                assert!(
                    matches!(ran.code, Some(0 | 1)),
                    "{what}: {:?}\n{}",
                    ran.code,
                    ran.stderr
                );
                assert_eq!(state(&mine), before, "{what}");
            }
            // What is no file of the cache's making is still there, if only set aside.
            let kept = tree(&cache).into_keys();
            let kept = kept.filter(|path| path.ends_with("notes")).count();
            if kind == "a directory" {
                assert_eq!(kept, foreign.len(), "at depth {depth}");
            }
            remove(&cache);
        }
    }
}

/// A directory that others may read gives them nothing: what is made in it is its owner's alone.
#[test]
fn no_file_can_be_read_by_others_whatever_its_directory_and_the_umask_allow() {
    let sandbox = Sandbox::stub();
    let cache = sandbox.path("cache");
    let source = sandbox.write("kernel.cl", SOURCE);
    for (directory, umask, entries, shards) in [
        (0o755, "000", 0o600, 0o700),
        (0o750, "000", 0o600, 0o700),
        (0o755, "027", 0o600, 0o700),
        (0o700, "000", 0o600, 0o700),
    ] {
        fs::create_dir(&cache).expect("made");
        fs::set_permissions(&cache, mode(directory)).expect("changed");
        for program in [example("client"), env!("CARGO_BIN_EXE_oclcache").into()] {
            let mut command = sandbox.command(Way::Cached, "sh");
            command
                .args(["-c", "umask $0; exec \"$@\"", umask])
                .arg(&program);
            if program == example("client") {
                command.args(["run", "--kernel", "f", "--options", "-DN=3", "--source"]);
                sandbox.run(command.arg(&source)).ok();
            } else {
                sandbox.run(command.arg("stats")).ok();
            }
        }
        for path in tree(&cache).into_keys() {
            let found = path.metadata().expect("what was listed");
            let bits = found.permissions().mode() & 0o7777;
            let allowed = if found.is_dir() { shards } else { entries };
            let name = path.strip_prefix(&cache).expect("a path below");
            assert_eq!(
                bits & !allowed,
                0,
                "{name:?} has {bits:o}, {directory:o}, {umask}"
            );
            if name.starts_with("v1/entries") {
                assert_eq!(bits, allowed, "{name:?}, {directory:o}, {umask}");
            }
        }
        for written_in_place in ["v1/journal", "v1/locks"] {
            let found = cache.join(written_in_place).metadata().expect("made");
            let bits = found.permissions().mode() & 0o7777;
            assert_eq!(bits, 0o600, "{written_in_place}, {directory:o}, {umask}");
        }
        remove(&cache);
    }
}

/// Who may write an entry can make its checksum right, and who may write a shard can put another entry into its place.
#[test]
fn what_others_may_write_below_is_not_read_and_the_log_says_so() {
    let sandbox = Sandbox::stub();
    let builds = |log: Option<&str>| {
        let ran = client(&sandbox, Way::Cached).ok();
        assert!(
            log.is_none_or(|words| ran.stderr.contains(words)),
            "{}",
            ran.stderr
        );
        ran.source_builds()
    };
    assert_eq!((builds(None), builds(None)), (1, 0));
    for bits in [0o666, 0o664, 0o602] {
        fs::set_permissions(&sandbox.entries()[0], mode(bits)).expect("changed");
        assert_eq!(builds(Some("others may write it")), 1, "{bits:o}");
        assert_eq!(builds(None), 0, "{bits:o}");
    }
    let entry = sandbox.entries().remove(0);
    let shard = entry.parent().expect("a shard");
    for directory in [shard, shard.parent().expect("the shards")] {
        fs::set_permissions(directory, mode(0o777)).expect("changed");
        let before = tree(directory);
        assert_eq!(builds(Some("others may write it")), 1);
        assert_eq!(tree(directory), before);
        fs::set_permissions(directory, mode(0o700)).expect("changed");
        assert_eq!(builds(None), 0);
    }
}

/// The reason stands in the log, and the command says it to whoever asks.
#[test]
fn a_directory_that_is_not_ours_alone_is_refused_and_the_command_says_why() {
    let mut sandbox = Sandbox::stub();
    let bare = client(&sandbox, Way::Bare).ok().stdout;
    let (cache, home) = (sandbox.path("cache"), sandbox.path("home"));
    fs::create_dir(&cache).expect("made");
    let mut is_refused = |why: &str, by_default: bool| {
        if by_default {
            // `Sandbox::command` names the directory; nothing is as good as no name.
            sandbox.set("OCLCACHE_DIR", "");
        }
        let ran = client(&sandbox, Way::Cached).ok();
        assert_eq!(
            (ran.source_builds(), &ran.stdout),
            (1, &bare),
            "{}",
            ran.stderr
        );
        assert!(ran.stderr.contains(why), "{}", ran.stderr);
        let stats = oclcache(&sandbox, "stats");
        assert_eq!(stats.code, Some(1));
        assert!(stats.stderr.contains(why), "{}", stats.stderr);
        let config = oclcache(&sandbox, "config").ok();
        assert!((config.stdout + &config.stderr).contains(why), "{why}");
        let below = tree(&cache).len() + tree(&sandbox.path("home")).len();
        assert_eq!(below, 0, "something was written");
    };
    fs::set_permissions(&cache, mode(0o777)).expect("changed");
    is_refused("others may write it", false);
    fs::set_permissions(&cache, mode(0o700)).expect("changed");
    if !is_root() {
        return skipped(
            "a cache directory and a home of another user (only root can give them away)",
        );
    }
    chown(&cache, Some(NOBODY), None).expect("given away");
    is_refused("it belongs to another user", false);
    // As under sudo, where HOME is still the caller's.
    chown(&home, Some(NOBODY), None).expect("given away");
    is_refused(
        "belongs to another user than the one who runs this program",
        true,
    );
}

/// There all users without a number have the same one, which is no user's own (user_namespaces(7)).
#[test]
fn in_a_namespace_that_knows_no_user_a_cache_of_another_one_is_not_ones_own() {
    if !is_root() {
        return skipped("a cache of a user without a number (only root can give one away)");
    }
    let can = Command::new("unshare").args(["-U", "true"]).status();
    if !can.is_ok_and(|status| status.success()) {
        return skipped("a cache of a user without a number (no user namespace)");
    }
    let mut sandbox = Sandbox::stub();
    client(&sandbox, Way::Cached).ok();
    let mut all: Vec<PathBuf> = tree(&sandbox.path("cache")).into_keys().collect();
    all.push(sandbox.path("cache"));
    for path in all {
        chown(&path, Some(4242), None).expect("given away");
        let bits = if path.is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(&path, mode(bits)).expect("changed");
    }
    let log = sandbox.write("stub.log", "");
    fs::set_permissions(log, mode(0o666)).expect("changed");
    for name in ["OCLCACHE_DIR", "OCLCACHE_SYSTEM_DIRS"] {
        let cache = sandbox.path("cache");
        sandbox.set("OCLCACHE_DIR", sandbox.path("none"));
        sandbox.set(name, &cache);
        let source = sandbox.write("kernel.cl", SOURCE);
        let mut command = sandbox.command(Way::Cached, "unshare");
        command.arg("-U").arg(example("client"));
        command
            .args(["run", "--kernel", "f", "--source"])
            .arg(source);
        let ran = sandbox.run(&mut command).ok();
        assert!(
            !ran.stderr.contains("outcome=\"hit\""),
            "{name}: {}",
            ran.stderr
        );
        assert!(ran.stderr.contains("belongs to"), "{name}: {}", ran.stderr);
    }
}

/// A job that runs as root has restored the cache of a user.
#[test]
fn a_cache_of_another_user_in_ones_own_home_is_taken_over_by_the_command_that_is_named() {
    if !is_root() {
        return skipped("a restored cache of another user (only root can give one away)");
    }
    for (place, variable) in [
        ("home/.cache/oclcache", None),
        ("cache", Some(("OCLCACHE_DIR", "cache"))),
        // Where a site has the caches of all users.
        ("shared/oclcache", Some(("XDG_CACHE_HOME", "shared"))),
    ] {
        let mut sandbox = Sandbox::stub();
        let cache = sandbox.path(place);
        let is_default = variable.is_none();
        fs::create_dir_all(cache.join("v1/entries")).expect("made");
        for directory in [&cache, &cache.join("v1"), &cache.join("v1/entries")] {
            fs::set_permissions(directory, mode(0o700)).expect("changed");
            chown(directory, Some(NOBODY), None).expect("given away");
        }
        if is_default {
            let parent = cache.parent().expect("a directory");
            chown(parent, Some(NOBODY), None).expect("given away");
        }
        sandbox.set("OCLCACHE_DIR", "");
        if let Some((name, place)) = variable {
            let value = sandbox.path(place);
            sandbox.set(name, value);
        }
        if place == "shared/oclcache" {
            fs::set_permissions(sandbox.path("shared"), mode(0o1777)).expect("changed");
        }
        let command = format!("chown -R 0 {}", cache.display());
        for verb in [
            &["stats"][..],
            &["run", "true"],
            &["config"],
            &["doctor", "--no-build"],
        ] {
            let mut run = sandbox.command(Way::Cached, sandbox.installed());
            let ran = sandbox.run(run.args(verb));
            let said = ran.stdout + &ran.stderr;
            // Elsewhere its owner may use it.
            let names_command = said.contains(&format!("sudo {command}"));
            assert_eq!(names_command, is_default, "{verb:?}: {said}");
            let names_another = said.contains("a directory of yours");
            assert!(names_another, "{verb:?}, {place}: {said}");
            assert!(!said.contains("below"), "{verb:?}, {place}: {said}");
        }
        if !is_default {
            continue;
        }
        sandbox
            .run(sandbox.command(Way::Bare, "sh").args(["-c", &command]))
            .ok();
        let said = oclcache(&sandbox, "stats").ok().stderr;
        assert!(!said.contains("another user"), "{said}");
    }
}
