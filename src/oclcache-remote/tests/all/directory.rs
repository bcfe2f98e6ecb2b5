//! A directory as the store, in which others put what is not an object.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use oclcache_remote::keys::SecretKey;
use oclcache_remote::object::Kind;
use oclcache_remote::shared::{Fetched, SharedStore};

use crate::support::host::{Host, bind_by_modes, set_mode};
use crate::support::stores::store;
use crate::support::{run, wait_for};

const KEY: [u8; 32] = [0xab; 32];

/// A private document at the place of an object, in a directory that a link leads to. Returns both.
fn documents(folder: &Path, name: &str, linked: &str) -> (PathBuf, PathBuf) {
    let private = folder.join("private");
    let rest = name.strip_prefix(linked).expect("a parent");
    let document = private.join(rest.trim_start_matches('/'));
    fs::create_dir_all(document.parent().expect("a parent")).expect("made");
    fs::write(&document, "private").expect("written");
    (private, document)
}

fn fetched(store: &SharedStore) -> Fetched {
    let found = run(async { store.fetch(&[(Kind::Entry, KEY)]).await });
    found.expect("read").remove(0)
}

#[test]
fn a_link_in_the_store_is_not_followed() {
    let key = SecretKey::generate().expect("a key");
    for depth in 1..=3 {
        let folder = tempfile::tempdir().expect("a directory");
        let shared = folder.path().join("shared");
        let mine = store(&format!("file://{}", shared.display()), Some(&key), &[&key]);
        let name = mine.name(Kind::Entry, &KEY);
        let linked: Vec<&str> = name.split('/').take(depth).collect();
        let linked = linked.join("/");
        let (private, document) = documents(folder.path(), &name, &linked);
        let link = shared.join(&linked);
        fs::create_dir_all(link.parent().expect("a parent")).expect("made");
        symlink(private, link).expect("linked");
        run(async {
            let listed = mine.guarded.list(&mine.root()).await.expect("listed");
            assert!(listed.objects.is_empty(), "{listed:?}");
            let sent = mine.upload(Kind::Entry, &KEY, b"x", 1, 2).await;
            assert!(sent.is_err(), "{linked}");
            let _ = mine.guarded.engine().delete(&name).await;
        });
        assert!(matches!(fetched(&mine), Fetched::Missing), "{linked}");
        let content = fs::read(document).expect("it is still there");
        assert_eq!(content, b"private", "{linked}");
    }
}

#[test]
fn what_is_no_file_at_the_name_of_an_object_is_replaced() {
    let key = SecretKey::generate().expect("a key");
    let folder = tempfile::tempdir().expect("a directory");
    let mine = store(
        &format!("file://{}", folder.path().display()),
        Some(&key),
        &[&key],
    );
    let place = folder.path().join(mine.name(Kind::Entry, &KEY));
    fs::create_dir_all(place.parent().expect("a parent")).expect("made");
    let document = folder.path().join("document");
    fs::write(&document, "private").expect("written");
    let fifo = || {
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        let fifo = rustix::fs::FileType::Fifo;
        rustix::fs::mknodat(rustix::fs::CWD, &place, fifo, mode, 0).expect("made");
    };
    let link = || symlink(&document, &place).expect("linked");
    let makes: [&dyn Fn(); 2] = [&link, &fifo];
    for make in makes {
        make();
        assert!(matches!(fetched(&mine), Fetched::Missing));
        let sent = run(async { mine.upload(Kind::Entry, &KEY, b"x", 1, 2).await });
        sent.expect("written");
        assert!(matches!(fetched(&mine), Fetched::Found(object) if object.payload == b"x"));
        fs::remove_file(&place).expect("removed");
    }
    assert_eq!(fs::read(document).expect("read"), b"private");
}

/// Makes a file old.
fn age(file: &Path) {
    let long_ago = SystemTime::now() - Duration::from_secs(2 * 365 * 86400);
    let file = fs::File::options().write(true).open(file).expect("opened");
    file.set_modified(long_ago).expect("set");
}

/// The files below a directory; a link is one.
fn files(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).expect("listed").flatten();
    let below = |entry: fs::DirEntry| match entry.file_type() {
        Ok(kind) if kind.is_dir() => files(&entry.path()),
        _ => vec![entry.path()],
    };
    entries.flat_map(below).collect()
}

