//! Directories of the system: served from, never written, and used only where nobody untrusted can write them.

use std::fs;
use std::ops::Deref;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use crate::live::state;
use crate::support::{
    Driver, Ran, SOURCE, Sandbox, Way, empty_memory, example, given, is_root, library, skipped,
    tree,
};

const DAY: Duration = Duration::from_secs(86_400);
/// A temporary directory of [`trusted_place`].
pub struct TrustedPlace(TempDir);

impl Deref for TrustedPlace {
    type Target = TempDir;

    fn deref(&self) -> &TempDir {
        &self.0
    }
}

impl Drop for TrustedPlace {
    fn drop(&mut self) {
        empty_memory(self.path());
    }
}

/// A directory that nobody can write but who runs the tests and root, up to the root directory; None, said by name, without.
pub fn trusted_place(test: &str) -> Option<TrustedPlace> {
    let me = rustix::process::geteuid().as_raw();
    let is_trusted = |path: &Path| {
        let metadata = path.metadata();
        metadata.is_ok_and(|m| [0, me].contains(&m.uid()) && m.mode() & 0o022 == 0)
    };
    let places = ["/var/cache", "/run"].map(PathBuf::from);
    let mut places = places.into_iter().chain(given("HOME"));
    let found = places.find_map(|place| {
        let place = place.canonicalize().ok()?;
        let good = place.ancestors().all(is_trusted);
        let make = || {
            tempfile::Builder::new()
                .prefix("oclcache-test-")
                .tempdir_in(&place)
                .ok()
        };
        good.then(make)?
    });
    if found.is_none() {
        skipped(format_args!("{test} (no place that only root can write)"));
    }
    found.map(TrustedPlace)
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, PermissionsExt::from_mode(mode)).expect("changed");
}

/// A copy of a cache directory, to be read by all.
fn install(cache: &Path, tier: &Path, owner: u32) {
    fs::create_dir_all(tier).expect("made");
    if cache != tier {
        let mut command = Command::new("cp");
        let copied = command.arg("-r").arg(cache.join("v1")).arg(tier).status();
        assert!(copied.expect("cp").success());
    }
    for path in tree(tier).into_keys().chain([tier.to_owned()]) {
        let mode = if path.is_dir() { 0o755 } else { 0o644 };
        set_mode(&path, mode);
        // Long enough ago for the use of an entry to be noted, were it the user's.
        let date = || fs::File::open(&path)?.set_modified(SystemTime::now() - 40 * DAY);
        date().expect("dated");
        if is_root() {
            chown(&path, Some(owner), Some(owner)).expect("given away");
        }
    }
}

/// A sandbox without a cache, and a trusted tier with one entry that was stored under these variables.
struct Tiered {
    sandbox: Sandbox,
    place: TrustedPlace,
    bare: String,
}

impl Tiered {
    fn new(test: &str, variables: &[(&str, &str)]) -> Option<Tiered> {
        let place = trusted_place(test)?;
        let mut sandbox = Sandbox::stub();
        let bare = sandbox.kernel(Way::Bare, SOURCE, "-DN=3").ok().stdout;
        for (name, value) in variables {
            sandbox.set(name, *value);
        }
        sandbox.kernel(Way::Cached, SOURCE, "-DN=3").ok();
        for (name, _) in variables {
            sandbox.variables.remove(*name);
        }
        let tier = place.path().join("tier");
        install(&sandbox.path("cache"), &tier, 0);
        sandbox.set(
            "OCLCACHE_SYSTEM_DIRS",
            format!("/nonexistent:{}", tier.display()),
        );
        let tiered = Tiered {
            sandbox,
            place,
            bare,
        };
        tiered.forget();
        Some(tiered)
    }

    fn tier(&self) -> PathBuf {
        self.place.path().join("tier")
    }

    fn forget(&self) {
        let _ = fs::remove_dir_all(self.sandbox.path("cache"));
    }

