mod remembered;

use super::entry::tests::{content, facts};
use super::tag::TAG;
use super::*;
use crate::store::tier::Tier;

fn key(byte: u8) -> Key {
    Key([byte; 32])
}

fn filled() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let store = Store::open(&directory.path().join("cache"), Limits::default()).expect("a store");
    let facts = facts();
    store
        .publish(&key(1), &content(&facts, &[b"binary"]))
        .expect("published");
    (directory, store)
}

#[test]
fn what_was_published_is_found_and_nothing_else() {
    let (directory, store) = filled();
    let Lookup::Found(entry, _) = store.look_up(&key(1)) else {
        panic!("not found")
    };
    assert_eq!(entry.binaries().collect::<Vec<_>>(), [b"binary"]);
    assert!(matches!(store.look_up(&key(2)), Lookup::Absent));
    assert_eq!(store.entries().expect("listed").len(), 1);
    let tag = std::fs::read(directory.path().join("cache/CACHEDIR.TAG")).expect("a tag");
    assert!(tag.starts_with(b"Signature: 8a477f597d28d172789f06886806bc55"));
}

#[test]
fn an_entry_under_the_name_of_another_key_is_bad() {
    let (_directory, store) = filled();
    let other = store
        .path_of(&key(1))
        .to_string_lossy()
        .replace(&key(1).hex(), &key(2).hex());
    let other = other.replace("/01/", "/02/");
    std::fs::create_dir(Path::new(&other).parent().expect("a shard")).expect("made");
    std::fs::copy(store.path_of(&key(1)), &other).expect("copied");
    assert!(matches!(
        store.look_up(&key(2)),
        Lookup::Bad(Defect::OtherKey)
    ));
}

#[test]
fn what_is_set_aside_is_a_miss_and_can_be_published_again() {
    let (_directory, store) = filled();
    store.set_aside(&key(1)).expect("set aside");
    assert!(matches!(store.look_up(&key(1)), Lookup::Absent));
    let facts = facts();
    store
        .publish(&key(1), &content(&facts, &[b"new"]))
        .expect("published");
    assert!(matches!(store.look_up(&key(1)), Lookup::Found(..)));
}

#[test]
fn clear_leaves_foreign_files_and_follows_no_link() {
    let (directory, store) = filled();
    let precious = directory.path().join("precious");
    std::fs::create_dir(&precious).expect("made");
    std::fs::write(
        precious.join(format!("{}.entry", key(3).hex())),
        entry::MAGIC,
    )
    .expect("written");
    let shards = store.root().path().join(ENTRIES);
    std::os::unix::fs::symlink(&precious, shards.join("03")).expect("linked");
    std::fs::write(shards.join("01").join("notes.txt"), "mine").expect("written");
    std::fs::write(
        shards.join("01").join(format!("{}.entry", key(4).hex())),
        "not an entry",
    )
    .expect("written");
    std::os::unix::fs::symlink(
        precious.join("x"),
        shards.join("01").join(format!("{}.entry", key(5).hex())),
    )
    .expect("linked");
    let cleared = store.clear().expect("cleared");
    assert_eq!((cleared.files, cleared.foreign), (1, 3));
    assert!(shards.join("01/notes.txt").exists());
    assert!(precious.join(format!("{}.entry", key(3).hex())).exists());
    assert!(matches!(store.look_up(&key(1)), Lookup::Absent));
}

/// Files that were renamed and whose content never came to the disk.
#[test]
fn clear_removes_what_a_power_cut_left() {
    let (_directory, store) = filled();
    let entries = store.entries().expect("listed");
    let taken: u64 = entries.iter().map(|(_, file)| file.taken()).sum();
    let shard = store.root().path().join(ENTRIES).join("01");
    for (number, content) in [(4, [].as_slice()), (5, b"ocl"), (6, &[0; 100])] {
        let name = format!("{}.entry", key(number).hex());
        std::fs::write(shard.join(name), content).expect("written");
    }
    let cleared = store.clear().expect("cleared");
    assert_eq!((cleared.files, cleared.foreign), (4, 0));
    assert!(cleared.bytes >= taken, "{} of {taken}", cleared.bytes);
}

