//! A cache of many entries: what the command remembers of them changes nothing that it shows.

use std::fs;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::support::{SOURCE, Sandbox, Way};

/// Entries of one shard.
const COUNT: usize = 4200;

/// A cache with an entry that the library wrote, and copies of it under other keys. Nothing in it has changed lately.
fn large() -> Sandbox {
    let sandbox = Sandbox::stub();
    sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    let entry = sandbox.entries().pop().expect("an entry");
    let mut bytes = fs::read(entry).expect("read");
    let shard = sandbox.path("cache/v1/entries/ab");
    fs::create_dir_all(&shard).expect("made");
    for number in 0..COUNT {
        let key = format!("ab{number:062x}");
        let digits = (0..32).map(|byte| u8::from_str_radix(&key[2 * byte..][..2], 16));
        let digits: Vec<u8> = digits.map(|byte| byte.expect("digits")).collect();
        // By the grammar of entries.
        bytes[12..44].copy_from_slice(&digits);
        fs::write(shard.join(format!("{key}.entry")), &bytes).expect("written");
    }
    std::thread::sleep(Duration::from_secs(4));
    sandbox
}

fn remembered(sandbox: &Sandbox) -> Vec<PathBuf> {
    let files = ["cache/v1/totals", "cache/v1/heads/ab"].map(|name| sandbox.path(name));
    files.into_iter().filter(|file| file.exists()).collect()
}

/// The lines and rows of `list`, and the size by `stats`.
fn shown(sandbox: &Sandbox) -> (String, Vec<Value>, [u64; 2]) {
    let [list, json, stats] = [&["list"][..], &["list", "--json"], &["stats", "--json"]]
        .map(|line| sandbox.oclcache(line).ok().stdout);
    // Ages change from one call to the next.
    let keys = list.lines().skip(1).map(|line| &line[..16]);
    let mut keys: Vec<&str> = keys.collect();
    keys.sort_unstable();
    let list = keys.join("\n");
    let rows: Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json, format!("{rows:#}\n"), "in the usual form");
    let stats: Value = serde_json::from_str(&stats).expect("JSON");
    let sizes = ["entries", "bytes"].map(|name| stats[name].as_u64().expect("a number"));
    (list, rows.as_array().expect("rows").clone(), sizes)
}

#[test]
fn what_is_remembered_changes_nothing_that_is_shown() {
    let mut sandbox = large();
    sandbox.set("OCLCACHE_READONLY", "1");
    let first = shown(&sandbox);
    assert_eq!(remembered(&sandbox), [] as [PathBuf; 0]);
    sandbox.set("OCLCACHE_READONLY", "0");
    assert_eq!(shown(&sandbox), first);
    assert_eq!(remembered(&sandbox).len(), 2);
    assert_eq!(shown(&sandbox), first);
    let (list, rows, [entries, _]) = &first;
    assert_eq!(list.lines().count(), COUNT + 1);
    assert_eq!((rows.len(), *entries), (COUNT + 1, COUNT as u64 + 1));
    let keys: Vec<&str> = rows.iter().filter_map(|row| row["key"].as_str()).collect();
    assert!(keys.is_sorted());

    // What happens to entries is seen at once.
    let shard = sandbox.path("cache/v1/entries/ab");
    let file = |number: usize| shard.join(format!("ab{number:062x}.entry"));
    fs::write(file(1), "damaged").expect("written");
    fs::remove_file(file(2)).expect("removed");
    sandbox.kernel(Way::Cached, SOURCE, "-DN=2").ok();
    let (list, rows, [entries, _]) = shown(&sandbox);
    assert_eq!(list.lines().count(), COUNT + 1);
    assert_eq!((rows.len(), entries), (COUNT + 1, COUNT as u64 + 1));
    let damaged = rows.iter().filter(|row| row["damaged"] == true);
    let damaged: Vec<_> = damaged.map(|row| &row["key"]).collect();
    assert_eq!(damaged, [&format!("ab{:062x}", 1)]);

    // A hit reads and writes none of it.
    for file in remembered(&sandbox) {
        fs::write(file, "oclc").expect("written");
    }
    let before = remembered(&sandbox).len();
    let ran = sandbox.kernel(Way::Cached, SOURCE, "-DN=1").ok();
    assert_eq!((ran.source_builds(), before), (0, 2));
    for file in remembered(&sandbox) {
        assert_eq!(fs::read(file).expect("read"), b"oclc");
    }

    let ran = sandbox.oclcache(&["gc", "--max-size", "1M"]).ok();
    assert!(ran.stderr.contains("; left: "), "{}", ran.stderr);
    let ran = sandbox.oclcache(&["clear"]);
    assert!(
        ran.stderr.contains("did not remove 1 file"),
        "{}",
        ran.stderr
    );
    fs::remove_file(file(1)).expect("the user's");
    shown(&sandbox);
    assert_eq!(remembered(&sandbox), [] as [PathBuf; 0]);
    assert_eq!(sandbox.oclcache(&["list"]).ok().stdout, "");
}
