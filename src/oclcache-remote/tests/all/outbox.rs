//! What is in the outbox is sent, or stays there until it can be, and the commands say which.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use tempfile::TempDir;

use crate::support::host::{Host, bind_by_modes, set_mode};
use crate::support::proxy::{Mode, Proxy};
use crate::support::servers::Server;
use crate::support::wait_for;

const KEYS: u32 = 4;

/// A host whose programs find no helper, so that only its commands send, and which has built something for a store.
fn host_that_built(url: &str) -> Host {
    let script = "case $1 in serve) exit 1;; esac\nexec \"$HELPER\" \"$@\"";
    let mut host = Host::with_helper(script);
    host.set("OCLCACHE_REMOTE_WAIT", "1ms");
    host.set("STUB_BUILD_MS", "20");
    host.shell(&format!("oclcache config set remote '{url}'"))
        .ok();
    host.build(KEYS).ok();
    assert_eq!(host.outbox(), KEYS as usize);
    host
}

/// The same for a directory as the store.
fn host_beside_a_directory() -> (TempDir, Host) {
    let folder = tempfile::tempdir().expect("a directory");
    let host = host_that_built(&format!("file://{}", folder.path().display()));
    (folder, host)
}

/// The files in the directories of a directory.
fn files_below(directory: &Path) -> Vec<PathBuf> {
    let list = |directory: &Path| fs::read_dir(directory).expect("listed").flatten();
    let files = list(directory).flat_map(|one| list(&one.path()));
    files.map(|file| file.path()).collect()
}

/// The entries in the directory that is the store.
fn objects(folder: &TempDir) -> Vec<PathBuf> {
    let versions = fs::read_dir(folder.path()).expect("listed").flatten();
    let places = versions.map(|version| version.path().join("e"));
    let places = places.filter(|place| place.exists());
    places.flat_map(|place| files_below(&place)).collect()
}

/// The directory of the markers.
fn markers(host: &Host) -> PathBuf {
    host.path("home/.local/state/oclcache/outbox")
}

#[test]
fn an_entry_that_cannot_be_read_now_stays_in_the_outbox_and_is_sent_later() {
    let (folder, host) = host_beside_a_directory();
    let entries = files_below(&host.path("home/.cache/oclcache/v1/entries"));
    let shard = entries[0].parent().expect("a shard");
    let kept = entries.iter().filter(|entry| entry.parent() == Some(shard));
    let kept = kept.count();
    let mode = fs::metadata(shard).expect("a shard").permissions().mode();
    set_mode(shard, 0o777);
    let pushed = host.remote(&["push"]);
    set_mode(shard, mode & 0o777);
    assert_ne!(pushed.code, Some(0), "{}", pushed.stdout);
    assert!(
        pushed.stderr.contains("others may write it"),
        "{}",
        pushed.stderr
    );
    assert!(!pushed.stdout.contains("never"), "{}", pushed.stdout);
    assert_eq!(
        (host.outbox(), objects(&folder).len()),
        (kept, KEYS as usize - kept)
    );
    let pushed = host.remote(&["push"]).ok();
    assert!(
        pushed.stdout.contains("the outbox has 0 entries left"),
        "{}",
        pushed.stdout
    );
    assert_eq!(objects(&folder).len(), KEYS as usize);
}

#[test]
fn a_marker_that_cannot_be_read_now_stays_in_the_outbox_and_its_entry_is_sent_later() {
    let (folder, mut host) = host_beside_a_directory();
    let marker = files_below(&markers(&host)).remove(0);
    set_mode(&marker, 0);
    bind_by_modes(&mut host);
    assert_ne!(host.remote(&["push"]).code, Some(0));
    assert_eq!(host.outbox(), 1);
    set_mode(&marker, 0o600);
    host.remote(&["push"]).ok();
    assert_eq!((host.outbox(), objects(&folder).len()), (0, KEYS as usize));
}