    /// Builds, entries of the user's cache, hits, and of these hits from the tier, after a run that left the tier alone.
    #[track_caller]
    fn run(&self) -> (usize, usize, u64, u64) {
        let before = tree(&self.tier());
        let ran = self.sandbox.kernel(Way::Cached, SOURCE, "-DN=3").ok();
        assert_eq!(ran.stdout, self.bare, "{}", ran.stderr);
        assert_eq!(tree(&self.tier()), before, "{}", ran.stderr);
        let [hits, of_system] = ["hits", "system_hits"].map(|name| self.sandbox.stat(name));
        (
            ran.source_builds(),
            self.sandbox.entries().len(),
            hits,
            of_system,
        )
    }
}

#[test]
fn verbs_on_an_empty_cache_name_the_tier_that_serves() {
    let Some(tiered) = Tiered::new("verbs on an empty cache", &[]) else {
        return;
    };
    let tier = tiered.tier();
    let words = format!("the system directory `{}` has 1 entry", tier.display());
    for verb in [&["list"][..], &["export", "--yes", "archive.tar.zst"]] {
        let said = tiered.sandbox.oclcache(verb).stderr;
        assert!(said.contains(&words), "{verb:?}: {said}");
    }
}

/// The only entry of a tier.
fn entry_below(tier: &Path) -> PathBuf {
    let is_entry = |path: &PathBuf| path.extension().is_some_and(|name| name == "entry");
    let entry = tree(tier).into_keys().find(is_entry);
    entry.expect("an entry")
}

#[test]
fn a_tier_serves_and_nothing_of_it_is_copied_or_written() {
    let Some(mut tiered) = Tiered::new("a tier that serves", &[]) else {
        return;
    };
    assert_eq!(tiered.run(), (0, 0, 1, 1));
    assert_eq!(tiered.run(), (0, 0, 2, 2));
    let sandbox = &tiered.sandbox;
    let stats = sandbox.oclcache(&["stats"]).ok().stdout;
    let line = format!("{}, 1 entries", tiered.tier().display());
    assert!(
        stats.contains(&line) && !stats.contains("/nonexistent"),
        "{stats}"
    );
    let json = sandbox.oclcache(&["stats", "--json"]).ok().stdout;
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let listed = serde_json::json!([{ "path": tiered.tier(), "entries": 1 }]);
    assert_eq!(json["system_directories"], listed);
    // It is no entry of the user's, but it can be looked at.
    assert_eq!(sandbox.oclcache(&["list"]).ok().stdout, "");
    let entry = entry_below(&tiered.tier());
    let key = entry
        .file_stem()
        .and_then(|stem| stem.to_str())
        .expect("a key");
    let shown = sandbox.oclcache(&["show", &key[..8]]).ok().stdout;
    assert!(shown.contains(&entry.display().to_string()), "{shown}");
    assert_eq!(sandbox.oclcache(&["clear", "--key", key]).code, Some(3));
    // Nothing is compiled, so nothing is to be said; and what is verified is the same.
    tiered.sandbox.set("OCLCACHE_MUST_HIT", "1");
    tiered.sandbox.set("OCLCACHE_VERIFY", "100");
    let ran = tiered.sandbox.kernel(Way::Cached, SOURCE, "-DN=3").ok();
    assert!(!ran.stderr.contains("OCLCACHE_"), "{}", ran.stderr);
    assert_eq!(tiered.sandbox.stat("verified"), 1);
}

/// No load proves an entry of a tier, so each process watches it: in memory.
#[test]
fn a_hit_from_a_tier_changes_nothing_in_the_users_cache_either() {
    let Some(tiered) = Tiered::new("what a hit from a tier writes", &[]) else {
        return;
    };
    // What identifies the driver is remembered with the first miss.
    tiered.sandbox.kernel(Way::Cached, SOURCE, "-DN=4").ok();
    let cache = tiered.sandbox.path("cache");
    for _ in 0..2 {
        let before = state(&cache);
        let ran = tiered.sandbox.kernel(Way::Cached, SOURCE, "-DN=3").ok();
        assert_eq!((ran.source_builds(), &ran.stdout), (0, &tiered.bare));
        assert_eq!(state(&cache), before, "{}", ran.stderr);
    }
    assert_eq!(tiered.sandbox.stat("system_hits"), 2);
}