/// What a process was about to publish when it was killed: an equal file under the name of an unfinished one.
#[test]
fn a_sweep_removes_what_killed_processes_had_not_published() {
    use std::time::{Duration, SystemTime};
    let (_directory, store) = filled();
    store.begin_attempt(&key(2)).expect("written");
    let root = store.root().path();
    let temporary = root.join(TEMPORARY);
    let old = SystemTime::now() - Duration::from_secs(86400);
    let mut count = 0;
    for folder in ["entries/01", "baking"] {
        for published in std::fs::read_dir(root.join(folder)).expect(folder) {
            let content = std::fs::read(published.expect("listed").path()).expect("read");
            count += 1;
            let unfinished = temporary.join(format!("new-1-{count}"));
            std::fs::write(&unfinished, content).expect("written");
            let file = std::fs::File::open(&unfinished).expect("opened");
            file.set_modified(old).expect("dated");
        }
    }
    assert_eq!(count, 2);
    assert_eq!(store.sweep().expect("swept"), count);
}

#[test]
fn a_link_in_place_of_an_entry_is_not_followed() {
    let (directory, store) = filled();
    let elsewhere = directory.path().join("elsewhere");
    std::fs::rename(store.path_of(&key(1)), &elsewhere).expect("moved");
    std::os::unix::fs::symlink(&elsewhere, store.path_of(&key(1))).expect("linked");
    assert!(matches!(
        store.look_up(&key(1)),
        Lookup::Bad(Defect::Unreadable(_))
    ));
}

/// Otherwise somebody who may write a directory could lead to a file of the user's that has another program for the key.
#[test]
fn an_entry_is_read_below_directories_that_nobody_else_can_change() {
    use std::fs::Permissions;
    use std::os::unix::fs::{PermissionsExt, symlink};
    let (directory, store) = filled();
    let entries = store.root().path().join(ENTRIES);
    let shard = entries.join("01");
    let elsewhere = directory.path().join("elsewhere");
    for place in [&entries, &shard] {
        let mode = |mode| std::fs::set_permissions(place, Permissions::from_mode(mode));
        mode(0o777).expect("changed");
        assert!(matches!(store.look_up(&key(1)), Lookup::Unreadable(_)));
        mode(0o700).expect("changed");
        assert!(matches!(store.look_up(&key(1)), Lookup::Found(..)));
        std::fs::rename(place, &elsewhere).expect("moved");
        symlink(&elsewhere, place).expect("linked");
        // As for the command, which lists and removes entries.
        assert!(matches!(store.look_up(&key(1)), Lookup::Absent));
        assert!(store.shard(1).expect("looked at").is_none());
        std::fs::remove_file(place).expect("removed");
        std::fs::write(place, "").expect("written");
        assert!(matches!(store.look_up(&key(1)), Lookup::Absent));
        std::fs::remove_file(place).expect("removed");
        std::fs::rename(&elsewhere, place).expect("moved");
    }
}

/// Otherwise another user could choose which of the user's directories is the cache, by a link to it.
#[test]
fn the_directory_may_stand_behind_links_of_its_user_and_of_nobody_else() {
    use std::os::unix::fs::{PermissionsExt, lchown, symlink};
    let place = tempfile::tempdir().expect("a temporary directory");
    let at = |name: &str| place.path().join(name);
    std::fs::create_dir_all(at("real/cache")).expect("made");
    symlink("real/cache", at("to-it")).expect("linked");
    symlink(at("real"), at("on-the-way")).expect("linked");
    let open = |name: &str| Directory::open(&at(name)).map(|found| found.is_some());
    let ways = ["real/cache", "to-it", "on-the-way/cache"];
    for way in ways {
        assert!(open(way).expect("nobody else's"), "{way}");
    }
    assert!(!open("on-the-way/missing").expect("nothing"));
    if !rustix::process::geteuid().is_root() {
        return crate::trust::tests::skipped("links of other users");
    }
    for link in ["to-it", "on-the-way"] {
        lchown(at(link), Some(4242), None).expect("given away");
    }
    // Only its user can put a link here.
    assert!(open(ways[1]).expect("as good as a directory"));
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o1777)).expect("changed");
    assert!(open(ways[0]).expect("no link"));
    for way in &ways[1..] {
        let why = open(way).expect_err("refused").to_string();
        assert!(why.contains("belongs to user 4242"), "{why}");
    }
    // A user may make a directory there although others can write to it.
    std::fs::create_dir_all(at("theirs/below")).expect("made");
    std::fs::create_dir(at("theirs/mine")).expect("made");
    symlink(at("real/cache"), at("theirs/below/to-it")).expect("linked");
    symlink("../below/to-it", at("theirs/mine/to-theirs")).expect("linked");
    lchown(at("theirs/below/to-it"), Some(4242), None).expect("given away");
    assert!(open("theirs/below/to-it").expect("as good as a directory"));
    for theirs in ["theirs", "theirs/below"] {
        lchown(at(theirs), Some(4242), None).expect("given away");
    }
    for way in ["theirs/below/to-it", "theirs/mine/to-theirs"] {
        let why = open(way).expect_err("refused").to_string();
        let begins = format!("`{}` belongs to", at("theirs/below/to-it").display());
        assert!(why.contains(&begins), "{why}");
    }
    std::fs::set_permissions(place.path(), PermissionsExt::from_mode(0o755)).expect("changed");
    assert!(open("theirs/below/to-it").expect("their directory was put there by nobody else"));
}