#[test]
fn who_pushes_sends_also_what_compiles_faster_than_a_look_at_the_store() {
    let server = Server::redis(&[]);
    let proxy = Proxy::new(server.port, Mode::Forward(Duration::from_millis(50)));
    let host = host_that_built(&format!("redis://127.0.0.1:{}", proxy.port));
    for arguments in [&["push"][..], &["push", "--all"]] {
        let pushed = host.remote(arguments).ok().stdout;
        let sent = format!("sent {KEYS} entries; the outbox has 0 entries left\n");
        assert_eq!(pushed, sent, "{arguments:?}");
        assert_eq!(server.redis_cli(&["DBSIZE"]), KEYS.to_string());
        server.redis_cli(&["FLUSHALL"]);
    }
}

#[test]
fn an_object_that_may_not_be_written_keeps_no_other_from_being_sent() {
    let (folder, mut host) = host_beside_a_directory();
    host.remote(&["push"]).ok();
    let all = objects(&folder);
    all.iter()
        .for_each(|object| fs::remove_file(object).expect("removed"));
    let kept = all[0].parent().expect("a directory");
    let count = all.iter().filter(|object| object.parent() == Some(kept));
    let count = count.count();
    set_mode(kept, 0o500);
    bind_by_modes(&mut host);
    let pushed = host.remote(&["push", "--all"]);
    let status = host.remote(&["status"]).ok().stdout;
    set_mode(kept, 0o700);
    assert_ne!(pushed.code, Some(0), "{}", pushed.stdout);
    for text in [&pushed.stderr, &status] {
        assert!(text.contains(&format!("`{}", kept.display())), "{text}");
        assert!(!text.contains("password"), "{text}");
    }
    assert!(!status.contains("is not asked"), "{status}");
    assert_eq!(
        (host.outbox(), objects(&folder).len()),
        (count, all.len() - count)
    );
    host.remote(&["push"]).ok();
    assert_eq!((host.outbox(), objects(&folder).len()), (0, all.len()));
}

/// Why a push sends nothing of all that was built, in one line.
#[track_caller]
fn why_nothing_is_sent(host: &Host) -> String {
    let errors = host.errors();
    let pushed = host.remote(&["push", "--all"]);
    assert_ne!(pushed.code, Some(0), "{}", pushed.stdout);
    assert_eq!(pushed.stderr.lines().count(), 1, "{}", pushed.stderr);
    assert_eq!(host.outbox(), host.entries(), "{}", pushed.stderr);
    // Those that were on their way when the first one failed.
    let tried = host.errors() - errors;
    assert!((1..=8).contains(&tried), "{tried}: {}", pushed.stderr);
    pushed.stderr
}

#[test]
fn a_directory_that_takes_nothing_is_read_and_tried_once() {
    let (folder, mut host) = host_beside_a_directory();
    host.remote(&["push"]).ok();
    let (root, unfinished) = (folder.path().to_owned(), folder.path().join(".tmp"));
    let object = objects(&folder).remove(0);
    let version = object.ancestors().nth(3).expect("a directory");
    let away = host.path("away");
    fs::rename(version, &away).expect("moved");
    host.build(5 * KEYS).ok();
    bind_by_modes(&mut host);
    for (place, blamed) in [(&root, &root), (&unfinished, &unfinished)] {
        let mode = fs::metadata(place).expect("there").permissions().mode();
        set_mode(place, 0o555);
        let why = why_nothing_is_sent(&host);
        let status = host.remote(&["status"]).ok().stdout;
        let pulled = host.remote(&["pull"]).ok().stdout;
        set_mode(place, mode & 0o7777);
        for text in [&why, &status] {
            assert!(
                text.contains(&format!("`{}`: ", blamed.display())),
                "{text}"
            );
            assert!(text.contains("`remote_readonly`"), "{text}");
        }
        assert!(!status.contains("is not asked"), "{status}");
        assert!(pulled.starts_with("stored 0, refused 0"), "{pulled}");
    }
    // Nobody's object is in the way there either.
    fs::remove_dir_all(&unfinished).expect("removed");
    fs::write(&unfinished, "a file").expect("written");
    let why = why_nothing_is_sent(&host);
    assert!(
        why.contains(&format!("`{}`: ", unfinished.display())),
        "{why}"
    );
    fs::remove_file(&unfinished).expect("removed");
    fs::rename(&away, version).expect("moved");
    host.remote(&["push", "--all"]).ok();
    assert_eq!(
        (host.outbox(), objects(&folder).len()),
        (0, 5 * KEYS as usize)
    );
}