#[test]
fn a_tier_serves_on_each_driver() {
    let Some(place) = trusted_place("a tier on each driver") else {
        return;
    };
    for driver in Driver::ALL {
        let Some(mut sandbox) = Sandbox::new(driver) else {
            continue;
        };
        let bare = sandbox.kernel(Way::Bare, SOURCE, "-DN=3").ok().stdout;
        sandbox.kernel(Way::Cached, SOURCE, "-DN=3").ok();
        let (cache, tier) = (
            sandbox.path("cache"),
            place.path().join(format!("{driver:?}")),
        );
        install(&cache, &tier, 0);
        fs::remove_dir_all(cache).expect("removed");
        sandbox.set("OCLCACHE_SYSTEM_DIRS", &tier);
        let before = tree(&tier);
        let ran = sandbox.kernel(Way::Cached, SOURCE, "-DN=3").ok();
        let log = &ran.stderr;
        assert_eq!(
            (ran.source_builds(), &ran.stdout),
            (0, &bare),
            "{driver:?}: {log}"
        );
        assert_eq!(
            (sandbox.stat("system_hits"), sandbox.entries().len()),
            (1, 0),
            "{driver:?}"
        );
        assert_eq!(tree(&tier), before, "{driver:?}: {log}");
    }
}

#[test]
fn a_tier_serves_where_the_user_has_no_cache_or_only_reads_it() {
    let Some(mut tiered) = Tiered::new("a tier for who has no cache", &[]) else {
        return;
    };
    let before = tree(&tiered.tier());
    let source = tiered.sandbox.write("kernel.cl", SOURCE);
    let arguments = ["run", "--kernel", "f", "--options", "-DN=3", "--source"];
    let prepare: [&dyn Fn(&mut Command); 2] = [
        &|command| {
            command.env_remove("HOME").env_remove("OCLCACHE_DIR");
        },
        &|command| {
            command.env("OCLCACHE_READONLY", "1");
        },
    ];
    for prepare in prepare {
        let mut command = tiered.sandbox.command(Way::Cached, example("client"));
        prepare(command.args(arguments).arg(&source));
        let ran = tiered.sandbox.run(&mut command).ok();
        assert_eq!(
            (ran.source_builds(), &ran.stdout),
            (0, &tiered.bare),
            "{}",
            ran.stderr
        );
        assert!(!tiered.sandbox.path("cache").exists());
    }
    let mut command = tiered
        .sandbox
        .command(Way::Cached, tiered.sandbox.installed());
    command.env_remove("HOME").env_remove("OCLCACHE_DIR");
    command.args(["run", "--"]).arg(example("client"));
    let ran = tiered
        .sandbox
        .run(command.args(arguments).arg(&source))
        .ok();
    assert_eq!(
        (ran.source_builds(), &ran.stdout),
        (0, &tiered.bare),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("1 hit, 0 misses"), "{}", ran.stderr);
    assert_eq!(tree(&tiered.tier()), before);
    // Who builds anew has an entry of his own then, which is found first.
    tiered.sandbox.set("OCLCACHE_RECACHE", "1");
    assert_eq!(tiered.run(), (1, 1, 0, 0));
    tiered.sandbox.variables.remove("OCLCACHE_RECACHE");
    assert_eq!(tiered.run(), (0, 1, 1, 0));
}

