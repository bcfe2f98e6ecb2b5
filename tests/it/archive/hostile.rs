//! Archives that were made to do harm, and files that are none.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::Stdio;

use serde_json::Value;
use tar::EntryType;
use xxhash_rust::xxh3::xxh3_128;

use super::made::{Tar, Unpacked};
use super::{SOURCE, elsewhere, export, import, last};
use crate::hostile_texts::{HOSTILE, assert_plain};
use crate::snapshots::assert_shown;
use crate::support::{Driver, Sandbox, Way, tree};

/// An archive of one entry, and a sandbox that has nothing.
fn given() -> (Sandbox, Sandbox, Unpacked) {
    let from = Sandbox::stub();
    from.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    let unpacked = Unpacked::of(&export(&from, &[]));
    let to = elsewhere(&from, Driver::Stub);
    (from, to, unpacked)
}

#[test]
fn what_is_no_whole_archive_changes_nothing_and_is_named() {
    let (from, to, good) = given();
    let whole = std::fs::read(from.path("kernels.tar.zst")).expect("an archive");
    let foreign = |name: &str, bytes: &[u8]| {
        let mut tar = Tar::new();
        tar.file(name.as_bytes(), bytes);
        zstd::encode_all(&tar.bytes()[..], 1).expect("a frame")
    };
    let bomb = {
        let mut tar = Tar::new();
        tar.file(b"manifest.json", &good.members[0].1);
        tar.file(good.entry().0.as_bytes(), &vec![0; 80 << 20]);
        zstd::encode_all(&tar.bytes()[..], 19).expect("a frame")
    };
    // What is in memory before anybody can ask how long it is.
    let long_name = {
        let mut tar = Tar::new();
        tar.file(b"manifest.json", &good.members[0].1);
        tar.long_name(2 << 20);
        zstd::encode_all(&tar.bytes()[..], 1).expect("a frame")
    };
    let newer = br#"{"format": 2, "entries": "other"}"#;
    let cases: Vec<(&str, Vec<u8>, &str)> = vec![
        ("empty", Vec::new(), "is not an archive"),
        (
            "text",
            b"a text of no consequence".to_vec(),
            "is not an archive",
        ),
        (
            "zstd-of-text",
            zstd::encode_all(&b"a text"[..], 1).expect("a frame"),
            "is not an archive",
        ),
        (
            "other-tar",
            foreign("README", b"hello"),
            "is not an archive",
        ),
        (
            "other-json",
            foreign("manifest.json", b"{}"),
            "is not an archive",
        ),
        ("newer", foreign("manifest.json", newer), "format 2"),
        (
            "truncated",
            whole[..whole.len() - 10].to_vec(),
            "truncated or damaged",
        ),
        (
            "half",
            whole[..whole.len() / 2].to_vec(),
            "truncated or damaged",
        ),
        (
            "longer",
            [&whole[..], b"garbage"].concat(),
            "truncated or damaged",
        ),
        ("bomb", bomb, "expands from"),
        ("long-name", long_name, "the name of a member is too long"),
    ];
    for (name, bytes, words) in cases {
        let file = to.write(name, bytes);
        let ran = import(&to, &["--trust"], &file);
        assert_eq!(ran.code, Some(1), "{name}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{name}: {}", ran.stderr);
        assert!(ran.stderr.contains(name), "{name}: {}", ran.stderr);
        assert_plain(ran.stderr.as_bytes());
        assert!(!to.path("cache").exists(), "{name}");
    }
    let ran = import(&to, &["--trust"], &to.path("missing"));
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("missing"), "{}", ran.stderr);
}