#[test]
fn a_directory_in_the_store_that_takes_nothing_is_named_once() {
    let (folder, mut host) = host_beside_a_directory();
    host.remote(&["push"]).ok();
    let object = objects(&folder).remove(0);
    let entries = object.ancestors().nth(2).expect("a directory");
    fs::remove_dir_all(entries).expect("removed");
    fs::create_dir(entries).expect("made");
    set_mode(entries, 0o555);
    bind_by_modes(&mut host);
    let pushed = host.remote(&["push", "--all"]);
    set_mode(entries, 0o755);
    assert_ne!(pushed.code, Some(0), "{}", pushed.stdout);
    let name = format!("`{}`: ", entries.display());
    // What stays, and what to do in the end.
    let named = pushed.stderr.matches(&name).count();
    assert_eq!(named, 2, "{}", pushed.stderr);
    assert_eq!(host.outbox(), KEYS as usize);
    // Nothing that was begun is left.
    assert!(
        fs::read_dir(folder.path().join(".tmp"))
            .expect("listed")
            .next()
            .is_none()
    );
    host.remote(&["push", "--all"]).ok();
    assert_eq!((host.outbox(), objects(&folder).len()), (0, KEYS as usize));
}

#[test]
fn a_damaged_marker_leaves_the_outbox_and_its_entry_is_counted_once() {
    let (folder, host) = host_beside_a_directory();
    let marker = files_below(&markers(&host)).remove(0);
    fs::write(&marker, b"").expect("cut");
    for arguments in [&["push"][..], &["push"], &["push", "--all"]] {
        let pushed = host.remote(arguments).ok().stdout;
        assert!(pushed.contains("the outbox has 0 entries left"), "{pushed}");
        // Who sends all looks at the entries anew, and finds nothing of this one.
        let counted = pushed.contains("never sent: 1 ");
        assert_eq!(counted, arguments.len() == 1, "{arguments:?}: {pushed}");
    }
    assert_eq!(objects(&folder).len(), KEYS as usize - 1);
}

#[test]
fn an_outbox_that_cannot_be_opened_is_not_an_empty_one() {
    let (folder, host) = host_beside_a_directory();
    let markers = markers(&host);
    set_mode(&markers, 0o777);
    let pushed = host.remote(&["push"]);
    let status = host.remote(&["status"]).ok().stdout;
    set_mode(&markers, 0o700);
    let why = "others may write it";
    assert_ne!(pushed.code, Some(0), "{}", pushed.stdout);
    assert!(pushed.stderr.contains(why), "{}", pushed.stderr);
    let row = status.lines().find(|line| line.starts_with("to be sent"));
    assert!(row.is_some_and(|row| row.contains(why)), "{status}");
    assert!(objects(&folder).is_empty());
    host.remote(&["push"]).ok();
    assert_eq!(objects(&folder).len(), KEYS as usize);
}

/// A host whose programs compile for longer than a directory takes to answer, so that a helper sends all that they build.
fn slow_host_beside_a_directory() -> (TempDir, Host) {
    let folder = tempfile::tempdir().expect("a directory");
    let mut host = Host::new();
    // Far more than five round trips: the helper leaves out what compiles faster.
    host.set("STUB_BUILD_MS", "200");
    host.shell(&format!(
        "oclcache config set remote 'file://{}'",
        folder.path().display()
    ))
    .ok();
    (folder, host)
}