#[test]
fn gc_deletes_old_objects_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a directory");
    let private = folder.path().join("private");
    fs::create_dir_all(private.join("letters")).expect("made");
    let host = Host::new();
    let (shared, objects) = pushed(folder.path(), &host, 2);
    assert!(objects.len() >= 2, "{objects:?}");
    objects[1..].iter().for_each(|object| age(object));
    let fresh = objects[0].clone();
    let version = shared.join(
        fresh
            .strip_prefix(&shared)
            .expect("below")
            .iter()
            .next()
            .expect("a name"),
    );
    // What others have put there, or what was there before.
    let zeros = "0".repeat(64);
    let place = version.join("e/00");
    fs::create_dir_all(&place).expect("made");
    fs::create_dir_all(version.join("e/11/deep")).expect("made");
    let object = fs::read(&fresh).expect("read");
    let kept = [
        (private.join("thesis"), b"private".to_vec()),
        (private.join("letters/one"), b"private".to_vec()),
        (private.join(&zeros), object.clone()),
        (version.join("e/thesis"), b"a document".to_vec()),
        (place.join("thesis"), object.clone()),
        (
            place.join(&zeros),
            b"a document of another program".to_vec(),
        ),
        // In the directory of other keys.
        (version.join("e/11").join(&zeros), object.clone()),
        (
            version.join("e/11/deep").join("1".repeat(64)),
            object.clone(),
        ),
        (version.join("x"), object),
    ];
    for (file, content) in &kept {
        fs::write(file, content).expect("written");
        age(file);
    }
    symlink(&private, shared.join("o1-k9-e9")).expect("linked");
    symlink(&private, version.join("l")).expect("linked");
    symlink(&private, version.join("e/22")).expect("linked");
    let would = host.remote(&["gc", "--dry-run"]).ok().stdout;
    let did = host.remote(&["gc"]).ok().stdout;
    let deleted = objects.len() - 1;
    assert!(
        would.starts_with(&format!("would delete {deleted} objects")),
        "{would}"
    );
    assert!(
        did.starts_with(&format!("deleted {deleted} objects")),
        "{did}"
    );
    for (file, content) in &kept {
        let found = fs::read(file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
        assert_eq!(&found, content, "{}", file.display());
    }
    assert!(fresh.exists());
    assert!(objects[1..].iter().all(|object| !object.exists()));
}

/// A directory as the store with what a host has built and sent. Returns the directory and the objects.
fn pushed(folder: &Path, host: &Host, keys: u32) -> (PathBuf, Vec<PathBuf>) {
    let shared = folder.join("shared");
    let url = format!("file://{}", shared.display());
    host.shell(&format!("oclcache config set remote '{url}'"))
        .ok();
    host.build(keys).ok();
    host.remote(&["push"]).ok();
    let is_object = |file: &PathBuf| file.file_name().is_some_and(|name| name.len() == 64);
    let objects = files(&shared).into_iter().filter(is_object).collect();
    (shared, objects)
}

#[test]
fn gc_goes_on_past_what_the_user_may_not_read_delete_or_list() {
    let folder = tempfile::tempdir().expect("a directory");
    let mut host = Host::new();
    let (shared, objects) = pushed(folder.path(), &host, 8);
    objects.iter().for_each(|object| age(object));
    let mut directories: Vec<&Path> = objects.iter().flat_map(|file| file.parent()).collect();
    directories.sort();
    directories.dedup();
    let [unreadable, kept, hidden, _, ..] = directories[..] else {
        panic!("{directories:?}");
    };
    let of = |directory: &Path| -> Vec<PathBuf> {
        let objects = objects.iter();
        let of = objects.filter(|object| object.parent() == Some(directory));
        of.cloned().collect()
    };
    let (unreadable, left) = (of(unreadable), [of(kept), of(hidden)].concat());
    unreadable.iter().for_each(|object| set_mode(object, 0));
    set_mode(kept, 0o500);
    set_mode(hidden, 0);
    bind_by_modes(&mut host);
    let did = host.remote(&["gc"]).ok().stdout;
    // At once: the store is asked again.
    let again = host.remote(&["gc"]).ok().stdout;
    set_mode(kept, 0o700);
    set_mode(hidden, 0o700);
    let deleted = objects.len() - left.len() - unreadable.len();
    assert!(
        did.starts_with(&format!("deleted {deleted} objects")),
        "{did}"
    );
    assert!(again.starts_with("deleted 0 objects"), "{again}");
    for text in [&did, &again] {
        let skipped = unreadable.len() + of(kept).len();
        assert!(
            text.contains(&format!(
                "may not read or delete them: {skipped}, such as `"
            )),
            "{text}"
        );
        assert!(text.contains("cannot list them: 1\n"), "{text}");
    }
    let mut left = [left, unreadable].concat();
    left.sort();
    let mut found = files(&shared);
    found.retain(|file| objects.contains(file));
    found.sort();
    assert_eq!(found, left);
}