#[test]
fn a_bad_entry_of_a_tier_is_a_miss_once_and_stays_where_it_is() {
    let Some(tiered) = Tiered::new("a bad entry of a tier", &[]) else {
        return;
    };
    let entry = entry_below(&tiered.tier());
    let good = fs::read(&entry).expect("read");
    for (mode, content) in [
        (0o644, b"damaged".as_slice()),
        (0o666, &good),
        (0o664, &good),
    ] {
        fs::write(&entry, content).expect("written");
        set_mode(&entry, mode);
        tiered.forget();
        assert_eq!(tiered.run(), (1, 1, 0, 0), "{mode:o}");
        assert_eq!(tiered.run(), (0, 1, 1, 0), "{mode:o}");
        assert_eq!(tiered.sandbox.stat("set_aside"), 0);
    }
}

#[test]
fn an_entry_of_a_tier_that_the_driver_refuses_is_built_and_stored() {
    let refuses = [("STUB_REFUSE_BINARIES", "1")];
    let Some(mut tiered) = Tiered::new("a refused entry of a tier", &refuses) else {
        return;
    };
    tiered.sandbox.set("STUB_REFUSE_BINARIES", "1");
    assert_eq!(tiered.run(), (1, 1, 0, 0));
    assert_eq!(tiered.sandbox.stat("set_aside"), 0);
}

/// Entries that were stored without texts cannot answer for build logs, so the driver is asked, and the answer is kept.
#[test]
fn what_is_learnt_of_a_tiers_entry_goes_into_the_users_cache() {
    let Some(place) = trusted_place("a tier without texts") else {
        return;
    };
    let mut sandbox = Sandbox::stub();
    let bare = sandbox.client(Way::Bare, &["facts"]).ok();
    sandbox.set("OCLCACHE_STORE_SOURCE", "0");
    sandbox.client(Way::Cached, &["facts"]).ok();
    sandbox.variables.remove("OCLCACHE_STORE_SOURCE");
    fs::rename(sandbox.path("cache"), sandbox.path("filled")).expect("moved");
    install(&sandbox.path("filled"), &place.path().join("tier"), 0);
    sandbox.set("OCLCACHE_SYSTEM_DIRS", place.path().join("tier"));
    for of_system in [true, false] {
        let before = sandbox.stat("system_hits");
        let ran = sandbox.client(Way::Cached, &["facts"]).ok();
        assert_eq!(ran.stdout, bare.stdout, "{}", ran.stderr);
        assert_eq!(sandbox.stat("system_hits") > before, of_system);
        assert_eq!((sandbox.entries().len(), sandbox.stat("stored")), (1, 0));
    }
}

#[test]
fn a_tier_that_others_can_write_is_not_used_and_is_named_with_the_reason() {
    let Some(tiered) = Tiered::new("a tier that others can write", &[]) else {
        return;
    };
    let sandbox = &tiered.sandbox;
    let (parent, tier) = (tiered.place.path().to_owned(), tiered.tier());
    let version = tier.join("v1");
    for (place, mode) in [
        (&parent, 0o777),
        (&parent, 0o1777),
        (&tier, 0o775),
        (&version, 0o777),
    ] {
        set_mode(place, mode);
        let ran = sandbox.kernel(Way::Cached, SOURCE, "-DN=3").ok();
        assert_eq!(
            (ran.source_builds(), &ran.stdout),
            (1, &tiered.bare),
            "{place:?}"
        );
        let named = |text: &str| {
            let mut lines = text.lines();
            lines.any(|line| line.contains("not used") && line.contains(&*place.to_string_lossy()))
        };
        assert!(named(&ran.stderr), "{place:?}: {}", ran.stderr);
        assert!(
            named(&sandbox.oclcache(&["config"]).ok().stderr),
            "{place:?}"
        );
        assert!(
            named(&sandbox.oclcache(&["stats"]).ok().stdout),
            "{place:?}"
        );
        set_mode(place, 0o755);
        tiered.forget();
        assert_eq!(tiered.run(), (0, 0, 1, 1), "{place:?}");
    }
}