#[test]
fn each_member_that_is_not_what_it_should_be_is_refused_by_itself() {
    let (_from, to, good) = given();
    let (name, entry) = good.entry();
    let outside = to.path("outside");
    let mut tar = Tar::new();
    tar.file(b"manifest.json", &good.members[0].1);
    let names: [&[u8]; 6] = [
        b"../climbs",
        b"/etc/absolute",
        b"entries/../../climbs.entry",
        b"entries/short.entry",
        b"entries/",
        b"other",
    ];
    for name in names {
        tar.file(name, &entry);
    }
    for name in HOSTILE {
        tar.file(name, &entry);
    }
    let key = |digit: u8| {
        format!("entries/{}.entry", (digit as char).to_string().repeat(64)).into_bytes()
    };
    tar.link(
        EntryType::Symlink,
        &key(b'a'),
        outside.to_str().expect("UTF-8"),
    );
    tar.link(EntryType::Link, &key(b'b'), "/etc/passwd");
    tar.link(EntryType::Char, &key(b'c'), "x");
    tar.link(EntryType::Fifo, &key(b'd'), "x");
    tar.link(EntryType::GNUSparse, &key(b'e'), "x");
    // Not in the manifest.
    tar.file(&key(b'f'), &entry);
    tar.file(name.as_bytes(), &entry);
    tar.file(name.as_bytes(), &entry);
    let before = tree(&to.path(""));
    let file = tar.pack(&to, "archive");
    let ran = import(&to, &["--trust", "--json"], &file);
    assert_eq!(ran.code, Some(1));
    assert_eq!(
        last(&ran),
        format!("1 imported, {} refused", 6 + HOSTILE.len() + 7)
    );
    assert_plain(ran.stderr.as_bytes());
    assert_plain(ran.stdout.as_bytes());
    let json: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let refused = json["refused"].as_array().expect("a list");
    let whys: Vec<&str> = refused
        .iter()
        .map(|one| one["why"].as_str().expect("why"))
        .collect();
    let tail = &whys[6 + HOSTILE.len()..];
    assert_eq!(
        tail,
        [
            "is a link",
            "is a link",
            "is a device",
            "is a FIFO",
            "is a sparse file",
            "the manifest does not list it",
            "it is in the archive twice"
        ]
    );
    let expected = ["archive", "spy.log", "cache"].map(|name| to.path(name));
    let is_new = |path: &&PathBuf| {
        let is_expected = expected.iter().any(|it| path.starts_with(it));
        !before.contains_key(*path) && !is_expected
    };
    let after = tree(&to.path(""));
    assert_eq!(after.keys().find(is_new), None);
    // What was good of it serves.
    assert_eq!(
        to.kernel(Way::Cached, SOURCE, "-DN=1").ok().source_builds(),
        0
    );
}

/// Damaged in ways that its digest in the manifest does not show.
#[test]
fn an_entry_is_believed_only_as_far_as_it_proves_itself() {
    let (_from, to, good) = given();
    let (_, entry) = good.entry();
    let with_checksum = |mut bytes: Vec<u8>| {
        let body = bytes.len() - 16;
        let checksum = xxh3_128(&bytes[..body]).to_le_bytes();
        bytes[body..].copy_from_slice(&checksum);
        bytes
    };
    let flipped = {
        let mut bytes = entry.clone();
        bytes[entry.len() / 2] ^= 1;
        bytes
    };
    // Another key, which the name and the manifest agree on.
    let other = "7".repeat(64);
    let mut renamed = entry.clone();
    renamed[12..44].fill(0x77);
    let cases = [
        (
            "cut",
            entry[..entry.len() - 1].to_vec(),
            None,
            "damaged: wrong checksum",
        ),
        ("flipped", flipped, None, "damaged: wrong checksum"),
        ("empty", Vec::new(), None, "damaged: truncated"),
        (
            "other key",
            with_checksum(renamed),
            Some(other),
            "its key is not the key of its ingredients",
        ),
    ];
    for (what, bytes, key, why) in cases {
        let mut made = Unpacked {
            members: good.members.clone(),
        };
        let last_member = made.members.len() - 1;
        made.members[last_member].1 = bytes;
        if let Some(key) = key {
            let old = made.members[last_member].0[8..72].to_owned();
            made.members[last_member].0 = format!("entries/{key}.entry");
            let manifest = String::from_utf8(made.members[0].1.clone()).expect("UTF-8");
            made.members[0].1 = manifest.replace(&old, &key).into_bytes();
        }
        made.relist();
        let ran = import(&to, &["--trust"], &made.pack(&to, "archive"));
        assert_eq!(
            (ran.code, last(&ran)),
            (Some(1), "0 imported, 1 refused"),
            "{what}"
        );
        assert!(ran.stderr.contains(why), "{what}: {}", ran.stderr);
        assert!(to.entries().is_empty(), "{what}");
    }
    // And what the manifest does not know is not taken, nor what it knows is missed without a word.
    let mut made = good;
    let last_member = made.members.len() - 1;
    made.members.remove(last_member);
    let ran = import(&to, &["--trust"], &made.pack(&to, "archive"));
    assert!(
        ran.stderr
            .contains("the manifest lists it, but the archive lacks it"),
        "{}",
        ran.stderr
    );
    assert_shown(&to, "import-refused", &ran.stderr);
}