#[test]
fn an_object_that_may_not_be_read_is_missing_and_the_store_is_asked_for_others() {
    let folder = tempfile::tempdir().expect("a directory");
    let mut host = Host::new();
    let (shared, objects) = pushed(folder.path(), &host, 4);
    let entries: Vec<&PathBuf> = objects
        .iter()
        .filter(|object| object.iter().any(|part| part == "e"))
        .collect();
    assert_eq!(entries.len(), 4, "{objects:?}");
    host.stop_helper();
    fs::remove_dir_all(host.path("home/.cache/oclcache")).expect("removed");
    set_mode(entries[0], 0);
    set_mode(entries[1].parent().expect("a directory"), 0o100);
    bind_by_modes(&mut host);
    let pulled = host.remote(&["pull"]).ok().stdout;
    set_mode(entries[1].parent().expect("a directory"), 0o700);
    assert!(
        pulled.starts_with("stored 2, refused 0\n") && pulled.contains("cannot list them: 1\n"),
        "{pulled}"
    );
    // The directory itself.
    set_mode(&shared, 0);
    let failed = host.remote(&["pull"]);
    set_mode(&shared, 0o700);
    assert_ne!(failed.code, Some(0));
    assert!(failed.stderr.contains("refuses"), "{}", failed.stderr);
}

#[test]
fn a_fifo_in_the_store_does_not_stop_the_command() {
    let folder = tempfile::tempdir().expect("a directory");
    let fifo = folder.path().join("o1-check");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).expect("made");
    let host = Host::new();
    let url = format!("file://{}", folder.path().display());
    host.shell(&format!("oclcache config set remote '{url}'"))
        .ok();
    host.build(1).ok();
    // It would wait for ever.
    let pushed = host.shell("timeout 120 oclcache remote push").ok().stdout;
    assert!(pushed.starts_with("sent "), "{pushed}");
    assert_eq!(host.outbox(), 0);
}

#[test]
fn a_file_system_that_does_not_answer_keeps_nobody_from_the_rest() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        return;
    }
    let folder = tempfile::tempdir().expect("a directory");
    let mut host = Host::new();
    let (_, objects) = pushed(folder.path(), &host, 4);
    objects.iter().for_each(|object| age(object));
    let is_entry = |object: &&PathBuf| object.iter().any(|part| part == "e");
    let entry = objects.iter().find(is_entry).expect("an entry");
    let covered = entry.parent().expect("a directory");
    let entries = objects.iter().filter(is_entry);
    let left = entries.filter(|entry| entry.parent() != Some(covered));
    let left = left.count();
    host.stop_helper();
    fs::remove_dir_all(host.path("home/.cache/oclcache")).expect("removed");
    // As the program of a file system in user space leaves it that was killed.
    let script = format!(
        "exec 3<>/dev/fuse && mount -i -t fuse -o fd=3,rootmode=40000,user_id=0,group_id=0 none '{}' && exec 3>&- && exec \"$@\"",
        covered.display()
    );
    host.prefix = ["unshare", "--mount", "sh", "-c", &script, "sh"]
        .map(str::to_owned)
        .to_vec();
    let pulled = host.remote(&["pull"]).ok().stdout;
    assert!(
        pulled.starts_with(&format!("stored {left}, refused 0\n"))
            && pulled.contains("cannot list them: 1\n"),
        "{pulled}"
    );
    // What is asked for at a name there is missing, and the store is asked for others.
    host.build(4).ok();
    assert_eq!(host.compilations(), 4 + (4 - left));
    let status = host.remote(&["status"]).ok().stdout;
    assert!(!status.contains("is not asked"), "{status}");
    let did = host.remote(&["gc"]).ok().stdout;
    assert!(did.contains("cannot list them: 1\n"), "{did}");
    let is_left = objects.iter().filter(|object| object.exists());
    assert!(is_left.count() <= 4 - left, "{did}");
}