#[test]
fn a_directory_that_others_may_write_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o777))
        .expect("changed");
    let error = Store::open(directory.path(), Limits::default())
        .expect_err("refused")
        .to_string();
    assert!(error.contains("others may write it"), "{error}");
}

#[test]
fn a_directory_that_was_set_aside_keeps_nothing_else_from_being_swept() {
    let (_directory, store) = filled();
    let aside = store.root().path().join(ASIDE);
    let name = |number: u64| format!("{number:064x}.entry");
    std::fs::create_dir_all(aside.join(name(999))).expect("made");
    std::thread::sleep(std::time::Duration::from_millis(20)); // the clock of the file system goes on
    for number in 0..300 {
        std::fs::write(aside.join(name(number)), "oclcache").expect("written");
    }
    assert_eq!(store.sweep().expect("swept"), 300 - 256);
    assert!(aside.join(name(999)).is_dir());
}

#[test]
fn a_directory_with_other_things_in_it_is_not_called_a_cache() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(directory.path().join("letter"), "precious").expect("written");
    Store::open(directory.path(), Limits::default()).expect("a store");
    let mut names: Vec<_> = std::fs::read_dir(directory.path())
        .expect("listed")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["letter", VERSION_DIRECTORY]);
}

/// Who leaves caches out of a backup would lose what is beside it.
#[test]
fn another_programs_tag_and_a_directory_that_is_named_as_a_format_are_not_ours() {
    for (name, content) in [("v2/thesis", "mine"), ("CACHEDIR.TAG", "mine")] {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("made");
        std::fs::write(&path, content).expect("written");
        Store::open(directory.path(), Limits::default()).expect("a store");
        assert_eq!(std::fs::read(&path).expect("read"), b"mine");
        let tag = std::fs::read(directory.path().join(TAG)).unwrap_or_default();
        assert!(!tag.starts_with(b"Signature"), "{name}");
    }
}

/// Stops a collection as soon as it is told of a removal.
struct Once;

impl gc::Collector for Once {
    fn is_installed(&mut self, _: &heads::EntryDriver) -> bool {
        true
    }

    fn progress(&mut self, what: &'static str, _: usize, _: usize) -> bool {
        what != "removing"
    }
}

/// Of few entries one thread removes one, of many several threads some.
#[test]
fn a_collection_that_is_stopped_leaves_sizes_as_they_are() {
    for (count, most) in [(4, 1), (200, 199)] {
        let (_directory, store) = filled();
        let facts = facts();
        for number in 2..=count {
            let published = store.publish(&key(number), &content(&facts, &[b"binary"]));
            published.expect("published");
        }
        let limits = Limits {
            max_size: Some(1),
            ..Limits::default()
        };
        let done = store.collect(&limits, &mut Once).expect("collected");
        assert!(
            done.stopped && (1..=most).contains(&done.entries),
            "{done:?}"
        );
        let entries = store.entries().expect("listed");
        let taken: u64 = entries.iter().map(|(_, file)| file.taken()).sum();
        assert_eq!(done.entries + entries.len() as u64, u64::from(count));
        assert_eq!(store.sizes().expect("kept").total(), taken);
    }
}

#[test]
fn a_file_of_the_user_is_not_removed_to_make_room() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let limits = Limits {
        max_size: Some(1 << 16),
        ..Limits::default()
    };
    let store = Store::open(&directory.path().join("cache"), limits).expect("a store");
    let facts = facts();
    let binary = [7; 9000];
    let publish = |number: u8| store.publish(&key(number), &content(&facts, &[&binary]));
    publish(1).expect("published");
    // In the same shard, and older than all entries.
    let theirs = format!("01{}.entry", "ab".repeat(31));
    let theirs = store.path_of(&key(1)).with_file_name(theirs);
    std::fs::write(&theirs, "precious").expect("written");
    let file = std::fs::File::open(&theirs).expect("opened");
    file.set_modified(std::time::UNIX_EPOCH).expect("dated");
    store.count_again(store.sizes().expect("sizes"), 1);
    let removed: u64 = (2..20).map(|number| publish(number).unwrap_or(0)).sum();
    assert!(removed > 5, "{removed}");
    assert_eq!(std::fs::read(&theirs).expect("there"), b"precious");
}