#[test]
fn hostile_texts_of_a_program_stand_plainly_in_what_export_says_and_writes() {
    for text in HOSTILE {
        let sandbox = Sandbox::stub();
        // As a name of a directory, of which `..` is none.
        let name = sandbox
            .path("")
            .join(std::ffi::OsStr::from_bytes(&[b"x", text].concat()));
        std::fs::create_dir(&name).expect("made");
        let source = [
            b"// ".as_slice(),
            &text.escape_ascii().to_string().into_bytes(),
            b"\n",
            SOURCE.as_bytes(),
        ]
        .concat();
        let file = sandbox.write("kernel.cl", source);
        let mut command = sandbox.command(Way::Cached, crate::support::example("client"));
        let file = file.to_str().expect("UTF-8");
        command.args([
            "run",
            "--source",
            file,
            "--kernel",
            "f",
            "--options",
            "-DN=1 -I .",
        ]);
        sandbox.run(command.current_dir(&name)).ok();
        let archive = sandbox.path("kernels.tar.zst");
        let archive_name = archive.to_str().expect("UTF-8");
        let ran = sandbox
            .oclcache(&["export", "--yes", "--json", archive_name])
            .ok();
        assert_plain(ran.stderr.as_bytes());
        assert_plain(ran.stdout.as_bytes());
        let unpacked = Unpacked::of(&archive);
        assert_plain(&unpacked.members[0].1);
        serde_json::from_slice::<Value>(&unpacked.members[0].1).expect("JSON");
    }
}

#[test]
fn an_archive_comes_by_pipes_as_well() {
    let (from, to, _) = given();
    let mut export = from.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
    let archive = export.args(["export", "-"]).output().expect("exported");
    assert!(archive.status.success());
    let file = to.write("archive", &archive.stdout);
    let mut command = to.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
    command.args(["import", "--trust", "-"]);
    let input = std::fs::File::open(file).expect("an archive");
    let ran = to.run(command.stdin(Stdio::from(input))).ok();
    assert_eq!(last(&ran), "1 imported, 0 refused");
    let mut command = to.command(Way::Cached, env!("CARGO_BIN_EXE_oclcache"));
    command.args(["import", "--trust", "-"]);
    let ran = to.run(command.stdin(Stdio::null()));
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("standard input"), "{}", ran.stderr);
}

#[test]
fn export_replaces_only_archives_and_leaves_nothing_behind() {
    let (from, _, _) = given();
    let text = from.write("text", "of somebody's");
    let made = from.path("home");
    for target in [&text, &made] {
        let target = target.to_str().expect("UTF-8");
        let ran = from.oclcache(&["export", target]);
        assert_eq!(ran.code, Some(1), "{target}: {}", ran.stderr);
        assert!(ran.stderr.contains(target), "{}", ran.stderr);
    }
    assert_eq!(std::fs::read(&text).expect("read"), b"of somebody's");
    let missing = from.path("missing/kernels.tar.zst");
    let ran = from.oclcache(&["export", missing.to_str().expect("UTF-8")]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("missing"), "{}", ran.stderr);
    export(&from, &[]);
    let left = tree(&from.path(""));
    let left = left
        .keys()
        .find(|path| path.to_string_lossy().contains(".oclcache-export"));
    assert_eq!(left, None);
    // An empty cache is no archive.
    let empty = Sandbox::stub();
    let ran = empty.oclcache(&["export", "x.tar.zst"]);
    assert_eq!(ran.code, Some(1));
    assert!(ran.stderr.contains("the cache is empty"), "{}", ran.stderr);
}