#[test]
fn gc_does_not_count_what_somebody_else_has_deleted() {
    let folder = tempfile::tempdir().expect("a directory");
    let mut host = Host::new();
    let (_, objects) = pushed(folder.path(), &host, 2);
    objects.iter().for_each(|object| age(object));
    // Each file is gone when it is to be deleted.
    let inject = "strace -f -qq -o /dev/null -e trace=unlinkat -e inject=unlinkat:error=ENOENT";
    host.prefix = inject.split(' ').map(str::to_owned).collect();
    let did = host.remote(&["gc"]).ok().stdout;
    assert!(did.starts_with("deleted 0 objects (0 bytes)"), "{did}");
    assert_eq!(did.lines().count(), 1, "{did}");
}

#[test]
fn gc_deletes_what_was_left_unfinished_a_day_ago() {
    let folder = tempfile::tempdir().expect("a directory");
    let host = Host::new();
    let (shared, objects) = pushed(folder.path(), &host, 1);
    let unfinished = shared.join(".tmp");
    let [old, young] = ["0", "1"].map(|digit| unfinished.join(digit.repeat(32)));
    let others = ["thesis".to_owned(), "3".repeat(32)].map(|name| unfinished.join(name));
    for file in [&old, &young] {
        fs::write(file, b"oclcache-obj").expect("written");
    }
    for file in &others {
        fs::write(file, b"a document").expect("written");
    }
    for file in [&old, &others[0], &others[1]] {
        age(file);
    }
    let document = folder.path().join("document");
    fs::write(&document, "private").expect("written");
    symlink(&document, unfinished.join("2".repeat(32))).expect("linked");
    let would = host.remote(&["gc", "--dry-run"]).ok().stdout;
    assert!(
        would.contains("would delete 1 unfinished object "),
        "{would}"
    );
    assert!(old.exists());
    let did = host.remote(&["gc"]).ok().stdout;
    assert!(did.contains("deleted 1 unfinished object "), "{did}");
    assert!(!old.exists() && young.exists() && document.exists());
    assert!(others.iter().all(|file| file.exists()));
    assert_eq!(files(&unfinished).len(), 4);
    assert!(objects.iter().all(|object| object.exists()));
    let again = host.remote(&["gc"]).ok().stdout;
    assert!(!again.contains("unfinished"), "{again}");
}

#[test]
fn a_store_that_is_not_mounted_is_not_made_and_is_sent_what_was_built_meanwhile() {
    let folder = tempfile::tempdir().expect("a directory");
    let mut host = Host::new();
    host.set("STUB_BUILD_MS", "100");
    let (shared, objects) = pushed(folder.path(), &host, 1);
    host.stop_helper();
    let away = folder.path().join("away");
    fs::rename(&shared, &away).expect("moved");
    host.build(3).ok();
    wait_for("a helper that says why", || {
        let status = host.remote(&["status"]).ok().stdout;
        status.contains(&format!("`{}`", shared.display())) && status.contains("mount")
    });
    for verb in ["push", "pull", "doctor", "gc"] {
        let ran = host.remote(&[verb]);
        assert_ne!(ran.code, Some(0), "{verb}: {}", ran.stdout);
    }
    assert!(!shared.exists());
    assert_eq!(host.outbox(), 2);
    fs::rename(&away, &shared).expect("moved");
    wait_for("a store that is asked again", || {
        host.remote(&["push"]).code == Some(0) && host.outbox() == 0
    });
    let is_object = |file: &PathBuf| file.file_name().is_some_and(|name| name.len() == 64);
    let found = files(&shared).into_iter().filter(is_object).count();
    assert!(found >= objects.len() + 2, "{found}");
}