/// Starts the helper of a host.
fn served(host: &Host) -> Child {
    let helper = host.remote_command(&["serve"]).spawn().expect("started");
    wait_for("a helper", || host.is_served());
    helper
}

#[test]
fn a_helper_whose_outbox_is_removed_sends_what_is_in_a_new_one() {
    let (folder, host) = slow_host_beside_a_directory();
    let mut helper = served(&host);
    host.build(KEYS).ok();
    wait_for("they are sent", || host.outbox() == 0);
    for (number, state) in (2..).zip(["home/.local/state/oclcache", "home/.local/state"]) {
        fs::remove_dir_all(host.path(state)).expect("removed");
        host.build(number * KEYS).ok();
        wait_for("they are sent", || {
            objects(&folder).len() == (number * KEYS) as usize && host.outbox() == 0
        });
    }
    assert!(helper.try_wait().expect("a child").is_none());
    host.stop_helper();
    helper.wait().expect("ended");
}

#[test]
fn a_helper_serves_no_program_with_another_outbox() {
    let (folder, mut host) = fast_host_beside_a_directory();
    let state = host.path("state");
    host.set("XDG_STATE_HOME", state);
    host.build(1).ok();
    assert_eq!(host.helpers().len(), 1);
    host.variables.remove("XDG_STATE_HOME");
    host.build(1 + KEYS).ok();
    wait_for("both outboxes are sent", || {
        host.outbox() == 0 && objects(&folder).len() > KEYS as usize
    });
}

#[test]
fn what_is_sent_while_the_state_cannot_be_written_is_counted_afterwards() {
    let (_folder, host) = slow_host_beside_a_directory();
    let mut helper = served(&host);
    host.build(KEYS).ok();
    let has_sent = |count: u32| {
        let status = host.remote(&["status"]).ok().stdout;
        status.contains(&format!("{count} sent"))
    };
    wait_for("they are counted", || has_sent(KEYS));
    let places = fs::read_dir(host.sockets()).expect("listed").flatten();
    let is_state = |path: &PathBuf| path.extension().is_some_and(|end| end == "state");
    let state = places.map(|place| place.path()).find(is_state);
    let state = state.expect("a state");
    fs::remove_file(&state).expect("removed");
    fs::create_dir(&state).expect("made");
    host.build(3 * KEYS).ok();
    wait_for("they are sent", || host.outbox() == 0);
    // It has tried to write it.
    std::thread::sleep(Duration::from_secs(2));
    fs::remove_dir(&state).expect("removed");
    wait_for("they are counted", || has_sent(2 * KEYS));
    host.stop_helper();
    helper.wait().expect("ended");
}

/// A host that uses a directory as the store, and compiles fast.
fn fast_host_beside_a_directory() -> (TempDir, Host) {
    let (folder, mut host) = (tempfile::tempdir().expect("a directory"), Host::new());
    host.set("STUB_BUILD_MS", "100");
    let url = format!("file://{}", folder.path().display());
    host.shell(&format!("oclcache config set remote '{url}'"))
        .ok();
    (folder, host)
}

#[test]
fn a_helper_that_a_program_with_small_limits_has_started_sends_what_others_build() {
    for limit in ["-f 1", "-n 24"] {
        let (folder, mut host) = fast_host_beside_a_directory();
        let script = format!("ulimit -S {limit} && exec \"$@\"");
        host.prefix = ["bash", "-c", &script, "bash"].map(str::to_owned).to_vec();
        host.build(1);
        host.prefix.clear();
        let helpers = host.helpers();
        assert_eq!(helpers.len(), 1, "{limit}");
        host.build(1 + KEYS).ok();
        wait_for("the outbox is sent", || {
            host.outbox() == 0 && objects(&folder).len() > KEYS as usize
        });
        assert_eq!(host.helpers(), helpers, "{limit}");
    }
}