const FILLER: u32 = 4001;
const USER: u32 = 4002;

/// Two users of this machine, and a place for a tier; None, said by name, if there can be none.
struct Users {
    sandbox: Sandbox,
    place: TrustedPlace,
}

impl Users {
    fn new(test: &str) -> Option<Users> {
        if !is_root() {
            skipped(format_args!("{test} (only root can be two users)"));
            return None;
        }
        let place = trusted_place(test)?;
        set_mode(place.path(), 0o755);
        let sandbox = Sandbox::stub();
        for name in ["", "home"] {
            set_mode(&sandbox.path(name), 0o755);
        }
        for name in ["spy.log", "stub.log"] {
            set_mode(&sandbox.write(name, ""), 0o666);
        }
        for (name, owner) in [("filler", FILLER), ("user", USER)] {
            let home = place.path().join(name);
            fs::create_dir(&home).expect("made");
            set_mode(&home, 0o755);
            chown(&home, Some(owner), Some(owner)).expect("given away");
        }
        for file in [example("client"), library(), example("libspy.so")] {
            let mut test_r = sandbox.command(Way::Bare, "test");
            let readable = test_r.arg("-r").arg(&file).uid(USER).gid(USER).status();
            if !readable.is_ok_and(|status| status.success()) {
                skipped(format_args!("{test} (others cannot read what was built)"));
                return None;
            }
        }
        Some(Users { sandbox, place })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.place.path().join(name)
    }

    /// The client's kernel for one of them, run by a program if one is given.
    fn run(&self, user: u32, through: Option<(&Path, &[&Path])>) -> Ran {
        let source = self.sandbox.write("kernel.cl", SOURCE);
        set_mode(&source, 0o644);
        let mut command = match through {
            Some((program, arguments)) => {
                let mut command = self.sandbox.command(Way::Cached, program);
                command.args(arguments).arg(example("client"));
                command
            }
            None => {
                let mut command = self.sandbox.command(Way::Cached, example("client"));
                command.uid(user).gid(user);
                command
            }
        };
        let home = if user == FILLER { "filler" } else { "user" };
        command
            .env("OCLCACHE_DIR", self.path(home).join("cache"))
            .args(["run", "--kernel", "f", "--options", "-DN=3", "--source"])
            .arg(source);
        self.sandbox.run(&mut command).ok()
    }

    /// Whether the user's run is served, by a tier that stays as it is.
    #[track_caller]
    fn is_served(&self, through: Option<(&Path, &[&Path])>) -> (bool, String) {
        let _ = fs::remove_dir_all(self.path("user/cache"));
        let before = tree(&self.path("filler"));
        let ran = self.run(USER, through);
        assert_eq!(tree(&self.path("filler")), before, "{}", ran.stderr);
        let served = ran.source_builds() == 0;
        let copied = tree(&self.path("user/cache/v1/entries"));
        assert_eq!(copied.is_empty(), served, "{}", ran.stderr);
        (served, ran.stderr)
    }
}

#[test]
fn a_tier_that_one_user_filled_serves_another_once_root_owns_it_or_trusts_him() {
    let Some(mut users) = Users::new("a tier that one user filled for another") else {
        return;
    };
    let tier = users.path("filler/cache");
    assert_eq!(users.run(FILLER, None).source_builds(), 1);
    install(&tier, &tier, FILLER);
    users.sandbox.set("OCLCACHE_SYSTEM_DIRS", &tier);
    let (served, log) = users.is_served(None);
    assert!(!served && log.contains("belongs to user 4001"), "{log}");
    // No variable makes him trusted.
    users.sandbox.set("OCLCACHE_TRUSTED_OWNERS", "4001");
    assert!(!users.is_served(None).0);
    users.is_served_where_the_systems_file_trusts_the_filler();
    for path in tree(&users.path("filler"))
        .into_keys()
        .chain([users.path("filler")])
    {
        chown(path, Some(0), Some(0)).expect("taken");
    }
    assert!(users.is_served(None).0);
    set_mode(&users.path("filler"), 0o777);
    let (served, log) = users.is_served(None);
    assert!(
        !served && log.contains("can be written by everybody"),
        "{log}"
    );
}

impl Users {
    /// In a mount namespace, where /etc is a copy with a file of the test's own.
    fn is_served_where_the_systems_file_trusts_the_filler(&self) {
        let etc = self.path("etc");
        fs::create_dir(&etc).expect("made");
        let script = self.sandbox.write(
            "trusting",
            "#!/bin/sh\n\
            set -e\n\
            mount -t tmpfs -o mode=755 none \"$1\"\n\
            cp -a /etc/. \"$1\"\n\
            mkdir -p \"$1/oclcache\"\n\
            chmod 755 \"$1/oclcache\"\n\
            echo 'trusted_owners = [4001]' > \"$1/oclcache/config.toml\"\n\
            chmod \"$2\" \"$1/oclcache/config.toml\"\n\
            mount --bind \"$1\" /etc\n\
            shift 2\n\
            exec setpriv --reuid 4002 --regid 4002 --clear-groups -- \"$@\"\n",
        );
        let run = |mode: &str| {
            let unshare = Path::new("unshare");
            let arguments = ["-m", "--", "sh"].map(Path::new);
            let rest = [script.as_path(), &etc, Path::new(mode)];
            self.is_served(Some((unshare, &[arguments.as_slice(), &rest].concat())))
        };
        let mut can = Command::new("unshare");
        can.args(["-m", "--", "mount", "-t", "tmpfs", "none"])
            .arg(&etc);
        let can = can.stderr(Stdio::null()).status();
        if !can.is_ok_and(|status| status.success()) {
            return skipped("trusted_owners of /etc/oclcache/config.toml (no mount namespace)");
        }
        let (served, log) = run("644");
        assert!(served, "{log}");
        let (served, log) = run("664");
        assert!(!served, "{log}");
        assert!(log.contains("config.toml` is not read"), "{log}");
    }
}

/// It cannot be set aside, so what the driver builds instead is found first. One whose owner cannot write it is proven.
#[test]
fn an_entry_of_a_tier_that_kills_twice_is_not_loaded_again() {
    let words = tempfile::NamedTempFile::new().expect("a file");
    let load = words.path().to_str().expect("UTF-8");
    let Some(mut tiered) = Tiered::new("a tier that kills", &[("STUB_LOAD", load)]) else {
        return;
    };
    tiered.sandbox.set("STUB_LOAD", load);
    let dies = || {
        fs::write(&words, "die-create").expect("written");
        let ran = tiered.sandbox.kernel(Way::Cached, SOURCE, "-DN=3");
        assert_eq!(ran.signal, Some(6), "{}", ran.stderr);
        fs::write(&words, "").expect("written");
    };
    dies();
    dies();
    assert_eq!(tiered.run(), (1, 1, 0, 0));
    assert_eq!(tiered.run(), (0, 1, 1, 0));
    // What the driver built instead is gone, and the deaths are remembered; another entry in its place has none.
    fs::remove_file(&tiered.sandbox.entries()[0]).expect("removed");
    assert_eq!(tiered.run(), (1, 1, 1, 0));
    fs::remove_file(&tiered.sandbox.entries()[0]).expect("removed");
    let entry = entry_below(&tiered.tier());
    fs::copy(&entry, entry.with_extension("new")).expect("copied");
    fs::rename(entry.with_extension("new"), &entry).expect("replaced");
    assert_eq!(tiered.run(), (0, 0, 2, 1));
    tiered.forget();
    set_mode(&entry_below(&tiered.tier()), 0o444);
    assert_eq!(tiered.run(), (0, 0, 1, 1));
    assert!(!tiered.sandbox.path("cache/v1/loading").exists());
}
